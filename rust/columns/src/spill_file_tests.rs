use super::*;
use fastchangelog_format::ErrorKind;

fn read(file: &SpillFile, range: &mut Range<u64>) -> Result<Vec<u8>> {
    file.read(range, |body| Ok(body.to_vec()))
}

#[test]
fn chunks_come_back_and_the_folder_stays_empty() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("made/when/needed");
    let mut file = SpillFile::create(&folder, "memory_budget").unwrap();
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 0, "the file has no name from its beginning");
    let chunks = [vec![7; 100], Vec::new(), vec![9; 3_000_000], b"last".to_vec()];
    for chunk in &chunks {
        file.append(chunk).unwrap();
    }
    let mut range = 0..file.end();
    for chunk in &chunks {
        assert!(read(&file, &mut range).unwrap() == *chunk);
    }
    assert!(range.is_empty());
    let another = file.another().unwrap();
    assert_eq!((another.end(), std::fs::read_dir(&folder).unwrap().count()), (0, 0));
}

#[test]
fn a_folder_that_is_gone_takes_nothing_from_an_open_file() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("spill");
    let mut file = SpillFile::create(&folder, "memory_budget").unwrap();
    file.append(b"before").unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
    file.append(b"after").unwrap();
    let mut range = 0..file.end();
    assert_eq!([read(&file, &mut range).unwrap(), read(&file, &mut range).unwrap()], [&b"before"[..], b"after"]);
    drop(file);
    assert!(!folder.exists());
}

#[test]
fn a_damaged_file_is_reported_and_never_read_as_chunks() {
    let dir = tempfile::tempdir().unwrap();
    let mut file = SpillFile::create(dir.path(), "memory_budget").unwrap();
    file.append(&[5; 900]).unwrap();
    let bytes = file.end();
    let check = |file: &SpillFile, end: u64| {
        let mut range = 0..end;
        let error = read(file, &mut range).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Retryable);
        for part in ["at byte 0", dir.path().to_str().unwrap(), "spark.local.dir"] {
            assert!(error.message().contains(part), "{error}");
        }
        assert_eq!(error.subject(), Some(&Subject::Path(dir.path().to_owned())));
    };
    for at in 0..bytes {
        let mut was = [0];
        file.file.read_exact_at(&mut was, at).unwrap();
        file.file.write_all_at(&[was[0] ^ 0x41], at).unwrap();
        check(&file, bytes);
        file.file.write_all_at(&was, at).unwrap();
    }
    check(&file, bytes - 1);
    assert_eq!(read(&file, &mut (0..bytes)).unwrap(), [5; 900]);
    // The checksum is right, and the body makes no sense to its reader.
    let refused: Result<()> = file.read(&mut (0..bytes), |_| Err("not a message".into()));
    let error = refused.unwrap_err();
    assert!(error.message().contains("at byte 0: not a message"), "{error}");
    file.file.set_len(bytes / 2).unwrap();
    check(&file, bytes);
}

#[test]
fn a_folder_that_cannot_be_written_is_named_with_the_option() {
    let dir = tempfile::tempdir().unwrap();
    let blocked = dir.path().join("a file");
    std::fs::write(&blocked, b"").unwrap();
    for option in ["memory_budget", "worker_memory"] {
        let error = SpillFile::create(&blocked, option).unwrap_err();
        for part in [blocked.to_str().unwrap(), "spark.local.dir", option] {
            assert!(error.message().contains(part), "{error}");
        }
        assert_eq!(error.kind(), ErrorKind::Retryable);
    }
}

#[test]
fn a_full_disk_is_named_with_the_option() {
    let Ok(device) = OpenOptions::new().write(true).read(true).open("/dev/full") else { return };
    let mut file = SpillFile { file: device, dir: PathBuf::from("/some/folder"), option: "worker_memory", end: 0 };
    let error = file.append(b"chunk").unwrap_err();
    for part in ["/some/folder", "No space left on device", "spark.local.dir", "worker_memory"] {
        assert!(error.message().contains(part), "{error}");
    }
    assert_eq!(error.subject(), Some(&Subject::Path("/some/folder".into())));
}
