//! Timers: what is due, what a key has, and the first one.
//!
//! Owns: the walk over the timers of all key groups in the order of their times.
//! Does not own: how a timer lies in entries (`states::timer`), registration (`writes`), when timers are asked for (the
//! worker), what is known of the first ones (`hints`).
//!
//! Invariants:
//! 1. what is due comes in the order of time and key over all key groups, a page at a time, each page as of its call: a timer
//!    that is registered behind the end of the page before is in a later one, a removed one is not;
//! 2. a page holds a bounded part of what is due, however much that is and however long its keys are: a number of timers, and
//!    [`PAGE_BYTES`] beside the last one's; it says whether there are more. Of one key all times are read at once.

use super::StateSession;
use super::overlay::View;
use super::reads::check_keys;
use crate::states::Place;
use crate::states::first_timer::{FirstTimer, end_of_timers, entry_by_time, known, timer};
use crate::states::scan::Found;
use crate::states::timer::{BY_KEY, BY_TIME, PAGE_BYTES, TIME, ordered, split_by_time, time_of, times_of_key};
use crate::states::under::Spare;
use arrow_array::builder::{ArrayBuilder, BinaryBuilder, Int64Builder, ListBuilder};
use arrow_array::{Array, BinaryArray, Int64Array, ListArray};
use fastchangelog_columns::typed::successor;
use fastchangelog_format::error::Result;
use fastchangelog_format::model::{KeyGroup, StateId};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::Bound;
use std::time::Instant;

/// Entries that are read of one key group at once, and about the bytes, at least.
const LEAST_READ: usize = 16;
const MOST_READ: usize = 4096;
const LEAST_BYTES: usize = 16 << 10;

/// What is read of key groups: timers below `to`, so many rows and about so many bytes at once.
struct Part<'v, 't> {
    view: View<'v>,
    spare: Spare<'v>,
    to: &'t [u8],
    rows: usize,
    bytes: usize,
}

/// The timers of one key group that are being merged.
struct Group {
    place: Place,
    found: Found,
    /// The first one that was not taken.
    next: usize,
    /// There are no more behind `found`.
    is_all: bool,
}

impl Group {
    /// Reads the timers after or from this one on, below `to`.
    fn read<'v>(part: &mut Part<'v, '_>, place: Place, from: Bound<&[u8]>) -> Result<Self> {
        let mut cursor = part.view.cursor_again(part.spare.take(), place, from, Some(part.to))?;
        let mut found = Found::default();
        let is_all = loop {
            let Some((entry, _)) = cursor.entry()? else { break true };
            if found.len() >= part.rows || found.bytes() >= part.bytes {
                break false;
            }
            found.push(entry, &[]);
            cursor.advance()?;
        };
        part.spare = cursor.into_spare();
        Ok(Self { place, found, next: 0, is_all })
    }

    fn has_next(&self) -> bool {
        self.next < self.found.len() || !self.is_all
    }

    /// Takes the next timer: its entry's key.
    fn take(&mut self, part: &mut Part<'_, '_>) -> Result<Option<Vec<u8>>> {
        if self.next == self.found.len() {
            let Some(last) = self.found.keys().last().filter(|_| !self.is_all).map(<[u8]>::to_vec) else {
                return Ok(None);
            };
            *self = Self::read(part, self.place, Bound::Excluded(&last))?;
            if self.found.len() == 0 {
                return Ok(None);
            }
        }
        self.next += 1;
        Ok(Some(self.found.row(self.next - 1).0.to_vec()))
    }
}

impl StateSession {
    /// The timers until `until` (inclusive) after a time and key, in the order of time and key over all key groups, `limit` of
    /// them at most, fewer if their keys are long; and whether there are more.
    pub(super) fn due_timers(
        &mut self,
        until: i64,
        after: Option<(i64, &[u8])>,
        limit: usize,
    ) -> Result<(Int64Array, BinaryArray, bool)> {
        let start = Instant::now();
        let (mut times, mut keys, mut bytes, mut more) = (Int64Builder::new(), BinaryBuilder::new(), 0, false);
        let state = self.declared()?.catalog.timers();
        let after = after.map(|(time, key)| timer(time, key));
        let groups = self.groups_with(|first| first.may_be_due(until));
        if let (Some(state), false, true) = (state, groups.is_empty(), limit > 0) {
            let to = until.checked_add(1).map_or_else(end_of_timers, |end| entry_by_time(&ordered(end)));
            let rows = (limit / groups.len()).saturating_add(1).clamp(LEAST_READ, MOST_READ);
            let part_bytes = (PAGE_BYTES / groups.len()).max(LEAST_BYTES);
            let learned = self.read(Some((state, &[BY_TIME])), |view| {
                let mut part = Part { view, spare: None, to: &to, rows, bytes: part_bytes };
                let (mut merged, mut learned, mut heap) = (Vec::new(), Vec::new(), BinaryHeap::new());
                for (group, first) in groups {
                    let first = first.bound().unwrap_or_default();
                    let passes = after.as_deref().is_some_and(|after| after >= first);
                    let from = entry_by_time(if passes { after.as_deref().unwrap_or_default() } else { first });
                    let from = if passes { Bound::Excluded(&from[..]) } else { Bound::Included(&from[..]) };
                    let mut own = Group::read(&mut part, (state, group), from)?;
                    let next = own.take(&mut part)?;
                    if !passes {
                        learned.push((group, known(next.as_deref(), Some(&to))));
                    }
                    heap.extend(next.map(|entry| Reverse((entry, merged.len()))));
                    merged.push(own);
                }
                while let Some(Reverse((entry, i))) = heap.pop() {
                    let (time, key) = split_by_time(&entry)?;
                    times.append_value(time);
                    keys.append_value(key);
                    bytes += entry.len();
                    if times.len() == limit || bytes >= PAGE_BYTES {
                        more = !heap.is_empty() || merged[i].has_next();
                        break;
                    }
                    heap.extend(merged[i].take(&mut part)?.map(|entry| Reverse((entry, i))));
                }
                Ok(learned)
            })?;
            self.learn(learned);
        }
        self.counters.count("due_timers", times.len() as u64);
        self.count_read(start);
        Ok((times.finish(), keys.finish(), more))
    }

