//! The life of state sessions: random histories against plain maps, and what is refused.
//!
//! Every run prints its seed; `FASTCHANGELOG_SEED=<n>` replays it.

use super::testing::*;
use super::*;
use crate::shard::savepoint::{SavepointForm, SavepointProgress};
use crate::shard::testing::{World, folders, materialize, seeds};
use crate::shard::{Committed, InitialState, Sources};
use arrow_array::{Array, ArrayRef, BinaryArray, UInt8Array};
use fastchangelog_format::ErrorKind;
use fastchangelog_format::model::{Op, SavepointOrigin};
use fastchangelog_store::budget::MemoryUser;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::collections::HashSet;

/// Memory of a session of which a few changes must go to the local disk.
const TINY: (&str, &str) = ("session_memory", "8KiB");

#[derive(Clone)]
struct Version {
    handle: ShardHandle,
    model: Model,
    watermark: Option<i64>,
}

struct History {
    world: World,
    shard: Arc<Shard>,
    versions: Vec<Version>,
    now: i64,
    names: Vec<Bytes>,
    spills: u64,
}

impl History {
    fn new(options: &[(&str, &str)]) -> Self {
        let mut world = World::new(options);
        let shard = world.shard(None);
        Self { world, shard, versions: Vec::new(), now: 0, names: names(0..7), spills: 0 }
    }

    fn base(&self) -> Option<&Version> {
        self.versions.last()
    }

    /// A session that has made some changes, and what it holds.
    fn begun(&self, rng: &mut StdRng) -> (StateSession, Model) {
        let base = self.base();
        let mut session = open(&self.shard, base.map(|version| &version.handle), self.now).unwrap();
        assert_eq!(session.watermark(), base.and_then(|version| version.watermark));
        let mut model = base.map(|version| version.model.clone()).unwrap_or_default();
        for step in 0..rng.random_range(0..12) {
            let made = random_write(rng, &self.names, self.now, 300);
            write(&mut session, &made).unwrap();
            model.apply(&made);
            if rng.random_bool(0.1) {
                assert_is(&mut session, &model, self.now, &self.names, rng, &format!("step {step}"));
            }
        }
        (session, model)
    }

    fn committed(&mut self, mut session: StateSession, model: Model) {
        let watermark = (!self.versions.len().is_multiple_of(3)).then_some(self.now);
        let Committed { handle, metrics, .. } = session.commit(watermark).unwrap();
        self.spills += metrics.get("spills").copied().unwrap_or(0);
        let handle = handle.unwrap();
        assert_eq!((handle.watermark, &*handle.schema), (watermark, CATALOG));
        let sets = last_sets(&self.world, &handle);
        let keys: Vec<_> = sets.iter().flatten().filter(|change| change.0 != Op::DeletePrefix).collect();
        let distinct: HashSet<_> = keys.iter().map(|change| (change.1, change.2, &change.3)).collect();
        assert_eq!(distinct.len(), keys.len(), "one record per state and key");
        self.versions.push(Version { handle, model, watermark });
    }

    fn batch(&mut self, rng: &mut StdRng) {
        self.now += rng.random_range(0..15);
        let (session, model) = self.begun(rng);
        match rng.random_range(0..8) {
            0 => drop(session),
            // A sibling of the same base is kept, or not.
            1 | 2 => {
                let (mut other, other_model) = self.begun(rng);
                let (session, model) = if rng.random_bool(0.5) {
                    other.commit(None).unwrap();
                    (session, model)
                } else {
                    let mut session = session;
                    session.commit(None).unwrap();
                    (other, other_model)
                };
                self.committed(session, model);
            }
            _ => self.committed(session, model),
        }
    }

    fn check(&self, rng: &mut StdRng, when: &str) {
        let Some(Version { handle, model, .. }) = self.base() else { return };
        let mut session = open(&self.shard, Some(handle), self.now).unwrap();
        assert_is(&mut session, model, self.now, &self.names, rng, when);
        drop(session);
        assert_eq!(live_counts(&self.shard), (handle.state_keys, handle.state_bytes), "{when}: entries are counted");
    }
}

