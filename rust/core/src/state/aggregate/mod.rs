//! Aggregates: accumulators in rows of a fixed layout.
//!
//! Owns: which functions exist for which types, the layout of an accumulator row, and the three things done with rows:
//! fold columns into them ([`update`]), join two of them ([`merge`]), turn them into result columns ([`finish`]).
//! Does not own: keys, grouping (`table`), where rows are kept (`rows`, `keyed`).
//!
//! Results, null rules and overflow are Spark's for the function of the same name. Invariants:
//! 1. the row of no input is all zero bytes;
//! 2. folding rows of input in any split into partial rows, joined in arrival order, gives the same row, up to the
//!    order of float additions;
//! 3. the layout depends on the *set* of aggregates (sorted by identity), not on their order in the query.

mod decimal;
mod finish;
mod merge;
mod plan;
mod prim;
mod schema;
mod spec;
mod update;

pub(in crate::state) use merge::Other;
pub use plan::AggPlan;
pub use schema::schema_difference;
#[cfg(test)]
pub(in crate::state) use spec::schema_of;
pub use spec::{AggCall, AggSpec};
