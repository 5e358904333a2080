//! Payloads: partial rows that a map task sends to a shard.
//!
//! Owns: the bytes of a payload.
//! Does not own: its merge (`table`) or its contents (`split`).
//!
//! A payload is an Arrow IPC stream of one batch, columns `key: binary` and `row: binary` or `fixed_size_binary`, with
//! the schema metadata `rows` (input rows it stands for) and `schema_id` (of the plan), followed by a trailer of eight
//! bytes: `FCP1` and the CRC-32C of all before it, little endian. Arrow readers stop before the trailer.

use super::aggregate::AggPlan;
use super::codec::{TIME_BYTES, hash_key};
use super::memory_estimate::IncomingGroups;
use arrow_array::builder::BinaryBuilder;
use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, BinaryArray, BooleanArray, FixedSizeBinaryArray, RecordBatch};
use arrow_buffer::{Buffer, OffsetBuffer, ScalarBuffer};
use arrow_ipc::reader::StreamDecoder;
use arrow_ipc::writer::StreamWriter;
use arrow_schema::{DataType, Field, Schema};
use arrow_select::filter::filter;
use crc_fast::{CrcAlgorithm, checksum};
use fastchangelog_format::{Error, Result};
use std::collections::HashMap;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

const MAGIC: &[u8; 4] = b"FCP1";
const TRAILER: usize = 8;

/// Keys and partial rows in wire order.
#[derive(Debug, Default)]
pub(super) struct PayloadBuilder {
    key_ends: Vec<i32>,
    keys: Vec<u8>,
    row_ends: Vec<i32>,
    pub(super) rows: Vec<u8>,
}

impl PayloadBuilder {
    /// Bytes so far.
    pub(super) fn bytes(&self) -> usize {
        self.keys.len() + self.rows.len() + 4 * (self.key_ends.len() + self.row_ends.len())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.key_ends.len() <= 1
    }

    /// Reserves room for this many rows.
    pub(super) fn reserve(&mut self, rows: usize) {
        self.key_ends.reserve(rows + 1);
        self.row_ends.reserve(rows + 1);
    }

    /// Adds a key; its row is what was appended to `rows` since the last call.
    pub(super) fn push(&mut self, key: &[u8]) -> Result<()> {
        if self.key_ends.is_empty() {
            self.key_ends.push(0);
            self.row_ends.push(0);
        }
        self.keys.extend_from_slice(key);
        self.key_ends.push(end(self.keys.len())?);
        self.row_ends.push(end(self.rows.len())?);
        Ok(())
    }

    /// The payload, leaving an empty builder. `input_rows`: how many input rows it stands for.
    pub(super) fn seal(&mut self, plan: &AggPlan, input_rows: u64) -> Result<Vec<u8>> {
        let builder = std::mem::take(self);
        let size = builder.bytes();
        let offsets = |ends: Vec<i32>| {
            let ends = if ends.is_empty() { vec![0] } else { ends };
            OffsetBuffer::new(ScalarBuffer::from(ends))
        };
        let count = builder.key_ends.len().max(1) - 1;
        let keys: ArrayRef = Arc::new(BinaryArray::try_new(offsets(builder.key_ends), builder.keys.into(), None)?);
        let rows: ArrayRef = match plan.row_width() {
            Some(width) => Arc::new(FixedSizeBinaryArray::try_new(end(width)?, builder.rows.into(), None)?),
            None => Arc::new(BinaryArray::try_new(offsets(builder.row_ends), builder.rows.into(), None)?),
        };
        debug_assert_eq!(rows.len(), count);
        let schema = schema(plan, input_rows)?;
        let mut out = Vec::with_capacity(size + 2048);
        let mut writer = StreamWriter::try_new(&mut out, &schema)?;
        writer.write(&RecordBatch::try_new(Arc::new(schema), vec![keys, rows])?)?;
        writer.finish()?;
        drop(writer);
        let crc = crc32c(&out);
        out.extend_from_slice(MAGIC);
        out.extend_from_slice(&crc.to_le_bytes());
        Ok(out)
    }
}

