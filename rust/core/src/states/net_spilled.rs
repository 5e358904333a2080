//! The change set of a version whose changes are on the local disk, in parts.
//!
//! Owns: the way through these changes, and where a part ends.
//! Does not own: the comparison with the live version (`net`), what is done with a part (`shard`).
//!
//! Invariants, beside those of `net` for all parts together:
//! 1. no two parts have a put or a delete of the same key; the delete of a prefix comes before the puts that begin with it;
//! 2. a part holds at most the bytes that are asked for, and what one step adds; parts are in the order of key groups.

use super::Place;
use super::entries::Entry;
use super::net::{Changed, Net};
use super::scan::Found;
use super::spilled::SpilledChanges;
use fastchangelog_columns::codec::hash_key;
use fastchangelog_format::error::Result;
use fastchangelog_state::keyed::KeyedState;
use std::collections::BTreeSet;
use std::ops::Bound;

/// Most entries, and about the bytes, that are compared at once.
const STEP_ENTRIES: usize = 4096;
const STEP_BYTES: usize = 1 << 20;
/// Of the memory for changes (1/n), the bytes of a part: a change set is read back as a whole, several at a time.
const PART_SHARE: u64 = 2;
/// Most bytes of a part.
const MOST_BYTES: u64 = 64 << 20;

/// Bytes of a part, if changes may take `limit` bytes of memory.
pub(crate) fn part_bytes(limit: u64) -> u64 {
    (limit / PART_SHARE).min(MOST_BYTES)
}

/// What was passed of a place.
#[derive(Debug)]
enum Passed {
    Clears(Option<Vec<u8>>),
    Entries(Option<Vec<u8>>),
}

/// A place in the changes on the local disk.
#[derive(Debug)]
pub(crate) struct SpilledNet {
    places: Vec<Place>,
    at: usize,
    passed: Passed,
    /// Prefixes of this place that are removed as a whole.
    emptied: BTreeSet<Vec<u8>>,
}

impl SpilledNet {
    /// At the beginning.
    pub(crate) fn new(spilled: &SpilledChanges) -> Self {
        let mut places = spilled.places();
        places.sort_unstable_by_key(|&(state, group)| (group, state));
        Self { places, at: 0, passed: Passed::Clears(None), emptied: BTreeSet::new() }
    }

    /// The next part, of about so many bytes; none after the last one. RocksDB must hold all of the live version.
    pub(crate) fn next(&mut self, spilled: &SpilledChanges, keyed: &KeyedState, bytes: u64) -> Result<Option<Net>> {
        let mut net = Net::default();
        while let Some(&place) = self.places.get(self.at) {
            match &self.passed {
                Passed::Clears(_) => self.pass_clears(place, spilled, keyed, bytes, &mut net)?,
                Passed::Entries(_) => self.pass_entries(place, spilled, keyed, bytes, &mut net)?,
            }
            if net.set.memory_bytes() >= bytes {
                return Ok(Some(net));
            }
        }
        Ok((!net.set.is_empty()).then_some(net))
    }

    fn pass_clears(
        &mut self,
        place: Place,
        spilled: &SpilledChanges,
        keyed: &KeyedState,
        bytes: u64,
        net: &mut Net,
    ) -> Result<()> {
        let Passed::Clears(passed) = &mut self.passed else { return Ok(()) };
        let mut spare = None;
        let mut clears = spilled.clears_after(place, passed.as_deref())?;
        while let Some((prefix, _)) = clears.entry()? {
            let prefix = prefix.to_vec();
            if net.clear(place, &prefix, (keyed, &mut spare), |key| spilled.contains(place, key))? {
                self.emptied.insert(prefix.clone());
            }
            *passed = Some(prefix);
            if net.set.memory_bytes() >= bytes {
                return Ok(());
            }
            clears.advance();
        }
        self.passed = Passed::Entries(None);
        Ok(())
    }

    fn pass_entries(
        &mut self,
        place: Place,
        spilled: &SpilledChanges,
        keyed: &KeyedState,
        bytes: u64,
        net: &mut Net,
    ) -> Result<()> {
        let Passed::Entries(passed) = &mut self.passed else { return Ok(()) };
        let mut cursor = spilled.cursor(place, passed.as_deref().unwrap_or_default(), None)?;
        if passed.is_some() && cursor.entry()?.map(|(key, _)| key) == passed.as_deref() {
            cursor.advance();
        }
        loop {
            let (mut found, mut puts) = (Found::default(), Vec::new());
            while let Some((key, value)) = cursor.entry()?
                && found.len() < STEP_ENTRIES
                && found.bytes() < STEP_BYTES
            {
                found.push(key, value.unwrap_or_default());
                puts.push(value.is_some());
                cursor.advance();
            }
            let Some(last) = found.keys().last() else { break };
            let changed = found.rows().zip(&puts).map(|((key, value), put)| Changed {
                group: place.1,
                entry: Entry { hash: hash_key(key), key, value: put.then_some(value) },
                is_emptied: is_emptied(&self.emptied, key),
            });
            net.compare(place.0, &changed.collect::<Vec<_>>(), keyed)?;
            *passed = Some(last.to_vec());
            if net.set.memory_bytes() >= bytes {
                return Ok(());
            }
        }
        (self.at, self.passed) = (self.at + 1, Passed::Clears(None));
        self.emptied.clear();
        Ok(())
    }
}

fn is_emptied(emptied: &BTreeSet<Vec<u8>>, key: &[u8]) -> bool {
    let below = emptied.range::<[u8], _>((Bound::Unbounded, Bound::Included(key)));
    below.last().is_some_and(|prefix| key.starts_with(prefix))
}
