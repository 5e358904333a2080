//! Reading back: from handles to changes and files.
//!
//! ```text
//! replay  segments ──► change sets, in order, prefetched     cache  objects on local disk: one download, many readers
//! snapshot_files  manifest ──► a folder of RocksDB files
//! set_parts  a change set as a whole, or in parts if it unpacks to much
//! restore_progress  the bytes of both, for metrics and the log
//! packed  small files of a snapshot out of the object they share
//! slice   the same two for a range of key groups: only the tables and blocks that may hold its keys
//! ```
//!
//! Owns: the bytes to fetch for a restore, their source, and the local copies.
//! Does not own: applying changes (`state`), choosing what to restore (`shard`), the format of objects (`format`).

pub mod cache;
mod cached_file;
mod packed;
pub mod replay;
pub mod restore_progress;
mod set_parts;
pub mod slice;
pub mod snapshot_files;

pub use cache::{IDLE_TIMEOUT, Lease, ObjectCache};
pub use replay::{SetsAhead, read_segments};
pub use restore_progress::RestoreProgress;
pub use slice::{SetSlice, SnapshotSlice, fetch_snapshot_slice, read_slices};
pub use snapshot_files::{fetch_manifest, fetch_snapshot};
