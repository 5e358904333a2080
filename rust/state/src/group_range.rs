//! Ranges of key groups: extracts the entries of a range from the RocksDB files of a snapshot.
//!
//! Owns: which tables of a snapshot a range needs, clipping a snapshot to a range, and moving a range from one snapshot
//! into another state.
//! Does not own: fetching the files (`read`), which snapshots and in which order (`shard`).
//!
//! RocksDB's own manifest lists the first and the last key of each table, so not all tables of a snapshot must be
//! local: it is opened without reading its tables, and the tables outside of the range are dropped from the manifest
//! first. An error in that choice cannot lose an entry, only fail: every table left in the manifest must be local.
//!
//! Invariants:
//! 1. a range needs every table that may hold one of its keys, both of the table's bounds inclusive, every table
//!    of level 0 (RocksDB never forgets these), and the neighbours that share a bound with one of them (RocksDB forgets
//!    neither without the other);
//! 2. nothing is compacted before the entries are in place;
//! 3. after [`clip`] and [`export`] exactly the entries of the range are there, as they were before.
//!
//! Beside that: new tables from entries in order, and counting.

use super::keyed::KeyedState;
use super::rocks::{Database, SharedResources, push_key, rocks_error};
use fastchangelog_format::error::{Error, Result};
use fastchangelog_format::model::{Change, KeyGroupRange};
use fastchangelog_store::threads::refused;
use rocksdb::{DB, DBCompressionType, DEFAULT_COLUMN_FAMILY_NAME, ReadOptions, SstFileWriter};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Size of an exported table, equal to the size of RocksDB's own tables.
const TABLE_BYTES: u64 = 32 << 20;
/// Threads that export one snapshot, at most.
const EXPORT_THREADS: usize = 4;
/// After every key of a state: key groups end at 32,768.
const AFTER_ALL: &[u8] = &[u8::MAX];

/// A table as RocksDB's manifest lists it.
#[derive(Debug)]
struct TableMeta {
    name: String,
    level: i32,
    first: Vec<u8>,
    last: Vec<u8>,
}

/// Names of the tables that `groups` need, of the snapshot whose other files are in `dir`. No table has to be there.
pub fn tables_of(dir: &Path, groups: KeyGroupRange, shared: &SharedResources) -> Result<BTreeSet<String>> {
    let tables = tables(&shared.open_sparse(dir, true)?)?;
    let needed = needed(&tables, groups);
    Ok(tables.into_iter().zip(needed).filter(|(_, needed)| *needed).map(|(table, _)| table.name).collect())
}

/// Opens the snapshot in `dir`, which holds the entries of `have`, as the state of the entries of `want`. Tables that
/// `want` does not need may be absent.
pub fn clip(dir: &Path, have: KeyGroupRange, want: KeyGroupRange, shared: &SharedResources) -> Result<KeyedState> {
    drop_absent(dir, want, shared)?;
    let mut keyed = KeyedState::open(dir, shared)?;
    keyed.delete_groups(KeyGroupRange { start: have.start, end: have.end.min(want.start) })?;
    keyed.delete_groups(KeyGroupRange { start: have.start.max(want.end), end: have.end })?;
    Ok(keyed)
}

/// Writes the entries of `groups` of the snapshot in `from` into new tables in the folder `into`, in order of their
/// keys, for [`KeyedState::ingest`]. Tables that `groups` do not need may be absent. Of the snapshot, nothing can be
/// used afterwards.
pub fn export(from: &Path, groups: KeyGroupRange, into: &Path, shared: &SharedResources) -> Result<Vec<PathBuf>> {
    drop_absent(from, groups, shared)?;
    let db = &shared.open_sparse(from, true)?;
    let threads = shared.threads(EXPORT_THREADS);
    let parts = split(groups, threads.count);
    std::thread::scope(|scope| {
        let begin = |part: KeyGroupRange| {
            let work = move || export_part(db, part, into, shared);
            let thread = std::thread::Builder::new().name("fcl-export".to_owned()).spawn_scoped(scope, work);
            thread.map_err(|e| refused("a thread that exports a part of a snapshot", &e))
        };
        let runs = parts.into_iter().map(begin).collect::<Result<Vec<_>>>()?;
        let mut tables = Vec::new();
        for run in runs {
            tables.extend(run.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?);
        }
        Ok(tables)
    })
}

/// Divides `groups` into at most this many ranges of about equal size.
fn split(groups: KeyGroupRange, parts: usize) -> Vec<KeyGroupRange> {
    let parts = parts.clamp(1, groups.len().max(1));
    let at = |i: usize| groups.start + u16::try_from(groups.len() * i / parts).unwrap_or(u16::MAX);
    (0..parts).map(|i| KeyGroupRange { start: at(i), end: at(i + 1) }).collect()
}

/// The tables of one range; their names begin with its first key group.
fn export_part(db: &DB, groups: KeyGroupRange, into: &Path, shared: &SharedResources) -> Result<Vec<PathBuf>> {
    let mut options = ReadOptions::default();
    options.fill_cache(false);
    options.set_readahead_size(2 << 20);
    options.set_iterate_lower_bound(groups.start.to_be_bytes());
    options.set_iterate_upper_bound(groups.end.to_be_bytes());
    let mut iterator = db.raw_iterator_opt(options);
    iterator.seek_to_first();
    let mut table_options = shared.options();
    // The range is needed now; compactions will take the time that the better one takes.
    table_options.set_bottommost_compression_type(DBCompressionType::Lz4);
    let mut tables = Vec::new();
    while iterator.valid() {
        let path = into.join(format!("{}-{}", groups.start, tables.len()));
        let mut writer = SstFileWriter::create(&table_options);
        writer.open(&path).map_err(rocks_error)?;
        while let Some((key, value)) = iterator.item().filter(|_| writer.file_size() < TABLE_BYTES) {
            writer.put(key, value).map_err(rocks_error)?;
            iterator.next();
        }
        writer.finish().map_err(rocks_error)?;
        tables.push(path);
    }
    iterator.status().map_err(rocks_error)?;
    Ok(tables)
}

