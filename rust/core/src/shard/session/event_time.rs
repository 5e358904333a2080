//! Event time: groups that are late, and groups that the watermark closes.
//!
//! Owns: which groups a session leaves out, closes and returns, by the time with which their keys begin, or by the end of
//! a session window; reading the closed groups of the base, and the changes that remove them.
//! Does not own: watermarks (Spark), windows (`columns::aggregate`), merging (`groups`), the other changes (`combine`).
//!
//! A group is late if its time is at or before the watermark of the batch before, and closed if it is at or before the
//! watermark of this batch. A null time is neither. Closed groups leave the state with this batch, also those that rows
//! of this batch have changed or made. In append mode they are its results.
//!
//! In append mode the closed groups of the base are merged before the first payload, and in complete mode all groups of
//! the base: they are spilled, combined and returned like those of the batch.
//!
//! Of session windows, which rows of the batch may prolong, the base's keys that are due are merged instead, and an index
//! of ends is read (see `session_windows`).
//!
//! Invariants:
//! 1. no group of the state has a time at or before the watermark of its version;
//! 2. memory does not grow with the number of closed groups: the base is read page by page, and a key group's closed
//!    keys are removed by a bounded number of changes.

use crate::shard::base::Base;
use crate::shard::session_counters::SessionCounters;
use crate::states::{AGGREGATE, FEW_KEYS, WINDOW_ENDS};
use fastchangelog_columns::aggregate::{AggPlan, OutputMode};
use fastchangelog_columns::codec::{TIME_BYTES, time_of, time_prefix};
use fastchangelog_columns::payload::Payload;
use fastchangelog_columns::session_window_keys::{asking_key, end_of};
use fastchangelog_columns::typed::successor;
use fastchangelog_format::error::{Error, Result};
use fastchangelog_format::model::{Change, ChangeSet, KeyGroup, Op, StateId};
use fastchangelog_state::keyed::StatePart;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashSet};
use std::time::Instant;

/// Bytes of keys and rows that are read from the base at a time.
const PAGE_BYTES: usize = 1 << 20;
/// Bytes of keys and rows that are read from memory at once.
const IN_MEMORY_BYTES: usize = 16 << 20;
/// A key group's closed times are removed one by one if there are at most so many.
const FEW_TIMES: usize = 32;
/// Late groups that are counted once each; beyond that, each partial row counts.
const COUNTED: usize = 1 << 20;

/// The watermarks of a batch, in microseconds since the epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Watermarks {
    /// Groups at or before it are late.
    pub late: i64,
    /// Groups at or before it are closed.
    pub closed: i64,
    /// That of the batch before: groups that expired at or before it have left.
    pub before: i64,
    /// No group of the base is before it, if that is known; see [`super::Committed::next_close`].
    pub first: Option<i64>,
}

/// What becomes of a group after the last payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    /// It is combined with the base and stays.
    Stays,
    /// It is combined with the base, returned, and leaves the state.
    Leaves,
    /// The base was merged before; it leaves the state.
    WasMerged,
    /// The base was merged before; it stays.
    IsCompared,
}

/// Late and closed groups of one session.
pub(super) struct EventTime {
    mode: OutputMode,
    /// None if no group closes.
    watermarks: Option<Watermarks>,
    /// Groups are closed by the time with which their keys begin, or by the end of their session window.
    closes: bool,
    /// Groups at or before it are late.
    late_mark: Option<i64>,
    /// Groups are session windows, whose time is their end, and an index has the keys that are due.
    session_windows: bool,
    late: HashSet<u64>,
    removals: Removals,
    /// No group that stays is before it.
    next_close: i64,
}

