//! fastchangelog-oracles: properties of every decoder and of Arrow columns from outside.
//!
//! Outside of the layers: imports `fastchangelog-format` and `fastchangelog-columns`, and is imported by tests and by
//! `rust/fuzz` only. That this builds alone shows that the decoders need neither RocksDB nor a store.
//!
//! Owns: the properties ([`oracles`], [`columns`], [`rows`], [`spark_rows`]) and forged bytes ([`forge`]); the tests of
//! damaged bytes, of malformed columns and of the fuzzers' inputs.
//! Does not own: the decoders, and finding new inputs (`rust/fuzz`).
#![warn(missing_docs)]

pub mod columns;
pub mod forge;
pub mod oracles;
pub mod rows;
pub mod spark_rows;
