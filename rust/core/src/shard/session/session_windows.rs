//! Session windows of a batch, merged with those of the base.
//!
//! Owns: the windows that stay with a key and those that leave, the entries of the state that say so, the index of ends.
//! Does not own: merging (`columns::session_windows`), late windows and the keys that are due (`event_time`).
//!
//! The state [`AGGREGATE`] has an entry for each key, with all its open windows. The state [`WINDOW_ENDS`] has an empty
//! entry for each key, which begins with a time, its `due`: closed windows are found by a range of it. A due need not be
//! the end of a window. It moves when the watermark reaches it, or for a window that ends before it; a window that grows
//! batch by batch moves no index entry.
//!
//! Invariants:
//! 1. a key has one entry in each of the two states, or none; `due` of its list is the time in the index;
//! 2. no window of a key ends before its `due`.

use super::changes::TableChanges;
use super::combine::{Combiner, Parent};
use super::event_time::EventTime;
use crate::shard::session_counters::SessionCounters;
use crate::states::{AGGREGATE, WINDOW_ENDS};
use fastchangelog_columns::codec::time_prefix;
use fastchangelog_columns::session_window_keys::end_of;
use fastchangelog_columns::session_windows::{WindowList, WindowMerge};
use fastchangelog_columns::table::GroupTable;
use fastchangelog_format::error::Result;
use fastchangelog_format::model::{Change, ChangeSet, KeyGroup, Op, StateId, key_group_of};
use fastchangelog_state::keyed::{KeyRef, KeyedState};
use std::ops::{ControlFlow, Range};
use std::sync::Arc;
use std::time::Instant;

/// Keys that are merged between two looks at the memory.
const STEP: usize = 512;

/// The key of an entry of [`WINDOW_ENDS`].
fn index_key(due: i64, key: &[u8]) -> Vec<u8> {
    [&time_prefix(due), key].concat()
}

impl Combiner {
    /// As [`Combiner::combine`], for session windows: for the first keys of `table`, until windows and changes have
    /// `most` bytes. Also gives the groups of the other keys.
    pub(super) fn merge_windows(
        &self,
        table: &mut GroupTable,
        mut event_time: Option<&mut EventTime>,
        most: u64,
        counters: &mut SessionCounters,
    ) -> Result<(TableChanges, Parent, Option<GroupTable>)> {
        let start = Instant::now();
        let groups = self.0.shard.placement().max_parallelism;
        let closed = event_time.as_deref().and_then(EventTime::closed);
        let merge = WindowMerge::of(table);
        let mut merged = GroupTable::new(Arc::clone(table.plan()));
        let mut changes = WindowChanges { groups, closed, next_due: i64::MAX, ..WindowChanges::default() };
        let (mut done, mut misses) = (0, 0);
        let parent = self.0.read(|live| {
            while done < merge.len() && (done == 0 || merged.memory_bytes() + changes.set.memory_bytes() <= most) {
                let keys = done..merge.len().min(done + STEP);
                let lists = StoredLists::read(&merge, keys.clone(), groups, &live.keyed)?;
                misses += lists.misses;
                for i in keys {
                    let (stored, before) = (lists.get(i), merged.len());
                    merge.merge(i, stored.map(WindowList::parse).transpose()?, &mut merged)?;
                    changes.add((merge.key(i), merge.hash(i)), stored, &merged, before..merged.len())?;
                }
                done = merge.len().min(done + STEP);
            }
            Ok(Parent::of(live))
        })?;
        counters.count("hot_misses", misses);
        counters.count("hot_hits", done as u64 - misses);
        let rest = (done < merge.len()).then(|| merge.groups_from(done)).transpose()?;
        if let Some(event_time) = event_time.as_deref_mut() {
            event_time.is_open_until(changes.next_due);
        }
        if let Some(event_time) = event_time.filter(|event_time| event_time.returns_closed_alone()) {
            merged.keep(|merged, i| event_time.is_closed(merged.key(i)))?;
        }
        *table = merged;
        changes.set.sort_by_key_group();
        counters.count_since("combine_micros", start);
        self.context().metrics.combine_micros.add_elapsed(start);
        let WindowChanges { set, keys, bytes, .. } = changes;
        Ok((TableChanges { set, keys, bytes }, parent, rest))
    }

