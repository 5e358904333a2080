//! The server and its client against a fake backend that fails at will.

use super::*;
use crate::backend::{OpenedSession, ResultStream, SessionBackend};
use crate::client::{Client, ClientSettings, SessionClient};
use crate::protocol::HandleBody;
use arrow_array::{Int64Array, RecordBatch};
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use fastchangelog_format::clock::SystemClock;
use fastchangelog_store::failpoint::Failpoints;
use fastchangelog_store::metrics::{LabelledShard, SharedMetrics};
use std::io::Read;
use std::sync::mpsc;
use tempfile::TempDir;

#[derive(Default)]
struct Fake {
    committed: AtomicU64,
    aborted: AtomicU64,
    /// Commits wait for a message here, if there is one.
    gate: Mutex<Option<mpsc::Receiver<()>>>,
    /// Called when a session of the state "slow" is opened, before its shard is there.
    opening: Mutex<Option<Box<dyn FnMut() + Send>>>,
    slow: AtomicBool,
    renewals: Mutex<Vec<String>>,
    /// Sessions ask for a commit after their results.
    after_results: AtomicBool,
    /// Result batches given; and how many it were when a commit began.
    given: AtomicU64,
    given_at_commit: AtomicU64,
}

impl Backend for Fake {
    fn open(self: Arc<Self>, request: &str) -> Result<OpenedSession> {
        let request: Value = serde_json::from_str(request).unwrap();
        if request["name"] == "missing" {
            return Err(Error::not_found("no such state"));
        }
        if request["name"] == "slow" {
            let opening = self.opening.lock().take();
            opening.into_iter().for_each(|mut opening| opening());
            self.slow.store(true, Ordering::SeqCst);
        }
        Ok(OpenedSession::Aggregate(Box::new(FakeSession { fake: self, rows: vec![], bytes: 0, committed: false })))
    }

    fn renew(&self, renewal: &str) -> Result<()> {
        self.renewals.lock().push(renewal.to_owned());
        Ok(())
    }

    fn shards(&self) -> Vec<Value> {
        let slow = json!({"id": "q/slow/0", "query_id": "q", "name": "slow", "shard": 0});
        let first = json!({"id": "q/default/0", "query_id": "q", "name": "default", "shard": 0});
        if self.slow.load(Ordering::SeqCst) { vec![first, slow] } else { vec![first] }
    }

    fn begin_materialize(&self, _: &str) -> Result<Option<Box<dyn MaterializeBackend>>> {
        Ok(None)
    }

    fn metrics(&self) -> SharedMetrics {
        SharedMetrics::default()
    }

    fn shard_gauges(&self) -> Vec<LabelledShard> {
        Vec::new()
    }

    fn close_idle(&self) {}

    fn close(&self) {}
}

struct FakeSession {
    fake: Arc<Fake>,
    rows: Vec<i64>,
    bytes: usize,
    committed: bool,
}

impl SessionBackend for FakeSession {
    fn merge(&mut self, payload: &[u8]) -> Result<()> {
        match payload {
            b"fail" => return Err(Error::corrupt("log/ab", 3, "checksum")),
            b"panic" => panic!("a bug"),
            _ => {}
        }
        self.rows.push(i64::try_from(payload.len()).unwrap());
        self.bytes += payload.len();
        Ok(())
    }

    fn finish(&mut self) -> Result<Box<dyn ResultStream>> {
        Ok(Box::new(FakeResults { fake: Arc::clone(&self.fake), rows: std::mem::take(&mut self.rows), at: 0 }))
    }

    fn commits_after_results(&self) -> bool {
        self.fake.after_results.load(Ordering::SeqCst)
    }

    fn commit(&mut self) -> Result<HandleBody> {
        if let Some(gate) = &*self.fake.gate.lock() {
            gate.recv().unwrap();
        }
        self.committed = true;
        self.fake.given_at_commit.store(self.fake.given.load(Ordering::SeqCst), Ordering::SeqCst);
        self.fake.committed.fetch_add(1, Ordering::SeqCst);
        let metrics = BTreeMap::from([("bytes".to_owned(), self.bytes as u64)]);
        Ok(HandleBody { handle: "handle".to_owned(), metrics, next_close: Some(-7) })
    }
}

