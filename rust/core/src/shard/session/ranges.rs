//! The end of a session whose groups are on the local disk: range by range of the hash of their keys.
//!
//! Owns: loading a range, combining it with the base, submitting its part of the change set to the log, and the totals
//! of all ranges.
//! Does not own: merging (`groups`), results (`results`), the handle (`seal`).
//!
//! The caller that needs the next range makes it: the reader of the results, and the commit for those that it has not
//! read. Each range becomes one segment of the version; ranges have no key in common, so together they are one change
//! set (P5).
//!
//! Invariants:
//! 1. ranges are made in their order, each once; after a failure none is made any more, and every caller gets the
//!    error;
//! 2. one range is in memory at a time; the next one waits until the log has admitted the part of the one before it.

use super::changes::TableChanges;
use super::combine::{Combiner, Parent};
use super::event_time::EventTime;
use super::expiry::Expired;
use crate::shard::seal::SetParts;
use crate::shard::session_counters::SessionCounters;
use crate::shard::session_environment::SessionEnvironment;
use crate::shard::session_memory::SessionMemory;
use fastchangelog_columns::aggregate::AggPlan;
use fastchangelog_columns::memory_estimate::IncomingGroups;
use fastchangelog_columns::session_windows::merge_alone;
use fastchangelog_columns::spilled_groups::{SLOTS, SavedGroups, SpilledGroups, slot};
use fastchangelog_columns::table::GroupTable;
use fastchangelog_format::error::{Error, Result};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

/// Share of the session's memory (1/n) for a range: several change sets are read back at a time, each as a whole.
const RANGE_SHARE: u64 = 4;
/// Most bytes that a range may need.
const MOST_BYTES: u64 = 64 << 20;

/// Bytes that a range of a session may need.
pub(super) fn range_bytes(session_memory: &SessionMemory) -> u64 {
    (session_memory.limit() / RANGE_SHARE).min(MOST_BYTES)
}

/// Totals of all ranges.
pub(super) struct RangesOutcome {
    pub(super) parts: SetParts,
    pub(super) parent: Parent,
    /// Added keys, less removed ones.
    pub(super) keys: i64,
    pub(super) bytes: i64,
    pub(super) submitted: Instant,
}

pub(super) struct Ranges {
    plan: Arc<AggPlan>,
    /// None: the session starts from nothing and keeps nothing.
    combiner: Option<Combiner>,
    event_time: Option<EventTime>,
    expired: Option<Expired>,
    session_environment: SessionEnvironment,
    spilled: SpilledGroups,
    session_memory: SessionMemory,
    /// The first slot that no range has had yet.
    next: u32,
    /// Groups of the last range that are not merged yet: their session windows in the base take much memory.
    rest: Option<GroupTable>,
    parts: SetParts,
    parent: Option<Parent>,
    keys: i64,
    bytes: i64,
    submitted: Instant,
    counters: SessionCounters,
    /// Finished groups that the results have not returned yet.
    kept: VecDeque<SavedGroups>,
    /// Results are read.
    wanted: bool,
    failed: Option<Error>,
}

