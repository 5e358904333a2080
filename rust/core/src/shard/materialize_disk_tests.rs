//! Materializations whose local disk fails: what is tried again, what is dropped, and what the error says.

use super::super::testing::{Version, World, assert_is, changes, extend, folders, look_up, materialize, open};
use super::*;
use rand::SeedableRng;
use rand::rngs::StdRng;

const KEYS: u32 = 400;

fn begun(world: &mut World) -> (StdRng, Arc<Shard>, Version) {
    let seed: u64 = rand::random_range(0..1_000_000);
    println!("seed {seed}");
    let mut rng = StdRng::seed_from_u64(seed);
    let shard = world.shard(None);
    let version = extend(&shard, None, &changes(&mut rng, 200, KEYS));
    open(&shard, Some(&version.handle)).unwrap();
    (rng, shard, version)
}

/// Removes the files of RocksDB under the state that is live.
fn lose_files(shard: &Shard) {
    for name in folders(&shard.context().dir) {
        std::fs::remove_dir_all(shard.context().dir.join(name)).unwrap();
    }
}

fn failed_run(shard: &Arc<Shard>) -> Error {
    let run = shard.begin_materialize().unwrap().expect("a run");
    let error = run.run().unwrap_err();
    run.abort(error.message());
    error
}

fn is_live(shard: &Shard) -> bool {
    shard.live.read().is_some()
}

#[test]
fn invariant_5_y02_a_disk_that_fails_twice_costs_a_restore() {
    let mut world = World::new(&[]);
    let (mut rng, shard, version) = begun(&mut world);
    lose_files(&shard);
    for attempt in 1..=2 {
        assert!(is_live(&shard), "before attempt {attempt}");
        let error = failed_run(&shard);
        for part in [shard.context().dir.to_str().unwrap(), "free space there", "`spark.local.dir`"] {
            assert!(error.message().contains(part), "{part} is not in: {error}");
        }
    }
    assert!(!is_live(&shard), "it is not tried a third time");
    assert!(shard.begin_materialize().unwrap().is_none(), "what will be restored is no failure");
    open(&shard, Some(&version.handle)).unwrap();
    assert_is(&shard, &version.model, KEYS, "restored");
    materialize(&shard);
    let next = extend(&shard, Some(&version), &changes(&mut rng, 10, KEYS));
    assert!(next.handle.snapshot.is_some());
}

#[test]
fn invariant_5_a_success_resets_the_count_of_failures() {
    let mut world = World::new(&[("incremental", "false")]);
    let (_, shard, version) = begun(&mut world);
    for _ in 0..3 {
        world.failpoints.set("checkpoint.made=error@1").unwrap();
        failed_run(&shard);
        assert!(is_live(&shard));
        materialize(&shard);
    }
    open(&shard, Some(&version.handle)).unwrap();
    assert_is(&shard, &version.model, KEYS, "live all the time");
}

#[test]
fn invariant_5_a_state_whose_write_failed_is_dropped_at_once() {
    let mut world = World::new(&[]);
    let (mut rng, shard, version) = begun(&mut world);
    lose_files(&shard);
    failed_run(&shard);
    // RocksDB takes no writes after a failed flush; a change has to be flushed again.
    let next = extend(&shard, Some(&version), &changes(&mut rng, 50, KEYS));
    open(&shard, Some(&next.handle)).unwrap();
    shard.control.lock().disk_failure_epoch = None;
    failed_run(&shard);
    assert!(!is_live(&shard), "its entries may be lost");
    open(&shard, Some(&next.handle)).unwrap();
    assert_is(&shard, &next.model, KEYS, "restored");
    materialize(&shard);
}

#[test]
fn p3_local_files_that_vanish_cost_a_failed_read_and_a_restore() {
    // Nothing is in the hot tier: reads go to the local disk.
    let mut world = World::new(&[("restore", "lazy")]);
    let (mut rng, shard, version) = begun(&mut world);
    materialize(&shard);
    let version = extend(&shard, Some(&version), &changes(&mut rng, 10, KEYS));
    let shard = world.shard(None);
    open(&shard, Some(&version.handle)).unwrap();
    for entry in std::fs::read_dir(shard.live.read().as_ref().unwrap().keyed.dir()).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "sst") {
            std::fs::File::options().write(true).open(&path).unwrap().set_len(100).unwrap();
        }
    }
    let keys: Vec<Vec<u8>> = (0..KEYS).map(|key| key.to_be_bytes().to_vec()).collect();
    look_up(&shard, &keys).unwrap_err();
    assert!(shard.begin_materialize().unwrap().is_none(), "a broken state is not materialized");
    open(&shard, Some(&version.handle)).unwrap();
    assert_is(&shard, &version.model, KEYS, "restored");
}

/// `TMPDIR=<a file system of some 30 MB> cargo test -- --ignored a_full_file_system`.
#[test]
#[ignore = "fills the file system of the temporary folder"]
fn y02_a_full_disk_fails_a_materialization_until_it_has_room() {
    for failures in [1, 2] {
        let mut world = World::new(&[]);
        let shard = world.shard(None);
        let mut rng = StdRng::seed_from_u64(failures);
        let version = extend(&shard, None, &changes(&mut rng, 40_000, 40_000));
        open(&shard, Some(&version.handle)).unwrap();
        let restores = world.metrics.restores.get();
        let filler = world.disk.path().join("filler");
        let mut file = std::fs::File::create(&filler).unwrap();
        let full = std::io::copy(&mut std::io::repeat(1), &mut file).unwrap_err();
        assert_eq!(full.kind(), std::io::ErrorKind::StorageFull);
        for _ in 0..failures {
            let error = failed_run(&shard);
            println!("{error}");
            assert!(error.message().contains("`spark.local.dir`"), "{error}");
        }
        drop(file);
        std::fs::remove_file(&filler).unwrap();
        open(&shard, Some(&version.handle)).unwrap();
        let restored = world.metrics.restores.get() - restores;
        println!("{failures} failures, {restored} restores");
        assert!(restored < failures, "RocksDB goes on by itself after the first failure");
        // RocksDB looks for room every few seconds.
        let materialized = (0..100).any(|_| {
            if !is_live(&shard) {
                open(&shard, Some(&version.handle)).unwrap();
            }
            std::thread::sleep(std::time::Duration::from_millis(200));
            let run = shard.begin_materialize().unwrap().expect("a run");
            match run.run() {
                Ok(()) => run.complete().is_ok(),
                Err(error) => {
                    run.abort(error.message());
                    false
                }
            }
        });
        assert!(materialized);
        assert_is(&shard, &version.model, 40_000, "after it");
    }
}
