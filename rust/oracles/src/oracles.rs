//! Properties of every decoder, whatever its input.
//!
//! Owns: one function per decoder, which fails by a panic. The fuzzers call it with what they invent, and
//! `tests/fuzz_replay.rs` with what they once found.
//! Does not own: the forging of bytes (`forge`), the source of inputs.
//!
//! Of each decoder:
//! 1. it never panics, and its error reports damage (or a newer version) and names the object (P9);
//! 2. it allocates at most a known multiple of its input and of the input's true unpacked size;
//! 3. an accepted value can be encoded, and decoding gives the same value again;
//! 4. reading a part equals that part of the whole.
//!
//! Every input is read as it is, and again with all its checksums made right: nothing that is invented gets past a
//! checksum otherwise.

use crate::columns::foreign_columns;
use crate::forge::{Entry, FACTOR, GROUND, both, fix_envelope, fix_file, fix_note, fix_set, one_block_set, peak_of};
use crate::rows::row_payload;
use crate::spark_rows::spark_entry;
use bytes::Bytes;
use fastchangelog_format::byte_set::{
    ByteBlock, ByteRecords, SetBytes, Wanted, decode_byte_blocks, decode_columns, encode_byte_set,
};
use fastchangelog_format::model::{ChangeSet, ChangelogHandle, KeyGroupRange};
use fastchangelog_format::segment::{bytes_of_groups, decode_blocks, encode_set_in_blocks};
use fastchangelog_format::set::{SetIndex, SetKind};
use fastchangelog_format::*;
use fastchangelog_format::{Error, ErrorKind};
use std::fmt::Debug;

/// Every decoder by the name of its fuzzer. The functions say whether it accepted the bytes.
pub const ALL: &[(&str, fn(&[u8]) -> bool)] = &[
    ("log_object", log_object),
    ("keyed_set", keyed_set),
    ("keyed_block", keyed_block),
    ("byte_set", byte_set),
    ("byte_columns", byte_columns),
    ("compressed_block", compressed_block),
    ("shard_handle", shard_handle),
    ("segment_index", segment_index),
    ("changelog_handle", changelog_handle),
    ("manifest", manifest),
    ("head", head),
    ("savepoint", savepoint),
    ("note", note),
    ("foreign_columns", foreign_columns),
    ("row_payload", row_payload),
    ("spark_entry", spark_entry),
];

const NAME: &str = "some/object";
/// Where the sets are in their object: offsets of errors are counted from there.
const AT: u64 = 1 << 40;
/// Sets that unpack to more, or hold more records, are not read: no lie makes a set so large, only real compression.
const LARGEST: u64 = 8 << 20;

/// What `decode` makes of some bytes that are or unpack to `size` bytes; none after a proper error.
fn decoded<T>(size: u64, decode: impl FnOnce() -> Result<T, Error>) -> Option<T> {
    let (result, peak) = peak_of(decode);
    let bound = GROUND + FACTOR * size;
    assert!(peak.cast_unsigned() <= bound, "{peak} bytes allocated for {size} bytes");
    match result {
        Ok(value) => Some(value),
        Err(error) => {
            let text = error.to_string();
            let named = [NAME, "shard handle", "changelog handle"].iter().any(|name| text.contains(name));
            assert!(named && matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::InvalidArgument), "{text}");
            None
        }
    }
}

/// Decodes again what encoding a value gave.
fn again<T>(decode: Result<T, Error>) -> T {
    decode.unwrap_or_else(|error| panic!("what was accepted and encoded is refused: {error}"))
}

/// Header, footer and the list of sets of a log object.
pub fn log_object(bytes: &[u8]) -> bool {
    both(bytes, fix_file, |bytes| {
        let places = decoded(bytes.len() as u64, || decode_file(NAME, bytes))?;
        let mut end = FILE_HEADER_LEN as u64;
        for (offset, length) in &places {
            assert!(*offset >= end, "sets overlap: {places:?}");
            end = offset + length;
        }
        let footer = bytes.len() - 24 - 16 * places.len();
        assert!(end <= footer as u64, "a set in the footer: {places:?}");
        let mut written = file_header().to_vec();
        written.extend_from_slice(&bytes[FILE_HEADER_LEN..footer]);
        let crc = crc32c(&written);
        written.extend_from_slice(&file_footer(&places, crc));
        assert_eq!(again(decode_file(NAME, &written)), places);
        Some(())
    })
}

