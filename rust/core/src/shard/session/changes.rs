//! Changes of a session to its base, with their effect on the size of the state.
//!
//! Owns: the record, and joining two of them. Does not own: making changes (`combine`, `event_time`, `expiry`).

use fastchangelog_format::model::ChangeSet;

/// Changes to the base.
pub(super) struct TableChanges {
    pub(super) set: ChangeSet,
    /// Added keys, less removed ones.
    pub(super) keys: i64,
    /// Bytes of added keys and values, less removed ones.
    pub(super) bytes: i64,
}

impl TableChanges {
    /// These changes after others, which have no key in common with them.
    pub(super) fn after(self, others: Option<Self>) -> Self {
        let Some(Self { mut set, keys, bytes }) = others else { return self };
        self.set.iter().for_each(|change| set.push(change));
        set.sort_by_key_group();
        Self { set, keys: self.keys.saturating_add(keys), bytes: self.bytes.saturating_add(bytes) }
    }
}
