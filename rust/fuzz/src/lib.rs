//! The formats, and the way of rows into payloads, without the rest: layers 0 to 2 of the core and the files of the state
//! that touch no store, compiled for fuzzing.
//!
//! Owns: the list of files that the decoders need. That this builds shows that they need neither RocksDB nor a store.
//! Does not own: any of those files; see `rust/core/src/lib.rs` for what they are.

#![allow(dead_code, reason = "higher layers use what is not used here")]

extern crate self as fastchangelog_core;

pub mod columns;
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

/// Of the state, what makes payloads of rows and results of payloads.
pub mod state {
    #[path = "../../../core/src/state/aggregate/mod.rs"]
    pub mod aggregate;
    #[path = "../../../core/src/state/arrays.rs"]
    mod arrays;
    #[path = "../../../core/src/state/codec.rs"]
    pub mod codec;
    #[path = "../../../core/src/state/import.rs"]
    pub mod import;
    #[path = "../../../core/src/state/memory_estimate.rs"]
    mod memory_estimate;
    #[path = "../../../core/src/state/order.rs"]
    mod order;
    #[path = "../../../core/src/state/payload.rs"]
    mod payload;
    #[path = "../../../core/src/state/rows.rs"]
    mod rows;
    #[path = "../../../core/src/state/split.rs"]
    pub mod split;
    #[path = "../../../core/src/state/table.rs"]
    pub mod table;
    #[path = "../../../core/src/state/strings.rs"]
    pub mod strings;
}

pub use error::{Error, ErrorKind, Result};
