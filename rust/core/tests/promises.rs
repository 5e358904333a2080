//! The promises P1–P10 on the whole engine: random histories against a plain model.
//!
//! Every run prints its seed; `FASTCHANGELOG_SEED=<n>` replays it. `FASTCHANGELOG_HISTORIES=<n>` runs more of them.
#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

mod common;

use common::{Kept, World, seeds};
use fastchangelog_format::ErrorKind;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

#[test]
fn a17_p1_p8_whichever_execution_is_kept_is_the_state() {
    for seed in seeds(6) {
        println!("seed {seed}");
        let mut rng = StdRng::seed_from_u64(seed);
        let mut world = World::new(seed, &[]);
        for _ in 0..12 {
            let rows = world.random_rows(&mut rng);
            let kept = if rng.random_bool(0.5) { Kept::First } else { Kept::Last };
            world.batch(&rows, rng.random_range(1..4), kept);
        }
        world.check_all();
    }
}

#[test]
fn p2_p3_everything_local_can_be_deleted_at_any_moment() {
    for seed in seeds(6) {
        println!("seed {seed}");
        let mut rng = StdRng::seed_from_u64(seed);
        let restore = if seed % 2 == 0 { "eager" } else { "lazy" };
        let mut world = World::new(seed, &[("max_handle_segments", "4"), ("restore", restore)]);
        for _ in 0..20 {
            let rows = world.random_batch(&mut rng);
            world.batch(&rows, 1, Kept::Last);
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
        world.check_all();
    }
}

#[test]
fn p1_an_older_timeline_may_come_back() {
    for seed in seeds(6) {
        println!("seed {seed}");
        let mut rng = StdRng::seed_from_u64(seed);
        let mut world = World::new(seed, &[]);
        for step in 0..24 {
            let rows = world.random_batch(&mut rng);
            world.batch(&rows, rng.random_range(1..3), Kept::First);
            if step % 3 == 2 {
                world.materialize();
            }
            if rng.random_bool(0.25) {
                world.roll_back(rng.random_range(1..4));
            }
        }
        world.check_all();
    }
}

#[test]
fn p3_a_quiet_state_is_restored_from_its_snapshot() {
    let mut rng = StdRng::seed_from_u64(5);
    let mut world = World::new(5, &[]);
    let rows = world.random_rows(&mut rng);
    world.batch(&rows, 1, Kept::Last);
    world.batch(&[], 1, Kept::Last); // makes the version before live
    world.materialize();
    assert!(world.handles().iter().all(|handle| handle.snapshot.is_none() && !handle.segments.is_empty()));
    world.batch(&[], 3, Kept::First);
    for _ in 0..2 {
        let quiet = world.handles();
        assert!(quiet.iter().all(|handle| handle.snapshot.is_some() && handle.segments.is_empty()), "the log is cut");
        world.batch(&[], 1, Kept::Last);
    }
    // The retained batches before them still name the log.
    for (batches, delete_local) in [(0, true), (3, false), (3, true)] {
        world.roll_back(batches);
        world.restart(delete_local);
        world.check_all();
    }
    let more = world.random_rows(&mut rng);
    world.batch(&more, 1, Kept::Last);
    world.batch(&[], 1, Kept::Last);
    world.materialize();
    world.batch(&[], 1, Kept::Last);
    world.restart(true);
    world.check_all();
}

#[test]
fn p2_every_store_call_may_fail() {
    // Each point fails once at its n-th hit: the execution fails or is exact, and the next one is exact.
    for seed in seeds(1) {
        for point in [
            "store.before-put",
            "store.after-put",
            "store.before-get",
            "write.before-upload",
            "write.after-upload",
            "session.live",
            "session.merge",
            "session.finish",
            "session.before-persist",
            "session.durable",
            "promote.before",
            "promote.applied",
            "restore.before",
            "rebuild.taken-over",
            "restore.replayed",
            "restore.warm",
            "materialize.flush",
            "materialize.checkpoint",
            "materialize.push",
            "snapshot.before-sst",
            "snapshot.before-manifest",
            "snapshot.after-manifest",
        ] {
            for (n, action) in [(1, "error"), (2, "store-error"), (5, "error")] {
                println!("seed {seed} {point}={action}@{n}");
                let mut rng = StdRng::seed_from_u64(seed);
                let mut world = World::new(seed, &[("max_attempts", "2"), ("retry_delay", "1ms")]);
                let mut hits = 0;
                for step in 0..6 {
                    let rows = world.random_rows(&mut rng);
                    if step == 2 {
                        world.failpoints(&format!("{point}={action}@{n}"));
                    }
                    world.batch(&rows, 1, Kept::Last);
                    world.materialize();
                    if step == 3 {
                        hits += world.hits(point);
                        world.restart(true);
                        world.failpoints(&format!("{point}={action}@{n}"));
                    }
                }
                assert!(hits + world.hits(point) > 0, "{point} is never reached");
                world.check_all();
            }
        }
    }
}

#[test]
fn p8_a_zombie_on_an_old_snapshot_never_reads_another_version() {
    let mut rng = StdRng::seed_from_u64(1);
    let mut world = World::new(1, &[]);
    let rows = world.random_rows(&mut rng);
    world.batch(&rows, 1, Kept::Last);
    let rows = world.random_rows(&mut rng);
    let mut zombie = world.open(0, 1);
    world.feed(&mut zombie, 0, &rows);
    world.batch(&rows, 1, Kept::Last);
    let more = world.random_rows(&mut rng);
    world.batch(&more, 1, Kept::Last); // promotes the zombie's sibling
    let error = zombie.finish().err().expect("the zombie's snapshot is gone");
    assert_eq!(error.kind(), ErrorKind::Retryable);
    world.check_all();
}

#[test]
fn p4_a_version_of_the_current_batch_is_never_promoted() {
    let mut rng = StdRng::seed_from_u64(2);
    let mut world = World::new(2, &[]);
    let rows = world.random_rows(&mut rng);
    world.batch(&rows, 1, Kept::Last);
    let error = world.try_open(0, 0).err().expect("the handle is of the same batch");
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
}

#[test]
fn p9_a_missing_or_damaged_object_is_named() {
    let mut rng = StdRng::seed_from_u64(3);
    let mut world = World::new(3, &[]);
    for _ in 0..3 {
        let rows = world.random_rows(&mut rng);
        world.batch(&rows, 1, Kept::Last);
    }
    let victim = world.first_log_object();
    let bytes = std::fs::read(&victim).unwrap();
    let name = victim.file_name().unwrap().to_str().unwrap().to_owned();
    let mut damaged = bytes.clone();
    let middle = damaged.len() / 2;
    damaged[middle] ^= 0x10;
    for (content, kind) in [
        (Some(damaged), ErrorKind::Corrupt),
        (Some(bytes[..bytes.len() - 7].to_vec()), ErrorKind::Corrupt),
        (None, ErrorKind::NotFound),
    ] {
        match content {
            Some(content) => std::fs::write(&victim, content).unwrap(),
            None => std::fs::remove_file(&victim).unwrap(),
        }
        world.restart(true);
        let errors: Vec<_> = (0..world.shards()).filter_map(|s| world.try_open(s, 99).err()).collect();
        assert!(!errors.is_empty());
        for error in errors {
            assert_eq!(error.kind(), kind, "{error}");
            assert!(error.message().contains(&name), "{error}");
        }
    }
    std::fs::write(&victim, bytes).unwrap();
    world.restart(true);
    world.check_all();
}

#[test]
fn aggregates_that_changed_are_named() {
    let mut rng = StdRng::seed_from_u64(4);
    let mut world = World::new(4, &[]);
    let rows = world.random_rows(&mut rng);
    world.batch(&rows, 1, Kept::Last);
    world.drop_last_aggregate();
    let error = world.try_open(0, 9).err().expect("the aggregates changed");
    assert_eq!(error.kind(), ErrorKind::SchemaMismatch);
    assert!(error.message().contains("max(amount)"), "{error}");
}

#[test]
fn a13_x15_a_key_changed_a_thousand_times_is_one_record() {
    let mut world = World::new(7, &[]);
    let rows: Vec<_> = (0..1000).map(|i| (Some(format!("key-{}", i % 3)), i)).collect();
    world.batch(&rows, 1, Kept::Last);
    assert_eq!(world.newest_records(), 3);
    world.check_all();
}

#[test]
fn m08_materializations_are_counted_and_measured() {
    let mut world = World::new(8, &[]);
    let counts = |world: &World| {
        let found = world.metrics().snapshot();
        let runs = ["started", "completed", "failed"].map(|what| found[&*format!("materializations_{what}")]);
        (runs, found["materialize_bytes"], found["materialize_micros"])
    };
    world.materialize();
    assert_eq!(counts(&world), ([0, 0, 0], 0, 0), "nothing to do");
    // The second hands back what the first prepared.
    for _ in 0..2 {
        world.batch(&[(Some("a".into()), 1)], 1, Kept::Last);
    }
    world.materialize();
    let (first, bytes, micros) = counts(&world);
    assert!(first[0] > 0 && first == [first[0], first[0], 0], "{first:?}");
    assert!(bytes > 0 && micros > 0, "{bytes} bytes, {micros} µs");
    // The second carries the snapshot, the third hands it back.
    for _ in 0..3 {
        world.batch(&[(Some("a".into()), 1)], 1, Kept::Last);
    }
    assert_eq!(counts(&world), (first, bytes, micros), "a batch is no snapshot");
    world.failpoints("materialize.push=error@1");
    world.materialize();
    let (second, ..) = counts(&world);
    assert!(second[0] > first[0] && second[0] == second[1] + 1 && second[2] == 1, "{second:?}");
}

#[test]
fn durable_size_stays_near_the_net_size_of_rewritten_keys() {
    let mut rng = StdRng::seed_from_u64(6);
    let mut world = World::new(6, &[]);
    for round in 0..8 {
        let rows = rows_of_keys(&mut rng, 40_000, 40_000);
        world.batch(&rows, 1, Kept::Last);
        world.batch(&of_every_shard(), 1, Kept::Last);
        assert_durable_is_near_net(&mut world, &format!("round {round}"));
    }
}

#[test]
fn durable_size_after_materialization_is_near_the_net_size() {
    let mut rng = StdRng::seed_from_u64(5);
    let mut world = World::new(5, &[]);
    for _ in 0..30 {
        let rows = rows_of_keys(&mut rng, 4000, 20_000);
        world.batch(&rows, 1, Kept::Last);
    }
    assert_durable_is_near_net(&mut world, "after 30 batches");
}

fn rows_of_keys(rng: &mut StdRng, rows: usize, keys: u32) -> Vec<(Option<String>, i64)> {
    (0..rows).map(|_| (Some(format!("key-{:08}", rng.random_range(0..keys))), rng.random_range(0..100))).collect()
}

/// Few rows, some for each shard: it promotes what came before, and hands out a handle with what waits for one.
fn of_every_shard() -> Vec<(Option<String>, i64)> {
    (0..50).map(|i| (Some(format!("x{i}")), 1)).collect()
}

/// Materializes; the second batch after it carries the snapshot, in every shard that it changes.
fn assert_durable_is_near_net(world: &mut World, when: &str) {
    world.materialize();
    world.batch(&of_every_shard(), 1, Kept::Last);
    world.batch(&of_every_shard(), 1, Kept::Last);
    let (durable, net) = world.durable_and_net_bytes();
    assert!(durable as f64 <= 1.3 * net as f64, "{when}: {durable} durable bytes for {net} net bytes");
}

/// Set for the process of its own that counts threads and descriptors.
const CHILD: &str = "FASTCHANGELOG_LEAK_TEST";

#[test]
fn opening_and_closing_two_hundred_times_leaves_nothing_behind() {
    if std::env::var_os(CHILD).is_some() {
        return open_and_close();
    }
    let name = "opening_and_closing_two_hundred_times_leaves_nothing_behind";
    let mut child = std::process::Command::new(std::env::current_exe().unwrap());
    let output = child.args(["--exact", name, "--nocapture"]).env(CHILD, "1").output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    println!("{text}");
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
}

fn open_and_close() {
    let mut rng = StdRng::seed_from_u64(9);
    let mut world = World::new(9, &[]);
    let mut early = None;
    for round in 1..=200 {
        // An attempt without an end, as a killed worker leaves it.
        let rows = rows_of_keys(&mut rng, 20, 500);
        let mut lost = world.open(round % world.shards(), 1);
        world.feed(&mut lost, round % world.shards(), &rows);
        drop(lost);
        if round % 5 == 0 {
            world.batch(&rows, 1, Kept::Last);
        }
        if round % 40 == 0 {
            // The second batch after it carries the snapshot: nothing of it is lost with the process.
            world.materialize();
            world.batch(&rows, 1, Kept::Last);
            world.batch(&rows, 1, Kept::Last);
        }
        world.restart(round % 3 == 0);
        let held = world.held();
        if round == 40 {
            early = Some(held);
        } else if let Some(early) = &early {
            assert_eq!(&held, early, "threads, descriptors and local files after {round} restarts, and after 40");
        }
    }
    let (found, reachable) = world.objects();
    assert_eq!(found, reachable, "what is in the bucket, and what handles name");
    world.check_all();
}
