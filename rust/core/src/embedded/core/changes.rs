//! Changes of an open state: their admission, and their way into memory.
//!
//! Owns: when a change waits, when changes move to the local disk, the lock of read-modify-write operations.
//! Does not own: the layers (`states::layers`), checkpoints (`core`), types of keys and values (the kinds of states).

use super::super::member::GROUPS;
use super::super::waiting::TICK;
use super::Core;
use crate::kinds::StateRef;
use crate::kinds::write::{Changes, Write};
use crate::states::layers::Layers;
use fastchangelog_format::error::Result;
use parking_lot::{MutexGuard, RwLockWriteGuard};

/// A change that [`Core::admit_change`] has let in.
pub(in crate::embedded) struct Admission(());

impl Core {
    /// Waits until a change may be made: while changes take all their memory, and a checkpoint in progress keeps them from the
    /// local disk. Every change begins with it, before any lock: the handler of a signal may use the state meanwhile.
    pub(in crate::embedded) fn admit_change(&self) -> Result<Admission> {
        self.check_writable()?;
        if let Some(why) = self.refusal.lock().clone() {
            // The materialization policy may try again.
            self.notify();
            return Err(why);
        }
        let is_crowded = || {
            let layers = self.layers.read();
            !layers.can_spill() && !layers.has_room(0, 0)
        };
        while is_crowded() {
            self.pending_reduced.wait_for(&mut self.pending.lock(), TICK);
            (self.attend)()?;
            self.check_open()?;
        }
        Ok(Admission(()))
    }

    /// Applies a write, all or nothing of it. `changes` are the rows that it was prepared from.
    pub(in crate::embedded) fn apply(
        &self,
        _: &Admission,
        write: Write<'_>,
        state: StateRef,
        changes: Changes<'_>,
    ) -> Result<()> {
        let (entries, bytes) = (write.entries as u64, write.bytes as u64);
        // In a map, and once more when it grows.
        self.pieces.check(bytes.saturating_mul(2), "a change")?;
        let mut layers = self.layers.write();
        layers.check()?;
        // A checkpoint that began after the admission may keep it from the local disk: then it takes more memory.
        let _ = self.make_room(&mut layers, entries, bytes)?;
        write.apply(state, changes, GROUPS, &mut layers, &mut self.hints());
        self.account(&layers);
        Ok(())
    }

    /// The changes, for a change of another kind; [`Self::account`] ends it.
    pub(in crate::embedded) fn layers_to_change(&self) -> RwLockWriteGuard<'_, Layers> {
        self.layers.write()
    }

    /// Makes room in memory for changes of so many bytes; false if a checkpoint in progress must end first.
    pub(in crate::embedded) fn make_room(&self, layers: &mut Layers, changes: u64, bytes: u64) -> Result<bool> {
        if layers.has_room(changes, bytes) {
            return Ok(true);
        }
        let can_spill = layers.can_spill();
        if can_spill {
            self.spill(layers)?;
        }
        Ok(can_spill)
    }

    /// Moves the active layer to the local disk.
    fn spill(&self, layers: &mut Layers) -> Result<()> {
        let context = self.shard.context();
        context.failpoints.hit("local.spill")?;
        let bytes = layers.spill(&context.spill_dir(), &context.resources)?;
        context.failpoints.hit("local.spilled")?;
        context.metrics.spills.add(1);
        context.metrics.spilled_bytes.add(bytes);
        Ok(())
    }

    /// Serialises read-modify-write operations.
    pub(in crate::embedded) fn exclusive(&self, _: &Admission) -> MutexGuard<'_, ()> {
        self.exclusive.lock()
    }

    /// Serialises the sweep with read-modify-write operations.
    pub(in crate::embedded) fn exclusive_sweep(&self) -> MutexGuard<'_, ()> {
        self.exclusive.lock()
    }
}
