//! Embedded states: restore, fencing, failures at each step. A random history is in `model_tests`.

use super::*;
use crate::states::Place;
use arrow_array::builder::{ListBuilder, StringBuilder};
use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{Array, ArrayRef, Int64Array, StringArray};
use arrow_schema::DataType;
use fastchangelog_columns::aggregate::NamedCall;
use fastchangelog_columns::typed::KeyRange;
use fastchangelog_format::clock::SystemClock;
use fastchangelog_log::read::read_segments;
use fastchangelog_store::failpoint::{Failpoints, SharedFailpoints};
use fastchangelog_store::fault::{Fault, FaultStore, Operation};
use futures::TryStreamExt;
use std::collections::BTreeMap;
use std::sync::atomic::AtomicI64;

/// A bucket that outlives the states in it.
pub(super) struct World {
    pub(super) bucket: Arc<FaultStore>,
    pub(super) local: tempfile::TempDir,
    pub(super) options: BTreeMap<String, String>,
    pub(super) failpoints: SharedFailpoints,
    /// The time by which entries end.
    pub(super) now: Arc<AtomicI64>,
    /// Bytes of memory that changes may take; none = as many as the budget gives them.
    pub(super) changes: Option<u64>,
}

/// A state with its one table.
pub(super) struct Opened {
    pub(super) state: EmbeddedState,
    pub(super) table: ValueState,
}

pub(super) fn world(options: &[(&str, &str)]) -> World {
    let mut map: BTreeMap<String, String> =
        [("retry_delay", "1ms"), ("max_attempts", "2")].map(|(k, v)| (k.to_owned(), v.to_owned())).into();
    map.extend(options.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())));
    World {
        bucket: FaultStore::in_memory(),
        local: tempfile::tempdir().unwrap(),
        options: map,
        failpoints: Failpoints::none(),
        now: Arc::default(),
        changes: None,
    }
}

impl World {
    fn options(&self) -> Options {
        Options::from_map(&self.options).unwrap()
    }

    pub(super) fn root(&self) -> Store {
        let points = Arc::clone(&self.failpoints);
        let bucket = Arc::clone(&self.bucket);
        Store::from_object_store(bucket as _, "root", "test://bucket", &self.options(), Arc::default(), points)
    }

    fn request(&self) -> OpenEmbedded {
        let now = Arc::clone(&self.now);
        OpenEmbedded {
            clock: Some(Arc::new(move || Ok(now.load(Ordering::SeqCst)))),
            root: self.root(),
            name: "s".to_owned(),
            handle: None,
            read_only: false,
            create: true,
            savepoint: None,
            options: self.options(),
            local_dir: Some(self.local.path().to_owned()),
            attend: None,
        }
    }

    fn try_open(&self, change: impl FnOnce(&mut OpenEmbedded)) -> Result<EmbeddedState> {
        let mut request = self.request();
        change(&mut request);
        let failpoints = Arc::clone(&self.failpoints);
        EmbeddedState::open(
            request,
            &Environment { clock: SystemClock::shared(), metrics: Arc::default(), failpoints },
            &|| Ok(()),
        )
    }

    pub(super) fn open_with(&self, change: impl FnOnce(&mut OpenEmbedded)) -> Opened {
        let state = self.try_open(change).unwrap();
        if let Some(bytes) = self.changes {
            state.core.limit_changes(bytes);
        }
        let table = state.value_state("visits", &DataType::Utf8, &DataType::Int64, None).unwrap();
        Opened { state, table }
    }

    pub(super) fn open(&self) -> Opened {
        self.open_with(|_| {})
    }

    /// Sets the time by which entries end.
    pub(super) fn at(&self, millis: i64) {
        self.now.store(millis, Ordering::SeqCst);
    }

    /// The change sets of a handle.
    pub(super) fn sets(&self, handle: &ShardHandle) -> Vec<Vec<(Op, Vec<u8>)>> {
        let sets = self.changes(handle).into_iter();
        sets.map(|set| set.into_iter().map(|(op, _, key)| (op, key)).collect()).collect()
    }

