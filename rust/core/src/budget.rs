//! One memory budget for everything in the process.
//!
//! Owns: the account of bytes in use against one limit, and the fair division of what may be used.
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

/// What one of several would use.
#[derive(Debug, Clone, Copy)]
pub struct Want {
    /// Bytes it needs to keep all it has.
    pub bytes: u64,
    /// In use now; others get what these leave.
    pub active: bool,
}

/// Divides `total` bytes: a little for everyone, then as much as is wanted, to the active before the others and to those
/// that want little before those that want much; what is left goes to the active in equal parts, to grow.
pub fn divide(total: u64, wants: &[Want]) -> Vec<u64> {
    let Some(n) = u64::try_from(wants.len()).ok().filter(|n| *n > 0) else { return Vec::new() };
    let least = total / n / 8;
    let mut given = vec![least; wants.len()];
    let mut left = total - least * n;
    for active in [true, false] {
        let mut group: Vec<usize> = (0..wants.len()).filter(|i| wants[*i].active == active).collect();
        group.sort_by_key(|i| wants[*i].bytes);
        for (taken, i) in group.iter().enumerate() {
            let fair = left / (group.len() - taken) as u64;
            let more = wants[*i].bytes.saturating_sub(given[*i]).min(fair);
            given[*i] += more;
            left -= more;
        }
    }
    let any = wants.iter().any(|want| want.active);
    let heirs: Vec<usize> = (0..wants.len()).filter(|i| wants[*i].active || !any).collect();
    for i in &heirs {
        given[*i] += left / heirs.len() as u64;
    }
    given
}

#[cfg(test)]
mod tests {
    use super::*;

    fn division(total: u64, wants: &[(u64, bool)]) -> Vec<u64> {
        let wants: Vec<Want> = wants.iter().map(|&(bytes, active)| Want { bytes, active }).collect();
        let given = divide(total, &wants);
        assert!(given.iter().sum::<u64>() <= total);
        given
    }

    #[test]
    fn memory_goes_to_the_active_first_and_to_the_modest_before_the_greedy() {
        assert_eq!(division(800, &[]), [0; 0]);
        assert_eq!(division(800, &[(5, true)]), [800]);
        assert_eq!(division(800, &[(100, true), (100, true)]), [400, 400]);
        assert_eq!(division(800, &[(100, true), (5_000, true)]), [100, 700]);
        assert_eq!(division(800, &[(300, true), (5_000, false)]), [300, 500]);
        assert_eq!(division(800, &[(5_000, true), (5_000, false)]), [750, 50]);
        assert_eq!(division(800, &[(10, false), (50, false)]), [400, 400]);
    }

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
