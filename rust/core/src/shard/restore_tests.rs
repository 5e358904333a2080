//! Tests of restores: content and order, progress and errors, bad input.

use super::super::testing::{World, assert_is, changes, extend, folders, grown, grown_on, materialize, open};
use fastchangelog_format::decode_manifest;
use fastchangelog_format::error::ErrorKind;
use fastchangelog_format::model::ShardHandle;
use fastchangelog_store::fault::{Fault, Operation};
use rand::SeedableRng;
use rand::rngs::StdRng;
use std::collections::HashSet;
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;

const KEYS: u32 = 3_000;

fn rng() -> StdRng {
    let seed: u64 = rand::random_range(0..1_000_000);
    println!("seed {seed}");
    StdRng::seed_from_u64(seed)
}

#[test]
fn a17_snapshot_then_log_is_the_state() {
    let (mut rng, mut world) = (rng(), World::new(&[("max_handle_segments", "4")]));
    for after in [1, 3, 40] {
        let version = grown(&mut world, &mut rng, KEYS, after);
        let shard = world.shard(None);
        open(&shard, Some(&version.handle)).unwrap();
        assert_is(&shard, &version.model, KEYS, &format!("{after} sets after the snapshot"));
    }
}

#[test]
fn step_1_the_log_comes_while_the_snapshot_does() {
    let (mut rng, mut world) = (rng(), World::new(&[]));
    let version = grown(&mut world, &mut rng, KEYS, 3);
    let shard = world.shard(None);
    let from = world.faults.log().len();
    // Nothing is answered, so that what is asked meanwhile waits for nothing.
    world.faults.hold();
    let (other, handle) = (Arc::clone(&shard), version.handle.clone());
    let restore = std::thread::spawn(move || open(&other, Some(&handle)));
    let asked = |kind: &str| world.faults.log()[from..].iter().filter(|(_, path)| path.contains(kind)).count();
    while asked("/base/") < 1 || asked("/log/") < 3 {
        std::thread::yield_now();
    }
    assert_eq!(asked("/sst/"), 0);
    world.faults.release();
    restore.join().unwrap().unwrap();
    assert_is(&shard, &version.model, KEYS, "restored");
}

#[test]
fn step_4_the_newest_changes_are_in_memory_and_what_fits() {
    let (mut rng, mut world) = (rng(), World::new(&[]));
    let version = grown(&mut world, &mut rng, 30_000, 1);
    for (limit, fits) in [(16 << 20, true), (300 << 10, false)] {
        let shard = world.shard(None);
        shard.set_hot_limit(limit);
        open(&shard, Some(&version.handle)).unwrap();
        assert_eq!(shard.read(|keyed| Ok(keyed.is_complete())).unwrap(), fits);
        assert!(shard.read(|keyed| Ok(keyed.hot_bytes())).unwrap() <= limit + (64 << 10));
        let misses = world.metrics.hot_misses.get();
        let newest: Vec<Vec<u8>> = {
            let segment = &version.handle.segments.last().unwrap();
            let store = world.store();
            let bytes = store.get_range(&segment.object, segment.offset, segment.length);
            let set = fastchangelog_format::decode_set("log", segment.offset, &world.runtime.block_on(bytes).unwrap())
                .unwrap();
            set.iter().map(|change| change.key.to_vec()).collect()
        };
        super::super::testing::look_up(&shard, &newest).unwrap();
        assert_eq!(world.metrics.hot_misses.get(), misses, "what was replayed last is hot");
        assert_is(&shard, &version.model, 30_000, "whatever the limit");
    }
}

#[test]
fn a_restore_under_way_is_seen_in_the_metrics() {
    let (mut rng, mut world) = (rng(), World::new(&[]));
    let version = grown(&mut world, &mut rng, KEYS, 2);
    let snapshot = version.handle.snapshot.clone().unwrap().total_bytes;
    let log: u64 = version.handle.segments.iter().map(|s| s.length).sum();
    let (shard, before) = (world.shard(None), world.metrics.restore_bytes.get());
    world.failpoints.set("rebuild.taken-over=error@1").unwrap();
    world.faults.hold();
    let handle = version.handle.clone();
    let (other, metrics) = (Arc::clone(&shard), Arc::clone(&world.metrics));
    let restore = std::thread::spawn(move || open(&other, Some(&handle)));
    while metrics.restore_pending_bytes.get() != snapshot {
        std::thread::yield_now();
    }
    assert_eq!(metrics.restores_running.get(), 1);
    world.faults.release();
    assert!(restore.join().unwrap().is_err(), "given up after the snapshot");
    assert_eq!((metrics.restores_running.get(), metrics.restore_pending_bytes.get()), (0, 0));
    assert_eq!(metrics.restore_bytes.get() - before, snapshot);
    open(&shard, Some(&version.handle)).unwrap();
    assert_eq!((metrics.restores_running.get(), metrics.restore_pending_bytes.get()), (0, 0));
    assert_eq!(metrics.restore_bytes.get() - before, 2 * snapshot + log);
}

