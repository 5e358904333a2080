//! The append buffer: the active change set of one writer.
//!
//! Owns: which block an append goes to, so that a set is grouped by lane without a second copy, and the count of what
//! it holds.
//! Does not own: the bytes of a set (`format::byte_set`), when it is sealed, or what happens to it then.
//!
//! A buffer keeps one bucket per lane, or, for more than [`MAX_BUCKETS`] lanes, one for each few: those are put in order
//! when the set is sealed. A bucket begins with the size that it had in the set before.

use super::block_pool::BlockPool;
use bytes::Bytes;
use fastchangelog_format::EncodedSet;
use fastchangelog_format::byte_set::{ByteBlock, Value, encode_byte_set};
use fastchangelog_format::config::Compression;
use fastchangelog_format::error::Result;
use fastchangelog_format::model::KeyGroupRange;

/// More buckets than this would make the memory of a small set.
const MAX_BUCKETS: usize = 256;
/// A block of a bucket is closed before it would grow beyond this many bytes.
const BLOCK_TARGET: usize = 256 << 10;
/// Blocks smaller than this are joined with their neighbours: an index entry and a compressor's start cost as much as
/// some hundred bytes.
const SMALL_BLOCK: usize = 24 << 10;

#[derive(Debug, Default)]
struct Bucket {
    closed: Vec<ByteBlock>,
    open: ByteBlock,
    /// Bytes of values in the set before.
    expected: usize,
}

/// The active change set.
#[derive(Debug)]
pub struct AppendBuffer {
    groups: KeyGroupRange,
    /// Bucket 0 holds metadata; bucket 1 + i the lanes of `width` key groups from `groups.start + i × width` on.
    buckets: Vec<Bucket>,
    width: u16,
    pool: BlockPool,
    records: u64,
    payload: u64,
    memory: u64,
}

/// A sealed change set that is not encoded yet.
#[derive(Debug)]
pub struct RawSet {
    buckets: Vec<Vec<ByteBlock>>,
    /// False when blocks hold lanes in any order.
    in_order: bool,
    pool: BlockPool,
    /// Bytes of values.
    pub payload: u64,
    /// Bytes of memory held.
    pub memory: u64,
}

impl AppendBuffer {
    /// An empty buffer for the key groups `groups`, with its memory from `pool`.
    pub fn new(groups: KeyGroupRange, pool: BlockPool) -> Self {
        let width = groups.len().div_ceil(MAX_BUCKETS).max(1);
        let buckets = 1 + groups.len().div_ceil(width);
        Self {
            groups,
            buckets: (0..buckets).map(|_| Bucket::default()).collect(),
            width: u16::try_from(width).unwrap_or(u16::MAX),
            pool,
            records: 0,
            payload: 0,
            memory: 0,
        }
    }

    /// Adds a change; `key_group` must be one of the buffer's.
    #[inline]
    pub fn append(&mut self, key_group: u16, value: &[u8]) {
        self.append_within(key_group, value, None);
    }

    /// The same for a value that lies in `memory`, if there is one, which the set then refers to.
    #[inline]
    pub fn append_within(&mut self, key_group: u16, bytes: &[u8], memory: Option<&Bytes>) {
        let offset = key_group - self.groups.start;
        let bucket = if self.width == 1 { offset } else { offset / self.width };
        self.push(1 + usize::from(bucket), key_group + 1, Value { bytes, memory });
    }

    /// Adds a metadata record.
    pub fn append_meta(&mut self, value: &[u8]) {
        self.push(0, 0, Value { bytes: value, memory: None });
    }

    #[inline]
    fn push(&mut self, bucket: usize, lane: u16, value: Value<'_>) {
        let bucket = &mut self.buckets[bucket];
        let length = value.bytes.len();
        let mut before = bucket.open.memory();
        if !bucket.open.has_room(length, BLOCK_TARGET) {
            bucket.closed.push(std::mem::take(&mut bucket.open));
            before = 0;
        }
        if bucket.open.is_empty() && value.memory.is_none() {
            // A little more than last time, in steps, so that most sets need no growth.
            let expected = (bucket.expected + bucket.expected / 16).next_multiple_of(64).min(BLOCK_TARGET);
            let capacity = if bucket.closed.is_empty() { expected.max(length) } else { BLOCK_TARGET };
            bucket.open = ByteBlock::in_memory(self.pool.take(capacity));
        }
        bucket.open.push_value(lane, value);
        self.memory += (bucket.open.memory() - before) as u64;
        self.records += 1;
        self.payload += length as u64;
    }

    /// True when nothing was appended since the last [`AppendBuffer::seal`].
    pub fn is_empty(&self) -> bool {
        self.records == 0
    }

    /// Bytes of values.
    #[inline]
    pub fn payload(&self) -> u64 {
        self.payload
    }

    /// Bytes of memory held, overhead of small records included.
    #[inline]
    pub fn memory(&self) -> u64 {
        self.memory
    }

    /// Ends the set; the buffer is empty afterwards.
    pub fn seal(&mut self) -> RawSet {
        let buckets = self.buckets.iter_mut().map(|bucket| {
            let mut blocks = std::mem::take(&mut bucket.closed);
            blocks.push(std::mem::take(&mut bucket.open));
            bucket.expected = blocks.iter().map(ByteBlock::len).sum();
            blocks
        });
        let buckets = buckets.collect();
        self.records = 0;
        RawSet {
            buckets,
            in_order: self.width == 1,
            pool: self.pool.clone(),
            payload: std::mem::take(&mut self.payload),
            memory: std::mem::take(&mut self.memory),
        }
    }
}

impl RawSet {
    /// The set's bytes.
    pub fn encode(self, compression: Compression) -> Result<EncodedSet> {
        let mut blocks = Vec::with_capacity(self.buckets.len());
        let mut small = ByteBlock::default();
        for bucket in self.buckets {
            let bucket = if self.in_order { bucket } else { regrouped(&bucket) };
            for block in bucket {
                let large = block.len() >= SMALL_BLOCK;
                if large || !small.fits(&block) {
                    blocks.push(std::mem::take(&mut small));
                }
                if large {
                    blocks.push(block);
                    continue;
                }
                block.iter().for_each(|(lane, value)| small.push_value(lane, value));
                self.pool.give(block.into_memory());
                if small.len() >= SMALL_BLOCK {
                    blocks.push(std::mem::take(&mut small));
                }
            }
        }
        blocks.push(small);
        encode_byte_set(blocks, compression, &|memory| self.pool.lend(memory))
    }
}

/// The records of a bucket of several lanes, lane by lane; order inside a lane stays.
fn regrouped(blocks: &[ByteBlock]) -> Vec<ByteBlock> {
    let mut records: Vec<(u16, Value<'_>)> = blocks.iter().flat_map(ByteBlock::iter).collect();
    records.sort_by_key(|(lane, _)| *lane);
    let mut out = Vec::new();
    let mut open = ByteBlock::default();
    for (lane, value) in records {
        if !open.has_room(value.bytes.len(), BLOCK_TARGET) {
            out.push(std::mem::take(&mut open));
        }
        open.push_value(lane, value);
    }
    out.push(open);
    out
}

#[cfg(test)]
#[path = "buffer_tests.rs"]
mod tests;
