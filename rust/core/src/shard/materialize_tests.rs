//! Materializations of one shard: which may begin and count, snapshots, local copies, ends. Orders: `materialize_orders`.

use super::*;
use crate::shard::{Placement, ShardContext};
use crate::states::net::Net;
use fastchangelog_format::clock::SystemClock;
use fastchangelog_format::config::Options;
use fastchangelog_format::handle::decode_segment_index;
use fastchangelog_format::model::{BatchId, Change, ChangeSet, KeyGroup, Op, ShardHandle, StateId};
use fastchangelog_format::{Manifest, decode_manifest};
use fastchangelog_log::read::ObjectCache;
use fastchangelog_log::write::LogWriter;
use fastchangelog_state::rocks::SharedResources;
use fastchangelog_store::budget::MemoryBudget;
use fastchangelog_store::failpoint::Failpoints;
use fastchangelog_store::fault::{Fault, FaultStore, Operation};
use fastchangelog_store::metrics::{Counter, SharedMetrics};
use fastchangelog_store::{Background, Store, start_io_threads};
use std::collections::{BTreeMap, BTreeSet};

pub(super) type Model = BTreeMap<u32, Vec<u8>>;

pub(super) struct World {
    faults: Arc<FaultStore>,
    pub(super) runtime: tokio::runtime::Runtime,
    disk: tempfile::TempDir,
    pub(super) metrics: SharedMetrics,
    pub(super) failpoints: fastchangelog_store::failpoint::SharedFailpoints,
    options: BTreeMap<String, String>,
    pub(super) shard: Arc<Shard>,
    /// Handles that Spark kept, with what the state must be; the last is the newest.
    pub(super) history: Vec<(Option<ShardHandle>, Model)>,
    pub(super) batch: i64,
    starts: usize,
}

const SCHEMA: (u64, &str) = (7, "{}");

fn options(map: &BTreeMap<String, String>) -> Options {
    Options::from_map(map).unwrap()
}

impl World {
    pub(super) fn new(given: &[(&str, &str)]) -> Self {
        let pairs = [("retry_delay", "1ms"), ("persist_delay", "1ms")];
        let map: BTreeMap<_, _> = pairs.iter().chain(given).map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        let (faults, runtime, disk) =
            (FaultStore::in_memory(), start_io_threads().unwrap(), tempfile::tempdir().unwrap());
        let (metrics, failpoints) = (SharedMetrics::default(), Failpoints::none());
        let shard = shard(&faults, &runtime, disk.path(), 0, &map, (&metrics, &failpoints));
        let history = vec![(None, Model::new())];
        Self { faults, runtime, disk, metrics, failpoints, options: map, shard, history, batch: 0, starts: 0 }
    }

    pub(super) fn set_option(&mut self, name: &str, value: &str) {
        self.options.insert(name.to_owned(), value.to_owned());
        self.restart();
    }

    /// Another process on the same machine: RocksDB is gone, local copies are there.
    pub(super) fn restart(&mut self) {
        self.starts += 1;
        let instruments = (&self.metrics, &self.failpoints);
        self.shard = shard(&self.faults, &self.runtime, self.disk.path(), self.starts, &self.options, instruments);
    }

    pub(super) fn store(&self) -> &Store {
        &self.shard.context().store
    }

    pub(super) fn newest(&self) -> &(Option<ShardHandle>, Model) {
        self.history.last().unwrap()
    }

    /// One execution of the next batch.
    pub(super) fn execute(&self, changes: &Model) -> ShardHandle {
        let (snapshot, batch) = (self.newest().0.clone(), BatchId(self.batch));
        self.shard.make_live(snapshot.as_ref(), batch, SCHEMA).unwrap();
        let mut set = ChangeSet::default();
        for (key, value) in changes {
            let key_bytes = key.to_be_bytes();
            let op = if value.is_empty() { Op::Delete } else { Op::Put };
            let key_group = KeyGroup((key % 4) as u16);
            set.push(Change { op, state: StateId(0), key_group, key: &key_bytes, value });
        }
        set.sort_by_key_group();
        let net = |_: &fastchangelog_state::keyed::KeyedState| Ok(Net { set, ..Net::default() });
        self.shard.extend(batch, SCHEMA, false, net).unwrap().unwrap()
    }

