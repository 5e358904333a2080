//! Writes the dirty entries of the hot tier to disk while changes continue.
//!
//! Owns: the epochs that identify entries dirty at the start of a flush, and the walk in steps.
//! Does not own: eviction, which writes dirty entries too (`evict`).
//!
//! An entry keeps the epoch in which it became dirty when it moves. A flush starts a new epoch and writes all entries
//! of older epochs, so concurrent changes cannot prolong it.

use super::arena::{Header, STORED, Segment, TOMBSTONE};
use super::{EntryRef, EntrySink, HotTier, entry_of, loc_at};

/// The position of the flush walk.
#[derive(Debug, Default)]
pub(super) struct Cursor {
    pub segment: usize,
    pub offset: usize,
}

impl HotTier {
    /// Starts a flush of all entries that are dirty now. Entries that become dirty later are not part of it.
    pub fn begin_flush(&mut self) {
        let next = self.epoch.wrapping_add(1);
        if self.dirty_by_epoch[usize::from(next)] != 0 {
            self.relabel(self.epoch);
        }
        self.epoch = next;
        self.cursor = Cursor::default();
    }

    /// Entries that the flush still has to write.
    pub fn pending(&self) -> u64 {
        self.dirty - self.dirty_by_epoch[usize::from(self.epoch)]
    }

    /// Writes pending entries to the sink, up to about `max_entries` and `max_bytes`, and marks them clean; looks at no
    /// more than `max_entries` pages for them, as those that became dirty since lie between them. When
    /// [`HotTier::pending`] is 0, all that was dirty at [`HotTier::begin_flush`] went through a sink, at that value or
    /// a newer one.
    pub fn flush(&mut self, max_entries: usize, max_bytes: usize, sink: &mut dyn EntrySink) {
        let (mut entries, mut bytes, mut pages) = (0, 0, 0);
        let mut written = Vec::new();
        let segments = self.segments.len();
        // One full round, and the part of the first segment before the start: entries move while a flush is in
        // progress.
        for _ in 0..=segments {
            if self.pending() == 0 || entries >= max_entries || bytes >= max_bytes || pages >= max_entries {
                return;
            }
            let id = self.cursor.segment % segments;
            let from = std::mem::take(&mut self.cursor.offset);
            self.cursor.segment = id + 1;
            let Some(segment) = self.segments[id].as_ref().filter(|s| s.dirty() > 0) else { continue };
            let mut page = None;
            for (offset, header) in segment.dirty_entries(from) {
                pages += usize::from(page.replace(Segment::page_of(offset)) != Some(Segment::page_of(offset)));
                if entries >= max_entries || bytes >= max_bytes || pages > max_entries {
                    self.cursor = Cursor { segment: id, offset };
                    break;
                }
                if header.epoch != self.epoch {
                    sink.write(entry_of(segment, offset, header));
                    written.push((offset, header));
                    entries += 1;
                    bytes += header.size();
                }
            }
            self.mark_clean(id, &mut written);
        }
    }

    /// Writes all dirty entries for which `wanted` says yes to the sink, and marks them clean.
    pub fn flush_matching(&mut self, wanted: &dyn Fn(&EntryRef<'_>) -> bool, sink: &mut dyn EntrySink) {
        let mut written = Vec::new();
        for id in 0..self.segments.len() {
            let Some(segment) = self.segments[id].as_ref().filter(|s| s.dirty() > 0) else { continue };
            for (offset, header) in segment.dirty_entries(0) {
                let entry = entry_of(segment, offset, header);
                if wanted(&entry) {
                    sink.write(entry);
                    written.push((offset, header));
                }
            }
            self.mark_clean(id, &mut written);
        }
    }

    /// Marks a segment's entries clean after a sink took them.
    fn mark_clean(&mut self, id: usize, written: &mut Vec<(usize, Header)>) {
        for (offset, header) in written.drain(..) {
            if header.is(TOMBSTONE) {
                self.remove_at(id, offset, header);
            } else {
                self.rewrite(loc_at(id, offset), header, Header { flags: STORED, ..header });
            }
        }
    }

    /// Gives every dirty entry the same epoch. Needed only after 255 consecutive incomplete flushes.
    fn relabel(&mut self, epoch: u8) {
        for segment in self.segments.iter_mut().flatten() {
            let dirty: Vec<_> = segment.dirty_entries(0).collect();
            for (offset, header) in dirty {
                segment.set_header(offset, Header { epoch, ..header });
            }
        }
        self.dirty_by_epoch.fill(0);
        self.dirty_by_epoch[usize::from(epoch)] = self.dirty;
    }
}
