//! One shard: which version is live, which are prepared, and how one becomes the other.
//!
//! Owns: the live state, prepared versions and their ancestry, promotion, replay, restore, requested materializations.
//! Does not own: the computation of a batch (`session`), when to materialize (policy, Python), batching of the log (`write`).
//!
//! Invariants (the promises they carry in brackets):
//! 1. The live state changes only by promoting, replaying or restoring a version whose handle the caller handed in, and
//!    which an earlier batch made [P1, P4].
//! 2. Any number of sessions may prepare versions from the live one; none of them is visible to another [P8].
//! 3. A session whose snapshot is no longer live fails with a retryable error; it never reads another version [P8].
//! 4. Whatever is lost locally is rebuilt from the handle alone [P2, P3].
//!
//! Beside that stand [`rescale`]: a state of other key groups, made from the handles of all shards ([`sources`]); and
//! [`savepoint`]: such a state from a folder that was put aside.

mod background_warm_up;
mod base;
mod direct;
mod gauges;
mod hold;
mod initial_state;
pub mod lineage;
mod materialize;
mod rebuild;
mod replay;
pub mod rescale;
mod restore;
pub mod savepoint;
mod scratch_folder;
mod seal;
pub mod session;
mod session_counters;
mod session_environment;
mod session_memory;
pub mod sources;
mod state_session;
#[cfg(test)]
pub(crate) mod testing;
mod transition;

pub use gauges::measure;
pub use initial_state::InitialState;
pub use materialize::MaterializeRun;
pub use rebuild::Rebuilder;
pub use rescale::RangeState;
pub use seal::Committed;
pub use session::{ResultBatches, Session, Watermarks};
pub use session_environment::SessionEnvironment;
pub use sources::Sources;
pub use state_session::{Column, Reply, StateCall, StateSession};

use crate::kinds::hints::StateHints;
use fastchangelog_format::clock::{Moment, SharedClock};
use fastchangelog_format::config::{Compression, Options};
use fastchangelog_format::error::{Error, Result};
use fastchangelog_format::model::ids::default_max_parallelism;
use fastchangelog_format::model::{
    BatchId, ChangeSet, InstanceId, KeyGroupRange, ShardHandle, SnapshotRef, VersionId, shard_range,
};
use fastchangelog_log::read::ObjectCache;
use fastchangelog_log::snapshot::{Inventory, PushContext};
use fastchangelog_log::write::LogWriter;
use fastchangelog_state::keyed::{KeyedState, WarmUp};
use fastchangelog_state::rocks::SharedResources;
use fastchangelog_store::budget::{Demand, MemoryBudget, Reservation};
use fastchangelog_store::failpoint::SharedFailpoints;
use fastchangelog_store::metrics::SharedMetrics;
use fastchangelog_store::sync::FairRwLock;
use fastchangelog_store::{Background, Store};
use lineage::Lineage;
use parking_lot::Mutex;
use std::collections::{HashMap, VecDeque};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// Hot tier of a shard until the engine allocates the budget.
const FIRST_HOT_LIMIT: u64 = 16 << 20;
/// Bytes of an entry of the hot tier beside its key and value: header, padding, its place in the index.
const ENTRY_OVERHEAD: u64 = 48;
/// A shard that was opened so lately keeps its memory before others do.
const ACTIVE_MILLIS: u64 = 30_000;

/// Resources of the process that a shard needs.
pub struct ShardContext {
    /// Spark's query id.
    pub query_id: String,
    /// The operator's name in its query.
    pub name: String,
    /// The state's folder in the bucket.
    pub store: Store,
    /// The log of this folder.
    pub log: LogWriter,
    /// Limits of snapshot uploads.
    pub background: Arc<Background>,
    /// Local copies and downloads; none when the bucket is a local folder.
    pub cache: Option<Arc<ObjectCache>>,
    /// Runs uploads and downloads.
    pub runtime: tokio::runtime::Handle,
    /// RocksDB's shared memory.
    pub resources: SharedResources,
    /// The memory budget of the process.
    pub budget: Arc<MemoryBudget>,
    /// Options of this state.
    pub options: Options,
    /// Time.
    pub clock: SharedClock,
    /// Counters of the process.
    pub metrics: SharedMetrics,
    /// Failpoints of the process.
    pub failpoints: SharedFailpoints,
    /// This shard's folder on the local disk.
    pub dir: PathBuf,
}

impl ShardContext {
    /// The compression of change sets.
    fn compression(&self) -> Compression {
        self.options.compression_in(self.store.is_remote())
    }

