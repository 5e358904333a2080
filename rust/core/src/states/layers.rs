//! What was changed and is in no version yet, in memory.
//!
//! Owns: the active layer, the frozen ones that are being made durable, and reading through them.
//! Does not own: what lies under them (`under`), checkpoints and commits.
//!
//! Invariants of [`Layers`]:
//! 1. a key's newest change hides its older ones, and all hide the live version; a clear is a change of all keys that
//!    begin with its prefix;
//! 2. the layer of a failed checkpoint is merged under the later changes: nothing is lost;
//! 3. bytes held stay below the limit;
//! 4. what is written and ends leaves room for as many removals, which nothing else takes before the layer is frozen.

use super::Place;
use super::entries::{Entries, LANE, Range, hashes};
use fastchangelog_columns::codec::hash_key;
use fastchangelog_format::error::{Error, Result, Subject};
use fastchangelog_format::model::StateId;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::iter::Peekable;
use std::ops::Bound;
use std::sync::Arc;

/// Bytes of a change beside its key and value: its slot, its place in the index, and what grows in steps has in reserve.
const ENTRY_OVERHEAD: u64 = 80;

/// Of all room (1/n), what changes may take after removals for which none was kept.
const MOST_REMOVED: u64 = 2;

/// Changes of all states and key groups.
#[derive(Debug, Clone, Default)]
pub(crate) struct Layer {
    pub(crate) places: BTreeMap<Place, Entries>,
}

impl Layer {
    /// Bytes held.
    pub(crate) fn bytes(&self) -> u64 {
        let overhead = |entries: &Entries| ENTRY_OVERHEAD * (entries.len() + entries.clears().len()) as u64;
        self.places.values().map(|entries| entries.held() + overhead(entries)).sum()
    }

    /// True if keys were cleared.
    pub(crate) fn has_clears(&self) -> bool {
        self.places.values().any(|entries| entries.clears().len() > 0)
    }

    /// The states of which keys were cleared.
    pub(crate) fn cleared_states(&self) -> BTreeSet<StateId> {
        let cleared = self.places.iter().filter(|(_, entries)| entries.clears().len() > 0);
        cleared.map(|((state, _), _)| *state).collect()
    }

    /// Takes over what is not changed here.
    fn put_under(&mut self, older: &Self) {
        for (place, entries) in &older.places {
            self.places.entry(*place).or_default().put_under(entries);
        }
    }
}

/// The changes since the last durable checkpoint, or of a session.
#[derive(Debug)]
pub(crate) struct Layers {
    active: Layer,
    /// Oldest first.
    frozen: VecDeque<Arc<Layer>>,
    /// The oldest frozen layer is durable, and is being applied to the live version.
    applying: bool,
    limit: u64,
    /// Room for the removal of entries that end, as much as such entries were written to the active layer.
    owed: u64,
}

/// Changes of one state and key group within some keys, in order of keys.
pub(crate) struct LayerRanges<'a> {
    /// Newest layer first.
    parts: Vec<(Peekable<Range<'a>>, &'a Entries)>,
}

impl<'a> LayerRanges<'a> {
    /// The next key that has an entry.
    pub(crate) fn key(&mut self) -> Option<&'a [u8]> {
        self.parts.iter_mut().filter_map(|(range, _)| range.peek().map(|(key, _)| &***key)).min()
    }

    /// Takes the entries of the next key: its value, none if it is deleted.
    pub(crate) fn take(&mut self, key: &[u8]) -> Option<&'a [u8]> {
        let mut newest = None;
        for (range, entries) in &mut self.parts {
            let change = match range.next_if(|(next, _)| ***next == *key) {
                Some((_, value)) => Some(value),
                None => entries.cleared_with(key).map(|_| None),
            };
            newest = newest.or(change);
        }
        newest.flatten()
    }

    /// The prefix of a key that was cleared.
    pub(crate) fn cleared_with(&self, key: &[u8]) -> Option<&'a [u8]> {
        self.parts.iter().find_map(|(_, entries)| entries.cleared_with(key))
    }
}

impl Layers {
    pub(crate) fn new(limit: u64) -> Self {
        Self { active: Layer::default(), frozen: VecDeque::new(), applying: false, limit, owed: 0 }
    }

    /// Bytes held.
    pub(crate) fn bytes(&self) -> u64 {
        self.newest_first().map(Layer::bytes).sum()
    }

    /// Of these, the bytes that no checkpoint holds.
    pub(crate) fn unsaved_bytes(&self) -> u64 {
        let saved = self.frozen.front().filter(|_| self.applying);
        self.bytes() - saved.map_or(0, |layer| layer.bytes())
    }

