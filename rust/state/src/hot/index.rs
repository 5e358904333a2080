//! The index of the hot tier: from a key's hash to the place of its entry.
//!
//! Owns: the packed slots, their tables and the memory of these.
//! Does not own: the entries. The caller checks whether a slot's entry has the wanted key.
//!
//! A slot is 64 bits: 24 bits of the hash | referenced | 21 bits of segment | 18 bits of offset. The tables are split by
//! eight more bits of the hash, so that a slot alone says where it belongs: growing a table never touches the entries,
//! and only a small part of the index grows at a time.

use super::arena::{ALIGN, Loc};
use fastchangelog_columns::order::{PARTS, part_of};
use hashbrown::HashTable;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

const OFFSET_BITS: u32 = 18;
const SEGMENT_BITS: u32 = 21;
const REFERENCED: u64 = 1 << (OFFSET_BITS + SEGMENT_BITS);
const TAG_SHIFT: u32 = OFFSET_BITS + SEGMENT_BITS + 1;

/// Number of segments that can be named.
pub(super) const MAX_SEGMENTS: usize = 1 << SEGMENT_BITS;

/// Where the entries are, by hash.
///
/// Invariants: 1. one slot per live entry, tombstones included; 2. `bytes` is the memory of all tables.
#[derive(Debug)]
pub(super) struct Index {
    parts: Box<[HashTable<AtomicU64>]>,
    len: usize,
    bytes: usize,
}

fn tag_of(hash: u64) -> u64 {
    (hash >> 32) & 0xff_ffff
}

/// The hash for the table: its low bits choose the bucket, its top seven are compared first.
fn spread(tag: u64) -> u64 {
    tag | (tag << 40)
}

fn rehash(slot: &AtomicU64) -> u64 {
    spread(slot.load(Relaxed) >> TAG_SHIFT)
}

fn pack(tag: u64, loc: Loc) -> u64 {
    debug_assert!((loc.offset as usize).is_multiple_of(ALIGN));
    (tag << TAG_SHIFT) | (u64::from(loc.segment) << OFFSET_BITS) | u64::from(loc.offset / ALIGN as u32)
}

fn loc_of(slot: u64) -> Loc {
    Loc {
        segment: ((slot >> OFFSET_BITS) & ((1 << SEGMENT_BITS) - 1)) as u32,
        offset: (slot & ((1 << OFFSET_BITS) - 1)) as u32 * ALIGN as u32,
    }
}

impl Index {
    pub fn new() -> Self {
        Self { parts: (0..PARTS).map(|_| HashTable::new()).collect(), len: 0, bytes: 0 }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    /// Bytes of memory held.
    pub fn bytes(&self) -> usize {
        self.bytes + PARTS * size_of::<HashTable<AtomicU64>>()
    }

    /// The place with this hash for which `is` says yes.
    #[inline]
    pub fn find(&self, hash: u64, mut is: impl FnMut(Loc) -> bool) -> Option<Loc> {
        self.find_slot(hash, &mut is).map(|slot| loc_of(slot.load(Relaxed)))
    }

    /// As [`Index::find`], and notes that the entry was used.
    #[inline]
    pub fn find_and_reference(&self, hash: u64, mut is: impl FnMut(Loc) -> bool) -> Option<Loc> {
        let slot = self.find_slot(hash, &mut is)?;
        let value = slot.load(Relaxed);
        if value & REFERENCED == 0 {
            slot.fetch_or(REFERENCED, Relaxed);
        }
        Some(loc_of(value))
    }

    #[inline]
    fn find_slot(&self, hash: u64, is: &mut impl FnMut(Loc) -> bool) -> Option<&AtomicU64> {
        let tag = tag_of(hash);
        self.parts[part_of(hash)].find(spread(tag), |slot| {
            let slot = slot.load(Relaxed);
            slot >> TAG_SHIFT == tag && is(loc_of(slot))
        })
    }

    /// Prefetches the memory that a search for this hash reads.
    #[inline]
    pub fn touch_tags(&self, hash: u64) -> u64 {
        u64::from(self.find(hash, |_| true).is_some())
    }

    /// Reads a slot next to the one that a new entry with this hash gets, if it is easily found: its cache line is near
    /// then, and the entry need not wait for it.
    #[inline]
    pub fn touch_slots(&self, hash: u64) -> u64 {
        let part = &self.parts[part_of(hash)];
        let first = spread(tag_of(hash)) as usize & part.num_buckets().saturating_sub(1);
        (0..8).find_map(|i| part.get_bucket(first ^ i)).map_or(0, |slot| slot.load(Relaxed))
    }

    /// Adds an entry that is not in the index.
    pub fn insert(&mut self, hash: u64, loc: Loc) {
        let tag = tag_of(hash);
        let part = &mut self.parts[part_of(hash)];
        let full = part.len() == part.capacity();
        let before = if full { part.allocation_size() } else { 0 };
        part.insert_unique(spread(tag), AtomicU64::new(pack(tag, loc)), rehash);
        if full {
            self.bytes = self.bytes + part.allocation_size() - before;
        }
        self.len += 1;
    }

    /// Removes the entry at `loc`; true when it was there.
    pub fn remove(&mut self, hash: u64, loc: Loc) -> bool {
        let tag = tag_of(hash);
        let wanted = pack(tag, loc);
        let part = &mut self.parts[part_of(hash)];
        match part.find_entry(spread(tag), |slot| slot.load(Relaxed) & !REFERENCED == wanted) {
            Ok(entry) => {
                entry.remove();
                self.len -= 1;
                true
            }
            Err(_) => false,
        }
    }

    /// Notes that the entry at `from` is now at `to`; `keep` its referenced mark or clear it.
    pub fn relocate(&mut self, hash: u64, from: Loc, to: Loc, keep: bool) -> bool {
        let tag = tag_of(hash);
        let wanted = pack(tag, from);
        let part = &mut self.parts[part_of(hash)];
        let Some(slot) = part.find_mut(spread(tag), |slot| slot.load(Relaxed) & !REFERENCED == wanted) else {
            return false;
        };
        let slot = slot.get_mut();
        *slot = pack(tag, to) | if keep { *slot & REFERENCED } else { 0 };
        true
    }

    /// True when the entry at `loc` was used since it was added or moved.
    pub fn is_referenced(&self, hash: u64, loc: Loc) -> bool {
        let tag = tag_of(hash);
        let wanted = pack(tag, loc);
        self.parts[part_of(hash)]
            .find(spread(tag), |slot| slot.load(Relaxed) & !REFERENCED == wanted)
            .is_some_and(|slot| slot.load(Relaxed) & REFERENCED != 0)
    }

    /// Gives memory back when much more is held than needed.
    pub fn shrink(&mut self) {
        for part in &mut self.parts {
            if part.capacity() > 64 && part.len() < part.capacity() / 4 {
                let before = part.allocation_size();
                part.shrink_to(part.len() * 2, rehash);
                self.bytes = self.bytes + part.allocation_size() - before;
            }
        }
    }
}