impl Drop for FakeSession {
    fn drop(&mut self) {
        if !self.committed {
            self.fake.aborted.fetch_add(1, Ordering::SeqCst);
        }
    }
}

/// One batch per payload: as many rows as the payload has bytes, each holding the payload's number.
struct FakeResults {
    fake: Arc<Fake>,
    rows: Vec<i64>,
    at: usize,
}

impl Iterator for FakeResults {
    type Item = Result<RecordBatch>;

    fn next(&mut self) -> Option<Self::Item> {
        let rows = *self.rows.get(self.at)?;
        let column = Int64Array::from(vec![i64::try_from(self.at).unwrap(); usize::try_from(rows).unwrap()]);
        self.at += 1;
        self.fake.given.fetch_add(1, Ordering::SeqCst);
        Some(RecordBatch::try_new(self.schema(), vec![Arc::new(column)]).map_err(Error::from))
    }
}

impl ResultStream for FakeResults {
    fn schema(&self) -> SchemaRef {
        Arc::new(Schema::new(vec![Field::new("n", DataType::Int64, true)]))
    }
}

struct World {
    dir: TempDir,
    fake: Arc<Fake>,
    server: Server,
}

fn world_with(max_connections: usize, max_message: u64) -> World {
    let dir = tempfile::tempdir().unwrap();
    let fake = Arc::new(Fake::default());
    let log = LogFile::open(&dir.path().join("server.log"), 1 << 20, false, SystemClock::shared()).unwrap();
    let settings = ServerSettings { socket: dir.path().join("s"), max_connections, max_message, metrics_port: None };
    let server = Server::start(&settings, fake.clone(), log, Failpoints::none()).unwrap();
    World { dir, fake, server }
}

fn world() -> World {
    world_with(64, 64 << 20)
}

fn settings(world: &World) -> ClientSettings {
    ClientSettings {
        socket: world.dir.path().join("s"),
        log: "the/server.log".to_owned(),
        timeout: Duration::from_secs(20),
        max_message: 64 << 20,
    }
}

#[expect(clippy::unnecessary_wraps, reason = "the shape of a tick")]
fn quiet() -> Result<()> {
    Ok(())
}

const REQUEST: &str = r#"{"query_id":"q","name":"default","shard":0,"shards":2,"batch":7,"options":{"materialization_interval":"1s","compression":"lz4"}}"#;

fn session(world: &World) -> SessionClient {
    SessionClient::open(settings(world), REQUEST, &quiet).unwrap()
}

fn until(what: &str, done: impl Fn() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(20), "{what}");
        std::thread::yield_now();
    }
}

