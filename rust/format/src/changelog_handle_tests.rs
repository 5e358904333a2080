//! Handles of plain changelogs: round trips, and what is refused.

use super::*;
use crate::crc32c;
use crate::error::ErrorKind;
use crate::model::ObjectRef;
use proptest::prelude::*;

fn handle(sets: u64) -> ChangelogHandle {
    let set = |n: u64| SetRef {
        sequence_number: 5 + n,
        object: ObjectRef { name: format!("log/{:032x}", n / 3), size: 1 << 33, crc: 77 },
        offset: 16 + n * 100,
        length: 100,
        head: 60,
        mark: 0x1234_5678 ^ n as u32,
        records: n,
        payload: 40,
    };
    ChangelogHandle {
        storage: "s3://bucket/log".into(),
        writer: "operator-1".into(),
        key_groups: KeyGroupRange { start: 3, end: 128 },
        from: 5,
        to: 5 + sets,
        checkpoint_id: 9,
        sets: (0..sets).map(set).collect(),
        incremental_size: 123,
    }
}

#[test]
fn h01_h02_a_handle_round_trips_and_stays_small() {
    for sets in [0, 1, 7, 300] {
        let handle = handle(sets);
        let bytes = encode_changelog_handle(&handle);
        assert_eq!(decode_changelog_handle(&bytes).unwrap(), handle);
        assert_eq!(handle.size(), 40 * sets);
    }
    assert!(encode_changelog_handle(&handle(300)).len() < 300 * 28);
}

#[test]
fn a_newer_version_is_told_from_damage() {
    let mut bytes = encode_changelog_handle(&handle(2));
    bytes[4] = 9;
    assert_eq!(decode_changelog_handle(&bytes).unwrap_err().kind(), ErrorKind::Corrupt);
    let end = bytes.len() - 4;
    let crc = crc32c(&bytes[..end]);
    bytes[end..].copy_from_slice(&crc.to_le_bytes());
    let error = decode_changelog_handle(&bytes).unwrap_err();
    assert!(error.kind() == ErrorKind::InvalidArgument && error.message().contains("upgrade"), "{error}");
    assert_eq!(decode_changelog_handle(b"something else").unwrap_err().kind(), ErrorKind::Corrupt);
}

#[test]
fn p9_sets_that_add_up_to_more_than_a_number_are_refused() {
    for change in [|set: &mut SetRef| set.records = u64::MAX, |set: &mut SetRef| set.payload = u64::MAX] {
        let mut handle = handle(3);
        change(&mut handle.sets[1]);
        assert_eq!(decode_changelog_handle(&encode_changelog_handle(&handle)).unwrap_err().kind(), ErrorKind::Corrupt);
    }
}

proptest! {
    #[test]
    fn a05_any_change_of_a_byte_is_found(at: prop::sample::Index, bit in 0u8..8, cut: prop::sample::Index) {
        let good = encode_changelog_handle(&handle(4));
        let mut bad = good.clone();
        bad[at.index(good.len())] ^= 1 << bit;
        prop_assert!(decode_changelog_handle(&bad).is_err());
        prop_assert!(decode_changelog_handle(&good[..cut.index(good.len())]).is_err());
    }

    #[test]
    fn a05_lies_with_a_right_checksum_are_errors_or_handles(mut body in prop::collection::vec(any::<u8>(), 0..200)) {
        let mut bytes = b"FCLC\x01\x00".to_vec();
        bytes.append(&mut body);
        let crc = crc32c(&bytes);
        bytes.extend_from_slice(&crc.to_le_bytes());
        let _ = decode_changelog_handle(&bytes);
    }
}
