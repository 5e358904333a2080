//! The environment of a storage or an embedded state: clock, counters, failpoints.
//!
//! Owns: the group of dependencies that tests replace together. Does not own: any of them.

use crate::failpoint::SharedFailpoints;
use crate::metrics::SharedMetrics;
use fastchangelog_format::clock::SharedClock;

/// Dependencies on the process, beside a folder and its options.
#[derive(Clone)]
pub struct Environment {
    /// Time.
    pub clock: SharedClock,
    /// Counters.
    pub metrics: SharedMetrics,
    /// Failpoints.
    pub failpoints: SharedFailpoints,
}
