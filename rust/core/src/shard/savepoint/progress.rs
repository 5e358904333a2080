//! How far a long piece of work is.
//!
//! Owns: two counters that any thread may read, the periodic check whether to continue, and the word that
//! it shall not.
//! Does not own: showing them.

use fastchangelog_format::error::Result;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::watch;

/// Between two looks.
const TICK: Duration = Duration::from_millis(100);

/// `work`, unless `tick`, which is called periodically, ends it with an error.
pub async fn attended<T>(work: impl Future<Output = Result<T>>, tick: impl Fn() -> Result<()>) -> Result<T> {
    let mut work = pin!(work);
    loop {
        if let Ok(done) = tokio::time::timeout(TICK, work.as_mut()).await {
            return done;
        }
        tick()?;
    }
}

/// As [`attended`], for work that undoes itself: it is told to give up by `progress`, and has the time that this takes.
pub async fn attended_to_the_end<T>(
    work: impl Future<Output = Result<T>>,
    progress: &SavepointProgress,
    tick: impl Fn() -> Result<()>,
) -> Result<T> {
    let mut work = pin!(work);
    loop {
        if let Ok(done) = tokio::time::timeout(TICK, work.as_mut()).await {
            return done;
        }
        if let Err(error) = tick() {
            progress.given_up.send_replace(true);
            let _ = work.await;
            return Err(error);
        }
    }
}

/// Bytes that are done, of how many.
#[derive(Debug, Default)]
pub struct SavepointProgress {
    done: AtomicU64,
    total: AtomicU64,
    given_up: watch::Sender<bool>,
}

impl SavepointProgress {
    /// Bytes done, and all bytes as far as that is known; done may be a little more.
    pub fn get(&self) -> (u64, u64) {
        (self.done.load(Ordering::Relaxed), self.total.load(Ordering::Relaxed))
    }

    /// Waits until the work shall not go on.
    pub(super) async fn given_up(&self) {
        // The sender is ours: it cannot be gone.
        let _ = self.given_up.subscribe().wait_for(|given_up| *given_up).await;
    }

    /// True if the work shall not go on.
    pub(super) fn is_given_up(&self) -> bool {
        *self.given_up.borrow()
    }

    pub(super) fn expect(&self, bytes: u64) {
        self.total.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(super) fn add(&self, bytes: u64) {
        self.done.fetch_add(bytes, Ordering::Relaxed);
    }
}
