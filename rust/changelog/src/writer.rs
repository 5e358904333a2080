//! One writer of a plain changelog.
//!
//! Owns: the order of steps between append buffer, ledger, upload and registry, and waiting for a permit.
//! Does not own: the steps themselves (`buffer`, `ledger`, `attempt`, `ownership`).
//!
//! Any thread may call it; calls take effect one after the other. Nothing here waits but an append that meets
//! `max_in_flight`, and that wait can be interrupted.

use super::Shared;
use super::attempt::{self, Failure, Receiver, SealedSet};
use super::buffer::AppendBuffer;
use super::ledger::{Effects, Ledger, Outcome};
use super::references::Hold;
use bytes::Bytes;
use fastchangelog_format::byte_set::MAX_VALUE;
use fastchangelog_format::clock::Tick;
use fastchangelog_format::error::{Error, Result};
use fastchangelog_format::model::{ChangelogHandle, KeyGroupRange, SequenceNumber, SetRef};
use fastchangelog_log::write::{InFlightPermit, JoinGuard, SetLocation};
use parking_lot::{Mutex, MutexGuard};
use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// Called once with the outcome of a persist: the handle, or the error. Called from any thread.
pub type HandleCallback = Box<dyn FnOnce(Result<ChangelogHandle>) + Send>;

/// Between two calls of a [`Tick`].
const TICK: Duration = Duration::from_millis(50);

/// A writer. Cheap to clone; clones are the same writer.
#[derive(Clone)]
pub struct Writer {
    pub(crate) inner: Arc<Inner>,
}

pub(super) struct Inner {
    shared: Arc<Shared>,
    name: String,
    groups: KeyGroupRange,
    threshold: u64,
    state: Mutex<State>,
}

struct State {
    buffer: AppendBuffer,
    ledger: Ledger<SealedSet>,
    /// Announces the active set to the others that may share its object.
    guard: Option<JoinGuard>,
    waiting: HashMap<u64, HandleCallback>,
}

/// Actions of a state change that run outside its lock.
struct PendingActions {
    effects: Effects<SealedSet>,
    guard: Option<JoinGuard>,
    done: Vec<(HandleCallback, Result<ChangelogHandle>)>,
}

impl std::fmt::Debug for Writer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Writer").field("name", &self.inner.name).finish_non_exhaustive()
    }
}

impl Writer {
    pub(super) fn new(shared: Arc<Shared>, name: String, groups: KeyGroupRange) -> Self {
        let threshold = shared.options.preemptive_persist_threshold;
        let state = State {
            buffer: AppendBuffer::new(groups, shared.pool.clone()),
            ledger: Ledger::default(),
            guard: None,
            waiting: HashMap::new(),
        };
        Self { inner: Arc::new(Inner { shared, name, groups, threshold, state: Mutex::new(state) }) }
    }

    /// The writer's name.
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// The key groups it takes.
    pub fn key_groups(&self) -> KeyGroupRange {
        self.inner.groups
    }

    /// Appends a change of a key group to the active set. Never waits; true: call [`Writer::apply_backpressure`] now.
    #[inline]
    pub fn append(&self, key_group: u16, value: &[u8]) -> Result<bool> {
        let inner = &*self.inner;
        if key_group < inner.groups.start || key_group >= inner.groups.end || value.len() > MAX_VALUE {
            return Err(inner.refuse(i64::from(key_group), value.len()));
        }
        let mut state = inner.state.lock();
        state.begin(inner)?;
        state.buffer.append(key_group, value);
        Ok(inner.is_full(&state))
    }

    /// Appends a metadata record; else as [`Writer::append`].
    pub fn append_meta(&self, value: &[u8]) -> Result<bool> {
        let inner = &*self.inner;
        if value.len() > MAX_VALUE {
            return Err(inner.refuse(-1, value.len()));
        }
        let mut state = inner.state.lock();
        state.begin(inner)?;
        state.buffer.append_meta(value);
        Ok(inner.is_full(&state))
    }

    /// Uploads the active set if it has reached `preemptive_persist_threshold`. Waits when `max_in_flight` is reached:
    /// without this, memory would not be bounded.
    pub fn apply_backpressure(&self, tick: Tick<'_>) -> Result<()> {
        let state = self.inner.state.lock();
        if self.inner.is_full(&state) { self.preempt(state, tick) } else { Ok(()) }
    }

