//! Materialized snapshots: a RocksDB checkpoint becomes objects in the bucket.
//!
//! ```text
//! hardlink    a checkpoint's folder of hard links  -> which files, of which kind
//! inventory   which of them the last snapshot already has in the bucket
//! pack        which of the others are small enough to share an object
//! push        uploads the new ones, then the manifest
//! ```
//!
//! Owns: incremental upload of a checkpoint that the caller has made. Does not own: making checkpoints (`state`), when
//! to materialize, which handle may use a snapshot, restoring (`read`), deleting objects.

mod hardlink;
mod inventory;
mod pack;
mod push;

pub use hardlink::{CheckpointFiles, LargeFile, list};
pub use inventory::Inventory;
pub use push::{PushContext, Stamp, push};
