//! Log objects: a file header, change sets of any number of shards, and a footer that lists them.
//!
//! Owns: the layout of change sets and of the object around them; finding the blocks that hold some key groups.
//! Does not own: the inside of a block (`block`), batching and uploading, what the records mean.
//!
//! Invariants:
//! 1. a change set is self-contained: with its offset and length alone it can be fetched, checked and read;
//! 2. records are grouped by ascending key group; a block holds whole records, and blocks ascend too;
//! 3. a block of more than one record has at most [`MAX_BLOCK`] raw bytes, whatever a header says.

use super::block::{BlockDecoder, BlockEncoder, MAX_RECORD, Promise};
use super::compress;
use super::wire::{Reader, check_version, crc32c, foreign};
use crate::config::Compression;
use crate::error::{Error, Result};
use crate::model::{ChangeSet, KeyGroup, KeyGroupRange};
use bytes::Bytes;
use std::ops::Range;

const FILE_MAGIC: [u8; 4] = *b"FCLG";
const FOOTER_MAGIC: [u8; 4] = *b"FCLF";
const SET_MAGIC: [u8; 4] = *b"FCLS";
const FILE_VERSION: u16 = 1;
const SET_VERSION: u16 = 1;

/// Bytes of [`file_header`]; the first change set starts here.
pub const FILE_HEADER_LEN: usize = 16;
/// Bytes of a change set's fixed header.
pub const SET_HEADER_LEN: usize = 40;
/// Bytes of one entry of a set's block index.
pub const INDEX_ENTRY_LEN: usize = 20;
/// A block is closed before it would grow beyond this many bytes of keys and values.
pub const BLOCK_TARGET: usize = 256 << 10;
/// What a reader accepts as the raw length of a block with more than one record.
const MAX_BLOCK: u32 = 16 << 20;
/// Offset of a set header's own checksum: the same in every version.
const SET_HEADER_CRC: usize = 36;
/// Fixed bytes of the footer before and after the list of sets.
const FOOTER_HEAD: usize = 12;
const FOOTER_TAIL: usize = 12;

// ---------------------------------------------------------------------------------------------- the object around sets

/// The first bytes of a log object.
pub fn file_header() -> Bytes {
    let mut out = Vec::with_capacity(FILE_HEADER_LEN);
    out.extend_from_slice(&FILE_MAGIC);
    out.extend_from_slice(&FILE_VERSION.to_le_bytes());
    out.extend_from_slice(&[0; 6]);
    let crc = crc32c(&out);
    out.extend_from_slice(&crc.to_le_bytes());
    out.into()
}

/// The last bytes of a log object: where its sets are, and the CRC-32C of everything before the footer.
pub fn file_footer(sets: &[(u64, u64)], crc_of_all_before: u32) -> Bytes {
    let length = FOOTER_HEAD + sets.len() * 16 + FOOTER_TAIL;
    let mut out = Vec::with_capacity(length);
    out.extend_from_slice(&FOOTER_MAGIC);
    out.extend_from_slice(&FILE_VERSION.to_le_bytes());
    out.extend_from_slice(&[0; 2]);
    #[expect(clippy::cast_possible_truncation, reason = "a log object holds far fewer sets than 2^32")]
    out.extend_from_slice(&(sets.len() as u32).to_le_bytes());
    for (offset, length) in sets {
        out.extend_from_slice(&offset.to_le_bytes());
        out.extend_from_slice(&length.to_le_bytes());
    }
    out.extend_from_slice(&crc_of_all_before.to_le_bytes());
    #[expect(clippy::cast_possible_truncation, reason = "far below 2^32 sets")]
    out.extend_from_slice(&(length as u32).to_le_bytes());
    let crc = crc32c(&out);
    out.extend_from_slice(&crc.to_le_bytes());
    out.into()
}

