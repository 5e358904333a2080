//! Replay: the change sets of a handle's segments, in order.
//!
//! Owns: fetching ahead, reading through local copies, and replacing a damaged copy.
//! Does not own: which segments, and what is done with the changes.

use super::cache::ObjectCache;
use crate::error::{Error, Result};
use crate::format::decode_set;
use crate::model::{ChangeSet, SegmentRef};
use crate::store::transfer::blocking;
use crate::store::{DownloadError, Store};
use futures::{Stream, StreamExt, stream};
use std::sync::Arc;

/// The change sets of `segments`, in their order, with up to `prefetch` of them fetched ahead.
///
/// With a cache, whole log objects come to the local disk once and serve all shards that have sets in them; without
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
        let set = lease.read_at(offset, length).and_then(|bytes| decode(&name, offset, &bytes, records));
        match set {
            Ok(set) => Ok(Some(set)),
            // Only if the copy differs from the object is the copy to blame.
            Err(error) if lease.is_intact() => Err(DownloadError::Store(error)),
            Err(_) => {
                lease.condemn();
                Ok(None)
            }
        }
    })
    .await
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
