//! Heads of an embedded state: the newest checkpoint when the head was written, and its writer.
//!
//! Owns: the layout of a head.
//! Does not own: the meaning of its number, the fencing of writers (`embedded`).

use super::handle::{decode_handle, encode_handle};
use super::wire::{Envelope, put_bytes, put_varint};
use crate::error::Result;
use crate::model::ShardHandle;
use bytes::Bytes;

const HEAD: Envelope = Envelope { magic: *b"FCLN", version: 1, what: "head of a state" };

/// One head.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Head {
    /// Its position in the chain; also in its name.
    pub number: u64,
    /// Grows by one with each writer.
    pub epoch: u64,
    /// The writer's own random number.
    pub writer: u128,
    /// The newest checkpoint; none before the first.
    pub handle: Option<ShardHandle>,
}

/// The bytes of a head.
pub fn encode_head(head: &Head) -> Bytes {
    let mut out = HEAD.begin(256);
    put_varint(&mut out, head.number);
    put_varint(&mut out, head.epoch);
    out.extend_from_slice(&head.writer.to_le_bytes());
    put_bytes(&mut out, &head.handle.as_ref().map(encode_handle).unwrap_or_default());
    Envelope::seal(out).into()
}

/// The head that is the object `object`.
pub fn decode_head(object: &str, bytes: &[u8]) -> Result<Head> {
    let mut reader = HEAD.open(object, bytes)?;
    let number = reader.varint("the number")?;
    let epoch = reader.varint("the epoch")?;
    let writer = reader.u128("the writer")?;
    let handle = match reader.bytes("the handle")? {
        [] => None,
        bytes => Some(decode_handle(bytes).map_err(|e| e.context(object))?),
    };
    reader.finish("the head")?;
    Ok(Head { number, epoch, writer, handle })
}
