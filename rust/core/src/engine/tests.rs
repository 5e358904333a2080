//! Tests of the engine's list of shards and folders: waiting, closing, and the settings that a state fixes forever.

use super::*;
use arrow_array::{Array as _, ArrayRef, BinaryArray, Int64Array, RecordBatch, StringArray, UInt8Array};
use arrow_schema::{DataType, Field, Schema};
use bytes::Bytes;
use fastchangelog_columns::split::Splitter;
use fastchangelog_format::clock::ManualClock;
use fastchangelog_format::error::ErrorKind;
use fastchangelog_format::{FolderNote, decode_note};
use fastchangelog_log::read::IDLE_TIMEOUT;
use fastchangelog_store::failpoint::Failpoints;
use fastchangelog_store::fault::FaultStore;
use fastchangelog_store::metrics::SharedMetrics;
use fastchangelog_store::{FOLDER_META, Store};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

const HOUR: Duration = Duration::from_hours(1);

fn texts(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
}

fn base64_of(fields: Vec<Field>) -> String {
    let mut bytes = Vec::new();
    arrow_ipc::writer::StreamWriter::try_new(&mut bytes, &Schema::new(fields)).unwrap().finish().unwrap();
    BASE64.encode(bytes)
}

/// `count(*)` by a text.
fn spec() -> String {
    let key = || Field::new("k", DataType::Utf8, true);
    let count = serde_json::json!(
        {"fn": "count", "args": [], "where": null, "ignore_nulls": false, "ansi": true, "identity": "count(*)"}
    );
    let output = base64_of(vec![key(), Field::new("n", DataType::Int64, false)]);
    serde_json::json!(
        {"version": 1, "num_keys": 1, "input": base64_of(vec![key()]), "output": output, "aggs": [count]}
    )
    .to_string()
}

/// A machine with an engine, and a bucket in memory that other machines share.
struct World {
    engine: Arc<Engine>,
    clock: Arc<ManualClock>,
    local: tempfile::TempDir,
    root: String,
    spec: String,
    options: BTreeMap<String, String>,
    storage: BTreeMap<String, String>,
}

impl World {
    fn new() -> Self {
        let root = format!("memory://engine-{:032x}/state", rand::random::<u128>());
        let (local, clock) = (tempfile::tempdir().unwrap(), ManualClock::at(1_000));
        let engine = engine(local.path(), &clock, &[("memory_budget", "64MiB")]);
        let options = texts(&[("persist_delay", "0ms")]);
        Self { engine, clock, local, root, spec: spec(), options, storage: BTreeMap::new() }
    }

    /// Another machine with the same bucket.
    fn moved(&self) -> Self {
        let (local, clock) = (tempfile::tempdir().unwrap(), Arc::clone(&self.clock));
        let engine = engine(local.path(), &clock, &[("memory_budget", "64MiB")]);
        let (options, storage) = (self.options.clone(), self.storage.clone());
        Self { engine, clock, local, root: self.root.clone(), spec: self.spec.clone(), options, storage }
    }

    fn request(&self, query: &str, shard: u32, batch: i64, handle: Option<&str>) -> OpenRequest {
        OpenRequest {
            root: self.root.clone(),
            query_id: query.to_owned(),
            name: "default".to_owned(),
            shard,
            shards: 2,
            batch,
            handle: handle.map(str::to_owned),
            operator: Operator::Aggregate,
            spec: self.spec.clone(),
            watermarks: None,
            ephemeral: false,
            options: self.options.clone(),
            storage_options: self.storage.clone(),
            checkpoint: None,
            credentials_expire_at: None,
        }
    }

    fn open(&self, query: &str, shard: u32, batch: i64, handle: Option<&str>) -> Result<Session> {
        self.engine.open(&self.request(query, shard, batch, handle))
    }

    /// One batch of one row for each key of the shard; gives the handle and the greatest count.
    fn batch(&self, query: &str, shard: u32, batch: i64, handle: Option<&str>) -> (String, i64) {
        self.run(self.open(query, shard, batch, handle).unwrap(), shard)
    }

