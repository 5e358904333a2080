//! What a snapshot may count on while sweeps run: servers that others have overtaken, that were idle, whose uploads take long.

use super::super::testing::{Version, World, assert_is, changes, extend, grown_on, materialize, open};
use crate::shard::Shard;
use fastchangelog_format::decode_manifest;
use fastchangelog_format::error::ErrorKind;
use fastchangelog_format::model::ShardHandle;
use rand::SeedableRng;
use rand::rngs::StdRng;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

const KEYS: u32 = 400;
const GRACE: Duration = Duration::from_hours(24);

/// Every object that a handle leads to.
fn named(world: &World, handle: &ShardHandle) -> BTreeSet<String> {
    assert!(handle.indexed.is_none(), "a short line");
    let mut names: BTreeSet<String> = handle.segments.iter().map(|s| s.object.name.clone()).collect();
    if let Some(snapshot) = &handle.snapshot {
        let bytes = world.runtime.block_on(world.store().get(&snapshot.manifest)).unwrap();
        names
            .extend(decode_manifest(&snapshot.manifest.name, &bytes).unwrap().files.into_iter().map(|f| f.object.name));
        names.insert(snapshot.manifest.name.clone());
    }
    names
}

fn listed(world: &World) -> BTreeSet<String> {
    world.runtime.block_on(world.store().list("")).unwrap().into_iter().map(|object| object.name).collect()
}

/// What is left of the bucket once a handle is the only one that is retained, and all grace periods are over.
fn sweep(world: &World, handle: &ShardHandle) {
    let needed = named(world, handle);
    for name in listed(world).difference(&needed) {
        world.runtime.block_on(world.store().delete(name)).unwrap();
    }
}

/// One server is at the version `behind`; another has gone on to `ahead`, with a snapshot that `behind` is in the line after.
struct Overtaken {
    world: World,
    rng: StdRng,
    server: Arc<Shard>,
    behind: Version,
    before_ahead: Version,
    ahead: Version,
}

fn overtaken() -> Overtaken {
    let mut world = World::new(&[("snapshot_pack_below", "0")]);
    let mut rng = StdRng::seed_from_u64(1);
    let (server, other) = (world.shard(None), world.shard(None));
    let first = grown_on(&server, &mut rng, KEYS, 1);
    open(&server, Some(&first.handle)).unwrap();
    let behind = extend(&other, Some(&first), &changes(&mut rng, 20, KEYS));
    materialize(&other);
    open(&server, Some(&behind.handle)).unwrap();
    let before_ahead = extend(&other, Some(&behind), &changes(&mut rng, 20, KEYS));
    let ahead = extend(&other, Some(&before_ahead), &changes(&mut rng, 20, KEYS));
    assert_ne!(ahead.handle.snapshot, behind.handle.snapshot);
    assert!(ahead.handle.segments.iter().any(|s| s.version == behind.handle.version));
    Overtaken { world, rng, server, behind, before_ahead, ahead }
}

impl Overtaken {
    /// The next version on the server that was behind, after `version`, which is retained alone.
    fn go_on(&mut self, version: &Version) -> Version {
        let next = extend(&self.server, Some(version), &changes(&mut self.rng, 20, KEYS));
        let missing: Vec<String> = named(&self.world, &next.handle).difference(&listed(&self.world)).cloned().collect();
        assert!(missing.is_empty(), "the handle names what is not there: {missing:?}");
        let fresh = self.world.shard(None);
        open(&fresh, Some(&next.handle)).unwrap();
        assert_is(&fresh, &next.model, KEYS, "restored");
        next
    }
}

#[test]
fn p6_a_snapshot_names_no_file_of_one_that_was_overtaken() {
    let mut story = overtaken();
    let ahead = story.ahead.clone();
    sweep(&story.world, &ahead.handle);
    open(&story.server, Some(&ahead.handle)).unwrap();
    materialize(&story.server);
    let next = story.go_on(&ahead);
    assert_ne!(next.handle.snapshot, ahead.handle.snapshot, "the new snapshot was taken over");
}

#[test]
fn p6_an_idle_server_relies_on_nothing_that_a_sweep_may_take() {
    let mut story = overtaken();
    let ahead = story.ahead.clone();
    story.world.clock.advance(GRACE / 4 + Duration::from_millis(1));
    sweep(&story.world, &ahead.handle);
    let reused = story.world.metrics.materialize_reused_bytes.get();
    materialize(&story.server);
    assert_eq!(story.world.metrics.materialize_reused_bytes.get(), reused);
    let next = story.go_on(&ahead);
    assert_eq!(
        next.handle.snapshot.unwrap().version,
        story.behind.handle.version,
        "the idle server's snapshot was taken over"
    );
}

#[test]
fn a_server_that_was_lately_handed_its_version_shares_files() {
    let story = overtaken();
    story.world.clock.advance(GRACE / 4);
    let reused = story.world.metrics.materialize_reused_bytes.get();
    materialize(&story.server);
    assert!(story.world.metrics.materialize_reused_bytes.get() > reused);
}

#[test]
fn p6_no_later_handle_names_the_source_of_a_cut_off_replay() {
    let mut story = overtaken();
    let (before, ahead) = (story.before_ahead.clone(), story.ahead.clone());
    sweep(&story.world, &before.handle);
    let error = open(&story.server, Some(&ahead.handle)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "its last change set is lost: {error}");
    // The query is started again from the batch before.
    open(&story.server, Some(&before.handle)).unwrap();
    let next = story.go_on(&before);
    assert_eq!(next.handle.snapshot, before.handle.snapshot);
    open(&story.server, Some(&next.handle)).unwrap();
    materialize(&story.server);
    story.go_on(&next);
}

#[test]
fn a_slow_upload_is_given_up_and_names_the_option() {
    let mut world = World::new(&[]);
    let mut rng = StdRng::seed_from_u64(2);
    let shard = world.shard(None);
    let first = extend(&shard, None, &changes(&mut rng, 100, KEYS));
    open(&shard, Some(&first.handle)).unwrap();
    for (took, is_snapshot_for) in [(GRACE / 2 + Duration::from_millis(1), false), (GRACE / 2, true)] {
        open(&shard, Some(&first.handle)).unwrap();
        let run = shard.begin_materialize().unwrap().expect("a run");
        world.clock.advance(took);
        match run.run() {
            Ok(()) => run.complete().unwrap(),
            Err(error) => {
                assert!(error.message().contains("`sweep_grace` = 86400 seconds"), "{error}");
                assert!(run.complete().is_err());
            }
        }
        assert_eq!(shard.control.lock().waiting.is_some(), is_snapshot_for, "{took:?}");
    }
}

/// A shard that gets rows once a day has a snapshot after each of them: a snapshot that waits has no age.
#[test]
fn a_snapshot_may_wait_longer_than_the_grace_for_its_version() {
    let mut world = World::new(&[]);
    let mut rng = StdRng::seed_from_u64(3);
    let shard = world.shard(None);
    let first = extend(&shard, None, &changes(&mut rng, 100, KEYS));
    open(&shard, Some(&first.handle)).unwrap();
    materialize(&shard);
    world.clock.advance(10 * GRACE);
    let next = extend(&shard, Some(&first), &changes(&mut rng, 100, KEYS));
    assert_eq!(next.handle.snapshot.unwrap().version, first.handle.version);
}
