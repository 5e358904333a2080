//! Keyed embedded state: a program's own state, durable by checkpoints.
//!
//! ```text
//! put ─► active layer ─ freeze ─► frozen layer ─► change set ─► log ─► handle ─► head (claimed) ─► live version
//! get ◄─ active layer ◄────────── frozen layers ◄──────────────────────────────────────────────── hot tier, RocksDB
//! ```
//!
//! chain: which checkpoint is the newest, and the fence; core: the steps of a state; catalog: the declared states; member: one of
//! them; value, map, list, timers, aggregating: their faces in Arrow; codec: their types; lifetime: TTLs; sweep: the removal of
//! expired entries; scan: keys in order; work_dir: the local folder; materialization: new snapshots; take_savepoint: savepoints
//!
//! Owns: opening a state, the order of its checkpoints, its close.
//! Does not own: entries of each kind (`kinds`), changes in memory and change sets (`states`), versions and materializations (`shard`), the policy of
//! materializations (Python), the state server (`engine`).
//!
//! Invariants of a [`EmbeddedState`]:
//! 1. a checkpoint whose handle was returned is found by the next open, whatever happens after (P2);
//! 2. RocksDB holds only what a published head names: closing without a checkpoint, or a crash, discards the rest (P4);
//! 3. a change set is the net effect since the last checkpoint: one record per state and key, none without effect, and at
//!    most a bounded number for a clear (P5);
//! 4. of several writers only the newest is acknowledged;
//! 5. a snapshot holds only what published heads name (2), and counts when a head that starts from it is published.

mod aggregating;
mod catalog;
mod chain;
mod codec;
mod core;
mod lifetime;
mod list;
mod map;
mod materialization;
mod member;
mod scan;
mod sweep;
mod take_savepoint;
mod timers;
mod value;
mod waiting;
mod work_dir;

pub use aggregating::AggregatingState;
pub use list::ListState;
pub use map::MapState;
pub use materialization::{Materialization, RunCallback};
pub use scan::Scan;
pub use timers::{DueTimers, TimerState, time_type};
pub use value::ValueState;

use self::core::{Callbacks, Core, Job};
use crate::kinds::RowGroups;
use crate::shard::{InitialState, Placement, Shard, ShardContext, ShardStatus, measure};
use catalog::Catalog;
use chain::Chain;
use fastchangelog_format::clock::Tick;
use fastchangelog_format::config::Options;
use fastchangelog_format::error::{Error, ErrorKind, Result};
use fastchangelog_format::model::{BatchId, KeyGroup, ShardHandle};
use fastchangelog_log::read::ObjectCache;
use fastchangelog_log::write::LogWriter;
use fastchangelog_state::rocks::SharedResources;
use fastchangelog_store::address_space::check_memory;
use fastchangelog_store::budget::MemoryBudget;
use fastchangelog_store::environment::Environment;
use fastchangelog_store::metrics::SharedMetrics;
use fastchangelog_store::threads::{spawn, start_io_threads};
use fastchangelog_store::{Background, Store};
use materialization::Runs;
use parking_lot::Mutex;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::runtime::Runtime;
use waiting::receive;
use work_dir::WorkDir;

/// The part of the memory budget for changes that no checkpoint holds yet, and for the hot tier.
const LAYERS_SHARE: u64 = 4;
const HOT_SHARE: u64 = 2;
/// How often others may open the state first before an open is abandoned.
const MAX_RETRIES: usize = 64;
/// How long a close waits for what is in progress.
const CLOSE_PATIENCE: Duration = Duration::from_secs(5);
/// The one key group: keys of a state are in order.
const GROUP: KeyGroup = KeyGroup(0);
const GROUPS: RowGroups<'static> = RowGroups::One(GROUP);

/// Called with the outcome of a checkpoint, on the state's own thread. Must neither block nor use the state.
pub type CheckpointCallback = Box<dyn FnOnce(Result<ShardHandle>) + Send>;
/// Called after events that may make a materialization due or end it. Must not block.
pub type EventCallback = Box<dyn Fn() + Send + Sync>;
/// The time by which entries end, in milliseconds since the epoch. Must not block, nor use the state.
pub type StateClock = Arc<dyn Fn() -> Result<i64> + Send + Sync>;
/// Called at intervals while a change waits for memory. Runs the handlers of signals; its error ends the wait.
pub type Attend = Arc<dyn Fn() -> Result<()> + Send + Sync>;

