//! Notes of folders: readable, and refused after any edit.

use super::*;
use crate::error::ErrorKind;

const NAME: &str = "s3://b/q/default/_fastchangelog.json";

fn note() -> FolderNote {
    FolderNote {
        query_id: "b9ba…".to_owned(),
        name: "default".to_owned(),
        shards: 4,
        max_parallelism: 128,
        sweep_grace_seconds: 86_400,
        start_from: Some(("s3://b/savepoint".to_owned(), "00ff".to_owned())),
    }
}

#[test]
fn a_note_is_read_as_it_was_written_and_can_be_read_by_people() {
    for start_from in [None, note().start_from] {
        let note = FolderNote { start_from, ..note() };
        let bytes = encode_note(&note).unwrap();
        assert_eq!(decode_note(NAME, &bytes).unwrap(), note);
        let text = std::str::from_utf8(&bytes).unwrap();
        assert!(text.contains("\n  \"max_parallelism\": 128,\n"), "{text}");
    }
}

#[test]
fn a_note_of_a_start_is_read_as_it_was_written() {
    for checkpoint in [None, Some("s3a://b/checkpoint ä".to_owned())] {
        for gone in [false, true] {
            let start = StartNote { checkpoint: checkpoint.clone(), gone };
            let bytes = encode_start(&start).unwrap();
            assert_eq!(decode_start(NAME, &bytes).unwrap(), start);
            let damaged = std::str::from_utf8(&bytes).unwrap().replace("\"gone\"", "\"none\"");
            assert_eq!(decode_start(NAME, damaged.as_bytes()).unwrap_err().kind(), ErrorKind::Corrupt);
        }
    }
}

#[test]
fn a_note_that_was_indented_anew_is_good() {
    let bytes = encode_note(&note()).unwrap();
    let value: serde_json::Value = serde_json::from_slice(&bytes).unwrap();
    assert_eq!(decode_note(NAME, value.to_string().as_bytes()).unwrap(), note());
}

#[test]
fn p9_no_change_of_a_single_byte_is_read_as_another_note() {
    let good = encode_note(&note()).unwrap();
    for at in 0..good.len() {
        for flip in [0x01, 0x08, 0x20, 0x80] {
            let mut bytes = good.to_vec();
            bytes[at] ^= flip;
            if let Ok(read) = decode_note(NAME, &bytes) {
                assert_eq!(read, note(), "byte {at} ^ {flip:#x}: only white space may change");
            }
        }
        let cut = decode_note(NAME, &good[..at]).err().map(|error| (error.kind(), error.message().contains(NAME)));
        // Only the line's end may be missing.
        assert!(cut == Some((ErrorKind::Corrupt, true)) || at == good.len() - 1, "cut at {at}");
    }
}

#[test]
fn a_note_of_another_format_is_no_damage_and_names_the_remedy() {
    for format in ["1", "3", "400"] {
        let text = format!(r#"{{"format": {format}, "query_id": "q", "name": "default", "shards": 1}}"#);
        let error = decode_note(NAME, text.as_bytes()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
        assert!(error.message().contains(NAME) && error.message().contains("use the version that wrote it"), "{error}");
    }
}

#[test]
fn p9_what_is_no_note_is_reported_with_its_name() {
    let mut long = encode_note(&note()).unwrap().to_vec();
    long.resize(MAX_NOTE as usize + 1, b' ');
    let no_checksum: &[u8] = br#"{"format": 2, "query_id": "q", "name": "n", "shards": 1}"#;
    let deep = [br#"{"format": "#.to_vec(), vec![b'['; 1 << 16]].concat();
    for bytes in [&b""[..], b"{", b"[]", b"{}", b"\xff", br#"{"format": "2"}"#, no_checksum, &long, &deep] {
        let error = decode_note(NAME, bytes).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
        assert!(error.message().contains(NAME), "{error}");
    }
}
