//! The removal of expired groups, with each commit.
//!
//! Owns: the walk over the base in search of expired groups, and the changes that remove them.
//! Does not own: that no row of an expired group counts (`combine`), groups that the watermark closes by their keys
//! (`event_time`), entries of processors' states (`kinds::sweep`).
//!
//! A walk goes round the key groups of the shard, on over the commits, and rests until the first group that it has
//! passed, or that was written meanwhile, expires. It reads the disk as it is: of a group that the hot tier holds, the
//! hot tier's row counts. A state that is in memory as a whole is walked at once. Where a walk goes on is forgotten
//! with the process: that costs extra reads.
//!
//! Invariants:
//! 1. nothing is removed that has not expired, and nothing that the batch writes;
//! 2. of groups that stay, a commit passes [`PER_CHANGE`] for each that was written, or [`LEAST_PASSED`], and
//!    [`MOST_SAVED`] more if earlier commits did not use theirs; in memory all, once as many were saved.

use super::changes::TableChanges;
use super::event_time::EventTime;
use crate::kinds::sweep::{LEAST_PASSED, MOST_SAVED, PER_CHANGE};
use crate::shard::base::Base;
use crate::shard::session_counters::SessionCounters;
use crate::states::AGGREGATE;
use fastchangelog_columns::aggregate::{AggPlan, Clock, Lifetime};
use fastchangelog_columns::codec::hash_key;
use fastchangelog_columns::table::GroupTable;
use fastchangelog_format::error::Result;
use fastchangelog_format::model::{Change, ChangeSet, KeyGroup, Op, key_group_of};
use fastchangelog_state::keyed::KeyedState;
use std::sync::Arc;
use std::time::Instant;

/// Entries that are read at once.
const STEP: usize = 1024;

/// Where a walk is, between commits.
#[derive(Debug)]
pub(in crate::shard) struct ExpiryWalk {
    /// The key group, as a number of those of the shard, and the next key in it.
    group: u16,
    key: Vec<u8>,
    /// Key groups of this round that are left.
    left: u16,
    /// Groups that may still be passed.
    saved: u64,
    /// The first time of groups that were passed in this round or written meanwhile …
    first: i64,
    /// … and of those of the round before.
    rests_until: i64,
}

impl Default for ExpiryWalk {
    fn default() -> Self {
        Self { group: 0, key: Vec::new(), left: 0, saved: 0, first: i64::MAX, rests_until: i64::MIN }
    }
}

/// An expired group of the base.
struct Entry {
    hash: u64,
    key: Vec<u8>,
    bytes: u64,
}

/// The expired groups that one session removes.
pub(super) struct Expired {
    /// Of the rows in the state.
    kept: Arc<AggPlan>,
    lifetime: Lifetime,
    /// None until they are looked for.
    found: Option<Vec<Entry>>,
}

impl Expired {
    /// None if groups do not expire.
    pub(super) fn of(plan: &Arc<AggPlan>) -> Option<Self> {
        plan.lifetime().map(|lifetime| Self { kept: plan.of_state(), lifetime, found: None })
    }

    /// The changes that remove expired groups with these hashes which `table`, with the groups of the batch that have
    /// them, does not have.
    pub(super) fn take(
        &mut self,
        base: &Base,
        table: &GroupTable,
        event_time: Option<&EventTime>,
        of_range: &dyn Fn(u64) -> bool,
        counters: &mut SessionCounters,
    ) -> Result<Option<TableChanges>> {
        if table.is_empty() {
            return Ok(None);
        }
        let mut found = match self.found.take() {
            Some(found) => found,
            None => self.find(base, table, event_time, counters)?,
        };
        let groups = base.shard.placement().max_parallelism;
        let mut changes = TableChanges { set: ChangeSet::default(), keys: 0, bytes: 0 };
        found.retain(|entry| {
            let is_of_range = of_range(entry.hash);
            let is_closed = || event_time.is_some_and(|event_time| event_time.is_closed(&entry.key));
            if is_of_range && !table.contains(entry.hash, &entry.key) && !is_closed() {
                let key_group = key_group_of(entry.hash, groups);
                changes.set.push(Change { op: Op::Delete, state: AGGREGATE, key_group, key: &entry.key, value: &[] });
                changes.keys -= 1;
                changes.bytes = changes.bytes.saturating_sub_unsigned(entry.bytes);
            }
            !is_of_range
        });
        counters.count("entries_ended", changes.keys.unsigned_abs());
        base.shard.context().metrics.entries_ended.add(changes.keys.unsigned_abs());
        self.found = Some(found);
        Ok(Some(changes).filter(|changes| !changes.set.is_empty()))
    }

