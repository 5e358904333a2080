//! Lineage: snapshot and segments of one version, complete.
//!
//! Owns: deriving a handle from its parent, the condition for naming a materialized snapshot, and keeping the handle
//! small.
//! Does not own: reading or writing any object (the caller passes the expanded index), the state itself.
//!
//! Invariants:
//! 1. `segments` holds every change set after `snapshot`, oldest first; `indexed` names an object that lists the first
//!    `indexed.1` of them;
//! 2. a snapshot is taken over only if its version is the live version or one of its ancestors since the last snapshot;
//! 3. after taking a snapshot over, exactly the segments after its `replay_after` remain;
//! 4. the segments of one version are contiguous: it may have several, with no key in common, and is complete with the
//!    last.

use fastchangelog_format::error::{Error, Result};
use fastchangelog_format::model::{ObjectRef, SegmentRef, ShardHandle, SnapshotRef, VersionId};

/// The lineage of a version: a snapshot and the segments after it.
#[derive(Debug, Clone, Default)]
pub struct Lineage {
    /// The materialized snapshot, if any.
    pub snapshot: Option<SnapshotRef>,
    /// The object that lists the first `n` of `segments`.
    pub indexed: Option<(ObjectRef, usize)>,
    /// All segments after the snapshot, oldest first.
    pub segments: Vec<SegmentRef>,
}

impl Lineage {
    /// The lineage of `handle`; `index` is the content of its index object, if it names one.
    pub fn of(handle: &ShardHandle, index: Vec<SegmentRef>) -> Result<Self> {
        if handle.indexed.is_some() == index.is_empty() {
            return Err(Error::internal("a handle's index object and its content do not belong together"));
        }
        let indexed = handle.indexed.clone().map(|object| (object, index.len()));
        let mut segments = index;
        segments.extend(handle.segments.iter().cloned());
        Ok(Self { snapshot: handle.snapshot.clone(), indexed, segments })
    }

    /// Position after the segment of `version`: the number of segments that lead to it. Zero for the snapshot's
    /// version.
    pub fn position(&self, version: VersionId) -> Option<usize> {
        if let Some(i) = self.segments.iter().rposition(|s| s.version == version) {
            return Some(i + 1);
        }
        self.snapshot.as_ref().filter(|b| b.version == version && b.replay_after == version).map(|_| 0)
    }

    /// True if invariant 2 allows to take `snapshot` over.
    pub fn can_take(&self, snapshot: &SnapshotRef) -> bool {
        self.cut(snapshot).is_some()
    }

    /// The number of segments that `snapshot` makes superfluous; none if it cannot be taken over.
    fn cut(&self, snapshot: &SnapshotRef) -> Option<usize> {
        if self.snapshot.as_ref() == Some(snapshot) {
            return None;
        }
        self.position(snapshot.version)?;
        self.position(snapshot.replay_after)
    }

    /// Takes `snapshot` over if invariant 2 allows it; true if it did.
    pub fn rebase(&mut self, snapshot: &SnapshotRef) -> bool {
        let Some(cut) = self.cut(snapshot) else { return false };
        self.segments.drain(..cut);
        self.snapshot = Some(snapshot.clone());
        self.indexed = None;
        true
    }

    /// Segments that no index object lists.
    pub fn segments_outside(&self) -> usize {
        self.segments.len() - self.indexed.as_ref().map_or(0, |(_, n)| *n)
    }

    /// The segments that must move to an index object, if there are more than `cap` outside of one.
    pub fn overflow(&self, cap: usize) -> Option<&[SegmentRef]> {
        (self.segments_outside() > cap).then(|| &self.segments[..self.segments.len() - cap / 2])
    }

    /// Says that `object` lists the first `n` segments.
    pub fn set_index(&mut self, object: ObjectRef, n: usize) {
        self.indexed = Some((object, n));
    }

    /// The parts of a handle: index object and the segments outside of it.
    pub fn handle_parts(&self) -> (Option<ObjectRef>, Vec<SegmentRef>) {
        match &self.indexed {
            Some((object, n)) => (Some(object.clone()), self.segments[*n..].to_vec()),
            None => (None, self.segments.clone()),
        }
    }

    /// How many of the first `n` of `segments` make whole versions: less than `n` if more segments of the last one
    /// follow.
    pub fn whole_versions(segments: &[SegmentRef], n: usize) -> usize {
        match segments.get(n) {
            Some(next) => segments[..n].iter().rposition(|s| s.version != next.version).map_or(0, |i| i + 1),
            None => n,
        }
    }

    /// Bytes of log after the snapshot.
    pub fn log_bytes(&self) -> u64 {
        self.segments.iter().map(|s| s.length).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fastchangelog_format::model::BatchId;

    fn object(name: &str) -> ObjectRef {
        ObjectRef { name: name.to_owned(), size: 1, crc: 0 }
    }

    fn segment(n: u128) -> SegmentRef {
        SegmentRef {
            version: VersionId(n),
            batch: BatchId(0),
            object: object("log"),
            offset: 0,
            length: 10,
            records: 1,
        }
    }

    fn snapshot(version: u128, replay_after: u128) -> SnapshotRef {
        SnapshotRef {
            version: VersionId(version),
            replay_after: VersionId(replay_after),
            manifest: object("base"),
            total_bytes: 0,
        }
    }

    fn versions(lineage: &Lineage) -> Vec<u128> {
        lineage.segments.iter().map(|s| s.version.0).collect()
    }

    #[test]
    fn invariant_3_a_fuzzy_snapshot_keeps_segments_after_its_cut() {
        let mut lineage = Lineage { segments: (1..=5).map(segment).collect(), ..Lineage::default() };
        assert!(lineage.rebase(&snapshot(4, 2)));
        assert_eq!(versions(&lineage), [3, 4, 5]);
    }

    #[test]
    fn invariant_2_a_snapshot_of_another_timeline_is_refused() {
        let mut lineage = Lineage { segments: (1..=5).map(segment).collect(), ..Lineage::default() };
        assert!(!lineage.rebase(&snapshot(9, 2)));
        assert!(!lineage.rebase(&snapshot(4, 9)));
        assert_eq!(versions(&lineage).len(), 5);
    }

    #[test]
    fn invariant_4_a_version_is_complete_with_its_last_segment() {
        let segments: Vec<_> = [1, 2, 2, 2, 3].map(segment).to_vec();
        let whole: Vec<_> = (0..=5).map(|n| Lineage::whole_versions(&segments, n)).collect();
        assert_eq!(whole, [0, 1, 1, 1, 4, 5]);
        let mut lineage = Lineage { segments, ..Lineage::default() };
        assert_eq!([1, 2, 3].map(|n| lineage.position(VersionId(n))), [Some(1), Some(4), Some(5)]);
        assert!(lineage.rebase(&snapshot(3, 2)));
        assert_eq!(versions(&lineage), [3]);
    }

    #[test]
    fn a_handle_stays_small_and_nothing_is_lost_in_the_index() {
        let mut lineage = Lineage::default();
        for n in 0..1000 {
            lineage.segments.push(segment(n));
            if let Some(older) = lineage.overflow(32) {
                let n = older.len();
                lineage.set_index(object("index"), n);
            }
            let (index, outside) = lineage.handle_parts();
            assert!(outside.len() <= 32);
            assert_eq!(index.map_or(0, |_| lineage.indexed.as_ref().unwrap().1) + outside.len(), n as usize + 1);
        }
    }
}
