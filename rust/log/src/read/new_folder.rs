//! Folders that are being filled.
//!
//! Owns: removing a folder whose creation failed or was cancelled, even while a thread still writes to it.
//! Does not own: the folder's content.

use std::path::{Path, PathBuf};

/// Removes a folder that others may still be putting files into.
///
/// It gets another name first: a download that was dropped may end on its thread, and must not put its file into the
/// folder while that is being emptied.
///
/// # Errors
/// The folder could not be removed.
pub fn remove_folder(path: &Path) -> std::io::Result<()> {
    let mut gone = path.to_owned().into_os_string();
    gone.push(".gone");
    std::fs::rename(path, &gone)?;
    std::fs::remove_dir_all(&gone)
}

/// A new folder that is removed unless it was kept.
pub(super) struct NewFolder {
    path: PathBuf,
    keep: bool,
}

impl NewFolder {
    /// `path` was just made.
    pub(super) fn new(path: &Path) -> Self {
        Self { path: path.to_owned(), keep: false }
    }

    /// All is in it.
    pub(super) fn keep(mut self) {
        self.keep = true;
    }
}

impl Drop for NewFolder {
    fn drop(&mut self) {
        if self.keep {
            return;
        }
        if let Err(error) = remove_folder(&self.path) {
            tracing::warn!(%error, folder = %self.path.display(), "a local folder could not be removed");
        }
    }
}