    /// Permission to pass [`Writer::append_batch`] the memory of its values: `bytes` bytes that keep `held` bytes
    /// allocated, or 0 if that memory may change.
    pub fn hold(&self, groups: &[u16], bytes: u64, held: u64) -> Option<Hold> {
        self.inner.shared.references.as_ref()?.hold(groups, bytes, held)
    }

    /// Appends many changes. All key groups are checked before the first is appended; a set may end in between.
    /// Sets refer to values in `memory`, which never changes, until they are durable; other values are copied.
    pub fn append_batch<'a>(
        &self,
        groups: &[u16],
        values: impl ExactSizeIterator<Item = &'a [u8]>,
        memory: Option<&Bytes>,
        tick: Tick<'_>,
    ) -> Result<()> {
        let inner = &*self.inner;
        if groups.len() != values.len() {
            let what = format!(
                "the batch has {} key groups and {} values; give one key group for each value",
                groups.len(),
                values.len()
            );
            return Err(Error::invalid(what));
        }
        let range = inner.groups;
        if let Some(wrong) = groups.iter().find(|group| **group < range.start || **group >= range.end) {
            return Err(inner.refuse(i64::from(*wrong), 0));
        }
        let mut state = inner.state.lock();
        state.begin(inner)?;
        for (group, value) in groups.iter().zip(values) {
            if value.len() > MAX_VALUE {
                return Err(inner.refuse(i64::from(*group), value.len()));
            }
            state.buffer.append_within(*group, value, memory);
            if inner.is_full(&state) {
                self.preempt(state, tick)?;
                state = inner.state.lock();
                state.begin(inner)?;
            }
        }
        Ok(())
    }

    /// Seals the active set and uploads it without a checkpoint, as soon as there is a permit for it.
    #[cold]
    fn preempt<'a>(&'a self, mut state: MutexGuard<'a, State>, tick: Tick<'_>) -> Result<()> {
        let inner = &self.inner;
        let log = &inner.shared.log;
        let mut permit = log.try_acquire(state.buffer.memory());
        let start = Instant::now();
        let failures = state.ledger.failures().0;
        while permit.is_none() {
            // Sets whose upload failed hold permits: only another attempt can free them.
            let actions = state.actions_for_waiting(inner);
            drop(state);
            inner.carry_out(actions);
            log.flush_waiting();
            inner.shared.metrics.throttled_appends.add(u64::from(start.elapsed() < TICK));
            let bytes = inner.state.lock().buffer.memory();
            permit = inner.wait_for_permit(bytes)?;
            tick()?;
            state = inner.state.lock();
            if permit.is_none() {
                match state.ledger.failures() {
                    (count, Some(error)) if count > failures => return Err(error.clone()),
                    _ if start.elapsed() > log.permit_timeout() => {
                        return Err(log.permit_timeout_error(bytes, start.elapsed()));
                    }
                    _ => {}
                }
            }
        }
        inner.shared.metrics.throttled_micros.add(u64::try_from(start.elapsed().as_micros()).unwrap_or(u64::MAX));
        if state.buffer.is_empty() {
            return Ok(()); // sealed by another thread meanwhile
        }
        state.seal(inner, permit)?;
        let actions = state.actions_for_waiting(inner);
        drop(state);
        inner.carry_out(actions);
        Ok(())
    }

    /// The number that the next change set will have: one past the newest change's. Asking changes nothing.
    pub fn next_sequence_number(&self) -> SequenceNumber {
        self.inner.state.lock().next()
    }

    /// The number of the newest change; none before the first.
    pub fn last_appended_sequence_number(&self) -> Option<SequenceNumber> {
        self.next_sequence_number().checked_sub(1)
    }

    /// Ends the active set, if something is in it, so that later changes have another number: the one returned.
    pub fn rollover(&self) -> Result<SequenceNumber> {
        let inner = &*self.inner;
        let mut state = inner.state.lock();
        state.check_open()?;
        state.seal(inner, None)?;
        Ok(state.ledger.active())
    }

    /// Makes everything from `from` on durable, for a checkpoint; `done` receives the handle.
    ///
    /// Uploads only sets that are not durable yet, including those whose upload failed. Does not block.
    pub fn persist(&self, from: SequenceNumber, checkpoint_id: u64, done: HandleCallback) -> Result<()> {
        let inner = &self.inner;
        let mut state = inner.state.lock();
        state.check_open()?;
        let (lowest, next) = (state.ledger.lowest(), state.next());
        if from >= lowest && from <= next {
            state.seal(inner, None)?;
        }
        let (listener, effects) = state.ledger.persist(from, checkpoint_id)?;
        state.waiting.insert(listener, done);
        let actions = state.actions(inner, effects);
        drop(state);
        inner.carry_out(actions);
        Ok(())
    }

    /// Says that a checkpoint with the range `[from, to)` completed; confirmations may come in any order.
    pub fn confirm(&self, from: SequenceNumber, to: SequenceNumber, checkpoint_id: u64) -> Result<()> {
        self.step(to, |ledger| ledger.confirm(from, to, checkpoint_id))?;
        self.inner.shared.drop_copies(checkpoint_id);
        Ok(())
    }

    /// Says that a checkpoint was aborted: its sets stay for the next one.
    pub fn reset(&self, from: SequenceNumber, to: SequenceNumber, checkpoint_id: u64) -> Result<()> {
        self.step(to, |ledger| ledger.reset(from, to, checkpoint_id))
    }

    /// Says that no checkpoint up to and with `checkpoint_id` is retained: truncated sets that only they named go.
    pub fn subsume(&self, checkpoint_id: u64) -> Result<()> {
        self.step(0, |ledger| Ok(ledger.subsume(checkpoint_id)))
    }

    /// Says that sets below `to` are not needed any more, but for open, confirmed and retained checkpoints.
    pub fn truncate(&self, to: SequenceNumber) -> Result<()> {
        self.step(to, |ledger| ledger.truncate(to))
    }

    /// Closes, and abandons the sets at or above `from` that no checkpoint names.
    pub fn truncate_and_close(&self, from: SequenceNumber) -> Result<()> {
        self.end(|ledger| ledger.truncate_and_close(from));
        Ok(())
    }

    /// Closes: what was not persisted is lost, pending persists end with an error. Twice is fine.
    pub fn close(&self) {
        self.end(Ledger::close);
    }

    /// True after close.
    pub fn is_closed(&self) -> bool {
        self.inner.state.lock().ledger.is_closed()
    }

    /// One step of the ledger that names numbers up to `to`; the active set is sealed if `to` lies behind it.
    fn step(
        &self,
        to: SequenceNumber,
        step: impl FnOnce(&mut Ledger<SealedSet>) -> Result<Effects<SealedSet>>,
    ) -> Result<()> {
        let inner = &self.inner;
        let mut state = inner.state.lock();
        if to > state.ledger.active() && to == state.next() {
            state.seal(inner, None)?;
        }
        let effects = step(&mut state.ledger)?;
        let actions = state.actions(inner, effects);
        drop(state);
        inner.carry_out(actions);
        Ok(())
    }

    fn end(&self, step: impl FnOnce(&mut Ledger<SealedSet>) -> Effects<SealedSet>) {
        let inner = &self.inner;
        let mut state = inner.state.lock();
        if state.ledger.is_closed() {
            return;
        }
        let effects = step(&mut state.ledger);
        state.buffer = AppendBuffer::new(inner.groups, inner.shared.pool.clone());
        let mut actions = state.actions(inner, effects);
        actions.guard = state.guard.take();
        drop(state);
        inner.shared.forget(&inner.name);
        inner.carry_out(actions);
    }
}

