//! Rescaling against a plain map: random states cut into shards, snapshots and segments at random, there and back; a
//! failure or an end at every step; and how much is fetched.

use super::*;
use crate::shard::testing::seeds;
use fastchangelog_format::clock::SystemClock;
use fastchangelog_format::config::{Compression, Options};
use fastchangelog_format::error::ErrorKind;
use fastchangelog_format::model::handle::HASH_ID;
use fastchangelog_format::model::ids::shard_of;
use fastchangelog_format::model::{
    BatchId, Change, ChangeSet, InstanceId, KeyGroup, Op, SegmentRef, ShardHandle, StateId, VersionId, shard_range,
};
use fastchangelog_format::{Crc, encode_segment_index, encode_set, file_footer, file_header};
use fastchangelog_log::read::ObjectCache;
use fastchangelog_log::snapshot::{Inventory, PushContext, Stamp, push};
use fastchangelog_state::group_range::count;
use fastchangelog_state::rocks::SharedResources;
use fastchangelog_store::budget::MemoryBudget;
use fastchangelog_store::failpoint::{Failpoints, SharedFailpoints};
use fastchangelog_store::fault::{Fault, FaultStore, Operation};
use fastchangelog_store::metrics::SharedMetrics;
use fastchangelog_store::{Background, Store, index_name, log_name};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::path::PathBuf;
use std::task::Poll;

pub(in crate::shard) type Model = BTreeMap<(u16, u16, Vec<u8>), Vec<u8>>;

/// A shard that writes like a session and a materialization.
pub(in crate::shard) struct Writer {
    keyed: KeyedState,
    handle: ShardHandle,
    segments: Vec<SegmentRef>,
}

pub(in crate::shard) struct World {
    pub(in crate::shard) faults: Arc<FaultStore>,
    pub(in crate::shard) rebuilder: Rebuilder,
    pub(in crate::shard) disk: tempfile::TempDir,
    pub(in crate::shard) groups: u16,
    pub(in crate::shard) model: Model,
    pub(in crate::shard) shards: Vec<Writer>,
    pub(in crate::shard) made: usize,
}

impl World {
    pub(in crate::shard) fn new(groups: u16, shards: u32) -> Self {
        let (faults, metrics, failpoints) = (FaultStore::in_memory(), SharedMetrics::default(), Failpoints::none());
        let options = BTreeMap::from([("retry_delay".to_owned(), "1ms".to_owned())]);
        let options = Options::from_map(&options).unwrap();
        let store = Store::from_object_store(
            Arc::clone(&faults) as _,
            "q",
            "test://b/q",
            &options,
            SharedMetrics::clone(&metrics),
            SharedFailpoints::clone(&failpoints),
        );
        let resources = SharedResources::new(&MemoryBudget::new(64 << 20), SharedMetrics::clone(&metrics)).unwrap();
        let rebuilder = Rebuilder { store, cache: None, resources, clock: SystemClock::shared(), metrics, failpoints };
        let disk = tempfile::tempdir().unwrap();
        let mut world = Self { faults, rebuilder, disk, groups, model: Model::new(), shards: Vec::new(), made: 0 };
        for shard in 0..shards {
            let dir = world.fresh();
            let keyed = KeyedState::create(&dir, &world.rebuilder.resources).unwrap();
            world.shards.push(Writer { keyed, handle: blank(shard, shards, groups), segments: Vec::new() });
        }
        world
    }

    pub(in crate::shard) fn fresh(&mut self) -> PathBuf {
        self.made += 1;
        self.disk.path().join(format!("db-{}", self.made))
    }

    /// A batch: random changes, one log object for all shards.
    pub(in crate::shard) async fn batch(&mut self, rng: &mut StdRng, changes: usize, keys: u32) {
        let mut all: BTreeMap<(u16, u16, Vec<u8>), (Op, Vec<u8>)> = BTreeMap::new();
        for _ in 0..changes {
            // Few key groups get most keys, many get none.
            let group = rng.random_range(0..self.groups);
            let group = if rng.random_bool(0.5) { group / 7 * 7 } else { group };
            let key = rng.random_range(0..keys).to_be_bytes().to_vec();
            let value: Vec<u8> = (0..rng.random_range(0..40)).map(|_| rng.random()).collect();
            let (op, key, value) = match rng.random_range(0..20) {
                0 => (Op::DeletePrefix, key[..rng.random_range(2..4)].to_vec(), Vec::new()),
                1..4 => (Op::Delete, key, Vec::new()),
                _ => (Op::Put, key, value),
            };
            all.insert((group, rng.random_range(0..3), key), (op, value));
        }
        let records: Vec<_> = all.into_iter().collect();
        self.write(&records).await;
    }

