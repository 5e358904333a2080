//! Folders on the way to a state.
//!
//! Owns: the removal of a new folder with its last user, unless it is kept.
//! Does not own: its content.

use fastchangelog_format::error::{Error, Result};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::sync::mpsc;

/// A folder that is removed with its last user, unless it was kept.
pub(super) struct ScratchFolder {
    pub(super) path: PathBuf,
    keep: AtomicBool,
    /// The parent folder, if that is removed, too: not before this one.
    _inside: Option<Arc<ScratchFolder>>,
    /// Signals the end of all folders. A field, so that it is dropped after the folder is removed.
    user: mpsc::Sender<()>,
}

impl ScratchFolder {
    /// A new folder. `user` tells when it is gone or kept.
    pub(super) fn create(path: PathBuf, user: mpsc::Sender<()>) -> Result<Arc<Self>> {
        Self::make(path, None, user)
    }

    /// A new folder inside of this one.
    pub(super) fn inside(self: &Arc<Self>, name: &str) -> Result<Arc<Self>> {
        Self::make(self.path.join(name), Some(Arc::clone(self)), self.user.clone())
    }

    /// A new folder beside the one at `path`, for its parts.
    pub(super) fn beside(path: &Path, user: mpsc::Sender<()>) -> Result<Arc<Self>> {
        let mut parts = path.as_os_str().to_owned();
        parts.push(".parts");
        Self::make(parts.into(), None, user)
    }

    fn make(path: PathBuf, inside: Option<Arc<Self>>, user: mpsc::Sender<()>) -> Result<Arc<Self>> {
        std::fs::create_dir(&path).map_err(|e| Error::io_at("cannot make the folder", &path, &e))?;
        Ok(Arc::new(Self { path, keep: AtomicBool::new(false), _inside: inside, user }))
    }

    /// It stays.
    pub(super) fn keep(&self) {
        self.keep.store(true, Ordering::Relaxed);
    }
}

impl Drop for ScratchFolder {
    fn drop(&mut self) {
        if self.keep.load(Ordering::Relaxed) {
            return;
        }
        if let Err(error) = remove_folder(&self.path) {
            tracing::warn!(%error, folder = %self.path.display(), "cannot remove a local folder");
        }
    }
}

/// Removes a folder that others may still be putting files into.
///
/// It gets another name first: a download that was dropped may end on its thread, and must not put its file into the
/// folder while that is being emptied.
fn remove_folder(path: &Path) -> std::io::Result<()> {
    let mut gone = path.to_owned().into_os_string();
    gone.push(".gone");
    std::fs::rename(path, &gone)?;
    std::fs::remove_dir_all(&gone)
}
