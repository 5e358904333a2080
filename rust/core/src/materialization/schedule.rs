//! The schedule of one state's materializations, with time as a parameter.
//!
//! Owns: when time or the log starts the next run, the pauses after failures, the count of failures in a row.
//! Does not own: the bounds (`policy`), the runs and the wait for their end (the host).
//!
//! Invariant: a success resets the count of failures; each failure after `max_failures` in a row fails the job.

use super::policy::{Policy, Progress};
use fastchangelog_format::error::Error;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

/// Pause after the first failure before the log may start another run; doubles with each failure in a row. Without it
/// every poll would start a new upload of the whole state to a store that is down.
const RETRY_PAUSE: Duration = Duration::from_secs(10);

/// The pause doubles so often.
const MAX_DOUBLINGS: u64 = 10;

/// Longest pause after the job was failed: a restarted job should not wait for a store that works again.
pub const FAILED_PAUSE: Duration = Duration::from_secs(30);

/// Pause after a run that found nothing to do, or was cancelled.
const SKIP_PAUSE: Duration = Duration::from_secs(1);

/// When the runs of one state begin. The host reports the outcome of each.
#[derive(Debug)]
pub struct Schedule {
    policy: Policy,
    owner: String,
    failures_in_a_row: u64,
    /// The interval counts from here.
    interval_start: Duration,
    first_interval: bool,
    due: Duration,
    /// Until then, the log starts no run.
    not_before: Duration,
}

impl Schedule {
    /// From `now` on. The first run by time comes after a stable part of the interval, which follows from `owner`.
    pub fn new(policy: Policy, owner: &str, now: Duration) -> Self {
        let (owner, failures_in_a_row, first_interval) = (owner.to_owned(), 0, true);
        let mut this =
            Self { policy, owner, failures_in_a_row, interval_start: now, first_interval, due: now, not_before: now };
        this.set_due();
        this
    }

    /// Replaces the policy. The interval of the new one starts when that of the former one did.
    pub fn follow(&mut self, policy: Policy) {
        if policy != self.policy {
            self.policy = policy;
            self.set_due();
        }
    }

    /// True if a run is to begin.
    pub fn is_due(&self, now: Duration, progress: &Progress) -> bool {
        now >= self.due || (now >= self.not_before && self.policy.wants(progress))
    }

    /// A run made a snapshot.
    pub fn completed(&mut self, now: Duration) {
        self.failures_in_a_row = 0;
        self.end(now, Duration::ZERO);
    }

    /// A run was due and there was nothing to do, or its state was closed or replaced meanwhile.
    pub fn skipped(&mut self, now: Duration) {
        self.end(now, SKIP_PAUSE);
    }

    /// A run failed. The error of the job, if that was one failure too many; later runs are still tried.
    pub fn failed(&mut self, now: Duration, cause: &Error) -> Option<Error> {
        self.failures_in_a_row += 1;
        self.end(now, self.pause());
        let tolerated = self.policy.max_failures;
        (self.failures_in_a_row > tolerated).then(|| {
            Error::store(format!(
                "materialization of {} failed {} times in a row, more than `max_failures` = {tolerated} of its \
                 MaterializationPolicy allows; the last cause: {cause}",
                self.owner, self.failures_in_a_row
            ))
        })
    }

    /// Failed runs since the last completed one.
    pub fn failures_in_a_row(&self) -> u64 {
        self.failures_in_a_row
    }

    fn first_delay(&self) -> Duration {
        let mut hasher = DefaultHasher::new();
        self.owner.hash(&mut hasher);
        let part = u32::try_from(hasher.finish() >> 32).unwrap_or_default();
        self.policy.interval.mul_f64(f64::from(part) / (f64::from(u32::MAX) + 1.0))
    }

    /// Time from the end of a run to the next one by time.
    fn delay(&self) -> Duration {
        let interval = self.policy.interval;
        if self.failures_in_a_row > self.policy.max_failures { interval.min(FAILED_PAUSE) } else { interval }
    }

    /// Time from a failure in which the log starts no run: never longer than the delay by time, which a failed job
    /// shortens.
    fn pause(&self) -> Duration {
        let doublings = self.failures_in_a_row.saturating_sub(1).min(MAX_DOUBLINGS);
        (RETRY_PAUSE * (1 << doublings)).min(self.delay())
    }

    fn end(&mut self, now: Duration, pause: Duration) {
        (self.interval_start, self.first_interval) = (now, false);
        self.not_before = now + pause;
        self.set_due();
    }

    fn set_due(&mut self) {
        let wait = if self.first_interval { self.first_delay() } else { self.delay() };
        self.due = self.interval_start.saturating_add(wait);
    }
}

#[cfg(test)]
#[path = "schedule_tests.rs"]
mod tests;