    /// True if the base has more than `most` bytes of session windows for the keys of `table`.
    pub(super) fn has_long_lists(&self, table: &GroupTable, most: u64) -> Result<bool> {
        if !table.plan().session_windows() {
            return Ok(false);
        }
        let groups = self.0.shard.placement().max_parallelism;
        self.0.read(|live| {
            if live.state_bytes <= most {
                return Ok(false);
            }
            let (merge, mut bytes) = (WindowMerge::of(table), 0);
            live.keyed.get_many(AGGREGATE, &key_refs(&merge, 0..merge.len(), groups), &mut |_, list| {
                bytes += list.map_or(0, |list| list.len() as u64);
                if bytes > most { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            })?;
            Ok(bytes > most)
        })
    }
}

fn key_refs<'a>(merge: &WindowMerge<'a>, keys: Range<usize>, groups: u16) -> Vec<KeyRef<'a>> {
    let key = |i| KeyRef { hash: merge.hash(i), key_group: key_group_of(merge.hash(i), groups), key: merge.key(i) };
    keys.map(key).collect()
}

/// The lists that the base has of some keys of a table.
struct StoredLists {
    first: usize,
    bytes: Vec<u8>,
    spans: Vec<Option<Range<usize>>>,
    /// Keys that the hot tier could not answer for.
    misses: u64,
}

impl StoredLists {
    fn read(merge: &WindowMerge<'_>, keys: Range<usize>, groups: u16, keyed: &KeyedState) -> Result<Self> {
        let mut lists = Self { first: keys.start, bytes: Vec::new(), spans: vec![None; keys.len()], misses: 0 };
        lists.misses = keyed.get_many(AGGREGATE, &key_refs(merge, keys, groups), &mut |i, list| {
            if let Some(list) = list {
                let start = lists.bytes.len();
                lists.bytes.extend_from_slice(list);
                lists.spans[i] = Some(start..lists.bytes.len());
            }
            ControlFlow::Continue(())
        })?;
        Ok(lists)
    }

    /// The list of key `i` of the table.
    fn get(&self, i: usize) -> Option<&[u8]> {
        self.spans[i - self.first].clone().map(|span| &self.bytes[span])
    }
}

/// The changes of a table of session windows to the base.
#[derive(Default)]
struct WindowChanges {
    groups: u16,
    /// Windows that end at or before it leave; index entries at or before it are removed elsewhere.
    closed: Option<i64>,
    set: ChangeSet,
    /// Added entries, less removed ones.
    keys: i64,
    bytes: i64,
    /// No index entry that is written is before it.
    next_due: i64,
    list: Vec<u8>,
}

impl WindowChanges {
    /// Adds what becomes of a key whose windows are now the groups `windows` of `merged`.
    fn add(
        &mut self,
        (key, hash): (&[u8], u64),
        stored: Option<&[u8]>,
        merged: &GroupTable,
        windows: Range<usize>,
    ) -> Result<()> {
        let group = key_group_of(hash, self.groups);
        let end = |window: usize| end_of(merged.key(window)).unwrap_or(i64::MAX);
        let is_open = |closed: Option<i64>, window: &usize| closed.is_none_or(|closed| end(*window) > closed);
        let open: Vec<usize> = windows.filter(|window| is_open(self.closed, window)).collect();
        let first = open.iter().map(|window| end(*window)).min();
        let old = stored.map(WindowList::parse).transpose()?.map(|list| list.due);
        let stays = |old: &i64| self.closed.is_none_or(|closed| *old > closed) && Some(*old) <= first;
        let due = old.filter(stays).or(first);
        if due != old {
            if let Some(old) = old.filter(|old| self.closed.is_none_or(|closed| *old > closed)) {
                self.change(WINDOW_ENDS, group, &index_key(old, key), Some(&[]), None);
            }
            if let Some(due) = due {
                self.next_due = self.next_due.min(due);
                self.change(WINDOW_ENDS, group, &index_key(due, key), None, Some(&[]));
            }
        }
        let Some(due) = due else {
            self.change(AGGREGATE, group, key, stored, None);
            return Ok(());
        };
        let (mut list, mut scratch) = (std::mem::take(&mut self.list), Vec::new());
        WindowList::begin(due, &mut list);
        for window in open {
            WindowList::push(merged.key(window), merged.row(window, &mut scratch), &mut list)?;
        }
        self.change(AGGREGATE, group, key, stored, Some(&list));
        self.list = list;
        Ok(())
    }

    /// Adds the change from the value `old` to `new`, if there is one.
    fn change(&mut self, state: StateId, key_group: KeyGroup, key: &[u8], old: Option<&[u8]>, new: Option<&[u8]>) {
        if old == new {
            return;
        }
        let bytes = |value: Option<&[u8]>| value.map_or(0, |value| count(key.len() + value.len()));
        self.bytes += bytes(new) - bytes(old);
        self.keys += i64::from(new.is_some()) - i64::from(old.is_some());
        let op = if new.is_some() { Op::Put } else { Op::Delete };
        self.set.push(Change { op, state, key_group, key, value: new.unwrap_or_default() });
    }
}

fn count(n: usize) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

#[cfg(test)]
#[path = "session_windows_tests.rs"]
mod tests;