#[test]
fn invariant_2_y04_a_failure_leaves_no_folder_and_no_half() {
    let (mut rng, mut world) = (rng(), World::new(&[]));
    let version = grown(&mut world, &mut rng, KEYS, 3);
    for point in ["restore.before", "rebuild.taken-over", "restore.replayed", "restore.warm"] {
        let dir = world.next_dir();
        let shard = world.shard(None);
        world.failpoints.set(&format!("{point}=error@1")).unwrap();
        let error = open(&shard, Some(&version.handle)).unwrap_err();
        assert_eq!((error.kind(), folders(&dir)), (ErrorKind::Retryable, Vec::new()), "{point}: {error}");
        open(&shard, Some(&version.handle)).unwrap();
        assert_is(&shard, &version.model, KEYS, point);
        assert_eq!(folders(&dir).len(), 1);
    }
    // Each call to the store in turn.
    let shard = world.shard(None);
    let calls = world.faults.calls();
    open(&shard, Some(&version.handle)).unwrap();
    let calls = world.faults.calls() - calls;
    for n in 0..calls {
        let dir = world.next_dir();
        let shard = world.shard(None);
        world.faults.at(world.faults.calls() + n, Fault::Denied);
        let error = open(&shard, Some(&version.handle)).unwrap_err();
        assert_eq!((error.kind(), folders(&dir)), (ErrorKind::PermissionDenied, Vec::new()), "call {n}: {error}");
        world.faults.heal();
        open(&shard, Some(&version.handle)).unwrap();
        assert_is(&shard, &version.model, KEYS, "after a denial");
    }
}