/// Checks a whole log object (header, footer, checksum over all) and returns where its sets are.
/// The sets themselves are checked when they are read.
pub fn decode_file(object: &str, bytes: &[u8]) -> Result<Vec<(u64, u64)>> {
    let cut =
        |what: &str| Error::corrupt(object, bytes.len() as u64, format_args!("the log object is cut off: {what}"));
    if bytes.len() >= 4 && bytes[..4] != FILE_MAGIC {
        return Err(foreign(object, 0, "log object"));
    }
    if bytes.len() < FILE_HEADER_LEN {
        return Err(cut("no header"));
    }
    let mut header = Reader::new(object, 0, &bytes[..FILE_HEADER_LEN]);
    header.take(4, "the magic number")?;
    let version = header.u16("the version")?;
    header.take(6, "the reserved bytes")?;
    let stored = header.u32("the checksum")?;
    if stored != crc32c(&bytes[..FILE_HEADER_LEN - 4]) {
        return Err(Error::corrupt(object, 0, "the checksum of the file header does not match"));
    }
    check_version(object, 4, "log object", version, FILE_VERSION)?;

    let minimum = FILE_HEADER_LEN + FOOTER_HEAD + FOOTER_TAIL;
    if bytes.len() < minimum {
        return Err(cut("no footer"));
    }
    let tail_at = bytes.len() - 8;
    let mut tail = Reader::new(object, tail_at as u64, &bytes[tail_at..]);
    let footer_len = tail.u32("the footer's length")? as usize;
    let footer_crc = tail.u32("the footer's checksum")?;
    if footer_len < FOOTER_HEAD + FOOTER_TAIL || footer_len > bytes.len() - FILE_HEADER_LEN {
        return Err(Error::corrupt(object, tail_at as u64, "no footer at the end: the object is cut off or damaged"));
    }
    let footer_at = bytes.len() - footer_len;
    let footer = &bytes[footer_at..];
    if footer[..4] != FOOTER_MAGIC || crc32c(&footer[..footer_len - 4]) != footer_crc {
        return Err(Error::corrupt(object, footer_at as u64, "no footer at the end: the object is cut off or damaged"));
    }
    let mut reader = Reader::new(object, footer_at as u64, &footer[..footer_len - 8]);
    reader.take(4, "the magic number")?;
    let version = reader.u16("the footer's version")?;
    check_version(object, footer_at as u64 + 4, "log object footer", version, FILE_VERSION)?;
    reader.take(2, "the reserved bytes")?;
    let count = reader.u32("the number of sets")? as usize;
    if reader.remaining() != count * 16 + 4 {
        return Err(reader.corrupt(format_args!("{count} sets do not fill the footer")));
    }
    let mut sets = Vec::with_capacity(count);
    let mut end = FILE_HEADER_LEN as u64;
    for _ in 0..count {
        let (offset, length) = (reader.u64("a set's offset")?, reader.u64("a set's length")?);
        match offset.checked_add(length) {
            Some(next) if offset >= end && next <= footer_at as u64 => end = next,
            _ => {
                return Err(
                    reader.corrupt(format_args!("a set at {offset} of {length} bytes is not inside the object"))
                );
            }
        }
        sets.push((offset, length));
    }
    let stored = reader.u32("the checksum of the sets")?;
    let actual = crc32c(&bytes[..footer_at]);
    if stored != actual {
        return Err(Error::corrupt(
            object,
            0,
            format_args!("the checksum of the bytes before the footer is {actual:08x}, {stored:08x} was written"),
        ));
    }
    Ok(sets)
}

// ------------------------------------------------------------------------------------------------------ writing one set

/// Encodes a change set as one self-contained run of bytes.
pub fn encode_set(set: &ChangeSet, compression: Compression) -> Result<Bytes> {
    encode_set_in_blocks(set, compression, BLOCK_TARGET)
}

