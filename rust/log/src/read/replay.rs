//! Replay: the change sets of a handle's segments, in order.
//!
//! Owns: fetching ahead, and how far; reading through local copies, and replacing a damaged copy.
//! Does not own: which segments, and what is done with the changes.

use super::cache::{Lease, ObjectCache};
use super::slice::{SetSlice, read_slices};
use crate::store::transfer::blocking;
use crate::store::{DownloadError, Store};
use fastchangelog_format::decode_set;
use fastchangelog_format::error::{Error, Result};
use fastchangelog_format::model::{ChangeSet, KeyGroupRange, SegmentRef};
use futures::{Stream, StreamExt, stream};
use std::sync::Arc;
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;

/// Change sets fetched ahead: as many as fit into so many bytes, between these bounds. Small sets take one request each,
/// so that their number hides the store's latency; of large ones fewer than that, as each is in memory as a whole.
const AHEAD_BYTES: u64 = 8 << 20;
const LEAST_AHEAD: u64 = 4;
const MOST_AHEAD: u64 = 32;
const LARGE_BYTES: u64 = 16 << 20;
/// What a decoded record takes about, however well it was compressed.
const RECORD_BYTES: u64 = 64;
/// Slices of change sets fetched ahead.
const SLICES_AHEAD: usize = 4;

/// How many of `segments` to fetch ahead.
pub fn prefetch_of(segments: &[SegmentRef]) -> usize {
    let longest = segments.iter().map(|s| s.length.max(s.records.saturating_mul(RECORD_BYTES))).max();
    let longest = longest.unwrap_or(0).max(1);
    let n = (AHEAD_BYTES / longest).clamp(LEAST_AHEAD, MOST_AHEAD).min((LARGE_BYTES / longest).max(1));
    usize::try_from(n).unwrap_or(1)
}

/// The change sets of segments, fetched ahead while their reader does something else. Dropped, it ends.
///
/// Invariant: the stream ends after the last set, and never before it.
pub struct SetsAhead {
    sets: mpsc::Receiver<Result<SetSlice>>,
    left: usize,
    task: AbortHandle,
}

impl SetsAhead {
    /// Starts to fetch `segments` on `runtime`, as [`read_segments`] does.
    pub fn start(runtime: &Handle, store: &Store, cache: Option<&Arc<ObjectCache>>, segments: &[SegmentRef]) -> Self {
        let lengths = stream::iter(segments.iter().map(|s| s.length).collect::<Vec<_>>());
        let sets = read_segments(store, cache, segments, prefetch_of(segments)).zip(lengths);
        Self::of(runtime, segments.len(), sets.map(|(set, fetched)| Ok(SetSlice { set: set?, fetched })))
    }

    /// Starts to fetch what `segments` have of `groups` on `runtime`, as [`read_slices`] does.
    pub fn slices(
        runtime: &Handle,
        store: &Store,
        cache: Option<&Arc<ObjectCache>>,
        segments: &[SegmentRef],
        groups: KeyGroupRange,
    ) -> Self {
        Self::of(runtime, segments.len(), read_slices(store, cache, segments, groups, SLICES_AHEAD))
    }

    fn of(runtime: &Handle, left: usize, found: impl Stream<Item = Result<SetSlice>> + Send + 'static) -> Self {
        // One more than in flight: a set that has arrived does not delay the others.
        let (sender, sets) = mpsc::channel(1);
        let task = runtime.spawn(async move {
            let mut found = std::pin::pin!(found);
            while let Some(set) = found.next().await {
                let failed = set.is_err();
                if sender.send(set).await.is_err() || failed {
                    return;
                }
            }
        });
        Self { sets, left, task: task.abort_handle() }
    }

    /// The next change set; none after the last one.
    pub async fn next(&mut self) -> Option<Result<SetSlice>> {
        if self.left == 0 {
            return None;
        }
        let ended = || Error::retryable("the reading of change sets was cut off: the state server is shutting down");
        let set = self.sets.recv().await.unwrap_or_else(|| Err(ended()));
        self.left = if set.is_ok() { self.left - 1 } else { 0 };
        Some(set)
    }
}

