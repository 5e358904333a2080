//! Change sets of a plain changelog: byte strings in lanes (key groups, and metadata before them).
//!
//! Owns: the layout of a set, and reading all lanes or some.
//! Does not own: the blocks that collect appends (`byte_block`), header and index (`set`).
//!
//! ```text
//! header and index | columns of all blocks | values of block 1 | values of block 2 | …
//! columns of a block:
//!   runs     varint count, then per run: varint records, varint lane - previous lane (the block's first lane at first)
//!   lengths  u8 0, varint the one length of all   |   u8 1, one varint per record
//! values: the bytes of all values of the block, compressed by itself if the set is
//! ```
//! The columns come first, so the values of an uncompressed set are one run of bytes that a reader returns without a
//! copy. The index's numbers are lanes.
//!
//! Invariant: records of one lane are in the order in which they were appended.

pub use super::byte_block::{ByteBlock, Value};

use super::byte_block::{MAX_RECORDS, Run};
use super::compress;
use super::set::{
    BlockEntry, Columns, EncodedSet, MAX_BLOCK, SetIndex, SetKind, check_crc, check_kind, head_len, put_head, to_u32,
};
use super::wire::{Reader, crc32c, crc32c_joined};
use crate::config::Compression;
use crate::error::{Error, Result};
use crate::model::Lane;
use bytes::{Bytes, BytesMut};
use std::ops::Range;

/// Highest length of one value.
pub const MAX_VALUE: usize = 1 << 30;
/// Encodes blocks, whose lanes ascend from block to block, as one set. Values are taken over, not copied, unless they
/// are compressed; `own` returns the memory of copied ones to its owner when they are not needed any more.
pub fn encode_byte_set(
    blocks: Vec<ByteBlock>,
    compression: Compression,
    own: &dyn Fn(Vec<u8>) -> Bytes,
) -> Result<EncodedSet> {
    let mut entries = Vec::with_capacity(blocks.len());
    let mut columns = Vec::new();
    let mut values = Vec::with_capacity(blocks.len() + 1);
    let mut compressed = compress::Blocks::new(compression);
    for block in blocks.into_iter().filter(|block| !block.is_empty()) {
        let raw = block.len();
        if raw > MAX_VALUE || (block.records() > 1 && raw > MAX_BLOCK as usize) {
            return Err(Error::internal(format!("a block of {raw} bytes is too large")));
        }
        block.put_columns(&mut columns)?;
        let (first, last, records) = (block.first(), block.last(), block.records());
        let (length, crc) = match compression {
            Compression::None => (raw, block.into_parts(own, &mut values)),
            _ => {
                let mut out = Vec::new();
                compressed.compress(&block.joined(), &mut out)?;
                drop(own(block.into_memory()));
                let stored = (out.len(), crc32c(&out));
                values.push(Bytes::from(out));
                stored
            }
        };
        let (length, raw_length) = (to_u32(length)?, to_u32(raw)?);
        entries.push(BlockEntry { first, last, records, offset: 0, length, raw_length, crc });
    }
    let head_len = head_len(SetKind::Bytes, entries.len());
    let mut head = vec![0; head_len];
    let raw_length = to_u32(columns.len())?;
    let length = to_u32(compress::compress(compression, &columns, &mut head)?)?;
    let crc = crc32c(&head[head_len..]);
    let columns = Columns { length, raw_length, crc };
    let head_bytes = head.len() as u64;
    let total = head_bytes + entries.iter().map(|entry| u64::from(entry.length)).sum::<u64>();
    let mark = put_head(&mut head[..head_len], SetKind::Bytes, compression, &entries, columns, total)?;
    let records = entries.iter().map(|entry| u64::from(entry.records)).sum();
    let crc = entries.iter().fold(crc32c(&head), |crc, block| crc32c_joined(crc, block.crc, u64::from(block.length)));
    let mut parts = vec![Bytes::from(head)];
    parts.extend(values.into_iter().filter(|value| !value.is_empty()));
    Ok(EncodedSet { parts, length: total, crc, head: head_bytes, mark, records })
}

/// The lanes that a reader wants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    /// Metadata.
    pub meta: bool,
    /// Lanes of key groups.
    pub lanes: Range<u16>,
}

impl Wanted {
    /// Everything.
    pub const ALL: Self = Self { meta: true, lanes: 0..u16::MAX };

    fn contains(&self, lane: u16) -> bool {
        self.lanes.contains(&lane) || (self.meta && lane == Lane::META.0)
    }
}

/// Decoded records, in columns as Arrow has them.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct ByteRecords {
    /// Lanes with the number of records in each, in order.
    pub runs: Vec<(Lane, u32)>,
    /// Where each value starts in `values`, and where the last one ends; empty if there are no records.
    pub offsets: Vec<i32>,
    /// The bytes of all values.
    pub values: Bytes,
}

