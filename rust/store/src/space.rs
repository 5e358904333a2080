//! Space of files on local disks.
//!
//! Owns: the choice of files that reserve space before they are written, so that the file system does not search in
//! each call.
//! Does not own: the system call (`platform`), the writes.

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
