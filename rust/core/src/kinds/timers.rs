//! Timers: keys by time, in order.
//!
//! Owns: registration, due timers in order, the times of keys, the earliest timer.
//! Does not own: the entries of a timer (`timer_layout`), bounds on the first timer (`first_timer`), when timers are due (the
//! hosts).
//!
//! A timer is a key and a time: registered twice it is there once.

use super::first_timer::{FirstTimer, end_of_timers, entry_by_time, known};
use super::hints::StateHints;
use super::page::{At, OfKey, Rows};
use super::timer_layout::{BY_KEY, PAGE_BYTES, push_by_key, push_by_time, split_by_key, split_by_time, times_of_key};
use super::view::View;
use super::write::{CLEAR, Changes, DELETE, PUT, Write};
use super::{Held, RowGroups, StateKind, StateRef, place_of};
use crate::states::Place;
use crate::states::layers::Layers;
use crate::states::scan::Found;
use crate::states::times::{TIME, ordered, time_of};
use crate::states::under::Spare;
use fastchangelog_columns::typed::successor;
use fastchangelog_format::error::{Error, Result};
use fastchangelog_format::model::{KeyGroup, StateId};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap};
use std::ops::Bound;

/// Entries that are read of one key group at once, and about the bytes, at least.
const LEAST_READ: usize = 16;
const MOST_READ: usize = 4096;
const LEAST_BYTES: usize = 16 << 10;

pub(super) struct TimerKind;

impl StateKind for TimerKind {
    fn held(&self) -> Held {
        Held::Times
    }

    fn refusal(&self, changes: Changes<'_>) -> Option<(usize, &'static str)> {
        (0..changes.len()).find_map(|row| {
            let why = match changes.op(row) {
                CLEAR => None,
                PUT | DELETE => changes.time(row).is_none().then_some("its time is not one of eight bytes"),
                _ => Some("its operation is not one of this kind of state"),
            };
            why.map(|why| (row, why))
        })
    }

    fn reads_before_write(&self, changes: Changes<'_>) -> bool {
        changes.has(CLEAR)
    }

    fn writes_walk(&self) -> bool {
        true
    }

    fn prepare<'c>(
        &self,
        view: Option<View<'_>>,
        state: StateRef,
        changes: Changes<'c>,
        groups: RowGroups<'c>,
    ) -> Result<Write<'c>> {
        let cleared = if changes.has(CLEAR) { cleared_times(view, state, changes, groups)? } else { HashMap::new() };
        let entries = 2 * (changes.len() + cleared.values().map(Vec::len).sum::<usize>());
        let keys: usize = (0..changes.len()).map(|row| changes.key(row).len()).sum();
        let bytes = 2 * keys + (1 + TIME) * entries;
        Ok(Write::new(entries, bytes, move |layers, hints| {
            for row in 0..changes.len() {
                let (place, key) = (place_of(state, groups, row), changes.key(row));
                match changes.time(row).filter(|_| changes.op(row) != CLEAR) {
                    Some(time) => write_timer(layers, hints, place, key, time, changes.op(row) == PUT),
                    None => {
                        let times = cleared.get(&row).into_iter().flatten();
                        times.for_each(|time| write_timer(layers, hints, place, key, *time, false));
                    }
                }
            }
        }))
    }

    fn walked(&self) -> Option<u8> {
        Some(BY_KEY)
    }

    fn add_rows(&self, rows: &mut Rows, _: OfKey<'_>, entry: &[u8], _: &[u8]) -> Result<Option<At>> {
        let (key, time) = split_by_key(entry)?;
        rows.push(key, Some(&time.to_be_bytes()), None);
        Ok(None)
    }
}

/// Registers or removes a timer.
pub(crate) fn write_timer(
    layers: &mut Layers,
    hints: &mut StateHints,
    place: Place,
    key: &[u8],
    time: i64,
    is_there: bool,
) {
    let mut entry = Vec::with_capacity(1 + TIME + key.len());
    let value = is_there.then_some(&[][..]);
    push_by_key(&mut entry, key, time);
    layers.put(place, &entry, value);
    push_by_time(&mut entry, time, key);
    layers.put(place, &entry, value);
    if is_there {
        hints.added_timer(place, time, key);
    } else {
        hints.removed_timer(place, time, key);
    }
}