impl State {
    fn check_open(&self) -> Result<()> {
        if self.ledger.is_closed() {
            return Err(Error::closed("this changelog writer is closed").with_remedy("create a new one"));
        }
        Ok(())
    }

    /// Before an append.
    #[inline]
    fn begin(&mut self, inner: &Inner) -> Result<()> {
        if self.guard.is_none() {
            self.check_open()?;
            self.guard = Some(inner.shared.log.join());
        }
        Ok(())
    }

    fn next(&self) -> SequenceNumber {
        self.ledger.active() + u64::from(!self.buffer.is_empty())
    }

    /// Rollover: the active set, unless it is empty, goes to the ledger.
    fn seal(&mut self, inner: &Inner, permit: Option<InFlightPermit>) -> Result<()> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        let compression = inner.shared.options.compression_in(inner.shared.store.is_remote());
        self.ledger.roll(SealedSet::new(self.buffer.seal(), compression, permit))
    }

    fn actions_for_waiting(&mut self, inner: &Inner) -> PendingActions {
        let effects = self.ledger.persist_waiting();
        self.actions(inner, effects)
    }

    fn actions(&mut self, inner: &Inner, mut effects: Effects<SealedSet>) -> PendingActions {
        let done = std::mem::take(&mut effects.finish).into_iter().filter_map(|(listener, result)| {
            let done = self.waiting.remove(&listener)?;
            Some((done, result.map(|outcome| inner.handle(outcome))))
        });
        let done = done.collect();
        // The guard goes with the sets that it announced.
        let guard = if self.buffer.is_empty() { self.guard.take() } else { None };
        PendingActions { effects, guard, done }
    }
}