    fn find(
        &self,
        base: &Base,
        table: &GroupTable,
        event_time: Option<&EventTime>,
        counters: &mut SessionCounters,
    ) -> Result<Vec<Entry>> {
        let start = Instant::now();
        let mut first = i64::MAX;
        for i in 0..table.len() {
            first = first.min(table.life_begins(i)?);
        }
        let now = match self.lifetime.clock {
            Clock::Processing => table.life_begins(0)?,
            Clock::Watermark => event_time.and_then(EventTime::watermarks).map_or(i64::MIN, |marks| marks.closed),
        };
        let mut walk = base.shard.expiry_walk.lock();
        let new = PER_CHANGE.saturating_mul(table.len() as u64).max(LEAST_PASSED);
        walk.saved = walk.saved.saturating_add(new);
        walk.first = walk.first.min(first);
        if !self.lifetime.is_over(walk.rests_until, now) {
            walk.rests_until = walk.rests_until.min(first);
            return Ok(Vec::new());
        }
        let most = walk.saved.min(new.saturating_add(MOST_SAVED));
        let found = base.read(|live| self.walk(&mut walk, most, base, &live.keyed, now))?;
        counters.count_since("base_micros", start);
        Ok(found)
    }

    /// Passes at most `most` groups that stay, or all groups if the state is in memory and commits have paid for them.
    fn walk(&self, walk: &mut ExpiryWalk, most: u64, base: &Base, keyed: &KeyedState, now: i64) -> Result<Vec<Entry>> {
        let mut passed = Passed { found: Vec::new(), stayed: 0, first: i64::MAX };
        let pass = |passed: &mut Passed, key: &[u8], row: &[u8]| -> Result<()> {
            let time = self.kept.life_begins(row)?;
            if self.lifetime.is_over(time, now) && (passed.found.len() as u64) < MOST_SAVED {
                let bytes = (key.len() + row.len()) as u64;
                passed.found.push(Entry { hash: hash_key(key), key: key.to_vec(), bytes });
            } else {
                passed.first = passed.first.min(time);
                passed.stayed += 1;
            }
            Ok(())
        };
        if keyed.is_complete() {
            let entries = keyed.hot_entries() as u64;
            if entries <= walk.saved {
                keyed.for_each(&mut |entry| match entry.value {
                    Some(row) if entry.state == AGGREGATE => pass(&mut passed, entry.key, row),
                    _ => Ok(()),
                })?;
                walk.end_round(passed.first);
            }
            return Ok(passed.found);
        }
        let own = base.shard.placement().key_groups();
        let count = (own.end - own.start).max(1);
        let mut spent = 0;
        while spent < most && (passed.found.len() as u64) < MOST_SAVED {
            walk.left = if walk.left == 0 { count } else { walk.left.min(count) };
            let (group, before) = (KeyGroup(own.start + walk.group % count), passed.stayed);
            let step = usize::try_from(most - spent).unwrap_or(STEP).min(STEP);
            let next =
                keyed.pass_newest(AGGREGATE, group, &walk.key, step, &mut |key, row| pass(&mut passed, key, row))?;
            spent += (passed.stayed - before).max(1);
            walk.first = walk.first.min(passed.first);
            if walk.go_on(next, count) {
                walk.end_round(passed.first);
                break;
            }
        }
        walk.saved = walk.saved.saturating_sub(spent);
        Ok(passed.found)
    }
}

/// What one commit has passed.
struct Passed {
    found: Vec<Entry>,
    stayed: u64,
    /// The first time of the groups that stayed.
    first: i64,
}

impl ExpiryWalk {
    /// Goes on with the key `next` of the same key group, or the next of `count` key groups. True after the last one.
    fn go_on(&mut self, next: Option<Vec<u8>>, count: u16) -> bool {
        if let Some(next) = next {
            self.key = next;
            return false;
        }
        self.key.clear();
        self.group = (self.group + 1) % count;
        self.left -= 1;
        self.left == 0
    }

    /// All groups were passed; `first`: of those that stayed in the last steps.
    fn end_round(&mut self, first: i64) {
        self.rests_until = self.first.min(first);
        self.first = i64::MAX;
        (self.left, self.saved, self.key) = (0, 0, Vec::new());
    }
}

#[cfg(test)]
#[path = "expiry_tests.rs"]
mod tests;