/// The times that each clear of a write removes, by its row. A clear sees the rows before it.
fn cleared_times(
    view: Option<View<'_>>,
    state: StateRef,
    changes: Changes<'_>,
    groups: RowGroups<'_>,
) -> Result<HashMap<usize, Vec<i64>>> {
    let view = view.ok_or_else(|| Error::internal("a clear of timers without a view"))?;
    let (mut cleared, mut spare) = (HashMap::new(), None);
    // The timers that rows of this write have registered or removed, and the keys they have cleared.
    let mut changed: HashMap<&[u8], (bool, BTreeMap<i64, bool>)> = HashMap::new();
    for row in 0..changes.len() {
        let key = changes.key(row);
        let own = changed.entry(key).or_default();
        if changes.op(row) != CLEAR {
            own.1.extend(changes.time(row).map(|time| (time, changes.op(row) == PUT)));
            continue;
        }
        let (was_cleared, times) = std::mem::replace(own, (true, BTreeMap::new()));
        let stored =
            if was_cleared { Vec::new() } else { times_of(view, &mut spare, place_of(state, groups, row), key)? };
        let mut all: BTreeMap<i64, bool> = stored.into_iter().map(|time| (time, true)).collect();
        all.extend(times);
        cleared.insert(row, all.into_iter().filter(|(_, is_there)| *is_there).map(|(time, _)| time).collect());
    }
    Ok(cleared)
}

/// The times of one key's timers, in order.
pub(crate) fn times_of<'v>(view: View<'v>, spare: &mut Spare<'v>, place: Place, key: &[u8]) -> Result<Vec<i64>> {
    let prefix = [&[BY_KEY], key].concat();
    let (from, to) = (Bound::Included(&prefix[..]), successor(&prefix));
    let mut cursor = view.cursor_again(spare.take(), place, from, to.as_deref())?;
    let times = times_of_key(&mut cursor, key)?;
    *spare = cursor.into_spare();
    Ok(times)
}

/// Timers in order of time and key, over key groups.
#[derive(Debug, Default)]
pub(crate) struct DuePage {
    /// Entries by time, in order.
    pub(crate) timers: Found,
    /// There are more after the last one.
    pub(crate) more: bool,
}

/// A page of timers that is asked for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DueRange<'a> {
    /// The last timer of the page before, as [`super::first_timer::timer`] gives it.
    pub(crate) after: Option<&'a [u8]>,
    /// The end of the entries by time, exclusive.
    pub(crate) to: &'a [u8],
    /// Bound on the number of timers. Long keys make a page shorter, of [`PAGE_BYTES`] beside the last timer.
    pub(crate) limit: usize,
}

/// The end of the entries by time of timers that are due at `until`, inclusive.
pub(crate) fn end_of_due(until: i64) -> Vec<u8> {
    until.checked_add(1).map_or_else(end_of_timers, |end| entry_by_time(&ordered(end)))
}

/// The next timers of some key groups, and in `hints` what was learned of the first ones. Ask for no group without timers before
/// the end: see [`groups_due`].
pub(crate) fn due(
    view: View<'_>,
    state: StateId,
    groups: &[KeyGroup],
    range: DueRange<'_>,
    hints: &mut StateHints,
) -> Result<DuePage> {
    let DueRange { after, to, limit } = range;
    let mut page = DuePage::default();
    if groups.is_empty() || limit == 0 {
        return Ok(page);
    }
    if let &[group] = groups {
        return due_in((view, (state, group)), range, hints);
    }
    let rows = (limit / groups.len()).saturating_add(1).clamp(LEAST_READ, MOST_READ);
    let bytes = (PAGE_BYTES / groups.len()).max(LEAST_BYTES);
    let mut part = Part { view, spare: None, to, rows, bytes };
    let (mut merged, mut heap) = (Vec::new(), BinaryHeap::new());
    for &group in groups {
        let place = (state, group);
        let Some(start) = Start::of(hints, place, after) else { continue };
        let mut own = Group::read(&mut part, place, start.bound())?;
        let next = own.take(&mut part)?;
        if start.is_first {
            hints.learn_timer(place, known(next.as_deref(), Some(to)));
        }
        heap.extend(next.map(|entry| Reverse((entry, merged.len()))));
        merged.push(own);
    }
    while let Some(Reverse((entry, i))) = heap.pop() {
        page.timers.push(&entry, &[]);
        if page.timers.len() == limit || page.timers.bytes() >= PAGE_BYTES {
            page.more = !heap.is_empty() || merged[i].has_next();
            break;
        }
        heap.extend(merged[i].take(&mut part)?.map(|entry| Reverse((entry, i))));
    }
    Ok(page)
}

