//! Change sets of keyed state: puts and deletes, grouped by key group, in compressed blocks.
//!
//! Owns: cutting records into blocks, and reading the blocks of some key groups.
//! Does not own: the set's header and index (`set`), the inside of a block (`block`), the object around sets
//! (`object`), the meaning of the records.
//!
//! Memory: a reader of single records ([`for_each_in_set`]) holds one block at a time. Whatever an object claims, that
//! is many small records, or one of at most [`MAX_RECORD`] bytes.

pub use super::block::MAX_RECORD;
use super::block::{BlockDecoder, BlockEncoder, Promise};
use super::compress;
use super::set::{
    BlockEntry, Columns, EncodedSet, SetIndex, SetKind, check_kind, decode_whole_index, head_len, put_head, to_u32,
};
use super::wire::{Reader, crc32c, crc32c_joined};
use crate::config::Compression;
use crate::error::{Error, Result};
use crate::model::{Change, ChangeSet, KeyGroup, KeyGroupRange};
use std::ops::Range;

/// A block is closed before it would grow beyond this many bytes of keys and values.
pub const BLOCK_TARGET: usize = 256 << 10;

/// Encodes a change set as one self-contained run of bytes.
pub fn encode_set(set: &ChangeSet, compression: Compression) -> Result<EncodedSet> {
    encode_set_in_blocks(set, compression, BLOCK_TARGET)
}

/// [`encode_set`] with another block size, for tests of sets with many blocks.
#[doc(hidden)]
pub fn encode_set_in_blocks(set: &ChangeSet, compression: Compression, block_target: usize) -> Result<EncodedSet> {
    let plan = plan_blocks(set, block_target)?;
    let blocks_at = head_len(SetKind::Keyed, plan.len());
    let payload = usize::try_from(set.payload_bytes()).map_err(Error::internal)?;
    let expected =
        if compression == Compression::None { payload + set.len() * 4 + plan.len() * 32 } else { payload / 3 };
    let mut out = Vec::with_capacity(blocks_at + expected);
    out.resize(blocks_at, 0);
    let mut encoder = BlockEncoder::default();
    let mut compressed = compress::Blocks::new(compression);
    let mut blocks = Vec::with_capacity(plan.len());
    for range in plan {
        let (first, last) = (set.get(range.start).key_group.0, set.get(range.end - 1).key_group.0);
        let at = out.len();
        let (raw_length, length) =
            compressed.compress_built(&mut out, |raw| encoder.encode(set, range.clone(), raw))?;
        let (raw_length, length) = (to_u32(raw_length)?, to_u32(length)?);
        let crc = crc32c(&out[at..]);
        blocks.push(BlockEntry {
            first,
            last,
            records: to_u32(range.len())?,
            offset: at as u64,
            length,
            raw_length,
            crc,
        });
    }
    let length = out.len() as u64;
    let mark = put_head(&mut out[..blocks_at], SetKind::Keyed, compression, &blocks, Columns::default(), length)?;
    // Waiting uploads are counted by length: give back the surplus of the estimate.
    if out.capacity() - out.len() > out.len() / 4 {
        out.shrink_to_fit();
    }
    let head = crc32c(&out[..blocks_at]);
    let crc = blocks.iter().fold(head, |crc, block| crc32c_joined(crc, block.crc, u64::from(block.length)));
    Ok(EncodedSet { parts: vec![out.into()], length, crc, head: blocks_at as u64, mark, records: set.len() as u64 })
}

/// Refuses a key and value whose total length exceeds the limit of a change set.
fn check_record(length: u64) -> Result<()> {
    if length <= MAX_RECORD {
        return Ok(());
    }
    let what = format!("a state entry of {length} bytes exceeds the limit of {MAX_RECORD} bytes");
    Err(Error::invalid(what).with_remedy("split it over several keys"))
}

/// Refuses entries of these lengths and this total size if one of them exceeds the limit of a change set.
pub fn check_records(bytes: usize, lengths: impl Iterator<Item = usize>) -> Result<()> {
    if bytes as u64 <= MAX_RECORD { Ok(()) } else { lengths.map(|length| length as u64).try_for_each(check_record) }
}

/// Cuts the records into runs of about `target` bytes, and refuses records that the format cannot hold.
fn plan_blocks(set: &ChangeSet, target: usize) -> Result<Vec<Range<usize>>> {
    let mut plan = Vec::new();
    let (mut start, mut size) = (0, 0);
    let mut previous = KeyGroup(0);
    for (i, change) in set.iter().enumerate() {
        let length = change.key.len() + change.value.len();
        check_record(length as u64)?;
        if change.key_group < previous {
            return Err(Error::internal("a change set is not grouped by key group"));
        }
        previous = change.key_group;
        // Charge three bytes of overhead per record, so that a block of empty records stays small.
        let length = length + 3;
        if size > 0 && size + length > target {
            plan.push(start..i);
            (start, size) = (i, 0);
        }
        size += length;
    }
    if size > 0 {
        plan.push(start..set.len());
    }
    Ok(plan)
}

/// The bytes to fetch for `groups`, counted from the start of the set.
pub fn bytes_of_groups(index: &SetIndex, groups: KeyGroupRange) -> Range<u64> {
    index.bytes_of(index.blocks_of(groups.start..groups.end))
}

