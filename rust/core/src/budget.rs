//! One memory budget for everything in the process.
//!
//! Owns: the account of bytes in use, by kind, against one limit.
//! Does not own: what is evicted when the limit is near; each owner asks [`MemoryBudget::available`] and shrinks itself.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes in use against a limit. Cheap to share and to ask.
#[derive(Debug)]
pub struct MemoryBudget {
    limit: u64,
    used: AtomicU64,
}

impl MemoryBudget {
    /// A budget of `limit` bytes.
    pub fn new(limit: u64) -> Arc<Self> {
        Arc::new(Self { limit, used: AtomicU64::new(0) })
    }

    /// The limit in bytes.
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// Bytes reserved now.
    pub fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// Bytes that can still be reserved.
    pub fn available(&self) -> u64 {
        self.limit.saturating_sub(self.used())
    }

    /// Takes `bytes`, if need be beyond the limit: the caller has already allocated them.
    pub fn reserve(self: &Arc<Self>, bytes: u64) -> Reservation {
        self.used.fetch_add(bytes, Ordering::Relaxed);
        Reservation { budget: Arc::clone(self), bytes }
    }
}

/// Bytes taken from a budget; given back on drop.
#[derive(Debug)]
pub struct Reservation {
    budget: Arc<MemoryBudget>,
    bytes: u64,
}

impl Reservation {
    /// Changes the size of this reservation.
    pub fn resize(&mut self, bytes: u64) {
        if bytes >= self.bytes {
            self.budget.used.fetch_add(bytes - self.bytes, Ordering::Relaxed);
        } else {
            self.budget.used.fetch_sub(self.bytes - bytes, Ordering::Relaxed);
        }
        self.bytes = bytes;
    }

    /// Bytes held.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.budget.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reservations_are_given_back() {
        let budget = MemoryBudget::new(100);
        let mut a = budget.reserve(60);
        assert_eq!(budget.available(), 40);
        a.resize(10);
        assert_eq!(budget.available(), 90);
        let b = budget.reserve(200);
        assert_eq!(budget.available(), 0);
        drop((a, b));
        assert_eq!(budget.used(), 0);
    }
}