    fn run(&self, mut session: Session, shard: u32) -> (String, i64) {
        let keys: ArrayRef = Arc::new(StringArray::from_iter_values((0..64).map(|n| format!("key {n}"))));
        let rows = RecordBatch::try_from_iter_with_nullable([("k", keys, true)]).unwrap();
        let mut splitter = Splitter::new(&AggSpec::from_json(&self.spec).unwrap(), 2, 128, 1 << 20).unwrap();
        let payloads = [splitter.push(&rows).unwrap(), splitter.finish().unwrap()].concat();
        for (_, payload) in payloads.iter().filter(|(to, _)| *to == shard) {
            session.merge(payload).unwrap();
        }
        let mut counts = Vec::new();
        for batch in session.finish().unwrap() {
            let batch = batch.unwrap();
            let column = batch.column(1).as_any().downcast_ref::<Int64Array>().unwrap();
            counts.extend((0..column.len()).map(|row| column.value(row)));
        }
        assert!(!counts.is_empty() && counts.iter().all(|n| *n == counts[0]), "{counts:?}");
        (format_handle(&session.commit().unwrap().handle.unwrap()), counts[0])
    }

    fn folder(&self, query: &str) -> Store {
        let options = Options::default();
        let store = Store::open(&self.root, &BTreeMap::new(), &options, SharedMetrics::default(), Failpoints::none());
        store.unwrap().child(&fastchangelog_store::state_folder(query, "default"))
    }

    fn note(&self, query: &str) -> Bytes {
        self.engine.runtime.block_on(self.folder(query).get_named(FOLDER_META)).unwrap().unwrap()
    }

    fn write_note(&self, query: &str, bytes: &[u8]) {
        let bytes = Bytes::copy_from_slice(bytes);
        self.engine.runtime.block_on(self.folder(query).put_overwrite(FOLDER_META, bytes)).unwrap();
    }

    /// Folders of shards on the local disk.
    fn local_shards(&self) -> usize {
        std::fs::read_dir(self.local.path().join("shards")).map_or(0, Iterator::count)
    }
}

fn engine(local: &Path, clock: &Arc<ManualClock>, options: &[(&str, &str)]) -> Arc<Engine> {
    Engine::start(EngineConfig {
        local_dir: local.to_owned(),
        options: Options::from_map(&texts(options)).unwrap(),
        clock: Arc::clone(clock) as _,
        metrics: SharedMetrics::default(),
        failpoints: Failpoints::none(),
    })
    .unwrap()
}

fn refused(opened: Result<Session>) -> Error {
    opened.err().expect("an error")
}

#[test]
fn close_idle_removes_unused_downloads() {
    let local = tempfile::tempdir().unwrap();
    let clock = ManualClock::at(0);
    let engine = engine(local.path(), &clock, &[]);
    let inner = FaultStore::in_memory();
    let (options, metrics) = (&engine.process.options, Arc::clone(&engine.process.metrics));
    let store = Store::from_object_store(inner, "q", "test://b/q", options, metrics, Failpoints::none());
    let object = engine.runtime.block_on(async {
        let object = store.put_new("log/a", vec![Bytes::from_static(b"a")]).await.unwrap();
        drop(engine.process.cache.lease(&store, &object).await.unwrap());
        object
    });
    clock.advance(IDLE_TIMEOUT.saturating_sub(Duration::from_secs(1)));
    engine.close_idle();
    assert!(engine.process.cache.contains(&store, &object));
    clock.advance(Duration::from_secs(1));
    engine.close_idle();
    assert!(!engine.process.cache.contains(&store, &object));
}

// Closing what is idle.

