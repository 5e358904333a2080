//! The changelog writer: change sets in, durable segments out.
//!
//! ```text
//! session ── join() ──► JoinGuard ── submit(set) ──► PersistFuture ─────────────► Placed
//!                            │                            ▲
//!                       batch: who waits, when to go      │ one answer per set, success or failure
//!                            ▼                            │
//!                       upload: header + sets + footer ───┘ one object per batch
//! ```
//!
//! buffer: appends of a plain changelog become a set; ledger: which sets of such a writer are where, and who needs them
//!
//! Owns: bringing change sets of many sessions into few objects, the bound on bytes in flight, and one answer per set.
//! Does not own: the encoding of sets (`format`), retries (`store`), handles, and who deletes objects that no handle
//! names.
//!
//! Invariants of [`LogWriter`]:
//! 1. every [`PersistFuture`] ends: with a segment that the store acknowledged, or with an error; also at close and
//!    when the runtime ends (X-08);
//! 2. a failure concerns the sets of its own batch only (X-25), and only after the store's last attempt (X-02);
//! 3. a set waits for open sessions at most `persist_delay`, and when none is open at most [`PEER_WAIT`], for shards of
//!    the last micro-batch that have yet to come;
//! 4. bytes in flight (waiting or uploading) never exceed `max_in_flight`, nor a quarter of the memory budget; a single
//!    larger set is excepted.

mod batch;
pub mod buffer;
mod entry;
pub mod ledger;
pub mod pool;
mod upload;

pub use entry::{Failed, Landing, Parcel, Placed, Room};

use crate::budget::MemoryBudget;
use crate::clock::SharedClock;
use crate::config::Options;
use crate::error::{Error, Result};
use crate::failpoint::SharedFailpoints;
use crate::format::EncodedSet;
use crate::metrics::SharedMetrics;
use crate::model::BatchId;
use crate::ownership::Registry;
use crate::store::{LocalCopies, Store};
use crate::sync::{AbortHandle, Handle, Mutex, sleep};
use batch::{Batcher, Next};
use entry::{Answer, Entry};
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
/// How long a set waits for a session that is likely to be opened. Tasks of one wave start together.
const PEER_WAIT: Duration = Duration::from_millis(50);
/// A submit that waited this many times `request_timeout` × `max_attempts` for room fails.
const PATIENCE: u32 = 2;

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
    registry: Option<Registry>,
    delay: Duration,
    /// Room for bytes in flight, in units.
    room: Arc<Semaphore>,
    all_room: u32,
    max_in_flight: u64,
    /// What bounds them.
    bound_by: &'static str,
    /// Counts the bytes in flight among the process's.
    budget: Arc<MemoryBudget>,
    patience: Duration,
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

/// A session that may still add a change set: while one is open, waiting sets wait for it (up to `persist_delay`).
#[must_use = "waiting sets go at once when no guard is left"]
pub struct JoinGuard {
    shared: Option<Arc<Shared>>,
}

/// The answer for one change set: its durable place, or why there is none.
#[derive(Debug)]
pub struct PersistFuture {
    answer: oneshot::Receiver<Result<Placed>>,
}

