//! Changes that no version holds yet.
//!
//! Owns: the active layer, the frozen ones that are being made durable, the changes that moved to the local disk, and reading
//! through the layers in memory.
//! Does not own: the form of changes on the local disk (`spilled`), reading them over the live version (`under`), checkpoints
//! and commits.
//!
//! Invariants of [`Layers`]:
//! 1. a key's newest change hides its older ones, and all hide the live version; a clear is a change of all keys that
//!    begin with its prefix;
//! 2. the layer of a failed checkpoint is merged under the later changes: nothing is lost;
//! 3. spilled changes are older than all layers in memory, and belong to the oldest of these: a checkpoint has both;
//! 4. a spill that fails loses nothing, or every later call fails: never is a part of the changes missing.

use super::Place;
use super::entries::{Entries, LANE, Range, hashes};
use super::layer::{ENTRY_OVERHEAD, Layer};
use super::spilled::SpilledChanges;
use super::under::Under;
use fastchangelog_columns::codec::hash_key;
use fastchangelog_format::error::{Error, Result};
use fastchangelog_state::keyed::KeyedState;
use fastchangelog_state::rocks::SharedResources;
use std::collections::VecDeque;
use std::iter::Peekable;
use std::ops::Bound;
use std::path::Path;
use std::sync::Arc;