    /// The first time of all timers; none if there are no timers.
    pub(super) fn next_timer(&mut self) -> Result<Option<i64>> {
        let start = Instant::now();
        let Some(state) = self.declared()?.catalog.timers() else { return Ok(None) };
        let is_first = |first: &FirstTimer| if let FirstTimer::Is(timer) = first { Some(timer.clone()) } else { None };
        let mut first = self.groups_with(|_| true).iter().filter_map(|(_, first)| is_first(first)).min();
        let mut unknown = self.groups_with(|known| {
            let before = |bound: &[u8]| first.as_deref().is_none_or(|first| bound < first);
            matches!(known, FirstTimer::NotBefore(bound) if before(bound))
        });
        if !unknown.is_empty() {
            unknown.sort_by(|(_, one), (_, other)| one.bound().cmp(&other.bound()));
            let learned = self.read(Some((state, &[BY_TIME])), |view| {
                let (mut learned, mut spare) = (Vec::new(), None);
                for (group, known_of) in unknown {
                    let bound = known_of.bound().unwrap_or_default();
                    if first.as_deref().is_some_and(|first| first <= bound) {
                        break;
                    }
                    let from = entry_by_time(bound);
                    let (from, to) = (Bound::Included(&from[..]), end_of_timers());
                    let cursor = view.cursor_again(spare.take(), (state, group), from, Some(&to))?;
                    let found = known(cursor.entry()?.map(|(entry, _)| entry), None);
                    spare = cursor.into_spare();
                    first = first.take().into_iter().chain(is_first(&found)).min();
                    learned.push((group, found));
                }
                Ok(learned)
            })?;
            self.learn(learned);
            self.count_read(start);
        }
        Ok(first.and_then(|timer| timer.first_chunk().copied()).map(time_of))
    }

    /// The times of the timers of each of the first keys, in their order: of all keys, unless they have so many timers that they
    /// are more than a page; of one key at least.
    pub(super) fn timers_of(&mut self, keys: &BinaryArray) -> Result<ListArray> {
        self.timers_of_some(keys, PAGE_BYTES)
    }

    /// The same with this bound.
    fn timers_of_some(&mut self, keys: &BinaryArray, most: usize) -> Result<ListArray> {
        let start = Instant::now();
        let state = self.declared()?.catalog.timers();
        check_keys(keys)?;
        let groups = self.groups_of(keys)?;
        let may_have = |group: KeyGroup| self.hints.first_timer(group).bound().is_some();
        let times = match state.filter(|_| groups.iter().any(|group| may_have(*group))) {
            None => vec![Vec::new(); keys.len()],
            Some(state) => self.read(Some((state, &[BY_KEY])), |view| {
                let (mut lists, mut bytes, mut spare) = (Vec::new(), 0, None);
                for (i, group) in groups.iter().enumerate() {
                    if bytes >= most {
                        break;
                    }
                    let times = times_of(view, &mut spare, (state, *group), keys.value(i))?;
                    bytes += TIME * times.len();
                    lists.push(times);
                }
                Ok(lists)
            })?,
        };
        let mut lists = ListBuilder::with_capacity(Int64Builder::new(), times.len());
        for times in &times {
            lists.values().append_slice(times);
            lists.append(true);
        }
        self.count_read(start);
        Ok(lists.finish())
    }

    /// The times of the timers of one key, in their order.
    pub(super) fn times_of(&self, state: StateId, group: KeyGroup, key: &[u8]) -> Result<Vec<i64>> {
        self.read(Some((state, &[BY_KEY])), |view| times_of(view, &mut None, (state, group), key))
    }

    /// The key groups of which this holds.
    fn groups_with(&self, holds: impl Fn(&FirstTimer) -> bool) -> Vec<(KeyGroup, FirstTimer)> {
        let first = |group| (group, self.hints.first_timer(group));
        self.key_groups().map(first).filter(|(_, first)| holds(first)).collect()
    }

    fn learn(&mut self, learned: Vec<(KeyGroup, FirstTimer)>) {
        learned.into_iter().for_each(|(group, first)| self.hints.learn_timer(group, first));
    }
}

fn times_of<'v>(view: View<'v>, spare: &mut Spare<'v>, place: Place, key: &[u8]) -> Result<Vec<i64>> {
    let prefix = [&[BY_KEY], key].concat();
    let (from, to) = (Bound::Included(&prefix[..]), successor(&prefix));
    let mut cursor = view.cursor_again(spare.take(), place, from, to.as_deref())?;
    let times = times_of_key(&mut cursor, key)?;
    *spare = cursor.into_spare();
    Ok(times)
}

#[cfg(test)]
#[path = "timers_tests.rs"]
mod tests;
