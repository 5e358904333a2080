//! Restore: the state of a version from its handle alone (P2, P3).
//!
//! Owns: the order in which base and segments are fetched and applied, and the cleanup after a failure.
//! Does not own: when it is needed (`transition`), where bytes come from and how (`read`), RocksDB and the hot tier
//! (`state`).
//!
//! Steps:
//! 1. start to fetch the log after the base, concurrently with the base's tables;
//! 2. fetch the base into a new folder, from local copies or the store, and open it;
//! 3. apply the log, in order: recent changes are in the hot tier then;
//! 4. drop the previous live state, and load the rest of the base into the hot tier, if it fits; a lazy restore leaves
//!    that to `warm`.
//!
//! Invariants:
//! 1. the state is live only when all of base and log is in it (P5);
//! 2. after a failure its folder is removed, and the next attempt starts from the beginning;
//! 3. a handle whose objects are missing or damaged leaves the live state unchanged; any other failure drops it, so that
//!    the next attempt has its disk and memory.

use super::lineage::Lineage;
use super::{Shard, destroy};
use fastchangelog_format::config::Restoring;
use fastchangelog_format::error::{Error, ErrorKind, Result};
use fastchangelog_format::model::{BaseRef, SegmentRef, ShardHandle};
use fastchangelog_log::read::{RestoreProgress, SetsAhead, fetch_base};
use fastchangelog_log::snapshot::Inventory;
use fastchangelog_state::keyed::KeyedState;
use fastchangelog_state::rocks::is_of_rocksdb;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// A state that is not live yet: dropped with its folder, unless it is [`UnfinishedState::done`].
struct UnfinishedState(Option<KeyedState>);

impl UnfinishedState {
    fn keyed(&mut self) -> Result<&mut KeyedState> {
        self.0.as_mut().ok_or_else(|| Error::internal("a restored state was taken twice"))
    }

    fn done(mut self) -> Result<KeyedState> {
        self.0.take().ok_or_else(|| Error::internal("a restored state was taken twice"))
    }
}

/// The result of a replay: so many sets are in the state, whole, and why the next one is not.
pub(super) struct Applied {
    pub(super) sets: usize,
    pub(super) failed: Option<Error>,
}

impl Applied {
    /// An error unless all sets were applied.
    fn all(self) -> Result<()> {
        self.failed.map_or(Ok(()), Err)
    }
}

impl Drop for UnfinishedState {
    fn drop(&mut self) {
        if let Some(keyed) = self.0.take() {
            destroy(keyed);
        }
    }
}

