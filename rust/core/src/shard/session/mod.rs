//! Sessions: one execution of one shard's micro-batch.
//!
//! Owns: the life of a session, from its opening to the commit that makes a version durable; its numbers.
//! Does not own: which version is live (`transition`), how a version gets its handle (`seal`), the log's batching
//! (`write`); in files beside it: merging and spilling (`groups`), the step from partial rows to a change set
//! (`combine`), the end of a session that has spilled (`ranges`), results (`results`); beside its folder: memory
//! (`session_memory`), its opening and its end for the shard (`hold`).
//!
//! Life: `merge`* → `finish` (reads the base, hands the change set to the log, yields results) → `commit` (waits for
//! the store's acknowledgement, returns the handle). Dropping a session before `commit` aborts it: nothing of it is
//! kept.
//!
//! A batch that fits into the session's memory is one table and one change set. Of a larger one the partial rows are on
//! the local disk; `finish` then returns at once, and the reader of the results, or the commit, makes one range of the
//! hash after the other.

mod changes;
mod combine;
mod event_time;
mod expiry;
mod groups;
mod ranges;
mod results;
mod session_windows;

pub use event_time::Watermarks;
pub(super) use expiry::ExpiryWalk;
pub use results::ResultBatches;

use self::changes::TableChanges;
use self::combine::{Combiner, Parent};
use self::event_time::EventTime;
use self::expiry::Expired;
use self::groups::{Groups, Merging};
use self::ranges::{Ranges, RangesOutcome, range_bytes};
use super::Shard;
use super::base::Base;
use super::hold::ShardHold;
use super::seal::{Committed, HandleMeta, PendingVersion, SetParts};
use super::session_counters::SessionCounters;
use super::session_environment::SessionEnvironment;
use super::session_memory::SessionMemory;
use fastchangelog_columns::aggregate::AggPlan;
use fastchangelog_columns::session_windows::merge_alone;
use fastchangelog_columns::table::GroupTable;
use fastchangelog_format::error::{Error, Result};
use fastchangelog_format::model::{BatchId, ChangeSet, InstanceId, ShardHandle, VersionId};
use fastchangelog_log::write::JoinGuard;
use fastchangelog_store::budget::Reservation;
use fastchangelog_store::metrics::SharedMetrics;
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Instant;

/// A finished change set that is being uploaded.
struct PendingCommit {
    pending: PendingVersion,
    submitted: Instant,
    state_keys: u64,
    state_bytes: u64,
}

impl PendingCommit {
    fn new(set: Option<Arc<ChangeSet>>, outcome: RangesOutcome) -> Self {
        let RangesOutcome { parts, parent: Parent { lineage, state_keys, state_bytes }, keys, bytes, submitted } =
            outcome;
        Self {
            pending: PendingVersion { version: VersionId::random(), set, parts, lineage, hints: None },
            submitted,
            state_keys: state_keys.saturating_add_signed(keys),
            state_bytes: state_bytes.saturating_add_signed(bytes),
        }
    }
}

enum Stage {
    Merging(Option<JoinGuard>),
    /// Nothing changed: the version stays the same.
    Unchanged,
    Pending(Box<PendingCommit>),
    /// More than the memory holds: made range by range. The announcement marks the task's slot as taken.
    Ranges(Arc<Mutex<Ranges>>, Option<JoinGuard>),
    Done,
}

/// One execution of one shard's micro-batch.
pub struct Session {
    shard: Option<Arc<Shard>>,
    /// None without a shard.
    hold: Option<ShardHold>,
    plan: Arc<AggPlan>,
    schema_text: String,
    /// Until `finish`.
    groups: Option<Groups>,
    /// Until `finish`, unless the groups fit into memory.
    event_time: Option<EventTime>,
    watermarks: Option<Watermarks>,
    base: Option<ShardHandle>,
    instance: InstanceId,
    batch: BatchId,
    stage: Stage,
    result_rows: usize,
    counters: SessionCounters,
    opened: Instant,
    /// Of the change set that is being uploaded.
    memory: Option<Reservation>,
}

