//! Checkpoints of one shard's RocksDB.
//!
//! Owns: the hard links of a checkpoint, and how much garbage its files may carry. Does not own: what is in RocksDB and
//! what is still only in the hot tier (`keyed`), the upload (`snapshot`), when to do it (policy).

use super::rocks::SharedResources;
use crate::error::{Error, Result};
use rocksdb::DB;
use rocksdb::checkpoint::Checkpoint;
use std::path::Path;
use std::sync::Arc;

/// Files may hold so many times the bytes of keys and values before [`Checkpointer::tidy`] rewrites them. A base is
/// uploaded, kept and read at each restore; RocksDB by itself lets four overlapping files of updates pile up.
const MAX_AMPLIFICATION: f64 = 1.2;
/// Below this nothing is worth a rewrite: a file has an index, a filter and a footer.
const SMALL: u64 = 256 << 10;

/// Makes checkpoints of a state's RocksDB, from any thread, while the state is read and changed.
#[derive(Debug)]
pub struct Checkpointer {
    // Before `_shared`, whose cache must outlive the database.
    db: Arc<DB>,
    _shared: SharedResources,
}

impl Checkpointer {
    pub(super) fn new(db: &Arc<DB>, shared: &SharedResources) -> Self {
        Self { db: Arc::clone(db), _shared: shared.clone() }
    }

    /// See [`super::keyed::KeyedState::checkpoint`].
    pub fn checkpoint(&self, dir: &Path) -> Result<()> {
        if let Some(parent) = dir.parent() {
            std::fs::create_dir_all(parent).map_err(|e| Error::io(format!("cannot make {}", parent.display()), &e))?;
        }
        self.db.flush()?;
        Checkpoint::new(&self.db)?.create_checkpoint(dir)?;
        remove_empty_logs(dir).map_err(|e| Error::io(format!("cannot tidy {}", dir.display()), &e))
    }

    /// Compacts if the files hold much more than the `net` bytes of keys and values.
    ///
    /// `density` is what the last compaction left: bytes of files per net byte, 0 if there was none. States that take more
    /// than their net bytes even when compact are not compacted in vain each time. Gives the new density if it
    /// compacted. Takes as long as it takes to write the whole state.
    pub fn tidy(&self, net: u64, density: f64) -> Result<Option<f64>> {
        self.db.flush()?;
        let before = self.sst_bytes();
        if before < SMALL || before as f64 <= MAX_AMPLIFICATION * net as f64 * density.max(1.0) {
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