impl Shard {
    /// Builds the state of `handle` and makes it live.
    pub(super) fn restore(&self, handle: &ShardHandle, lineage: Lineage) -> Result<()> {
        self.build(handle, lineage).map_err(|error| {
            if !matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Corrupt) {
                self.drop_live();
            }
            self.explain(error, handle)
        })
    }

    fn build(&self, handle: &ShardHandle, lineage: Lineage) -> Result<()> {
        let (start, context) = (Instant::now(), &self.context);
        context.failpoints.hit("restore.before")?;
        let dir = self.fresh_dir()?;
        let progress = RestoreProgress::start(&self.id, &context.clock, &context.metrics);
        let base_bytes = lineage.base.as_ref().map_or(0, |base| base.total_bytes);
        progress.expect(base_bytes);
        tracing::info!(
            shard = %self.id, version = %handle.version, batch = handle.batch.0, base_bytes,
            segments = lineage.segments.len(), log_bytes = lineage.log_bytes(), "restore begins"
        );

        // 1. the log
        let mut sets = SetsAhead::start(&context.runtime, &context.store, context.cache.as_ref(), &lineage.segments);

        // 2. the base
        let (keyed, inventory) = match &lineage.base {
            None => (KeyedState::create(&dir, &context.resources)?, Inventory::default()),
            Some(base) => self.bring(handle, base, &dir, &progress)?,
        };
        let mut building = UnfinishedState(Some(keyed));
        let fetched = start.elapsed();
        context.failpoints.hit("restore.base-done")?;

        // 3. the log on top of it; two hot tiers of full size are never there at once
        let keyed = building.keyed()?;
        let hot_limit = self.hot_limit.load(Ordering::Relaxed);
        if self.live.read().is_none() {
            keyed.set_hot_limit(hot_limit)?;
        }
        self.apply_segments(keyed, &lineage.segments, &mut sets, &progress)?.all()?;
        let replayed = start.elapsed();
        context.failpoints.hit("restore.replayed")?;

        // 4. the hot tier
        self.drop_live();
        keyed.set_hot_limit(hot_limit)?;
        if context.options.restore == Restoring::Eager {
            keyed.warm_up()?;
        }
        context.failpoints.hit("restore.warm")?;
        let counts = (handle.state_keys, handle.state_bytes);
        let (bytes, _) = progress.bytes();
        self.install(building.done()?, handle.instance, Some(handle.version), lineage, inventory, counts)?;
        context.metrics.restores.add(1);
        context.metrics.restore_micros.add_elapsed(start);
        tracing::info!(
            shard = %self.id, version = %handle.version, keys = handle.state_keys, bytes,
            base_millis = fetched.as_millis(), log_millis = replayed.saturating_sub(fetched).as_millis(),
            millis = start.elapsed().as_millis(), "restored"
        );
        Ok(())
    }

    /// The base in the folder `dir`, opened.
    fn bring(
        &self,
        handle: &ShardHandle,
        base: &BaseRef,
        dir: &Path,
        progress: &RestoreProgress,
    ) -> Result<(KeyedState, Inventory)> {
        let context = &self.context;
        let add_done = |bytes| progress.add_done(bytes);
        let manifest =
            context.runtime.block_on(fetch_base(&context.store, context.cache.as_ref(), base, dir, &add_done))?;
        let opened = if manifest.instance == handle.instance {
            KeyedState::open(dir, &context.resources)
        } else {
            let name = format!("{}/{}", context.store.uri(), base.manifest.name);
            Err(Error::corrupt(name, 0, "the base belongs to another state"))
        };
        let keyed = opened.inspect_err(|_| drop(std::fs::remove_dir_all(dir)))?;
        Ok((keyed, Inventory::from_manifest(&manifest)))
    }

    /// Applies `segments`, whose change sets are `sets`, up to the first that cannot be had. A set that is applied in part
    /// is an error.
    pub(super) fn apply_segments(
        &self,
        keyed: &mut KeyedState,
        segments: &[SegmentRef],
        sets: &mut SetsAhead,
        progress: &RestoreProgress,
    ) -> Result<Applied> {
        let (start, context) = (Instant::now(), &self.context);
        let bytes = segments.iter().map(|s| s.length).sum();
        progress.expect(bytes);
        for (n, segment) in segments.iter().enumerate() {
            let fewer = || Err(Error::internal("fewer change sets than segments were read"));
            match context.runtime.block_on(sets.next()).unwrap_or_else(fewer) {
                Ok(set) => keyed.apply(&set)?,
                Err(error) => return Ok(Applied { sets: n, failed: Some(error) }),
            }
            progress.add_done(segment.length);
        }
        context.metrics.replay_bytes.add(bytes);
        context.metrics.replay_micros.add_elapsed(start);
        Ok(Applied { sets: segments.len(), failed: None })
    }

    /// Says of a failed restore whose it was, what a missing object means here, and which disk it was about.
    pub(super) fn explain(&self, error: Error, handle: &ShardHandle) -> Error {
        let what =
            format!("shard {} cannot be restored to the state of batch {}", self.placement.shard, handle.batch.0);
        let in_store = error.subject().is_some_and(|subject| subject.is_object_in(self.context.store.uri()));
        let on_disk =
            error.subject().is_some_and(|subject| subject.is_path_in(&self.context.dir)) || is_of_rocksdb(&error);
        let error = error.context(what);
        if error.kind() == ErrorKind::NotFound && in_store {
            return error.with_remedy(
                "this batch still needs it: put it back from a backup or from the bucket's own history, or restart the \
                 query from a checkpoint whose objects are there",
            );
        }
        if on_disk {
            return error.with_remedy("this folder is on the executor's local disk (`spark.local.dir`)");
        }
        error
    }
}

#[cfg(test)]
#[path = "restore_tests.rs"]
mod tests;
