//! Reading a plain changelog: the changes of a handle, in order, fetched ahead.
//!
//! Owns: the byte ranges to fetch for a handle or some of its key groups, the concurrency, and decoding.
//! Does not own: local copies (`read::cache`), the meaning of the changes.
//!
//! Invariants:
//! 1. sets are returned in the order of the handle; inside a set metadata comes first, then ascending key groups, each
//!    in the order of its appends;
//! 2. every returned byte was verified against its written checksum (P9, P10);
//! 3. of an object that is not in the cache, a reader of some key groups fetches the sets' heads and the blocks of
//!    those groups only;
//! 4. of sets that are fetched together [`AHEAD_BYTES`] are unpacked ahead, whatever they claim; of the others one
//!    batch at a time;
//! 5. a local copy is a convenience: damaged, deleted or impossible to write, it costs a request and nothing else (P3);
//! 6. a call of [`Changes::next`] that is dropped before its end loses nothing: the next one goes on with it.

use bytes::Bytes;
use fastchangelog_format::byte_set::{
    ByteRecords, SetBytes, Wanted, check_byte_blocks, check_columns, decode_byte_blocks, decode_columns,
};
use fastchangelog_format::error::{Error, ErrorKind, Result};
use fastchangelog_format::model::{ChangelogHandle, KeyGroupRange, Lane, ObjectRef, SequenceNumber, SetRef};
use fastchangelog_format::set::{BlockEntry, SetIndex, decode_set_index};
use fastchangelog_log::read::ObjectCache;
use fastchangelog_store::metrics::SharedMetrics;
use fastchangelog_store::transfer::blocking;
use fastchangelog_store::{DownloadError, Store};
use futures::stream::{self, BoxStream, StreamExt};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;
use tokio::runtime::Handle;
use tokio::task::{JoinError, JoinHandle};

/// Adjacent sets of an object are fetched together up to this many bytes.
const RUN_BYTES: u64 = 8 << 20;
/// Gap between two wanted ranges that is cheaper to fetch than to skip.
const GAP_BYTES: u64 = 64 << 10;
/// Bytes of log objects that a reader fetches ahead: a few runs, so that one slow request does not stop the reader.
const READ_AHEAD_BYTES: u64 = 32 << 20;
/// Most runs in progress at a time.
const MAX_RUNS: u64 = 16;
/// Values of one batch of decoded records, and about the bytes of a record beside its value.
const BATCH_BYTES: u64 = 256 << 20;
const RECORD_BYTES: u64 = 8;
/// Bytes that are unpacked ahead of sets that are fetched together.
const AHEAD_BYTES: u64 = 64 << 20;

/// The changes of one set, or of a part of it.
#[derive(Debug)]
pub struct ReadSet {
    /// The set's number.
    pub sequence_number: SequenceNumber,
    /// The changes.
    pub records: ByteRecords,
}

/// Reads handles of one storage.
#[derive(Clone)]
pub struct ChangeReader {
    store: Store,
    cache: Option<Arc<ObjectCache>>,
    runtime: Handle,
    metrics: SharedMetrics,
}

/// Decoded sets, in order; a drop cancels fetches in progress.
pub struct Changes {
    runs: BoxStream<'static, Result<Vec<Fetched>>>,
    ready: VecDeque<Fetched>,
    /// The next batch of the set before those that are ready.
    unpacking: Option<JoinHandle<(Result<Option<ReadSet>>, Box<PackedSet>)>>,
}

/// A set, or a part of it, that is here.
enum Fetched {
    Unpacked(ReadSet),
    Packed(Box<PackedSet>),
}

/// A verified set whose batches are unpacked one after the other.
struct PackedSet {
    name: String,
    set: SetRef,
    index: SetIndex,
    /// Its head, and the columns in it once they are unpacked.
    head: Bytes,
    columns: Option<Vec<u8>>,
    wanted: Wanted,
    /// Blocks, where their bytes start in the set, and the bytes.
    batches: VecDeque<(Range<usize>, u64, Bytes)>,
}

impl PackedSet {
    fn of(
        name: &str,
        set: &SetRef,
        index: SetIndex,
        head: Bytes,
        wanted: &Wanted,
        batches: VecDeque<(Range<usize>, u64, Bytes)>,
    ) -> Self {
        Self { name: name.to_owned(), set: set.clone(), index, head, columns: None, wanted: wanted.clone(), batches }
    }

    fn from<'a>(&'a self, start: u64, bytes: &'a Bytes) -> SetBytes<'a> {
        SetBytes { object: &self.name, offset_in_object: self.set.offset, start, bytes }
    }