    /// True between [`Self::saved`] and [`Self::mark_applied`]: less memory will be held soon.
    pub(crate) fn is_applying(&self) -> bool {
        self.applying
    }

    /// Checks that changes of these bytes fit.
    pub(crate) fn check_space(&self, changes: u64, bytes: u64) -> Result<()> {
        let held = self.bytes() + self.owed;
        if held + bytes + changes * ENTRY_OVERHEAD <= self.limit {
            return Ok(());
        }
        let needed = bytes + changes * ENTRY_OVERHEAD;
        if needed > self.limit {
            let what = format!(
                "changes of {needed} bytes at once can never fit: those since the last checkpoint may take {} bytes, a part of the \
                 option `memory_budget`",
                self.limit
            );
            let remedy = "raise that option, or put less at once";
            return Err(Error::invalid(what)
                .with_subject(Subject::Option("memory_budget".to_owned()))
                .with_remedy(remedy));
        }
        let what = format!(
            "{held} of {} bytes for changes since the last checkpoint are taken, {bytes} more were to come; call \
             checkpoint() more often, and put less at once",
            self.limit
        );
        Err(Error::limit(what, "memory_budget"))
    }

    /// The same of entries that end, whose keys have so many bytes: there must be room for their removal, too.
    pub(crate) fn check_space_of_ending(&self, changes: u64, bytes: u64, keys: u64) -> Result<()> {
        self.check_space(2 * changes, bytes + keys)
    }

    /// Keeps room for the removal of so many entries, after [`Self::check_space_of_ending`].
    pub(crate) fn owe_removal(&mut self, entries: u64, keys: u64) {
        self.owed += entries * ENTRY_OVERHEAD + keys;
    }

    /// Takes room for removals of these bytes; false if there is none. More than what was kept may take the first half of all room
    /// only: after a removal of very many there is room for changes while their checkpoint is made.
    pub(crate) fn take_room_to_remove(&mut self, changes: u64, bytes: u64) -> bool {
        let (held, needed) = (self.bytes(), bytes + changes * ENTRY_OVERHEAD);
        // What was kept is there, whatever the memory of changes has in reserve by now.
        let fits = needed <= self.owed || held + self.owed + needed <= self.limit / MOST_REMOVED;
        if fits {
            self.owed = self.owed.saturating_sub(needed);
        }
        fits
    }

    /// Changes a key.
    pub(crate) fn put(&mut self, place: Place, key: &[u8], value: Option<&[u8]>) {
        self.active.places.entry(place).or_default().put(hash_key(key), key, value);
    }