impl LogWriter {
    /// A writer to `store` (a state's folder) that works on `runtime`.
    ///
    /// `local_copies` keeps local copies of what was uploaded; it is not asked when the store itself is a local folder.
    pub fn new(
        store: Store,
        options: &Options,
        runtime: Handle,
        clock: SharedClock,
        metrics: SharedMetrics,
        failpoints: SharedFailpoints,
        local_copies: Option<Arc<dyn LocalCopies>>,
    ) -> Self {
        let all_room = all_room(options.max_in_flight);
        let attempts = u32::try_from(options.max_attempts.max(1)).unwrap_or(u32::MAX);
        let shared = Shared {
            registry: None,
            local_copies: local_copies.filter(|_| !store.is_local_file()),
            store,
            runtime,
            clock,
            metrics,
            failpoints,
            delay: options.persist_delay,
            room: Arc::new(Semaphore::new(all_room as usize)),
            all_room,
            max_in_flight: options.max_in_flight,
            bound_by: "max_in_flight",
            budget: MemoryBudget::unlimited(),
            patience: options.request_timeout.saturating_mul(attempts).saturating_mul(PATIENCE),
            slots: Semaphore::new(options.upload_threads.clamp(1, Semaphore::MAX_PERMITS)),
            state: Mutex::new(State { batcher: Batcher::new(options.persist_size_threshold), timer: None }),
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
        let shared = Arc::get_mut(&mut self.shared).expect("nobody shares a writer that is being made");
        let bound = budget.limit() / BUDGET_SHARE;
        if bound < shared.max_in_flight {
            (shared.max_in_flight, shared.bound_by) = (bound, "memory_budget");
            shared.all_room = all_room(bound);
            shared.room = Arc::new(Semaphore::new(shared.all_room as usize));
        }
        shared.budget = Arc::clone(budget);
        self
    }

    /// The same writer, which counts the sets of every object in `registry` before it answers any of them.
    ///
    /// # Panics
    /// If the writer is in use already.
    #[must_use]
    pub fn counting(mut self, registry: Registry) -> Self {
        Arc::get_mut(&mut self.shared).expect("nobody shares a writer that is being made").registry = Some(registry);
        self
    }

    /// Announces a change set that may come.
    pub fn join(&self) -> JoinGuard {
        self.shared.state.lock().batcher.join();
        JoinGuard { shared: Some(Arc::clone(&self.shared)) }
    }

    /// Hands over an encoded change set of a micro-batch; the future ends when it is durable or has failed.
    ///
    /// Returns at once. When `max_in_flight` is reached, the set waits for room before it counts; dropping the future
    /// gives the wait up, and too long a wait fails naming the option.
    pub fn submit(&self, guard: JoinGuard, set: EncodedSet, batch: BatchId) -> PersistFuture {
        let (answer, receiver) = oneshot::channel();
        self.hand_in(Some(guard), Parcel::encoded(set), Some(batch), Answer::future(answer));
        PersistFuture { answer: receiver }
    }

    /// The same for a set that nobody shares an object with: a local file is written by the calling thread before this
    /// returns, so that no other thread has to wake. Not for threads of an asynchronous runtime.
    pub fn submit_alone(&self, set: EncodedSet, batch: BatchId) -> PersistFuture {
        let shared = &self.shared;
        let mut parcel = Parcel::encoded(set);
        let bytes = parcel.bytes();
        parcel.room = self.try_room(bytes).filter(|_| shared.store.is_local_file());
        let (answer, receiver) = oneshot::channel();
        if parcel.room.is_none() {
            self.hand_in(None, parcel, Some(batch), Answer::future(answer));
            return PersistFuture { answer: receiver };
        }
        let since = shared.clock.monotonic();
        let entry = Entry { parcel, bytes, batch: Some(batch), since, answer: Answer::future(answer) };
        shared.metrics.uploads_active.add(1);
        shared.runtime.block_on(upload::run(shared, vec![entry]));
        shared.metrics.uploads_active.sub(1);
        PersistFuture { answer: receiver }
    }

    /// The same for a part of a change set that comes in several: waits for room first, so that the caller makes no further
    /// part before there is some. Too long a wait fails naming the option. Not for threads of an asynchronous runtime.
    pub fn submit_part(&self, set: EncodedSet) -> Result<PersistFuture> {
        let shared = &self.shared;
        let mut parcel = Parcel::encoded(set);
        let bytes = parcel.bytes();
        parcel.room = self.try_room(bytes);
        if parcel.room.is_none() {
            shared.metrics.persist_waits.add(1);
            // Only uploads make room: what waits for company goes now.
            self.press();
            let room = shared.runtime.block_on(async {
                tokio::select! {
                    biased;
                    room = self.room(bytes) => room,
                    () = sleep(shared.patience) => Err(shared.no_room(bytes, shared.patience)),
                }
            });
            parcel.room = Some(room?);
        }
        let (answer, receiver) = oneshot::channel();
        self.hand_in(None, parcel, None, Answer::future(answer));
        Ok(PersistFuture { answer: receiver })
    }

    /// The same for a set that belongs to no micro-batch; `landing` is told what became of it.
    pub fn submit_to(&self, guard: Option<JoinGuard>, parcel: Parcel, landing: Box<dyn Landing>) {
        self.hand_in(guard, parcel, None, Answer::landing(landing));
    }

    fn hand_in(&self, guard: Option<JoinGuard>, mut parcel: Parcel, batch: Option<BatchId>, answer: Answer) {
        let shared = &self.shared;
        let since = shared.clock.monotonic();
        let bytes = parcel.bytes();
        // A set that is handed in again holds its room already.
        if parcel.room.is_none() {
            parcel.room = self.try_room(bytes);
        }
        let entry = Entry { parcel, bytes, batch, since, answer };
        if entry.parcel.room.is_some() {
            shared.enqueue(entry, guard);
        } else {
            shared.metrics.persist_waits.add(1);
            // Only uploads make room: what waits for company goes now.
            drop(guard);
            self.press();
            let waiting = Arc::clone(shared);
            shared.runtime.spawn(async move { waiting.wait_for_room(entry).await });
        }
    }

    /// Room for `bytes` bytes, if there is some now.
    pub fn try_room(&self, bytes: u64) -> Option<Room> {
        let shared = &self.shared;
        let permit = Arc::clone(&shared.room).try_acquire_many_owned(shared.units(bytes)).ok()?;
        Some(Room::new(bytes, Arc::clone(&shared.metrics), &shared.budget, permit))
    }

    /// Room for `bytes` bytes, as soon as there is some; an error after close.
    pub async fn room(&self, bytes: u64) -> Result<Room> {
        let shared = &self.shared;
        let mut closed = shared.closed.subscribe();
        let permit = tokio::select! {
            biased;
            _ = closed.wait_for(|closed| *closed) => return Err(closed_error()),
            permit = Arc::clone(&shared.room).acquire_many_owned(shared.units(bytes)) => permit.map_err(|_| closed_error())?,
        };
        Ok(Room::new(bytes, Arc::clone(&shared.metrics), &shared.budget, permit))
    }

    /// Uploads what waits for company: somebody needs its room.
    pub fn press(&self) {
        let next = self.shared.state.lock().batcher.press();
        self.shared.act(next);
    }

    /// The error of a wait for room that lasted `waited`.
    pub fn no_room(&self, bytes: u64, waited: Duration) -> Error {
        self.shared.no_room(bytes, waited)
    }

    /// How long a wait for room may last.
    pub fn patience(&self) -> Duration {
        self.shared.patience
    }

    /// Ends the writer: what waits or uploads fails as closed, and nothing is accepted any more.
    pub fn close(&self) {
        self.shared.close();
    }
}

impl Shared {
    fn units(&self, bytes: u64) -> u32 {
        u32::try_from(bytes.div_ceil(UNIT)).unwrap_or(u32::MAX).clamp(1, self.all_room)
    }

