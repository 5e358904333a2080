//! Promises of the states of processors, at one server: steps that fail, executions that are dropped, damaged files.
//!
//! Owns: what is done to a query, step by step.
//! Does not own: what executions do and find (`processors`), random stories of several servers (`story`).
//!
//! Every run prints its seed; `FASTCHANGELOG_SEED=<n>` replays it.

use crate::bucket::Bucket;
use crate::common::seeds;
use crate::processors::{Batch, Processors};
use crate::states::{
    APPEND, Bytes, Call, Change, ENDING_LIST, ENDING_MAP, ENDING_VALUE, LIST, MAP, PUT, States, TIMERS, VALUE,
    has_ends, time,
};
use crate::story::{KEYS, Story};
use crate::work::{Trouble, Work};
use crate::world::{Committed, Server, request};
use fastchangelog_core::engine::{OpenRequest, Operator};
use fastchangelog_format::ErrorKind;
use fastchangelog_format::clock::{Clock, ManualClock};
use fastchangelog_format::model::ShardHandle;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

const FOLDER: &str = "query/default";
/// Minutes between batches: some of what ends has ended by then, and some timers are due.
const PAUSE: u64 = 15;
const MINUTE: i64 = 60_000;
const ROWS: usize = 20;
/// Failures of one execution.
const FAILURES: usize = 8;

/// A query of one shard.
struct Query {
    rng: StdRng,
    story: Story,
    work: Processors,
    clock: Arc<ManualClock>,
    server: Server,
    bucket: Bucket,
    /// Of all batches, the newest last.
    history: Vec<Committed<Vec<States>>>,
}

impl Query {
    fn new(seed: u64, options: &[(&'static str, &'static str)]) -> Self {
        println!("seed {seed}");
        let (options, steps) = (options.to_vec(), Vec::new());
        let story = Story { seed, operator: Operator::Processor, servers: 1, shards: 1, options, padding: 0, steps };
        let clock = ManualClock::at(1_000_000_000);
        let work = Processors::of(&story);
        Self {
            rng: StdRng::seed_from_u64(seed),
            history: vec![Committed { handles: vec![None], model: work.nothing() }],
            work,
            server: Server::start(tempfile::tempdir().unwrap(), &clock),
            bucket: Bucket::new(&clock, FOLDER),
            clock,
            story,
        }
    }

    fn now(&self) -> i64 {
        i64::try_from(self.clock.now_millis()).unwrap()
    }

    fn handle(&self) -> Option<&ShardHandle> {
        self.history.last().unwrap().handles[0].as_ref()
    }

    fn model(&self) -> Vec<States> {
        self.history.last().unwrap().model.clone()
    }

    /// Of the next batch.
    fn request(&self) -> OpenRequest {
        let batch = self.handle().map_or(0, |handle| handle.batch.0 + 1);
        request(&self.story, &self.work, &self.bucket.root, 0, self.handle(), batch)
    }

    /// One execution on top of the newest batch.
    fn execute(&self, batch: &Batch) -> Result<ShardHandle, Trouble> {
        let mut session = self.work.open(&self.server.engine, &self.request(), batch)?;
        self.work.finish(&mut session, batch)?;
        self.work.commit(&mut session, batch)
    }

    /// Executes until it comes to an end, and keeps that.
    fn keep(&mut self, (batch, model): (Batch, Vec<States>)) {
        let mut failures = Vec::new();
        let handle = loop {
            match self.execute(&batch) {
                Ok(handle) => break handle,
                Err(Trouble::Failed(error)) if failures.len() < FAILURES => failures.push(error),
                Err(trouble) => panic!("{trouble}, after {failures:?}"),
            }
        };
        self.history.push(Committed { handles: vec![Some(handle)], model });
    }

    fn random_batch(&mut self) -> (Batch, Vec<States>) {
        let row = |_| (self.rng.random_range(0..KEYS), self.rng.random_range(0..1 << 40));
        let rows: Vec<(u32, i64)> = (0..ROWS).map(row).collect();
        self.work.batch(&self.model(), &rows, self.now())
    }

    fn batch(&mut self) {
        self.clock.advance(Duration::from_mins(PAUSE));
        let batch = self.random_batch();
        self.keep(batch);
    }