#[test]
fn invariant_3_p9_y05_a_deleted_object_is_named() {
    let (mut rng, mut world) = (rng(), World::new(&[("max_handle_segments", "4")]));
    let version = grown(&mut world, &mut rng, KEYS, 12);
    let store = world.store();
    let snapshot = version.handle.snapshot.clone().unwrap();
    let manifest = world.runtime.block_on(store.get(&snapshot.manifest)).unwrap();
    let table = decode_manifest("manifest", &manifest).unwrap().files[0].object.clone();
    let index = version.handle.indexed.clone().expect("older segments are in an index");
    let log = version.handle.segments.last().unwrap().object.clone();
    // The live version has another history, and continues.
    let shard = world.shard(None);
    let running = extend(&shard, None, &changes(&mut rng, 100, KEYS));
    open(&shard, Some(&running.handle)).unwrap();
    for object in [snapshot.manifest, table, index, log] {
        let bytes = world.runtime.block_on(store.get(&object)).unwrap();
        world.runtime.block_on(store.delete(&object.name)).unwrap();
        for shard in [&world.shard(None), &shard] {
            let error = open(shard, Some(&version.handle)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
            for part in [&*object.name, store.uri(), "shard 0", "batch 13", "put it back"] {
                assert!(error.message().contains(part), "{part} is not in: {error}");
            }
        }
        assert_is(&shard, &running.model, KEYS, "what is live");
        // Another object was put there.
        let mut other = bytes.to_vec();
        other[bytes.len() / 2] ^= 1;
        world.runtime.block_on(store.put_overwrite(&object.name, other.into())).unwrap();
        let error = open(&shard, Some(&version.handle)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
        assert!(error.message().contains(&object.name), "{error}");
        assert_is(&shard, &running.model, KEYS, "what is live");
        world.runtime.block_on(store.put_overwrite(&object.name, bytes)).unwrap();
    }
    open(&shard, Some(&version.handle)).unwrap();
    assert_is(&shard, &version.model, KEYS, "once all is there again");
}

#[test]
fn p9_a_handle_with_the_snapshot_of_another_state_is_refused() {
    let (mut rng, mut world) = (rng(), World::new(&[]));
    let (one, other) = (grown(&mut world, &mut rng, KEYS, 1), grown(&mut world, &mut rng, KEYS, 1));
    let mixed = ShardHandle { instance: one.handle.instance, ..other.handle };
    let dir = world.next_dir();
    let shard = world.shard(None);
    let error = open(&shard, Some(&mixed)).unwrap_err();
    assert_eq!((error.kind(), folders(&dir)), (ErrorKind::Corrupt, Vec::new()), "{error}");
    assert!(error.message().contains(&mixed.snapshot.unwrap().manifest.name), "{error}");
}

#[test]
fn p3_p9_a_replay_waits_for_a_missing_object_and_keeps_the_live() {
    let (mut rng, mut world) = (rng(), World::new(&[]));
    let ahead = world.shard(None);
    let mut versions = vec![grown_on(&ahead, &mut rng, KEYS, 2)];
    for n in 0..6 {
        if n == 3 {
            open(&ahead, Some(&versions[n].handle)).unwrap();
            materialize(&ahead); // a later handle names a snapshot that is newer than what is live elsewhere
        }
        versions.push(extend(&ahead, Some(&versions[n]), &changes(&mut rng, 50, KEYS)));
    }
    let store = world.store();
    for gone in 1..=3 {
        for damaged in [false, true] {
            let shard = world.shard(None);
            open(&shard, Some(&versions[0].handle)).unwrap();
            let object = versions[gone].handle.segments.last().unwrap().object.clone();
            let bytes = world.runtime.block_on(store.get(&object)).unwrap();
            let restores = world.metrics.restores.get();
            world.runtime.block_on(store.delete(&object.name)).unwrap();
            if damaged {
                let mut other = bytes.to_vec();
                other[bytes.len() / 2] ^= 1;
                world.runtime.block_on(store.put_overwrite(&object.name, other.into())).unwrap();
            }
            let error = open(&shard, Some(&versions[3].handle)).unwrap_err();
            let kind = if damaged { ErrorKind::Corrupt } else { ErrorKind::NotFound };
            assert_eq!(error.kind(), kind, "{error}");
            assert!(error.message().contains(&object.name), "{error}");
            assert!(damaged || error.message().contains("put it back from a backup"), "{error}");
            assert_is(&shard, &versions[gone - 1].model, KEYS, "as far as the log is there");
            // The live version can be opened and extended like any other.
            open(&shard, Some(&versions[gone - 1].handle)).unwrap();
            let other = extend(&shard, Some(&versions[gone - 1]), &changes(&mut rng, 10, KEYS));
            assert_eq!(other.handle.snapshot, versions[gone - 1].handle.snapshot);
            assert_eq!(
                (other.handle.state_keys, other.handle.state_bytes),
                (versions[gone - 1].handle.state_keys, versions[gone - 1].handle.state_bytes)
            );
            world.runtime.block_on(store.put_overwrite(&object.name, bytes)).unwrap();
            open(&shard, Some(&versions[3].handle)).unwrap();
            assert_is(&shard, &versions[3].model, KEYS, "once all is there again");
            assert_eq!(world.metrics.restores.get(), restores, "nothing was restored from its snapshot");
            let elsewhere = world.shard(None);
            open(&elsewhere, Some(&other.handle)).unwrap();
            assert_is(&elsewhere, &other.model, KEYS, "what was made of it");
        }
    }
    // Through a handle whose snapshot is newer than the live version.
    let shard = world.shard(None);
    open(&shard, Some(&versions[4].handle)).unwrap();
    open(&shard, Some(&versions[6].handle)).unwrap();
    assert_is(&shard, &versions[6].model, KEYS, "replayed");
}

#[test]
fn y03_tables_of_a_snapshot_made_here_are_linked() {
    for (local_recovery, downloads) in [("true", false), ("false", true)] {
        let (mut rng, mut world) = (rng(), World::new(&[("local_recovery", local_recovery)]));
        let cache = world.cache("copies");
        let shard = world.shard(Some(Arc::clone(&cache)));
        let version = grown_on(&shard, &mut rng, KEYS, 2);
        drop(shard);
        let from = world.faults.log().len();
        let shard = world.shard(Some(cache));
        open(&shard, Some(&version.handle)).unwrap();
        assert_is(&shard, &version.model, KEYS, "from copies");
        let asked = world.faults.log()[from..].iter().any(|(_, path)| path.contains("/sst/"));
        assert_eq!(asked, downloads, "local_recovery {local_recovery}");
    }
}

#[test]
fn y03_stale_and_foreign_local_copies_are_not_used() {
    // Tables in packs, and alone.
    for pack_below in ["1MiB", "0"] {
        foreign_local_copies(&mut World::new(&[("snapshot_pack_below", pack_below)]));
    }
}

fn foreign_local_copies(world: &mut World) {
    let mut rng = rng();
    let (one, other) = (grown(world, &mut rng, KEYS, 2), grown(world, &mut rng, KEYS, 2));
    // The copies of one state, as another machine or another query left them, with the names of the other's copies.
    let shard = world.shard(Some(world.cache("one")));
    open(&shard, Some(&one.handle)).unwrap();
    let shard = world.shard(Some(world.cache("other")));
    open(&shard, Some(&other.handle)).unwrap();
    drop(shard);
    let names = |name: &str| folders(&world.disk.path().join(name));
    assert!(!names("one").is_empty());
    let unrelated: HashSet<String> = names("one").into_iter().collect();
    assert!(names("other").iter().all(|name| !unrelated.contains(name)), "copies are kept by name and checksum");
    for (from, to) in names("one").iter().zip(names("other")) {
        let target = world.disk.path().join("other").join(&to);
        let size = usize::try_from(std::fs::metadata(&target).unwrap().len()).unwrap();
        let mut bytes = std::fs::read(world.disk.path().join("one").join(from)).unwrap();
        bytes.resize(size, 0);
        // A new file: the state that was restored has links to the old one.
        std::fs::remove_file(&target).unwrap();
        std::fs::write(&target, bytes).unwrap();
    }
    let damaged = world.metrics.cache_damaged.get();
    let shard = world.shard(Some(world.cache("other")));
    open(&shard, Some(&other.handle)).unwrap();
    assert_is(&shard, &other.model, KEYS, "with foreign copies");
    assert!(world.metrics.cache_damaged.get() > damaged);
}

#[test]
fn y02_a_disk_that_fills_up_is_an_error_and_leaves_nothing() {
    let (mut rng, mut world) = (rng(), World::new(&[]));
    let version = grown(&mut world, &mut rng, KEYS, 2);
    for copies in [None, Some(world.cache("copies"))] {
        let dir = world.next_dir();
        let shard = world.shard(copies);
        let running = extend(&shard, None, &changes(&mut rng, 100, KEYS));
        open(&shard, Some(&running.handle)).unwrap();
        world.failpoints.set("transfer.disk-full=error").unwrap();
        let error = open(&shard, Some(&version.handle)).unwrap_err();
        for part in ["the disk is full", dir.to_str().unwrap(), "shard 0", "free space there", "spark.local.dir"] {
            assert!(error.message().contains(part), "{part} is not in: {error}");
        }
        assert!(folders(&dir).is_empty(), "what was live has made room for the next attempt");
        world.failpoints.clear();
        open(&shard, Some(&version.handle)).unwrap();
        assert_is(&shard, &version.model, KEYS, "when there is room");
    }
    assert!(folders(&world.disk.path().join("copies")).iter().all(|name| !name.ends_with(".part")));
}

#[test]
fn y02_an_unreadable_folder_is_named_and_a_copy_is_skipped() {
    if rustix::process::getuid().is_root() {
        // Permissions do not stop root: a file in the folder's place does.
        let (mut rng, mut world) = (rng(), World::new(&[]));
        let version = grown(&mut world, &mut rng, KEYS, 1);
        let dir = world.next_dir();
        let shard = world.shard(None);
        std::fs::write(&dir, b"in the way").unwrap();
        let error = open(&shard, Some(&version.handle)).unwrap_err();
        for part in [dir.to_str().unwrap(), "spark.local.dir"] {
            assert!(error.message().contains(part), "{error}");
        }
        std::fs::remove_file(&dir).unwrap();
        open(&shard, Some(&version.handle)).unwrap();
        assert_is(&shard, &version.model, KEYS, "once the folder can be made");
        return;
    }
    let (mut rng, mut world) = (rng(), World::new(&[]));
    let version = grown(&mut world, &mut rng, KEYS, 1);
    let dir = world.next_dir();
    let shard = world.shard(None);
    std::fs::create_dir(&dir).unwrap();
    std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o000)).unwrap();
    let error = open(&shard, Some(&version.handle)).unwrap_err();
    std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o700)).unwrap();
    assert!(error.message().contains(dir.to_str().unwrap()), "{error}");
    open(&shard, Some(&version.handle)).unwrap();
    assert_is(&shard, &version.model, KEYS, "once the folder can be read");
}

#[test]
fn y06_a_log_that_fails_late_is_the_cause_in_the_error() {
    let (mut rng, mut world) = (rng(), World::new(&[]));
    let version = grown(&mut world, &mut rng, KEYS, 6);
    world.faults.always(Operation::Get, Fault::Throttled);
    let shard = world.shard(None);
    let error = open(&shard, Some(&version.handle)).unwrap_err();
    assert!(error.message().contains("503"), "{error}");
    world.faults.heal();
    open(&shard, Some(&version.handle)).unwrap();
    assert_is(&shard, &version.model, KEYS, "healed");
}