    pub(super) fn commit(&mut self, handle: ShardHandle, changes: Model) {
        let mut model = self.newest().1.clone();
        for (key, value) in changes {
            if value.is_empty() {
                model.remove(&key)
            } else {
                model.insert(key, value)
            };
        }
        self.history.push((Some(handle), model));
        self.batch += 1;
    }

    pub(super) fn write(&mut self, keys: std::ops::Range<u32>, value: u8) {
        let changes: Model = keys.map(|key| (key, vec![value; 20])).collect();
        let handle = self.execute(&changes);
        self.commit(handle, changes);
    }

    /// The newest handle comes back: it is promoted.
    pub(super) fn promote(&self) {
        self.shard.make_live(self.newest().0.as_ref(), BatchId(self.batch), SCHEMA).unwrap();
    }

    pub(super) fn materialize(&self) {
        let run = self.shard.begin_materialize().unwrap().expect("a run");
        run.run().unwrap();
        run.complete().unwrap();
    }

    pub(super) fn manifest(&self, handle: &ShardHandle) -> Manifest {
        let object = &handle.snapshot.as_ref().expect("a snapshot").manifest;
        let bytes = self.runtime.block_on(self.store().get(object)).unwrap();
        decode_manifest(&object.name, &bytes).unwrap()
    }

    /// Every object that a handle leads to, read and verified.
    pub(super) fn objects(&self, handle: &ShardHandle) -> BTreeSet<String> {
        let read =
            |object: &fastchangelog_format::model::ObjectRef| self.runtime.block_on(self.store().get(object)).unwrap();
        let mut found = BTreeSet::new();
        let mut segments = handle.segments.clone();
        if let Some(index) = &handle.indexed {
            segments.extend(decode_segment_index(&index.name, &read(index)).unwrap());
            found.insert(index.name.clone());
        }
        for segment in segments {
            read(&segment.object);
            found.insert(segment.object.name);
        }
        if let Some(snapshot) = &handle.snapshot {
            found.insert(snapshot.manifest.name.clone());
            for file in self.manifest(handle).files {
                read(&file.object);
                found.insert(file.object.name);
            }
        }
        found
    }

    /// The state of a handle, restored where nothing is.
    pub(super) fn restored(&self, handle: Option<&ShardHandle>) -> Model {
        let disk = tempfile::tempdir().unwrap();
        let shard =
            shard(&self.faults, &self.runtime, disk.path(), 0, &self.options, (&self.metrics, &self.failpoints));
        shard.make_live(handle, BatchId(i64::MAX), SCHEMA).unwrap();
        content(&shard)
    }

    pub(super) fn snapshot_files(&self, handle: &ShardHandle) -> BTreeSet<String> {
        self.manifest(handle).files.into_iter().map(|file| file.object.name).collect()
    }

    fn local_folders(&self) -> usize {
        std::fs::read_dir(&self.shard.context().dir).map_or(0, Iterator::count)
    }
}

fn content(shard: &Shard) -> Model {
    let mut found = Model::new();
    shard
        .read(|keyed| {
            keyed.for_each(&mut |entry| {
                let key = u32::from_be_bytes(entry.key.try_into().unwrap());
                found.insert(key, entry.value.unwrap_or_default().to_vec());
                Ok(())
            })
        })
        .unwrap();
    found
}

