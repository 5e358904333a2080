//! The frame of every change set: a fixed header, an index of blocks, and the places of blocks.
//!
//! Owns: header and index, writing and reading; finding the blocks that hold some numbers.
//! Does not own: the inside of a block (`segment` for keyed changes, `byte_set` for plain ones).
//!
//! Invariants:
//! 1. a change set is self-contained: with its offset and length alone it can be fetched, checked and read;
//! 2. records are grouped by an ascending number (key group or lane); a block holds whole records, and blocks ascend
//!    too;
//! 3. whatever a header says, a block of several records has at most [`MAX_BLOCK`] raw bytes; a block of one record,
//!    and the columns, have at most the bytes of the longest record.

use super::block::{MAX_OVERHEAD, MAX_RECORD};
use super::compress;
use super::wire::{Reader, check_version, crc32c, foreign};
use crate::config::Compression;
use crate::error::{Error, Result};
use crate::model::ids::MAX_KEY_GROUPS;
use bytes::Bytes;
use std::ops::Range;

const SET_MAGIC: [u8; 4] = *b"FCLS";
const SET_VERSION: u16 = 1;

/// Bytes of a change set's fixed header.
pub const SET_HEADER_LEN: usize = 40;
/// Bytes of one entry of a set's block index.
pub const INDEX_ENTRY_LEN: usize = 20;
/// Bytes of the index entry for the columns of a plain set, after the blocks.
const COLUMNS_LEN: usize = 12;
/// Largest raw length that a reader accepts for a block of several records.
pub(super) const MAX_BLOCK: u32 = 16 << 20;
/// Largest raw length for a block of one record, and for the columns.
const MAX_ONE: u64 = MAX_RECORD + MAX_OVERHEAD;
/// Offset of a set header's own checksum: the same in every version.
const SET_HEADER_CRC: usize = 36;

/// The content of a change set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetKind {
    /// Puts and deletes of keyed state.
    Keyed = 0,
    /// Byte strings by key group.
    Bytes = 1,
}

/// An encoded change set, ready to become part of a log object.
#[derive(Debug, Clone)]
pub struct EncodedSet {
    /// Its bytes, in order.
    pub parts: Vec<Bytes>,
    /// Bytes of all parts.
    pub length: u64,
    /// CRC-32C of all parts.
    pub crc: u32,
    /// Length of header and index.
    pub head: u64,
    /// The checksum in its header. It covers the checksums of index and blocks, so it identifies the set.
    pub mark: u32,
    /// Number of records.
    pub records: u64,
}

impl EncodedSet {
    /// All parts in one.
    pub fn to_bytes(&self) -> Bytes {
        match &self.parts[..] {
            [one] => one.clone(),
            parts => parts.concat().into(),
        }
    }
}

/// The verified fixed part of a change set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SetHeader {
    /// The content of the set.
    pub kind: SetKind,
    /// Compression of the blocks.
    pub compression: Compression,
    /// Number of blocks.
    pub blocks: u32,
    /// Number of records.
    pub records: u64,
    /// Bytes of the whole set, this header included.
    pub length: u64,
    /// The header's own checksum, which covers those of index and blocks.
    pub mark: u32,
    index_crc: u32,
}

impl SetHeader {
    /// Length of header and index, which a reader fetches before it can choose blocks.
    pub fn index_end(&self) -> u64 {
        SET_HEADER_LEN as u64 + self.index_len()
    }

    fn index_len(&self) -> u64 {
        index_len(self.kind, self.blocks as usize) as u64
    }
}

fn index_len(kind: SetKind, blocks: usize) -> usize {
    blocks * INDEX_ENTRY_LEN + if kind == SetKind::Bytes { COLUMNS_LEN } else { 0 }
}

/// One block as the index lists it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockEntry {
    /// First number with a record in it.
    pub first: u16,
    /// Last number with a record in it.
    pub last: u16,
    /// Number of records.
    pub records: u32,
    /// First byte, counted from the start of the set.
    pub offset: u64,
    /// Stored bytes.
    pub length: u32,
    /// Bytes after decompression.
    pub raw_length: u32,
    /// CRC-32C of the stored bytes.
    pub crc: u32,
}

/// The columns of a set of plain changes: the lengths and lanes of all its records.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Columns {
    /// Stored bytes, right after the index.
    pub length: u32,
    /// Bytes after decompression.
    pub raw_length: u32,
    /// CRC-32C of the stored bytes.
    pub crc: u32,
}

