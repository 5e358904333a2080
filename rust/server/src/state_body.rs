//! Bodies of the frames of a state session.
//!
//! Owns: the layout of a body, its bounds, the refusal of malformed ones.
//! Does not own: the meaning of a body (`state_frames`), the frame around it (`protocol`).
//!
//! ```text
//! body   length of the text u32 | text, JSON | nothing, or an Arrow IPC stream of one batch       (little endian)
//! ```
//!
//! The text ends with spaces, so that buffers of the batch are aligned and are read in place. Invariants:
//! 1. a body that was not written by [`encode`] is an error, never a panic;
//! 2. decoding asks for no memory by the lengths that a body claims: of a batch, only layouts that are slices of the
//!    body are read, which excludes compressed buffers and dictionaries.

use arrow_array::{ArrayRef, RecordBatch};
use arrow_buffer::Buffer;
use arrow_ipc::convert::fb_to_schema;
use arrow_ipc::reader::StreamDecoder;
use arrow_ipc::writer::StreamWriter;
use arrow_ipc::{Message, MessageHeader, root_as_message};
use arrow_schema::DataType;
use fastchangelog_format::{Error, Result};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Bytes before the text.
const PREFIX: usize = 4;
/// The stream begins at a multiple of this: its buffers hold numbers of up to eight bytes.
const ALIGNMENT: usize = 16;
/// In front of each message of a stream, before the length of its description.
const CONTINUATION: [u8; 4] = [0xff; 4];
/// The end of a stream.
const END: [u8; 8] = [0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0];

/// The body of a text and a batch.
pub(crate) fn encode(text: &impl Serialize, batch: Option<&RecordBatch>) -> Result<Vec<u8>> {
    let mut body = vec![0; PREFIX];
    serde_json::to_writer(&mut body, text)
        .map_err(|e| Error::internal(format!("a message's text: {e}")).with_source(e))?;
    body.resize(body.len().next_multiple_of(ALIGNMENT), b' ');
    let length = u32::try_from(body.len() - PREFIX)
        .map_err(|_| Error::internal("a message's text of more than 4 GiB"))?
        .to_le_bytes();
    body[..PREFIX].copy_from_slice(&length);
    if let Some(batch) = batch {
        body.reserve(batch.get_array_memory_size() + 2048);
        let mut writer = StreamWriter::try_new(&mut body, &batch.schema())?;
        writer.write(batch)?;
        writer.finish()?;
    }
    Ok(body)
}

/// The text of a body, and where its batch begins.
pub(crate) fn decode_text<T: DeserializeOwned>(body: &[u8]) -> Result<(T, usize)> {
    let (length, rest) = body.split_first_chunk::<PREFIX>().ok_or_else(|| malformed("it is too short"))?;
    let text = usize::try_from(u32::from_le_bytes(*length)).ok().and_then(|length| rest.get(..length));
    let text = text.ok_or_else(|| malformed("its text is longer than it"))?;
    let value = serde_json::from_slice(text).map_err(malformed)?;
    Ok((value, PREFIX + text.len()))
}

/// The columns of a body from byte `at` on, which have exactly these types, or none if no types are expected. Names and
/// nullability of fields are the sender's.
pub(crate) fn decode_columns(body: Vec<u8>, at: usize, types: &[DataType]) -> Result<Vec<ArrayRef>> {
    if types.is_empty() {
        return if body.len() == at { Ok(vec![]) } else { Err(malformed("there is data in it that is not asked for")) };
    }
    let stream = Buffer::from_vec(body).slice(at);
    let stream = if stream.as_ptr().align_offset(ALIGNMENT / 2) == 0 {
        stream
    } else {
        Buffer::from_slice_ref(stream.as_slice())
    };
    let batch = catch_unwind(AssertUnwindSafe(|| read(stream, types)));
    Ok(batch.map_err(|_| malformed("its batch cannot be read"))??.columns().to_vec())
}

fn read(mut stream: Buffer, types: &[DataType]) -> Result<RecordBatch> {
    check_stream(&stream, types)?;
    let batch = StreamDecoder::new().decode(&mut stream).map_err(malformed)?;
    batch.ok_or_else(|| malformed("there is no batch in it"))
}

/// Invariant 2: the stream is a schema of these types, one batch in plain buffers, and the end.
fn check_stream(stream: &[u8], types: &[DataType]) -> Result<()> {
    let (message, rest) = next_message(stream)?;
    let schema = message.header_as_schema().ok_or_else(|| malformed("its batch has no schema"))?;
    let found = fb_to_schema(schema).fields;
    if found.len() != types.len() || found.iter().zip(types).any(|(f, t)| !same_layout(f.data_type(), t)) {
        let found: Vec<String> = found.iter().map(|f| f.data_type().to_string()).collect();
        return Err(malformed(format!("its columns are ({})", found.join(", "))));
    }
    let (message, rest) = next_message(rest)?;
    match message.header_as_record_batch() {
        Some(batch) if batch.compression().is_none() => {}
        Some(_) => return Err(malformed("its batch is compressed")),
        None => return Err(malformed("there is no batch after its schema")),
    }
    if rest == END { Ok(()) } else { Err(malformed("there is more after its batch")) }
}

/// The description of the first message, and what follows the message.
fn next_message(stream: &[u8]) -> Result<(Message<'_>, &[u8])> {
    let cut = || malformed("its batch is cut off");
    let (continuation, rest) = stream.split_first_chunk::<4>().ok_or_else(cut)?;
    let (length, rest) = rest.split_first_chunk::<4>().ok_or_else(cut)?;
    if continuation != &CONTINUATION {
        return Err(malformed("its batch is no Arrow stream"));
    }
    let length = usize::try_from(u32::from_le_bytes(*length)).map_err(|_| cut())?;
    let (description, rest) = rest.split_at_checked(length).ok_or_else(cut)?;
    let message = root_as_message(description).map_err(|e| malformed(format!("its batch is no Arrow stream: {e}")))?;
    let has_body = message.header_type() != MessageHeader::Schema;
    let length = usize::try_from(message.bodyLength()).ok().filter(|length| has_body || *length == 0);
    let (_, rest) = length.and_then(|length| rest.split_at_checked(length)).ok_or_else(cut)?;
    Ok((message, rest))
}

/// True for types with the same buffers; names and nullability of fields do not count.
fn same_layout(a: &DataType, b: &DataType) -> bool {
    match (a, b) {
        (DataType::List(a), DataType::List(b)) => same_layout(a.data_type(), b.data_type()),
        (DataType::Struct(a), DataType::Struct(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same_layout(a.data_type(), b.data_type()))
        }
        (a, b) => a == b,
    }
}

pub(crate) fn malformed(why: impl std::fmt::Display) -> Error {
    Error::internal(format!("a malformed message on the state server's socket: {why}"))
}

#[cfg(test)]
#[path = "state_body_tests.rs"]
mod tests;
