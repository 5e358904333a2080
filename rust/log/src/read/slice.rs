//! A slice of a version: what a range of key groups needs of a snapshot and of the segments after it.
//!
//! Owns: fetching no more of a snapshot than the caller chose, and no more of a segment than the blocks of the range.
//! Does not own: which tables a range needs (`state` reads that from RocksDB's manifest), applying changes (`shard`).
//!
//! Invariants:
//! 1. the folder of a slice holds the snapshot's manifest and other small files, and of the tables exactly the chosen ones;
//! 2. of a segment whose object is not in the cache, header, index and the blocks that may hold the range are fetched, or
//!    the whole segment if it is small;
//! 3. every byte used was verified against the checksum that was written with it (P9, P10).

use super::cache::ObjectCache;
use super::set_parts::{FetchedSet, SetParts};
use super::snapshot_files::{fetch_files, fetch_manifest, place_inline};
use crate::store::transfer::blocking;
use crate::store::{DownloadError, Store};
use bytes::Bytes;
use fastchangelog_format::error::{Error, ErrorKind, Result};
use fastchangelog_format::model::{ChangeSet, KeyGroupRange, SegmentRef, SnapshotRef};
use fastchangelog_format::segment::bytes_of_groups;
use fastchangelog_format::set::decode_whole_index;
use fastchangelog_format::{Manifest, SetIndex, decode_set_header, decode_set_index};
use futures::{Stream, StreamExt, stream};
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

/// A segment up to this size is cheaper to fetch as a whole than with two requests.
const SMALL_SEGMENT: u64 = 64 << 10;
/// First bytes of a larger one: header and index of some two hundred blocks, 50 MB of changes.
const HEAD_GUESS: u64 = 4 << 10;

/// A slice of a snapshot on the local disk.
#[derive(Debug)]
pub struct SnapshotSlice {
    /// The manifest of the whole snapshot.
    pub manifest: Manifest,
    /// Bytes of the fetched files.
    pub bytes: u64,
}

/// Brings to the folder `into`, which is there and empty, the small files of `snapshot` and those of its tables that
/// `choose` names. `choose` runs where it may block, and finds the small files in the folder.
///
/// What a failure leaves in the folder is the caller's to remove.
pub async fn fetch_snapshot_slice(
    store: &Store,
    cache: Option<&Arc<ObjectCache>>,
    snapshot: &SnapshotRef,
    into: &Path,
    choose: impl FnOnce() -> Result<BTreeSet<String>> + Send + 'static,
) -> Result<SnapshotSlice> {
    let manifest = fetch_manifest(store, snapshot).await?;
    place_inline(&manifest, into)?;
    let is_table = |name: &str| Path::new(name).extension().is_some_and(|e| e == "sst");
    let small = fetch_files(store, cache, &manifest, into, |name| !is_table(name), &|_| ()).await?;
    let chosen = blocking(choose).await?;
    // RocksDB names a table that the snapshot does not have: half a snapshot must not pass for a whole one.
    if let Some(name) = chosen.iter().find(|name| !manifest.files.iter().any(|file| file.name == **name)) {
        let what = format!("RocksDB's manifest in it names `{name}`, the snapshot has no such table");
        return Err(Error::corrupt(format!("{}/{}", store.uri(), snapshot.manifest.name), 0, what));
    }
    let wanted = |name: &str| is_table(name) && chosen.contains(name);
    let tables = fetch_files(store, cache, &manifest, into, wanted, &|_| ()).await?;
    Ok(SnapshotSlice { manifest, bytes: small + tables })
}

/// Some changes, and how many bytes had to be fetched for them.
#[derive(Debug)]
pub struct SetSlice {
    /// The changes.
    pub set: ChangeSet,
    /// Bytes requested from the store.
    pub fetched: u64,
    /// They are all of their set, or the last part of it.
    pub is_whole: bool,
}

/// The changes of `groups` in `segments`, in their order, with up to `prefetch` segments fetched ahead. Local copies are
/// read, but none is made for a slice.
pub fn read_slices(
    store: &Store,
    cache: Option<&Arc<ObjectCache>>,
    segments: &[SegmentRef],
    groups: KeyGroupRange,
    prefetch: usize,
) -> impl Stream<Item = Result<SetSlice>> + Send + use<> {
    fetch_slices(store, cache, segments, groups, prefetch).map(|found| {
        let (set, fetched) = found?;
        Ok(SetSlice { set: set.whole()?, fetched, is_whole: true })
    })
}