/// The request to open a state, which is in the folder `name` of `root`.
pub struct OpenEmbedded {
    /// The folder of the root.
    pub root: Store,
    /// The state's name.
    pub name: String,
    /// The version to start from; none = the newest checkpoint.
    pub handle: Option<ShardHandle>,
    /// Nothing is written, and no writer is fenced.
    pub read_only: bool,
    /// Makes the state if there is none.
    pub create: bool,
    /// The folder of a savepoint that a new state begins with.
    pub savepoint: Option<Store>,
    /// Options of the state.
    pub options: Options,
    /// The time by which entries end; none = that of the environment.
    pub clock: Option<StateClock>,
    /// None = nothing.
    pub attend: Option<Attend>,
    /// A private folder for local files; none = under the temp folder.
    pub local_dir: Option<PathBuf>,
}

/// The log since the newest snapshot, also one that no checkpoint carries yet: what a restore would replay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReplayDebt {
    /// Bytes of log.
    pub log_bytes: u64,
    /// Change sets of the log.
    pub segments: usize,
    /// Bytes of keys and values of the state.
    pub state_bytes: u64,
}

/// An open state. Any thread may use it.
pub struct EmbeddedState {
    core: Arc<Core>,
    runs: Runs,
    jobs: Mutex<Option<mpsc::Sender<Job>>>,
    worker: Mutex<Option<JoinHandle<()>>>,
    runtime: Mutex<Option<Runtime>>,
    // Dropped after everything that uses it.
    place: Mutex<Option<WorkDir>>,
}

impl EmbeddedState {
    /// Opens a state at its newest checkpoint, or at the requested handle. A writer fences those before it.
    ///
    /// When `tick` fails, that is the answer at once; the open is then given up at its next step, if it can be before it
    /// fences others.
    pub fn open(request: OpenEmbedded, environment: &Environment, tick: Tick<'_>) -> Result<Self> {
        check(&request)?;
        let (sender, receiver) = mpsc::channel();
        let wanted = Arc::new(AtomicBool::new(true));
        let (environment, still) = (environment.clone(), Arc::clone(&wanted));
        let work = move || drop(sender.send(Self::open_now(&request, &environment, &still)));
        spawn("fcl-open", "the thread that opens a state", work)?;
        let opened = receive(&receiver, || tick().inspect_err(|_| wanted.store(false, Ordering::Relaxed)))?;
        opened.unwrap_or_else(|| Err(Error::internal("the open of a state was cut off")))
    }

    fn open_now(request: &OpenEmbedded, environment: &Environment, wanted: &AtomicBool) -> Result<Self> {
        let still = || {
            let wanted = wanted.load(Ordering::Relaxed);
            if wanted { Ok(()) } else { Err(Error::closed("the opening of the state was cancelled")) }
        };
        let runtime = start_io_threads()?;
        check_memory(request.options.memory_budget, "a state")?;
        let store = request.root.child(&request.name);
        let mut found = runtime.block_on(chain::find(&store))?;
        if found.newest.is_none() && request.handle.is_none() && (request.read_only || !request.create) {
            return Err(Error::not_found(format!(
                "there is no state in {}; check the address and the name, or create it (create=True, without \
                 read_only)",
                store.uri()
            )));
        }
        if !request.read_only {
            runtime.block_on(store.prove_creation())?;
        }
        still()?;
        let place = WorkDir::make(request.local_dir.as_deref())?;
        let shard = shard(request, store.clone(), &place, &runtime, environment)?;
        environment.failpoints.hit("local.open")?;
        // What a new state begins with, once that is durable: the head that opens it names it.
        let mut first = None;
        for _ in 0..MAX_RETRIES {
            let newest = found.newest.as_ref().and_then(|head| head.handle.as_ref());
            let handle = request.handle.as_ref().or(newest);
            if let (Some(handle), Some(newest)) = (handle, newest)
                && handle.instance != newest.instance
            {
                return Err(Error::invalid(format!(
                    "the handle belongs to another state than the one in {}; give a handle of that state",
                    store.uri()
                )));
            }
            let catalog = match handle {
                Some(handle) => {
                    let catalog = Catalog::parse(&handle.schema)?;
                    shard.make_live(Some(handle), BatchId(handle.batch.0 + 1), (handle.schema_id, &handle.schema))?;
                    catalog
                }
                None => match &request.savepoint {
                    Some(savepoint) => {
                        let begun =
                            take_savepoint::begin(&shard, runtime.block_on(InitialState::read(savepoint.clone()))?)?;
                        let catalog = Catalog::parse(&begun.schema)?;
                        first = Some(begun);
                        catalog
                    }
                    None => {
                        shard.make_live(None, BatchId(0), (0, ""))?;
                        Catalog::default()
                    }
                },
            };
            still()?;
            let handle = handle.or(first.as_ref());
            let chain = if request.read_only {
                None
            } else {
                let points = Arc::clone(&environment.failpoints);
                let taken = Chain::take_over(store.clone(), points, &found, handle.cloned());
                let Some(chain) = runtime.block_on(taken)? else {
                    found = runtime.block_on(chain::find(&store))?;
                    continue;
                };
                tracing::info!(state = store.uri(), writer = chain.epoch(), "opened");
                Some(chain)
            };
            shard.warm_up_in_background();
            let clock = request.clock.clone().unwrap_or_else(|| {
                let clock = Arc::clone(&environment.clock);
                Arc::new(move || i64::try_from(clock.now_millis()).map_err(Error::internal))
            });
            let attend = request.attend.clone().unwrap_or_else(|| Arc::new(|| Ok(())));
            let (io, newest, callbacks) = (runtime.handle().clone(), handle.cloned(), Callbacks { clock, attend });
            let core = Core::new(shard, store, io, catalog, chain, newest, callbacks);
            return Self::start(Arc::new(core), runtime, place);
        }
        Err(Error::retryable(format!(
            "other writers keep opening the state in {}; let one writer at a time open it",
            store.uri()
        ))
        .with_remedy("try again"))
    }

