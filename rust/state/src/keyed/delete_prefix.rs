//! Deletes of prefixes: every key that begins with some bytes, in the hot tier and on disk.
//!
//! Owns: the search in the hot tier, and the range tombstones of RocksDB.
//! Does not own: the order of the other changes of a set (`keyed`), which clears become deletes of prefixes (the
//! producer).
//!
//! The hot tier has no order. A walk over the tier finds its entries of a prefix; so do RocksDB's keys, once dirty
//! entries are on disk. Each change set takes the cheaper path; the cost is about min(tier size, prefix size). A walk
//! over a complete tier also finds out which prefixes the disk may hold: the others need no range tombstone, so that
//! keys that come and go between two snapshots never reach RocksDB.

use super::{FLUSH_BYTES, HotKey, HotTier, KeyedState, hash_key};
use crate::hot::EntryRef;
use crate::rocks::{DiskSink, KEY_PREFIX, after_prefix, delete_prefixes, push_key, rocks_error, split_key};
use fastchangelog_format::error::Result;
use fastchangelog_format::model::{ChangeSet, KeyGroup, Op, StateId};
use rocksdb::{FlushOptions, ReadOptions};
use std::collections::{BTreeSet, HashMap, HashSet};

/// Entries of the hot tier that a walk passes while RocksDB takes, or gives, one.
pub(super) const PASSED: u64 = 32;
/// Range tombstones in RocksDB's write buffer, at most about. Each read of a range there passes all of them and all
/// that they hide; in a table they hide it for little.
const BUFFERED: usize = 32;

/// The prefixes of one state and key group, and their lengths.
type Prefixes<'a> = HashMap<(StateId, KeyGroup), (Vec<usize>, HashSet<&'a [u8]>)>;

impl KeyedState {
    /// Removes the entries from before a set that its prefix deletes cover.
    pub(super) fn delete_prefixes(&mut self, set: &ChangeSet) -> Result<()> {
        let mut disk = BTreeSet::new();
        for c in set.iter().filter(|c| c.op == Op::DeletePrefix) {
            let mut key = Vec::with_capacity(KEY_PREFIX + c.key.len());
            push_key(&mut key, c.key_group, c.state, c.key);
            disk.insert(key);
        }
        let (complete, few_dirty) = (self.is_complete(), self.hot.dirty() <= self.hot.len() as u64 / PASSED);
        if !few_dirty || !self.forget_stored(&disk)? {
            let stored = forget_by_walk(&mut self.hot, set);
            if complete && !few_dirty {
                disk = stored;
            }
        }
        if !self.stored || disk.is_empty() {
            return Ok(());
        }
        let written = delete_prefixes(&self.db, disk.iter());
        self.range_tombstones += disk.len();
        if self.range_tombstones >= BUFFERED && written.is_ok() {
            let mut options = FlushOptions::default();
            options.set_wait(false);
            match self.db.flush_opt(&options) {
                Ok(()) => self.range_tombstones = 0,
                Err(error) => {
                    tracing::warn!(%error, "RocksDB's write buffer keeps deletes of prefixes: scans are slower");
                }
            }
        }
        self.wrote(written)
    }

    /// Removes RocksDB's keys of these prefixes from the hot tier. Returns false, with some keys removed, if a walk is
    /// cheaper.
    fn forget_stored(&mut self, prefixes: &BTreeSet<Vec<u8>>) -> Result<bool> {
        let entries = self.hot.len() as u64;
        // Entries that are only in the tier would be missed.
        self.hot.begin_flush();
        while self.hot.dirty() > 0 {
            let mut sink = DiskSink::new(&self.db);
            self.hot.flush(usize::MAX, FLUSH_BYTES, &mut sink);
            let written = sink.finish();
            self.wrote(written)?;
        }
        let mut left = entries / PASSED;
        for prefix in prefixes {
            let mut options = ReadOptions::default();
            options.fill_cache(false);
            options.set_iterate_upper_bound(after_prefix(prefix));
            let mut iterator = self.db.raw_iterator_opt(options);
            iterator.seek(prefix);
            while let Some(bytes) = iterator.key() {
                if left == 0 {
                    return Ok(false);
                }
                left -= 1;
                let (key_group, state, key) = split_key(bytes).map_err(|error| self.failed(error))?;
                self.hot.forget(&HotKey { hash: hash_key(key), state, key_group, key });
                iterator.next();
            }
            iterator.status().map_err(|error| self.failed(rocks_error(error)))?;
        }
        Ok(true)
    }
}

/// Removes the entries that a set's prefix deletes cover from the hot tier, in one walk for all deletes. Returns RocksDB's
/// prefixes of those that it may hold.
fn forget_by_walk(hot: &mut HotTier, set: &ChangeSet) -> BTreeSet<Vec<u8>> {
    let mut prefixes = Prefixes::new();
    for c in set.iter().filter(|c| c.op == Op::DeletePrefix) {
        let (lengths, keys) = prefixes.entry((c.state, c.key_group)).or_default();
        if keys.insert(c.key) && !lengths.contains(&c.key.len()) {
            lengths.push(c.key.len());
        }
    }
    let mut stored: HashSet<(KeyGroup, StateId, &[u8])> = HashSet::new();
    hot.remove_matching(&mut |entry: &EntryRef<'_>, is_stored| {
        let Some((lengths, keys)) = prefixes.get(&(entry.state, entry.key_group)) else { return false };
        let covering = lengths.iter().find_map(|&n| keys.get(entry.key.get(..n)?).copied());
        if let Some(prefix) = covering.filter(|_| is_stored) {
            stored.insert((entry.key_group, entry.state, prefix));
        }
        covering.is_some()
    });
    stored
        .into_iter()
        .map(|(key_group, state, prefix)| {
            let mut key = Vec::with_capacity(KEY_PREFIX + prefix.len());
            push_key(&mut key, key_group, state, prefix);
            key
        })
        .collect()
}

