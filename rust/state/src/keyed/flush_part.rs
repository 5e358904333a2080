//! A part of a state: a range of keys of one state, in all key groups. Its walk in memory, and its flush.
//!
//! Owns: the list of parts that RocksDB holds unchanged. Does not own: the flush of the whole state, in steps
//! (`keyed`).
//!
//! Where the hot tier holds every key, a walk over the tier finds those of a part, in no order and without any write.
//! An ordered walk needs only its part on disk, not the whole tier: other entries stay dirty, and are written once
//! however often they change. Between two changes entries only become clean, so a flushed part stays flushed until the
//! next change.

use super::KeyedState;
use super::delete_prefix::PASSED;
use crate::hot::EntryRef;
use crate::rocks::DiskSink;
use fastchangelog_columns::typed::successor;
use fastchangelog_format::error::Result;
use fastchangelog_format::model::StateId;

impl KeyedState {
    /// True if RocksDB holds all keys of `part`.
    pub fn is_flushed(&self, part: &StatePart) -> bool {
        self.holds(part.state, &part.from, part.to.as_deref())
    }

    /// Brings all keys of `part` to RocksDB.
    pub fn flush_part(&mut self, part: &StatePart) -> Result<()> {
        self.check()?;
        let mut sink = DiskSink::new(&self.db);
        self.hot.flush_matching(&|entry| part.has(entry.state, entry.key), &mut sink);
        let written = sink.finish();
        self.wrote(written)?;
        self.flushed.push(part.clone());
        Ok(())
    }

    /// Calls `f` with each entry of `part`, in no order. Returns false, without a call, if the hot tier does not hold
    /// every key, or if it holds so many that a flush of the part costs less than a walk.
    pub fn each_in_memory(&self, part: &StatePart, f: &mut dyn FnMut(EntryRef<'_>) -> Result<()>) -> Result<bool> {
        self.check()?;
        if !self.is_complete() || self.hot.len() as u64 > self.hot.dirty().saturating_mul(PASSED) {
            return Ok(false);
        }
        self.hot.for_each(&mut |entry| {
            if entry.value.is_some() && part.has(entry.state, entry.key) { f(entry) } else { Ok(()) }
        })?;
        Ok(true)
    }

    /// True if RocksDB holds all keys of `state` from `from` on, below `to`.
    pub(super) fn holds(&self, state: StateId, from: &[u8], to: Option<&[u8]>) -> bool {
        let covers = |own: &StatePart| {
            own.state == state
                && own.from[..] <= *from
                && own.to.as_deref().is_none_or(|end| to.is_some_and(|to| to <= end))
        };
        self.dirty_entries() == 0 || self.flushed.iter().any(covers)
    }
}

/// A range of keys of one state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StatePart {
    /// The state.
    pub state: StateId,
    /// The first key.
    pub from: Vec<u8>,
    /// The first key after the range; none for all keys from the first on.
    pub to: Option<Vec<u8>>,
}

impl StatePart {
    /// The keys that begin with `prefix`.
    pub fn of_prefix(state: StateId, prefix: &[u8]) -> Self {
        Self { state, from: prefix.to_vec(), to: successor(prefix) }
    }

    fn has(&self, state: StateId, key: &[u8]) -> bool {
        self.state == state && *key >= self.from[..] && self.to.as_deref().is_none_or(|to| key < to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rocks::SharedResources;
    use fastchangelog_format::model::{Change, ChangeSet, KeyGroup, Op};
    use fastchangelog_store::budget::MemoryBudget;
    use std::sync::Arc;

    const GROUPS: [KeyGroup; 2] = [KeyGroup(1), KeyGroup(2)];

    fn set(op: Op, keys: std::ops::Range<u32>) -> ChangeSet {
        let mut set = ChangeSet::default();
        for key_group in GROUPS {
            for state in [StateId(0), StateId(1)] {
                for begin in ["a", "b"] {
                    let value = if op == Op::Put { &b"value"[..] } else { &[] };
                    keys.clone().for_each(|i| {
                        let key = format!("{begin}{i:05}");
                        set.push(Change { op, state, key_group, key: key.as_bytes(), value });
                    });
                }
            }
        }
        set
    }

    fn walk(state: &KeyedState, id: StateId, from: &[u8], to: Option<&[u8]>) -> Result<usize> {
        let mut found = 0;
        for group in GROUPS {
            let mut cursor = state.cursor(id, group, from, to)?;
            while cursor.entry()?.is_some() {
                found += 1;
                cursor.advance();
            }
        }
        Ok(found)
    }

    #[test]
    fn a_part_is_on_disk_and_the_rest_stays_dirty() {
        let root = tempfile::tempdir().unwrap();
        let shared = SharedResources::new(&MemoryBudget::new(256 << 20), Arc::default()).unwrap();
        let mut state = KeyedState::create(&root.path().join("db"), &shared).unwrap();
        let (first, second) = (StateId(0), StateId(1));
        state.apply(&set(Op::Put, 0..3000)).unwrap();
        assert_eq!(state.dirty_entries(), 24_000);
        state.flush_part(&StatePart::of_prefix(first, b"b")).unwrap();
        assert_eq!(state.dirty_entries(), 18_000);
        assert_eq!(walk(&state, first, b"b", Some(b"c")).unwrap(), 6000);
        assert_eq!(walk(&state, first, b"b00001", Some(b"b00003")).unwrap(), 4);
        for (id, from, to) in [
            (first, &b"b"[..], None),
            (first, b"b", Some(&b"d"[..])),
            (first, b"a", Some(b"b")),
            (second, b"b", Some(b"c")),
        ] {
            assert!(walk(&state, id, from, to).is_err(), "{id:?} {from:?} {to:?}");
        }
        let is_flushed = |state: &KeyedState, id, prefix| state.is_flushed(&StatePart::of_prefix(id, prefix));
        assert!(is_flushed(&state, first, b"b") && is_flushed(&state, first, b"b7") && !is_flushed(&state, first, b""));
        state.apply(&set(Op::Delete, 0..1000)).unwrap();
        assert!(!is_flushed(&state, first, b"b"), "a change has come");
        state.begin_flush();
        assert!(state.flush_dirty(10).unwrap());
        state.flush_part(&StatePart::of_prefix(first, b"")).unwrap();
        assert_eq!(walk(&state, first, b"", None).unwrap(), 8000, "also while a flush of everything is under way");
        assert!(!is_flushed(&state, second, b""));
        let middle = StatePart { state: second, from: b"a00500".to_vec(), to: Some(b"b00100".to_vec()) };
        state.flush_part(&middle).unwrap();
        assert!(
            walk(&state, second, b"a00500", Some(b"b00000")).is_ok()
                && walk(&state, second, b"a00499", Some(b"b")).is_err()
        );
        while state.flush_dirty(1000).unwrap() {}
        assert_eq!((state.dirty_entries(), walk(&state, second, b"", None).unwrap()), (0, 8000));
    }
}