impl Session {
    /// A session of `shard` on top of `base` (none = the empty state). Without `watermarks` no group is late or closed.
    pub fn open(
        shard: &Arc<Shard>,
        plan: Arc<AggPlan>,
        base: Option<ShardHandle>,
        batch: BatchId,
        watermarks: Option<Watermarks>,
    ) -> Result<Self> {
        let opened = Instant::now();
        let context = shard.context();
        let schema_text = plan.schema().to_owned();
        let mut counters = SessionCounters::default();
        let schema = (plan.schema_id(), &*schema_text);
        let mut event_time = EventTime::of(&plan, watermarks)?;
        let (hold, opened_base, guard) = ShardHold::open(shard, base.as_ref(), batch, schema, &mut counters)?;
        let mut groups = Groups::new(Arc::clone(&plan), context.session_environment());
        if let Some(event_time) = &mut event_time {
            event_time
                .read_base(&opened_base, &plan, &mut counters, &mut |rows, counters| groups.add(rows, counters))?;
        }
        Ok(Self {
            groups: Some(groups),
            event_time,
            memory: None,
            result_rows: context.options.result_batch_rows,
            shard: Some(Arc::clone(shard)),
            hold: Some(hold),
            plan,
            schema_text,
            watermarks,
            base,
            instance: opened_base.instance,
            batch,
            stage: Stage::Merging(Some(guard)),
            counters,
            opened,
        })
    }

    /// A session for a batch DataFrame, which starts empty and keeps nothing.
    pub fn ephemeral(plan: Arc<AggPlan>, session_environment: SessionEnvironment) -> Self {
        Self {
            shard: None,
            hold: None,
            schema_text: plan.schema().to_owned(),
            result_rows: session_environment.result_batch_rows,
            groups: Some(Groups::new(Arc::clone(&plan), session_environment)),
            event_time: None,
            watermarks: None,
            plan,
            base: None,
            instance: InstanceId::random(),
            batch: BatchId(0),
            stage: Stage::Merging(None),
            counters: SessionCounters::default(),
            opened: Instant::now(),
            memory: None,
        }
    }

    /// Merges one payload of partial rows.
    pub fn merge(&mut self, payload: &[u8]) -> Result<()> {
        let start = Instant::now();
        let Stage::Merging(guard) = &mut self.stage else {
            return Err(Error::closed("merge was called after finish; open a new session"));
        };
        if let Some(shard) = &self.shard {
            shard.context().failpoints.hit("session.merge")?;
        }
        let groups = self.groups.as_mut().ok_or_else(no_groups)?;
        let mut rows = groups.read(payload)?;
        let (partial_rows, input_rows) = (rows.len() as u64, rows.input_rows);
        if let Some(event_time) = &mut self.event_time {
            rows = event_time.without_late(rows, &mut self.counters)?;
        }
        groups.add(&rows.by_group(&self.plan)?, &mut self.counters)?;
        if groups.has_spilled() {
            // Its first part takes long: other commits need not wait for it.
            guard.iter_mut().for_each(JoinGuard::stand_aside);
        }
        self.counters.count("rows_merged", input_rows);
        self.counters.count("partial_rows", partial_rows);
        self.counters.count("payload_bytes", payload.len() as u64);
        self.counters.count_since("merge_micros", start);
        if let Some(shard) = &self.shard {
            shard.context().metrics.rows_merged.add(input_rows);
            shard.context().metrics.merge_micros.add_elapsed(start);
        }
        Ok(())
    }

