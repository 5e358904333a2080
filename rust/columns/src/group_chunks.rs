//! Encoded groups as chunks of a spill file.
//!
//! Owns: the bytes of a chunk of groups, and how many groups are in one.
//! Does not own: the file (`spill_file`), which groups are in which chunk (`spilled_groups`).
//!
//! Each group of a chunk is `u32 length of the key | u32 length of the row | key | row`, all little endian.

use super::spill_file::SpillFile;
use fastchangelog_format::{Error, Result};
use std::ops::Range;

/// A chunk is written when it has reached this size.
const CHUNK: usize = 64 << 10;
/// Bytes before the key of a group.
const LENGTHS: usize = 8;

/// Appends groups to a file.
#[derive(Debug)]
pub(super) struct GroupWriter<'a> {
    file: &'a mut SpillFile,
    chunk: Vec<u8>,
}

impl<'a> GroupWriter<'a> {
    pub(super) fn new(file: &'a mut SpillFile) -> Self {
        Self { file, chunk: Vec::new() }
    }

    /// Adds a group, whose row `row` appends; it has `row_len` bytes.
    pub(super) fn push(&mut self, key: &[u8], row_len: usize, row: impl FnOnce(&mut Vec<u8>)) -> Result<()> {
        self.chunk.extend_from_slice(&length(key.len())?.to_le_bytes());
        self.chunk.extend_from_slice(&length(row_len)?.to_le_bytes());
        self.chunk.extend_from_slice(key);
        row(&mut self.chunk);
        if self.chunk.len() >= CHUNK { self.cut().map(drop) } else { Ok(()) }
    }

    /// Writes the groups that are still in memory; returns where the next chunk starts in the file.
    pub(super) fn cut(&mut self) -> Result<u64> {
        if !self.chunk.is_empty() {
            self.file.append(&self.chunk)?;
            self.chunk.clear();
            // One huge row must not stay in memory.
            self.chunk.shrink_to(2 * CHUNK);
        }
        Ok(self.file.end())
    }
}

/// Calls `f` with the keys and rows of all groups in `range`, in their order, chunk by chunk, until it returns false.
/// `range` begins and ends where chunks do.
pub(super) fn read_groups(
    file: &SpillFile,
    mut range: Range<u64>,
    f: &mut dyn FnMut(&[(&[u8], &[u8])]) -> Result<bool>,
) -> Result<bool> {
    while !range.is_empty() {
        let read = file.read(&mut range, |body| {
            let groups = split(&body).ok_or_else(|| "a chunk contradicts itself".to_owned())?;
            Ok(f(&groups))
        });
        if !read?? {
            return Ok(false);
        }
    }
    Ok(true)
}

fn split(mut body: &[u8]) -> Option<Vec<(&[u8], &[u8])>> {
    let mut found = Vec::new();
    while let Some((lengths, rest)) = body.split_first_chunk::<LENGTHS>() {
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

#[cfg(test)]
#[path = "group_chunks_tests.rs"]
mod tests;
