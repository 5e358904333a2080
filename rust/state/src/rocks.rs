//! RocksDB under the hot tier: the resources that all shards share, opening a database, and the form of its keys.
//!
//! Owns: block cache and write buffers of the process; the options; the key layout; writing.
//! Does not own: the schedule of reads and writes (`keyed`), the background threads (`rocks_threads`).
//!
//! A key on disk is key group (2 bytes, big endian) | state (2 bytes, big endian) | canonical key, so that a range of
//! key groups is a range of keys.

use super::hot::{EntryRef, EntrySink};
use super::rocks_threads::{COMPACTION_THREADS, FLUSH_THREADS, OwnThreads};
use fastchangelog_format::error::{Error, ErrorKind, Result, Subject, remedy_of_limit};
use fastchangelog_format::model::{KeyGroup, StateId};
use fastchangelog_store::budget::{MemoryBudget, MemoryUser, Reservation};
use fastchangelog_store::diagnose::{remedy_of_limit_in, says_no_such_file};
use fastchangelog_store::forked::no_fork;
use fastchangelog_store::metrics::SharedMetrics;
use fastchangelog_store::threads::check_room;
use rocksdb::{
    BlockBasedIndexType, BlockBasedOptions, Cache, DB, DBCompressionType, DEFAULT_COLUMN_FAMILY_NAME,
    DataBlockIndexType, LogLevel, Options, WriteBatch, WriteBufferManager, WriteOptions,
};
use std::fs::File;
use std::io;
use std::ops::Deref;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// RocksDB's part of the memory budget.
const CACHE_SHARE: u64 = 8;
const MIN_CACHE: u64 = 8 << 20;
const MAX_CACHE: u64 = 4 << 30;
/// Memory of a working background thread (blocks read ahead, the block and filter being built, the compressor's
/// window), and the largest share of the budget that all threads are charged with.
const THREAD_BYTES: u64 = 4 << 20;
const THREADS_SHARE: u64 = 16;
/// Threads that RocksDB starts itself when it opens a database, its timer; it aborts the process where it cannot.
const THREADS_OF_ITS_OWN: usize = 1;
const THREADS_NAME: &str = "a thread of the local cache";
/// Files that RocksDB opens for a cache or a database before the file that seeds its random numbers. LLVM's C++ library
/// throws where that one cannot be opened, and nothing catches it.
const FILES_BEFORE_SEED: usize = 8;
/// Open files of one shard.
const MAX_OPEN_FILES: i32 = 64;
/// A write batch is written when it has reached this size.
const BATCH_BYTES: usize = 1 << 20;
/// Bytes before the canonical key.
pub(super) const KEY_PREFIX: usize = 4;

/// Resources that all shards of a process share, so that many shards need no more memory and threads than one.
#[derive(Clone)]
pub struct SharedResources {
    inner: Arc<Inner>,
}

struct Inner {
    threads: Arc<OwnThreads>,
    cache: Cache,
    write_buffers: WriteBufferManager,
    write_buffer_size: usize,
    budget: Arc<MemoryBudget>,
    metrics: SharedMetrics,
    /// Threads of [`SharedResources::threads`] at work.
    helpers: AtomicUsize,
    _reservation: Reservation,
}

/// So many threads may be used until this is dropped.
pub(super) struct Threads<'a> {
    /// How many, this one included.
    pub(super) count: usize,
    helpers: &'a AtomicUsize,
}

impl Drop for Threads<'_> {
    fn drop(&mut self) {
        self.helpers.fetch_sub(self.count, Ordering::Relaxed);
    }
}

impl std::fmt::Debug for SharedResources {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SharedResources").field("cache_bytes", &self.cache_bytes()).finish_non_exhaustive()
    }
}

