//! Payloads of rows: whole input rows that a map task sends to a shard.
//!
//! Owns: the columns in which rows travel, the bytes of a payload and of the messages in spilled runs.
//! Does not own: the choice of rows (`row_split`), their processing (`row_groups`).
//!
//! A payload is an Arrow IPC stream of one batch, not compressed: the columns of the input, strings in their binary
//! form, then one column with the canonical bytes of each row's key. A trailer of eight bytes follows: `FCR1` and the
//! CRC-32C of all before it, little endian. Arrow readers stop before the trailer.
//!
//! Both sides know the columns, so the stream begins with the same bytes in every payload. Another beginning is another
//! schema: it is refused, and never decoded. Invariants:
//! 1. reading never panics, and allocates for what the bytes hold, not for the lengths that they claim;
//! 2. rows that were read are valid: each offset lies in its buffer, each key belongs to a row.

use super::arrays::{same_values, type_text};
use super::row_gather::{MOST_WEIGHTLESS, RowSizes, weightless_elements};
use super::strings::conform_binary;
use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, BinaryArray, RecordBatch, RecordBatchOptions};
use arrow_buffer::Buffer;
use arrow_ipc::reader::RecordBatchDecoder;
use arrow_ipc::root_as_message;
use arrow_ipc::writer::StreamWriter;
use arrow_schema::{DataType, Field, FieldRef, Fields, Schema, SchemaRef};
use fastchangelog_format::error::Subject;
use fastchangelog_format::{Error, Result, crc32c};
use std::collections::HashMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

const NAME: &str = "a payload of rows";
const MAGIC: &[u8; 4] = b"FCR1";
const TRAILER: usize = 8;
/// The bytes that begin each message of a stream, before the length of its metadata.
const CONTINUATION: [u8; 4] = [0xff; 4];
/// The end of a stream.
const END: [u8; 8] = [0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0];
/// The column of the keys. Rows may have a column of this name: columns are told apart by their position.
const KEY: &str = "$key";

/// The columns of rows: as they are declared, and as they travel.
#[derive(Debug)]
pub struct RowFormat {
    keys: usize,
    declared: SchemaRef,
    /// With binaries in the place of strings, everything nullable at the top, without metadata.
    binary: SchemaRef,
    /// The same with the column of the keys.
    wire: SchemaRef,
    sizes: RowSizes,
    /// The message with which every stream begins.
    head: Vec<u8>,
}

impl RowFormat {
    /// Rows of the columns `input`, of which the first `keys` are the key. Types are those that Spark hands over;
    /// another physical form of them (dictionaries, views) is none to declare.
    pub fn new(keys: usize, input: &Schema) -> Result<Self> {
        if keys > input.fields().len() {
            let columns = input.fields().len();
            return Err(Error::invalid(format!("rows of {columns} columns cannot have {keys} key columns")));
        }
        let mut fields = Vec::with_capacity(input.fields().len() + 1);
        for field in input.fields() {
            let data_type = wire_type(field.data_type()).ok_or_else(|| {
                Error::invalid(format!(
                    "column `{}` has the type {}, which rows cannot hold",
                    field.name(),
                    type_text(field.data_type())
                ))
                .with_subject(Subject::Column(field.name().clone()))
                .with_remedy("cast it to a plain type or a list")
            })?;
            fields.push(Field::new(field.name(), data_type, true));
        }
        let binary = Arc::new(Schema::new(fields.clone()));
        fields.push(Field::new(KEY, DataType::Binary, false));
        let wire = Arc::new(Schema::new(fields));
        let mut writer = StreamWriter::try_new(Vec::new(), &wire)?;
        Ok(Self {
            keys,
            declared: Arc::new(input.clone()),
            sizes: RowSizes::new(binary.fields().iter().map(|field| field.data_type())),
            binary,
            wire,
            head: std::mem::take(writer.get_mut()),
        })
    }

    /// The columns as they were declared.
    pub fn declared(&self) -> &SchemaRef {
        &self.declared
    }

    /// The columns with binaries in the place of strings, which need not be UTF-8.
    pub(super) fn binary(&self) -> &SchemaRef {
        &self.binary
    }

    /// The key columns.
    pub(super) fn key_fields(&self) -> Fields {
        self.declared.fields().iter().take(self.keys).cloned().collect()
    }

    /// How many bytes rows take.
    pub(super) fn sizes(&self) -> &RowSizes {
        &self.sizes
    }

