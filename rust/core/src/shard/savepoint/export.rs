//! The entries of a savepoint as Arrow batches.
//!
//! Owns: walking a savepoint in order, a few batches in memory at a time, whatever its objects claim.
//! Does not own: the types of its columns (the caller passes them), the output file.

use super::load::{read_savepoint, said};
use crate::kinds::timer_layout::{BY_TIME, split_by_time};
use crate::shard::Rebuilder;
use crate::shard::rescale::RangeState;
use crate::states::{AGGREGATE, ttl};
use arrow_array::{Array, ArrayRef, RecordBatch, TimestampMicrosecondArray, TimestampMillisecondArray};
use arrow_schema::{Field, Schema};
use bytes::Bytes;
use fastchangelog_columns::aggregate::AggPlan;
use fastchangelog_columns::session_windows::load_list;
use fastchangelog_columns::table::GroupTable;
use fastchangelog_columns::versioned::VersionedEntries;
use fastchangelog_format::decode_file;
use fastchangelog_format::error::{Error, Result};
use fastchangelog_format::model::{Change, ChangeSet, KeyGroupRange, Op, Savepoint, SavepointContent, StateId};
use fastchangelog_format::segment::for_each_in_set;
use fastchangelog_state::keyed::KeyedState;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

/// Dirty entries written to RocksDB at a time.
const FLUSH_CHUNK: usize = 100_000;
/// Entries, and about the bytes, of one batch.
const RUN: usize = 65_536;
const RUN_BYTES: u64 = 64 << 20;
/// Batches that wait for their consumer.
const AHEAD: usize = 2;

/// The meaning of the entries' bytes.
pub enum ExportColumns {
    /// Keys and rows of a query's aggregates. Strings are exported in their binary form: they need not be UTF-8.
    Aggregates(Arc<AggPlan>),
    /// Keys and values of one state of a program.
    Values(StateId, Box<VersionedEntries>),
    /// As `Values` in a state with a TTL, expired values too: keys, values and expiries.
    EndingValues(StateId, Box<VersionedEntries>),
    /// Times and keys of timers.
    Timers(StateId, Box<VersionedEntries>),
}

impl ExportColumns {
    fn batch(&self, set: &ChangeSet) -> Result<Option<RecordBatch>> {
        match self {
            Self::Aggregates(plan) => {
                let mut table = GroupTable::new(Arc::clone(plan));
                for change in set.iter().filter(|change| change.state == AGGREGATE) {
                    if plan.session_windows() {
                        load_list(change.key, change.value, &mut table)?;
                    } else {
                        table.load(change.key, change.value)?;
                    }
                }
                (!table.is_empty()).then(|| table.finish_binary(0..table.len())).transpose()
            }
            Self::Values(state, types) => of_state(set, *state, |changes| {
                let fields = vec![key_field(types), Field::new("value", types.value_type().clone(), true)];
                let keys = types.typed().decode_keys(changes.iter().map(|change| change.key))?;
                let values = types.decode_text(changes.iter().map(|change| Some(change.value)))?;
                Ok((fields, vec![keys, values]))
            }),
            Self::EndingValues(state, types) => of_state(set, *state, |changes| {
                let stored = changes.iter().map(|change| ttl::split(change.value)).collect::<Result<Vec<_>>>()?;
                let ends: TimestampMillisecondArray = stored.iter().map(|(ends, _)| Some(*ends)).collect();
                let ends = ends.with_timezone("UTC");
                let fields = vec![
                    key_field(types),
                    Field::new("value", types.value_type().clone(), true),
                    Field::new("ends", ends.data_type().clone(), false),
                ];
                let keys = types.typed().decode_keys(changes.iter().map(|change| change.key))?;
                let values = types.decode_text(stored.iter().map(|(_, value)| Some(*value)))?;
                Ok((fields, vec![keys, values, Arc::new(ends)]))
            }),
            Self::Timers(state, types) => {
                let by_time = |change: &Change<'_>| change.key.first() == Some(&BY_TIME);
                of_state(set, *state, |mut changes| {
                    changes.retain(by_time);
                    let timers = changes.iter().map(|change| split_by_time(change.key)).collect::<Result<Vec<_>>>()?;
                    let times: TimestampMicrosecondArray = timers.iter().map(|(time, _)| Some(*time)).collect();
                    let times = times.with_timezone("UTC");
                    let fields = vec![Field::new("time", times.data_type().clone(), false), key_field(types)];
                    let keys = types.typed().decode_keys(timers.iter().map(|(_, key)| *key))?;
                    Ok((fields, vec![Arc::new(times), keys]))
                })
            }
        }
    }
}