    fn start(core: Arc<Core>, runtime: Runtime, place: WorkDir) -> Result<Self> {
        let (jobs, queue) = mpsc::channel::<Job>();
        let own = Arc::clone(&core);
        let work = move || queue.into_iter().for_each(|job| own.run(job));
        let worker = spawn("fcl-checkpoint", "the thread of a state's checkpoints", work)?;
        Ok(Self {
            core,
            runs: Runs::default(),
            jobs: Mutex::new(Some(jobs)),
            worker: Mutex::new(Some(worker)),
            runtime: Mutex::new(Some(runtime)),
            place: Mutex::new(Some(place)),
        })
    }

    /// The state's folder, without credentials.
    pub fn uri(&self) -> &str {
        self.core.uri()
    }

    /// The metrics, with gauges up to date.
    pub fn metrics(&self) -> &SharedMetrics {
        let shard = self.core.shard();
        let context = shard.context();
        measure(&context.metrics, &context.budget, &context.resources, std::slice::from_ref(shard));
        &context.metrics
    }

    /// What the outside may know about the state's only shard.
    pub fn status(&self) -> ShardStatus {
        self.core.shard().status()
    }

    /// True if nothing can be changed.
    pub fn is_read_only(&self) -> bool {
        self.core.is_read_only()
    }

    /// True after close.
    pub fn is_closed(&self) -> bool {
        self.core.is_closed()
    }

    /// The newest checkpoint that this object knows; none before the first.
    pub fn newest(&self) -> Option<ShardHandle> {
        self.core.newest()
    }

    /// Freezes what was changed until now; `done` is called when it is durable. Waits while too many checkpoints are under
    /// way.
    pub fn begin_checkpoint(&self, done: CheckpointCallback, tick: Tick<'_>) -> Result<()> {
        self.core.admit(tick)?;
        self.core.prepare_checkpoint();
        let jobs = self.jobs.lock();
        let Some(queue) = jobs.as_ref() else {
            self.core.dismiss();
            return Err(core::closed());
        };
        // The order of layers is the order of jobs: both under the lock of the queue.
        let job = match self.core.freeze(done) {
            Ok(job) => job,
            Err(error) => {
                self.core.dismiss();
                return Err(error);
            }
        };
        queue.send(job).map_err(|_| Error::internal("the thread of a state's checkpoints has ended"))
    }

    /// Makes everything that was changed until now durable.
    pub fn checkpoint(&self) -> Result<ShardHandle> {
        self.checkpoint_attended(&|| Ok(()))
    }

    /// The same. When `tick` fails, that is the answer at once; the checkpoint goes on.
    pub fn checkpoint_attended(&self, tick: Tick<'_>) -> Result<ShardHandle> {
        let (sender, receiver) = mpsc::channel();
        self.begin_checkpoint(Box::new(move |result| drop(sender.send(result))), tick)?;
        receive(&receiver, tick)?.unwrap_or_else(|| Err(core::closed()))
    }

    /// What a materialization would make unnecessary to replay.
    pub fn replay_debt(&self) -> ReplayDebt {
        self.core.wait_applied();
        let (log_bytes, segments) = self.core.shard().since_snapshot();
        ReplayDebt { log_bytes, segments, state_bytes: self.newest().map_or(0, |handle| handle.state_bytes) }
    }

