//! fastchangelog-state: keys and values of a shard, in a hot tier over RocksDB.
//!
//! Layer 2: imports `fastchangelog-format`, `fastchangelog-columns` and `fastchangelog-store` (counters, the memory
//! budget). The log it does not see. The only crate that calls RocksDB.
//!
//! Owns: the local keyed state, its checkpoints, and states of a range of key groups ([`group_range`]).
//! Does not own: what keys and rows mean (`fastchangelog-columns`), which version a shard is at (`fastchangelog-core`),
//! the bucket (`fastchangelog-store`).
#![deny(unsafe_code)]
#![warn(missing_docs)]

mod checkpoint;
pub mod foreign;
pub mod group_range;
pub mod hot;
pub mod keyed;
pub mod rocks;
#[expect(unsafe_code, reason = "the interface to C++")]
mod rocks_threads;
pub mod scan;
