//! The blocks that collect the appends of a plain changelog, before they become a set.
//!
//! Owns: values under construction, as copies or as references to memory of others; a block's columns and parts.
//! Does not own: the layout of a set (`byte_set`), which block an append goes to (`buffer` of
//! `fastchangelog-changelog`).
//!
//! Invariant: the bytes of a set do not depend on which of its values are copied.

use super::wire::{Crc, crc32c, put_varint};
use crate::error::{Error, Result};
use bytes::Bytes;
use std::borrow::Cow;

/// Most records of one block. Far below 32 bits, and high enough that few blocks reach it.
pub(super) const MAX_RECORDS: u32 = 1 << 22;

/// Records of one lane in a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) records: u32,
    pub(super) lane: u16,
}

/// A value: its bytes and, if a block may refer to them instead of a copy, the memory that holds them.
#[derive(Debug, Clone, Copy)]
pub struct Value<'a> {
    /// The bytes.
    pub bytes: &'a [u8],
    /// Memory around them that never changes.
    pub memory: Option<&'a Bytes>,
}

/// Values that stay in memory of others.
#[derive(Debug)]
struct Reference {
    /// Copied bytes before them.
    after: u32,
    /// Which of the block's memories they are in, and where.
    memory: u32,
    length: u32,
    start: usize,
}

/// Values under construction, in the order of appends. Lanes must ascend when it is encoded.
#[derive(Debug, Default)]
pub struct ByteBlock {
    runs: Vec<Run>,
    records: u32,
    /// The length of all values so far, while they have one.
    common: u32,
    /// Length of every value, once they differ.
    lengths: Option<Vec<u32>>,
    /// Copied values.
    values: Vec<u8>,
    /// The others. In a box of their own, so that many open blocks fit into the processor's cache.
    references: Option<Box<References>>,
}

#[derive(Debug, Default)]
struct References {
    all: Vec<Reference>,
    /// The memory that they are in.
    memories: Vec<Bytes>,
    /// Bytes of their values.
    bytes: usize,
}

impl ByteBlock {
    /// An empty block that copies values into `memory`, which is empty.
    pub fn in_memory(memory: Vec<u8>) -> Self {
        Self { values: memory, ..Self::default() }
    }

    /// The memory of copied values.
    pub fn into_memory(self) -> Vec<u8> {
        self.values
    }

    /// Adds a copy of a value at the end.
    #[inline]
    pub fn push(&mut self, lane: u16, value: &[u8]) {
        self.count(lane, value.len() as u32);
        self.values.extend_from_slice(value);
    }

    /// Adds a value at the end: a reference to it if it has memory, else a copy.
    #[inline]
    pub fn push_value(&mut self, lane: u16, value: Value<'_>) {
        let Value { bytes, memory } = value;
        match memory.and_then(|memory| Some((memory, place(memory, bytes)?))) {
            Some((memory, start)) => self.refer(lane, memory, start, bytes.len()),
            None => self.push(lane, bytes),
        }
    }

    fn refer(&mut self, lane: u16, memory: &Bytes, start: usize, length: usize) {
        self.count(lane, length as u32);
        let references = self.references.get_or_insert_default();
        references.bytes += length;
        let is_last = references.memories.last().is_some_and(|last| last.as_ptr_range() == memory.as_ptr_range());
        if !is_last {
            references.memories.push(memory.clone());
        }
        let (after, memory) = (self.values.len() as u32, references.memories.len() as u32 - 1);
        match references.all.last_mut() {
            Some(last) if last.follows_to(after, memory, start) => last.length += length as u32,
            _ => references.all.push(Reference { after, memory, length: length as u32, start }),
        }
    }

    #[inline]
    fn count(&mut self, lane: u16, length: u32) {
        match self.runs.last_mut() {
            Some(run) if run.lane == lane => run.records += 1,
            _ => self.runs.push(Run { records: 1, lane }),
        }
        match &mut self.lengths {
            Some(lengths) => lengths.push(length),
            None if self.records == 0 => self.common = length,
            None if self.common != length => self.spell_out(length),
            None => {}
        }
        self.records += 1;
    }

    #[cold]
    fn spell_out(&mut self, next: u32) {
        let mut lengths = Vec::with_capacity(self.records as usize * 2 + 2);
        lengths.resize(self.records as usize, self.common);
        lengths.push(next);
        self.lengths = Some(lengths);
    }

    /// Bytes of values.
    #[inline]
    pub fn len(&self) -> usize {
        self.values.len() + self.references.as_ref().map_or(0, |references| references.bytes)
    }

    /// Number of records.
    pub(super) fn records(&self) -> u32 {
        self.records
    }

    /// True when it holds no record.
    pub fn is_empty(&self) -> bool {
        self.records == 0
    }

