//! Rescaling a million keys from one shard to two and back, and two ways of moving half of them between states.
//!
//! `rescale` is with a log after the snapshots. `snapshots` is what others measure, too: snapshots alone, each new shard by itself, the
//! way back from what the way there made (`benches/rescale_compare.py` puts it beside Flink's).
#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use fastchangelog_columns::codec::hash_key;
use fastchangelog_core::shard::{Rebuilder, Sources};
use fastchangelog_format::clock::SystemClock;
use fastchangelog_format::config::{Compression, Options};
use fastchangelog_format::model::handle::HASH_ID;
use fastchangelog_format::model::{
    BatchId, Change, ChangeSet, InstanceId, KeyGroupRange, Op, SegmentRef, ShardHandle, StateId, VersionId,
    key_group_of, shard_range,
};
use fastchangelog_format::{FILE_HEADER_LEN, crc32c, encode_set, file_footer, file_header};
use fastchangelog_log::snapshot::{Inventory, PushContext, Stamp, push};
use fastchangelog_state::group_range::export;
use fastchangelog_state::keyed::KeyedState;
use fastchangelog_state::rocks::SharedResources;
use fastchangelog_store::budget::MemoryBudget;
use fastchangelog_store::failpoint::Failpoints;
use fastchangelog_store::metrics::Metrics;
use fastchangelog_store::{Background, Store, log_name};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;

const KEYS: u64 = 1_000_000;
/// Keys that the segment after each snapshot changes.
const CHANGED: u64 = 100_000;
const GROUPS: u16 = 128;

/// Bytes of a value, unless another length is measured.
const VALUE: usize = 24;

/// Changes of `keys` in `range`, each value of `length` bytes that compress little.
fn change_set(keys: u64, range: KeyGroupRange, round: u64, length: usize) -> ChangeSet {
    let mut set = ChangeSet::default();
    let mut value = Vec::new();
    for i in 0..keys {
        let mut key = [1; 9];
        key[1..].copy_from_slice(&i.to_be_bytes());
        let hash = hash_key(&key);
        let key_group = key_group_of(hash, GROUPS);
        if range.contains(key_group) {
            value.clear();
            let mut word = hash ^ round;
            while value.len() < length {
                value.extend_from_slice(&word.to_le_bytes());
                word = word.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(31);
            }
            value.truncate(length);
            set.push(Change { op: Op::Put, state: StateId(0), key_group, key: &key, value: &value });
        }
    }
    set.sort_by_key_group();
    set
}

struct World {
    root: tempfile::TempDir,
    runtime: Runtime,
    rebuilder: Rebuilder,
    folders: u32,
}

