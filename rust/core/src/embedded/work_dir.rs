//! The working directory of an embedded state on the local disk.
//!
//! Owns: creating it, private to the user, and removing those of dead processes.
//! Does not own: its content; all of it can be restored (P3).
//!
//! A folder lives as long as its owner holds the lock beside it. The system releases the lock however a process ends.

use fastchangelog_format::error::{Error, Result};
use rustix::fs::{FlockOperation, flock};
use std::fs::{DirBuilder, File};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

const LOCK: &str = "lock";

/// A folder with its lock; removed on drop.
#[derive(Debug)]
pub(crate) struct WorkDir {
    dir: PathBuf,
    lock: PathBuf,
    _held: File,
}

impl WorkDir {
    /// A new folder under `parent`, by default the temp folder.
    pub(crate) fn make(parent: Option<&Path>) -> Result<Self> {
        let root = match parent {
            Some(parent) => parent.to_owned(),
            None => std::env::temp_dir().join(format!("fastchangelog-states-{}", rustix::process::geteuid().as_raw())),
        };
        DirBuilder::new().recursive(true).mode(0o700).create(&root).map_err(|e| failed(&root, &e))?;
        let owner = std::fs::symlink_metadata(&root).map_err(|e| failed(&root, &e))?;
        if !owner.is_dir() || owner.uid() != rustix::process::geteuid().as_raw() {
            return Err(Error::invalid(format!("the local folder {} belongs to another user", root.display()))
                .with_remedy("remove it, or set TMPDIR"));
        }
        remove_dead(&root);
        let name = format!("{:016x}", rand::random::<u64>());
        let lock = root.join(format!("{name}.{LOCK}"));
        let held = File::options().write(true).create_new(true).open(&lock).map_err(|e| failed(&lock, &e))?;
        // Other processes hold it briefly, to test whether it is held.
        flock(&held, FlockOperation::LockExclusive).map_err(|e| failed(&lock, &e.into()))?;
        let dir = root.join(name);
        DirBuilder::new().mode(0o700).create(&dir).map_err(|e| failed(&dir, &e))?;
        Ok(Self { dir, lock, _held: held })
    }

    /// The folder.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }
}

impl Drop for WorkDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
        let _ = std::fs::remove_file(&self.lock);
    }
}

/// Removes folders whose lock is not held. A lock that was just created and is not held yet loses its file: its owner does
/// not notice; if it is killed, its folder is left to the cleaner of the temp folder.
fn remove_dead(root: &Path) {
    let Ok(entries) = std::fs::read_dir(root) else { return };
    for lock in entries.flatten().map(|e| e.path()).filter(|p| p.extension().is_some_and(|e| e == LOCK)) {
        let Ok(file) = File::open(&lock) else { continue };
        if flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok() {
            let _ = std::fs::remove_dir_all(lock.with_extension(""));
            let _ = std::fs::remove_file(&lock);
        }
    }
}

fn failed(path: &Path, error: &std::io::Error) -> Error {
    Error::io(format!("cannot make {}", path.display()), error).with_remedy("free disk space or set TMPDIR")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_lives_as_long_as_its_lock() {
        let root = tempfile::tempdir().unwrap();
        let first = WorkDir::make(Some(root.path())).unwrap();
        std::fs::write(first.dir().join("file"), "x").unwrap();
        // A killed process leaves the folder and a lock that is not held.
        let dead = root.path().join("dead");
        std::fs::create_dir(&dead).unwrap();
        std::fs::write(root.path().join("dead.lock"), "").unwrap();
        let second = WorkDir::make(Some(root.path())).unwrap();
        assert!(first.dir().join("file").exists(), "its owner lives");
        assert!(!dead.exists());
        let dirs = [first.dir().to_owned(), second.dir().to_owned()];
        drop((first, second));
        assert!(dirs.iter().all(|dir| !dir.exists()));
        assert_eq!(std::fs::read_dir(root.path()).unwrap().count(), 0);
    }
}
