//! How a version becomes live.
//!
//! Owns: the choice between "is live", promote, replay and restore; promotion and replay.
//! Does not own: building a state from a handle alone (`restore`), sessions, materialization.

use super::lineage::Lineage;
use super::replay::Replay;
use super::{Live, Prepared, Shard};
use crate::kinds::hints::StateHints;
use fastchangelog_columns::aggregate::{differ_in_ansi_alone, schema_difference};
use fastchangelog_format::clock::Moment;
use fastchangelog_format::config::Restoring;
use fastchangelog_format::error::{Error, Result};
use fastchangelog_format::handle::decode_segment_index;
use fastchangelog_format::model::handle::HASH_ID;
use fastchangelog_format::model::{BatchId, InstanceId, SegmentRef, ShardHandle, VersionId};
use fastchangelog_log::read::{RestoreProgress, SetsAhead};
use fastchangelog_log::snapshot::Inventory;
use fastchangelog_state::keyed::KeyedState;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

impl Shard {
    /// Makes the version of `handle` live for a session of `batch`; `None` means the empty state.
    pub(crate) fn make_live(
        &self,
        handle: Option<&ShardHandle>,
        batch: BatchId,
        schema: (u64, &str),
    ) -> Result<InstanceId> {
        let _transition = self.transition.lock();
        // Taken before anything is read: a restore may take long.
        let handed_in = Moment::now(&*self.context.clock);
        if self.live.read().as_ref().is_some_and(|live| live.keyed.is_broken()) {
            tracing::warn!(shard = %self.id, "a write of the local state failed; restoring it");
            self.drop_live();
        }
        match handle {
            None => self.make_first(schema),
            Some(handle) => {
                self.check(handle, batch, schema)?;
                let instance = self.make_version(handle)?;
                self.control.lock().last_confirmed = Some(handed_in);
                Ok(instance)
            }
        }
    }

    /// Handles are checked before anything is read (P2).
    fn check(&self, handle: &ShardHandle, batch: BatchId, schema: (u64, &str)) -> Result<()> {
        let place = self.placement;
        if handle.batch >= batch {
            return Err(Error::invalid(format!(
                "batch {} got the state of batch {}, which only a later batch may use",
                batch.0, handle.batch.0
            ))
            .with_remedy("restart the query from its checkpoint"));
        }
        if (handle.shard, handle.shards) != (place.shard, place.shards) {
            return Err(Error::invalid(format!(
                "the handle is of shard {} of {}, but this task is shard {} of {}",
                handle.shard, handle.shards, place.shard, place.shards
            ))
            .with_remedy("the number of shuffle partitions is fixed per checkpoint"));
        }
        if handle.max_parallelism != place.max_parallelism {
            return Err(Error::invalid(format!(
                "the state was written with max_parallelism {}, but the option says {}",
                handle.max_parallelism, place.max_parallelism
            ))
            .with_remedy("remove the option"));
        }
        if handle.hash_id != HASH_ID {
            return Err(Error::schema(format!(
                "the state uses key hash {}, but this version of fastchangelog knows {HASH_ID}",
                handle.hash_id
            ))
            .with_remedy("use the version that wrote it"));
        }
        if handle.schema_id != schema.0
            && let Some(difference) = schema_difference(&handle.schema, schema.1)
        {
            let remedy = if differ_in_ansi_alone(&handle.schema, schema.1) {
                "set `spark.sql.ansi.enabled` as it was, or take a savepoint of the checkpoint and start a new one \
                 from it (`start_from`), which carries the state over"
            } else {
                "restore the old query, or start with a new checkpoint"
            };
            return Err(Error::schema(format!("another query wrote this state: {difference}")).with_remedy(remedy));
        }
        Ok(())
    }

    fn make_first(&self, schema: (u64, &str)) -> Result<InstanceId> {
        if let Some(live) = self.live.read().as_ref().filter(|l| l.version.is_none()) {
            return Ok(live.instance);
        }
        self.drop_live();
        if let Some(initial_state) = self.initial_state.get() {
            return self.load(initial_state, schema);
        }
        let instance = InstanceId::random();
        let keyed = KeyedState::create(&self.fresh_dir()?, &self.context.resources)?;
        self.install(keyed, instance, None, Lineage::default(), Inventory::default(), (0, 0))?;
        Ok(instance)
    }

