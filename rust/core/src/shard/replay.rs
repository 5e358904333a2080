//! Replay: the change sets of segments on their way into a state, a large one in parts.
//!
//! Owns: their metrics and messages, and the number that the state has applied.
//! Does not own: fetching them (`read`), the state, which may be live already (`transition`) or not (`rebuild`).

use fastchangelog_format::error::Result;
use fastchangelog_format::model::ChangeSet;
use fastchangelog_log::read::{RestoreProgress, SetsAhead};
use fastchangelog_store::metrics::SharedMetrics;
use std::sync::Arc;
use std::time::Instant;

/// The change sets of segments, in order. To ask for the next one says that the state has the one before.
pub(super) struct Replay {
    sets: SetsAhead,
    progress: Arc<RestoreProgress>,
    metrics: SharedMetrics,
    start: Instant,
    /// Sets given out, and the bytes fetched for them.
    given: usize,
    fetched: u64,
    /// Bytes of the part that was given out last, and whether its set ends with it.
    last: Option<(u64, bool)>,
    /// The state has a part of the next set.
    is_within: bool,
}

impl Replay {
    /// Of `sets`, which have `expected` bytes where that is known.
    pub(super) fn of(
        sets: SetsAhead,
        expected: Option<u64>,
        progress: &Arc<RestoreProgress>,
        metrics: &SharedMetrics,
    ) -> Self {
        progress.expect(expected.unwrap_or(0));
        let (progress, metrics) = (Arc::clone(progress), SharedMetrics::clone(metrics));
        Self { sets, progress, metrics, start: Instant::now(), given: 0, fetched: 0, last: None, is_within: false }
    }

    /// The next change set, or part of one; none after the last one. After an error there are no more.
    pub(super) async fn next(&mut self) -> Result<Option<ChangeSet>> {
        if let Some((bytes, is_whole)) = self.last.take() {
            self.given += usize::from(is_whole);
            self.is_within = !is_whole;
            self.fetched += bytes;
            self.progress.add_done(bytes);
        }
        match self.sets.next().await {
            Some(Ok(slice)) => {
                self.last = Some((slice.fetched, slice.is_whole));
                Ok(Some(slice.set))
            }
            Some(Err(error)) => Err(error),
            None => {
                self.metrics.replay_bytes.add(self.fetched);
                self.metrics.replay_micros.add_elapsed(self.start);
                Ok(None)
            }
        }
    }

    /// Sets that the state has.
    pub(super) fn applied(&self) -> usize {
        self.given
    }

    /// True if the state has a part of a set, and not all of it.
    pub(super) fn is_within(&self) -> bool {
        self.is_within
    }

    /// Bytes fetched for them.
    pub(super) fn fetched(&self) -> u64 {
        self.fetched
    }
}