    /// Combines with the base state, hands the change set to the log and returns the results. If the batch is larger
    /// than the session's memory, the results do this while they are read, and [`Session::commit`] with what was not
    /// read.
    pub fn finish(&mut self) -> Result<ResultBatches> {
        let Stage::Merging(mut guard) = std::mem::replace(&mut self.stage, Stage::Done) else {
            return Err(Error::closed("finish was already called; open a new session"));
        };
        let groups = self.groups.take().ok_or_else(no_groups)?;
        if let Some(shard) = &self.shard {
            shard.context().failpoints.hit("session.finish")?;
        }
        let (mut merging, session_memory, session_environment) = groups.end(&mut self.counters)?;
        let metrics = Arc::clone(&session_environment.metrics);
        let combiner = self.shard.as_ref().map(|shard| {
            let version = self.base.as_ref().map(|h| h.version);
            Combiner(Base { shard: Arc::clone(shard), instance: self.instance, version })
        });
        if let (Merging::Whole(table), Some(combiner)) = (&merging, &combiner)
            && combiner.has_long_lists(table, range_bytes(&session_memory))?
        {
            merging = merging.on_disk(&session_environment, &mut self.counters)?;
            guard.iter_mut().for_each(JoinGuard::stand_aside);
        }
        match merging {
            Merging::Whole(table) => self.finish_whole(table, combiner, guard, session_memory, metrics),
            Merging::Spilled(spilled) => {
                let plan = Arc::clone(&self.plan);
                let (shared, event_time) = (Arc::clone(&plan), self.event_time.take());
                let ranges = Ranges::new(shared, combiner, event_time, session_environment, spilled, session_memory);
                let ranges = Arc::new(Mutex::new(ranges));
                self.stage = Stage::Ranges(Arc::clone(&ranges), guard);
                Ok(ResultBatches::of_ranges(plan, self.result_rows, ranges, metrics))
            }
        }
    }

    fn finish_whole(
        &mut self,
        mut table: GroupTable,
        combiner: Option<Combiner>,
        guard: Option<JoinGuard>,
        mut session_memory: SessionMemory,
        metrics: SharedMetrics,
    ) -> Result<ResultBatches> {
        let keys = table.len() as u64;
        self.counters.count("keys_updated", keys);
        let has_changes = keys > 0 || self.event_time.as_ref().is_some_and(EventTime::has_removals);
        self.stage = match (combiner, guard) {
            (Some(combiner), Some(guard)) if has_changes => {
                match self.prepare(&combiner, &mut table, guard, &mut session_memory)? {
                    Some(pending) => Stage::Pending(Box::new(pending)),
                    None => Stage::Unchanged,
                }
            }
            _ => {
                merge_alone(&mut table)?;
                Stage::Unchanged
            }
        };
        let memory = session_memory.split(table.memory_bytes());
        self.memory = Some(session_memory.split(u64::MAX));
        Ok(ResultBatches::of_table(table, self.result_rows, memory, metrics))
    }

    fn prepare(
        &mut self,
        combiner: &Combiner,
        table: &mut GroupTable,
        guard: JoinGuard,
        session_memory: &mut SessionMemory,
    ) -> Result<Option<PendingCommit>> {
        let context = combiner.context();
        let mut event_time = self.event_time.take();
        let removals = combiner.removals(event_time.as_mut())?;
        let mut expired = Expired::of(&self.plan);
        let expired = expired.as_mut().map(|expired| (expired, &(|_| true) as &dyn Fn(u64) -> bool));
        let (changes, parent) = combiner.combine(table, event_time.as_mut(), expired, &mut self.counters)?;
        self.event_time = event_time;
        let TableChanges { set, keys, bytes } = changes.after(removals.map(|(removals, _)| removals));
        if set.is_empty() {
            return Ok(None);
        }
        session_memory.hold(table.memory_bytes() + set.memory_bytes());
        let encoded = combiner.encode(&set, &mut self.counters)?;
        context.failpoints.hit("session.before-persist")?;
        let submitted = Instant::now();
        let parts = SetParts::of(context.log.submit(guard, encoded));
        Ok(Some(PendingCommit::new(Some(Arc::new(set)), RangesOutcome { parts, parent, keys, bytes, submitted })))
    }

