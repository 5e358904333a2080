//! Log objects that nobody names: found by a listing, deleted when old enough.
//!
//! Owns: what is deleted, given the handles that are still needed. Does not own: which handles those are; the caller
//! knows.
//!
//! Invariants:
//! 1. an object that a given handle names, that a writer of this storage counts, or that is younger than the grace
//!    period is kept (P6);
//! 2. only names that this library gives to log objects are looked at; nothing else is ever deleted;
//! 3. what is deleted is old by the clock that dated it, whatever this machine's clock says.

use super::ChangelogStorage;
use crate::error::{Error, Result};
use crate::model::ChangelogHandle;
use crate::store::{ObjectType, object_type};
use std::collections::HashSet;
use std::time::Duration;

/// What a sweep found.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Swept {
    /// Objects that nobody names, deleted unless it was a dry run.
    pub deleted: Vec<String>,
    /// Their bytes.
    pub deleted_bytes: u64,
    /// Objects that are needed, counted or young.
    pub kept: u64,
}

impl ChangelogStorage {
    /// Deletes log objects that none of `needed` names and that are older than `grace`; a dry run only lists them.
    pub fn sweep(&self, needed: &[ChangelogHandle], grace: Duration, dry_run: bool) -> Result<Swept> {
        let shared = &self.shared;
        if let Some(foreign) = needed.iter().find(|handle| handle.storage != shared.store.uri()) {
            return Err(Error::invalid(format!(
                "a handle of the storage {} was given to a sweep of {}: nothing is deleted",
                foreign.storage,
                shared.store.uri()
            )));
        }
        let named: HashSet<&str> = needed.iter().flat_map(|h| &h.sets).map(|set| set.object.name.as_str()).collect();
        // A dry run writes nothing: it takes this machine's word.
        let now =
            if dry_run { shared.clock.now_millis() } else { shared.runtime.block_on(shared.store.now_millis())? };
        let old = now.saturating_sub(u64::try_from(grace.as_millis()).unwrap_or(u64::MAX));
        let mut swept = Swept::default();
        for listed in shared.runtime.block_on(shared.store.list("log"))? {
            if object_type(&listed.name) != Some(ObjectType::Log) {
                continue;
            }
            if named.contains(listed.name.as_str())
                || shared.registry.is_tracked(&listed.name)
                || listed.modified_millis > old
            {
                swept.kept += 1;
                continue;
            }
            if !dry_run {
                shared.runtime.block_on(shared.store.delete(&listed.name))?;
                shared.metrics.discards.add(1);
            }
            swept.deleted_bytes += listed.size;
            swept.deleted.push(listed.name);
        }
        Ok(swept)
    }
}

#[cfg(test)]
#[path = "sweep_tests.rs"]
mod tests;