impl Inner {
    /// The number of the active set.
    #[cfg(test)]
    pub(super) fn active(&self) -> SequenceNumber {
        self.state.lock().ledger.active()
    }

    #[inline]
    fn is_full(&self, state: &State) -> bool {
        state.buffer.payload() >= self.threshold || state.buffer.memory() >= self.threshold.saturating_mul(2)
    }

    fn refuse(&self, key_group: i64, length: usize) -> Error {
        if length > MAX_VALUE {
            return Error::invalid(format!("a value of {length} bytes exceeds the limit of {MAX_VALUE} bytes"))
                .with_remedy("split it over several changes");
        }
        Error::invalid(format!(
            "key group {key_group} is not one of the writer `{}`: it takes {} to {}",
            self.name,
            self.groups.start,
            i64::from(self.groups.end) - 1
        ))
    }

    fn wait_for_permit(&self, bytes: u64) -> Result<Option<InFlightPermit>> {
        let log = self.shared.log.clone();
        self.shared.runtime.block_on(async move {
            match tokio::time::timeout(TICK, log.acquire(bytes)).await {
                Ok(permit) => permit.map(Some),
                Err(_) => Ok(None),
            }
        })
    }

    fn handle(&self, outcome: Outcome) -> ChangelogHandle {
        self.shared.use_copies(&outcome.sets, outcome.checkpoint);
        ChangelogHandle {
            storage: self.shared.store.uri().to_owned(),
            writer: self.name.clone(),
            key_groups: self.groups,
            from: outcome.range.start,
            to: outcome.range.end,
            checkpoint_id: outcome.checkpoint,
            sets: outcome.sets,
            incremental_size: outcome.incremental,
        }
    }

    fn carry_out(self: &Arc<Self>, actions: PendingActions) {
        let PendingActions { effects, guard, done } = actions;
        for set in effects.release {
            self.shared.release(&set);
        }
        for set in effects.hand_over {
            self.shared.registry.stop_tracking(&set.object.name);
        }
        if !effects.submit.is_empty() {
            let shared = &self.shared;
            let sets = effects
                .submit
                .into_iter()
                .map(|(number, set)| (SetReceiver { writer: Arc::downgrade(self), number, payload: set.payload }, set));
            let guard = guard.unwrap_or_else(|| shared.log.join());
            attempt::send(&shared.log, &shared.runtime, shared.clock.monotonic(), sets.collect(), guard);
        }
        for (done, result) in done {
            done(result);
        }
    }

    fn on_persisted(self: &Arc<Self>, number: SequenceNumber, payload: u64, result: Result<SetLocation, Failure>) {
        let result = result.map(|SetLocation { object, offset, length, head, mark, records }| SetRef {
            sequence_number: number,
            object,
            offset,
            length,
            head,
            mark,
            records,
            payload,
        });
        let mut state = self.state.lock();
        let effects = state.ledger.on_persisted(number, result);
        let actions = state.actions(self, effects);
        drop(state);
        self.carry_out(actions);
    }
}

/// Delivers the outcome of one set to its writer. The log does not keep a writer alive; its user does.
struct SetReceiver {
    writer: Weak<Inner>,
    number: SequenceNumber,
    payload: u64,
}

impl Receiver for SetReceiver {
    fn on_outcome(&self, result: Result<SetLocation, Failure>) {
        if let Some(writer) = self.writer.upgrade() {
            writer.on_persisted(self.number, self.payload, result);
        }
    }

    fn is_gone(&self) -> bool {
        self.writer.upgrade().is_none_or(|writer| !writer.state.lock().ledger.is_needed(self.number))
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // No call can follow; waiting persists end with an error.
        let state = self.state.get_mut();
        for (_, done) in state.waiting.drain() {
            done(Err(Error::closed("the changelog writer is gone: keep it until its checkpoints are durable")));
        }
        self.shared.forget(&self.name);
    }
}
