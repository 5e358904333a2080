//! The environment of a session.
//!
//! Owns: the parts of the process that a session uses, and its options. Does not own: their use.

use fastchangelog_store::budget::MemoryBudget;
use fastchangelog_store::failpoint::SharedFailpoints;
use fastchangelog_store::metrics::SharedMetrics;
use std::path::PathBuf;
use std::sync::Arc;

/// Resources of the process that a session needs.
#[derive(Clone)]
pub struct SessionEnvironment {
    /// The memory budget of the process.
    pub budget: Arc<MemoryBudget>,
    /// The folder for spills, made on first use.
    pub dir: PathBuf,
    /// Counters of the process.
    pub metrics: SharedMetrics,
    /// Failpoints of the process.
    pub failpoints: SharedFailpoints,
    /// Option `session_memory`.
    pub session_memory: u64,
    /// Option `result_batch_rows`.
    pub result_batch_rows: usize,
}
