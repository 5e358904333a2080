//! Keyed state: keys, values, aggregates, and the hot tier over RocksDB.
//!
//! Owns: the canonical key encoding and its hash, accumulator rows and the tables that hold them, the split of input
//! rows into shards, the local keyed state, and states of a range of key groups ([`part`]).
//! Does not own: which version a shard is at (`shard`), the log (`write`), the bucket (`store`).
//!
//! The way of a row through this layer: [`split`] encodes its key ([`codec`]), folds it into an accumulator row
//! ([`aggregate`]) and emits it in a payload; [`table`] groups the payloads of a shard and joins them with the rows
//! kept so far. Groups that are more than the memory holds wait on the local disk ([`spilled`]). Keys and values that a program puts by itself go through [`typed`].

pub mod aggregate;
mod arrays;
mod checkpoint;
pub mod codec;
pub mod growth;
pub mod hot;
pub mod import;
pub mod keyed;
mod order;
pub mod part;
pub mod payload;
pub mod rocks;
mod rows;
pub mod scan;
pub mod spill;
pub mod spilled;
pub mod split;
pub mod table;
pub mod text;
pub mod typed;

pub use arrays::type_text;

#[cfg(test)]
mod model_tests;