    /// The folder for changes that do not fit into memory; made when it is needed.
    pub(crate) fn spill_dir(&self) -> PathBuf {
        self.dir.join("spill")
    }

    fn session_environment(&self) -> SessionEnvironment {
        SessionEnvironment {
            budget: Arc::clone(&self.budget),
            dir: self.spill_dir(),
            metrics: Arc::clone(&self.metrics),
            failpoints: Arc::clone(&self.failpoints),
            session_memory: self.options.session_memory,
            result_batch_rows: self.options.result_batch_rows,
        }
    }

    /// Resources for a rebuild from the objects of its folder.
    pub(crate) fn rebuilder(&self) -> Rebuilder {
        Rebuilder {
            store: self.store.clone(),
            cache: self.cache.clone(),
            resources: self.resources.clone(),
            clock: SharedClock::clone(&self.clock),
            metrics: Arc::clone(&self.metrics),
            failpoints: Arc::clone(&self.failpoints),
        }
    }

    /// Resources for uploads of its shards' snapshots.
    fn push_context(&self) -> PushContext<'_> {
        PushContext {
            store: &self.store,
            pack_below: self.options.snapshot_pack_below,
            background: &self.background,
            local_copies: self
                .cache
                .as_ref()
                .filter(|_| self.options.local_recovery)
                .map(|c| c.local_copies(&self.store)),
            failpoints: &self.failpoints,
            metrics: &self.metrics,
        }
    }
}

/// Which shard of how many.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Placement {
    /// This shard's number.
    pub shard: u32,
    /// Number of shards.
    pub shards: u32,
    /// Number of key groups.
    pub max_parallelism: u16,
}

impl Placement {
    /// The placement of `shard` of `shards`; `max_parallelism` 0 means the default for that many shards.
    pub fn new(shard: u32, shards: u32, max_parallelism: usize) -> Result<Self> {
        if shards == 0 || shard >= shards {
            return Err(Error::invalid(format!("shard {shard} of {shards} does not exist")));
        }
        let groups = match max_parallelism {
            0 => default_max_parallelism(shards),
            n => u16::try_from(n)
                .ok()
                .filter(|n| *n <= 32_768)
                .ok_or_else(|| Error::invalid(format!("option `max_parallelism` = {n} is beyond 32768")))?,
        };
        if u32::from(groups) < shards {
            return Err(Error::invalid(format!(
                "{shards} shuffle partitions need at least as many key groups, but option `max_parallelism` is {groups}"
            )));
        }
        Ok(Self { shard, shards, max_parallelism: groups })
    }

    /// The key groups of this shard.
    pub fn key_groups(self) -> KeyGroupRange {
        shard_range(self.shard, self.shards, self.max_parallelism)
    }
}

/// The state that is live: one version of the shard, readable by any number of sessions.
pub(crate) struct Live {
    keyed: KeyedState,
    instance: InstanceId,
    /// None = the state before the first batch: empty, or the initial state in the lineage's snapshot.
    version: Option<VersionId>,
    lineage: Lineage,
    /// Files of the snapshot `inventory_snapshot`. Another server's snapshot in `lineage` makes it out of date: the
    /// next materialization follows.
    inventory: Inventory,
    inventory_snapshot: Option<SnapshotRef>,
    state_keys: u64,
    state_bytes: u64,
    /// Grows with every state that replaces this one; a materialization of an older epoch is dropped.
    epoch: u64,
    /// Progress of the warm-up after a lazy restore.
    cold: Option<WarmUp>,
    /// The hints of the session that made this version.
    hints: Option<StateHints>,
}

/// A version that a session made and that is not promoted yet: a cache of its change set.
struct Prepared {
    instance: InstanceId,
    parent: Option<VersionId>,
    batch: BatchId,
    set: Arc<ChangeSet>,
    lineage: Lineage,
    hints: Option<StateHints>,
    state_keys: u64,
    state_bytes: u64,
    order: u64,
    memory: Reservation,
}

#[derive(Default)]
struct Control {
    prepared: HashMap<VersionId, Prepared>,
    /// Hints of versions that must be replayed, because nothing else of them is kept. Newest last.
    spilled_hints: VecDeque<(VersionId, StateHints)>,
    next_order: u64,
    next_epoch: u64,
    materializing: bool,
    /// A finished snapshot that no promoted handle carries yet.
    waiting: Option<materialize::FinishedSnapshot>,
    /// The epoch of the state whose last materialization failed at the local disk.
    disk_failure_epoch: Option<u64>,
    last_materialized_millis: u64,
    /// When a handle of the live version was last handed in: until then, at least, a retained batch named its snapshot.
    last_confirmed: Option<Moment>,
    /// Bytes of files per net byte, as the last compaction left them; 0 before the first.
    space_amplification: f64,
}

