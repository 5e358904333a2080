//! Attempts: their number, time limits and pauses, and the error after the last one.
//!
//! Owns: the retry loop of every request, its time limit, back-off with jitter, the bound on concurrent requests, and
//! the counters of requests. `object_store`'s own retries are off, so every request is counted here.
//! Does not own: the meaning of an error (`diagnose`), the checks of a repeated put (`Store::put_new`).
//!
//! Invariants:
//! 1. a request fails once, after its last attempt, never between attempts;
//! 2. attempts of one request never overlap: a timed-out attempt is dropped before the next starts; a second
//!    attempt beside a slow one is another request, under another name (`hedge`);
//! 3. every wait has a bound: an attempt by `request_timeout` plus an allowance for its bytes, all by `max_attempts`;
//! 4. a refusal of credentials is final unless others are available; these get one more attempt beyond `max_attempts`.

use super::credentials::Renew;
use super::diagnose::{Diagnosis, diagnose, is_refusal};
use super::redact::Redactor;
use crate::failpoint::SharedFailpoints;
use crate::metrics::SharedMetrics;
use fastchangelog_format::config::Options;
use fastchangelog_format::error::{Cause, Error, ErrorKind, Subject};
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

/// Longest pause between two attempts.
const MAX_PAUSE: Duration = Duration::from_secs(20);
/// Slowest tolerated transfer, in bytes per second; it extends an attempt's time limit.
const MIN_BYTES_PER_SECOND: u64 = 1 << 20;

/// The limits of requests, from the options.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// Attempts of one request.
    pub(super) attempts: usize,
    /// First pause.
    pub(super) first_pause: Duration,
    /// Time of one attempt, without the allowance for its bytes.
    pub(super) timeout: Duration,
}

impl Limits {
    pub(super) fn of(options: &Options) -> Self {
        Self {
            attempts: options.max_attempts.max(1),
            first_pause: options.retry_delay,
            timeout: options.request_timeout,
        }
    }

    /// The pause after the failed attempt `attempt` (from 1): doubling, between half and all of it by `jitter`.
    pub(super) fn pause(&self, attempt: usize, jitter: f64) -> Duration {
        let doublings = u32::try_from(attempt.saturating_sub(1)).unwrap_or(u32::MAX).min(16);
        self.first_pause.saturating_mul(1 << doublings).min(MAX_PAUSE).mul_f64(0.5 + jitter / 2.0)
    }

    /// Time of one attempt that moves `bytes` bytes.
    pub(super) fn time_for(&self, bytes: u64) -> Duration {
        self.timeout + Duration::from_secs(bytes / MIN_BYTES_PER_SECOND)
    }
}

/// Seeded numbers in [0, 1) for jitter.
#[derive(Debug)]
pub(super) struct Jitter(AtomicU64);

impl Jitter {
    pub(super) fn seeded(seed: u64) -> Self {
        Self(AtomicU64::new(seed))
    }

    /// The next number: SplitMix64.
    pub(super) fn next(&self) -> f64 {
        const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
        let mut z = self.0.fetch_add(STEP, Ordering::Relaxed).wrapping_add(STEP);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// Why an attempt failed.
#[derive(Debug)]
pub(super) enum Failure {
    /// The store said so.
    Store(object_store::Error),
    /// Something passing: try again.
    Again(String),
    /// No further attempt can help.
    Fatal(Error),
}

impl From<object_store::Error> for Failure {
    fn from(error: object_store::Error) -> Self {
        Self::Store(error)
    }
}

/// A request, as messages and time limits need it: its verb, object and bytes.
#[derive(Debug, Clone, Copy)]
pub(super) struct RequestContext<'a> {
    /// A verb: `write`, `read`, …
    pub(super) verb: &'static str,
    /// The object, relative to `uri`.
    pub(super) name: &'a str,
    /// Bytes that travel; the time limit allows for them. None = no time limit here (the caller limits its parts).
    pub(super) bytes: Option<u64>,
    /// The folder, as the user wrote it.
    pub(super) uri: &'a str,
}

/// How many attempts a request gets, and in which slot each runs.
#[derive(Debug)]
pub(super) enum Attempts {
    /// Up to `max_attempts`; each waits for a slot.
    All,
    /// Up to `max_attempts`, as a part of a request that has a slot: with one slot in all, a second would never be
    /// free.
    Inside,
    /// One, in this slot.
    Once(OwnedSemaphorePermit),
}

/// Shared by all requests of a store.
#[derive(Debug)]
pub(super) struct Requests {
    pub(super) limits: Limits,
    permits: Arc<Semaphore>,
    pub(super) metrics: SharedMetrics,
    pub(super) failpoints: SharedFailpoints,
    pub(super) redactor: Redactor,
    pub(super) jitter: Jitter,
    /// Renews the credentials when the store refuses those of an attempt.
    pub(super) renew: Option<Arc<dyn Renew>>,
}

impl Requests {
    pub(super) fn new(
        options: &Options,
        metrics: SharedMetrics,
        failpoints: SharedFailpoints,
        redactor: Redactor,
        seed: u64,
    ) -> Self {
        Self {
            limits: Limits::of(options),
            permits: Arc::new(Semaphore::new(options.store_concurrency.clamp(1, Semaphore::MAX_PERMITS))),
            metrics,
            failpoints,
            redactor,
            jitter: Jitter::seeded(seed),
            renew: None,
        }
    }

