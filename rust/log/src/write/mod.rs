//! The changelog writer: change sets in, durable segments out.
//!
//! ```text
//! session ── join() ──► JoinGuard ── submit(set) ──► PersistFuture ─────────────► SetLocation
//!                            │                            ▲
//!                       batch: which sets, when           │ one answer per set, success or failure
//!                       waves: which sessions are about to open
//!                            ▼                            │
//!                       upload: header + sets + footer ───┘ one object per batch
//! ```
//!
//! Owns: bringing change sets of many sessions into few objects, the bound on bytes in flight, and one answer per set.
//! Does not own: the encoding of sets (`format`), retries (`store`), handles, and the deletion of objects that no handle
//! names.
//!
//! Invariants of [`LogWriter`]:
//! 1. every [`PersistFuture`] ends: with a segment that the store acknowledged, or with an error; also at close and
//!    when the runtime ends (X-08);
//! 2. a failure concerns the sets of its own batch only (X-25), and only after the store's last attempt (X-02);
//! 3. a set waits for open sessions at most `persist_delay`, and when none is open a few uploads at most, for tasks of
//!    the wave that are about to open theirs; a task that was waited for in vain is not waited for again;
//! 4. bytes in flight (waiting or uploading) never exceed `max_in_flight`, nor a quarter of the memory budget; a single
//!    larger set is excepted.

mod batch;
mod entry;
mod guard;
mod upload;
mod waves;

pub use entry::{Answer, InFlightPermit, SetLocation};
pub use guard::JoinGuard;

use crate::store::{LocalCopies, Store};
use crate::sync::{AbortHandle, Handle, Mutex, sleep};
use batch::{Batcher, Next, Seat};
use entry::Entry;
use fastchangelog_format::EncodedSet;
use fastchangelog_format::clock::SharedClock;
use fastchangelog_format::config::Options;
use fastchangelog_format::error::{Error, Result};
use fastchangelog_format::model::{BatchId, ObjectRef};
use fastchangelog_store::budget::MemoryBudget;
use fastchangelog_store::failpoint::SharedFailpoints;
use fastchangelog_store::metrics::SharedMetrics;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::{Semaphore, oneshot, watch};

/// Bytes in flight are counted in units of this size.
const UNIT: u64 = 1 << 10;
/// Bytes in flight never exceed this part of the memory budget (1/n), either.
const BUDGET_SHARE: u64 = 4;
/// A submit fails after waiting this many times `request_timeout` × `max_attempts` for a permit.
const PERMIT_TIMEOUT_FACTOR: u32 = 2;

/// Is told of a new log object and the number of its sets.
pub type Observer = Box<dyn Fn(&ObjectRef, u64) + Send + Sync>;

/// The writer of one state folder's log. Cheap to clone.
#[derive(Clone)]
pub struct LogWriter {
    shared: Arc<Shared>,
}

struct Shared {
    store: Store,
    runtime: Handle,
    clock: SharedClock,
    metrics: SharedMetrics,
    failpoints: SharedFailpoints,
    local_copies: Option<Arc<dyn LocalCopies>>,
    /// Told of every object before its sets are answered.
    observer: Option<Observer>,
    /// Capacity for bytes in flight, in units.
    in_flight: Arc<Semaphore>,
    max_units: u32,
    max_in_flight: u64,
    /// What bounds them.
    bound_by: &'static str,
    /// Counts the bytes in flight among the process's.
    budget: Arc<MemoryBudget>,
    permit_timeout: Duration,
    /// Uploads at the same time.
    slots: Semaphore,
    state: Mutex<State>,
    closed: watch::Sender<bool>,
}

struct State {
    batcher: Batcher,
    /// The running timer and its number.
    timer: Option<(u64, AbortHandle)>,
}

/// The answer for one change set: its durable place, or why there is none.
#[derive(Debug)]
pub struct PersistFuture {
    answer: oneshot::Receiver<Result<SetLocation>>,
}

