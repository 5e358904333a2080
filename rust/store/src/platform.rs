//! Calls of local file systems that only Linux has, and their counterparts on other systems.
//!
//! Owns: every call of this crate that depends on the operating system. `--cfg fastchangelog_portable` compiles the
//! portable counterparts on Linux, too, so that they can be tested there.
//! Does not own: the decision to reserve space (`space`).

#[cfg(all(target_os = "linux", not(fastchangelog_portable)))]
pub(super) use linux::{in_memory, lower_priority, reserve};
#[cfg(not(all(target_os = "linux", not(fastchangelog_portable))))]
pub(super) use portable::{in_memory, lower_priority, reserve};

#[cfg(all(target_os = "linux", not(fastchangelog_portable)))]
mod linux {
    use rustix::fs::{FallocateFlags, fallocate, statfs};
    use rustix::io::Errno;
    use std::fs::File;
    use std::io;
    use std::path::Path;

    /// True for folders whose files are in memory: there is nothing to reserve.
    pub(crate) fn in_memory(folder: &Path) -> bool {
        const TMPFS: u64 = 0x0102_1994;
        const RAMFS: u64 = 0x8584_58f6;
        statfs(folder).is_ok_and(|found| [TMPFS, RAMFS].contains(&u64::try_from(found.f_type).unwrap_or(0)))
    }

    /// The calling thread gives way to others: on Linux a priority is that of a thread.
    pub(crate) fn lower_priority() {
        const LOWEST: i32 = 19;
        let _ = rustix::process::setpriority_process(None, LOWEST);
    }

    /// Reserves space at the beginning of a file, where the file system can.
    pub(crate) fn reserve(file: &File, bytes: usize) -> io::Result<()> {
        match fallocate(file, FallocateFlags::empty(), 0, bytes as u64) {
            // Not every file system can: then the write finds its space itself.
            Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL | Errno::PERM | Errno::INTR) => Ok(()),
            other => Ok(other?),
        }
    }
}

#[cfg(not(all(target_os = "linux", not(fastchangelog_portable))))]
mod portable {
    use std::fs::File;
    use std::io;
    use std::path::Path;

    /// Unknown: the numbers of file system types are those of Linux.
    pub(crate) fn in_memory(_: &Path) -> bool {
        false
    }

    /// A priority is that of the process: it stays.
    pub(crate) fn lower_priority() {}

    /// Reserves nothing: the write finds its space itself. A longer file (`set_len`) would have no blocks either.
    #[expect(clippy::unnecessary_wraps, reason = "the signature of the call on Linux")]
    pub(crate) fn reserve(_: &File, _: usize) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::Write;

    #[test]
    fn a_file_with_reserved_space_holds_what_is_written_and_no_more() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let content = vec![7; 3 << 20];
        let mut file = File::create_new(&path).unwrap();
        reserve(&file, content.len()).unwrap();
        file.write_all(&content).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), content);
    }

    #[test]
    fn a_folder_that_does_not_exist_is_not_in_memory() {
        let folder = tempfile::tempdir().unwrap();
        assert!(!in_memory(&folder.path().join("nothing")));
    }
}
