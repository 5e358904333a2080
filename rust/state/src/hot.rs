//! The hot tier: recent entries of one shard in bounded memory.
//!
//! Owns: a log-structured arena of entries with an index, the dirty and referenced marks, eviction, and the walk that
//! flushes dirty entries.
//! Does not own: the disk. Dirty entries leave the tier through an [`EntrySink`], which writes to RocksDB in `keyed`.
//!
//! A value of unchanged size is replaced in place; any other is appended, and the old one is dead. At the byte limit,
//! segments with much dead space are compacted first. Then the oldest segment is evicted (first in, first out), except
//! entries used since their insertion, which get a second round.
//!
//! Invariants of a [`HotTier`]:
//! 1. an entry that is not dirty has the value that is on disk; a dirty one is newer; a tombstone is always dirty;
//! 2. while `complete`, every key of the shard is in the tier, and a key that is not in the index is not on disk;
//! 3. an entry without the mark STORED is not on disk, so that its deletion needs no tombstone;
//! 4. no dirty entry leaves the tier without passing through a sink;
//! 5. bytes held stay below the limit plus one segment or entry, and plus the index of the remaining entries.

mod arena;
mod evict;
mod flush;
mod index;

use arena::{DEAD, DIRTY, Header, Loc, PAGE, PAGE_BYTES, STORED, Segment, TOMBSTONE};
use fastchangelog_format::error::Result;
use fastchangelog_format::model::{KeyGroup, StateId};
use flush::Cursor;
use index::{Index, MAX_SEGMENTS};
use std::collections::VecDeque;

/// Smallest segment that holds more than one entry.
const MIN_SEGMENT: usize = 4 << 10;
/// A deleted value of at most this many bytes keeps its place until the tombstone goes.
const KEEP_DELETED: u32 = 256;

/// A key with its hash and state, for look-ups in the tier.
#[derive(Debug, Clone, Copy)]
pub struct HotKey<'a> {
    /// Hash of `key` by the function given to [`HotTier::new`].
    pub hash: u64,
    /// The state.
    pub state: StateId,
    /// The key's key group.
    pub key_group: KeyGroup,
    /// Canonical key bytes.
    pub key: &'a [u8],
}

/// The tier's answer about a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lookup<'a> {
    /// The value.
    Value(&'a [u8]),
    /// The key is deleted.
    Deleted,
    /// Nothing: ask the disk, unless the tier is complete.
    Miss,
}

/// An entry of the tier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EntryRef<'a> {
    /// The state.
    pub state: StateId,
    /// The key group.
    pub key_group: KeyGroup,
    /// Canonical key bytes.
    pub key: &'a [u8],
    /// The value; none for a deleted key.
    pub value: Option<&'a [u8]>,
}

/// Receives the entries that must reach the disk, evicted or flushed, in order.
pub trait EntrySink {
    /// One entry. Errors are kept by the sink, for a check afterwards.
    fn write(&mut self, entry: EntryRef<'_>);
}

/// Recent entries of one shard. See the module documentation for its invariants.
#[derive(Debug)]
pub struct HotTier {
    hasher: fn(&[u8]) -> u64,
    index: Index,
    segments: Vec<Option<Segment>>,
    free: Vec<u32>,
    /// Segments from oldest to newest; pairs whose serial does not match are gone.
    order: VecDeque<(u32, u64)>,
    active: Option<u32>,
    spare: Option<Box<[u8]>>,
    next_serial: u64,
    limit: u64,
    arena_bytes: usize,
    live_bytes: usize,
    complete: bool,
    evicted: u64,
    dirty: u64,
    dirty_by_epoch: Box<[u64; 256]>,
    epoch: u8,
    cursor: Cursor,
}

/// The hash for the index. It includes the state, because the same key in two states is two entries.
#[inline]
fn mix(hash: u64, state: u16) -> u64 {
    hash ^ u64::from(state).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

fn entry_of(segment: &Segment, offset: usize, header: Header) -> EntryRef<'_> {
    EntryRef {
        state: StateId(header.state),
        key_group: KeyGroup(header.key_group),
        key: segment.key(offset, header),
        value: (!header.is(TOMBSTONE)).then(|| segment.value(offset, header)),
    }
}

fn header_of(key: &HotKey<'_>, value: &[u8], flags: u8, epoch: u8) -> Header {
    Header {
        klen: key.key.len() as u32,
        vlen: value.len() as u32,
        state: key.state.0,
        key_group: key.key_group.0,
        flags,
        epoch,
    }
}

impl HotTier {
    /// An empty, complete tier of at most `limit` bytes; `hasher` is the function behind [`HotKey::hash`].
    pub fn new(limit: u64, hasher: fn(&[u8]) -> u64) -> Self {
        Self {
            hasher,
            index: Index::new(),
            segments: Vec::new(),
            free: Vec::new(),
            order: VecDeque::new(),
            active: None,
            spare: None,
            next_serial: 0,
            limit,
            arena_bytes: 0,
            live_bytes: 0,
            complete: true,
            evicted: 0,
            dirty: 0,
            dirty_by_epoch: Box::new([0; 256]),
            epoch: 0,
            cursor: Cursor::default(),
        }
    }