    /// The same, with the place of each change.
    pub(super) fn changes(&self, handle: &ShardHandle) -> Vec<Vec<(Op, Place, Vec<u8>)>> {
        let store = self.root().child("s");
        let runtime = start_io_threads().unwrap();
        let sets = read_segments(&store, None, &handle.segments, 1).try_collect::<Vec<_>>();
        let sets = runtime.block_on(sets).unwrap();
        sets.iter().map(|set| set.iter().map(|c| (c.op, (c.state, c.key_group), c.key.to_vec())).collect()).collect()
    }

    /// The values of all changes of a handle.
    pub(super) fn values(&self, handle: &ShardHandle) -> Vec<Vec<u8>> {
        let store = self.root().child("s");
        let runtime = start_io_threads().unwrap();
        let sets = read_segments(&store, None, &handle.segments, 1).try_collect::<Vec<_>>();
        let sets = runtime.block_on(sets).unwrap();
        sets.iter().flat_map(|set| set.iter().map(|change| change.value.to_vec()).collect::<Vec<_>>()).collect()
    }
}

use fastchangelog_format::model::Op;

/// An aggregate of the input `value`.
pub(super) fn call_of_value(function: &str) -> NamedCall {
    NamedCall {
        function: function.to_owned(),
        args: vec!["value".to_owned()],
        filter: None,
        ignore_nulls: false,
        name: None,
        identity: format!("{function}(value)"),
    }
}

pub(super) fn keys(keys: &[&str]) -> ArrayRef {
    Arc::new(StringArray::from(keys.to_vec()))
}

pub(super) fn lists(rows: &[Option<Vec<String>>]) -> ArrayRef {
    let mut builder = ListBuilder::new(StringBuilder::new());
    for row in rows {
        match row {
            Some(row) => builder.append_value(row.iter().map(Some)),
            None => builder.append_null(),
        }
    }
    Arc::new(builder.finish())
}

impl Opened {
    pub(super) fn put(&self, key: &str, value: Option<i64>) {
        self.table.put(&keys(&[key]), &(Arc::new(Int64Array::from(vec![value])) as ArrayRef)).unwrap();
    }

    pub(super) fn get(&self, key: &str) -> Option<i64> {
        let found = self.table.get(&keys(&[key])).unwrap();
        let found = found.as_primitive::<Int64Type>();
        found.is_valid(0).then(|| found.value(0))
    }

    pub(super) fn all(&self, range: KeyRange, rows: usize) -> Vec<(String, i64)> {
        let mut out = Vec::new();
        for batch in self.table.scan(range, rows) {
            let batch = batch.unwrap();
            assert!((1..=rows).contains(&batch.num_rows()));
            let (keys, values) = (batch.column(0).as_string::<i32>(), batch.column(1).as_primitive::<Int64Type>());
            out.extend((0..batch.num_rows()).map(|i| (keys.value(i).to_owned(), values.value(i))));
        }
        out
    }

    pub(super) fn contents(&self) -> Vec<(String, i64)> {
        self.all(KeyRange::default(), 3)
    }
}

pub(super) fn rows(rows: &[(&str, i64)]) -> Vec<(String, i64)> {
    rows.iter().map(|(k, v)| ((*k).to_owned(), *v)).collect()
}

#[test]
fn invariant_1_and_2_a_reopened_state_is_its_last_checkpoint() {
    let world = world(&[]);
    let s = world.open();
    s.put("a", Some(1));
    s.put("b", Some(2));
    let first = s.state.checkpoint().unwrap();
    s.put("a", Some(9));
    s.put("c", Some(3));
    assert_eq!(s.contents(), rows(&[("a", 9), ("b", 2), ("c", 3)]));
    s.state.close();
    let s = world.open();
    assert_eq!(s.contents(), rows(&[("a", 1), ("b", 2)]), "what no checkpoint holds is discarded");
    assert_eq!(s.state.newest(), Some(first.clone()));
    s.put("b", None);
    s.put("d", Some(4));
    let second = s.state.checkpoint().unwrap();
    assert_eq!((second.parent, second.state_keys), (Some(first.version), 2));
    assert_eq!(s.contents(), rows(&[("a", 1), ("d", 4)]));
    drop(s);
    assert_eq!(world.open().contents(), rows(&[("a", 1), ("d", 4)]));
    // An older handle is a state of its own from here on.
    let s = world.open_with(|request| request.handle = Some(first));
    assert_eq!(s.contents(), rows(&[("a", 1), ("b", 2)]));
    s.put("e", Some(5));
    s.state.checkpoint().unwrap();
    assert_eq!(world.open().contents(), rows(&[("a", 1), ("b", 2), ("e", 5)]));
}

