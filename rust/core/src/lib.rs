//! fastchangelog-core: durable keyed state, without Python.
//!
//! The modules are layers; a module imports only from lower layers. `tests/layers.rs` reads this list and fails on an
//! import from the same or a higher layer.
//!
//! ```text
//! 0  error clock metrics config budget failpoint sync environment    layer 0: no I/O
//! 1  model                                           the nouns, plain data
//! 2  format                                          bytes <-> nouns, pure
//! 3  store                                           the bucket, behind retry, hedging, limits and fault injection
//! 4  ownership                                       reference counts of log objects
//! 5  write  snapshot  read                           three stages that do not see each other
//! 6  state                                           keys, values, aggregates, hot tier over RocksDB
//! 7  shard                                           one shard: sessions, versions, promotion, restore
//! 8  engine  changelog  embedded                     wire the stages together: keyed state, the plain log, embedded
//! ```
#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod budget;
pub mod changelog;
pub mod clock;
pub mod config;
pub mod embedded;
pub mod engine;
pub mod environment;
pub mod error;
pub mod failpoint;
pub mod format;
pub mod metrics;
pub mod model;
pub mod ownership;
pub mod read;
pub mod shard;
pub mod snapshot;
pub mod state;
pub mod store;
pub mod sync;
pub mod write;

pub use error::{Error, ErrorKind, Result};