    fn make_version(&self, handle: &ShardHandle) -> Result<InstanceId> {
        let at = self.live.read().as_ref().map(|l| (l.instance, l.version));
        // The initial state is a version, too: that of its snapshot, whose handle a batch without rows returns.
        let begun =
            |l: &Live| l.lineage.snapshot.as_ref().filter(|_| l.version.is_none()).map(|snapshot| snapshot.version);
        let begun = self.live.read().as_ref().and_then(begun);
        if let Some((instance, version)) = at.filter(|(i, _)| *i == handle.instance) {
            if version == Some(handle.version) {
                self.reconcile(handle).map_err(|error| self.explain(error, handle))?;
                return Ok(instance);
            }
            let prepared = {
                let mut control = self.control.lock();
                match control.prepared.get(&handle.version) {
                    Some(p) if p.parent == version && p.instance == instance && p.batch == handle.batch => {
                        control.prepared.remove(&handle.version)
                    }
                    _ => None,
                }
            };
            if let Some(prepared) = prepared {
                self.promote(handle.version, prepared)?;
                return Ok(instance);
            }
        }
        let index = self.read_index(handle).map_err(|error| self.explain(error, handle))?;
        let lineage = Lineage::of(handle, index)?;
        if let Some((instance, version)) = at
            && let Some(version) = version.or(begun)
            && instance == handle.instance
            && let Some(position) = lineage.position(version)
        {
            self.replay(handle, lineage, position).map_err(|error| self.explain(error, handle))?;
            return Ok(instance);
        }
        self.restore(handle, lineage)?;
        Ok(handle.instance)
    }

    /// Takes counts and snapshot from `handle`, whose version is live. After an interrupted replay both are unknown:
    /// the snapshot is that of an older handle, whose files may have been collected.
    fn reconcile(&self, handle: &ShardHandle) -> Result<()> {
        let counts = (handle.state_keys, handle.state_bytes);
        let (counted, based) = {
            let live = self.live.read();
            let same =
                |live: &Live| ((live.state_keys, live.state_bytes) == counts, live.lineage.snapshot == handle.snapshot);
            live.as_ref().map_or((true, true), same)
        };
        if counted && based {
            return Ok(());
        }
        let lineage = if based { None } else { Some(Lineage::of(handle, self.read_index(handle)?)?) };
        if let Some(live) = self.live.write().as_mut() {
            (live.state_keys, live.state_bytes) = counts;
            if let Some(lineage) = lineage {
                live.lineage = lineage;
                self.resolve_waiting_snapshot(live);
            }
        }
        Ok(())
    }

    /// Applies a prepared version to the live state and drops its siblings.
    fn promote(&self, version: VersionId, prepared: Prepared) -> Result<()> {
        let start = Instant::now();
        self.context.failpoints.hit("promote.before")?;
        self.change_live(|live| {
            live.keyed.apply(&prepared.set)?;
            self.context.failpoints.hit("promote.applied")?;
            live.version = Some(version);
            live.lineage = prepared.lineage;
            live.hints = prepared.hints;
            live.state_keys = prepared.state_keys;
            live.state_bytes = prepared.state_bytes;
            self.resolve_waiting_snapshot(live);
            Ok(())
        })?;
        self.control.lock().prepared.clear();
        self.context.metrics.promotions.add(1);
        self.context.metrics.promote_micros.add_elapsed(start);
        Ok(())
    }

    /// Changes the live state. A state that took only a part of the change is no version: it is dropped, and the next
    /// session restores.
    fn change_live(&self, change: impl FnOnce(&mut Live) -> Result<()>) -> Result<()> {
        let changed = match self.live.write().as_mut() {
            Some(live) => change(live).and_then(|()| self.limit_hot(live)),
            None => Err(Error::internal("a change of a state that is not live")),
        };
        changed.inspect_err(|_| self.drop_live())
    }

    /// Decides about the waiting snapshot after a change of the live lineage. If the lineage carries it, its files are
    /// now shared by a retained handle. If the lineage can never carry it, it is dropped, so that another one can be
    /// made.
    fn resolve_waiting_snapshot(&self, live: &mut Live) {
        let mut control = self.control.lock();
        let Some(waiting) = control.waiting.take() else { return };
        if live.lineage.snapshot.as_ref() == Some(&waiting.snapshot) {
            live.inventory = waiting.inventory;
            live.inventory_snapshot = Some(waiting.snapshot);
        } else if waiting.is_snapshot_for(&live.lineage) {
            control.waiting = Some(waiting);
        } else {
            tracing::info!(
                shard = %self.id, snapshot = waiting.snapshot.manifest.name,
                "dropped a finished snapshot: the state continues from the snapshot of another server"
            );
        }
    }

