//! Savepoints: a copy of a state in a folder of its own.
//!
//! Owns: what a savepoint's manifest says.
//! Does not own: its bytes (`crate::savepoint_manifest`), writing and reading the folder (`shard::savepoint`).
//!
//! Invariants of a [`Savepoint`]:
//! 1. all names are relative to its folder, and it needs nothing outside: a copy elsewhere is the same savepoint;
//! 2. it is written last, after the store acknowledged every file that it names;
//! 3. parts are in the order of (key group, state, key), within and among them; no key is in two.

use super::handle::{ObjectRef, ShardHandle};
use super::ids::{BatchId, InstanceId, KeyGroupRange};
use serde::{Deserialize, Serialize};

/// One file of a canonical savepoint's entries.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavepointPart {
    /// The file.
    pub object: ObjectRef,
    /// From the key group of its first entry to that of its last one.
    pub key_groups: KeyGroupRange,
    /// Number of entries; never none.
    pub entries: u64,
    /// Bytes of keys and values.
    pub bytes: u64,
}

/// The two forms of a savepoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SavepointContent {
    /// Sorted entries in change sets: readable without RocksDB.
    Canonical(Vec<SavepointPart>),
    /// Copies of all objects that the handles name, under their names.
    Native {
        /// One for each shard.
        handles: Vec<ShardHandle>,
        /// Everything that they reach.
        objects: Vec<ObjectRef>,
    },
}

/// Where a savepoint comes from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavepointOrigin {
    /// Spark's query id; empty for an embedded state.
    pub query_id: String,
    /// Name of the operator, or of the embedded state.
    pub name: String,
    /// The batch whose state it is; the number of the checkpoint for an embedded state.
    pub batch: BatchId,
    /// When it was taken, in milliseconds since the epoch, by the clock of the taking process.
    pub taken_millis: u64,
}

/// Facts about a folder's state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Savepoint {
    /// Minted when it was taken.
    pub id: InstanceId,
    /// Where it comes from.
    pub origin: SavepointOrigin,
    /// Number of shards that it was taken of. It can be restored to any number up to `max_parallelism`.
    pub shards: u32,
    /// Number of key groups, fixed forever.
    pub max_parallelism: u16,
    /// The key hash in use.
    pub hash_id: u16,
    /// Fingerprint of key types and states.
    pub schema_id: u64,
    /// The schema behind `schema_id`, in words.
    pub schema: String,
    /// Keys in the state.
    pub keys: u64,
    /// Bytes of keys and values.
    pub bytes: u64,
    /// The state itself.
    pub content: SavepointContent,
}

impl Savepoint {
    /// Every file beside the manifest.
    pub fn objects(&self) -> Vec<&ObjectRef> {
        match &self.content {
            SavepointContent::Canonical(parts) => parts.iter().map(|part| &part.object).collect(),
            SavepointContent::Native { objects, .. } => objects.iter().collect(),
        }
    }

    /// `canonical` or `native`.
    pub fn format(&self) -> &'static str {
        match self.content {
            SavepointContent::Canonical(_) => "canonical",
            SavepointContent::Native { .. } => "native",
        }
    }

    /// Bytes of its files.
    pub fn stored_bytes(&self) -> u64 {
        self.objects().iter().map(|object| object.size).sum()
    }
}
