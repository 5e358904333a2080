//! The nouns: plain data, newtypes for everything that counts or names something.
//!
//! Owns: identities, changes, handles of shards and of plain changelogs, savepoints. Does not own: their bytes (the other
//! modules of this crate) nor anything that does I/O.

pub mod change;
pub mod changelog;
pub mod handle;
pub mod ids;
pub mod savepoint;

pub use change::{Change, ChangeSet, Op};
pub use changelog::{ChangelogHandle, INITIAL_SEQUENCE_NUMBER, Lane, SequenceNumber, SetRef};
pub use handle::{ObjectRef, SegmentRef, ShardHandle, SnapshotRef};
pub use ids::{BatchId, InstanceId, KeyGroup, KeyGroupRange, StateId, VersionId, key_group_of, shard_range};
pub use savepoint::{Savepoint, SavepointContent, SavepointOrigin, SavepointPart};
