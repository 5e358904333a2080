//! Reading back: from handles to changes and files.
//!
//! ```text
//! replay  segments ──► change sets, in order, prefetched     cache  objects on local disk: one download, many readers
//! base    manifest ──► a folder of RocksDB files
//! progress  how far both are, for people who wait
//! packed  small files of a base out of the object they share
//! part    the same two for a range of key groups: only the tables and blocks that may hold its keys
//! ```
//!
//! Owns: which bytes are fetched for a restore, from where, and the local copies.
//! Does not own: applying changes (`state`), choosing what to restore (`shard`), the format of objects (`format`).

pub mod base;
pub mod cache;
pub mod changes;
mod copy;
mod folder;
mod packed;
pub mod part;
pub mod progress;
pub mod replay;

pub use base::{fetch_base, fetch_manifest};
pub use cache::{Lease, ObjectCache};
pub use folder::remove_folder;
pub use part::{PartOfBase, fetch_part_of_base, read_parts};
pub use progress::Progress;
pub use replay::{SetsAhead, read_segments};
