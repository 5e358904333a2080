//! Time as a parameter.
//!
//! Owns: the [`Clock`] trait, the system's clock and one moved by hand in tests.
//! Does not own: sleeping or timers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// A source of wall-clock and monotonic time.
pub trait Clock: Send + Sync + 'static {
    /// Milliseconds since the Unix epoch.
    fn now_millis(&self) -> u64;
    /// Time since an arbitrary start that never goes back.
    fn monotonic(&self) -> Duration;
}

/// A clock that can be shared.
pub type SharedClock = Arc<dyn Clock>;

/// Called at intervals during a wait, for example to check for Ctrl-C; an error ends the wait.
pub type Tick<'a> = &'a dyn Fn() -> crate::error::Result<()>;

/// A moment, measured by the wall clock and the monotonic clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moment {
    millis: u64,
    monotonic: Duration,
}

impl Moment {
    /// Now.
    pub fn now(clock: &dyn Clock) -> Self {
        Self { millis: clock.now_millis(), monotonic: clock.monotonic() }
    }

    /// A lower bound of the time since this moment: the wall clock may be set back, and the monotonic clock may stop
    /// while the machine sleeps, so the longer of the two counts.
    pub fn age(&self, clock: &dyn Clock) -> Duration {
        let wall = Duration::from_millis(clock.now_millis().saturating_sub(self.millis));
        wall.max(clock.monotonic().saturating_sub(self.monotonic))
    }
}

/// The machine's clock.
#[derive(Debug)]
pub struct SystemClock {
    start: Instant,
}

impl SystemClock {
    /// A shared system clock.
    pub fn shared() -> SharedClock {
        Arc::new(Self { start: Instant::now() })
    }
}

impl Clock for SystemClock {
    #[expect(clippy::disallowed_methods, reason = "this is the clock")]
    fn now_millis(&self) -> u64 {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    }

    fn monotonic(&self) -> Duration {
        self.start.elapsed()
    }
}

/// A clock that stands still until it is moved.
#[derive(Debug, Default)]
pub struct ManualClock {
    millis: AtomicU64,
}

impl ManualClock {
    /// A clock at `millis` after the epoch.
    pub fn at(millis: u64) -> Arc<Self> {
        Arc::new(Self { millis: AtomicU64::new(millis) })
    }

    /// Moves the clock forward.
    pub fn advance(&self, by: Duration) {
        self.millis.fetch_add(u64::try_from(by.as_millis()).unwrap_or(u64::MAX), Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn now_millis(&self) -> u64 {
        self.millis.load(Ordering::SeqCst)
    }

    fn monotonic(&self) -> Duration {
        Duration::from_millis(self.now_millis())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A clock whose two times are told apart.
    struct Two(u64, Duration);

    impl Clock for Two {
        fn now_millis(&self) -> u64 {
            self.0
        }

        fn monotonic(&self) -> Duration {
            self.1
        }
    }

    #[test]
    fn the_longer_of_both_times_is_the_age() {
        let hours = Duration::from_hours;
        let then = Moment::now(&Two(7_200_000, hours(5)));
        assert_eq!(then.age(&Two(10_800_000, hours(5))), hours(1), "the machine slept");
        assert_eq!(then.age(&Two(0, hours(8))), hours(3), "the wall clock was set back");
    }
}
