//! The removal of entries that have ended, a bounded part of it before each checkpoint.
//!
//! Owns: the walk over the states of which entries end.
//! Does not own: what of them goes (`states::sweep`), that nothing of an ended entry is read (`lifetime`).
//!
//! What it removes is part of the checkpoint. A failure is logged, and the next checkpoint tries again: nothing depends on it.
//!
//! Invariants:
//! 1. a checkpoint passes at most [`sweep::MOST_PASSED`] entries, and KiB of them, and those of one step for each state;
//! 2. what is written while it runs stays: it reads and removes a step under the lock that writers take.

use super::GROUP;
use super::core::Core;
use crate::states::catalog::Kind;
use crate::states::look_up::look_up;
use crate::states::scan::MergedCursor;
use crate::states::sweep::{self, Allowance, Outcome, Sweep};
use crate::states::under::Under;
use fastchangelog_format::error::Result;
use fastchangelog_format::model::StateId;
use std::ops::Bound;

impl Core {
    /// Removes some of what has ended; as much as a checkpoint after so many changes may.
    pub(super) fn sweep(&self, changes: u64) {
        if let Err(error) = self.sweep_states(changes) {
            tracing::warn!(state = self.uri(), %error, "what has ended is not removed: the next checkpoint tries again");
        }
    }

    fn sweep_states(&self, changes: u64) -> Result<()> {
        let states = self.states_that_end();
        if states.is_empty() {
            return Ok(());
        }
        let now = self.now()?;
        let due: Vec<(StateId, Kind)> =
            states.into_iter().filter(|(id, _)| self.with_ends(*id, |ends| ends.may_have_ended(now))).collect();
        if due.is_empty() {
            return Ok(());
        }
        // Without a lock, as far as it goes: under one others wait.
        self.shard().read_settled(|_| Ok(()))?;
        let each = Allowance::of(changes, due.len());
        for (id, kind) in due {
            let mut left = each;
            while left.rows() > 0 && self.sweep_step(id, kind, now, &mut left)? {}
        }
        Ok(())
    }

    /// Passes the next entries of a state. False at its end, and if there is no memory for the changes.
    fn sweep_step(&self, id: StateId, kind: Kind, now: i64, left: &mut Allowance) -> Result<bool> {
        let place = (id, GROUP);
        // A list is read and changed under the first, all else is changed under the second.
        let _exclusive = self.exclusive();
        let mut layers = self.layers_to_change();
        let mut sweep = self.with_ends(id, |ends| ends.sweep.clone()).unwrap_or_else(|| Sweep::from(GROUP));
        let after = sweep.after.1.take();
        let (found, outcome) = self.shard().read_settled(|keyed| {
            let from = after.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
            let cursor = MergedCursor::new(&layers, Under::live(keyed), None, place, from, None)?;
            let found = sweep::step(cursor, left.rows())?;
            let outcome = Outcome::of(kind, &found, now, |head| {
                let found = look_up(&layers, id, std::iter::once((GROUP, head)), |keys, out| {
                    keyed.get_many(id, keys, out).map(drop)
                })?;
                Ok(found.get(0).map(<[u8]>::to_vec))
            })?;
            Ok((found, outcome))
        })?;
        let (changes, bytes) = outcome.size();
        if layers.check_space(changes as u64, bytes as u64).is_err() {
            return Ok(false);
        }
        self.shard().context().metrics.entries_ended.add(outcome.removed);
        sweep.first = sweep.first.min(outcome.first);
        left.count(&found, &outcome);
        outcome.apply(&mut layers, place);
        self.account(&layers);
        let last = found.keys().last().map(<[u8]>::to_vec);
        let at_end = last.is_none();
        self.with_ends(id, |ends| {
            if at_end {
                (ends.first, ends.sweep) = (Some(sweep.first), None);
            } else {
                sweep.after.1 = last;
                ends.sweep = Some(sweep);
            }
        });
        Ok(!at_end)
    }
}

#[cfg(test)]
#[path = "sweep_tests.rs"]
mod tests;