/// The verified index of a change set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SetIndex {
    /// The fixed part.
    pub header: SetHeader,
    /// All blocks, in order.
    pub blocks: Vec<BlockEntry>,
    /// Of a set of plain changes; else empty.
    pub columns: Columns,
}

impl SetIndex {
    /// The blocks that may hold records with numbers in `numbers`.
    pub fn blocks_of(&self, numbers: Range<u16>) -> Range<usize> {
        if numbers.is_empty() {
            return 0..0;
        }
        let start = self.blocks.partition_point(|b| b.last < numbers.start);
        let end = self.blocks.partition_point(|b| b.first < numbers.end);
        start..end.max(start)
    }

    /// The bytes of some blocks, counted from the start of the set. Blocks ascend, so it is one range.
    pub fn bytes_of(&self, blocks: Range<usize>) -> Range<u64> {
        match (self.blocks.get(blocks.start), blocks.end.checked_sub(1).and_then(|last| self.blocks.get(last))) {
            (Some(first), Some(last)) if !blocks.is_empty() => first.offset..last.offset + u64::from(last.length),
            _ => 0..0,
        }
    }

    /// The stored bytes of a block, verified, out of `bytes`, which are the set's bytes from `start` on.
    pub(super) fn stored<'a>(
        object: &str,
        offset_in_object: u64,
        block: &BlockEntry,
        start: u64,
        bytes: &'a [u8],
    ) -> Result<&'a [u8]> {
        let at = offset_in_object.saturating_add(block.offset);
        let stored = block
            .offset
            .checked_sub(start)
            .and_then(|from| usize::try_from(from).ok())
            .and_then(|from| bytes.get(from..)?.get(..block.length as usize))
            .ok_or_else(|| Error::corrupt(object, at, format_args!("a block of {} bytes is missing", block.length)))?;
        check_crc(object, at, "a block", stored, block.crc)?;
        Ok(stored)
    }
}

/// Compares the checksum of some stored bytes with the one that was written.
pub(super) fn check_crc(object: &str, at: u64, what: &str, stored: &[u8], written: u32) -> Result<()> {
    let crc = crc32c(stored);
    if crc == written {
        return Ok(());
    }
    let what = format!("the checksum of {what} of {} bytes is {crc:08x}, but {written:08x} was written", stored.len());
    Err(Error::corrupt(object, at, what))
}

/// How many numbers there are: key groups, or lanes, which are one more. A reader of all of them must not miss a
/// record.
fn numbers_of(kind: SetKind) -> usize {
    MAX_KEY_GROUPS + usize::from(kind == SetKind::Bytes)
}

/// Bytes of header and index of a set of `blocks` blocks.
pub(super) fn head_len(kind: SetKind, blocks: usize) -> usize {
    SET_HEADER_LEN + index_len(kind, blocks)
}

/// A length as the format stores it.
pub(super) fn to_u32(n: usize) -> Result<u32> {
    u32::try_from(n).map_err(|_| {
        Error::invalid(format!("a change set with a part of {n} bytes is too large")).with_remedy("use more partitions")
    })
}

/// Writes header and index into `out`, which has [`head_len`] bytes. Offsets of the blocks are not stored: they follow
/// from the lengths. Returns the header's checksum.
pub(super) fn put_head(
    out: &mut [u8],
    kind: SetKind,
    compression: Compression,
    blocks: &[BlockEntry],
    columns: Columns,
    length: u64,
) -> Result<u32> {
    if let Some(block) = blocks.last().filter(|block| usize::from(block.last) >= numbers_of(kind)) {
        return Err(Error::internal(format!("a change set of number {}, which cannot exist", block.last)));
    }
    let (header, index) = out.split_at_mut(SET_HEADER_LEN);
    for (entry, block) in index.chunks_exact_mut(INDEX_ENTRY_LEN).zip(blocks) {
        entry[0..2].copy_from_slice(&block.first.to_le_bytes());
        entry[2..4].copy_from_slice(&block.last.to_le_bytes());
        entry[4..8].copy_from_slice(&block.records.to_le_bytes());
        entry[8..12].copy_from_slice(&block.raw_length.to_le_bytes());
        entry[12..16].copy_from_slice(&block.length.to_le_bytes());
        entry[16..20].copy_from_slice(&block.crc.to_le_bytes());
    }
    if kind == SetKind::Bytes {
        let tail = &mut index[blocks.len() * INDEX_ENTRY_LEN..];
        tail[0..4].copy_from_slice(&columns.raw_length.to_le_bytes());
        tail[4..8].copy_from_slice(&columns.length.to_le_bytes());
        tail[8..12].copy_from_slice(&columns.crc.to_le_bytes());
    }
    let records: u64 = blocks.iter().map(|b| u64::from(b.records)).sum();
    header[0..4].copy_from_slice(&SET_MAGIC);
    header[4..6].copy_from_slice(&SET_VERSION.to_le_bytes());
    header[6] = compress::id_of(compression);
    header[7] = kind as u8;
    header[8..12].copy_from_slice(&to_u32(blocks.len())?.to_le_bytes());
    header[12..16].copy_from_slice(&to_u32(index.len())?.to_le_bytes());
    header[16..24].copy_from_slice(&records.to_le_bytes());
    header[24..32].copy_from_slice(&length.to_le_bytes());
    header[32..36].copy_from_slice(&crc32c(index).to_le_bytes());
    let crc = crc32c(&header[..SET_HEADER_CRC]);
    header[SET_HEADER_CRC..].copy_from_slice(&crc.to_le_bytes());
    Ok(crc)
}