fn log_lines(world: &World) -> Vec<Value> {
    let text = std::fs::read_to_string(world.dir.path().join("server.log")).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn a_session_from_open_to_handle() {
    let world = world();
    for persist in [false, true] {
        let mut session = session(&world);
        session.merge(b"abc", &quiet).unwrap();
        session.merge(&vec![7; 3 << 20], &quiet).unwrap();
        let schema = session.finish(persist, &quiet).unwrap();
        assert_eq!(schema.field(0).name(), "n");
        assert_eq!(session.next_batch(&quiet).unwrap().unwrap().num_rows(), 3);
        // 24 MiB of one batch: many frames, put together again.
        assert_eq!(session.next_batch(&quiet).unwrap().unwrap().num_rows(), 3 << 20);
        assert!(session.next_batch(&quiet).unwrap().is_none());
        let HandleBody { handle, metrics, next_close } = session.commit(&quiet).unwrap();
        assert_eq!((&*handle, next_close), ("handle", Some(-7)));
        assert_eq!((metrics["bytes"], metrics["payloads"], metrics["result_rows"]), (3 + (3 << 20), 2, 3 + (3 << 20)));
    }
    assert_eq!(world.fake.committed.load(Ordering::SeqCst), 2);
    let lines = log_lines(&world);
    assert_eq!(lines.len(), 2, "one line per session");
    assert_eq!((lines[0]["outcome"].as_str(), lines[0]["batch"].as_i64()), (Some("committed"), Some(7)));
    assert!(lines[0]["steps"]["commit_wait_micros"].is_u64());
}

#[test]
fn a_batch_without_rows_has_a_schema_and_a_handle() {
    let world = world();
    let mut session = session(&world);
    assert_eq!(session.finish(true, &quiet).unwrap().fields().len(), 1);
    assert!(session.next_batch(&quiet).unwrap().is_none());
    assert_eq!(session.commit(&quiet).unwrap().handle, "handle");
}

#[test]
fn results_travel_while_the_commit_runs() {
    let world = world();
    let (open, gate) = mpsc::channel();
    *world.fake.gate.lock() = Some(gate);
    let mut session = session(&world);
    session.merge(b"ab", &quiet).unwrap();
    session.finish(true, &quiet).unwrap();
    assert_eq!(session.next_batch(&quiet).unwrap().unwrap().num_rows(), 2);
    assert!(session.next_batch(&quiet).unwrap().is_none(), "all results are here, the commit still waits");
    assert_eq!(world.fake.committed.load(Ordering::SeqCst), 0);
    open.send(()).unwrap();
    session.commit(&quiet).unwrap();
    assert_eq!(world.fake.committed.load(Ordering::SeqCst), 1);
}

#[test]
fn credentials_are_renewed_while_a_session_commits() {
    let world = world();
    let (open, gate) = mpsc::channel();
    *world.fake.gate.lock() = Some(gate);
    let mut session = session(&world);
    session.finish(true, &quiet).unwrap();
    let mut other = Client::connect(settings(&world), &quiet).unwrap();
    assert_eq!(other.call(Kind::Renew, b"open-sesame", &quiet).unwrap().0, Kind::Ok);
    assert_eq!(*world.fake.renewals.lock(), ["open-sesame"]);
    assert!(other.call(Kind::Renew, b"\xff", &quiet).is_err());
    open.send(()).unwrap();
    session.commit(&quiet).unwrap();
    assert!(!log_lines(&world).iter().any(|line| line.to_string().contains("sesame")), "nothing of it is logged");
}

#[test]
fn a_commit_after_results_begins_without_a_request() {
    let world = world();
    world.fake.after_results.store(true, Ordering::SeqCst);
    let mut session = session(&world);
    (0..3).for_each(|_| session.merge(&vec![7; 4 << 20], &quiet).unwrap());
    session.finish(true, &quiet).unwrap();
    session.next_batch(&quiet).unwrap().unwrap();
    // Two batches of 32 MiB do not fit into the socket: the server is at most at the next one.
    assert_eq!(world.fake.committed.load(Ordering::SeqCst), 0);
    while session.next_batch(&quiet).unwrap().is_some() {}
    until("the commit begins", || world.fake.committed.load(Ordering::SeqCst) == 1);
    assert_eq!(world.fake.given_at_commit.load(Ordering::SeqCst), 3);
    session.commit(&quiet).unwrap();
}

#[test]
fn a_closed_connection_is_an_abort() {
    let world = world();
    let mut first = session(&world);
    first.merge(b"abc", &quiet).unwrap();
    first.close();
    assert!(first.merge(b"abc", &quiet).unwrap_err().message().contains("closed"));
    let mut second = session(&world);
    second.finish(false, &quiet).unwrap();
    drop(second);
    until("both sessions abort", || world.fake.aborted.load(Ordering::SeqCst) == 2);
    until("their threads end", || world.server.connections() == 0);
    assert!(log_lines(&world).iter().all(|line| line["outcome"] == "aborted"));
}

#[test]
fn errors_of_payloads_reach_the_next_call() {
    let world = world();
    let mut session = session(&world);
    session.merge(b"fail", &quiet).unwrap();
    for _ in 0..200 {
        // Payloads after the failed one are thrown away, or refused once the error has arrived.
        if session.merge(&vec![0; 100_000], &quiet).is_err() {
            break;
        }
    }
    let error = session.finish(true, &quiet).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.subject().unwrap().to_string() == "log/ab" && error.remedy().unwrap().contains("backup"), "{error}");
    assert_eq!(session.commit(&quiet).unwrap_err().kind(), ErrorKind::Corrupt, "the first error is repeated");
    assert_eq!(world.fake.aborted.load(Ordering::SeqCst), 1);
}

#[test]
fn a_panic_fails_one_connection_only() {
    let world = world();
    let mut bad = session(&world);
    bad.merge(b"panic", &quiet).unwrap();
    let error = bad.finish(false, &quiet).unwrap_err();
    assert!(error.what().contains("a bug") && error.remedy().unwrap().ends_with("the/server.log"), "{error}");
    let mut good = session(&world);
    good.finish(false, &quiet).unwrap();
    good.commit(&quiet).unwrap();
}

