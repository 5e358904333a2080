//! The memory budget holds: a process whose state is many times its budget stays near the budget.
//!
//! Runs in a process of its own, with the allocator set as the state server sets it: by default glibc keeps freed
//! memory, and a quarter of the budget would be held twice.
#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

use fastchangelog_columns::codec::hash_key;
use fastchangelog_format::model::{Change, ChangeSet, Op, StateId, key_group_of};
use fastchangelog_state::keyed::{KeyRef, KeyedState};
use fastchangelog_state::rocks::SharedResources;
use fastchangelog_store::budget::MemoryBudget;
use fastchangelog_store::metrics::Metrics;
use std::ops::ControlFlow;
use std::sync::Arc;

const BUDGET: u64 = 128 << 20;
const SHARDS: u64 = 4;
const ROUNDS: u64 = 16;
const CHILD: &str = "FASTCHANGELOG_MEMORY_TEST";

fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|l| l.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
}

fn keys(seed: u64) -> Vec<[u8; 8]> {
    (0..20_000u64).map(|i| hash_key(&(seed * 20_000 + i).to_be_bytes()).to_be_bytes()).collect()
}

#[test]
#[cfg_attr(not(target_os = "linux"), ignore = "/proc is that of Linux")]
fn resident_memory_stays_near_the_budget() {
    if std::env::var_os(CHILD).is_some() {
        return measure();
    }
    let output = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "resident_memory_stays_near_the_budget"])
        .env(CHILD, "1")
        .env("MALLOC_ARENA_MAX", "2")
        .env("MALLOC_MMAP_THRESHOLD_", "1048576")
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

fn measure() {
    let root = tempfile::tempdir().unwrap();
    let start = resident();
    let budget = MemoryBudget::new(BUDGET);
    let shared = SharedResources::new(&budget, Arc::new(Metrics::default())).unwrap();
    let mut states: Vec<_> =
        (0..SHARDS).map(|i| KeyedState::create(&root.path().join(i.to_string()), &shared).unwrap()).collect();
    for state in &mut states {
        state.set_hot_limit((BUDGET - budget.used()) / SHARDS).unwrap();
    }
    for round in 0..ROUNDS {
        for (shard, state) in states.iter_mut().enumerate() {
            let mut set = ChangeSet::default();
            for key in keys(round * SHARDS + shard as u64) {
                let key_group = key_group_of(hash_key(&key), 128);
                let value = [7; 200];
                set.push(Change { op: Op::Put, state: StateId(0), key_group, key: &key, value: &value });
            }
            set.sort_by_key_group();
            state.apply(&set).unwrap();
            let old = keys(round / 2 * SHARDS + shard as u64);
            let refs: Vec<_> = old
                .iter()
                .map(|key| {
                    let hash = hash_key(key);
                    KeyRef { hash, key_group: key_group_of(hash, 128), key }
                })
                .collect();
            let mut found = 0;
            let mut take = |_, value: Option<&[u8]>| {
                found += usize::from(value.is_some());
                ControlFlow::Continue(())
            };
            state.get_many(StateId(0), &refs, &mut take).unwrap();
            assert_eq!(found, refs.len());
        }
    }
    assert!(budget.used() <= BUDGET + BUDGET / 50, "{} of {BUDGET}", budget.used());
    assert!(shared.metrics().hot_evictions.get() > 0 && shared.metrics().rocksdb_reads.get() > 0);
    let used = resident() - start;
    assert!(used <= BUDGET / 5 * 6, "{} MiB resident with a budget of {} MiB", used >> 20, BUDGET >> 20);
}