/// [`encode_set`] with another block size, for tests of sets with many blocks.
#[doc(hidden)]
pub fn encode_set_in_blocks(set: &ChangeSet, compression: Compression, block_target: usize) -> Result<Bytes> {
    let plan = plan_blocks(set, block_target)?;
    let index_len = plan.len() * INDEX_ENTRY_LEN;
    let blocks_at = SET_HEADER_LEN + index_len;
    let payload = usize::try_from(set.payload_bytes()).map_err(Error::internal)?;
    let expected =
        if compression == Compression::None { payload + set.len() * 4 + plan.len() * 32 } else { payload / 3 };
    let mut out = Vec::with_capacity(blocks_at + expected);
    out.resize(blocks_at, 0);
    let mut encoder = BlockEncoder::default();
    for (i, range) in plan.iter().enumerate() {
        let (first, last) = (set.get(range.start).key_group, set.get(range.end - 1).key_group);
        let raw = encoder.encode(set, range.clone());
        let at = out.len();
        let raw_len = to_u32(raw.len())?;
        let stored_len = to_u32(compress::compress(compression, raw, &mut out)?)?;
        let crc = crc32c(&out[at..]);
        let records = to_u32(range.len())?;
        let entry = &mut out[SET_HEADER_LEN + i * INDEX_ENTRY_LEN..][..INDEX_ENTRY_LEN];
        entry[0..2].copy_from_slice(&first.0.to_le_bytes());
        entry[2..4].copy_from_slice(&last.0.to_le_bytes());
        entry[4..8].copy_from_slice(&records.to_le_bytes());
        entry[8..12].copy_from_slice(&raw_len.to_le_bytes());
        entry[12..16].copy_from_slice(&stored_len.to_le_bytes());
        entry[16..20].copy_from_slice(&crc.to_le_bytes());
    }
    let total = out.len() as u64;
    let index_crc = crc32c(&out[SET_HEADER_LEN..blocks_at]);
    let header = &mut out[..SET_HEADER_LEN];
    header[0..4].copy_from_slice(&SET_MAGIC);
    header[4..6].copy_from_slice(&SET_VERSION.to_le_bytes());
    header[6] = compress::id_of(compression);
    header[8..12].copy_from_slice(&to_u32(plan.len())?.to_le_bytes());
    header[12..16].copy_from_slice(&to_u32(index_len)?.to_le_bytes());
    header[16..24].copy_from_slice(&(set.len() as u64).to_le_bytes());
    header[24..32].copy_from_slice(&total.to_le_bytes());
    header[32..36].copy_from_slice(&index_crc.to_le_bytes());
    let crc = crc32c(&header[..SET_HEADER_CRC]);
    header[SET_HEADER_CRC..].copy_from_slice(&crc.to_le_bytes());
    // What waits for upload is counted by length: give back what the guess was too high by.
    if out.capacity() - out.len() > out.len() / 4 {
        out.shrink_to_fit();
    }
    Ok(out.into())
}

fn to_u32(n: usize) -> Result<u32> {
    u32::try_from(n)
        .map_err(|_| Error::invalid(format!("a change set with a part of {n} bytes is too large; use more partitions")))
}

/// Cuts the records into runs of about `target` bytes; checks what the format cannot hold.
fn plan_blocks(set: &ChangeSet, target: usize) -> Result<Vec<Range<usize>>> {
    let mut plan = Vec::new();
    let (mut start, mut size) = (0, 0);
    let mut previous = KeyGroup(0);
    for (i, change) in set.iter().enumerate() {
        let length = change.key.len() + change.value.len();
        if length as u64 > MAX_RECORD {
            return Err(Error::invalid(format!(
                "a state entry of {length} bytes exceeds the limit of {MAX_RECORD} bytes; split it over several keys"
            )));
        }
        if change.key_group < previous {
            return Err(Error::internal("a change set is not grouped by key group"));
        }
        previous = change.key_group;
        // Three bytes stand for what a record costs beside its key and value: they keep a block of empty ones small.
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

// ------------------------------------------------------------------------------------------------------ reading one set

/// The verified fixed part of a change set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SetHeader {
    /// Compression of the blocks.
    pub compression: Compression,
    /// Number of blocks.
    pub blocks: u32,
    /// Number of records.
    pub records: u64,
    /// Bytes of the whole set, this header included.
    pub length: u64,
    index_crc: u32,
}

impl SetHeader {
    /// Bytes of header and index together: what to fetch before blocks can be chosen.
    pub fn index_end(&self) -> u64 {
        SET_HEADER_LEN as u64 + u64::from(self.blocks) * INDEX_ENTRY_LEN as u64
    }
}

/// One block as the index lists it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockEntry {
    /// First key group with a record in it.
    pub first: KeyGroup,
    /// Last key group with a record in it.
    pub last: KeyGroup,
    /// Number of records.
    pub records: u32,
    /// First byte, counted from the start of the set.
    pub offset: u64,
    /// Stored bytes.
    pub length: u32,
    /// Bytes after decompression.
    pub raw_length: u32,
    crc: u32,
}

