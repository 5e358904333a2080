//! The worker's side of processors: payloads of rows to chunks of whole keys.
//!
//! Owns: the rows in memory and the time of their spill, the filter of late rows, the counts.
//! Does not own: the order of rows (`row_order`), runs on the disk (`row_runs`), chunks (`row_chunks`).
//!
//! Invariants:
//! 1. every row that is not late is in exactly one chunk;
//! 2. keys come in the order of their bytes, and rows of a key in the order in which payloads brought them;
//! 3. what is held is at most the memory that was given, or one payload; while chunks are read, frames of runs take
//!    half of it, and the rows of a chunk come on top.

use super::row_chunks::RowChunks;
use super::row_order::{BYTES_PER_ROW, SortedBlocks, SortedRows};
use super::row_payload::{RowBlock, RowFormat};
use super::row_runs::SpilledRuns;
use arrow_array::cast::AsArray;
use arrow_array::types::TimestampMicrosecondType;
use arrow_array::{Array, ArrayRef, BooleanArray};
use arrow_schema::{DataType, Schema, TimeUnit};
use arrow_select::concat::concat;
use arrow_select::filter::FilterBuilder;
use fastchangelog_format::error::Subject;
use fastchangelog_format::{Error, Result};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Overhead of a column's arrays, beside its bytes.
const COLUMN: usize = 512;
/// Payloads below this are put together: each block costs something in each chunk.
const SMALL: usize = 64 << 10;
/// So many bytes or payloads are put together.
const TOGETHER: usize = 1 << 20;
const MANY: usize = 256;
/// Fewer are left unchanged.
const FEW: usize = 8;

/// Groups the rows of one batch of a shard by their keys.
#[derive(Debug)]
pub struct RowGrouper {
    format: Arc<RowFormat>,
    /// The column of event times, and the time up to which rows are late.
    late: Option<(usize, i64)>,
    memory: usize,
    dir: PathBuf,
    blocks: Vec<RowBlock>,
    /// Small blocks, which come after `blocks`.
    small: Vec<RowBlock>,
    small_bytes: usize,
    held: usize,
    spilled: Option<SpilledRuns>,
    /// Why rows are missing.
    failed: Option<Error>,
    late_rows: u64,
    input_rows: u64,
    spilled_bytes: u64,
}

impl RowGrouper {
    /// A grouper of rows with the columns `input`, of which the first `keys` are the key. It holds `memory` bytes; what
    /// is more goes to a file in `dir`. `late` is the number of a column of event times and the microseconds since the
    /// epoch up to which rows are late: these are dropped and counted. Rows without an event time are kept.
    pub fn new(keys: usize, input: &Schema, memory: usize, dir: &Path, late: Option<(usize, i64)>) -> Result<Self> {
        if let Some((column, _)) = late {
            let of_type = input.fields().get(column).map(|field| field.data_type());
            if !matches!(of_type, Some(DataType::Timestamp(TimeUnit::Microsecond, _))) {
                let name = input.fields().get(column).map_or("none", |field| field.name().as_str());
                return Err(Error::invalid(format!("column {column} (`{name}`) has no event times in microseconds"))
                    .with_subject(Subject::Column(name.to_owned())));
            }
        }
        Ok(Self {
            format: Arc::new(RowFormat::new(keys, input)?),
            late,
            memory,
            dir: dir.to_owned(),
            blocks: Vec::new(),
            small: Vec::new(),
            small_bytes: 0,
            held: 0,
            spilled: None,
            failed: None,
            late_rows: 0,
            input_rows: 0,
            spilled_bytes: 0,
        })
    }

    /// The columns as they were declared.
    pub fn format(&self) -> &Arc<RowFormat> {
        &self.format
    }

    /// Rows that came, late ones included.
    pub fn input_rows(&self) -> u64 {
        self.input_rows
    }

    /// Rows that came and were late.
    pub fn late_rows(&self) -> u64 {
        self.late_rows
    }

    /// Bytes that were written to the disk.
    pub fn spilled_bytes(&self) -> u64 {
        self.spilled_bytes
    }

    /// Bytes of memory that are held, with what sorting will take.
    pub fn held_bytes(&self) -> usize {
        self.held
    }