/// Reads the records of `groups` out of `bytes`, which are the set's bytes from `start` on (counted from the start of
/// the set) and cover [`bytes_of_groups`]. Records are appended to `set`.
pub fn decode_blocks(
    index: &SetIndex,
    object: &str,
    offset_in_object: u64,
    start: u64,
    bytes: &[u8],
    groups: KeyGroupRange,
    set: &mut ChangeSet,
) -> Result<()> {
    let blocks = index.blocks_of(groups.start..groups.end);
    let place = Place { object, offset: offset_in_object, start };
    decode(index, place, bytes, blocks, Some(groups), &mut into(set))
}

/// A sink that appends to a set.
fn into(set: &mut ChangeSet) -> impl FnMut(Change<'_>) -> Result<()> {
    |change| {
        set.push(change);
        Ok(())
    }
}

/// Where a set's bytes are: in which object, where the set begins there, and where the bytes begin in the set.
#[derive(Debug, Clone, Copy)]
struct Place<'a> {
    object: &'a str,
    offset: u64,
    start: u64,
}

fn decode(
    index: &SetIndex,
    Place { object, offset: offset_in_object, start }: Place<'_>,
    bytes: &[u8],
    blocks: Range<usize>,
    groups: Option<KeyGroupRange>,
    sink: &mut dyn FnMut(Change<'_>) -> Result<()>,
) -> Result<()> {
    check_kind(object, offset_in_object, index, SetKind::Keyed)?;
    let mut decoder = BlockDecoder::default();
    let mut raw = Vec::new();
    for block in &index.blocks[blocks] {
        let at = offset_in_object.saturating_add(block.offset);
        let stored = SetIndex::stored(object, offset_in_object, block, start, bytes)?;
        compress::decompress(index.header.compression, stored, block.raw_length as usize, &mut raw)
            .map_err(|what| Error::corrupt(object, at, what))?;
        let promise = Promise { first: KeyGroup(block.first), last: KeyGroup(block.last), records: block.records };
        decoder.decode(Reader::new(object, at, &raw), promise, groups, sink)?;
    }
    Ok(())
}

/// Checks the stored bytes of `blocks`, as [`decode_blocks`] has them, against their checksums.
pub fn check_blocks(
    index: &SetIndex,
    object: &str,
    offset_in_object: u64,
    start: u64,
    bytes: &[u8],
    blocks: Range<usize>,
) -> Result<()> {
    check_kind(object, offset_in_object, index, SetKind::Keyed)?;
    let mut blocks = index.blocks[blocks].iter();
    blocks.try_for_each(|block| SetIndex::stored(object, offset_in_object, block, start, bytes).map(drop))
}

/// As [`decode_blocks`], of these blocks; of all their key groups without `groups`.
#[expect(clippy::too_many_arguments, reason = "where the bytes come from, which of them, and whereto")]
pub fn decode_some_blocks(
    index: &SetIndex,
    object: &str,
    offset_in_object: u64,
    start: u64,
    bytes: &[u8],
    blocks: Range<usize>,
    groups: Option<KeyGroupRange>,
    set: &mut ChangeSet,
) -> Result<()> {
    let place = Place { object, offset: offset_in_object, start };
    decode(index, place, bytes, blocks, groups, &mut into(set))
}

/// Reads a whole change set, which is at byte `offset_in_object` of `object`.
pub fn decode_set(object: &str, offset_in_object: u64, bytes: &[u8]) -> Result<ChangeSet> {
    decode_whole(object, offset_in_object, bytes, None)
}

/// Like [`decode_set`], but only the records of `groups`; other blocks are neither checked nor unpacked.
pub fn decode_set_range(object: &str, offset_in_object: u64, bytes: &[u8], groups: KeyGroupRange) -> Result<ChangeSet> {
    decode_whole(object, offset_in_object, bytes, Some(groups))
}

/// Passes the records of `groups` in a whole change set to `sink`, one by one, with at most one block in memory. Its
/// error ends it.
pub fn for_each_in_set(
    object: &str,
    offset_in_object: u64,
    bytes: &[u8],
    groups: KeyGroupRange,
    sink: &mut dyn FnMut(Change<'_>) -> Result<()>,
) -> Result<()> {
    let index = decode_whole_index(object, offset_in_object, bytes)?;
    let place = Place { object, offset: offset_in_object, start: 0 };
    decode(&index, place, bytes, index.blocks_of(groups.start..groups.end), Some(groups), sink)
}

fn decode_whole(object: &str, offset_in_object: u64, bytes: &[u8], groups: Option<KeyGroupRange>) -> Result<ChangeSet> {
    let index = decode_whole_index(object, offset_in_object, bytes)?;
    let chosen = groups.map_or(0..index.blocks.len(), |g| index.blocks_of(g.start..g.end));
    // Reserve the claimed lengths, but at most a few times the bytes at hand: a false claim then costs only a
    // reallocation.
    let (mut raw, mut records) = (0_usize, 0_usize);
    for block in &index.blocks[chosen.clone()] {
        raw += block.raw_length as usize;
        records += block.records as usize;
    }
    let trust = bytes.len().saturating_mul(8);
    let mut set = ChangeSet::with_capacity(records.min(trust / 8), raw.min(trust));
    let place = Place { object, offset: offset_in_object, start: 0 };
    decode(&index, place, bytes, chosen, groups, &mut into(&mut set))?;
    Ok(set)
}

#[cfg(test)]
#[path = "segment_tests.rs"]
mod tests;
