//! The file of spilled rows.
//!
//! Owns: the file, its frames and their checksums; that it is gone at every end of the process.
//! Does not own: which frames make a run (`row_runs`), the bytes of a message (`row_payload`).
//!
//! The file has no name: it is removed from its folder as soon as it is open, so the system frees its space with the
//! process, however that ends. A frame is `u64 bytes | u32 CRC-32C`, little endian, and a message with some rows as in a
//! payload. The file is read by the process that wrote it and by no other.

use super::row_payload::{RowBlock, RowFormat};
use arrow_buffer::{Buffer, MutableBuffer};
use fastchangelog_format::error::Subject;
use fastchangelog_format::{Error, Result, crc32c};
use std::fs::{File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Bytes before the message of a frame.
const HEADER: usize = 12;

/// A file without a name, open for writing at its end and for reading anywhere.
#[derive(Debug)]
pub(super) struct RunFile {
    file: File,
    dir: PathBuf,
    end: u64,
}

impl RunFile {
    /// A new file in `dir`, which is made if it is missing.
    pub(super) fn create(dir: &Path) -> Result<Self> {
        let path = dir.join(format!("rows-{:032x}", rand::random::<u128>()));
        std::fs::create_dir_all(dir)
            .and_then(|()| OpenOptions::new().read(true).write(true).create_new(true).open(&path))
            .and_then(|file| std::fs::remove_file(&path).map(|()| file))
            .map(|file| Self { file, dir: dir.to_owned(), end: 0 })
            .map_err(|error| unwritten(dir, &error))
    }

    /// Adds a frame at the end.
    pub(super) fn append(&mut self, message: &[u8]) -> Result<()> {
        let mut header = [0; HEADER];
        header[..8].copy_from_slice(&(message.len() as u64).to_le_bytes());
        header[8..].copy_from_slice(&crc32c(message).to_le_bytes());
        let written = self.file.write_all_at(&header, self.end);
        written
            .and_then(|()| self.file.write_all_at(message, self.end + HEADER as u64))
            .map_err(|error| unwritten(&self.dir, &error))?;
        self.end += (HEADER + message.len()) as u64;
        Ok(())
    }

    /// The folder that the file was made in.
    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Bytes written so far.
    pub(super) fn end(&self) -> u64 {
        self.end
    }

    /// The frame at the beginning of `range`, which begins with the next one then.
    pub(super) fn read(&self, range: &mut Range<u64>, format: &RowFormat) -> Result<RowBlock> {
        let at = range.start;
        let mut header = [0; HEADER];
        self.file.read_exact_at(&mut header, at).map_err(|error| self.unread(at, &error))?;
        let [a, b, c, d, e, f, g, h, crc @ ..] = header;
        let length = u64::from_le_bytes([a, b, c, d, e, f, g, h]);
        let body = at + HEADER as u64;
        if length > range.end.saturating_sub(body) {
            return Err(self.damaged(at, "a frame is longer than what was written"));
        }
        let mut message = MutableBuffer::from_len_zeroed(length as usize);
        self.file.read_exact_at(&mut message, body).map_err(|error| self.unread(at, &error))?;
        if crc32c(&message).to_le_bytes() != crc {
            return Err(self.damaged(at, "the checksum of a frame does not match"));
        }
        range.start = body + length;
        format.decode(&Buffer::from(message)).map_err(|what| self.damaged(at, &what))
    }

    fn unread(&self, at: u64, error: &io::Error) -> Error {
        self.damaged(at, &format!("they cannot be read ({error})"))
    }

    fn damaged(&self, at: u64, what: &str) -> Error {
        let dir = self.dir.display();
        Error::retryable(format!("the rows of a batch that were spilled to {dir} are damaged at byte {at}: {what}"))
            .with_subject(Subject::Path(self.dir.clone()))
            .with_remedy("the next attempt of the task spills anew, check this disk if it happens again")
    }
}

fn unwritten(dir: &Path, error: &io::Error) -> Error {
    Error::retryable(format!("cannot write the rows of a batch that are spilled to {}: {error}", dir.display()))
        .with_subject(Subject::Path(dir.to_owned()))
        .with_io_source(error)
        .with_remedy(
            "free space on this disk, set `spark.local.dir` to a larger one, or raise the option \
             `worker_memory` so that less is spilled",
        )
}

#[cfg(test)]
#[path = "row_file_tests.rs"]
mod tests;