/// The verified index of a change set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SetIndex {
    /// The fixed part.
    pub header: SetHeader,
    /// All blocks, in order.
    pub blocks: Vec<BlockEntry>,
}

impl SetIndex {
    /// The blocks that may hold records of `groups`.
    pub fn blocks_of(&self, groups: KeyGroupRange) -> Range<usize> {
        if groups.is_empty() {
            return 0..0;
        }
        let start = self.blocks.partition_point(|b| b.last.0 < groups.start);
        let end = self.blocks.partition_point(|b| b.first.0 < groups.end);
        start..end.max(start)
    }

    /// The bytes to fetch for `groups`, counted from the start of the set. Blocks ascend, so it is one range.
    pub fn bytes_of(&self, groups: KeyGroupRange) -> Range<u64> {
        let blocks = &self.blocks[self.blocks_of(groups)];
        match (blocks.first(), blocks.last()) {
            (Some(first), Some(last)) => first.offset..last.offset + u64::from(last.length),
            _ => 0..0,
        }
    }

    /// Reads the records of `groups` out of `bytes`, which are the set's bytes from `start` on (counted from the start
    /// of the set) and cover [`SetIndex::bytes_of`]. Records are appended to `set`.
    pub fn decode_blocks(
        &self,
        object: &str,
        offset_in_object: u64,
        start: u64,
        bytes: &[u8],
        groups: KeyGroupRange,
        set: &mut ChangeSet,
    ) -> Result<()> {
        self.decode(object, offset_in_object, start, bytes, self.blocks_of(groups), Some(groups), set)
    }

    #[expect(clippy::too_many_arguments, reason = "where the bytes come from, which of them, and whereto")]
    fn decode(
        &self,
        object: &str,
        offset_in_object: u64,
        start: u64,
        bytes: &[u8],
        blocks: Range<usize>,
        groups: Option<KeyGroupRange>,
        set: &mut ChangeSet,
    ) -> Result<()> {
        let mut decoder = BlockDecoder::default();
        let mut raw = Vec::new();
        for block in &self.blocks[blocks] {
            let at = offset_in_object.saturating_add(block.offset);
            let stored = block
                .offset
                .checked_sub(start)
                .and_then(|from| usize::try_from(from).ok())
                .and_then(|from| bytes.get(from..)?.get(..block.length as usize))
                .ok_or_else(|| {
                    Error::corrupt(object, at, format_args!("a block of {} bytes is missing", block.length))
                })?;
            let crc = crc32c(stored);
            if crc != block.crc {
                return Err(Error::corrupt(
                    object,
                    at,
                    format_args!(
                        "the checksum of a block of {} bytes is {crc:08x}, {:08x} was written",
                        block.length, block.crc
                    ),
                ));
            }
            compress::decompress(self.header.compression, stored, block.raw_length as usize, &mut raw)
                .map_err(|what| Error::corrupt(object, at, what))?;
            let promise = Promise { first: block.first, last: block.last, records: block.records };
            decoder.decode(Reader::new(object, at, &raw), promise, groups, set)?;
        }
        Ok(())
    }
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
    let flags = reader.u8("the flags")?;
    let blocks = reader.u32("the number of blocks")?;
    let index_len = reader.u32("the index length")?;
    let records = reader.u64("the number of records")?;
    let length = reader.u64("the length")?;
    let index_crc = reader.u32("the index checksum")?;
    let stored = reader.u32("the header checksum")?;
    let actual = crc32c(&header[..SET_HEADER_CRC]);
    if stored != actual {
        let what = format!("the checksum of the set's header is {actual:08x}, {stored:08x} was written");
        return Err(Error::corrupt(object, offset_in_object, what));
    }
    check_version(object, offset_in_object + 4, "change set", version, SET_VERSION)?;
    let compression = compress::from_id(compression)
        .filter(|_| flags == 0 && u64::from(index_len) == u64::from(blocks) * INDEX_ENTRY_LEN as u64)
        .ok_or_else(|| Error::corrupt(object, offset_in_object, "the set's header contradicts itself"))?;
    Ok(SetHeader { compression, blocks, records, length, index_crc })
}

