//! Limits for background transfers: concurrency, bandwidth, CPU share.
//!
//! Owns: the slots of background transfers of a process, the rate of their bytes, the count of foreground work, and how
//! long background work rests meanwhile.
//! Does not own: which transfers are in the background (snapshots are; log objects and all reads are not), the bound on
//! requests of a store (`retry`).
//!
//! Invariants:
//! 1. at most `background_transfers` files of snapshots are in flight at once, and fewer than `store_concurrency`: a
//!    log object's upload never waits for one of them to end;
//! 2. in any interval the bytes let through exceed rate × time by at most one part; first come, first served;
//! 3. a wait is bounded by the time that the bytes before it take at the rate;
//! 4. while foreground work runs, and for its grace period afterwards, background work rests [`REST`] times as long as
//!    it worked, at most [`LONGEST_REST`] at a time; otherwise it does not rest.

use crate::metrics::SharedMetrics;
use fastchangelog_format::clock::SharedClock;
use fastchangelog_format::config::Options;
use fastchangelog_format::error::{Error, Result};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Rest per time worked: a tenth of one processor is left to work in the background.
const REST: u32 = 9;
/// Bounds the rest after a step that was long only because it waited for a processor.
const LONGEST_REST: Duration = Duration::from_millis(20);
/// Foreground work runs until this is dropped.
#[derive(Debug)]
pub struct ForegroundGuard {
    background: Arc<Background>,
    grace: Duration,
}

impl Drop for ForegroundGuard {
    fn drop(&mut self) {
        let until = self.background.clock.monotonic().saturating_add(self.grace).as_millis();
        self.background.until_millis.fetch_max(u64::try_from(until).unwrap_or(u64::MAX), Ordering::Relaxed);
        self.background.foreground.fetch_sub(1, Ordering::Release);
    }
}

/// The budget of a process for transfers in the background.
pub struct Background {
    slots: Arc<Semaphore>,
    pace: Option<Mutex<Pace>>,
    foreground: AtomicUsize,
    /// End of the grace periods of foreground work that has ended.
    until_millis: AtomicU64,
    clock: SharedClock,
    metrics: SharedMetrics,
}

impl std::fmt::Debug for Background {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Background").field("slots", &self.slots).field("pace", &self.pace).finish_non_exhaustive()
    }
}

/// When the next bytes may go. No credit gathers while nothing is sent: a burst is one part.
#[derive(Debug)]
struct Pace {
    bytes_per_second: u64,
    free_at: Duration,
}

impl Pace {
    /// Books `bytes` at the time `now`; gives how long to wait before they may go.
    fn book(&mut self, now: Duration, bytes: u64) -> Duration {
        let start = self.free_at.max(now);
        let nanos = u128::from(bytes) * 1_000_000_000 / u128::from(self.bytes_per_second);
        self.free_at = start + Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
        start.saturating_sub(now)
    }
}

impl Background {
    /// The budget that the options give.
    pub fn new(options: &Options, clock: SharedClock, metrics: SharedMetrics) -> Arc<Self> {
        let slots = options.background_transfers.min(options.store_concurrency.saturating_sub(1));
        let rate = options.background_bandwidth;
        Arc::new(Self {
            slots: Arc::new(Semaphore::new(slots.clamp(1, Semaphore::MAX_PERMITS))),
            pace: (rate > 0).then(|| Mutex::new(Pace { bytes_per_second: rate, free_at: Duration::ZERO })),
            foreground: AtomicUsize::new(0),
            until_millis: AtomicU64::new(0),
            clock,
            metrics,
        })
    }

    /// A slot for one transfer, in the order of asking.
    pub async fn slot(&self) -> Result<OwnedSemaphorePermit> {
        let slot = Arc::clone(&self.slots).acquire_owned().await;
        slot.map_err(|_| Error::closed("transfers in the background have ended"))
    }

    /// Announces foreground work, which may continue unannounced during `grace` after its end.
    pub fn foreground(self: &Arc<Self>, grace: Duration) -> ForegroundGuard {
        self.foreground.fetch_add(1, Ordering::Relaxed);
        ForegroundGuard { background: Arc::clone(self), grace }
    }

    /// How long to rest after `worked`; zero without foreground work now or within its grace period.
    pub fn rest(&self, worked: Duration) -> Duration {
        if self.foreground.load(Ordering::Acquire) == 0 {
            let until = self.until_millis.load(Ordering::Relaxed);
            if u128::from(until) <= self.clock.monotonic().as_millis() {
                return Duration::ZERO;
            }
        }
        let rest = worked.saturating_mul(REST).min(LONGEST_REST);
        self.metrics.background_rests_micros.add(u64::try_from(rest.as_micros()).unwrap_or(u64::MAX));
        rest
    }