#[test]
fn open_errors_keep_their_kind() {
    let world = world();
    let error = SessionClient::open(settings(&world), r#"{"name":"missing"}"#, &quiet).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
}

#[test]
fn requests_out_of_turn_are_errors() {
    let world = world();
    let mut client = Client::connect(settings(&world), &quiet).unwrap();
    assert!(client.call(Kind::Commit, &[], &quiet).unwrap_err().message().contains("out of turn"));
    let mut committed = session(&world);
    committed.finish(false, &quiet).unwrap();
    committed.commit(&quiet).unwrap();
    assert!(committed.commit(&quiet).unwrap_err().message().contains("out of turn"));
}

#[test]
fn too_many_connections_are_refused_with_a_remedy() {
    let world = world_with(2, 1 << 20);
    let kept = [session(&world), session(&world)];
    let error = SessionClient::open(settings(&world), REQUEST, &quiet).unwrap_err();
    assert!(error.is_retryable() && error.message().contains("`spark.executor.cores`"), "{error}");
    drop(kept);
    until("places are given back", || SessionClient::open(settings(&world), REQUEST, &quiet).is_ok());
}

#[test]
fn too_large_a_payload_is_refused_on_both_sides() {
    let world = world_with(4, 1000);
    let mut client =
        SessionClient::open(ClientSettings { max_message: 500, ..settings(&world) }, REQUEST, &quiet).unwrap();
    assert!(client.merge(&[0; 501], &quiet).unwrap_err().message().contains("the limit is 500 bytes"));
    client.merge(&[0; 500], &quiet).unwrap();
    let mut client = session(&world);
    client.merge(&[0; 1001], &quiet).unwrap();
    let error = client.finish(false, &quiet).unwrap_err();
    assert!(error.message().contains("the limit is 1000 bytes"), "{error}");
}

#[test]
fn another_version_is_told_apart() {
    let world = world();
    let mut stream = UnixStream::connect(world.dir.path().join("s")).unwrap();
    stream.write_all(&protocol::hello_of(99, "0.0.9")).unwrap();
    protocol::read_hello(&mut stream, "the state server").unwrap();
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).unwrap();
    assert!(rest.is_empty(), "nothing is served to another version");
    until("the refusal is logged", || !log_lines(&world).is_empty());
    let text = log_lines(&world)[0]["error"].as_str().unwrap().to_owned();
    assert!(text.contains("two fastchangelog versions") && text.contains("0.0.9"), "{text}");
}

#[test]
fn a_dead_server_is_retryable_and_names_its_log() {
    let world = world();
    let mut session = session(&world);
    session.merge(b"abc", &quiet).unwrap();
    assert!(world.server.stop(Duration::from_secs(20)), "all threads ended");
    let error = session.finish(false, &quiet).unwrap_err();
    assert!(error.is_retryable() && error.message().contains("the/server.log"), "{error}");
    let error = SessionClient::open(settings(&world), REQUEST, &quiet).unwrap_err();
    assert!(error.is_retryable() && error.message().contains("the/server.log"), "{error}");
}

#[test]
fn a_silent_server_is_given_up_and_ctrl_c_is_heard() {
    let dir = tempfile::tempdir().unwrap();
    let _listener = UnixListener::bind(dir.path().join("s")).unwrap();
    let settings = ClientSettings {
        socket: dir.path().join("s"),
        log: "the/server.log".to_owned(),
        timeout: Duration::from_millis(1),
        max_message: 1000,
    };
    let error = Client::connect(settings.clone(), &quiet).unwrap_err();
    assert!(error.is_retryable() && error.message().contains("for 1ms; read its log, the/server.log"), "{error}");
    let ticks = AtomicU64::new(0);
    let interrupt = || {
        ticks.fetch_add(1, Ordering::SeqCst);
        Err(Error::closed("interrupted"))
    };
    let patient = ClientSettings { timeout: Duration::from_mins(10), ..settings };
    assert_eq!(Client::connect(patient, &interrupt).unwrap_err().message(), "interrupted");
    assert_eq!(ticks.load(Ordering::SeqCst), 1);
}

