//! Changes of one state in flat memory: looked up by key, iterated in insertion order or in order of keys.
//!
//! Owns: the index by hash, the bytes of keys and values, the order of keys on request.
//! Does not own: which layer is newer, limits (`layers`).
//!
//! Invariants of [`Entries`]:
//! 1. a key has one entry, its last change;
//! 2. replaced values take at most as many bytes as live ones, plus a constant;
//! 3. the order of keys is computed at the first request, and kept from then on.

use crate::state::codec::hash_key;
use hashbrown::HashTable;
use std::collections::{BTreeMap, btree_map};
use std::hint::black_box;
use std::ops::Bound;
use std::sync::OnceLock;

/// Length of the value of a deleted key.
const DELETED: u32 = u32::MAX;
/// Bytes of replaced values that are left where they are.
const SMALL: usize = 64 << 10;
/// Bytes of an entry in the order of keys beside its key.
const ORDER_OVERHEAD: u64 = 48;
/// Keys that are looked for side by side, where one after the other each would wait for memory.
pub(crate) const LANE: usize = 32;

/// A key and its change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Entry<'a> {
    pub(crate) hash: u64,
    pub(crate) key: &'a [u8],
    /// None = deleted.
    pub(crate) value: Option<&'a [u8]>,
}

#[derive(Debug, Clone, Copy)]
struct EntrySlot {
    hash: u64,
    key: usize,
    value: usize,
    key_len: u32,
    value_len: u32,
}

/// A slot in the index, with a part of its hash.
#[derive(Debug, Clone, Copy)]
struct IndexEntry {
    tag: u32,
    slot: u32,
}

/// The changes of one state. See the module documentation for its invariants.
#[derive(Debug, Clone, Default)]
pub(crate) struct Entries {
    index: HashTable<IndexEntry>,
    slots: Vec<EntrySlot>,
    bytes: Vec<u8>,
    /// Bytes of replaced values.
    dead: usize,
    order: OnceLock<BTreeMap<Box<[u8]>, u32>>,
}

#[expect(clippy::cast_possible_truncation, reason = "a tag is part of a hash")]
fn tag_of(hash: u64) -> u32 {
    (hash >> 20) as u32
}

/// What the table takes for the hash: its low bits choose the bucket, its top seven are compared first.
fn spread(tag: u32) -> u64 {
    u64::from(tag) | (u64::from(tag) << 32)
}

#[expect(clippy::cast_possible_truncation, reason = "a layer holds far less than 4 GiB, as does a key or a value")]
fn short(n: usize) -> u32 {
    n as u32
}

impl Entries {
    /// Number of keys.
    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    /// Bytes of keys and values, replaced ones too, and of the order of keys.
    pub(crate) fn held(&self) -> u64 {
        let ordered = if self.order.get().is_some() { self.bytes.len() + self.slots.len() } else { 0 } as u64;
        let per_key = if ordered > 0 { ORDER_OVERHEAD * self.slots.len() as u64 } else { 0 };
        self.bytes.len() as u64 + ordered + per_key
    }

    /// Touches the memory that look-ups need. The answer means nothing, but must be used.
    fn touch(&self, hashes: &[u64]) -> u8 {
        let mut slots = [None; LANE];
        for (slot, &hash) in slots.iter_mut().zip(hashes) {
            let tag = tag_of(hash);
            *slot = self.index.find(spread(tag), |place| place.tag == tag).map(|place| place.slot);
        }
        let mut sum = 0;
        for slot in slots.into_iter().flatten() {
            sum ^= self.bytes.get(self.slots[slot as usize].key).copied().unwrap_or_default();
        }
        sum
    }

    /// Brings the memory of up to [`LANE`] keys near.
    pub(crate) fn prefetch(&self, hashes: &[u64]) {
        // What is small is near.
        if self.slots.len() > 1024 {
            black_box(self.touch(hashes));
        }
    }

    fn find(&self, hash: u64, key: &[u8]) -> Option<usize> {
        let tag = tag_of(hash);
        let is = |place: &IndexEntry| place.tag == tag && self.key(&self.slots[place.slot as usize]) == key;
        self.index.find(spread(tag), is).map(|place| place.slot as usize)
    }

    fn key(&self, slot: &EntrySlot) -> &[u8] {
        &self.bytes[slot.key..slot.key + slot.key_len as usize]
    }

    fn value(&self, slot: &EntrySlot) -> Option<&[u8]> {
        (slot.value_len != DELETED).then(|| &self.bytes[slot.value..slot.value + slot.value_len as usize])
    }