#[test]
fn an_idle_shard_with_a_finished_snapshot_is_reopened() {
    let world = World::new();
    let (first, _) = world.batch("q", 0, 0, None);
    let (second, _) = world.batch("q", 0, 1, Some(&first));
    drop(world.open("q", 0, 2, Some(&second)).unwrap());
    let id = world.engine.shards()[0].id.clone();
    let run = world.engine.begin_materialize(&id).unwrap().unwrap();
    run.run().unwrap();
    run.complete().unwrap();
    assert!(world.engine.shards()[0].materializing, "the snapshot waits for a handle");
    world.engine.close_idle();
    assert_eq!(world.engine.shards().len(), 1, "it was used lately");
    world.clock.advance(HOUR);
    world.engine.close_idle();
    assert_eq!((world.engine.shards().len(), world.local_shards(), world.engine.folders.len()), (0, 0, 0));
    assert_eq!(world.batch("q", 0, 2, Some(&second)).1, 3, "the state is what the handle says");
}

#[test]
fn what_is_in_use_is_not_idle_however_long_it_takes() {
    let world = World::new();
    let (first, _) = world.batch("q", 0, 0, None);
    drop(world.open("q", 0, 1, Some(&first)).unwrap());
    let session = world.open("q", 1, 1, None).unwrap();
    let run = world.engine.begin_materialize(&world.engine.shards().iter().find(|s| s.shard == 0).unwrap().id);
    let run = run.unwrap().unwrap();
    world.clock.advance(HOUR);
    world.engine.close_idle();
    assert_eq!(world.engine.shards().len(), 2, "a session, and a materialization");
    run.run().unwrap();
    run.complete().unwrap();
    drop(session);
    world.clock.advance(HOUR);
    world.engine.close_idle();
    assert_eq!((world.engine.shards().len(), world.engine.folders.len()), (0, 0));
}

#[test]
fn hundreds_of_queries_that_have_ended_leave_nothing() {
    let world = World::new();
    let mut held = Vec::new();
    for round in 0..20 {
        for n in 0..10 {
            let query = format!("query {round} {n}");
            drop(world.open(&query, 0, 0, None).unwrap());
            let request = world.request(&query, 0, 0, None);
            held.push(Arc::downgrade(&world.engine.folders.folder(&world.engine.process, &request).unwrap()));
        }
        assert_eq!((world.engine.shards().len(), world.engine.folders.len()), (10, 10));
        world.clock.advance(HOUR);
        world.engine.close_idle();
        // A thread in the background may hold a shard for a moment, and then it is not idle.
        let until = std::time::Instant::now() + Duration::from_mins(1);
        while !world.engine.shards().is_empty() && std::time::Instant::now() < until {
            std::thread::yield_now();
            world.engine.close_idle();
        }
        assert_eq!((world.engine.shards().len(), world.engine.folders.len(), world.local_shards()), (0, 0, 0));
        assert!(held.iter().all(|folder| folder.strong_count() == 0), "neither stores nor log writers are left");
    }
}

// Waiting.

#[test]
fn a_shard_that_takes_its_time_delays_no_other() {
    let world = World::new();
    let (first, _) = world.batch("q", 0, 0, None);
    let (second, _) = world.batch("q", 0, 1, Some(&first));
    let (other, _) = world.batch("q", 1, 0, None);
    let id = world.engine.shards().iter().find(|s| s.shard == 0).unwrap().id.clone();
    let meeting = tempfile::tempdir().unwrap();
    let at = |name: &str| meeting.path().join(name);
    world.engine.failpoints().set(&format!("*=meet({})", meeting.path().display())).unwrap();
    std::fs::write(at("promote.applied"), "wait").unwrap();
    std::thread::scope(|scope| {
        let slow = scope.spawn(|| world.batch("q", 0, 2, Some(&second)));
        while !at("promote.applied.reached").exists() {
            std::thread::yield_now();
        }
        // The state of shard 0 is being changed: a look at it would wait until the end of this test.
        world.clock.advance(HOUR);
        world.engine.close_idle();
        let statuses = world.engine.shards();
        let status = statuses.iter().find(|s| s.id == id).expect("not closed while it is being opened");
        assert!(!status.at_rest && status.state_keys > 0, "{status:?}");
        assert_eq!(world.engine.metrics().state_keys.get(), status.state_keys, "the other one was idle");
        assert!(world.engine.begin_materialize(&id).unwrap().is_none());
        assert_eq!(world.batch("q", 1, 1, Some(&other)).1, 2);
        assert_eq!(world.batch("another", 0, 0, None).1, 1);
        assert!(!slow.is_finished(), "all that was done while it still works");
        std::fs::write(at("promote.applied.go"), "").unwrap();
        assert_eq!(slow.join().unwrap().1, 3);
    });
    assert!(world.engine.shards().iter().all(|s| s.at_rest));
}

