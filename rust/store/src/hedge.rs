//! A second attempt beside a slow one, so that an upload of a log object does not wait for the one request in a hundred
//! that hangs.
//!
//! Owns: the usual duration of uploads, the decision for a second attempt, and the clean-up after the slower attempt.
//! Does not own: attempts after failures (`retry`), the schedule of uploads (`write`).
//!
//! Both attempts send the same bytes under different names; the first acknowledged one is the object. The other is not
//! cancelled: a request in flight may take effect after its client disconnects, so the time to delete would be unknown.
//! It starts no retry, runs until the time limit of one attempt, and then its object is deleted. The sweep deletes
//! objects that arrive after that limit or after a close.
//!
//! Invariants of [`Store::put_log`]:
//! 1. one answer: the object acknowledged first, or an error when no attempt is left;
//! 2. bytes of second attempts never exceed `hedge_ratio` times the bytes of acknowledged log objects;
//! 3. an upload gets at most one second attempt, and only when a request slot is free;
//! 4. every object except the answer is removed, whether its attempt fails, loses, or is dropped with its caller;
//! 5. memory: losers hold objects of at most [`MOST_AHEAD`] bytes, beside the memory that callers count.

use super::put::{ChecksummedBytes, UploadProgress};
use super::retry::Attempts;
use super::{Store, log_name};
use fastchangelog_format::config::Options;
use fastchangelog_format::error::{Error, Result};
use fastchangelog_format::model::ObjectRef;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

/// Times that a class of sizes remembers.
const WINDOW: usize = 128;
/// Fewer times say nothing about a percentile: of twenty, the 95th is the second largest.
const ENOUGH: usize = 20;
/// How much longer than usual an upload takes before a second one is started. At the percentile itself one in twenty
/// would be doubled on a good day.
const FACTOR: u32 = 2;
/// Below this size an upload's time is the store's latency, not the line's. The first class ends at twice this size,
/// and each further one at twice the last.
const SMALL: u64 = 64 << 10;
/// The last class begins at 128 MiB.
const CLASSES: usize = 12;
/// Bytes of second attempts that may be saved up in good times, and that may be in progress at once. Larger
/// objects never get a second attempt.
const MOST_AHEAD: u64 = 64 << 20;

/// How long the latest uploads took, by size: no model that could be wrong, and old times are forgotten.
#[derive(Debug)]
struct Record {
    classes: [VecDeque<Duration>; CLASSES],
}

impl Record {
    fn new() -> Self {
        Self { classes: std::array::from_fn(|_| VecDeque::new()) }
    }

    fn class(bytes: u64) -> usize {
        let doublings = (bytes / SMALL).max(1).ilog2();
        usize::try_from(doublings).unwrap_or(usize::MAX).min(CLASSES - 1)
    }

    fn add(&mut self, bytes: u64, took: Duration) {
        let times = &mut self.classes[Self::class(bytes)];
        if times.len() == WINDOW {
            times.pop_front();
        }
        times.push_back(took);
    }

    /// The `percent`-th percentile of the duration of uploads of about `bytes` bytes. A rare size uses the next larger
    /// frequent size, whose uploads usually take at least as long.
    fn percentile(&self, bytes: u64, percent: usize) -> Option<Duration> {
        let seen = self.classes[Self::class(bytes)..].iter().find(|times| times.len() >= ENOUGH)?;
        let mut times: Vec<Duration> = seen.iter().copied().collect();
        let rank = (times.len() * percent).div_ceil(100).max(1) - 1;
        times.get(rank)?;
        Some(*times.select_nth_unstable(rank).1)
    }
}

/// An object that may be sent twice.
#[derive(Debug, Default)]
struct Budget {
    saved: f64,
    under_way: u64,
}

impl Budget {
    fn earn(&mut self, bytes: u64, ratio: f64) {
        self.saved = (self.saved + bytes as f64 * ratio).min(MOST_AHEAD as f64);
    }

    fn spend(&mut self, bytes: u64) -> bool {
        let enough = self.saved >= bytes as f64 && self.under_way.saturating_add(bytes) <= MOST_AHEAD;
        if enough {
            self.saved -= bytes as f64;
            self.under_way += bytes;
        }
        enough
    }
}

/// Shared by all uploads to one store.
#[derive(Debug)]
pub(super) struct Hedges {
    /// 0 = no second attempts.
    percent: usize,
    delay: Duration,
    ratio: f64,
    record: Mutex<Record>,
    budget: Mutex<Budget>,
}

impl Hedges {
    /// As the options say; with `useful` false never.
    pub(super) fn new(options: &Options, useful: bool) -> Self {
        let on = useful && options.hedge_ratio > 0.0;
        Self {
            percent: if on { options.hedge_percentile.min(99) } else { 0 },
            delay: options.hedge_delay,
            ratio: options.hedge_ratio,
            record: Mutex::new(Record::new()),
            budget: Mutex::default(),
        }
    }

