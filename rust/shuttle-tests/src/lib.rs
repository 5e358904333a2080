//! The concurrent files of the log and the plain changelog, compiled a second time for shuttle's schedulers.
//!
//! Owns: the list of files of `rust/log` and `rust/changelog` that are explored, and how ([`explore`]); shuttle's primitives under the names of
//! `fastchangelog_store::sync`; a store in memory. The tests are in `tests/`.
//! Does not own: any of those files. They are those crates', unchanged; only `crate::sync` and `crate::store` resolve to
//! other modules here. No compiler flag differs, so RocksDB is not compiled again.

// Their unit tests belong to those crates and need the real store.
#![cfg(not(test))]

#[path = "../../changelog/src/block_pool.rs"]
pub mod block_pool;
#[path = "../../log/src/read/cache.rs"]
pub mod cache;
#[path = "../../log/src/read/cached_file.rs"]
mod cached_file;
#[path = "../../changelog/src/ownership.rs"]
pub mod ownership;
pub mod store;
pub mod sync;
#[path = "../../log/src/write/mod.rs"]
pub mod write;

use shuttle::scheduler::{PctScheduler, RandomScheduler, Scheduler};
use shuttle::{Config, Runner};

/// Priority changes in a schedule of [`PctScheduler`].
const PCT_DEPTH: usize = 3;

/// Runs `scenario` under `schedules` schedules: half of them random, half by PCT.
///
/// The seed is fixed, or `FASTCHANGELOG_SEED`; a failing schedule is printed, and `shuttle::replay` runs it again.
///
/// # Panics
/// If the scenario panics or deadlocks.
pub fn explore(schedules: usize, scenario: impl Fn() + Send + Sync + Clone + 'static) {
    let seed = std::env::var("FASTCHANGELOG_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(20_240_501);
    let run = |scheduler: Box<dyn Scheduler + Send>| {
        let mut config = Config::new();
        config.stack_size = 1 << 19;
        let scenario = scenario.clone();
        let run = std::panic::AssertUnwindSafe(|| Runner::new(scheduler, config).run(scenario));
        if let Err(panic) = std::panic::catch_unwind(run) {
            #[expect(clippy::print_stderr, reason = "what a failing test says")]
            {
                eprintln!("FASTCHANGELOG_SEED={seed} repeats this run");
            }
            std::panic::resume_unwind(panic);
        }
    };
    run(Box::new(RandomScheduler::new_from_seed(seed, schedules / 2)));
    run(Box::new(PctScheduler::new_from_seed(seed, PCT_DEPTH, schedules.div_ceil(2))));
}
