//! Replay: the change sets of a handle's segments, in order.
//!
//! Owns: the distance of fetching ahead; reading through local copies, and replacing a damaged copy.
//! Does not own: the choice of segments, and the use of the changes.

use super::cache::{Lease, ObjectCache};
use super::set_parts::{FetchedSet, SetParts};
use super::slice::{SetSlice, fetch_slices};
use crate::store::transfer::blocking;
use crate::store::{DownloadError, Store};
use bytes::Bytes;
use fastchangelog_format::error::{Error, Result};
use fastchangelog_format::model::{ChangeSet, KeyGroupRange, SegmentRef};
use fastchangelog_format::set::decode_whole_index;
use futures::{Stream, StreamExt, stream};
use std::sync::Arc;
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;

/// Change sets fetched ahead: as many as fit into so many bytes, between these bounds. Small sets take one request
/// each, so that their number hides the store's latency; of large ones fewer than that, as each is in memory as a
/// whole.
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

/// The change sets of segments, fetched ahead while their reader does something else; a large one in parts. Dropped, it
/// ends.
///
/// Invariant: the stream ends after the last part of the last set, and never before it.
pub struct SetsAhead {
    sets: mpsc::Receiver<Result<SetSlice>>,
    left: usize,
    task: AbortHandle,
}

impl SetsAhead {
    /// Starts to fetch `segments` on `runtime`, as [`read_segments`] does.
    pub fn start(runtime: &Handle, store: &Store, cache: Option<&Arc<ObjectCache>>, segments: &[SegmentRef]) -> Self {
        let lengths = stream::iter(segments.iter().map(|s| s.length).collect::<Vec<_>>());
        let sets = fetch_segments(store, cache, segments, prefetch_of(segments)).zip(lengths);
        Self::of(runtime, segments.len(), sets.map(|(set, fetched)| Ok((set?, fetched))))
    }

    /// Starts to fetch what `segments` have of `groups` on `runtime`, as [`read_slices`] does.
    pub fn slices(
        runtime: &Handle,
        store: &Store,
        cache: Option<&Arc<ObjectCache>>,
        segments: &[SegmentRef],
        groups: KeyGroupRange,
    ) -> Self {
        Self::of(runtime, segments.len(), fetch_slices(store, cache, segments, groups, SLICES_AHEAD))
    }

    fn of(
        runtime: &Handle,
        left: usize,
        found: impl Stream<Item = Result<(FetchedSet, u64)>> + Send + 'static,
    ) -> Self {
        // One more than in flight: a set that has arrived does not delay the others.
        let (sender, sets) = mpsc::channel(1);
        let task = runtime.spawn(async move {
            let mut found = std::pin::pin!(found);
            while let Some(set) = found.next().await {
                let given = match set {
                    Ok((FetchedSet::Whole(set), fetched)) => {
                        sender.send(Ok(SetSlice { set, fetched, is_whole: true })).await.is_ok()
                    }
                    Ok((FetchedSet::Parts(parts), fetched)) => give_parts(&sender, parts, fetched).await,
                    Err(error) => {
                        let _ = sender.send(Err(error)).await;
                        false
                    }
                };
                if !given {
                    return;
                }
            }
        });
        Self { sets, left, task: task.abort_handle() }
    }

    /// The next change set, or part of one; none after the last one.
    pub async fn next(&mut self) -> Option<Result<SetSlice>> {
        if self.left == 0 {
            return None;
        }
        let ended =
            || Error::retryable("the read of change sets was cancelled because the state server is shutting down");
        let set = self.sets.recv().await.unwrap_or_else(|| Err(ended()));
        self.left = match &set {
            Ok(set) => self.left - usize::from(set.is_whole),
            Err(_) => 0,
        };
        Some(set)
    }
}

/// Gives out the parts of a set. False if the receiver is gone, or a part cannot be read.
async fn give_parts(sender: &mpsc::Sender<Result<SetSlice>>, mut parts: Box<SetParts>, mut fetched: u64) -> bool {
    loop {
        let (part, rest) = blocking(move || (parts.next(), parts)).await;
        parts = rest;
        let (is_whole, failed) = (parts.is_over(), part.is_err());
        let slice = part.map(|set| SetSlice { set, fetched: std::mem::take(&mut fetched), is_whole });
        if sender.send(slice).await.is_err() || failed {
            return false;
        }
        if is_whole {
            return true;
        }
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
    fetch_segments(store, cache, segments, prefetch).map(|set| set?.whole())
}

/// The same, large ones still packed.
fn fetch_segments(
    store: &Store,
    cache: Option<&Arc<ObjectCache>>,
    segments: &[SegmentRef],
    prefetch: usize,
) -> impl Stream<Item = Result<FetchedSet>> + Send + use<> {
    let (store, cache) = (store.clone(), cache.cloned());
    stream::iter(segments.to_vec())
        .map(move |segment| {
            let (store, cache) = (store.clone(), cache.clone());
            async move { read_segment(&store, cache.as_ref(), &segment).await }
        })
        .buffered(prefetch.max(1))
}

async fn read_segment(store: &Store, cache: Option<&Arc<ObjectCache>>, segment: &SegmentRef) -> Result<FetchedSet> {
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
    blocking(move || decode(&name, offset, bytes, records)).await
}

/// The set from the local copy; none if the copy turned out to be damaged and was thrown away.
async fn read_copy(
    store: &Store,
    cache: &Arc<ObjectCache>,
    segment: &SegmentRef,
) -> Result<Option<FetchedSet>, DownloadError> {
    let lease = cache.try_lease(store, &segment.object).await?;
    let name = format!("{}/{}", store.uri(), segment.object.name);
    let (offset, length, records) = (segment.offset, segment.length, segment.records);
    if offset.checked_add(length).is_none_or(|end| end > segment.object.size) {
        let what = format!("the handle names {length} bytes, but the object has {}", segment.object.size);
        return Err(DownloadError::Store(Error::corrupt(name, offset, what)));
    }
    blocking(move || {
        judged(lease, |lease| lease.read_at(offset, length).and_then(|bytes| decode(&name, offset, bytes, records)))
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
        // The copy is damaged only if it differs from the object. It may be another copy by now: another reader may
        // have had the damaged one replaced.
        Err(_) => read(&lease).map(Some).map_err(DownloadError::Store),
    }
}

fn decode(name: &str, offset: u64, bytes: Bytes, records: u64) -> Result<FetchedSet> {
    let index = decode_whole_index(name, offset, &bytes)?;
    if index.header.records != records {
        let what = format!("the change set has {} records, but the handle says {records}", index.header.records);
        return Err(Error::corrupt(name, offset, what));
    }
    let blocks = 0..index.blocks.len();
    SetParts { name: name.to_owned(), offset, index, start: 0, bytes, blocks, groups: None }.fetched()
}

#[cfg(test)]
#[path = "replay_tests.rs"]
mod tests;
