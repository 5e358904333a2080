//! Databases of other programs: their files are opened, changed in place and scanned, and then thrown away.
//!
//! Owns: how such a database is opened; Spark's merge of values.
//! Does not own: the files (the caller's), the meaning of keys and values.

use super::rocks::{Database, after_prefix, no_wal, rocks_error};
use super::rocks_threads::{COMPACTION_THREADS, FLUSH_THREADS, OwnThreads};
use fastchangelog_format::error::{Error, Result};
use fastchangelog_store::threads::check_room;
use rocksdb::{
    BlockBasedOptions, Cache, DB, DEFAULT_COLUMN_FAMILY_NAME, LogLevel, MergeOperands, Options, ReadOptions, WriteBatch,
};
use std::path::Path;
use std::sync::Arc;

const CACHE_BYTES: usize = 8 << 20;
const WRITE_BUFFER_BYTES: usize = 16 << 20;
const MAX_OPEN_FILES: i32 = 64;
const BATCH_BYTES: usize = 1 << 20;
/// RocksDB's timer, see `rocks`.
const THREADS_OF_ITS_OWN: usize = 1;
/// Between merged values, as Spark's `StringAppendOperator` joins them.
const DELIMITER: u8 = b',';

/// An open database.
#[derive(Debug)]
pub struct ForeignDatabase {
    db: Database,
    _threads: Arc<OwnThreads>,
}

impl std::fmt::Debug for OwnThreads {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("OwnThreads")
    }
}

impl ForeignDatabase {
    /// The database whose files are in `dir`; a new one if `create`.
    pub fn open(dir: &Path, create: bool) -> Result<Self> {
        check_room(THREADS_OF_ITS_OWN, "a thread of a database of Spark's")?;
        let threads = OwnThreads::of_process()?;
        let mut table = BlockBasedOptions::default();
        table.set_block_cache(&Cache::new_lru_cache(CACHE_BYTES));
        table.set_cache_index_and_filter_blocks(true);
        let mut options = Options::default();
        options.set_env(threads.env());
        options.set_block_based_table_factory(&table);
        options.set_write_buffer_size(WRITE_BUFFER_BYTES);
        options.set_max_background_jobs(COMPACTION_THREADS + FLUSH_THREADS);
        options.set_max_open_files(MAX_OPEN_FILES);
        options.set_max_file_opening_threads(1);
        options.set_skip_stats_update_on_db_open(true);
        // It is read once.
        options.set_disable_auto_compactions(true);
        options.set_level_zero_slowdown_writes_trigger(i32::MAX);
        options.set_level_zero_stop_writes_trigger(i32::MAX);
        options.set_merge_operator_associative("fastchangelog.join", joined);
        options.set_log_level(LogLevel::Warn);
        options.set_stats_dump_period_sec(0);
        options.set_stats_persist_period_sec(0);
        options.create_if_missing(create);
        options.set_error_if_exists(create);
        let families = [(DEFAULT_COLUMN_FAMILY_NAME, options.clone())];
        let db = Database::open(dir, || DB::open_cf_with_opts(&options, dir, families))?;
        Ok(Self { db, _threads: threads })
    }

    /// A writer of changes, in order.
    pub fn writer(&self) -> ForeignWriter<'_> {
        ForeignWriter { db: &self.db, batch: WriteBatch::default() }
    }

    /// Calls `visit` with each entry whose key starts with `prefix`, in the order of the keys, after the key `after` if
    /// there is one, until it returns false or an error.
    pub fn scan(
        &self,
        prefix: &[u8],
        after: Option<&[u8]>,
        mut visit: impl FnMut(&[u8], &[u8]) -> Result<bool>,
    ) -> Result<()> {
        let mut options = ReadOptions::default();
        options.set_readahead_size(1 << 20);
        options.fill_cache(false);
        if !prefix.is_empty() {
            options.set_iterate_upper_bound(after_prefix(prefix));
        }
        let mut entries = self.db.raw_iterator_opt(options);
        entries.seek(after.unwrap_or(prefix));
        while let Some((key, value)) = entries.item() {
            if after != Some(key) && !visit(key, value)? {
                break;
            }
            entries.next();
        }
        entries.status().map_err(unreadable)
    }
}

/// The error for a table that cannot be read: it came from a store, not from a cache.
fn unreadable(error: rocksdb::Error) -> Error {
    if error.kind() == rocksdb::ErrorKind::NotSupported {
        return Error::store(format!("a table of this state is of a form that is not read here: {error}"));
    }
    rocks_error(error)
}

/// Writes changes in batches.
pub struct ForeignWriter<'a> {
    db: &'a DB,
    batch: WriteBatch,
}

impl ForeignWriter<'_> {
    /// Puts a value.
    pub fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.batch.put(key, value);
        self.write_if_full()
    }

    /// Deletes a key.
    pub fn delete(&mut self, key: &[u8]) -> Result<()> {
        self.batch.delete(key);
        self.write_if_full()
    }

    /// Appends a value to those of a key.
    pub fn merge(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.batch.merge(key, value);
        self.write_if_full()
    }

    fn write_if_full(&mut self) -> Result<()> {
        if self.batch.size_in_bytes() >= BATCH_BYTES { self.write() } else { Ok(()) }
    }

    fn write(&mut self) -> Result<()> {
        self.db.write_opt(std::mem::take(&mut self.batch), &no_wal()).map_err(rocks_error)
    }

    /// Writes what is left.
    pub fn finish(mut self) -> Result<()> {
        self.write()
    }
}

/// The values of a key with the delimiter between them.
#[expect(clippy::unnecessary_wraps, reason = "RocksDB's signature")]
fn joined(_key: &[u8], existing: Option<&[u8]>, operands: &MergeOperands) -> Option<Vec<u8>> {
    let mut whole = existing.map(<[u8]>::to_vec);
    for operand in operands {
        match &mut whole {
            None => whole = Some(operand.to_vec()),
            Some(whole) => {
                whole.push(DELIMITER);
                whole.extend_from_slice(operand);
            }
        }
    }
    Some(whole.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(db: &ForeignDatabase, prefix: &[u8], after: Option<&[u8]>) -> Vec<(Vec<u8>, Vec<u8>)> {
        let mut found = Vec::new();
        db.scan(prefix, after, |key, value| {
            found.push((key.to_vec(), value.to_vec()));
            Ok(true)
        })
        .unwrap();
        found
    }

    #[test]
    fn changes_are_applied_in_order_and_values_joined() {
        let dir = tempfile::tempdir().unwrap();
        let db = ForeignDatabase::open(dir.path(), true).unwrap();
        let mut writer = db.writer();
        writer.put(b"a1", b"x").unwrap();
        writer.put(b"a2", b"y").unwrap();
        writer.merge(b"a2", b"z").unwrap();
        writer.merge(b"b1", b"p").unwrap();
        writer.merge(b"b1", b"q").unwrap();
        writer.delete(b"a1").unwrap();
        writer.finish().unwrap();
        assert_eq!(entries(&db, b"a", None), [(b"a2".to_vec(), b"y,z".to_vec())]);
        assert_eq!(entries(&db, b"", Some(b"a2")), [(b"b1".to_vec(), b"p,q".to_vec())]);
        assert_eq!(entries(&db, b"a", Some(b"a2")), []);
    }

    #[test]
    fn a_folder_without_a_database_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        assert!(ForeignDatabase::open(dir.path(), false).is_err());
    }
}
