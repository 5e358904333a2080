//! The initial state of a shard, loaded from a savepoint.
//!
//! Owns: the checks that the savepoint is of this state's kind, and the snapshot that makes its first handle
//! self-contained.
//! Does not own: reading the savepoint (`savepoint`), its folder and when a shard may start from it (`engine`,
//! `embedded`).
//!
//! Invariants:
//! 1. no handle names anything of the savepoint: all that was loaded is in the bucket, as a snapshot of this state's
//!    own, before a session sees it (P2). The savepoint may be deleted once every shard has a handle;
//! 2. the number of shards need not be the one the savepoint was taken of; the number of key groups must;
//! 3. a shard with an initial state keeps it until Spark hands back a version made from it: repeated first batches
//!    start from the same snapshot.

use super::lineage::Lineage;
use super::rebuild::Rebuilder;
use super::rescale::RangeState;
use super::savepoint::read_savepoint;
use super::seal::HandleMeta;
use super::{Shard, destroy};
use fastchangelog_columns::aggregate::{differ_in_ansi_alone, schema_difference};
use fastchangelog_format::error::{Error, Result};
use fastchangelog_format::model::{InstanceId, Savepoint, ShardHandle, VersionId};
use fastchangelog_log::snapshot::{Inventory, Stamp, push};
use fastchangelog_state::group_range::count;
use fastchangelog_store::Store;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Dirty entries written to RocksDB at a time.
const FLUSH_CHUNK: usize = 100_000;

/// A savepoint that shards start from.
#[derive(Debug)]
pub struct InitialState {
    store: Store,
    savepoint: Savepoint,
}

impl InitialState {
    /// Reads the savepoint in the folder `store`.
    pub async fn read(store: Store) -> Result<Self> {
        let savepoint = read_savepoint(&store).await?;
        Ok(Self { store, savepoint })
    }

    /// Its folder, without credentials.
    pub fn uri(&self) -> &str {
        self.store.uri()
    }

    /// The content of its manifest.
    pub fn savepoint(&self) -> &Savepoint {
        &self.savepoint
    }
}

impl Shard {
    /// Sets the first version of this shard, if it has no handle yet. Only the first call counts.
    pub fn set_initial_state(&self, initial_state: Arc<InitialState>) {
        let _ = self.initial_state.set(initial_state);
    }

    /// Fetches this shard's part of the savepoint and gives it a snapshot of its own.
    pub(super) fn load(&self, initial_state: &InitialState, schema: (u64, &str)) -> Result<InstanceId> {
        self.check_initial_state(initial_state, schema)?;
        let context = &self.context;
        context.failpoints.hit("beginning.load")?;
        let from = Rebuilder { store: initial_state.store.clone(), cache: None, ..context.rebuilder() };
        let dir = self.fresh_dir()?;
        let groups = self.placement.key_groups();
        let state = context.runtime.block_on(from.load_savepoint(&initial_state.savepoint, groups, &dir))?;
        let checkpoint = context.dir.join(format!("checkpoint-{}", VersionId::random()));
        let based = self.give_snapshot(state, &checkpoint);
        let _ = std::fs::remove_dir_all(&checkpoint);
        let (state, instance, lineage, inventory) = based?;
        tracing::info!(shard = %self.id, savepoint = initial_state.uri(), keys = state.keys, "started from a \
            savepoint");
        self.install(state.keyed, instance, None, lineage, inventory, (state.keys, state.bytes))?;
        Ok(instance)
    }

    /// Fingerprint and text of the schema of its first version; none if that is empty.
    pub(super) fn initial_schema(&self) -> Option<(u64, String)> {
        self.initial_state.get().map(|from| (from.savepoint.schema_id, from.savepoint.schema.clone()))
    }