impl Drop for SetsAhead {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The change sets of `segments`, in their order, with up to `prefetch` of them fetched ahead.
///
/// With a cache, whole log objects are downloaded once and serve all shards that have sets in them; without
/// one, only the bytes of each set are read. Memory: at most `prefetch` sets.
pub fn read_segments(
    store: &Store,
    cache: Option<&Arc<ObjectCache>>,
    segments: &[SegmentRef],
    prefetch: usize,
) -> impl Stream<Item = Result<ChangeSet>> + Send + use<> {
    let (store, cache) = (store.clone(), cache.cloned());
    stream::iter(segments.to_vec())
        .map(move |segment| {
            let (store, cache) = (store.clone(), cache.clone());
            async move { read_segment(&store, cache.as_ref(), &segment).await }
        })
        .buffered(prefetch.max(1))
}

async fn read_segment(store: &Store, cache: Option<&Arc<ObjectCache>>, segment: &SegmentRef) -> Result<ChangeSet> {
    if let Some(cache) = cache {
        // A second time with a fresh copy, should the first be damaged.
        for _ in 0..2 {
            match read_copy(store, cache, segment).await {
                Ok(Some(set)) => return Ok(set),
                Ok(None) => {}
                Err(DownloadError::Store(error)) => return Err(error),
                // Full or broken local disk: the store has it all the same.
                Err(DownloadError::Local(error)) => {
                    tracing::warn!(%error, "a log object is read without a local copy");
                    break;
                }
            }
        }
    }
    let bytes = store.get_range(&segment.object, segment.offset, segment.length).await?;
    let name = format!("{}/{}", store.uri(), segment.object.name);
    let (offset, records) = (segment.offset, segment.records);
    blocking(move || decode(&name, offset, &bytes, records)).await
}

/// The set from the local copy; none if the copy turned out to be damaged and was thrown away.
async fn read_copy(
    store: &Store,
    cache: &Arc<ObjectCache>,
    segment: &SegmentRef,
) -> Result<Option<ChangeSet>, DownloadError> {
    let lease = cache.try_lease(store, &segment.object).await?;
    let name = format!("{}/{}", store.uri(), segment.object.name);
    let (offset, length, records) = (segment.offset, segment.length, segment.records);
    if offset.checked_add(length).is_none_or(|end| end > segment.object.size) {
        let what = format!("the handle names {length} bytes, the object has {}", segment.object.size);
        return Err(DownloadError::Store(Error::corrupt(name, offset, what)));
    }
    blocking(move || {
        judged(lease, |lease| lease.read_at(offset, length).and_then(|bytes| decode(&name, offset, &bytes, records)))
    })
    .await
}

/// What `read` makes of a local copy; none if the copy is damaged, which is thrown away.
fn judged<T>(lease: Lease, read: impl Fn(&Lease) -> Result<T>) -> Result<Option<T>, DownloadError> {
    match read(&lease) {
        Ok(found) => Ok(Some(found)),
        Err(_) if !lease.is_intact() => {
            lease.invalidate();
            Ok(None)
        }
        // The copy is damaged only if it differs from the object. It may be another copy by now: another reader may have
        // had the damaged one replaced.
        Err(_) => read(&lease).map(Some).map_err(DownloadError::Store),
    }
}

fn decode(name: &str, offset: u64, bytes: &[u8], records: u64) -> Result<ChangeSet> {
    let set = decode_set(name, offset, bytes)?;
    if set.len() as u64 != records {
        let what = format!("the change set has {} records, the handle says {records}", set.len());
        return Err(Error::corrupt(name, offset, what));
    }
    Ok(set)
}

#[cfg(test)]
#[path = "replay_tests.rs"]
mod tests;