#[test]
fn invariant_3_a_change_set_is_the_net_effect() {
    let world = world(&[]);
    let s = world.open();
    for i in 0..50 {
        s.put("a", Some(i));
        s.put("gone", Some(i));
        s.put("gone", None);
    }
    s.put("b", Some(1));
    let handle = s.state.checkpoint().unwrap();
    assert_eq!(world.sets(&handle).iter().map(Vec::len).collect::<Vec<_>>(), [2]);
    assert_eq!(handle.state_keys, 2);
    s.put("a", Some(49));
    s.put("never", None);
    let same = s.state.checkpoint().unwrap();
    assert_eq!(same, handle, "nothing changed, nothing is written");
    s.put("b", None);
    let handle = s.state.checkpoint().unwrap();
    assert_eq!(handle.state_keys, 1);
    let last = world.sets(&handle).pop().unwrap();
    assert_eq!(last.iter().map(|(op, _)| *op).collect::<Vec<_>>(), [Op::Delete]);
}

#[test]
fn t03_t07_reads_are_not_logged() {
    let world = world(&[]);
    let s = world.open();
    s.put("a", Some(1));
    let handle = s.state.checkpoint().unwrap();
    let puts = world.bucket.calls_of(Operation::Put);
    assert_eq!((s.get("a"), s.get("b")), (Some(1), None));
    assert_eq!(s.contents().len(), 1);
    assert!(s.table.contains(&keys(&["a"])).unwrap().value(0));
    assert_eq!(s.state.checkpoint().unwrap(), handle);
    assert_eq!(world.bucket.calls_of(Operation::Put), puts);
}

#[test]
fn invariant_4_an_older_writer_is_fenced() {
    let world = world(&[]);
    let old = world.open();
    old.put("a", Some(1));
    old.state.checkpoint().unwrap();
    let new = world.open();
    old.put("a", Some(2));
    for _ in 0..2 {
        let error = old.state.checkpoint().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Fenced);
        assert!(error.message().contains("writer 2") && error.message().contains("test://bucket/s"), "{error}");
    }
    assert_eq!(old.get("a"), Some(2), "its changes can still be read");
    new.put("b", Some(3));
    new.state.checkpoint().unwrap();
    let reader = world.open_with(|request| request.read_only = true);
    assert_eq!(reader.contents(), rows(&[("a", 1), ("b", 3)]));
    // A fenced writer gets the error without changes, too.
    let newest = world.open();
    assert_eq!(new.state.checkpoint().unwrap_err().kind(), ErrorKind::Fenced);
    newest.state.checkpoint().unwrap();
}

#[test]
fn a_reader_changes_nothing_and_fences_no_writer() {
    let world = world(&[]);
    let writer = world.open();
    writer.put("a", Some(1));
    writer.state.checkpoint().unwrap();
    let puts = world.bucket.calls_of(Operation::Put);
    let reader = world.open_with(|request| request.read_only = true);
    assert_eq!(reader.get("a"), Some(1));
    let one: ArrayRef = Arc::new(Int64Array::from(vec![1]));
    for error in [
        reader.table.put(&keys(&["a"]), &one).unwrap_err(),
        reader.table.delete(&keys(&["a"])).unwrap_err(),
        reader.state.checkpoint().unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(error.message().contains("read-only"), "{error}");
    }
    let missing = reader.state.value_state("other", &DataType::Utf8, &DataType::Int64, None).err().unwrap();
    assert!(missing.kind() == ErrorKind::NotFound && missing.message().contains("visits"), "{missing}");
    assert_eq!(world.bucket.calls_of(Operation::Put), puts);
    writer.put("a", Some(2));
    writer.state.checkpoint().unwrap();
}