    /// The changes of the next batch that has any; none after the last one.
    fn next(&mut self) -> Result<Option<ReadSet>> {
        while let Some((blocks, start, bytes)) = self.batches.pop_front() {
            let columns = match self.columns.take() {
                Some(columns) => columns,
                None => decode_columns(&self.index, self.from(0, &self.head))?,
            };
            let records = decode_byte_blocks(&self.index, &columns, self.from(start, &bytes), blocks, &self.wanted)?;
            self.columns = Some(columns);
            if !records.is_empty() {
                return Ok(Some(ReadSet { sequence_number: self.set.sequence_number, records }));
            }
        }
        Ok(None)
    }

    /// Its batches, if there are so many bytes `left` for them.
    fn unpacked(mut self, left: &mut u64) -> Result<Vec<Fetched>> {
        let blocks = self.batches.iter().flat_map(|(blocks, ..)| &self.index.blocks[blocks.clone()]);
        let bytes = u64::from(self.index.columns.raw_length) + blocks.map(unpacked_bytes).sum::<u64>();
        if let Some(rest) = left.checked_sub(bytes) {
            *left = rest;
        } else {
            check_columns(&self.index, self.from(0, &self.head))?;
            for (blocks, start, bytes) in &self.batches {
                check_byte_blocks(&self.index, self.from(*start, bytes), blocks.clone())?;
            }
            return Ok(vec![Fetched::Packed(Box::new(self))]);
        }
        if self.batches.is_empty() {
            check_columns(&self.index, self.from(0, &self.head))?;
        }
        let mut sets = Vec::with_capacity(self.batches.len());
        while let Some(set) = self.next()? {
            sets.push(Fetched::Unpacked(set));
        }
        Ok(sets)
    }
}

/// About the memory of a block's records.
fn unpacked_bytes(block: &BlockEntry) -> u64 {
    u64::from(block.raw_length) + RECORD_BYTES * u64::from(block.records)
}

/// Sets that are fetched together: their object and the bytes to fetch.
struct Run {
    object: ObjectRef,
    bytes: Range<u64>,
    sets: Vec<SetRef>,
}

impl ChangeReader {
    /// A reader of `store`, the storage's folder. With a cache, whole objects are kept on the local disk.
    pub fn new(store: Store, cache: Option<Arc<ObjectCache>>, runtime: Handle, metrics: SharedMetrics) -> Self {
        // Objects that are files already need no copy.
        let cache = cache.filter(|_| !store.is_local_file());
        Self { store, cache, runtime, metrics }
    }

    /// The changes of `handle`; with `groups`, only those of these key groups, and metadata.
    pub fn read(&self, handle: &ChangelogHandle, groups: Option<KeyGroupRange>) -> Result<Changes> {
        if !self.store.is_at(&handle.storage) {
            return Err(Error::invalid(format!(
                "this handle belongs to the storage {}, not to {}; open that one, or move the handle with \
                 `handle.moved_to(uri)` if its objects were copied",
                handle.storage,
                self.store.uri()
            )));
        }
        let part = groups.filter(|g| g.start > handle.key_groups.start || g.end < handle.key_groups.end);
        let limit = if part.is_some() { 0 } else { RUN_BYTES };
        let runs = runs_of(&handle.sets, limit);
        let largest = runs.iter().map(|run| run.bytes.end - run.bytes.start).max().unwrap_or(1).max(1);
        let ahead = usize::try_from((READ_AHEAD_BYTES / largest).clamp(1, MAX_RUNS)).unwrap_or(1);
        let this = self.clone();
        // Each run is a task of its own: it goes on while the caller works on an earlier one.
        let runs = stream::iter(runs).map(move |run| {
            let reader = this.clone();
            let task = this.runtime.spawn(async move { reader.fetch(run, part).await });
            let task = AbortOnDrop(task);
            async move { task.join().await }
        });
        Ok(Changes { runs: runs.buffered(ahead).boxed(), ready: VecDeque::new(), unpacking: None })
    }

    /// Damage can stem from the transfer or from an old local copy: only the second mismatch counts as corruption.
    async fn fetch(&self, run: Run, part: Option<KeyGroupRange>) -> Result<Vec<Fetched>> {
        let run = Arc::new(run);
        match self.fetch_once(&run, part).await {
            Err(error) if error.kind() == ErrorKind::Corrupt => {
                self.metrics.store_retries.add(1);
                if let Some(cache) = &self.cache
                    && cache.contains(&self.store, &run.object)
                    && let Ok(lease) = cache.lease(&self.store, &run.object).await
                {
                    lease.invalidate();
                }
                self.fetch_once(&run, part).await
            }
            result => result,
        }
    }

