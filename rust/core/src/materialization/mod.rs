//! When a state gets a new snapshot.
//!
//! Owns: the decision and its schedule, both without I/O. Does not own: the run (`shard::materialize`), and the threads
//! that follow the schedule (the host).

mod policy;
mod schedule;

pub use policy::{Policy, Progress, replay_speed};
pub use schedule::{FAILED_PAUSE, Schedule};