impl EventTime {
    /// None if each group of a batch stays and is returned.
    pub(super) fn of(plan: &AggPlan, watermarks: Option<Watermarks>) -> Result<Option<Self>> {
        let mode = plan.output_mode();
        if watermarks.is_some() && !plan.begins_with_time() && !plan.has_row_times() && !plan.session_windows() {
            return Err(Error::internal("watermarks for an aggregation whose first key is not a time"));
        }
        if watermarks.is_none() && mode != OutputMode::Complete && mode != OutputMode::Append {
            return Ok(None);
        }
        let is_complete = mode == OutputMode::Complete;
        // Spark leaves late rows out of session windows in complete mode, too.
        let late_mark = watermarks.filter(|_| plan.session_windows() || !is_complete).map(|watermarks| watermarks.late);
        let watermarks = watermarks.filter(|_| !is_complete);
        Ok(Some(Self {
            mode,
            watermarks,
            closes: watermarks.is_some() && !plan.has_row_times(),
            late_mark,
            session_windows: plan.session_windows(),
            late: HashSet::new(),
            removals: Removals::default(),
            next_close: i64::MAX,
        }))
    }

    /// The payload without late groups.
    pub(super) fn without_late(&mut self, payload: Payload, counters: &mut SessionCounters) -> Result<Payload> {
        let Some(mark) = self.late_mark else { return Ok(payload) };
        let session_windows = self.session_windows;
        let is_late = |key: &[u8]| group_time(session_windows, key).is_some_and(|time| time <= mark);
        if !(0..payload.len()).any(|row| is_late(payload.key(row))) {
            return Ok(payload);
        }
        let before = self.late.len();
        let mut uncounted = 0;
        let kept = payload.retain(|key, hash| {
            let late = is_late(key);
            // Spark counts a late session window once for each map task.
            if late && !session_windows && self.late.len() < COUNTED {
                self.late.insert(hash);
            } else if late {
                uncounted += u64::from(!self.late.contains(&hash));
            }
            !late
        })?;
        counters.count("late_groups", (self.late.len() - before) as u64 + uncounted);
        Ok(kept)
    }

    /// Reads the closed groups of the base, in complete mode all of its groups. `take` gets those that are returned.
    pub(super) fn read_base(
        &mut self,
        base: &Base,
        plan: &AggPlan,
        counters: &mut SessionCounters,
        take: &mut dyn FnMut(&Payload, &mut SessionCounters) -> Result<()>,
    ) -> Result<()> {
        let part = match self.watermarks {
            None if self.mode == OutputMode::Complete => StatePart::of_prefix(AGGREGATE, &[]),
            None => return Ok(()),
            Some(_) if !self.closes => return Ok(()),
            Some(Watermarks { closed, first: Some(first), .. }) if first > closed => {
                self.next_close = first;
                return Ok(());
            }
            Some(Watermarks { closed, .. }) => {
                let (from, to) = (time_prefix(i64::MIN), successor(&time_prefix(closed)));
                let state = if self.session_windows { WINDOW_ENDS } else { AGGREGATE };
                StatePart { state, from: from.to_vec(), to }
            }
        };
        let own = base.shard.placement().key_groups();
        let start = Instant::now();
        if let Some(pages) = Page::all_in_memory(base, &part)? {
            for (group, page) in pages {
                self.take_page(&page, plan, counters, take)?;
                self.removals.end_group(group, part.state, self.watermarks);
            }
        } else {
            for group in (own.start..own.end).map(KeyGroup) {
                let mut from = part.from.clone();
                loop {
                    let page = Page::read(base, &part, group, &from)?;
                    self.take_page(&page, plan, counters, take)?;
                    match page.next {
                        Some(next) => from = next,
                        None => break,
                    }
                }
                self.removals.end_group(group, part.state, self.watermarks);
            }
        }
        if self.watermarks.is_some() {
            let from = part.to.unwrap_or_default();
            let next = base.read(|live| live.keyed.bound_from(part.state, own, &from))?;
            self.next_close = next.as_deref().and_then(time_of).unwrap_or(i64::MAX);
        }
        counters.count_since("base_micros", start);
        Ok(())
    }

    fn take_page(
        &mut self,
        page: &Page,
        plan: &AggPlan,
        counters: &mut SessionCounters,
        take: &mut dyn FnMut(&Payload, &mut SessionCounters) -> Result<()>,
    ) -> Result<()> {
        if self.watermarks.is_some() {
            page.rows().for_each(|(key, row)| self.removals.add(key, row));
        }
        if matches!(self.mode, OutputMode::Append | OutputMode::Complete) && page.len() > 0 {
            take(&self.returned(page, plan)?, counters)?;
        }
        counters.count("base_groups", page.len() as u64);
        Ok(())
    }

