//! Warm-up: loading entries from disk into the hot tier, at once or in steps that interleave with reads and changes.
//!
//! Owns: the scan of RocksDB, and the decision whether the tier is then complete.
//! Does not own: when it runs (`shard`).
//!
//! Invariants of a [`WarmUp`]:
//! 1. a step loads the entries on disk at that moment, without concurrent changes: an old value never replaces a newer
//!    one;
//! 2. the tier is complete after the last step only if nothing was evicted since the first one.

use super::read_through::ReadThroughBuffer;
use super::{HotKey, HotTier, KeyedState, hash_key, rocks_error, split_key};
use fastchangelog_format::error::Result;
use rocksdb::ReadOptions;

/// Bytes read ahead by a walk over everything, and by one step.
const READ_ALL: usize = 2 << 20;
const READ_STEP: usize = 256 << 10;
/// Entries, and bytes, that are read before they are put into the tier.
const LOADED_AT_ONCE: usize = 256;
const BYTES_AT_ONCE: usize = 64 << 10;

/// Progress of a warm-up.
#[derive(Debug)]
pub struct WarmUp {
    /// The next key to scan, in its form on disk.
    next: Vec<u8>,
    /// Entries that had left the tier when it began.
    evicted: u64,
    loaded: u64,
}

impl WarmUp {
    /// Entries read so far.
    pub fn loaded(&self) -> u64 {
        self.loaded
    }
}

impl KeyedState {
    /// Loads all of RocksDB into the hot tier, if it fits under the hot limit. True when the tier is complete then:
    /// lookups never go to disk until something is evicted.
    pub fn warm_up(&mut self) -> Result<bool> {
        self.check()?;
        if let Some(mut warm) = self.begin_warm_up() {
            self.warm_up_step(&mut warm, usize::MAX)?;
        }
        Ok(self.hot.is_complete())
    }

    /// Starts a warm-up in steps; none if the tier is complete, or cannot become complete.
    pub fn begin_warm_up(&self) -> Option<WarmUp> {
        let keys = self.db.property_int_value("rocksdb.estimate-num-keys").ok().flatten().unwrap_or(0);
        // A guess far above the limit saves the attempt; entries take 32 bytes and more.
        let fits = keys.saturating_mul(32) <= self.hot.limit().saturating_mul(2);
        let warm = WarmUp { next: Vec::new(), evicted: self.hot.evicted(), loaded: 0 };
        (fits && !self.hot.is_complete()).then_some(warm)
    }

