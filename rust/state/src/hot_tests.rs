//! Properties of the hot tier against a map, with a map for a disk.

use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

type Key = (u16, Vec<u8>);

#[derive(Default)]
struct Disk {
    map: BTreeMap<Key, Vec<u8>>,
    writes: u64,
}

impl EntrySink for Disk {
    fn write(&mut self, entry: EntryRef<'_>) {
        self.writes += 1;
        let key = (entry.state.0, entry.key.to_vec());
        match entry.value {
            Some(value) => drop(self.map.insert(key, value.to_vec())),
            None => drop(self.map.remove(&key)),
        }
    }
}

fn xxh3(key: &[u8]) -> u64 {
    xxhash_rust::xxh3::xxh3_64(key)
}

/// Nearly all keys collide.
fn weak(key: &[u8]) -> u64 {
    (key.len() as u64 % 2) << 33
}

fn hot_key(hasher: fn(&[u8]) -> u64, key: &Key) -> HotKey<'_> {
    HotKey { hash: hasher(&key.1), state: StateId(key.0), key_group: KeyGroup(7), key: &key.1 }
}

/// Counts everything again and compares; then the limit (invariant 5).
fn check(hot: &HotTier) {
    let (mut live, mut arena, mut entries, mut dirty) = (0, 0, 0, [0u64; 256]);
    for (id, segment) in hot.segments.iter().enumerate() {
        let Some(segment) = segment else {
            assert!(hot.free.contains(&u32::try_from(id).unwrap()));
            continue;
        };
        arena += segment.capacity();
        let mut segment_live = 0;
        let mut segment_dirty = 0;
        for (offset, header) in segment.entries(0) {
            entries += 1;
            segment_live += header.size();
            if header.is(DIRTY) {
                segment_dirty += 1;
                dirty[usize::from(header.epoch)] += 1;
            }
            assert!(!header.is(TOMBSTONE) || (header.is(DIRTY) && header.is(STORED)), "invariant 1");
            assert!(header.is(DIRTY) || header.is(STORED), "invariant 1");
            let entry = entry_of(segment, offset, header);
            let key = (entry.state.0, entry.key.to_vec());
            let found = hot.peek(&hot_key(hot.hasher, &key));
            assert_eq!(found, entry.value.map_or(Lookup::Deleted, Lookup::Value));
        }
        assert_eq!((segment.live, segment.dirty()), (segment_live, segment_dirty));
        for from in [0, segment.capacity() / 2] {
            let all = segment.entries(0).filter(|(offset, header)| *offset >= from && header.is(DIRTY));
            assert!(segment.dirty_entries(from).eq(all), "invariant 3 of a segment");
        }
        live += segment_live;
    }
    assert_eq!((hot.live_bytes, hot.arena_bytes, hot.len()), (live, arena, entries));
    assert_eq!(*hot.dirty_by_epoch, dirty);
    assert_eq!(hot.dirty, dirty.iter().sum::<u64>());
    let largest = hot.segments.iter().flatten().map(Segment::capacity).max().unwrap_or(0);
    let slack = largest + MIN_SEGMENT + hot.index.bytes() + hot.segments.capacity() * size_of::<Option<Segment>>();
    assert!(hot.bytes() <= hot.limit + slack as u64, "{} > {} + {slack}", hot.bytes(), hot.limit);
}

fn value_of(hot: &HotTier, disk: &Disk, key: &Key) -> Option<Vec<u8>> {
    match hot.get(&hot_key(hot.hasher, key)) {
        Lookup::Value(value) => Some(value.to_vec()),
        Lookup::Deleted => None,
        Lookup::Miss if hot.is_complete() => {
            assert!(!disk.map.contains_key(key), "invariant 2");
            None
        }
        Lookup::Miss => disk.map.get(key).cloned(),
    }
}

#[derive(Debug, Clone)]
enum Step {
    Put(Key, Vec<u8>),
    Delete(Key),
    RemovePrefix(Vec<u8>),
    Get(Key),
    Read(Key, bool),
    Limit(u64),
    BeginFlush,
    Flush(usize),
}

fn key() -> impl Strategy<Value = Key> {
    (0..2u16, prop_oneof![8 => prop::collection::vec(0..4u8, 0..4), 1 => prop::collection::vec(0..2u8, 500..520)])
}

fn value() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        6 => prop::collection::vec(any::<u8>(), 8),
        4 => prop::collection::vec(any::<u8>(), 0..60),
        1 => prop::collection::vec(any::<u8>(), 200..6000),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        20 => (key(), value()).prop_map(|(k, v)| Step::Put(k, v)),
        6 => key().prop_map(Step::Delete),
        1 => prop::collection::vec(0..4u8, 1..3).prop_map(Step::RemovePrefix),
        10 => key().prop_map(Step::Get),
        4 => (key(), any::<bool>()).prop_map(|(k, evict)| Step::Read(k, evict)),
        1 => prop_oneof![Just(0u64), 9_000..40_000u64, Just(1 << 20)].prop_map(Step::Limit),
        1 => Just(Step::BeginFlush),
        3 => (1..20usize).prop_map(Step::Flush),
    ]
}

