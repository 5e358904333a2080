//! Restore: the state of a version from its handle alone (P2, P3).
//!
//! Owns: the version that becomes live, its hot tier, and the error of a failure.
//! Does not own: the decision to restore (`transition`), building the state (`rebuild`).
//!
//! Steps:
//! 1. rebuild the state of snapshot and segments in a new folder: recent changes are in the hot tier then;
//! 2. drop the previous live state, and load the rest of the snapshot into the hot tier, if it fits; a lazy restore
//!    leaves that to `background_warm_up`.
//!
//! Invariants:
//! 1. the state is live only when all of snapshot and log is in it (P5);
//! 2. after a failure its folder is removed, and the next attempt starts from the beginning;
//! 3. a handle whose objects are missing or damaged leaves the live state unchanged; any other failure drops it, so
//!    that the next attempt has its disk and memory.

use super::Shard;
use super::lineage::Lineage;
use super::rebuild::SourceVersion;
use super::sources::SourceRange;
use fastchangelog_format::config::Restoring;
use fastchangelog_format::error::{Error, ErrorKind, Result};
use fastchangelog_format::model::ShardHandle;
use fastchangelog_log::read::RestoreProgress;
use fastchangelog_state::rocks::is_of_rocksdb;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

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
        let progress = Arc::new(RestoreProgress::start(&self.id, &context.clock, &context.metrics));
        tracing::info!(
            shard = %self.id, version = %handle.version, batch = handle.batch.0,
            snapshot_bytes = lineage.snapshot.as_ref().map_or(0, |snapshot| snapshot.total_bytes),
            segments = lineage.segments.len(), log_bytes = lineage.log_bytes(), "restore begins"
        );

        // Two hot tiers of full size are never there at once.
        let hot_limit = self.hot_limit.load(Ordering::Relaxed);
        let first = self.live.read().is_none().then_some(hot_limit);
        let sources = [SourceVersion { wanted: SourceRange { handle, groups: handle.key_groups }, lineage }];
        let rebuilder = context.rebuilder();
        let mut rebuilt = context.runtime.block_on(rebuilder.rebuild(&sources, &dir, first, &progress))?;
        let [SourceVersion { lineage, .. }] = sources;
        let rebuilt_after = start.elapsed();
        context.failpoints.hit("restore.replayed")?;

        self.drop_live();
        rebuilt.keyed().set_hot_limit(hot_limit)?;
        if context.options.restore == Restoring::Eager {
            rebuilt.keyed().warm_up()?;
        }
        context.failpoints.hit("restore.warm")?;
        let counts = (handle.state_keys, handle.state_bytes);
        let (bytes, fetched) = (rebuilt.fetched, rebuilt.snapshots_after);
        let inventory = std::mem::take(&mut rebuilt.inventory);
        self.install(rebuilt.keep(), handle.instance, Some(handle.version), lineage, inventory, counts)?;
        context.metrics.restores.add(1);
        context.metrics.restore_micros.add_elapsed(start);
        tracing::info!(
            shard = %self.id, version = %handle.version, keys = handle.state_keys, bytes,
            snapshot_millis = fetched.as_millis(), log_millis = rebuilt_after.saturating_sub(fetched).as_millis(),
            millis = start.elapsed().as_millis(), "restored"
        );
        Ok(())
    }

    /// Adds the shard, the meaning of a missing object, and the disk to the error of a failed restore.
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