/// A new table, for [`KeyedState::ingest`].
#[derive(Debug)]
pub struct IngestTable {
    /// Its file.
    pub path: PathBuf,
    /// Its first key, as it is on disk.
    pub first: Vec<u8>,
    /// Its last key.
    pub last: Vec<u8>,
    /// Number of entries.
    pub entries: u64,
    /// Bytes of keys and values.
    pub bytes: u64,
}

/// Writes the entries of `entries` into the new table `path`; returns none if there are no entries. Entries that are
/// not in the order of key group, state and key are damage of `source`.
pub fn write_table(
    path: &Path,
    shared: &SharedResources,
    source: &str,
    entries: impl FnOnce(&mut dyn FnMut(Change<'_>) -> Result<()>) -> Result<()>,
) -> Result<Option<IngestTable>> {
    let options = shared.options();
    let mut writer = SstFileWriter::create(&options);
    writer.open(path).map_err(rocks_error)?;
    let (mut first, mut last, mut key) = (None, Vec::new(), Vec::new());
    let (mut count, mut bytes) = (0, 0);
    entries(&mut |change| {
        key.clear();
        push_key(&mut key, change.key_group, change.state, change.key);
        if first.is_none() {
            first = Some(key.clone());
        } else if key <= last {
            return Err(Error::corrupt(source, 0, "its keys are out of order"));
        }
        writer.put(&key, change.value).map_err(rocks_error)?;
        std::mem::swap(&mut key, &mut last);
        count += 1;
        bytes += (change.key.len() + change.value.len()) as u64;
        Ok(())
    })?;
    let Some(first) = first else { return Ok(None) };
    writer.finish().map_err(rocks_error)?;
    Ok(Some(IngestTable { path: path.to_owned(), first, last, entries: count, bytes }))
}

/// Keys, and bytes of keys and values. Reads all of the state.
pub fn count(keyed: &KeyedState) -> Result<(u64, u64)> {
    let (mut keys, mut bytes) = (0, 0);
    keyed.for_each(&mut |entry| {
        keys += 1;
        bytes += (entry.key.len() + entry.value.map_or(0, <[u8]>::len)) as u64;
        Ok(())
    })?;
    Ok((keys, bytes))
}

/// Removes the absent tables, all outside of `want`, from the manifest of the snapshot in `dir`.
fn drop_absent(dir: &Path, want: KeyGroupRange, shared: &SharedResources) -> Result<()> {
    let absent = |db: &Database| Ok::<_, Error>(tables(db)?.into_iter().find(|table| !dir.join(&table.name).exists()));
    if absent(&shared.open_sparse(dir, true)?)?.is_none() {
        return Ok(());
    }
    let db = shared.open_sparse(dir, false)?;
    let family = db
        .cf_handle(DEFAULT_COLUMN_FAMILY_NAME)
        .ok_or_else(|| Error::internal("RocksDB has no default column family"))?;
    db.delete_file_in_range_cf(family, &[][..], &want.start.to_be_bytes()[..]).map_err(rocks_error)?;
    db.delete_file_in_range_cf(family, &want.end.to_be_bytes()[..], AFTER_ALL).map_err(rocks_error)?;
    match absent(&db)? {
        None => Ok(()),
        Some(table) => Err(Error::internal(format!("RocksDB still wants {table:?}, which was left out of a snapshot"))),
    }
}

fn tables(db: &Database) -> Result<Vec<TableMeta>> {
    let table = |file: rocksdb::LiveFile| TableMeta {
        name: file.name.trim_start_matches('/').to_owned(),
        level: file.level,
        first: file.start_key.unwrap_or_default(),
        // Without a bound it may reach anywhere.
        last: file.end_key.unwrap_or_else(|| AFTER_ALL.to_vec()),
    };
    Ok(db.live_files().map_err(rocks_error)?.into_iter().map(table).collect())
}

/// Which of `tables` are needed (invariant 1).
fn needed(tables: &[TableMeta], groups: KeyGroupRange) -> Vec<bool> {
    let (start, end) = (groups.start.to_be_bytes(), groups.end.to_be_bytes());
    let wanted = |t: &TableMeta| t.level == 0 || (t.first[..] < end[..] && t.last[..] >= start[..]);
    let mut needed: Vec<bool> = tables.iter().map(wanted).collect();
    loop {
        let more: Vec<usize> = (0..tables.len())
            .filter(|&i| {
                let touches = |t: &TableMeta| {
                    t.level == tables[i].level && t.first <= tables[i].last && t.last >= tables[i].first
                };
                !needed[i] && tables.iter().zip(&needed).any(|(t, &needed)| needed && touches(t))
            })
            .collect();
        if more.is_empty() {
            return needed;
        }
        more.into_iter().for_each(|i| needed[i] = true);
    }
}

#[cfg(test)]
#[path = "group_range_tests.rs"]
mod tests;
