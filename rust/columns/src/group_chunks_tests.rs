use super::*;
use fastchangelog_format::ErrorKind;

type Groups = Vec<(Vec<u8>, Vec<u8>)>;

fn write(file: &mut SpillFile, groups: &Groups) -> Range<u64> {
    let mut writer = GroupWriter::new(file);
    let start = writer.cut().unwrap();
    for (key, row) in groups {
        writer.push(key, row.len(), |out| out.extend_from_slice(row)).unwrap();
    }
    start..writer.cut().unwrap()
}

fn read(file: &SpillFile, range: Range<u64>) -> Result<Groups> {
    let mut found = Groups::new();
    read_groups(file, range, &mut |groups| {
        found.extend(groups.iter().map(|(key, row)| (key.to_vec(), row.to_vec())));
        Ok(true)
    })?;
    Ok(found)
}

fn groups(n: usize, length: usize) -> Groups {
    (0..n).map(|i| (i.to_be_bytes()[..i % 9].to_vec(), vec![i.to_le_bytes()[0]; (i * 37) % (length + 1)])).collect()
}

#[test]
fn groups_come_back_in_order_whatever_their_length() {
    let dir = tempfile::tempdir().unwrap();
    let mut file = SpillFile::create(dir.path(), "memory_budget").unwrap();
    let all = [groups(0, 1), groups(1, 0), groups(20_000, 90), groups(3, 3_000_000), groups(500, 1_000)];
    let ranges: Vec<_> = all.iter().map(|groups| write(&mut file, groups)).collect();
    for (groups, range) in all.iter().zip(&ranges) {
        assert!(read(&file, range.clone()).unwrap() == *groups);
    }
    assert_eq!(file.end(), ranges.last().unwrap().end);
    let together = read(&file, 0..file.end()).unwrap();
    assert!(together == all.concat());
    let mut calls = 0;
    let whole = read_groups(&file, 0..file.end(), &mut |_| {
        calls += 1;
        Ok(calls < 3)
    });
    assert_eq!((whole.unwrap(), calls), (false, 3), "a reader that has enough ends it");
}

#[test]
fn a_chunk_that_contradicts_itself_is_never_read_as_groups() {
    let dir = tempfile::tempdir().unwrap();
    let group = [&3u32.to_le_bytes()[..], &2u32.to_le_bytes(), b"keyro"].concat();
    for length in 1..group.len() {
        let mut file = SpillFile::create(dir.path(), "memory_budget").unwrap();
        file.append(&[&group, &group[..length]].concat()).unwrap();
        let error = read(&file, 0..file.end()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Retryable);
        assert!(error.message().contains("at byte 0: a chunk contradicts itself"), "{error}");
    }
}

#[test]
fn an_error_of_the_reader_is_passed_on_as_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let mut file = SpillFile::create(dir.path(), "memory_budget").unwrap();
    let range = write(&mut file, &groups(10, 10));
    let error = read_groups(&file, range, &mut |_| Err(Error::retryable("enough"))).unwrap_err();
    assert_eq!((error.kind(), error.message()), (ErrorKind::Retryable, "enough"));
}
