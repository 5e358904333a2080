//! Materialization of one shard: RocksDB checkpoint, upload of what is new, a snapshot for the next handles.
//!
//! Owns: the run from the mark to the finished snapshot, and when the snapshot may be taken over.
//! Does not own: when to run (policy), how files are uploaded (`snapshot`).
//!
//! Invariants:
//! 1. the snapshot holds every change up to `replay_after`, and no change of a version after `version`;
//! 2. one run at a time; with `incremental`, no new run before the last snapshot is carried by a promoted handle or abandoned,
//!    so that the files a run counts as "already uploaded" are named by a handle Spark retains. Snapshots that share nothing
//!    need not wait;
//! 3. a run of a state that was replaced meanwhile ends without effect. So does a run that shares files with a snapshot from
//!    which the state no longer starts: garbage collection may have removed them;
//! 4. a run counts on no object that was last known to be needed longer ago than half of `sweep_grace`: what a sweep deletes
//!    has been unreachable for a whole one. A snapshot that waits may be of any age: a sweep keeps it for as long as a handle
//!    that may take it over is retained;
//! 5. sessions wait for a run only while it marks what to flush (microseconds) and for each step of the flush, one at a
//!    time: RocksDB's own flush, the compaction, the checkpoint and the upload are beside them. While the
//!    process has open sessions, or had some lately, the flush rests after each step;
//! 6. a local state that cannot be written is not tried again and again: it is dropped at once if it is broken, else at
//!    the second failure in a row. The next session restores it.

use super::lineage::Lineage;
use super::{Live, Shard};
use fastchangelog_format::clock::Moment;
use fastchangelog_format::error::{Error, ErrorKind, Result};
use fastchangelog_format::model::{InstanceId, SnapshotRef, VersionId};
use fastchangelog_log::read::fetch_manifest;
use fastchangelog_log::snapshot::{Inventory, Stamp, push};
use fastchangelog_store::metrics::Metrics;
use parking_lot::Mutex;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::watch;

/// Dirty entries written per turn of the shard's lock: a part of a millisecond, in which no session reads and no version
/// is made. A checkpoint of an embedded state takes the lock four times.
const FLUSH_CHUNK: usize = 256;

/// A snapshot whose files are all in the bucket.
pub(crate) struct FinishedSnapshot {
    pub(crate) snapshot: SnapshotRef,
    pub(crate) inventory: Inventory,
    /// The older snapshot whose files it may share; none = it shares none.
    shares_with: Option<SnapshotRef>,
}

impl FinishedSnapshot {
    /// True if a version of this lineage may start from it. If not, no descendant of the version may either.
    pub(super) fn is_snapshot_for(&self, lineage: &Lineage) -> bool {
        lineage.can_take(&self.snapshot) && (self.shares_with.is_none() || self.shares_with == lineage.snapshot)
    }
}

/// One materialization, from begin to complete or abort.
pub struct MaterializeRun {
    shard: Arc<Shard>,
    epoch: u64,
    instance: InstanceId,
    replay_after: VersionId,
    /// The snapshot from which the state starts.
    snapshot: Option<SnapshotRef>,
    /// Files of the snapshot `known_snapshot`, which is an older one after a replay onto the snapshot of another server.
    known: Inventory,
    known_snapshot: Option<SnapshotRef>,
    /// Since then, at least, sweeps have kept all that the snapshot will name.
    retained_since: Moment,
    dir: PathBuf,
    finished: Mutex<Option<FinishedSnapshot>>,
    ended: bool,
}

impl Shard {
    /// Starts a run, or `None` if there is nothing to do or the last snapshot still waits to be taken over.
    pub fn begin_materialize(self: &Arc<Self>) -> Result<Option<MaterializeRun>> {
        self.context().failpoints.hit("materialize.begin")?;
        {
            let mut control = self.control.lock();
            let shares = self.context().options.incremental;
            if control.materializing || (shares && control.waiting.is_some()) {
                return Ok(None);
            }
            control.materializing = true;
        }
        let (shares, retained_since) = self.retained_since();
        let run = {
            let mut live = self.live.write();
            let _pause = Pause::of(&self.context().metrics);
            // A broken state is no longer materialized: the next session restores it.
            let ready = |live: &&mut Live| !live.lineage.segments.is_empty() && !live.keyed.is_broken();
            live.as_mut().filter(ready).and_then(|live| {
                let replay_after = live.version?;
                live.keyed.begin_flush();
                Some(MaterializeRun {
                    shard: Arc::clone(self),
                    epoch: live.epoch,
                    instance: live.instance,
                    replay_after,
                    snapshot: live.lineage.snapshot.clone(),
                    known: if shares { live.inventory.clone() } else { Inventory::default() },
                    known_snapshot: if shares {
                        live.inventory_snapshot.clone()
                    } else {
                        live.lineage.snapshot.clone()
                    },
                    retained_since,
                    dir: self.context().dir.join(format!("checkpoint-{}", VersionId::random())),
                    finished: Mutex::new(None),
                    ended: false,
                })
            })
        };
        if run.is_some() {
            self.context().metrics.materializations_started.add(1);
        } else {
            self.control.lock().materializing = false;
        }
        Ok(run)
    }

