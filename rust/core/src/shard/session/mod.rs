//! Sessions: one execution of one shard's micro-batch.
//!
//! Owns: the life of a session, from its opening to the commit that makes a version durable; its numbers.
//! Does not own: what is live (`transition`), how a version gets its handle (`seal`), the log's batching (`write`); in
//! files beside it: merging and spilling (`groups`), the step from partial rows to a change set (`combine`), the end of a
//! session that has spilled (`ranges`), results (`results`), memory (`room`).
//!
//! Life: `merge`* → `finish` (reads the base, hands the change set to the log, yields results) → `commit` (waits for the
//! store's acknowledgement, returns the handle). Dropping a session before `commit` aborts it: nothing of it is kept.
//!
//! A batch that fits into the session's memory is one table and one change set. Of a larger one the partial rows are on
//! the local disk; `finish` then returns at once, and the reader of the results, or the commit, makes one range of the hash
//! after the other.

mod combine;
mod groups;
mod numbers;
mod ranges;
mod results;
mod room;

pub use results::ResultBatches;

use self::combine::{Changes, Ground, Parent};
use self::groups::{Groups, Merging};
use self::numbers::Numbers;
use self::ranges::{Outcome, Ranges};
use self::room::Room;
use super::Shard;
use super::seal::{Draft, Parts, Sealed, Title};
use crate::budget::{MemoryBudget, Reservation};
use crate::error::{Error, Result};
use crate::failpoint::SharedFailpoints;
use crate::metrics::SharedMetrics;
use crate::model::{BatchId, ChangeSet, InstanceId, ShardHandle, VersionId};
use crate::state::aggregate::AggPlan;
use crate::state::table::GroupTable;
use crate::store::ForegroundGuard;
use crate::write::JoinGuard;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// A batch is more than the sessions of one process: between them others of its tasks run.
const BATCH_GOES_ON: Duration = Duration::from_secs(3);

/// What a session needs of the process around it.
#[derive(Clone)]
pub struct Surroundings {
    /// The memory of the whole process.
    pub budget: Arc<MemoryBudget>,
    /// The folder for what is spilled; made when it is needed.
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

/// A finished change set on its way to the bucket.
struct Pending {
    draft: Draft,
    submitted: Instant,
    state_keys: u64,
    state_bytes: u64,
}

impl Pending {
    fn new(set: Option<Arc<ChangeSet>>, outcome: Outcome) -> Self {
        let Outcome { parts, parent: Parent { lineage, state_keys, state_bytes }, new_keys, bytes, submitted } =
            outcome;
        Self {
            draft: Draft { version: VersionId::random(), set, parts, lineage },
            submitted,
            state_keys: state_keys + new_keys,
            state_bytes: state_bytes.saturating_add_signed(bytes),
        }
    }
}

enum Stage {
    Merging(Option<JoinGuard>),
    /// Nothing changed: the version stays what it was.
    Unchanged,
    Pending(Box<Pending>),
    /// More than the memory holds: made range by range.
    Ranges(Arc<Mutex<Ranges>>),
    Done,
}

/// What a commit returns.
#[derive(Debug, Clone)]
pub struct Committed {
    /// The handle of the new version; none for ephemeral sessions.
    pub handle: Option<ShardHandle>,
    /// This session's own numbers, by name.
    pub metrics: BTreeMap<String, u64>,
}

/// One execution of one shard's micro-batch.
pub struct Session {
    shard: Option<Arc<Shard>>,
    plan: Arc<AggPlan>,
    schema_text: String,
    /// Until `finish`.
    groups: Option<Groups>,
    base: Option<ShardHandle>,
    instance: InstanceId,
    batch: BatchId,
    stage: Stage,
    result_rows: usize,
    numbers: Numbers,
    opened: Instant,
    /// Of the change set on its way.
    memory: Option<Reservation>,
    /// Work in the background rests while it is open.
    _foreground: Option<ForegroundGuard>,
}

impl Session {
    /// A session of `shard` on top of `base` (none = the empty state).
    pub fn open(shard: &Arc<Shard>, plan: Arc<AggPlan>, base: Option<ShardHandle>, batch: BatchId) -> Result<Self> {
        let opened = Instant::now();
        let context = shard.context();
        shard.touch();
        context.failpoints.hit("session.open")?;
        let foreground = context.background.foreground(BATCH_GOES_ON);
        let schema_text = plan.schema().to_owned();
        let restores = context.metrics.restores.get();
        let instance = shard.make_live(base.as_ref(), batch, (plan.schema_id(), &schema_text))?;
        // From here on other commits may wait for this one, to share a log object; a restore is not worth waiting for.
        let guard = context.log.join();
        context.failpoints.hit("session.live")?;
        context.metrics.sessions.add(1);
        shard.sessions.fetch_add(1, Ordering::Relaxed);
        let mut numbers = Numbers::default();
        numbers.count_since("open_micros", opened);
        if context.metrics.restores.get() != restores {
            numbers.set("restores", 1);
            numbers.count_since("restore_micros", opened);
        }
        Ok(Self {
            groups: Some(Groups::new(Arc::clone(&plan), context.surroundings())),
            memory: None,
            result_rows: context.options.result_batch_rows,
            shard: Some(Arc::clone(shard)),
            plan,
            schema_text,
            base,
            instance,
            batch,
            stage: Stage::Merging(Some(guard)),
            numbers,
            opened,
            _foreground: Some(foreground),
        })
    }

