//! Aggregates: accumulators in rows of a fixed layout.
//!
//! Owns: which functions exist for which types ([`AggregateFunction::ALL`]), the layout of an accumulator row, and the
//! three things done with rows: fold columns into them, join two of them, turn them into result columns.
//! Does not own: keys, grouping (`table`), the storage of rows (`rows`, `keyed`).
//!
//! A function is a row of the table in `functions/mod.rs`, and an `Accumulator` in a file of its family. Nothing else
//! names it: texts of errors, Python's table and docs/aggregates.md are made from the row.
//!
//! Results, null rules and overflow are Spark's for the function of the same name. Invariants:
//! 1. the row of no input is all zero bytes;
//! 2. folding rows of input in any split into partial rows, joined in arrival order, gives the same row, up to the
//!    order of float additions;
//! 3. the layout depends on the *set* of aggregates (sorted by identity), not on their order in the query.

mod accumulator;
mod arithmetic;
#[cfg(test)]
mod buffers_tests;
mod fold;
#[cfg(test)]
mod function_tests;
mod functions;
#[cfg(test)]
mod golden_tests;
mod kept_rows;
mod lifetime;
mod named;
mod plan;
mod prim;
mod results;
mod row;
mod schema;
mod spec;
mod type_texts;
mod windows;

pub use functions::{AggregateFunction, Argument, DEVIATIONS};
pub use lifetime::{Clock, Lifetime};
pub use named::NamedCall;
pub(crate) use named::column;
pub use plan::AggPlan;
pub(crate) use row::Other;
pub use schema::{differ_in_ansi_alone, schema_difference};
#[cfg(test)]
pub(crate) use spec::schema_of;
pub use spec::{AggCall, AggSpec, OutputMode};
pub use windows::Windows;
