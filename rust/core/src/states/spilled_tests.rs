use super::*;
use crate::shard::testing::seeds;
use crate::states::layers::Layers;
use crate::states::net::net;
use crate::states::net_spilled::SpilledNet;
use crate::states::scan::MergedCursor;
use crate::states::under::{Spare, Under};
use fastchangelog_format::model::KeyGroup;
use fastchangelog_store::budget::MemoryBudget;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::ops::{Bound, ControlFlow};
use std::sync::Arc;

const PLACES: [Place; 3] = [(StateId(0), KeyGroup(1)), (StateId(0), KeyGroup(2)), (StateId(7), KeyGroup(1))];

type Model = BTreeMap<(Place, Vec<u8>), Vec<u8>>;

fn key(rng: &mut StdRng) -> Vec<u8> {
    (0..rng.random_range(1..4)).map(|_| [0, b'a', 0xff][rng.random_range(0..3)]).collect()
}

/// Random changes, in layers and in the model.
fn change(rng: &mut StdRng, layers: &mut Layers, model: &mut Model) {
    let place = PLACES[rng.random_range(0..PLACES.len())];
    match rng.random_range(0..10) {
        0 => {
            let prefix = if rng.random_bool(0.1) { Vec::new() } else { key(rng) };
            layers.clear(place, std::iter::once(&prefix[..]));
            model.retain(|(own, key), _| *own != place || !key.starts_with(&prefix));
        }
        1..4 => {
            let key = key(rng);
            layers.put(place, &key, None);
            model.remove(&(place, key));
        }
        // Many keys under one prefix, so that a clear of it is one change.
        4 if rng.random_bool(0.2) => {
            for i in 0..300_u16 {
                let key = [&b"a"[..], &i.to_be_bytes()].concat();
                layers.put(place, &key, Some(b"many"));
                model.insert((place, key), b"many".to_vec());
            }
        }
        _ => {
            let (key, value) = (key(rng), vec![rng.random(); rng.random_range(0..5)]);
            layers.put(place, &key, Some(&value));
            model.insert((place, key), value);
        }
    }
}

fn walk<'a>(
    layers: &'a Layers,
    (under, spare): (Under<'a>, &mut Spare<'a>),
    place: Place,
    from: Bound<&[u8]>,
    to: Option<&[u8]>,
) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut cursor = MergedCursor::new(layers, under, spare.take(), place, from, to).unwrap();
    let mut found = Vec::new();
    while let Some((key, value)) = cursor.entry().unwrap() {
        found.push((key.to_vec(), value.to_vec()));
        cursor.advance().unwrap();
    }
    *spare = cursor.into_spare();
    found
}

fn check(rng: &mut StdRng, layers: &Layers, under: Under<'_>, model: &Model) {
    let mut spare = None;
    for place in PLACES {
        let (one, other) = (key(rng), key(rng));
        for (from, to) in [
            (Bound::Unbounded, None),
            (Bound::Included(&one[..]), Some(&other[..])),
            (Bound::Excluded(&one[..]), Some(&other[..])),
            (Bound::Excluded(&other[..]), None),
        ] {
            let within = |key: &[u8]| {
                (match from {
                    Bound::Included(from) => key >= from,
                    Bound::Excluded(from) => key > from,
                    Bound::Unbounded => true,
                }) && to.is_none_or(|to| key < to)
            };
            let own = model.iter().filter(|((own, key), _)| *own == place && within(key));
            let expected: Vec<_> = own.map(|((_, key), value)| (key.clone(), value.clone())).collect();
            assert_eq!(walk(layers, (under, &mut spare), place, from, to), expected, "{place:?} {from:?} {to:?}");
        }
    }
    for _ in 0..20 {
        let (place, key) = (PLACES[rng.random_range(0..PLACES.len())], key(rng));
        let mut found = layers.get(place, hash_key(&key), &key).map(|value| value.map(<[u8]>::to_vec));
        if found.is_none() {
            let asked = KeyRef { hash: hash_key(&key), key_group: place.1, key: &key };
            let mut take = |_, value: Option<&[u8]>| {
                found = Some(value.map(<[u8]>::to_vec));
                ControlFlow::Continue(())
            };
            under.get_many(place.0, &[asked], &mut take).unwrap();
        }
        assert_eq!(found, Some(model.get(&(place, key.clone())).cloned()), "{place:?} {key:?}");
    }
}

