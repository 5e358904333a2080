//! Materialization of every live shard, by the policy of its query.
//!
//! Owns: which shard gets a run, the runs in progress, what a shard's failures mean for its job.
//! Does not own: the schedule (`fastchangelog_core::materialization`), what a run does (the backend), the thread that
//! polls and those of runs (`maintenance`).
//!
//! Invariants:
//! 1. a shard has at most one run between its begin and its `complete` or `abort`, and each run gets one of the two;
//! 2. at most [`MAX_WORKING`] runs work at the same time; the others wait, first come, first served;
//! 3. no poll waits for a run. One whose shard or server was closed meanwhile aborts when it has worked.

use crate::backend::MaterializeBackend;
use crate::shared::Shared;
use fastchangelog_core::materialization::{FAILED_PAUSE, Policy, Progress, Schedule, replay_speed};
use fastchangelog_format::clock::SharedClock;
use fastchangelog_format::error::{Error, ErrorKind, Result};
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SendError, Sender, channel};
use std::time::Duration;

/// Runs that work at the same time; each uploads concurrently itself.
const MAX_WORKING: usize = 2;

/// The long part of a run.
pub(crate) type Work = Box<dyn FnOnce() + Send>;

/// Starts work on a thread of its own.
pub(crate) type StartWork = Box<dyn Fn(Work) -> Result<()> + Send>;

type Run = Box<dyn MaterializeBackend>;

/// A run that has worked, or could not.
struct Worked {
    id: u64,
    /// None if no thread could be started for it.
    run: Option<Run>,
    outcome: Result<()>,
}

impl Worked {
    fn abort(self) {
        if let Some(run) = self.run {
            run.abort("the state was closed while it was materialized");
        }
    }
}

struct Running {
    id: u64,
    begun: Duration,
    worked: Option<Worked>,
}

/// Whether sessions of a shard are refused because of its failures.
#[derive(Clone, Copy, PartialEq)]
enum Refusal {
    No,
    /// No session has met it.
    Unmet,
    /// When one met it first.
    Met(Duration),
}

struct Materializer {
    schedule: Schedule,
    running: Option<Running>,
    refusal: Refusal,
}

/// The materializers of all live shards. One thread polls them.
pub(crate) struct Materializers {
    shared: Arc<Shared>,
    clock: SharedClock,
    start: StartWork,
    live: HashMap<String, Materializer>,
    queue: VecDeque<(u64, Run)>,
    working: usize,
    runs: u64,
    sender: Sender<Worked>,
    receiver: Receiver<Worked>,
}

impl Materializers {
    pub(crate) fn new(shared: Arc<Shared>, clock: SharedClock, start: StartWork) -> Self {
        let (sender, receiver) = channel();
        let (live, queue) = (HashMap::new(), VecDeque::new());
        Self { shared, clock, start, live, queue, working: 0, runs: 0, sender, receiver }
    }

    /// Follows the list of live shards: ends runs that have worked, and begins those that are due.
    pub(crate) fn poll(&mut self) {
        self.receive();
        let shards = self.shared.shards();
        let metrics = self.shared.backend.metrics();
        let speed = replay_speed(metrics.replay_bytes.get(), metrics.replay_micros.get());
        let listed: HashMap<&str, &Value> = shards.iter().filter_map(|s| Some((s["id"].as_str()?, s))).collect();
        let gone: Vec<String> = self.live.keys().filter(|id| !listed.contains_key(id.as_str())).cloned().collect();
        for id in gone {
            let running = self.live.remove(&id).and_then(|shard| shard.running);
            self.close(running);
        }
        for (id, status) in listed {
            match policy(status) {
                Ok(policy) => self.poll_shard(id, status, policy, speed),
                Err(error) => self.log("ERROR", "materialize loop", id, json!({"error": error.message()})),
            }
        }
        self.start_queued();
    }

    fn poll_shard(&mut self, id: &str, status: &Value, policy: Policy, speed: f64) {
        let now = self.clock.monotonic();
        let shard = self.live.entry(id.to_owned()).or_insert_with(|| Materializer {
            schedule: Schedule::new(policy.clone(), id, now),
            running: None,
            refusal: Refusal::No,
        });
        // A restarted query may have another policy.
        shard.schedule.follow(policy);
        if shard.refusal == Refusal::Unmet && status["refused"].as_u64().unwrap_or(0) > 0 {
            shard.refusal = Refusal::Met(now);
        }
        // While a shard makes a version live, every call to it would block: skip it until it is at rest.
        if !status["at_rest"].as_bool().unwrap_or(true) {
            return;
        }
        if let Some(running) = shard.running.take_if(|running| running.worked.is_some()) {
            let Running { begun, worked: Some(worked), .. } = running else { return };
            if self.finish(id, begun, worked) {
                return;
            }
        }
        let Some(shard) = self.live.get(id) else { return };
        if shard.running.is_none() && shard.schedule.is_due(now, &progress(status, speed)) {
            self.begin(id, now);
        }
    }

    /// Completes or aborts a run that has worked. True if it failed.
    fn finish(&mut self, id: &str, begun: Duration, worked: Worked) -> bool {
        let (now, Worked { run, outcome, .. }) = (self.clock.monotonic(), worked);
        let ended = match (outcome, run) {
            (Ok(()), Some(run)) => run.complete(),
            (Ok(()), None) => Ok(()),
            (Err(error), run) => {
                if let Some(run) = run {
                    run.abort(error.message());
                }
                Err(error)
            }
        };
        let Some(shard) = self.live.get_mut(id) else { return false };
        match ended {
            Ok(()) => {
                shard.schedule.completed(now);
                let seconds = format!("{:.3}", now.saturating_sub(begun).as_secs_f64());
                self.log("INFO", "materialized", id, json!({"seconds": seconds}));
                self.accept_sessions(id);
                false
            }
            // Its state was replaced or closed: tried again, and not counted as a failure.
            Err(error) if error.kind() == ErrorKind::Closed => {
                shard.schedule.skipped(now);
                false
            }
            Err(error) => {
                self.failed(id, now, &error);
                true
            }
        }
    }

