//! A query that begins with the savepoint of another: at any number of shards, with failures, with shards that get no rows
//! for long, and with what must be refused.

#![allow(clippy::unwrap_used, reason = "a test")]

mod common;

use common::{Kept, World, seeds};
use fastchangelog_core::shard::savepoint::SavepointForm;
use fastchangelog_format::ErrorKind;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

const FORMS: [SavepointForm; 2] = [SavepointForm::Canonical, SavepointForm::Native];

fn some_batches(world: &mut World, rng: &mut StdRng, n: usize) {
    for _ in 0..n {
        let rows = world.random_rows(rng);
        world.batch(&rows, 1, Kept::Last);
        if rng.random_bool(0.4) {
            world.materialize();
        }
    }
}

#[test]
fn e05_e08_s04_y16_a_savepoint_starts_at_another_parallelism() {
    for seed in seeds(2) {
        println!("FASTCHANGELOG_SEED={seed}");
        let rng = &mut StdRng::seed_from_u64(seed);
        let mut world = World::new(seed, &[]);
        some_batches(&mut world, rng, 4);
        for form in FORMS {
            let disk = tempfile::tempdir().unwrap();
            let savepoint = disk.path().join("savepoint");
            world.savepoint(form, &savepoint);
            for shards in [1, 2, 5] {
                let mut next = world.successor(shards, &savepoint);
                // Attempts that are repeated begin with the same.
                let rows = next.random_rows(rng);
                next.batch(&rows, 2, Kept::First);
                for shard in 0..shards {
                    if !next.has_handle(shard) {
                        next.batch_of_one_shard(shard);
                    }
                }
                // From here on the savepoint is not needed.
                let gone = disk.path().join("gone");
                std::fs::rename(&savepoint, &gone).unwrap();
                next.restart(true);
                some_batches(&mut next, rng, 3);
                next.set_option("start_from", None);
                next.check_all();
                std::fs::rename(&gone, &savepoint).unwrap();
                // And once more, from a state that itself began with a savepoint.
                let again = disk.path().join(format!("again-{shards}"));
                next.savepoint(form, &again);
                let mut third = next.successor(3, &again);
                some_batches(&mut third, rng, 2);
                third.check_all();
            }
        }
    }
}

#[test]
fn a_shard_with_late_first_rows_begins_with_the_savepoint() {
    let rng = &mut StdRng::seed_from_u64(5);
    let mut world = World::new(5, &[]);
    some_batches(&mut world, rng, 3);
    let disk = tempfile::tempdir().unwrap();
    let savepoint = disk.path().join("savepoint");
    world.savepoint(FORMS[1], &savepoint);
    let mut next = world.successor(2, &savepoint);
    next.batch_of_one_shard(0);
    // The option is gone, the folder remembers.
    next.restart(true);
    next.set_option("start_from", None);
    next.check_all();

    // Should the savepoint be gone by then, that is said; nothing begins empty.
    let mut next = world.successor(2, &savepoint);
    next.batch_of_one_shard(1);
    next.restart(true);
    next.set_option("start_from", None);
    std::fs::rename(&savepoint, disk.path().join("moved")).unwrap();
    let error = next.try_open(0, 1).map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    // Where it was moved to may be said, another one may not.
    next.set_option("start_from", Some(disk.path().join("moved").to_str().unwrap()));
    drop(next.try_open(0, 1).unwrap());
    let other = disk.path().join("other");
    world.savepoint(FORMS[1], &other);
    next.restart(true);
    next.set_option("start_from", Some(other.to_str().unwrap()));
    let error = next.try_open(0, 1).map(drop).unwrap_err();
    assert!(error.message().contains("put back the savepoint that it began with"), "{error}");
}

#[test]
fn a_handle_without_rows_is_the_version_it_was_begun_with() {
    let mut world = World::new(6, &[]);
    some_batches(&mut world, &mut StdRng::seed_from_u64(6), 2);
    let disk = tempfile::tempdir().unwrap();
    let savepoint = disk.path().join("savepoint");
    world.savepoint(FORMS[0], &savepoint);
    let mut next = world.successor(1, &savepoint);
    next.batch_of_one_shard(0);
    let restores = next.metrics().restores.get();
    some_batches(&mut next, &mut StdRng::seed_from_u64(7), 2);
    assert_eq!(next.metrics().restores.get(), restores, "it is live already");
    next.check_all();
}

#[test]
fn a_start_that_a_savepoint_cannot_serve_has_a_remedy() {
    let mut world = World::new(8, &[]);
    some_batches(&mut world, &mut StdRng::seed_from_u64(8), 2);
    let disk = tempfile::tempdir().unwrap();
    let savepoint = disk.path().join("savepoint");
    world.savepoint(FORMS[0], &savepoint);

    let mut next = world.successor(2, &savepoint);
    next.drop_last_aggregate();
    let error = next.try_open(0, 1).map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::SchemaMismatch, "{error}");
    assert!(error.message().contains("max(amount)"), "{error}");

    let mut next = world.successor(2, &savepoint);
    next.set_option("max_parallelism", Some("64"));
    let error = next.try_open(0, 1).map(drop).unwrap_err();
    assert!(error.message().contains("`max_parallelism` = 128"), "{error}");

    // More shards than key groups, and the default for so many shards is another number.
    let next = world.successor(129, &savepoint);
    let error = next.try_open(0, 1).map(drop).unwrap_err();
    assert!(error.message().contains("`max_parallelism` = 128"), "{error}");

    let next = world.successor(2, &disk.path().join("nothing"));
    let error = next.try_open(0, 1).map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    assert!(error.message().contains("start_from") && error.message().contains("no savepoint"), "{error}");

    // A state that is there already.
    world.restart(true);
    world.forget_handles();
    world.set_option("start_from", Some(savepoint.to_str().unwrap()));
    let error = world.try_open(0, 5).map(drop).unwrap_err();
    assert!(error.message().contains("new checkpointLocation"), "{error}");
}
