//! The formats without the rest: floors 0 to 2 of the core, compiled for fuzzing.
//!
//! Owns: the list of files that the decoders need. That this builds shows that they need neither RocksDB nor a store.
//! Does not own: any of those files; see `rust/core/src/lib.rs` for what they are.

#![allow(dead_code, reason = "higher floors use what is not used here")]

extern crate self as fastchangelog_core;

#[path = "../../core/src/config.rs"]
pub mod config;
#[path = "../../core/src/error.rs"]
pub mod error;
#[path = "../../core/tests/forge/mod.rs"]
pub mod forge;
#[path = "../../core/src/format/mod.rs"]
pub mod format;
#[path = "../../core/src/model/mod.rs"]
pub mod model;
pub mod oracles;

pub use error::{Error, ErrorKind, Result};