    fn no_room(&self, bytes: u64, waited: Duration) -> Error {
        let what = format!(
            "a change set of {bytes} bytes found no room for {waited:?}: {} of {} bytes are waiting for upload to {}",
            self.metrics.in_flight_bytes.get(),
            self.max_in_flight,
            self.store.uri()
        );
        Error::limit(what, self.bound_by)
    }

    async fn wait_for_room(self: Arc<Self>, mut entry: Entry) {
        let bytes = entry.bytes;
        let mut closed = self.closed.subscribe();
        let permit = tokio::select! {
            biased;
            _ = closed.wait_for(|closed| *closed) => Err(closed_error()),
            // Whoever waited has gone.
            () = entry.answer.gone() => return,
            permit = Arc::clone(&self.room).acquire_many_owned(self.units(bytes)) => permit.map_err(|_| closed_error()),
            () = sleep(self.patience) => Err(self.no_room(bytes, self.patience)),
        };
        match permit {
            Ok(permit) => {
                entry.parcel.room = Some(Room::new(bytes, Arc::clone(&self.metrics), &self.budget, permit));
                self.enqueue(entry, None);
            }
            Err(error) => entry.fail(error),
        }
    }

    fn enqueue(self: &Arc<Self>, entry: Entry, guard: Option<JoinGuard>) {
        let joined = guard.is_some();
        if let Some(mut guard) = guard {
            // This guard is settled below, in the same step as the set joins.
            guard.shared = None;
        }
        let next = {
            let mut state = self.state.lock();
            let next = state.batcher.add(entry, joined);
            // Before anybody can take it out again.
            self.metrics.upload_queue_size.add(u64::from(next.is_ok()));
            next
        };
        match next {
            Ok(next) => self.act(next),
            Err(entry) => entry.fail(closed_error()),
        }
    }