/// Reads header and index of a set; `bytes` are at least its first [`SetHeader::index_end`] bytes.
pub fn decode_set_index(object: &str, offset_in_object: u64, bytes: &[u8]) -> Result<SetIndex> {
    let header = decode_set_header(object, offset_in_object, bytes)?;
    let index_at = offset_in_object.saturating_add(SET_HEADER_LEN as u64);
    let mut reader = Reader::new(object, index_at, &bytes[SET_HEADER_LEN..]);
    let index = usize::try_from(header.index_end()).unwrap_or(usize::MAX).saturating_sub(SET_HEADER_LEN);
    let index = reader.take(index, "the block index of a change set")?;
    let actual = crc32c(index);
    if actual != header.index_crc {
        let what = format!("the checksum of the block index is {actual:08x}, {:08x} was written", header.index_crc);
        return Err(Error::corrupt(object, index_at, what));
    }
    let mut reader = Reader::new(object, index_at, index);
    let mut blocks = Vec::with_capacity(header.blocks as usize);
    let (mut offset, mut records, mut previous) = (header.index_end(), 0_u64, KeyGroup(0));
    for _ in 0..header.blocks {
        let (first, last) = (KeyGroup(reader.u16("a first key group")?), KeyGroup(reader.u16("a last key group")?));
        let block = BlockEntry {
            first,
            last,
            records: reader.u32("a number of records")?,
            offset,
            raw_length: reader.u32("a raw length")?,
            length: reader.u32("a stored length")?,
            crc: reader.u32("a checksum")?,
        };
        let raw_limit = if block.records > 1 { MAX_BLOCK } else { u32::MAX };
        if first < previous
            || last < first
            || block.records == 0
            || block.raw_length > raw_limit
            || block.length > block.raw_length
        {
            return Err(reader.corrupt("the block index contradicts itself"));
        }
        previous = last;
        records += u64::from(block.records);
        offset += u64::from(block.length);
        blocks.push(block);
    }
    if offset != header.length || records != header.records {
        return Err(reader.corrupt("the blocks do not add up to the set"));
    }
    Ok(SetIndex { header, blocks })
}

/// Reads a whole change set, which is at byte `offset_in_object` of `object`.
pub fn decode_set(object: &str, offset_in_object: u64, bytes: &[u8]) -> Result<ChangeSet> {
    decode_whole(object, offset_in_object, bytes, None)
}

/// Like [`decode_set`], but only the records of `groups`; other blocks are neither checked nor unpacked.
pub fn decode_set_range(object: &str, offset_in_object: u64, bytes: &[u8], groups: KeyGroupRange) -> Result<ChangeSet> {
    decode_whole(object, offset_in_object, bytes, Some(groups))
}

fn decode_whole(object: &str, offset_in_object: u64, bytes: &[u8], groups: Option<KeyGroupRange>) -> Result<ChangeSet> {
    let index = decode_set_index(object, offset_in_object, bytes)?;
    if index.header.length != bytes.len() as u64 {
        return Err(Error::corrupt(
            object,
            offset_in_object.saturating_add(index.header.length.min(bytes.len() as u64)),
            format_args!("the change set has {} bytes, {} were written", bytes.len(), index.header.length),
        ));
    }
    let chosen = groups.map_or(0..index.blocks.len(), |g| index.blocks_of(g));
    // Reserve what the blocks say, but never more than a few times what is really there: a lie then costs a growth.
    let (mut raw, mut records) = (0_usize, 0_usize);
    for block in &index.blocks[chosen.clone()] {
        raw += block.raw_length as usize;
        records += block.records as usize;
    }
    let trust = bytes.len().saturating_mul(8);
    let mut set = ChangeSet::with_capacity(records.min(trust / 8), raw.min(trust));
    index.decode(object, offset_in_object, 0, bytes, chosen, groups, &mut set)?;
    Ok(set)
}

#[cfg(test)]
#[path = "segment_tests.rs"]
mod tests;
