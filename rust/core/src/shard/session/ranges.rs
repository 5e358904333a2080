//! The end of a session whose groups are on the local disk: range by range of the hash of their keys.
//!
//! Owns: bringing a range back, combining it with the base, handing its part of the change set to the log, and what all
//! ranges together have come to.
//! Does not own: merging (`groups`), results (`results`), the handle (`seal`).
//!
//! The caller that needs the next range makes it: the reader of the results, and the commit for those that it has not read. Each
//! range becomes one segment of the version; ranges have no key in common, so together they are one change set (P5).
//!
//! Invariants:
//! 1. ranges are made in their order, each once; after a failure none is made any more, and every caller gets the error;
//! 2. one range is in memory at a time; the next one waits until the log has room for the part of the one before it.

use super::Surroundings;
use super::combine::{Changes, Ground, Parent};
use super::numbers::Numbers;
use super::room::Room;
use crate::error::{Error, Result};
use crate::shard::seal::Parts;
use crate::state::aggregate::AggPlan;
use crate::state::memory_estimate::IncomingGroups;
use crate::state::spilled_groups::{SLOTS, SavedGroups, SpilledGroups};
use crate::state::table::GroupTable;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

/// Of the session's memory (1/n), what a range may need: a change set is read back as a whole, several at a time.
const RANGE_SHARE: u64 = 4;
/// Most bytes that a range may need.
const MOST_BYTES: u64 = 64 << 20;

/// What the ranges have come to.
pub(super) struct Outcome {
    pub(super) parts: Parts,
    pub(super) parent: Parent,
    pub(super) new_keys: u64,
    pub(super) bytes: i64,
    pub(super) submitted: Instant,
}

pub(super) struct Ranges {
    plan: Arc<AggPlan>,
    /// None: the session starts from nothing and keeps nothing.
    ground: Option<Ground>,
    surroundings: Surroundings,
    spilled: SpilledGroups,
    room: Room,
    /// The first slot that no range has had yet.
    next: u32,
    parts: Parts,
    parent: Option<Parent>,
    new_keys: u64,
    bytes: i64,
    submitted: Instant,
    numbers: Numbers,
    /// Finished groups that the results have still to give.
    kept: VecDeque<SavedGroups>,
    /// Results are read.
    wanted: bool,
    failed: Option<Error>,
}

impl Ranges {
    pub(super) fn new(
        plan: Arc<AggPlan>,
        ground: Option<Ground>,
        surroundings: Surroundings,
        spilled: SpilledGroups,
        mut room: Room,
    ) -> Self {
        room.hold(spilled.memory_bytes());
        Self {
            plan,
            ground,
            surroundings,
            spilled,
            room,
            next: 0,
            parts: Parts::default(),
            parent: None,
            new_keys: 0,
            bytes: 0,
            submitted: Instant::now(),
            numbers: Numbers::default(),
            kept: VecDeque::new(),
            wanted: true,
            failed: None,
        }
    }

    /// The finished groups of the next range, for the results; false after the last one.
    pub(super) fn next(&mut self, table: &mut GroupTable) -> Result<bool> {
        let Some(kept) = self.kept.pop_front() else { return self.make(table) };
        table.clear();
        self.spilled.take(&kept, table)?;
        Ok(true)
    }

    /// The results are not read any more.
    pub(super) fn give_up_results(&mut self) {
        self.wanted = false;
        self.kept.clear();
    }

    /// Makes all ranges that were not made yet, and puts their groups aside if the results are read later.
    pub(super) fn complete(&mut self) -> Result<()> {
        if self.ground.is_none() {
            return Ok(());
        }
        let mut table = GroupTable::new(Arc::clone(&self.plan));
        while self.make(&mut table)? {
            if self.wanted {
                self.kept.push_back(self.spilled.keep(&table)?);
            }
        }
        Ok(())
    }

    /// What all ranges have come to; none if nothing has changed. For after [`Ranges::complete`], once.
    pub(super) fn outcome(&mut self) -> Option<Outcome> {
        let parent = self.parent.take().filter(|_| !self.parts.is_empty())?;
        let parts = std::mem::take(&mut self.parts);
        Some(Outcome { parts, parent, new_keys: self.new_keys, bytes: self.bytes, submitted: self.submitted })
    }

    /// The numbers of all ranges.
    pub(super) fn numbers(&self) -> &Numbers {
        &self.numbers
    }

    fn make(&mut self, table: &mut GroupTable) -> Result<bool> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let made = self.try_make(table);
        if let Err(error) = &made {
            self.failed = Some(error.clone());
        }
        made
    }

    fn try_make(&mut self, table: &mut GroupTable) -> Result<bool> {
        self.surroundings.failpoints.hit("session.range")?;
        let start = Instant::now();
        if !self.load(table)? {
            table.release();
            self.room.hold(self.spilled.memory_bytes());
            return Ok(false);
        }
        self.numbers.count_since("unspill_micros", start);
        self.numbers.count("ranges", 1);
        self.numbers.count("keys_updated", table.len() as u64);
        let Some(ground) = self.ground.clone() else { return Ok(true) };
        let (Changes { set, new_keys, bytes }, parent) = ground.combine(table, &mut self.numbers)?;
        self.parent.get_or_insert(parent);
        if !set.is_empty() {
            let context = ground.context();
            let encoded = ground.encode(&set, &mut self.numbers)?;
            drop(set);
            context.failpoints.hit("session.before-persist")?;
            self.parts.settle()?;
            self.submitted = Instant::now();
            self.parts.push(context.log.submit_part(encoded)?);
            self.new_keys += new_keys;
            self.bytes = self.bytes.saturating_add(bytes);
        }
        Ok(true)
    }

    /// Brings the next range with groups into `table`; false if there is none.
    fn load(&mut self, table: &mut GroupTable) -> Result<bool> {
        while self.next < SLOTS {
            self.load_some(table)?;
            if !table.is_empty() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Brings some slots, which may be without groups.
    fn load_some(&mut self, table: &mut GroupTable) -> Result<()> {
        let index = self.spilled.memory_bytes();
        let limit = (self.room.limit() / RANGE_SHARE).min(MOST_BYTES);
        self.room.hold(index + limit);
        table.clear();
        if table.need(IncomingGroups::NONE).most() > limit / 2 {
            table.release();
        }
        let start = self.next;
        let mut stop = SLOTS;
        // Rows of one key are counted for each run that has some: until the table is half full there is room for more.
        while self.next < stop && (table.is_empty() || table.need(IncomingGroups::NONE).finishing <= limit / 2) {
            let end = self.spilled.extent(self.next, table, limit).min(stop);
            if end == self.next {
                break;
            }
            // One slot is as little as there is.
            let bound = if end - start == 1 { u64::MAX } else { limit };
            if self.spilled.load(&(self.next..end), table, bound)? {
                self.next = end;
            } else {
                // Again from the start, and not as far.
                stop = if self.next > start { self.next } else { start + (end - start) / 2 };
                self.next = start;
                table.release();
            }
        }
        self.room.hold(index + table.need(IncomingGroups::NONE).most());
        Ok(())
    }
}
