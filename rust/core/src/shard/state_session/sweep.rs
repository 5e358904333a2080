//! The removal of entries that have ended, with each commit.
//!
//! Owns: the walk over the entries of states with a time to live.
//! Does not own: what of them goes (`kinds::sweep`), that nothing of an ended entry is read (`kinds`), when an entry ends
//! (the worker).
//!
//! A walk begins when an entry may have ended, and goes on over the commits until all key groups are passed: it goes round, from
//! the one that it began with. What it removes is part of the change set.
//!
//! Invariants:
//! 1. what a commit reads in vain follows its changes and what it removes ([`sweep::Allowance`]);
//! 2. its changes take at most the memory of changes, beside those of one step: more are on the local disk.

use super::StateSession;
use crate::kinds::StateRef;
use crate::kinds::catalog::DeclaredState;
use crate::kinds::sweep::{self, Allowance, Outcome};
use crate::kinds::write::CHANGE_BYTES;
use fastchangelog_format::error::Result;
use fastchangelog_format::model::{KeyGroup, KeyGroupRange, StateId};

/// Entries, and KiB of them, after which other commits need not wait for a walk.
const SHORT_WALK: u64 = 16_384;

impl StateSession {
    /// Removes what has ended, as far as the walk comes.
    pub(super) fn sweep(&mut self) -> Result<()> {
        let declared = self.declared()?;
        let now = declared.now;
        let used = |state: &DeclaredState| StateRef { id: StateId(state.id), kind: state.kind, ttl: state.ttl, now };
        let with_ends: Vec<StateRef> = declared.catalog.states().filter(|state| state.ttl).map(used).collect();
        let mut due = Vec::with_capacity(with_ends.len());
        for used in with_ends {
            due.push((used, self.hints.ends(used.id).may_have_ended(now)));
        }
        let states = due.iter().filter(|(_, is_due)| *is_due).count();
        for (used, is_due) in due {
            // What the others might pass is saved.
            let allowance = self.hints.ends(used.id).begin(states);
            if is_due {
                self.sweep_state(used, allowance)?;
            }
        }
        Ok(())
    }

    fn sweep_state(&mut self, used: StateRef, mut allowance: Allowance) -> Result<()> {
        let first = self.first_group();
        let (mut walk, mut is_over) = (self.hints.ends(used.id).walk(used.kind, first), false);
        while !is_over && allowance.rows() > 0 {
            let place = (used.id, walk.group());
            let (step, outcome) = self.read(Some((used.id, &[])), |view| {
                let cursor = view.cursor(place, walk.lower_bound(), walk.to_key().as_deref())?;
                let step = sweep::step(cursor, used.kind, allowance.rows())?;
                let outcome = Outcome::of(used.kind, &step, used.now, |head| {
                    Ok(view.look_up(used.id, std::iter::once((place.1, head)))?.get(0).map(<[u8]>::to_vec))
                })?;
                Ok((step, outcome))
            })?;
            allowance.count(&step, &outcome);
            self.counters.count("entries_ended", outcome.removed);
            walk.first = walk.first.min(outcome.first);
            let (changes, bytes) = outcome.size();
            self.overlay.make_room(bytes as u64 + CHANGE_BYTES * changes as u64, &mut self.counters)?;
            outcome.apply(&mut self.overlay.layers, place);
            self.overlay.account();
            is_over = walk.pass(&step, self.group_after(place.1));
            if allowance.passed() > SHORT_WALK
                && let Some(guard) = self.attached.as_mut().and_then(|attached| attached.guard.as_mut())
            {
                guard.stand_aside();
            }
        }
        self.hints.ends(used.id).end(allowance, walk, is_over);
        Ok(())
    }

    /// Where a walk begins, if no key was written: with another key group in each batch. Where it goes on is forgotten with the live
    /// version, and a walk that always began with the same group might never come to the others.
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
