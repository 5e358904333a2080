//! Keys in their order, without a flush.
//!
//! Owns: a lower bound of the keys of a state from some key on, and walks over the keys on disk.
//! Does not own: reading all keys in their order (`scan`).

use super::{Cursor, KeyedState};
use crate::hot::{HotKey, Lookup};
use fastchangelog_columns::codec::hash_key;
use fastchangelog_format::error::Result;
use fastchangelog_format::model::{KeyGroup, KeyGroupRange, StateId};

impl KeyedState {
    /// A bound that no key of `state` from `from` on, in the key groups `groups`, is below; none if there are no such
    /// keys. It is the first of them, or one that was deleted and is still on disk. Walks through the hot tier once.
    pub fn bound_from(&self, state: StateId, groups: KeyGroupRange, from: &[u8]) -> Result<Option<Vec<u8>>> {
        self.check()?;
        let mut first: Option<Vec<u8>> = None;
        let mut consider = |key: &[u8]| {
            if key >= from && first.as_deref().is_none_or(|first| key < first) {
                first = Some(key.to_vec());
            }
        };
        self.hot.for_each(&mut |entry| {
            if entry.state == state && entry.value.is_some() {
                consider(entry.key);
            }
            Ok(())
        })?;
        if self.stored && !self.hot.is_complete() {
            for group in groups.start..groups.end {
                if let Some(key) = self.first_on_disk(state, group, from)? {
                    consider(&key);
                }
            }
        }
        Ok(first)
    }

    fn first_on_disk(&self, state: StateId, group: u16, from: &[u8]) -> Result<Option<Vec<u8>>> {
        let cursor = Cursor::new((&self.db, &self.broken), state, KeyGroup(group), from, None);
        Ok(cursor.entry()?.map(|(key, _)| key.to_vec()))
    }

    /// Passes at most `most` keys of `state` in `group` that are on disk, from `from` on, in their order; `pass` gets
    /// those that are not deleted with their newest values. Returns the next key on disk; none after the last one.
    pub fn pass_newest(
        &self,
        state: StateId,
        group: KeyGroup,
        from: &[u8],
        most: usize,
        pass: &mut dyn FnMut(&[u8], &[u8]) -> Result<()>,
    ) -> Result<Option<Vec<u8>>> {
        self.check()?;
        let mut cursor = Cursor::new((&self.db, &self.broken), state, group, from, None);
        for _ in 0..most {
            let Some((key, value)) = cursor.entry()? else { return Ok(None) };
            match self.hot.peek(&HotKey { hash: hash_key(key), state, key_group: group, key }) {
                Lookup::Miss => pass(key, value)?,
                Lookup::Value(newer) => pass(key, newer)?,
                Lookup::Deleted => {}
            }
            cursor.advance();
        }
        Ok(cursor.entry()?.map(|(key, _)| key.to_vec()))
    }

    /// Number of entries in the hot tier.
    pub fn hot_entries(&self) -> usize {
        self.hot.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rocks::SharedResources;
    use fastchangelog_format::model::{Change, ChangeSet, KeyGroup, Op};
    use fastchangelog_store::budget::MemoryBudget;
    use std::sync::Arc;

    fn put(state: &mut KeyedState, op: Op, group: u16, key: &[u8]) {
        let value = if op == Op::Put { &b"v"[..] } else { &[] };
        let mut set = ChangeSet::default();
        set.push(Change { op, state: StateId(0), key_group: KeyGroup(group), key, value });
        state.apply(&set).unwrap();
    }

    #[test]
    fn the_first_key_is_found_in_memory_and_on_disk() {
        let root = tempfile::tempdir().unwrap();
        let shared = SharedResources::new(&MemoryBudget::new(256 << 20), Arc::default()).unwrap();
        let mut state = KeyedState::create(&root.path().join("a"), &shared).unwrap();
        let groups = KeyGroupRange { start: 3, end: 5 };
        let first = |state: &KeyedState, from: &[u8]| state.bound_from(StateId(0), groups, from).unwrap();
        assert_eq!(first(&state, b""), None);
        put(&mut state, Op::Put, 4, b"b");
        put(&mut state, Op::Put, 3, b"d");
        assert_eq!((first(&state, b"").as_deref(), first(&state, b"c").as_deref()), (Some(&b"b"[..]), Some(&b"d"[..])));
        state.begin_flush();
        while state.flush_dirty(usize::MAX).unwrap() {}
        state.checkpoint(&root.path().join("b")).unwrap();
        let mut state = KeyedState::open(&root.path().join("b"), &shared).unwrap();
        assert_eq!((first(&state, b"b").as_deref(), first(&state, b"e")), (Some(&b"b"[..]), None));
        put(&mut state, Op::Put, 4, b"a");
        put(&mut state, Op::DeletePrefix, 4, b"b");
        assert_eq!((first(&state, b"").as_deref(), first(&state, b"b").as_deref()), (Some(&b"a"[..]), Some(&b"d"[..])));
    }
}
