//! The entries of a savepoint as Arrow batches.
//!
//! Owns: walking a savepoint in order, a part in memory at a time.
//! Does not own: the types of its columns (the caller says them), the file that batches go to.

use super::load::{read_savepoint, said};
use crate::error::{Error, Result};
use crate::format::{decode_file, decode_set};
use crate::model::{Change, ChangeSet, KeyGroupRange, Op, Savepoint, SavepointContent, StateId};
use crate::shard::rescale::Rescaler;
use crate::state::aggregate::AggPlan;
use crate::state::keyed::KeyedState;
use crate::state::table::GroupTable;
use crate::state::typed::TypedEntries;
use crate::store::transfer::blocking;
use arrow_array::RecordBatch;
use arrow_schema::{Field, Schema};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Dirty entries written to RocksDB at a time.
const FLUSH_CHUNK: usize = 100_000;
/// Entries of one run out of a native savepoint.
const RUN: usize = 65_536;

/// What the bytes of the entries mean.
pub enum Columns {
    /// Keys and rows of a query's aggregates.
    Aggregates(Arc<AggPlan>),
    /// Keys and values of one state of a program.
    Values(StateId, Box<TypedEntries>),
}

impl Columns {
    fn batch(&self, set: &ChangeSet) -> Result<Option<RecordBatch>> {
        match self {
            Self::Aggregates(plan) => {
                let mut table = GroupTable::new(Arc::clone(plan));
                set.iter().try_for_each(|change| table.load(change.key, change.value))?;
                (!table.is_empty()).then(|| table.finish(0..table.len())).transpose()
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
    from: Rescaler,
    scratch: PathBuf,
    columns: Arc<Columns>,
    /// Parts, or shards, that are still to come; the last comes next.
    left: Vec<usize>,
    savepoint: Savepoint,
}

impl Export {
    /// Reads the manifest in the folder of `from`. `scratch` is an empty local folder.
    pub async fn begin(from: Rescaler, columns: Columns, scratch: &Path) -> Result<Self> {
        let savepoint = read_savepoint(&from.store).await?;
        let pieces = match &savepoint.content {
            SavepointContent::Canonical(parts) => parts.len(),
            SavepointContent::Native { handles, .. } => handles.len(),
        };
        let left = (0..pieces).rev().collect();
        Ok(Self { from, scratch: scratch.to_owned(), columns: Arc::new(columns), left, savepoint })
    }

    /// The batches of the next part or shard; none at the end.
    pub async fn next(&mut self) -> Result<Option<Vec<RecordBatch>>> {
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
                self.shard(groups, piece).await?
            }
        };
        Ok(Some(batches))
    }

    async fn shard(&self, groups: KeyGroupRange, piece: usize) -> Result<Vec<RecordBatch>> {
        let dir = self.scratch.join(format!("shard-{piece}"));
        let state = self.from.load_savepoint(&self.savepoint, groups, &dir).await?;
        let columns = Arc::clone(&self.columns);
        blocking(move || {
            let mut keyed = state.keyed;
            let batches = walk(&mut keyed, &columns);
            keyed.destroy()?;
            batches
        })
        .await
    }
}

fn walk(keyed: &mut KeyedState, columns: &Columns) -> Result<Vec<RecordBatch>> {
    keyed.begin_flush();
    while keyed.flush_dirty(FLUSH_CHUNK)? {}
    let (mut run, mut batches) = (ChangeSet::default(), Vec::new());
    keyed.for_each_in_order(&mut |change: Change<'_>| {
        debug_assert_eq!(change.op, Op::Put);
        run.push(change);
        if run.len() == RUN {
            batches.extend(columns.batch(&std::mem::take(&mut run))?);
        }
        Ok(())
    })?;
    batches.extend(columns.batch(&run)?);
    Ok(batches)
}