impl SharedResources {
    /// Takes RocksDB's part out of `budget`: one block cache, to which all write buffers are charged, and what its
    /// background threads work with.
    pub fn new(budget: &Arc<MemoryBudget>, metrics: SharedMetrics) -> Result<Self> {
        check_files()?;
        let cache_bytes = (budget.limit() / CACHE_SHARE).clamp(MIN_CACHE, MAX_CACHE);
        let bytes = usize::try_from(cache_bytes).unwrap_or(usize::MAX);
        let cache = Cache::new_lru_cache(bytes);
        let threads = u64::from((COMPACTION_THREADS + FLUSH_THREADS).unsigned_abs()) * THREAD_BYTES;
        let work_bytes = threads.min(budget.limit() / THREADS_SHARE);
        Ok(Self {
            inner: Arc::new(Inner {
                threads: OwnThreads::of_process()?,
                // Without stalling: a shard that waits for the flush of another, idle one would wait forever.
                write_buffers: WriteBufferManager::new_write_buffer_manager_with_cache(bytes / 2, false, cache.clone()),
                cache,
                write_buffer_size: (bytes / 8).clamp(1 << 20, 32 << 20),
                budget: Arc::clone(budget),
                metrics,
                helpers: AtomicUsize::new(0),
                _reservation: budget.reserve(MemoryUser::RocksDb, cache_bytes + work_bytes),
            }),
        })
    }

    /// The process's memory budget.
    pub fn budget(&self) -> &Arc<MemoryBudget> {
        &self.inner.budget
    }

    /// The process's metrics.
    pub fn metrics(&self) -> &SharedMetrics {
        &self.inner.metrics
    }

    /// Bytes of all write buffers now.
    pub fn write_buffer_bytes(&self) -> u64 {
        self.inner.write_buffers.get_usage() as u64
    }

    /// Bytes that RocksDB holds in the cache now, write buffers included.
    pub fn cache_bytes(&self) -> u64 {
        self.inner.cache.get_usage() as u64
    }

    /// Threads for a work that more of them make faster, `wanted` at most: one, and others as long as the works of all
    /// shards together have no more than the machine has processors.
    pub(super) fn threads(&self, wanted: usize) -> Threads<'_> {
        let (all, helpers) = (std::thread::available_parallelism().map_or(1, usize::from), &self.inner.helpers);
        let count = |busy: usize| all.saturating_sub(busy).clamp(1, wanted.max(1));
        let busy = helpers.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |busy| Some(busy + count(busy)));
        let (Ok(busy) | Err(busy)) = busy;
        Threads { count: count(busy), helpers }
    }

    /// The options of every database and every table of the process.
    pub(super) fn options(&self) -> Options {
        let shared = &*self.inner;
        let mut table = BlockBasedOptions::default();
        table.set_block_cache(&shared.cache);
        table.set_block_size(8 << 10);
        // Partitioned, and in the cache: filters of a big state must not pin memory.
        table.set_index_type(BlockBasedIndexType::TwoLevelIndexSearch);
        table.set_partition_filters(true);
        table.set_metadata_block_size(8 << 10);
        table.set_cache_index_and_filter_blocks(true);
        table.set_cache_index_and_filter_blocks_with_high_priority(true);
        table.set_pin_top_level_index_and_filter(true);
        table.set_bloom_filter(10.0, false);
        table.set_optimize_filters_for_memory(true);
        table.set_data_block_index_type(DataBlockIndexType::BinaryAndHash);

        let mut options = Options::default();
        options.set_block_based_table_factory(&table);
        options.set_env(shared.threads.env());
        options.set_write_buffer_manager(&shared.write_buffers);
        options.set_write_buffer_size(shared.write_buffer_size);
        options.set_arena_block_size((shared.write_buffer_size / 16).min(256 << 10));
        // Most keys of a batch are not in a write buffer: a filter answers without a search.
        options.set_memtable_whole_key_filtering(true);
        options.set_memtable_prefix_bloom_ratio(0.02);
        options.set_max_write_buffer_number(3);
        options.set_max_background_jobs(COMPACTION_THREADS + FLUSH_THREADS);
        options.set_max_open_files(MAX_OPEN_FILES);
        // RocksDB aborts the process where it cannot start one of them.
        options.set_max_file_opening_threads(1);
        options.set_compaction_readahead_size(1 << 20);
        options.set_compression_type(DBCompressionType::Lz4);
        options.set_bottommost_compression_type(DBCompressionType::Zstd);
        options.set_level_compaction_dynamic_level_bytes(true);
        // The unit of upload of a snapshot.
        options.set_target_file_size_base(32 << 20);
        options.set_max_bytes_for_level_base(128 << 20);
        options.set_paranoid_checks(true);
        // A snapshot carries the manifest: it must stay small.
        options.set_max_manifest_file_size(1 << 20);
        options.set_keep_log_file_num(1);
        options.set_max_log_file_size(1 << 20);
        options.set_log_level(LogLevel::Warn);
        options.set_stats_dump_period_sec(0);
        options.set_stats_persist_period_sec(0);
        options
    }

    /// Opens the database of one shard: a new one if `create`, else one whose files are there.
    pub(super) fn open(&self, dir: &Path, create: bool) -> Result<Database> {
        check_room(THREADS_OF_ITS_OWN, THREADS_NAME)?;
        let mut options = self.options();
        options.create_if_missing(create);
        options.set_error_if_exists(create);
        if create {
            std::fs::create_dir_all(dir).map_err(|e| Error::io_at("cannot make", dir, &e))?;
        }
        let families = [(DEFAULT_COLUMN_FAMILY_NAME, options.clone())];
        Database::open(dir, || DB::open_cf_with_opts(&options, dir, families))
    }

    /// Opens files of which tables may be absent: nothing is compacted, and an absent table is an error only when it is
    /// read.
    pub(super) fn open_sparse(&self, dir: &Path, read_only: bool) -> Result<Database> {
        check_room(THREADS_OF_ITS_OWN, THREADS_NAME)?;
        let mut options = self.options();
        // With them RocksDB refuses to open without all tables. Checksums are verified all the same.
        options.set_paranoid_checks(false);
        options.set_skip_stats_update_on_db_open(true);
        options.set_disable_auto_compactions(true);
        let families = [(DEFAULT_COLUMN_FAMILY_NAME, options.clone())];
        Database::open(dir, || {
            if read_only {
                DB::open_cf_with_opts_for_read_only(&options, dir, families, false)
            } else {
                DB::open_cf_with_opts(&options, dir, families)
            }
        })
    }
}