    /// Changes keys, one after the other; faster than one by one.
    pub(crate) fn put_all<'a>(
        &mut self,
        place: Place,
        keys: usize,
        key: impl Fn(usize) -> &'a [u8],
        value: impl Fn(usize) -> Option<&'a [u8]>,
    ) {
        let entries = self.active.places.entry(place).or_default();
        for from in (0..keys).step_by(LANE) {
            let lane = from..keys.min(from + LANE);
            let hashes = hashes(lane.clone().map(&key));
            entries.prefetch(&hashes[..lane.len()]);
            for (i, hash) in lane.zip(hashes) {
                entries.put(hash, key(i), value(i));
            }
        }
    }

    /// Removes all keys that begin with one of `prefixes`: a change for each prefix, however many keys have it.
    pub(crate) fn clear<'a>(&mut self, place: Place, prefixes: impl Iterator<Item = &'a [u8]>) {
        self.active.places.entry(place).or_default().clear(prefixes);
    }

    /// The newest change of a key with this hash; none if it was not changed.
    #[expect(clippy::option_option, reason = "not changed, deleted, or set: a change is itself an option")]
    pub(crate) fn get(&self, place: Place, hash: u64, key: &[u8]) -> Option<Option<&[u8]>> {
        self.newest_first().find_map(|layer| layer.places.get(&place)?.get(hash, key))
    }

    /// Prefetches the memory of keys with these hashes; at most [`LANE`] of them.
    pub(crate) fn prefetch(&self, place: Place, hashes: &[u64]) {
        self.newest_first().filter_map(|layer| layer.places.get(&place)).for_each(|entries| entries.prefetch(hashes));
    }

    /// The changes of a place from the key `from` on (or after it), below `to`.
    pub(crate) fn range(&self, place: Place, from: Bound<&[u8]>, to: Option<&[u8]>) -> LayerRanges<'_> {
        let ends = to.map_or(Bound::Unbounded, Bound::Excluded);
        // A tree panics on ranges that end before they begin.
        if let (Bound::Included(from) | Bound::Excluded(from), Some(to)) = (from, to)
            && from >= to
        {
            return LayerRanges { parts: Vec::new() };
        }
        let changed = self.newest_first().filter_map(|layer| layer.places.get(&place));
        LayerRanges { parts: changed.map(|entries| (entries.range(from, ends).peekable(), entries)).collect() }
    }

    fn newest_first(&self) -> impl Iterator<Item = &Layer> {
        std::iter::once(&self.active).chain(self.frozen.iter().rev().map(Arc::as_ref))
    }

    /// The changes since the last layer ended.
    pub(crate) fn active(&self) -> &Layer {
        &self.active
    }

    /// Ends the active layer, for a checkpoint.
    pub(crate) fn freeze(&mut self) -> Arc<Layer> {
        let layer = Arc::new(std::mem::take(&mut self.active));
        self.owed = 0;
        self.frozen.push_back(Arc::clone(&layer));
        layer
    }

    /// The oldest frozen layer is durable.
    pub(crate) fn mark_durable(&mut self) {
        self.applying = true;
    }

    /// The oldest frozen layer is in the live version. It is returned, because freeing its memory takes long.
    pub(crate) fn mark_applied(&mut self) -> Option<Arc<Layer>> {
        self.applying = false;
        self.frozen.pop_front()
    }

    /// The oldest frozen layer did not become durable.
    pub(crate) fn failed(&mut self) -> Option<Arc<Layer>> {
        let older = self.frozen.pop_front()?;
        match self.frozen.front_mut() {
            // Its own checkpoint waits for this one to end: it sees the layer as it is then.
            Some(next) => Arc::make_mut(next).put_under(&older),
            None => self.active.put_under(&older),
        }
        Some(older)
    }

    /// The oldest frozen layer: what the next checkpoint makes durable.
    pub(crate) fn oldest(&self) -> Option<Arc<Layer>> {
        self.frozen.front().map(Arc::clone)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fastchangelog_format::error::ErrorKind;
    use fastchangelog_format::model::KeyGroup;

    const S: Place = (StateId(3), KeyGroup(5));
    /// Other places.
    const OTHERS: [Place; 2] = [(StateId(4), KeyGroup(5)), (StateId(3), KeyGroup(6))];

    #[expect(clippy::option_option, reason = "as in Layers")]
    fn get<'a>(layers: &'a Layers, key: &[u8]) -> Option<Option<&'a [u8]>> {
        layers.get(S, hash_key(key), key)
    }

    #[test]
    fn invariant_1_the_newest_change_hides_older_ones() {
        let mut layers = Layers::new(1 << 20);
        layers.put(S, b"a", Some(b"1"));
        layers.put(S, b"b", Some(b"1"));
        layers.freeze();
        layers.put(S, b"a", None);
        assert_eq!(get(&layers, b"a"), Some(None));
        assert_eq!(get(&layers, b"b"), Some(Some(&b"1"[..])));
        assert_eq!(get(&layers, b"c"), None);
        assert_eq!(OTHERS.map(|place| layers.get(place, hash_key(b"a"), b"a")), [None, None]);
    }

    #[test]
    fn invariant_1_a_clear_is_a_change_of_all_keys_with_its_prefix() {
        let mut layers = Layers::new(1 << 20);
        for key in [b"a1", b"a2", b"b1"] {
            layers.put(S, key, Some(b"1"));
        }
        layers.freeze();
        layers.clear(S, [&b"a"[..]].into_iter());
        layers.put(S, b"a2", Some(b"2"));
        OTHERS.into_iter().for_each(|place| layers.put(place, b"a1", Some(b"3")));
        assert_eq!(get(&layers, b"a1"), Some(None));
        assert_eq!(get(&layers, b"a2"), Some(Some(&b"2"[..])));
        assert_eq!(get(&layers, b"a3"), Some(None), "of the live version, too");
        assert_eq!((get(&layers, b"b1"), get(&layers, b"b2")), (Some(Some(&b"1"[..])), None));
        assert_eq!(OTHERS.map(|place| layers.get(place, hash_key(b"a1"), b"a1")), [Some(Some(&b"3"[..])); 2]);
        let mut changes = layers.range(S, Bound::Unbounded, None);
        let mut found = Vec::new();
        while let Some(key) = changes.key() {
            found.push((key, changes.take(key)));
        }
        assert_eq!(found, [(&b"a1"[..], None), (b"a2", Some(&b"2"[..])), (b"b1", Some(b"1"))]);
        let changes = layers.range(S, Bound::Excluded(b"b"), None);
        assert_eq!((changes.cleared_with(b"a9"), changes.cleared_with(b"b9")), (Some(&b"a"[..]), None));
    }

    #[test]
    fn invariant_2_a_failed_clear_comes_back_under_newer_changes() {
        for more in [false, true] {
            let mut layers = Layers::new(1 << 20);
            layers.clear(S, [&b"a"[..]].into_iter());
            layers.put(S, b"a1", Some(b"1"));
            layers.put(S, b"b1", Some(b"1"));
            layers.freeze();
            layers.clear(S, [&b"b"[..]].into_iter());
            layers.put(S, b"a2", Some(b"2"));
            if more {
                layers.freeze();
            }
            layers.failed();
            let found = [b"a1", b"a2", b"a3", b"b1", b"c1"].map(|key| get(&layers, key));
            assert_eq!(found, [Some(Some(&b"1"[..])), Some(Some(b"2")), Some(None), Some(None), None]);
            let layer = if more { layers.oldest().unwrap() } else { layers.freeze() };
            assert!(layer.has_clears());
            assert_eq!((layer.places[&S].len(), layer.places[&S].clears().len()), (2, 2));
        }
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
            assert_eq!(get(&layers, b"a"), Some(Some(&b"2"[..])));
            assert_eq!(get(&layers, b"b"), Some(Some(&b"1"[..])));
            assert_eq!(layers.bytes(), 2 * (2 + ENTRY_OVERHEAD));
            let layer = if more { layers.oldest().unwrap() } else { layers.freeze() };
            assert_eq!(layer.places[&S].len(), 2, "the next checkpoint holds both");
        }
    }

    #[test]
    fn invariant_4_what_ends_leaves_room_for_its_removal() {
        let mut layers = Layers::new(20 * (ENTRY_OVERHEAD + 10));
        let mut written = 0_u8;
        while layers.check_space_of_ending(1, 10, 2).is_ok() {
            layers.put(S, &[7, written], Some(&[7; 8]));
            layers.owe_removal(1, 2);
            written += 1;
        }
        assert!((10..=11).contains(&written), "{written}: half is for the removals");
        assert!(layers.check_space(2, 20).is_err(), "and nothing else takes it");
        for removed in 0..written {
            assert!(layers.take_room_to_remove(1, 2));
            layers.put(S, &[8, removed], None);
        }
        assert!(!layers.take_room_to_remove(1, 2));
        layers.freeze();
        layers.mark_durable();
        layers.mark_applied();
        layers.check_space(20, 200).unwrap();
        let removed = (0..20).take_while(|key| {
            layers.put(S, &[9, *key], None);
            layers.take_room_to_remove(1, 2)
        });
        assert!((9..=10).contains(&removed.count()), "what has ended long ago leaves room for changes");
    }

    #[test]
    fn invariant_3_bytes_are_bounded_and_given_back() {
        let mut layers = Layers::new(400);
        for _ in 0..100 {
            layers.check_space(1, 11).unwrap();
            layers.put(S, b"k", Some(&[7; 10]));
        }
        assert_eq!(layers.bytes(), 11 + ENTRY_OVERHEAD);
        let error = layers.check_space(1, 400).unwrap_err();
        assert!(error.kind() == ErrorKind::InvalidArgument && error.message().contains("480 bytes at once"), "{error}");
        let error = layers.check_space(1, 300).unwrap_err();
        assert!(error.is_retryable(), "a checkpoint makes room for it");
        assert!(error.message().contains("memory_budget") && error.message().contains("checkpoint()"), "{error}");
        layers.freeze();
        assert_eq!(layers.unsaved_bytes(), 11 + ENTRY_OVERHEAD);
        layers.put(S, b"k", Some(&[7; 9]));
        layers.mark_durable();
        assert!(layers.is_applying());
        assert_eq!(layers.bytes(), 21 + 2 * ENTRY_OVERHEAD, "until it is in the live version, it is held");
        assert_eq!(layers.unsaved_bytes(), 10 + ENTRY_OVERHEAD);
        layers.mark_applied();
        assert!(!layers.is_applying());
        assert_eq!((layers.bytes(), layers.unsaved_bytes()), (10 + ENTRY_OVERHEAD, 10 + ENTRY_OVERHEAD));
    }
}