// Settings that a folder's note fixes.

#[test]
fn p9_a_damaged_note_is_an_error_and_stays_as_it_is() {
    let world = World::new();
    world.batch("q", 0, 0, None);
    let good = world.note("q");
    let later = std::str::from_utf8(&good).unwrap().replace("\"format\": 2", "\"format\": 3");
    let other = std::str::from_utf8(&good).unwrap().replace("128", "256");
    for (damaged, kind) in [
        (&good[..good.len() / 2], ErrorKind::Corrupt),
        (b"", ErrorKind::Corrupt),
        (other.as_bytes(), ErrorKind::Corrupt),
        (later.as_bytes(), ErrorKind::InvalidArgument),
    ] {
        world.write_note("q", damaged);
        let error = refused(world.moved().open("q", 1, 1, None));
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.message().contains(&format!("{}/q/default/{FOLDER_META}", world.root)), "{error}");
        assert_eq!(world.note("q"), damaged, "what it held may still be had from it");
    }
    world.write_note("q", &good);
    assert_eq!(world.moved().batch("q", 1, 1, None).1, 1);
    assert_eq!(world.note("q"), good, "written once");
}

#[test]
fn the_first_start_fixes_key_groups_for_all_shards() {
    let mut world = World::new();
    let (handle, _) = world.batch("q", 0, 0, None);
    let note = decode_note("note", &world.note("q")).unwrap();
    assert_eq!((note.max_parallelism, note.shards), (128, 2));
    let restarted = world.moved();
    for mut machine in [restarted, World { options: BTreeMap::new(), ..world.moved() }] {
        machine.options.insert("max_parallelism".to_owned(), "64".to_owned());
        for (shard, handle) in [(1, None), (0, Some(handle.as_str()))] {
            let error = refused(machine.open("q", shard, 1, handle));
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
            assert!(error.message().contains("128 key groups"), "{error}");
            assert!(error.message().contains("`max_parallelism` = 128"), "{error}");
        }
    }
    // The same process, and the option said in other words.
    world.options.insert("max_parallelism".to_owned(), "64".to_owned());
    assert!(refused(world.open("q", 1, 1, None)).message().contains("`max_parallelism` = 128"));
    world.options.insert("max_parallelism".to_owned(), "128".to_owned());
    assert_eq!(world.batch("q", 1, 1, None).1, 1);
    // Chosen at the start, left out later.
    world.options.insert("max_parallelism".to_owned(), "256".to_owned());
    drop(world.open("r", 0, 0, None).unwrap());
    world.options.remove("max_parallelism");
    let error = refused(world.open("r", 1, 1, None));
    assert!(error.message().contains("set the option `max_parallelism` = 256"), "{error}");
}

#[test]
fn an_option_that_no_state_can_have_is_not_noted() {
    let mut world = World::new();
    for wrong in ["1", "40000", "70000"] {
        world.options.insert("max_parallelism".to_owned(), wrong.to_owned());
        assert!(refused(world.open("q", 0, 0, None)).message().contains("max_parallelism"));
    }
    world.options.remove("max_parallelism");
    assert_eq!(world.batch("q", 0, 0, None).1, 1);
    let FolderNote { query_id, start_from, .. } = decode_note("note", &world.note("q")).unwrap();
    assert_eq!((query_id.as_str(), start_from), ("q", None));
}

