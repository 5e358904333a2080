//! Changes on the local disk: what of a session's overlay is more than its memory.
//!
//! Owns: a RocksDB of changes, in a folder that is removed with it; reading it by key and in order.
//! Does not own: when changes are moved there (`shard`), what lies over them and under them (`layers`, `under`).
//!
//! Each changed key is an entry: one byte that says deleted or put, then the value. Each cleared prefix is an entry of a state of its
//! own, the number of the cleared one with its highest bit set. Invariants of [`SpilledChanges`], as of `entries`:
//! 1. a key has one entry, its last change;
//! 2. all clears come before all entries: a clear removes the entries that it covers;
//! 3. no cleared prefix begins with another, so that the last one at or below a key is the only one that may cover it;
//! 4. the folder is removed with the owner, in whatever way that ends; after the end of the process by the next owner of its
//!    parent folder.

use super::entries::Entries;
use super::layer::Layer;
use super::{FEW_KEYS, Place};
use fastchangelog_columns::codec::hash_key;
use fastchangelog_columns::typed::successor;
use fastchangelog_format::error::{Error, Result};
use fastchangelog_format::model::{Change, ChangeSet, Op, StateId, VersionId};
use fastchangelog_state::keyed::{KeyRef, KeyedState, Out};
use fastchangelog_state::rocks::SharedResources;
use fastchangelog_state::scan::Cursor;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::path::Path;

/// States from this number on are clears.
const CLEARS: u16 = 1 << 15;
/// First bytes of entries.
const DELETED: u8 = 0;
const PUT: u8 = 1;
/// Bytes of changes that are written at once.
const STEP_BYTES: u64 = 4 << 20;
/// Memory of recent entries. Few are read again before the commit.
const HOT_BYTES: u64 = 1 << 20;

/// Changes on the local disk. See the module documentation for its invariants.
#[derive(Debug)]
pub(crate) struct SpilledChanges {
    /// None only while it is dropped.
    keyed: Option<KeyedState>,
    /// The places that have changes, and whether there are clears among these.
    places: BTreeMap<Place, bool>,
}

impl SpilledChanges {
    /// None yet, in a new folder in `parent`.
    pub(crate) fn create(parent: &Path, resources: &SharedResources) -> Result<Self> {
        let mut keyed = KeyedState::create(&parent.join(format!("changes-{}", VersionId::random())), resources)?;
        keyed.set_hot_limit(HOT_BYTES)?;
        Ok(Self { keyed: Some(keyed), places: BTreeMap::new() })
    }

    /// Takes over newer changes. Returns their bytes. After an error it must not be used.
    pub(crate) fn take_over(&mut self, layer: &Layer) -> Result<u64> {
        let mut bytes = 0;
        let mut set = ChangeSet::default();
        for (&place, entries) in &layer.places {
            bytes += self.clear(place, entries, &mut set)?;
        }
        bytes += self.apply(&mut set)?;
        let mut put = Vec::new();
        for (&(state, key_group), entries) in &layer.places {
            for entry in entries.iter() {
                put.clear();
                put.push(if entry.value.is_some() { PUT } else { DELETED });
                put.extend_from_slice(entry.value.unwrap_or_default());
                set.push(Change { op: Op::Put, state, key_group, key: entry.key, value: &put });
                if set.payload_bytes() >= STEP_BYTES {
                    bytes += self.apply(&mut set)?;
                }
            }
            let clears = self.places.entry((state, key_group)).or_default();
            *clears |= entries.clears().len() > 0;
        }
        bytes += self.apply(&mut set)?;
        self.flush()?;
        Ok(bytes)
    }