    /// Waits until `bytes` more may go.
    pub(super) async fn pass(&self, bytes: u64) {
        let Some(pace) = &self.pace else { return };
        let wait = pace.lock().book(self.clock.monotonic(), bytes);
        if !wait.is_zero() {
            self.metrics.background_waits_micros.add(u64::try_from(wait.as_micros()).unwrap_or(u64::MAX));
            tokio::time::sleep(wait).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::SharedMetrics;
    use fastchangelog_format::clock::Clock;
    use std::collections::BTreeMap;
    use tokio::time::Instant;

    /// The time that tokio's tests stop and move.
    struct Paused(Instant);

    impl Clock for Paused {
        fn now_millis(&self) -> u64 {
            u64::try_from(self.0.elapsed().as_millis()).unwrap()
        }

        fn monotonic(&self) -> Duration {
            self.0.elapsed()
        }
    }

    fn background(options: &[(&str, &str)]) -> Arc<Background> {
        let options: BTreeMap<_, _> = options.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        let options = Options::from_map(&options).unwrap();
        Background::new(&options, Arc::new(Paused(Instant::now())), SharedMetrics::default())
    }

    #[test]
    fn invariant_2_a_pace_is_kept_and_gathers_no_credit() {
        let mut pace = Pace { bytes_per_second: 1000, free_at: Duration::ZERO };
        let (second, half) = (Duration::from_secs(1), Duration::from_millis(500));
        assert_eq!(pace.book(Duration::ZERO, 1000), Duration::ZERO, "the first bytes go at once");
        assert_eq!(pace.book(half, 500), half);
        assert_eq!(pace.book(half, 1), second, "after the 1500 bytes before it");
        assert_eq!(pace.book(100 * second, 1000), Duration::ZERO);
        assert_eq!(pace.book(100 * second, 1), second, "nothing was saved up in the meantime");
        assert_eq!(pace.book(101 * second, u64::MAX), Duration::from_millis(1));
        assert!(pace.book(101 * second, 1) > Duration::from_secs(1 << 30), "huge numbers do not wrap");
    }

    #[tokio::test(start_paused = true)]
    async fn invariant_3_waits_are_as_long_as_the_bytes_before_take() {
        let background = background(&[("background_bandwidth", "1MiB")]);
        let start = Instant::now();
        for expected in 0..5 {
            background.pass(1 << 20).await;
            let waited = start.elapsed();
            assert_eq!(waited.as_secs(), expected, "{waited:?}");
        }
        assert_eq!(background.metrics.background_waits_micros.get() / 1_000_000, 4);
        let unlimited = super::tests::background(&[]);
        let start = Instant::now();
        unlimited.pass(u64::MAX).await;
        assert_eq!(start.elapsed(), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn invariant_4_background_work_rests_during_foreground_work() {
        let background = background(&[]);
        let (short, long) = (Duration::from_millis(2), Duration::from_secs(9));
        assert_eq!(background.rest(long), Duration::ZERO);
        let (grace, almost) = (Duration::from_secs(3), Duration::from_millis(2_999));
        let (a, b, c) = (background.foreground(grace), background.foreground(grace), background.foreground(short));
        assert_eq!((background.rest(short), background.rest(long)), (REST * short, LONGEST_REST));
        drop(a);
        assert_eq!(background.rest(short), REST * short, "two are left");
        drop(b);
        drop(c);
        tokio::time::advance(almost).await;
        assert_eq!(background.rest(short), REST * short, "the next one may come at once");
        tokio::time::advance(Duration::from_millis(2)).await;
        assert_eq!(background.rest(short), Duration::ZERO);
        assert_eq!(background.metrics.background_rests_micros.get(), 18_000 + 20_000 + 18_000 + 18_000);
    }

    #[tokio::test]
    async fn invariant_1_slots_are_fewer_than_requests() {
        for (transfers, requests, expected) in [("4", "32", 4), ("32", "32", 31), ("9", "4", 3), ("4", "1", 1)] {
            let background = background(&[("background_transfers", transfers), ("store_concurrency", requests)]);
            assert_eq!(background.slots.available_permits(), expected, "{transfers} of {requests}");
            let slot = background.slot().await.unwrap();
            assert_eq!(background.slots.available_permits(), expected - 1);
            drop(slot);
            assert_eq!(background.slots.available_permits(), expected);
        }
    }
}
