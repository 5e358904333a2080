//! Keyed state of one shard: the hot tier over RocksDB.
//!
//! Owns: reads and writes of promoted state, the flush of dirty entries and checkpoints for materialization, the local
//! folder; in files of their own the loading of entries from disk into the hot tier (`warm_up`), deletes of prefixes
//! (`delete_prefix`), the flush of parts (`flush_part`) and the first key of a range (`first_key`).
//! Does not own: versions, overlays and what may be promoted when (`shard`); uploads (`snapshot`).
//!
//! Invariants of a [`KeyedState`]:
//! 1. it is the state after the change sets applied so far, whatever the hot limit, flushes and evictions (P5);
//! 2. RocksDB holds nothing that was not applied (P4), and together with the dirty entries it holds all of it;
//! 3. entries read from disk enter the hot tier before the next change, while they still equal those on disk;
//! 4. after a failed write, or a failed read of the local disk, it answers nothing any more: its owner drops it and
//!    restores (P3).

mod delete_prefix;
mod first_key;
mod flush_part;
mod read_through;
mod warm_up;

pub use flush_part::StatePart;
pub use warm_up::WarmUp;

use self::delete_prefix::delete_earlier;
use self::read_through::ReadThroughBuffer;
use super::checkpoint::Checkpointer;
use super::hot::{EntryRef, HotKey, HotTier, Lookup};
use super::rocks::{Database, DiskSink, SharedResources, no_wal, push_key, rocks_error, split_key};
use super::scan::{Cursor, last_at_or_below};
use fastchangelog_columns::codec::hash_key;
use fastchangelog_columns::order::{ORDERED_FROM, PARTS, part_of, sorted};
use fastchangelog_format::error::{Error, Result};
use fastchangelog_format::model::{Change, ChangeSet, KeyGroup, KeyGroupRange, Op, StateId};
use fastchangelog_store::budget::{MemoryUser, Reservation};
use fastchangelog_store::failpoint::Failpoints;
use parking_lot::Mutex;
use rocksdb::{DEFAULT_COLUMN_FAMILY_NAME, IngestExternalFileOptions, ReadOptions, WriteBatch};
use std::collections::HashSet;
use std::hint::black_box;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

/// Keys whose memory is fetched side by side.
const LANE: usize = 32;
/// Keys of one `multi_get`, whose values are in memory together. Equals the number that RocksDB reads concurrently.
const READ_CHUNK: usize = 32;
/// Bytes of one step of a flush.
const FLUSH_BYTES: usize = 8 << 20;
/// Most bytes that wait between a read from disk and the hot tier; and their share of the hot limit.
const RECENT_BYTES: u64 = 8 << 20;
const RECENT_SHARE: u64 = 32;
/// Hot limit until the owner sets one.
const FIRST_HOT_LIMIT: u64 = 16 << 20;

/// Receives the number and the value of each looked-up key; breaks to stop the look-up.
pub type Out<'a> = &'a mut dyn FnMut(usize, Option<&[u8]>) -> ControlFlow<()>;

/// A key to look up.
#[derive(Debug, Clone, Copy)]
pub struct KeyRef<'a> {
    /// [`hash_key`] of `key`.
    pub hash: u64,
    /// The key's key group.
    pub key_group: KeyGroup,
    /// Canonical key bytes.
    pub key: &'a [u8],
}

/// Bytes of the hot tier, in the budget and in the metrics; given back on drop.
#[derive(Debug)]
struct Account {
    reservation: Reservation,
    shared: SharedResources,
    evicted: u64,
}

impl Account {
    fn update(&mut self, hot: &HotTier) {
        let gauge = &self.shared.metrics().hot_bytes;
        gauge.add(hot.bytes());
        gauge.sub(self.reservation.bytes());
        self.reservation.resize(hot.bytes());
        self.shared.metrics().hot_evictions.add(hot.evicted() - self.evicted);
        self.evicted = hot.evicted();
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        self.shared.metrics().hot_bytes.sub(self.reservation.bytes());
    }
}