impl LogWriter {
    /// A writer to `store` (a state's folder) that works on `runtime`.
    ///
    /// `local_copies` keeps local copies of what was uploaded; it is not used when the store itself is a local folder.
    pub fn new(
        store: Store,
        options: &Options,
        runtime: Handle,
        clock: SharedClock,
        metrics: SharedMetrics,
        failpoints: SharedFailpoints,
        local_copies: Option<Arc<dyn LocalCopies>>,
    ) -> Self {
        let max_units = units_of(options.max_in_flight);
        let attempts = u32::try_from(options.max_attempts.max(1)).unwrap_or(u32::MAX);
        let shared = Shared {
            observer: None,
            local_copies: local_copies.filter(|_| !store.is_local_file()),
            store,
            runtime,
            clock,
            metrics,
            failpoints,
            in_flight: Arc::new(Semaphore::new(max_units as usize)),
            max_units,
            max_in_flight: options.max_in_flight,
            bound_by: "max_in_flight",
            budget: MemoryBudget::unlimited(),
            permit_timeout: options.request_timeout.saturating_mul(attempts).saturating_mul(PERMIT_TIMEOUT_FACTOR),
            slots: Semaphore::new(options.upload_threads.clamp(1, Semaphore::MAX_PERMITS)),
            state: Mutex::new(State {
                batcher: Batcher::new(options.persist_size_threshold, options.persist_delay),
                timer: None,
            }),
            closed: watch::channel(false).0,
        };
        Self { shared: Arc::new(shared) }
    }

    /// The same writer, whose bytes in flight are counted in `budget` and bounded by a quarter of it.
    ///
    /// # Panics
    /// If the writer is in use already.
    #[must_use]
    pub fn within(mut self, budget: &Arc<MemoryBudget>) -> Self {
        let shared = Arc::get_mut(&mut self.shared).expect("the writer is not shared yet");
        let bound = budget.limit() / BUDGET_SHARE;
        if bound < shared.max_in_flight {
            (shared.max_in_flight, shared.bound_by) = (bound, "memory_budget");
            shared.max_units = units_of(bound);
            shared.in_flight = Arc::new(Semaphore::new(shared.max_units as usize));
        }
        shared.budget = Arc::clone(budget);
        self
    }

    /// The same writer, which tells `observer` of every object before it answers any of its sets.
    ///
    /// # Panics
    /// If the writer is in use already.
    #[must_use]
    pub fn observed_by(mut self, observer: Observer) -> Self {
        Arc::get_mut(&mut self.shared).expect("the writer is not shared yet").observer = Some(observer);
        self
    }

    /// Announces a change set that may arrive.
    pub fn join(&self) -> JoinGuard {
        JoinGuard::new(&self.shared, None)
    }

    /// The same for the session of a task of a micro-batch, whose other tasks run in waves.
    pub fn join_task(&self, batch: BatchId) -> JoinGuard {
        JoinGuard::new(&self.shared, Some(batch))
    }

    /// Submits an encoded change set; the future ends when it is durable or has failed.
    ///
    /// Does not block. When `max_in_flight` is reached, the set waits for a permit before it counts. Dropping the future
    /// cancels the wait; too long a wait fails with an error that names the option.
    pub fn submit(&self, guard: JoinGuard, set: EncodedSet) -> PersistFuture {
        self.enqueue_or_wait(Some(guard), set)
    }

    /// The same for a set with an object of its own: a local file is written by the calling thread before this returns, so
    /// that no other thread has to wake. Not for threads of an asynchronous runtime.
    pub fn submit_alone(&self, set: EncodedSet) -> PersistFuture {
        let shared = &self.shared;
        let Some(permit) = self.try_acquire(set.length).filter(|_| shared.store.is_local_file()) else {
            return self.enqueue_or_wait(None, set);
        };
        let since = shared.clock.monotonic();
        let (answer, receiver) = oneshot::channel();
        let entry = Entry::new(set, Arc::new(permit), since, Box::new(answer));
        shared.metrics.uploads_active.add(1);
        shared.runtime.block_on(upload::run(shared, vec![entry]));
        shared.metrics.uploads_active.sub(1);
        PersistFuture { answer: receiver }
    }

    /// The same for a part of a change set that is submitted in several. Waits for a permit first, so that the caller makes
    /// no further part before. Too long a wait fails with an error that names the option. Not for threads of an asynchronous runtime.
    pub fn submit_part(&self, set: EncodedSet) -> Result<PersistFuture> {
        let shared = &self.shared;
        let permit = match self.try_acquire(set.length) {
            Some(permit) => permit,
            None => {
                self.make_room();
                shared.runtime.block_on(self.acquire_in_time(set.length))?
            }
        };
        let (answer, receiver) = oneshot::channel();
        self.submit_to(None, set, Arc::new(permit), shared.clock.monotonic(), Box::new(answer));
        Ok(PersistFuture { answer: receiver })
    }

