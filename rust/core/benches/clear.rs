//! Clears of a key of many entries: by a delete of each entry, or of their prefix. A round clears one key among
//! 200,000 entries of others, fills it again and flushes; after 1,000 rounds all entries of the key are read in order, and
//! some by key.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a failure here is a failed test")]

use criterion::{Criterion, criterion_group, criterion_main};
use fastchangelog_columns::codec::hash_key;
use fastchangelog_format::model::{Change, ChangeSet, KeyGroup, Op, StateId};
use fastchangelog_state::keyed::{KeyRef, KeyedState};
use fastchangelog_state::rocks::SharedResources;
use fastchangelog_store::budget::MemoryBudget;
use fastchangelog_store::metrics::Metrics;
use std::hint::black_box;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

const OTHERS: u32 = 200_000;
const ROUNDS: u32 = 1_000;
const PREFIX: &[u8] = b"key 100000/";

fn change<'a>(op: Op, key: &'a [u8], value: &'a [u8]) -> Change<'a> {
    Change { op, state: StateId(0), key_group: KeyGroup(0), key, value }
}

fn entries(of: u32) -> impl Iterator<Item = Vec<u8>> {
    (0..of).map(|i| [PREFIX, &i.to_be_bytes()].concat())
}

fn flush(state: &mut KeyedState) {
    state.begin_flush();
    while state.flush_dirty(usize::MAX).unwrap() {}
}

fn others(dir: &Path) -> KeyedState {
    let shared = SharedResources::new(&MemoryBudget::new(1 << 30), Arc::new(Metrics::default())).unwrap();
    let mut state = KeyedState::create(dir, &shared).unwrap();
    state.set_hot_limit(256 << 20).unwrap();
    let mut set = ChangeSet::default();
    for i in 0..OTHERS {
        set.push(change(Op::Put, format!("key {i:06} x").as_bytes(), &[1; 24]));
    }
    state.apply(&set).unwrap();
    flush(&mut state);
    state
}

/// One change set: the key is cleared.
fn cleared(entries_of: u32, by_prefix: bool) -> ChangeSet {
    let mut set = ChangeSet::default();
    if by_prefix {
        set.push(change(Op::DeletePrefix, PREFIX, &[]));
    } else {
        entries(entries_of).for_each(|key| set.push(change(Op::Delete, &key, &[])));
    }
    set
}

fn filled(entries_of: u32, round: u32) -> ChangeSet {
    let mut set = ChangeSet::default();
    entries(entries_of).for_each(|key| set.push(change(Op::Put, &key, &[round.to_be_bytes()[3]; 24])));
    set
}

fn read_in_order(state: &KeyedState) -> u32 {
    let mut cursor = state.cursor(StateId(0), KeyGroup(0), PREFIX, Some(b"key 1000000")).unwrap();
    let mut found = 0;
    while let Some((key, _)) = cursor.entry().unwrap() {
        found += u32::from(!black_box(key).is_empty());
        cursor.advance();
    }
    found
}

fn clear(c: &mut Criterion) {
    let root = tempfile::tempdir().unwrap();
    let mut group = c.benchmark_group("clear");
    group.sample_size(10).measurement_time(Duration::from_secs(1)).warm_up_time(Duration::from_millis(200));
    let quick = std::env::args().any(|arg| arg == "--test");
    for of in [16, 64, 256, 1_024] {
        for by_prefix in [false, true] {
            let name = format!("{of} entries/{}", if by_prefix { "prefix" } else { "each" });
            let mut state = others(&root.path().join(name.replace('/', " ")));
            let clears = cleared(of, by_prefix);
            let mut rounds = 0;
            let mut round = |state: &mut KeyedState| {
                rounds += 1;
                state.apply(&clears).unwrap();
                state.apply(&filled(of, rounds)).unwrap();
                flush(state);
            };
            for _ in 0..if quick { 3 } else { ROUNDS } {
                round(&mut state);
            }
            assert_eq!(read_in_order(&state), of);
            group.bench_function(format!("{name}/read in order"), |b| b.iter(|| read_in_order(&state)));
            // What is not in the hot tier is asked of RocksDB.
            state.set_hot_limit(0).unwrap();
            let keys: Vec<_> = entries(of).collect();
            let keys: Vec<_> =
                keys.iter().map(|key| KeyRef { hash: hash_key(key), key_group: KeyGroup(0), key }).collect();
            group.bench_function(format!("{name}/read 16 by key"), |b| {
                let mut take = |_, value: Option<&[u8]>| {
                    black_box(value);
                    ControlFlow::Continue(())
                };
                b.iter(|| state.get_many(StateId(0), &keys[..16], &mut take).unwrap());
            });
            state.set_hot_limit(256 << 20).unwrap();
            state.warm_up().unwrap();
            group.bench_function(format!("{name}/round"), |b| b.iter(|| round(&mut state)));
            state.checkpoint(&root.path().join(format!("{name} checkpoint").replace('/', " "))).unwrap();
            println!("{name}: {} bytes of tables", state.checkpointer().sst_bytes());
            state.checkpointer().compact_if_bloated(u64::from(of) * 50 + u64::from(OTHERS) * 40, 0.0).unwrap();
            println!("{name}: {} after compaction", state.checkpointer().sst_bytes());
            group.bench_function(format!("{name}/read in order from tables"), |b| b.iter(|| read_in_order(&state)));
            state.destroy().unwrap();
        }
    }
}

criterion_group!(benches, clear);
criterion_main!(benches);