    /// Groups of the base as they are merged. Of session windows it is their keys, without windows: those of the base
    /// join when all rows are known.
    fn returned(&self, page: &Page, plan: &AggPlan) -> Result<Payload> {
        if !self.session_windows {
            return Payload::of_kept(plan, page.len(), page.rows());
        }
        let indexed = if self.watermarks.is_some() { TIME_BYTES } else { 0 };
        let asking: Vec<Vec<u8>> = page.rows().map(|(key, _)| asking_key(&key[indexed.min(key.len())..])).collect();
        let row = plan.empty_row();
        Payload::of_kept(plan, asking.len(), asking.iter().map(|key| (&key[..], &row[..])))
    }

    /// What becomes of the group with this key.
    pub(super) fn fate(&mut self, key: &[u8]) -> Fate {
        let Some(Watermarks { closed, .. }) = self.watermarks else {
            return if self.mode == OutputMode::Complete { Fate::IsCompared } else { Fate::Stays };
        };
        match time_of(key).filter(|_| self.closes) {
            Some(time) if time <= closed && self.mode == OutputMode::Append => Fate::WasMerged,
            Some(time) if time <= closed => Fate::Leaves,
            Some(time) => {
                self.next_close = self.next_close.min(time);
                Fate::Stays
            }
            None => Fate::Stays,
        }
    }

    /// True if only groups that leave are returned.
    pub(super) fn returns_closed_alone(&self) -> bool {
        self.mode == OutputMode::Append && self.watermarks.is_some()
    }

    /// True if the group with this key leaves.
    pub(super) fn is_closed(&self, key: &[u8]) -> bool {
        self.closes
            && self.closed().zip(group_time(self.session_windows, key)).is_some_and(|(closed, time)| time <= closed)
    }

    /// The watermarks of the batch.
    pub(super) fn watermarks(&self) -> Option<Watermarks> {
        self.watermarks
    }

    /// Groups at or before it are closed; none without watermarks.
    pub(super) fn closed(&self) -> Option<i64> {
        self.watermarks.map(|watermarks| watermarks.closed)
    }

    /// No group that was combined with the base closes before `time`.
    pub(super) fn is_open_until(&mut self, time: i64) {
        self.next_close = self.next_close.min(time);
    }

    /// The changes that remove the closed groups of the base, and their keys and bytes; the second time nothing.
    pub(super) fn take_removals(&mut self) -> (ChangeSet, u64, u64) {
        let Removals { set, keys, bytes, .. } = std::mem::take(&mut self.removals);
        (set, keys, bytes)
    }

    /// True if the base has closed groups.
    pub(super) fn has_removals(&self) -> bool {
        self.removals.keys > 0
    }

    /// A time before which no group of this version is, in microseconds; none without watermarks.
    pub(super) fn next_close(&self) -> Option<i64> {
        self.watermarks.map(|_| self.next_close)
    }
}

/// The time of the group with this key; none for null.
fn group_time(session_windows: bool, key: &[u8]) -> Option<i64> {
    if session_windows { end_of(key) } else { time_of(key) }
}

/// Some groups of the base.
#[derive(Default)]
struct Page {
    bytes: Vec<u8>,
    /// Where each key and each row ends.
    ends: Vec<(usize, usize)>,
    /// The first key after the page.
    next: Option<Vec<u8>>,
}

impl Page {
    /// All of `part`, a page for each key group with entries, in no order within it. None where a walk over RocksDB is
    /// cheaper or needed, or the part is large.
    fn all_in_memory(base: &Base, part: &StatePart) -> Result<Option<BTreeMap<KeyGroup, Self>>> {
        let (mut pages, mut bytes) = (BTreeMap::<KeyGroup, Self>::new(), 0);
        let complete = base.read(|live| {
            live.keyed.each_in_memory(part, &mut |entry| {
                let row = entry.value.unwrap_or_default();
                bytes += entry.key.len() + row.len();
                if bytes <= IN_MEMORY_BYTES {
                    pages.entry(entry.key_group).or_default().push(entry.key, row);
                }
                Ok(())
            })
        })?;
        Ok((complete && bytes <= IN_MEMORY_BYTES).then_some(pages))
    }