/// Reads the fixed header of the set that starts at `offset_in_object`; `bytes` are at least its first
/// [`SET_HEADER_LEN`] bytes.
pub fn decode_set_header(object: &str, offset_in_object: u64, bytes: &[u8]) -> Result<SetHeader> {
    let mut reader = Reader::new(object, offset_in_object, bytes);
    if bytes.len() >= 4 && bytes[..4] != SET_MAGIC {
        return Err(foreign(object, offset_in_object, "change set"));
    }
    let header = reader.take(SET_HEADER_LEN, "the header of a change set")?;
    let mut reader = Reader::new(object, offset_in_object, header);
    reader.take(4, "the magic number")?;
    let version = reader.u16("the version")?;
    let compression = reader.u8("the compression")?;
    let kind = reader.u8("the kind")?;
    let blocks = reader.u32("the number of blocks")?;
    let stored_index_len = reader.u32("the index length")?;
    let records = reader.u64("the number of records")?;
    let length = reader.u64("the length")?;
    let index_crc = reader.u32("the index checksum")?;
    let stored = reader.u32("the header checksum")?;
    let actual = crc32c(&header[..SET_HEADER_CRC]);
    if stored != actual {
        let what = format!("the checksum of the set's header is {actual:08x}, but {stored:08x} was written");
        return Err(Error::corrupt(object, offset_in_object, what));
    }
    check_version(object, offset_in_object + 4, "change set", version, SET_VERSION)?;
    let contradiction = || Error::corrupt(object, offset_in_object, "the set's header contradicts itself");
    let kind = match kind {
        0 => SetKind::Keyed,
        1 => SetKind::Bytes,
        _ => return Err(contradiction()),
    };
    let compression = compress::from_id(compression)
        .filter(|_| u64::from(stored_index_len) == index_len(kind, blocks as usize) as u64)
        .ok_or_else(contradiction)?;
    Ok(SetHeader { kind, compression, blocks, records, length, mark: stored, index_crc })
}

/// Reads header and index of a set; `bytes` are at least its first [`SetHeader::index_end`] bytes.
pub fn decode_set_index(object: &str, offset_in_object: u64, bytes: &[u8]) -> Result<SetIndex> {
    let header = decode_set_header(object, offset_in_object, bytes)?;
    let index_at = offset_in_object.saturating_add(SET_HEADER_LEN as u64);
    let mut reader = Reader::new(object, index_at, &bytes[SET_HEADER_LEN..]);
    let index = usize::try_from(header.index_len()).unwrap_or(usize::MAX);
    let index = reader.take(index, "the block index of a change set")?;
    check_crc(object, index_at, "the block index", index, header.index_crc)?;
    let mut reader = Reader::new(object, index_at, index);
    let numbers = numbers_of(header.kind);
    let mut blocks = Vec::with_capacity(header.blocks as usize);
    let (mut offset, mut records, mut previous) = (header.index_end(), 0_u64, 0);
    for _ in 0..header.blocks {
        let block = BlockEntry {
            first: reader.u16("a first number")?,
            last: reader.u16("a last number")?,
            records: reader.u32("a number of records")?,
            offset,
            raw_length: reader.u32("a raw length")?,
            length: reader.u32("a stored length")?,
            crc: reader.u32("a checksum")?,
        };
        let raw_limit = if block.records > 1 { u64::from(MAX_BLOCK) } else { MAX_ONE };
        if block.first < previous
            || block.last < block.first
            || usize::from(block.last) >= numbers
            || block.records == 0
            || block.length > block.raw_length
        {
            return Err(reader.corrupt("the block index contradicts itself"));
        }
        check_raw(&reader, "a block", block.raw_length, raw_limit)?;
        previous = block.last;
        records += u64::from(block.records);
        offset += u64::from(block.length);
        blocks.push(block);
    }
    let mut columns = Columns::default();
    if header.kind == SetKind::Bytes {
        columns.raw_length = reader.u32("the raw length of the columns")?;
        columns.length = reader.u32("the stored length of the columns")?;
        columns.crc = reader.u32("the checksum of the columns")?;
        if columns.length > columns.raw_length {
            return Err(reader.corrupt("the columns' lengths contradict each other"));
        }
        check_raw(&reader, "columns", columns.raw_length, MAX_ONE)?;
        offset += u64::from(columns.length);
        blocks.iter_mut().for_each(|block| block.offset += u64::from(columns.length));
    }
    if offset != header.length || records != header.records {
        return Err(reader.corrupt("the blocks do not add up to the set"));
    }
    Ok(SetIndex { header, blocks, columns })
}