fn end(bytes: usize) -> Result<i32> {
    i32::try_from(bytes)
        .map_err(|_| Error::invalid("a payload has more than 2 GiB").with_remedy("make the values of each row smaller"))
}

#[expect(clippy::cast_possible_truncation, reason = "the CRC has 32 bits")]
fn crc32c(bytes: &[u8]) -> u32 {
    checksum(CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

/// The one batch of the stream. The decoder takes slices of what is there, so it allocates no more than that whatever
/// lengths it reads; on some malformed messages it panics.
fn decode(stream: &[u8]) -> Result<RecordBatch> {
    let mut buffer = Buffer::from(stream);
    catch_unwind(AssertUnwindSafe(|| StreamDecoder::new().decode(&mut buffer)))
        .map_err(|_| Error::corrupt("a payload", 0, "a malformed message"))?
        .map_err(|e| Error::corrupt("a payload", 0, e))?
        .ok_or_else(|| Error::corrupt("a payload", 0, "there is no batch in it"))
}

fn row_type(plan: &AggPlan) -> Result<DataType> {
    Ok(match plan.row_width() {
        Some(width) => DataType::FixedSizeBinary(end(width)?),
        None => DataType::Binary,
    })
}

fn schema(plan: &AggPlan, input_rows: u64) -> Result<Schema> {
    let fields = vec![Field::new("key", DataType::Binary, false), Field::new("row", row_type(plan)?, false)];
    let metadata = HashMap::from([
        ("rows".to_owned(), input_rows.to_string()),
        ("schema_id".to_owned(), format!("{:016x}", plan.payload_id())),
    ]);
    Ok(Schema::new(fields).with_metadata(metadata))
}

/// A payload that was read and checked.
#[derive(Debug)]
pub struct Payload {
    keys: BinaryArray,
    rows: RowColumn,
    /// Input rows it stands for.
    pub input_rows: u64,
}

#[derive(Debug)]
enum RowColumn {
    Fixed(FixedSizeBinaryArray),
    Variable(BinaryArray),
}

impl Payload {
    /// Reads a payload made for a plan of the same schema id.
    pub(super) fn read(plan: &AggPlan, bytes: &[u8]) -> Result<Self> {
        let (stream, trailer) = bytes
            .len()
            .checked_sub(TRAILER)
            .map(|at| bytes.split_at(at))
            .ok_or_else(|| Error::corrupt("a payload", 0, format_args!("it has only {} bytes", bytes.len())))?;
        let crc = crc32c(stream).to_le_bytes();
        if &trailer[..4] != MAGIC {
            return Err(Error::corrupt("a payload", stream.len() as u64, "its trailer is missing"));
        }
        if trailer[4..] != crc {
            return Err(Error::corrupt("a payload", stream.len() as u64, "its checksum does not match"));
        }
        let batch = decode(stream)?;
        let schema = batch.schema();
        let id = schema.metadata().get("schema_id").map(String::as_str).unwrap_or_default();
        if id != format!("{:016x}", plan.payload_id()) {
            return Err(Error::schema(format!(
                "a payload was made for aggregation {id}, but this is {:016x}",
                plan.payload_id()
            ))
            .with_remedy("use one fastchangelog version and one query plan for all tasks of a query"));
        }
        let input_rows = schema.metadata().get("rows").and_then(|rows| rows.parse().ok()).unwrap_or_default();
        let shape = [&DataType::Binary, &row_type(plan)?];
        if schema.fields().len() != 2 || schema.fields().iter().zip(shape).any(|(f, t)| f.data_type() != t) {
            return Err(Error::corrupt("a payload", 0, "its columns are not a key and a row"));
        }
        if batch.columns().iter().any(|column| column.null_count() > 0) {
            return Err(Error::corrupt("a payload", 0, "there are nulls in it"));
        }
        let keys = batch.column(0).as_binary::<i32>().clone();
        let rows = match plan.row_width() {
            Some(_) => RowColumn::Fixed(batch.column(1).as_fixed_size_binary().clone()),
            None => RowColumn::Variable(batch.column(1).as_binary::<i32>().clone()),
        };
        Ok(Self { keys, rows, input_rows })
    }

    /// Number of partial rows.
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// True without rows.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Most bytes that the rows of `range` add to a table.
    pub fn incoming(&self, range: &Range<usize>) -> IncomingGroups {
        let length = |column: &BinaryArray| {
            let ends = column.value_offsets();
            usize::try_from(ends[range.end] - ends[range.start]).unwrap_or(0)
        };
        let row_bytes = match &self.rows {
            RowColumn::Fixed(rows) => range.len() * usize::try_from(rows.value_length()).unwrap_or(0),
            RowColumn::Variable(rows) => length(rows),
        };
        IncomingGroups { groups: range.len(), key_bytes: length(&self.keys), row_bytes }
    }

    /// Rows that are kept in a state, as a payload.
    pub fn of_kept<'a>(plan: &AggPlan, len: usize, rows: impl Iterator<Item = (&'a [u8], &'a [u8])>) -> Result<Self> {
        let (mut keys, mut bytes) = (BinaryBuilder::with_capacity(len, 0), Vec::new());
        let mut ends = Vec::with_capacity(len + 1);
        ends.push(0);
        for (key, row) in rows {
            keys.append_value(key);
            bytes.extend_from_slice(row);
            ends.push(end(bytes.len())?);
        }
        let rows = match plan.row_width() {
            Some(width) if bytes.len() == width * (ends.len() - 1) => {
                RowColumn::Fixed(FixedSizeBinaryArray::try_new(end(width)?, bytes.into(), None)?)
            }
            Some(_) => return Err(Error::corrupt("an accumulator row", 0, "its length is that of other aggregates")),
            None => RowColumn::Variable(BinaryArray::try_new(
                OffsetBuffer::new(ScalarBuffer::from(ends)),
                bytes.into(),
                None,
            )?),
        };
        Ok(Self { keys: keys.finish(), rows, input_rows: 0 })
    }

    /// The rows for whose key and its hash `keep` says yes.
    pub fn retain(&self, mut keep: impl FnMut(&[u8], u64) -> bool) -> Result<Self> {
        let keep: BooleanArray = (0..self.len()).map(|i| Some(keep(self.key(i), hash_key(self.key(i))))).collect();
        let keys = filter(&self.keys, &keep)?.as_binary().clone();
        let rows = match &self.rows {
            RowColumn::Fixed(rows) => RowColumn::Fixed(filter(rows, &keep)?.as_fixed_size_binary().clone()),
            RowColumn::Variable(rows) => RowColumn::Variable(filter(rows, &keep)?.as_binary().clone()),
        };
        Ok(Self { keys, rows, input_rows: self.input_rows })
    }

    /// The rows under the keys of their groups: without the times of rows in front.
    pub fn by_group(self, plan: &AggPlan) -> Result<Self> {
        if !plan.has_row_times() {
            return Ok(self);
        }
        let bytes = self.keys.value_data().len();
        let mut keys = BinaryBuilder::with_capacity(self.len(), bytes.saturating_sub(self.len() * TIME_BYTES));
        (0..self.len()).for_each(|i| keys.append_value(plan.group_key(self.key(i))));
        Ok(Self { keys: keys.finish(), ..self })
    }

    /// The canonical key of row `i`.
    #[inline]
    pub fn key(&self, i: usize) -> &[u8] {
        self.keys.value(i)
    }

    #[inline]
    pub(super) fn row(&self, i: usize) -> &[u8] {
        match &self.rows {
            RowColumn::Fixed(rows) => rows.value(i),
            RowColumn::Variable(rows) => rows.value(i),
        }
    }
}
