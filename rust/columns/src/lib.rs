//! fastchangelog-columns: from Arrow columns to keys, aggregate rows and payloads, and back.
//!
//! Layer 1: imports `fastchangelog-format` only. Needs no store and no RocksDB; spilled groups are files of this
//! machine.
//!
//! Owns: the canonical key encoding and its hash, accumulator rows and the tables that hold them, the split of input
//! rows into shards, types of keys and values of declared states ([`typed`], [`versioned`]).
//! Spark's own rows as columns ([`spark_rows`], [`spark_keys`]) are read only.
//!
//! Does not own: the storage of rows (`fastchangelog-state`), the version of a shard (`fastchangelog-core`).
//!
//! The path of a row: [`split`] encodes its key ([`codec`]), folds it into an accumulator row ([`aggregate`]) and emits
//! it in a payload; [`table`] groups the payloads of a shard and joins them with the rows kept so far. Groups that
//! exceed the memory are spilled to the local disk ([`spilled_groups`]).
//!
//! The path of a row to a processor, which is not aggregated: [`row_split`] sends it in a payload ([`row_payload`]);
//! [`row_groups`] sorts the rows of a shard by their keys, on the local disk if they are many, and gives them in chunks
//! of whole keys ([`row_chunks`]).
#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod accumulators;
pub mod aggregate;
mod arrays;
pub mod codec;
pub mod evolution;
mod group_chunks;
pub mod import;
pub mod memory_estimate;
pub mod order;
pub mod payload;
pub mod row_chunks;
mod row_gather;
pub mod row_groups;
mod row_merge;
mod row_order;
pub mod row_payload;
mod row_runs;
pub mod row_split;
mod rows;
pub mod session_window_keys;
pub mod session_windows;
pub mod spark_collected;
pub mod spark_keys;
pub mod spark_rows;
mod spill_file;
pub mod spilled_groups;
pub mod split;
pub mod strings;
pub mod table;
pub mod type_parser;
pub mod typed;
pub mod versioned;
mod window_rows;

pub use arrays::type_text;

#[cfg(test)]
mod model_tests;
#[cfg(test)]
mod plain_values;
#[cfg(test)]
mod row_model_tests;
#[cfg(test)]
mod row_test_data;
