//! State sessions over the socket, against a fake backend.

use crate::client::{Client, ClientSettings, SessionClient};
use crate::logfile::LogFile;
use crate::protocol::{self, HEADER, HandleBody, Header, Kind};
use crate::server::{Server, ServerSettings};
use crate::state_client::StateSessionClient;
use crate::state_fake::{Entries, Fake, PUT, pair};
use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{Array, BinaryArray, BooleanArray, ListArray, UInt8Array};
use fastchangelog_core::engine::{Reply, StateCall};
use fastchangelog_format::clock::SystemClock;
use fastchangelog_format::model::StateId;
use fastchangelog_format::{ErrorKind, Result};
use fastchangelog_store::failpoint::Failpoints;
use proptest::prelude::*;
use serde_json::Value;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tempfile::TempDir;

const DELETE: u8 = 2;

struct World {
    dir: TempDir,
    fake: Arc<Fake>,
    _server: Server,
}

fn world_with(max_message: u64) -> World {
    let dir = tempfile::tempdir().unwrap();
    let fake = Arc::new(Fake::default());
    let log = LogFile::open(&dir.path().join("server.log"), 1 << 20, false, SystemClock::shared()).unwrap();
    let settings =
        ServerSettings { socket: dir.path().join("s"), max_connections: 64, max_message, metrics_port: None };
    let server = Server::start(&settings, fake.clone(), log, Failpoints::none()).unwrap();
    World { dir, fake, _server: server }
}

fn world() -> World {
    world_with(64 << 20)
}

#[expect(clippy::unnecessary_wraps, reason = "the shape of a tick")]
fn quiet() -> Result<()> {
    Ok(())
}

const REQUEST: &str = r#"{"query_id":"q","name":"default","shard":0,"batch":7,"operator":"processor"}"#;
const N: u16 = 3;

fn settings(world: &World) -> ClientSettings {
    ClientSettings {
        socket: world.dir.path().join("s"),
        log: "the/server.log".to_owned(),
        timeout: Duration::from_secs(20),
        max_message: 64 << 20,
    }
}

fn session(world: &World) -> StateSessionClient {
    StateSessionClient::open(settings(world), REQUEST, &quiet).unwrap()
}

fn declared(world: &World) -> StateSessionClient {
    let mut session = session(world);
    declare(&mut session, "[]", 5).unwrap();
    session
}

fn bytes(values: &[&[u8]]) -> BinaryArray {
    BinaryArray::from(values.to_vec())
}

/// A call without columns.
fn ask(session: &mut StateSessionClient, call: &StateCall) -> Result<Reply> {
    session.call(call, vec![], &quiet)
}

fn declare(session: &mut StateSessionClient, catalog: &str, now: i64) -> Result<()> {
    ask(session, &StateCall::Declare { catalog: catalog.to_owned(), now }).map(drop)
}

fn get(session: &mut StateSessionClient, state: u16, keys: BinaryArray) -> Result<BinaryArray> {
    let reply = session.call(&StateCall::Get { state }, vec![Arc::new(keys)], &quiet)?;
    Ok(reply.columns[0].as_binary().clone())
}

fn first_entries(
    session: &mut StateSessionClient,
    keys: BinaryArray,
    max_bytes: u64,
) -> Result<(ListArray, BooleanArray)> {
    let reply = session.call(&StateCall::Entries { state: N, max_bytes }, vec![Arc::new(keys)], &quiet)?;
    Ok((reply.columns[0].as_list().clone(), reply.columns[1].as_boolean().clone()))
}

fn page(session: &mut StateSessionClient, key: &[u8], after: Option<Vec<u8>>) -> Result<Reply> {
    ask(session, &StateCall::Page { state: N, key: key.to_vec(), after, max_bytes: 12 })
}

fn scan(session: &mut StateSessionClient, after: Option<Vec<u8>>) -> Result<Reply> {
    ask(session, &StateCall::Scan { state: N, after, max_bytes: 1 })
}

fn write(
    session: &mut StateSessionClient,
    op: u8,
    keys: BinaryArray,
    subs: Option<BinaryArray>,
    values: Option<BinaryArray>,
    expires_at: Option<i64>,
) -> Result<()> {
    let ops = UInt8Array::from(vec![op; keys.len()]);
    let (call, columns) = StateCall::write(StateId(N), ops, keys, subs, values, expires_at);
    session.call(&call, columns, &quiet).map(drop)
}