    /// The same requests, with credentials that `renew` renews.
    pub(super) fn renewed_by(self, renew: Option<Arc<dyn Renew>>) -> Self {
        Self { renew, ..self }
    }

    /// A slot for one request, if one is free and no other request waits for it.
    pub(super) fn free_slot(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.permits).try_acquire_owned().ok()
    }

    /// Runs attempts of `call` until one succeeds, one fails for good, or all are used up.
    ///
    /// `attempt` gets the attempt's number, from 1.
    pub(super) async fn run<T, F, Fut>(&self, call: RequestContext<'_>, attempt: F) -> Result<T, Error>
    where
        F: FnMut(usize) -> Fut,
        Fut: Future<Output = Result<T, Failure>>,
    {
        self.run_some(call, Attempts::All, attempt).await
    }

    /// [`Requests::run`] with as many attempts as `tries` says.
    pub(super) async fn run_some<T, F, Fut>(
        &self,
        call: RequestContext<'_>,
        tries: Attempts,
        mut attempt: F,
    ) -> Result<T, Error>
    where
        F: FnMut(usize) -> Fut,
        Fut: Future<Output = Result<T, Failure>>,
    {
        let start = Instant::now();
        let (attempts, slots, _slot) = match tries {
            Attempts::All => (self.limits.attempts, Some(&self.permits), None),
            Attempts::Inside => (self.limits.attempts, None, None),
            Attempts::Once(slot) => (1, None, Some(slot)),
        };
        let mut number = 1;
        let mut renewed = false;
        loop {
            let credentials = self.renew.as_ref().map_or(0, |renew| renew.number());
            let failure = match self.once(call, slots, attempt(number)).await {
                Ok(value) => {
                    self.metrics.request_attempts.record(number as u64);
                    return Ok(value);
                }
                Err(failure) => failure,
            };
            let mut said = None;
            let diagnosis = match failure {
                Failure::Fatal(error) => {
                    self.metrics.store_failures.add(1);
                    return Err(error);
                }
                Failure::Store(error) => {
                    let diagnosis = diagnose(&error);
                    let others = is_refusal(&error, &diagnosis)
                        && !renewed
                        && self.renew.as_ref().is_some_and(|renew| renew.refuse(credentials));
                    renewed |= others;
                    said = Some(error);
                    Diagnosis { permanent: diagnosis.permanent.filter(|_| !others), ..diagnosis }
                }
                Failure::Again(cause) => Diagnosis {
                    permanent: None,
                    cause,
                    advice: "raise `request_timeout` or `max_attempts` if the store is slow, else check that it can be \
                        reached",
                },
            };
            if diagnosis.permanent.is_some() || number >= attempts + usize::from(renewed) {
                // A missing object is an answer, not a failure of the store.
                if diagnosis.permanent != Some(ErrorKind::NotFound) {
                    self.metrics.store_failures.add(1);
                }
                let causes = self.redactor.clean_causes(said.as_ref().map(|e| Cause::behind(e)).unwrap_or_default());
                return Err(self.error(call, &diagnosis, number, start.elapsed()).with_causes(causes));
            }
            self.metrics.store_retries.add(1);
            let pause = self.limits.pause(number, self.jitter.next());
            tracing::debug!(
                object = call.name,
                attempt = number,
                pause_ms = u64::try_from(pause.as_millis()).unwrap_or(u64::MAX),
                cause = %self.redactor.clean(&diagnosis.cause),
                "trying a store request again"
            );
            tokio::time::sleep(pause).await;
            number += 1;
        }
    }

    /// One attempt, counted, within its time; in the next free one of `slots`, which bound the concurrent requests.
    async fn once<T>(
        &self,
        call: RequestContext<'_>,
        slots: Option<&Arc<Semaphore>>,
        attempt: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        let slot = match slots {
            None => None,
            Some(slots) => {
                Some(slots.acquire().await.map_err(|_| Failure::Fatal(Error::closed("the store was closed")))?)
            }
        };
        self.metrics.store_requests.add(1);
        let start = std::time::Instant::now();
        let result = match call.bytes {
            None => attempt.await,
            Some(bytes) => {
                let limit = self.limits.time_for(bytes);
                tokio::time::timeout(limit, attempt)
                    .await
                    .unwrap_or_else(|_| Err(Failure::Again(format!("no answer within {limit:?}"))))
            }
        };
        self.metrics.store_micros.add_elapsed(start);
        drop(slot);
        result
    }

    /// The error of a request that is abandoned.
    pub(super) fn error(
        &self,
        call: RequestContext<'_>,
        diagnosis: &Diagnosis,
        attempts: usize,
        elapsed: Duration,
    ) -> Error {
        let kind = diagnosis.permanent.unwrap_or(ErrorKind::Retryable);
        let tries = match (attempts, diagnosis.permanent) {
            (_, Some(_)) => String::new(),
            (1, _) => " (1 attempt)".to_owned(),
            (n, _) => format!(" ({n} attempts in {elapsed:.1?})"),
        };
        let cause = self.redactor.clean(&diagnosis.cause);
        Error::new(kind, format!("cannot {} `{}` in {}: {cause}{tries}", call.verb, call.name, call.uri))
            .with_remedy(diagnosis.advice)
            .with_subject(Subject::Object(format!("{}/{}", call.uri, call.name)))
    }
}

#[cfg(test)]
#[path = "retry_tests.rs"]
mod tests;
