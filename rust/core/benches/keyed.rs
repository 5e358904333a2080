//! Keyed state: applying and reading 200,000 keys in memory, and reading from disk; loading four million keys of a
//! restored state into the hot tier.
#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use fastchangelog_columns::codec::hash_key;
use fastchangelog_format::model::{Change, ChangeSet, KeyGroup, Op, StateId, key_group_of};
use fastchangelog_state::keyed::{KeyRef, KeyedState};
use fastchangelog_state::rocks::SharedResources;
use fastchangelog_store::budget::MemoryBudget;
use fastchangelog_store::metrics::Metrics;
use std::hint::black_box;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

const KEYS: u64 = 200_000;
const STATE: StateId = StateId(0);

fn keys(range: std::ops::Range<u64>) -> Vec<(u64, KeyGroup, [u8; 9])> {
    let mut keys: Vec<_> = range
        .map(|i| {
            let mut key = [1; 9];
            key[1..].copy_from_slice(&i.to_be_bytes());
            let hash = hash_key(&key);
            (hash, key_group_of(hash, 128), key)
        })
        .collect();
    // As sessions see them: in no order that the hot tier knows.
    keys.sort_unstable_by_key(|(hash, ..)| hash.swap_bytes());
    keys
}

fn change_set(keys: &[(u64, KeyGroup, [u8; 9])], value: u8) -> ChangeSet {
    let mut set = ChangeSet::with_capacity(keys.len(), keys.len() * 33);
    for (_, key_group, key) in keys {
        set.push(Change { op: Op::Put, state: STATE, key_group: *key_group, key, value: &[value; 24] });
    }
    set.sort_by_key_group();
    set
}

fn state(dir: &Path, limit: u64) -> KeyedState {
    let shared = SharedResources::new(&MemoryBudget::new(1 << 30), Arc::new(Metrics::default())).unwrap();
    let mut state = KeyedState::create(dir, &shared).unwrap();
    state.set_hot_limit(limit).unwrap();
    state
}

fn read(state: &KeyedState, keys: &[(u64, KeyGroup, [u8; 9])]) -> usize {
    let refs: Vec<_> =
        keys.iter().map(|(hash, key_group, key)| KeyRef { hash: *hash, key_group: *key_group, key }).collect();
    let mut bytes = 0;
    let mut take = |_, value: Option<&[u8]>| {
        bytes += black_box(value).map_or(0, <[u8]>::len);
        ControlFlow::Continue(())
    };
    state.get_many(STATE, &refs, &mut take).unwrap();
    bytes
}

fn keyed(c: &mut Criterion) {
    let root = tempfile::tempdir().unwrap();
    let mut group = c.benchmark_group("keyed");
    group.throughput(Throughput::Elements(KEYS)).sample_size(10);
    let all = keys(0..KEYS);

    let mut folders = 0;
    group.bench_function("apply/new", |b| {
        let set = change_set(&all, 0);
        let fresh = || {
            folders += 1;
            state(&root.path().join(format!("new{folders}")), 256 << 20)
        };
        b.iter_batched_ref(fresh, |state| state.apply(&set).unwrap(), BatchSize::PerIteration);
    });

    // Among two million keys, so that the processor's caches do not hold the tier.
    let mut hot = state(&root.path().join("hot"), 512 << 20);
    hot.apply(&change_set(&keys(0..10 * KEYS), 0)).unwrap();
    group.bench_function("apply/in place", |b| {
        let set = change_set(&all, 1);
        b.iter(|| hot.apply(&set).unwrap());
    });
    group.bench_function("get/hot", |b| b.iter(|| read(&hot, &all)));
    group.bench_function("get/absent", |b| {
        let absent = keys(10 * KEYS..11 * KEYS);
        b.iter(|| read(&hot, &absent));
    });
    hot.destroy().unwrap();

    let mut cold = state(&root.path().join("cold"), 1 << 20);
    cold.apply(&change_set(&keys(0..10 * KEYS), 0)).unwrap();
    group.bench_function("get/disk", |b| b.iter(|| read(&cold, &all)));
    group.bench_function("apply/evicting", |b| {
        let set = change_set(&all, 1);
        b.iter(|| cold.apply(&set).unwrap());
    });
    group.finish();
}

/// CPU time of this thread: loading does not block, and the machine may have other work. The wall
/// clock's where the kernel does not tell.
fn busy(start: Instant) -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok();
    let nanos = text.and_then(|text| text.split(' ').next()?.parse().ok());
    nanos.map_or_else(|| start.elapsed(), Duration::from_nanos)
}

fn load(c: &mut Criterion) {
    const MANY: u64 = 4_000_000;
    /// Rows of one batch: the levels of a snapshot that came about in some time.
    const BATCH: u64 = 250_000;
    let root = tempfile::tempdir().unwrap();
    let snapshot = root.path().join("base");
    let mut filled = state(&root.path().join("filled"), 16 << 20);
    for first in (0..MANY).step_by(BATCH as usize) {
        filled.apply(&change_set(&keys(first..first + BATCH), 0)).unwrap();
    }
    filled.begin_flush();
    while filled.flush_dirty(usize::MAX).unwrap() {}
    filled.checkpoint(&snapshot).unwrap();
    filled.destroy().unwrap();

    let shared = SharedResources::new(&MemoryBudget::new(2 << 30), Arc::new(Metrics::default())).unwrap();
    let mut group = c.benchmark_group("keyed");
    group.throughput(Throughput::Elements(MANY)).sample_size(10);
    for (name, portion) in [("load/at once", usize::MAX), ("load/portions", 2_048)] {
        group.bench_function(name, |b| {
            b.iter_custom(|times| {
                let mut took = Duration::ZERO;
                for _ in 0..times {
                    let mut state = KeyedState::open(&snapshot, &shared).unwrap();
                    state.set_hot_limit(1 << 30).unwrap();
                    let start = Instant::now();
                    let before = busy(start);
                    let mut warm = state.begin_warm_up().unwrap();
                    while state.warm_up_step(&mut warm, portion).unwrap() {}
                    took += busy(start).checked_sub(before).unwrap();
                    assert!(state.is_complete());
                }
                took
            });
        });
    }
    group.finish();
}

criterion_group!(benches, keyed, load);
criterion_main!(benches);