    /// Applies the segments after `position` of `lineage` to the live state.
    ///
    /// A change set that cannot be read ends the replay without harm to the live state: it is then the state of the
    /// last set that was applied, and the next attempt continues from there.
    fn replay(&self, handle: &ShardHandle, lineage: Lineage, position: usize) -> Result<()> {
        let missing: Vec<SegmentRef> = lineage.segments[position..].to_vec();
        tracing::info!(shard = %self.id, segments = missing.len(), "replay");
        let start = Instant::now();
        let context = &self.context;
        let progress = Arc::new(RestoreProgress::start(&self.id, &context.clock, &context.metrics));
        let sets = SetsAhead::start(&context.runtime, &context.store, context.cache.as_ref(), &missing);
        let bytes = missing.iter().map(|s| s.length).sum();
        let mut replay = Replay::of(sets, Some(bytes), &progress, &context.metrics);
        let mut failed = None;
        self.change_live(|live| {
            live.hints = None;
            // A change set that is applied in part is an error.
            failed = loop {
                match context.runtime.block_on(replay.next()) {
                    Ok(Some(set)) => live.keyed.apply(&set)?,
                    Ok(None) => break None,
                    Err(error) => break Some(error),
                }
            };
            let applied = replay.applied();
            if failed.is_none() {
                live.version = Some(handle.version);
                live.lineage = lineage;
                live.state_keys = handle.state_keys;
                live.state_bytes = handle.state_bytes;
                live.hints = self.take_spilled_hints(handle.version);
                self.resolve_waiting_snapshot(live);
            } else if replay.is_within() || Lineage::whole_versions(&missing, applied) < applied {
                // A version with only some of its segments is not a version: the next attempt restores.
                return failed.take().map_or(Ok(()), Err);
            } else if let Some(last) = missing[..applied].last() {
                // The handle's own lineage may have a snapshot that is newer than this set.
                live.version = Some(last.version);
                live.lineage.segments.extend_from_slice(&missing[..applied]);
            }
            Ok(())
        })?;
        if failed.is_none() {
            self.control.lock().prepared.clear();
        }
        context.metrics.restore_micros.add_elapsed(start);
        failed.map_or(Ok(()), Err)
    }

    /// The hints that were kept of a version without its change set.
    fn take_spilled_hints(&self, version: VersionId) -> Option<StateHints> {
        let hints = std::mem::take(&mut self.control.lock().spilled_hints);
        hints.into_iter().find(|(own, _)| *own == version).map(|(_, hints)| hints)
    }

    fn read_index(&self, handle: &ShardHandle) -> Result<Vec<SegmentRef>> {
        match &handle.indexed {
            None => Ok(Vec::new()),
            Some(object) => {
                let bytes = self.context.runtime.block_on(self.context.store.get(object))?;
                decode_segment_index(&object.name, &bytes)
            }
        }
    }

    pub(super) fn install(
        &self,
        keyed: KeyedState,
        instance: InstanceId,
        version: Option<VersionId>,
        lineage: Lineage,
        inventory: Inventory,
        (state_keys, state_bytes): (u64, u64),
    ) -> Result<()> {
        let epoch = {
            let mut control = self.control.lock();
            control.prepared.clear();
            control.waiting = None;
            control.next_epoch += 1;
            control.next_epoch
        };
        let inventory_snapshot = lineage.snapshot.clone();
        let mut live = Live {
            keyed,
            instance,
            version,
            lineage,
            inventory,
            inventory_snapshot,
            state_keys,
            state_bytes,
            epoch,
            cold: None,
            hints: version.and_then(|version| self.take_spilled_hints(version)),
        };
        self.limit_hot(&mut live)?;
        if self.context.options.restore == Restoring::Lazy {
            live.cold = live.keyed.begin_warm_up();
        }
        *self.live.write() = Some(live);
        Ok(())
    }

    /// A folder on the local disk that does not exist yet.
    pub(super) fn fresh_dir(&self) -> Result<PathBuf> {
        let parent = &self.context.dir;
        std::fs::create_dir_all(parent).map_err(|e| {
            Error::io(format_args!("cannot create the local folder {}", parent.display()), &e)
                .with_remedy("free disk space or set spark.local.dir")
        })?;
        Ok(parent.join(format!("db-{}", VersionId::random())))
    }
}
