//! Checkpoints of one shard's RocksDB.
//!
//! Owns: the hard links of a checkpoint, copies where links are refused, and the bound on space amplification.
//! Does not own: the flush of the hot tier (`keyed`), the upload (`snapshot`), the schedule (policy).
//!
//! Invariants of [`Checkpointer::checkpoint`]:
//! 1. the folder appears whole, or nothing is left of it;
//! 2. a file system that refuses hard links costs time and disk, but never prevents a snapshot. RocksDB itself copies
//!    across devices (EXDEV) and where links are "not supported" (ENOTSUP), but not where they are "not permitted"
//!    (EPERM, as network and FAT file systems say) or used up (EMLINK): then this module copies.

use super::rocks::{Database, SharedResources, rocks_error};
use fastchangelog_format::error::{Error, Result};
use fastchangelog_store::failpoint::Failpoints;
use rocksdb::DB;
use rocksdb::checkpoint::Checkpoint;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Space amplification above which [`Checkpointer::compact_if_bloated`] rewrites the files. A snapshot is uploaded,
/// kept, and read by each restore, while RocksDB alone lets four overlapping files of updates pile up.
const MAX_AMPLIFICATION: f64 = 1.2;
/// Below this nothing is worth a rewrite: a file has an index, a filter and a footer.
const SMALL: u64 = 256 << 10;
/// Attempts to read RocksDB's manifest while it is written: reading takes a millisecond, a change of it comes each few.
const MANIFEST_ATTEMPTS: usize = 20;

/// Makes checkpoints of a state's RocksDB, from any thread, while the state is read and changed.
#[derive(Debug)]
pub struct Checkpointer {
    // Before `shared`, whose cache must outlive the database.
    db: Arc<Database>,
    shared: SharedResources,
}

impl Checkpointer {
    pub(super) fn new(db: &Arc<Database>, shared: &SharedResources) -> Self {
        Self { db: Arc::clone(db), shared: shared.clone() }
    }

    /// See [`super::keyed::KeyedState::checkpoint`].
    pub fn checkpoint(&self, dir: &Path, failpoints: &Failpoints) -> Result<()> {
        if let Some(parent) = dir.parent() {
            std::fs::create_dir_all(parent).map_err(|e| Error::io_at("cannot make", parent, &e))?;
        }
        // An existing folder is not ours to remove.
        if dir.symlink_metadata().is_ok() {
            return Err(Error::internal(format!("a checkpoint was to be made in {}, which exists", dir.display())));
        }
        self.db.flush().map_err(rocks_error)?;
        let mut unfinished = Unfinished { dir, whole: false };
        if let Err(refused) = failpoints.hit("checkpoint.link").and_then(|()| self.link(dir)) {
            tracing::warn!(%refused, "cannot make hard links for a checkpoint; copying its files");
            unfinished.clear();
            self.copy(dir, failpoints).map_err(|e| e.context(format!("{refused}; copying them failed, too")))?;
            self.shared.metrics().checkpoints_copied.add(1);
        }
        remove_empty_logs(dir).map_err(|e| Error::io_at("cannot tidy", dir, &e))?;
        failpoints.hit("checkpoint.made")?;
        unfinished.whole = true;
        Ok(())
    }

    fn link(&self, dir: &Path) -> Result<()> {
        Checkpoint::new(&self.db).map_err(rocks_error)?.create_checkpoint(dir).map_err(rocks_error)
    }

    /// The same folder by copies. RocksDB deletes nothing meanwhile.
    fn copy(&self, dir: &Path, failpoints: &Failpoints) -> Result<()> {
        let failed = |e: &io::Error| copy_failed(dir, e);
        let _kept = NoDeletions::of(&self.db)?;
        std::fs::create_dir(dir).map_err(|e| failed(&e))?;
        let from = self.db.path();
        for name in self.described(from, dir)? {
            failpoints.hit("checkpoint.copy")?;
            std::fs::copy(from.join(&name), dir.join(&name)).map_err(|e| failed(&e))?;
        }
        Ok(())
    }

    /// Copies the small files and returns the tables that the copied manifest names. Those that RocksDB shows
    /// may be others: it writes its manifest before a change of tables shows. All that a manifest names is on disk.
    fn described(&self, from: &Path, dir: &Path) -> Result<Vec<String>> {
        let mut last = None;
        for _ in 0..MANIFEST_ATTEMPTS {
            match self.try_described(from, dir) {
                Ok(tables) => return Ok(tables),
                Err(error) => last = Some(error),
            }
        }
        Err(last.unwrap_or_else(|| Error::internal("no attempt to copy a manifest")))
    }

