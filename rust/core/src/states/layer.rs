//! Changes in memory that are made durable together.
//!
//! Owns: the changes of all states and key groups, and their bytes.
//! Does not own: the order of several layers (`layers`), the changes of one key group (`entries`).

use super::Place;
use super::entries::Entries;
use fastchangelog_format::model::StateId;
use std::collections::{BTreeMap, BTreeSet};

/// Bytes of a change beside its key and value: its slot, its place in the index, and what grows in steps has in reserve.
pub(super) const ENTRY_OVERHEAD: u64 = 80;

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
    pub(super) fn put_under(&mut self, older: &Self) {
        for (place, entries) in &older.places {
            self.places.entry(*place).or_default().put_under(entries);
        }
    }
}