    /// Takes a payload. One without any bytes has no rows.
    pub fn push(&mut self, payload: &[u8]) -> Result<()> {
        self.check_complete()?;
        if payload.is_empty() {
            return Ok(());
        }
        let block = self.format.read(payload)?;
        let rows = block.rows();
        self.input_rows += rows as u64;
        let (block, bytes) = match self.on_time(&block)? {
            None => (block, payload.len()),
            Some(block) => {
                self.late_rows += (rows - block.rows()) as u64;
                let bytes = self.format.sizes().of(&block.columns, 0..block.rows()) + block.keys.value_data().len();
                (block, bytes)
            }
        };
        if block.rows() > 0 { self.hold(block, bytes) } else { Ok(()) }
    }

    /// The rows that are not late; none if no row is late.
    fn on_time(&self, block: &RowBlock) -> Result<Option<RowBlock>> {
        let Some((column, mark)) = self.late else { return Ok(None) };
        let times = block.columns[column].as_primitive::<TimestampMicrosecondType>();
        let on_time: BooleanArray = times.iter().map(|time| Some(time.is_none_or(|time| time > mark))).collect();
        if on_time.true_count() == on_time.len() {
            return Ok(None);
        }
        let filter = FilterBuilder::new(&on_time).optimize().build();
        let columns = block.columns.iter().map(|column| filter.filter(column.as_ref())).collect::<Result<_, _>>()?;
        let keys = filter.filter(&block.keys)?.as_binary::<i32>().clone();
        Ok(Some(RowBlock { columns, keys }))
    }

    fn hold(&mut self, block: RowBlock, bytes: usize) -> Result<()> {
        let held = bytes + BYTES_PER_ROW * block.rows() + COLUMN * (block.columns.len() + 1);
        if self.held > 0 && self.held + held > self.memory {
            self.spill()?;
        }
        self.held += held;
        if bytes >= SMALL {
            self.put_together()?;
            self.blocks.push(block);
            return Ok(());
        }
        self.small.push(block);
        self.small_bytes += bytes;
        if self.small_bytes >= TOGETHER || self.small.len() >= MANY { self.put_together() } else { Ok(()) }
    }

    /// Moves the small blocks to the others, many of them as one.
    fn put_together(&mut self) -> Result<()> {
        self.small_bytes = 0;
        if self.small.len() < FEW {
            self.blocks.append(&mut self.small);
            return Ok(());
        }
        let small = std::mem::take(&mut self.small);
        let column = |of: &dyn Fn(&RowBlock) -> &dyn Array| -> Result<ArrayRef> {
            Ok(concat(&small.iter().map(of).collect::<Vec<_>>())?)
        };
        let columns = (0..small[0].columns.len()).map(|i| column(&|block| block.columns[i].as_ref()));
        let columns = columns.collect::<Result<_>>()?;
        let keys = column(&|block| &block.keys)?.as_binary::<i32>().clone();
        self.blocks.push(RowBlock { columns, keys });
        Ok(())
    }

    /// Takes the held rows, in order.
    fn take_sorted(&mut self) -> Result<SortedBlocks> {
        self.put_together()?;
        self.held = 0;
        Ok(SortedBlocks::new(std::mem::take(&mut self.blocks)))
    }

    fn spill(&mut self) -> Result<()> {
        let spilled = self.spill_all();
        self.failed = spilled.as_ref().err().cloned();
        spilled
    }

    /// After a spill that failed rows are missing.
    fn check_complete(&self) -> Result<()> {
        self.failed.clone().map_or(Ok(()), Err)
    }

    fn spill_all(&mut self) -> Result<()> {
        let mut rows = self.take_sorted()?;
        let mut spilled = match self.spilled.take() {
            Some(spilled) => spilled,
            None => SpilledRuns::create(Arc::clone(&self.format), &self.dir, self.memory / 2)?,
        };
        let before = spilled.written();
        spilled.add(&mut rows)?;
        self.spilled_bytes += spilled.written() - before;
        self.spilled = Some(spilled);
        Ok(())
    }

    /// All rows in chunks of at most `chunk_rows` rows and about `chunk_bytes` bytes. The grouper has none afterwards.
    pub fn finish(&mut self, chunk_rows: usize, chunk_bytes: usize) -> Result<RowChunks> {
        self.check_complete()?;
        if self.spilled.is_some() && self.held > 0 {
            self.spill()?;
        }
        let source: Box<dyn SortedRows> = match self.spilled.take() {
            None => Box::new(self.take_sorted()?),
            Some(spilled) => {
                let before = spilled.written();
                let (merged, written) = spilled.merged()?;
                self.spilled_bytes += written - before;
                Box::new(merged)
            }
        };
        RowChunks::new(Arc::clone(&self.format), source, chunk_rows, chunk_bytes)
    }
}

#[cfg(test)]
#[path = "row_groups_tests.rs"]
mod tests;