    /// The change of a key; none if it was not changed.
    #[expect(clippy::option_option, reason = "not changed, deleted, or set: a change is itself an option")]
    pub(crate) fn get(&self, hash: u64, key: &[u8]) -> Option<Option<&[u8]>> {
        self.find(hash, key).map(|i| self.value(&self.slots[i]))
    }

    /// Changes a key.
    pub(crate) fn put(&mut self, hash: u64, key: &[u8], value: Option<&[u8]>) {
        if let Some(i) = self.find(hash, key) {
            return self.replace(i, value);
        }
        let slot = short(self.slots.len());
        let at = self.bytes.len();
        self.bytes.extend_from_slice(key);
        self.bytes.extend_from_slice(value.unwrap_or_default());
        let value_len = value.map_or(DELETED, |value| short(value.len()));
        self.slots.push(EntrySlot { hash, key: at, value: at + key.len(), key_len: short(key.len()), value_len });
        let tag = tag_of(hash);
        self.index.insert_unique(spread(tag), IndexEntry { tag, slot }, |place| spread(place.tag));
        if let Some(order) = self.order.get_mut() {
            order.insert(key.into(), slot);
        }
    }

    fn replace(&mut self, i: usize, value: Option<&[u8]>) {
        let slot = &mut self.slots[i];
        let old = if slot.value_len == DELETED { 0 } else { slot.value_len as usize };
        let Some(value) = value else {
            self.dead += old;
            slot.value_len = DELETED;
            return self.compact();
        };
        if slot.value_len as usize == value.len() && slot.value_len != DELETED {
            self.bytes[slot.value..slot.value + old].copy_from_slice(value);
            return;
        }
        self.dead += old;
        (slot.value, slot.value_len) = (self.bytes.len(), short(value.len()));
        self.bytes.extend_from_slice(value);
        self.compact();
    }

    /// Leaves replaced values behind, if they are many.
    fn compact(&mut self) {
        if self.dead <= SMALL.max(self.bytes.len() / 2) {
            return;
        }
        let mut bytes = Vec::with_capacity(self.bytes.len() - self.dead);
        for slot in &mut self.slots {
            let key = bytes.len();
            bytes.extend_from_slice(&self.bytes[slot.key..slot.key + slot.key_len as usize]);
            let value = bytes.len();
            if slot.value_len != DELETED {
                bytes.extend_from_slice(&self.bytes[slot.value..slot.value + slot.value_len as usize]);
            }
            (slot.key, slot.value) = (key, value);
        }
        (self.bytes, self.dead) = (bytes, 0);
    }

    /// All entries, in insertion order of their keys.
    pub(crate) fn iter(&self) -> impl ExactSizeIterator<Item = Entry<'_>> {
        self.slots.iter().map(|slot| Entry { hash: slot.hash, key: self.key(slot), value: self.value(slot) })
    }

    /// The entries of a range of keys, in order of keys.
    pub(crate) fn range(&self, from: Bound<&[u8]>, to: Bound<&[u8]>) -> Range<'_> {
        let order = self.order.get_or_init(|| {
            let keys = self.slots.iter().enumerate();
            keys.map(|(i, slot)| (self.key(slot).into(), short(i))).collect()
        });
        Range { entries: self, keys: order.range::<[u8], _>((from, to)) }
    }

    /// Takes over what is not changed here.
    pub(crate) fn put_under(&mut self, older: &Self) {
        for entry in older.iter() {
            if self.find(entry.hash, entry.key).is_none() {
                self.put(entry.hash, entry.key, entry.value);
            }
        }
    }
}

/// Keys with their changes, in order.
#[derive(Debug, Clone)]
pub(crate) struct Range<'a> {
    entries: &'a Entries,
    keys: btree_map::Range<'a, Box<[u8]>, u32>,
}

impl<'a> Iterator for Range<'a> {
    type Item = (&'a Box<[u8]>, Option<&'a [u8]>);

    fn next(&mut self) -> Option<Self::Item> {
        let (key, &slot) = self.keys.next()?;
        Some((key, self.entries.value(&self.entries.slots[slot as usize])))
    }
}

/// The hashes of some keys, [`LANE`] at most.
pub(crate) fn hashes<'a>(keys: impl Iterator<Item = &'a [u8]>) -> [u64; LANE] {
    let mut hashes = [0; LANE];
    for (hash, key) in hashes.iter_mut().zip(keys) {
        *hash = hash_key(key);
    }
    hashes
}

#[cfg(test)]
mod tests {
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
}
