//! What was changed since the last checkpoint, in memory.
//!
//! Owns: the active layer, the frozen ones that checkpoints under way make durable, and reading through them.
//! Does not own: what lies under them (the shard's live version), checkpoints.
//!
//! Invariants of [`Layers`]:
//! 1. a key's newest change hides its older ones, and all hide the live version;
//! 2. what a failed checkpoint froze comes back under what was changed since: nothing is lost;
//! 3. bytes held stay below the limit.

use crate::error::{Error, Result};
use crate::model::StateId;
use std::collections::{BTreeMap, VecDeque};
use std::iter::Peekable;
use std::ops::Bound;
use std::sync::Arc;

/// Bytes of a change beside its key and value: places in the tree, two lengths, two allocations.
const ENTRY_OVERHEAD: u64 = 80;

/// Key to value; none = deleted.
pub(crate) type Entries = BTreeMap<Box<[u8]>, Option<Box<[u8]>>>;

/// Changes of all states.
#[derive(Debug, Default)]
pub(crate) struct Layer {
    pub(crate) states: BTreeMap<StateId, Entries>,
    bytes: u64,
}

impl Layer {
    fn put(&mut self, state: StateId, key: &[u8], value: Option<&[u8]>) {
        let value: Option<Box<[u8]>> = value.map(Into::into);
        let came = cost(key, value.as_deref());
        let gone = match self.states.entry(state).or_default().insert(key.into(), value) {
            Some(old) => cost(key, old.as_deref()),
            None => 0,
        };
        self.bytes = self.bytes + came - gone;
    }

    /// Takes over what is not changed here.
    fn put_under(&mut self, older: &Self) {
        for (state, entries) in &older.states {
            let own = self.states.entry(*state).or_default();
            for (key, value) in entries {
                if !own.contains_key(key) {
                    own.insert(key.clone(), value.clone());
                    self.bytes += cost(key, value.as_deref());
                }
            }
        }
    }
}

fn cost(key: &[u8], value: Option<&[u8]>) -> u64 {
    (key.len() + value.map_or(0, <[u8]>::len)) as u64 + ENTRY_OVERHEAD
}

/// The changes since the last durable checkpoint.
#[derive(Debug)]
pub(crate) struct Layers {
    active: Layer,
    /// Oldest first.
    frozen: VecDeque<Arc<Layer>>,
    limit: u64,
}

/// Changes of one state within some keys, newest layer first.
pub(crate) type Parts<'a> = Vec<Peekable<std::collections::btree_map::Range<'a, Box<[u8]>, Option<Box<[u8]>>>>>;

impl Layers {
    pub(crate) fn new(limit: u64) -> Self {
        Self { active: Layer::default(), frozen: VecDeque::new(), limit }
    }

    /// Bytes held.
    pub(crate) fn bytes(&self) -> u64 {
        self.active.bytes + self.frozen.iter().map(|layer| layer.bytes).sum::<u64>()
    }

    /// Says whether changes of these bytes have room.
    pub(crate) fn check_room(&self, changes: u64, bytes: u64) -> Result<()> {
        let held = self.bytes();
        if held + bytes + changes * ENTRY_OVERHEAD <= self.limit {
            return Ok(());
        }
        let what = format!(
            "{held} of {} bytes for changes since the last checkpoint are taken, {bytes} more were to come; call \
             checkpoint() more often, and put less at once",
            self.limit
        );
        Err(Error::limit(what, "memory_budget"))
    }

    /// Changes a key.
    pub(crate) fn put(&mut self, state: StateId, key: &[u8], value: Option<&[u8]>) {
        self.active.put(state, key, value);
    }

    /// The newest change of a key; none if it was not changed.
    #[expect(clippy::option_option, reason = "not changed, deleted, or set: a change is itself an option")]
    pub(crate) fn get(&self, state: StateId, key: &[u8]) -> Option<Option<&[u8]>> {
        self.newest_first()
            .find_map(|layer| layer.states.get(&state).and_then(|entries| entries.get(key)))
            .map(Option::as_deref)
    }

