//! The files of a RocksDB checkpoint: a folder of hard links that is not written to any more.
//!
//! Owns: telling RocksDB's large immutable files from its small ones, and refusing a folder that is no complete
//! checkpoint.
//! Does not own: making the checkpoint, uploading it.

use bytes::Bytes;
use fastchangelog_format::error::{Error, Result};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Files of other kinds than tables travel inside the manifest up to this size; a grown `MANIFEST-*` does not.
const MAX_INLINE: u64 = 1 << 20;

/// A file that becomes an object of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LargeFile {
    /// RocksDB's name for it.
    pub name: String,
    /// Where it is.
    pub path: PathBuf,
    /// Its size in bytes.
    pub size: u64,
    /// Device and inode: what stays the same when RocksDB links the file into a later checkpoint.
    pub identity: (u64, u64),
}

impl LargeFile {
    /// True for tables and blob files, which RocksDB never changes once they are written.
    pub fn is_immutable(&self) -> bool {
        is_table(&self.name)
    }
}

/// What a checkpoint consists of. Invariant: `CURRENT` exists and names an existing file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CheckpointFiles {
    /// Tables, and other files too large for the manifest, by name.
    pub large: Vec<LargeFile>,
    /// The others with their bytes, by name.
    pub small: Vec<(String, Bytes)>,
}

pub(super) fn is_table(name: &str) -> bool {
    has_extension(name, "sst") || has_extension(name, "blob")
}

fn has_extension(name: &str, extension: &str) -> bool {
    Path::new(name).extension().is_some_and(|e| e == extension)
}

/// Files that RocksDB creates again when it opens a folder.
fn is_incidental(name: &str) -> bool {
    name == "LOCK" || name == "IDENTITY" || name == "LOG" || name.starts_with("LOG.")
}

/// Lists the checkpoint in `dir` and reads its small files.
pub fn list(dir: &Path) -> Result<CheckpointFiles> {
    let failed = |what: &Path, e: &std::io::Error| Error::io_at("cannot read the checkpoint", what, e);
    let mut files = CheckpointFiles::default();
    for entry in fs::read_dir(dir).map_err(|e| failed(dir, &e))? {
        let entry = entry.map_err(|e| failed(dir, &e))?;
        let path = entry.path();
        let name = entry.file_name().into_string().map_err(|name| unexpected(dir, &name.to_string_lossy()))?;
        let meta = fs::metadata(&path).map_err(|e| failed(&path, &e))?;
        if is_incidental(&name) {
            continue;
        }
        let descriptive = name == "CURRENT" || name.starts_with("MANIFEST-") || name.starts_with("OPTIONS-");
        if !meta.is_file() || !(is_table(&name) || descriptive || has_extension(&name, "log")) {
            return Err(unexpected(dir, &name));
        }
        if is_table(&name) || meta.len() > MAX_INLINE {
            files.large.push(LargeFile { name, path, size: meta.len(), identity: (meta.dev(), meta.ino()) });
        } else {
            let bytes = fs::read(&path).map_err(|e| failed(&path, &e))?;
            files.small.push((name, bytes.into()));
        }
    }
    files.large.sort_by(|a, b| a.name.cmp(&b.name));
    files.small.sort_by(|a, b| a.0.cmp(&b.0));
    check_complete(dir, &files)?;
    Ok(files)
}

fn unexpected(dir: &Path, name: &str) -> Error {
    Error::internal(format!("`{name}` in {} is no file of a RocksDB checkpoint", dir.display()))
}

/// A snapshot without these could never be opened again: better no snapshot than such a one.
fn check_complete(dir: &Path, files: &CheckpointFiles) -> Result<()> {
    let current = files.small.iter().find(|(name, _)| name == "CURRENT").map(|(_, bytes)| bytes.trim_ascii());
    let present = |name: &[u8]| {
        files.small.iter().any(|(n, _)| n.as_bytes() == name) || files.large.iter().any(|f| f.name.as_bytes() == name)
    };
    match current {
        Some(manifest) if present(manifest) => Ok(()),
        _ => Err(Error::retryable(format!(
            "the checkpoint in {} is not complete: it was cut off or cleared",
            dir.display()
        ))),
    }
}
