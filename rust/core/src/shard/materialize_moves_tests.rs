//! Materializations of a shard that moves between servers: snapshots that another server's snapshot overtakes, and files that
//! only an older snapshot names.

use super::super::testing::{Version, World, assert_is, changes, extend, materialize, open};
use super::*;
use fastchangelog_format::decode_manifest;
use fastchangelog_format::model::ShardHandle;
use rand::SeedableRng;
use rand::rngs::StdRng;
use std::collections::BTreeSet;

const KEYS: u32 = 400;

fn world() -> (StdRng, World) {
    let seed: u64 = rand::random_range(0..1_000_000);
    println!("seed {seed}");
    // Tables as objects of their own: what is shared shows in the names.
    (StdRng::seed_from_u64(seed), World::new(&[("snapshot_pack_below", "0")]))
}

fn next(shard: &Shard, rng: &mut StdRng, snapshot: Option<&Version>) -> Version {
    extend(shard, snapshot, &changes(rng, 60, KEYS))
}

/// Objects that a handle leads to.
fn objects(world: &World, handle: &ShardHandle) -> BTreeSet<String> {
    let mut names: BTreeSet<String> = handle.segments.iter().map(|segment| segment.object.name.clone()).collect();
    if let Some(snapshot) = &handle.snapshot {
        let bytes = world.runtime.block_on(world.store().get(&snapshot.manifest)).unwrap();
        names.extend(decode_manifest("base", &bytes).unwrap().files.into_iter().map(|file| file.object.name));
        names.insert(snapshot.manifest.name.clone());
    }
    names
}

/// Deletes all that these handles do not lead to, as a sweep does when the grace period is over.
fn sweep(world: &World, retained: &[&Version]) {
    let kept: BTreeSet<String> = retained.iter().flat_map(|version| objects(world, &version.handle)).collect();
    for entry in world.runtime.block_on(world.store().list("")).unwrap() {
        if !kept.contains(&entry.name) {
            world.runtime.block_on(world.store().delete(&entry.name)).unwrap();
        }
    }
}

/// The version, restored where nothing is.
fn assert_restores(world: &mut World, version: &Version) {
    let elsewhere = world.shard(None);
    open(&elsewhere, Some(&version.handle)).unwrap();
    assert_is(&elsewhere, &version.model, KEYS, "restored");
}

/// A shard that went from server `a` to `b` at the second version, and whose snapshot of the third version `b` made. `a` is at
/// the third version, which starts from a snapshot of its own.
fn moved(rng: &mut StdRng, world: &mut World) -> (Arc<Shard>, Arc<Shard>, Version) {
    let (a, b) = (world.shard(None), world.shard(None));
    let first = next(&a, rng, None);
    let second = next(&a, rng, Some(&first));
    open(&a, Some(&second.handle)).unwrap();
    materialize(&a);
    // Before the snapshot of `a` counts: the tables of `b` are its own.
    open(&b, Some(&second.handle)).unwrap();
    let third = next(&a, rng, Some(&second));
    open(&a, Some(&third.handle)).unwrap();
    open(&b, Some(&third.handle)).unwrap();
    materialize(&b);
    assert_eq!(third.handle.snapshot.as_ref().map(|snapshot| snapshot.version), Some(second.handle.version));
    (a, b, third)
}

#[test]
fn an_overtaken_snapshot_does_not_stand_in_the_way() {
    let (mut rng, mut world) = world();
    let (a, b) = (world.shard(None), world.shard(None));
    let first = next(&a, &mut rng, None);
    let second = next(&a, &mut rng, Some(&first));
    open(&a, Some(&second.handle)).unwrap();
    materialize(&a);
    assert!(a.status().materializing, "its snapshot waits");
    let mut version = second;
    for _ in 0..2 {
        version = next(&b, &mut rng, Some(&version));
        open(&b, Some(&version.handle)).unwrap();
    }
    materialize(&b);
    version = next(&b, &mut rng, Some(&version));
    assert!(version.handle.snapshot.is_some());
    for round in 0..3 {
        open(&a, Some(&version.handle)).unwrap();
        assert!(!a.status().materializing, "round {round}: nothing waits that cannot be taken over");
        materialize(&a);
        let snapshot = version.handle.snapshot.clone();
        version = next(&a, &mut rng, Some(&version));
        assert_ne!(version.handle.snapshot, snapshot, "round {round}: the log is cut off again");
        assert_eq!(version.handle.segments.len(), 1);
    }
    assert_restores(&mut world, &version);
}

#[test]
fn inventory_3_files_of_a_replaced_snapshot_are_uploaded_again() {
    let (mut rng, mut world) = world();
    let (a, b, third) = moved(&mut rng, &mut world);
    let fourth = next(&b, &mut rng, Some(&third));
    open(&a, Some(&fourth.handle)).unwrap();
    assert_eq!(world.metrics.restores.get(), 1, "only `b` restored; `a` replayed");
    sweep(&world, &[&fourth]);
    let fifth = next(&a, &mut rng, Some(&fourth));
    open(&a, Some(&fifth.handle)).unwrap();
    materialize(&a);
    let sixth = next(&a, &mut rng, Some(&fifth));
    assert_eq!(sixth.handle.snapshot.as_ref().map(|snapshot| snapshot.version), Some(fifth.handle.version));
    assert_restores(&mut world, &sixth);
}