/// The same, large ones still packed, with the bytes that were fetched for each.
pub(super) fn fetch_slices(
    store: &Store,
    cache: Option<&Arc<ObjectCache>>,
    segments: &[SegmentRef],
    groups: KeyGroupRange,
    prefetch: usize,
) -> impl Stream<Item = Result<(FetchedSet, u64)>> + Send + use<> {
    let (store, cache) = (store.clone(), cache.cloned());
    stream::iter(segments.to_vec())
        .map(move |segment| {
            let (store, cache) = (store.clone(), cache.clone());
            async move { SliceSource { store, cache, segment, groups }.read().await }
        })
        .buffered(prefetch.max(1))
}

/// One segment, and what is wanted of it.
struct SliceSource {
    store: Store,
    cache: Option<Arc<ObjectCache>>,
    segment: SegmentRef,
    groups: KeyGroupRange,
}

impl SliceSource {
    async fn read(self) -> Result<(FetchedSet, u64)> {
        if let Some(cache) = self.cache.as_ref().filter(|cache| cache.contains(&self.store, &self.segment.object)) {
            match self.copy(cache).await {
                Ok(set) => return Ok((set, 0)),
                Err(error) => tracing::warn!(%error, "a part of a log object is read without the local copy"),
            }
        }
        match self.fetch().await {
            // Damaged on the way, perhaps: once more.
            Err(error) if error.kind() == ErrorKind::Corrupt => self.fetch().await,
            result => result,
        }
    }

    fn name(&self) -> String {
        format!("{}/{}", self.store.uri(), self.segment.object.name)
    }

    async fn copy(&self, cache: &Arc<ObjectCache>) -> Result<FetchedSet> {
        let lease = cache.try_lease(&self.store, &self.segment.object).await.map_err(DownloadError::into_inner)?;
        let (name, segment, groups) = (self.name(), self.segment.clone(), self.groups);
        blocking(move || {
            let set = lease
                .read_at(segment.offset, segment.length)
                .and_then(|bytes| decode_whole(&name, &segment, bytes, groups));
            if set.is_err() && !lease.is_intact() {
                lease.invalidate();
            }
            set
        })
        .await
    }

    async fn fetch(&self) -> Result<(FetchedSet, u64)> {
        let (name, segment, groups) = (self.name(), self.segment.clone(), self.groups);
        if segment.length <= SMALL_SEGMENT {
            let bytes = self.range(0, segment.length).await?;
            let set = blocking(move || decode_whole(&name, &segment, bytes, groups)).await?;
            return Ok((set, self.segment.length));
        }
        let mut head = self.range(0, HEAD_GUESS).await?;
        let end = decode_set_header(&name, segment.offset, &head)?.index_end();
        let mut fetched = HEAD_GUESS;
        if end > segment.length {
            return Err(Error::corrupt(name, segment.offset, "the index is longer than the change set"));
        }
        if end > HEAD_GUESS {
            head = self.range(0, end).await?;
            fetched += end;
        }
        let index = index_of(&name, &segment, &head)?;
        let wanted = bytes_of_groups(&index, groups);
        if wanted.is_empty() {
            return Ok((FetchedSet::Whole(ChangeSet::default()), fetched));
        }
        let bytes = self.range(wanted.start, wanted.end - wanted.start).await?;
        fetched += wanted.end - wanted.start;
        let (offset, start, blocks) = (segment.offset, wanted.start, index.blocks_of(groups.start..groups.end));
        let parts = SetParts { name, offset, index, start, bytes, blocks, groups: Some(groups) };
        Ok((blocking(move || parts.fetched()).await?, fetched))
    }

    async fn range(&self, from: u64, length: u64) -> Result<Bytes> {
        self.store.get_range(&self.segment.object, self.segment.offset + from, length).await
    }
}

/// The index of a set, of which the head at least is here; checks that it is the set that the handle names.
fn index_of(name: &str, segment: &SegmentRef, bytes: &[u8]) -> Result<SetIndex> {
    let index = decode_set_index(name, segment.offset, bytes)?;
    check_named(name, segment, &index)?;
    Ok(index)
}

fn check_named(name: &str, segment: &SegmentRef, index: &SetIndex) -> Result<()> {
    let header = &index.header;
    if (header.length, header.records) != (segment.length, segment.records) {
        let what = format!(
            "another change set is here, of {} records in {} bytes; the handle names one of {} in {}",
            header.records, header.length, segment.records, segment.length
        );
        return Err(Error::corrupt(name, segment.offset, what));
    }
    Ok(())
}

fn decode_whole(name: &str, segment: &SegmentRef, bytes: Bytes, groups: KeyGroupRange) -> Result<FetchedSet> {
    let index = decode_whole_index(name, segment.offset, &bytes)?;
    check_named(name, segment, &index)?;
    let (offset, blocks) = (segment.offset, index.blocks_of(groups.start..groups.end));
    SetParts { name: name.to_owned(), offset, index, start: 0, bytes, blocks, groups: Some(groups) }.fetched()
}

#[cfg(test)]
#[path = "slice_tests.rs"]
mod tests;
