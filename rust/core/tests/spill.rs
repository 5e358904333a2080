//! Versions of several segments through the whole engine: random histories of batches larger than their session's memory,
//! with restores, snapshots, savepoints and other numbers of shards; and what a killed server leaves behind.
#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

mod common;

use arrow_array::{Array, BinaryArray, UInt8Array};
use common::{GROUPS, Kept, World, seeds};
use fastchangelog_columns::codec::hash_key;
use fastchangelog_core::engine::{StateCall, StateId, StateSession};
use fastchangelog_core::shard::savepoint::SavepointForm;
use fastchangelog_format::model::ids::shard_of;
use fastchangelog_format::model::key_group_of;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::collections::BTreeSet;

/// A few dozen keys are more than this.
const TINY: (&str, &str) = ("session_memory", "4KiB");

#[test]
fn p5_p7_p8_large_batches_through_faults_and_restores() {
    for seed in seeds(4) {
        println!("seed {seed}");
        let mut rng = StdRng::seed_from_u64(seed);
        let mut world = World::new(seed, &[TINY, ("max_handle_segments", "3"), ("result_batch_rows", "7")]);
        let mut spilled = 0;
        for _ in 0..14 {
            let rows = world.random_rows(&mut rng);
            match rng.random_range(0..8) {
                0 => world.failpoints("session.spill=error@1;session.range=error@2"),
                1 => world.failpoints("session.spilled=error@2;promote.before=error@1"),
                2 => world.failpoints("session.before-persist=error@3;session.durable=error@2"),
                _ => {}
            }
            let kept = if rng.random_bool(0.5) { Kept::First } else { Kept::Last };
            world.batch(&rows, rng.random_range(1..3), kept);
            spilled += world.metrics().spilled_bytes.get();
            match rng.random_range(0..6) {
                0 => world.restart(true),
                1 => world.restart(false),
                2 => world.materialize(),
                3 => {
                    world.materialize();
                    world.restart(true);
                }
                _ => {}
            }
        }
        assert!(spilled > 0, "seed {seed}: nothing was spilled");
        world.check_all();
        let (found, reachable) = world.objects();
        assert!(reachable.is_subset(&found), "seed {seed}: a handle names what is not there");
    }
}

#[test]
fn a_version_of_several_segments_is_rescaled_and_saved_whole() {
    for seed in seeds(2) {
        println!("seed {seed}");
        let mut rng = StdRng::seed_from_u64(seed);
        let mut world = World::new(seed, &[TINY, ("max_handle_segments", "3")]);
        for _ in 0..4 {
            let rows = world.random_rows(&mut rng);
            world.batch(&rows, 1, Kept::Last);
            if rng.random_bool(0.3) {
                world.materialize();
            }
        }
        assert!(world.metrics().spills.get() > 0);
        for form in [SavepointForm::Canonical, SavepointForm::Native] {
            for shards in [1, 3, 5] {
                let disk = tempfile::tempdir().unwrap();
                let savepoint = disk.path().join("savepoint");
                world.savepoint(form, &savepoint);
                let mut next = world.successor(shards, &savepoint);
                next.set_option(TINY.0, Some(TINY.1));
                let rows = next.random_rows(&mut rng);
                next.batch(&rows, 1, Kept::Last);
                for shard in 0..shards {
                    if !next.has_handle(shard) {
                        next.batch_of_one_shard(shard);
                    }
                }
                next.set_option("start_from", None);
                next.check_all();
            }
        }
        world.check_all();
    }
}

#[test]
fn spills_of_a_killed_server_go_when_the_next_one_starts() {
    let mut world = World::new(1, &[TINY]);
    // Changes of states spill to RocksDB, whose files have names; spilled groups have none.
    let sessions: Vec<_> = [false, true].map(|ephemeral| spilled_states(&world, ephemeral)).into();
    let mut groups = world.open_ephemeral();
    let rows: Vec<_> = (0..3_000).map(|i| (Some(format!("key {i}")), i)).collect();
    for shard in 0..world.shards() {
        world.feed(&mut groups, shard, &rows);
    }
    assert!(world.metrics().spills.get() > 2);
    let files = |world: &World| -> BTreeSet<String> {
        let of = |name: &String| name.split_once("spill/").map(|(_, name)| name.split('/').next().unwrap().to_owned());
        world.local_files().iter().filter_map(of).collect()
    };
    let left = files(&world);
    assert!(left.len() == 2 && left.iter().all(|name| name.starts_with("changes-")), "{left:?}");
    // As a kill leaves them: nothing is dropped.
    let _never_dropped = std::mem::ManuallyDrop::new((sessions, groups));
    world.restart(false);
    assert_eq!(files(&world), BTreeSet::new());
}

/// A session that has spilled values of some states.
fn spilled_states(world: &World, ephemeral: bool) -> StateSession {
    const PUT: u8 = 1;
    let mut session = world.open_states(ephemeral);
    let catalog = include_str!("states.json").to_owned();
    session.call(&StateCall::Declare { catalog, now: 0 }, &[]).unwrap();
    let of_shard = |key: &String| {
        let group = key_group_of(hash_key(key.as_bytes()), GROUPS);
        shard_of(group, world.shards(), GROUPS) == 0
    };
    let keys = BinaryArray::from_iter_values((0..900).map(|i| format!("key {i}")).filter(of_shard));
    let values = BinaryArray::from_iter_values((0..keys.len()).map(|_| [7; 100]));
    let ops = UInt8Array::from_value(PUT, keys.len());
    let (call, columns) = StateCall::write(StateId(0), ops, keys, None, Some(values), None);
    // The second call finds no room beside what the first one wrote.
    (0..2).for_each(|_| drop(session.call(&call, &columns).unwrap()));
    session
}