    /// True when `more` bytes fit without growing beyond `target` bytes.
    #[inline]
    pub fn has_room(&self, more: usize, target: usize) -> bool {
        (self.len() + more <= target || self.records == 0) && self.records < MAX_RECORDS
    }

    /// True when the records of another block fit.
    pub fn fits(&self, other: &Self) -> bool {
        self.records.saturating_add(other.records) < MAX_RECORDS
    }

    /// Bytes of memory held, those that it refers to included.
    #[inline]
    pub fn memory(&self) -> usize {
        let lengths = self.lengths.as_ref().map_or(0, Vec::capacity);
        let references = self.references.as_ref().map_or(0, |references| references.memory());
        self.values.capacity() + references + lengths * size_of::<u32>() + self.runs.capacity() * size_of::<Run>()
    }

    /// Every record: lane and value.
    pub fn iter(&self) -> impl Iterator<Item = (u16, Value<'_>)> {
        let lanes = self.runs.iter().flat_map(|run| std::iter::repeat_n(run.lane, run.records as usize));
        let (mut copied, mut reference, mut within) = (0, 0, 0);
        lanes.enumerate().map(move |(i, lane)| {
            let length = self.length(i) as usize;
            if let Some(References { all, memories, .. }) = self.references.as_deref()
                && let Some(found) = all.get(reference)
                && found.after as usize == copied
                && length > 0
            {
                let memory = &memories[found.memory as usize];
                let start = found.start + within;
                within += length;
                if within == found.length as usize {
                    (reference, within) = (reference + 1, 0);
                }
                return (lane, Value { bytes: &memory[start..start + length], memory: Some(memory) });
            }
            let start = copied;
            copied += length;
            (lane, Value { bytes: &self.values[start..copied], memory: None })
        })
    }

    /// The values in one piece.
    pub(super) fn joined(&self) -> Cow<'_, [u8]> {
        if self.references.is_none() {
            return Cow::Borrowed(&self.values);
        }
        let mut all = Vec::with_capacity(self.len());
        self.iter().for_each(|(_, value)| all.extend_from_slice(value.bytes));
        Cow::Owned(all)
    }

    /// Adds the values to `parts`, without a copy; returns their checksum.
    pub(super) fn into_parts(self, own: &dyn Fn(Vec<u8>) -> Bytes, parts: &mut Vec<Bytes>) -> u32 {
        let Some(references) = self.references else {
            let crc = crc32c(&self.values);
            parts.push(own(self.values));
            return crc;
        };
        let mut crc = Crc::new();
        let mut add = |part: Bytes| {
            crc.update(&part);
            parts.push(part);
        };
        let (copied, mut at) = (own(self.values), 0);
        for reference in &references.all {
            let (start, end) = (reference.start, reference.start + reference.length as usize);
            let after = reference.after as usize;
            if after > at {
                add(copied.slice(at..after));
                at = after;
            }
            add(references.memories[reference.memory as usize].slice(start..end));
        }
        if copied.len() > at {
            add(copied.slice(at..));
        }
        crc.value()
    }

    fn length(&self, i: usize) -> u32 {
        self.lengths.as_ref().map_or(self.common, |lengths| lengths[i])
    }

    pub(super) fn put_columns(&self, out: &mut Vec<u8>) -> Result<()> {
        put_varint(out, self.runs.len() as u64);
        let mut previous = self.first();
        for run in &self.runs {
            let step =
                run.lane.checked_sub(previous).ok_or_else(|| Error::internal("the lanes of a block do not ascend"))?;
            put_varint(out, u64::from(run.records));
            put_varint(out, u64::from(step));
            previous = run.lane;
        }
        match &self.lengths {
            None => {
                out.push(0);
                put_varint(out, u64::from(self.common));
            }
            Some(lengths) => {
                out.push(1);
                lengths.iter().for_each(|length| put_varint(out, u64::from(*length)));
            }
        }
        Ok(())
    }

    pub(super) fn first(&self) -> u16 {
        self.runs.first().map_or(0, |run| run.lane)
    }

    pub(super) fn last(&self) -> u16 {
        self.runs.last().map_or(0, |run| run.lane)
    }
}

impl References {
    fn memory(&self) -> usize {
        self.bytes + self.all.capacity() * size_of::<Reference>()
    }
}

impl Reference {
    /// True if the byte at `start` of the memory comes next after it.
    fn follows_to(&self, after: u32, memory: u32, start: usize) -> bool {
        (self.after, self.memory, self.start + self.length as usize) == (after, memory, start)
    }
}

/// Where `value` starts in `memory`, if it lies in it and is not empty.
fn place(memory: &Bytes, value: &[u8]) -> Option<usize> {
    let start = value.as_ptr().addr().checked_sub(memory.as_ptr().addr())?;
    (!value.is_empty() && start.checked_add(value.len())? <= memory.len()).then_some(start)
}
