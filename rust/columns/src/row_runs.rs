//! Sorted runs of rows on the local disk.
//!
//! Owns: the frames of a run, and merging many runs into few.
//! Does not own: the file (`spill_file`), the order of the rows of a run (`row_order`), merging runs (`row_merge`), when
//! to spill (`row_groups`).
//!
//! A run is a sequence of frames: chunks of the file, each a message with some rows. A merge holds one frame of each run,
//! so frames are a small part of the memory.

use super::row_gather::{Place, gather, key_column};
use super::row_merge::{MergedRuns, Run};
use super::row_order::SortedRows;
use super::row_payload::{RowBlock, RowEncoder, RowFormat};
use super::spill_file::SpillFile;
use fastchangelog_format::Result;
use std::path::Path;
use std::sync::Arc;

/// A frame takes such a part of the memory, within the bounds that follow.
const FRAMES: usize = 1 << 10;
const SMALLEST_FRAME: usize = 16 << 10;
const LARGEST_FRAME: usize = 1 << 20;
/// Overhead of a column's arrays, beside its bytes.
const COLUMN: usize = 512;

/// Runs in the order in which they were spilled.
#[derive(Debug)]
pub(super) struct SpilledRuns {
    format: Arc<RowFormat>,
    encoder: RowEncoder,
    file: SpillFile,
    runs: Vec<Run>,
    /// Bytes of memory that merging may take.
    memory: usize,
    frame: usize,
    written: u64,
}

impl SpilledRuns {
    /// None yet, in a file in `dir`. Merging them is to take about `memory` bytes, but two frames at least.
    pub(super) fn create(format: Arc<RowFormat>, dir: &Path, memory: usize) -> Result<Self> {
        Self::of_file(format, SpillFile::create(dir, "worker_memory")?, memory)
    }

    fn of_file(format: Arc<RowFormat>, file: SpillFile, memory: usize) -> Result<Self> {
        Ok(Self {
            encoder: RowEncoder::new(Arc::clone(&format))?,
            format,
            file,
            runs: Vec::new(),
            memory,
            frame: (memory / FRAMES).clamp(SMALLEST_FRAME, LARGEST_FRAME),
            written: 0,
        })
    }

    /// Bytes that were written to the disk, merged runs included.
    pub(super) fn written(&self) -> u64 {
        self.written
    }

    /// Adds rows as a run.
    pub(super) fn add(&mut self, rows: &mut dyn SortedRows) -> Result<()> {
        let mut run = Run { bytes: self.file.end()..self.file.end(), frame: 0 };
        let (mut places, mut bytes) = (Vec::new(), 0);
        while let Some((place, _)) = rows.advance()? {
            let (block, row) = (rows.block(place.block), place.row as usize);
            let size = self.format.sizes().of(&block.columns, row..row + 1) + 4 + block.keys.value(row).len();
            if bytes + size > self.frame && !places.is_empty() {
                self.add_frame(&places, rows, &mut run)?;
                places.clear();
                bytes = 0;
                rows.keep(&mut std::iter::once(place));
            }
            places.push(place);
            bytes += size;
        }
        if !places.is_empty() {
            self.add_frame(&places, rows, &mut run)?;
        }
        self.written += run.bytes.end - run.bytes.start;
        self.runs.push(run);
        Ok(())
    }

    fn add_frame(&mut self, places: &[Place], rows: &dyn SortedRows, run: &mut Run) -> Result<()> {
        let columns = gather(places, |block| rows.block(block).columns.as_slice())?;
        let keys = key_column(places.iter().map(|place| rows.block(place.block).keys.value(place.row as usize)))?;
        let message = self.encoder.message(RowBlock { columns, keys })?;
        self.file.append(&message)?;
        run.frame = run.frame.max(message.len() + COLUMN * (self.format.binary().fields().len() + 1));
        run.bytes.end = self.file.end();
        Ok(())
    }

    /// All rows in order, and the bytes that were written in all. Runs of which not all frames fit into the memory at
    /// once are merged into fewer ones before, neighbours with neighbours.
    pub(super) fn merged(mut self) -> Result<(MergedRuns, u64)> {
        while self.runs.len() > 2 && self.runs.iter().map(|run| run.frame).sum::<usize>() > self.memory {
            let mut fewer = Self::of_file(Arc::clone(&self.format), self.file.another()?, self.memory)?;
            fewer.written = self.written;
            let file = Arc::new(self.file);
            for group in groups(&self.runs, self.memory) {
                fewer.add(&mut MergedRuns::new(Arc::clone(&self.format), Arc::clone(&file), group)?)?;
            }
            self = fewer;
        }
        Ok((MergedRuns::new(self.format, Arc::new(self.file), &self.runs)?, self.written))
    }
}

/// Neighbours whose frames fit into the memory together; two at least, but for the last.
fn groups(runs: &[Run], memory: usize) -> Vec<&[Run]> {
    let (mut groups, mut rest) = (Vec::new(), runs);
    while !rest.is_empty() {
        let mut sum = 0;
        let fitting = rest.iter().take_while(|run| {
            sum += run.frame;
            sum <= memory
        });
        let (group, others) = rest.split_at(fitting.count().max(2).min(rest.len()));
        groups.push(group);
        rest = others;
    }
    groups
}

#[cfg(test)]
#[path = "row_runs_tests.rs"]
mod tests;