fn history(seed: u64, options: &[(&str, &str)], batches: usize) -> u64 {
    println!("seed {seed} {options:?}");
    let mut rng = StdRng::seed_from_u64(seed);
    let mut history = History::new(&[&[("max_handle_segments", "4")], options].concat());
    for i in 0..batches {
        let when = format!("seed {seed}, batch {i}");
        history.batch(&mut rng);
        match rng.random_range(0..10) {
            // Another machine.
            0 => history.shard = history.world.shard(None),
            // An older timeline.
            1 => {
                let kept = history.versions.len().saturating_sub(rng.random_range(0..3));
                history.versions.truncate(kept.max(1));
            }
            2 if history.base().is_some() => {
                history.check(&mut rng, &when);
                if let Some(run) = history.shard.begin_materialize().unwrap() {
                    run.run().unwrap();
                    run.complete().unwrap();
                }
            }
            3 => history.shard.evict(),
            _ => {}
        }
        if rng.random_bool(0.4) {
            history.check(&mut rng, &when);
        }
    }
    history.check(&mut rng, "at the end");
    drop(history.shard);
    history.spills
}

#[test]
fn p1_p8_a_processors_states_are_what_plain_maps_would_be() {
    for seed in seeds(4) {
        assert_eq!(history(seed, &[], 25), 0, "they fit into memory");
    }
}

#[test]
fn p7_states_larger_than_memory_are_the_same() {
    for seed in seeds(4) {
        assert!(history(seed, &[TINY], 25) > 0);
    }
}

#[test]
fn states_that_are_restored_lazily_are_the_same() {
    for seed in seeds(2) {
        history(seed, &[("restore", "lazy")], 20);
    }
}

#[test]
fn a_session_without_a_shard_keeps_nothing_and_reads_the_same() {
    let mut rng = StdRng::seed_from_u64(5);
    let world = World::new(&[]);
    let dir = tempfile::tempdir().unwrap();
    for session_memory in [0, 4 << 10] {
        let environment = SessionEnvironment {
            budget: Arc::clone(world.budget()),
            dir: dir.path().join("spill"),
            metrics: Arc::clone(&world.metrics),
            failpoints: Arc::clone(&world.failpoints),
            session_memory,
            result_batch_rows: 100,
        };
        let resources = SharedResources::new(world.budget(), Arc::clone(&world.metrics)).unwrap();
        let mut session = StateSession::ephemeral(environment, resources);
        assert_eq!((session.catalog(), session.watermark()), ("[]", None));
        session.declare(CATALOG, 0).unwrap();
        let (mut model, names) = (Model::default(), names(0..5));
        for _ in 0..60 {
            let made = random_write(&mut rng, &names, 0, 200);
            write(&mut session, &made).unwrap();
            model.apply(&made);
        }
        assert_is(&mut session, &model, 0, &names, &mut rng, "of no shard");
        assert_eq!(folders(&dir.path().join("spill")).len(), usize::from(session_memory > 0));
        assert!(session.commit(Some(1)).unwrap().handle.is_none());
        drop(session);
        assert_eq!(folders(&dir.path().join("spill")), [""; 0]);
    }
    assert_eq!(world.budget().used_by(MemoryUser::Sessions), 0);
}

fn put(state: StateId, key: &Bytes, value: &[u8]) -> Write {
    Write { state, rows: vec![(PUT, key.clone(), None, Some(value.to_vec()))], ends: None }
}

fn get(session: &mut StateSession, key: &Bytes) -> Result<Option<Bytes>> {
    let found: ArrayRef = Arc::new(session.get(VALUE, &binary([key]))?);
    Ok(bytes(&found).remove(0))
}

#[test]
fn invariant_3_a_session_of_a_replaced_version_is_retryable() {
    let mut world = World::new(&[]);
    let shard = world.shard(None);
    let a = key("a");
    let mut first = open(&shard, None, 0).unwrap();
    write(&mut first, &put(VALUE, &a, b"1")).unwrap();
    let handle = first.commit(None).unwrap().handle.unwrap();
    let mut zombie = open(&shard, None, 0).unwrap();
    write(&mut zombie, &put(VALUE, &a, b"2")).unwrap();
    let mut next = open(&shard, Some(&handle), 0).unwrap();
    assert_eq!(get(&mut next, &a).unwrap(), Some(b"1".to_vec()));
    for error in [
        get(&mut zombie, &a).unwrap_err(),
        zombie.next_timer().map(drop).and_then(|()| zombie.scan(MAP, None, 1).map(drop)).unwrap_err(),
        zombie.commit(None).unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::Retryable, "{error}");
        assert!(error.message().contains("moved on"), "{error}");
    }
    assert_eq!(zombie.commit(None).unwrap_err().kind(), ErrorKind::Retryable, "what happened stays what it was");
    drop(zombie);
    assert_eq!(world.metrics.sessions_aborted.get(), 0, "it has ended by itself");
    drop(next);
    assert_eq!(world.metrics.sessions_aborted.get(), 1);
}