impl World {
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        let (metrics, failpoints) = (Arc::new(Metrics::default()), Failpoints::none());
        let options = Options { file_sync: false, ..Options::default() };
        let uri = root.path().join("bucket").display().to_string();
        let store =
            Store::open(&uri, &BTreeMap::new(), &options, Arc::clone(&metrics), Arc::clone(&failpoints)).unwrap();
        let resources = SharedResources::new(&MemoryBudget::new(1 << 30), Arc::clone(&metrics)).unwrap();
        let rebuilder = Rebuilder { store, cache: None, resources, clock: SystemClock::shared(), metrics, failpoints };
        Self { root, runtime: Runtime::new().unwrap(), rebuilder, folders: 0 }
    }

    fn fresh(&mut self) -> PathBuf {
        self.folders += 1;
        self.root.path().join(format!("{}", self.folders))
    }

    /// The checkpoint of a state of all keys in `range`.
    fn checkpoint(&mut self, range: KeyGroupRange, length: usize) -> PathBuf {
        let dir = self.fresh();
        let mut keyed = KeyedState::create(&dir, &self.rebuilder.resources).unwrap();
        keyed.apply(&change_set(KEYS, range, 0, length)).unwrap();
        self.checkpoint_of(keyed)
    }

    fn checkpoint_of(&mut self, mut keyed: KeyedState) -> PathBuf {
        let checkpoint = self.fresh();
        keyed.begin_flush();
        while keyed.flush_dirty(100_000).unwrap() {}
        keyed.checkpointer().compact_if_bloated(1, 0.0).unwrap();
        keyed.checkpoint(&checkpoint).unwrap();
        keyed.destroy().unwrap();
        checkpoint
    }

    /// The handle of shard `shard` of `shards`, with the snapshot in `checkpoint`.
    fn handle(&self, shard: u32, shards: u32, checkpoint: &Path) -> ShardHandle {
        let (instance, version) = (InstanceId::random(), VersionId::random());
        let (none, r) = (Inventory::default(), &self.rebuilder);
        let background = Background::new(&Options::default(), SystemClock::shared(), Arc::clone(&r.metrics));
        let how = PushContext {
            store: &r.store,
            pack_below: 1 << 20,
            background: &background,
            local_copies: None,
            failpoints: &r.failpoints,
            metrics: &r.metrics,
        };
        let stamp = Stamp { instance, version, replay_after: version };
        let (snapshot, _) = self.runtime.block_on(push(&how, checkpoint, &none, stamp)).unwrap();
        ShardHandle {
            instance,
            version,
            parent: None,
            batch: BatchId(1),
            shard,
            shards,
            max_parallelism: GROUPS,
            key_groups: shard_range(shard, shards, GROUPS),
            hash_id: HASH_ID,
            schema_id: 0,
            schema: String::new(),
            watermark: None,
            state_keys: 0,
            state_bytes: 0,
            snapshot: Some(snapshot),
            indexed: None,
            segments: Vec::new(),
        }
    }

    /// Handles of `shards` shards: a snapshot of all keys and a segment that changes some.
    fn sources(&mut self, shards: u32) -> Sources {
        let handles = (0..shards).map(|shard| {
            let key_groups = shard_range(shard, shards, GROUPS);
            let checkpoint = self.checkpoint(key_groups, VALUE);
            let handle = self.handle(shard, shards, &checkpoint);
            let r = &self.rebuilder;
            let set = change_set(CHANGED, key_groups, 1, VALUE);
            let bytes = encode_set(&set, Compression::Zstd).unwrap().to_bytes();
            let (offset, length) = (FILE_HEADER_LEN as u64, bytes.len() as u64);
            let mut object = file_header().to_vec();
            object.extend_from_slice(&bytes);
            object.extend_from_slice(&file_footer(&[(offset, length)], crc32c(&object)));
            let object = self.runtime.block_on(r.store.put_new(&log_name(), vec![object.into()])).unwrap();
            let version = VersionId::random();
            let records = set.len() as u64;
            let segment = SegmentRef { version, batch: BatchId(1), object, offset, length, records };
            ShardHandle { version, segments: vec![segment], ..handle }
        });
        Sources::of(handles.collect()).unwrap()
    }

    fn rescale(&mut self, sources: &Sources, shards: u32) {
        for range in sources.targets(shards).unwrap() {
            self.restore(sources, range).destroy().unwrap();
        }
    }

    fn restore(&mut self, sources: &Sources, range: KeyGroupRange) -> KeyedState {
        let dir = self.fresh();
        self.runtime.block_on(self.rebuilder.restore_range(range, sources, &dir)).unwrap().keyed
    }

    /// The time of restores, without that of the states' ends.
    fn timed(&mut self, rounds: u64, sources: &Sources, range: KeyGroupRange) -> Duration {
        let one = |_| {
            let start = Instant::now();
            let keyed = self.restore(sources, range);
            let took = start.elapsed();
            keyed.destroy().unwrap();
            took
        };
        (0..rounds).map(one).sum()
    }

    /// Half of the key groups of a snapshot into an empty state, as tables.
    fn move_tables(&mut self, from: &Path, half: KeyGroupRange) -> KeyedState {
        let (dir, into) = (self.fresh(), self.fresh());
        std::fs::create_dir(&into).unwrap();
        let mut keyed = KeyedState::create(&dir, &self.rebuilder.resources).unwrap();
        keyed.ingest(export(from, half, &into, &self.rebuilder.resources).unwrap()).unwrap();
        keyed
    }

    /// The same as changes.
    fn move_changes(&mut self, from: &Path, half: KeyGroupRange) -> KeyedState {
        let (dir, copy) = (self.fresh(), self.fresh());
        std::fs::create_dir(&copy).unwrap();
        for entry in std::fs::read_dir(from).unwrap() {
            let name = entry.unwrap().file_name();
            std::fs::copy(from.join(&name), copy.join(&name)).unwrap();
        }
        let source = KeyedState::open(&copy, &self.rebuilder.resources).unwrap();
        let mut keyed = KeyedState::create(&dir, &self.rebuilder.resources).unwrap();
        let mut set = ChangeSet::default();
        source
            .for_each(&mut |e| {
                if half.contains(e.key_group) {
                    let value = e.value.unwrap_or_default();
                    set.push(Change { op: Op::Put, state: e.state, key_group: e.key_group, key: e.key, value });
                    if set.payload_bytes() > 8 << 20 {
                        keyed.apply(&std::mem::take(&mut set))?;
                    }
                }
                Ok(())
            })
            .unwrap();
        keyed.apply(&set).unwrap();
        // On disk, as the tables are.
        keyed.begin_flush();
        while keyed.flush_dirty(100_000).unwrap() {}
        source.destroy().unwrap();
        keyed
    }
}

