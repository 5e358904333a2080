//! The engine: wires all stages together; the only place that names all of them.
//!
//! request: the open request of a task; folder: store, log and credentials of a state's folder; start: what a folder's
//! note fixes
//!
//! Owns: the runtime, the shards of this process, the division of the memory budget.
//! Does not own: sockets and processes (`fastchangelog-server`), materialization policy (Python).
//!
//! Invariants:
//! 1. nothing waits for a shard while it holds the lock of the list of shards: a shard that replays for minutes delays
//!    its own sessions only;
//! 2. a shard is closed as idle only when nothing else holds it: no session, no request for one, no
//!    materialization.

mod folder;
mod request;
mod start;

use crate::shard::{Placement, SessionEnvironment, Shard, ShardContext, measure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use fastchangelog_columns::aggregate::{AggPlan, AggSpec};
use fastchangelog_format::clock::SharedClock;
use fastchangelog_format::config::Options;
use fastchangelog_format::error::{Error, Result};
use fastchangelog_format::handle::{decode_handle, encode_handle};
use fastchangelog_format::model::{BatchId, ShardHandle};
use fastchangelog_log::read::ObjectCache;
use fastchangelog_state::rocks::SharedResources;
use fastchangelog_store::Background;
use fastchangelog_store::budget::{Demand, MemoryBudget, MemoryUser, allocate};
use fastchangelog_store::failpoint::SharedFailpoints;
use fastchangelog_store::metrics::SharedMetrics;
use fastchangelog_store::threads::start_io_threads;
use folder::{Folder, Folders, ProcessContext};
use parking_lot::Mutex;
use start::{check_groups, raise_noted_grace, register_checkpoint, start_of};
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

pub use crate::shard::{
    Column, Committed, MaterializeRun, Reply, ResultBatches, Session, ShardStatus, StateCall, StateSession, Watermarks,
};
pub use fastchangelog_format::model::StateId;
pub use folder::SweptState;
pub use request::{OpenRequest, Operator, Renewal};

/// Share of the budget that nothing is planned into: code, stacks, allocator slack, Python.
const HEADROOM_SHARE: f64 = 0.20;
/// Hot tiers never shrink below this share, so that a huge batch cannot starve them.
const HOT_FLOOR_SHARE: f64 = 0.05;
/// Folder for the spills of sessions without a shard.
const SPILL: &str = "spill";
/// Compiled aggregate plans kept.
const MAX_PLANS: usize = 256;
/// A shard that no session opened for this long has probably moved to another executor, and only takes memory and disk.
const SHARD_IDLE_TIMEOUT: Duration = Duration::from_mins(10);

/// The parts of an engine.
pub struct EngineConfig {
    /// Folder for all local files; may be deleted at any time.
    pub local_dir: PathBuf,
    /// Process-wide options (memory budget, cache size, …); per-state options come with each request.
    pub options: Options,
    /// Time.
    pub clock: SharedClock,
    /// Counters.
    pub metrics: SharedMetrics,
    /// Failpoints.
    pub failpoints: SharedFailpoints,
}

/// A shard, and the folder that it works in.
struct Entry {
    shard: Arc<Shard>,
    folder: Arc<Folder>,
}

/// Everything of one process.
pub struct Engine {
    process: ProcessContext,
    local_dir: PathBuf,
    runtime: tokio::runtime::Runtime,
    resources: SharedResources,
    background: Arc<Background>,
    folders: Folders,
    shards: Mutex<HashMap<String, Entry>>,
    plans: Mutex<HashMap<String, Arc<AggPlan>>>,
    closed: AtomicBool,
}

impl Engine {
    /// Starts an engine with an empty local folder.
    pub fn start(config: EngineConfig) -> Result<Arc<Self>> {
        let runtime = start_io_threads()?;
        let budget = MemoryBudget::new(config.options.memory_budget);
        let resources = SharedResources::new(&budget, Arc::clone(&config.metrics))?;
        let shards = config.local_dir.join("shards");
        // Left over from a server that was killed: nothing uses it, this process owns the folder.
        let _ = std::fs::remove_dir_all(&shards);
        let _ = std::fs::remove_dir_all(config.local_dir.join(SPILL));
        let cache = ObjectCache::new(
            &config.local_dir.join("objects"),
            config.options.cache_size,
            Arc::clone(&config.metrics),
        )?
        .with_idle_timeout(Arc::clone(&config.clock));
        let background = Background::new(&config.options, Arc::clone(&config.clock), Arc::clone(&config.metrics));
        let EngineConfig { local_dir, options, clock, metrics, failpoints } = config;
        let runtime_handle = runtime.handle().clone();
        let process = ProcessContext { options, clock, metrics, failpoints, runtime: runtime_handle, budget, cache };
        let this = Arc::new(Self {
            process,
            local_dir,
            background,
            runtime,
            resources,
            folders: Folders::default(),
            shards: Mutex::default(),
            plans: Mutex::default(),
            closed: AtomicBool::new(false),
        });
        let engine = Arc::downgrade(&this);
        this.process.budget.set_reclaim(move || {
            if let Some(engine) = engine.upgrade() {
                engine.divide_memory();
            }
        });
        Ok(this)
    }

    /// Opens a session of aggregates: makes the requested version live first.
    pub fn open(self: &Arc<Self>, request: &OpenRequest) -> Result<Session> {
        self.check_open()?;
        let plan = self.plan(&request.spec)?;
        if request.ephemeral {
            let options = Options::from_map(&request.options)?;
            return Ok(Session::ephemeral(plan, self.session_environment(&options)));
        }
        let (shard, handle) = self.expected_shard(request)?;
        Session::open(&shard, plan, handle, BatchId(request.batch), request.watermarks)
    }

    /// Opens a session of a stateful processor: makes the requested version live first.
    pub fn open_states(self: &Arc<Self>, request: &OpenRequest) -> Result<StateSession> {
        self.check_open()?;
        if request.ephemeral {
            let options = Options::from_map(&request.options)?;
            return Ok(StateSession::ephemeral(self.session_environment(&options), self.resources.clone()));
        }
        let (shard, handle) = self.expected_shard(request)?;
        StateSession::open(&shard, handle, BatchId(request.batch))
    }

    fn check_open(&self) -> Result<()> {
        if self.closed.load(Ordering::SeqCst) {
            return Err(
                Error::retryable("the state server is shutting down").with_remedy("the next attempt starts a new one")
            );
        }
        Ok(())
    }

    /// The shard of a request, which expects a session, and the version to build on.
    fn expected_shard(&self, request: &OpenRequest) -> Result<(Arc<Shard>, Option<ShardHandle>)> {
        let handle = request.handle.as_deref().map(parse_handle).transpose()?;
        let folder = self.folders.folder(&self.process, request)?;
        // Before anything is written that later starts have to follow.
        Placement::new(request.shard, request.shards, folder.options.max_parallelism)?;
        let (groups, initial_state) = match &handle {
            Some(handle) => (handle.max_parallelism, None),
            None => {
                let start = start_of(&self.process, &folder, request)?;
                (start.groups, start.initial_state)
            }
        };
        raise_noted_grace(&self.process, &folder)?;
        check_groups(&folder, request, groups)?;
        register_checkpoint(&self.process, &folder, request)?;
        let shard = self.shard(request, &folder, groups)?;
        if let Some(initial_state) = initial_state {
            shard.set_initial_state(initial_state);
        }
        shard.expect(handle.as_ref());
        self.divide_memory();
        Ok((shard, handle))
    }

    /// Takes over newer credentials for open sessions and their work in progress.
    pub fn renew(&self, renewal: Renewal) {
        self.folders.renew(renewal);
    }

    /// Resources for a session without a shard.
    fn session_environment(&self, options: &Options) -> SessionEnvironment {
        SessionEnvironment {
            budget: Arc::clone(&self.process.budget),
            dir: self.local_dir.join(SPILL),
            metrics: Arc::clone(&self.process.metrics),
            failpoints: Arc::clone(&self.process.failpoints),
            session_memory: options.session_memory,
            result_batch_rows: options.result_batch_rows,
        }
    }

    fn plan(&self, spec: &str) -> Result<Arc<AggPlan>> {
        if let Some(plan) = self.plans.lock().get(spec) {
            return Ok(Arc::clone(plan));
        }
        let plan = Arc::new(AggPlan::new(&AggSpec::from_json(spec)?)?);
        let mut plans = self.plans.lock();
        if plans.len() >= MAX_PLANS {
            plans.clear();
        }
        plans.insert(spec.to_owned(), Arc::clone(&plan));
        Ok(plan)
    }

    fn shard(&self, request: &OpenRequest, folder: &Arc<Folder>, groups: u16) -> Result<Arc<Shard>> {
        let placement = Placement::new(request.shard, request.shards, usize::from(groups))?;
        let id = format!("{}/{}#{}", folder.store.uri(), request.shard, request.shards);
        let mut shards = self.shards.lock();
        if let Some(entry) = shards.get(&id).filter(|entry| Arc::ptr_eq(&entry.folder, folder)) {
            return Ok(Arc::clone(&entry.shard));
        }
        let process = &self.process;
        let context = ShardContext {
            query_id: request.query_id.clone(),
            name: request.name.clone(),
            store: folder.store.clone(),
            log: folder.log.clone(),
            background: Arc::clone(&self.background),
            cache: (!folder.store.is_local_file()).then(|| Arc::clone(&process.cache)),
            runtime: self.runtime.handle().clone(),
            resources: self.resources.clone(),
            budget: Arc::clone(&process.budget),
            options: folder.options.clone(),
            clock: Arc::clone(&process.clock),
            metrics: Arc::clone(&process.metrics),
            failpoints: Arc::clone(&process.failpoints),
            dir: self.local_dir.join("shards").join(fastchangelog_format::model::VersionId::random().to_string()),
        };
        let shard = Shard::new(id.clone(), placement, context);
        let entry = Entry { shard: Arc::clone(&shard), folder: Arc::clone(folder) };
        // One with other settings ends with its last session.
        let replaced = shards.insert(id, entry);
        drop(shards);
        drop(replaced);
        Ok(shard)
    }

    fn live_shards(&self) -> Vec<Arc<Shard>> {
        self.shards.lock().values().map(|entry| Arc::clone(&entry.shard)).collect()
    }

    /// Gives the hot tiers the rest of the budget after sessions, prepared versions and RocksDB.
    fn divide_memory(&self) {
        let shards = self.live_shards();
        let held = self.process.budget.used_by(MemoryUser::Hot);
        let limit = self.process.budget.limit();
        let others = self.process.budget.used().saturating_sub(held) + share(limit, HEADROOM_SHARE);
        let hot = limit.saturating_sub(others).max(share(limit, HOT_FLOOR_SHARE));
        let demands: Vec<Demand> = shards.iter().map(|s| s.demand()).collect();
        for (shard, bytes) in shards.into_iter().zip(allocate(hot, &demands)) {
            if shard.set_hot_limit(bytes) {
                // Another query's open must not wait for this shard's writes.
                self.runtime.spawn_blocking(move || shard.fit_hot());
            }
        }
    }

    /// The public status of every shard. Waits for none of them.
    pub fn shards(&self) -> Vec<ShardStatus> {
        let entries: Vec<(Arc<Shard>, Arc<Folder>)> =
            self.shards.lock().values().map(|e| (Arc::clone(&e.shard), Arc::clone(&e.folder))).collect();
        let status = |(shard, folder): &(Arc<Shard>, Arc<Folder>)| {
            let status = shard.status();
            ShardStatus { at_rest: status.at_rest && !folder.is_locked_out(), ..status }
        };
        entries.iter().map(status).collect()
    }

    /// The states whose shard 0 is here: this process sweeps them.
    pub fn swept_states(&self) -> Vec<SweptState> {
        let first = |entry: &&Entry| entry.shard.placement().shard == 0;
        let found: Vec<_> = self.shards.lock().values().filter(first).map(|entry| Arc::clone(&entry.folder)).collect();
        found.iter().filter(|folder| !folder.is_locked_out()).map(|folder| folder.swept()).collect()
    }

    /// Starts a materialization of `shard_id`; `None` if there is nothing to do, or if it has to wait: for a version
    /// that is being made live, or for credentials that have not expired.
    pub fn begin_materialize(&self, shard_id: &str) -> Result<Option<MaterializeRun>> {
        let entry = |entry: &Entry| (Arc::clone(&entry.shard), entry.folder.is_locked_out());
        let found = self.shards.lock().get(shard_id).map(entry);
        match found {
            Some((shard, false)) if shard.is_at_rest() => shard.begin_materialize(),
            _ => Ok(None),
        }
    }

    /// Closes shards that no session opened for [`SHARD_IDLE_TIMEOUT`], drops folders that no shard works in any more,
    /// and removes downloads that nothing used for as long as the cache keeps them.
    pub fn close_idle(&self) {
        self.process.cache.evict_idle();
        // A user of a shard got it from this list and holds it: one holder is the list.
        let idle = |entry: &Entry| {
            Arc::strong_count(&entry.shard) == 1
                && Duration::from_millis(entry.shard.idle_millis()) >= SHARD_IDLE_TIMEOUT
        };
        let closed: Vec<Entry> =
            self.shards.lock().extract_if(|_, entry| idle(entry)).map(|(_, entry)| entry).collect();
        for Entry { shard, folder } in closed {
            tracing::info!(shard = %shard.id(), "closed: idle");
            drop((shard, folder));
        }
        self.folders.prune();
    }

    /// The metrics, with gauges up to date. Waits for no shard.
    pub fn metrics(&self) -> &SharedMetrics {
        let metrics = &self.process.metrics;
        metrics.open_folders.set(self.folders.len() as u64);
        measure(metrics, &self.process.budget, &self.resources, &self.live_shards());
        metrics
    }

    /// The failpoints.
    pub fn failpoints(&self) -> &SharedFailpoints {
        &self.process.failpoints
    }

    /// Refuses new sessions and ends the logs: pending commits end with an error.
    pub fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        self.folders.close();
        let shards = std::mem::take(&mut *self.shards.lock());
        drop(shards);
    }
}

/// The text form of a handle in Spark's state.
pub fn format_handle(handle: &ShardHandle) -> String {
    BASE64.encode(encode_handle(handle))
}

/// The inverse of [`format_handle`].
pub fn parse_handle(text: &str) -> Result<ShardHandle> {
    let bytes = BASE64.decode(text).map_err(|e| Error::corrupt("the handle in Spark's state", 0, e))?;
    decode_handle(&bytes)
}

#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a share of a size"
)]
fn share(bytes: u64, share: f64) -> u64 {
    (bytes as f64 * share) as u64
}

#[cfg(test)]
mod tests;
