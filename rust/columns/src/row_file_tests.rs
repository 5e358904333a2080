use super::*;
use crate::row_gather::key_column;
use crate::row_payload::RowEncoder;
use arrow_array::{ArrayRef, Int64Array};
use arrow_schema::{DataType, Field, Schema};
use fastchangelog_format::ErrorKind;
use std::sync::Arc;

fn format() -> Arc<RowFormat> {
    Arc::new(RowFormat::new(1, &Schema::new(vec![Field::new("n", DataType::Int64, true)])).unwrap())
}

fn message(values: Vec<i64>) -> Vec<u8> {
    let keys = vec![&b"key"[..]; values.len()];
    let keys = key_column(keys.into_iter()).unwrap();
    let columns = vec![Arc::new(Int64Array::from(values)) as ArrayRef];
    RowEncoder::new(format()).unwrap().message(RowBlock { columns, keys }).unwrap()
}

#[test]
fn frames_come_back_and_the_folder_stays_empty() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("made/when/needed");
    let mut file = RunFile::create(&folder).unwrap();
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 0, "the file has no name from its beginning");
    for n in 0..3 {
        file.append(&message(vec![n; 100])).unwrap();
    }
    let mut range = 0..file.end();
    for n in 0..3 {
        let block = file.read(&mut range, &format()).unwrap();
        assert_eq!(block.columns[0].as_ref(), &Int64Array::from(vec![n; 100]));
    }
    assert!(range.is_empty());
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 0);
}

#[test]
fn a_damaged_file_is_reported_and_never_read_as_rows() {
    let dir = tempfile::tempdir().unwrap();
    let mut file = RunFile::create(dir.path()).unwrap();
    let good = message((0..30).collect());
    file.append(&good).unwrap();
    let bytes = file.end();
    let check = |file: &RunFile, end: u64| {
        let error = file.read(&mut (0..end), &format()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Retryable);
        assert!(error.message().contains("at byte 0") && error.message().contains("disk"), "{error}");
        assert_eq!(error.subject(), Some(&Subject::Path(dir.path().to_owned())));
    };
    for at in (0..bytes).step_by(5) {
        let mut was = [0];
        file.file.read_exact_at(&mut was, at).unwrap();
        file.file.write_all_at(&[was[0] ^ 0x41], at).unwrap();
        check(&file, bytes);
        file.file.write_all_at(&was, at).unwrap();
    }
    check(&file, bytes - 1);
    // The checksum is right, and the message is none.
    let mut file = RunFile::create(dir.path()).unwrap();
    file.append(&good[..good.len() - 8]).unwrap();
    check(&file, file.end());
    file.file.set_len(20).unwrap();
    check(&file, file.end());
}

#[test]
fn a_folder_that_cannot_be_written_is_named_with_the_option() {
    let dir = tempfile::tempdir().unwrap();
    let blocked = dir.path().join("a file");
    std::fs::write(&blocked, b"").unwrap();
    let error = RunFile::create(&blocked).unwrap_err();
    for part in [blocked.to_str().unwrap(), "spark.local.dir", "worker_memory"] {
        assert!(error.message().contains(part), "{error}");
    }
    assert_eq!(error.kind(), ErrorKind::Retryable);
}

#[test]
fn a_full_disk_is_named_with_the_option() {
    let Ok(device) = OpenOptions::new().write(true).read(true).open("/dev/full") else { return };
    let mut file = RunFile { file: device, dir: PathBuf::from("/some/folder"), end: 0 };
    let error = file.append(&message(vec![1])).unwrap_err();
    for part in ["/some/folder", "No space left on device", "spark.local.dir", "worker_memory"] {
        assert!(error.message().contains(part), "{error}");
    }
    assert_eq!(error.subject(), Some(&Subject::Path("/some/folder".into())));
}