fn rescale(c: &mut Criterion) {
    let mut world = World::new();
    let mut group = c.benchmark_group("rescale");
    group.throughput(Throughput::Elements(KEYS)).sample_size(10);
    for (from, to) in [(1, 2), (2, 1)] {
        let sources = world.sources(from);
        group.bench_function(format!("{from} to {to}"), |b| b.iter(|| world.rescale(&sources, to)));
    }
    let half = shard_range(0, 2, GROUPS);
    let snapshot = world.checkpoint(shard_range(0, 1, GROUPS), VALUE);
    group.throughput(Throughput::Elements(KEYS / 2));
    group.bench_function("move half/tables", |b| {
        b.iter_batched(|| (), |()| world.move_tables(&snapshot, half), BatchSize::PerIteration);
    });
    group.bench_function("move half/changes", |b| {
        b.iter_batched(|| (), |()| world.move_changes(&snapshot, half), BatchSize::PerIteration);
    });
    group.finish();
}

fn snapshots(c: &mut Criterion) {
    let mut world = World::new();
    let mut group = c.benchmark_group("snapshots");
    group.sample_size(10);
    let halves = [0, 1].map(|shard| shard_range(shard, 2, GROUPS));
    for length in [8, 100] {
        let whole = world.checkpoint(shard_range(0, 1, GROUPS), length);
        let one = Sources::of(vec![world.handle(0, 1, &whole)]).unwrap();
        for (half, name) in halves.into_iter().zip(["first", "second"]) {
            group.bench_function(format!("1 to 2 {name} {length} B"), |b| {
                b.iter_custom(|rounds| world.timed(rounds, &one, half));
            });
        }
        let two = [0, 1].map(|shard| {
            let half = world.restore(&one, halves[shard as usize]);
            let checkpoint = world.checkpoint_of(half);
            world.handle(shard, 2, &checkpoint)
        });
        let two = Sources::of(two.to_vec()).unwrap();
        group.bench_function(format!("2 to 1 {length} B"), |b| {
            b.iter_custom(|rounds| world.timed(rounds, &two, shard_range(0, 1, GROUPS)));
        });
    }
    group.finish();
}

criterion_group!(benches, rescale, snapshots);
criterion_main!(benches);