    /// True when uploads may get a second attempt.
    pub(super) fn is_on(&self) -> bool {
        self.percent > 0
    }

    /// Bytes of second attempts whose race is not over.
    #[cfg(test)]
    pub(super) fn under_way(&self) -> u64 {
        self.budget.lock().under_way
    }

    /// Time after which an attempt of `bytes` bytes gets a second one; none if unknown.
    fn hedge_delay(&self, bytes: u64) -> Option<Duration> {
        let usual = self.record.lock().percentile(bytes, self.percent)?;
        Some(usual.saturating_mul(FACTOR).max(self.delay))
    }
}

impl Store {
    /// Writes a new log object under a name that it draws; rules as for [`Store::put_new`]. On shutdown
    /// (`closed`), waits only for uploads that still have a caller.
    pub async fn put_log(&self, content: ChecksummedBytes, closed: &watch::Receiver<bool>) -> Result<ObjectRef> {
        let hedges = &self.inner.hedges;
        if !hedges.is_on() {
            return self.put_checksummed(&log_name(), content).await;
        }
        let size = content.size;
        let mut first = Upload::start(self, content.clone(), Attempts::All);
        let result = match hedges.hedge_delay(size) {
            None => (&mut first).await,
            Some(hedge_delay) => self.put_beside(first, &content, hedge_delay, closed).await,
        };
        if result.is_ok() {
            hedges.budget.lock().earn(size, hedges.ratio);
        }
        result
    }

    async fn put_beside(
        &self,
        mut first: Upload,
        content: &ChecksummedBytes,
        hedge_delay: Duration,
        closed: &watch::Receiver<bool>,
    ) -> Result<ObjectRef> {
        let mut due = Instant::now() + hedge_delay;
        let (mut second, spent) = loop {
            tokio::select! {
                biased;
                result = &mut first => return result,
                () = tokio::time::sleep_until(due) => {}
            }
            let now = Instant::now();
            // An upload that waits for a slot, or pauses after a refusal, is not helped by more requests.
            due = first.progress.begun().unwrap_or(now) + hedge_delay;
            if due <= now {
                match self.second(content) {
                    Some(second) => break second,
                    None => due = now + hedge_delay,
                }
            }
        };
        let metrics = &self.inner.requests.metrics;
        let mut failed: Option<Error> = None;
        loop {
            let (result, second_won) = tokio::select! {
                biased;
                result = &mut first, if first.is_running() => (result, false),
                result = &mut second, if second.is_running() => (result, true),
            };
            match (result, failed.take()) {
                (Ok(object), _) => {
                    metrics.hedges_won.add(u64::from(second_won));
                    let loser = if second_won { first } else { second };
                    loser.detach(closed.clone(), spent);
                    return Ok(object);
                }
                (Err(error), None) => failed = Some(error),
                (Err(error), Some(earlier)) => {
                    let (of_first, of_second) = if second_won { (earlier, error) } else { (error, earlier) };
                    // A permanent error says more; otherwise prefer the first attempt, which tried more often.
                    let tell_second = of_first.is_retryable() && !of_second.is_retryable();
                    return Err(if tell_second { of_second } else { of_first });
                }
            }
        }
    }

    /// A second attempt, if it may be made now.
    fn second(&self, content: &ChecksummedBytes) -> Option<(Upload, Spent)> {
        let slot = self.inner.requests.free_slot()?;
        if !self.inner.hedges.budget.lock().spend(content.size) {
            return None;
        }
        let spent = Spent { store: self.clone(), bytes: content.size };
        let metrics = &self.inner.requests.metrics;
        metrics.hedges_started.add(1);
        metrics.hedge_bytes.add(content.size);
        let second = Upload::start(self, content.clone(), Attempts::Once(slot));
        tracing::debug!(object = second.name, bytes = content.size, "starting a second attempt beside a slow upload");
        Some((second, spent))
    }

    async fn remove_log(&self, name: &str) {
        if let Err(error) = self.delete(name).await {
            self.inner.requests.metrics.discard_failures.add(1);
            tracing::warn!(object = name, %error, "cannot delete the log object of a losing attempt; a sweep will");
        }
    }
}

/// Bytes of a second attempt, until both attempts have ended.
struct Spent {
    store: Store,
    bytes: u64,
}

impl Drop for Spent {
    fn drop(&mut self) {
        self.store.inner.hedges.budget.lock().under_way -= self.bytes;
    }
}

/// An upload that runs while it is polled. Dropped before its end, it removes what it may have left.
struct Upload {
    store: Store,
    name: String,
    size: u64,
    progress: Arc<UploadProgress>,
    /// None after its end.
    run: Option<Pin<Box<dyn Future<Output = Result<ObjectRef>> + Send>>>,
}

