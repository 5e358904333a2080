//! Changes of one state in flat memory: looked up by key, iterated in no order or in order of keys.
//!
//! Owns: the index by hash, the bytes of keys and values, the order of keys on request, the cleared prefixes.
//! Does not own: which layer is newer, limits (`layers`).
//!
//! Invariants of [`Entries`]:
//! 1. a key has one entry, its last change;
//! 2. replaced and removed bytes are at most as many as live ones, plus a constant;
//! 3. the order of keys is computed at the first scan or after many clears, and kept from then on;
//! 4. all clears come before all entries: a clear removes the entries that it covers, and takes the memory of its prefix;
//! 5. no cleared prefix begins with another, so that the last one at or below a key is the only one that may cover it.

use fastchangelog_columns::codec::hash_key;
use hashbrown::HashTable;
use std::collections::{BTreeMap, BTreeSet, btree_map};
use std::hint::black_box;
use std::ops::Bound;
use std::sync::OnceLock;

/// Length of the value of a deleted key.
const DELETED: u32 = u32::MAX;
/// Bytes of replaced values that are left where they are.
const SMALL: usize = 64 << 10;
/// Slots that are passed one by one in no time, and reserved ones that are not given back.
const FEW_SLOTS: usize = 1024;
/// Clears that pass more slots than that one by one, before the order of keys is computed for them.
const SEARCHES: u32 = 16;
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
    /// Bytes of replaced values and removed entries.
    dead: usize,
    order: OnceLock<BTreeMap<Box<[u8]>, u32>>,
    cleared: BTreeSet<Box<[u8]>>,
    /// Bytes of the cleared prefixes.
    cleared_bytes: usize,
    /// Clears that passed many slots.
    searches: u32,
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

    /// Bytes of keys and values, replaced ones too, of the order of keys, and of cleared prefixes.
    pub(crate) fn held(&self) -> u64 {
        let ordered = if self.order.get().is_some() { self.bytes.len() + self.slots.len() } else { 0 } as u64;
        let per_key = if ordered > 0 { ORDER_OVERHEAD * self.slots.len() as u64 } else { 0 };
        (self.bytes.len() + self.cleared_bytes) as u64 + ordered + per_key
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
        match self.find(hash, key) {
            Some(i) => Some(self.value(&self.slots[i])),
            None => self.cleared_with(key).map(|_| None),
        }
    }

    /// True if the key has an entry of its own.
    pub(crate) fn contains(&self, hash: u64, key: &[u8]) -> bool {
        self.find(hash, key).is_some()
    }

    /// The cleared prefixes, in order.
    pub(crate) fn clears(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        self.cleared.iter().map(|prefix| &**prefix)
    }

    /// The cleared prefix that covers a key.
    pub(crate) fn cleared_with(&self, key: &[u8]) -> Option<&[u8]> {
        let below = self.cleared.range::<[u8], _>((Bound::Unbounded, Bound::Included(key)));
        below.last().map(|prefix| &**prefix).filter(|prefix| key.starts_with(prefix))
    }

    /// Removes every key that begins with one of `prefixes`, here and below.
    pub(crate) fn clear<'a>(&mut self, prefixes: impl Iterator<Item = &'a [u8]>) {
        let mut all: Vec<&[u8]> = prefixes.collect();
        all.sort_unstable();
        // None begins with another, as of the cleared ones: what begins with a prefix follows it.
        all.dedup_by(|next, kept| next.starts_with(kept));
        let slots = self.slots_of(&all);
        self.remove(slots);
        all.into_iter().for_each(|prefix| self.clear_below(prefix));
    }

    /// Removes every key that begins with `prefix` below these entries.
    fn clear_below(&mut self, prefix: &[u8]) {
        if self.cleared_with(prefix).is_some() {
            return;
        }
        let from = (Bound::Included(prefix), Bound::Unbounded);
        let within = self.cleared.range::<[u8], _>(from).take_while(|inner| inner.starts_with(prefix));
        for inner in within.cloned().collect::<Vec<_>>() {
            self.cleared_bytes -= inner.len();
            self.cleared.remove(&inner);
        }
        self.cleared_bytes += prefix.len();
        self.cleared.insert(prefix.into());
    }

    /// The slots of keys that begin with one of these prefixes, which are in order. The order of keys takes memory, so
    /// it is computed for this only where many searches have passed many slots without it.
    fn slots_of(&mut self, prefixes: &[&[u8]]) -> Vec<u32> {
        if self.order.get().is_some() || self.searches == SEARCHES {
            let from = |prefix| self.range(Bound::Included(prefix), Bound::Unbounded).keys;
            let slots = prefixes.iter().flat_map(|&prefix| {
                from(prefix).take_while(move |(key, _)| key.starts_with(prefix)).map(|(_, &slot)| slot)
            });
            return slots.collect();
        }
        self.searches += u32::from(self.slots.len() > FEW_SLOTS);
        let is_cleared = |key: &[u8]| {
            let below = prefixes.partition_point(|&prefix| prefix <= key);
            below > 0 && key.starts_with(prefixes[below - 1])
        };
        let slots = self.slots.iter().enumerate();
        slots.filter(|(_, slot)| is_cleared(self.key(slot))).map(|(i, _)| short(i)).collect()
    }

    /// Removes slots. The last one takes the place of a removed one.
    fn remove(&mut self, mut slots: Vec<u32>) {
        // From the end: a slot that takes a place is none that is to be removed.
        slots.sort_unstable_by(|a, b| b.cmp(a));
        for i in slots {
            let (at, last) = (self.slots[i as usize], short(self.slots.len() - 1));
            let key = at.key..at.key + at.key_len as usize;
            if let Ok(place) = self.index.find_entry(spread(tag_of(at.hash)), |place| place.slot == i) {
                place.remove();
            }
            if let Some(order) = self.order.get_mut() {
                order.remove(&self.bytes[key]);
            }
            self.dead += at.key_len as usize + if at.value_len == DELETED { 0 } else { at.value_len as usize };
            self.slots.swap_remove(i as usize);
            let Some(&moved) = self.slots.get(i as usize) else { continue };
            if let Some(place) = self.index.find_mut(spread(tag_of(moved.hash)), |place| place.slot == last) {
                place.slot = i;
            }
            if let Some(order) = self.order.get_mut()
                && let Some(slot) = order.get_mut(&self.bytes[moved.key..moved.key + moved.key_len as usize])
            {
                *slot = i;
            }
        }
        if self.slots.capacity() > FEW_SLOTS.max(4 * self.slots.len()) {
            self.slots.shrink_to(2 * self.slots.len());
            self.index.shrink_to(2 * self.slots.len(), |place| spread(place.tag));
        }
        self.compact();
    }

    /// Changes a key.
    #[inline]
    pub(crate) fn put(&mut self, hash: u64, key: &[u8], value: Option<&[u8]>) {
        self.put_parts(hash, key, value.map(|value| [&[], value]));
    }

    /// Changes a key to a value in two parts.
    pub(crate) fn put_parts(&mut self, hash: u64, key: &[u8], value: Option<[&[u8]; 2]>) {
        if let Some(i) = self.find(hash, key) {
            return self.replace(i, value);
        }
        let slot = short(self.slots.len());
        let at = self.bytes.len();
        let [first, rest] = value.unwrap_or_default();
        self.bytes.reserve(key.len() + first.len() + rest.len());
        self.bytes.extend_from_slice(key);
        self.push_prefix(first);
        self.bytes.extend_from_slice(rest);
        let value_len = value.map_or(DELETED, |_| short(first.len() + rest.len()));
        self.slots.push(EntrySlot { hash, key: at, value: at + key.len(), key_len: short(key.len()), value_len });
        let tag = tag_of(hash);
        self.index.insert_unique(spread(tag), IndexEntry { tag, slot }, |place| spread(place.tag));
        if let Some(order) = self.order.get_mut() {
            order.insert(key.into(), slot);
        }
    }

    fn replace(&mut self, i: usize, value: Option<[&[u8]; 2]>) {
        let slot = &mut self.slots[i];
        let old = if slot.value_len == DELETED { 0 } else { slot.value_len as usize };
        let Some([first, rest]) = value else {
            self.dead += old;
            slot.value_len = DELETED;
            return self.compact();
        };
        let length = first.len() + rest.len();
        if slot.value_len as usize == length && slot.value_len != DELETED {
            let (start, end) = self.bytes[slot.value..slot.value + old].split_at_mut(first.len());
            match (start, first) {
                ([old], [new]) => *old = *new,
                (old, new) => old.copy_from_slice(new),
            }
            end.copy_from_slice(rest);
            return;
        }
        self.dead += old;
        (slot.value, slot.value_len) = (self.bytes.len(), short(length));
        self.push_prefix(first);
        self.bytes.extend_from_slice(rest);
        self.compact();
    }

    /// Adds the first part of a value. It is the version of a type, most often: one byte, which is not worth a call.
    #[inline]
    fn push_prefix(&mut self, prefix: &[u8]) {
        match prefix {
            [] => {}
            [byte] => self.bytes.push(*byte),
            prefix => self.bytes.extend_from_slice(prefix),
        }
    }

    /// Leaves replaced and removed bytes behind, if they are many.
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

    /// All entries, in no order.
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
            if self.get(entry.hash, entry.key).is_none() {
                self.put(entry.hash, entry.key, entry.value);
            }
        }
        // After the entries: those that were put after these clears stay.
        older.clears().for_each(|prefix| self.clear_below(prefix));
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
#[path = "entries_tests.rs"]
mod tests;