fn shard(
    faults: &Arc<FaultStore>,
    runtime: &tokio::runtime::Runtime,
    disk: &std::path::Path,
    start: usize,
    map: &BTreeMap<String, String>,
    (metrics, failpoints): (&SharedMetrics, &fastchangelog_store::failpoint::SharedFailpoints),
) -> Arc<Shard> {
    let options = options(map);
    let clock = SystemClock::shared();
    let (metrics, failpoints) = (Arc::clone(metrics), Arc::clone(failpoints));
    let bucket = Arc::clone(faults) as _;
    let store =
        Store::from_object_store(bucket, "q", "test://q", &options, Arc::clone(&metrics), Arc::clone(&failpoints));
    let budget = MemoryBudget::new(64 << 20);
    let cache = ObjectCache::new(&disk.join("objects"), 1 << 30, Arc::clone(&metrics)).unwrap();
    let log = LogWriter::new(
        store.clone(),
        &options,
        runtime.handle().clone(),
        Arc::clone(&clock),
        Arc::clone(&metrics),
        Arc::clone(&failpoints),
        options.local_recovery.then(|| cache.local_copies(&store)),
    );
    let context = ShardContext {
        query_id: "q".to_owned(),
        name: "s".to_owned(),
        store,
        log,
        background: Background::new(&options, Arc::clone(&clock), Arc::clone(&metrics)),
        cache: Some(cache),
        runtime: runtime.handle().clone(),
        resources: SharedResources::new(&budget, Arc::clone(&metrics)).unwrap(),
        budget,
        options,
        clock,
        metrics,
        failpoints,
        dir: disk.join(format!("shard-{start}")),
    };
    Shard::new("shard".to_owned(), Placement::new(0, 1, 4).unwrap(), context)
}

/// The snapshot is told from others by what it is, not by a number that two might share.
#[test]
fn k01_only_the_handle_that_names_the_snapshot_confirms_it() {
    let mut world = World::new(&[]);
    world.write(0..100, 1);
    world.promote();
    world.materialize();
    let before = world.execute(&Model::from([(1, vec![9; 9])]));
    assert!(before.snapshot.is_some());
    // Another execution of the same batch, which did not see the snapshot: a server elsewhere made it.
    let mut foreign = before.clone();
    foreign.snapshot = None;
    foreign.segments = world.newest().0.as_ref().unwrap().segments.clone();
    foreign.segments.extend(before.segments.iter().cloned());
    world.commit(foreign, Model::from([(1, vec![9; 9])]));
    world.shard.control.lock().prepared.clear();
    world.promote();
    assert!(world.shard.begin_materialize().unwrap().is_none(), "the snapshot is not confirmed by that handle");
    world.write(5..6, 2);
    world.promote();
    assert_eq!(world.newest().0.as_ref().unwrap().snapshot, before.snapshot);
    assert!(world.shard.begin_materialize().unwrap().is_some(), "now it is");
    assert_eq!(world.restored(world.newest().0.as_ref()), world.newest().1);
}

#[test]
fn k02_a_run_begins_after_the_last_failed_or_is_confirmed() {
    let mut world = World::new(&[]);
    assert!(world.shard.begin_materialize().unwrap().is_none(), "nothing live");
    world.write(0..10, 1);
    assert!(world.shard.begin_materialize().unwrap().is_none(), "nothing promoted");
    world.promote();
    let run = world.shard.begin_materialize().unwrap().unwrap();
    assert!(world.shard.begin_materialize().unwrap().is_none(), "one is under way");
    run.abort("a test");
    let run = world.shard.begin_materialize().unwrap().unwrap();
    assert!(world.shard.begin_materialize().unwrap().is_none());
    run.run().unwrap();
    run.complete().unwrap();
    assert!(world.shard.begin_materialize().unwrap().is_none(), "its snapshot waits");
    world.write(3..4, 2);
    assert!(world.shard.begin_materialize().unwrap().is_none(), "prepared is not confirmed");
    world.promote();
    world.shard.begin_materialize().unwrap().expect("confirmed").abort("a test");
}

/// what is abandoned needs no confirmation.
#[test]
fn k03_xs04_x11_a_run_that_was_given_up_never_stands_in_the_way() {
    let mut world = World::new(&[]);
    world.write(0..10, 1);
    world.promote();
    for step in 0..3 {
        let run = world.shard.begin_materialize().unwrap().expect("a run");
        match step {
            0 => run.abort("never ran"),
            1 => {
                run.run().unwrap();
                run.abort("after its upload");
            }
            _ => drop(run),
        }
        assert_eq!(world.local_folders(), 1, "RocksDB's folder only");
        world.write(20..21, step);
        assert_eq!(world.newest().0.as_ref().unwrap().snapshot, None);
        world.promote();
    }
    world.materialize();
}