impl Upload {
    fn start(store: &Store, content: ChecksummedBytes, attempts: Attempts) -> Self {
        let (name, size, progress) = (log_name(), content.size, Arc::<UploadProgress>::default());
        let run = {
            let (store, name, progress) = (store.clone(), name.clone(), Arc::clone(&progress));
            async move {
                let object = store.put_observed(&name, content, attempts, &progress).await?;
                store.remember(size, &progress);
                Ok(object)
            }
        };
        Self { store: store.clone(), name, size, progress, run: Some(Box::pin(run)) }
    }

    fn is_running(&self) -> bool {
        self.run.is_some()
    }

    /// Its object is not needed any more: the upload ends in the background.
    fn detach(mut self, mut closed: watch::Receiver<bool>, spent: Spent) {
        let Some(mut run) = self.run.take() else { return };
        self.progress.give_up();
        let (store, name, size) = (self.store.clone(), std::mem::take(&mut self.name), self.size);
        let progress = Arc::clone(&self.progress);
        self.store.in_background(async move {
            let limit = store.inner.requests.limits.time_for(size);
            let ended = tokio::select! {
                biased;
                ended = &mut run => Some(ended),
                // Its time counts too, or the record would only know the fast.
                () = tokio::time::sleep(limit) => {
                    store.remember(size, &progress);
                    None
                }
                _ = closed.wait_for(|closed| *closed) => None,
            };
            drop(run);
            // One that failed has removed its remains itself.
            if !matches!(ended, Some(Err(_))) {
                store.remove_log(&name).await;
            }
            drop(spent);
        });
    }
}

impl Store {
    fn remember(&self, size: u64, progress: &UploadProgress) {
        if let Some(begun) = progress.begun() {
            self.inner.hedges.record.lock().add(size, begun.elapsed());
        }
    }
}

impl Future for Upload {
    type Output = Result<ObjectRef>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(run) = &mut self.run else { return Poll::Pending };
        let polled = run.as_mut().poll(cx);
        if polled.is_ready() {
            self.run = None;
        }
        polled
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        if self.run.take().is_some() && self.progress.touched() {
            let (store, name) = (self.store.clone(), std::mem::take(&mut self.name));
            self.store.in_background(async move { store.remove_log(&name).await });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn record(times: impl IntoIterator<Item = (u64, u32)>) -> Record {
        let mut record = Record::new();
        times.into_iter().for_each(|(bytes, millis)| record.add(bytes, MS * millis));
        record
    }

    #[test]
    fn a_percentile_needs_enough_times() {
        let few = record((1..20).map(|n| (100, n)));
        assert_eq!(few.percentile(100, 95), None);
        let enough = record((1..=20).map(|n| (100, n)));
        let of = |percent| enough.percentile(100, percent).unwrap();
        assert_eq!((of(1), of(50), of(95), of(99)), (MS, MS * 10, MS * 19, MS * 20));
    }

    #[test]
    fn old_times_are_forgotten() {
        let slow_then_fast = record((0..WINDOW + 7).map(|n| (100, if n < 7 { 1000 } else { 1 })));
        assert_eq!(slow_then_fast.percentile(100, 99), Some(MS));
        assert!(slow_then_fast.classes.iter().all(|times| times.len() <= WINDOW));
    }

    #[test]
    fn sizes_are_judged_by_their_like_or_by_larger_ones() {
        let classes = [0, 1, SMALL, 2 * SMALL - 1, 2 * SMALL, 16 << 20, 127 << 20, 128 << 20, u64::MAX];
        assert_eq!(classes.map(Record::class), [0, 0, 0, 0, 1, 8, 10, 11, 11]);
        let large = record((0..40).map(|_| (1 << 20, 30)));
        assert_eq!(large.percentile(1 << 20, 95), Some(MS * 30));
        assert_eq!(large.percentile(10, 95), Some(MS * 30), "later than needed, never sooner");
        assert_eq!(large.percentile(4 << 20, 95), None, "a larger one takes longer: nothing is known");
        let both = record((0..40).flat_map(|_| [(10, 2), (1 << 20, 30)]));
        assert_eq!(both.percentile(10, 95), Some(MS * 2));
    }

    #[test]
    fn a12_what_is_spent_was_earned() {
        let mut budget = Budget::default();
        assert!(!budget.spend(1), "nothing is given in advance");
        (0..9).for_each(|_| budget.earn(100, 0.1));
        assert!(!budget.spend(100));
        budget.earn(101, 0.1);
        assert!(budget.spend(100) && !budget.spend(1));
        assert_eq!(budget.under_way, 100);
        budget.earn(u64::MAX, 0.1);
        assert!(!budget.spend(MOST_AHEAD), "some is under way");
        budget.under_way = 0;
        assert!(budget.spend(MOST_AHEAD) && !budget.spend(1), "however long the good time was");
    }
}
