//! A file of spilled chunks on the local disk.
//!
//! Owns: the file, its chunks and their checksums; that the file is gone when the process ends, however it ends.
//! Does not own: the bytes of a chunk (`group_chunks`, `row_payload`), which chunks belong together (`spilled_groups`,
//! `row_runs`), when to spill.
//!
//! The file has no name: it is removed from its folder as soon as it is open, and the system frees its space when it is
//! closed. A chunk is `u64 bytes | u32 CRC-32C`, little endian, and a body. Only the process that wrote the file reads
//! it, so the file has neither a magic number nor a version.

use arrow_buffer::MutableBuffer;
use fastchangelog_format::error::Subject;
use fastchangelog_format::{Error, Result, crc32c};
use std::fs::{File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Bytes before the body of a chunk.
const HEADER: usize = 12;

/// A file without a name, open for writing at its end and for reading anywhere.
#[derive(Debug)]
pub(super) struct SpillFile {
    file: File,
    dir: PathBuf,
    /// The option that bounds the memory of its writer; named in errors.
    option: &'static str,
    end: u64,
}

impl SpillFile {
    /// A new file in `dir`, which is made if it is missing. `option` bounds the memory beyond which rows are spilled.
    pub(super) fn create(dir: &Path, option: &'static str) -> Result<Self> {
        let path = dir.join(format!("rows-{:032x}", rand::random::<u128>()));
        std::fs::create_dir_all(dir)
            .and_then(|()| OpenOptions::new().read(true).write(true).create_new(true).open(&path))
            .and_then(|file| std::fs::remove_file(&path).map(|()| file))
            .map(|file| Self { file, dir: dir.to_owned(), option, end: 0 })
            .map_err(|error| unwritten(dir, option, &error))
    }

    /// A new file in the same folder.
    pub(super) fn another(&self) -> Result<Self> {
        Self::create(&self.dir, self.option)
    }

    /// Bytes written so far: where the next chunk starts.
    pub(super) fn end(&self) -> u64 {
        self.end
    }

    /// Adds a chunk at the end.
    pub(super) fn append(&mut self, body: &[u8]) -> Result<()> {
        let mut header = [0; HEADER];
        header[..8].copy_from_slice(&(body.len() as u64).to_le_bytes());
        header[8..].copy_from_slice(&crc32c(body).to_le_bytes());
        let written = self.file.write_all_at(&header, self.end);
        written
            .and_then(|()| self.file.write_all_at(body, self.end + HEADER as u64))
            .map_err(|error| unwritten(&self.dir, self.option, &error))?;
        self.end += (HEADER + body.len()) as u64;
        Ok(())
    }

    /// Takes the first chunk off `range`, gives its body to `decode` and returns the result. An error of `decode` says
    /// what is wrong with the body.
    pub(super) fn read<T>(
        &self,
        range: &mut Range<u64>,
        decode: impl FnOnce(MutableBuffer) -> Result<T, String>,
    ) -> Result<T> {
        let at = range.start;
        let mut header = [0; HEADER];
        self.file.read_exact_at(&mut header, at).map_err(|error| self.unread(at, &error))?;
        let [a, b, c, d, e, f, g, h, crc @ ..] = header;
        let length = u64::from_le_bytes([a, b, c, d, e, f, g, h]);
        let start = at + HEADER as u64;
        if length > range.end.saturating_sub(start) {
            return Err(self.damaged(at, "a chunk is longer than the bytes written"));
        }
        let mut body = MutableBuffer::from_len_zeroed(length as usize);
        self.file.read_exact_at(&mut body, start).map_err(|error| self.unread(at, &error))?;
        if crc32c(&body).to_le_bytes() != crc {
            return Err(self.damaged(at, "the checksum of a chunk does not match"));
        }
        range.start = start + length;
        decode(body).map_err(|what| self.damaged(at, &what))
    }

    fn unread(&self, at: u64, error: &io::Error) -> Error {
        self.damaged(at, &format!("the file cannot be read ({error})"))
    }

    fn damaged(&self, at: u64, what: &str) -> Error {
        let dir = self.dir.display();
        Error::retryable(format!("the rows that a task spilled to {dir} are damaged at byte {at}: {what}"))
            .with_subject(Subject::Path(self.dir.clone()))
            .with_remedy(
                "the next attempt of the task spills again; check this disk (`spark.local.dir`) if this error \
                 comes back",
            )
    }
}

fn unwritten(dir: &Path, option: &str, error: &io::Error) -> Error {
    Error::retryable(format!("cannot spill the rows of a task to {}: {error}", dir.display()))
        .with_subject(Subject::Path(dir.to_owned()))
        .with_io_source(error)
        .with_remedy(format!(
            "free space on this disk, set `spark.local.dir` to a larger one, or raise the option `{option}` so that \
             less is spilled"
        ))
}

#[cfg(test)]
#[path = "spill_file_tests.rs"]
mod tests;