    /// Whether a run that begins now may count on what the inventory knows, and since when what it counts on was kept.
    fn retained_since(&self) -> (bool, Moment) {
        let (clock, options) = (&*self.context().clock, &self.context().options);
        let last_confirmed = self.control.lock().last_confirmed.filter(|_| options.incremental);
        let Some(last_confirmed) = last_confirmed else { return (false, Moment::now(clock)) };
        let idle = last_confirmed.age(clock);
        // A quarter at least is left for the upload.
        if idle <= options.sweep_grace / 4 {
            return (true, last_confirmed);
        }
        tracing::info!(
            shard = %self.id(), idle_seconds = idle.as_secs(), grace_seconds = options.sweep_grace.as_secs(),
            "uploading the whole snapshot: the shard was idle for more than a quarter of `sweep_grace`"
        );
        (false, Moment::now(clock))
    }
}

impl MaterializeRun {
    /// Writes dirty entries to RocksDB, compacts it if it is bloated, takes the checkpoint and uploads it. Long; call it
    /// off any hot thread.
    pub fn run(&self) -> Result<()> {
        // Dropped when this returns: the run is never stopped.
        let (_keep, stop) = watch::channel(false);
        self.run_until(stop)
    }

    /// As [`Self::run`], but fails, closed, soon after `stop` says true.
    pub(crate) fn run_until(&self, stop: watch::Receiver<bool>) -> Result<()> {
        self.work(stop.clone()).or_else(|error| {
            // Stopping a run also stops RocksDB: its resulting error is not a failure.
            stopped(*stop.borrow())?;
            Err(error)
        })
    }

    fn work(&self, mut stop: watch::Receiver<bool>) -> Result<()> {
        let start = Instant::now();
        let context = self.shard.context();
        context.failpoints.hit("materialize.flush")?;
        loop {
            stopped(*stop.borrow())?;
            let mut guard = self.shard.live.write();
            let pause = Pause::of(&context.metrics);
            let live = guard.as_mut().filter(|l| l.epoch == self.epoch).ok_or_else(Self::replaced)?;
            let flushed = live.keyed.flush_dirty(FLUSH_CHUNK);
            let worked = pause.start.elapsed();
            drop(pause);
            // Waiting sessions get the lock before the next turn.
            drop(guard);
            if !flushed.map_err(|error| self.record_disk_failure(&stop, error))? {
                break;
            }
            let rest = context.background.rest(worked);
            if !rest.is_zero() {
                let stopping = stop.wait_for(|stop| *stop);
                let _ = context.runtime.block_on(async { tokio::time::timeout(rest, stopping).await.is_ok() });
            }
        }
        let (checkpointer, net) = {
            let live = self.shard.live.read();
            let live = live.as_ref().filter(|l| l.epoch == self.epoch).ok_or_else(Self::replaced)?;
            (live.keyed.checkpointer(), live.state_bytes)
        };
        let space_amplification = self.shard.control.lock().space_amplification;
        if let Some(space_amplification) = checkpointer
            .compact_if_bloated(net, space_amplification)
            .map_err(|error| self.record_disk_failure(&stop, error))?
        {
            self.shard.control.lock().space_amplification = space_amplification;
        }
        context.failpoints.hit("materialize.checkpoint")?;
        stopped(*stop.borrow())?;
        checkpointer
            .checkpoint(&self.dir, &context.failpoints)
            .map_err(|error| self.record_disk_failure(&stop, error))?;
        self.shard.control.lock().disk_failure_epoch = None;
        // Read after the checkpoint: nothing later than this can be in it.
        let version = {
            let live = self.shard.live.read();
            live.as_ref().filter(|l| l.epoch == self.epoch).and_then(|l| l.version).ok_or_else(Self::replaced)?
        };
        context.failpoints.hit("materialize.push")?;
        let how = context.push_context();
        let stamp = Stamp { instance: self.instance, version, replay_after: self.replay_after };
        let known = self.known()?;
        let shares_with = self.snapshot.clone().filter(|_| !known.is_empty());
        let upload = push(&how, &self.dir, &known, stamp);
        let (snapshot, inventory) = context.runtime.block_on(async {
            tokio::select! {
                biased;
                Ok(_) = stop.wait_for(|stop| *stop) => stopped(true).and(Err(Self::replaced())),
                pushed = upload => pushed,
            }
        })?;
        self.check_retention()?;
        context.metrics.materialize_micros.add_elapsed(start);
        tracing::info!(
            shard = %self.shard.id(), bytes = snapshot.total_bytes, millis = start.elapsed().as_millis(), "materialized"
        );
        *self.finished.lock() = Some(FinishedSnapshot { snapshot, inventory, shares_with });
        Ok(())
    }

