//! Properties of keyed state against a map: eviction, flush, checkpoint, reopening.

use super::*;
use fastchangelog_format::error::ErrorKind;
use fastchangelog_format::model::Change;
use fastchangelog_store::budget::MemoryBudget;
use fastchangelog_store::metrics::Metrics;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use tempfile::TempDir;

type Key = (u16, u16, Vec<u8>);
type Model = BTreeMap<Key, Vec<u8>>;

fn shared() -> SharedResources {
    SharedResources::new(&MemoryBudget::new(256 << 20), Arc::new(Metrics::default())).unwrap()
}

#[derive(Debug, Clone)]
struct Owned {
    op: Op,
    key: Key,
    value: Vec<u8>,
}

/// A change set that keeps the invariants: one put or delete per key, grouped by key group.
fn seal(changes: &[Owned]) -> ChangeSet {
    let mut set = ChangeSet::default();
    let mut seen = HashSet::new();
    for c in changes {
        if c.op == Op::DeletePrefix || seen.insert(c.key.clone()) {
            let value = if c.op == Op::Put { &c.value[..] } else { &[] };
            set.push(Change { op: c.op, key_group: KeyGroup(c.key.0), state: StateId(c.key.1), key: &c.key.2, value });
        }
    }
    set.sort_by_key_group();
    set
}

fn apply_to_model(model: &mut Model, set: &ChangeSet) {
    for c in set.iter() {
        let key = (c.key_group.0, c.state.0, c.key.to_vec());
        match c.op {
            Op::Put => drop(model.insert(key, c.value.to_vec())),
            Op::Delete => drop(model.remove(&key)),
            Op::DeletePrefix => model.retain(|k, _| !((k.0, k.1) == (key.0, key.1) && k.2.starts_with(&key.2))),
        }
    }
}

fn content(state: &KeyedState) -> Model {
    let mut all = Model::new();
    state
        .for_each(&mut |e| {
            let before = all.insert((e.key_group.0, e.state.0, e.key.to_vec()), e.value.unwrap().to_vec());
            assert_eq!(before, None, "every key once");
            Ok(())
        })
        .unwrap();
    all
}

fn assert_reads(state: &KeyedState, model: &Model, keys: &[Key]) {
    for id in [0, 1] {
        let refs: Vec<_> =
            keys.iter().map(|k| KeyRef { hash: hash_key(&k.2), key_group: KeyGroup(k.0), key: &k.2 }).collect();
        let mut answers = vec![0; refs.len()];
        state
            .get_many(StateId(id), &refs, &mut |i, value| {
                answers[i] += 1;
                assert_eq!(value, model.get(&(keys[i].0, id, keys[i].2.clone())).map(|v| &v[..]), "{:?}", keys[i]);
                ControlFlow::Continue(())
            })
            .unwrap();
        assert!(answers.iter().all(|&n| n == 1), "one answer per key");
    }
}

fn assert_walks(state: &KeyedState, model: &Model, part: &StatePart) {
    let mut found = Model::new();
    let walk = &mut |e: EntryRef<'_>| {
        let key = (e.key_group.0, e.state.0, e.key.to_vec());
        assert!(found.insert(key, e.value.unwrap().to_vec()).is_none(), "every key once");
        Ok(())
    };
    if state.each_in_memory(part, walk).unwrap() {
        let has = |k: &Key| k.1 == part.state.0 && k.2 >= part.from && part.to.as_ref().is_none_or(|to| k.2 < *to);
        assert_eq!(found, model.iter().filter(|(k, _)| has(k)).map(|(k, v)| (k.clone(), v.clone())).collect());
    }
}

fn flush_all(state: &mut KeyedState) {
    state.begin_flush();
    while state.flush_dirty(10).unwrap() {}
    assert_eq!(state.dirty_entries(), 0);
}

#[derive(Debug, Clone)]
enum Step {
    Apply(Vec<Owned>),
    Get(Vec<Key>),
    Limit(u64),
    BeginFlush,
    Flush(usize),
    FuzzySnapshot,
    Reopen,
    /// So many entries of a loading that goes on with the next such step.
    WarmUp(usize),
}

fn key() -> impl Strategy<Value = Key> {
    let byte = prop_oneof![Just(0u8), Just(1), Just(255)];
    (0..3u16, 0..2u16, prop::collection::vec(byte, 0..5))
}