    fn push(&mut self, key: &[u8], row: &[u8]) {
        self.bytes.extend_from_slice(key);
        let end = self.bytes.len();
        self.bytes.extend_from_slice(row);
        self.ends.push((end, self.bytes.len()));
    }

    fn read(base: &Base, part: &StatePart, group: KeyGroup, from: &[u8]) -> Result<Self> {
        base.read_settled(std::slice::from_ref(part), |live| {
            let mut page = Self::default();
            let mut cursor = live.keyed.cursor(part.state, group, from, part.to.as_deref())?;
            while let Some((key, row)) = cursor.entry()? {
                if page.bytes.len() >= PAGE_BYTES {
                    page.next = Some(key.to_vec());
                    break;
                }
                page.push(key, row);
                cursor.advance();
            }
            Ok(page)
        })
    }

    fn len(&self) -> usize {
        self.ends.len()
    }

    fn rows(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        let mut at = 0;
        self.ends.iter().map(move |&(key, row)| {
            let start = std::mem::replace(&mut at, row);
            (&self.bytes[start..key], &self.bytes[key..row])
        })
    }
}

/// The changes that remove closed groups, key group by key group.
#[derive(Default)]
struct Removals {
    set: ChangeSet,
    keys: u64,
    bytes: u64,
    /// Of the current key group: the first keys …
    few: Vec<Vec<u8>>,
    /// … the number of keys …
    found: usize,
    /// … some times, all of them if they are few, …
    times: Vec<[u8; TIME_BYTES]>,
    /// … and the first.
    first: Option<[u8; TIME_BYTES]>,
}

impl Removals {
    /// Adds the next key of a key group.
    fn add(&mut self, key: &[u8], row: &[u8]) {
        self.keys += 1;
        self.bytes += (key.len() + row.len()) as u64;
        self.found += 1;
        if self.few.len() < FEW_KEYS {
            self.few.push(key.to_vec());
        }
        if let Some(time) = key.first_chunk::<TIME_BYTES>() {
            if self.times.len() <= FEW_TIMES && self.times.last() != Some(time) && !self.times.contains(time) {
                self.times.push(*time);
            }
            self.first = Some(self.first.map_or(*time, |first| first.min(*time)));
        }
    }

    /// Makes the changes for the keys of a key group.
    fn end_group(&mut self, group: KeyGroup, state: StateId, watermarks: Option<Watermarks>) {
        let (few, found) = (std::mem::take(&mut self.few), std::mem::take(&mut self.found));
        let (times, first) = (std::mem::take(&mut self.times), self.first.take());
        let mut remove = |op: Op, key: &[u8]| {
            self.set.push(Change { op, state, key_group: group, key, value: &[] });
        };
        if found <= few.len() {
            few.iter().for_each(|key| remove(Op::Delete, key));
        } else if times.len() <= FEW_TIMES {
            times.iter().for_each(|time| remove(Op::DeletePrefix, time));
        } else if let Some((first, Watermarks { closed, .. })) = first.and_then(|time| time_of(&time)).zip(watermarks) {
            prefixes(first, closed).iter().for_each(|prefix| remove(Op::DeletePrefix, prefix));
        }
    }
}

/// Prefixes of keys that together are those with the times from `first` to `last`: few thousand at most, however many
/// times these are.
fn prefixes(first: i64, last: i64) -> Vec<Vec<u8>> {
    let mut found = Vec::new();
    let (mut at, last) = (i128::from(first) - i128::from(i64::MIN), i128::from(last) - i128::from(i64::MIN));
    while at <= last {
        let mut bytes = 0;
        while bytes < 8 {
            let wider = 1_i128 << (8 * (bytes + 1));
            if at % wider != 0 || at + wider - 1 > last {
                break;
            }
            bytes += 1;
        }
        let time = i64::try_from(at + i128::from(i64::MIN)).unwrap_or(i64::MAX);
        found.push(time_prefix(time)[..TIME_BYTES - bytes].to_vec());
        at += 1_i128 << (8 * bytes);
    }
    found
}

#[cfg(test)]
#[path = "event_time_tests.rs"]
mod tests;
