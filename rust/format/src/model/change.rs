//! Changes: the unit of the log.
//!
//! Owns: one mutation of one (state, key, sub-key), and a sealed run of them.
//! Does not own: bytes (`crate::segment`) or its producer.
//!
//! Invariants of a [`ChangeSet`]:
//! 1. at most one put or delete per (state, key) (P5);
//! 2. applied to any state between "just before" and "just after" it, a set gives the same result (puts and deletes
//!    are absolute), so replay may overlap a snapshot;
//! 3. records are grouped by key group in ascending order; within a key group, order is the order of application.

use super::ids::{KeyGroup, StateId};

/// The operation of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Op {
    /// Sets the value.
    Put = 1,
    /// Removes the value.
    Delete = 2,
    /// Removes every key that starts with this one (all sub-keys of a key).
    DeletePrefix = 3,
}

impl Op {
    /// The op of a stored byte.
    pub fn from_u8(byte: u8) -> Option<Self> {
        match byte {
            1 => Some(Self::Put),
            2 => Some(Self::Delete),
            3 => Some(Self::DeletePrefix),
            _ => None,
        }
    }
}

/// One mutation, borrowed from its change set or from its source table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Change<'a> {
    /// The operation.
    pub op: Op,
    /// The state that is changed.
    pub state: StateId,
    /// The key's key group.
    pub key_group: KeyGroup,
    /// Canonical key bytes, sub-key included.
    pub key: &'a [u8],
    /// The new value; empty unless `op` is [`Op::Put`].
    pub value: &'a [u8],
}

/// A sealed run of changes in flat memory: few allocations however many records.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ChangeSet {
    bytes: Vec<u8>,
    records: Vec<Record>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Record {
    offset: u64,
    key_len: u32,
    value_len: u32,
    state: u16,
    key_group: u16,
    op: Op,
}

impl ChangeSet {
    /// An empty set with room for `records` records of `bytes` bytes in all.
    pub fn with_capacity(records: usize, bytes: usize) -> Self {
        Self { bytes: Vec::with_capacity(bytes), records: Vec::with_capacity(records) }
    }

    /// Adds a change at the end.
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "keys and values are far below 4 GiB")]
    pub fn push(&mut self, change: Change<'_>) {
        self.records.push(Record {
            offset: self.bytes.len() as u64,
            key_len: change.key.len() as u32,
            value_len: change.value.len() as u32,
            state: change.state.0,
            key_group: change.key_group.0,
            op: change.op,
        });
        self.bytes.extend_from_slice(change.key);
        self.bytes.extend_from_slice(change.value);
    }

    /// Number of records.
    pub fn len(&self) -> usize {
        self.records.len()
    }

    /// True when nothing changed.
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Bytes of keys and values.
    pub fn payload_bytes(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// Bytes of memory held.
    pub fn memory_bytes(&self) -> u64 {
        (self.bytes.capacity() + self.records.capacity() * size_of::<Record>()) as u64
    }

    /// The `i`-th change.
    #[inline]
    pub fn get(&self, i: usize) -> Change<'_> {
        self.view(&self.records[i])
    }

    /// The changes in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Change<'_>> {
        self.records.iter().map(|r| self.view(r))
    }

    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "offsets into memory")]
    fn view(&self, r: &Record) -> Change<'_> {
        let key = r.offset as usize;
        let value = key + r.key_len as usize;
        Change {
            op: r.op,
            state: StateId(r.state),
            key_group: KeyGroup(r.key_group),
            key: &self.bytes[key..value],
            value: &self.bytes[value..value + r.value_len as usize],
        }
    }

    /// Groups records by key group (invariant 3), keeping the order inside each.
    pub fn sort_by_key_group(&mut self) {
        self.records.sort_by_key(|r| r.key_group);
    }
}
