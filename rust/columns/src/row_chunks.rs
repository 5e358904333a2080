//! Chunks: batches of rows, cut between keys where possible.
//!
//! Owns: the end and the content of a chunk.
//! Does not own: the order of the rows (`row_order`, `row_merge`).
//!
//! Invariants:
//! 1. a chunk has at least one row, at most the requested number of rows, and about the requested bytes;
//! 2. a key is in two chunks only if it does not fit into one: it then begins a chunk.

use super::row_gather::{Place, gather, key_column};
use super::row_order::SortedRows;
use super::row_payload::RowFormat;
use arrow_array::{BinaryArray, RecordBatch, RecordBatchOptions};
use fastchangelog_format::{Error, Result};
use std::sync::Arc;

/// Bytes per row of a chunk, beside the values.
const PLACE: usize = 8;

/// Rows of whole keys, in the order of the keys; or a part of one key that is larger than a chunk.
#[derive(Debug)]
pub struct RowChunk {
    /// All columns, with strings in their binary form.
    pub rows: RecordBatch,
    /// The canonical bytes of the distinct keys.
    pub keys: BinaryArray,
    /// The rows of key `i` are `offsets[i]..offsets[i + 1]`.
    pub offsets: Vec<i64>,
    /// The first key is the last one of the chunk before.
    pub continues: bool,
    /// The last key continues in the next chunk.
    pub more: bool,
}

/// The chunks of a batch, in order.
#[derive(Debug)]
pub struct RowChunks {
    format: Arc<RowFormat>,
    source: Box<dyn SortedRows>,
    chunk_rows: usize,
    chunk_bytes: usize,
    /// The rows of the next chunk, and where keys start among them; the first always does.
    places: Vec<Place>,
    starts: Vec<usize>,
    bytes: usize,
    /// Bytes of the last key's rows.
    key_bytes: usize,
    /// A row that did not fit.
    next: Option<(Place, bool)>,
    continues: bool,
    /// True once there is nothing more, or an error was given.
    ended: bool,
}

impl RowChunks {
    /// Chunks of at most `chunk_rows` rows and about `chunk_bytes` bytes.
    pub(super) fn new(
        format: Arc<RowFormat>,
        source: Box<dyn SortedRows>,
        chunk_rows: usize,
        chunk_bytes: usize,
    ) -> Result<Self> {
        if chunk_rows == 0 || chunk_bytes == 0 || chunk_bytes > 1 << 30 {
            return Err(Error::invalid(format!("chunks cannot have {chunk_rows} rows and {chunk_bytes} bytes"))
                .with_remedy("use 1 row or more, and 1 byte to 1 GiB"));
        }
        Ok(Self {
            format,
            source,
            chunk_rows,
            chunk_bytes,
            places: Vec::new(),
            starts: Vec::new(),
            bytes: 0,
            key_bytes: 0,
            next: None,
            continues: false,
            ended: false,
        })
    }

    fn chunk(&mut self) -> Result<Option<RowChunk>> {
        loop {
            let next = match self.next.take() {
                Some(next) => Some(next),
                None => self.source.advance()?,
            };
            let Some((place, starts)) = next else {
                self.ended = true;
                return if self.places.is_empty() { Ok(None) } else { self.emit(self.places.len(), false).map(Some) };
            };
            let row = place.row as usize;
            let size = PLACE + self.format.sizes().of(&self.source.block(place.block).columns, row..row + 1);
            let fits = self.places.len() < self.chunk_rows && self.bytes + size <= self.chunk_bytes;
            if !fits && !self.places.is_empty() {
                self.next = next;
                // The last key begins the next chunk, unless it is all that this one has.
                let last = if starts { None } else { self.starts.last().copied().filter(|start| *start > 0) };
                return self.emit(last.unwrap_or(self.places.len()), !starts && last.is_none()).map(Some);
            }
            if starts || self.places.is_empty() {
                self.starts.push(self.places.len());
                self.key_bytes = 0;
            }
            self.places.push(place);
            self.bytes += size;
            self.key_bytes += size;
        }
    }

    /// The first `end` rows as a chunk. The remaining rows belong to the last key.
    fn emit(&mut self, end: usize, more: bool) -> Result<RowChunk> {
        let (places, source) = (&self.places[..end], self.source.as_ref());
        let columns = gather(places, |block| source.block(block).columns.as_slice())?;
        let options = RecordBatchOptions::new().with_row_count(Some(end));
        let rows = RecordBatch::try_new_with_options(Arc::clone(self.format.binary()), columns, &options)?;
        let starts = &self.starts[..self.starts.partition_point(|start| *start < end)];
        let firsts = starts.iter().map(|start| places[*start]);
        let keys = key_column(firsts.map(|place| source.block(place.block).keys.value(place.row as usize)))?;
        let offsets = starts.iter().chain([&end]).map(|row| *row as i64).collect();
        let continues = std::mem::replace(&mut self.continues, more);
        self.starts.clear();
        self.places.drain(..end);
        self.bytes = 0;
        if !self.places.is_empty() {
            self.starts.push(0);
            self.bytes = self.key_bytes;
        }
        let next = self.next.map(|(place, _)| place);
        self.source.keep(&mut self.places.iter().copied().chain(next));
        Ok(RowChunk { rows, keys, offsets, continues, more })
    }
}

impl Iterator for RowChunks {
    type Item = Result<RowChunk>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let chunk = self.chunk();
        self.ended |= chunk.is_err();
        chunk.transpose()
    }
}