#[test]
fn v02_y15_the_newest_values_come_back_after_each_round() {
    for incremental in ["true", "false"] {
        let mut world = World::new(&[("incremental", incremental)]);
        for round in 1..5u8 {
            world.write(0..50 * u32::from(round), round);
            world.promote();
            world.materialize();
            world.write(10..20, 100 + round);
            world.promote();
            let handle = world.newest().0.as_ref().unwrap();
            assert_eq!(handle.segments.len(), 1, "the log before the snapshot is cut off");
        }
        assert_eq!(world.restored(world.newest().0.as_ref()), world.newest().1);
    }
}

/// X-S01 too: a snapshot stays incremental whatever was abandoned before it.
#[test]
fn xs01_xs09_full_and_incremental_snapshots_may_alternate() {
    let mut world = World::new(&[("snapshot_pack_below", "0")]);
    let mut snapshots: Vec<BTreeSet<String>> = Vec::new();
    // Three tables: at four, RocksDB would begin to compact.
    let turns = [("true", false), ("false", false), ("true", true)];
    for (round, (incremental, shares)) in (0..).zip(turns) {
        world.set_option("incremental", incremental);
        world.write(round * 1000..(round + 1) * 1000, 1);
        world.promote();
        world.shard.begin_materialize().unwrap().expect("a run").abort("a savepoint, say");
        world.materialize();
        world.write(0..1, 2);
        world.promote();
        let files = world.snapshot_files(world.newest().0.as_ref().unwrap());
        if let Some(last) = snapshots.last() {
            assert_eq!(!last.is_disjoint(&files), shares, "round {round}, incremental = {incremental}");
        }
        snapshots.push(files);
    }
    for (handle, model) in &world.history {
        assert_eq!(&world.restored(handle.as_ref()), model);
    }
}

#[test]
fn full_snapshots_need_not_wait_for_each_other() {
    let mut world = World::new(&[("incremental", "false")]);
    world.write(0..100, 1);
    world.promote();
    world.materialize();
    world.materialize();
    world.write(0..10, 2);
    let first = world.newest().0.clone().unwrap();
    world.materialize();
    world.promote();
    world.materialize();
    world.write(0..5, 3);
    world.promote();
    let last = world.newest().0.clone().unwrap();
    assert!(first.snapshot.is_some() && last.snapshot != first.snapshot);
    assert!(world.snapshot_files(&first).is_disjoint(&world.snapshot_files(&last)));
    assert_eq!(world.restored(Some(&last)), world.newest().1);
}

#[test]
fn e07_a_restart_here_reads_snapshots_from_local_copies() {
    for (incremental, below) in [("true", "0"), ("true", "1MiB"), ("false", "0"), ("false", "1MiB")] {
        for recovery in [true, false] {
            let given = [("incremental", incremental), ("snapshot_pack_below", below)];
            let mut world =
                World::new(&[&given[..], &[("local_recovery", if recovery { "true" } else { "false" })]].concat());
            world.write(0..500, 1);
            world.promote();
            world.materialize();
            world.write(0..5, 2);
            world.restart();
            let before = world.faults.log().len();
            world.promote();
            let gets: Vec<String> = world.faults.log()[before..]
                .iter()
                .filter(|(operation, name)| *operation == Operation::Get && name.contains("sst/"))
                .map(|(_, name)| name.clone())
                .collect();
            assert_eq!(gets.is_empty(), recovery, "incremental = {incremental}, below {below}: {gets:?}");
            assert_eq!(content(&world.shard), world.newest().1);
        }
    }
}

