//! The nouns of a plain changelog: numbers of change sets, where a set is, and the handle of a range of them.
//!
//! Owns: their shape. Does not own: their bytes (`crate::changelog_handle`), the deletion of objects (`ownership`).
//!
//! Invariants of a [`ChangelogHandle`]:
//! 1. every object it names was acknowledged by the store, with its size, before the handle existed (P2);
//! 2. `sets` ascend by number; a hole is an empty set, so they are exactly the sets of `[from, to)`;
//! 3. all key groups in the sets, the metadata marker aside, are in `key_groups`.

use super::handle::ObjectRef;
use super::ids::KeyGroupRange;
use serde::{Deserialize, Serialize};

/// Number of a change set of one writer. Many appends share one; rollover draws the next.
pub type SequenceNumber = u64;

/// The number of every writer's first change set.
pub const INITIAL_SEQUENCE_NUMBER: SequenceNumber = 0;

/// The lane of a change: a key group, or the log's metadata. A number on disk, in ascending order: metadata first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Lane(pub u16);

impl Lane {
    /// The lane of metadata records.
    pub const META: Self = Self(0);

    /// The lane of a key group.
    pub fn of(key_group: u16) -> Self {
        Self(key_group + 1)
    }

    /// The key group; −1 for metadata, as Flink numbers it.
    pub fn key_group(self) -> i32 {
        i32::from(self.0) - 1
    }
}

/// A change set inside a log object.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct SetRef {
    /// Its number.
    pub sequence_number: SequenceNumber,
    /// The log object.
    pub object: ObjectRef,
    /// First byte of the set in the object.
    pub offset: u64,
    /// Length of the set in bytes.
    pub length: u64,
    /// Length of header and index at the set's start. A reader fetches them before it can choose a part.
    pub head: u64,
    /// The checksum in the set's header. It covers the checksums of the parts, so no other set can take its place.
    pub mark: u32,
    /// Number of changes.
    pub records: u64,
    /// Bytes of the changes' values.
    pub payload: u64,
}

/// The change sets of one writer's `[from, to)`, durable.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ChangelogHandle {
    /// The storage that the objects are in, as messages show it.
    pub storage: String,
    /// The writer's name.
    pub writer: String,
    /// The writer's key groups, or a part of them.
    pub key_groups: KeyGroupRange,
    /// First sequence number.
    pub from: SequenceNumber,
    /// One past the last sequence number.
    pub to: SequenceNumber,
    /// The checkpoint that it was made for.
    pub checkpoint_id: u64,
    /// The sets, in order.
    pub sets: Vec<SetRef>,
    /// Bytes of values in sets that no earlier checkpoint of the writer named.
    pub incremental_size: u64,
}

impl ChangelogHandle {
    /// Bytes of values in all sets.
    pub fn size(&self) -> u64 {
        self.sets.iter().map(|set| set.payload).sum()
    }

    /// Changes in all sets.
    pub fn records(&self) -> u64 {
        self.sets.iter().map(|set| set.records).sum()
    }
}
