//! Spilled rows: keys and encoded rows in a file on the local disk.
//!
//! Owns: the file, its bytes and their checksums; that the file is removed when it is dropped.
//! Does not own: which rows are where in it (`spilled_groups`), when to spill (`shard::session`).
//!
//! A file is a sequence of chunks: `u32 bytes | u32 rows | u32 CRC-32C` and a body of so many bytes, in which each row is
//! `u32 length of the key | u32 length of the row | key | row`, all little endian. A chunk holds whole rows; it is closed
//! when its body has reached [`CHUNK`] bytes. The file is read by the process that wrote it and by no other, so it has
//! neither a magic number nor a version.

use crc_fast::{CrcAlgorithm, checksum};
use fastchangelog_format::error::Subject;
use fastchangelog_format::{Error, Result};
use std::fs::{File, OpenOptions};
use std::io::{self, BufReader, Read};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// A chunk is closed when its body has reached this size.
const CHUNK: usize = 64 << 10;
/// Bytes before the body of a chunk.
const HEADER: usize = 12;
/// Bytes before the key of a row.
const LENGTHS: usize = 8;
/// Bytes of one write and of one read.
const BUFFER: usize = 256 << 10;

/// A file of spilled rows, open for writing at its end and for reading anywhere.
#[derive(Debug)]
pub(super) struct SpillFile {
    file: File,
    path: PathBuf,
    end: u64,
}

/// Appends rows to a file.
#[derive(Debug)]
pub(super) struct ChunkWriter<'a> {
    file: &'a mut SpillFile,
    /// Closed chunks, then the open one.
    buffer: Vec<u8>,
    /// Where the open chunk starts in `buffer`.
    open: usize,
    rows: u32,
}

impl SpillFile {
    /// A new file in `dir`, which is made if it is missing.
    pub(super) fn create(dir: &Path) -> Result<Self> {
        let path = dir.join(format!("rows-{:032x}", rand::random::<u128>()));
        std::fs::create_dir_all(dir)
            .and_then(|()| OpenOptions::new().read(true).write(true).create_new(true).open(&path))
            .map(|file| Self { file, path: path.clone(), end: 0 })
            .map_err(|error| unwritten(&path, &error))
    }

    /// Bytes written so far.
    pub(super) fn bytes(&self) -> u64 {
        self.end
    }

    /// Starts to write rows at the end.
    pub(super) fn writer(&mut self) -> ChunkWriter<'_> {
        ChunkWriter { file: self, buffer: vec![0; HEADER], open: 0, rows: 0 }
    }

    fn append(&mut self, bytes: &[u8]) -> Result<()> {
        self.file.write_all_at(bytes, self.end).map_err(|error| unwritten(&self.path, &error))?;
        self.end += bytes.len() as u64;
        Ok(())
    }

    /// Calls `f` with the key and the row of all rows in `range`, in their order, chunk by chunk, until it says false.
    /// `range` begins and ends where chunks do.
    pub(super) fn read(&self, range: Range<u64>, f: &mut dyn FnMut(&[(&[u8], &[u8])]) -> Result<bool>) -> Result<bool> {
        let part = FileRange { file: &self.file, at: range.start, end: range.end };
        let mut reader = BufReader::with_capacity(BUFFER, part);
        let (mut at, mut body) = (range.start, Vec::new());
        while at < range.end {
            let mut header = [0; HEADER];
            reader.read_exact(&mut header).map_err(|error| self.unread(at, &error))?;
            let [length, rows, crc] =
                [0, 4, 8].map(|i| u32::from_le_bytes([header[i], header[i + 1], header[i + 2], header[i + 3]]));
            if u64::from(length) > range.end - at - HEADER as u64 {
                return Err(self.damaged(at, "a chunk is longer than what was written"));
            }
            body.resize(length as usize, 0);
            reader.read_exact(&mut body).map_err(|error| self.unread(at, &error))?;
            if crc32c(&body) != crc {
                return Err(self.damaged(at, "the checksum of a chunk does not match"));
            }
            let rows = split_rows(&body, rows).ok_or_else(|| self.damaged(at, "a chunk contradicts itself"))?;
            if !f(&rows)? {
                return Ok(false);
            }
            at += (HEADER + body.len()) as u64;
        }
        Ok(true)
    }

    fn unread(&self, at: u64, error: &io::Error) -> Error {
        self.damaged(at, &format!("they cannot be read ({error})"))
    }

    fn damaged(&self, at: u64, what: &str) -> Error {
        Error::retryable(format!("the spilled rows of a session in {} at byte {at}: {what}", self.path.display()))
            .with_remedy(
                "the next attempt of the task spills anew, check this disk (`spark.local.dir`) if it \
                 happens again",
            )
    }
}