/// One shard of one state.
pub struct Shard {
    id: String,
    placement: Placement,
    context: ShardContext,
    /// Serializes changes of the live version; never held while waiting for a reader.
    transition: Mutex<()>,
    live: FairRwLock<Option<Live>>,
    control: Mutex<Control>,
    last_used_millis: AtomicU64,
    sessions: AtomicU64,
    /// True while a lazily restored state is being loaded into the hot tier.
    warming: AtomicBool,
    hot_limit: AtomicU64,
    /// Bytes that the hot tier takes with the whole state in it, according to the newest handle.
    whole: AtomicU64,
    /// Its first version; unset = empty.
    initial_state: OnceLock<Arc<InitialState>>,
    /// The numbers of the live state at the last status that could read them without blocking.
    seen: Mutex<Seen>,
    /// Where the removal of expired groups goes on.
    expiry_walk: Mutex<session::ExpiryWalk>,
}

/// Numbers of a live state.
#[derive(Debug, Clone, Copy, Default)]
struct Seen {
    log_bytes: u64,
    segments: usize,
    state_bytes: u64,
    state_keys: u64,
    hot_bytes: u64,
}

impl Seen {
    fn of(live: &Live) -> Self {
        Self {
            log_bytes: live.lineage.log_bytes(),
            segments: live.lineage.segments.len(),
            state_bytes: live.state_bytes,
            state_keys: live.state_keys,
            hot_bytes: live.keyed.hot_bytes(),
        }
    }
}

/// The public status of a shard.
#[derive(Debug, Clone, serde::Serialize, serde::Deserialize)]
pub struct ShardStatus {
    /// Name of the shard in this process.
    pub id: String,
    /// Spark's query id.
    pub query_id: String,
    /// The operator's name in its query.
    pub name: String,
    /// Number of the shard.
    pub shard: u32,
    /// Log bytes after the newest snapshot.
    pub log_bytes_since_snapshot: u64,
    /// Segments after the newest snapshot.
    pub segments_since_snapshot: usize,
    /// Bytes of keys and values.
    pub state_bytes: u64,
    /// Keys.
    pub state_keys: u64,
    /// Bytes in the hot tier.
    pub hot_bytes: u64,
    /// True while a materialization runs or waits to be taken over by a handle.
    pub materializing: bool,
    /// False while a version is being made live, or while no credentials are valid: a materialization would wait.
    pub at_rest: bool,
    /// Milliseconds since the last completed materialization (or since the shard was opened).
    pub since_materialized_millis: u64,
    /// Milliseconds since the last session.
    pub idle_millis: u64,
    /// Open sessions.
    pub sessions: u64,
}

impl Shard {
    /// A shard with nothing live.
    pub fn new(id: String, placement: Placement, context: ShardContext) -> Arc<Self> {
        let now = context.clock.now_millis();
        Arc::new(Self {
            id,
            placement,
            context,
            transition: Mutex::new(()),
            live: FairRwLock::new(None),
            control: Mutex::new(Control { last_materialized_millis: now, ..Control::default() }),
            last_used_millis: AtomicU64::new(now),
            sessions: AtomicU64::new(0),
            warming: AtomicBool::new(false),
            hot_limit: AtomicU64::new(FIRST_HOT_LIMIT),
            whole: AtomicU64::new(0),
            initial_state: OnceLock::new(),
            seen: Mutex::default(),
            expiry_walk: Mutex::default(),
        })
    }

    /// Its name in this process.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Its placement among the shards.
    pub fn placement(&self) -> Placement {
        self.placement
    }

    /// Resources of the process for this shard.
    pub(crate) fn context(&self) -> &ShardContext {
        &self.context
    }

    /// Announces a session on `handle`, so that the state's memory demand is known before it is loaded.
    pub fn expect(&self, handle: Option<&ShardHandle>) {
        self.touch();
        let whole = handle.map_or(0, |h| h.state_bytes + ENTRY_OVERHEAD * h.state_keys);
        self.whole.store(whole, Ordering::Relaxed);
    }