fn run(hasher: fn(&[u8]) -> u64, limit: u64, steps: Vec<Step>) {
    let mut hot = HotTier::new(limit, hasher);
    let mut disk = Disk::default();
    let mut model: BTreeMap<Key, Vec<u8>> = BTreeMap::new();
    // What was dirty at the start of the flush, and the keys changed since then.
    let mut at_flush: Option<(BTreeMap<Key, Vec<u8>>, Vec<Key>)> = None;
    for step in steps {
        match step {
            Step::Put(k, v) => {
                hot.put(&hot_key(hasher, &k), &v, &mut disk);
                assert_eq!(hot.peek(&hot_key(hasher, &k)), Lookup::Value(&v));
                model.insert(k.clone(), v);
                at_flush.iter_mut().for_each(|(_, changed)| changed.push(k.clone()));
            }
            Step::Delete(k) => {
                hot.delete(&hot_key(hasher, &k), &mut disk);
                model.remove(&k);
                at_flush.iter_mut().for_each(|(_, changed)| changed.push(k.clone()));
            }
            Step::RemovePrefix(prefix) => {
                hot.remove_matching(&mut |e, _| e.key.starts_with(&prefix));
                let gone: Vec<_> = model.keys().filter(|(_, k)| k.starts_with(&prefix)).cloned().collect();
                at_flush.iter_mut().for_each(|(_, changed)| changed.extend(gone.iter().cloned()));
                model.retain(|(_, k), _| !k.starts_with(&prefix));
                disk.map.retain(|(_, k), _| !k.starts_with(&prefix));
            }
            Step::Get(k) => assert_eq!(value_of(&hot, &disk, &k).as_ref(), model.get(&k)),
            Step::Read(k, evict) => {
                if let (false, Some(v)) = (hot.is_complete(), disk.map.get(&k).cloned()) {
                    if evict {
                        hot.put_clean(&hot_key(hasher, &k), &v, &mut disk);
                    } else {
                        let before = hot.evicted();
                        hot.load(&hot_key(hasher, &k), &v);
                        assert_eq!(hot.evicted(), before);
                    }
                }
                assert_eq!(value_of(&hot, &disk, &k).as_ref(), model.get(&k));
            }
            Step::Limit(limit) => hot.set_limit(limit, &mut disk),
            Step::BeginFlush => {
                hot.begin_flush();
                assert_eq!(hot.pending(), hot.dirty());
                at_flush = Some((model.clone(), Vec::new()));
            }
            Step::Flush(n) => {
                let before = hot.pending();
                // Of a whole round, some step finds something: the others looked at what became dirty since.
                let round: usize = hot.segments.iter().flatten().map(|s| 1 + s.capacity() / PAGE).sum();
                let progress = (0..=round).any(|_| {
                    hot.flush(n, usize::MAX, &mut disk);
                    hot.pending() < before
                });
                assert!(progress || before == 0, "a round makes progress");
            }
        }
        if hot.pending() == 0
            && let Some((then, changed)) = at_flush.take()
        {
            for (k, v) in then.iter().filter(|(k, _)| !changed.contains(k)) {
                assert_eq!(disk.map.get(k), Some(v), "what was dirty at begin_flush is on disk");
            }
            for k in disk.map.keys().filter(|k| !changed.contains(k)) {
                assert!(then.contains_key(k), "what was deleted at begin_flush is not on disk");
            }
        }
        check(&hot);
    }
    for k in model.keys().chain(disk.map.keys()) {
        assert_eq!(value_of(&hot, &disk, k).as_ref(), model.get(k));
    }
    hot.begin_flush();
    while hot.pending() > 0 {
        hot.flush(3, 1000, &mut disk);
    }
    assert_eq!(disk.map, model);
    assert_eq!(hot.dirty(), 0);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn hot_tier_over_disk_is_a_map(limit in 8_000..30_000u64, steps in prop::collection::vec(step(), 1..400)) {
        run(xxh3, limit, steps);
    }

    #[test]
    fn hash_collisions_change_nothing(limit in 8_000..30_000u64, steps in prop::collection::vec(step(), 1..150)) {
        run(weak, limit, steps);
    }
}

#[test]
fn a_step_of_a_flush_looks_at_few_pages() {
    let (mut hot, mut disk) = (HotTier::new(16 << 20, xxh3), Disk::default());
    let key = |i: u32| (0, i.to_be_bytes().to_vec());
    let put = |hot: &mut HotTier, disk: &mut Disk, i: u32| hot.put(&hot_key(xxh3, &key(i)), &[7; 100], disk);
    (0..20_000).for_each(|i| put(&mut hot, &mut disk, i));
    hot.begin_flush();
    hot.flush(usize::MAX, usize::MAX, &mut disk);
    // One in every page or so, then the last one.
    (0..20_000).step_by(50).for_each(|i| put(&mut hot, &mut disk, i));
    hot.begin_flush();
    hot.flush(usize::MAX, usize::MAX, &mut disk);
    put(&mut hot, &mut disk, 19_999);
    hot.begin_flush();
    (0..19_999).step_by(50).for_each(|i| put(&mut hot, &mut disk, i));
    let written = disk.writes;
    hot.flush(100, usize::MAX, &mut disk);
    assert_eq!((hot.pending(), disk.writes - written), (1, 0), "400 pages with newer ones lie before it");
    let steps = (0..).take_while(|_| {
        hot.flush(100, usize::MAX, &mut disk);
        hot.pending() > 0
    });
    assert!((2..=4).contains(&steps.count()));
    assert_eq!(disk.writes - written, 1);
    check(&hot);
}