    fn try_described(&self, from: &Path, dir: &Path) -> Result<Vec<String>> {
        let failed = |e: &io::Error| copy_failed(dir, e);
        for (name, bytes) in descriptive_files(from).map_err(|e| failed(&e))? {
            std::fs::write(dir.join(name), bytes).map_err(|e| failed(&e))?;
        }
        let name = |file: rocksdb::LiveFile| file.name.trim_start_matches('/').to_owned();
        Ok(self.shared.open_sparse(dir, true)?.live_files().map_err(rocks_error)?.into_iter().map(name).collect())
    }

    /// Compacts if the files hold much more than the `net` bytes of keys and values.
    ///
    /// `space_amplification` is the result of the last compaction, in bytes of files per net byte; 0 if there was none.
    /// States that take more than their net bytes even when compact are not compacted each time without effect. Returns
    /// the new value if it compacted. Takes as long as it takes to write the whole state.
    pub fn compact_if_bloated(&self, net: u64, space_amplification: f64) -> Result<Option<f64>> {
        self.db.flush().map_err(rocks_error)?;
        let before = self.sst_bytes();
        if before < SMALL || before as f64 <= MAX_AMPLIFICATION * net as f64 * space_amplification.max(1.0) {
            return Ok(None);
        }
        self.db.compact_range::<&[u8], &[u8]>(None, None);
        let after = self.sst_bytes();
        tracing::info!(before, after, net, "compacted before a checkpoint");
        Ok(Some(after as f64 / net.max(1) as f64))
    }

    /// Bytes of the SST files of the newest state of RocksDB.
    pub fn sst_bytes(&self) -> u64 {
        self.db.property_int_value("rocksdb.live-sst-files-size").ok().flatten().unwrap_or(0)
    }
}

fn copy_failed(dir: &Path, error: &io::Error) -> Error {
    Error::io_at("cannot copy the local state to", dir, error)
}

/// A folder that is removed unless it is complete.
struct Unfinished<'a> {
    dir: &'a Path,
    whole: bool,
}

impl Unfinished<'_> {
    fn clear(&self) {
        // RocksDB makes a folder of this name first.
        let mut temporary = self.dir.as_os_str().to_owned();
        temporary.push(".tmp");
        for dir in [self.dir.to_owned(), PathBuf::from(temporary)] {
            let _ = std::fs::remove_dir_all(dir);
        }
    }
}

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        if !self.whole {
            self.clear();
        }
    }
}

/// RocksDB deletes no file while this exists.
struct NoDeletions<'a>(&'a DB);

impl<'a> NoDeletions<'a> {
    fn of(db: &'a DB) -> Result<Self> {
        db.disable_file_deletions().map_err(rocks_error)?;
        Ok(Self(db))
    }
}

impl Drop for NoDeletions<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.0.enable_file_deletions() {
            tracing::warn!(%error, "RocksDB continues without deleting files");
        }
    }
}

/// `CURRENT`, the manifest that it names and the newest options, with their bytes.
fn descriptive_files(from: &Path) -> io::Result<Vec<(String, Vec<u8>)>> {
    let current = std::fs::read(from.join("CURRENT"))?;
    let manifest = String::from_utf8_lossy(current.trim_ascii()).into_owned();
    let mut options = None;
    for entry in std::fs::read_dir(from)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        let is_options = name.starts_with("OPTIONS-") && !name.ends_with(".dbtmp");
        options = options.max(is_options.then_some(name));
    }
    let mut files = vec![("CURRENT".to_owned(), current)];
    for name in std::iter::once(manifest).chain(options) {
        let bytes = std::fs::read(from.join(&name))?;
        files.push((name, bytes));
    }
    if std::fs::read(from.join("CURRENT"))? != files[0].1 {
        return Err(io::Error::other("RocksDB began another manifest"));
    }
    Ok(files)
}

/// RocksDB puts its write-ahead log into a checkpoint even when nothing ever goes there.
fn remove_empty_logs(dir: &Path) -> std::io::Result<()> {
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        if entry.path().extension().is_some_and(|e| e == "log") && entry.metadata()?.len() == 0 {
            std::fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

#[cfg(test)]
#[path = "checkpoint_tests.rs"]
mod tests;