    /// Fails unless batches of this schema hold the declared columns.
    pub fn check(&self, schema: &Schema) -> Result<()> {
        self.check_count(schema.fields().len())?;
        let mut pairs = schema.fields().iter().zip(self.declared.fields());
        match pairs.find(|(field, declared)| !same_values(field.data_type(), declared.data_type())) {
            None => Ok(()),
            Some((field, declared)) => Err(Error::invalid(format!(
                "column `{}` has the type {}, but {} is declared",
                declared.name(),
                type_text(field.data_type()),
                type_text(declared.data_type())
            ))
            .with_subject(Subject::Column(declared.name().clone()))
            .with_remedy("pass the declared schema")),
        }
    }

    fn check_count(&self, columns: usize) -> Result<()> {
        let declared = self.declared.fields().len();
        if columns == declared {
            return Ok(());
        }
        Err(Error::invalid(format!("the batch has {columns} columns, but {declared} are declared")))
    }

    /// The columns of `batch` as they travel. They may come as text or in their binary form.
    pub(super) fn columns(&self, batch: &RecordBatch) -> Result<Vec<ArrayRef>> {
        self.check_count(batch.num_columns())?;
        let fields = self.declared.fields().iter().zip(self.binary.fields());
        let conformed = batch.columns().iter().zip(fields).map(|(column, (declared, binary))| {
            conform_binary(column, declared.data_type(), binary.data_type())
                .map_err(|error| error.context(format_args!("column `{}`", declared.name())))
        });
        conformed.collect()
    }

    /// Reads a payload that was made for the same columns.
    pub(super) fn read(&self, payload: &[u8]) -> Result<RowBlock> {
        let (stream, trailer) = payload
            .len()
            .checked_sub(TRAILER)
            .map(|at| payload.split_at(at))
            .ok_or_else(|| Error::corrupt(NAME, 0, format_args!("it has only {} bytes", payload.len())))?;
        if &trailer[..4] != MAGIC {
            return Err(Error::corrupt(NAME, stream.len() as u64, "its trailer is missing"));
        }
        if trailer[4..] != crc32c(stream).to_le_bytes() {
            return Err(Error::corrupt(NAME, stream.len() as u64, "its checksum does not match"));
        }
        let Some(rest) = stream.strip_prefix(self.head.as_slice()) else {
            let names: Vec<_> = self.declared.fields().iter().map(|field| field.name().as_str()).collect();
            return Err(Error::schema(format!("{NAME} has other columns than ({})", names.join(", ")))
                .with_remedy("use one fastchangelog version and one query plan for all tasks of a query"));
        };
        let message = rest
            .strip_suffix(&END)
            .ok_or_else(|| Error::corrupt(NAME, stream.len() as u64, "the end of its stream is missing"))?;
        // The copy is aligned, and its arrays are parts of it.
        self.decode(&Buffer::from(message)).map_err(|what| Error::corrupt(NAME, self.head.len() as u64, what))
    }

    /// The rows of a message; an error says what is wrong with it.
    pub(super) fn decode(&self, message: &Buffer) -> Result<RowBlock, String> {
        // Arrow's decoder panics on some malformed messages.
        let batch = catch_unwind(AssertUnwindSafe(|| self.batch_of(message)))
            .unwrap_or_else(|_| Err("a malformed message".to_owned()))?;
        let mut columns = batch.columns().to_vec();
        let keys = columns.pop().ok_or("there are no keys in it")?;
        check_weightless(&columns)?;
        Ok(RowBlock { keys: keys.as_binary::<i32>().clone(), columns })
    }

    fn batch_of(&self, message: &Buffer) -> Result<RecordBatch, String> {
        let Some(([a, b, c, d, length @ ..], rest)) = message.split_first_chunk::<8>() else {
            return Err("a message without a beginning".to_owned());
        };
        let length = u32::from_le_bytes(*length) as usize;
        if [*a, *b, *c, *d] != CONTINUATION || length > rest.len() {
            return Err("a message without a beginning".to_owned());
        }
        let (metadata, body) = (&rest[..length], message.slice(8 + length));
        let message = root_as_message(metadata).map_err(|error| error.to_string())?;
        let batch = message.header_as_record_batch().ok_or("a message that is not a batch")?;
        // A compressed buffer claims a length that would be allocated.
        if batch.compression().is_some() {
            return Err("a compressed batch".to_owned());
        }
        if usize::try_from(message.bodyLength()) != Ok(body.len()) {
            return Err("a batch of another length".to_owned());
        }
        let (none, version) = (HashMap::new(), message.version());
        RecordBatchDecoder::try_new(&body, batch, Arc::clone(&self.wire), &none, &version)
            .map(|decoder| decoder.with_require_alignment(true))
            .and_then(RecordBatchDecoder::read_record_batch)
            .map_err(|error| error.to_string())
    }
}

