//! The numbers that metrics are made of.
//!
//! Owns: counters, gauges and histograms, cheap enough for hot paths (one atomic add).
//! Does not own: their names (`metrics`).

use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// One number, shared by threads.
#[derive(Debug, Default)]
pub struct Counter {
    value: AtomicU64,
    /// The value at the last [`Counter::take_growth`].
    taken: AtomicU64,
}

impl Counter {
    /// Adds `n`.
    pub fn add(&self, n: u64) {
        self.value.fetch_add(n, Ordering::Relaxed);
    }

    /// Takes `n` away (for gauges); never goes below zero.
    pub fn sub(&self, n: u64) {
        let _ = self.value.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |v| Some(v.saturating_sub(n)));
    }

    /// Sets the value (for gauges).
    pub fn set(&self, n: u64) {
        self.value.store(n, Ordering::Relaxed);
    }

    /// Adds the microseconds since `start`.
    pub fn add_elapsed(&self, start: Instant) {
        self.add(u64::try_from(start.elapsed().as_micros()).unwrap_or(u64::MAX));
    }

    /// The current value.
    pub fn get(&self) -> u64 {
        self.value.load(Ordering::Relaxed)
    }

    /// The growth since the last call.
    pub(super) fn take_growth(&self) -> u64 {
        let now = self.get();
        now.saturating_sub(self.taken.swap(now, Ordering::Relaxed))
    }
}

/// The newest values of something, as many as Flink's histograms keep.
#[derive(Debug, Default)]
pub struct Histogram(Mutex<Values>);

#[derive(Debug, Default)]
struct Values {
    newest: VecDeque<u64>,
    count: u64,
    sum: u64,
}

/// Summary of a histogram.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Distribution {
    /// Values seen lately.
    pub count: u64,
    /// The least.
    pub min: u64,
    /// Half of them are no larger.
    pub p50: u64,
    /// The 99th percentile.
    pub p99: u64,
    /// The greatest.
    pub max: u64,
    /// Values seen ever.
    pub total_count: u64,
    /// The sum of the values seen ever.
    pub total_sum: u64,
}

impl Distribution {
    /// Of the values seen lately: the suffix of a part's name, and its value.
    pub fn parts(&self) -> [(&'static str, u64); 5] {
        [("count", self.count), ("min", self.min), ("p50", self.p50), ("p99", self.p99), ("max", self.max)]
    }
}

impl Histogram {
    const WINDOW: usize = 1000;

    /// Adds a value.
    pub fn record(&self, value: u64) {
        let mut values = self.0.lock();
        if values.newest.len() == Self::WINDOW {
            values.newest.pop_front();
        }
        values.newest.push_back(value);
        values.count += 1;
        values.sum = values.sum.saturating_add(value);
    }

    /// The distribution of the newest values.
    pub fn get(&self) -> Distribution {
        let (mut newest, total_count, total_sum) = {
            let values = self.0.lock();
            (values.newest.iter().copied().collect::<Vec<u64>>(), values.count, values.sum)
        };
        newest.sort_unstable();
        let at = |percent: usize| newest.get((newest.len() * percent).div_ceil(100).max(1) - 1).copied().unwrap_or(0);
        let (min, p50, p99, max) = (at(0), at(50), at(99), at(100));
        Distribution { count: newest.len() as u64, min, p50, p99, max, total_count, total_sum }
    }

    /// Adds the values of another; `bounded`, only as many of the newest are kept as of one.
    pub(super) fn absorb(&self, other: &Self, bounded: bool) {
        let (newest, count, sum) = {
            let other = other.0.lock();
            (other.newest.clone(), other.count, other.sum)
        };
        let mut values = self.0.lock();
        values.newest.extend(newest);
        values.count += count;
        values.sum = values.sum.saturating_add(sum);
        let excess = if bounded { values.newest.len().saturating_sub(Self::WINDOW) } else { 0 };
        values.newest.drain(..excess);
    }
}

/// A number or a histogram of a [`super::Metrics`].
pub(super) enum Instrument<'a> {
    Number(&'a Counter),
    Histogram(&'a Histogram),
}

impl<'a> Instrument<'a> {
    pub(super) fn number(self) -> Option<&'a Counter> {
        match self {
            Self::Number(number) => Some(number),
            Self::Histogram(_) => None,
        }
    }
}

impl<'a> From<&'a Counter> for Instrument<'a> {
    fn from(number: &'a Counter) -> Self {
        Self::Number(number)
    }
}

impl<'a> From<&'a Histogram> for Instrument<'a> {
    fn from(histogram: &'a Histogram) -> Self {
        Self::Histogram(histogram)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_histogram_forgets_old_values() {
        let histogram = Histogram::default();
        assert_eq!(histogram.get(), Distribution::default());
        histogram.record(7);
        let one = Distribution { count: 1, min: 7, p50: 7, p99: 7, max: 7, total_count: 1, total_sum: 7 };
        assert_eq!(histogram.get(), one);
        (1..=1000).for_each(|value| histogram.record(value));
        let found = histogram.get();
        assert_eq!(found.parts(), [("count", 1000), ("min", 1), ("p50", 500), ("p99", 990), ("max", 1000)]);
        assert_eq!((found.total_count, found.total_sum), (1001, 500_507));
    }

    #[test]
    fn growth_is_taken_once() {
        let counter = Counter::default();
        counter.add(3);
        assert_eq!((counter.take_growth(), counter.take_growth()), (3, 0));
        counter.add(2);
        assert_eq!((counter.take_growth(), counter.get()), (2, 5));
    }
}
