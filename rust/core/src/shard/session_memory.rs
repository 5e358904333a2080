//! The memory of one session.
//!
//! Owns: the current limit of a session, and its reservation in the budget of the process.
//! Does not own: the reaction to a lack of memory (`session`, `state_session`), the budget itself.

use fastchangelog_store::budget::{Member, MemoryBudget, MemoryUser, Reservation};
use std::sync::Arc;

/// Share of the budget (1/n) for all sessions together, unless the option `session_memory` is set.
const SESSIONS_SHARE: u64 = 2;
/// Of the budget (1/n): growth after which caches are asked to free memory.
const STEP_SHARE: u64 = 32;

/// The memory of one session.
#[derive(Debug)]
pub(super) struct SessionMemory {
    member: Member,
    held: Reservation,
    /// Option `session_memory`; 0 = a share of the budget.
    fixed: u64,
    /// Bytes held when caches were last asked to free memory.
    reclaimed_at: u64,
}

impl SessionMemory {
    pub(super) fn new(budget: &Arc<MemoryBudget>, fixed: u64) -> Self {
        Self {
            member: budget.join(MemoryUser::Sessions),
            held: budget.reserve(MemoryUser::Sessions, 0),
            fixed,
            reclaimed_at: 0,
        }
    }

    /// Bytes that the session may use now, those that it uses included.
    pub(super) fn limit(&self) -> u64 {
        match self.fixed {
            0 => self.member.allowance(self.member.budget().limit() / SESSIONS_SHARE, self.held.bytes()),
            fixed => fixed,
        }
    }

    /// The session uses `bytes` from now on.
    pub(super) fn hold(&mut self, bytes: u64) {
        self.held.resize(bytes);
        let budget = self.member.budget();
        if bytes > self.reclaimed_at.saturating_add(budget.limit() / STEP_SHARE) {
            self.reclaimed_at = bytes;
            budget.reclaim();
        }
    }

    /// Splits off up to `bytes` of the session's memory, for an owner that outlives the session.
    pub(super) fn split(&mut self, bytes: u64) -> Reservation {
        self.held.split(bytes)
    }
}