/// Keyed state of one shard. See the module documentation for its invariants.
#[derive(Debug)]
pub struct KeyedState {
    // Before `account`, whose shared cache must outlive the database.
    db: Arc<Database>,
    dir: PathBuf,
    hot: HotTier,
    recent: Mutex<ReadThroughBuffer>,
    /// Something was written to RocksDB since it was empty.
    stored: bool,
    /// Prefixes deleted on disk since RocksDB was last asked to write its buffer to a table.
    range_tombstones: usize,
    /// Parts that RocksDB holds since the last change; see `flush_part`.
    flushed: Vec<StatePart>,
    /// The first failure.
    broken: OnceLock<Error>,
    account: Account,
}

impl KeyedState {
    /// New, empty state in a folder that is missing or empty.
    pub fn create(dir: &Path, shared: &SharedResources) -> Result<Self> {
        Self::new(dir, shared, true)
    }

    /// The state of a folder that holds the RocksDB files of a snapshot. Damaged or foreign files are
    /// [`fastchangelog_format::ErrorKind::Corrupt`]: delete the folder and restore.
    pub fn open(dir: &Path, shared: &SharedResources) -> Result<Self> {
        Self::new(dir, shared, false)
    }

    fn new(dir: &Path, shared: &SharedResources, create: bool) -> Result<Self> {
        let db = Arc::new(shared.open(dir, create)?);
        let mut hot = HotTier::new(FIRST_HOT_LIMIT.min(shared.budget().limit() / 16), hash_key);
        hot.set_complete(create);
        let account = Account {
            reservation: shared.budget().reserve(MemoryUser::Hot, hot.bytes()),
            shared: shared.clone(),
            evicted: 0,
        };
        shared.metrics().hot_bytes.add(hot.bytes());
        Ok(Self {
            db,
            dir: dir.to_owned(),
            hot,
            recent: Mutex::default(),
            stored: !create,
            range_tombstones: 0,
            flushed: Vec::new(),
            broken: OnceLock::new(),
            account,
        })
    }

