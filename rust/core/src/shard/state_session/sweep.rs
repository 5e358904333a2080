//! The removal of entries that have ended, a bounded part of it with each commit.
//!
//! Owns: the walk over the entries of states with a time to live.
//! Does not own: what of them goes (`states::sweep`), that nothing of an ended entry is read (`reads`, `pages`), when an entry ends
//! (the worker).
//!
//! A walk begins when an entry may have ended, and goes on over the commits until all key groups are passed: it goes round, from
//! the one that it began with. What it removes is part of the change set.
//!
//! Invariants:
//! 1. a commit passes at most [`sweep::MOST_PASSED`] entries, and KiB of them, and those of one step for each state;
//! 2. its changes take at most the memory of changes, beside those of one step: more are on the local disk.

use super::writes::CHANGE_BYTES;
use super::{StateSession, Used};
use crate::states::catalog::DeclaredState;
use crate::states::sweep::{self, Allowance, Outcome, Sweep};
use fastchangelog_format::error::Result;
use fastchangelog_format::model::{KeyGroup, KeyGroupRange, StateId};
use std::ops::Bound;

impl StateSession {
    /// Removes some of what has ended.
    pub(super) fn sweep(&mut self) -> Result<()> {
        let declared = self.declared()?;
        let now = declared.now;
        let used = |state: &DeclaredState| Used { id: StateId(state.id), kind: state.kind, ttl: state.ttl, now };
        let with_ends: Vec<Used> = declared.catalog.states().filter(|state| state.ttl).map(used).collect();
        let due: Vec<Used> =
            with_ends.into_iter().filter(|used| self.hints.ends(used.id).may_have_ended(now)).collect();
        if due.is_empty() {
            return Ok(());
        }
        let each = Allowance::of(self.counters.get("changes"), due.len());
        for used in due {
            self.sweep_state(used, each)?;
        }
        Ok(())
    }

    fn sweep_state(&mut self, used: Used, mut left: Allowance) -> Result<()> {
        let first = self.first_group();
        let mut sweep = self.hints.ends(used.id).sweep.take().unwrap_or_else(|| Sweep::from(first));
        loop {
            let (group, after) = &sweep.after;
            let place = (used.id, *group);
            if left.rows() == 0 {
                self.hints.ends(used.id).sweep = Some(sweep);
                return Ok(());
            }
            let (found, outcome) = self.read(Some((used.id, &[])), |view| {
                let from = after.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
                let found = sweep::step(view.cursor(place, from, None)?, left.rows())?;
                let outcome = Outcome::of(used.kind, &found, used.now, |head| {
                    Ok(view.look_up(used.id, std::iter::once((place.1, head)))?.get(0).map(<[u8]>::to_vec))
                })?;
                Ok((found, outcome))
            })?;
            left.count(&found, &outcome);
            self.counters.count("entries_ended", outcome.removed);
            sweep.first = sweep.first.min(outcome.first);
            let (changes, bytes) = outcome.size();
            self.overlay.make_room(bytes as u64 + CHANGE_BYTES * changes as u64, &mut self.counters)?;
            outcome.apply(&mut self.overlay.layers, place);
            self.overlay.account();
            sweep.after = match found.keys().last() {
                Some(last) => (*group, Some(last.to_vec())),
                None => (self.group_after(*group), None),
            };
            if sweep.after == (sweep.begun, None) {
                self.hints.ends(used.id).first = Some(sweep.first);
                return Ok(());
            }
        }
    }

    /// Where a walk begins: with another key group in each batch. Where it goes on is forgotten with the live version, and a
    /// walk that always began with the same group might never come to the others.
    fn first_group(&self) -> KeyGroup {
        let KeyGroupRange { start, end } = self.own_groups;
        let batch = self.attached.as_ref().map_or(0, |attached| attached.batch.0);
        let turn = batch.rem_euclid(i64::from(end - start).max(1));
        KeyGroup(start + u16::try_from(turn).unwrap_or(0))
    }

    fn group_after(&self, group: KeyGroup) -> KeyGroup {
        KeyGroup(if group.0 + 1 < self.own_groups.end { group.0 + 1 } else { self.own_groups.start })
    }
}

#[cfg(test)]
#[path = "sweep_tests.rs"]
mod tests;