/// The changes since the last durable checkpoint, or of a session.
#[derive(Debug)]
pub(crate) struct Layers {
    active: Layer,
    /// Oldest first.
    frozen: VecDeque<Arc<Layer>>,
    /// The oldest frozen layer is durable, and is being applied to the live version.
    applying: bool,
    limit: u64,
    /// Changes on the local disk. They are older than all layers in memory, and belong to the oldest of these.
    spilled: Option<Arc<SpilledChanges>>,
    spilled_bytes: u64,
    /// Why spilled changes cannot be read any more.
    lost: Option<Error>,
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
        Self {
            active: Layer::default(),
            frozen: VecDeque::new(),
            applying: false,
            limit,
            spilled: None,
            spilled_bytes: 0,
            lost: None,
        }
    }

    /// A copy of changes that are all in the active layer.
    pub(crate) fn copy(&self) -> Result<Self> {
        if !self.frozen.is_empty() || self.has_spilled() {
            return Err(Error::internal("changes are copied while a part of them is not in the active layer"));
        }
        Ok(Self { active: self.active.clone(), ..Self::new(self.limit) })
    }

    /// Bytes held.
    pub(crate) fn bytes(&self) -> u64 {
        self.newest_first().map(Layer::bytes).sum()
    }

    /// Of these, the bytes that no checkpoint holds.
    pub(crate) fn unsaved_memory(&self) -> u64 {
        let saved = self.frozen.front().filter(|_| self.applying);
        self.bytes() - saved.map_or(0, |layer| layer.bytes())
    }

    /// Bytes that no checkpoint holds, in memory and on the local disk.
    pub(crate) fn unsaved_bytes(&self) -> u64 {
        self.unsaved_memory() + if self.applying { 0 } else { self.spilled_bytes }
    }

    /// True if changes of these bytes fit into memory.
    pub(crate) fn has_room(&self, changes: u64, bytes: u64) -> bool {
        let held = self.bytes();
        held == 0 || held + bytes + changes * ENTRY_OVERHEAD <= self.limit
    }

    /// True if the active layer may move to the local disk. Spilled changes lie under all layers in memory, so that none may
    /// be frozen; and a checkpoint that reads the spilled changes must have ended.
    pub(crate) fn can_spill(&self) -> bool {
        self.frozen.is_empty() && self.spilled.as_ref().is_none_or(|spilled| Arc::strong_count(spilled) == 1)
    }

    /// Moves the active layer to the local disk, into a folder of its own in `dir`; see [`Self::can_spill`]. Returns the
    /// bytes that were written.
    pub(crate) fn spill(&mut self, dir: &Path, resources: &SharedResources) -> Result<u64> {
        let layer = Arc::new(std::mem::take(&mut self.active));
        let written = self.spill_layer(&layer, dir, resources);
        if written.is_err() {
            // It hides whatever part of it was written.
            self.active = Arc::unwrap_or_clone(layer);
        }
        written
    }

    fn spill_layer(&mut self, layer: &Layer, dir: &Path, resources: &SharedResources) -> Result<u64> {
        self.check()?;
        if let Some(spilled) = &mut self.spilled {
            let spilled =
                Arc::get_mut(spilled).ok_or_else(|| Error::internal("changes are spilled while they are read"))?;
            let written = spilled.take_over(layer).inspect_err(|error| self.lost = Some(lost(error)))?;
            self.spilled_bytes += written;
            return Ok(written);
        }
        let mut spilled = SpilledChanges::create(dir, resources)?;
        self.spilled_bytes = spilled.take_over(layer)?;
        self.spilled = Some(Arc::new(spilled));
        Ok(self.spilled_bytes)
    }

    /// Fails once spilled changes are lost: the local disk failed when others were to follow them.
    pub(crate) fn check(&self) -> Result<()> {
        self.lost.clone().map_or(Ok(()), Err)
    }

    /// Bytes of memory that changes may take.
    pub(crate) fn limit(&self) -> u64 {
        self.limit
    }

    /// Lets changes take so many bytes of memory.
    #[cfg(test)]
    pub(crate) fn set_limit(&mut self, bytes: u64) {
        self.limit = bytes;
    }

    /// True if changes are on the local disk.
    pub(crate) fn has_spilled(&self) -> bool {
        self.spilled.is_some()
    }

    /// Memory of the spilled changes.
    pub(crate) fn spilled_memory(&self) -> u64 {
        self.spilled.as_ref().map_or(0, |spilled| spilled.memory_bytes())
    }

    /// The spilled changes: their owner is the caller from now on.
    pub(crate) fn take_spilled(&mut self) -> Option<Arc<SpilledChanges>> {
        self.spilled_bytes = 0;
        self.spilled.take()
    }

    /// What lies under the layers in memory, with this live version.
    pub(crate) fn over<'a>(&'a self, live: Option<&'a KeyedState>) -> Under<'a> {
        Under { spilled: self.spilled.as_deref(), live }
    }

    /// Changes a key.
    pub(crate) fn put(&mut self, place: Place, key: &[u8], value: Option<&[u8]>) {
        self.active.places.entry(place).or_default().put(hash_key(key), key, value);
    }

    /// Changes keys, one after the other; faster than one by one. Each value has the bytes of `prefix` in front.
    pub(crate) fn put_all<'a>(
        &mut self,
        place: Place,
        keys: usize,
        key: impl Fn(usize) -> &'a [u8],
        prefix: &[u8],
        value: impl Fn(usize) -> Option<&'a [u8]>,
    ) {
        let entries = self.active.places.entry(place).or_default();
        for from in (0..keys).step_by(LANE) {
            let lane = from..keys.min(from + LANE);
            let hashes = hashes(lane.clone().map(&key));
            entries.prefetch(&hashes[..lane.len()]);
            for (i, hash) in lane.zip(hashes) {
                entries.put_parts(hash, key(i), value(i).map(|value| [prefix, value]));
            }
        }
    }

    /// Changes a key to a value with the bytes of `prefix` in front.
    pub(crate) fn put_behind(&mut self, place: Place, key: &[u8], prefix: &[u8], value: Option<&[u8]>) {
        let entries = self.active.places.entry(place).or_default();
        entries.put_parts(hash_key(key), key, value.map(|value| [prefix, value]));
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
        self.frozen.push_back(Arc::clone(&layer));
        layer
    }

    /// The oldest frozen layer is durable.
    pub(crate) fn mark_durable(&mut self) {
        self.applying = true;
    }

    /// The oldest frozen layer is in the live version. It is returned, because freeing its memory takes long.
    pub(crate) fn mark_applied(&mut self) -> Option<Frozen> {
        self.applying = false;
        let layer = self.frozen.pop_front()?;
        Some(Frozen { layer, spilled: self.take_spilled() })
    }

    /// The oldest frozen layer did not become durable.
    pub(crate) fn failed(&mut self) -> Option<Frozen> {
        let layer = self.frozen.pop_front()?;
        match self.frozen.front_mut() {
            // Its own checkpoint waits for this one to end: it sees the layer as it is then.
            Some(next) => Arc::make_mut(next).put_under(&layer),
            None => self.active.put_under(&layer),
        }
        Some(Frozen { layer, spilled: None })
    }

    /// The oldest frozen layer: what the next checkpoint makes durable. If changes were spilled before it, it follows them to the
    /// local disk first, so that one of the two parts is empty.
    pub(crate) fn oldest(&mut self, dir: &Path, resources: &SharedResources) -> Result<Frozen> {
        let none = || Error::internal("a checkpoint without a layer");
        let layer = self.frozen.front().map(Arc::clone).ok_or_else(none)?;
        if self.has_spilled() && !layer.places.is_empty() {
            self.spill_layer(&layer, dir, resources)?;
            *self.frozen.front_mut().ok_or_else(none)? = Arc::default();
            return Ok(Frozen { layer: Arc::default(), spilled: self.spilled.clone() });
        }
        Ok(Frozen { layer, spilled: self.spilled.clone() })
    }

    /// Drops all changes: for the end of a state.
    pub(crate) fn discard(&mut self) {
        *self = Self::new(self.limit);
    }
}