impl Drop for SpillFile {
    fn drop(&mut self) {
        // Spark deletes the folders of an application that ended.
        if let Err(error) = std::fs::remove_file(&self.path)
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(%error, file = %self.path.display(), "a file of spilled rows could not be removed");
        }
    }
}

impl ChunkWriter<'_> {
    /// Adds a row, whose bytes `row` appends; it has `row_len` bytes.
    pub(super) fn push(&mut self, key: &[u8], row_len: usize, row: impl FnOnce(&mut Vec<u8>)) -> Result<()> {
        self.buffer.extend_from_slice(&length(key.len())?.to_le_bytes());
        self.buffer.extend_from_slice(&length(row_len)?.to_le_bytes());
        self.buffer.extend_from_slice(key);
        row(&mut self.buffer);
        self.rows += 1;
        if self.buffer.len() - self.open >= CHUNK { self.end_chunk() } else { Ok(()) }
    }

    /// Ends the open chunk, if there is a row in it; returns where the next one starts in the file.
    pub(super) fn cut(&mut self) -> Result<u64> {
        if self.rows > 0 {
            self.end_chunk()?;
        }
        Ok(self.file.end + self.open as u64)
    }

    fn end_chunk(&mut self) -> Result<()> {
        let (header, body) = self.buffer[self.open..].split_at_mut(HEADER);
        header[..4].copy_from_slice(&length(body.len())?.to_le_bytes());
        header[4..8].copy_from_slice(&self.rows.to_le_bytes());
        header[8..].copy_from_slice(&crc32c(body).to_le_bytes());
        self.rows = 0;
        self.open = self.buffer.len();
        if self.open >= BUFFER {
            self.flush()?;
        }
        self.buffer.resize(self.open + HEADER, 0);
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        self.file.append(&self.buffer[..self.open])?;
        self.buffer.clear();
        // One huge row must not stay in memory.
        self.buffer.shrink_to(2 * BUFFER);
        self.open = 0;
        Ok(())
    }

    /// Ends the open chunk and writes all that was not written yet.
    pub(super) fn finish(mut self) -> Result<u64> {
        let end = self.cut()?;
        self.flush()?;
        Ok(end)
    }
}

/// A part of a file as a stream.
struct FileRange<'a> {
    file: &'a File,
    at: u64,
    end: u64,
}

impl Read for FileRange<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let most = usize::try_from(self.end - self.at).unwrap_or(usize::MAX).min(buffer.len());
        let n = self.file.read_at(&mut buffer[..most], self.at)?;
        self.at += n as u64;
        Ok(n)
    }
}

fn split_rows(mut body: &[u8], rows: u32) -> Option<Vec<(&[u8], &[u8])>> {
    // A row takes its lengths at least: a count that lies reserves no more than that.
    let mut found = Vec::with_capacity((rows as usize).min(body.len() / LENGTHS));
    for _ in 0..rows {
        let (lengths, rest) = body.split_first_chunk::<LENGTHS>()?;
        let [a, b, c, d, e, f, g, h] = *lengths;
        let (key, rest) = rest.split_at_checked(u32::from_le_bytes([a, b, c, d]) as usize)?;
        let (row, rest) = rest.split_at_checked(u32::from_le_bytes([e, f, g, h]) as usize)?;
        found.push((key, row));
        body = rest;
    }
    body.is_empty().then_some(found)
}

fn length(bytes: usize) -> Result<u32> {
    u32::try_from(bytes).map_err(|_| {
        Error::invalid(format!("a key or a row of {bytes} bytes cannot be spilled: the limit is 4 GiB"))
            .with_remedy("use smaller values")
    })
}

fn unwritten(path: &Path, error: &io::Error) -> Error {
    Error::retryable(format!("cannot write the rows that a session spills to {}: {error}", path.display()))
        .with_subject(Subject::Path(path.to_owned()))
        .with_io_source(error)
        .with_remedy(
            "free space on this disk, set `spark.local.dir` to a larger one, or raise the option \
             `memory_budget` so that less is spilled",
        )
}

#[expect(clippy::cast_possible_truncation, reason = "the CRC has 32 bits")]
fn crc32c(bytes: &[u8]) -> u32 {
    checksum(CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

#[cfg(test)]
#[path = "spill_file_tests.rs"]
mod tests;
