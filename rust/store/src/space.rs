//! Space of files on local disks.
//!
//! Owns: reserving it before a file is written, so that the file system does not look for it call by call.
//! Does not own: what is written, and how.

use std::fs::File;
use std::io;
use std::path::Path;

/// Files from this size on are worth a call of their own.
pub(super) const WORTH_RESERVING: usize = 1 << 20;

/// True for folders whose files are in memory: there is nothing to reserve.
#[cfg(target_os = "linux")]
pub(super) fn in_memory(folder: &Path) -> bool {
    const TMPFS: u64 = 0x0102_1994;
    const RAMFS: u64 = 0x8584_58f6;
    rustix::fs::statfs(folder).is_ok_and(|found| [TMPFS, RAMFS].contains(&u64::try_from(found.f_type).unwrap_or(0)))
}

#[cfg(not(target_os = "linux"))]
pub(super) fn in_memory(_: &Path) -> bool {
    false
}

/// Reserves the space of the file `path`, if it is large enough for that to pay.
pub(super) fn reserve_space(file: &File, path: &Path, bytes: u64) -> io::Result<()> {
    match usize::try_from(bytes) {
        Ok(bytes) if bytes >= WORTH_RESERVING && !path.parent().is_some_and(in_memory) => reserve(file, bytes),
        _ => Ok(()),
    }
}

/// Reserves space at the beginning of a file, where the file system can.
#[cfg(target_os = "linux")]
pub(super) fn reserve(file: &File, bytes: usize) -> io::Result<()> {
    use rustix::io::Errno;
    match rustix::fs::fallocate(file, rustix::fs::FallocateFlags::empty(), 0, bytes as u64) {
        // Not every file system can: then the write finds its space itself.
        Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL | Errno::PERM | Errno::INTR) => Ok(()),
        other => Ok(other?),
    }
}

#[cfg(not(target_os = "linux"))]
pub(super) fn reserve(_: &File, _: usize) -> io::Result<()> {
    Ok(())
}