#[test]
fn xs07_xs08_xs16_a_run_ends_at_any_step_and_leaves_nothing() {
    let points = [
        "materialize.flush",
        "materialize.checkpoint",
        "checkpoint.made",
        "materialize.push",
        "snapshot.before-sst",
        "snapshot.before-manifest",
        "snapshot.after-manifest",
    ];
    let mut world = World::new(&[]);
    world.write(0..100, 1);
    world.promote();
    for point in points {
        world.failpoints.set(&format!("{point}=error")).unwrap();
        let run = world.shard.begin_materialize().unwrap().expect("a run");
        let error = run.run().unwrap_err();
        assert!(error.message().contains(point), "the cause is told: {error}");
        // Completed all the same: refused, and nothing waits.
        assert!(run.complete().is_err());
        world.failpoints.clear();
        assert_eq!(world.local_folders(), 1, "{point}: RocksDB's folder only");
        assert!(world.shard.control.lock().waiting.is_none());
    }
    world.materialize();
    world.write(0..1, 2);
    assert!(world.newest().0.as_ref().unwrap().snapshot.is_some());
    let disk = world.disk.path().to_owned();
    drop(std::mem::replace(&mut world.shard, World::new(&[]).shard));
    let left: Vec<_> = std::fs::read_dir(disk).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(left, ["objects"], "the local copies outlive the shard, nothing else does");
}

#[test]
fn xs13_a_restore_is_counted() {
    let mut world = World::new(&[]);
    world.write(0..100, 1);
    world.promote();
    world.materialize();
    world.write(0..10, 2);
    let handle = world.newest().0.clone().unwrap();
    let counts =
        || [&world.metrics.restores, &world.metrics.restore_bytes, &world.metrics.restore_micros].map(Counter::get);
    let before = counts();
    world.restored(Some(&handle));
    let after = counts();
    let bytes = handle.snapshot.as_ref().unwrap().total_bytes + handle.segments.iter().map(|s| s.length).sum::<u64>();
    assert_eq!((after[0] - before[0], after[1] - before[1]), (1, bytes));
    assert!(after[2] > before[2]);
}

#[test]
fn xs15_a_store_that_never_answers_ends_the_run_in_time() {
    let mut world = World::new(&[("request_timeout", "50ms"), ("max_attempts", "2")]);
    world.write(0..100, 1);
    world.promote();
    world.faults.always(Operation::Put, Fault::Hang);
    let run = world.shard.begin_materialize().unwrap().unwrap();
    let error = run.run().unwrap_err();
    assert!(error.is_retryable() && error.message().contains("request_timeout"), "{error}");
    run.abort(error.message());
    assert_eq!(world.local_folders(), 1);
    world.faults.heal();
    world.materialize();
}

/// A run whose state is replaced, evicted or closed meanwhile has no effect, whenever it ends.
#[test]
fn xs03_a_late_completion_is_ignored() {
    for ends_after_upload in [false, true] {
        let mut world = World::new(&[]);
        world.write(0..100, 1);
        world.promote();
        let run = world.shard.begin_materialize().unwrap().unwrap();
        if ends_after_upload {
            run.run().unwrap();
        }
        world.shard.evict();
        world.write(0..10, 2);
        world.promote();
        if ends_after_upload {
            run.complete().unwrap();
        } else {
            assert_eq!(run.run().unwrap_err().kind(), ErrorKind::Closed);
            run.abort("replaced");
        }
        world.write(0..10, 3);
        assert_eq!(world.newest().0.as_ref().unwrap().snapshot, None);
        world.promote();
        world.materialize();
    }
}

#[test]
fn xs06_xs14_the_state_may_change_while_a_snapshot_is_made() {
    let mut world = World::new(&[]);
    world.write(0..1000, 1);
    world.promote();
    world.failpoints.set("materialize.checkpoint=sleep(20)").unwrap();
    let run = world.shard.begin_materialize().unwrap().unwrap();
    std::thread::scope(|scope| {
        let running = scope.spawn(|| run.run());
        for value in 2..12 {
            world.write(value..value * 100, u8::try_from(value).unwrap());
            world.promote();
        }
        running.join().unwrap().unwrap();
    });
    run.complete().unwrap();
    world.write(0..1, 99);
    assert!(world.newest().0.as_ref().unwrap().snapshot.is_some());
    assert_eq!(world.restored(world.newest().0.as_ref()), world.newest().1);
    let pauses = world.metrics.materialize_pause_micros.get();
    assert!(pauses.count >= 2, "the mark, and a step of the flush at least: {pauses:?}");
}