    /// True when the change set is made while the results are read: a commit before that makes what is left of it.
    pub fn is_made_by_results(&self) -> bool {
        matches!(self.stage, Stage::Ranges(..))
    }

    /// Waits until the change set is durable and returns the handle of the new version.
    pub fn commit(&mut self) -> Result<Committed> {
        if let Stage::Merging(_) = self.stage {
            drop(self.finish()?);
        }
        let stage = std::mem::replace(&mut self.stage, Stage::Done);
        let mut next_close = self.event_time.as_ref().and_then(EventTime::next_close);
        let handle = match (stage, self.shard.clone()) {
            (Stage::Pending(pending), Some(shard)) => Some(self.seal(&shard, *pending)?),
            (Stage::Ranges(ranges, _guard), shard) => {
                let handle = self.complete(&ranges, shard.as_ref())?;
                next_close = ranges.lock().next_close();
                handle
            }
            (Stage::Unchanged, None) => None,
            (Stage::Unchanged, Some(shard)) => Some(self.unchanged(&shard)?),
            _ => return Err(Error::closed("commit was already called; open a new session")),
        };
        if let Some(handle) = &handle {
            self.counters.set("state_keys", handle.state_keys);
            self.counters.set("state_bytes", handle.state_bytes);
        }
        if let Some(shard) = &self.shard {
            for (name, n) in shard.context().metrics.take_growth() {
                self.counters.set(name, n);
            }
        }
        self.counters.count_since("session_micros", self.opened);
        Ok(Committed { handle, metrics: self.counters.all(), next_close })
    }

    /// The handle of a version that is made of ranges; none for ephemeral sessions.
    fn complete(&mut self, ranges: &Mutex<Ranges>, shard: Option<&Arc<Shard>>) -> Result<Option<ShardHandle>> {
        let outcome = {
            let mut ranges = ranges.lock();
            ranges.complete()?;
            self.counters.add(ranges.counters());
            ranges.outcome()
        };
        let Some(shard) = shard else { return Ok(None) };
        match outcome {
            Some(outcome) => self.seal(shard, PendingCommit::new(None, outcome)).map(Some),
            None => self.unchanged(shard).map(Some),
        }
    }

    fn seal(&mut self, shard: &Arc<Shard>, pending: PendingCommit) -> Result<ShardHandle> {
        let context = shard.context();
        let PendingCommit { pending, submitted, state_keys, state_bytes } = pending;
        let sealed = shard.seal(&self.meta(state_keys, state_bytes), pending)?;
        // The set is kept prepared now, and counted there.
        self.memory = None;
        let handle = sealed.into_handle(&mut self.counters);
        self.counters.count_since("persist_micros", submitted);
        context.metrics.keys_updated.add(self.counters.get("keys_updated"));
        context.failpoints.hit("session.committed")?;
        Ok(handle)
    }

    /// The batch changed nothing.
    fn unchanged(&mut self, shard: &Arc<Shard>) -> Result<ShardHandle> {
        let sealed = shard.seal_unchanged(self.base.as_ref(), self.meta(0, 0))?;
        Ok(sealed.into_handle(&mut self.counters))
    }

    fn meta(&self, state_keys: u64, state_bytes: u64) -> HandleMeta {
        HandleMeta {
            instance: self.instance,
            parent: self.base.as_ref().map(|h| h.version),
            batch: self.batch,
            schema_id: self.plan.schema_id(),
            schema: self.schema_text.clone(),
            watermark: self.watermarks.map(|watermarks| watermarks.closed.div_euclid(1000)),
            state_keys,
            state_bytes,
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if let Some(hold) = &mut self.hold {
            hold.is_done = matches!(self.stage, Stage::Done);
        }
    }
}

fn no_groups() -> Error {
    Error::internal("a merging session has groups")
}

#[cfg(test)]
mod tests;
