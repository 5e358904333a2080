//! Lazy restores: the state is the same at every moment of the loading, whatever happens in between.

use super::super::testing::{
    Model, Version, World, assert_is, changes, extend, grown, look_up, materialize, open, seeds,
};
use super::*;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

const KEYS: u32 = 40_000;

fn is_complete(shard: &Shard) -> bool {
    shard.read(|keyed| Ok(keyed.is_complete())).unwrap()
}

fn assert_some(shard: &Shard, model: &Model, rng: &mut StdRng, when: &str) {
    let keys: Vec<Vec<u8>> = (0..200).map(|_| rng.random_range(0..KEYS).to_be_bytes().to_vec()).collect();
    let expected: Vec<_> = keys.iter().map(|key| model.get(key).cloned()).collect();
    assert_eq!(look_up(shard, &keys).unwrap(), expected, "{when}");
}

#[test]
fn a_lazily_restored_shard_serves_first_and_loads_afterwards() {
    let mut rng = StdRng::seed_from_u64(1);
    let mut world = World::new(&[("restore", "lazy")]);
    let version = grown(&mut world, &mut rng, KEYS, 2);
    let shard = world.shard(None);
    open(&shard, Some(&version.handle)).unwrap();
    assert!(!is_complete(&shard));
    assert_is(&shard, &version.model, KEYS, "before the loading");
    shard.warm_up_in_background();
    while shard.warming.load(Ordering::Acquire) {
        std::thread::yield_now();
    }
    assert!(is_complete(&shard));
    let reads = world.metrics.rocksdb_reads.get();
    assert_is(&shard, &version.model, KEYS, "after it");
    assert_eq!(world.metrics.rocksdb_reads.get(), reads);
    // Nothing is left to do.
    shard.warm_up_in_background();
    assert!(!shard.warming.load(Ordering::Acquire));
}

#[test]
fn a17_the_state_is_the_same_at_every_moment_of_the_loading() {
    for seed in seeds(4) {
        println!("seed {seed}");
        let mut rng = StdRng::seed_from_u64(seed);
        let mut world = World::new(&[("restore", "lazy")]);
        let mut versions: Vec<Version> = vec![grown(&mut world, &mut rng, KEYS, 2)];
        let mut shard = world.shard(None);
        open(&shard, Some(&versions[0].handle)).unwrap();
        let mut at = versions[0].clone();
        for step in 0..60 {
            let when = format!("seed {seed}, step {step}");
            match rng.random_range(0..16) {
                0..6 => {
                    shard.warm_up_portion().unwrap();
                }
                6..9 => {
                    let n = rng.random_range(1..2_000);
                    at = extend(&shard, Some(&at), &changes(&mut rng, n, KEYS));
                    open(&shard, Some(&at.handle)).unwrap();
                    versions.push(at.clone());
                }
                9 => {
                    shard.set_hot_limit(rng.random_range(1 << 20..16 << 20));
                    shard.fit_hot();
                }
                10 => {
                    // An older timeline comes back.
                    at = versions[rng.random_range(0..versions.len())].clone();
                    open(&shard, Some(&at.handle)).unwrap();
                }
                11 => {
                    shard.evict();
                    open(&shard, Some(&at.handle)).unwrap();
                }
                12 => {
                    shard = world.shard(None);
                    open(&shard, Some(&at.handle)).unwrap();
                }
                13 => {
                    if let Some(run) = shard.begin_materialize().unwrap() {
                        shard.warm_up_portion().unwrap();
                        run.run().unwrap();
                        run.complete().unwrap();
                    }
                }
                _ => assert_some(&shard, &at.model, &mut rng, &when),
            }
        }
        while shard.warm_up_portion().unwrap() {}
        assert_is(&shard, &at.model, KEYS, &format!("seed {seed}, in the end"));
        // The content of a snapshot taken during the loading of a state.
        at = extend(&shard, Some(&at), &changes(&mut rng, 10, KEYS));
        open(&shard, Some(&at.handle)).unwrap();
        shard.evict();
        open(&shard, Some(&at.handle)).unwrap();
        shard.warm_up_portion().unwrap();
        materialize(&shard);
        at = extend(&shard, Some(&at), &changes(&mut rng, 10, KEYS));
        let other = world.shard(None);
        open(&other, Some(&at.handle)).unwrap();
        assert_is(&other, &at.model, KEYS, &format!("seed {seed}, from a snapshot of it"));
    }
}

#[test]
fn invariant_1_a_load_ends_with_its_state() {
    let mut rng = StdRng::seed_from_u64(2);
    let mut world = World::new(&[("restore", "lazy")]);
    let (one, other) = (grown(&mut world, &mut rng, KEYS, 1), grown(&mut world, &mut rng, KEYS, 1));
    let shard = world.shard(None);
    open(&shard, Some(&one.handle)).unwrap();
    assert!(shard.warm_up_portion().unwrap(), "there is more than one portion");
    open(&shard, Some(&other.handle)).unwrap();
    assert_is(&shard, &other.model, KEYS, "the other state");
    while shard.warm_up_portion().unwrap() {}
    assert!(is_complete(&shard));
    assert_is(&shard, &other.model, KEYS, "the other state, loaded");
    open(&shard, Some(&one.handle)).unwrap();
    assert!(shard.warm_up_portion().unwrap());
    shard.evict();
    assert!(!shard.warm_up_portion().unwrap(), "nothing is live");
}

#[test]
fn invariant_3_a_load_ends_alone_at_a_close_or_a_failure() {
    let mut rng = StdRng::seed_from_u64(3);
    let mut world = World::new(&[("restore", "lazy")]);
    let version = grown(&mut world, &mut rng, KEYS, 1);
    let dir = world.next_dir();
    let shard = world.shard(None);
    open(&shard, Some(&version.handle)).unwrap();
    world.failpoints.set("warm.portion=error@2").unwrap();
    let weak = Arc::downgrade(&shard);
    assert!(Shard::warm_up_turn(&weak));
    assert!(!Shard::warm_up_turn(&weak), "the failpoint");
    assert_is(&shard, &version.model, KEYS, "after the failure");
    assert!(Shard::warm_up_turn(&weak), "it can go on where it was");
    drop(shard);
    assert!(!Shard::warm_up_turn(&weak));
    assert!(!dir.exists());
}