    /// Begins a materialization of the newest checkpoint; none if that has a snapshot of its own, or if a snapshot still waits
    /// for a checkpoint that starts from it.
    pub fn begin_materialize(&self) -> Result<Option<Materialization>> {
        if self.is_closed() {
            return Err(core::closed());
        }
        if self.is_read_only() {
            return Ok(None);
        }
        self.core.wait_applied();
        Ok(self.core.shard().begin_materialize()?.map(|run| self.runs.begun(run)))
    }

    /// `event` is called after each checkpoint, and when a change was refused. Once per state.
    pub fn on_event(&self, event: EventCallback) {
        self.core.on_event(event);
    }

    /// Refuses changes with this error, or allows them again. Checkpoints go on.
    pub fn refuse_changes(&self, why: Option<Error>) {
        self.core.refuse_changes(why);
    }

    /// Ends the state: what no checkpoint holds is discarded, checkpoints and a materialization in progress fail as closed.
    /// Twice is fine.
    pub fn close(&self) {
        self.core.close();
        self.runs.stop();
        self.core.shard().stop_background();
        drop(self.jobs.lock().take());
        if let Some(worker) = self.worker.lock().take() {
            let _ = worker.join();
        }
        self.runs.join();
        self.core.discard_changes();
        self.core.shard().evict();
        if let Some(runtime) = self.runtime.lock().take() {
            runtime.shutdown_timeout(CLOSE_PATIENCE);
        }
        drop(self.place.lock().take());
    }
}

impl Drop for EmbeddedState {
    fn drop(&mut self) {
        self.close();
    }
}

fn check(request: &OpenEmbedded) -> Result<()> {
    let name = &request.name;
    if name.is_empty() || name.len() > 256 || name.contains('/') || [".", ".."].contains(&name.as_str()) {
        return Err(Error::invalid(format!(
            "`{name}` is not a valid name of a state; give 1 to 256 bytes without a slash"
        )));
    }
    if request.options.max_parallelism > 1 {
        return Err(Error::invalid("an embedded state has one key group, so that its keys are in order")
            .with_remedy("leave the option `max_parallelism` out"));
    }
    if request.handle.as_ref().is_some_and(|handle| handle.max_parallelism != 1) {
        return Err(Error::new(
            ErrorKind::InvalidArgument,
            "the handle belongs to the state of a query, which only the query opens",
        )
        .with_remedy("open_state takes handles of its own checkpoints"));
    }
    Ok(())
}

fn shard(
    request: &OpenEmbedded,
    store: Store,
    place: &WorkDir,
    runtime: &Runtime,
    environment: &Environment,
) -> Result<Arc<Shard>> {
    let options = request.options.clone();
    let budget = MemoryBudget::new(options.memory_budget);
    let metrics = Arc::clone(&environment.metrics);
    let cache = if store.is_local_file() {
        None
    } else {
        Some(ObjectCache::new(&place.dir().join("objects"), options.cache_size, Arc::clone(&metrics))?)
    };
    let local_copies = cache.as_ref().filter(|_| options.local_recovery).map(|cache| cache.local_copies(&store));
    let log = LogWriter::new(
        store.clone(),
        &options,
        runtime.handle().clone(),
        Arc::clone(&environment.clock),
        Arc::clone(&metrics),
        Arc::clone(&environment.failpoints),
        local_copies,
    )
    .within(&budget);
    let hot = budget.limit() / HOT_SHARE;
    let context = ShardContext {
        query_id: String::new(),
        name: request.name.clone(),
        resources: SharedResources::new(&budget, Arc::clone(&metrics))?,
        log,
        background: Background::new(&request.options, Arc::clone(&environment.clock), Arc::clone(&environment.metrics)),
        cache,
        runtime: runtime.handle().clone(),
        budget,
        options,
        clock: Arc::clone(&environment.clock),
        metrics,
        failpoints: Arc::clone(&environment.failpoints),
        dir: place.dir().join("shard"),
        store,
    };
    let id = context.store.uri().to_owned();
    let shard = Shard::new(id, Placement::new(0, 1, 1)?, context);
    shard.set_hot_limit(hot);
    Ok(shard)
}

#[cfg(test)]
mod apply_tests;
#[cfg(test)]
mod conformance_tests;
#[cfg(test)]
mod ending_model_tests;
#[cfg(test)]
mod evolution_tests;
#[cfg(test)]
mod expiry_tests;
#[cfg(test)]
mod kinds_model_tests;
#[cfg(test)]
mod limits_tests;
#[cfg(test)]
mod model_tests;
#[cfg(test)]
mod tests;
