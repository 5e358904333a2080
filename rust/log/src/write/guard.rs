//! The announcement of a change set.
//!
//! Owns: that a session which ends in any way is not waited for any more.
//! Does not own: the sets that wait for it, and how long (`batch`).

use super::Shared;
use super::batch::Seat;
use fastchangelog_format::model::BatchId;
use std::sync::Arc;

/// A session that may still add a change set: while one is open, waiting sets wait for it (up to `persist_delay`).
#[must_use = "waiting sets go at once when no guard is left"]
pub struct JoinGuard {
    shared: Arc<Shared>,
    /// Until it is handed over.
    seat: Option<Seat>,
}

impl JoinGuard {
    pub(super) fn new(shared: &Arc<Shared>, task: Option<BatchId>) -> Self {
        let now = shared.clock.monotonic();
        let (seat, next) = shared.state.lock().batcher.join(task, now);
        shared.act(next);
        Self { shared: Arc::clone(shared), seat: Some(seat) }
    }

    /// The session's change set takes long: others do not wait for it. A task keeps its slot in the wave.
    pub fn stand_aside(&mut self) {
        let shared = &self.shared;
        let now = shared.clock.monotonic();
        let Some(seat) = &mut self.seat else { return };
        let next = shared.state.lock().batcher.stand_aside(seat, now);
        shared.act(next);
    }

    /// Hands the seat over to the set that is added.
    pub(super) fn into_seat(mut self) -> Option<Seat> {
        self.seat.take()
    }
}

impl Drop for JoinGuard {
    fn drop(&mut self) {
        if let Some(seat) = self.seat.take() {
            let now = self.shared.clock.monotonic();
            let next = self.shared.state.lock().batcher.leave(seat, now);
            self.shared.act(next);
        }
    }
}