    /// The same for a set that has its permit; it counts as submitted at `since`.
    ///
    /// `answer` may hold the set and its permit too, to submit the set again after a failure.
    pub fn submit_to(
        &self,
        guard: Option<JoinGuard>,
        set: EncodedSet,
        permit: Arc<InFlightPermit>,
        since: Duration,
        answer: Box<dyn Answer>,
    ) {
        self.shared.enqueue(Entry::new(set, permit, since, answer), guard);
    }

    fn enqueue_or_wait(&self, guard: Option<JoinGuard>, set: EncodedSet) -> PersistFuture {
        let since = self.shared.clock.monotonic();
        let (mut answer, receiver) = oneshot::channel();
        if let Some(permit) = self.try_acquire(set.length) {
            self.shared.enqueue(Entry::new(set, Arc::new(permit), since, Box::new(answer)), guard);
        } else {
            let guard = guard.map(|mut guard| {
                guard.stand_aside();
                guard
            });
            self.make_room();
            let this = self.clone();
            self.shared.runtime.spawn(async move {
                let permit = tokio::select! {
                    biased;
                    permit = this.acquire_in_time(set.length) => permit,
                    // The receiver has gone.
                    () = answer.closed() => return,
                };
                match permit {
                    Ok(permit) => {
                        this.shared.enqueue(Entry::new(set, Arc::new(permit), since, Box::new(answer)), guard);
                    }
                    Err(error) => drop(answer.send(Err(error))),
                }
            });
        }
        PersistFuture { answer: receiver }
    }

    /// Before a wait for a permit: only uploads free permits, so the waiting batch is flushed now.
    pub fn make_room(&self) {
        self.shared.metrics.persist_waits.add(1);
        self.flush_waiting();
    }

    /// A permit for `bytes` bytes, if one is free now.
    pub fn try_acquire(&self, bytes: u64) -> Option<InFlightPermit> {
        let shared = &self.shared;
        let permit = Arc::clone(&shared.in_flight).try_acquire_many_owned(shared.units(bytes)).ok()?;
        Some(InFlightPermit::new(bytes, Arc::clone(&shared.metrics), &shared.budget, permit))
    }

    /// A permit for `bytes` bytes, as soon as one is free; an error after close.
    pub async fn acquire(&self, bytes: u64) -> Result<InFlightPermit> {
        let shared = &self.shared;
        let mut closed = shared.closed.subscribe();
        let permit = tokio::select! {
            biased;
            _ = closed.wait_for(|closed| *closed) => return Err(closed_error()),
            permit = Arc::clone(&shared.in_flight).acquire_many_owned(shared.units(bytes)) => permit.map_err(|_| closed_error())?,
        };
        Ok(InFlightPermit::new(bytes, Arc::clone(&shared.metrics), &shared.budget, permit))
    }

    /// The same, but too long a wait fails with an error that names the option.
    pub async fn acquire_in_time(&self, bytes: u64) -> Result<InFlightPermit> {
        let shared = &self.shared;
        tokio::select! {
            biased;
            permit = self.acquire(bytes) => permit,
            () = sleep(shared.permit_timeout) => Err(shared.permit_timeout_error(bytes, shared.permit_timeout)),
        }
    }

    /// Flushes the waiting batch now, to free its buffer space.
    pub fn flush_waiting(&self) {
        let next = self.shared.state.lock().batcher.flush_waiting();
        self.shared.act(next);
    }

    /// The error of a wait for a permit that lasted `waited`.
    pub fn permit_timeout_error(&self, bytes: u64, waited: Duration) -> Error {
        self.shared.permit_timeout_error(bytes, waited)
    }

    /// How long a wait for a permit may last.
    pub fn permit_timeout(&self) -> Duration {
        self.shared.permit_timeout
    }

    /// Ends the writer: waiting and uploading sets fail as closed, and no set is accepted any more.
    pub fn close(&self) {
        self.shared.close();
    }
}

impl Shared {
    fn units(&self, bytes: u64) -> u32 {
        u32::try_from(bytes.div_ceil(UNIT)).unwrap_or(u32::MAX).clamp(1, self.max_units)
    }

    fn permit_timeout_error(&self, bytes: u64, waited: Duration) -> Error {
        let what = format!(
            "a change set of {bytes} bytes was not admitted within {waited:?}: {} of {} bytes are waiting for upload \
             to {}",
            self.metrics.in_flight_bytes.get(),
            self.max_in_flight,
            self.store.uri()
        );
        Error::limit(what, self.bound_by)
    }