fn flushed(keyed: &mut KeyedState) {
    keyed.begin_flush();
    while keyed.flush_dirty(usize::MAX).unwrap() {}
}

fn all(keyed: &KeyedState) -> Model {
    let mut all = Model::new();
    let mut see = |entry: fastchangelog_state::hot::EntryRef<'_>| {
        all.insert(((entry.state, entry.key_group), entry.key.to_vec()), entry.value.unwrap().to_vec());
        Ok(())
    };
    keyed.for_each(&mut see).unwrap();
    all
}

/// Over several versions: what is read through memory, disk and live version is the model; and the change sets that come of the
/// changes, in memory or on the local disk in parts of any size, make the next version.
#[test]
fn changes_on_the_local_disk_are_those_in_memory() {
    for seed in seeds(6) {
        println!("seed {seed}");
        let mut rng = StdRng::seed_from_u64(seed);
        let folder = tempfile::tempdir().unwrap();
        let shared = SharedResources::new(&MemoryBudget::new(64 << 20), Arc::default()).unwrap();
        let mut live = KeyedState::create(&folder.path().join("live"), &shared).unwrap();
        let mut model = Model::new();
        for version in 0..6 {
            let before = model.clone();
            let mut layers = Layers::new(u64::MAX);
            let mut spilled = SpilledChanges::create(&folder.path().join("spill"), &shared).unwrap();
            for _ in 0..rng.random_range(1..6) {
                for _ in 0..rng.random_range(0..30) {
                    change(&mut rng, &mut layers, &mut model);
                }
                check(&mut rng, &layers, Under { spilled: Some(&spilled), live: Some(&live) }, &model);
                let layer = layers.freeze();
                spilled.take_over(&layer).unwrap();
                layers.mark_applied();
                check(&mut rng, &layers, Under { spilled: Some(&spilled), live: Some(&live) }, &model);
            }
            let (mut rest, mut keys, mut bytes) = (SpilledNet::new(&spilled), 0, 0);
            let (mut seen, mut sets) = (std::collections::HashSet::new(), Vec::new());
            let part = [1, 200, 5_000, 1 << 20][rng.random_range(0..4)];
            while let Some(net) = rest.next(&spilled, &live, part).unwrap() {
                (keys, bytes) = (keys + net.keys, bytes + net.bytes);
                for c in net.set.iter() {
                    let old = before.get(&((c.state, c.key_group), c.key.to_vec()));
                    let is_put = c.op == Op::Put;
                    assert!(c.op == Op::DeletePrefix || is_put || old.is_some(), "a delete of nothing");
                    let own = (c.op == Op::DeletePrefix, c.state, c.key_group, c.key.to_vec());
                    assert!(seen.insert(own), "version {version}: one record each");
                }
                sets.push(net.set);
            }
            sets.iter().for_each(|set| live.apply(set).unwrap());
            flushed(&mut live);
            assert!(all(&live) == model, "version {version}");
            let size = |model: &Model| -> i64 { model.iter().map(|((_, k), v)| (k.len() + v.len()) as i64).sum() };
            assert_eq!((keys, bytes), (model.len() as i64 - before.len() as i64, size(&model) - size(&before)));
            drop(spilled);
            assert_eq!(std::fs::read_dir(folder.path().join("spill")).unwrap().count(), 0);
        }
    }
}

/// The same of a layer that is in memory.
#[test]
fn changes_in_memory_are_net_too() {
    for seed in seeds(6) {
        println!("seed {seed}");
        let mut rng = StdRng::seed_from_u64(seed);
        let folder = tempfile::tempdir().unwrap();
        let shared = SharedResources::new(&MemoryBudget::new(64 << 20), Arc::default()).unwrap();
        let mut live = KeyedState::create(&folder.path().join("live"), &shared).unwrap();
        let mut model = Model::new();
        for version in 0..8 {
            let (before, mut layers) = (model.len() as i64, Layers::new(u64::MAX));
            for _ in 0..rng.random_range(0..60) {
                change(&mut rng, &mut layers, &mut model);
            }
            check(&mut rng, &layers, layers.over(Some(&live)), &model);
            let net = net(&layers.freeze(), &live).unwrap();
            let groups: Vec<u16> = net.set.iter().map(|c| c.key_group.0).collect();
            assert!(groups.is_sorted(), "by key group");
            assert_eq!(net.keys, model.len() as i64 - before);
            live.apply(&net.set).unwrap();
            flushed(&mut live);
            assert!(all(&live) == model, "version {version}");
        }
    }
}