    pub(in crate::shard) async fn write(&mut self, records: &[((u16, u16, Vec<u8>), (Op, Vec<u8>))]) {
        let count = self.shards.len() as u32;
        let mut sets = vec![ChangeSet::default(); self.shards.len()];
        // Prefix deletes come first in their key group.
        for many in [true, false] {
            for ((group, state, key), (op, value)) in records.iter().filter(|r| (r.1.0 == Op::DeletePrefix) == many) {
                let shard = shard_of(KeyGroup(*group), count, self.groups) as usize;
                let (key_group, state_id) = (KeyGroup(*group), StateId(*state));
                sets[shard].push(Change { op: *op, state: state_id, key_group, key, value });
                let at = (*group, *state, key.clone());
                match op {
                    Op::Put => drop(self.model.insert(at, value.clone())),
                    Op::Delete => drop(self.model.remove(&at)),
                    Op::DeletePrefix => {
                        self.model.retain(|k, _| !((k.0, k.1) == (at.0, at.1) && k.2.starts_with(&at.2)));
                    }
                }
            }
        }
        let mut parts = vec![file_header()];
        let mut places = vec![None; sets.len()];
        for (set, place) in sets.iter_mut().zip(&mut places).filter(|(set, _)| !set.is_empty()) {
            set.sort_by_key_group();
            let bytes = encode_set(set, Compression::Zstd).unwrap().to_bytes();
            *place = Some((parts.iter().map(|p| p.len() as u64).sum::<u64>(), bytes.len() as u64));
            parts.push(bytes);
        }
        let mut crc = Crc::new();
        parts.iter().for_each(|part| crc.update(part));
        parts.push(file_footer(&places.iter().flatten().copied().collect::<Vec<_>>(), crc.value()));
        let object = self.rebuilder.store.put_new(&log_name(), parts).await.unwrap();
        for ((writer, set), place) in self.shards.iter_mut().zip(&sets).zip(places) {
            let Some((offset, length)) = place else { continue };
            writer.keyed.apply(set).unwrap();
            let version = VersionId::random();
            let (object, batch, records) = (object.clone(), writer.handle.batch, set.len() as u64);
            writer.segments.push(SegmentRef { version, batch, object, offset, length, records });
            writer.handle.version = version;
            writer.handle.batch = BatchId(batch.0 + 1);
        }
    }

    /// Gives a shard a snapshot that holds all it has; its handle still replays the last `fuzzy` segments over it.
    pub(in crate::shard) async fn snapshot(&mut self, shard: usize, fuzzy: usize) {
        let dir = self.fresh();
        let writer = &mut self.shards[shard];
        let cut = writer.segments.len().saturating_sub(fuzzy);
        let Some(replay_after) = cut.checked_sub(1).map(|last| writer.segments[last].version) else { return };
        writer.keyed.begin_flush();
        while writer.keyed.flush_dirty(1000).unwrap() {}
        writer.keyed.checkpoint(&dir).unwrap();
        let (r, h) = (&self.rebuilder, &writer.handle);
        let background = Background::new(&Options::default(), SystemClock::shared(), SharedMetrics::clone(&r.metrics));
        let how = PushContext {
            store: &r.store,
            // Packed or not, a snapshot is a snapshot.
            pack_below: (self.made as u64 % 2) << 20,
            background: &background,
            local_copies: None,
            failpoints: &r.failpoints,
            metrics: &r.metrics,
        };
        let stamp = Stamp { instance: h.instance, version: h.version, replay_after };
        let (snapshot, _) = push(&how, &dir, &Inventory::default(), stamp).await.unwrap();
        writer.segments.drain(..cut);
        writer.handle.snapshot = Some(snapshot);
    }

    pub(in crate::shard) async fn handles(&mut self) -> Sources {
        let mut handles = Vec::new();
        for writer in &self.shards {
            let mut handle = writer.handle.clone();
            (handle.state_keys, handle.state_bytes) = count(&writer.keyed).unwrap();
            handle.segments = writer.segments.clone();
            if handle.segments.len() > 3 {
                let rest = handle.segments.split_off(2);
                let index = encode_segment_index(&handle.segments);
                handle.indexed = Some(self.rebuilder.store.put_new(&index_name(), vec![index]).await.unwrap());
                handle.segments = rest;
            }
            handles.push(handle);
        }
        handles.reverse();
        Sources::of(handles).unwrap()
    }