    fn check_initial_state(&self, initial_state: &InitialState, (schema_id, schema): (u64, &str)) -> Result<()> {
        let Savepoint { max_parallelism, schema_id: stored, schema: old, .. } = &initial_state.savepoint;
        if *max_parallelism != self.placement.max_parallelism {
            return Err(Error::invalid(format!(
                "the savepoint {} has {max_parallelism} key groups, which are fixed for ever, but this \
                 state would have {}",
                initial_state.uri(),
                self.placement.max_parallelism
            ))
            .with_remedy(format_args!("set the option `max_parallelism` = {max_parallelism}")));
        }
        // ANSI mode affects only later overflows: rows have the same bytes with it and without.
        if *stored != schema_id
            && !differ_in_ansi_alone(old, schema)
            && let Some(difference) = schema_difference(old, schema)
        {
            return Err(Error::schema(format!(
                "the savepoint {} holds the state of another query: {difference}",
                initial_state.uri()
            ))
            .with_remedy("start from a savepoint of this query, or without one"));
        }
        Ok(())
    }

    fn give_snapshot(
        &self,
        mut state: RangeState,
        checkpoint: &std::path::Path,
    ) -> Result<(RangeState, InstanceId, Lineage, Inventory)> {
        let instance = InstanceId::random();
        match self.snapshot_of(&mut state, instance, checkpoint) {
            Ok((lineage, inventory)) => Ok((state, instance, lineage, inventory)),
            Err(error) => {
                destroy(state.keyed);
                Err(error)
            }
        }
    }

    fn snapshot_of(
        &self,
        state: &mut RangeState,
        instance: InstanceId,
        checkpoint: &std::path::Path,
    ) -> Result<(Lineage, Inventory)> {
        if state.counted && state.keys == 0 {
            return Ok((Lineage::default(), Inventory::default()));
        }
        let context = &self.context;
        state.keyed.begin_flush();
        while state.keyed.flush_dirty(FLUSH_CHUNK)? {}
        let checkpointer = state.keyed.checkpointer();
        if let Some(space_amplification) = checkpointer.compact_if_bloated(state.bytes, 0.0)? {
            self.control.lock().space_amplification = space_amplification;
        }
        checkpointer.checkpoint(checkpoint, &context.failpoints)?;
        context.failpoints.hit("beginning.push")?;
        let version = VersionId::random();
        let (how, none) = (context.push_context(), Inventory::default());
        let push_context = push(&how, checkpoint, &none, Stamp { instance, version, replay_after: version });
        // The upload reads everything anyway: counts that the handles did not give are taken meanwhile.
        let (pushed, counts) = std::thread::scope(|scope| {
            let counting = (!state.counted).then(|| scope.spawn(|| count(&state.keyed)));
            let pushed = context.runtime.block_on(push_context);
            (pushed, counting.map(|thread| thread.join().unwrap_or_else(|_| Err(Error::internal("a count panicked")))))
        });
        let (snapshot, inventory) = pushed?;
        if let Some(counts) = counts {
            (state.keys, state.bytes) = counts?;
            state.counted = true;
        }
        state.keyed.set_hot_limit(self.hot_limit.load(Ordering::Relaxed))?;
        state.keyed.warm_up()?;
        Ok((Lineage { snapshot: Some(snapshot), ..Lineage::default() }, inventory))
    }

    /// The handle of the live state before its first version: empty, or the initial state.
    pub(super) fn initial_handle(&self, meta: &HandleMeta) -> Result<ShardHandle> {
        let live = self.live.read();
        let live = live.as_ref().filter(|l| l.instance == meta.instance && l.version.is_none());
        let live = live.ok_or_else(|| {
            Error::retryable(format!("shard {} moved on while this task was running", self.id))
                .with_remedy("Spark will retry or drop it")
        })?;
        let version = live.lineage.snapshot.as_ref().map_or_else(VersionId::random, |snapshot| snapshot.version);
        let meta = HandleMeta { state_keys: live.state_keys, state_bytes: live.state_bytes, ..meta.clone() };
        Ok(self.handle(&meta, version, &live.lineage))
    }
}