    /// Reads all that is there.
    fn read(&self) -> Result<usize, Trouble> {
        let batch = self.work.reading(&self.model(), self.now());
        let mut session = self.work.open(&self.server.engine, &self.request(), &batch)?;
        self.work.finish(&mut session, &batch)
    }

    /// A materialization; it may fail.
    fn materialize(&self) {
        for status in self.server.engine.shards() {
            if let Ok(Some(run)) = self.server.engine.begin_materialize(&status.id) {
                match run.run() {
                    Ok(()) => drop(run.complete()),
                    Err(error) => run.abort(error.message()),
                }
            }
        }
    }

    /// Another process starts where nothing is.
    fn restart(&mut self) {
        self.server = Server::start(tempfile::tempdir().unwrap(), &self.clock);
    }

    fn check_all(&mut self) {
        self.restart();
        self.read().unwrap_or_else(|trouble| panic!("{trouble}"));
    }
}

/// Some batches and a restart with this failpoint; returns how often it was reached.
fn with_failpoint(seed: u64, session_memory: &'static str, point: &str, action: &str, n: u64) -> u64 {
    println!("{point}={action}@{n}");
    let mut query = Query::new(seed, &[("session_memory", session_memory), ("max_handle_segments", "2")]);
    query.batch();
    query.server.engine.failpoints().set(&format!("{point}={action}@{n}")).unwrap();
    query.batch();
    query.materialize();
    query.batch();
    let mut hits = query.server.engine.failpoints().hits(point);
    query.server.engine.failpoints().clear();
    // So that the handle has a snapshot.
    query.materialize();
    query.batch();
    query.restart();
    if hits < n {
        query.server.engine.failpoints().set(&format!("{point}={action}@{}", n - hits)).unwrap();
    }
    query.batch();
    hits += query.server.engine.failpoints().hits(point);
    query.check_all();
    hits
}

#[test]
fn p2_every_store_call_may_fail() {
    for seed in seeds(1) {
        for point in ["store.before-put", "store.after-put", "store.before-get"] {
            let calls = (1..100).take_while(|n| with_failpoint(seed, "1MiB", point, "store-error", *n) >= *n).count();
            assert!((4..99).contains(&calls), "{point} is reached {calls} times");
        }
    }
}

#[test]
fn p2_every_step_may_fail() {
    let spilling = ["session.spill", "session.spilled", "session.range"];
    let points = [
        "session.open",
        "session.live",
        "session.merge",
        "session.finish",
        "session.before-persist",
        "session.durable",
        "session.committed",
        "write.before-upload",
        "write.after-upload",
        "promote.before",
        "promote.applied",
        "materialize.begin",
        "materialize.flush",
        "materialize.checkpoint",
        "checkpoint.made",
        "materialize.push",
        "materialize.offer",
        "snapshot.before-sst",
        "snapshot.before-manifest",
        "snapshot.after-manifest",
        "restore.before",
        "rebuild.taken-over",
        "rebuild.replayed",
        "rebuild.fetched",
        "restore.replayed",
        "restore.warm",
    ];
    for seed in seeds(1) {
        let points = spilling.iter().map(|point| (point, "1KiB")).chain(points.iter().map(|point| (point, "1MiB")));
        let never: Vec<_> =
            points.filter(|(point, memory)| with_failpoint(seed, memory, point, "error", 1) == 0).collect();
        assert!(never.is_empty(), "never reached: {never:?}");
    }
}

