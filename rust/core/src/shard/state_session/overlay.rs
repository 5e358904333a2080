//! The changes of a session, and reading them with its version as one.
//!
//! Owns: the memory of changes, and moving them to the local disk when they are more than that.
//! Does not own: how they lie there (`states::spilled`), what they mean (`writes`), which version is below (`base`).
//!
//! Invariant: changes in memory take at most [`OVERLAY_SHARE`] of the session's memory, beside those of one call. What is left is
//! for their copy as a change set.

use crate::kinds::view::{LookUps, View};
use crate::shard::session_counters::SessionCounters;
use crate::shard::session_environment::SessionEnvironment;
use crate::shard::session_memory::SessionMemory;
use crate::states::layers::Layers;
use fastchangelog_format::error::{Error, Result};
use fastchangelog_state::keyed::KeyedState;
use fastchangelog_state::rocks::SharedResources;

/// Of the session's memory, what changes may take (1/n) before they are moved to the local disk.
const OVERLAY_SHARE: u64 = 2;

/// The changes of a session.
pub(super) struct Overlay {
    pub(super) layers: Layers,
    environment: SessionEnvironment,
    /// None: the changes stay in memory.
    resources: Option<SharedResources>,
    memory: SessionMemory,
    look_ups: LookUps,
}

impl Overlay {
    pub(super) fn new(environment: SessionEnvironment, resources: Option<SharedResources>) -> Self {
        Self {
            layers: Layers::new(u64::MAX),
            memory: SessionMemory::new(&environment.budget, environment.session_memory),
            environment,
            resources,
            look_ups: LookUps::default(),
        }
    }

    /// The same changes, for another session.
    pub(super) fn copy(&self) -> Result<Self> {
        let mut copy = Self::new(self.environment.clone(), self.resources.clone());
        copy.layers = self.layers.copy()?;
        copy.account();
        Ok(copy)
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
        let resources = self.resources.as_ref().ok_or_else(|| Error::internal("a session in memory cannot spill"))?;
        failpoints.hit("session.spill")?;
        let bytes = self.layers.spill(dir, resources)?;
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
        View::new(&self.layers, live).counting(&self.look_ups)
    }

    /// Counts what was looked up since the last call.
    pub(super) fn count_look_ups(&self, counters: &mut SessionCounters) {
        let (all, misses) = self.look_ups.take();
        counters.count("hot_misses", misses);
        counters.count("hot_hits", all - misses);
    }
}
