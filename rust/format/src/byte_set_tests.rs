//! Sets of a plain changelog: round trips, parts, no copies, and damage.

use super::*;
use crate::error::ErrorKind;
use crate::set::decode_set_index;
use proptest::prelude::*;

const NAME: &str = "log/x";
const AT: u64 = 5 << 30;

fn blocks(appends: &[(u16, Vec<u8>)], per_block: usize) -> Vec<ByteBlock> {
    let mut sorted = appends.to_vec();
    sorted.sort_by_key(|(lane, _)| *lane);
    let chunks = sorted.chunks(per_block.max(1)).map(|chunk| {
        let mut block = ByteBlock::default();
        chunk.iter().for_each(|(lane, value)| block.push(*lane, value));
        block
    });
    chunks.collect()
}

fn decode(bytes: &Bytes, wanted: &Wanted) -> Result<Vec<(u16, Vec<u8>)>> {
    let index = decode_set_index(NAME, AT, bytes)?;
    let from = SetBytes { object: NAME, offset_in_object: AT, start: 0, bytes };
    let columns = decode_columns(&index, from)?;
    let records = decode_byte_blocks(&index, &columns, from, 0..index.blocks.len(), wanted)?;
    Ok(records.iter().map(|(lane, value)| (lane.0, value.to_vec())).collect())
}

fn appends() -> impl Strategy<Value = Vec<(u16, Vec<u8>)>> {
    let value =
        prop_oneof![3 => Just(vec![7; 12]), 2 => prop::collection::vec(any::<u8>(), 0..50), 1 => Just(Vec::new())];
    prop::collection::vec((0u16..12, value), 0..60)
}

proptest! {
    #[test]
    fn f02_all_or_some_lanes_are_read_as_written(appends in appends(), per_block in 1usize..40, start in 0u16..12, width in 0u16..12, meta: bool) {
        let mut sorted = appends.clone();
        sorted.sort_by_key(|(lane, _)| *lane);
        let wanted = Wanted { meta, lanes: start..start + width };
        let part: Vec<_> = sorted.iter().filter(|(lane, _)| wanted.contains(*lane)).cloned().collect();
        for compression in [Compression::None, Compression::Lz4, Compression::Zstd] {
            let set = encode_byte_set(blocks(&appends, per_block), compression, &Bytes::from).unwrap();
            let bytes = set.to_bytes();
            prop_assert_eq!(set.length, bytes.len() as u64);
            prop_assert_eq!(&decode(&bytes, &Wanted::ALL).unwrap(), &sorted);
            prop_assert_eq!(&decode(&bytes, &wanted).unwrap(), &part);
        }
    }

    #[test]
    fn a05_any_change_of_a_byte_and_any_cut_is_found(appends in appends(), at: prop::sample::Index, bit in 0u8..8, zstd: bool) {
        let compression = if zstd { Compression::Zstd } else { Compression::None };
        let good = encode_byte_set(blocks(&appends, 7), compression, &Bytes::from).unwrap().to_bytes();
        let mut bad = good.to_vec();
        bad[at.index(good.len())] ^= 1 << bit;
        prop_assert!(decode(&bad.into(), &Wanted::ALL).is_err());
        let cut = good.slice(..at.index(good.len()));
        prop_assert!(decode(&cut, &Wanted::ALL).is_err());
    }

    #[test]
    fn a05_lies_in_the_columns_are_errors_or_records(appends in appends(), at: prop::sample::Index, byte: u8) {
        let good = encode_byte_set(blocks(&appends, 7), Compression::None, &Bytes::from).unwrap().to_bytes();
        let index = decode_set_index(NAME, AT, &good).unwrap();
        let from = SetBytes { object: NAME, offset_in_object: AT, start: 0, bytes: &good };
        let mut columns = decode_columns(&index, from).unwrap();
        if !columns.is_empty() {
            let at = at.index(columns.len());
            columns[at] = byte;
        }
        let _ = decode_byte_blocks(&index, &columns, from, 0..index.blocks.len(), &Wanted::ALL);
    }
}

#[test]
fn values_of_an_uncompressed_set_are_not_copied() {
    let appends: Vec<(u16, Vec<u8>)> = (0..100).map(|i| (i / 10, vec![1; 50])).collect();
    let bytes = encode_byte_set(blocks(&appends, 30), Compression::None, &Bytes::from).unwrap().to_bytes();
    let index = decode_set_index(NAME, 0, &bytes).unwrap();
    let from = SetBytes { object: NAME, offset_in_object: 0, start: 0, bytes: &bytes };
    let columns = decode_columns(&index, from).unwrap();
    let records = decode_byte_blocks(&index, &columns, from, 0..index.blocks.len(), &Wanted::ALL).unwrap();
    let range = bytes.as_ptr_range();
    assert!(range.contains(&records.values.as_ptr()) && records.values.len() == 5000);
}

#[test]
fn p9_a_lane_out_of_range_is_neither_written_nor_read() {
    let of_lane = |lane| {
        encode_byte_set(blocks(&[(lane, b"x".to_vec())], 1), Compression::None, &Bytes::from).map(|s| s.to_bytes())
    };
    let mut bytes = of_lane(Lane::of(32_767).0).unwrap().to_vec();
    assert_eq!(decode(&bytes.clone().into(), &Wanted::ALL).unwrap().len(), 1);
    for lane in [32_769, u16::MAX] {
        assert_eq!(of_lane(lane).unwrap_err().kind(), ErrorKind::Internal, "{lane}");
        // First and last number of the only block, and the checksums over them.
        bytes[40..44].copy_from_slice(&[lane.to_le_bytes(), lane.to_le_bytes()].concat());
        let index = crc32c(&bytes[40..72]).to_le_bytes();
        bytes[32..36].copy_from_slice(&index);
        let header = crc32c(&bytes[..36]).to_le_bytes();
        bytes[36..40].copy_from_slice(&header);
        let error = decode(&bytes.clone().into(), &Wanted::ALL).unwrap_err();
        assert!(error.kind() == ErrorKind::Corrupt && error.message().contains("index"), "{lane}: {error}");
    }
}

#[test]
fn the_other_kind_of_set_is_refused() {
    let empty = crate::encode_set(&crate::model::ChangeSet::default(), Compression::None).unwrap().to_bytes();
    let error = decode(&empty, &Wanted::ALL).unwrap_err();
    assert!(error.kind() == ErrorKind::Corrupt && error.message().contains("keyed changes"), "{error}");
    let plain = encode_byte_set(Vec::new(), Compression::None, &Bytes::from).unwrap().to_bytes();
    assert!(decode(&plain, &Wanted::ALL).unwrap().is_empty());
    assert!(crate::decode_set(NAME, 0, &plain).unwrap_err().message().contains("plain changes"));
}

#[test]
fn lanes_that_do_not_ascend_are_a_bug() {
    let mut block = ByteBlock::default();
    block.push(3, b"a");
    block.push(2, b"b");
    assert_eq!(encode_byte_set(vec![block], Compression::None, &Bytes::from).unwrap_err().kind(), ErrorKind::Internal);
}