fn check_weightless(columns: &[ArrayRef]) -> Result<(), String> {
    let found: usize = columns.iter().map(|column| weightless_elements(column.as_ref())).sum();
    if found <= MOST_WEIGHTLESS {
        return Ok(());
    }
    Err(format!("its lists have {found} elements of a type without a width, more than {MOST_WEIGHTLESS}"))
}

/// The type in which values travel: strings as binaries, and no metadata. None for a type that no column of Spark has.
fn wire_type(data_type: &DataType) -> Option<DataType> {
    let field = |field: &FieldRef| {
        let data_type = wire_type(field.data_type())?;
        Some(Arc::new(Field::new(field.name(), data_type, field.is_nullable())))
    };
    Some(match data_type {
        DataType::Utf8 => DataType::Binary,
        DataType::LargeUtf8 => DataType::LargeBinary,
        DataType::List(of) => DataType::List(field(of)?),
        DataType::LargeList(of) => DataType::LargeList(field(of)?),
        DataType::FixedSizeList(of, size) if *size >= 0 => DataType::FixedSizeList(field(of)?, *size),
        DataType::Map(entries, sorted) => DataType::Map(field(entries)?, *sorted),
        DataType::Struct(fields) => DataType::Struct(fields.iter().map(field).collect::<Option<_>>()?),
        DataType::Null | DataType::Boolean | DataType::Binary | DataType::LargeBinary => data_type.clone(),
        DataType::FixedSizeBinary(size) if *size >= 0 => data_type.clone(),
        other if other.is_primitive() => data_type.clone(),
        _ => return None,
    })
}

/// Some rows and their keys.
#[derive(Debug, Clone)]
pub(super) struct RowBlock {
    pub(super) columns: Vec<ArrayRef>,
    pub(super) keys: BinaryArray,
}

impl RowBlock {
    pub(super) fn rows(&self) -> usize {
        self.keys.len()
    }
}

/// Writes blocks of one format.
pub(super) struct RowEncoder {
    format: Arc<RowFormat>,
    writer: StreamWriter<Vec<u8>>,
}

impl RowEncoder {
    pub(super) fn new(format: Arc<RowFormat>) -> Result<Self> {
        let mut writer = StreamWriter::try_new(Vec::new(), &format.wire)?;
        writer.get_mut().clear();
        Ok(Self { format, writer })
    }

    /// The rows as a payload.
    pub(super) fn payload(&mut self, block: RowBlock) -> Result<Vec<u8>> {
        check_weightless(&block.columns).map_err(|what| {
            Error::invalid(format!("{NAME} cannot be made: {what}")).with_remedy("cast the column to another type")
        })?;
        let mut out = self.write(block, true)?;
        out.extend_from_slice(&END);
        let crc = crc32c(&out);
        out.extend_from_slice(MAGIC);
        out.extend_from_slice(&crc.to_le_bytes());
        Ok(out)
    }

    /// The rows as a message, which [`RowFormat::decode`] reads.
    pub(super) fn message(&mut self, block: RowBlock) -> Result<Vec<u8>> {
        self.write(block, false)
    }

    fn write(&mut self, block: RowBlock, head: bool) -> Result<Vec<u8>> {
        let options = RecordBatchOptions::new().with_row_count(Some(block.rows()));
        let mut columns = block.columns;
        columns.push(Arc::new(block.keys));
        let batch = RecordBatch::try_new_with_options(Arc::clone(&self.format.wire), columns, &options)?;
        let head = if head { self.format.head.as_slice() } else { &[] };
        let out = self.writer.get_mut();
        // Each buffer and the metadata of the message are padded.
        out.reserve_exact(head.len() + batch.get_array_memory_size() + 1024);
        out.extend_from_slice(head);
        let written = self.writer.write(&batch);
        let out = std::mem::take(self.writer.get_mut());
        written?;
        Ok(out)
    }
}

impl fmt::Debug for RowEncoder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RowEncoder").field("format", &self.format).finish_non_exhaustive()
    }
}

#[cfg(test)]
#[path = "row_payload_tests.rs"]
mod tests;