#[test]
fn p6_the_note_keeps_the_longest_grace_of_any_server() {
    let mut world = World::new();
    let noted = |world: &World| decode_note("note", &world.note("q")).unwrap().sweep_grace_seconds;
    let set = |world: &mut World, grace: &str| world.options.insert("sweep_grace".to_owned(), grace.to_owned());
    set(&mut world, "2h");
    let (handle, _) = world.batch("q", 0, 0, None);
    assert_eq!(noted(&world), 7_200);
    for (grace, expected) in [("1h", 7_200), ("3h", 10_800), ("2h", 10_800)] {
        set(&mut world, grace);
        drop(world.moved().open("q", 0, 1, Some(&handle)).unwrap());
        assert_eq!(noted(&world), expected, "{grace}");
        assert_eq!(decode_note("note", &world.note("q")).unwrap().max_parallelism, 128);
    }
}

// Credentials and other settings of a query that comes back.

#[test]
fn ten_thousand_sets_of_credentials_leave_one_folder() {
    let mut world = World::new();
    world.root = "s3://bucket/state".to_owned();
    world.storage = texts(&[("region", "eu-west-1")]);
    let mut seen = Vec::new();
    for n in 0..10_000_u64 {
        let keys = [("aws_access_key_id", format!("key {n}")), ("secret_access_key", format!("secret {n}"))];
        world.storage.extend(keys.map(|(name, value)| (name.to_owned(), value)));
        let mut request = world.request("q", 0, 0, None);
        request.credentials_expire_at = Some(1_000_000 + n);
        let folder = world.engine.folders.folder(&world.engine.process, &request).unwrap();
        if seen.is_empty() {
            seen.push(Arc::downgrade(&folder));
        }
        assert!(std::ptr::eq(seen[0].as_ptr(), Arc::as_ptr(&folder)), "one store, one client, one log: set {n}");
    }
    assert_eq!(world.engine.folders.len(), 1);
    world.engine.close_idle();
    assert_eq!((world.engine.folders.len(), seen[0].strong_count()), (0, 0));
}

#[test]
fn changed_settings_hold_from_the_next_session_on() {
    let mut world = World::new();
    let (first, _) = world.batch("q", 0, 0, None);
    let open = world.open("q", 0, 1, Some(&first)).unwrap();
    let of = |world: &World| world.engine.shards.lock().values().next().unwrap().shard.context().options.clone();
    assert_eq!(of(&world).max_handle_segments, Options::default().max_handle_segments);
    world.options.insert("max_handle_segments".to_owned(), "7".to_owned());
    let (second, count) = world.batch("q", 0, 1, Some(&first));
    assert_eq!((of(&world).max_handle_segments, count, world.engine.shards().len()), (7, 2, 1));
    // The attempt of before: a version like any other, that Spark may keep or drop.
    assert_eq!(world.run(open, 0).1, 2);
    assert_eq!(world.local_shards(), 1, "what was opened with other settings ends with its last session");
    world.storage = texts(&[("region", "eu-west-1")]);
    assert_eq!(world.batch("q", 0, 2, Some(&second)).1, 3);
    assert_eq!((world.engine.folders.len(), world.local_shards()), (1, 1));
    // An impossible setting is an error and changes nothing.
    world.options.insert("max_handle_segments".to_owned(), "many".to_owned());
    assert!(refused(world.open("q", 0, 3, None)).message().contains("max_handle_segments"));
    assert_eq!(world.engine.folders.len(), 1);
}

#[test]
fn a_materialization_waits_for_credentials_that_are_good() {
    let mut world = World::new();
    world.storage = texts(&[("access_key_id", "a"), ("secret_access_key", "s")]);
    let open = |world: &World, batch, handle: Option<&str>, end| {
        let mut request = world.request("q", 0, batch, handle);
        request.credentials_expire_at = Some(end);
        world.engine.open(&request).unwrap()
    };
    let (first, _) = world.run(open(&world, 0, None, 10_000), 0);
    drop(open(&world, 1, Some(&first), 10_000));
    let id = world.engine.shards()[0].id.clone();
    assert!(world.engine.shards()[0].at_rest);
    world.clock.advance(Duration::from_secs(9));
    assert!(!world.engine.shards()[0].at_rest, "the credentials have ended");
    assert!(world.engine.begin_materialize(&id).unwrap().is_none(), "it would fail, and count as a failure");
    let renewal = serde_json::json!({
        "root": world.root, "query_id": "q", "name": "default", "credentials_expire_at": 99_000,
        "storage_options": {"access_key_id": "b", "secret_access_key": "s"},
    });
    world.engine.renew(Renewal::parse(&renewal.to_string()).unwrap());
    assert!(world.engine.shards()[0].at_rest);
    world.engine.begin_materialize(&id).unwrap().expect("a run").abort("a test");
}