/// Deletes the set's own puts before its `i`-th change, a prefix delete. Records are grouped by key group.
pub(super) fn delete_earlier(hot: &mut HotTier, set: &ChangeSet, i: usize, sink: &mut DiskSink<'_>) {
    let prefix = set.get(i);
    for j in (0..i).rev() {
        let c = set.get(j);
        if c.key_group != prefix.key_group {
            break;
        }
        if c.op == Op::Put && c.state == prefix.state && c.key.starts_with(prefix.key) {
            hot.delete(&HotKey { hash: hash_key(c.key), state: c.state, key_group: c.key_group, key: c.key }, sink);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rocks::SharedResources;
    use fastchangelog_format::model::Change;
    use fastchangelog_store::budget::MemoryBudget;
    use std::sync::Arc;

    fn change<'a>(op: Op, key: &'a [u8]) -> Change<'a> {
        Change { op, state: StateId(0), key_group: KeyGroup(0), key, value: if op == Op::Put { b"value" } else { &[] } }
    }

    fn puts(prefix: &str, range: std::ops::Range<u32>) -> ChangeSet {
        let mut set = ChangeSet::default();
        range.for_each(|i| set.push(change(Op::Put, format!("{prefix}{i:05}").as_bytes())));
        set
    }

    fn keys(state: &KeyedState) -> BTreeSet<Vec<u8>> {
        let mut keys = BTreeSet::new();
        state
            .for_each(&mut |entry| {
                assert!(keys.insert(entry.key.to_vec()), "every key once");
                Ok(())
            })
            .unwrap();
        keys
    }

    #[test]
    fn both_ways_remove_the_same() {
        let shared = SharedResources::new(&MemoryBudget::new(256 << 20), Arc::default()).unwrap();
        // Keys to clear that are on disk, and that are only in the tier; other keys that are only there; and whether
        // all that is dirty is flushed. Of many keys on disk a part is removed one by one, and the rest by a walk.
        for (cleared, fresh, others, flushed) in
            [(100, 0, 0, true), (100, 50, 20, true), (100, 50, 5_000, false), (9_000, 10, 10, true)]
        {
            let root = tempfile::tempdir().unwrap();
            let mut state = KeyedState::create(&root.path().join("a"), &shared).unwrap();
            state.apply(&puts("a", 0..20_000)).unwrap();
            state.apply(&puts("b", 0..cleared)).unwrap();
            state.begin_flush();
            while state.flush_dirty(usize::MAX).unwrap() {}
            state.apply(&puts("b", cleared..cleared + fresh)).unwrap();
            state.apply(&puts("c", 0..others)).unwrap();
            assert_eq!(state.dirty_entries(), u64::from(fresh + others));
            let mut set = ChangeSet::default();
            set.push(change(Op::DeletePrefix, b"b"));
            set.push(change(Op::Put, b"b00007"));
            state.apply(&set).unwrap();
            assert_eq!(state.dirty_entries(), 1 + if flushed { 0 } else { u64::from(others) });
            let left = 20_000 + others as usize + 1;
            assert_eq!((keys(&state).len(), state.hot.len()), (left, left), "{cleared} {fresh} {others}");
            state.begin_flush();
            while state.flush_dirty(usize::MAX).unwrap() {}
            state.checkpoint(&root.path().join("b")).unwrap();
            let restored = KeyedState::open(&root.path().join("b"), &shared).unwrap();
            assert_eq!(keys(&restored), keys(&state));
        }
    }

    #[test]
    fn keys_that_come_and_go_never_reach_rocksdb() {
        let shared = SharedResources::new(&MemoryBudget::new(256 << 20), Arc::default()).unwrap();
        let root = tempfile::tempdir().unwrap();
        let mut state = KeyedState::create(&root.path().join("a"), &shared).unwrap();
        let clear = |prefix: &str| {
            let mut set = ChangeSet::default();
            set.push(change(Op::DeletePrefix, prefix.as_bytes()));
            set
        };
        let written = || shared.metrics().rocksdb_writes.get();
        state.apply(&puts("a", 0..100)).unwrap();
        state.begin_flush();
        while state.flush_dirty(usize::MAX).unwrap() {}
        assert_eq!(written(), 100);
        for _ in 0..3 {
            state.apply(&puts("b", 0..1000)).unwrap();
            state.apply(&clear("b")).unwrap();
        }
        assert_eq!((written(), keys(&state).len()), (100, 100));
        state.apply(&puts("b", 0..1000)).unwrap();
        state.apply(&clear("a")).unwrap();
        assert_eq!(
            (written(), keys(&state).len()),
            (101, 1000),
            "the disk holds a's keys until they are deleted there"
        );
        state.begin_flush();
        while state.flush_dirty(usize::MAX).unwrap() {}
        state.checkpoint(&root.path().join("b")).unwrap();
        assert_eq!(keys(&KeyedState::open(&root.path().join("b"), &shared).unwrap()), keys(&state));
    }
}