#[test]
fn p4_only_versions_that_were_handed_back_reach_the_state() {
    for seed in seeds(2) {
        let mut query = Query::new(seed, &[]);
        let mut handed_back = HashSet::new();
        let mut snapshots = HashSet::new();
        for step in 0..12 {
            query.clock.advance(Duration::from_mins(PAUSE));
            // What Spark drops has other input: if any of it were kept, reads would find it.
            let (dropped, _) = query.random_batch();
            query.execute(&dropped).unwrap_or_else(|trouble| panic!("{trouble}"));
            handed_back.extend(query.handle().map(|handle| handle.version));
            if query.rng.random() {
                query.materialize();
            }
            let kept = query.random_batch();
            query.keep(kept);
            let handle = query.handle().unwrap().clone();
            if let Some(snapshot) = &handle.snapshot {
                assert!(handed_back.contains(&snapshot.version) && handed_back.contains(&snapshot.replay_after));
                snapshots.insert(snapshot.version);
            }
            // The batch again, on what it made itself.
            let again = OpenRequest { batch: handle.batch.0, ..query.request() };
            let error = query.server.engine.open_states(&again).err().expect("the handle is of the same batch");
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
            query.materialize();
            if step % 4 == 3 {
                // As if the newest commits were deleted: what was applied since is undone.
                let left = query.history.len() - query.rng.random_range(1..3);
                query.history.truncate(left);
                query.read().unwrap_or_else(|trouble| panic!("{trouble}"));
            }
        }
        assert!(snapshots.len() > 2);
        query.check_all();
    }
}

#[test]
fn p9_damage_of_an_object_is_named() {
    for seed in seeds(2) {
        let restore = if seed % 2 == 0 { "eager" } else { "lazy" };
        let options = [("max_handle_segments", "2"), ("restore", restore), ("file_sync", "false")];
        let (folder, mut query) = (tempfile::tempdir().unwrap(), Query::new(seed, &options));
        query.bucket = Bucket::at(folder.path().to_str().unwrap().to_owned(), &query.clock, FOLDER);
        for step in 0..8 {
            query.batch();
            if step == 2 {
                query.materialize();
            }
        }
        let mut objects = BTreeMap::<String, Vec<String>>::new();
        for object in query.bucket.closure(query.handle().unwrap()) {
            let folder = object.name.split('/').next().unwrap_or_default().to_owned();
            objects.entry(folder).or_default().push(object.name);
        }
        assert_eq!(objects.len(), 4, "log, index, manifest and files: {objects:?}");
        for names in objects.values() {
            let path = |name: &String| folder.path().join(FOLDER).join(name);
            let paths: Vec<PathBuf> = names.iter().map(path).collect();
            for i in [0, names.len() - 1] {
                let bytes = std::fs::read(&paths[i]).unwrap();
                let flipped = |at: usize| {
                    let mut bytes = bytes.clone();
                    bytes[at] ^= 1 << (at % 8);
                    Some(bytes)
                };
                let anywhere = query.rng.random_range(0..bytes.len());
                let foreign = std::fs::read(&paths[names.len() - 1 - i]).unwrap();
                let damages = [
                    // Of an object of the log, what is around a shard's changes is not read.
                    (format!("another byte {anywhere}"), flipped(anywhere), true),
                    ("another byte in the middle".to_owned(), flipped(bytes.len() / 2), false),
                    ("no end".to_owned(), Some(bytes[..bytes.len() - 7].to_vec()), false),
                    ("no bytes".to_owned(), Some(Vec::new()), false),
                    ("the content of another object".to_owned(), Some(foreign).filter(|other| *other != bytes), false),
                ];
                let present = damages.into_iter().filter(|(_, content, _)| content.is_some());
                for (what, content, may_be_read) in present.chain([("not there".to_owned(), None, false)]) {
                    let kind = if content.is_some() { ErrorKind::Corrupt } else { ErrorKind::NotFound };
                    match content {
                        Some(content) => std::fs::write(&paths[i], content).unwrap(),
                        None => std::fs::remove_file(&paths[i]).unwrap(),
                    }
                    query.restart();
                    match query.read() {
                        Err(Trouble::Failed(error)) => {
                            assert_eq!(error.kind(), kind, "{}, {what}: {error}", names[i]);
                            let last = names[i].rsplit('/').next().unwrap();
                            assert!(error.message().contains(last), "{}, {what}: {error}", names[i]);
                        }
                        Ok(_) => assert!(may_be_read, "{}, {what}: read all the same", names[i]),
                        Err(wrong) => panic!("{}, {what}: {wrong}", names[i]),
                    }
                }
                std::fs::write(&paths[i], bytes).unwrap();
            }
        }
        query.check_all();
    }
}

