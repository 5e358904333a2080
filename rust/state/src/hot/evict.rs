//! How the hot tier stays below its limit.
//!
//! Owns: allocation of segments, compaction, first-in-first-out eviction with a second round.
//! Does not own: the entries' meaning (the parent module).
//!
//! Why it terminates: only segments that are at least a quarter dead are compacted, and entries fill at least seven
//! eighths of a segment, so each compaction frees memory; eviction clears the referenced mark of every entry that it
//! keeps.

use super::arena::{DIRTY, MAX_SEGMENT, Segment, TOMBSTONE};
use super::{EntrySink, HotTier, MAX_SEGMENTS, MIN_SEGMENT, entry_of, loc_at, mix};

impl HotTier {
    /// Size of the next segment: grows with the tier, so that many small shards stay small.
    pub(super) fn segment_size(&self) -> usize {
        let most = usize::try_from(self.limit / 16).unwrap_or(MAX_SEGMENT);
        let size = most.min(self.arena_bytes / 2).clamp(MIN_SEGMENT, MAX_SEGMENT);
        1 << size.ilog2()
    }

    pub(super) fn new_segment(&mut self, size: usize) -> u32 {
        let bytes = match self.spare.take() {
            Some(spare) if spare.len() == size => spare,
            _ => vec![0; size].into_boxed_slice(),
        };
        let serial = self.next_serial;
        self.next_serial += 1;
        self.arena_bytes += size;
        let segment = Some(Segment::new(bytes, serial));
        let id = match self.free.pop() {
            Some(id) => {
                self.segments[id as usize] = segment;
                id
            }
            None => {
                self.segments.push(segment);
                (self.segments.len() - 1) as u32
            }
        };
        if self.order.len() > 64 + 2 * self.segments.len() {
            let segments = &self.segments;
            self.order.retain(|&(id, serial)| is_current(segments, id, serial));
        }
        self.order.push_back((id, serial));
        id
    }

    /// Takes a segment out of the arena; its number stays taken until [`HotTier::release`].
    pub(super) fn take_segment(&mut self, id: u32) -> Segment {
        let segment = self.segments[id as usize].take().expect("only live segments are taken");
        self.arena_bytes -= segment.capacity();
        if self.active == Some(id) {
            self.active = None;
        }
        if self.cursor.segment == id as usize {
            self.cursor.offset = 0;
        }
        segment
    }

    pub(super) fn release(&mut self, id: u32, segment: Segment) {
        self.free.push(id);
        if segment.capacity() == self.segment_size() {
            self.spare = Some(segment.into_bytes());
        }
    }

    /// Gives the spare segment back when it does not fit under the limit.
    pub(super) fn drop_spare(&mut self) {
        if self.bytes() > self.limit {
            self.spare = None;
        }
    }

    /// Compacts and evicts until `want` more bytes fit, or nothing is left.
    pub(super) fn make_room(&mut self, want: usize, sink: &mut dyn EntrySink) {
        while (self.used() + want) as u64 > self.limit || self.segments.len() - self.free.len() >= MAX_SEGMENTS - 2 {
            match self.most_garbage() {
                Some(id) => self.compact(id),
                None => {
                    if !self.evict_oldest(sink) {
                        break;
                    }
                }
            }
            if self.index.bytes() > 64 * self.index.len() + (64 << 10) {
                self.index.shrink();
            }
        }
    }

    /// The segment to compact, if dead space is a quarter of the arena.
    fn most_garbage(&self) -> Option<u32> {
        let unfilled = self.active.map_or(0, |id| self.segment(id).room());
        if (self.arena_bytes - self.live_bytes - unfilled) * 4 < self.arena_bytes {
            return None;
        }
        let garbage = |id: usize| {
            let segment = self.segments[id].as_ref()?;
            let unfilled = if self.active == Some(id as u32) { segment.room() } else { 0 };
            let garbage = segment.garbage() - unfilled;
            (garbage * 4 >= segment.capacity()).then_some((garbage, id as u32))
        };
        (0..self.segments.len()).filter_map(garbage).max().map(|(_, id)| id)
    }

    /// Moves the live entries of a segment to the end.
    fn compact(&mut self, id: u32) {
        let segment = self.take_segment(id);
        self.live_bytes -= segment.live;
        for (offset, header) in segment.entries(0) {
            let key = segment.key(offset, header);
            let hash = mix((self.hasher)(key), header.state);
            self.forget_dirty(header.is(DIRTY), header.epoch);
            let to = self.place(header, key, segment.value(offset, header));
            let was_there = self.index.relocate(hash, loc_at(id as usize, offset), to, true);
            debug_assert!(was_there, "every live entry is in the index");
        }
        self.release(id, segment);
    }

    /// Evicts the oldest segment; false when there is none.
    fn evict_oldest(&mut self, sink: &mut dyn EntrySink) -> bool {
        let Some(id) = self.pop_oldest() else { return false };
        let segment = self.take_segment(id);
        self.live_bytes -= segment.live;
        // At most half of it gets a second round: a step must make room.
        let mut second_round = segment.capacity() / 2;
        for (offset, header) in segment.entries(0) {
            let key = segment.key(offset, header);
            let hash = mix((self.hasher)(key), header.state);
            let from = loc_at(id as usize, offset);
            self.forget_dirty(header.is(DIRTY), header.epoch);
            if header.size() <= second_round && self.index.is_referenced(hash, from) {
                second_round -= header.size();
                let to = self.place(header, key, segment.value(offset, header));
                let was_there = self.index.relocate(hash, from, to, false);
                debug_assert!(was_there, "every live entry is in the index");
                continue;
            }
            let was_there = self.index.remove(hash, from);
            debug_assert!(was_there, "every live entry is in the index");
            self.evicted += 1;
            self.complete &= header.is(TOMBSTONE);
            if header.is(DIRTY) {
                sink.write(entry_of(&segment, offset, header));
            }
        }
        self.release(id, segment);
        true
    }

    /// The oldest segment. One that is a single entry in use is passed over once, without a copy.
    fn pop_oldest(&mut self) -> Option<u32> {
        loop {
            let (id, serial) = self.order.pop_front()?;
            let Some(segment) = self.segments[id as usize].as_ref().filter(|s| s.serial() == serial) else { continue };
            if segment.is_single() {
                let header = segment.header(0);
                let hash = mix((self.hasher)(segment.key(0, header)), header.state);
                let loc = loc_at(id as usize, 0);
                if self.index.is_referenced(hash, loc) {
                    self.index.relocate(hash, loc, loc, false);
                    self.order.push_back((id, serial));
                    continue;
                }
            }
            return Some(id);
        }
    }

    fn forget_dirty(&mut self, dirty: bool, epoch: u8) {
        if dirty {
            self.dirty -= 1;
            self.dirty_by_epoch[usize::from(epoch)] -= 1;
        }
    }
}

fn is_current(segments: &[Option<Segment>], id: u32, serial: u64) -> bool {
    segments[id as usize].as_ref().is_some_and(|s| s.serial() == serial)
}
