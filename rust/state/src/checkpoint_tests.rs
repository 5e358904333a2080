//! Checkpoints by links and by copies: the same state, whole or not there, also while RocksDB flushes and compacts.

use super::super::keyed::KeyedState;
use super::*;
use fastchangelog_format::model::{Change, ChangeSet, KeyGroup, Op, StateId};
use fastchangelog_store::budget::MemoryBudget;
use fastchangelog_store::metrics::SharedMetrics;
use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};

struct World {
    disk: tempfile::TempDir,
    metrics: SharedMetrics,
    shared: SharedResources,
}

impl World {
    fn new() -> Self {
        let metrics = SharedMetrics::default();
        let shared = SharedResources::new(&MemoryBudget::new(64 << 20), SharedMetrics::clone(&metrics)).unwrap();
        Self { disk: tempfile::tempdir().unwrap(), metrics, shared }
    }

    fn state(&self) -> KeyedState {
        KeyedState::create(&self.disk.path().join("db"), &self.shared).unwrap()
    }

    /// Files of the disk beside the state's own.
    fn left(&self) -> Vec<String> {
        let names = std::fs::read_dir(self.disk.path()).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
        names.filter(|name| name != "db").collect()
    }
}

fn write(keyed: &mut KeyedState, round: u32, keys: std::ops::Range<u32>) {
    let mut set = ChangeSet::default();
    for key in keys {
        let (key, value) = (key.to_be_bytes(), round.to_be_bytes());
        set.push(Change { op: Op::Put, state: StateId(0), key_group: KeyGroup(0), key: &key, value: &value });
    }
    keyed.apply(&set).unwrap();
    keyed.begin_flush();
    while keyed.flush_dirty(1000).unwrap() {}
}

fn content(keyed: &KeyedState) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut found = BTreeMap::new();
    keyed
        .for_each(&mut |entry| {
            found.insert(entry.key.to_vec(), entry.value.unwrap_or_default().to_vec());
            Ok(())
        })
        .unwrap();
    found
}

#[test]
fn invariant_2_refused_links_make_a_copy_of_the_same_state() {
    let world = World::new();
    let mut keyed = world.state();
    for round in 0..3 {
        write(&mut keyed, round, round * 100..round * 100 + 200);
    }
    let (linked, copied) = (world.disk.path().join("linked"), world.disk.path().join("copied"));
    let failpoints = Failpoints::parse("checkpoint.link=error@2").unwrap();
    keyed.checkpointer().checkpoint(&linked, &failpoints).unwrap();
    assert_eq!(world.metrics.checkpoints_copied.get(), 0);
    keyed.checkpointer().checkpoint(&copied, &failpoints).unwrap();
    assert_eq!(world.metrics.checkpoints_copied.get(), 1);
    let tables = |dir: &Path| {
        let names = std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
        names.filter(|name| name.ends_with(".sst")).collect::<BTreeSet<_>>()
    };
    assert_eq!(tables(&linked), tables(&copied));
    let expected = content(&keyed);
    assert_eq!(expected.len(), 400);
    for dir in [linked, copied] {
        let opened = KeyedState::open(&dir, &world.shared).unwrap();
        assert_eq!(content(&opened), expected, "{}", dir.display());
        opened.destroy().unwrap();
    }
    write(&mut keyed, 9, 0..10);
    keyed.checkpointer().checkpoint(&world.disk.path().join("again"), &failpoints).unwrap();
}