fn owned() -> impl Strategy<Value = Owned> {
    let value = prop_oneof![
        6 => prop::collection::vec(any::<u8>(), 16),
        3 => prop::collection::vec(any::<u8>(), 0..50),
        1 => prop::collection::vec(any::<u8>(), 1000..5000),
    ];
    let op = prop_oneof![12 => Just(Op::Put), 4 => Just(Op::Delete), 1 => Just(Op::DeletePrefix)];
    (op, key(), value).prop_map(|(op, key, value)| Owned { op, key, value })
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        12 => prop::collection::vec(owned(), 0..60).prop_map(Step::Apply),
        6 => prop::collection::vec(key(), 0..60).prop_map(Step::Get),
        1 => prop_oneof![Just(0u64), 10_000..30_000u64, Just(4 << 20)].prop_map(Step::Limit),
        2 => Just(Step::BeginFlush),
        4 => (1..40usize).prop_map(Step::Flush),
        1 => Just(Step::FuzzySnapshot),
        1 => Just(Step::Reopen),
        1 => Just(Step::WarmUp(usize::MAX)),
        3 => (1..100usize).prop_map(Step::WarmUp),
    ]
}

fn run(limit: u64, steps: Vec<Step>) {
    let shared = shared();
    let root = TempDir::new().unwrap();
    let mut folders = 0;
    let mut folder = || {
        folders += 1;
        root.path().join(folders.to_string())
    };
    let mut state = KeyedState::create(&folder(), &shared).unwrap();
    state.set_hot_limit(limit).unwrap();
    let mut model = Model::new();
    // The change sets since the last `begin_flush`: what a fuzzy snapshot is completed with.
    let mut since: Option<Vec<ChangeSet>> = None;
    let mut warm: Option<WarmUp> = None;
    for step in steps {
        match step {
            Step::Apply(changes) => {
                let set = seal(&changes);
                state.apply(&set).unwrap();
                apply_to_model(&mut model, &set);
                since.iter_mut().for_each(|s| s.push(set.clone()));
            }
            Step::Get(keys) => {
                assert_reads(&state, &model, &keys);
                keys.iter().for_each(|k| assert_walks(&state, &model, &StatePart::of_prefix(StateId(k.1), &k.2)));
            }
            Step::Limit(limit) => state.set_hot_limit(limit).unwrap(),
            Step::BeginFlush => {
                state.begin_flush();
                since = Some(Vec::new());
            }
            Step::Flush(n) => drop(state.flush_dirty(n).unwrap()),
            Step::FuzzySnapshot => {
                let Some(since) = since.take() else { continue };
                while state.flush_dirty(7).unwrap() {}
                let dir = folder();
                state.checkpoint(&dir).unwrap();
                let mut snapshot = KeyedState::open(&dir, &shared).unwrap();
                for set in &since {
                    snapshot.apply(set).unwrap();
                }
                assert_eq!(content(&snapshot), model, "a fuzzy snapshot and the sets since begin_flush are the state");
            }
            Step::Reopen => {
                flush_all(&mut state);
                since = None;
                let dir = folder();
                state.checkpoint(&dir).unwrap();
                state.destroy().unwrap();
                warm = None;
                state = KeyedState::open(&dir, &shared).unwrap();
                state.set_hot_limit(limit).unwrap();
                assert_eq!(content(&state), model);
            }
            Step::WarmUp(n) => {
                warm = warm.or_else(|| state.begin_warm_up());
                if let Some(mut going) = warm.take() {
                    let more = state.warm_up_step(&mut going, n).unwrap();
                    warm = more.then_some(going);
                }
                // A complete tier that lacks a key would hide it.
                assert_eq!(content(&state), model);
            }
        }
    }
    assert_eq!(content(&state), model);
    let keys: Vec<_> = model.keys().cloned().collect();
    assert_reads(&state, &model, &keys);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn keyed_state_is_a_map(limit in 9_000..30_000u64, steps in prop::collection::vec(step(), 1..40)) {
        run(limit, steps);
    }
}

fn numbered(range: std::ops::Range<u32>, value: &[u8]) -> ChangeSet {
    let mut set = ChangeSet::default();
    for i in range {
        let key = i.to_be_bytes();
        let key_group = KeyGroup((i % 16) as u16);
        set.push(Change { op: Op::Put, state: StateId(0), key_group, key: &key, value });
    }
    set.sort_by_key_group();
    set
}

