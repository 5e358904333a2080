//! Round trips of change sets and log objects, ranges of key groups, and what encoding refuses.

use super::super::object::{FILE_HEADER_LEN, decode_file, file_footer, file_header};
use super::super::set::*;
use super::*;
use crate::Crc;
use crate::error::ErrorKind;
use crate::model::{Change, Op, StateId};
use proptest::collection::vec;
use proptest::prelude::*;

const ALL: [Compression; 3] = [Compression::None, Compression::Lz4, Compression::Zstd];

fn any_set() -> impl Strategy<Value = ChangeSet> {
    let op = prop_oneof![8 => Just(Op::Put), 1 => Just(Op::Delete), 1 => Just(Op::DeletePrefix)];
    let value = prop_oneof![4 => vec(any::<u8>(), 16), 2 => vec(0u8..3, 0..60), 1 => vec(any::<u8>(), 0..300)];
    let key = prop_oneof![4 => vec(any::<u8>(), 9), 1 => vec(any::<u8>(), 0..40)];
    let record = (
        op,
        prop_oneof![3 => Just(0u16), 1 => any::<u16>()],
        prop_oneof![3 => 0u16..20, 1 => 0u16..32_768],
        key,
        value,
    );
    vec(record, 0..200).prop_map(|records| {
        let mut set = ChangeSet::default();
        for (op, state, group, key, value) in &records {
            let value: &[u8] = if *op == Op::Put { value } else { &[] };
            set.push(Change { op: *op, state: StateId(*state), key_group: KeyGroup(*group), key, value });
        }
        set.sort_by_key_group();
        set
    })
}

fn records(set: &ChangeSet) -> Vec<Change<'_>> {
    set.iter().collect()
}

fn only(set: &ChangeSet, groups: KeyGroupRange) -> Vec<Change<'_>> {
    set.iter().filter(|c| groups.contains(c.key_group)).collect()
}

proptest! {
    #[test]
    fn p10_sets_round_trip(set in any_set(), block in 1usize..2000, at in any::<u64>()) {
        for compression in ALL {
            let bytes = encode_set_in_blocks(&set, compression, block).unwrap().to_bytes();
            let back = decode_set("log/x", at, &bytes).unwrap();
            prop_assert_eq!(records(&back), records(&set));
        }
    }

    #[test]
    fn j01_ranges_hold_exactly_their_key_groups(set in any_set(), block in 1usize..2000, a in 0u16..25, b in any::<u16>()) {
        for groups in [KeyGroupRange { start: a, end: b }, KeyGroupRange { start: a, end: a.saturating_add(2) }] {
            let bytes = encode_set_in_blocks(&set, Compression::Lz4, block).unwrap().to_bytes();
            let whole = decode_set_range("log/x", 7, &bytes, groups).unwrap();
            prop_assert_eq!(records(&whole), only(&set, groups));

            // the same by ranged reads: header, index, then only the bytes of the chosen blocks
            let header = decode_set_header("log/x", 7, &bytes[..SET_HEADER_LEN]).unwrap();
            let index = decode_set_index("log/x", 7, &bytes[..header.index_end() as usize]).unwrap();
            let range = bytes_of_groups(&index, groups);
            let mut part = ChangeSet::default();
            let fetched = &bytes[range.start as usize..range.end as usize];
            decode_blocks(&index, "log/x", 7, range.start, fetched, groups, &mut part).unwrap();
            prop_assert_eq!(records(&part), only(&set, groups));
        }
    }

    #[test]
    fn p9_any_bytes_are_an_error(bytes in vec(any::<u8>(), 0..300)) {
        prop_assert!(decode_set("log/x", 0, &bytes).is_err());
        prop_assert!(decode_file("log/x", &bytes).is_err());
    }
}

#[test]
fn p9_a_key_group_that_cannot_exist_is_neither_written_nor_read() {
    let set_of = |group| {
        let mut set = ChangeSet::default();
        let change = Change { op: Op::Put, state: StateId(0), key_group: KeyGroup(group), key: b"k", value: b"v" };
        set.push(change);
        encode_set(&set, Compression::None)
    };
    let mut bytes = set_of(32_767).unwrap().to_bytes().to_vec();
    assert_eq!(decode_set("log/x", 0, &bytes).unwrap().len(), 1);
    assert_eq!(set_of(32_768).unwrap_err().kind(), ErrorKind::Internal);
    // The index's last number, and the checksums over it.
    bytes[SET_HEADER_LEN + 2..SET_HEADER_LEN + 4].copy_from_slice(&32_768_u16.to_le_bytes());
    let index = crc32c(&bytes[SET_HEADER_LEN..SET_HEADER_LEN + INDEX_ENTRY_LEN]).to_le_bytes();
    bytes[32..36].copy_from_slice(&index);
    let header = crc32c(&bytes[..36]).to_le_bytes();
    bytes[36..40].copy_from_slice(&header);
    let error = decode_set("log/x", 0, &bytes).unwrap_err();
    assert!(error.kind() == ErrorKind::Corrupt && error.message().contains("index"), "{error}");
}

