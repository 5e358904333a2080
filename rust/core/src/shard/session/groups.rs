//! The groups of a session while payloads are merged.
//!
//! Owns: merging payloads into one table, and spilling the table to the local disk before it outgrows the session's
//! memory.
//! Does not own: the form of spilled rows (`columns::spilled_groups`), the processing of the groups (`ranges`,
//! `session`).
//!
//! Invariant: the table, its copy while it grows and what its end takes beside it stay within [`SessionMemory::limit`],
//! as long as a single row does.

use crate::shard::session_counters::SessionCounters;
use crate::shard::session_environment::SessionEnvironment;
use crate::shard::session_memory::SessionMemory;
use fastchangelog_columns::aggregate::AggPlan;
use fastchangelog_columns::memory_estimate::IncomingGroups;
use fastchangelog_columns::payload::Payload;
use fastchangelog_columns::session_windows::{merge_early, merged};
use fastchangelog_columns::spilled_groups::SpilledGroups;
use fastchangelog_columns::table::GroupTable;
use fastchangelog_format::error::Result;
use std::sync::Arc;

/// Near the limit rows are merged in steps of this size: many may be of keys that are there.
const STEP: usize = 1024;

pub(super) struct Groups {
    session_environment: SessionEnvironment,
    pub(super) table: GroupTable,
    spilled: Option<SpilledGroups>,
    pub(super) session_memory: SessionMemory,
}

/// All groups, after the last payload.
pub(super) enum Merging {
    /// In one table that fits into the session's memory.
    Whole(GroupTable),
    /// On the local disk.
    Spilled(SpilledGroups),
}

impl Groups {
    pub(super) fn new(plan: Arc<AggPlan>, session_environment: SessionEnvironment) -> Self {
        let session_memory = SessionMemory::new(&session_environment.budget, session_environment.session_memory);
        Self { session_environment, table: GroupTable::new(plan), spilled: None, session_memory }
    }

    /// True when groups are on the local disk.
    pub(super) fn has_spilled(&self) -> bool {
        self.spilled.is_some()
    }

    /// Reads a payload.
    pub(super) fn read(&self, payload: &[u8]) -> Result<Payload> {
        self.table.read_payload(payload)
    }

    /// Merges the rows of a payload; those of one key in their order.
    pub(super) fn add(&mut self, payload: &Payload, counters: &mut SessionCounters) -> Result<()> {
        let mut at = 0;
        while at < payload.len() {
            let rows = self.fitting(payload, at, counters)?;
            let incoming = payload.incoming(&(at..at + rows));
            self.hold(self.table.need(incoming).merging);
            self.table.merge_rows(payload, at..at + rows)?;
            at += rows;
        }
        self.hold(self.table.memory_bytes());
        Ok(())
    }

    /// Number of rows of the payload, from row `at`, that may be merged now; spills the table if necessary.
    fn fitting(&mut self, payload: &Payload, at: usize, counters: &mut SessionCounters) -> Result<usize> {
        let (all, mut fresh) = (payload.len() - at, false);
        let mut rows = all;
        loop {
            let fits = self.table.need(payload.incoming(&(at..at + rows))).most() <= self.limit();
            if fits || (rows == 1 && fresh) {
                return Ok(rows);
            }
            if rows > STEP || (rows > 1 && fresh) {
                rows /= 2;
            } else if !self.table.is_empty() {
                self.spill(counters)?;
                rows = all;
            } else {
                // Its memory was made for other rows.
                self.table.release();
                (rows, fresh) = (all, true);
            }
        }
    }

    /// Memory that the table may need.
    fn limit(&self) -> u64 {
        let (limit, index) =
            (self.session_memory.limit(), self.spilled.as_ref().map_or(0, SpilledGroups::memory_bytes));
        limit.saturating_sub(index).max(limit / 2)
    }

    fn hold(&mut self, bytes: u64) {
        self.session_memory.hold(bytes + self.spilled.as_ref().map_or(0, SpilledGroups::memory_bytes));
    }

    fn spill(&mut self, counters: &mut SessionCounters) -> Result<()> {
        if merge_early(self.table.plan()) {
            self.table = merged(&self.table, true)?;
        }
        spill(&self.table, &mut self.spilled, &self.session_environment, counters)?;
        self.table.clear();
        Ok(())
    }

    /// Ends the merging.
    pub(super) fn end(
        mut self,
        counters: &mut SessionCounters,
    ) -> Result<(Merging, SessionMemory, SessionEnvironment)> {
        let fits = self.table.need(IncomingGroups::NONE).most() <= self.session_memory.limit();
        if (self.spilled.is_some() || !fits) && !self.table.is_empty() {
            self.spill(counters)?;
        }
        let Self { session_environment, table, spilled, session_memory } = self;
        Ok((spilled.map_or(Merging::Whole(table), Merging::Spilled), session_memory, session_environment))
    }
}

/// Puts the groups of `table` behind those on the local disk.
fn spill(
    table: &GroupTable,
    spilled: &mut Option<SpilledGroups>,
    session_environment: &SessionEnvironment,
    counters: &mut SessionCounters,
) -> Result<()> {
    let SessionEnvironment { dir, failpoints, metrics, .. } = session_environment;
    failpoints.hit("session.spill")?;
    let spilled = match spilled {
        Some(spilled) => spilled,
        None => spilled.insert(SpilledGroups::create(dir)?),
    };
    let before = spilled.bytes();
    spilled.spill(table)?;
    let bytes = spilled.bytes() - before;
    failpoints.hit("session.spilled")?;
    metrics.spills.add(1);
    metrics.spilled_bytes.add(bytes);
    counters.count("spills", 1);
    counters.count("spilled_bytes", bytes);
    Ok(())
}

impl Merging {
    /// All groups on the local disk.
    pub(super) fn on_disk(
        self,
        session_environment: &SessionEnvironment,
        counters: &mut SessionCounters,
    ) -> Result<Self> {
        let Self::Whole(table) = self else { return Ok(self) };
        let mut spilled = None;
        spill(&table, &mut spilled, session_environment, counters)?;
        Ok(spilled.map_or(Self::Whole(table), Self::Spilled))
    }
}