    fn expected(&self, range: KeyGroupRange) -> Model {
        self.model.iter().filter(|(k, _)| range.contains(KeyGroup(k.0))).map(|(k, v)| (k.clone(), v.clone())).collect()
    }

    pub(in crate::shard) fn check(&self, state: &RangeState, range: KeyGroupRange, what: &str) {
        let mut found = Model::new();
        let mut bytes = 0;
        state
            .keyed
            .for_each(&mut |e| {
                let key = (e.key_group.0, e.state.0, e.key.to_vec());
                bytes += (e.key.len() + e.value.unwrap().len()) as u64;
                assert!(found.insert(key, e.value.unwrap().to_vec()).is_none(), "{what}: every key once");
                Ok(())
            })
            .unwrap();
        assert!(found == self.expected(range), "{what}: {range:?} differs");
        let counts = (found.len() as u64, bytes);
        assert_eq!(count(&state.keyed).unwrap(), counts, "{what}: {range:?}");
        assert!(!state.counted || (state.keys, state.bytes) == counts, "{what}: counts of {range:?}");
    }

    /// Replaces the shards by `shards` new ones, each checked.
    pub(in crate::shard) async fn rescale(&mut self, shards: u32, what: &str) {
        let sources = self.handles().await;
        let mut writers = Vec::new();
        for (shard, range) in (0..).zip(sources.targets(shards).unwrap()) {
            let dir = self.fresh();
            let state = self.rebuilder.restore_range(range, &sources, &dir).await.unwrap();
            self.check(&state, range, what);
            let handle = blank(shard, shards, self.groups);
            writers.push(Writer { keyed: state.keyed, handle, segments: Vec::new() });
        }
        for old in std::mem::replace(&mut self.shards, writers) {
            old.keyed.destroy().unwrap();
        }
        for shard in 0..self.shards.len() {
            // Segments of the old shards are none of the new ones': they begin with a snapshot of all they have.
            self.snapshot_of_all(shard).await;
        }
    }

    async fn snapshot_of_all(&mut self, shard: usize) {
        let end = self.rebuilder.store.put_new(&log_name(), vec![file_header()]).await.unwrap();
        let version = self.shards[shard].handle.version;
        let segment = SegmentRef { version, batch: BatchId(0), object: end, offset: 0, length: 0, records: 0 };
        self.shards[shard].segments.push(segment);
        self.snapshot(shard, 0).await;
    }

