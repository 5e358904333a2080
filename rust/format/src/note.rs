//! The note of a state's folder: JSON for people, with a checksum.
//!
//! Owns: its fields, its layout and its checksum, and those of the notes beside it that register checkpoints. Python
//! reads both through this file, too.
//! Does not own: their names (`store::paths`), the time of their writing, and the checks against them (`engine`).
//!
//! The checksum is the CRC-32C of the note without the checksum, as compact JSON with sorted names. Reindenting a note
//! keeps it valid; editing its content does not.

use super::wire::crc32c;
use crate::error::{Error, Result};
use bytes::Bytes;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// The layout that is written and read.
const FORMAT: u64 = 2;
const FORMAT_NAME: &str = "format";
const CHECKSUM_NAME: &str = "crc32c";
/// No note is longer: its texts are the names and addresses of one query.
pub const MAX_NOTE: u64 = 1 << 20;

/// Settings that a state fixes when it starts, and promises that its servers rely on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FolderNote {
    /// Spark's query id.
    pub query_id: String,
    /// Name of the operator in the query.
    pub name: String,
    /// Number of shards.
    pub shards: u32,
    /// Number of key groups.
    pub max_parallelism: u16,
    /// The longest `sweep_grace` of all servers that ever opened the state: those with former options may still run.
    pub sweep_grace_seconds: u64,
    /// The address and the id of the savepoint that the state began with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_from: Option<(String, String)>,
}

/// A checkpoint that a query has started from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StartNote {
    /// Its location, as Spark resolves it; none if the query's tasks did not know it.
    pub checkpoint: Option<String>,
    /// True once a person has said that it is gone for good.
    #[serde(default)]
    pub gone: bool,
}

/// The bytes of a folder's note.
pub fn encode_note(note: &FolderNote) -> Result<Bytes> {
    encode(note)
}

/// The bytes of the note of a start.
pub fn encode_start(note: &StartNote) -> Result<Bytes> {
    encode(note)
}

/// The folder's note that is the object `object`.
pub fn decode_note(object: &str, bytes: &[u8]) -> Result<FolderNote> {
    decode(object, bytes)
}

/// The note of a start that is the object `object`.
pub fn decode_start(object: &str, bytes: &[u8]) -> Result<StartNote> {
    decode(object, bytes)
}

fn encode<T: Serialize>(note: &T) -> Result<Bytes> {
    let Value::Object(mut fields) = serde_json::to_value(note).map_err(Error::internal)? else {
        return Err(Error::internal("a note that is no object"));
    };
    fields.insert(FORMAT_NAME.to_owned(), FORMAT.into());
    fields.insert(CHECKSUM_NAME.to_owned(), checksum(&fields)?.into());
    let mut text = serde_json::to_vec_pretty(&fields).map_err(Error::internal)?;
    text.push(b'\n');
    Ok(text.into())
}

fn decode<T: DeserializeOwned>(object: &str, bytes: &[u8]) -> Result<T> {
    let corrupt = |what: &str| Error::corrupt(object, 0, what);
    if bytes.len() as u64 > MAX_NOTE {
        return Err(corrupt(&format!("it has {} bytes, which no note has", bytes.len())));
    }
    let mut fields: Map<String, Value> =
        serde_json::from_slice(bytes).map_err(|error| corrupt(&format!("it is not the JSON of a note ({error})")))?;
    match fields.get(FORMAT_NAME).and_then(Value::as_u64) {
        Some(FORMAT) => {}
        Some(other) => {
            return Err(Error::invalid(format!(
                "{object} has format {other}, this version of fastchangelog reads format {FORMAT}"
            ))
            .with_remedy("use the version that wrote it"));
        }
        None => return Err(corrupt("it names no format")),
    }
    let Some(Value::String(written)) = fields.remove(CHECKSUM_NAME) else {
        return Err(corrupt("it has no checksum"));
    };
    let found = checksum(&fields)?;
    if found != written {
        // The content may be arbitrary: it is not repeated in the message.
        return Err(corrupt(&format!("its content has the checksum {found}, which is not the one that was written")));
    }
    fields.remove(FORMAT_NAME);
    serde_json::from_value(Value::Object(fields))
        .map_err(|error| corrupt(&format!("it is not what a note holds ({error})")))
}

fn checksum(fields: &Map<String, Value>) -> Result<String> {
    let sorted: BTreeMap<&String, &Value> = fields.iter().collect();
    let text = serde_json::to_vec(&sorted).map_err(Error::internal)?;
    Ok(format!("{:08x}", crc32c(&text)))
}

#[cfg(test)]
#[path = "note_tests.rs"]
mod tests;
