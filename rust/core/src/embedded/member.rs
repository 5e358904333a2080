//! A declared state inside an open one: what all kinds do alike.
//!
//! Owns: the clock of one call, reading and writing a state as its kind says. Does not own: types of keys and values (the
//! kinds' faces beside it), entries (`kinds`), admission and memory (`core::changes`).

use super::catalog::{Declaration, Entry};
use super::core::Core;
use super::lifetime::Lifetime;
use super::{GROUP, GROUPS};
use crate::kinds::view::View;
use crate::kinds::write::{APPEND, Bytes, Changes, PUT};
use crate::kinds::{Kind, StateRef, value};
use crate::states::Place;
use crate::states::look_up::Values;
use arrow_array::BinaryArray;
use fastchangelog_format::error::Result;
use fastchangelog_format::model::StateId;
use std::sync::Arc;

/// A declared state. Cheap to clone; any thread may use it.
#[derive(Clone)]
pub(super) struct Member {
    pub(super) core: Arc<Core>,
    pub(super) id: StateId,
    pub(super) kind: Kind,
    pub(super) lifetime: Lifetime,
    name: Arc<str>,
}

impl Member {
    /// Declares a state; `make` makes what reads its values.
    pub(super) fn declare<T>(
        core: &Arc<Core>,
        declared: Declaration<'_>,
        lifetime: Lifetime,
        make: impl FnOnce(&Entry) -> Result<T>,
    ) -> Result<(Self, T)> {
        let (Entry { id, .. }, made) = core.declare(declared, make)?;
        Ok((Self { core: Arc::clone(core), id, kind: declared.kind, lifetime, name: declared.name.into() }, made))
    }

    pub(super) fn place(&self) -> Place {
        (self.id, GROUP)
    }

    /// The state as it is now. Asks the clock, which may be the program's: before any lock.
    pub(super) fn now(&self) -> Result<StateRef> {
        let ttl = self.lifetime.is_bounded();
        Ok(StateRef { id: self.id, kind: self.kind, ttl, now: if ttl { self.core.now()? } else { 0 } })
    }

    /// Reads at one moment.
    pub(super) fn read<T>(&self, read: impl Fn(View<'_>, StateRef) -> Result<T>) -> Result<T> {
        let state = self.now()?;
        self.core.view(false, |view| read(view, state))
    }

    /// Writes rows, all or none.
    pub(super) fn write(&self, changes: Changes<'_>) -> Result<()> {
        let admission = self.core.admit_change()?;
        let state = self.now()?;
        let changes = self.expiring(state, changes);
        changes.check(state, &self.name)?;
        let rules = state.kind.rules();
        if !rules.reads_before_write(changes) {
            let write = rules.prepare(None, state, changes, GROUPS)?;
            // An aggregate that another thread adds to is forgotten before or after, not in between.
            let _exclusive = (state.kind == Kind::Aggregating).then(|| self.core.exclusive(&admission));
            return self.core.apply(&admission, write, state, changes);
        }
        let _exclusive = self.core.exclusive(&admission);
        let write = self.core.view(rules.writes_walk(), |view| rules.prepare(Some(view), state, changes, GROUPS))?;
        self.core.apply(&admission, write, state, changes)
    }

    /// Replaces the values of `keys`: `update` is given the stored ones, and returns the changed keys and values. Nothing else
    /// changes the state in between.
    pub(super) fn update(
        &self,
        keys: &BinaryArray,
        update: impl FnOnce(&Values, StateRef) -> Result<(BinaryArray, BinaryArray)>,
    ) -> Result<()> {
        let admission = self.core.admit_change()?;
        let state = self.now()?;
        let _exclusive = self.core.exclusive(&admission);
        let keys = Bytes::Column(keys);
        let stored = self.core.view(false, |view| value::look_up(view, state, GROUPS, keys, usize::MAX))?;
        let (keys, values) = update(&stored, state)?;
        let values = Some(Bytes::Column(&values));
        let changes = Changes { values, ..Changes::of_keys(PUT, Bytes::Column(&keys)) };
        let changes = self.expiring(state, changes);
        changes.check(state, &self.name)?;
        let write = state.kind.rules().prepare(None, state, changes, GROUPS)?;
        self.core.apply(&admission, write, state, changes)
    }

    /// The same rows with the expiry of what is written now.
    fn expiring<'c>(&self, state: StateRef, changes: Changes<'c>) -> Changes<'c> {
        let writes = changes.has(PUT) || changes.has(APPEND);
        Changes { expires_at: self.lifetime.expiry(state.now).filter(|_| writes), ..changes }
    }
}