    fn enqueue(self: &Arc<Self>, entry: Entry, guard: Option<JoinGuard>) {
        // The seat is given up in the same step as the set joins.
        let seat: Option<Seat> = guard.and_then(JoinGuard::into_seat);
        let now = self.clock.monotonic();
        let next = {
            let mut state = self.state.lock();
            let next = state.batcher.add(entry, seat, now);
            // Before another thread can take it out again.
            self.metrics.upload_queue_size.add(u64::from(next.is_ok()));
            next
        };
        match next {
            Ok(next) => self.act(next),
            Err(entry) => entry.fail(closed_error()),
        }
    }

    /// The sets of `tasks` tasks are answered next, after an upload of this duration if there was one.
    fn answered(&self, tasks: usize, upload: Option<Duration>) {
        if tasks > 0 {
            let now = self.clock.monotonic();
            self.state.lock().batcher.answered(tasks, upload, now);
        }
    }

    fn act(self: &Arc<Self>, next: Next) {
        match next {
            Next::Wait => {}
            Next::Timer(number, delay) => self.start_timer(number, delay),
            Next::Upload(batch) => self.upload(batch),
        }
    }

    fn start_timer(self: &Arc<Self>, number: u64, delay: Duration) {
        let weak = Arc::downgrade(self);
        let task = self.runtime.spawn(async move {
            sleep(delay).await;
            if let Some(shared) = Weak::upgrade(&weak) {
                let next = shared.state.lock().batcher.timer(number);
                if matches!(next, Next::Upload(_)) {
                    shared.metrics.wave_timeouts.add(1);
                }
                shared.act(next);
            }
        });
        let mut state = self.state.lock();
        let over = if state.batcher.is_current(number) {
            state.timer.replace((number, task.abort_handle())).map(|(_, earlier)| earlier)
        } else {
            Some(task.abort_handle())
        };
        drop(state);
        if let Some(over) = over {
            over.abort();
        }
    }

    fn upload(self: &Arc<Self>, batch: Vec<Entry>) {
        if batch.is_empty() {
            return;
        }
        {
            // Only the timer of an uploaded batch: another may wait already.
            let mut state = self.state.lock();
            if let Some((number, task)) = state.timer.take() {
                if state.batcher.is_current(number) {
                    state.timer = Some((number, task));
                } else {
                    task.abort();
                }
            }
        }
        let shared = Arc::clone(self);
        shared.metrics.uploads_active.add(1);
        shared.metrics.upload_queue_size.sub(batch.len() as u64);
        self.runtime.spawn(async move {
            upload::run(&shared, batch).await;
            shared.metrics.uploads_active.sub(1);
        });
    }

    fn close(&self) {
        let (left, timer) = {
            let mut state = self.state.lock();
            (state.batcher.close(), state.timer.take())
        };
        self.closed.send_replace(true);
        if let Some((_, task)) = timer {
            task.abort();
        }
        self.metrics.upload_queue_size.sub(left.len() as u64);
        for entry in left {
            entry.fail(closed_error());
        }
    }
}

/// Units of `bytes` bytes.
fn units_of(bytes: u64) -> u32 {
    u32::try_from(bytes.div_ceil(UNIT).clamp(1, u64::from(u32::MAX >> 4))).unwrap_or(u32::MAX >> 4)
}

fn closed_error() -> Error {
    Error::closed("the changelog writer was closed before the change set was durable")
        .with_remedy("start the batch again")
}

impl PersistFuture {
    /// Blocks until the answer is there. Not for threads of an asynchronous runtime.
    pub fn wait(self) -> Result<SetLocation> {
        self.answer.blocking_recv().unwrap_or_else(|_| Err(no_answer()))
    }
}

impl PersistFuture {
    /// The answer, if it is ready; must not be called again then.
    pub fn try_take(&mut self) -> Option<Result<SetLocation>> {
        match self.answer.try_recv() {
            Ok(answer) => Some(answer),
            Err(oneshot::error::TryRecvError::Empty) => None,
            Err(oneshot::error::TryRecvError::Closed) => Some(Err(no_answer())),
        }
    }
}

fn no_answer() -> Error {
    Error::retryable("the upload of a change set was cancelled because the state server is shutting down")
        .with_remedy("start the batch again")
}

impl Future for PersistFuture {
    type Output = Result<SetLocation>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.answer).poll(cx).map(|answer| answer.unwrap_or_else(|_| Err(no_answer())))
    }
}

#[cfg(test)]
mod attempt_tests;
#[cfg(test)]
#[path = "write_tests.rs"]
mod tests;
#[cfg(test)]
mod wave_tests;