    /// The memory demand of its hot tier. Does not block.
    pub fn demand(&self) -> Demand {
        let active = self.sessions.load(Ordering::Relaxed) > 0 || self.idle_millis() < ACTIVE_MILLIS;
        let held = self.hot_bytes().unwrap_or_else(|| self.hot_limit.load(Ordering::Relaxed));
        let whole = self.whole.load(Ordering::Relaxed);
        Demand { bytes: if active { held.max(whole) / 8 * 9 } else { held }, active }
    }

    /// Bounds the hot tier of this shard from the next change on. True if the move is too large to wait for that, or if
    /// many small ones have become so: call [`Self::fit_hot`].
    pub fn set_hot_limit(&self, bytes: u64) -> bool {
        let old = self.hot_limit.swap(bytes, Ordering::Relaxed);
        old.abs_diff(bytes) > old / 8 || self.hot_bytes().is_some_and(|held| held > bytes + bytes / 8)
    }

    /// Bytes in the hot tier; none while the state changes.
    fn hot_bytes(&self) -> Option<u64> {
        self.live.try_read().map(|live| live.as_ref().map_or(0, |l| l.keyed.hot_bytes()))
    }

    /// Evicts entries beyond the hot limit, unless a session reads: then the next change does. May write to the disk.
    pub fn fit_hot(&self) {
        if let Some(mut live) = self.live.try_write()
            && let Some(live) = live.as_mut()
            && let Err(error) = self.limit_hot(live)
        {
            tracing::warn!(shard = %self.id, %error, "cannot resize the hot tier");
        }
    }

    fn limit_hot(&self, live: &mut Live) -> Result<()> {
        live.keyed.set_hot_limit(self.hot_limit.load(Ordering::Relaxed))
    }

    /// True unless a version is being made live, which may take as long as a restore.
    pub fn is_at_rest(&self) -> bool {
        !self.transition.is_locked()
    }

    /// Milliseconds since the last session.
    pub fn idle_millis(&self) -> u64 {
        self.context.clock.now_millis().saturating_sub(self.last_used_millis.load(Ordering::Relaxed))
    }

    /// The public status. Does not block: for a state that is being changed it returns the last known numbers.
    pub fn status(&self) -> ShardStatus {
        let now = self.context.clock.now_millis();
        let (materializing, last) = {
            let control = self.control.lock();
            (control.materializing || control.waiting.is_some(), control.last_materialized_millis)
        };
        let now_seen = self.live.try_read().map(|live| live.as_ref().map(Seen::of).unwrap_or_default());
        let seen = {
            let mut seen = self.seen.lock();
            *seen = now_seen.unwrap_or(*seen);
            *seen
        };
        ShardStatus {
            id: self.id.clone(),
            query_id: self.context.query_id.clone(),
            name: self.context.name.clone(),
            shard: self.placement.shard,
            log_bytes_since_snapshot: seen.log_bytes,
            segments_since_snapshot: seen.segments,
            state_bytes: seen.state_bytes,
            state_keys: seen.state_keys,
            hot_bytes: seen.hot_bytes,
            materializing,
            at_rest: self.is_at_rest(),
            since_materialized_millis: now.saturating_sub(last),
            idle_millis: self.idle_millis(),
            sessions: self.sessions.load(Ordering::Relaxed),
        }
    }

    /// Bytes of open tables outside the cache. Does not block.
    pub fn table_reader_bytes(&self) -> u64 {
        self.live.try_read().and_then(|live| live.as_ref().map(|l| l.keyed.table_reader_bytes())).unwrap_or(0)
    }

    /// Drops everything local. The next session restores.
    pub fn evict(&self) {
        let _transition = self.transition.lock();
        self.drop_live();
    }

    fn drop_live(&self) {
        let old = self.live.write().take();
        let mut control = self.control.lock();
        control.prepared.clear();
        control.waiting = None;
        drop(control);
        if let Some(live) = old {
            destroy(live.keyed);
        }
    }

    fn touch(&self) {
        self.last_used_millis.store(self.context.clock.now_millis(), Ordering::Relaxed);
    }
}

fn destroy(keyed: KeyedState) {
    if let Err(error) = keyed.destroy() {
        tracing::warn!(%error, "cannot remove a local state folder");
    }
}

impl Drop for Shard {
    fn drop(&mut self) {
        if let Some(live) = self.live.get_mut().take() {
            destroy(live.keyed);
        }
        let _ = std::fs::remove_dir_all(&self.context.dir);
    }
}

#[cfg(test)]
mod churn_tests;