    /// The files of the snapshot from which the state starts. After a replay onto the snapshot of another server they are read
    /// from its manifest.
    fn known(&self) -> Result<Inventory> {
        if self.known_snapshot == self.snapshot {
            return Ok(self.known.clone());
        }
        let Some(snapshot) = &self.snapshot else { return Ok(Inventory::default()) };
        let context = self.shard.context();
        match context.runtime.block_on(fetch_manifest(&context.store, snapshot)) {
            Ok(manifest) => Ok(Inventory::from_manifest(&manifest).with_identities_of(&self.known)),
            // A snapshot that shares nothing with it makes the state whole again.
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Corrupt) => {
                tracing::warn!(shard = %self.shard.id(), %error, "the next snapshot shares no files with the last one");
                Ok(Inventory::default())
            }
            Err(error) => Err(error),
        }
    }

    /// Records a failure of the local disk: invariant 6.
    fn record_disk_failure(&self, stop: &watch::Receiver<bool>, error: Error) -> Error {
        // The end of a state also ends what RocksDB does.
        if *stop.borrow() {
            return error;
        }
        let shard = &self.shard;
        let _transition = shard.transition.lock();
        let broken = shard.live.read().as_ref().filter(|l| l.epoch == self.epoch).map(|l| l.keyed.is_broken());
        let again = shard.control.lock().disk_failure_epoch.replace(self.epoch) == Some(self.epoch);
        let dropped = broken.is_some_and(|broken| broken || again);
        if dropped {
            tracing::warn!(shard = %shard.id(), %error, "cannot write the local state; the next session restores it");
            shard.drop_live();
        }
        error
            .context(format_args!("cannot write the local state in {}", shard.context().dir.display()))
            .with_remedy("free space there, or set `spark.local.dir` to a larger disk")
    }

    /// The manifest is in the bucket in time: from now on a sweep keeps what it names.
    fn check_retention(&self) -> Result<()> {
        let context = self.shard.context();
        let (age, grace) = (self.retained_since.age(&*context.clock), context.options.sweep_grace);
        if age <= grace / 2 {
            return Ok(());
        }
        Err(Error::retryable(format!(
            "the snapshot of shard {} was finished {} seconds after a handle last named its files, longer than half of \
             the option `sweep_grace` = {} seconds, so a sweep may delete some of them",
            self.shard.id(),
            age.as_secs(),
            grace.as_secs()
        ))
        .with_remedy("raise `sweep_grace`, or speed up the upload (`background_bandwidth`)"))
    }

    /// Offers the snapshot to the next handles.
    pub fn complete(mut self) -> Result<()> {
        let finished =
            self.finished.lock().take().ok_or_else(|| Error::closed("complete was called before a successful run"))?;
        let context = self.shard.context();
        {
            // Held until the snapshot is offered: no other state takes this one's place in between.
            let live = self.shard.live.read();
            context.failpoints.hit("materialize.offer")?;
            let is_snapshot_for = |live: &Live| live.epoch == self.epoch && finished.is_snapshot_for(&live.lineage);
            let mut control = self.shard.control.lock();
            if live.as_ref().is_some_and(is_snapshot_for) {
                control.waiting = Some(finished);
            } else {
                tracing::info!(shard = %self.shard.id(), "dropped a finished snapshot: the state starts from another \
                    one");
            }
            control.last_materialized_millis = context.clock.now_millis();
        }
        context.metrics.materializations_completed.add(1);
        self.end();
        Ok(())
    }

    /// Cancels the run; no handle names what it uploaded.
    pub fn abort(mut self, reason: &str) {
        tracing::info!(shard = %self.shard.id(), reason, "materialization cancelled");
        self.shard.context().metrics.materializations_failed.add(1);
        self.end();
    }

    fn end(&mut self) {
        self.ended = true;
        self.shard.control.lock().materializing = false;
        let _ = std::fs::remove_dir_all(&self.dir);
    }

    fn replaced() -> Error {
        Error::closed("another version replaced the state during its materialization")
    }
}

fn stopped(stop: bool) -> Result<()> {
    if stop { Err(Error::closed("the close of the state cancelled its materialization")) } else { Ok(()) }
}

/// Time that the live state is held: sessions wait.
struct Pause<'a> {
    metrics: &'a Metrics,
    start: Instant,
}

impl<'a> Pause<'a> {
    fn of(metrics: &'a Metrics) -> Self {
        Self { metrics, start: Instant::now() }
    }
}

impl Drop for Pause<'_> {
    fn drop(&mut self) {
        self.metrics.materialize_sync_micros.add_elapsed(self.start);
        self.metrics
            .materialize_pause_micros
            .record(u64::try_from(self.start.elapsed().as_micros()).unwrap_or(u64::MAX));
    }
}

impl Drop for MaterializeRun {
    fn drop(&mut self) {
        if !self.ended {
            self.end();
        }
    }
}

#[cfg(test)]
#[path = "materialize_disk_tests.rs"]
mod disk;
#[cfg(test)]
#[path = "materialize_grace_tests.rs"]
mod grace;
#[cfg(test)]
#[path = "materialize_moves_tests.rs"]
mod moves;
#[cfg(test)]
#[path = "materialize_order_tests.rs"]
mod order;
#[cfg(test)]
#[path = "materialize_tests.rs"]
mod tests;
