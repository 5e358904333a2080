//! The changes of a session, and reading them with its version as one.
//!
//! Owns: the memory of changes, and moving them to the local disk when they are more than that.
//! Does not own: how they lie there (`states::spilled`), what they mean (`writes`), which version is below (`base`).
//!
//! Invariant: changes in memory take at most [`OVERLAY_SHARE`] of the session's memory, beside those of one call. What is left is
//! for their copy as a change set.

use crate::shard::session_counters::SessionCounters;
use crate::shard::session_environment::SessionEnvironment;
use crate::shard::session_memory::SessionMemory;
use crate::states::Place;
use crate::states::layers::Layers;
use crate::states::look_up::{Values, look_up, look_up_first};
use crate::states::scan::MergedCursor;
use crate::states::under::{Spare, Under};
use fastchangelog_format::error::Result;
use fastchangelog_format::model::{KeyGroup, StateId};
use fastchangelog_state::keyed::{KeyRef, KeyedState, Out};
use fastchangelog_state::rocks::SharedResources;
use std::cell::Cell;
use std::ops::Bound;

/// Of the session's memory, what changes may take (1/n) before they are moved to the local disk.
const OVERLAY_SHARE: u64 = 2;

/// The changes of a session.
pub(super) struct Overlay {
    pub(super) layers: Layers,
    environment: SessionEnvironment,
    resources: SharedResources,
    memory: SessionMemory,
    /// Keys that were looked up below the changes in memory, and those of them that the hot tier could not answer for.
    looked_up: Cell<u64>,
    misses: Cell<u64>,
}

impl Overlay {
    pub(super) fn new(environment: SessionEnvironment, resources: SharedResources) -> Self {
        Self {
            layers: Layers::new(u64::MAX),
            memory: SessionMemory::new(&environment.budget, environment.session_memory),
            environment,
            resources,
            looked_up: Cell::new(0),
            misses: Cell::new(0),
        }
    }

    pub(super) fn environment(&self) -> &SessionEnvironment {
        &self.environment
    }

    /// Bytes that changes in memory may take.
    pub(super) fn limit(&self) -> u64 {
        self.memory.limit() / OVERLAY_SHARE
    }

    /// Makes room for changes of about so many bytes, on the local disk if there is none in memory.
    pub(super) fn make_room(&mut self, bytes: u64, counters: &mut SessionCounters) -> Result<()> {
        let held = self.layers.bytes();
        if held > 0 && held + bytes > self.limit() {
            self.spill(counters)?;
        }
        Ok(())
    }

    /// Counts the memory of changes.
    pub(super) fn account(&mut self) {
        self.hold(0);
    }

    /// Counts the memory of changes, and so many bytes of others.
    pub(super) fn hold(&mut self, more: u64) {
        self.memory.hold(self.layers.bytes() + self.layers.spilled_memory() + more);
    }

    /// Moves all changes to the local disk.
    pub(super) fn spill(&mut self, counters: &mut SessionCounters) -> Result<()> {
        let SessionEnvironment { dir, failpoints, metrics, .. } = &self.environment;
        failpoints.hit("session.spill")?;
        let bytes = self.layers.spill(dir, &self.resources)?;
        failpoints.hit("session.spilled")?;
        metrics.spills.add(1);
        metrics.spilled_bytes.add(bytes);
        counters.count("spills", 1);
        counters.count("spilled_bytes", bytes);
        self.account();
        Ok(())
    }

    /// Changes over `live` as one.
    pub(super) fn over<'a>(&'a self, live: Option<&'a KeyedState>) -> View<'a> {
        View { overlay: self, under: self.layers.over(live) }
    }

    /// Counts what was looked up since the last call.
    pub(super) fn count_look_ups(&self, counters: &mut SessionCounters) {
        let (all, misses) = (self.looked_up.take(), self.misses.take());
        counters.count("hot_misses", misses);
        counters.count("hot_hits", all - misses);
    }
}

/// A session's state at one moment.
#[derive(Clone, Copy)]
pub(super) struct View<'a> {
    overlay: &'a Overlay,
    under: Under<'a>,
}

impl<'a> View<'a> {
    /// The values of `keys`, each with its key group.
    pub(super) fn look_up<'k>(
        self,
        state: StateId,
        keys: impl ExactSizeIterator<Item = (KeyGroup, &'k [u8])>,
    ) -> Result<Values> {
        look_up(&self.overlay.layers, state, keys, |keys, out| self.look_up_below(state, keys, out))
    }

    /// The same of the first of so many keys: of as many as have at most `most` bytes, of one at least.
    pub(super) fn look_up_first<'k>(
        self,
        state: StateId,
        keys: usize,
        key: impl Fn(usize) -> (KeyGroup, &'k [u8]),
        most: usize,
    ) -> Result<Values> {
        let below = |keys: &[KeyRef<'_>], out: Out<'_>| self.look_up_below(state, keys, out);
        look_up_first(&self.overlay.layers, state, keys, key, most, below)
    }

    fn look_up_below(self, state: StateId, keys: &[KeyRef<'_>], out: Out<'_>) -> Result<()> {
        let misses = self.under.get_many(state, keys, out)?;
        self.overlay.looked_up.set(self.overlay.looked_up.get() + keys.len() as u64);
        self.overlay.misses.set(self.overlay.misses.get() + misses);
        Ok(())
    }

    /// The keys of a place from `from` on (or after it), below `to`, in their order. Of a view that is settled.
    pub(super) fn cursor(self, place: Place, from: Bound<&[u8]>, to: Option<&[u8]>) -> Result<MergedCursor<'a>> {
        self.cursor_again(None, place, from, to)
    }

    /// The same with what is left of another one: for many ranges of keys.
    pub(super) fn cursor_again(
        self,
        spare: Spare<'a>,
        place: Place,
        from: Bound<&[u8]>,
        to: Option<&[u8]>,
    ) -> Result<MergedCursor<'a>> {
        MergedCursor::new(&self.overlay.layers, self.under, spare, place, from, to)
    }
}
