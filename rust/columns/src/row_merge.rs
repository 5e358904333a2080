//! Sorted runs as one sequence of rows.
//!
//! Owns: the definition of a run, reading runs frame by frame, and the order among them.
//! Does not own: their file (`spill_file`), writing them (`row_runs`), the use of the order (`row_chunks`).
//!
//! One frame of each run is in memory, and those that its reader still needs. Rows of one key come in the order of the
//! runs, and of one run in its order.

use super::row_gather::Place;
use super::row_order::SortedRows;
use super::row_payload::{RowBlock, RowFormat};
use super::spill_file::SpillFile;
use fastchangelog_format::Result;
use std::ops::Range;
use std::sync::Arc;

/// Where a run is in its file.
#[derive(Debug, Clone)]
pub(super) struct Run {
    pub(super) bytes: Range<u64>,
    /// Memory that its largest frame takes.
    pub(super) frame: usize,
}

/// The rows of some runs.
#[derive(Debug)]
pub(super) struct MergedRuns {
    format: Arc<RowFormat>,
    file: Arc<SpillFile>,
    runs: Vec<OpenRun>,
    /// The runs with rows left as a heap, the smallest key first.
    heap: Vec<usize>,
    frames: Vec<Option<RowBlock>>,
    /// Places in `frames` that are empty.
    free: Vec<u32>,
    /// The key of the row before; none before the first.
    last: Option<Vec<u8>>,
}

/// Where a run is read.
#[derive(Debug)]
struct OpenRun {
    unread: Range<u64>,
    /// The next row.
    place: Place,
    /// The rows of its frame.
    rows: u32,
}

impl MergedRuns {
    /// The rows of `runs`, which are in the order in which they were spilled.
    pub(super) fn new(format: Arc<RowFormat>, file: Arc<SpillFile>, runs: &[Run]) -> Result<Self> {
        let nowhere = Place { block: 0, row: 0 };
        let runs = runs.iter().map(|run| OpenRun { unread: run.bytes.clone(), place: nowhere, rows: 0 }).collect();
        let (heap, frames, free) = (Vec::new(), Vec::new(), Vec::new());
        let mut merged = Self { format, file, runs, heap, frames, free, last: None };
        for run in 0..merged.runs.len() {
            if merged.read_frame(run)? {
                merged.heap.push(run);
            }
        }
        for i in (0..merged.heap.len() / 2).rev() {
            merged.sift_down(i);
        }
        Ok(merged)
    }

    /// Reads the next frame of a run; false if there is none.
    fn read_frame(&mut self, run: usize) -> Result<bool> {
        let open = &mut self.runs[run];
        while !open.unread.is_empty() {
            let frame = self.file.read(&mut open.unread, |message| self.format.decode(&message.into()))?;
            if frame.rows() > 0 {
                open.rows = frame.rows() as u32;
                let number = self.free.pop().unwrap_or(self.frames.len() as u32);
                if number as usize == self.frames.len() {
                    self.frames.push(None);
                }
                self.frames[number as usize] = Some(frame);
                open.place = Place { block: number, row: 0 };
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The key of the next row of a run.
    fn key(&self, run: usize) -> &[u8] {
        let place = self.runs[run].place;
        self.block(place.block).keys.value(place.row as usize)
    }

    fn is_before(&self, a: usize, b: usize) -> bool {
        self.key(a).cmp(self.key(b)).then(a.cmp(&b)).is_lt()
    }

    /// Frames in memory.
    #[cfg(test)]
    pub(super) fn frames_held(&self) -> usize {
        self.frames.iter().flatten().count()
    }

    fn sift_down(&mut self, mut i: usize) {
        loop {
            let mut first = i;
            for child in [2 * i + 1, 2 * i + 2] {
                if child < self.heap.len() && self.is_before(self.heap[child], self.heap[first]) {
                    first = child;
                }
            }
            if first == i {
                return;
            }
            self.heap.swap(i, first);
            i = first;
        }
    }
}

impl SortedRows for MergedRuns {
    fn advance(&mut self) -> Result<Option<(Place, bool)>> {
        let Some(&run) = self.heap.first() else { return Ok(None) };
        let place = self.runs[run].place;
        let key = self.frames[place.block as usize].as_ref().map_or(&[][..], |f| f.keys.value(place.row as usize));
        let starts = self.last.as_deref() != Some(key);
        if starts {
            let last = self.last.get_or_insert_default();
            last.clear();
            last.extend_from_slice(key);
        }
        let open = &mut self.runs[run];
        open.place.row += 1;
        if open.place.row == open.rows && !self.read_frame(run)? {
            self.heap.swap_remove(0);
        }
        self.sift_down(0);
        Ok(Some((place, starts)))
    }

    fn block(&self, number: u32) -> &RowBlock {
        self.frames[number as usize].as_ref().expect("a frame stays until `keep` drops it")
    }

    fn keep(&mut self, places: &mut dyn Iterator<Item = Place>) {
        let mut needed = vec![false; self.frames.len()];
        for place in places.chain(self.heap.iter().map(|run| self.runs[*run].place)) {
            needed[place.block as usize] = true;
        }
        for ((frame, needed), number) in self.frames.iter_mut().zip(needed).zip(0u32..) {
            if !needed && frame.take().is_some() {
                self.free.push(number);
            }
        }
    }
}
