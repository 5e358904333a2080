//! Savepoints: a state put aside as a folder of its own, and the state of a range of key groups made from one.
//!
//! ```text
//! take      handles of all shards ──► canonical: sorted entries in parts │ native: copies of all objects ──► manifest
//! load      manifest ──► the state of a range of key groups, whatever the number of shards was
//! verify    every byte of a savepoint, or of all objects that handles reach
//! export    manifest ──► Arrow batches of the entries
//! target    the folder of one that is being taken
//! progress  how far one of them is
//! ```
//!
//! Owns: the folder of a savepoint. Does not own: which handles (their collector), the manifest's bytes (`format`), what
//! a shard makes of the loaded state (`initial_state`).

mod export;
mod load;
mod progress;
mod take;
mod target;
mod verify;

pub use export::{Export, ExportColumns};
pub use load::read_savepoint;
pub use progress::{SavepointProgress, attended, attended_to_the_end};
pub use take::SavepointForm;
pub use verify::{Damage, check_objects, check_savepoint};

#[cfg(test)]
mod tests;