#[test]
fn opening_is_refused_with_a_reason() {
    let world = world(&[]);
    let kind = |change: &dyn Fn(&mut OpenEmbedded)| world.try_open(|request| change(request)).err().unwrap().kind();
    assert_eq!(kind(&|r| r.read_only = true), ErrorKind::NotFound);
    assert_eq!(kind(&|r| r.create = false), ErrorKind::NotFound);
    for name in ["", "a/b", "..", "."] {
        assert_eq!(kind(&|r| r.name = name.to_owned()), ErrorKind::InvalidArgument);
    }
    assert_eq!(kind(&|r| r.options.max_parallelism = 8), ErrorKind::InvalidArgument);
    assert_eq!(world.bucket.calls_of(Operation::Put), 0);
    let handle = world.open().state.checkpoint().unwrap();
    let other = world.open_with(|r| r.name = "t".to_owned());
    other.state.checkpoint().unwrap();
    let error = world.try_open(|r| (r.name, r.handle) = ("t".to_owned(), Some(handle.clone()))).err().unwrap();
    assert!(error.message().contains("another state"), "{error}");
    other.state.checkpoint().unwrap();
    let query = ShardHandle { max_parallelism: 128, ..handle };
    assert_eq!(kind(&|r| r.handle = Some(query.clone())), ErrorKind::InvalidArgument);
    assert_eq!(std::fs::read_dir(world.local.path()).unwrap().count(), 2, "a failed open leaves nothing local");
}

#[test]
fn types_are_kept_with_the_state() {
    let world = world(&[]);
    let s = world.open();
    s.state.checkpoint().unwrap();
    drop(s);
    let s = world.try_open(|_| {}).unwrap();
    let error = s.value_state("visits", &DataType::Utf8, &DataType::Utf8, None).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::SchemaMismatch);
    s.value_state("visits", &DataType::Utf8, &DataType::Int64, None).unwrap();
}

#[test]
fn two_states_do_not_see_each_other() {
    let world = world(&[]);
    let s = world.open();
    let other = s.state.value_state("others", &DataType::Utf8, &DataType::Utf8, None).unwrap();
    s.put("k", Some(1));
    other.put(&keys(&["k", "l"]), &keys(&["x", "y"])).unwrap();
    s.state.checkpoint().unwrap();
    other.delete(&keys(&["k"])).unwrap();
    assert_eq!(s.contents(), rows(&[("k", 1)]));
    assert_eq!(other.get(&keys(&["l", "k"])).unwrap().null_count(), 1);
    assert_eq!(other.scan(KeyRange::default(), 9).map(|b| b.unwrap().num_rows()).sum::<usize>(), 1);
}

#[test]
fn a_failure_at_any_step_loses_nothing() {
    // (failpoint, whether the failed checkpoint may be found by another open)
    for (point, published) in [
        ("local.before-seal", false),
        ("write.before-upload", false),
        ("session.durable", false),
        ("local.before-head", false),
        ("local.after-head", true),
        ("promote.before", true),
        ("promote.applied", true),
    ] {
        let world = world(&[("max_attempts", "1")]);
        let s = world.open();
        s.put("a", Some(1));
        s.state.checkpoint().unwrap();
        s.put("a", Some(2));
        s.put("b", Some(2));
        world.failpoints.set(&format!("{point}=error@1")).unwrap();
        let failed = s.state.checkpoint();
        assert_eq!(failed.is_ok(), point.starts_with("promote"), "{point}: {failed:?}");
        s.state.core.wait_applied();
        world.failpoints.clear();
        assert_eq!(s.contents(), rows(&[("a", 2), ("b", 2)]), "{point}");
        let seen = world.open_with(|request| request.read_only = true).contents();
        assert_eq!(seen.len(), if published { 2 } else { 1 }, "{point}");
        s.put("b", None);
        s.state.checkpoint().unwrap();
        assert_eq!(s.contents(), rows(&[("a", 2)]), "{point}");
        assert_eq!(world.open().contents(), rows(&[("a", 2)]), "{point}");
    }
}

