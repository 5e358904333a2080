//! A small world around the engine: what Spark would do, played by hand, and a plain model beside it.

#![allow(dead_code, reason = "no test uses all of the world")]
#![allow(clippy::unused_self, clippy::from_iter_instead_of_collect, reason = "a world reads better than types")]

use arrow_array::{Array, ArrayRef, BinaryArray, Int64Array, RecordBatch, StringArray};
use arrow_ipc::writer::StreamWriter;
use arrow_schema::{DataType, Field, Schema};
use base64::Engine as _;
use fastchangelog_columns::aggregate::AggSpec;
use fastchangelog_columns::split::Splitter;
use fastchangelog_core::engine::{
    Engine, EngineConfig, OpenRequest, Operator, Session, StateSession, format_handle, parse_handle,
};
use fastchangelog_core::shard::savepoint::{SavepointForm, SavepointProgress};
use fastchangelog_core::shard::{Rebuilder, Sources};
use fastchangelog_format::clock::SystemClock;
use fastchangelog_format::config::Options;
use fastchangelog_format::model::{BatchId, SavepointOrigin, ShardHandle};
use fastchangelog_format::{Error, Result, decode_manifest, decode_segment_index};
use fastchangelog_state::rocks::SharedResources;
use fastchangelog_store::budget::MemoryBudget;
use fastchangelog_store::failpoint::Failpoints;
use fastchangelog_store::metrics::Metrics;
use fastchangelog_store::{FOLDER_META, Store};
use rand::RngExt;
use rand::rngs::StdRng;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub type Key = Option<String>;
pub type Row = (Key, i64);
/// count, sum, max
pub type Model = HashMap<Key, (i64, i64, i64)>;

const SHARDS: u32 = 3;
pub const GROUPS: u16 = 128;

/// Which of several executions of a batch Spark keeps.
#[derive(Clone, Copy)]
pub enum Kept {
    First,
    Last,
}

pub fn seeds(n: u64) -> Vec<u64> {
    if let Ok(seed) = std::env::var("FASTCHANGELOG_SEED") {
        return vec![seed.parse().expect("FASTCHANGELOG_SEED is a number")];
    }
    let n = std::env::var("FASTCHANGELOG_HISTORIES").ok().and_then(|n| n.parse().ok()).unwrap_or(n);
    let start: u64 = rand::random_range(0..1_000_000);
    (start..start + n).collect()
}

fn schema_base64(fields: Vec<Field>) -> String {
    let schema = Schema::new(fields);
    let mut bytes = Vec::new();
    StreamWriter::try_new(&mut bytes, &schema).unwrap().finish().unwrap();
    base64::engine::general_purpose::STANDARD.encode(bytes)
}

pub fn spec(with_max: bool) -> String {
    let input = vec![Field::new("k", DataType::Utf8, true), Field::new("amount", DataType::Int64, true)];
    let mut output = vec![
        Field::new("k", DataType::Utf8, true),
        Field::new("n", DataType::Int64, false),
        Field::new("total", DataType::Int64, true),
    ];
    let mut aggs = vec![
        serde_json::json!({"fn": "count", "args": [], "where": null, "ignore_nulls": false, "ansi": true, "identity": "count(*)"}),
        serde_json::json!({"fn": "sum", "args": [1], "where": null, "ignore_nulls": false, "ansi": true, "identity": "sum(amount)"}),
    ];
    if with_max {
        output.push(Field::new("best", DataType::Int64, true));
        aggs.push(serde_json::json!({"fn": "max", "args": [1], "where": null, "ignore_nulls": false, "ansi": true, "identity": "max(amount)"}));
    }
    serde_json::json!({"version": 1, "num_keys": 1, "input": schema_base64(input), "output": schema_base64(output), "aggs": aggs})
        .to_string()
}