fn numbers(n: u64, groups: u16) -> ChangeSet {
    let mut set = ChangeSet::default();
    for i in 0..n {
        let key = i.to_be_bytes();
        let group = KeyGroup((i % u64::from(groups)) as u16);
        set.push(Change { op: Op::Put, state: StateId(0), key_group: group, key: &key, value: &[7; 40] });
    }
    set.sort_by_key_group();
    set
}

#[test]
fn large_sets_are_cut_into_blocks_of_the_target_size() {
    let set = numbers(50_000, 128);
    for compression in ALL {
        let bytes = encode_set(&set, compression).unwrap().to_bytes();
        let index = decode_set_index("log/x", 0, &bytes).unwrap();
        assert!(index.blocks.len() >= 9 && index.blocks.iter().all(|b| b.raw_length as usize <= BLOCK_TARGET + 64));
        let part = KeyGroupRange { start: 60, end: 62 };
        assert!(index.blocks_of(part.start..part.end).len() <= 2, "a few key groups are in a few blocks");
        assert_eq!(records(&decode_set("log/x", 0, &bytes).unwrap()), records(&set));
        if compression != Compression::None {
            assert!(bytes.len() as u64 * 2 < set.payload_bytes(), "{compression:?}: {} bytes", bytes.len());
        }
    }
}

#[test]
fn fixed_size_records_cost_no_lengths() {
    let set = numbers(1000, 1);
    let bytes = encode_set(&set, Compression::None).unwrap().to_bytes();
    assert!(
        bytes.len() as u64 - set.payload_bytes() < 100,
        "{} bytes of overhead",
        bytes.len() as u64 - set.payload_bytes()
    );
}

