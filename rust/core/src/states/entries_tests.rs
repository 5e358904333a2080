use super::*;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

fn put(entries: &mut Entries, key: &[u8], value: Option<&[u8]>) {
    entries.put(hash_key(key), key, value);
}

#[test]
fn invariants_1_and_3_entries_are_what_a_map_would_be() {
    let seed: u64 = rand::random_range(0..1_000_000);
    println!("seed {seed}");
    let mut rng = StdRng::seed_from_u64(seed);
    for asked_from in [0, 1500, usize::MAX] {
        let (mut entries, mut model) = (Entries::default(), BTreeMap::<Vec<u8>, Option<Vec<u8>>>::new());
        for step in 0..3000 {
            let key = rng.random_range(0..900_u32).to_be_bytes()[rng.random_range(0..3)..].to_vec();
            let value = rng.random_bool(0.8).then(|| vec![rng.random(); rng.random_range(0..40)]);
            put(&mut entries, &key, value.as_deref());
            model.insert(key.clone(), value);
            if step >= asked_from && step % 500 == 0 {
                let all: Vec<_> = entries.range(Bound::Unbounded, Bound::Unbounded).collect();
                let wanted: Vec<_> = model.iter().map(|(k, v)| (k.clone().into(), v.as_deref())).collect();
                assert_eq!(all.iter().map(|(k, v)| ((*k).clone(), *v)).collect::<Vec<_>>(), wanted);
                let part: Vec<_> = entries.range(Bound::Excluded(&key), Bound::Unbounded).map(|(k, _)| k).collect();
                assert_eq!(part.len(), model.keys().filter(|k| **k > key).count());
            }
        }
        assert_eq!(entries.len(), model.len());
        for entry in entries.iter() {
            assert_eq!(model[entry.key].as_deref(), entry.value);
            assert_eq!(entry.hash, hash_key(entry.key));
            assert_eq!(entries.get(entry.hash, entry.key), Some(entry.value));
        }
        assert_eq!(entries.get(hash_key(b"never"), b"never"), None);
    }
}

/// What a table holds after some changes.
fn applied(entries: &Entries, below: &BTreeMap<Vec<u8>, Vec<u8>>) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut all: BTreeMap<_, _> =
        below.clone().into_iter().filter(|(key, _)| entries.cleared_with(key).is_none()).collect();
    for Entry { key, value, .. } in entries.iter() {
        all.remove(key);
        all.extend(value.map(|value| (key.to_vec(), value.to_vec())));
    }
    all
}

#[test]
fn invariants_4_and_5_clears_remove_entries_below_and_here() {
    let seed: u64 = rand::random_range(0..1_000_000);
    println!("seed {seed}");
    let mut rng = StdRng::seed_from_u64(seed);
    // Few bytes, so that prefixes are prefixes of each other; few slots are searched, many are ordered.
    let key = |rng: &mut StdRng, most: usize| -> Vec<u8> {
        (0..rng.random_range(0..most)).map(|_| [0, 1, 255][rng.random_range(0..3)]).collect()
    };
    for (puts, length) in [(40, 5), (3 * FEW_SLOTS, 9)] {
        let below: BTreeMap<_, _> = (0..60).map(|_| (key(&mut rng, length), b"below".to_vec())).collect();
        let (mut layers, mut model) = (vec![Entries::default()], below.clone());
        for step in 0..12 * puts {
            let newest = layers.last_mut().unwrap();
            if rng.random_range(0..puts) < 4 {
                let prefix = key(&mut rng, length - 1);
                newest.clear(std::iter::once(&prefix[..]));
                model.retain(|key, _| !key.starts_with(&prefix));
            } else {
                let key = key(&mut rng, length);
                let value = rng.random_bool(0.8).then(|| vec![rng.random(); rng.random_range(0..40)]);
                put(newest, &key, value.as_deref());
                model.remove(&key);
                model.extend(value.map(|value| (key, value)));
            }
            match rng.random_range(0..8 * puts) {
                0 => _ = newest.range(Bound::Unbounded, Bound::Unbounded),
                1..9 if layers.len() > 1 => {
                    // A checkpoint failed: one layer is merged under the one above it.
                    let at = rng.random_range(1..layers.len());
                    let older = layers.remove(at - 1);
                    layers[at - 1].put_under(&older);
                }
                9..17 => layers.push(Entries::default()),
                _ => {}
            }
            if step % (puts / 8) == 0 {
                let found = layers.iter().fold(below.clone(), |all, layer| applied(layer, &all));
                assert_eq!(found, model);
                for entries in &layers {
                    let clears: Vec<_> = entries.clears().collect();
                    assert!(clears.iter().all(|a| clears.iter().all(|b| a == b || !a.starts_with(b))), "{clears:?}");
                    assert_eq!(entries.cleared_bytes, clears.iter().map(|prefix| prefix.len()).sum::<usize>());
                    let ordered: Vec<_> = entries
                        .clone()
                        .range(Bound::Unbounded, Bound::Unbounded)
                        .map(|(k, v)| (k.to_vec(), v.map(<[u8]>::to_vec)))
                        .collect();
                    let mut all: Vec<_> =
                        entries.iter().map(|e| (e.key.to_vec(), e.value.map(<[u8]>::to_vec))).collect();
                    all.sort();
                    assert_eq!(ordered, all, "the order of keys follows what is removed");
                    for entry in entries.iter() {
                        assert_eq!(entries.get(entry.hash, entry.key), Some(entry.value));
                    }
                }
            }
        }
    }
}

#[test]
fn invariant_4_what_is_cleared_gives_its_memory_back() {
    for ordered in [false, true] {
        let mut entries = Entries::default();
        for round in 0..20 {
            for i in 0..10_000_u32 {
                put(&mut entries, &[&b"key"[..], &i.to_be_bytes()].concat(), Some(&[7; 30]));
            }
            if ordered {
                _ = entries.range(Bound::Unbounded, Bound::Unbounded);
            }
            entries.clear([&b"key"[..], b"key 1"].into_iter());
            assert_eq!((entries.len(), entries.clears().len()), (0, 1), "round {round}");
            assert!(entries.held() <= SMALL as u64 + 3, "{}", entries.held());
            assert!(entries.slots.capacity() <= FEW_SLOTS && entries.index.capacity() <= 2 * FEW_SLOTS);
        }
    }
}

#[test]
fn invariant_2_replaced_values_do_not_pile_up() {
    let mut entries = Entries::default();
    for i in 0..10_000_usize {
        put(&mut entries, b"a", Some(&vec![7; 1000 + i % 100]));
        put(&mut entries, b"b", (i % 2 == 0).then_some(&[1; 500]));
    }
    assert!(entries.held() < 3 * (SMALL as u64), "{}", entries.held());
    assert_eq!(entries.get(hash_key(b"a"), b"a"), Some(Some(&[7; 1099][..])));
    assert_eq!(entries.get(hash_key(b"b"), b"b"), Some(None));
}
