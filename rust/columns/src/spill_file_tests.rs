use super::*;
use fastchangelog_format::ErrorKind;

type Rows = Vec<(Vec<u8>, Vec<u8>)>;

fn write(file: &mut SpillFile, rows: &[(Vec<u8>, Vec<u8>)]) -> Range<u64> {
    let mut writer = file.writer();
    let start = writer.cut().unwrap();
    for (key, row) in rows {
        writer.push(key, row.len(), |out| out.extend_from_slice(row)).unwrap();
    }
    start..writer.finish().unwrap()
}

fn read(file: &SpillFile, range: Range<u64>) -> Result<Rows> {
    let mut found = Rows::new();
    file.read(range, &mut |rows| {
        found.extend(rows.iter().map(|(key, row)| (key.to_vec(), row.to_vec())));
        Ok(true)
    })?;
    Ok(found)
}

fn rows(n: usize, length: usize) -> Rows {
    (0..n).map(|i| (i.to_be_bytes()[..i % 9].to_vec(), vec![i.to_le_bytes()[0]; (i * 37) % (length + 1)])).collect()
}

#[test]
fn rows_come_back_in_order_whatever_their_length() {
    let dir = tempfile::tempdir().unwrap();
    let mut file = SpillFile::create(&dir.path().join("made/when/needed")).unwrap();
    let all = [rows(0, 1), rows(1, 0), rows(20_000, 90), rows(3, 3_000_000), rows(500, 1_000)];
    let ranges: Vec<_> = all.iter().map(|rows| write(&mut file, rows)).collect();
    for (rows, range) in all.iter().zip(&ranges) {
        assert!(read(&file, range.clone()).unwrap() == *rows);
    }
    assert_eq!(file.bytes(), ranges.last().unwrap().end);
    let together = read(&file, 0..file.bytes()).unwrap();
    assert!(together == all.concat());
    let mut calls = 0;
    let whole = file.read(0..file.bytes(), &mut |_| {
        calls += 1;
        Ok(calls < 3)
    });
    assert_eq!((whole.unwrap(), calls), (false, 3), "a reader that has enough ends it");
}

#[test]
fn a_damaged_file_is_reported_and_never_read_as_rows() {
    let dir = tempfile::tempdir().unwrap();
    let mut file = SpillFile::create(dir.path()).unwrap();
    let range = write(&mut file, &rows(300, 20));
    let good = std::fs::read(&file.path).unwrap();
    let path = file.path.clone();
    for at in (0..good.len()).step_by(7).chain([0, 1, 3, 4, 8, 11]) {
        let mut bad = good.clone();
        bad[at] ^= 0x41;
        std::fs::write(&path, &bad).unwrap();
        // The number of rows is beside the checksum: it may lie only about how many bytes are rows.
        let error = read(&file, range.clone()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Retryable);
        assert!(error.message().contains(path.to_str().unwrap()) && error.message().contains("at byte"), "{error}");
        assert!(error.message().contains("spark.local.dir"), "{error}");
    }
    std::fs::write(&path, &good[..good.len() / 2]).unwrap();
    assert!(read(&file, range.clone()).is_err(), "cut off");
    std::fs::write(&path, &good).unwrap();
    assert!(read(&file, range).unwrap() == rows(300, 20));
}

#[test]
fn the_file_goes_with_its_owner_and_a_folder_that_is_gone_is_no_failure() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("spill");
    let mut file = SpillFile::create(&folder).unwrap();
    write(&mut file, &rows(10, 10));
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 1);
    drop(file);
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 0);
    let file = SpillFile::create(&folder).unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
    drop(file);
}

#[test]
fn a_folder_that_cannot_be_written_is_named_with_the_options() {
    let dir = tempfile::tempdir().unwrap();
    let blocked = dir.path().join("a file");
    std::fs::write(&blocked, b"").unwrap();
    let error = SpillFile::create(&blocked).unwrap_err();
    for part in [blocked.to_str().unwrap(), "spark.local.dir", "memory_budget"] {
        assert!(error.message().contains(part), "{error}");
    }
    assert_eq!(error.kind(), ErrorKind::Retryable);
}

#[test]
fn a_full_disk_is_named_with_the_options() {
    let full = Path::new("/dev/full");
    let Ok(device) = OpenOptions::new().write(true).read(true).open(full) else { return };
    // Never removed: the path of this file is not the device's.
    let mut file = SpillFile { file: device, path: PathBuf::from("/nowhere/spill/rows"), end: 0 };
    let mut writer = file.writer();
    writer.push(b"key", 3, |out| out.extend_from_slice(b"row")).unwrap();
    let error = writer.finish().unwrap_err();
    for part in ["/nowhere/spill/rows", "No space left on device", "spark.local.dir", "memory_budget"] {
        assert!(error.message().contains(part), "{error}");
    }
}
