//! Background materialization of an embedded state, on a thread of its own.
//!
//! Owns: the thread of a run, and the end of a run that is cancelled while it works.
//! Does not own: when to run (the policy, in Python), what a run does (`shard`), which checkpoint carries its snapshot (`core`).
//!
//! Invariants of a [`Materialization`]:
//! 1. only the close of its state waits for a run: a cancelled run ends by itself;
//! 2. a run that ends after its cancellation has no effect.

use crate::shard::MaterializeRun;
use fastchangelog_format::error::{Error, Result};
use fastchangelog_store::threads::spawn;
use parking_lot::Mutex;
use std::sync::Arc;
use std::thread::JoinHandle;
use tokio::sync::watch;

/// Called with the outcome of the long part of a run, on the run's thread.
pub type RunCallback = Box<dyn FnOnce(Result<()>) + Send>;

enum Stage {
    Begun(MaterializeRun),
    Running,
    /// Cancelled while it works.
    Cancelled(String),
    /// The long part is over.
    Ran(MaterializeRun),
    Ended,
}

struct Shared {
    stage: Mutex<Stage>,
    stop: watch::Sender<bool>,
}

/// The threads of an open state's runs: one at a time.
#[derive(Clone, Default)]
pub(super) struct Runs(Arc<Mutex<Option<(Arc<Shared>, JoinHandle<()>)>>>);

impl Runs {
    /// A run that has begun.
    pub(super) fn begun(&self, run: MaterializeRun) -> Materialization {
        let shared = Shared { stage: Mutex::new(Stage::Begun(run)), stop: watch::channel(false).0 };
        Materialization { shared: Arc::new(shared), runs: self.clone() }
    }

    /// Tells the run that works, if any, to stop.
    pub(super) fn stop(&self) {
        if let Some((shared, _)) = self.0.lock().as_ref() {
            shared.stop.send_replace(true);
        }
    }

    /// Waits for the end of its thread.
    pub(super) fn join(&self) {
        let last = self.0.lock().take();
        if let Some((_, thread)) = last {
            let _ = thread.join();
        }
    }
}

/// One materialization of an open state. After [`Self::start`], exactly one of complete and abort counts.
pub struct Materialization {
    shared: Arc<Shared>,
    runs: Runs,
}

impl Materialization {
    /// Starts the long part; `ran` receives its outcome.
    pub fn start(&self, ran: RunCallback) -> Result<()> {
        let mut stage = self.shared.stage.lock();
        let Stage::Begun(run) = std::mem::replace(&mut *stage, Stage::Running) else {
            return Err(Error::closed("this materialization has already started; begin another one"));
        };
        let shared = Arc::clone(&self.shared);
        let work = move || {
            let outcome = run.run_until(shared.stop.subscribe());
            shared.over(run);
            ran(outcome);
        };
        // The lock of the stage is held: the thread finds `Running`.
        let thread = spawn("fcl-materialize", "the thread of a materialization", work)?;
        *self.runs.0.lock() = Some((Arc::clone(&self.shared), thread));
        Ok(())
    }

    /// Offers the new snapshot to the next checkpoint.
    pub fn complete(&self) -> Result<()> {
        match self.shared.end() {
            Stage::Ran(run) => run.complete(),
            _ => Err(Error::closed("this materialization has ended or never ran; begin another one")),
        }
    }

    /// Cancels the run. A running one is only told to stop; this does not wait for it.
    pub fn abort(&self, reason: &str) {
        let mut stage = self.shared.stage.lock();
        match std::mem::replace(&mut *stage, Stage::Ended) {
            Stage::Begun(run) | Stage::Ran(run) => run.abort(reason),
            Stage::Running => {
                *stage = Stage::Cancelled(reason.to_owned());
                self.shared.stop.send_replace(true);
            }
            Stage::Cancelled(_) | Stage::Ended => {}
        }
    }
}

impl Shared {
    fn over(&self, run: MaterializeRun) {
        let mut stage = self.stage.lock();
        match std::mem::replace(&mut *stage, Stage::Ended) {
            Stage::Running => *stage = Stage::Ran(run),
            Stage::Cancelled(reason) => run.abort(&reason),
            Stage::Begun(_) | Stage::Ran(_) | Stage::Ended => {}
        }
    }

    fn end(&self) -> Stage {
        let mut stage = self.stage.lock();
        match *stage {
            Stage::Ran(_) => std::mem::replace(&mut *stage, Stage::Ended),
            _ => Stage::Ended,
        }
    }
}

#[cfg(test)]
#[path = "materialization_tests.rs"]
mod tests;
