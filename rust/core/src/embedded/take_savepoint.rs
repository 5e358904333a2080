//! Savepoints of an embedded state.
//!
//! Owns: what a savepoint of a checkpoint says about its origin; the first version of a state that begins with one.
//! Does not own: the making and reading of savepoints (`shard::savepoint`), opening a state.

use super::EmbeddedState;
use crate::shard::savepoint::{SavepointForm, SavepointProgress, attended_to_the_end};
use crate::shard::{InitialState, Shard, Sources};
use fastchangelog_format::clock::Tick;
use fastchangelog_format::error::{Error, Result};
use fastchangelog_format::model::{BatchId, Savepoint, SavepointOrigin, ShardHandle};
use fastchangelog_store::Store;
use std::path::Path;
use std::sync::Arc;

impl EmbeddedState {
    /// Writes the checkpoint `handle` as a savepoint to the empty folder `to`. Nothing waits for it. `scratch` is an
    /// empty local folder.
    pub fn savepoint(
        &self,
        handle: &ShardHandle,
        form: SavepointForm,
        to: &Store,
        scratch: &Path,
        tick: Tick<'_>,
    ) -> Result<Savepoint> {
        let context = self.core.shard().context();
        let from = context.rebuilder();
        let sources = Sources::of(vec![handle.clone()])?;
        let taken_millis = context.clock.now_millis();
        let origin =
            SavepointOrigin { query_id: String::new(), name: context.name.clone(), batch: handle.batch, taken_millis };
        let progress = SavepointProgress::default();
        let taking = from.take_savepoint(&sources, form, origin, to, scratch, &progress);
        attended_to_the_end(&context.runtime, taking, &progress, tick)
    }
}

/// The first version of a new state, out of a savepoint: durable and live.
pub(super) fn begin(shard: &Arc<Shard>, initial_state: InitialState) -> Result<ShardHandle> {
    let savepoint = initial_state.savepoint();
    let (schema_id, schema) = (savepoint.schema_id, savepoint.schema.clone());
    if savepoint.max_parallelism != 1 {
        return Err(Error::invalid(format!(
            "the savepoint {} belongs to a query, and open_state takes savepoints of embedded states only; start the \
             query from it with `grouped` and the option `start_from`",
            initial_state.uri()
        )));
    }
    shard.set_initial_state(Arc::new(initial_state));
    shard.make_live(None, BatchId(0), (schema_id, &schema))?;
    let handle = shard.first_handle(BatchId(0), (schema_id, &schema))?;
    shard.make_live(Some(&handle), BatchId(1), (schema_id, &schema))?;
    Ok(handle)
}