    async fn fetch_once(&self, run: &Arc<Run>, part: Option<KeyGroupRange>) -> Result<Vec<Fetched>> {
        let start = Instant::now();
        let run = Arc::clone(run);
        let name = format!("{}/{}", self.store.uri(), run.object.name);
        let wanted = part.map_or(Wanted::ALL, wanted_of);
        let here = self.cache.as_ref().is_some_and(|cache| cache.contains(&self.store, &run.object));
        let sets = if part.is_none() || here {
            let bytes = self.bytes(&run.object, run.bytes.clone()).await?;
            blocking(move || decode_run(&name, &run, &bytes, &wanted)).await?
        } else {
            let (mut sets, mut left) = (Vec::new(), AHEAD_BYTES);
            for set in &run.sets {
                sets.extend(self.part_of(&name, set, &wanted, &mut left).await?);
            }
            sets
        };
        let changes = sets.iter().map(|set| match set {
            Fetched::Unpacked(set) => set.records.len() as u64,
            Fetched::Packed(packed) => packed.index.header.records,
        });
        let changes = changes.sum();
        self.metrics.sets_read.add(sets.len() as u64);
        self.metrics.changes_read.add(changes);
        self.metrics.read_micros.add_elapsed(start);
        Ok(sets)
    }

    async fn bytes(&self, object: &ObjectRef, range: Range<u64>) -> Result<Bytes> {
        let length = range.end - range.start;
        if let Some(cache) = &self.cache {
            match cache.try_lease(&self.store, object).await {
                Ok(lease) => {
                    let start = range.start;
                    let (bytes, lease) = blocking(move || (lease.read_at(start, length), lease)).await;
                    match bytes {
                        Ok(bytes) => return Ok(bytes),
                        // The handle names a range that the object does not have.
                        Err(error) if error.kind() == ErrorKind::Corrupt => return Err(error),
                        Err(error) => {
                            tracing::warn!(%error, "a local copy of a log object is gone");
                            lease.invalidate();
                        }
                    }
                }
                Err(DownloadError::Store(error)) => return Err(error),
                // Full or broken local disk: the store has it all the same.
                Err(DownloadError::Local(error)) => {
                    tracing::warn!(%error, "a log object is read without a local copy");
                }
            }
        }
        self.store.get_range(object, range.start, length).await
    }

    /// The wanted records of a set whose object is not here.
    async fn part_of(&self, name: &str, set: &SetRef, wanted: &Wanted, left: &mut u64) -> Result<Vec<Fetched>> {
        if set.length <= GAP_BYTES {
            let bytes = self.store.get_range(&set.object, set.offset, set.length).await?;
            return decode_set(name, set, &bytes, wanted, left);
        }
        let head = self.store.get_range(&set.object, set.offset, set.head).await?;
        let index = index_of(name, set, &head)?;
        let mut batches = VecDeque::new();
        for blocks in chosen(&index, wanted) {
            let bytes = index.bytes_of(blocks.clone());
            let values = self.store.get_range(&set.object, set.offset + bytes.start, bytes.end - bytes.start).await?;
            batches.push_back((blocks, bytes.start, values));
        }
        PackedSet::of(name, set, index, head, wanted, batches).unpacked(left)
    }
}

fn wanted_of(groups: KeyGroupRange) -> Wanted {
    Wanted { meta: true, lanes: groups.start + 1..groups.end + 1 }
}

/// The ranges of the wanted blocks; ranges with a small gap are joined.
fn chosen(index: &SetIndex, wanted: &Wanted) -> Vec<Range<usize>> {
    let lanes = index.blocks_of(wanted.lanes.clone());
    let meta = index.blocks_of(Lane::META.0..Lane::META.0 + 1);
    let mut ranges: Vec<Range<usize>> = Vec::new();
    for range in [meta, lanes].into_iter().filter(|range| !range.is_empty()) {
        match ranges.last_mut() {
            Some(last) if near(index, last, &range) => last.end = last.end.max(range.end),
            _ => ranges.push(range),
        }
    }
    ranges.into_iter().flat_map(|range| pieces(index, range)).collect()
}

fn near(index: &SetIndex, one: &Range<usize>, next: &Range<usize>) -> bool {
    next.start <= one.end || index.bytes_of(one.end..next.start).end - index.bytes_of(one.clone()).end <= GAP_BYTES
}

