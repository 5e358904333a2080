//! Garbage collection of log objects that no handle names: found by a listing, deleted when old enough.
//!
//! Owns: which objects are deleted, given the handles that are still needed. Does not own: which handles those are; the
//! caller passes them.
//!
//! Invariants:
//! 1. an object that a given handle names, that a writer of this storage counts, or that is younger than the grace
//!    period is kept (P6);
//! 2. only objects with names of log objects are considered; nothing else is ever deleted;
//! 3. an object's age is measured by the store's clock, not by this machine's.

use super::ChangelogStorage;
use fastchangelog_format::error::{Error, Result};
use fastchangelog_format::model::ChangelogHandle;
use fastchangelog_store::{ObjectType, object_type};
use std::collections::HashSet;
use std::time::Duration;

/// The result of a garbage collection.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct GcReport {
    /// Objects that no handle names, deleted unless it was a dry run.
    pub deleted: Vec<String>,
    /// Their bytes.
    pub deleted_bytes: u64,
    /// Objects that are needed, counted or young.
    pub kept: u64,
}

impl ChangelogStorage {
    /// Deletes log objects that none of `needed` names and that are older than `grace`; a dry run only lists them.
    pub fn sweep(&self, needed: &[ChangelogHandle], grace: Duration, dry_run: bool) -> Result<GcReport> {
        let shared = &self.shared;
        if let Some(foreign) = needed.iter().find(|handle| !shared.store.is_at(&handle.storage)) {
            return Err(Error::invalid(format!(
                "a handle belongs to the storage {}, but the sweep is of {}, so it deletes nothing; give handles of \
                 that storage",
                foreign.storage,
                shared.store.uri()
            )));
        }
        let named: HashSet<&str> = needed.iter().flat_map(|h| &h.sets).map(|set| set.object.name.as_str()).collect();
        // A dry run writes nothing, so it uses this machine's clock.
        let now =
            if dry_run { shared.clock.now_millis() } else { shared.runtime.block_on(shared.store.now_millis())? };
        let old = now.saturating_sub(u64::try_from(grace.as_millis()).unwrap_or(u64::MAX));
        let mut report = GcReport::default();
        for listed in shared.runtime.block_on(shared.store.list("log"))? {
            if object_type(&listed.name) != Some(ObjectType::Log) {
                continue;
            }
            if named.contains(listed.name.as_str())
                || shared.registry.is_tracked(&listed.name)
                || listed.modified_millis > old
            {
                report.kept += 1;
                continue;
            }
            if !dry_run {
                shared.runtime.block_on(shared.store.delete(&listed.name))?;
                shared.metrics.discards.add(1);
            }
            report.deleted_bytes += listed.size;
            report.deleted.push(listed.name);
        }
        Ok(report)
    }
}

#[cfg(test)]
#[path = "gc_tests.rs"]
mod tests;
