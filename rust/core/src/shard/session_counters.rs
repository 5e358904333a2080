//! The counters of one session, by name.
//!
//! Owns: their sums. Does not own: the counters of the process (`metrics`).

use std::collections::BTreeMap;
use std::time::Instant;

/// A session's own counters.
#[derive(Debug, Default)]
pub(super) struct SessionCounters(BTreeMap<String, u64>);

impl SessionCounters {
    /// Adds `n` to the number of this name.
    pub(super) fn count(&mut self, name: &str, n: u64) {
        *self.0.entry(name.to_owned()).or_default() += n;
    }

    /// Adds the microseconds since `start`.
    pub(super) fn count_since(&mut self, name: &str, start: Instant) {
        self.count(name, u64::try_from(start.elapsed().as_micros()).unwrap_or(u64::MAX));
    }

    /// Sets the number of this name.
    pub(super) fn set(&mut self, name: &str, n: u64) {
        self.0.insert(name.to_owned(), n);
    }

    /// The number of this name.
    pub(super) fn get(&self, name: &str) -> u64 {
        self.0.get(name).copied().unwrap_or(0)
    }

    /// Adds all numbers of another.
    pub(super) fn add(&mut self, other: &Self) {
        other.0.iter().for_each(|(name, n)| self.count(name, *n));
    }

    /// All of them.
    pub(super) fn all(&self) -> BTreeMap<String, u64> {
        self.0.clone()
    }
}
