//! The engine: wires all stages together; the only place that names all of them.
//!
//! Owns: the runtime, folders (one log per state folder), the shards of this process, the division of the memory budget.
//! Does not own: sockets and processes (`fastchangelog-server`), materialization policy (Python).

use crate::budget::{MemoryBudget, Part, Want, divide};
use crate::clock::SharedClock;
use crate::config::Options;
use crate::error::{Error, Result};
use crate::failpoint::SharedFailpoints;
use crate::format::handle::{decode_handle, encode_handle};
use crate::metrics::{Metrics, SharedMetrics};
use crate::model::ids::default_max_parallelism;
use crate::model::{BatchId, ShardHandle};
use crate::read::ObjectCache;
use crate::shard::{Beginning, Placement, Shard, ShardContext, Surroundings};
use crate::state::aggregate::{AggPlan, AggSpec};
use crate::state::rocks::SharedResources;
use crate::store::transfer::start_io_threads;
use crate::store::{Background, FOLDER_META, Store, state_folder};
use crate::write::LogWriter;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

pub use crate::shard::{Committed, MaterializeRun, ResultBatches, Session, ShardStatus};

/// Share of the budget that nothing is planned into: code, stacks, allocator slack, Python.
const HEADROOM_SHARE: f64 = 0.20;
/// Hot tiers never shrink below this share, so that a huge batch cannot starve them.
const HOT_FLOOR_SHARE: f64 = 0.05;
/// Folder for what sessions without a shard spill.
const SPILL: &str = "spill";
/// Compiled aggregate plans kept.
const MAX_PLANS: usize = 256;

/// What an engine is made of.
pub struct EngineConfig {
    /// Folder for everything local; may vanish at any moment.
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

/// What a task asks for when it opens a session.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct OpenRequest {
    /// The state root, such as `s3://bucket/state`.
    pub root: String,
    /// Spark's query id.
    pub query_id: String,
    /// Name of the operator in the query.
    pub name: String,
    /// This shard's number.
    pub shard: u32,
    /// Number of shards.
    pub shards: u32,
    /// Spark's batch id.
    pub batch: i64,
    /// The handle that Spark handed back, in base64; none for the first batch.
    pub handle: Option<String>,
    /// What is aggregated: the JSON of an aggregate specification.
    pub spec: String,
    /// True for batch DataFrames: starts from nothing, keeps nothing.
    #[serde(default)]
    pub ephemeral: bool,
    /// Options by name.
    #[serde(default)]
    pub options: BTreeMap<String, String>,
    /// Options of the object store by name.
    #[serde(default)]
    pub storage_options: BTreeMap<String, String>,
    /// Spark's checkpoint location of the query, if known.
    #[serde(default)]
    pub checkpoint: Option<String>,
}

struct Folder {
    store: Store,
    log: LogWriter,
    options: Options,
    /// What shards without a handle begin with, once that is known.
    beginning: OnceLock<Option<Arc<Beginning>>>,
}

/// What a folder says about itself, see [`FOLDER_META`].
#[derive(Serialize, Deserialize)]
struct Note {
    format: u32,
    query_id: String,
    name: String,
    checkpoint: Option<String>,
    shards: u32,
    /// The savepoint that this state began with, and its id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    start_from: Option<(String, String)>,
}

