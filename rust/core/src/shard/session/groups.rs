//! The groups of a session while payloads come.
//!
//! Owns: merging payloads into one table, and spilling the table to the local disk before it outgrows the session's
//! memory.
//! Does not own: the form of spilled rows (`state::spilled_groups`), what becomes of the groups (`ranges`, and the session).
//!
//! Invariant: the table, its copy while it grows and what its end takes beside it stay within [`Room::limit`], as long as
//! a single row does.

use super::Surroundings;
use super::numbers::Numbers;
use super::room::Room;
use crate::error::Result;
use crate::state::aggregate::AggPlan;
use crate::state::memory_estimate::IncomingGroups;
use crate::state::payload::Payload;
use crate::state::spilled_groups::SpilledGroups;
use crate::state::table::{GroupTable, Merged};
use std::sync::Arc;

/// Near the limit rows are merged in steps of this size: many may be of keys that are there.
const STEP: usize = 1024;

pub(super) struct Groups {
    surroundings: Surroundings,
    pub(super) table: GroupTable,
    spilled: Option<SpilledGroups>,
    pub(super) room: Room,
}

/// All groups, when no further payload comes.
pub(super) enum Merging {
    /// In one table that fits into the session's memory.
    Whole(GroupTable),
    /// On the local disk.
    Spilled(SpilledGroups),
}

impl Groups {
    pub(super) fn new(plan: Arc<AggPlan>, surroundings: Surroundings) -> Self {
        let room = Room::new(&surroundings.budget, surroundings.session_memory);
        Self { surroundings, table: GroupTable::new(plan), spilled: None, room }
    }

    /// True when groups are on the local disk.
    pub(super) fn has_spilled(&self) -> bool {
        self.spilled.is_some()
    }

    /// Merges a payload; those rows of one key in their order.
    pub(super) fn merge(&mut self, payload: &[u8], numbers: &mut Numbers) -> Result<Merged> {
        let payload = self.table.read_payload(payload)?;
        let mut at = 0;
        while at < payload.len() {
            let rows = self.fitting(&payload, at, numbers)?;
            let incoming = payload.incoming(&(at..at + rows));
            self.hold(self.table.need(incoming).merging);
            self.table.merge_rows(&payload, at..at + rows)?;
            at += rows;
        }
        self.hold(self.table.memory_bytes());
        Ok(Merged { partial_rows: payload.len() as u64, input_rows: payload.input_rows })
    }

    /// How many rows of the payload from row `at` on may be merged now; spills what is there if it must.
    fn fitting(&mut self, payload: &Payload, at: usize, numbers: &mut Numbers) -> Result<usize> {
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
                self.spill(numbers)?;
                rows = all;
            } else {
                // Its memory was made for other rows.
                self.table.release();
                (rows, fresh) = (all, true);
            }
        }
    }

    /// What the table may need.
    fn limit(&self) -> u64 {
        let (limit, index) = (self.room.limit(), self.spilled.as_ref().map_or(0, SpilledGroups::memory_bytes));
        limit.saturating_sub(index).max(limit / 2)
    }

    fn hold(&mut self, bytes: u64) {
        self.room.hold(bytes + self.spilled.as_ref().map_or(0, SpilledGroups::memory_bytes));
    }

    fn spill(&mut self, numbers: &mut Numbers) -> Result<()> {
        let Surroundings { dir, failpoints, metrics, .. } = &self.surroundings;
        failpoints.hit("session.spill")?;
        let spilled = match &mut self.spilled {
            Some(spilled) => spilled,
            None => self.spilled.insert(SpilledGroups::create(dir)?),
        };
        let before = spilled.bytes();
        spilled.spill(&self.table)?;
        let bytes = spilled.bytes() - before;
        failpoints.hit("session.spilled")?;
        self.table.clear();
        metrics.spills.add(1);
        metrics.spilled_bytes.add(bytes);
        numbers.count("spills", 1);
        numbers.count("spilled_bytes", bytes);
        Ok(())
    }

    /// Ends the merging.
    pub(super) fn end(mut self, numbers: &mut Numbers) -> Result<(Merging, Room, Surroundings)> {
        let fits = self.table.need(IncomingGroups::NONE).most() <= self.room.limit();
        if (self.spilled.is_some() || !fits) && !self.table.is_empty() {
            self.spill(numbers)?;
        }
        let Self { surroundings, table, spilled, room } = self;
        Ok((spilled.map_or(Merging::Whole(table), Merging::Spilled), room, surroundings))
    }
}