impl Ranges {
    pub(super) fn new(
        plan: Arc<AggPlan>,
        combiner: Option<Combiner>,
        event_time: Option<EventTime>,
        session_environment: SessionEnvironment,
        spilled: SpilledGroups,
        mut session_memory: SessionMemory,
    ) -> Self {
        session_memory.hold(spilled.memory_bytes());
        Self {
            expired: Expired::of(&plan),
            plan,
            combiner,
            event_time,
            session_environment,
            spilled,
            session_memory,
            next: 0,
            rest: None,
            parts: SetParts::default(),
            parent: None,
            keys: 0,
            bytes: 0,
            submitted: Instant::now(),
            counters: SessionCounters::default(),
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
    pub(super) fn discard_results(&mut self) {
        self.wanted = false;
        self.kept.clear();
    }

    /// Makes all remaining ranges, and saves their groups if the results are read later.
    pub(super) fn complete(&mut self) -> Result<()> {
        if self.combiner.is_none() {
            return Ok(());
        }
        let mut table = GroupTable::new(Arc::clone(&self.plan));
        while self.make(&mut table)? {
            if self.wanted && !table.is_empty() {
                self.kept.push_back(self.spilled.keep(&table)?);
            }
        }
        Ok(())
    }

    /// The totals of all ranges; none if nothing has changed. To be called after [`Ranges::complete`], once.
    pub(super) fn outcome(&mut self) -> Option<RangesOutcome> {
        let parent = self.parent.take().filter(|_| !self.parts.is_empty())?;
        let parts = std::mem::take(&mut self.parts);
        Some(RangesOutcome { parts, parent, keys: self.keys, bytes: self.bytes, submitted: self.submitted })
    }

    /// The numbers of all ranges.
    pub(super) fn counters(&self) -> &SessionCounters {
        &self.counters
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
        self.session_environment.failpoints.hit("session.range")?;
        let (start, from) = (Instant::now(), self.next);
        if let Some(rest) = self.rest.take() {
            *table = rest;
        } else if self.load(table)? {
            self.counters.count_since("unspill_micros", start);
            self.counters.count("keys_updated", table.len() as u64);
        } else {
            table.release();
            self.session_memory.hold(self.spilled.memory_bytes());
            return Ok(false);
        }
        self.counters.count("ranges", 1);
        let Some(combiner) = self.combiner.clone() else {
            merge_alone(table)?;
            return Ok(true);
        };
        if let Some((changes, parent)) = combiner.removals(self.event_time.as_mut())? {
            self.submit(&combiner, changes, parent)?;
        }
        let (changes, parent) = if self.plan.session_windows() {
            let most = range_bytes(&self.session_memory);
            let (event_time, counters) = (self.event_time.as_mut(), &mut self.counters);
            let (changes, parent, rest) = combiner.merge_windows(table, event_time, most, counters)?;
            let held = table.memory_bytes() + rest.as_ref().map_or(0, GroupTable::memory_bytes);
            self.session_memory.hold(self.spilled.memory_bytes() + held + changes.set.memory_bytes());
            self.rest = rest;
            (changes, parent)
        } else {
            let slots = from..self.next;
            let of_table = |hash: u64| slots.contains(&slot(hash));
            let expired = self.expired.as_mut().map(|expired| (expired, &of_table as &dyn Fn(u64) -> bool));
            combiner.combine(table, self.event_time.as_mut(), expired, &mut self.counters)?
        };
        self.submit(&combiner, changes, parent)?;
        Ok(true)
    }

    fn submit(&mut self, combiner: &Combiner, changes: TableChanges, parent: Parent) -> Result<()> {
        let TableChanges { set, keys, bytes } = changes;
        self.parent.get_or_insert(parent);
        if set.is_empty() {
            return Ok(());
        }
        let context = combiner.context();
        let encoded = combiner.encode(&set, &mut self.counters)?;
        drop(set);
        context.failpoints.hit("session.before-persist")?;
        self.parts.collect_ready()?;
        self.submitted = Instant::now();
        self.parts.push(context.log.submit_part(encoded)?);
        self.keys = self.keys.saturating_add(keys);
        self.bytes = self.bytes.saturating_add(bytes);
        Ok(())
    }

    /// A time before which no group of the version is; see [`super::Committed`].
    pub(super) fn next_close(&self) -> Option<i64> {
        self.event_time.as_ref().and_then(EventTime::next_close)
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
        let limit = range_bytes(&self.session_memory);
        self.session_memory.hold(index + limit);
        table.clear();
        if table.need(IncomingGroups::NONE).most() > limit / 2 {
            table.release();
        }
        let start = self.next;
        let mut stop = SLOTS;
        // Rows of one key are counted for each run that has some: until the table is half full more slots are loaded.
        while self.next < stop && (table.is_empty() || table.need(IncomingGroups::NONE).finishing <= limit / 2) {
            let end = self.spilled.extent(self.next, table, limit).min(stop);
            if end == self.next {
                break;
            }
            // One slot is the least.
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
        self.session_memory.hold(index + table.need(IncomingGroups::NONE).most());
        Ok(())
    }
}
