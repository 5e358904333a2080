//! Session windows: times of one key that touch are one group.
//!
//! Owns: the list of session windows that a state keeps for a key, merging.
//! Does not own: their keys (`session_window_keys`), the end of a row's window (Spark), late and closed ones
//! (`shard::session`).
//!
//! In the state, one entry has all session windows of a key (see [`WindowList`]), so that rows find them without
//! reading keys in order.
//!
//! Merging is Spark's: windows go by start, a stored one before rows of the same start; the next one joins if it starts
//! at or before the end so far. Functions that depend on the order of rows see this order.
//!
//! Invariants:
//! 1. windows of a list neither overlap nor touch, and go by start;
//! 2. rows of the same start and end join in the order of arrival.

use super::aggregate::AggPlan;
use super::codec::{TIME_BYTES, time_prefix};
use super::session_window_keys::{end_of, grouping_key, start_of, window_key};
use super::table::GroupTable;
use fastchangelog_format::{Error, Result};
use std::ops::Range;
use std::sync::Arc;

/// Bytes of a time in a list.
const TIME: usize = 8;

/// The session windows of a key, as the state keeps them: `due`, then for each its start, its end, the length of its row and
/// its row. Times are big endian with the sign bit flipped, the length is little endian.
#[derive(Debug, Clone, Copy)]
pub struct WindowList<'a> {
    /// Where the index of ends has the key: no window ends before it.
    pub due: i64,
    windows: &'a [u8],
}

impl<'a> WindowList<'a> {
    /// Reads the first part of a list.
    pub fn parse(bytes: &'a [u8]) -> Result<Self> {
        let (due, windows) = take_time(bytes)?;
        Ok(Self { due, windows })
    }

    /// Start, end and row of each window. The first error is the last item.
    pub fn iter(self) -> impl Iterator<Item = Result<(i64, i64, &'a [u8])>> {
        let mut rest = self.windows;
        std::iter::from_fn(move || {
            if rest.is_empty() {
                return None;
            }
            let window = take_window(rest);
            rest = window.as_ref().map_or(&[][..], |(_, tail)| tail);
            Some(window.map(|(window, _)| window))
        })
    }

    /// Begins a list in `out`, which has nothing else afterwards.
    pub fn begin(due: i64, out: &mut Vec<u8>) {
        out.clear();
        put_time(due, out);
    }

    /// Adds the window with this key to the list in `out`.
    pub fn push(key: &[u8], row: &[u8], out: &mut Vec<u8>) -> Result<()> {
        let (start, end) = times(key)?;
        put_time(start, out);
        put_time(end, out);
        let len = u32::try_from(row.len()).map_err(|_| {
            Error::invalid("a session window has more than 4 GiB").with_remedy("make the values of each row smaller")
        })?;
        out.extend_from_slice(&len.to_le_bytes());
        out.extend_from_slice(row);
        Ok(())
    }
}

fn times(key: &[u8]) -> Result<(i64, i64)> {
    start_of(key).zip(end_of(key)).ok_or_else(|| Error::internal("a session window without a time"))
}

fn put_time(time: i64, out: &mut Vec<u8>) {
    out.extend_from_slice(&time_prefix(time)[TIME_BYTES - TIME..]);
}

fn take_time(bytes: &[u8]) -> Result<(i64, &[u8])> {
    let (time, rest) = bytes.split_first_chunk::<TIME>().ok_or_else(bad_list)?;
    Ok((i64::from_be_bytes(*time) ^ i64::MIN, rest))
}

#[expect(clippy::type_complexity, reason = "a window, and what follows it")]
fn take_window(bytes: &[u8]) -> Result<((i64, i64, &[u8]), &[u8])> {
    let (start, rest) = take_time(bytes)?;
    let (end, rest) = take_time(rest)?;
    let (len, rest) = rest.split_first_chunk::<4>().ok_or_else(bad_list)?;
    let (row, rest) = rest.split_at_checked(u32::from_le_bytes(*len) as usize).ok_or_else(bad_list)?;
    Ok(((start, end, row), rest))
}

fn bad_list() -> Error {
    Error::corrupt("a list of session windows", 0, "its end is missing")
}

/// The session windows of a table by key and start, to be merged.
#[derive(Debug)]
pub struct WindowMerge<'a> {
    table: &'a GroupTable,
    /// Numbers of groups.
    order: Vec<u32>,
    /// Of each key, its part of `order`.
    keys: Vec<Range<usize>>,
}

impl<'a> WindowMerge<'a> {
    /// Sorts the windows of `table`.
    pub fn of(table: &'a GroupTable) -> Self {
        #[expect(clippy::cast_possible_truncation, reason = "groups are counted as u32")]
        let mut order: Vec<u32> = (0..table.len() as u32).collect();
        let place = |group: &u32| (table.hash(*group as usize), table.key(*group as usize), *group);
        order.sort_unstable_by(|a, b| place(a).cmp(&place(b)));
        let mut keys: Vec<Range<usize>> = Vec::new();
        for at in 0..order.len() {
            let key = grouping_key(table.key(order[at] as usize));
            match keys.last_mut() {
                Some(last) if grouping_key(table.key(order[last.start] as usize)) == key => last.end = at + 1,
                _ => keys.push(at..at + 1),
            }
        }
        Self { table, order, keys }
    }