    fn begin(&mut self, id: &str, now: Duration) {
        match self.shared.backend.begin_materialize(id) {
            Ok(Some(run)) => {
                self.runs += 1;
                self.queue.push_back((self.runs, run));
                if let Some(shard) = self.live.get_mut(id) {
                    shard.running = Some(Running { id: self.runs, begun: now, worked: None });
                }
            }
            Ok(None) => {
                let Some(shard) = self.live.get_mut(id) else { return };
                shard.schedule.skipped(now);
                // The failed local state was dropped, and only a session restores it. Once every attempt of the
                // refused task has met the refusal, its job has failed. The next failure refuses again.
                if matches!(shard.refusal, Refusal::Met(at) if now.saturating_sub(at) >= FAILED_PAUSE) {
                    self.accept_sessions(id);
                }
            }
            Err(error) => self.failed(id, now, &error),
        }
    }

    fn failed(&mut self, id: &str, now: Duration, cause: &Error) {
        let Some(shard) = self.live.get_mut(id) else { return };
        let failure = shard.schedule.failed(now, cause);
        if failure.is_some() && shard.refusal == Refusal::No {
            shard.refusal = Refusal::Unmet;
        }
        let in_a_row = shard.schedule.failures_in_a_row().to_string();
        let message = failure.as_ref().unwrap_or(cause).message();
        if failure.is_some() {
            self.shared.set_shard_failure(id, Some(message));
        }
        self.log("WARN", "materialization failed", id, json!({"in_a_row": in_a_row, "error": message}));
    }

    fn accept_sessions(&mut self, id: &str) {
        if let Some(shard) = self.live.get_mut(id).filter(|shard| shard.refusal != Refusal::No) {
            shard.refusal = Refusal::No;
            self.shared.set_shard_failure(id, None);
        }
    }

    fn start_queued(&mut self) {
        while self.working < MAX_WORKING {
            let Some((id, run)) = self.queue.pop_front() else { return };
            let sender = self.sender.clone();
            let work = move || {
                let outcome = catch_unwind(AssertUnwindSafe(|| run.run()))
                    .unwrap_or_else(|_| Err(Error::internal("a panic during a materialization")));
                if let Err(SendError(worked)) = sender.send(Worked { id, run: Some(run), outcome }) {
                    worked.abort();
                }
            };
            self.working += 1;
            if let Err(error) = (self.start)(Box::new(work)) {
                let _ = self.sender.send(Worked { id, run: None, outcome: Err(error) });
            }
        }
    }

    fn receive(&mut self) {
        while let Ok(worked) = self.receiver.try_recv() {
            self.working -= 1;
            let mut running = self.live.values_mut().filter_map(|shard| shard.running.as_mut());
            match running.find(|running| running.id == worked.id) {
                Some(running) => running.worked = Some(worked),
                None => worked.abort(),
            }
        }
    }

    /// Aborts all runs, and waits for those that work.
    pub(crate) fn end(&mut self) {
        self.abort_all();
        while self.working > 0 {
            let Ok(worked) = self.receiver.recv() else { return };
            self.working -= 1;
            worked.abort();
        }
    }

    fn abort_all(&mut self) {
        self.receive();
        for (_, shard) in std::mem::take(&mut self.live) {
            self.close(shard.running);
        }
    }

    /// Aborts a run that does not work; one that works aborts when it is received.
    fn close(&mut self, running: Option<Running>) {
        let Some(running) = running else { return };
        if let Some(worked) = running.worked {
            worked.abort();
        } else if let Some(at) = self.queue.iter().position(|(id, _)| *id == running.id)
            && let Some((id, run)) = self.queue.remove(at)
        {
            Worked { id, run: Some(run), outcome: Ok(()) }.abort();
        }
    }

    fn log(&self, level: &str, event: &str, id: &str, mut fields: Value) {
        fields["shard_id"] = json!(id);
        self.shared.log.event(level, event, fields);
    }
}

impl Drop for Materializers {
    fn drop(&mut self) {
        self.abort_all();
    }
}

/// The policy of a listed shard's query.
fn policy(status: &Value) -> Result<Policy> {
    let text = |(name, value): (&String, &Value)| Some((name.clone(), value.as_str()?.to_owned()));
    let texts: BTreeMap<String, String> = status["policy"].as_object().into_iter().flatten().filter_map(text).collect();
    Policy::from_texts(&texts)
}

#[expect(clippy::cast_precision_loss, reason = "an estimate")]
fn progress(status: &Value, speed: f64) -> Progress {
    let number = |name: &str| status[name].as_u64().unwrap_or(0);
    let log_bytes = number("log_bytes_since_snapshot");
    Progress {
        log_bytes,
        state_bytes: number("state_bytes"),
        segments: number("segments_since_snapshot"),
        replay_seconds: log_bytes as f64 / speed,
    }
}

#[cfg(test)]
#[cfg(all(target_os = "linux", not(fastchangelog_portable)))]
#[path = "materializers_tests.rs"]
mod tests;
