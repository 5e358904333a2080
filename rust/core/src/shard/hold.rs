//! A session's hold on its shard.
//!
//! Owns: the opening of a session, which makes its version live, and the effect of a session's end on its shard.
//! Does not own: the work of the session.

use super::Shard;
use super::base::Base;
use super::session_counters::SessionCounters;
use fastchangelog_format::error::Result;
use fastchangelog_format::model::{BatchId, ShardHandle};
use fastchangelog_log::write::JoinGuard;
use fastchangelog_store::ForegroundGuard;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Grace period after a session: between the sessions of a batch, other tasks of the batch run.
const SESSION_GRACE: Duration = Duration::from_secs(3);

/// A session's hold on its shard.
pub(super) struct ShardHold {
    shard: Arc<Shard>,
    /// Its version was made, or nothing of it counts.
    pub(super) is_done: bool,
    /// Work in the background rests while it is open.
    _foreground: ForegroundGuard,
}

impl ShardHold {
    /// Makes the version of `handle` (none = the state before the first batch) live for a session of `batch`. `schema`
    /// is that of the session. Also gives the announcement of the session's change set.
    pub(super) fn open(
        shard: &Arc<Shard>,
        handle: Option<&ShardHandle>,
        batch: BatchId,
        schema: (u64, &str),
        counters: &mut SessionCounters,
    ) -> Result<(Self, Base, JoinGuard)> {
        let opened = Instant::now();
        let context = shard.context();
        shard.touch();
        context.failpoints.hit("session.open")?;
        let foreground = context.background.foreground(SESSION_GRACE);
        let restores = context.metrics.restores.get();
        let instance = shard.make_live(handle, batch, schema)?;
        // From here on other commits may wait for this one, to share a log object; a restore is not worth waiting for.
        let guard = context.log.join_task(batch);
        context.failpoints.hit("session.live")?;
        context.metrics.sessions.add(1);
        shard.sessions.fetch_add(1, Ordering::Relaxed);
        counters.count_since("open_micros", opened);
        if context.metrics.restores.get() != restores {
            counters.set("restores", 1);
            counters.count_since("restore_micros", opened);
        }
        let base = Base { shard: Arc::clone(shard), instance, version: handle.map(|handle| handle.version) };
        Ok((Self { shard: Arc::clone(shard), is_done: false, _foreground: foreground }, base, guard))
    }
}

impl Drop for ShardHold {
    fn drop(&mut self) {
        self.shard.sessions.fetch_sub(1, Ordering::Relaxed);
        self.shard.touch();
        self.shard.warm_up_in_background();
        if !self.is_done {
            self.shard.context().metrics.sessions_aborted.add(1);
        }
    }
}