    pub(in crate::shard) fn files(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.disk.path()).unwrap();
        let mut names: Vec<_> = entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

fn blank(shard: u32, shards: u32, groups: u16) -> ShardHandle {
    ShardHandle {
        instance: InstanceId::random(),
        version: VersionId::random(),
        parent: None,
        batch: BatchId(0),
        shard,
        shards,
        max_parallelism: groups,
        key_groups: shard_range(shard, shards, groups),
        hash_id: HASH_ID,
        schema_id: 7,
        schema: String::new(),
        watermark: None,
        state_keys: 0,
        state_bytes: 0,
        snapshot: None,
        indexed: None,
        segments: Vec::new(),
    }
}

/// Four shards: a snapshot with segments, a fuzzy snapshot, a snapshot alone, segments alone.
pub(in crate::shard) async fn mixed(rng: &mut StdRng) -> World {
    let mut world = World::new(32, 4);
    for round in 0..6 {
        world.batch(rng, 300, 60).await;
        match round {
            2 => world.snapshot(0, 0).await,
            4 => world.snapshot(1, 2).await,
            5 => world.snapshot(2, 0).await,
            _ => {}
        }
    }
    world
}

#[tokio::test]
async fn y10_to_y12_p5_there_and_back_gives_equal_state() {
    for seed in seeds(10) {
        println!("FASTCHANGELOG_SEED={seed}");
        let rng = &mut StdRng::seed_from_u64(seed);
        let groups = [1, 5, 24, 128, 32_768][rng.random_range(0..5)];
        let most = u32::from(groups).min(9);
        let n = rng.random_range(1..=most);
        let mut world = World::new(groups, n);
        let edges = [1, most, if groups <= 24 { u32::from(groups) } else { 2 }];
        for edge in edges {
            for _ in 0..rng.random_range(0..5) {
                let changes = rng.random_range(0..250);
                world.batch(rng, changes, 50).await;
                for shard in 0..world.shards.len() {
                    if rng.random_bool(0.3) {
                        world.snapshot(shard, rng.random_range(0..3)).await;
                    }
                }
            }
            let m = if rng.random_bool(0.5) { edge } else { rng.random_range(1..=most) };
            let at = world.shards.len();
            world.rescale(m, &format!("{at} to {m} of {groups} groups")).await;
            world.rescale(n, &format!("{m} back to {n} of {groups} groups")).await;
        }
    }
}

#[tokio::test]
async fn an_empty_state_rescales_to_any_number() {
    let mut world = World::new(6, 3);
    for shards in [6, 1, 4] {
        world.rescale(shards, "nothing").await;
    }
}

#[tokio::test(start_paused = true)]
async fn y04_a_fault_of_any_store_call_leaves_nothing_behind() {
    let world = &mut mixed(&mut StdRng::seed_from_u64(1)).await;
    let (sources, range) = (world.handles().await, KeyGroupRange { start: 3, end: 30 });
    let (before, written) = (world.files(), world.faults.calls_of(Operation::Put));
    for fault in [Fault::Denied, Fault::Flip, Fault::Truncate, Fault::Throttled] {
        let mut failed = 0;
        for call in 0.. {
            let first = world.faults.calls();
            world.faults.at(first + call, fault);
            let dir = world.fresh();
            match world.rebuilder.restore_range(range, &sources, &dir).await {
                // A retry heals most passing faults; any result is right.
                Ok(state) => {
                    world.check(&state, range, "with a fault");
                    state.keyed.destroy().unwrap();
                    if world.faults.calls() <= first + call {
                        break;
                    }
                }
                Err(error) => {
                    failed += 1;
                    let kind = if fault == Fault::Denied { ErrorKind::PermissionDenied } else { ErrorKind::Corrupt };
                    assert_eq!(error.kind(), kind, "{error}");
                }
            }
            assert_eq!(world.files(), before, "call {call}");
            world.faults.heal();
        }
        world.faults.heal();
        let least = if fault == Fault::Denied { 9 } else { 0 };
        let most = if matches!(fault, Fault::Denied | Fault::Flip) { usize::MAX } else { 0 };
        assert!((least..=most).contains(&failed), "{fault:?}: {failed}");
    }
    assert_eq!(world.faults.calls_of(Operation::Put), written, "sources are only read");
    assert_eq!(world.faults.calls_of(Operation::Delete), 0);
    world.rescale(2, "afterwards").await;
}

#[tokio::test]
async fn a_failure_between_any_two_steps_leaves_nothing() {
    let world = &mut mixed(&mut StdRng::seed_from_u64(2)).await;
    let (sources, range) = (world.handles().await, KeyGroupRange { start: 3, end: 30 });
    let before = world.files();
    for point in [
        "rescale.before",
        "rescale.lineages",
        "rebuild.fetched",
        "rebuild.fetched@2",
        "rebuild.fetched@3",
        "rebuild.taken-over",
        "rebuild.exported",
        "rebuild.exported@2",
        "rebuild.ingested",
        "rebuild.ingested@2",
        "rebuild.replayed",
        "rebuild.replayed@5",
        "rescale.done",
    ] {
        let (name, nth) = point.split_once('@').unwrap_or((point, "1"));
        world.rebuilder.failpoints.set(&format!("{name}=error@{nth}")).unwrap();
        let dir = world.fresh();
        let error = world.rebuilder.restore_range(range, &sources, &dir).await.map(|_| ()).expect_err(point);
        assert!(error.to_string().contains(name), "{error}");
        assert_eq!(world.files(), before, "{point}");
        world.rebuilder.failpoints.clear();
    }
    let dir = world.fresh();
    std::fs::create_dir(&dir).unwrap();
    std::fs::write(dir.join("mine"), "").unwrap();
    world.rebuilder.restore_range(range, &sources, &dir).await.map(|_| ()).expect_err("a folder in use");
    assert!(dir.join("mine").exists(), "a folder that was there is not touched");
}

/// Dropped after any number of polls: work on threads finishes, and then nothing is left.
#[test]
fn y01_dropped_at_any_point_it_leaves_nothing() {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let first = runtime();
    let world = &mut first.block_on(mixed(&mut StdRng::seed_from_u64(3)));
    let (sources, range) = (first.block_on(world.handles()), KeyGroupRange { start: 3, end: 30 });
    let before = world.files();
    for polls in 0.. {
        let dir = world.fresh();
        let own = runtime();
        let ended = own.block_on(async {
            let mut left = polls;
            let mut restore = Box::pin(world.rebuilder.restore_range(range, &sources, &dir));
            poll_fn(|cx| {
                if left == 0 {
                    return Poll::Ready(None);
                }
                left -= 1;
                restore.as_mut().poll(cx).map(Some)
            })
            .await
        });
        // Waits for the threads.
        drop(own);
        if let Some(state) = ended {
            assert!(polls > 6, "it was dropped {polls} times only");
            let state = state.unwrap();
            world.check(&state, range, "after all");
            state.keyed.destroy().unwrap();
            break;
        }
        assert_eq!(world.files(), before, "after {polls} polls");
    }
}

/// A state of many tables, as rescaling to one shard leaves it: each of the new shards fetches its own only.
#[tokio::test]
async fn p2_a_small_part_fetches_few_bytes() {
    let mut world = World::new(64, 8);
    let rng = &mut StdRng::seed_from_u64(4);
    let records: Vec<_> = (0..64u16)
        .flat_map(|group| (0..100u32).map(move |key| (group, key)))
        .map(|(group, key)| {
            let value: Vec<u8> = (0..500).map(|_| rng.random()).collect();
            ((group, 0, key.to_be_bytes().to_vec()), (Op::Put, value))
        })
        .collect();
    world.write(&records).await;
    for shard in 0..8 {
        world.snapshot(shard, 0).await;
    }
    world.rescale(1, "to one").await;
    // A set of several blocks beside the snapshot.
    let changes: Vec<_> = records.iter().step_by(2).cloned().collect();
    world.write(&changes).await;
    let sources = world.handles().await;
    let all = sources.handles()[0].snapshot.as_ref().unwrap().total_bytes + sources.handles()[0].segments[0].length;
    let mut sum = 0;
    for (i, range) in sources.targets(8).unwrap().into_iter().enumerate() {
        let dir = world.fresh();
        let read = world.rebuilder.metrics.store_bytes_read.get();
        let state = world.rebuilder.restore_range(range, &sources, &dir).await.unwrap();
        world.check(&state, range, "a part");
        // Beside those bytes, the snapshot's manifest.
        let read = world.rebuilder.metrics.store_bytes_read.get() - read;
        assert_eq!(read, state.fetched + sources.handles()[0].snapshot.as_ref().unwrap().manifest.size);
        // An eighth of the snapshot, another eighth that is in level 0 and comes to all, and the blocks of an eighth.
        assert!(read < all * 2 / 5, "shard {i} read {read} of {all} bytes");
        sum += state.fetched;
    }
    assert!(sum < all * 5 / 2, "together {sum} of {all} bytes");
}

/// Of several sources one is taken over, the others are copied; local copies serve all new shards.
#[tokio::test]
async fn local_copies_serve_all_new_shards() {
    let mut world = mixed(&mut StdRng::seed_from_u64(5)).await;
    let dir = world.disk.path().join("cache");
    let metrics = SharedMetrics::default();
    world.rebuilder.cache = Some(ObjectCache::new(&dir, 64 << 20, metrics).unwrap());
    let sources = world.handles().await;
    let mut gets = Vec::new();
    for _ in 0..2 {
        let first = world.faults.calls_of(Operation::Get);
        for range in sources.targets(3).unwrap() {
            let dir = world.fresh();
            let state = world.rebuilder.restore_range(range, &sources, &dir).await.unwrap();
            world.check(&state, range, "with copies");
        }
        gets.push(world.faults.calls_of(Operation::Get) - first);
    }
    assert!(gets[1] < gets[0], "{gets:?}");
}

#[tokio::test]
async fn p9_a_snapshot_of_another_state_is_refused() {
    let mut world = mixed(&mut StdRng::seed_from_u64(6)).await;
    let mut handles = world.handles().await.handles().to_vec();
    handles[0].instance = InstanceId::random();
    let sources = Sources::of(handles).unwrap();
    let (dir, before) = (world.fresh(), world.files());
    let range = KeyGroupRange { start: 0, end: 2 };
    let error = world.rebuilder.restore_range(range, &sources, &dir).await.map(|_| ()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    assert!(error.to_string().contains("another state"), "{error}");
    assert_eq!(world.files(), before);
}
