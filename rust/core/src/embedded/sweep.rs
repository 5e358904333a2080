//! The removal of entries that have ended, before each checkpoint.
//!
//! Owns: the walk over the states of which entries end.
//! Does not own: what of them goes (`kinds::sweep`), that nothing of an ended entry is read (`lifetime`).
//!
//! What it removes is part of the checkpoint. A failure is logged, and the next checkpoint tries again: nothing depends on it.
//!
//! Invariants:
//! 1. its reads follow the changes and the removals ([`sweep::Allowance`]); it removes as many entries as were written, if so many
//!    have ended, unless a checkpoint in progress holds all memory of changes;
//! 2. what is written while it runs stays: it reads and removes a step under the lock that writers take.

use super::GROUP;
use super::core::Core;
use crate::kinds::Kind;
use crate::kinds::sweep::{self, Allowance, Outcome};
use crate::kinds::view::View;
use fastchangelog_format::error::Result;
use fastchangelog_format::model::StateId;
use std::collections::BTreeMap;

impl Core {
    /// Removes what has ended, as far as the walk comes.
    pub(super) fn sweep(&self) {
        if let Err(error) = self.sweep_states() {
            tracing::warn!(state = self.uri(), %error, "cannot remove expired entries; the next checkpoint tries \
                again");
        }
    }

    fn sweep_states(&self) -> Result<()> {
        let states = self.states_that_end();
        if states.is_empty() {
            return Ok(());
        }
        let now = self.now()?;
        let due = states.iter().filter(|(id, _)| self.with_ends(*id, |ends| ends.may_have_ended(now)));
        let due: Vec<(StateId, Kind)> = due.copied().collect();
        // Those of the others are saved.
        let begun = states.iter().map(|(id, _)| (*id, self.with_ends(*id, |ends| ends.begin(due.len()))));
        let mut allowances: BTreeMap<StateId, Allowance> = begun.collect();
        if due.is_empty() {
            return Ok(());
        }
        // Without a lock, as far as it goes: under one others wait.
        self.shard().read_settled(|_| Ok(()))?;
        for (id, kind) in due {
            let Some(allowance) = allowances.get_mut(&id) else { continue };
            while allowance.rows() > 0 && self.sweep_step((id, kind), now, allowance)? {}
        }
        Ok(())
    }

    /// Passes the next entries of a state. False at the end of the walk, and while there is no memory for changes.
    fn sweep_step(&self, (id, kind): (StateId, Kind), now: i64, allowance: &mut Allowance) -> Result<bool> {
        let place = (id, GROUP);
        // A list is read and changed under the first, all else is changed under the second.
        let _exclusive = self.exclusive_sweep();
        let mut layers = self.layers_to_change();
        let mut walk = self.with_ends(id, |ends| ends.walk(kind, GROUP));
        let (step, outcome) = self.shard().read_settled(|keyed| {
            let view = View::new(&layers, Some(keyed));
            let cursor = view.cursor(place, walk.lower_bound(), walk.to_key().as_deref())?;
            let step = sweep::step(cursor, kind, allowance.rows())?;
            let outcome = Outcome::of(kind, &step, now, |entry| view.look_up_one(place, entry))?;
            Ok((step, outcome))
        })?;
        let (changes, bytes) = outcome.size();
        if !self.make_room(&mut layers, changes as u64, bytes as u64)? {
            self.with_ends(id, |ends| ends.end(*allowance, walk, false));
            return Ok(false);
        }
        self.shard().context().metrics.entries_ended.add(outcome.removed);
        walk.first = walk.first.min(outcome.first);
        allowance.count(&step, &outcome);
        outcome.apply(&mut layers, place);
        self.account(&layers);
        let is_over = walk.pass(&step, GROUP);
        self.with_ends(id, |ends| ends.end(*allowance, walk, is_over));
        Ok(!is_over)
    }
}

#[cfg(test)]
#[path = "sweep_tests.rs"]
mod tests;