/// Header and index of a set of this kind, if it is one that can be read whole: with what it may cost.
fn index_of(bytes: &[u8], kind: SetKind) -> Option<(SetIndex, u64)> {
    let index = decoded(bytes.len() as u64, || decode_set_index(NAME, AT, bytes))?;
    let header = decoded(0, || decode_set_header(NAME, AT, bytes))?;
    assert_eq!(header, index.header);
    let mut end = header.index_end() + u64::from(index.columns.length);
    for pair in index.blocks.windows(2) {
        assert!(pair[0].last <= pair[1].first, "blocks descend");
    }
    for block in &index.blocks {
        assert!(block.offset == end && block.first <= block.last && block.records > 0, "{block:?}");
        end += u64::from(block.length);
    }
    assert_eq!(end, header.length);
    let raw: u64 = index.blocks.iter().map(|block| u64::from(block.raw_length)).sum();
    let large = raw + u64::from(index.columns.raw_length) > LARGEST || header.records > LARGEST;
    let size = bytes.len() as u64 + raw + u64::from(index.columns.raw_length);
    // A plain record may take nothing but its place in the offsets.
    let records = if kind == SetKind::Bytes { header.records.div_ceil(8) } else { 0 };
    (header.kind == kind && !large).then_some((index, size + records))
}

/// A range in the middle of the numbers that a set has.
fn middle(index: &SetIndex) -> (u16, u16) {
    let numbers: Vec<u16> = index.blocks.iter().flat_map(|block| [block.first, block.last]).collect();
    let at = |percent: usize| numbers.get(numbers.len() * percent / 100).copied().unwrap_or(0);
    (at(25), at(75).saturating_add(1))
}

/// A change set of keyed state.
pub fn keyed_set(bytes: &[u8]) -> bool {
    both(bytes, fix_set, check_keyed_set)
}

fn check_keyed_set(bytes: &[u8]) -> Option<()> {
    let (index, size) = index_of(bytes, SetKind::Keyed)?;
    let set = decoded(size, || decode_set(NAME, AT, bytes))?;
    assert_eq!(set.len() as u64, index.header.records);
    assert!(set.iter().is_sorted_by_key(|change| change.key_group), "key groups descend");
    let (start, end) = middle(&index);
    let groups = KeyGroupRange { start, end };
    let wanted = || set.iter().filter(|change| groups.contains(change.key_group));
    let part = again(decode_set_range(NAME, AT, bytes, groups));
    assert!(part.iter().eq(wanted()), "{groups:?}");
    let place = bytes_of_groups(&index, groups);
    let some = &bytes[place.start as usize..place.end as usize];
    let mut part = ChangeSet::default();
    again(decode_blocks(&index, NAME, AT, place.start, some, groups, &mut part));
    assert!(part.iter().eq(wanted()), "{groups:?} by {place:?}");
    let written = again(encode_set_in_blocks(&set, index.header.compression, 300)).to_bytes();
    assert!(again(decode_set(NAME, AT, &written)).iter().eq(set.iter()));
    Some(())
}

/// Cuts `N` bytes off the front; zeros where there are too few.
fn front<const N: usize>(bytes: &mut &[u8]) -> [u8; N] {
    let mut out = [0; N];
    let n = N.min(bytes.len());
    out[..n].copy_from_slice(&bytes[..n]);
    *bytes = &bytes[n..];
    out
}

/// An index entry of the first bytes: first number, last number, records.
fn entry(bytes: &mut &[u8]) -> Entry {
    let first = u16::from_le_bytes(front(bytes));
    let last = u16::from_le_bytes(front(bytes));
    let records = u32::from_le_bytes(front(bytes));
    Entry { first, last, records, raw_length: 0 }
}

/// A keyed block: an index entry, then the block's raw bytes.
pub fn keyed_block(mut bytes: &[u8]) -> bool {
    let entry = entry(&mut bytes);
    check_keyed_set(&one_block_set(0, Entry { raw_length: bytes.len() as u32, ..entry }, None, bytes)).is_some()
}

/// A compressed block: compression, raw length, index entry, then the stored bytes.
pub fn compressed_block(mut bytes: &[u8]) -> bool {
    let [compression] = front(&mut bytes);
    let raw_length = u32::from_le_bytes(front(&mut bytes));
    let entry = Entry { raw_length, ..entry(&mut bytes) };
    check_keyed_set(&one_block_set(compression % 3, entry, None, bytes)).is_some()
}

/// A change set of a plain changelog.
pub fn byte_set(bytes: &[u8]) -> bool {
    both(bytes, fix_set, check_byte_set)
}

/// Columns of a plain block: an index entry, the length of the values, then the columns; the values are zeros.
pub fn byte_columns(mut bytes: &[u8]) -> bool {
    let raw_length = u32::from(u16::from_le_bytes(front(&mut bytes)));
    let entry = Entry { raw_length, ..entry(&mut bytes) };
    check_byte_set(&one_block_set(0, entry, Some(bytes), &vec![0; raw_length as usize])).is_some()
}