fn read_numbered(state: &KeyedState, range: std::ops::Range<u32>) -> Vec<Option<Vec<u8>>> {
    let keys: Vec<_> = range.map(|i| ((i % 16) as u16, i.to_be_bytes())).collect();
    let refs: Vec<_> =
        keys.iter().map(|(g, k)| KeyRef { hash: hash_key(k), key_group: KeyGroup(*g), key: k }).collect();
    let mut values = vec![None; refs.len()];
    let mut take = |i: usize, value: Option<&[u8]>| {
        values[i] = value.map(<[u8]>::to_vec);
        ControlFlow::Continue(())
    };
    state.get_many(StateId(0), &refs, &mut take).unwrap();
    values
}

#[test]
fn a_fresh_state_never_asks_the_disk_until_something_is_evicted() {
    let shared = shared();
    let root = TempDir::new().unwrap();
    let mut state = KeyedState::create(&root.path().join("a"), &shared).unwrap();
    state.apply(&numbered(0..10_000, b"value")).unwrap();
    assert!(read_numbered(&state, 0..10_000).iter().all(Option::is_some));
    assert!(read_numbered(&state, 10_000..20_000).iter().all(Option::is_none));
    assert_eq!(shared.metrics().rocksdb_reads.get(), 0);
    flush_all(&mut state);
    assert!(state.is_complete(), "a flush evicts nothing");
    assert_eq!(shared.metrics().rocksdb_reads.get(), 0);
    state.set_hot_limit(100_000).unwrap();
    assert!(!state.is_complete());
    assert!(read_numbered(&state, 0..10_000).iter().all(Option::is_some));
    assert!(shared.metrics().rocksdb_reads.get() > 0);
    assert!(shared.metrics().hot_evictions.get() > 0);
}

#[test]
fn warm_up_makes_a_restored_state_complete_if_it_fits() {
    let shared = shared();
    let root = TempDir::new().unwrap();
    let mut state = KeyedState::create(&root.path().join("a"), &shared).unwrap();
    state.apply(&numbered(0..20_000, &[7; 40])).unwrap();
    flush_all(&mut state);
    state.checkpoint(&root.path().join("b")).unwrap();
    let mut restored = KeyedState::open(&root.path().join("b"), &shared).unwrap();
    // Replayed before the warm-up: newer than what is on disk.
    restored.apply(&numbered(5..6, b"newer")).unwrap();
    restored.set_hot_limit(200_000).unwrap();
    assert!(!restored.warm_up().unwrap());
    restored.set_hot_limit(16 << 20).unwrap();
    assert!(restored.warm_up().unwrap());
    let before = shared.metrics().rocksdb_reads.get();
    let values = read_numbered(&restored, 0..30_000);
    assert_eq!(values[5].as_deref(), Some(&b"newer"[..]));
    assert_eq!(values.iter().flatten().count(), 20_000);
    assert_eq!(shared.metrics().rocksdb_reads.get(), before);
}

#[test]
fn xs24_bloated_files_are_compacted_once_and_not_in_vain() {
    let shared = shared();
    let root = TempDir::new().unwrap();
    let mut state = KeyedState::create(&root.path().join("a"), &shared).unwrap();
    let mut value = [0; 100];
    for round in 0..3_u8 {
        value.iter_mut().enumerate().for_each(|(i, v)| *v = round.wrapping_mul(31).wrapping_add(i as u8));
        state.apply(&numbered(0..300_000, &value)).unwrap();
        flush_all(&mut state);
        state.checkpoint(&root.path().join(format!("c{round}"))).unwrap();
    }
    let files = state.checkpointer();
    let before = files.sst_bytes();
    assert_eq!(files.compact_if_bloated(before, 0.0).unwrap(), None, "as large as its net bytes is not bloated");
    let net = before / 4;
    let space_amplification = files.compact_if_bloated(net, 0.0).unwrap().expect("four times the net bytes is");
    assert!(files.sst_bytes() < before / 2, "{} of {before} bytes are left of three versions", files.sst_bytes());
    assert!((space_amplification - files.sst_bytes() as f64 / net as f64).abs() < 1e-9);
    let tiny = files.sst_bytes() / 2;
    let space_amplification =
        files.compact_if_bloated(tiny, 0.0).unwrap().expect("twice the net bytes is, at the first look");
    assert_eq!(files.compact_if_bloated(tiny, space_amplification).unwrap(), None, "it cannot become denser");
}

