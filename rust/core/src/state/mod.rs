//! Keyed state: keys, values, aggregates, and the hot tier over RocksDB.
//!
//! Owns: the canonical key encoding and its hash, accumulator rows and the tables that hold them, the split of input
//! rows into shards, the local keyed state, and states of a range of key groups ([`group_range`]).
//! Does not own: which version a shard is at (`shard`), the log (`write`), the bucket (`store`).
//!
//! The path of a row through this layer: [`split`] encodes its key ([`codec`]), folds it into an accumulator row
//! ([`aggregate`]) and emits it in a payload; [`table`] groups the payloads of a shard and joins them with the rows
//! kept so far. Groups that exceed the memory are spilled to the local disk
//! ([`spilled_groups`]). Keys and values of embedded states go through [`typed`].

pub mod aggregate;
mod arrays;
mod checkpoint;
pub mod codec;
pub mod group_range;
pub mod hot;
pub mod import;
pub mod keyed;
pub mod memory_estimate;
mod order;
pub mod payload;
pub mod rocks;
mod rows;
pub mod scan;
pub mod spill_file;
pub mod spilled_groups;
pub mod split;
pub mod strings;
pub mod table;
pub mod typed;

pub use arrays::type_text;

#[cfg(test)]
mod model_tests;