    /// Loads up to this many entries. Returns false after the last step: all are loaded, or the tier is full.
    pub fn warm_up_step(&mut self, warm: &mut WarmUp, max_entries: usize) -> Result<bool> {
        self.check()?;
        let mut options = ReadOptions::default();
        options.fill_cache(false);
        options.set_readahead_size(if max_entries == usize::MAX { READ_ALL } else { READ_STEP });
        let mut iterator = self.db.raw_iterator_opt(options);
        iterator.seek(&warm.next);
        let (mut fits, mut left, mut copies) = (true, max_entries.max(1), ReadThroughBuffer::default());
        loop {
            let item = iterator.item();
            if copies.len() == LOADED_AT_ONCE || copies.bytes() >= BYTES_AT_ONCE || left == 0 || item.is_none() {
                fits &= copies.drain(&mut self.hot, HotTier::load);
            }
            let Some((bytes, value)) = item.filter(|_| fits) else { break };
            if left == 0 {
                warm.next = bytes.to_vec();
                self.account.update(&self.hot);
                return Ok(true);
            }
            let (key_group, state, key) = split_key(bytes).inspect_err(|error| drop(self.broken.set(error.clone())))?;
            let key = HotKey { hash: hash_key(key), state, key_group, key };
            if value.len() < BYTES_AT_ONCE {
                copies.push(&key, value);
            } else {
                fits = self.hot.load(&key, value);
            }
            (left, warm.loaded) = (left - 1, warm.loaded + 1);
            iterator.next();
        }
        iterator.status().map_err(|error| self.failed(rocks_error(error)))?;
        self.hot.set_complete(fits && self.hot.evicted() == warm.evicted);
        self.account.update(&self.hot);
        Ok(false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keyed::KeyRef;
    use crate::rocks::SharedResources;
    use fastchangelog_format::model::{Change, ChangeSet, KeyGroup, Op, StateId};
    use fastchangelog_store::budget::MemoryBudget;
    use std::ops::ControlFlow;
    use std::sync::Arc;

    const KEYS: u32 = 5_000;

    fn set(range: std::ops::Range<u32>, value: u8) -> ChangeSet {
        let mut set = ChangeSet::default();
        for i in range {
            let (key, value) = (i.to_be_bytes(), [value; 20]);
            set.push(Change { op: Op::Put, state: StateId(0), key_group: KeyGroup(0), key: &key, value: &value });
        }
        set
    }

    fn value(state: &KeyedState, key: u32) -> Option<u8> {
        let (key, mut found) = (key.to_be_bytes(), None);
        let key = KeyRef { hash: hash_key(&key), key_group: KeyGroup(0), key: &key };
        let mut take = |_, value: Option<&[u8]>| {
            found = value.map(|v| v[0]);
            ControlFlow::Continue(())
        };
        state.get_many(StateId(0), &[key], &mut take).unwrap();
        found
    }

    /// A newly opened state with an empty tier.
    fn cold() -> (tempfile::TempDir, SharedResources, KeyedState) {
        let shared = SharedResources::new(&MemoryBudget::new(256 << 20), Arc::default()).unwrap();
        let root = tempfile::tempdir().unwrap();
        let mut state = KeyedState::create(&root.path().join("a"), &shared).unwrap();
        state.apply(&set(0..KEYS, 1)).unwrap();
        state.begin_flush();
        while state.flush_dirty(usize::MAX).unwrap() {}
        state.checkpoint(&root.path().join("b")).unwrap();
        let state = KeyedState::open(&root.path().join("b"), &shared).unwrap();
        (root, shared, state)
    }

    #[test]
    fn invariant_1_a_change_between_two_steps_stays() {
        let (_root, _shared, mut state) = cold();
        let mut warm = state.begin_warm_up().expect("nothing is loaded");
        assert!(state.warm_up_step(&mut warm, 1000).unwrap());
        // One that was loaded, and one that was not.
        for key in [500, 2_000] {
            state.apply(&set(key..key + 1, 2)).unwrap();
        }
        while state.warm_up_step(&mut warm, 1000).unwrap() {}
        assert!(state.is_complete());
        assert_eq!(
            [499, 500, 2_000, 2_001, KEYS].map(|key| value(&state, key)),
            [Some(1), Some(2), Some(2), Some(1), None]
        );
        assert!(state.begin_warm_up().is_none(), "there is nothing left to load");
    }

    #[test]
    fn invariant_2_a_tier_with_a_loss_is_not_complete() {
        let (_root, _shared, mut state) = cold();
        let mut warm = state.begin_warm_up().expect("nothing is loaded");
        assert!(state.warm_up_step(&mut warm, 4_000).unwrap());
        state.set_hot_limit(50_000).unwrap();
        state.set_hot_limit(16 << 20).unwrap();
        while state.warm_up_step(&mut warm, 1000).unwrap() {}
        assert!(!state.is_complete());
        assert!((0..KEYS).all(|key| value(&state, key) == Some(1)));
        assert!(state.warm_up().unwrap(), "another one can make it so");
    }

    #[test]
    fn entries_of_all_sizes_are_loaded_in_portions_of_all_sizes() {
        let shared = SharedResources::new(&MemoryBudget::new(256 << 20), Arc::default()).unwrap();
        let root = tempfile::tempdir().unwrap();
        let mut state = KeyedState::create(&root.path().join("a"), &shared).unwrap();
        let sizes = |i: u32| match i % 100 {
            17 => BYTES_AT_ONCE + i as usize,
            18 => BYTES_AT_ONCE / 2,
            more => more as usize,
        };
        let mut all = ChangeSet::default();
        for i in 0..1_000u32 {
            let (key, value) = (i.to_be_bytes(), vec![i as u8; sizes(i)]);
            all.push(Change { op: Op::Put, state: StateId(0), key_group: KeyGroup(0), key: &key, value: &value });
        }
        state.apply(&all).unwrap();
        state.begin_flush();
        while state.flush_dirty(usize::MAX).unwrap() {}
        for portion in [1, LOADED_AT_ONCE - 1, LOADED_AT_ONCE, LOADED_AT_ONCE + 1, 999, 1_000, usize::MAX] {
            let folder = root.path().join(portion.to_string());
            state.checkpoint(&folder).unwrap();
            let mut cold = KeyedState::open(&folder, &shared).unwrap();
            let mut warm = cold.begin_warm_up().expect("nothing is loaded");
            while cold.warm_up_step(&mut warm, portion).unwrap() {}
            assert!(cold.is_complete() && warm.loaded() == 1_000, "portions of {portion}");
            let mut found = 0;
            cold.hot
                .for_each(&mut |entry| {
                    let i = u32::from_be_bytes(entry.key.try_into().unwrap());
                    assert_eq!(entry.value, Some(&vec![i as u8; sizes(i)][..]), "key {i} in portions of {portion}");
                    found += 1;
                    Ok(())
                })
                .unwrap();
            assert_eq!(found, 1_000);
        }
    }
}