/// The next timers of one key group.
fn due_in((view, place): (View<'_>, Place), range: DueRange<'_>, hints: &mut StateHints) -> Result<DuePage> {
    let mut page = DuePage::default();
    let Some(start) = Start::of(hints, place, range.after) else { return Ok(page) };
    let mut cursor = view.cursor(place, start.bound(), Some(range.to))?;
    if start.is_first {
        hints.learn_timer(place, known(cursor.entry()?.map(|(entry, _)| entry), Some(range.to)));
    }
    while let Some((entry, _)) = cursor.entry()? {
        if page.timers.len() == range.limit || page.timers.bytes() >= PAGE_BYTES {
            page.more = true;
            break;
        }
        page.timers.push(entry, &[]);
        cursor.advance()?;
    }
    Ok(page)
}

/// Where a page of timers begins in a key group.
struct Start {
    entry: Vec<u8>,
    /// It is the first timer that there may be, and not the one after the page before.
    is_first: bool,
}

impl Start {
    /// None if the key group has no timers.
    fn of(hints: &StateHints, place: Place, after: Option<&[u8]>) -> Option<Self> {
        let first = hints.first_timer(place);
        let first = first.bound()?;
        let passes = after.filter(|after| *after >= first);
        Some(Self { entry: entry_by_time(passes.unwrap_or(first)), is_first: passes.is_none() })
    }

    fn bound(&self) -> Bound<&[u8]> {
        if self.is_first { Bound::Included(&self.entry) } else { Bound::Excluded(&self.entry) }
    }
}

/// The key groups that may have timers before the end of a range.
pub(crate) fn groups_due(
    hints: &StateHints,
    state: StateId,
    groups: impl Iterator<Item = KeyGroup>,
    to: &[u8],
) -> Vec<KeyGroup> {
    let may_have = |bound: &[u8]| entry_by_time(bound).as_slice() < to;
    groups.filter(|group| hints.first_timer((state, *group)).bound().is_some_and(may_have)).collect()
}

/// What is to be read of key groups: timers below `to`, so many rows and about so many bytes at once.
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

/// The earliest timer as far as hints know it, and the key groups that must be read to be sure, in the order of reading.
pub(crate) fn known_first(
    hints: &StateHints,
    state: StateId,
    groups: impl Iterator<Item = KeyGroup>,
) -> (Option<Vec<u8>>, Vec<KeyGroup>) {
    let all: Vec<(KeyGroup, FirstTimer)> = groups.map(|group| (group, hints.first_timer((state, group)))).collect();
    let exact =
        all.iter().filter_map(|(_, first)| if let FirstTimer::Is(timer) = first { Some(timer.clone()) } else { None });
    let first = exact.min();
    let is_before = |bound: &[u8]| first.as_deref().is_none_or(|first| bound < first);
    let mut unknown: Vec<&(KeyGroup, FirstTimer)> =
        all.iter().filter(|(_, known)| matches!(known, FirstTimer::NotBefore(bound) if is_before(bound))).collect();
    unknown.sort_by(|(_, one), (_, other)| one.bound().cmp(&other.bound()));
    (first.clone(), unknown.into_iter().map(|(group, _)| *group).collect())
}

/// The earliest timer of all: `first`, or one of these key groups, in the order of their bounds. In `hints` what was learned.
pub(crate) fn find_first(
    view: View<'_>,
    state: StateId,
    mut first: Option<Vec<u8>>,
    groups: &[KeyGroup],
    hints: &mut StateHints,
) -> Result<Option<Vec<u8>>> {
    let mut spare = None;
    for &group in groups {
        let place = (state, group);
        let own = hints.first_timer(place);
        let bound = own.bound().unwrap_or_default();
        if first.as_deref().is_some_and(|first| first <= bound) {
            break;
        }
        let (from, to) = (entry_by_time(bound), end_of_timers());
        let cursor = view.cursor_again(spare.take(), place, Bound::Included(&from[..]), Some(&to))?;
        let found = known(cursor.entry()?.map(|(entry, _)| entry), None);
        spare = cursor.into_spare();
        if let FirstTimer::Is(timer) = &found {
            first = first.take().into_iter().chain(std::iter::once(timer.clone())).min();
        }
        hints.learn_timer(place, found);
    }
    Ok(first)
}

/// The time of a timer as [`super::first_timer::timer`] gives it.
pub(crate) fn time_of_timer(bytes: &[u8]) -> Option<i64> {
    bytes.first_chunk().copied().map(time_of)
}

/// Time and key of each entry by time.
pub(crate) fn split(found: &Found) -> Result<Vec<(i64, &[u8])>> {
    found.keys().map(split_by_time).collect()
}