#[test]
fn invariant_1_a_failure_at_any_step_leaves_nothing() {
    let world = World::new();
    let mut keyed = world.state();
    write(&mut keyed, 1, 0..100);
    keyed.checkpointer().db.flush().unwrap();
    write(&mut keyed, 2, 100..200);
    let dir = world.disk.path().join("checkpoint");
    for points in [
        "checkpoint.made=error",
        "checkpoint.link=error;checkpoint.copy=error",
        "checkpoint.link=error;checkpoint.copy=error@2",
        "checkpoint.link=error;checkpoint.made=error",
    ] {
        let failpoints = Failpoints::parse(points).unwrap();
        let error = keyed.checkpointer().checkpoint(&dir, &failpoints).expect_err(points);
        let last = points.split(';').next_back().unwrap().split('=').next().unwrap();
        assert!(error.message().contains(last), "{error}");
        assert_eq!(world.left(), [""; 0], "{points}");
    }
    keyed.checkpointer().checkpoint(&dir, &Failpoints::default()).unwrap();
}

/// Tells a thread to stop when it is dropped.
struct Stops<'a>(&'a AtomicBool);

impl Drop for Stops<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// RocksDB flushes and compacts while files are copied: each copy opens, and holds what was written before it.
#[test]
fn a_copy_is_consistent_while_tables_come_and_go() {
    let world = World::new();
    let mut keyed = world.state();
    write(&mut keyed, 0, 0..2000);
    let (checkpointer, stop) = (keyed.checkpointer(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let churn = keyed.checkpointer();
        let stop = &stop;
        // Also when the test fails: the scope waits for the thread.
        let _stopped = Stops(stop);
        scope.spawn(move || {
            let options = crate::rocks::no_wal();
            for round in 0u32.. {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                // Beside the state's own keys.
                for i in 0..50u32 {
                    let key = [&[0xfe, 0, 0, 0][..], &(round % 7 * 50 + i).to_be_bytes()].concat();
                    churn.db.put_opt(key, round.to_be_bytes(), &options).unwrap();
                }
                churn.db.flush().unwrap();
                if round % 5 == 4 {
                    churn.db.compact_range::<&[u8], &[u8]>(None, None);
                }
            }
        });
        for copy in 0..20 {
            let dir = world.disk.path().join(format!("copy-{copy}"));
            let failpoints = Failpoints::parse("checkpoint.link=error").unwrap();
            checkpointer.checkpoint(&dir, &failpoints).unwrap();
            let db = world.shared.open(&dir, false).unwrap();
            for key in (0..2000u32).step_by(371) {
                let mut name = Vec::new();
                crate::rocks::push_key(&mut name, KeyGroup(0), StateId(0), &key.to_be_bytes());
                assert_eq!(db.get(&name).unwrap().as_deref(), Some(&0u32.to_be_bytes()[..]), "copy {copy}, key {key}");
            }
            drop(db);
            std::fs::remove_dir_all(dir).unwrap();
        }
    });
}

/// RocksDB also compacts a state whose tables were ingested.
#[test]
fn y13_what_was_ingested_is_compacted_by_itself() {
    let world = World::new();
    let mut source = world.state();
    write(&mut source, 0, 0..100);
    let snapshot = world.disk.path().join("base");
    source.checkpoint(&snapshot).unwrap();
    let into = world.disk.path().join("tables");
    std::fs::create_dir(&into).unwrap();
    let groups = fastchangelog_format::model::KeyGroupRange { start: 0, end: 1 };
    let tables = crate::group_range::export(&snapshot, groups, &into, &world.shared).unwrap();
    let mut target = KeyedState::create(&world.disk.path().join("target"), &world.shared).unwrap();
    target.ingest(tables).unwrap();
    let db = target.checkpointer().db;
    for round in 0..12 {
        write(&mut target, round, 0..100);
        db.flush().unwrap();
    }
    db.wait_for_compact(&rocksdb::WaitForCompactOptions::default()).unwrap();
    let level_0 = db.live_files().unwrap().iter().filter(|file| file.level == 0).count();
    assert!(level_0 < 8, "{level_0} of 12 flushes are still tables of their own");
}

#[test]
fn create_refuses_a_folder_with_state() {
    let world = World::new();
    drop(world.state());
    assert!(KeyedState::create(&world.disk.path().join("db"), &world.shared).is_err());
}