/// What two map tasks make of rows, in small batches: payloads and their shards.
pub fn split(spec: &str, shards: u32, rows: &[Row]) -> Vec<(u32, Vec<u8>)> {
    let spec = AggSpec::from_json(spec).unwrap();
    let mut out = Vec::new();
    for half in rows.chunks(rows.len() / 2 + 1) {
        let mut splitter = Splitter::new(&spec, shards, GROUPS, 1 << 12).unwrap();
        for chunk in half.chunks(97) {
            let keys: ArrayRef = Arc::new(StringArray::from_iter(chunk.iter().map(|r| r.0.as_deref())));
            let amounts: ArrayRef = Arc::new(Int64Array::from_iter(chunk.iter().map(|r| Some(r.1))));
            let batch =
                RecordBatch::try_from_iter_with_nullable([("k", keys, true), ("amount", amounts, true)]).unwrap();
            out.extend(splitter.push(&batch).unwrap());
        }
        out.extend(splitter.finish().unwrap());
    }
    out
}

/// One committed step: the handle of every shard and what the state must be.
#[derive(Clone, Default)]
struct Committed {
    handles: Vec<Option<String>>,
    model: Model,
}

pub struct World {
    seed: u64,
    shards: u32,
    bucket: tempfile::TempDir,
    local: tempfile::TempDir,
    options: BTreeMap<String, String>,
    engine: Arc<Engine>,
    spec: String,
    history: Vec<Committed>,
    batch: i64,
}

fn start(local: &tempfile::TempDir) -> Arc<Engine> {
    let options = Options { memory_budget: 64 << 20, ..Options::default() };
    Engine::start(EngineConfig {
        local_dir: local.path().to_owned(),
        options,
        clock: SystemClock::shared(),
        metrics: Arc::default(),
        failpoints: Failpoints::none(),
    })
    .unwrap()
}