#[test]
fn a_checkpoint_is_hard_links_and_few_small_files() {
    let shared = shared();
    let root = TempDir::new().unwrap();
    let mut state = KeyedState::create(&root.path().join("a"), &shared).unwrap();
    state.apply(&numbered(0..5_000, &[1; 100])).unwrap();
    flush_all(&mut state);
    let dir = root.path().join("deeper/b");
    state.checkpoint(&dir).unwrap();
    assert!(state.checkpointer().sst_bytes() > 0);
    let (mut ssts, mut small) = (0, 0);
    for entry in std::fs::read_dir(&dir).unwrap() {
        let entry = entry.unwrap();
        let (name, meta) = (entry.file_name().into_string().unwrap(), entry.metadata().unwrap());
        if name.ends_with(".sst") {
            assert_eq!(meta.nlink(), 2, "{name}");
            let original = std::fs::metadata(root.path().join("a").join(&name)).unwrap();
            assert_eq!(original.ino(), meta.ino());
            ssts += 1;
        } else {
            let known = name == "CURRENT" || name.starts_with("MANIFEST-") || name.starts_with("OPTIONS-");
            assert!(known, "an unexpected file in a checkpoint: {name}");
            small += meta.len();
        }
    }
    assert!(ssts > 0);
    assert!(small < 64 << 10, "{small}");
    assert!(state.checkpoint(&dir).is_err(), "an existing folder is refused");
    assert_eq!(read_numbered(&state, 0..10).len(), 10);
}

#[test]
fn many_threads_read_at_once() {
    let shared = shared();
    let root = TempDir::new().unwrap();
    let mut state = KeyedState::create(&root.path().join("a"), &shared).unwrap();
    state.set_hot_limit(200_000).unwrap();
    state.apply(&numbered(0..20_000, b"something")).unwrap();
    assert!(!state.is_complete());
    let state = &state;
    std::thread::scope(|scope| {
        for thread in 0..8u32 {
            scope.spawn(move || {
                for round in 0..5 {
                    let start = (thread * 1_777 + round * 3_001) % 15_000;
                    assert!(read_numbered(state, start..start + 7_000)[..5_000].iter().all(Option::is_some));
                }
            });
        }
    });
}

#[test]
fn memory_is_accounted_and_given_back() {
    let budget = MemoryBudget::new(256 << 20);
    let shared = SharedResources::new(&budget, Arc::new(Metrics::default())).unwrap();
    let rocksdb = budget.used();
    assert_eq!(rocksdb, (32 + 12) << 20, "an eighth for blocks, and what three threads work with");
    let root = TempDir::new().unwrap();
    let mut state = KeyedState::create(&root.path().join("a"), &shared).unwrap();
    state.apply(&numbered(0..50_000, b"something")).unwrap();
    assert_eq!(budget.used(), rocksdb + state.hot_bytes());
    assert_eq!(shared.metrics().hot_bytes.get(), state.hot_bytes());
    state.destroy().unwrap();
    assert_eq!((budget.used(), shared.metrics().hot_bytes.get()), (rocksdb, 0));
    assert!(!root.path().join("a").exists());
}

#[test]
fn p3_damaged_or_foreign_files_are_told_at_open() {
    let shared = shared();
    let root = TempDir::new().unwrap();
    let make = |name: &str| {
        let dir = root.path().join(name);
        let mut state = KeyedState::create(&root.path().join("live"), &shared).unwrap();
        state.apply(&numbered(0..1_000, &[1; 100])).unwrap();
        flush_all(&mut state);
        state.checkpoint(&dir).unwrap();
        state.destroy().unwrap();
        dir
    };
    let find = |dir: &Path, what: &str| {
        let mut files = std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().path());
        files.find(|p| p.file_name().unwrap().to_str().unwrap().contains(what)).unwrap()
    };
    let expect = |dir: &Path| {
        let error = KeyedState::open(dir, &shared).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
        assert!(error.message().contains(dir.to_str().unwrap()), "{error}");
        assert!(error.message().contains("delete this local folder"), "{error}");
    };

    expect(&root.path().join("nothing here"));

    let dir = make("missing sst");
    std::fs::remove_file(find(&dir, ".sst")).unwrap();
    expect(&dir);

    let dir = make("short sst");
    let sst = find(&dir, ".sst");
    let bytes = std::fs::read(&sst).unwrap();
    std::fs::write(&sst, &bytes[..bytes.len() / 2]).unwrap();
    expect(&dir);

    let dir = make("foreign manifest");
    std::fs::write(find(&dir, "MANIFEST"), b"not a manifest at all").unwrap();
    expect(&dir);

    let dir = make("foreign current");
    std::fs::write(find(&dir, "CURRENT"), b"MANIFEST-777777\n").unwrap();
    expect(&dir);

    // Damage inside a block is found when the block is read (P10).
    let dir = make("flipped bit");
    let sst = find(&dir, ".sst");
    let mut bytes = std::fs::read(&sst).unwrap();
    bytes[200] ^= 1;
    std::fs::write(&sst, &bytes).unwrap();
    let error = KeyedState::open(&dir, &shared).and_then(|state| state.for_each(&mut |_| Ok(()))).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
}