#[test]
fn a_checkpoint_in_doubt_is_decided_by_the_next_one() {
    let world = world(&[("max_attempts", "1")]);
    let s = world.open();
    s.put("a", Some(1));
    s.state.checkpoint().unwrap();
    s.put("a", Some(2));
    world.failpoints.set("local.after-head=error@1").unwrap();
    s.state.checkpoint().unwrap_err();
    world.failpoints.clear();
    // Back to what the last acknowledged checkpoint holds: no net change, but the head in doubt says otherwise.
    s.put("a", Some(1));
    s.state.checkpoint().unwrap();
    assert_eq!(world.open().contents(), rows(&[("a", 1)]));
}

#[test]
fn checkpoints_may_overlap_and_end_in_order() {
    let world = world(&[]);
    let s = world.open();
    s.state.checkpoint().unwrap();
    world.bucket.hold();
    let (sender, receiver) = mpsc::channel();
    for i in 0..4 {
        s.put("a", Some(i));
        s.put(&format!("k{i}"), Some(i));
        let sender = sender.clone();
        let done = Box::new(move |result: Result<ShardHandle>| drop(sender.send((i, result.unwrap()))));
        s.state.begin_checkpoint(done, &|| Ok(())).unwrap();
    }
    s.put("a", Some(9));
    assert_eq!(s.contents().len(), 5, "reads see layers that are under way");
    world.bucket.release();
    let done: Vec<(i64, ShardHandle)> = (0..4).map(|_| receiver.recv().unwrap()).collect();
    assert_eq!(done.iter().map(|(i, _)| *i).collect::<Vec<_>>(), [0, 1, 2, 3]);
    for (i, handle) in done {
        assert_eq!(handle.state_keys, u64::try_from(i).unwrap() + 2);
        let then = world.open_with(|request| (request.handle, request.read_only) = (Some(handle), true));
        assert_eq!(then.get("a"), Some(i), "each holds what was changed before it was begun");
    }
    assert_eq!(s.get("a"), Some(9));
}

#[test]
fn a10_checkpoints_that_fail_while_others_wait_lose_nothing() {
    for failing in ["local.before-head=error@1", "local.before-head=error@1;local.before-seal=error@2"] {
        let world = world(&[("max_attempts", "1")]);
        let s = world.open();
        s.state.checkpoint().unwrap();
        world.failpoints.set(failing).unwrap();
        world.bucket.hold();
        let (sender, receiver) = mpsc::channel();
        for i in 0..3 {
            s.put("a", Some(i));
            s.put(&format!("k{i}"), Some(i));
            let sender = sender.clone();
            s.state.begin_checkpoint(Box::new(move |result| drop(sender.send(result))), &|| Ok(())).unwrap();
        }
        world.bucket.release();
        let done: Vec<Result<ShardHandle>> = (0..3).map(|_| receiver.recv().unwrap()).collect();
        assert!(done[0].is_err(), "{failing}");
        world.failpoints.clear();
        let all = rows(&[("a", 2), ("k0", 0), ("k1", 1), ("k2", 2)]);
        assert_eq!(s.contents(), all, "{failing}");
        let newest = done[2].as_ref().unwrap().clone();
        let then = world.open_with(|request| (request.handle, request.read_only) = (Some(newest), true));
        assert_eq!(then.contents(), all, "{failing}: the last one has what the others could not keep");
    }
}

#[test]
fn a_close_ends_checkpoints_that_the_store_does_not_answer() {
    let world = world(&[]);
    let s = world.open();
    s.state.checkpoint().unwrap();
    s.put("a", Some(1));
    world.bucket.always(Operation::Put, Fault::Hang);
    let (sender, receiver) = mpsc::channel();
    s.state.begin_checkpoint(Box::new(move |result| drop(sender.send(result))), &|| Ok(())).unwrap();
    s.state.close();
    assert_eq!(receiver.recv().unwrap().unwrap_err().kind(), ErrorKind::Closed);
    for error in [s.state.checkpoint().unwrap_err(), s.table.get(&keys(&["a"])).err().unwrap()] {
        assert_eq!(error.kind(), ErrorKind::Closed);
    }
    assert_eq!(std::fs::read_dir(world.local.path()).unwrap().count(), 0);
}
