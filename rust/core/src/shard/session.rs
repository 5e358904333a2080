//! Sessions: one execution of one shard's micro-batch.
//!
//! Owns: merging payloads, combining with the base state, results, and the commit that makes a version durable.
//! Does not own: what is live (`transition`), how a version gets its handle (`seal`), the log's batching (`write`).
//!
//! Life: `merge`* → `finish` (reads the base, hands the change set to the log, yields results) → `commit` (waits for the
//! store's acknowledgement, returns the handle). Dropping a session before `commit` aborts it: nothing of it is kept.

use super::Shard;
use super::seal::{Draft, Sealed, Title};
use crate::budget::{Part, Reservation};
use crate::error::{Error, Result};
use crate::format::segment::encode_set;
use crate::model::{BatchId, Change, ChangeSet, InstanceId, Op, ShardHandle, StateId, VersionId, key_group_of};
use crate::state::aggregate::AggPlan;
use crate::state::keyed::{KeyRef, KeyedState};
use crate::state::table::GroupTable;
use crate::store::Foreground;
use crate::write::JoinGuard;
use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// The state that aggregates live in.
const AGGREGATE: StateId = StateId(0);
/// A batch is more than the sessions of one process: between them others of its tasks run.
const BATCH_GOES_ON: Duration = Duration::from_secs(3);

/// A finished change set on its way to the bucket.
struct Pending {
    draft: Draft,
    submitted: Instant,
    state_keys: u64,
    state_bytes: u64,
}