    /// Number of keys.
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// True without keys.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Key `i`, without a window.
    pub fn key(&self, i: usize) -> &'a [u8] {
        grouping_key(self.table.key(self.first(i)))
    }

    /// The hash of key `i`.
    pub fn hash(&self, i: usize) -> u64 {
        self.table.hash(self.first(i))
    }

    /// The groups of all keys from key `i` on.
    pub fn groups_from(&self, i: usize) -> Result<GroupTable> {
        let (mut groups, mut scratch) = (GroupTable::new(Arc::clone(self.table.plan())), Vec::new());
        for group in &self.order[self.keys.get(i).map_or(self.order.len(), |keys| keys.start)..] {
            groups.load(self.table.key(*group as usize), self.table.row(*group as usize, &mut scratch))?;
        }
        Ok(groups)
    }

    fn first(&self, i: usize) -> usize {
        self.order[self.keys[i].start] as usize
    }

    /// Adds the windows of key `i` to `merged`, those of `stored` among them, by start.
    pub fn merge(&self, i: usize, stored: Option<WindowList<'_>>, merged: &mut GroupTable) -> Result<()> {
        let stored: Vec<_> = stored.map(|list| list.iter().collect::<Result<_>>()).transpose()?.unwrap_or_default();
        let arrived = self.order[self.keys[i].clone()].iter().map(|group| *group as usize);
        let mut arrived = arrived.filter(|group| start_of(self.table.key(*group)).is_some()).peekable();
        let mut stored = stored.into_iter().peekable();
        let mut parts: Vec<Part<'_>> = Vec::new();
        let mut span: Option<(i64, i64)> = None;
        loop {
            let next = arrived.peek().map(|group| times(self.table.key(*group))).transpose()?;
            let (start, end, part) = match (stored.peek(), next) {
                (Some((first, end, row)), next) if next.is_none_or(|(start, _)| *first <= start) => {
                    let found = (*first, *end, Part::Stored(row));
                    stored.next();
                    found
                }
                (_, Some((start, end))) => {
                    let Some(group) = arrived.next() else { break };
                    (start, end, Part::Arrived(group))
                }
                _ => break,
            };
            span = match span {
                Some((first, last)) if start <= last => Some((first, last.max(end))),
                ended => {
                    self.add(i, ended, &parts, merged)?;
                    parts.clear();
                    Some((start, end))
                }
            };
            parts.push(part);
        }
        self.add(i, span, &parts, merged)
    }

    fn add(&self, i: usize, span: Option<(i64, i64)>, parts: &[Part<'_>], merged: &mut GroupTable) -> Result<()> {
        let (Some((start, end)), Some((first, others))) = (span, parts.split_first()) else { return Ok(()) };
        let mut scratch = Vec::new();
        merged.load(&window_key(self.key(i), start, end), first.row(self.table, &mut scratch))?;
        others.iter().try_for_each(|part| merged.join_last(part.row(self.table, &mut scratch)))
    }
}

/// A part of a merged window.
#[derive(Debug, Clone, Copy)]
enum Part<'a> {
    Stored(&'a [u8]),
    /// The number of a group.
    Arrived(usize),
}

impl<'a> Part<'a> {
    fn row(self, table: &'a GroupTable, scratch: &'a mut Vec<u8>) -> &'a [u8] {
        match self {
            Self::Stored(row) => row,
            Self::Arrived(group) => table.row(group, scratch),
        }
    }
}

/// The merged windows of a table, without stored ones. Keys without a window stay if `asking`.
pub fn merged(table: &GroupTable, asking: bool) -> Result<GroupTable> {
    let merge = WindowMerge::of(table);
    let mut merged = GroupTable::new(Arc::clone(table.plan()));
    for i in 0..merge.len() {
        let first = merge.first(i);
        if asking && start_of(table.key(first)).is_none() {
            merged.load(table.key(first), table.row(first, &mut Vec::new()))?;
        }
        merge.merge(i, None, &mut merged)?;
    }
    Ok(merged)
}

/// Merges the windows of a table that no state belongs to; a table of other groups stays as it is.
pub fn merge_alone(table: &mut GroupTable) -> Result<()> {
    if table.plan().session_windows() {
        *table = merged(table, false)?;
    }
    Ok(())
}

/// Adds the session windows that the state keeps for a key to a table.
pub fn load_list(grouping: &[u8], list: &[u8], table: &mut GroupTable) -> Result<()> {
    for window in WindowList::parse(list)?.iter() {
        let (start, end, row) = window?;
        table.load(&window_key(grouping, start, end), row)?;
    }
    Ok(())
}

/// True if session windows may be merged before all of them are known: the results have the same bits.
pub fn merge_early(plan: &AggPlan) -> bool {
    plan.session_windows() && plan.any_order()
}

#[cfg(test)]
#[path = "session_windows_tests.rs"]
mod tests;