#[test]
fn a_batch_without_changes_keeps_its_version() {
    let mut world = World::new(&[]);
    let shard = world.shard(None);
    let a = key("a");
    let mut session = open(&shard, None, 0).unwrap();
    let empty = session.commit(Some(7)).unwrap().handle.unwrap();
    assert_eq!((empty.watermark, empty.segments.len(), &*empty.schema), (Some(7), 0, CATALOG));
    let mut session = open(&shard, Some(&empty), 0).unwrap();
    assert_eq!((session.watermark(), session.catalog()), (Some(7), CATALOG));
    write(&mut session, &put(VALUE, &a, b"1")).unwrap();
    let first = session.commit(None).unwrap().handle.unwrap();
    let mut session = open(&shard, Some(&first), 0).unwrap();
    write(&mut session, &put(VALUE, &a, b"2")).unwrap();
    write(&mut session, &put(VALUE, &a, b"1")).unwrap();
    let deleted = Write { state: MAP, rows: vec![(CLEAR, a.clone(), None, None)], ends: None };
    write(&mut session, &deleted).unwrap();
    let second = session.commit(Some(9)).unwrap().handle.unwrap();
    assert_eq!((second.version, second.segments.len(), second.watermark), (first.version, 1, Some(9)));
    assert_eq!(second.batch, BatchId(2));
    let more = CATALOG.replace("}]", r#"},{"id":9,"name":"late","kind":"value","of":"another version"}]"#);
    let mut session = StateSession::open(&shard, Some(second.clone()), BatchId(3)).unwrap();
    session.declare(&more, 0).unwrap();
    assert!(session.get(StateId(9), &binary([&a])).unwrap().is_null(0));
    let third = session.commit(None).unwrap().handle.unwrap();
    assert_eq!((third.version, &*third.schema), (first.version, &*more), "a text is kept as it is");
    assert_ne!(third.schema_id, second.schema_id);
    let mut session = StateSession::open(&shard, Some(third), BatchId(4)).unwrap();
    let error = session.declare(CATALOG, 0).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::SchemaMismatch);
    assert!(error.message().contains("`late`"), "{error}");
    session.declare(&more, 0).unwrap();
    assert_eq!(get(&mut session, &a).unwrap(), Some(b"1".to_vec()));
}