    /// Bytes of memory held.
    pub fn bytes(&self) -> u64 {
        (self.used() + self.spare.as_ref().map_or(0, |s| s.len())) as u64
    }

    /// The byte limit.
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// Number of entries, tombstones included.
    pub fn len(&self) -> usize {
        self.index.len()
    }

    /// True when there is no entry.
    pub fn is_empty(&self) -> bool {
        self.index.len() == 0
    }

    /// Number of dirty entries.
    pub fn dirty(&self) -> u64 {
        self.dirty
    }

    /// Entries evicted so far.
    pub fn evicted(&self) -> u64 {
        self.evicted
    }

    /// True while every key of the shard is in the tier (invariant 2).
    pub fn is_complete(&self) -> bool {
        self.complete
    }

    /// Says whether the tier holds every key; only the owner of the disk can know that.
    pub fn set_complete(&mut self, complete: bool) {
        self.complete = complete;
    }

    /// Looks a key up and notes that it was used.
    #[inline]
    pub fn get(&self, key: &HotKey<'_>) -> Lookup<'_> {
        let hash = mix(key.hash, key.state.0);
        let found = self.index.find_and_reference(hash, |loc| self.matches(loc, key));
        self.answer(found)
    }

    /// As [`HotTier::get`], without noting it.
    pub fn peek(&self, key: &HotKey<'_>) -> Lookup<'_> {
        self.answer(self.index.find(mix(key.hash, key.state.0), |loc| self.matches(loc, key)))
    }

    fn answer(&self, found: Option<Loc>) -> Lookup<'_> {
        let Some(loc) = found else { return Lookup::Miss };
        let segment = self.segment(loc.segment);
        let header = segment.header(loc.offset as usize);
        if header.is(TOMBSTONE) { Lookup::Deleted } else { Lookup::Value(segment.value(loc.offset as usize, header)) }
    }

    /// Touches the memory that look-ups of some keys will need, given their hashes and states: many look-ups side by
    /// side, where one after the other each would wait for memory. The answer means nothing, but must be used.
    #[inline]
    pub fn prefetch<const N: usize>(&self, keys: impl Iterator<Item = (u64, StateId)>) -> u8 {
        let mut places = [None; N];
        for (place, (hash, state)) in places.iter_mut().zip(keys) {
            *place = self.index.find(mix(hash, state.0), |_| true);
        }
        places.iter().flatten().fold(0, |sum, loc| sum ^ self.segment(loc.segment).touch(loc.offset as usize))
    }

    /// As [`HotTier::prefetch`], for keys that will be added: the memory of the places in the index that they will get.
    #[inline]
    pub fn prefetch_places(&self, keys: impl Iterator<Item = (u64, StateId)> + Clone) -> u64 {
        let hashes = keys.map(|(hash, state)| mix(hash, state.0));
        let tags = hashes.clone().fold(0, |sum, hash| sum ^ self.index.touch_tags(hash));
        hashes.fold(tags, |sum, hash| sum ^ self.index.touch_slots(hash))
    }

    /// Sets a value; the entry is dirty.
    pub fn put(&mut self, key: &HotKey<'_>, value: &[u8], sink: &mut dyn EntrySink) {
        let hash = mix(key.hash, key.state.0);
        let Some(loc) = self.locate(hash, key) else {
            let flags = if self.complete { DIRTY } else { DIRTY | STORED };
            return self.add(hash, header_of(key, value, flags, self.epoch), key.key, value, sink);
        };
        let old = self.header(loc);
        let epoch = if old.is(DIRTY) { old.epoch } else { self.epoch };
        let new = header_of(key, value, DIRTY | (old.flags & STORED), epoch);
        if new.size() == old.size() {
            self.rewrite(loc, old, new);
            self.segment_mut(loc.segment).value_mut(loc.offset as usize, new).copy_from_slice(value);
        } else {
            self.remove(hash, loc, old);
            self.add(hash, new, key.key, value, sink);
        }
    }

    /// Deletes a key; remembered as a dirty tombstone where the disk may hold a value (invariant 3).
    pub fn delete(&mut self, key: &HotKey<'_>, sink: &mut dyn EntrySink) {
        let hash = mix(key.hash, key.state.0);
        let flags = DIRTY | TOMBSTONE | STORED;
        let Some(loc) = self.locate(hash, key) else {
            if !self.complete {
                self.add(hash, header_of(key, &[], flags, self.epoch), key.key, &[], sink);
            }
            return;
        };
        let old = self.header(loc);
        let epoch = if old.is(DIRTY) { old.epoch } else { self.epoch };
        if !old.is(STORED) {
            self.remove(hash, loc, old);
        } else if old.vlen <= KEEP_DELETED {
            self.rewrite(loc, old, Header { flags, epoch, ..old });
        } else {
            self.remove(hash, loc, old);
            self.add(hash, header_of(key, &[], flags, epoch), key.key, &[], sink);
        }
    }

    /// Adds an entry from disk if the key is not in the tier. Returns false, without effect, if that would need an
    /// eviction.
    pub fn load(&mut self, key: &HotKey<'_>, value: &[u8]) -> bool {
        let header = header_of(key, value, STORED, 0);
        let size = header.size();
        let fits = self.active.is_some_and(|id| self.segment(id).room() >= size);
        if !fits && (self.used() + size.max(self.segment_size())) as u64 > self.limit {
            return false;
        }
        let hash = mix(key.hash, key.state.0);
        if self.index.find(hash, |loc| self.matches(loc, key)).is_none() {
            let loc = self.place(header, key.key, value);
            self.index.insert(hash, loc);
        }
        true
    }

    /// Adds an entry from disk if the key is not in the tier, and evicts others to make room.
    pub fn put_clean(&mut self, key: &HotKey<'_>, value: &[u8], sink: &mut dyn EntrySink) {
        let hash = mix(key.hash, key.state.0);
        if self.index.find(hash, |loc| self.matches(loc, key)).is_none() {
            self.add(hash, header_of(key, value, STORED, 0), key.key, value, sink);
        }
    }

    /// Removes an entry, without telling a sink.
    pub fn forget(&mut self, key: &HotKey<'_>) {
        let hash = mix(key.hash, key.state.0);
        if let Some(loc) = self.locate(hash, key) {
            self.remove(hash, loc, self.header(loc));
        }
    }

    /// Removes every entry, tombstones too, for which `gone` says yes, without telling a sink. `gone` also learns whether
    /// the disk may hold the key (invariant 3).
    pub fn remove_matching(&mut self, gone: &mut dyn FnMut(&EntryRef<'_>, bool) -> bool) {
        let mut found = Vec::new();
        for id in 0..self.segments.len() {
            let Some(segment) = &self.segments[id] else { continue };
            let entries = segment.entries(0);
            found.extend(entries.filter(|&(at, header)| gone(&entry_of(segment, at, header), header.is(STORED))));
            for (offset, header) in found.drain(..) {
                self.remove_at(id, offset, header);
            }
        }
    }

    /// Every entry, in no order.
    pub fn for_each(&self, f: &mut dyn FnMut(EntryRef<'_>) -> Result<()>) -> Result<()> {
        for segment in self.segments.iter().flatten() {
            for (offset, header) in segment.entries(0) {
                f(entry_of(segment, offset, header))?;
            }
        }
        Ok(())
    }

    /// Changes the limit and evicts the excess.
    pub fn set_limit(&mut self, limit: u64, sink: &mut dyn EntrySink) {
        self.limit = limit;
        self.make_room(0, sink);
        self.index.shrink();
        self.drop_spare();
    }

    // Entries

    fn used(&self) -> usize {
        self.arena_bytes
            + self.arena_bytes.div_ceil(PAGE) * PAGE_BYTES
            + self.index.bytes()
            + self.segments.capacity() * size_of::<Option<Segment>>()
    }

    fn segment(&self, id: u32) -> &Segment {
        self.segments[id as usize].as_ref().expect("the index names live segments only")
    }

    fn segment_mut(&mut self, id: u32) -> &mut Segment {
        self.segments[id as usize].as_mut().expect("the index names live segments only")
    }

    fn header(&self, loc: Loc) -> Header {
        self.segment(loc.segment).header(loc.offset as usize)
    }

    #[inline]
    fn matches(&self, loc: Loc, key: &HotKey<'_>) -> bool {
        let segment = self.segment(loc.segment);
        let header = segment.header(loc.offset as usize);
        header.klen as usize == key.key.len()
            && header.state == key.state.0
            && header.key_group == key.key_group.0
            && segment.key(loc.offset as usize, header) == key.key
    }

    fn locate(&self, hash: u64, key: &HotKey<'_>) -> Option<Loc> {
        self.index.find_and_reference(hash, |loc| self.matches(loc, key))
    }

    fn add(&mut self, hash: u64, header: Header, key: &[u8], value: &[u8], sink: &mut dyn EntrySink) {
        let size = header.size();
        if self.active.is_none_or(|id| self.segment(id).room() < size) {
            self.make_room(size.max(self.segment_size()), sink);
        }
        let loc = self.place(header, key, value);
        self.index.insert(hash, loc);
        self.drop_spare();
    }

    /// Writes an entry into the arena, growing it if need be; not into the index.
    fn place(&mut self, header: Header, key: &[u8], value: &[u8]) -> Loc {
        let size = header.size();
        let id = match self.active.filter(|&id| self.segment(id).room() >= size) {
            Some(id) => id,
            None if size > self.segment_size() / 8 => self.new_segment(size),
            None => {
                let id = self.new_segment(self.segment_size());
                self.active = Some(id);
                id
            }
        };
        if header.is(DIRTY) {
            self.dirty += 1;
            self.dirty_by_epoch[usize::from(header.epoch)] += 1;
        }
        self.live_bytes += size;
        let offset = self.segment_mut(id).push(header, key, value);
        loc_at(id as usize, offset)
    }

    /// Changes the header of a live entry, and the counts that depend on it.
    fn rewrite(&mut self, loc: Loc, old: Header, new: Header) {
        let segment = self.segments[loc.segment as usize].as_mut().expect("the index names live segments only");
        segment.set_header(loc.offset as usize, new);
        if old.is(DIRTY) && new.is(DIRTY) && old.epoch == new.epoch {
            return;
        }
        if old.is(DIRTY) {
            segment.count_clean(loc.offset as usize);
            self.dirty -= 1;
            self.dirty_by_epoch[usize::from(old.epoch)] -= 1;
        }
        if new.is(DIRTY) {
            segment.count_dirty(loc.offset as usize);
            self.dirty += 1;
            self.dirty_by_epoch[usize::from(new.epoch)] += 1;
        }
    }

    fn remove_at(&mut self, id: usize, offset: usize, header: Header) {
        let segment = self.segments[id].as_ref().expect("a segment with a live entry exists");
        let hash = mix((self.hasher)(segment.key(offset, header)), header.state);
        self.remove(hash, loc_at(id, offset), header);
    }

    /// Takes a live entry out of index and arena.
    fn remove(&mut self, hash: u64, loc: Loc, header: Header) {
        let was_there = self.index.remove(hash, loc);
        debug_assert!(was_there, "every live entry is in the index");
        self.rewrite(loc, header, Header { flags: DEAD, ..header });
        self.live_bytes -= header.size();
        let segment = self.segment_mut(loc.segment);
        segment.live -= header.size();
        if segment.live > 0 {
            return;
        }
        if self.cursor.segment == loc.segment as usize {
            self.cursor.offset = 0;
        }
        if self.active == Some(loc.segment) {
            self.segment_mut(loc.segment).reset();
        } else {
            let segment = self.take_segment(loc.segment);
            self.release(loc.segment, segment);
        }
    }
}

fn loc_at(id: usize, offset: usize) -> Loc {
    Loc { segment: id as u32, offset: offset as u32 }
}

#[cfg(test)]
#[path = "hot_tests.rs"]
mod tests;