impl World {
    pub fn new(seed: u64, options: &[(&str, &str)]) -> Self {
        let local = tempfile::tempdir().unwrap();
        let engine = start(&local);
        let mut all = BTreeMap::from([("file_sync".to_owned(), "false".to_owned())]);
        all.extend(options.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())));
        Self {
            seed,
            shards: SHARDS,
            bucket: tempfile::tempdir().unwrap(),
            local,
            options: all,
            engine,
            spec: spec(true),
            history: vec![Committed { handles: vec![None; SHARDS as usize], model: Model::new() }],
            batch: 0,
        }
    }

    /// Another query of `shards` shards, which begins with the savepoint `from` of this one, as it is now.
    pub fn successor(&self, shards: u32, from: &std::path::Path) -> Self {
        let uri = from.to_str().unwrap();
        let mut next = Self::new(self.seed, &[("start_from", uri)]);
        next.shards = shards;
        let model = self.history.last().unwrap().model.clone();
        next.history = vec![Committed { handles: vec![None; shards as usize], model }];
        next
    }

    /// Options of later requests.
    pub fn set_option(&mut self, name: &str, value: Option<&str>) {
        match value {
            Some(value) => drop(self.options.insert(name.to_owned(), value.to_owned())),
            None => drop(self.options.remove(name)),
        }
    }

    /// Takes a savepoint of the newest batch in the folder `to`.
    pub fn savepoint(&self, form: SavepointForm, to: &std::path::Path) {
        let open = |path: &std::path::Path| {
            let options = Options { file_sync: false, ..Options::default() };
            let uri = path.to_str().unwrap();
            Store::open(uri, &BTreeMap::new(), &options, Arc::default(), Failpoints::none()).unwrap()
        };
        let metrics: Arc<Metrics> = Arc::default();
        let resources = SharedResources::new(&MemoryBudget::new(64 << 20), Arc::clone(&metrics)).unwrap();
        let store = open(&self.bucket.path().join("query/default"));
        let rebuilder = Rebuilder {
            store,
            cache: None,
            resources,
            clock: SystemClock::shared(),
            metrics,
            failpoints: Failpoints::none(),
        };
        let handles = self.history.last().unwrap().handles.iter().flatten();
        let handles = handles.map(|text| fastchangelog_core::engine::parse_handle(text).unwrap()).collect();
        let sources = Sources::of(handles).unwrap();
        let batch = BatchId(self.batch - 1);
        let origin = SavepointOrigin { query_id: "query".into(), name: "default".into(), batch, taken_millis: 1 };
        let scratch = tempfile::tempdir().unwrap();
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let progress = SavepointProgress::default();
        let target = open(to);
        runtime.block_on(rebuilder.take_savepoint(&sources, form, origin, &target, scratch.path(), &progress)).unwrap();
    }

    /// True when the shard has a handle.
    pub fn has_handle(&self, shard: u32) -> bool {
        self.history.last().unwrap().handles[shard as usize].is_some()
    }

    /// As for a shard that had no rows yet.
    pub fn forget_handles(&mut self) {
        self.history.last_mut().unwrap().handles.fill(None);
    }

    /// Runs a batch on one shard only, as Spark does when the others get no rows.
    pub fn batch_of_one_shard(&mut self, shard: u32) {
        let snapshot = self.history.last().unwrap().clone();
        let (handle, results) = self.execute(shard, snapshot.handles[shard as usize].clone(), &[]).unwrap();
        assert!(results.is_empty());
        let mut handles = snapshot.handles;
        handles[shard as usize] = Some(format_handle(&handle));
        self.history.push(Committed { handles, model: snapshot.model });
        self.batch += 1;
    }

    pub fn shards(&self) -> u32 {
        self.shards
    }

    pub fn random_rows(&self, rng: &mut StdRng) -> Vec<Row> {
        let keys = rng.random_range(1..400);
        (0..rng.random_range(0..600))
            .map(|_| {
                let key = rng.random_range(0..keys);
                ((key > 0).then(|| format!("k{key}")), rng.random_range(-50..1000))
            })
            .collect()
    }

    /// The rows of a batch in a random history: some batches bring none.
    pub fn random_batch(&self, rng: &mut StdRng) -> Vec<Row> {
        if rng.random_bool(0.25) { Vec::new() } else { self.random_rows(rng) }
    }

    /// The newest handle of each shard.
    pub fn handles(&self) -> Vec<ShardHandle> {
        let newest = &self.history.last().unwrap().handles;
        newest.iter().flatten().map(|text| parse_handle(text).unwrap()).collect()
    }

    fn request(&self, shard: u32, handle: Option<String>, batch: i64) -> OpenRequest {
        OpenRequest {
            root: self.bucket.path().to_str().unwrap().to_owned(),
            query_id: "query".into(),
            name: "default".into(),
            shard,
            shards: self.shards,
            batch,
            handle,
            operator: Operator::Aggregate,
            spec: self.spec.clone(),
            watermarks: None,
            ephemeral: false,
            options: self.options.clone(),
            storage_options: BTreeMap::new(),
            checkpoint: None,
            credentials_expire_at: None,
        }
    }

    pub fn try_open(&self, shard: u32, batch: i64) -> Result<Session> {
        let handle = self.history.last().unwrap().handles[shard as usize].clone();
        self.engine.open(&self.request(shard, handle, batch))
    }

    pub fn open(&self, shard: u32, ahead: i64) -> Session {
        self.try_open(shard, self.batch + ahead - 1).unwrap()
    }

    /// A session that keeps nothing.
    pub fn open_ephemeral(&self) -> Session {
        self.engine.open(&OpenRequest { ephemeral: true, ..self.request(0, None, 0) }).unwrap()
    }

    /// A session of states, of shard 0 or of none.
    pub fn open_states(&self, ephemeral: bool) -> StateSession {
        let request = OpenRequest { operator: Operator::Processor, ephemeral, ..self.request(0, None, 0) };
        self.engine.open_states(&request).unwrap()
    }

    /// Names of the files in the local folder.
    pub fn local_files(&self) -> BTreeSet<String> {
        files(self.local.path())
    }

    fn payloads(&self, rows: &[Row]) -> Vec<(u32, Vec<u8>)> {
        split(&self.spec, self.shards, rows)
    }

    pub fn feed(&self, session: &mut Session, shard: u32, rows: &[Row]) {
        for (_, payload) in self.payloads(rows).iter().filter(|(s, _)| *s == shard) {
            session.merge(payload).unwrap();
        }
    }

    fn execute(
        &self,
        shard: u32,
        snapshot: Option<String>,
        payloads: &[(u32, Vec<u8>)],
    ) -> Result<(ShardHandle, Model)> {
        let mut session = self.engine.open(&self.request(shard, snapshot, self.batch))?;
        for (_, payload) in payloads.iter().filter(|(s, _)| *s == shard) {
            session.merge(payload)?;
        }
        let mut results = Model::new();
        for batch in session.finish()? {
            collect(&batch?, &mut results);
        }
        let handle = session.commit()?.handle.ok_or_else(|| Error::internal("no handle"))?;
        Ok((handle, results))
    }

    /// Runs one micro-batch on every shard, each `executions` times from the same snapshot, with retries.
    pub fn batch(&mut self, rows: &[Row], executions: usize, kept: Kept) {
        let snapshot = self.history.last().unwrap().clone();
        let mut model = snapshot.model.clone();
        let mut changed = Model::new();
        for (key, amount) in rows {
            let entry = model.entry(key.clone()).or_insert((0, 0, i64::MIN));
            *entry = (entry.0 + 1, entry.1 + amount, entry.2.max(*amount));
            changed.insert(key.clone(), *entry);
        }
        let payloads = self.payloads(rows);
        let mut handles = Vec::new();
        let mut results = Model::new();
        for shard in 0..self.shards {
            let mut done = Vec::new();
            let mut failures = 0;
            while done.len() < executions {
                match self.execute(shard, snapshot.handles[shard as usize].clone(), &payloads) {
                    Ok(outcome) => done.push(outcome),
                    Err(error) => {
                        failures += 1;
                        assert!(failures < 8, "seed {}: {error}", self.seed);
                    }
                }
            }
            for (_, other) in &done {
                assert_eq!(other, &done[0].1, "seed {}: two executions of one batch differ", self.seed);
            }
            let (handle, rows) = match kept {
                Kept::First => done.swap_remove(0),
                Kept::Last => done.pop().unwrap(),
            };
            results.extend(rows);
            handles.push(Some(format_handle(&handle)));
        }
        assert_eq!(results, changed, "seed {}: results of batch {}", self.seed, self.batch);
        self.history.push(Committed { handles, model });
        self.batch += 1;
    }

    /// A new server process: with the local folder as it was, or gone.
    pub fn restart(&mut self, delete_local: bool) {
        if delete_local {
            self.local = tempfile::tempdir().unwrap();
        }
        self.engine = start(&self.local);
    }

    pub fn failpoints(&self, text: &str) {
        self.engine.failpoints().set(text).unwrap();
    }

    /// How often a failpoint was reached since it was set.
    pub fn hits(&self, point: &str) -> u64 {
        self.engine.failpoints().hits(point)
    }

    /// One materialization of every shard; failures are allowed.
    pub fn materialize(&self) {
        for status in self.engine.shards() {
            if let Ok(Some(run)) = self.engine.begin_materialize(&status.id) {
                match run.run() {
                    Ok(()) => run.complete().unwrap(),
                    Err(error) => run.abort(error.message()),
                }
            }
        }
    }

    /// As if the newest commits had been deleted by hand.
    pub fn roll_back(&mut self, batches: usize) {
        let keep = self.history.len().saturating_sub(batches).max(1);
        self.history.truncate(keep);
        self.batch = keep as i64 - 1;
    }

    /// Reads the whole state back on a machine that has nothing, by a batch that touches every key once.
    pub fn check_all(&mut self) {
        self.restart(true);
        let keys: Vec<Row> = self.history.last().unwrap().model.keys().map(|k| (k.clone(), 0)).collect();
        self.batch(&keys, 1, Kept::Last);
    }

    pub fn drop_last_aggregate(&mut self) {
        self.spec = spec(false);
        self.restart(false);
    }

    pub fn first_log_object(&self) -> PathBuf {
        let dir = self.bucket.path().join("query/default/log");
        let mut names: Vec<PathBuf> = std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().path()).collect();
        names.sort();
        names.swap_remove(0)
    }

    /// Records of the newest change sets of all shards.
    pub fn newest_records(&self) -> u64 {
        self.handles().iter().filter_map(|handle| handle.segments.last().map(|segment| segment.records)).sum()
    }

    pub fn metrics(&self) -> &Metrics {
        self.engine.metrics()
    }

    /// Threads and descriptors of this process, which only Linux lists (0 elsewhere), and files in the local folder of an
    /// engine that just started.
    pub fn held(&self) -> (usize, usize, usize) {
        let entries = |dir: &str| if cfg!(target_os = "linux") { std::fs::read_dir(dir).unwrap().count() } else { 0 };
        (entries("/proc/self/task"), entries("/proc/self/fd"), files(self.local.path()).len())
    }

    /// Names of the objects in the bucket, and of those that a handle of any batch names or that describe the folder.
    pub fn objects(&self) -> (BTreeSet<String>, BTreeSet<String>) {
        let folder = self.bucket.path().join("query/default");
        let found = files(&folder);
        let mut reachable = BTreeSet::from([FOLDER_META.to_owned()]);
        for handle in self.history.iter().flat_map(|step| step.handles.iter().flatten()) {
            let handle = fastchangelog_core::engine::parse_handle(handle).unwrap();
            reachable.extend(handle.segments.iter().map(|segment| segment.object.name.clone()));
            if let Some(index) = &handle.indexed {
                reachable.insert(index.name.clone());
                let segments = decode_segment_index(&index.name, &std::fs::read(folder.join(&index.name)).unwrap());
                reachable.extend(segments.unwrap().into_iter().map(|segment| segment.object.name));
            }
            if let Some(snapshot) = &handle.snapshot {
                let name = snapshot.manifest.name.clone();
                let manifest = decode_manifest(&name, &std::fs::read(folder.join(&name)).unwrap()).unwrap();
                reachable.extend(manifest.files.into_iter().map(|file| file.object.name));
                reachable.insert(name);
            }
        }
        (found, reachable)
    }

    /// Bytes of all objects reachable from the newest handles, and bytes of keys and values in them.
    pub fn durable_and_net_bytes(&self) -> (u64, u64) {
        let mut durable = 0;
        let mut net = 0;
        let mut logs = std::collections::HashSet::new();
        for handle in self.history.last().unwrap().handles.iter().flatten() {
            let handle = fastchangelog_core::engine::parse_handle(handle).unwrap();
            net += handle.state_bytes;
            durable += handle.snapshot.as_ref().map_or(0, |b| b.total_bytes);
            for segment in &handle.segments {
                if logs.insert(segment.object.name.clone()) {
                    durable += segment.object.size;
                }
            }
        }
        // Canonical keys and rows of accumulators are a little longer than what they hold.
        let held: usize =
            self.history.last().unwrap().model.keys().map(|k| k.as_ref().map_or(1, String::len) + 24).sum();
        let held = held as u64;
        assert!((held..2 * held).contains(&net), "{net} bytes of state for {held} bytes of keys and values");
        (durable, net)
    }
}

/// Every file under `dir`, by its name relative to it.
fn files(dir: &Path) -> BTreeSet<String> {
    let (mut found, mut folders) = (BTreeSet::new(), vec![dir.to_owned()]);
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                found.insert(path.strip_prefix(dir).unwrap().to_str().unwrap().to_owned());
            }
        }
    }
    found
}

pub fn collect(batch: &RecordBatch, into: &mut Model) {
    let keys = batch.column(0).as_any().downcast_ref::<BinaryArray>().unwrap();
    let column = |i: usize| batch.column(i).as_any().downcast_ref::<Int64Array>().unwrap();
    let (n, total, best) = (column(1), column(2), column(3));
    for i in 0..batch.num_rows() {
        let key = keys.is_valid(i).then(|| String::from_utf8(keys.value(i).to_vec()).unwrap());
        let old = into.insert(key, (n.value(i), total.value(i), best.value(i)));
        assert!(old.is_none(), "a key came out twice");
    }
}
