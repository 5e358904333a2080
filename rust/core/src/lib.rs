//! fastchangelog-core: durable keyed state, without Python.
//!
//! Layer 3: imports all crates below it. The layers are crates, so an import that does not go down does not compile:
//!
//! ```text
//! 0  fastchangelog-format     errors, options, nouns and their bytes; pure
//! 1  fastchangelog-columns    Arrow columns <-> keys, aggregate rows, payloads; no store
//! 1  fastchangelog-store      the bucket, behind retry, hedging, limits and fault injection; counters, budgets
//! 2  fastchangelog-log        write, snapshot, read: three stages that do not see each other
//! 2  fastchangelog-state      a hot tier over RocksDB
//! 3  fastchangelog-core       this crate
//! ```
//!
//! Owns: states by name and their changes (`states`); the kinds of states (`kinds`); a shard with its sessions, versions,
//! promotion and restore ([`shard`]); when to make a snapshot ([`materialization`]); the wiring of the stages for the server
//! ([`engine`]) and embedded ([`embedded`]). A module imports from those before it in this line, and the last two do not import each other:
//!
//! ```text
//! materialization < states < kinds < shard < engine, embedded
//! ```
//!
//! Does not own: any stage itself, the plain log (`fastchangelog-changelog`), sockets (`fastchangelog-server`), Python (`fastchangelog-pyext`).
#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod embedded;
pub mod engine;
mod kinds;
pub mod materialization;
pub mod shard;
mod states;
