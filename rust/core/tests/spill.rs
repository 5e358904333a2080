//! Versions of several segments through the whole engine: random histories of batches larger than their session's memory,
//! with restores, snapshots, savepoints and other numbers of shards; and what a killed server leaves behind.
#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

mod common;

use common::{Kept, World, seeds};
use fastchangelog_core::shard::savepoint::SavepointForm;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// A few dozen keys are more than this.
const TINY: (&str, &str) = ("session_memory", "4KiB");

#[test]
fn p5_p7_p8_batches_larger_than_memory_through_faults_restores_and_snapshots() {
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
fn a_version_of_several_segments_is_rescaled_and_saved_as_a_whole() {
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
fn what_a_killed_server_has_spilled_is_gone_when_the_next_one_has_started() {
    let mut world = World::new(1, &[TINY]);
    let (mut shard, mut ephemeral) = (world.open(0, 1), world.open_ephemeral());
    let rows: Vec<_> = (0..3_000).map(|i| (Some(format!("key {i}")), i)).collect();
    world.feed(&mut shard, 0, &rows);
    for shard in 0..world.shards() {
        world.feed(&mut ephemeral, shard, &rows);
    }
    let files = || -> Vec<_> { world.local_files().into_iter().filter(|name| name.contains("spill/")).collect() };
    assert_eq!(files().len(), 2, "{:?}", files());
    // As a kill leaves them: nothing is dropped.
    let _never_dropped = std::mem::ManuallyDrop::new((shard, ephemeral));
    world.restart(false);
    let left: Vec<_> = world.local_files().into_iter().filter(|name| name.contains("spill/")).collect();
    assert_eq!(left, [""; 0]);
}
