//! Background warm-up: the hot tier of a lazily restored shard is loaded after its first session.
//!
//! Owns: the schedule and the portions in which a lazily restored shard loads its entries from disk.
//! Does not own: the loading (`state`), the restore (`restore`).
//!
//! A look-up in RocksDB costs tens of microseconds when its block is not in memory, loading a key costs about a third
//! of that: a batch that looks up a part of the keys is faster without waiting for all of them. A batch has the machine
//! for itself, so the loading starts when a session has ended.
//!
//! Invariants:
//! 1. the loading belongs to the live state and ends with it; a state that replaces it is not touched;
//! 2. no session waits for it longer than for one portion;
//! 3. it does not keep a shard alive.

use super::Shard;
use fastchangelog_format::error::Result;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

/// Entries loaded per turn of the shard's lock: about a millisecond.
const PORTION: usize = 4_096;

impl Shard {
    /// Loads the rest of a lazily restored state in the background, unless that goes on already.
    pub(crate) fn warm_up_in_background(self: &Arc<Self>) {
        let cold = self.live.try_read().is_some_and(|live| live.as_ref().is_some_and(|live| live.cold.is_some()));
        if !cold || self.warming.swap(true, Ordering::AcqRel) {
            return;
        }
        let shard = Arc::downgrade(self);
        self.context.runtime.spawn_blocking(move || {
            while Self::warm_up_turn(&shard) {}
            if let Some(shard) = shard.upgrade() {
                shard.warming.store(false, Ordering::Release);
            }
        });
    }

    /// One portion; false when there is no other.
    fn warm_up_turn(shard: &Weak<Self>) -> bool {
        let Some(shard) = shard.upgrade() else { return false };
        shard.warm_up_portion().unwrap_or_else(|error| {
            // A look-up of an unreadable entry returns the error.
            tracing::warn!(shard = %shard.id, %error, "cannot load the hot tier; look-ups go to the local disk");
            false
        })
    }

    fn warm_up_portion(&self) -> Result<bool> {
        self.context.failpoints.hit("warm.portion")?;
        let mut guard = self.live.write();
        let Some(live) = guard.as_mut() else { return Ok(false) };
        let Some(mut warm) = live.cold.take() else { return Ok(false) };
        if live.keyed.warm_up_step(&mut warm, PORTION)? {
            live.cold = Some(warm);
            // Waiting sessions get the lock first.
            drop(guard);
            return Ok(true);
        }
        let complete = live.keyed.is_complete();
        tracing::info!(shard = %self.id, entries = warm.loaded(), complete, "loaded the hot tier");
        Ok(false)
    }
}

#[cfg(test)]
#[path = "background_warm_up_tests.rs"]
mod tests;