/// Everything of one process.
pub struct Engine {
    config: EngineConfig,
    runtime: tokio::runtime::Runtime,
    resources: SharedResources,
    budget: Arc<MemoryBudget>,
    cache: Arc<ObjectCache>,
    background: Arc<Background>,
    folders: Mutex<HashMap<String, Arc<Folder>>>,
    shards: Mutex<HashMap<String, Arc<Shard>>>,
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
        // Left over from a server that was killed: nobody can be using it, this process owns the folder.
        let _ = std::fs::remove_dir_all(&shards);
        let _ = std::fs::remove_dir_all(config.local_dir.join(SPILL));
        let cache = ObjectCache::new(
            &config.local_dir.join("objects"),
            config.options.cache_size,
            Arc::clone(&config.metrics),
        )?
        .with_idle_timeout(config.options.cache_idle_timeout, Arc::clone(&config.clock));
        let background = Background::new(&config.options, Arc::clone(&config.clock), Arc::clone(&config.metrics));
        let this = Arc::new(Self {
            background,
            runtime,
            resources,
            budget,
            cache,
            folders: Mutex::default(),
            shards: Mutex::default(),
            plans: Mutex::default(),
            closed: AtomicBool::new(false),
            config,
        });
        let engine = Arc::downgrade(&this);
        this.budget.set_relief(move || {
            if let Some(engine) = engine.upgrade() {
                engine.divide_memory();
            }
        });
        Ok(this)
    }

    /// Opens a session: makes the requested version live first.
    pub fn open(self: &Arc<Self>, request: &OpenRequest) -> Result<Session> {
        if self.closed.load(Ordering::SeqCst) {
            return Err(Error::retryable("the state server is shutting down; the next attempt starts a new one"));
        }
        let plan = self.plan(&request.spec)?;
        if request.ephemeral {
            let options = Options::from_map(&request.options)?;
            return Ok(Session::ephemeral(plan, self.surroundings(&options)));
        }
        let handle = request.handle.as_deref().map(parse_handle).transpose()?;
        let folder = self.folder(request)?;
        let beginning = if handle.is_none() { self.beginning(&folder, request)? } else { None };
        let groups = match (&handle, &beginning) {
            (Some(handle), _) => Some(handle.max_parallelism),
            (None, Some(beginning)) => Some(beginning.savepoint().max_parallelism),
            (None, None) => None,
        };
        let shard = self.shard(request, &folder, groups)?;
        if let Some(beginning) = beginning {
            shard.begin_with(beginning);
        }
        shard.expect(handle.as_ref());
        self.divide_memory();
        Session::open(&shard, plan, handle, BatchId(request.batch))
    }

    /// What a session without a shard needs.
    fn surroundings(&self, options: &Options) -> Surroundings {
        Surroundings {
            budget: Arc::clone(&self.budget),
            dir: self.config.local_dir.join(SPILL),
            metrics: Arc::clone(&self.config.metrics),
            failpoints: Arc::clone(&self.config.failpoints),
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

    fn folder(&self, request: &OpenRequest) -> Result<Arc<Folder>> {
        let key = format!(
            "{}\0{}\0{}\0{:?}\0{:?}",
            request.root, request.query_id, request.name, request.options, request.storage_options
        );
        let mut folders = self.folders.lock();
        if let Some(folder) = folders.get(&key) {
            return Ok(Arc::clone(folder));
        }
        let options = Options::from_map(&request.options)?;
        let config = &self.config;
        for option in config.options.overruled(&request.options)? {
            let asked = &request.options[option];
            tracing::warn!(
                query = request.query_id,
                option,
                asked,
                "this server was started by a query with another value, which stays in force until the server ends"
            );
        }
        let store = Store::open(
            &request.root,
            &request.storage_options,
            &options,
            Arc::clone(&config.metrics),
            Arc::clone(&config.failpoints),
        )?
        .within(&self.budget)
        .child(&state_folder(&request.query_id, &request.name));
        let local_twin = options.local_recovery && !store.is_local_file();
        let log = LogWriter::new(
            store.clone(),
            &options,
            self.runtime.handle().clone(),
            Arc::clone(&config.clock),
            Arc::clone(&config.metrics),
            Arc::clone(&config.failpoints),
            local_twin.then(|| self.cache.twin(&store)),
        )
        .within(&self.budget);
        let folder = Arc::new(Folder { store, log, options, beginning: OnceLock::new() });
        folders.insert(key, Arc::clone(&folder));
        Ok(folder)
    }

    /// What shards of the folder without a handle begin with. The folder remembers it: a shard that gets its first rows
    /// weeks later must not begin empty because an option was taken out meanwhile.
    fn beginning(&self, folder: &Folder, request: &OpenRequest) -> Result<Option<Arc<Beginning>>> {
        if let Some(known) = folder.beginning.get() {
            return Ok(known.clone());
        }
        let (asked, uri) = (&folder.options.start_from, folder.store.uri());
        let noted = self.runtime.block_on(folder.store.get_named(FOLDER_META))?;
        let noted = noted.and_then(|bytes| serde_json::from_slice::<Note>(&bytes).ok());
        let read = |from: &str| {
            let metrics = Arc::clone(&self.config.metrics);
            let points = Arc::clone(&self.config.failpoints);
            let store = Store::open(from, &request.storage_options, &folder.options, metrics, points)?;
            self.runtime.block_on(Beginning::read(store)).map(Arc::new).map_err(|e| e.context("option `start_from`"))
        };
        let id = |beginning: &Beginning| beginning.savepoint().id.to_string();
        let beginning = match noted {
            Some(Note { start_from: Some((from, noted)), .. }) => {
                let beginning = read(if asked.is_empty() { &from } else { asked })?;
                if id(&beginning) != noted {
                    return Err(Error::invalid(format!(
                        "the state {uri} began with the savepoint {noted} in {from}, which some shards have yet to read, \
                         but {} holds the savepoint {}; give back the one it began with",
                        beginning.uri(),
                        id(&beginning)
                    )));
                }
                Some(beginning)
            }
            Some(_) if !asked.is_empty() => {
                return Err(Error::invalid(format!(
                    "the state {uri} began without a savepoint, so option `start_from` cannot be set now; use a new \
                     checkpointLocation to start from {asked}, or take the option out"
                )));
            }
            Some(_) => None,
            None => {
                let beginning = if asked.is_empty() { None } else { Some(read(asked)?) };
                self.describe(&folder.store, request, beginning.as_ref().map(|b| (b.uri().to_owned(), id(b))))?;
                beginning
            }
        };
        Ok(folder.beginning.get_or_init(|| beginning).clone())
    }

    /// Writes what a sweep needs to know about a new folder; finds an unusable store before any work is done.
    fn describe(&self, store: &Store, request: &OpenRequest, start_from: Option<(String, String)>) -> Result<()> {
        let OpenRequest { query_id, name, checkpoint, shards, .. } = request.clone();
        let note = Note { format: 1, query_id, name, checkpoint, shards, start_from };
        let note = serde_json::to_vec(&note).map_err(Error::internal)?;
        self.runtime
            .block_on(store.put_overwrite(FOLDER_META, note.into()))
            .map_err(|e| e.context(format!("cannot write to the state folder {}", store.uri())))
    }

    /// `groups`: the number of key groups of what the shard opens; none before the first batch.
    fn shard(&self, request: &OpenRequest, folder: &Folder, groups: Option<u16>) -> Result<Arc<Shard>> {
        let asked = folder.options.max_parallelism;
        if let Some(groups) = groups.filter(|groups| asked == 0 && *groups != default_max_parallelism(request.shards)) {
            return Err(Error::invalid(format!(
                "the state has {groups} key groups, but rows come split for {}, the default for {} partitions; set the \
                 option `max_parallelism` = {groups}, as when the state began",
                default_max_parallelism(request.shards),
                request.shards
            )));
        }
        let groups = if asked == 0 { groups.map_or(0, usize::from) } else { asked };
        let placement = Placement::new(request.shard, request.shards, groups)?;
        let id = format!("{}/{}#{}", folder.store.uri(), request.shard, request.shards);
        let mut shards = self.shards.lock();
        if let Some(shard) = shards.get(&id) {
            return Ok(Arc::clone(shard));
        }
        let config = &self.config;
        let context = ShardContext {
            query_id: request.query_id.clone(),
            name: request.name.clone(),
            store: folder.store.clone(),
            log: folder.log.clone(),
            background: Arc::clone(&self.background),
            cache: (!folder.store.is_local_file()).then(|| Arc::clone(&self.cache)),
            runtime: self.runtime.handle().clone(),
            resources: self.resources.clone(),
            budget: Arc::clone(&self.budget),
            options: folder.options.clone(),
            clock: Arc::clone(&config.clock),
            metrics: Arc::clone(&config.metrics),
            failpoints: Arc::clone(&config.failpoints),
            dir: config.local_dir.join("shards").join(crate::model::VersionId::random().to_string()),
        };
        let shard = Shard::new(id.clone(), placement, context);
        shards.insert(id, Arc::clone(&shard));
        Ok(shard)
    }

    /// Gives the hot tiers what sessions, prepared versions and RocksDB leave of the budget.
    fn divide_memory(&self) {
        let shards: Vec<Arc<Shard>> = self.shards.lock().values().cloned().collect();
        let held = self.budget.used_by(Part::Hot);
        let limit = self.budget.limit();
        let others = self.budget.used().saturating_sub(held) + share(limit, HEADROOM_SHARE);
        let hot = limit.saturating_sub(others).max(share(limit, HOT_FLOOR_SHARE));
        let wants: Vec<Want> = shards.iter().map(|s| s.want()).collect();
        for (shard, bytes) in shards.into_iter().zip(divide(hot, &wants)) {
            if shard.set_hot_limit(bytes) {
                // Another query's open must not wait for what this shard has to write.
                self.runtime.spawn_blocking(move || shard.fit_hot());
            }
        }
    }

    /// What the outside may know about every shard.
    pub fn shards(&self) -> Vec<ShardStatus> {
        let shards: Vec<Arc<Shard>> = self.shards.lock().values().cloned().collect();
        shards.iter().map(|s| s.status()).collect()
    }

    /// Starts a materialization of `shard_id`; `None` if there is nothing to do.
    pub fn begin_materialize(&self, shard_id: &str) -> Result<Option<MaterializeRun>> {
        let shard = self.shards.lock().get(shard_id).cloned();
        shard.map_or(Ok(None), |shard| shard.begin_materialize())
    }

    /// Sessions open now.
    pub fn open_sessions(&self) -> u64 {
        self.shards().iter().map(|s| s.sessions).sum()
    }

    /// Closes shards that no session opened for longer than their option `shard_idle_timeout`, and removes downloads that
    /// nobody used for `cache_idle_timeout`.
    pub fn close_idle(&self) {
        self.cache.evict_idle();
        let mut closed = Vec::new();
        self.shards.lock().retain(|_, shard| {
            let status = shard.status();
            let limit = shard.context().options.shard_idle_timeout.as_millis();
            let keep = status.sessions > 0 || status.materializing || u128::from(status.idle_millis) < limit;
            if !keep {
                closed.push(Arc::clone(shard));
            }
            keep
        });
        for shard in closed {
            tracing::info!(shard = %shard.id(), "closed: idle");
            shard.evict();
        }
    }

    /// The counters.
    pub fn metrics(&self) -> &SharedMetrics {
        let (metrics, shards) = (&self.config.metrics, self.shards());
        metrics.state_keys.set(shards.iter().map(|s| s.state_keys).sum());
        metrics.state_bytes.set(shards.iter().map(|s| s.state_bytes).sum());
        self.measure(metrics);
        metrics
    }

    /// Sets the gauges of memory, part by part.
    fn measure(&self, metrics: &Metrics) {
        let (budget, resources) = (&self.budget, &self.resources);
        let write_buffers = resources.write_buffer_bytes();
        let shards: Vec<Arc<Shard>> = self.shards.lock().values().cloned().collect();
        metrics.memory_budget.set(budget.limit());
        metrics.memory_counted.set(budget.used());
        metrics.memory_block_cache.set(resources.cache_bytes().saturating_sub(write_buffers));
        metrics.memory_write_buffers.set(write_buffers);
        metrics.memory_table_readers.set(shards.iter().map(|s| s.table_reader_bytes()).sum());
        metrics.memory_hot.set(budget.used_by(Part::Hot));
        metrics.memory_sessions.set(budget.used_by(Part::Sessions));
        metrics.memory_prepared.set(budget.used_by(Part::Prepared));
        metrics.memory_log.set(budget.used_by(Part::Log));
        metrics.memory_uploads.set(budget.used_by(Part::Uploads));
        metrics.memory_downloads.set(budget.used_by(Part::Downloads));
    }

    /// The failpoints.
    pub fn failpoints(&self) -> &SharedFailpoints {
        &self.config.failpoints
    }

    /// Refuses new sessions and ends the logs: pending commits end with an error.
    pub fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        for folder in self.folders.lock().values() {
            folder.log.close();
        }
        self.shards.lock().clear();
    }
}

/// The text form of a handle, as it is kept in Spark's state.
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
#[path = "engine_tests.rs"]
mod tests;