    /// A session that starts from nothing and keeps nothing: what a batch DataFrame needs.
    pub fn ephemeral(plan: Arc<AggPlan>, surroundings: Surroundings) -> Self {
        Self {
            shard: None,
            schema_text: plan.schema().to_owned(),
            result_rows: surroundings.result_batch_rows,
            groups: Some(Groups::new(Arc::clone(&plan), surroundings)),
            plan,
            base: None,
            instance: InstanceId::random(),
            batch: BatchId(0),
            stage: Stage::Merging(None),
            numbers: Numbers::default(),
            opened: Instant::now(),
            memory: None,
            _foreground: None,
        }
    }

    /// Merges one payload of partial rows.
    pub fn merge(&mut self, payload: &[u8]) -> Result<()> {
        let start = Instant::now();
        let Stage::Merging(guard) = &mut self.stage else {
            return Err(Error::closed("merge after finish: open a new session"));
        };
        if let Some(shard) = &self.shard {
            shard.context().failpoints.hit("session.merge")?;
        }
        let groups = self.groups.as_mut().ok_or_else(no_groups)?;
        let merged = groups.merge(payload, &mut self.numbers)?;
        if groups.has_spilled() {
            // Its first part is long in coming: other commits need not wait for it.
            *guard = None;
        }
        let rows = merged.input_rows;
        self.numbers.count("rows_merged", rows);
        self.numbers.count("partial_rows", merged.partial_rows);
        self.numbers.count("payload_bytes", payload.len() as u64);
        self.numbers.count_since("merge_micros", start);
        if let Some(shard) = &self.shard {
            shard.context().metrics.rows_merged.add(rows);
            shard.context().metrics.merge_micros.add_elapsed(start);
        }
        Ok(())
    }

    /// Combines with the base state, hands the change set to the log and returns the results. If the batch is larger than
    /// the session's memory, the results do this while they are read, and [`Session::commit`] with what was not read.
    pub fn finish(&mut self) -> Result<ResultBatches> {
        let Stage::Merging(guard) = std::mem::replace(&mut self.stage, Stage::Done) else {
            return Err(Error::closed("finish was called before: open a new session"));
        };
        let groups = self.groups.take().ok_or_else(no_groups)?;
        if let Some(shard) = &self.shard {
            shard.context().failpoints.hit("session.finish")?;
        }
        let (merging, room, surroundings) = groups.end(&mut self.numbers)?;
        let ground = self.shard.as_ref().map(|shard| Ground {
            shard: Arc::clone(shard),
            instance: self.instance,
            base: self.base.as_ref().map(|h| h.version),
        });
        match merging {
            Merging::Whole(table) => self.finish_whole(table, ground, guard, room),
            Merging::Spilled(spilled) => {
                drop(guard);
                let plan = Arc::clone(&self.plan);
                let ranges = Ranges::new(Arc::clone(&plan), ground, surroundings, spilled, room);
                let ranges = Arc::new(Mutex::new(ranges));
                self.stage = Stage::Ranges(Arc::clone(&ranges));
                Ok(ResultBatches::of_ranges(plan, self.result_rows, ranges))
            }
        }
    }

    fn finish_whole(
        &mut self,
        mut table: GroupTable,
        ground: Option<Ground>,
        guard: Option<JoinGuard>,
        mut room: Room,
    ) -> Result<ResultBatches> {
        let keys = table.len() as u64;
        self.numbers.count("keys_updated", keys);
        self.stage = match (ground, guard) {
            (Some(ground), Some(guard)) if keys > 0 => match self.prepare(&ground, &mut table, guard, &mut room)? {
                Some(pending) => Stage::Pending(Box::new(pending)),
                None => Stage::Unchanged,
            },
            _ => Stage::Unchanged,
        };
        let memory = room.split(table.memory_bytes());
        self.memory = Some(room.split(u64::MAX));
        Ok(ResultBatches::of_table(table, self.result_rows, memory))
    }

