//! Materializations of one shard in every order with commits, promotions, restarts and sweeps; how many objects small
//! files make, and what the synchronous part costs.
//!
//! Every run prints its seed; `FASTCHANGELOG_SEED=<n>` replays it.

use super::tests::{Model, World};
use super::*;
use crate::shard::seal::HandleMeta;
use fastchangelog_format::model::{BatchId, ShardHandle};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::collections::{BTreeMap, BTreeSet};

/// One execution of a batch that changes nothing.
fn execute_quiet(world: &World) -> ShardHandle {
    world.promote();
    let base = world.newest().0.as_ref();
    let meta = HandleMeta {
        instance: world.shard.live.read().as_ref().unwrap().instance,
        parent: base.map(|handle| handle.version),
        batch: BatchId(world.batch),
        schema_id: 7,
        schema: "{}".into(),
        watermark: None,
        state_keys: 0,
        state_bytes: 0,
    };
    world.shard.seal_unchanged(base, meta).unwrap().handle
}

/// Random orders of execute, execute without changes, keep, promote, begin, run, complete, abort, restart, roll back,
/// retire and sweep. A sweep deletes what no retained handle leads to and was there before the oldest of them, and
/// before the run in progress.
fn history(seed: u64) {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut world = World::new(&[("max_handle_segments", "3")]);
    let mut run: Option<(MaterializeRun, usize)> = None;
    let mut ran = false;
    let mut born: BTreeMap<String, usize> = BTreeMap::new();
    // When the handles of `history` came.
    let mut came = vec![0];
    let mut waiting_since = usize::MAX;
    for step in 0..120usize {
        match rng.random_range(0..20) {
            0..6 => {
                let from = rng.random_range(0..300u32);
                let value = |rng: &mut StdRng| vec![step as u8; rng.random_range(0..40)];
                let changes: Model = (from..from + rng.random_range(1..60)).map(|key| (key, value(&mut rng))).collect();
                let mut made: Vec<ShardHandle> = (0..rng.random_range(1..3)).map(|_| world.execute(&changes)).collect();
                let kept = made.swap_remove(rng.random_range(0..made.len()));
                world.commit(kept, changes);
                came.push(step);
            }
            6..8 => world.promote(),
            8 => {
                let quiet: Vec<ShardHandle> = (0..rng.random_range(1..3)).map(|_| execute_quiet(&world)).collect();
                world.commit(quiet[0].clone(), Model::new());
                came.push(step);
            }
            9..13 if run.is_none() => {
                run = world.shard.begin_materialize().unwrap().map(|run| (run, step));
                ran = false;
            }
            9..13 if !ran => {
                if rng.random_range(0..4) == 0 {
                    world.failpoints.set("snapshot.before-manifest=error").unwrap();
                }
                ran = run.as_ref().is_some_and(|(run, _)| run.run().is_ok());
                world.failpoints.clear();
            }
            13..15 => {
                if let Some((run, since)) = run.take() {
                    if ran {
                        run.complete().unwrap();
                        waiting_since = waiting_since.min(since);
                    } else {
                        run.abort("a test");
                    }
                }
            }
            15 => {
                run = None;
                match rng.random_range(0..3) {
                    0 => world.set_option("incremental", if rng.random_bool(0.5) { "true" } else { "false" }),
                    1 => world.set_option("snapshot_pack_below", ["0", "2KiB", "1MiB"][rng.random_range(0..3)]),
                    _ => world.restart(),
                }
            }
            16 if world.history.len() > 2 => {
                world.history.pop();
                came.pop();
            }
            17 if world.history.len() > 3 => {
                world.history.remove(0);
                came.remove(0);
            }
            18 => {
                let entries = world.runtime.block_on(world.store().list("")).unwrap();
                let reached: BTreeSet<String> =
                    world.history.iter().filter_map(|(h, _)| h.as_ref()).flat_map(|h| world.objects(h)).collect();
                if world.shard.control.lock().waiting.is_none() {
                    waiting_since = usize::MAX;
                }
                let under_way = run.as_ref().map_or(usize::MAX, |(_, since)| *since);
                let young = came[0].min(under_way).min(waiting_since);
                for entry in entries {
                    if !reached.contains(&entry.name) && born[&entry.name] < young {
                        world.runtime.block_on(world.store().delete(&entry.name)).unwrap();
                    }
                }
            }
            _ => {}
        }
        for entry in world.runtime.block_on(world.store().list("")).unwrap() {
            born.entry(entry.name).or_insert(step);
        }
        for handle in world.history.iter().filter_map(|(handle, _)| handle.as_ref()) {
            world.objects(handle);
        }
    }
    drop(run);
    for (handle, model) in [world.history.first().unwrap(), world.newest()] {
        assert_eq!(&world.restored(handle.as_ref()), model);
    }
    let files = world.runtime.block_on(world.store().list("base")).unwrap().len();
    println!("seed {seed}: {files} snapshots, {} reused bytes", world.metrics.materialize_reused_bytes.get());
}

#[test]
fn a04_s03_s05_x06_files_of_retained_handles_are_readable() {
    for seed in crate::shard::testing::seeds(6) {
        println!("seed {seed}");
        history(seed);
    }
}

#[test]
fn xs12_small_files_make_half_as_many_objects_at_most() {
    let objects = |below: &str| {
        let mut world = World::new(&[("snapshot_pack_below", below)]);
        for round in 0..2 {
            world.write(round * 10..round * 10 + 10, 1);
            world.promote();
            // A table of its own.
            let run = world.shard.begin_materialize().unwrap().unwrap();
            run.run().unwrap();
            run.abort("only for its table");
        }
        world.write(90..91, 1);
        world.promote();
        world.materialize();
        world.write(91..92, 1);
        let handle = world.newest().0.as_ref().unwrap();
        assert_eq!(world.restored(Some(handle)), world.newest().1);
        (world.manifest(handle).files.len(), world.snapshot_files(handle).len())
    };
    let (files, alone) = objects("0");
    assert!(files >= 2 && files == alone, "{files} files, {alone} objects");
    assert_eq!(objects("1MiB"), (files, 1));
}

/// What the synchronous part costs: `cargo test -- --ignored --nocapture measure_the_pause`.
#[test]
#[ignore = "a measurement"]
fn measure_the_pause_of_a_million_keys() {
    let mut world = World::new(&[]);
    let mut last = (0, 0);
    for (what, keys) in
        [("all of 1,000,000 keys", 0..1_000_000u32), ("1 % of them", 0..10_000), ("1 % again", 0..10_000)]
    {
        for from in keys.clone().step_by(100_000) {
            world.write(from..keys.end.min(from + 100_000), 1);
        }
        world.promote();
        let run = world.shard.begin_materialize().unwrap().unwrap();
        let begin = world.metrics.materialize_sync_micros.get() - last.0;
        let start = Instant::now();
        run.run().unwrap();
        let all = start.elapsed();
        run.complete().unwrap();
        let sync = world.metrics.materialize_sync_micros.get();
        let pauses = world.metrics.materialize_pause_micros.get();
        println!(
            "{what}: begin {begin} us, all pauses {} us in {} steps (p99 {} us, longest {} us so far), run {all:?}",
            sync - last.0,
            pauses.count - last.1,
            pauses.p99,
            pauses.max
        );
        last = (sync, pauses.count);
        world.write(0..1, 1);
        world.promote();
    }
}