/// The batch of a state's changes; none if there are no rows of it.
fn of_state(
    set: &ChangeSet,
    state: StateId,
    columns: impl FnOnce(Vec<Change<'_>>) -> Result<(Vec<Field>, Vec<ArrayRef>)>,
) -> Result<Option<RecordBatch>> {
    let changes: Vec<Change<'_>> = set.iter().filter(|change| change.state == state).collect();
    if changes.is_empty() {
        return Ok(None);
    }
    let (fields, columns) = columns(changes)?;
    let batch = RecordBatch::try_new(Arc::new(Schema::new(fields)), columns)?;
    Ok((batch.num_rows() > 0).then_some(batch))
}

fn key_field(types: &VersionedEntries) -> Field {
    Field::new("key", types.key_type().clone(), false)
}

/// A savepoint that is being walked.
pub struct Export {
    from: Rebuilder,
    scratch: PathBuf,
    columns: Arc<ExportColumns>,
    /// Remaining parts, or shards; the last one is next.
    left: Vec<usize>,
    savepoint: Savepoint,
    walk: Option<Walk>,
}

/// The scan of a shard or a part, on a thread of its own. It ends early when its consumer is dropped.
struct Walk {
    batches: mpsc::Receiver<RecordBatch>,
    end: JoinHandle<Result<()>>,
}

impl Walk {
    /// Of a shard.
    fn start(state: RangeState, columns: Arc<ExportColumns>) -> Self {
        Self::of(columns, move |runs| {
            let mut keyed = state.keyed;
            walk(&mut keyed, runs).and(keyed.destroy())
        })
    }

    /// Of the object `name` of a canonical savepoint.
    fn of_part(name: String, bytes: Bytes, columns: Arc<ExportColumns>) -> Self {
        Self::of(columns, move |runs| {
            let all = KeyGroupRange { start: 0, end: u16::MAX };
            for (offset, length) in decode_file(&name, &bytes)? {
                let at = usize::try_from(offset).map_err(Error::internal)?;
                let end = at + usize::try_from(length).map_err(Error::internal)?;
                for_each_in_set(&name, offset, &bytes[at..end], all, &mut |change| runs.push(change))?;
            }
            Ok(())
        })
    }

    fn of(columns: Arc<ExportColumns>, entries: impl FnOnce(&mut Runs<'_>) -> Result<()> + Send + 'static) -> Self {
        let (sender, batches) = mpsc::channel(AHEAD);
        let work = move || {
            let mut send = |batch| sender.blocking_send(batch).map_err(|_| Error::closed("the export was cancelled"));
            let mut runs = Runs { run: ChangeSet::default(), columns: &columns, out: &mut send };
            entries(&mut runs)?;
            runs.send()
        };
        Self { batches, end: tokio::task::spawn_blocking(work) }
    }

    /// The next batch; none at the end, which is an error if the walk did not get there.
    async fn next(&mut self) -> Result<Option<RecordBatch>> {
        match self.batches.recv().await {
            Some(batch) => Ok(Some(batch)),
            None => (&mut self.end).await.map_err(Error::internal)?.map(|()| None),
        }
    }
}

impl Export {
    /// Reads the manifest in the folder of `from`. `scratch` is an empty local folder.
    pub async fn begin(from: Rebuilder, columns: ExportColumns, scratch: &Path) -> Result<Self> {
        let savepoint = read_savepoint(&from.store).await?;
        let pieces = match &savepoint.content {
            SavepointContent::Canonical(parts) => parts.len(),
            SavepointContent::Native { handles, .. } => handles.len(),
        };
        let left = (0..pieces).rev().collect();
        Ok(Self { from, scratch: scratch.to_owned(), columns: Arc::new(columns), left, savepoint, walk: None })
    }

    /// The next batches, of a part at most; none at the end.
    pub async fn next(&mut self) -> Result<Option<Vec<RecordBatch>>> {
        if let Some(walk) = &mut self.walk {
            match walk.next().await {
                Ok(Some(batch)) => return Ok(Some(vec![batch])),
                Ok(None) => self.walk = None,
                Err(error) => {
                    // It is the last one.
                    (self.walk, self.left) = (None, Vec::new());
                    return Err(error);
                }
            }
        }
        let Some(piece) = self.left.pop() else { return Ok(None) };
        let columns = Arc::clone(&self.columns);
        let walk = match &self.savepoint.content {
            SavepointContent::Canonical(parts) => {
                let object = parts[piece].object.clone();
                let bytes = self.from.store.get(&object).await.map_err(|e| said(e, self.from.store.uri()))?;
                Walk::of_part(format!("{}/{}", self.from.store.uri(), object.name), bytes, columns)
            }
            SavepointContent::Native { handles, .. } => {
                let groups = handles[piece].key_groups;
                let dir = self.scratch.join(format!("shard-{piece}"));
                let state = self.from.load_savepoint(&self.savepoint, groups, &dir).await?;
                Walk::start(state, columns)
            }
        };
        self.walk = Some(walk);
        Ok(Some(Vec::new()))
    }
}

/// Entries on their way into batches.
struct Runs<'a> {
    run: ChangeSet,
    columns: &'a ExportColumns,
    out: &'a mut dyn FnMut(RecordBatch) -> Result<()>,
}

impl Runs<'_> {
    fn push(&mut self, entry: Change<'_>) -> Result<()> {
        self.run.push(entry);
        if self.run.len() < RUN && self.run.payload_bytes() < RUN_BYTES { Ok(()) } else { self.send() }
    }

    fn send(&mut self) -> Result<()> {
        self.columns.batch(&std::mem::take(&mut self.run))?.map_or(Ok(()), &mut *self.out)
    }
}

fn walk(keyed: &mut KeyedState, runs: &mut Runs<'_>) -> Result<()> {
    keyed.begin_flush();
    while keyed.flush_dirty(FLUSH_CHUNK)? {}
    keyed.for_each_in_order(&mut |change: Change<'_>| {
        debug_assert_eq!(change.op, Op::Put);
        runs.push(change)
    })
}