    /// Adds to `set` what the clears of a place change; applies it when it is large. Returns the bytes of what it applied.
    fn clear(&mut self, place: Place, entries: &Entries, set: &mut ChangeSet) -> Result<u64> {
        let Some(&has_clears) = self.places.get(&place) else {
            // Nothing is older.
            entries.clears().for_each(|prefix| set.push(put_clear(place, prefix)));
            return Ok(0);
        };
        let (state, key_group) = place;
        let mut bytes = 0;
        for prefix in entries.clears() {
            if set.payload_bytes() >= STEP_BYTES {
                bytes += self.apply(set)?;
                // The next one is looked for in order.
                self.flush()?;
            }
            let keys = self.keys_of(place, prefix, FEW_KEYS + 1)?;
            if keys.len() > FEW_KEYS {
                set.push(Change { op: Op::DeletePrefix, state, key_group, key: prefix, value: &[] });
            } else {
                keys.iter().for_each(|key| set.push(Change { op: Op::Delete, state, key_group, key, value: &[] }));
            }
            if has_clears {
                if self.cleared_with(place, prefix)?.is_some() {
                    continue;
                }
                let clears = (clears_of(state), key_group);
                for inner in self.keys_of(clears, prefix, usize::MAX)? {
                    set.push(Change { op: Op::Delete, state: clears.0, key_group, key: &inner, value: &[] });
                }
            }
            set.push(put_clear(place, prefix));
        }
        Ok(bytes)
    }

    fn keys_of(&self, (state, group): Place, prefix: &[u8], most: usize) -> Result<Vec<Vec<u8>>> {
        let mut cursor = self.keyed()?.cursor(state, group, prefix, successor(prefix).as_deref())?;
        let mut keys = Vec::new();
        while let Some((key, _)) = cursor.entry()?.filter(|_| keys.len() < most) {
            keys.push(key.to_vec());
            cursor.advance();
        }
        Ok(keys)
    }

    fn apply(&mut self, set: &mut ChangeSet) -> Result<u64> {
        let set = std::mem::take(set);
        self.keyed.as_mut().ok_or_else(gone)?.apply(&set)?;
        Ok(set.payload_bytes())
    }

    fn flush(&mut self) -> Result<()> {
        let keyed = self.keyed.as_mut().ok_or_else(gone)?;
        keyed.begin_flush();
        while keyed.flush_dirty(usize::MAX)? {}
        Ok(())
    }

    fn keyed(&self) -> Result<&KeyedState> {
        self.keyed.as_ref().ok_or_else(gone)
    }

    /// The places that have changes, in order.
    pub(crate) fn places(&self) -> Vec<Place> {
        self.places.keys().copied().collect()
    }

    /// The states of which keys were cleared.
    pub(crate) fn cleared_states(&self) -> BTreeSet<StateId> {
        self.places.iter().filter(|(_, cleared)| **cleared).map(|((state, _), _)| *state).collect()
    }

    /// True if a place has changes.
    pub(crate) fn has(&self, place: Place) -> bool {
        self.places.contains_key(&place)
    }

    /// Gives the values of changed keys to `out`; returns which of `keys` are not changed.
    pub(crate) fn get_many(&self, state: StateId, keys: &[KeyRef<'_>], out: Out<'_>) -> Result<Vec<usize>> {
        let mut rest = Vec::new();
        self.keyed()?.get_many(state, keys, &mut |i, change| match change {
            Some(change) => out(i, value_of(change)),
            None => {
                rest.push(i);
                ControlFlow::Continue(())
            }
        })?;
        let mut unchanged = Vec::with_capacity(rest.len());
        for i in rest {
            match self.cleared_with((state, keys[i].key_group), keys[i].key)? {
                Some(_) => {
                    if out(i, None).is_break() {
                        break;
                    }
                }
                None => unchanged.push(i),
            }
        }
        Ok(unchanged)
    }

    /// True if the key has an entry of its own.
    pub(crate) fn contains(&self, (state, key_group): Place, key: &[u8]) -> Result<bool> {
        let mut found = false;
        let key = KeyRef { hash: hash_key(key), key_group, key };
        self.keyed()?.get_many(state, &[key], &mut |_, change| {
            found = change.is_some();
            ControlFlow::Continue(())
        })?;
        Ok(found)
    }

    /// The cleared prefix that covers a key.
    pub(crate) fn cleared_with(&self, place: Place, key: &[u8]) -> Result<Option<Vec<u8>>> {
        if !self.places.get(&place).is_some_and(|clears| *clears) {
            return Ok(None);
        }
        let last = self.keyed()?.last_at_or_below(clears_of(place.0), place.1, key)?;
        Ok(last.filter(|prefix| key.starts_with(prefix)))
    }

    /// The changes of keys from `from` on, below `to`, in order.
    pub(crate) fn cursor(&self, place: Place, from: &[u8], to: Option<&[u8]>) -> Result<SpilledCursor<'_>> {
        let (state, group) = place;
        let clears = if self.places.get(&place).is_some_and(|clears| *clears) {
            let next = self.keyed()?.cursor(clears_of(state), group, from, to)?;
            ClearsCursor { last: self.cleared_with(place, from)?, next: Some(next) }
        } else {
            ClearsCursor { last: None, next: None }
        };
        Ok(SpilledCursor { entries: EntriesCursor(self.keyed()?.cursor(state, group, from, to)?), clears })
    }