fn lanes(records: &ByteRecords) -> Vec<(u16, &[u8])> {
    records.iter().map(|(lane, value)| (lane.0, value)).collect()
}

fn check_byte_set(bytes: &[u8]) -> Option<()> {
    let (index, size) = index_of(bytes, SetKind::Bytes)?;
    let bytes = Bytes::copy_from_slice(bytes);
    let from = SetBytes { object: NAME, offset_in_object: AT, start: 0, bytes: &bytes };
    let read = |from: SetBytes<'_>, index: &SetIndex, wanted: &Wanted| {
        let columns = decode_columns(index, from)?;
        decode_byte_blocks(index, &columns, from, 0..index.blocks.len(), wanted)
    };
    let records = decoded(size, || read(from, &index, &Wanted::ALL))?;
    assert_eq!(records.len() as u64, index.header.records);
    let all = lanes(&records);
    assert!(all.is_sorted_by_key(|(lane, _)| *lane), "lanes descend");
    let (start, end) = middle(&index);
    let wanted = Wanted { meta: start % 2 == 0, lanes: start..end };
    let part = again(read(from, &index, &wanted));
    let chosen = |lane: u16| (wanted.meta && lane == 0) || wanted.lanes.contains(&lane);
    assert!(lanes(&part).iter().eq(all.iter().filter(|(lane, _)| chosen(*lane))), "{wanted:?}");
    let mut blocks = vec![ByteBlock::default()];
    for (lane, value) in &all {
        if !blocks[blocks.len() - 1].has_room(value.len(), 300) {
            blocks.push(ByteBlock::default());
        }
        let last = blocks.len() - 1;
        blocks[last].push(*lane, value);
    }
    let written = again(encode_byte_set(blocks, index.header.compression, &Bytes::from)).to_bytes();
    let index = again(decode_set_index(NAME, AT, &written));
    let from = SetBytes { bytes: &written, ..from };
    assert_eq!(lanes(&again(read(from, &index, &Wanted::ALL))), all);
    Some(())
}

/// A small object in its envelope: what is accepted is the same when it is encoded and read again. Gives it to `look`.
fn round_trip<T: PartialEq + Debug, B: AsRef<[u8]>>(
    bytes: &[u8],
    decode: impl Fn(&[u8]) -> Result<T, Error>,
    encode: impl Fn(&T) -> B,
    look: impl Fn(&T),
) -> bool {
    both(bytes, fix_envelope, |bytes| {
        let found = decoded(bytes.len() as u64, || decode(bytes))?;
        assert_eq!(again(decode(encode(&found).as_ref())), found);
        look(&found);
        Some(())
    })
}

/// A shard's handle.
pub fn shard_handle(bytes: &[u8]) -> bool {
    round_trip(bytes, decode_handle, encode_handle, |_| ())
}

/// An index object of older segments.
pub fn segment_index(bytes: &[u8]) -> bool {
    round_trip(bytes, |bytes| decode_segment_index(NAME, bytes), |list| encode_segment_index(list), |_| ())
}

/// A handle of a plain changelog.
pub fn changelog_handle(bytes: &[u8]) -> bool {
    // Readers add these up.
    let look = |handle: &ChangelogHandle| {
        let _ = (handle.size(), handle.records());
    };
    round_trip(bytes, decode_changelog_handle, encode_changelog_handle, look)
}

/// A manifest of a savepoint.
pub fn savepoint(bytes: &[u8]) -> bool {
    round_trip(bytes, |bytes| decode_savepoint(NAME, bytes), encode_savepoint, |_| ())
}

/// A folder's note, or that of a start.
pub fn note(bytes: &[u8]) -> bool {
    both(bytes, fix_note, |bytes| {
        if let Some(start) = decoded(bytes.len() as u64, || decode_start(NAME, bytes)) {
            assert_eq!(again(decode_start(NAME, &again(encode_start(&start)))), start);
        }
        let note = decoded(bytes.len() as u64, || decode_note(NAME, bytes))?;
        let written = again(encode_note(&note));
        assert_eq!(again(decode_note(NAME, &written)), note);
        Some(())
    })
}

/// A manifest of a snapshot.
pub fn manifest(bytes: &[u8]) -> bool {
    round_trip(bytes, |bytes| decode_manifest(NAME, bytes), encode_manifest, |_| ())
}

/// A head of an embedded state.
pub fn head(bytes: &[u8]) -> bool {
    round_trip(bytes, |bytes| decode_head(NAME, bytes), encode_head, |_| ())
}