impl ByteRecords {
    /// Number of records.
    pub fn len(&self) -> usize {
        self.offsets.len().saturating_sub(1)
    }

    /// True when there is no record.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Every record: lane and value.
    #[expect(clippy::cast_sign_loss, reason = "offsets are never negative")]
    pub fn iter(&self) -> impl Iterator<Item = (Lane, &[u8])> {
        let lanes = self.runs.iter().flat_map(|(lane, records)| std::iter::repeat_n(*lane, *records as usize));
        lanes.zip(self.offsets.windows(2)).map(|(lane, ends)| (lane, &self.values[ends[0] as usize..ends[1] as usize]))
    }
}

/// Where a set's bytes come from: its name for messages, its place in the object, and the bytes from `start` on
/// (counted from the start of the set).
#[derive(Debug, Clone, Copy)]
pub struct SetBytes<'a> {
    /// The object, for messages.
    pub object: &'a str,
    /// Where the set starts in the object.
    pub offset_in_object: u64,
    /// Where `bytes` start in the set.
    pub start: u64,
    /// Some of the set's bytes.
    pub bytes: &'a Bytes,
}

/// The stored columns of a set, verified, and where they are in the object.
fn stored_columns<'a>(index: &SetIndex, from: SetBytes<'a>) -> Result<(&'a [u8], u64)> {
    check_kind(from.object, from.offset_in_object, index, SetKind::Bytes)?;
    let at = index.header.index_end();
    let place = from.offset_in_object.saturating_add(at);
    let stored = at
        .checked_sub(from.start)
        .and_then(|skip| usize::try_from(skip).ok())
        .and_then(|skip| from.bytes.get(skip..)?.get(..index.columns.length as usize))
        .ok_or_else(|| Error::corrupt(from.object, place, "the columns are missing"))?;
    check_crc(from.object, place, "the columns", stored, index.columns.crc)?;
    Ok((stored, place))
}

/// The columns of a set, unpacked and verified.
pub fn decode_columns(index: &SetIndex, from: SetBytes<'_>) -> Result<Vec<u8>> {
    let (stored, place) = stored_columns(index, from)?;
    let mut raw = Vec::new();
    compress::decompress(index.header.compression, stored, index.columns.raw_length as usize, &mut raw)
        .map_err(|what| Error::corrupt(from.object, place, what))?;
    Ok(raw)
}

/// Checks the stored columns of a set against their checksum.
pub fn check_columns(index: &SetIndex, from: SetBytes<'_>) -> Result<()> {
    stored_columns(index, from).map(drop)
}

/// Checks the stored bytes of `blocks`, which `from` covers, against their checksums: reading them does not find damage
/// then.
pub fn check_byte_blocks(index: &SetIndex, from: SetBytes<'_>, blocks: Range<usize>) -> Result<()> {
    let mut blocks = index.blocks[blocks].iter();
    blocks.try_for_each(|entry| {
        SetIndex::stored(from.object, from.offset_in_object, entry, from.start, from.bytes).map(drop)
    })
}

