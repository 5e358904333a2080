//! The entries of a savepoint as Arrow batches.
//!
//! Owns: walking a savepoint in order, a part or a few batches in memory at a time.
//! Does not own: the types of its columns (the caller says them), the file that batches go to.

use super::load::{read_savepoint, said};
use crate::shard::Rebuilder;
use crate::shard::rescale::RangeState;
use crate::states::timer::{BY_TIME, split_by_time};
use crate::states::ttl;
use arrow_array::{Array, ArrayRef, RecordBatch, TimestampMicrosecondArray, TimestampMillisecondArray};
use arrow_schema::{Field, Schema};
use fastchangelog_columns::aggregate::AggPlan;
use fastchangelog_columns::table::GroupTable;
use fastchangelog_columns::typed::TypedEntries;
use fastchangelog_format::error::{Error, Result};
use fastchangelog_format::model::{Change, ChangeSet, Op, Savepoint, SavepointContent, StateId};
use fastchangelog_format::{decode_file, decode_set};
use fastchangelog_state::keyed::KeyedState;
use fastchangelog_store::transfer::blocking;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

/// Dirty entries written to RocksDB at a time.
const FLUSH_CHUNK: usize = 100_000;
/// Entries of one run out of a native savepoint.
const RUN: usize = 65_536;
/// Batches of a native savepoint that wait for their consumer.
const AHEAD: usize = 2;

/// What the bytes of the entries mean.
pub enum ExportColumns {
    /// Keys and rows of a query's aggregates. Strings are exported in their binary form: they need not be UTF-8.
    Aggregates(Arc<AggPlan>),
    /// Keys and values of one state of a program.
    Values(StateId, Box<TypedEntries>),
    /// The same of values that end, those that have ended too: keys, values, and the times at which they end.
    EndingValues(StateId, Box<TypedEntries>),
    /// Times and keys of timers.
    Timers(StateId, Box<TypedEntries>),
}

impl ExportColumns {
    fn batch(&self, set: &ChangeSet) -> Result<Option<RecordBatch>> {
        match self {
            Self::Aggregates(plan) => {
                let mut table = GroupTable::new(Arc::clone(plan));
                set.iter().try_for_each(|change| table.load(change.key, change.value))?;
                (!table.is_empty()).then(|| table.finish_binary(0..table.len())).transpose()
            }
            Self::Values(state, types) => of_state(set, *state, |changes| {
                let fields = vec![key_field(types), Field::new("value", types.value_type().clone(), true)];
                let keys = types.decode_keys(changes.iter().map(|change| change.key))?;
                let values = types.decode_values(changes.iter().map(|change| Some(change.value)))?;
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
                let keys = types.decode_keys(changes.iter().map(|change| change.key))?;
                let values = types.decode_values(stored.iter().map(|(_, value)| Some(*value)))?;
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
                    let keys = types.decode_keys(timers.iter().map(|(_, key)| *key))?;
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

fn key_field(types: &TypedEntries) -> Field {
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

/// The scan of a shard, on a thread of its own. It ends early when its consumer is dropped.
struct Walk {
    batches: mpsc::Receiver<RecordBatch>,
    end: JoinHandle<Result<()>>,
}

impl Walk {
    fn start(state: RangeState, columns: Arc<ExportColumns>) -> Self {
        let (sender, batches) = mpsc::channel(AHEAD);
        let work = move || {
            let mut keyed = state.keyed;
            let walked = walk(&mut keyed, &columns, &mut |batch| {
                sender.blocking_send(batch).map_err(|_| Error::closed("the export was cancelled"))
            });
            walked.and(keyed.destroy())
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
        let batches = match &self.savepoint.content {
            SavepointContent::Canonical(parts) => {
                let object = parts[piece].object.clone();
                let bytes = self.from.store.get(&object).await.map_err(|e| said(e, self.from.store.uri()))?;
                let (columns, name) = (Arc::clone(&self.columns), format!("{}/{}", self.from.store.uri(), object.name));
                blocking(move || {
                    let mut batches = Vec::new();
                    for (offset, length) in decode_file(&name, &bytes)? {
                        let at = usize::try_from(offset).map_err(Error::internal)?;
                        let end = at + usize::try_from(length).map_err(Error::internal)?;
                        batches.extend(columns.batch(&decode_set(&name, offset, &bytes[at..end])?)?);
                    }
                    Ok::<_, Error>(batches)
                })
                .await?
            }
            SavepointContent::Native { handles, .. } => {
                let groups = handles[piece].key_groups;
                let dir = self.scratch.join(format!("shard-{piece}"));
                let state = self.from.load_savepoint(&self.savepoint, groups, &dir).await?;
                self.walk = Some(Walk::start(state, Arc::clone(&self.columns)));
                Vec::new()
            }
        };
        Ok(Some(batches))
    }
}

fn walk(keyed: &mut KeyedState, columns: &ExportColumns, out: &mut dyn FnMut(RecordBatch) -> Result<()>) -> Result<()> {
    keyed.begin_flush();
    while keyed.flush_dirty(FLUSH_CHUNK)? {}
    let mut run = ChangeSet::default();
    keyed.for_each_in_order(&mut |change: Change<'_>| {
        debug_assert_eq!(change.op, Op::Put);
        run.push(change);
        if run.len() == RUN {
            columns.batch(&std::mem::take(&mut run))?.map_or(Ok(()), &mut *out)?;
        }
        Ok(())
    })?;
    columns.batch(&run)?.map_or(Ok(()), out)
}
