//! Space of files on local disks.
//!
//! Owns: which files get it reserved before they are written, so that the file system does not look for it call by call.
//! Does not own: how a file system reserves it (`platform`), what is written, and how.

use super::platform::{in_memory, reserve};
use std::fs::File;
use std::io;
use std::path::Path;

/// Files from this size on are worth a call of their own.
pub(super) const WORTH_RESERVING: usize = 1 << 20;

/// Reserves the space of the file `path`, if it is large enough for that to pay.
pub(super) fn reserve_space(file: &File, path: &Path, bytes: u64) -> io::Result<()> {
    match usize::try_from(bytes) {
        Ok(bytes) if bytes >= WORTH_RESERVING && !path.parent().is_some_and(in_memory) => reserve(file, bytes),
        _ => Ok(()),
    }
}