#[test]
fn what_cannot_be_is_refused_and_changes_nothing() {
    let mut world = World::new(&[]);
    let shard = world.shard(None);
    let a = key("a");
    let mut session = StateSession::open(&shard, None, BatchId(0)).unwrap();
    for error in [get(&mut session, &a).unwrap_err(), session.declare("{}", 0).unwrap_err()] {
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    }
    session.declare(CATALOG, 0).unwrap();
    assert_eq!(session.declare(CATALOG, 0).unwrap_err().kind(), ErrorKind::InvalidArgument);
    let some = || Some(b"x".to_vec());
    let row = |op: u8, sub: Option<Bytes>, value: Option<Bytes>| vec![(op, a.clone(), sub, value)];
    let bad = [
        (VALUE, row(PUT, None, None), None),
        (VALUE, row(APPEND, None, some()), None),
        (VALUE, row(9, None, some()), None),
        (LIST, row(APPEND, None, None), None),
        (LIST, row(PUT, None, some()), None),
        (MAP, row(PUT, None, some()), None),
        (MAP, row(PUT, some(), None), None),
        (MAP, row(DELETE, None, None), None),
        (TIMERS, row(PUT, some(), None), None),
        (TIMERS, row(PUT, None, None), None),
        (VALUE, row(PUT, None, some()), Some(9)),
        (ENDING_VALUE, row(PUT, None, some()), None),
        (ENDING_LIST, row(APPEND, None, some()), None),
        (StateId(8), row(PUT, None, some()), None),
    ];
    for (state, rows, ends) in bad {
        // Good changes before it in the call do not stay, either.
        let good = match state {
            VALUE => (PUT, a.clone(), None, some()),
            MAP => (PUT, a.clone(), some(), some()),
            _ => (CLEAR, a.clone(), None, None),
        };
        let bad = Write { state, rows: [vec![good], rows].concat(), ends };
        let error = write(&mut session, &bad).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{bad:?}: {error}");
    }
    let (keys, ops) = (binary([&a]), UInt8Array::from(vec![PUT, PUT]));
    let null = BinaryArray::from_iter([None::<&[u8]>]);
    let one = UInt8Array::from(vec![PUT]);
    let value = Some(&keys);
    for error in [
        session.write(VALUE, &ops, &keys, None, value, None).unwrap_err(),
        session.write(VALUE, &one, &null, None, value, None).unwrap_err(),
        session.write(VALUE, &UInt8Array::from(vec![None]), &keys, None, value, None).unwrap_err(),
        session.get(LIST, &keys).map(drop).unwrap_err(),
        session.get(VALUE, &null).map(drop).unwrap_err(),
        session.get_entries(LIST, &keys, &keys).map(drop).unwrap_err(),
        session.get_entries(MAP, &binary([&a, &a]), &keys).map(drop).unwrap_err(),
        session.read_entries(VALUE, &keys, 9).map(drop).unwrap_err(),
        session.read_page(LIST, &a, Some(b"bad"), 9).map(drop).unwrap_err(),
        session.scan(VALUE, Some(b"b"), 9).map(drop).unwrap_err(),
        session.scan(VALUE, Some(&[0, 0, 7]), 9).map(drop).unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    }
    let names = [a.clone()];
    assert_is(&mut session, &Model::default(), 0, &names, &mut StdRng::seed_from_u64(1), "nothing was changed");
    assert_eq!(session.commit(None).unwrap().handle.unwrap().segments.len(), 0);
    assert_eq!(session.commit(None).unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(get(&mut session, &a).unwrap_err().kind(), ErrorKind::Closed);
}

#[test]
fn an_aggregations_state_is_told_apart() {
    let mut world = World::new(&[]);
    let shard = world.shard(None);
    let handle = open(&shard, None, 0).unwrap().commit(None).unwrap().handle.unwrap();
    let foreign = ShardHandle { schema: r#"{"keys":[]}"#.to_owned(), ..handle };
    let error = StateSession::open(&shard, Some(foreign), BatchId(1)).map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::SchemaMismatch, "{error}");
    assert!(error.message().contains("stateful processor"), "{error}");
}

#[test]
fn all_of_a_state_is_removed_by_one_change_of_each_key_group() {
    for options in [&[][..], &[TINY]] {
        let mut world = World::new(options);
        let shard = world.shard(None);
        let mut session = open(&shard, None, 0).unwrap();
        let value = vec![7; 10];
        let mut model = Model::default();
        for state in [VALUE, MAP] {
            let keys = names(0..60_000);
            let sub = (state == MAP).then(|| b"sub".to_vec());
            let row = |key: &Bytes| (PUT, key.clone(), sub.clone(), Some(value.clone()));
            for part in keys.chunks(10_000) {
                let made = Write { state, rows: part.iter().map(row).collect(), ends: None };
                write(&mut session, &made).unwrap();
            }
        }
        let handle = session.commit(None).unwrap().handle.unwrap();
        let mut session = open(&shard, Some(&handle), 0).unwrap();
        write(&mut session, &put(VALUE, &key("k1"), b"before")).unwrap();
        session.clear_all(VALUE).unwrap();
        let after = put(VALUE, &key("k2"), b"after");
        write(&mut session, &after).unwrap();
        model.apply(&after);
        let read = |session: &mut StateSession| {
            let keys = [key("k1"), key("k2"), key("k3")];
            let found: ArrayRef = Arc::new(session.get(VALUE, &binary(&keys)).unwrap());
            assert_eq!(bytes(&found), [None, Some(b"after".to_vec()), None]);
            assert_eq!(all_rows(session, VALUE, 1000).unwrap().len(), 1);
            assert_eq!(all_rows(session, MAP, 1 << 20).unwrap().len(), 60_000, "other states stay");
        };
        read(&mut session);
        let cleared = session.commit(None).unwrap().handle.unwrap();
        let changes: usize = last_sets(&world, &cleared).iter().map(Vec::len).sum();
        assert_eq!(changes, usize::from(crate::shard::testing::GROUPS) + 1);
        assert_eq!(cleared.state_keys, 60_001);
        for machine in [shard, world.shard(None)] {
            read(&mut open(&machine, Some(&cleared), 0).unwrap());
            assert_eq!(live_counts(&machine), (cleared.state_keys, cleared.state_bytes));
        }
    }
}

#[test]
fn invariant_4_a_session_that_failed_at_the_disk_leaves_nothing() {
    for point in ["session.spill", "session.spilled", "session.range", "session.before-persist", "session.durable"] {
        let mut world = World::new(&[TINY]);
        let shard = world.shard(None);
        let spill = shard.context().dir.join("spill");
        world.failpoints.set(&format!("{point}=error")).unwrap();
        let mut session = open(&shard, None, 0).unwrap();
        let rows = |i: u32| names(i * 40..i * 40 + 40).into_iter().map(|key| (PUT, key, None, Some(vec![1; 100])));
        let failed = (0..3)
            .find_map(|i| write(&mut session, &Write { state: VALUE, rows: rows(i).collect(), ends: None }).err());
        let failed = failed.unwrap_or_else(|| session.commit(None).map(drop).unwrap_err());
        world.failpoints.clear();
        let after = get(&mut session, &key("k1")).unwrap_err();
        assert_eq!((after.kind(), after.message()), (failed.kind(), failed.message()), "{point}");
        assert!(session.commit(None).is_err());
        drop(session);
        assert_eq!(folders(&spill), [""; 0], "{point}");
        assert_eq!(world.budget().used_by(MemoryUser::Sessions), 0, "{point}");
        // The next attempt does it.
        let mut session = open(&shard, None, 0).unwrap();
        (0..3).for_each(|i| {
            write(&mut session, &Write { state: VALUE, rows: rows(i).collect(), ends: None }).unwrap();
        });
        let committed = session.commit(None).unwrap();
        assert!(committed.metrics["spills"] > 0 && committed.metrics["ranges"] > 1, "{:?}", committed.metrics);
        let handle = committed.handle.unwrap();
        assert_eq!(handle.state_keys, 120);
        assert!(handle.segments.len() > 1 && handle.segments.iter().all(|s| s.version == handle.version));
        let mut session = open(&world.shard(None), Some(&handle), 0).unwrap();
        assert_eq!(get(&mut session, &key("k119")).unwrap(), Some(vec![1; 100]));
    }
}

#[test]
fn snapshots_hold_all_states() {
    let mut world = World::new(&[]);
    let shard = world.shard(None);
    let mut rng = StdRng::seed_from_u64(3);
    let names = names(0..9);
    let (mut handle, mut model) = (None, Model::default());
    for _ in 0..3 {
        let mut session = open(&shard, handle.as_ref(), 0).unwrap();
        for _ in 0..40 {
            let made = random_write(&mut rng, &names, 100, 2000);
            write(&mut session, &made).unwrap();
            model.apply(&made);
        }
        handle = session.commit(None).unwrap().handle;
    }
    drop(open(&shard, handle.as_ref(), 0).unwrap());
    materialize(&shard);
    let mut session = open(&shard, handle.as_ref(), 0).unwrap();
    let more = put(VALUE, &names[0], b"more");
    write(&mut session, &more).unwrap();
    model.apply(&more);
    let handle = session.commit(None).unwrap().handle.unwrap();
    assert!(handle.snapshot.is_some() && handle.segments.len() == 1);
    let mut session = open(&world.shard(None), Some(&handle), 0).unwrap();
    assert_is(&mut session, &model, 0, &names, &mut rng, "from the snapshot");
}

#[test]
fn a_savepoint_carries_all_states_to_another_query() {
    let mut world = World::new(&[]);
    let shard = world.shard(None);
    let mut rng = StdRng::seed_from_u64(4);
    let (names, mut model) = (names(0..9), Model::default());
    let mut session = open(&shard, None, 0).unwrap();
    for _ in 0..40 {
        let made = random_write(&mut rng, &names, 100, 200);
        write(&mut session, &made).unwrap();
        model.apply(&made);
    }
    let handle = session.commit(Some(5)).unwrap().handle.unwrap();
    let sources = Sources::of(vec![handle]).unwrap();
    for form in [SavepointForm::Canonical, SavepointForm::Native] {
        let to = world.store().child(&format!("savepoint-{form:?}"));
        let scratch = tempfile::tempdir().unwrap();
        let origin = SavepointOrigin { query_id: "q".into(), name: "s".into(), batch: BatchId(0), taken_millis: 1 };
        let (from, progress) = (shard.context().rebuilder(), SavepointProgress::default());
        let taking = from.take_savepoint(&sources, form, origin, &to, scratch.path(), &progress);
        world.runtime.block_on(taking).unwrap();
        let initial_state = world.runtime.block_on(InitialState::read(to)).unwrap();
        let other = world.shard(None);
        other.set_initial_state(Arc::new(initial_state));
        let mut session = StateSession::open(&other, None, BatchId(0)).unwrap();
        assert_eq!((session.catalog(), session.watermark()), (CATALOG, None));
        session.declare(CATALOG, 0).unwrap();
        assert_is(&mut session, &model, 0, &names, &mut rng, "from a savepoint");
        let first = session.commit(None).unwrap().handle.unwrap();
        let mut session = open(&world.shard(None), Some(&first), 0).unwrap();
        assert_is(&mut session, &model, 0, &names, &mut rng, "from its own snapshot");
    }
}
