//! fastchangelog-spark: Spark's streaming checkpoints, read without Spark.
//!
//! Layer 3: imports `fastchangelog-state` (a RocksDB database of another program), `fastchangelog-columns` (Spark's rows
//! as columns) and the crates below them. Knows nothing of handles or of this library's states.
//!
//! ```text
//! checkpoint/metadata, offsets/N, commits/N                          logs
//! checkpoint/state/OPERATOR/_metadata, _stateSchema                  operators, schemas
//! checkpoint/state/OPERATOR/PARTITION[/STORE]/VERSION[_ID].zip       snapshots of RocksDB's provider
//!                                            /VERSION[_ID].changelog its changes
//!                                            /VERSION.snapshot, .delta   the HDFS-backed provider
//! ```
//!
//! Owns: the layout of a checkpoint, its formats for Spark 4.0 to 4.3, the order in which its files make up a state.
//! Does not own: the store (`fastchangelog-store`), the bytes of a row (`fastchangelog-columns`), its meaning (the
//! caller's), files of `hdfs://` (Spark).
//!
//! Invariants:
//! 1. a file that is truncated, damaged or of an unknown form is an error with its name, never data (P9);
//! 2. nothing is written but files of a scratch folder, which is removed;
//! 3. of a state, memory holds blocks, small files and the zip of a snapshot, which has no tables, whatever the size of
//!    the state (P7).
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod changes;
mod checkpoint;
mod compression;
mod java;
mod logs;
mod operators;
mod schemas;
mod snapshots;
mod state;
mod state_rows;
mod unsafe_row;
mod variable;

pub use checkpoint::{Checkpoint, StateFiles};
pub use logs::{Commit, Log, Offset};
pub use operators::{Operator, StateStoreInfo};
pub use schemas::ColumnFamily;
pub use state::{Provider, StateReader, StoreId, StoreVersion};
pub use state_rows::{FamilyRows, StateRows, count};
pub use variable::TextVariable;
