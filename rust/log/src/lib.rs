//! fastchangelog-log: the changelog, in three stages that do not see each other.
//!
//! Layer 2: imports `fastchangelog-format` and `fastchangelog-store`. Keys and values are bytes here.
//!
//! ```text
//! write      change sets into log objects
//! snapshot   a checkpoint's files into the bucket
//! read       both back
//! ```
//!
//! Owns: log objects and snapshots, from their bytes in memory to the bucket and back.
//! Does not own: what is written and when (`fastchangelog-core`), the state (`fastchangelog-state`), the bucket itself
//! (`fastchangelog-store`).
//!
//! `write`, `snapshot` and `read` import from lower crates, never from each other.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod read;
pub mod snapshot;
pub mod write;

// `rust/shuttle-tests` compiles files of this crate a second time, with a store and primitives of its own under these
// names. So they say `crate::store` and `crate::sync`.
use fastchangelog_store as store;
use fastchangelog_store::sync;