enum Stage {
    Merging(Option<JoinGuard>),
    /// Nothing changed: the version stays what it was.
    Unchanged,
    Pending(Box<Pending>),
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
    table: Option<GroupTable>,
    base: Option<ShardHandle>,
    instance: InstanceId,
    batch: BatchId,
    stage: Stage,
    result_rows: usize,
    numbers: BTreeMap<String, u64>,
    opened: Instant,
    /// Of `table`; then of the change set on its way.
    memory: Option<Reservation>,
    /// Work in the background rests while it is open.
    _foreground: Option<Foreground>,
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
        let mut numbers = BTreeMap::new();
        numbers.insert("open_micros".to_owned(), micros(opened));
        if context.metrics.restores.get() != restores {
            numbers.insert("restores".to_owned(), 1);
            numbers.insert("restore_micros".to_owned(), micros(opened));
        }
        Ok(Self {
            table: Some(GroupTable::new(Arc::clone(&plan))),
            memory: Some(context.budget.reserve(Part::Sessions, 0)),
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
    pub fn ephemeral(plan: Arc<AggPlan>, result_rows: usize) -> Self {
        Self {
            shard: None,
            schema_text: plan.schema().to_owned(),
            table: Some(GroupTable::new(Arc::clone(&plan))),
            plan,
            base: None,
            instance: InstanceId::random(),
            batch: BatchId(0),
            stage: Stage::Merging(None),
            result_rows,
            numbers: BTreeMap::new(),
            opened: Instant::now(),
            memory: None,
            _foreground: None,
        }
    }

    fn count(&mut self, name: &str, n: u64) {
        *self.numbers.entry(name.to_owned()).or_default() += n;
    }

    /// Merges one payload of partial rows.
    pub fn merge(&mut self, payload: &[u8]) -> Result<()> {
        let start = Instant::now();
        if !matches!(self.stage, Stage::Merging(_)) {
            return Err(Error::closed("merge after finish: open a new session"));
        }
        if let Some(shard) = &self.shard {
            shard.context().failpoints.hit("session.merge")?;
        }
        let table = self.table.as_mut().ok_or_else(|| Error::internal("a merging session has a table"))?;
        let merged = table.merge_payload(payload)?;
        if let Some(memory) = &mut self.memory {
            memory.resize(table.memory_bytes());
        }
        let rows = merged.input_rows;
        let spent = micros(start);
        self.count("rows_merged", rows);
        self.count("partial_rows", merged.partial_rows);
        self.count("payload_bytes", payload.len() as u64);
        self.count("merge_micros", spent);
        if let Some(shard) = &self.shard {
            shard.context().metrics.rows_merged.add(rows);
            shard.context().metrics.merge_micros.add(spent);
        }
        Ok(())
    }

    /// Combines with the base state, hands the change set to the log and returns the results.
    pub fn finish(&mut self) -> Result<ResultBatches> {
        let Stage::Merging(guard) = std::mem::replace(&mut self.stage, Stage::Done) else {
            return Err(Error::closed("finish was called before: open a new session"));
        };
        let mut table = self.table.take().ok_or_else(|| Error::internal("a merging session has a table"))?;
        let keys = table.len() as u64;
        self.count("keys_updated", keys);
        self.stage = match (self.shard.clone(), guard) {
            (Some(shard), Some(guard)) if keys > 0 => match self.prepare(&shard, &mut table, guard)? {
                Some(pending) => Stage::Pending(Box::new(pending)),
                None => Stage::Unchanged,
            },
            _ => Stage::Unchanged,
        };
        let memory = self.memory.as_mut().map(|memory| memory.split(table.memory_bytes()));
        Ok(ResultBatches { table, next: 0, rows: self.result_rows, _memory: memory })
    }

    fn prepare(&mut self, shard: &Arc<Shard>, table: &mut GroupTable, guard: JoinGuard) -> Result<Option<Pending>> {
        let context = shard.context();
        let groups = shard.placement().max_parallelism;
        context.failpoints.hit("session.finish")?;
        let start = Instant::now();
        let (combined, lineage, state_keys, state_bytes) = {
            let live = shard.live.read();
            let base = self.base.as_ref().map(|h| h.version);
            let live = live.as_ref().filter(|l| l.instance == self.instance && l.version == base).ok_or_else(|| {
                Error::retryable(format!(
                    "shard {} moved on to another version while this task was running (a zombie or speculative attempt); Spark will retry or drop it",
                    shard.id()
                ))
            })?;
            let combined = combine(table, groups, &live.keyed)?;
            (combined, live.lineage.clone(), live.state_keys, live.state_bytes)
        };
        self.count("combine_micros", micros(start));
        self.count("hot_misses", combined.hot_misses);
        self.count("hot_hits", table.len() as u64 - combined.hot_misses);
        context.metrics.combine_micros.add_elapsed(start);

        let start = Instant::now();
        let set = change_set(table, &combined.changed, groups);
        if set.is_empty() {
            return Ok(None);
        }
        let bytes = i64::try_from(set.payload_bytes()).unwrap_or(i64::MAX).saturating_sub(combined.old_bytes);
        if let Some(memory) = &mut self.memory {
            memory.resize(table.memory_bytes() + set.memory_bytes());
        }
        let encoded = encode_set(&set, context.compression())?;
        self.count("changeset_bytes", set.payload_bytes());
        self.count("log_bytes", encoded.length);
        self.count("encode_micros", micros(start));
        context.metrics.encode_micros.add_elapsed(start);

        context.failpoints.hit("session.before-persist")?;
        let version = VersionId::random();
        let submitted = Instant::now();
        let future = context.log.submit(guard, encoded, self.batch);
        Ok(Some(Pending {
            draft: Draft { version, set: Arc::new(set), future, lineage },
            submitted,
            state_keys: state_keys + combined.new_keys,
            state_bytes: state_bytes.saturating_add_signed(bytes),
        }))
    }

    /// Waits until the change set is durable and returns the handle of the new version.
    pub fn commit(&mut self) -> Result<Committed> {
        if let Stage::Merging(_) = self.stage {
            drop(self.finish()?);
        }
        let stage = std::mem::replace(&mut self.stage, Stage::Done);
        let handle = match (stage, self.shard.clone()) {
            (Stage::Pending(pending), Some(shard)) => Some(self.seal(&shard, *pending)?),
            (Stage::Unchanged, None) => None,
            (Stage::Unchanged, Some(shard)) => Some(self.unchanged(&shard)?),
            _ => return Err(Error::closed("commit was called before: open a new session")),
        };
        if let Some(handle) = &handle {
            self.numbers.insert("state_keys".to_owned(), handle.state_keys);
            self.numbers.insert("state_bytes".to_owned(), handle.state_bytes);
        }
        if let Some(shard) = &self.shard {
            for (name, n) in shard.context().metrics.take_news() {
                self.numbers.insert(name.to_owned(), n);
            }
        }
        let total = micros(self.opened);
        self.count("session_micros", total);
        Ok(Committed { handle, metrics: self.numbers.clone() })
    }

    fn seal(&mut self, shard: &Arc<Shard>, pending: Pending) -> Result<ShardHandle> {
        let context = shard.context();
        let Pending { draft, submitted, state_keys, state_bytes } = pending;
        let Sealed { handle, rebased } = shard.seal(&self.title(state_keys, state_bytes), draft)?;
        // The set is kept prepared now, and counted there.
        self.memory = None;
        if rebased {
            self.count("rebased", 1);
        }
        self.count("persist_micros", micros(submitted));
        context.metrics.keys_updated.add(self.numbers.get("keys_updated").copied().unwrap_or(0));
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

/// What the base state was to the batch's keys.
struct Combined {
    /// Keys that the hot tier could not answer for.
    hot_misses: u64,
    /// Which groups differ from the base and must be written.
    changed: Vec<bool>,
    new_keys: u64,
    /// Bytes of keys and values in the base of the groups that are written.
    old_bytes: i64,
}

/// Puts the base rows of all distinct keys under the batch's partial rows, in one read.
fn combine(table: &mut GroupTable, groups: u16, keyed: &KeyedState) -> Result<Combined> {
    let mut rows: Vec<u8> = Vec::with_capacity(table.len() * 32);
    let mut spans: Vec<Option<(usize, usize)>> = vec![None; table.len()];
    let hot_misses = {
        let keys: Vec<KeyRef<'_>> = (0..table.len())
            .map(|i| KeyRef { hash: table.hash(i), key_group: key_group_of(table.hash(i), groups), key: table.key(i) })
            .collect();
        keyed.get_many(AGGREGATE, &keys, &mut |i, row| {
            if let Some(row) = row {
                spans[i] = Some((rows.len(), rows.len() + row.len()));
                rows.extend_from_slice(row);
            }
        })?
    };
    let mut combined = Combined { hot_misses, changed: vec![true; table.len()], new_keys: 0, old_bytes: 0 };
    for (i, span) in spans.into_iter().enumerate() {
        match span {
            None => combined.new_keys += 1,
            Some((from, to)) => {
                combined.changed[i] = table.combine_base(i, Some(&rows[from..to]))?;
                if combined.changed[i] {
                    combined.old_bytes += i64::try_from(table.key(i).len() + (to - from)).unwrap_or(i64::MAX);
                }
            }
        }
    }
    Ok(combined)
}

/// One put per changed key, grouped by key group.
fn change_set(table: &GroupTable, changed: &[bool], groups: u16) -> ChangeSet {
    let mut set = ChangeSet::with_capacity(table.len(), table.len() * 48);
    let mut scratch = Vec::new();
    for i in (0..table.len()).filter(|i| changed[*i]) {
        set.push(Change {
            op: Op::Put,
            state: AGGREGATE,
            key_group: key_group_of(table.hash(i), groups),
            key: table.key(i),
            value: table.row(i, &mut scratch),
        });
    }
    set.sort_by_key_group();
    set
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

/// The results of a session, made chunk by chunk.
pub struct ResultBatches {
    table: GroupTable,
    next: usize,
    rows: usize,
    _memory: Option<Reservation>,
}

impl ResultBatches {
    /// Schema of every batch: keys, then one column per aggregate; strings in their binary form.
    pub fn schema(&self) -> SchemaRef {
        Arc::clone(self.table.plan().binary_output())
    }
}

impl Iterator for ResultBatches {
    type Item = Result<RecordBatch>;

    fn next(&mut self) -> Option<Self::Item> {
        let start = self.next;
        let end = self.table.len().min(start + self.rows.max(1));
        (start < end).then(|| {
            self.next = end;
            self.table.finish_binary(start..end)
        })
    }
}

fn micros(start: Instant) -> u64 {
    u64::try_from(start.elapsed().as_micros()).unwrap_or(u64::MAX)
}