#[test]
fn p10_all_bytes_come_back() {
    for seed in seeds(1) {
        let mut query = Query::new(seed, &[("session_memory", "256KiB")]);
        let mut rng = StdRng::seed_from_u64(seed);
        let mut random = |size: usize| -> Bytes { (0..size).map(|_| rng.random()).collect() };
        // None begins with another one.
        let sizes = [0, 1, 2, 127, 128, 255, 256, 4095, 4096, 65_536];
        let keys: Vec<Bytes> = (0..).zip(sizes).map(|(i, size)| [vec![i * 25], random(size)].concat()).collect();
        query.work = Processors::of_keys(keys.clone());
        let mut calls = Vec::new();
        for (size, key) in sizes.into_iter().chain([1 << 20]).rev().zip(keys.iter().cycle()) {
            let mut put = |state, op, sub: Option<Bytes>, value: Option<Bytes>| {
                let ends = has_ends(state).then_some(query.now() + 1_000 * MINUTE);
                let changes = vec![Change { op, key: key.clone(), sub, value }];
                calls.push(Call::Write { state, changes, ends });
            };
            for state in [VALUE, ENDING_VALUE] {
                put(state, PUT, None, Some(random(size)));
            }
            for state in [LIST, ENDING_LIST, LIST] {
                put(state, APPEND, None, Some(random(size)));
            }
            for state in [MAP, ENDING_MAP] {
                for sub in [0, 1, 300, size / 16] {
                    put(state, PUT, Some(random(sub)), Some(random(size)));
                }
            }
            for at in [i64::MAX, 1 << 55, 1 << 40] {
                put(TIMERS, PUT, Some(time(at + i64::try_from(size).unwrap().min(i64::MAX - at))), None);
            }
        }
        let (batch, after) = Processors::batch_of(&query.model()[0], calls, query.now());
        query.keep((batch, vec![after]));
        let read = |query: &Query, when: &str| query.read().unwrap_or_else(|trouble| panic!("{when}: {trouble}"));
        read(&query, "what was prepared");
        query.restart();
        read(&query, "of the log");
        for _ in 0..3 {
            // It hands back what was there, and the snapshot.
            query.clock.advance(Duration::from_mins(PAUSE));
            let value = Some(random(9));
            let changes = vec![Change { op: PUT, key: keys[0].clone(), sub: None, value }];
            let call = Call::Write { state: VALUE, changes, ends: None };
            let (batch, after) = Processors::batch_of(&query.model()[0], vec![call], query.now());
            query.keep((batch, vec![after]));
            query.materialize();
        }
        assert!(query.handle().unwrap().snapshot.is_some());
        query.restart();
        read(&query, "of the snapshot");
    }
}

#[test]
fn p10_damage_of_local_files_is_never_read() {
    for seed in seeds(1) {
        let mut query = Query::new(seed, &[]);
        for step in 0..6 {
            query.batch();
            if step == 3 {
                query.materialize();
            }
        }
        let fresh = Server::start(tempfile::tempdir().unwrap(), &query.clock);
        let local = std::mem::replace(&mut query.server, fresh).stopped();
        let files = files(local.path());
        assert!(files.len() > 2, "{files:?}");
        for damaged in &files {
            let other = tempfile::tempdir().unwrap();
            for file in &files {
                let mut bytes = std::fs::read(local.path().join(file)).unwrap();
                if file == damaged && !bytes.is_empty() {
                    let at = query.rng.random_range(0..bytes.len());
                    bytes[at] ^= 1 << query.rng.random_range(0..8);
                }
                let to = other.path().join(file);
                std::fs::create_dir_all(to.parent().unwrap()).unwrap();
                std::fs::write(to, bytes).unwrap();
            }
            query.server = Server::start(other, &query.clock);
            // What is damaged is fetched again.
            query.read().unwrap_or_else(|trouble| panic!("{}: {trouble}", damaged.display()));
        }
        query.check_all();
    }
}

/// All files of a folder.
fn files(folder: &Path) -> Vec<PathBuf> {
    let (mut found, mut folders) = (Vec::new(), vec![folder.to_owned()]);
    while let Some(next) = folders.pop() {
        for entry in std::fs::read_dir(next).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.is_file() {
                found.push(path.strip_prefix(folder).unwrap().to_owned());
            }
        }
    }
    found.sort();
    found
}
