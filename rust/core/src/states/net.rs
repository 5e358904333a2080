//! The change set of a version: what of a layer is different from the live version.
//!
//! Owns: the comparison of a layer with the live version, and whether a clear is deletes of its keys or one of their prefix.
//! Does not own: when it is made durable (`shard`, `embedded`), changes on the local disk (`net_spilled`).
//!
//! Invariants of a change set:
//! 1. one put or delete of a state and key at most, and none without effect on the live version and its cleared prefixes;
//! 2. the deletes of prefixes come before the other changes of their state and key group;
//! 3. keys and bytes are counted exactly.

use super::entries::{Entries, Entry};
use super::layer::Layer;
use super::under::Spare;
use super::{FEW_KEYS, Place};
use fastchangelog_columns::codec::hash_key;
use fastchangelog_columns::typed::successor;
use fastchangelog_format::error::{Error, Result};
use fastchangelog_format::model::{Change, ChangeSet, KeyGroup, Op, StateId};
use fastchangelog_state::keyed::{KeyRef, KeyedState};
use std::collections::BTreeSet;
use std::ops::ControlFlow;

/// Keys that are compared with the live version at once.
const COMPARED: usize = 16_384;

/// The difference between the live version and the next one.
#[derive(Debug, Default)]
pub(crate) struct Net {
    pub(crate) set: ChangeSet,
    /// Added keys, less removed ones.
    pub(crate) keys: i64,
    /// Bytes of added keys and values, less removed ones.
    pub(crate) bytes: i64,
    /// Keys that were compared, and those of them that the hot tier could not answer for.
    pub(crate) compared: u64,
    pub(crate) misses: u64,
}

/// A changed key that is compared with the live version.
#[derive(Debug, Clone, Copy)]
pub(super) struct Changed<'a> {
    pub(super) group: KeyGroup,
    pub(super) entry: Entry<'a>,
    /// Its value in the live version was deleted with its prefix.
    pub(super) is_emptied: bool,
}

impl Net {
    /// Removes the keys of a cleared prefix that are not `changed`. True if all of them are removed as a whole, with or without a
    /// change.
    pub(super) fn clear<'k>(
        &mut self,
        (state, group): Place,
        prefix: &[u8],
        (keyed, spare): (&'k KeyedState, &mut Spare<'k>),
        mut changed: impl FnMut(&[u8]) -> Result<bool>,
    ) -> Result<bool> {
        // The first keys one after the other, with where each ends and the length of its value.
        let (mut first, mut ends) = (Vec::new(), Vec::new());
        let (mut keys, mut bytes) = (0, 0);
        let mut cursor = keyed.cursor_again(spare.take(), state, group, prefix, successor(prefix).as_deref())?;
        while let Some((key, value)) = cursor.entry()? {
            keys += 1;
            bytes += length(key.len() + value.len());
            if ends.len() < FEW_KEYS {
                first.extend_from_slice(key);
                ends.push((first.len(), value.len()));
            }
            cursor.advance();
        }
        *spare = Some(cursor);
        if keys > ends.len() {
            self.set.push(Change { op: Op::DeletePrefix, state, key_group: group, key: prefix, value: &[] });
            self.keys -= length(keys);
            self.bytes -= bytes;
            return Ok(true);
        }
        let mut from = 0;
        for (end, value) in ends {
            let key = &first[std::mem::replace(&mut from, end)..end];
            if !changed(key)? {
                self.set.push(Change { op: Op::Delete, state, key_group: group, key, value: &[] });
                self.keys -= 1;
                self.bytes -= length(key.len() + value);
            }
        }
        Ok(false)
    }

    /// Adds the changes that have an effect on the live version.
    pub(super) fn compare(&mut self, state: StateId, chunk: &[Changed<'_>], keyed: &KeyedState) -> Result<()> {
        let keys = chunk.iter().map(|&Changed { group, entry: Entry { hash, key, .. }, .. }| KeyRef {
            hash,
            key_group: group,
            key,
        });
        let keys: Vec<KeyRef<'_>> = keys.collect();
        // Length of the old value, and whether it is the new one.
        let mut old: Vec<Option<(usize, bool)>> = vec![None; chunk.len()];
        self.misses += keyed.get_many(state, &keys, &mut |i, value| {
            old[i] = value.map(|value| (value.len(), chunk[i].entry.value == Some(value)));
            ControlFlow::Continue(())
        })?;
        self.compared += chunk.len() as u64;
        for (&Changed { group, entry: Entry { key, value, .. }, is_emptied }, old) in chunk.iter().zip(&old) {
            let old = old.filter(|_| !is_emptied);
            if old.is_none() && value.is_none() || old.is_some_and(|(_, same)| same) {
                continue;
            }
            let op = if value.is_some() { Op::Put } else { Op::Delete };
            self.set.push(Change { op, state, key_group: group, key, value: value.unwrap_or_default() });
            self.keys += i64::from(value.is_some()) - i64::from(old.is_some());
            self.bytes += value.map_or(0, |v| length(key.len() + v.len()));
            self.bytes -= old.map_or(0, |(n, _)| length(key.len() + n));
        }
        Ok(())
    }
}