/// Cuts a range of blocks where a batch would become too large.
fn pieces(index: &SetIndex, range: Range<usize>) -> Vec<Range<usize>> {
    let mut pieces = Vec::new();
    let (mut start, mut bytes) = (range.start, 0);
    for i in range.clone() {
        let next = unpacked_bytes(&index.blocks[i]);
        if i > start && bytes + next > BATCH_BYTES {
            pieces.push(start..i);
            (start, bytes) = (i, 0);
        }
        bytes += next;
    }
    if start < range.end {
        pieces.push(start..range.end);
    }
    pieces
}

fn runs_of(sets: &[SetRef], limit: u64) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for set in sets {
        let bytes = set.offset..set.offset + set.length;
        match runs.last_mut() {
            Some(run)
                if run.object == set.object
                    && set.offset >= run.bytes.end
                    && set.offset - run.bytes.end <= GAP_BYTES
                    && bytes.end - run.bytes.start <= limit =>
            {
                run.bytes.end = bytes.end;
                run.sets.push(set.clone());
            }
            _ => runs.push(Run { object: set.object.clone(), bytes, sets: vec![set.clone()] }),
        }
    }
    runs
}

/// The wanted records of sets that were fetched together.
fn decode_run(name: &str, run: &Run, bytes: &Bytes, wanted: &Wanted) -> Result<Vec<Fetched>> {
    let (mut sets, mut left) = (Vec::with_capacity(run.sets.len()), AHEAD_BYTES);
    for set in &run.sets {
        let at = usize::try_from(set.offset - run.bytes.start).map_err(Error::internal)?;
        let length = usize::try_from(set.length).map_err(Error::internal)?;
        sets.extend(decode_set(name, set, &bytes.slice(at..at + length), wanted, &mut left)?);
    }
    Ok(sets)
}

/// The index of a set, of which the head at least is here; checks that it is the set that the handle names.
fn index_of(name: &str, set: &SetRef, bytes: &[u8]) -> Result<SetIndex> {
    let index = decode_set_index(name, set.offset, bytes)?;
    let header = &index.header;
    if (header.mark, header.length, header.records) != (set.mark, set.length, set.records) {
        let what = format!(
            "another change set is here, of {} changes in {} bytes; the handle names one of {} in {}",
            header.records, header.length, set.records, set.length
        );
        return Err(Error::corrupt(name, set.offset, what));
    }
    Ok(index)
}

/// The wanted records of a set that is here as a whole.
fn decode_set(name: &str, set: &SetRef, bytes: &Bytes, wanted: &Wanted, left: &mut u64) -> Result<Vec<Fetched>> {
    let index = index_of(name, set, bytes)?;
    let ranges = if *wanted == Wanted::ALL { pieces(&index, 0..index.blocks.len()) } else { chosen(&index, wanted) };
    let batches = ranges.into_iter().map(|blocks| (blocks, 0, bytes.clone())).collect();
    PackedSet::of(name, set, index, bytes.clone(), wanted, batches).unpacked(left)
}

impl Changes {
    /// The next set; none at the end. After an error there is nothing more.
    pub async fn next(&mut self) -> Result<Option<ReadSet>> {
        loop {
            if let Some(task) = &mut self.unpacking {
                let outcome = task.await;
                self.unpacking = None;
                let (next, packed) = match outcome {
                    Ok((Ok(next), packed)) => (next, packed),
                    Ok((Err(error), _)) => return self.end(error),
                    Err(error) => return self.end(unanswered(&error)),
                };
                if next.is_some() {
                    self.ready.push_front(Fetched::Packed(packed));
                    return Ok(next);
                }
            }
            match self.ready.pop_front() {
                Some(Fetched::Unpacked(set)) => return Ok(Some(set)),
                Some(Fetched::Packed(mut packed)) => {
                    self.unpacking = Some(tokio::task::spawn_blocking(move || (packed.next(), packed)));
                    continue;
                }
                None => {}
            }
            match self.runs.next().await {
                Some(Ok(sets)) => self.ready.extend(sets),
                Some(Err(error)) => return self.end(error),
                None => return Ok(None),
            }
        }
    }

    fn end<T>(&mut self, error: Error) -> Result<T> {
        (self.runs, self.ready) = (stream::empty().boxed(), VecDeque::new());
        Err(error)
    }
}

fn unanswered(error: &JoinError) -> Error {
    Error::internal(format!("a read ended without an answer: {error}"))
}

/// A task that is aborted when its handle is dropped.
struct AbortOnDrop(JoinHandle<Result<Vec<Fetched>>>);

impl AbortOnDrop {
    async fn join(mut self) -> Result<Vec<Fetched>> {
        (&mut self.0).await.unwrap_or_else(|error| Err(unanswered(&error)))
    }
}

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

#[cfg(test)]
#[path = "changes_tests.rs"]
mod tests;
