//! The calls that read timers.
//!
//! Owns: which key groups they read. Does not own: timers (`kinds::timers`), registration (`writes`), when timers are asked for
//! (the worker).

use super::reads::check_keys;
use super::{Prefix, StateSession};
use crate::kinds::first_timer::timer;
use crate::kinds::hints::StateHints;
use crate::kinds::timer_layout::{BY_KEY, BY_TIME, PAGE_BYTES};
use crate::kinds::timers::{self, DueRange};
use crate::kinds::view::View;
use crate::states::times::TIME;
use arrow_array::builder::{BinaryBuilder, Int64Builder, ListBuilder};
use arrow_array::{Array, BinaryArray, Int64Array, ListArray};
use fastchangelog_format::error::Result;
use fastchangelog_format::model::KeyGroup;
use std::time::Instant;

impl StateSession {
    /// The timers until `until` (inclusive) after a time and key, in the order of time and key over all key groups, at most
    /// `limit`, fewer if their keys are long; and whether there are more.
    pub(super) fn due_timers(
        &mut self,
        until: i64,
        after: Option<(i64, &[u8])>,
        limit: usize,
    ) -> Result<(Int64Array, BinaryArray, bool)> {
        let start = Instant::now();
        let (mut times, mut keys, mut more) = (Int64Builder::new(), BinaryBuilder::new(), false);
        if let Some(state) = self.declared()?.catalog.timers() {
            let (after, to) = (after.map(|(time, key)| timer(time, key)), timers::end_of_due(until));
            let groups = timers::groups_due(&self.hints, state, self.key_groups(), &to);
            if !groups.is_empty() {
                let range = DueRange { after: after.as_deref(), to: &to, limit };
                let page = self.read_and_learn((state, &[BY_TIME]), |view, hints| {
                    timers::due(view, state, &groups, range, hints)
                })?;
                for (time, key) in timers::split(&page.timers)? {
                    times.append_value(time);
                    keys.append_value(key);
                }
                more = page.more;
            }
        }
        let (times, keys) = (times.finish(), keys.finish());
        self.counters.count("due_timers", times.len() as u64);
        self.count_read(start);
        Ok((times, keys, more))
    }

    /// The first time of all timers; none if there are no timers.
    pub(super) fn next_timer(&mut self) -> Result<Option<i64>> {
        let start = Instant::now();
        let Some(state) = self.declared()?.catalog.timers() else { return Ok(None) };
        let (mut first, groups) = timers::known_first(&self.hints, state, self.key_groups());
        if !groups.is_empty() {
            first = self.read_and_learn((state, &[BY_TIME]), |view, hints| {
                timers::find_first(view, state, first, &groups, hints)
            })?;
            self.count_read(start);
        }
        Ok(first.as_deref().and_then(timers::time_of_timer))
    }

    /// The times of the timers of each of the first keys, in their order: of all keys, unless they have more timers than a
    /// page holds; of at least one key.
    pub(super) fn timers_of(&mut self, keys: &BinaryArray) -> Result<ListArray> {
        self.timers_of_some(keys, PAGE_BYTES)
    }

    /// As [`Self::timers_of`], with another bound.
    fn timers_of_some(&mut self, keys: &BinaryArray, most: usize) -> Result<ListArray> {
        let start = Instant::now();
        let state = self.declared()?.catalog.timers();
        check_keys(keys)?;
        let groups = self.groups_of(keys)?;
        let may_have = |state, group: KeyGroup| self.hints.first_timer((state, group)).bound().is_some();
        let times = match state.filter(|state| groups.iter().any(|group| may_have(*state, *group))) {
            None => vec![Vec::new(); keys.len()],
            Some(state) => self.read(Some((state, &[BY_KEY])), |view| {
                let (mut lists, mut bytes, mut spare) = (Vec::new(), 0, None);
                for (i, group) in groups.iter().enumerate() {
                    if bytes >= most {
                        break;
                    }
                    let times = timers::times_of(view, &mut spare, (state, *group), keys.value(i))?;
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

    /// Reads, and keeps the hints that reading gives.
    fn read_and_learn<T>(
        &mut self,
        part: Prefix<'_>,
        read: impl FnOnce(View<'_>, &mut StateHints) -> Result<T>,
    ) -> Result<T> {
        let mut hints = std::mem::take(&mut self.hints);
        let found = self.read(Some(part), |view| read(view, &mut hints));
        self.hints = hints;
        found
    }
}

#[cfg(test)]
#[path = "timers_tests.rs"]
mod tests;