/// The changes of a checkpoint: in memory, or on the local disk.
#[derive(Debug)]
pub(crate) struct Frozen {
    pub(crate) layer: Arc<Layer>,
    pub(crate) spilled: Option<Arc<SpilledChanges>>,
}

fn lost(cause: &Error) -> Error {
    Error::retryable("the changes since the last checkpoint were lost when the local disk failed")
        .with_causes(cause.causes())
        .with_remedy(
            "make room on the local disk, close the state and open it again; it continues at its last checkpoint",
        )
}

#[cfg(test)]
mod tests {
    use super::*;
    use fastchangelog_format::model::KeyGroup;
    use fastchangelog_format::model::StateId;

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
            let layer = if more { Arc::clone(&layers.frozen[0]) } else { layers.freeze() };
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
            let layer = if more { Arc::clone(&layers.frozen[0]) } else { layers.freeze() };
            assert_eq!(layer.places[&S].len(), 2, "the next checkpoint holds both");
        }
    }

    #[test]
    fn bytes_are_counted_and_given_back() {
        let mut layers = Layers::new(400);
        assert!(layers.has_room(1, 500), "one call may take more than there is, beside nothing else");
        for _ in 0..100 {
            assert!(layers.has_room(1, 11));
            layers.put(S, b"k", Some(&[7; 10]));
        }
        assert_eq!(layers.bytes(), 11 + ENTRY_OVERHEAD);
        assert!(!layers.has_room(1, 300) && layers.can_spill());
        layers.freeze();
        assert!(!layers.can_spill(), "it would lie under the frozen layer");
        assert_eq!(layers.unsaved_bytes(), 11 + ENTRY_OVERHEAD);
        layers.put(S, b"k", Some(&[7; 9]));
        layers.mark_durable();
        assert_eq!(layers.bytes(), 21 + 2 * ENTRY_OVERHEAD, "until it is in the live version, it is held");
        assert_eq!(layers.unsaved_bytes(), 10 + ENTRY_OVERHEAD);
        layers.mark_applied();
        assert_eq!((layers.bytes(), layers.unsaved_bytes()), (10 + ENTRY_OVERHEAD, 10 + ENTRY_OVERHEAD));
        assert!(layers.can_spill());
    }
}