#[test]
fn shards_carry_the_policy_of_their_query() {
    let world = world();
    drop(session(&world));
    let shards = world.server.shards();
    assert_eq!(shards[0]["policy"], json!({"materialization_interval": "1s"}));
    world.server.shared.set_shard_failure("q/default/0", Some("materialization failed 4 times in a row"));
    let error = SessionClient::open(settings(&world), REQUEST, &quiet).unwrap_err();
    assert_eq!((error.kind(), error.message()), (ErrorKind::Store, "materialization failed 4 times in a row"));
    assert_eq!(world.server.shards()[0]["refused"], 1);
    world.server.shared.set_shard_failure("q/default/0", Some("materialization failed 5 times in a row"));
    assert_eq!(world.server.shards()[0]["refused"], 1, "the same failure");
    world.server.shared.set_shard_failure("q/default/0", None);
    session(&world);
    assert_eq!(world.server.shards()[0]["refused"], 0);
}

#[test]
fn a_policy_is_kept_while_its_shard_is_being_opened() {
    let world = world();
    let (begun, go) = (mpsc::channel(), mpsc::channel::<()>());
    *world.fake.opening.lock() = Some(Box::new(move || {
        begun.0.send(()).unwrap();
        go.1.recv().unwrap();
    }));
    let request = REQUEST.replace("\"default\"", "\"slow\"");
    std::thread::scope(|scope| {
        let opened = scope.spawn(|| SessionClient::open(settings(&world), &request, &quiet));
        begun.1.recv().unwrap();
        // The store is slow: a request for the shards meanwhile does not show this one.
        assert_eq!(world.server.shards().len(), 1);
        go.0.send(()).unwrap();
        opened.join().unwrap().unwrap();
    });
    let policy = |i: usize| world.server.shards()[i]["policy"].clone();
    assert_eq!(policy(1), json!({"materialization_interval": "1s"}));
    world.fake.slow.store(false, Ordering::SeqCst);
    world.server.shards();
    world.fake.slow.store(true, Ordering::SeqCst);
    assert_eq!(policy(1), Value::Null, "what has no shard any more is forgotten");
}

#[test]
fn requests_without_a_session() {
    let world = world();
    let mut client = Client::connect(settings(&world), &quiet).unwrap();
    assert_eq!(client.call(Kind::Ping, &[], &quiet).unwrap().0, Kind::Ok);
    let (_, metrics) = client.call(Kind::Metrics, &[], &quiet).unwrap();
    assert_eq!(serde_json::from_slice::<Value>(&metrics).unwrap()["server_connections"], 1);
    let (_, shards) = client.call(Kind::Shards, &[], &quiet).unwrap();
    assert_eq!(serde_json::from_slice::<Value>(&shards).unwrap()[0]["id"], "q/default/0");
    assert!(client.call(Kind::SetFailpoints, b"x=explode", &quiet).is_err());
    let mut client = Client::connect(settings(&world), &quiet).unwrap();
    client.call(Kind::SetFailpoints, b"x=error", &quiet).unwrap();
    assert!(!world.server.shutdown_requested());
    client.call(Kind::Shutdown, &[], &quiet).unwrap();
    assert!(world.server.shutdown_requested());
}

#[test]
fn the_socket_belongs_to_its_user_and_goes_with_the_server() {
    let world = world();
    let path = world.dir.path().join("s");
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(world.server.stop(Duration::from_secs(20)));
    assert!(!path.exists());
    assert!(world.server.stop(Duration::ZERO), "again is harmless");
}

#[test]
fn many_sessions_at_once() {
    let world = world();
    std::thread::scope(|scope| {
        for i in 1..=32usize {
            let world = &world;
            scope.spawn(move || {
                let mut session = session(world);
                (0..i).for_each(|_| session.merge(&vec![1; i], &quiet).unwrap());
                session.finish(i % 2 == 0, &quiet).unwrap();
                let batches = std::iter::from_fn(|| session.next_batch(&quiet).unwrap());
                assert_eq!(batches.map(|batch| batch.num_rows()).sum::<usize>(), i * i);
                session.commit(&quiet).unwrap();
            });
        }
    });
    assert_eq!(world.fake.committed.load(Ordering::SeqCst), 32);
}
