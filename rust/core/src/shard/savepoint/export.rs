//! The entries of a savepoint as Arrow batches.
//!
//! Owns: walking a savepoint in order, a part or a few batches in memory at a time.
//! Does not own: the types of its columns (the caller says them), the file that batches go to.

use super::load::{read_savepoint, said};
use crate::shard::Rebuilder;
use crate::shard::rescale::RangeState;
use arrow_array::RecordBatch;
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
}

impl ExportColumns {
    fn batch(&self, set: &ChangeSet) -> Result<Option<RecordBatch>> {
        match self {
            Self::Aggregates(plan) => {
                let mut table = GroupTable::new(Arc::clone(plan));
                set.iter().try_for_each(|change| table.load(change.key, change.value))?;
                (!table.is_empty()).then(|| table.finish_binary(0..table.len())).transpose()
            }
            Self::Values(state, types) => {
                let of_state = || set.iter().filter(|change| change.state == *state);
                if of_state().next().is_none() {
                    return Ok(None);
                }
                let keys = types.decode_keys(of_state().map(|change| change.key))?;
                let values = types.decode_values(of_state().map(|change| Some(change.value)))?;
                let fields = vec![
                    Field::new("key", types.key_type().clone(), false),
                    Field::new("value", types.value_type().clone(), true),
                ];
                Ok(Some(RecordBatch::try_new(Arc::new(Schema::new(fields)), vec![keys, values])?))
            }
        }
    }
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