#[test]
fn a_snapshot_shares_files_with_one_of_another_server() {
    let (mut rng, mut world) = world();
    let (a, b) = (world.shard(None), world.shard(None));
    let first = extend(&a, None, &changes(&mut rng, 4_000, KEYS));
    open(&a, Some(&first.handle)).unwrap();
    materialize(&a);
    let second = next(&a, &mut rng, Some(&first));
    // `b` has the tables of the snapshot that `a` made.
    open(&b, Some(&second.handle)).unwrap();
    open(&a, Some(&second.handle)).unwrap();
    materialize(&b);
    let third = next(&b, &mut rng, Some(&second));
    open(&a, Some(&third.handle)).unwrap();
    let reused = world.metrics.materialize_reused_bytes.get();
    materialize(&a);
    assert!(world.metrics.materialize_reused_bytes.get() > reused, "the tables of the first snapshot are there");
    let fourth = next(&a, &mut rng, Some(&third));
    let shared = objects(&world, &first_snapshot(&second)).intersection(&objects(&world, &fourth.handle)).count();
    assert!(shared > 0 && fourth.handle.snapshot != third.handle.snapshot);
    sweep(&world, &[&fourth]);
    assert_restores(&mut world, &fourth);
}

/// A handle that names the snapshot only.
fn first_snapshot(version: &Version) -> ShardHandle {
    ShardHandle { segments: Vec::new(), ..version.handle.clone() }
}

/// Of two snapshots of one version that share files with one that both replace, one is retained, the other is not.
#[test]
fn a_snapshot_begun_before_a_replay_ends_without_effect() {
    for completed_before in [true, false] {
        let (mut rng, mut world) = world();
        let (a, b, third) = moved(&mut rng, &mut world);
        let run = a.begin_materialize().unwrap().expect("a run");
        run.run().unwrap();
        let fourth = next(&b, &mut rng, Some(&third));
        if completed_before {
            run.complete().unwrap();
            open(&a, Some(&fourth.handle)).unwrap();
        } else {
            open(&a, Some(&fourth.handle)).unwrap();
            run.complete().unwrap();
        }
        assert!(
            a.control.lock().waiting.is_none(),
            "its files may be swept with the snapshot that it shares them with"
        );
        sweep(&world, &[&fourth]);
        let mut version = fourth;
        for _ in 0..2 {
            version = next(&a, &mut rng, Some(&version));
        }
        assert_restores(&mut world, &version);
    }
}

#[test]
fn a_cut_off_replay_follows_the_next_handles_snapshot() {
    let (mut rng, mut world) = world();
    let (a, b) = (world.shard(None), world.shard(None));
    let first = next(&a, &mut rng, None);
    open(&a, Some(&first.handle)).unwrap();
    materialize(&a);
    let second = next(&a, &mut rng, Some(&first));
    for shard in [&a, &b] {
        open(shard, Some(&second.handle)).unwrap();
    }
    materialize(&b);
    let third = next(&b, &mut rng, Some(&second));
    let fourth = next(&b, &mut rng, Some(&third));
    let lost = fourth.handle.segments.last().unwrap().object.name.clone();
    world.runtime.block_on(world.store().delete(&lost)).unwrap();
    open(&a, Some(&fourth.handle)).unwrap_err();
    // The query goes on from the version before.
    open(&a, Some(&third.handle)).unwrap();
    sweep(&world, &[&third]);
    let other = next(&a, &mut rng, Some(&third));
    assert_eq!(other.handle.snapshot, third.handle.snapshot);
    assert_restores(&mut world, &other);
    open(&a, Some(&other.handle)).unwrap();
    materialize(&a);
    let last = next(&a, &mut rng, Some(&other));
    assert_ne!(last.handle.snapshot, other.handle.snapshot);
    assert_restores(&mut world, &last);
}

#[test]
fn invariant_3_an_offered_snapshot_keeps_its_own_state() {
    let (mut rng, mut world) = world();
    let a = world.shard(None);
    let first = next(&a, &mut rng, None);
    open(&a, Some(&first.handle)).unwrap();
    let run = a.begin_materialize().unwrap().expect("a run");
    run.run().unwrap();
    let meeting = world.disk.path().join("meeting");
    std::fs::create_dir(&meeting).unwrap();
    world.failpoints.set(&format!("*=meet({})", meeting.display())).unwrap();
    std::fs::write(meeting.join("materialize.offer"), "wait").unwrap();
    std::thread::scope(|scope| {
        let offering = scope.spawn(|| run.complete());
        while !meeting.join("materialize.offer.reached").exists() {
            std::thread::yield_now();
        }
        // Its epoch was looked at, and the snapshot is not offered yet.
        let replaced = a.live.try_write().map(|mut live| live.take());
        std::fs::write(meeting.join("materialize.offer.go"), "").unwrap();
        offering.join().unwrap().unwrap();
        assert!(replaced.is_none(), "the state cannot be replaced in between");
    });
    assert!(a.control.lock().waiting.is_some());
}
