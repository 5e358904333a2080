//! The thread that materializes by policy and closes idle shards.
//!
//! Owns: the thread and its beat, the threads of runs. Does not own: which shard is next (`materializers`).

use crate::materializers::{Materializers, Work};
use crate::shared::Shared;
use fastchangelog_format::clock::SharedClock;
use fastchangelog_format::error::Result;
use fastchangelog_store::threads::spawn;
use serde_json::json;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// Time between polls.
const BEAT: Duration = Duration::from_millis(500);

/// The thread, until this is dropped; a drop does not wait for it.
#[derive(Debug)]
pub(crate) struct Maintenance {
    thread: JoinHandle<()>,
    /// Its end ends the thread.
    _running: Sender<()>,
}

impl Maintenance {
    pub(crate) fn start(shared: &Arc<Shared>, clock: SharedClock) -> Result<Self> {
        let (running, stopped) = channel::<()>();
        let shared = Arc::clone(shared);
        let thread = spawn("fcl-materialize", "the thread that materializes", move || {
            let mut materializers = Materializers::new(Arc::clone(&shared), clock, Box::new(start_run));
            while stopped.recv_timeout(BEAT) == Err(RecvTimeoutError::Timeout) {
                let poll = || {
                    materializers.poll();
                    shared.backend.close_idle();
                };
                if catch_unwind(AssertUnwindSafe(poll)).is_err() {
                    shared.log.event("ERROR", "materialize loop", json!({"error": "internal error: a panic"}));
                }
            }
            materializers.end();
        })?;
        Ok(Self { thread, _running: running })
    }

    /// Tells the thread to end. It does so after the runs that work, whose local files are in use until then.
    pub(crate) fn stop(self) -> JoinHandle<()> {
        self.thread
    }
}

fn start_run(work: Work) -> Result<()> {
    spawn("fcl-materialize", "the thread of a materialization", work).map(drop)
}