/// Refuses bytes that claim to unpack to more than a writer ever packs.
fn check_raw(reader: &Reader<'_>, what: &str, raw_length: u32, limit: u64) -> Result<()> {
    if u64::from(raw_length) <= limit {
        return Ok(());
    }
    Err(reader.corrupt(format_args!("{what} of {raw_length} bytes, the limit is {limit}")))
}

/// The index of a complete set.
pub fn decode_whole_index(object: &str, offset_in_object: u64, bytes: &[u8]) -> Result<SetIndex> {
    let index = decode_set_index(object, offset_in_object, bytes)?;
    if index.header.length != bytes.len() as u64 {
        return Err(Error::corrupt(
            object,
            offset_in_object.saturating_add(index.header.length.min(bytes.len() as u64)),
            format_args!("the change set has {} bytes, {} were written", bytes.len(), index.header.length),
        ));
    }
    Ok(index)
}

/// Refuses a set of the other kind.
pub(super) fn check_kind(object: &str, offset_in_object: u64, index: &SetIndex, wanted: SetKind) -> Result<()> {
    if index.header.kind == wanted {
        return Ok(());
    }
    let what = match wanted {
        SetKind::Keyed => "a set of plain changes is here, a set of keyed changes was looked for",
        SetKind::Bytes => "a set of keyed changes is here, a set of plain changes was looked for",
    };
    Err(Error::corrupt(object, offset_in_object, what))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A set of one block with these claims, and of these columns.
    fn claiming(kind: SetKind, records: u32, raw_length: u64, columns: u64) -> Vec<u8> {
        let claimed = |n: u64| u32::try_from(n).unwrap();
        let block =
            BlockEntry { first: 0, last: 0, records, offset: 0, length: 40, raw_length: claimed(raw_length), crc: 0 };
        let columns = Columns { length: 40, raw_length: claimed(columns), crc: 0 };
        let head = head_len(kind, 1);
        let stored = head + if kind == SetKind::Bytes { 80 } else { 40 };
        let mut out = vec![0; stored];
        put_head(&mut out[..head], kind, Compression::Zstd, &[block], columns, stored as u64).unwrap();
        out
    }

    #[test]
    fn invariant_3_no_claim_is_beyond_the_longest_record() {
        for kind in [SetKind::Keyed, SetKind::Bytes] {
            let said = |records, raw_length, columns| {
                let bytes = claiming(kind, records, raw_length, columns);
                decode_set_index("log/a", 0, &bytes).err().map(|error| error.message().to_owned())
            };
            assert_eq!(said(1, MAX_ONE, 40), None);
            assert_eq!(said(2, u64::from(MAX_BLOCK), 40), None);
            for (records, raw) in [(1, MAX_ONE + 1), (1, 0xF900_0000), (2, u64::from(MAX_BLOCK) + 1)] {
                let said = said(records, raw, 40).unwrap();
                assert!(said.contains("log/a") && said.contains(&format!("{raw} bytes, the limit is")), "{said}");
            }
            if kind == SetKind::Bytes {
                assert_eq!(said(1, 40, MAX_ONE), None);
                assert!(said(1, 40, MAX_ONE + 1).unwrap().contains("columns of"));
            }
        }
    }
}