#[test]
fn a_record_larger_than_a_block_is_one_block() {
    let value: Vec<u8> = (0..1_000_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    for compression in ALL {
        let mut set = numbers(10, 1);
        set.push(Change { op: Op::Put, state: StateId(0), key_group: KeyGroup(1), key: b"big", value: &value });
        set.push(Change { op: Op::Put, state: StateId(0), key_group: KeyGroup(2), key: b"small", value: b"v" });
        let bytes = encode_set(&set, compression).unwrap().to_bytes();
        assert_eq!(decode_set_index("x", 0, &bytes).unwrap().blocks.len(), 3);
        assert_eq!(records(&decode_set("x", 0, &bytes).unwrap()), records(&set));
    }
}

#[test]
fn p5_order_inside_a_key_group_is_kept() {
    let mut set = ChangeSet::default();
    for (op, key) in [(Op::DeletePrefix, b"k"), (Op::Put, b"k"), (Op::Delete, b"j")] {
        set.push(Change {
            op,
            state: StateId(3),
            key_group: KeyGroup(5),
            key,
            value: if op == Op::Put { b"v" } else { b"" },
        });
    }
    assert_eq!(
        records(&decode_set("x", 0, &encode_set(&set, Compression::Zstd).unwrap().to_bytes()).unwrap()),
        records(&set)
    );
}

#[test]
fn empty_sets_and_empty_records() {
    let empty = ChangeSet::default();
    let bytes = encode_set(&empty, Compression::Zstd).unwrap().to_bytes();
    assert_eq!(bytes.len(), SET_HEADER_LEN);
    assert!(decode_set("x", 0, &bytes).unwrap().is_empty());
    let mut set = ChangeSet::default();
    for _ in 0..10 {
        set.push(Change { op: Op::Put, state: StateId(0), key_group: KeyGroup(0), key: b"", value: b"" });
    }
    assert_eq!(decode_set("x", 0, &encode_set(&set, Compression::Zstd).unwrap().to_bytes()).unwrap().len(), 10);
}

#[test]
fn a_set_that_is_not_grouped_is_refused() {
    let mut set = ChangeSet::default();
    for group in [2, 1] {
        set.push(Change { op: Op::Put, state: StateId(0), key_group: KeyGroup(group), key: b"k", value: b"v" });
    }
    assert_eq!(encode_set(&set, Compression::None).unwrap_err().kind(), ErrorKind::Internal);
}

fn log_object(sets: &[ChangeSet]) -> (Vec<u8>, Vec<(u64, u64)>) {
    let mut object = file_header().to_vec();
    let mut places = Vec::new();
    for set in sets {
        let bytes = encode_set(set, Compression::Zstd).unwrap().to_bytes();
        places.push((object.len() as u64, bytes.len() as u64));
        object.extend_from_slice(&bytes);
    }
    let mut crc = Crc::new();
    crc.update(&object);
    object.extend_from_slice(&file_footer(&places, crc.value()));
    (object, places)
}

#[test]
fn log_objects_list_their_sets() {
    let sets = [numbers(100, 7), ChangeSet::default(), numbers(3, 1)];
    let (object, places) = log_object(&sets);
    assert_eq!(decode_file("log/x", &object).unwrap(), places);
    for (set, (offset, length)) in sets.iter().zip(&places) {
        let bytes = &object[*offset as usize..][..*length as usize];
        assert_eq!(records(&decode_set("log/x", *offset, bytes).unwrap()), records(set));
    }
    let (empty, _) = log_object(&[]);
    assert!(decode_file("log/x", &empty).unwrap().is_empty());
}

#[test]
fn p9_errors_name_object_and_offset_in_the_object() {
    let (object, places) = log_object(&[numbers(100, 7), numbers(100, 7)]);
    let (offset, length) = places[1];
    let mut bytes = object[offset as usize..][..length as usize].to_vec();
    let block = decode_set_index("log/x", offset, &bytes).unwrap().blocks[0];
    bytes[block.offset as usize + 3] ^= 1;
    let error = decode_set("log/x", offset, &bytes).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    let text = error.to_string();
    assert!(text.contains("log/x") && text.contains(&format!("at byte {}", offset + block.offset)), "{text}");
}

#[test]
fn newer_versions_are_no_damage_and_name_both_versions() {
    let fix = |bytes: &mut [u8], end: usize| {
        let crc = crc32c(&bytes[..end]).to_le_bytes();
        bytes[end..end + 4].copy_from_slice(&crc);
    };
    let mut set = encode_set(&numbers(3, 1), Compression::None).unwrap().to_bytes().to_vec();
    set[4] = 9;
    assert_eq!(decode_set("log/x", 0, &set).unwrap_err().kind(), ErrorKind::Corrupt);
    fix(&mut set, SET_HEADER_LEN - 4);
    let (mut file, _) = log_object(&[]);
    file[4] = 9;
    fix(&mut file, FILE_HEADER_LEN - 4);
    for error in [decode_set("log/x", 0, &set).unwrap_err(), decode_file("log/x", &file).unwrap_err()] {
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        let text = error.to_string();
        assert!(text.contains("log/x") && text.contains("version 9") && text.contains("up to 1"), "{text}");
    }
}

#[test]
fn an_entry_beyond_the_longest_record_is_refused_by_its_length() {
    let longest = usize::try_from(MAX_RECORD).unwrap();
    check_records(longest, [longest].into_iter()).unwrap();
    check_records(5 * longest, [longest, 7, longest].into_iter()).unwrap();
    let error = check_records(longest + 8, [7, longest + 1].into_iter()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(
        error.message().contains(&format!("{} bytes exceeds the limit of {MAX_RECORD}", MAX_RECORD + 1)),
        "{error}"
    );
}

proptest! {
    #[test]
    fn records_one_by_one_are_those_of_the_set(set in any_set(), block in 1usize..2000, a in 0u16..25, b in any::<u16>()) {
        let bytes = encode_set_in_blocks(&set, Compression::Zstd, block).unwrap().to_bytes();
        let groups = KeyGroupRange { start: a, end: b };
        let mut found = ChangeSet::default();
        for_each_in_set("log/x", 7, &bytes, groups, &mut into(&mut found)).unwrap();
        prop_assert_eq!(records(&found), only(&set, groups));
        let expected = found.len();
        let mut left = expected;
        let mut sink = |_: Change<'_>| match left {
            0 | 1 => Err(Error::closed("enough")),
            _ => { left -= 1; Ok(()) }
        };
        let ended = for_each_in_set("log/x", 7, &bytes, groups, &mut sink);
        prop_assert_eq!(ended.is_err(), expected > 0, "the error of the sink ends it");
        let index = decode_set_index("log/x", 7, &bytes).unwrap();
        let blocks = 0..index.blocks.len();
        check_blocks(&index, "log/x", 7, 0, &bytes, blocks.clone()).unwrap();
        let mut parts = ChangeSet::default();
        for block in blocks {
            decode_some_blocks(&index, "log/x", 7, 0, &bytes, block..block + 1, Some(groups), &mut parts).unwrap();
        }
        prop_assert_eq!(records(&parts), only(&set, groups));
    }
}