/// What of a layer is different from the live version. If keys were cleared, RocksDB must hold all of it.
pub(crate) fn net(layer: &Layer, keyed: &KeyedState) -> Result<Net> {
    net_within(layer, keyed, u64::MAX)?.ok_or_else(|| Error::internal("a change set reached a bound that it has not"))
}

/// The same; none if its change set takes about this many bytes: that of a clear may be far larger than the layer.
pub(crate) fn net_within(layer: &Layer, keyed: &KeyedState, most: u64) -> Result<Option<Net>> {
    let records = layer.places.values().map(|entries| entries.len() + entries.clears().len()).sum();
    let bytes = layer.places.values().map(Entries::held).sum::<u64>();
    let set = ChangeSet::with_capacity(records, usize::try_from(bytes).unwrap_or_default());
    let mut net = Net { set, ..Net::default() };
    let (mut chunk, mut spare) = (Vec::with_capacity(COMPARED.min(records)), None);
    let places: Vec<(&Place, &Entries)> = layer.places.iter().collect();
    for parts in places.chunk_by(|(one, _), (other, _)| one.0 == other.0) {
        let state = parts[0].0.0;
        let mut emptied = Vec::with_capacity(parts.len());
        for &(&place, entries) in parts {
            let Some(prefixes) = clear(&mut net, place, entries, (keyed, &mut spare), most)? else { return Ok(None) };
            emptied.push(prefixes);
        }
        // Those of several key groups together.
        let mut rest = parts.iter().zip(&emptied).flat_map(|(&(&(_, group), entries), emptied)| {
            entries.iter().map(move |entry| {
                let is_emptied = !emptied.is_empty() && covers(emptied, entries, entry.key);
                Changed { group, entry, is_emptied }
            })
        });
        loop {
            chunk.clear();
            chunk.extend(rest.by_ref().take(COMPARED));
            if chunk.is_empty() {
                break;
            }
            net.compare(state, &chunk, keyed)?;
        }
    }
    // Of one key group they are in order.
    if places.iter().any(|((_, group), _)| *group != places[0].0.1) {
        net.set.sort_by_key_group();
    }
    Ok(Some(net))
}

/// Removes the cleared keys of a place that have no entry. Those of the returned prefixes are removed as a whole, with
/// or without an entry. None once the change set takes `most` bytes.
fn clear<'a, 'k>(
    net: &mut Net,
    place: Place,
    entries: &'a Entries,
    (keyed, spare): (&'k KeyedState, &mut Spare<'k>),
    most: u64,
) -> Result<Option<BTreeSet<&'a [u8]>>> {
    let mut emptied = BTreeSet::new();
    for prefix in entries.clears() {
        if net.clear(place, prefix, (keyed, spare), |key| Ok(entries.contains(hash_key(key), key)))? {
            emptied.insert(prefix);
        }
        if net.set.memory_bytes() >= most {
            return Ok(None);
        }
    }
    Ok(Some(emptied))
}

fn covers(emptied: &BTreeSet<&[u8]>, entries: &Entries, key: &[u8]) -> bool {
    entries.cleared_with(key).is_some_and(|prefix| emptied.contains(prefix))
}

fn length(bytes: usize) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}