    /// The values of `keys` in `state`; `out` is called once per key, with its index, in any order, until it breaks
    /// off. Several threads may read at once. Returns how many keys the hot tier could not answer for.
    pub fn get_many(&self, state: StateId, keys: &[KeyRef<'_>], out: Out<'_>) -> Result<u64> {
        self.check()?;
        let ask_disk = self.stored && !self.hot.is_complete();
        let mut misses = Vec::new();
        for (lane, run) in keys.chunks(LANE).enumerate() {
            black_box(self.hot.prefetch::<LANE>(run.iter().map(|k| (k.hash, state))));
            for (i, k) in run.iter().enumerate() {
                let index = lane * LANE + i;
                let flow = match self.hot.get(&HotKey { hash: k.hash, state, key_group: k.key_group, key: k.key }) {
                    Lookup::Value(value) => out(index, Some(value)),
                    Lookup::Miss if ask_disk => {
                        misses.push(index);
                        continue;
                    }
                    Lookup::Deleted | Lookup::Miss => out(index, None),
                };
                if flow.is_break() {
                    return Ok(misses.len() as u64);
                }
            }
        }
        let metrics = self.account.shared.metrics();
        metrics.hot_hits.add((keys.len() - misses.len()) as u64);
        let missed = misses.len() as u64;
        metrics.hot_misses.add(missed);
        if missed > 0 {
            self.read_disk(state, keys, misses, out)?;
        }
        Ok(missed)
    }

    fn read_disk(&self, state: StateId, keys: &[KeyRef<'_>], mut misses: Vec<usize>, out: Out<'_>) -> Result<()> {
        misses.sort_unstable_by(|&a, &b| (keys[a].key_group, keys[a].key).cmp(&(keys[b].key_group, keys[b].key)));
        let cf = self
            .db
            .cf_handle(DEFAULT_COLUMN_FAMILY_NAME)
            .ok_or_else(|| Error::internal("RocksDB has no default column family"))?;
        let mut buffer = Vec::new();
        let mut ends = Vec::new();
        for chunk in misses.chunks(READ_CHUNK) {
            buffer.clear();
            ends.clear();
            ends.push(0);
            for &i in chunk {
                push_key(&mut buffer, keys[i].key_group, state, keys[i].key);
                ends.push(buffer.len());
            }
            let disk_keys = ends.windows(2).map(|w| &buffer[w[0]..w[1]]);
            let values = self.db.batched_multi_get_cf(cf, disk_keys, true);
            self.account.shared.metrics().rocksdb_reads.add(chunk.len() as u64);
            let (mut recent, most) = (self.recent.lock(), (self.hot.limit() / RECENT_SHARE).min(RECENT_BYTES));
            for (&i, value) in chunk.iter().zip(&values) {
                if let Ok(Some(value)) = value {
                    let KeyRef { hash, key_group, key } = keys[i];
                    let key = HotKey { hash, state, key_group, key };
                    if (recent.bytes() + ReadThroughBuffer::bytes_of(&key, value)) as u64 <= most {
                        recent.push(&key, value);
                    }
                }
            }
            drop(recent);
            for (&i, value) in chunk.iter().zip(values) {
                if out(i, value.map_err(|error| self.failed(rocks_error(error)))?.as_deref()).is_break() {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Applies a change set: the step from one version to the next. Applying it again changes nothing.
    pub fn apply(&mut self, set: &ChangeSet) -> Result<()> {
        self.check()?;
        self.flushed.clear();
        let mut sink = DiskSink::new(&self.db);
        self.recent.get_mut().drain(&mut self.hot, |hot, key, value| {
            hot.put_clean(key, value, &mut sink);
            true
        });
        let prefixes = set.iter().any(|c| c.op == Op::DeletePrefix);
        if prefixes {
            let written = sink.finish();
            self.wrote(written)?;
            self.delete_prefixes(set)?;
            sink = DiskSink::new(&self.db);
        }
        // Where an earlier change of the set may be one that a prefix delete takes back.
        let mut put = HashSet::new();
        let hashes: Vec<u64> = set.iter().map(|c| hash_key(c.key)).collect();
        // Records of one key keep their order. Only deletes of many keys need the order of all records.
        let parts = if prefixes || set.len() < ORDERED_FROM { 1 } else { PARTS };
        let (order, _) = sorted(set.len(), parts, |i| part_of(hashes[i]) % parts);
        for lane in order.chunks(LANE) {
            let keys = lane.iter().map(|&i| (hashes[i as usize], set.get(i as usize).state));
            black_box(self.hot.prefetch::<LANE>(keys));
            for i in lane.iter().map(|&i| i as usize) {
                let c = set.get(i);
                let key = HotKey { hash: hashes[i], state: c.state, key_group: c.key_group, key: c.key };
                match c.op {
                    Op::Put => {
                        if prefixes {
                            put.insert((c.state, c.key_group));
                        }
                        self.hot.put(&key, c.value, &mut sink);
                    }
                    Op::Delete => self.hot.delete(&key, &mut sink),
                    Op::DeletePrefix if put.contains(&(c.state, c.key_group)) => {
                        delete_earlier(&mut self.hot, set, i, &mut sink);
                    }
                    Op::DeletePrefix => {}
                }
            }
        }
        let written = sink.finish();
        self.wrote(written)
    }

    /// Takes over tables in the order of their keys, none of which the state has; their files are moved.
    pub fn ingest(&mut self, tables: Vec<PathBuf>) -> Result<()> {
        self.check()?;
        if tables.is_empty() {
            return Ok(());
        }
        let mut options = IngestExternalFileOptions::default();
        options.set_move_files(true);
        self.db.ingest_external_file_opts(&options, tables).map_err(rocks_error)?;
        self.hot.set_complete(false);
        self.stored = true;
        Ok(())
    }

    /// Deletes all entries of `groups`. None may be in the hot tier, so this is for a newly opened state.
    pub(super) fn delete_groups(&mut self, groups: KeyGroupRange) -> Result<()> {
        if groups.is_empty() {
            return Ok(());
        }
        let mut batch = WriteBatch::default();
        batch.delete_range(groups.start.to_be_bytes(), groups.end.to_be_bytes());
        self.db.write_opt(batch, &no_wal()).map_err(rocks_error)
    }

    /// Starts a flush of all that is dirty now.
    pub fn begin_flush(&mut self) {
        self.hot.begin_flush();
    }

    /// One step of the flush: writes up to `max_entries` (and a few megabytes) to RocksDB. Returns false once every
    /// entry dirty at [`KeyedState::begin_flush`] is there, with that value or a newer one.
    pub fn flush_dirty(&mut self, max_entries: usize) -> Result<bool> {
        self.check()?;
        let mut sink = DiskSink::new(&self.db);
        self.hot.flush(max_entries.max(1), FLUSH_BYTES, &mut sink);
        let written = sink.finish();
        self.wrote(written)?;
        Ok(self.hot.pending() > 0)
    }

    /// Entries whose current value is not in RocksDB.
    pub fn dirty_entries(&self) -> u64 {
        self.hot.dirty()
    }

    /// Makes a checkpoint of RocksDB in `dir`, which must not exist: hard links, or copies where there are none. It
    /// holds all flushed and evicted entries, but no dirty ones.
    pub fn checkpoint(&self, dir: &Path) -> Result<()> {
        self.check()?;
        self.checkpointer().checkpoint(dir, &Failpoints::default())
    }

    /// Makes checkpoints without holding this state, so reads and changes continue meanwhile.
    pub fn checkpointer(&self) -> Checkpointer {
        Checkpointer::new(&self.db, &self.account.shared)
    }

    /// Cancels compactions and flushes of RocksDB, also those with a waiting caller; none starts afterwards.
    pub fn stop_background(&self) {
        self.db.cancel_all_background_work(false);
    }

    /// Every key with its value, in no order.
    pub fn for_each(&self, f: &mut dyn FnMut(EntryRef<'_>) -> Result<()>) -> Result<()> {
        self.check()?;
        self.hot.for_each(&mut |entry| if entry.value.is_some() { f(entry) } else { Ok(()) })?;
        if !self.stored || self.hot.is_complete() {
            return Ok(());
        }
        self.scan(&mut |entry| {
            let key =
                HotKey { hash: hash_key(entry.key), state: entry.state, key_group: entry.key_group, key: entry.key };
            if self.hot.peek(&key) == Lookup::Miss {
                f(entry)?;
            }
            Ok(true)
        })
    }

    /// Every entry as a put, in the order of key group, state and key. Only while nothing is dirty: flush first.
    pub fn for_each_in_order(&self, f: &mut dyn FnMut(Change<'_>) -> Result<()>) -> Result<()> {
        self.check_flushed()?;
        self.scan(&mut |EntryRef { state, key_group, key, value }| {
            f(Change { op: Op::Put, state, key_group, key, value: value.unwrap_or_default() }).map(|()| true)
        })
    }

    /// The keys of `state` in `group` from `from` on, below `to`, in their order, with their values. Only while none of
    /// them is dirty: flush first.
    pub fn cursor(&self, state: StateId, group: KeyGroup, from: &[u8], to: Option<&[u8]>) -> Result<Cursor<'_>> {
        self.cursor_again(None, state, group, from, to)
    }

    /// The same with a cursor over other keys that is not needed any more: for many ranges of keys.
    pub fn cursor_again<'a>(
        &'a self,
        spare: Option<Cursor<'a>>,
        state: StateId,
        group: KeyGroup,
        from: &[u8],
        to: Option<&[u8]>,
    ) -> Result<Cursor<'a>> {
        self.check()?;
        if !self.holds(state, from, to) {
            return Err(not_flushed());
        }
        Ok(match spare {
            Some(spare) => spare.moved(state, group, from, to),
            None => Cursor::new((&self.db, &self.broken), state, group, from, to),
        })
    }

    /// The last key of `state` in `group` that is not after `key`. Only while nothing is dirty: flush first.
    pub fn last_at_or_below(&self, state: StateId, group: KeyGroup, key: &[u8]) -> Result<Option<Vec<u8>>> {
        self.check_flushed()?;
        last_at_or_below((&self.db, &self.broken), state, group, key)
    }

    fn check_flushed(&self) -> Result<()> {
        self.check()?;
        let flushed = self.dirty_entries() == 0;
        flushed.then_some(()).ok_or_else(not_flushed)
    }

    /// Changes the memory of the hot tier; takes effect at once.
    pub fn set_hot_limit(&mut self, bytes: u64) -> Result<()> {
        self.check()?;
        let mut sink = DiskSink::new(&self.db);
        self.hot.set_limit(bytes, &mut sink);
        let written = sink.finish();
        self.wrote(written)
    }

    /// Bytes of memory of the hot tier.
    pub fn hot_bytes(&self) -> u64 {
        self.hot.bytes()
    }

    /// True while lookups never need RocksDB.
    pub fn is_complete(&self) -> bool {
        self.hot.is_complete() || !self.stored
    }

    /// Bytes of RocksDB's open tables outside its cache.
    pub fn table_reader_bytes(&self) -> u64 {
        self.db.property_int_value("rocksdb.estimate-table-readers-mem").ok().flatten().unwrap_or(0)
    }

    /// The folder.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Closes the state and deletes its folder.
    pub fn destroy(self) -> Result<()> {
        let Self { db, dir, .. } = self;
        drop(db);
        match std::fs::remove_dir_all(&dir) {
            // Spark deletes the folders of an application that ended.
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(Error::io_at("cannot delete", &dir, &e)),
            _ => Ok(()),
        }
    }

    /// True after a failure of the local disk (invariant 4).
    pub fn is_broken(&self) -> bool {
        self.broken.get().is_some()
    }

    fn check(&self) -> Result<()> {
        match self.broken.get() {
            None => Ok(()),
            Some(error) => Err(Error::retryable(format!(
                "the local state of this shard is unusable after a failure of the local disk and must be restored: {error}"
            ))),
        }
    }

    /// Records a failure (invariant 4).
    fn failed(&self, error: Error) -> Error {
        let _ = self.broken.set(error.clone());
        error
    }

    /// All of RocksDB in order of keys, until `f` says false. Leaves the block cache alone.
    fn scan(&self, f: &mut dyn FnMut(EntryRef<'_>) -> Result<bool>) -> Result<()> {
        let mut options = ReadOptions::default();
        options.fill_cache(false);
        options.set_readahead_size(2 << 20);
        let mut iterator = self.db.raw_iterator_opt(options);
        iterator.seek_to_first();
        while let Some((key, value)) = iterator.item() {
            let (key_group, state, key) = split_key(key).map_err(|error| self.failed(error))?;
            if !f(EntryRef { state, key_group, key, value: Some(value) })? {
                return Ok(());
            }
            iterator.next();
        }
        iterator.status().map_err(|error| self.failed(rocks_error(error)))
    }

    /// Records the result of a sink; after an error entries may be lost (invariant 4).
    fn wrote(&mut self, written: Result<u64>) -> Result<()> {
        self.account.update(&self.hot);
        match written {
            Ok(0) => Ok(()),
            Ok(n) => {
                self.stored = true;
                self.account.shared.metrics().rocksdb_writes.add(n);
                Ok(())
            }
            Err(error) => Err(self.failed(error)),
        }
    }
}

fn not_flushed() -> Error {
    Error::internal("a scan of a state that was not flushed")
}

#[cfg(test)]
#[path = "keyed_tests.rs"]
mod tests;
