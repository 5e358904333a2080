//! The calls that change states.
//!
//! Owns: room for their changes, counting. Does not own: what a write means for a kind of state (`kinds`), the memory of
//! changes (`overlay`).

use super::StateSession;
use crate::kinds::catalog::DeclaredState;
use crate::kinds::write::{Bytes, CHANGE_BYTES, CLEAR, Changes, Ops};
use crate::kinds::{Kind, RowGroups};
use arrow_array::{Array, BinaryArray, UInt8Array};
use fastchangelog_format::error::{Error, Result};
use fastchangelog_format::model::StateId;
use std::time::Instant;

impl StateSession {
    /// Changes a state, row after row. An operation is 0 = clear (all of a key), 1 = put (a value, a map entry, a timer),
    /// 2 = delete (a value, a map entry, a timer), 3 = append (a list element). A map entry is named by its map key, a timer
    /// by its time, both in `subs`: a time in milliseconds, as eight bytes, big endian. `expires_at` is the expiry of what is
    /// put or appended, in a state with a TTL. A call that is refused changes nothing.
    pub(super) fn write(
        &mut self,
        state: StateId,
        ops: &UInt8Array,
        keys: &BinaryArray,
        subs: Option<&BinaryArray>,
        values: Option<&BinaryArray>,
        expires_at: Option<i64>,
    ) -> Result<()> {
        let start = Instant::now();
        let state = self.used(state)?;
        self.overlay.environment().failpoints.hit("session.merge")?;
        if ops.null_count() > 0 {
            return Err(Error::invalid("an operation is null; give one for each key"));
        }
        let ops = Ops::Each(ops.values());
        let (subs, values) = (subs.map(Bytes::Column), values.map(Bytes::Column));
        let changes = Changes { ops, subs, values, expires_at, ..Changes::of_keys(CLEAR, Bytes::Column(keys)) };
        let DeclaredState { name, .. } = self.declared()?.catalog.state(state.id)?;
        changes.check(state, name)?;
        let groups = self.groups_of(keys)?;
        let groups = RowGroups::Each(&groups);
        self.or_end(|session| session.make_room(changes))?;
        let rules = state.kind.rules();
        let write = if rules.reads_before_write(changes) {
            let walked = rules.walked().filter(|_| rules.writes_walk());
            let walked = walked.as_ref().map(|first| (state.id, std::slice::from_ref(first)));
            self.read(walked, |view| rules.prepare(Some(view), state, changes, groups))?
        } else {
            rules.prepare(None, state, changes, groups)?
        };
        write.apply(state, changes, groups, &mut self.overlay.layers, &mut self.hints);
        self.overlay.account();
        self.counters.count("changes", changes.len() as u64);
        self.counters.count_since("write_micros", start);
        self.overlay.count_look_ups(&mut self.counters);
        Ok(())
    }

    /// Removes all entries of a state, however many they are.
    pub(super) fn clear_all(&mut self, state: StateId) -> Result<()> {
        let state = self.used(state)?;
        for group in self.key_groups() {
            self.overlay.layers.clear((state.id, group), std::iter::once(&[][..]));
        }
        if state.kind == Kind::Timers {
            self.hints.cleared_timers(self.key_groups().map(|group| (state.id, group)));
        }
        self.overlay.account();
        Ok(())
    }

    /// Does work that may leave a change half made when it fails: then the session has ended (invariant 4).
    pub(super) fn or_end<T>(&mut self, work: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        work(self).inspect_err(|error| self.ended = Some(error.clone()))
    }

    fn make_room(&mut self, changes: Changes<'_>) -> Result<()> {
        let bytes = changes.bytes() + CHANGE_BYTES * changes.len() as u64;
        self.overlay.make_room(bytes, &mut self.counters)?;
        let guard = self.attached.as_mut().and_then(|attached| attached.guard.as_mut());
        if let Some(guard) = guard.filter(|_| self.overlay.layers.has_spilled()) {
            // Its change set takes long: other commits need not wait for it.
            guard.stand_aside();
        }
        Ok(())
    }
}