#[test]
fn entries_from_disk_become_hot_with_the_next_change() {
    let shared = shared();
    let root = TempDir::new().unwrap();
    let mut state = KeyedState::create(&root.path().join("a"), &shared).unwrap();
    state.apply(&numbered(0..1_000, b"value")).unwrap();
    flush_all(&mut state);
    state.checkpoint(&root.path().join("b")).unwrap();
    let mut state = KeyedState::open(&root.path().join("b"), &shared).unwrap();
    let disk_reads = |state: &KeyedState| {
        let before = shared.metrics().rocksdb_reads.get();
        assert!(read_numbered(state, 0..1_000).iter().all(Option::is_some));
        shared.metrics().rocksdb_reads.get() - before
    };
    assert_eq!(disk_reads(&state), 1_000);
    state.apply(&numbered(0..1, b"new")).unwrap();
    assert_eq!(disk_reads(&state), 0);
    assert_eq!(state.dirty_entries(), 1);
    assert_eq!(read_numbered(&state, 0..1)[0].as_deref(), Some(&b"new"[..]));
}

#[test]
fn a_look_up_that_is_broken_off_answers_no_more() {
    let shared = shared();
    let root = TempDir::new().unwrap();
    let mut state = KeyedState::create(&root.path().join("a"), &shared).unwrap();
    state.apply(&numbered(0..1000, b"v")).unwrap();
    let keys: Vec<_> = (0..1000_u32).map(|i| ((i % 16) as u16, i.to_be_bytes())).collect();
    let keys: Vec<_> =
        keys.iter().map(|(g, k)| KeyRef { hash: hash_key(k), key_group: KeyGroup(*g), key: k }).collect();
    let check = |state: &KeyedState| {
        for wanted in [1, 31, 32, 33, 999, 1000] {
            let mut answers = 0;
            let mut take = |_, value: Option<&[u8]>| {
                assert_eq!(value, Some(&b"v"[..]));
                answers += 1;
                if answers < wanted { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            };
            state.get_many(StateId(0), &keys, &mut take).unwrap();
            assert_eq!(answers, wanted);
        }
    };
    check(&state);
    flush_all(&mut state);
    state.checkpoint(&root.path().join("b")).unwrap();
    let before = shared.metrics().rocksdb_reads.get();
    check(&KeyedState::open(&root.path().join("b"), &shared).unwrap());
    assert_eq!(shared.metrics().rocksdb_reads.get() - before, 32 + 32 + 32 + 64 + 1000 + 1000, "nor is more read");
}

#[test]
fn after_a_failed_write_nothing_is_answered() {
    let shared = shared();
    let root = TempDir::new().unwrap();
    let mut state = KeyedState::create(&root.path().join("a"), &shared).unwrap();
    assert!(state.wrote(Err(Error::retryable("disk full"))).is_err());
    let errors = [
        state.apply(&numbered(0..1, b"v")).unwrap_err(),
        state.get_many(StateId(0), &[], &mut |_, _| ControlFlow::Continue(())).unwrap_err(),
        state.flush_dirty(1).unwrap_err(),
        state.checkpoint(&root.path().join("b")).unwrap_err(),
        state.set_hot_limit(1).unwrap_err(),
    ];
    for error in errors {
        assert!(error.is_retryable() && error.message().contains("disk full"), "{error}");
    }
    state.destroy().unwrap();
}
