//! How far a long piece of work is.
//!
//! Owns: two counters that whoever shows them reads at any time, and asking now and then whether to go on.
//! Does not own: showing them.

use crate::error::Result;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Between two looks.
const TICK: Duration = Duration::from_millis(100);

/// `work`, unless `tick`, which is called now and then, ends it with an error.
pub async fn attended<T>(work: impl Future<Output = Result<T>>, tick: impl Fn() -> Result<()>) -> Result<T> {
    let mut work = pin!(work);
    loop {
        if let Ok(done) = tokio::time::timeout(TICK, work.as_mut()).await {
            return done;
        }
        tick()?;
    }
}

/// Bytes that are done, of how many.
#[derive(Debug, Default)]
pub struct Progress {
    done: AtomicU64,
    total: AtomicU64,
}

impl Progress {
    /// Bytes done, and all bytes as far as that is known; done may be a little more.
    pub fn get(&self) -> (u64, u64) {
        (self.done.load(Ordering::Relaxed), self.total.load(Ordering::Relaxed))
    }

    pub(super) fn expect(&self, bytes: u64) {
        self.total.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(super) fn add(&self, bytes: u64) {
        self.done.fetch_add(bytes, Ordering::Relaxed);
    }
}