#[test]
fn deletes_of_keys_never_stored_leave_nothing() {
    let (mut hot, mut disk) = (HotTier::new(1 << 20, xxh3), Disk::default());
    for i in 0..100u8 {
        hot.put(&hot_key(xxh3, &(0, vec![i])), b"v", &mut disk);
    }
    for i in 0..100u8 {
        hot.delete(&hot_key(xxh3, &(0, vec![i])), &mut disk);
        hot.delete(&hot_key(xxh3, &(0, vec![i, i])), &mut disk);
    }
    assert_eq!((hot.len(), hot.dirty(), disk.writes), (0, 0, 0));
    assert!(hot.is_complete());
    check(&hot);
}

#[test]
fn dead_space_is_compacted_before_anything_is_evicted() {
    let (mut hot, mut disk) = (HotTier::new(1 << 20, xxh3), Disk::default());
    // Live data of about half the limit, rewritten many times with changing sizes.
    for round in 0..50usize {
        for i in 0..4000u32 {
            let value = vec![7; 40 + (round + i as usize) % 30];
            hot.put(&hot_key(xxh3, &(0, i.to_be_bytes().to_vec())), &value, &mut disk);
        }
    }
    check(&hot);
    assert!(hot.is_complete());
    assert_eq!((hot.evicted(), hot.len(), disk.writes), (0, 4000, 0));
}

#[test]
fn what_is_used_stays_longer() {
    let (mut hot, mut disk) = (HotTier::new(1 << 20, xxh3), Disk::default());
    let key = |i: u32| (0, i.to_be_bytes().to_vec());
    let mut kept = 0;
    for i in 0..100_000u32 {
        hot.put(&hot_key(xxh3, &key(i)), &[1; 32], &mut disk);
        // A hundred keys in use; everything else passes through once.
        kept += usize::from(matches!(hot.get(&hot_key(xxh3, &key(i % 100))), Lookup::Value(_)));
        if matches!(hot.get(&hot_key(xxh3, &key(i % 100))), Lookup::Miss) {
            hot.put(&hot_key(xxh3, &key(i % 100)), &[1; 32], &mut disk);
        }
    }
    check(&hot);
    assert!(kept > 99_000, "{kept}");
    assert!(hot.evicted() > 50_000);
}

#[test]
fn a_big_entry_gets_its_own_segment() {
    let (mut hot, mut disk) = (HotTier::new(64 << 20, xxh3), Disk::default());
    let big = vec![3; 5 << 20];
    hot.put(&hot_key(xxh3, &(0, b"big".to_vec())), &big, &mut disk);
    hot.put(&hot_key(xxh3, &(0, b"small".to_vec())), b"v", &mut disk);
    assert_eq!(hot.get(&hot_key(xxh3, &(0, b"big".to_vec()))), Lookup::Value(&big));
    check(&hot);
    hot.set_limit(1 << 20, &mut disk);
    hot.set_limit(1 << 20, &mut disk);
    assert!(hot.bytes() < 2 << 20);
    assert_eq!(disk.map.get(&(0, b"big".to_vec())), Some(&big));
    hot.delete(&hot_key(xxh3, &(0, b"small".to_vec())), &mut disk);
    check(&hot);
}

#[test]
fn many_unfinished_flushes_lose_nothing() {
    let (mut hot, mut disk) = (HotTier::new(1 << 20, xxh3), Disk::default());
    for i in 0..600u16 {
        hot.put(&hot_key(xxh3, &(0, i.to_be_bytes().to_vec())), b"v", &mut disk);
        hot.begin_flush();
        assert_eq!(hot.pending(), u64::from(i) + 1);
    }
    check(&hot);
    while hot.pending() > 0 {
        hot.flush(7, 1 << 20, &mut disk);
    }
    assert_eq!(disk.map.len(), 600);
}

#[test]
fn memory_is_given_back_when_the_limit_shrinks() {
    let (mut hot, mut disk) = (HotTier::new(64 << 20, xxh3), Disk::default());
    for i in 0..300_000u32 {
        hot.put(&hot_key(xxh3, &(0, i.to_be_bytes().to_vec())), &[1; 16], &mut disk);
    }
    assert!(hot.bytes() > 10 << 20);
    hot.set_limit(1 << 20, &mut disk);
    assert!(hot.bytes() <= (1 << 20) + (128 << 10), "{}", hot.bytes());
    check(&hot);
    assert_eq!(hot.len() + disk.map.len(), 300_000);
}
