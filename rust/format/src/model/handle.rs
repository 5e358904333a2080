//! Handles: a handle names a durable version of a shard.
//!
//! Owns: the content of a handle and the rules between its parts.
//! Does not own: its bytes (`crate::handle`), the objects it names.
//!
//! Invariants of a [`ShardHandle`] (P2):
//! 1. every object it names was acknowledged by the store, with its size, before the handle existed;
//! 2. state = snapshot, then `indexed` segments (if any), then `segments`, in order; the last segment's version is
//!    `version` unless the batch changed nothing. A version may have several adjacent segments without a common key;
//!    the last one completes it;
//! 3. a handle names a snapshot only if the snapshot's version is the handle's version or one of its ancestors;
//! 4. it stays small: beyond a cap older segments move to an index object.

use super::ids::{BatchId, InstanceId, KeyGroupRange, VersionId};
use serde::{Deserialize, Serialize};

/// An immutable object in the bucket: its name under the state's root, its size and its checksum.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ObjectRef {
    /// Name relative to the state's folder, such as `log/5f…`.
    pub name: String,
    /// Size in bytes.
    pub size: u64,
    /// CRC-32C of all its bytes.
    pub crc: u32,
}

/// One shard's change set inside a log object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SegmentRef {
    /// The version that this change set produced, alone or with its neighbours of the same version.
    pub version: VersionId,
    /// The batch that produced it.
    pub batch: BatchId,
    /// The log object.
    pub object: ObjectRef,
    /// First byte of the set in the object.
    pub offset: u64,
    /// Length of the set in bytes.
    pub length: u64,
    /// Number of records in the set.
    pub records: u64,
}

/// A materialized snapshot: the manifest of a RocksDB checkpoint.
///
/// The checkpoint is fuzzy: it holds everything up to `replay_after` and possibly changes of versions up to
/// `version`. So a handle may use it only if `version` is its ancestor or itself, and it replays every segment after
/// `replay_after` (change sets are absolute, replaying them over themselves is harmless).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotRef {
    /// Newest version whose changes may be in the snapshot.
    pub version: VersionId,
    /// Newest version whose changes are all in the snapshot.
    pub replay_after: VersionId,
    /// The manifest object.
    pub manifest: ObjectRef,
    /// Bytes of the manifest and all files it names.
    pub total_bytes: u64,
}

/// A durable version of one shard.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardHandle {
    /// Which state this is a version of.
    pub instance: InstanceId,
    /// This version.
    pub version: VersionId,
    /// The parent version; none for the first.
    pub parent: Option<VersionId>,
    /// The batch that made it.
    pub batch: BatchId,
    /// This shard's number.
    pub shard: u32,
    /// Number of shards.
    pub shards: u32,
    /// Number of key groups.
    pub max_parallelism: u16,
    /// This shard's key groups.
    pub key_groups: KeyGroupRange,
    /// The key hash in use ([`crate::model::handle::HASH_ID`]).
    pub hash_id: u16,
    /// Fingerprint of key schema and states.
    pub schema_id: u64,
    /// Readable form of the schema behind `schema_id`, so that a mismatch can name the difference.
    pub schema: String,
    /// Event-time watermark of the batch in milliseconds. The next batch needs it beside its own: rows are late by the
    /// earlier watermark, timers are due by the later one. None without event time. Reserved for states with event
    /// time; aggregations have none.
    pub watermark: Option<i64>,
    /// Keys in the state.
    pub state_keys: u64,
    /// Bytes of keys and values in the state.
    pub state_bytes: u64,
    /// The materialized snapshot, if there is one.
    #[serde(rename = "base")]
    pub snapshot: Option<SnapshotRef>,
    /// An object that lists older segments, if they were too many.
    pub indexed: Option<ObjectRef>,
    /// Segments after snapshot and index, in order.
    pub segments: Vec<SegmentRef>,
}

/// The key hash: XXH3, 64 bits, seed 0, over the canonical key bytes.
pub const HASH_ID: u16 = 1;
