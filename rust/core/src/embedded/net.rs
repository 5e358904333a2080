//! The change set of a checkpoint: what of a layer is different from the live version.
//!
//! Owns: the comparison of a layer with the live version, and whether a clear is deletes of its keys or one of their prefix.
//! Does not own: when it is made durable (`core`).
//!
//! Invariants of a change set:
//! 1. one put or delete of a state and key at most, and none without effect on the live version and its cleared prefixes;
//! 2. the deletes of prefixes come before the other changes of their state;
//! 3. keys and bytes are counted exactly.

use super::GROUP;
use super::entries::{Entries, Entry};
use super::layers::Layer;
use crate::shard::Net;
use fastchangelog_columns::codec::hash_key;
use fastchangelog_columns::typed::successor;
use fastchangelog_format::error::Result;
use fastchangelog_format::model::{Change, ChangeSet, Op, StateId};
use fastchangelog_state::keyed::{KeyRef, KeyedState};
use std::collections::BTreeSet;

/// Keys that are compared with the live version at once.
const COMPARED: usize = 16_384;
/// A clear of at most this many keys is a delete of each of them; of more, one of their prefix.
pub(super) const FEW_KEYS: usize = 256;

/// What of a layer is different from the live version. If keys were cleared, RocksDB must hold all of it.
pub(super) fn net(layer: &Layer, keyed: &KeyedState) -> Result<Net> {
    let records = layer.states.values().map(|entries| entries.len() + entries.clears().len()).sum();
    let bytes = layer.states.values().map(Entries::held).sum::<u64>();
    let set = ChangeSet::with_capacity(records, usize::try_from(bytes).unwrap_or_default());
    let mut net = Net { set, keys: 0, bytes: 0 };
    let mut keys = Vec::with_capacity(COMPARED.min(records));
    // Length of the old value, and whether it is the new one.
    let mut old: Vec<Option<(usize, bool)>> = Vec::new();
    for (&state, entries) in &layer.states {
        let emptied = clear(&mut net, state, entries, keyed)?;
        let mut rest = entries.iter();
        while rest.len() > 0 {
            let chunk: Vec<Entry<'_>> = rest.by_ref().take(COMPARED).collect();
            keys.clear();
            keys.extend(chunk.iter().map(|entry| KeyRef { hash: entry.hash, key_group: GROUP, key: entry.key }));
            old.clear();
            old.resize(chunk.len(), None);
            keyed.get_many(state, &keys, &mut |i, value| {
                old[i] = value.map(|value| (value.len(), chunk[i].value == Some(value)));
            })?;
            for (&Entry { key, value, .. }, old) in chunk.iter().zip(&old) {
                let old = if emptied.is_empty() { *old } else { old.filter(|_| !covers(&emptied, entries, key)) };
                if old.is_none() && value.is_none() || old.is_some_and(|(_, same)| same) {
                    continue;
                }
                let op = if value.is_some() { Op::Put } else { Op::Delete };
                net.set.push(Change { op, state, key_group: GROUP, key, value: value.unwrap_or_default() });
                net.keys += i64::from(value.is_some()) - i64::from(old.is_some());
                net.bytes += value.map_or(0, |v| length(key.len() + v.len()));
                net.bytes -= old.map_or(0, |(n, _)| length(key.len() + n));
            }
        }
    }
    Ok(net)
}

/// Removes the cleared keys of a state that have no entry. Those of the returned prefixes are removed as a whole, with
/// or without an entry.
fn clear<'a>(net: &mut Net, state: StateId, entries: &'a Entries, keyed: &KeyedState) -> Result<BTreeSet<&'a [u8]>> {
    let mut emptied = BTreeSet::new();
    for prefix in entries.clears() {
        // The first keys one after the other, with where each ends and the length of its value.
        let (mut first, mut ends) = (Vec::new(), Vec::new());
        let (mut keys, mut bytes) = (0, 0);
        let mut cursor = keyed.cursor(state, GROUP, prefix, successor(prefix).as_deref())?;
        while let Some((key, value)) = cursor.entry()? {
            keys += 1;
            bytes += length(key.len() + value.len());
            if ends.len() < FEW_KEYS {
                first.extend_from_slice(key);
                ends.push((first.len(), value.len()));
            }
            cursor.advance();
        }
        if keys > ends.len() {
            net.set.push(Change { op: Op::DeletePrefix, state, key_group: GROUP, key: prefix, value: &[] });
            net.keys -= length(keys);
            net.bytes -= bytes;
            emptied.insert(prefix);
            continue;
        }
        let mut from = 0;
        for (end, value) in ends {
            let key = &first[std::mem::replace(&mut from, end)..end];
            if !entries.contains(hash_key(key), key) {
                net.set.push(Change { op: Op::Delete, state, key_group: GROUP, key, value: &[] });
                net.keys -= 1;
                net.bytes -= length(key.len() + value);
            }
        }
    }
    Ok(emptied)
}

fn covers(emptied: &BTreeSet<&[u8]>, entries: &Entries, key: &[u8]) -> bool {
    entries.cleared_with(key).is_some_and(|prefix| emptied.contains(prefix))
}

fn length(bytes: usize) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}