#[test]
fn a_processor_session_continues_at_another_machine() {
    let world = World::new();
    let catalog = r#"[{"id":0,"name":"seen","kind":"value"}]"#;
    let open = |world: &World, shard: u32, batch: i64, handle: Option<&str>| {
        let request = world.request("q", shard, batch, handle);
        let mut text = serde_json::to_value(&request).unwrap();
        text["operator"] = "processor".into();
        text.as_object_mut().unwrap().remove("spec");
        let mut session = world.engine.open_states(&OpenRequest::parse(&text.to_string()).unwrap()).unwrap();
        session.call(&StateCall::Declare { catalog: catalog.to_owned(), now: 0 }, &[]).unwrap();
        session
    };
    let put = |session: &mut StateSession, key: &str| {
        let (keys, ops) = (BinaryArray::from_vec(vec![key.as_bytes()]), UInt8Array::from(vec![1]));
        let (call, columns) = StateCall::write(StateId(0), ops, keys.clone(), None, Some(keys), None);
        session.call(&call, &columns)
    };
    let mut handles = Vec::new();
    let mut owners = [0, 0];
    for shard in 0..2 {
        let mut session = open(&world, shard, 0, None);
        for key in (0..20).map(|i| format!("key {i}")) {
            match put(&mut session, &key) {
                Ok(_) => owners[shard as usize] += 1,
                Err(error) => assert!(error.message().contains("key group"), "{error}"),
            }
        }
        handles.push(format_handle(&session.commit(None).unwrap().handle.unwrap()));
    }
    assert_eq!(owners[0] + owners[1], 20, "each key is in one shard");
    let other = world.moved();
    let found: usize = (0..2)
        .map(|shard: u32| {
            let mut session = open(&other, shard, 1, Some(&handles[shard as usize]));
            assert_eq!(session.catalog(), catalog);
            let all = StateCall::Scan { state: 0, after: None, max_bytes: u64::MAX };
            session.call(&all, &[]).unwrap().columns[0].len()
        })
        .sum();
    assert_eq!(found, 20);
    let error = refused(other.open("q", 0, 1, Some(&handles[0])));
    assert_eq!(error.kind(), ErrorKind::SchemaMismatch, "an aggregation is not a processor: {error}");

    let mut request = world.request("none", 0, 0, None);
    request.ephemeral = true;
    let mut session = world.engine.open_states(&request).unwrap();
    session.call(&StateCall::Declare { catalog: catalog.to_owned(), now: 0 }, &[]).unwrap();
    put(&mut session, "a").unwrap();
    assert!(session.commit(None).unwrap().handle.is_none());
    world.engine.close();
    assert_eq!(world.engine.open_states(&request).map(drop).unwrap_err().kind(), ErrorKind::Retryable);
}

#[test]
fn no_form_of_a_request_shows_a_credential() {
    let mut world = World::new();
    world.storage = texts(&[("secret_access_key", "open-sesame")]);
    assert!(!format!("{:?}", world.request("q", 0, 0, None)).contains("sesame"));
    let text = r#"{"root": "r", "query_id": "q", "name": "n", "storage_options": "open-sesame"}"#;
    assert!(!Renewal::parse(text).unwrap_err().message().contains("sesame"));
    let text = r#"{"root": "r", "query_id": "q", "name": "n", "storage_options": {"token": "open-sesame"}}"#;
    assert!(!format!("{:?}", Renewal::parse(text).unwrap()).contains("sesame"));
    let text = text.replace(r#""name""#, r#""shard": "open-sesame", "name""#);
    assert!(!OpenRequest::parse(&text).unwrap_err().message().contains("sesame"));
}