/// An open database. RocksDB opens and closes one under locks of the process (of its files that are locked, of its
/// timer), which a forked child would inherit from a thread that it does not have.
#[derive(Debug)]
pub(super) struct Database(Option<DB>);

impl Database {
    pub(super) fn open(dir: &Path, open: impl FnOnce() -> Result<DB, rocksdb::Error>) -> Result<Self> {
        check_files()?;
        let _opening = no_fork();
        open().map(|db| Self(Some(db))).map_err(|e| open_error(dir, &e))
    }
}

impl Deref for Database {
    type Target = DB;

    fn deref(&self) -> &DB {
        self.0.as_ref().expect("it is there until it is dropped")
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        let _closing = no_fork();
        drop(self.0.take());
    }
}

/// An error if a limit of open files is near.
fn check_files() -> Result<()> {
    match (0..=FILES_BEFORE_SEED).map(|_| File::open("/")).collect::<io::Result<Vec<_>>>() {
        Err(error) if remedy_of_limit(&error).is_some() => Err(Error::io("cannot open the files of RocksDB", &error)),
        _ => Ok(()),
    }
}

/// An error of RocksDB as one of ours.
pub(super) fn rocks_error(error: rocksdb::Error) -> Error {
    let kind = match error.kind() {
        rocksdb::ErrorKind::Corruption => ErrorKind::Corrupt,
        _ => ErrorKind::Retryable,
    };
    Error::new(kind, format!("RocksDB (the local cache): {error}"))
        .with_remedy(remedy_of_limit_in(&error).unwrap_or("check the disk of the executor's local folder"))
        .with_source(error)
}

/// True for an error that RocksDB caused: one of the local disk.
pub fn is_of_rocksdb(error: &Error) -> bool {
    error.source_as::<rocksdb::Error>().is_some()
}

