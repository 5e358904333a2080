//! Progress of a restore, for metrics and the log.
//!
//! Owns: the pending and the fetched bytes of a restore, their metrics, and when a line of the log is due.
//! Does not own: what is fetched, and from where (`snapshot`, `replay`).
//!
//! Invariants of a [`RestoreProgress`]:
//! 1. `restore_pending_bytes` holds its missing bytes as long as it exists, and nothing of it afterwards, however the
//!    restore ended;
//! 2. between two lines of the log at least [`EVERY`] passes.

use fastchangelog_format::clock::SharedClock;
use fastchangelog_store::metrics::SharedMetrics;
use parking_lot::Mutex;
use std::time::Duration;

/// Time between two lines of the log.
const EVERY: Duration = Duration::from_secs(5);

/// The pending and fetched bytes of one restore.
pub struct RestoreProgress {
    /// The restored shard.
    what: String,
    clock: SharedClock,
    metrics: SharedMetrics,
    state: Mutex<State>,
}

struct State {
    total: u64,
    done: u64,
    started: Duration,
    told: Duration,
}

/// What a line of the log says.
#[derive(Debug, PartialEq, Eq)]
struct Report {
    done: u64,
    total: u64,
    elapsed: Duration,
}

impl RestoreProgress {
    /// The restore of `what` begins.
    pub fn start(what: &str, clock: &SharedClock, metrics: &SharedMetrics) -> Self {
        metrics.restores_running.add(1);
        let started = clock.monotonic();
        let state = Mutex::new(State { total: 0, done: 0, started, told: started });
        Self { what: what.to_owned(), clock: SharedClock::clone(clock), metrics: SharedMetrics::clone(metrics), state }
    }

    /// So many more bytes are wanted.
    pub fn expect(&self, bytes: u64) {
        self.state.lock().total += bytes;
        self.metrics.restore_pending_bytes.add(bytes);
    }

    /// So many of them have arrived, from any source.
    pub fn add_done(&self, bytes: u64) {
        self.metrics.restore_bytes.add(bytes);
        if let Some(Report { done, total, elapsed }) = self.count(bytes) {
            let (shard, millis) = (&self.what, elapsed.as_millis());
            tracing::info!(%shard, done, total, millis, "restoring");
        }
    }

    /// Bytes that are here, and how many there will be.
    pub fn bytes(&self) -> (u64, u64) {
        let state = self.state.lock();
        (state.done, state.total)
    }

    fn count(&self, bytes: u64) -> Option<Report> {
        let mut state = self.state.lock();
        let bytes = bytes.min(state.total - state.done);
        state.done += bytes;
        self.metrics.restore_pending_bytes.sub(bytes);
        let now = self.clock.monotonic();
        if now.saturating_sub(state.told) < EVERY {
            return None;
        }
        state.told = now;
        Some(Report { done: state.done, total: state.total, elapsed: now.saturating_sub(state.started) })
    }
}

impl Drop for RestoreProgress {
    fn drop(&mut self) {
        let state = self.state.get_mut();
        self.metrics.restore_pending_bytes.sub(state.total - state.done);
        self.metrics.restores_running.sub(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fastchangelog_format::clock::ManualClock;
    use std::sync::Arc;

    #[test]
    fn invariant_1_the_missing_is_counted_until_the_restore_ends() {
        let (clock, metrics) = (ManualClock::at(0), SharedMetrics::default());
        let pending = || (metrics.restores_running.get(), metrics.restore_pending_bytes.get());
        let clock: SharedClock = clock;
        let one = RestoreProgress::start("one", &clock, &metrics);
        let other = RestoreProgress::start("other", &clock, &metrics);
        one.expect(100);
        other.expect(50);
        one.expect(10);
        one.add_done(30);
        assert_eq!((pending(), one.bytes()), ((2, 130), (30, 110)));
        // More than was expected, such as a fetch that was repeated, is no debt of others.
        one.add_done(1000);
        assert_eq!(pending(), (2, 50));
        drop(other);
        assert_eq!(pending(), (1, 0), "given up");
        drop(one);
        assert_eq!((pending(), metrics.restore_bytes.get()), ((0, 0), 1030));
    }

    #[test]
    fn invariant_2_a_line_every_few_seconds_says_how_far_it_is() {
        let (clock, metrics) = (ManualClock::at(7), SharedMetrics::default());
        let progress = RestoreProgress::start("one", &(Arc::clone(&clock) as SharedClock), &metrics);
        progress.expect(100);
        assert_eq!(progress.count(10), None);
        clock.advance(EVERY / 2);
        assert_eq!(progress.count(10), None);
        clock.advance(EVERY / 2);
        assert_eq!(progress.count(10), Some(Report { done: 30, total: 100, elapsed: EVERY }));
        assert_eq!(progress.count(10), None);
        clock.advance(EVERY * 3);
        assert_eq!(progress.count(60), Some(Report { done: 100, total: 100, elapsed: EVERY * 4 }));
    }
}