    /// The cleared prefixes after `after`, in order.
    pub(crate) fn clears_after(&self, (state, group): Place, after: Option<&[u8]>) -> Result<Cursor<'_>> {
        let mut cursor = self.keyed()?.cursor(clears_of(state), group, after.unwrap_or_default(), None)?;
        if after.is_some() && cursor.entry()?.map(|(key, _)| key) == after {
            cursor.advance();
        }
        Ok(cursor)
    }

    /// Bytes of memory held.
    pub(crate) fn memory_bytes(&self) -> u64 {
        (self.places.len() * size_of::<(Place, bool)>()) as u64
    }
}

impl Drop for SpilledChanges {
    fn drop(&mut self) {
        if let Some(keyed) = self.keyed.take()
            && let Err(error) = keyed.destroy()
        {
            tracing::warn!(%error, "cannot remove a local folder of changes");
        }
    }
}

/// A place in the changes of one state and key group.
pub(crate) struct SpilledCursor<'a> {
    entries: EntriesCursor<'a>,
    clears: ClearsCursor<'a>,
}

impl<'a> SpilledCursor<'a> {
    pub(crate) fn parts(&mut self) -> (&EntriesCursor<'a>, &mut ClearsCursor<'a>) {
        (&self.entries, &mut self.clears)
    }

    /// Key and change at this place: its value, none if it is deleted.
    pub(crate) fn entry(&self) -> Result<Option<(&[u8], Option<&[u8]>)>> {
        self.entries.entry()
    }

    pub(crate) fn advance(&mut self) {
        self.entries.0.advance();
    }

    /// Goes to the first key after all that begin with `prefix`.
    pub(crate) fn skip(&mut self, prefix: &[u8]) {
        self.entries.0.skip(prefix);
    }
}

/// Its changed keys.
pub(crate) struct EntriesCursor<'a>(Cursor<'a>);

impl EntriesCursor<'_> {
    /// Key and change at this place: its value, none if it is deleted.
    pub(crate) fn entry(&self) -> Result<Option<(&[u8], Option<&[u8]>)>> {
        Ok(self.0.entry()?.map(|(key, change)| (key, value_of(change))))
    }
}

/// Its cleared prefixes, for keys in ascending order.
pub(crate) struct ClearsCursor<'a> {
    /// The last prefix at or below the key that was asked for last.
    last: Option<Vec<u8>>,
    next: Option<Cursor<'a>>,
}

impl ClearsCursor<'_> {
    /// The cleared prefix that covers a key.
    pub(crate) fn covering(&mut self, key: &[u8]) -> Result<Option<&[u8]>> {
        let Some(next) = &mut self.next else { return Ok(None) };
        while let Some((prefix, _)) = next.entry()?.filter(|(prefix, _)| *prefix <= key) {
            self.last = Some(prefix.to_vec());
            next.advance();
        }
        Ok(self.last.as_deref().filter(|prefix| key.starts_with(prefix)))
    }
}

fn clears_of(state: StateId) -> StateId {
    StateId(state.0 | CLEARS)
}

fn put_clear((state, key_group): Place, prefix: &[u8]) -> Change<'_> {
    Change { op: Op::Put, state: clears_of(state), key_group, key: prefix, value: &[] }
}

fn value_of(change: &[u8]) -> Option<&[u8]> {
    change.split_first().filter(|(tag, _)| **tag == PUT).map(|(_, value)| value)
}

fn gone() -> Error {
    Error::internal("changes on the local disk that were dropped")
}

#[cfg(test)]
#[path = "spilled_tests.rs"]
mod tests;