    fn act(self: &Arc<Self>, next: Next) {
        match next {
            Next::Wait => {}
            Next::Timer(number) => self.start_timer(number, self.delay),
            Next::ShortTimer(number) => self.start_timer(number, self.delay.min(PEER_WAIT)),
            Next::Upload(batch) => self.upload(batch),
        }
    }

    fn start_timer(self: &Arc<Self>, number: u64, delay: Duration) {
        if delay.is_zero() {
            let batch = self.state.lock().batcher.drain();
            return self.upload(batch);
        }
        let weak = Arc::downgrade(self);
        let task = self.runtime.spawn(async move {
            sleep(delay).await;
            if let Some(shared) = Weak::upgrade(&weak) {
                let next = shared.state.lock().batcher.timer(number);
                shared.act(next);
            }
        });
        let mut state = self.state.lock();
        if state.batcher.is_current(number) {
            // An earlier one of this number has nothing to do any more, or does the same later.
            state.timer = Some((number, task.abort_handle()));
        } else {
            task.abort();
        }
    }

    fn upload(self: &Arc<Self>, batch: Vec<Entry>) {
        if batch.is_empty() {
            return;
        }
        {
            // Only the timer of a batch that has gone: another may wait already.
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
fn all_room(bytes: u64) -> u32 {
    u32::try_from(bytes.div_ceil(UNIT).clamp(1, u64::from(u32::MAX >> 4))).unwrap_or(u32::MAX >> 4)
}

fn closed_error() -> Error {
    Error::closed("the changelog writer was closed before the change set was durable; start the batch again")
}

impl Drop for JoinGuard {
    fn drop(&mut self) {
        if let Some(shared) = self.shared.take() {
            let next = shared.state.lock().batcher.leave();
            shared.act(next);
        }
    }
}

impl PersistFuture {
    /// Blocks until the answer is there. Not for threads of an asynchronous runtime.
    pub fn wait(self) -> Result<Placed> {
        self.answer.blocking_recv().unwrap_or_else(|_| Err(no_answer()))
    }
}

impl PersistFuture {
    /// The answer, if it is there; to be asked no more then.
    pub fn try_take(&mut self) -> Option<Result<Placed>> {
        match self.answer.try_recv() {
            Ok(answer) => Some(answer),
            Err(oneshot::error::TryRecvError::Empty) => None,
            Err(oneshot::error::TryRecvError::Closed) => Some(Err(no_answer())),
        }
    }
}

fn no_answer() -> Error {
    Error::retryable(
        "the upload of a change set ended without an answer because the state server is shutting down; start the batch again",
    )
}

impl Future for PersistFuture {
    type Output = Result<Placed>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.answer).poll(cx).map(|answer| answer.unwrap_or_else(|_| Err(no_answer())))
    }
}

#[cfg(test)]
mod attempt_tests;
#[cfg(test)]
#[path = "write_tests.rs"]
mod tests;