/// An error at open is about the files: the caller deletes them and restores (P3).
fn open_error(dir: &Path, error: &rocksdb::Error) -> Error {
    let kind = match error.kind() {
        rocksdb::ErrorKind::Corruption | rocksdb::ErrorKind::InvalidArgument | rocksdb::ErrorKind::NotFound => {
            ErrorKind::Corrupt
        }
        _ if says_no_such_file(error) => ErrorKind::Corrupt,
        _ => ErrorKind::Retryable,
    };
    let advice = if kind == ErrorKind::Corrupt {
        "delete this local folder: the state is restored from the store"
    } else {
        let limit = remedy_of_limit_in(error);
        limit.unwrap_or("check the disk and the owner of this local folder, then try again")
    };
    Error::new(kind, format!("cannot open the local RocksDB files in {}: {error}", dir.display()))
        .with_remedy(advice)
        .with_subject(Subject::Path(dir.to_owned()))
        .with_source(error.clone())
}

/// Adds the form of a key on disk to `out`.
pub(super) fn push_key(out: &mut Vec<u8>, key_group: KeyGroup, state: StateId, key: &[u8]) {
    out.extend_from_slice(&key_group.0.to_be_bytes());
    out.extend_from_slice(&state.0.to_be_bytes());
    out.extend_from_slice(key);
}

/// The parts of a key on disk.
pub(super) fn split_key(bytes: &[u8]) -> Result<(KeyGroup, StateId, &[u8])> {
    match bytes {
        [g0, g1, s0, s1, key @ ..] => {
            Ok((KeyGroup(u16::from_be_bytes([*g0, *g1])), StateId(u16::from_be_bytes([*s0, *s1])), key))
        }
        _ => Err(Error::new(
            ErrorKind::Corrupt,
            "a key of the local RocksDB files is too short: fastchangelog did not write it",
        )
        .with_remedy("delete the local folder of this shard")),
    }
}

/// The first key after all that start with `prefix`; `prefix` starts with a key group, so there is one.
pub(super) fn after_prefix(prefix: &[u8]) -> Vec<u8> {
    let end = prefix.iter().rposition(|&b| b != u8::MAX).map_or(0, |i| i + 1);
    let mut next = prefix[..end].to_vec();
    if let Some(last) = next.last_mut() {
        *last += 1;
    }
    next
}

/// Write options: no write-ahead log, the changelog is that.
pub(super) fn no_wal() -> WriteOptions {
    let mut options = WriteOptions::default();
    options.disable_wal(true);
    options
}

/// Deletes every key that starts with one of `prefixes` (in the form on disk). Returns the number of writes.
pub(super) fn delete_prefixes<'p>(db: &DB, prefixes: impl Iterator<Item = &'p Vec<u8>>) -> Result<u64> {
    let (mut batch, mut writes) = (WriteBatch::default(), 0);
    for prefix in prefixes {
        batch.delete_range(prefix, &after_prefix(prefix));
        writes += 1;
        if batch.size_in_bytes() >= BATCH_BYTES {
            db.write_opt(std::mem::take(&mut batch), &no_wal()).map_err(rocks_error)?;
        }
    }
    db.write_opt(batch, &no_wal()).map_err(rocks_error)?;
    Ok(writes)
}

/// Writes entries to RocksDB in batches, those of one key in order. After an error it writes nothing more.
///
/// A batch is sorted: RocksDB then looks for the place of an entry in its write buffer beside the one before, which takes
/// a fifth of the time.
pub(super) struct DiskSink<'a> {
    db: &'a DB,
    entries: Vec<WaitingEntry>,
    /// Their keys, in the form on disk, and values.
    bytes: Vec<u8>,
    writes: u64,
    error: Option<Error>,
}

/// Where an entry is in the bytes of a sink: the key first, then the value.
struct WaitingEntry {
    start: usize,
    key_end: usize,
    /// None of a deletion.
    value_end: Option<usize>,
}