    /// The changes of a state from `from` on (or after it), below `to`.
    pub(crate) fn range(&self, state: StateId, from: Bound<&[u8]>, to: Option<&[u8]>) -> Parts<'_> {
        let ends = to.map_or(Bound::Unbounded, Bound::Excluded);
        // A tree panics on ranges that end before they begin.
        if let (Bound::Included(from) | Bound::Excluded(from), Some(to)) = (from, to)
            && from >= to
        {
            return Parts::new();
        }
        self.newest_first()
            .filter_map(|layer| layer.states.get(&state))
            .map(|entries| entries.range::<[u8], _>((from, ends)).peekable())
            .collect()
    }

    fn newest_first(&self) -> impl Iterator<Item = &Layer> {
        std::iter::once(&self.active).chain(self.frozen.iter().rev().map(Arc::as_ref))
    }

    /// Ends the active layer, for a checkpoint.
    pub(crate) fn freeze(&mut self) -> Arc<Layer> {
        let layer = Arc::new(std::mem::take(&mut self.active));
        self.frozen.push_back(Arc::clone(&layer));
        layer
    }

    /// The oldest frozen layer is in the live version.
    pub(crate) fn landed(&mut self) {
        self.frozen.pop_front();
    }

    /// The oldest frozen layer did not become durable.
    pub(crate) fn failed(&mut self) {
        let Some(older) = self.frozen.pop_front() else { return };
        match self.frozen.front_mut() {
            Some(next) => {
                // Its own checkpoint waits for this one to end: it sees the layer as it is then.
                let mut joined = Layer { states: next.states.clone(), bytes: next.bytes };
                joined.put_under(&older);
                *next = Arc::new(joined);
            }
            None => self.active.put_under(&older),
        }
    }

    /// The oldest frozen layer: what the next checkpoint makes durable.
    pub(crate) fn oldest(&self) -> Option<Arc<Layer>> {
        self.frozen.front().map(Arc::clone)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: StateId = StateId(3);

    #[test]
    fn invariant_1_the_newest_change_hides_older_ones() {
        let mut layers = Layers::new(1 << 20);
        layers.put(S, b"a", Some(b"1"));
        layers.put(S, b"b", Some(b"1"));
        layers.freeze();
        layers.put(S, b"a", None);
        assert_eq!(layers.get(S, b"a"), Some(None));
        assert_eq!(layers.get(S, b"b"), Some(Some(&b"1"[..])));
        assert_eq!(layers.get(S, b"c"), None);
        assert_eq!(layers.get(StateId(4), b"a"), None);
    }

    #[test]
    fn invariant_2_a_failed_layer_comes_back_under_newer_ones() {
        for more in [false, true] {
            let mut layers = Layers::new(1 << 20);
            layers.put(S, b"a", Some(b"1"));
            layers.put(S, b"b", Some(b"1"));
            layers.freeze();
            layers.put(S, b"a", Some(b"2"));
            if more {
                layers.freeze();
            }
            layers.failed();
            assert_eq!(layers.get(S, b"a"), Some(Some(&b"2"[..])));
            assert_eq!(layers.get(S, b"b"), Some(Some(&b"1"[..])));
            assert_eq!(layers.bytes(), 2 * (2 + ENTRY_OVERHEAD));
            let layer = if more { layers.oldest().unwrap() } else { layers.freeze() };
            assert_eq!(layer.states[&S].len(), 2, "the next checkpoint holds both");
        }
    }

    #[test]
    fn invariant_3_bytes_are_bounded_and_given_back() {
        let mut layers = Layers::new(400);
        for _ in 0..100 {
            layers.check_room(1, 11).unwrap();
            layers.put(S, b"k", Some(&[7; 10]));
        }
        assert_eq!(layers.bytes(), 11 + ENTRY_OVERHEAD);
        let error = layers.check_room(1, 300).unwrap_err();
        assert!(error.message().contains("memory_budget") && error.message().contains("checkpoint()"), "{error}");
        layers.freeze();
        assert_eq!(layers.bytes(), 11 + ENTRY_OVERHEAD, "until it is durable, it is held");
        layers.landed();
        assert_eq!(layers.bytes(), 0);
    }
}