/// Reads the records of `blocks` whose lanes are wanted out of `from`, which covers those blocks. `columns` are those
/// of [`decode_columns`]. Reading all values of an uncompressed set, or the values of a single block, copies nothing.
pub fn decode_byte_blocks(
    index: &SetIndex,
    columns: &[u8],
    from: SetBytes<'_>,
    blocks: Range<usize>,
    wanted: &Wanted,
) -> Result<ByteRecords> {
    let columns_at = from.offset_in_object.saturating_add(index.header.index_end());
    let mut reader = Reader::new(from.object, columns_at, columns);
    let mut parsed = Vec::with_capacity(blocks.len());
    for (i, entry) in index.blocks.iter().enumerate() {
        let block = read_block_columns(&mut reader, entry)?;
        if blocks.contains(&i) {
            parsed.push((entry, block));
        }
    }
    reader.finish("the columns")?;
    let chosen = &index.blocks[blocks.clone()];
    let whole = parsed.iter().all(|(_, block)| block.runs.iter().all(|run| wanted.contains(run.lane)));
    let plain = chosen.iter().all(|entry| entry.length == entry.raw_length);
    let total: u64 = chosen.iter().map(|entry| u64::from(entry.raw_length)).sum();
    if total > i32::MAX as u64 {
        return Err(Error::internal("more than 2 GiB of values were asked for at once"));
    }
    let mut out = ByteRecords::default();
    let records: usize = chosen.iter().map(|entry| entry.records as usize).sum();
    out.offsets.reserve(records.min(columns.len().saturating_mul(8)) + 1);
    // All values of one block: they stay where they are unpacked.
    let is_one = !plain && whole && parsed.len() == 1;
    let copies = !(is_one || plain && whole);
    let mut copied = if copies { BytesMut::with_capacity(trusted(total, from.bytes)) } else { BytesMut::new() };
    let mut raw = Vec::new();
    let mut end = 0_i32;
    for (entry, block) in &parsed {
        let stored = SetIndex::stored(from.object, from.offset_in_object, entry, from.start, from.bytes)?;
        let at = from.offset_in_object.saturating_add(entry.offset);
        let values = if plain {
            stored
        } else {
            compress::decompress(index.header.compression, stored, entry.raw_length as usize, &mut raw)
                .map_err(|what| Error::corrupt(from.object, at, what))?;
            &raw[..]
        };
        let (mut record, mut value_at) = (0_usize, 0_usize);
        for run in &block.runs {
            let take = wanted.contains(run.lane);
            let start = value_at;
            if take && out.offsets.is_empty() {
                out.offsets.push(0);
            }
            let count = run.records as usize;
            match &block.lengths {
                None => {
                    value_at += count * block.common as usize;
                    if take {
                        out.offsets.extend((1..=count).map(|i| end + (i * block.common as usize) as i32));
                    }
                }
                Some(lengths) => {
                    let mut at = end;
                    for length in &lengths[record..record + count] {
                        value_at += *length as usize;
                        at += *length as i32;
                        if take {
                            out.offsets.push(at);
                        }
                    }
                }
            }
            record += count;
            if take {
                end += (value_at - start) as i32;
                match out.runs.last_mut() {
                    Some((lane, records)) if lane.0 == run.lane => *records += run.records,
                    _ => out.runs.push((Lane(run.lane), run.records)),
                }
                if copies {
                    copied.extend_from_slice(&values[start..value_at]);
                }
            }
        }
    }
    out.values = match chosen.first() {
        Some(first) if plain && whole => {
            let skip = (first.offset - from.start) as usize;
            from.bytes.slice(skip..skip + total as usize)
        }
        _ if is_one => raw.into(),
        _ => copied.freeze(),
    };
    Ok(out)
}

/// Capacity to reserve for `total` bytes that an index promises, bounded by the bytes at hand.
fn trusted(total: u64, bytes: &Bytes) -> usize {
    (total as usize).min(bytes.len().saturating_mul(16))
}

struct BlockColumns {
    runs: Vec<Run>,
    common: u32,
    lengths: Option<Vec<u32>>,
}

fn read_block_columns(reader: &mut Reader<'_>, entry: &BlockEntry) -> Result<BlockColumns> {
    if entry.records > MAX_RECORDS {
        return Err(reader.corrupt(format_args!("a block of {} records, the limit is {MAX_RECORDS}", entry.records)));
    }
    let count = reader.count(2, "the number of runs")?;
    let mut runs = Vec::with_capacity(count);
    let (mut left, mut lane) = (entry.records, entry.first);
    for i in 0..count {
        let records: u32 = reader.varint_as("the records of a run")?;
        if records == 0 || records > left {
            return Err(reader.corrupt(format_args!("a run of {records} records where {left} are left")));
        }
        left -= records;
        let step: u16 = reader.varint_as("the lane of a run")?;
        lane = match lane.checked_add(step) {
            Some(next) if next <= entry.last && (i > 0 || step == 0) => next,
            _ => return Err(reader.corrupt("a run's lane is not in the block")),
        };
        runs.push(Run { records, lane });
    }
    if left > 0 || lane != entry.last {
        return Err(reader.corrupt("the runs do not hold the block's records and lanes"));
    }
    let (common, lengths, sum) = match reader.u8("the lengths")? {
        0 => {
            let common: u32 = reader.varint_as("the common length")?;
            (common, None, u64::from(common) * u64::from(entry.records))
        }
        1 => {
            if entry.records as usize > reader.remaining() {
                return Err(reader.corrupt(format_args!("{} lengths are missing", entry.records)));
            }
            let mut lengths = Vec::with_capacity(entry.records as usize);
            let mut sum = 0_u64;
            for _ in 0..entry.records {
                let length: u32 = reader.varint_as("a length")?;
                sum += u64::from(length);
                lengths.push(length);
            }
            (0, Some(lengths), sum)
        }
        mode => return Err(reader.corrupt(format_args!("the lengths' mode {mode} is unknown"))),
    };
    if sum != u64::from(entry.raw_length) {
        return Err(reader.corrupt(format_args!("the lengths add up to {sum} of {} bytes", entry.raw_length)));
    }
    Ok(BlockColumns { runs, common, lengths })
}

#[cfg(test)]
#[path = "byte_set_tests.rs"]
mod tests;