impl<'a> DiskSink<'a> {
    pub fn new(db: &'a DB) -> Self {
        Self { db, entries: Vec::new(), bytes: Vec::new(), writes: 0, error: None }
    }

    /// Writes the remaining entries. Returns the number of writes, or the first error.
    pub fn finish(mut self) -> Result<u64> {
        self.write_batch();
        self.error.map_or(Ok(self.writes), Err)
    }

    fn write_batch(&mut self) {
        let (bytes, mut batch) = (&self.bytes, WriteBatch::default());
        let key = |entry: &WaitingEntry| &bytes[entry.start..entry.key_end];
        // Stable: entries of one key keep their order.
        self.entries.sort_by(|a, b| key(a).cmp(key(b)));
        for entry in &self.entries {
            match entry.value_end {
                Some(end) => batch.put(key(entry), &bytes[entry.key_end..end]),
                None => batch.delete(key(entry)),
            }
        }
        self.commit(batch);
        self.entries.clear();
        self.bytes.clear();
    }

    fn commit(&mut self, batch: WriteBatch) {
        if self.error.is_none() && !batch.is_empty() {
            self.error = self.db.write_opt(batch, &no_wal()).err().map(rocks_error);
        }
    }
}

impl EntrySink for DiskSink<'_> {
    fn write(&mut self, entry: EntryRef<'_>) {
        self.writes += 1;
        let start = self.bytes.len();
        push_key(&mut self.bytes, entry.key_group, entry.state, entry.key);
        let key_end = self.bytes.len();
        if let Some(value) = entry.value.filter(|value| value.len() >= BATCH_BYTES) {
            // In a batch of its own: one copy of it less.
            let key = self.bytes.split_off(start);
            self.write_batch();
            let mut batch = WriteBatch::default();
            batch.put(key, value);
            return self.commit(batch);
        }
        let value_end = entry.value.map(|value| {
            self.bytes.extend_from_slice(value);
            self.bytes.len()
        });
        self.entries.push(WaitingEntry { start, key_end, value_end });
        if self.bytes.len() + self.entries.len() * size_of::<WaitingEntry>() >= BATCH_BYTES {
            self.write_batch();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fastchangelog_store::metrics::Metrics;

    #[test]
    fn the_last_entry_of_a_key_wins_in_any_batch() {
        let shared = SharedResources::new(&MemoryBudget::new(64 << 20), Arc::new(Metrics::default())).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let db = shared.open(&dir.path().join("db"), true).unwrap();
        let (mut sink, mut expected) = (DiskSink::new(&db), std::collections::BTreeMap::new());
        let large = vec![7; BATCH_BYTES];
        // Some batches; a key comes several times, in one batch and in others.
        for i in 0..100_000_u32 {
            let (key, small) = ((i.wrapping_mul(2_654_435_761) % 5_000).to_be_bytes(), i.to_be_bytes());
            let value = if i % 9_001 == 1 { &large[..] } else { &small[..] };
            let value = (i % 7 != 0).then_some(value);
            sink.write(EntryRef { state: StateId(1), key_group: KeyGroup(3), key: &key, value });
            expected.insert(key, value.map(<[u8]>::to_vec));
        }
        assert_eq!(sink.finish().unwrap(), 100_000);
        let mut bytes = Vec::new();
        for (key, value) in expected {
            bytes.clear();
            push_key(&mut bytes, KeyGroup(3), StateId(1), &key);
            assert_eq!(db.get(&bytes).unwrap(), value);
        }
    }

    #[test]
    fn p7_threads_of_all_works_together_are_bounded() {
        let shared = SharedResources::new(&MemoryBudget::new(64 << 20), Arc::new(Metrics::default())).unwrap();
        let all = std::thread::available_parallelism().map_or(1, usize::from);
        assert_eq!(shared.threads(0).count, 1);
        let most = shared.threads(usize::MAX);
        assert_eq!(most.count, all);
        assert_eq!(shared.threads(4).count, 1, "every shard makes progress");
        drop(most);
        assert_eq!(shared.threads(4).count, all.min(4), "what was given back is there again");
    }
}
