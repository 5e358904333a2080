//! How far a long piece of work is.
//!
//! Owns: two counters that any thread may read, the periodic check whether to continue, and the cancellation flag.
//! Does not own: showing them.

use fastchangelog_format::error::Result;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::watch;

/// Between two looks.
const TICK: Duration = Duration::from_millis(100);

/// Waits for `work`, unless `tick`, which is called periodically, ends it with an error.
///
/// `tick` runs on the calling thread, outside the runtime: the handler of a signal may wait for a store itself.
pub fn attended<T>(
    runtime: &Handle,
    work: impl Future<Output = Result<T>>,
    tick: impl Fn() -> Result<()>,
) -> Result<T> {
    let mut work = pin!(work);
    loop {
        if let Some(done) = runtime.block_on(advance(work.as_mut())) {
            return done;
        }
        tick()?;
    }
}

/// As [`attended`], for work that undoes itself: it is told to give up by `progress`, and has the time that this takes.
pub fn attended_to_the_end<T>(
    runtime: &Handle,
    work: impl Future<Output = Result<T>>,
    progress: &SavepointProgress,
    tick: impl Fn() -> Result<()>,
) -> Result<T> {
    let mut work = pin!(work);
    loop {
        if let Some(done) = runtime.block_on(advance(work.as_mut())) {
            return done;
        }
        if let Err(error) = tick() {
            progress.give_up();
            let _ = runtime.block_on(work);
            return Err(error);
        }
    }
}

/// The result of `work`, if it comes before the next look.
pub(super) async fn advance<T>(work: Pin<&mut impl Future<Output = T>>) -> Option<T> {
    tokio::time::timeout(TICK, work).await.ok()
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

    /// Tells the work that it shall not go on.
    pub(super) fn give_up(&self) {
        self.given_up.send_replace(true);
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