fn put(session: &mut StateSessionClient, entries: &[(&[u8], &[u8])], expires_at: Option<i64>) -> Result<()> {
    let (keys, values): (Vec<&[u8]>, Vec<&[u8]>) = entries.iter().copied().unzip();
    write(session, PUT, bytes(&keys), None, Some(bytes(&values)), expires_at)
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
fn a_session_from_declaration_to_handle() {
    let world = world();
    let mut session = session(&world);
    assert_eq!((session.catalog(), session.watermark()), ("[{}]", Some(-7)));
    declare(&mut session, r#"[{"id":3}]"#, 1_000).unwrap();
    put(&mut session, &[(b"a", b"1"), (b"b", b"2")], None).unwrap();
    let found = get(&mut session, N, bytes(&[b"b", b"x", b"a"])).unwrap();
    assert_eq!(found, BinaryArray::from(vec![Some(&b"2"[..]), None, Some(b"1")]));
    assert_eq!(ask(&mut session, &StateCall::NextTimer).unwrap().time, Some(3));
    write(&mut session, DELETE, bytes(&[b"a"]), Some(bytes(&[b"sub"])), None, Some(8)).unwrap();
    let HandleBody { handle, metrics, .. } = session.commit(Some(77), &quiet).unwrap();
    assert_eq!((&handle[..], metrics["changes"], metrics["write_calls"], metrics["write_rows"]), ("handle", 3, 2, 3));
    let kept = Entries::from([((3, b"b".to_vec()), b"2".to_vec())]);
    assert_eq!(*world.fake.committed.lock(), [(Some(77), kept)]);
    assert_eq!(world.fake.calls.lock().concat(), r#"declare [{"id":3}] 1000write 3 2 Nonewrite 3 1 Some(1)"#);
    let lines = log_lines(&world);
    assert_eq!(lines.len(), 1, "one line per session");
    let (steps, line) = (&lines[0]["steps"], &lines[0]);
    assert_eq!((line["outcome"].as_str(), line["operator"].as_str()), (Some("committed"), Some("processor")));
    assert_eq!((steps["get_calls"].as_u64(), steps["get_rows"].as_u64()), (Some(1), Some(3)));
    for step in ["open", "declare", "get", "write", "next_timer", "commit_wait", "session"] {
        assert!(steps[format!("{step}_micros")].is_u64(), "{step}: {steps}");
    }
    assert!(steps["received_bytes"].as_u64() > Some(0) && steps["sent_bytes"].as_u64() > Some(0));
}

#[test]
fn every_read_brings_its_arguments_there_and_its_columns_back() {
    let world = world();
    let mut session = declared(&world);
    let (entries, more) = first_entries(&mut session, bytes(&[b"ab", b"", b"xyz"]), 99).unwrap();
    assert_eq!(entries.offsets().lengths().collect::<Vec<_>>(), [2, 0, 3]);
    let last = entries.value(2);
    assert_eq!(last.as_struct().column(1).as_binary::<i32>(), &bytes(&[b"xyz", b"yz", b"z"]));
    assert_eq!(last.as_struct().column(0).null_count(), 3);
    assert_eq!(more, BooleanArray::from(vec![false, false, true]));
    let reply = page(&mut session, b"\0key", None).unwrap();
    assert_eq!((reply.columns, reply.cursor.as_deref()), (pair(b"\0key", b"from the start"), Some(&b"\xffnext"[..])));
    let reply = page(&mut session, b"", reply.cursor).unwrap();
    assert_eq!((reply.columns, reply.cursor), (pair(b"", b"\xffnext"), None));
    for (keys, subs) in [(1, 3), (3, 3), (1, 1), (0, 0), (1, 0)] {
        let (keys, subs) = (bytes(&vec![&b"k"[..]; keys]), bytes(&vec![&b"s"[..]; subs]));
        let (call, columns) = StateCall::get_entries(StateId(N), keys, subs.clone());
        assert_eq!(session.call(&call, columns, &quiet).unwrap().columns[0].as_binary(), &subs);
    }
    let after = Some((i64::MAX, b"k".to_vec()));
    let reply = ask(&mut session, &StateCall::DueTimers { until: -5, after, limit: 9 }).unwrap();
    assert_eq!(reply.columns[0].as_primitive::<Int64Type>().values(), &[-5, i64::MAX, 9]);
    assert_eq!((reply.columns[1].as_binary(), reply.more_pages), (&bytes(&[&b"k"[..]; 3]), false));
    let reply = ask(&mut session, &StateCall::DueTimers { until: 0, after: None, limit: 8 }).unwrap();
    assert_eq!((reply.columns[0].as_primitive::<Int64Type>().value(1), reply.more_pages), (i64::MIN, true));
    let reply = session.call(&StateCall::TimersOf, vec![Arc::new(bytes(&[b"ab", b""]))], &quiet).unwrap();
    let times = reply.columns[0].as_list::<i32>();
    assert_eq!(times.value(0).as_primitive::<Int64Type>().values(), &[0, 1]);
    assert_eq!((times.len(), times.value(1).len()), (2, 0));
    assert_eq!(ask(&mut session, &StateCall::NextTimer).unwrap().time, None);
    put(&mut session, &[(b"a", b"1"), (b"b", b"2"), (b"c", b"3")], None).unwrap();
    let reply = scan(&mut session, None).unwrap();
    assert_eq!((reply.columns[0].len(), reply.cursor.as_deref()), (2, Some(&b"b"[..])));
    let reply = scan(&mut session, reply.cursor).unwrap();
    assert_eq!((reply.columns[0].as_binary::<i32>(), reply.cursor), (&bytes(&[b"c"]), None));
    ask(&mut session, &StateCall::ClearAll { state: N }).unwrap();
    assert_eq!(scan(&mut session, None).unwrap().columns[0].len(), 0);
    let calls = world.fake.calls.lock().join(", ");
    let expected = "declare [] 5, entries 3 99, page 3 12, page 3 12, get_entries 3 1 3, \
                    get_entries 3 3 3, get_entries 3 1 1, get_entries 3 0 0, get_entries 3 1 0, write 3 3 None";
    assert_eq!(calls, expected);
}

#[test]
fn invariant_1_requests_out_of_turn_reach_no_backend() {
    let world = world();
    let refused = |work: &dyn Fn(&mut StateSessionClient) -> Result<()>| {
        let before = world.fake.aborted.load(Ordering::SeqCst);
        let mut session = session(&world);
        let error = work(&mut session).unwrap_err();
        assert!(error.message().contains("out of turn"), "{error}");
        until("it aborts", || world.fake.aborted.load(Ordering::SeqCst) == before + 1);
    };
    refused(&|session| get(session, N, bytes(&[b"a"])).map(drop));
    refused(&|session| session.commit(None, &quiet).map(drop));
    refused(&|session| {
        ask(session, &StateCall::ClearAll { state: N })?;
        declare(session, "[]", 1)
    });
    assert!(world.fake.calls.lock().is_empty());
    refused(&|session| {
        declare(session, "[]", 1)?;
        declare(session, "[]", 2)
    });
    assert_eq!(*world.fake.calls.lock(), ["declare [] 1"]);
    let mut session = declared(&world);
    session.commit(None, &quiet).unwrap();
    assert!(get(&mut session, N, bytes(&[b"a"])).unwrap_err().message().contains("out of turn"));
    for kind in [Kind::Merge, Kind::Finish, Kind::Commit, Kind::State, Kind::StateChange] {
        let mut client = Client::connect(settings(&world), &quiet).unwrap();
        client.call(Kind::Open, REQUEST.as_bytes(), &quiet).unwrap();
        let error = client.call(kind, b"{}", &quiet).unwrap_err();
        let text = error.message();
        assert!(text.contains("out of turn") || text.contains("a malformed message"), "{kind:?}: {error}");
    }
    let mut client = Client::connect(settings(&world), &quiet).unwrap();
    assert!(
        client.call(Kind::State, b"{}", &quiet).unwrap_err().message().contains("out of turn"),
        "without a session"
    );
}

#[test]
fn a_refused_declaration_keeps_its_kind() {
    let world = world();
    let error = declare(&mut session(&world), "other", 1).unwrap_err();
    assert_eq!((error.kind(), error.message()), (ErrorKind::SchemaMismatch, "state `n` was of kind value"));
}

#[test]
fn an_error_of_a_change_is_the_error_of_a_later_call() {
    let world = world();
    let mut session = declared(&world);
    put(&mut session, &[(b"a", b"1")], Some(-1)).unwrap();
    for _ in 0..200 {
        // Changes after the failed one are thrown away, or refused once the error has arrived.
        if put(&mut session, &[(b"a", &vec![7; 100_000])], None).is_err() {
            break;
        }
    }
    let error = get(&mut session, N, bytes(&[b"a"])).unwrap_err();
    assert_eq!((error.kind(), error.what()), (ErrorKind::InvalidArgument, "state `n` has no ttl"));
    assert_eq!(session.commit(None, &quiet).unwrap_err().what(), "state `n` has no ttl", "the first error is repeated");
    assert_eq!(world.fake.calls.lock().len(), 1, "the declaration");
    until("it aborts", || world.fake.aborted.load(Ordering::SeqCst) == 1);
    let mut session = declared(&world);
    put(&mut session, &[(b"a", b"1")], Some(-1)).unwrap();
    assert!(session.commit(None, &quiet).is_err(), "at the latest by the commit");
    assert!(world.fake.committed.lock().is_empty());
}

#[test]
fn a_panic_fails_one_connection_only() {
    let world = world();
    let mut bad = declared(&world);
    let mut good = declared(&world);
    put(&mut bad, &[(b"a", b"1")], Some(-2)).unwrap();
    let error = bad.commit(None, &quiet).unwrap_err();
    assert!(error.what().contains("a bug") && error.remedy().unwrap().ends_with("the/server.log"), "{error}");
    good.commit(None, &quiet).unwrap();
}

#[test]
fn a_session_that_ends_without_a_commit_is_an_abort() {
    let world = world();
    let mut first = declared(&world);
    put(&mut first, &[(b"a", b"1")], None).unwrap();
    first.close();
    assert!(get(&mut first, N, bytes(&[b"a"])).unwrap_err().message().contains("closed"));
    drop(session(&world));
    until("both sessions abort", || world.fake.aborted.load(Ordering::SeqCst) == 2);
    assert!(world.fake.committed.lock().is_empty());
    until("their lines are written", || log_lines(&world).len() == 2);
    assert!(log_lines(&world).iter().all(|line| line["outcome"] == "aborted"));
}

/// As the kernel leaves a socket whose process was killed: at any byte of a request.
#[test]
fn a_client_that_is_killed_within_a_request_aborts() {
    let world = world();
    let body = b"{\"declare\":{\"catalog\":\"[]\",\"now\":1}}";
    let mut declare = u32::try_from(body.len()).unwrap().to_le_bytes().to_vec();
    declare.extend_from_slice(body);
    let frame = |kind: Kind, request: u32, body: &[u8]| {
        let header = Header { kind, request, length: body.len() as u64 }.encode();
        [&header[..], body].concat()
    };
    let commit = frame(Kind::Commit, 3, b"{\"watermark\":null}");
    for killed_at in 0..commit.len() {
        let mut stream = UnixStream::connect(world.dir.path().join("s")).unwrap();
        stream.write_all(&protocol::hello()).unwrap();
        protocol::read_hello(&mut stream, "the state server").unwrap();
        for request in [frame(Kind::Open, 1, REQUEST.as_bytes()), frame(Kind::State, 2, &declare)] {
            stream.write_all(&request).unwrap();
            let mut header = [0; HEADER];
            stream.read_exact(&mut header).unwrap();
            let header = Header::decode(&header, 1 << 20).unwrap();
            protocol::read_body(&mut stream, header.length).unwrap();
        }
        stream.write_all(&commit[..killed_at]).unwrap();
        drop(stream);
    }
    let killed = commit.len() as u64;
    until("all abort", || world.fake.aborted.load(Ordering::SeqCst) == killed);
    assert!(world.fake.committed.lock().is_empty());
    assert_eq!(world.fake.calls.lock().len() as u64, killed, "each had declared its states");
}

#[test]
fn invariant_2_a_reply_beyond_the_bound_comes_in_parts() {
    let world = world_with(20_000);
    let mut session =
        StateSessionClient::open(ClientSettings { max_message: 20_000, ..settings(&world) }, REQUEST, &quiet).unwrap();
    declare(&mut session, "[]", 5).unwrap();
    let keys: Vec<Vec<u8>> = (0..100_u8).map(|i| vec![i]).collect();
    let values: Vec<Vec<u8>> = (0..100_u8).map(|i| vec![i; 1_000]).collect();
    let entries: Vec<(&[u8], &[u8])> = keys.iter().zip(&values).map(|(k, v)| (&k[..], &v[..])).collect();
    // Changes beyond the bound are several requests.
    put(&mut session, &entries, None).unwrap();
    let found = get(&mut session, N, BinaryArray::from_iter_values(&keys)).unwrap();
    assert_eq!(found, BinaryArray::from_iter_values(&values));
    assert!(world.fake.calls.lock().len() > 5, "{:?}", world.fake.calls);
    let long = [9; 150];
    let (lists, _) = first_entries(&mut session, bytes(&[&long[..]; 30]), 1).unwrap();
    assert_eq!((lists.len(), lists.value(29).len()), (30, 150));
    let too_long = vec![0; 30_000];
    let error = put(&mut session, &[(b"k", &too_long)], None).unwrap_err();
    assert!(error.message().contains("one key with its value must fit"), "{error}");
    // The client refuses what it cannot send, and goes on; the server says what it cannot.
    let reply = page(&mut session, &[200; 1_000], Some(vec![200; 1_000])).unwrap();
    assert_eq!(reply.columns[0].len(), 1);
    let rows = first_entries(&mut session, bytes(&[&[1; 250]]), 1).unwrap_err();
    assert!(rows.kind() == ErrorKind::InvalidArgument, "{rows}");
    assert!(rows.message().contains("one key with its value must fit"), "{rows}");
}

#[test]
fn a_malformed_request_ends_its_session_only() {
    let world = world();
    let mut good = declared(&world);
    for junk in [&b""[..], b"\xff\xff\xff\xff", b"\x02\0\0\0{}", b"\x07\0\0\0\"junk\"x", b"\x04\0\0\0nullnull"] {
        for kind in [Kind::State, Kind::StateChange] {
            let mut client = Client::connect(settings(&world), &quiet).unwrap();
            client.call(Kind::Open, REQUEST.as_bytes(), &quiet).unwrap();
            let error = client.call(kind, junk, &quiet).unwrap_err();
            assert!(error.message().contains("a malformed message"), "{kind:?} {junk:?}: {error}");
        }
    }
    good.commit(None, &quiet).unwrap();
}

#[test]
fn an_aggregate_client_at_a_processor_is_told_so() {
    let world = world();
    let mut session = SessionClient::open(settings(&world), REQUEST, &quiet).unwrap();
    session.merge(b"payload", &quiet).unwrap();
    assert!(session.finish(true, &quiet).unwrap_err().message().contains("out of turn"));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]

    /// What a read returns has all changes sent before it, and the commit has all.
    #[test]
    fn sessions_at_once_are_maps_of_their_own(
        stories in prop::collection::vec(
            prop::collection::vec((0..3_u16, 0..8_u8, prop::option::of(0..200_usize)), 1..60), 1..6),
    ) {
        let world = world();
        std::thread::scope(|scope| {
            for (i, story) in stories.iter().enumerate() {
                let world = &world;
                scope.spawn(move || {
                    let mut session = declared(world);
                    let mut model = Entries::new();
                    for (state, key, value) in story {
                        let key = vec![*key];
                        let values = value.map(|n| bytes(&[&vec![*state as u8; n]]));
                        let ops = UInt8Array::from(vec![if value.is_some() { PUT } else { DELETE }]);
                        let (call, columns) = StateCall::write(StateId(*state), ops, bytes(&[&key]), None, values, None);
                        session.call(&call, columns, &quiet).unwrap();
                        match value {
                            Some(n) => drop(model.insert((*state, key), vec![*state as u8; *n])),
                            None => {
                                model.remove(&(*state, key.clone()));
                                let found = get(&mut session, *state, bytes(&[&key, &[0]])).unwrap();
                                let expected = [key, vec![0]].map(|key| model.get(&(*state, key)));
                                assert!(found.iter().eq(expected.map(|value| value.map(Vec::as_slice))));
                            }
                        }
                    }
                    session.commit(i64::try_from(i).ok(), &quiet).unwrap();
                    let committed = world.fake.committed.lock();
                    let own = committed.iter().find(|(mark, _)| *mark == i64::try_from(i).ok()).unwrap();
                    assert_eq!(own.1, model);
                });
            }
        });
    }
}