    fn prepare(
        &mut self,
        ground: &Ground,
        table: &mut GroupTable,
        guard: JoinGuard,
        room: &mut Room,
    ) -> Result<Option<Pending>> {
        let context = ground.context();
        let (Changes { set, new_keys, bytes }, parent) = ground.combine(table, &mut self.numbers)?;
        if set.is_empty() {
            return Ok(None);
        }
        room.hold(table.memory_bytes() + set.memory_bytes());
        let encoded = ground.encode(&set, &mut self.numbers)?;
        context.failpoints.hit("session.before-persist")?;
        let submitted = Instant::now();
        let parts = Parts::of(context.log.submit(guard, encoded, self.batch));
        Ok(Some(Pending::new(Some(Arc::new(set)), Outcome { parts, parent, new_keys, bytes, submitted })))
    }

    /// True when the change set is made while the results are read: a commit before that makes what is left of it.
    pub fn is_made_by_results(&self) -> bool {
        matches!(self.stage, Stage::Ranges(_))
    }

    /// Waits until the change set is durable and returns the handle of the new version.
    pub fn commit(&mut self) -> Result<Committed> {
        if let Stage::Merging(_) = self.stage {
            drop(self.finish()?);
        }
        let stage = std::mem::replace(&mut self.stage, Stage::Done);
        let handle = match (stage, self.shard.clone()) {
            (Stage::Pending(pending), Some(shard)) => Some(self.seal(&shard, *pending)?),
            (Stage::Ranges(ranges), shard) => self.complete(&ranges, shard.as_ref())?,
            (Stage::Unchanged, None) => None,
            (Stage::Unchanged, Some(shard)) => Some(self.unchanged(&shard)?),
            _ => return Err(Error::closed("commit was called before: open a new session")),
        };
        if let Some(handle) = &handle {
            self.numbers.set("state_keys", handle.state_keys);
            self.numbers.set("state_bytes", handle.state_bytes);
        }
        if let Some(shard) = &self.shard {
            for (name, n) in shard.context().metrics.take_deltas() {
                self.numbers.set(name, n);
            }
        }
        self.numbers.count_since("session_micros", self.opened);
        Ok(Committed { handle, metrics: self.numbers.all() })
    }

    /// The handle of a version that is made of ranges; none for ephemeral sessions.
    fn complete(&mut self, ranges: &Mutex<Ranges>, shard: Option<&Arc<Shard>>) -> Result<Option<ShardHandle>> {
        let outcome = {
            let mut ranges = ranges.lock();
            ranges.complete()?;
            self.numbers.add(ranges.numbers());
            ranges.outcome()
        };
        let Some(shard) = shard else { return Ok(None) };
        match outcome {
            Some(outcome) => self.seal(shard, Pending::new(None, outcome)).map(Some),
            None => self.unchanged(shard).map(Some),
        }
    }

    fn seal(&mut self, shard: &Arc<Shard>, pending: Pending) -> Result<ShardHandle> {
        let context = shard.context();
        let Pending { draft, submitted, state_keys, state_bytes } = pending;
        let Sealed { handle, rebased } = shard.seal(&self.title(state_keys, state_bytes), draft)?;
        // The set is kept prepared now, and counted there.
        self.memory = None;
        if rebased {
            self.numbers.count("rebased", 1);
        }
        self.numbers.count_since("persist_micros", submitted);
        context.metrics.keys_updated.add(self.numbers.get("keys_updated"));
        context.failpoints.hit("session.committed")?;
        Ok(handle)
    }

    /// The batch changed nothing: the same version, seen by a later batch.
    fn unchanged(&self, shard: &Arc<Shard>) -> Result<ShardHandle> {
        match &self.base {
            Some(base) => Ok(ShardHandle { batch: self.batch, ..base.clone() }),
            None => shard.beginning_handle(&self.title(0, 0)),
        }
    }

    fn title(&self, state_keys: u64, state_bytes: u64) -> Title {
        Title {
            instance: self.instance,
            parent: self.base.as_ref().map(|h| h.version),
            batch: self.batch,
            schema_id: self.plan.schema_id(),
            schema: self.schema_text.clone(),
            state_keys,
            state_bytes,
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if let Some(shard) = &self.shard {
            shard.sessions.fetch_sub(1, Ordering::Relaxed);
            shard.touch();
            shard.warm_up_behind();
            if !matches!(self.stage, Stage::Done) {
                shard.context().metrics.sessions_aborted.add(1);
            }
        }
    }
}

fn no_groups() -> Error {
    Error::internal("a merging session has groups")
}

#[cfg(test)]
mod tests;
