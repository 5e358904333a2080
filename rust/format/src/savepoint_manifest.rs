//! Manifests of savepoints.
//!
//! Owns: their layout. Does not own: the named files (log objects in canonical savepoints, copies in native ones).

use super::handle::{NamesIn, NamesOut, decode_handle, encode_handle};
use super::wire::{Envelope, Reader, put_bytes, put_signed, put_varint};
use crate::error::{Error, ErrorKind, Result};
use crate::model::{
    BatchId, InstanceId, KeyGroupRange, ObjectRef, Savepoint, SavepointContent, SavepointOrigin, SavepointPart,
};
use bytes::Bytes;

const SAVEPOINT: Envelope = Envelope { magic: *b"FCLP", version: 1, what: "savepoint manifest" };

const CANONICAL: u8 = 1;
const NATIVE: u8 = 2;

/// The bytes of a savepoint's manifest.
pub fn encode_savepoint(savepoint: &Savepoint) -> Bytes {
    let mut out = SAVEPOINT.begin(256 + savepoint.schema.len() + 64 * savepoint.objects().len());
    out.push(0);
    out.extend_from_slice(&savepoint.id.0.to_le_bytes());
    put_bytes(&mut out, savepoint.origin.query_id.as_bytes());
    put_bytes(&mut out, savepoint.origin.name.as_bytes());
    put_signed(&mut out, savepoint.origin.batch.0);
    put_varint(&mut out, savepoint.origin.taken_millis);
    put_varint(&mut out, u64::from(savepoint.shards));
    put_varint(&mut out, u64::from(savepoint.max_parallelism));
    put_varint(&mut out, u64::from(savepoint.hash_id));
    out.extend_from_slice(&savepoint.schema_id.to_le_bytes());
    put_bytes(&mut out, savepoint.schema.as_bytes());
    put_varint(&mut out, savepoint.keys);
    put_varint(&mut out, savepoint.bytes);
    let mut names = NamesOut::default();
    match &savepoint.content {
        SavepointContent::Canonical(parts) => {
            out.push(CANONICAL);
            put_varint(&mut out, parts.len() as u64);
            for part in parts {
                names.put(&mut out, &part.object);
                put_varint(&mut out, u64::from(part.key_groups.start));
                put_varint(&mut out, u64::from(part.key_groups.end));
                put_varint(&mut out, part.entries);
                put_varint(&mut out, part.bytes);
            }
        }
        SavepointContent::Native { handles, objects } => {
            out.push(NATIVE);
            put_varint(&mut out, handles.len() as u64);
            for handle in handles {
                put_bytes(&mut out, &encode_handle(handle));
            }
            put_varint(&mut out, objects.len() as u64);
            for object in objects {
                names.put(&mut out, object);
            }
        }
    }
    Envelope::seal(out).into()
}

/// Smallest size of a part: name, size and checksum, then four numbers.
const MIN_PART: usize = MIN_OBJECT + 4;
/// Number of the name's folder, two lengths, size and checksum.
const MIN_OBJECT: usize = 3 + 1 + 4;
/// Ids, numbers and lengths of a handle in its envelope.
const MIN_HANDLE: usize = 64;

/// The savepoint whose manifest is `object`.
pub fn decode_savepoint(object: &str, bytes: &[u8]) -> Result<Savepoint> {
    let mut reader = SAVEPOINT.open(object, bytes)?;
    let flags = reader.u8("the flags")?;
    if flags != 0 {
        return Err(reader.corrupt(format_args!("flags {flags:#x} are unknown")));
    }
    let id = InstanceId(reader.u128("the id")?);
    let origin = SavepointOrigin {
        query_id: reader.text("the query id")?.to_owned(),
        name: reader.text("the name")?.to_owned(),
        batch: BatchId(reader.signed("the batch")?),
        taken_millis: reader.varint("the time")?,
    };
    let shards = reader.varint_as("the number of shards")?;
    let max_parallelism = reader.varint_as("the number of key groups")?;
    let hash_id = reader.varint_as("the hash id")?;
    let schema_id = reader.u64("the schema id")?;
    let schema = reader.text("the schema")?.to_owned();
    let keys = reader.varint("the number of keys")?;
    let state_bytes = reader.varint("the size of the state")?;
    let content = match reader.u8("the form")? {
        CANONICAL => SavepointContent::Canonical(parts(&mut reader)?),
        NATIVE => native(object, &mut reader)?,
        form => return Err(reader.corrupt(format_args!("form {form} is unknown"))),
    };
    reader.finish("the savepoint manifest")?;
    Ok(Savepoint { id, origin, shards, max_parallelism, hash_id, schema_id, schema, keys, bytes: state_bytes, content })
}

fn parts(reader: &mut Reader<'_>) -> Result<Vec<SavepointPart>> {
    let count = reader.count(MIN_PART, "the number of parts")?;
    let mut names = NamesIn::default();
    let mut parts: Vec<SavepointPart> = Vec::with_capacity(count);
    for _ in 0..count {
        let object = names.read(reader)?;
        let start: u16 = reader.varint_as("a part's first key group")?;
        let end = reader.varint_as("a part's last key group")?;
        // The last key group of a part may continue in the next one.
        if start >= end || parts.last().is_some_and(|last| start < last.key_groups.end.saturating_sub(1)) {
            return Err(reader.corrupt(format_args!("a part of the key groups {start} to {end} is out of order")));
        }
        let entries = reader.varint("a part's entries")?;
        let bytes = reader.varint("a part's bytes")?;
        parts.push(SavepointPart { object, key_groups: KeyGroupRange { start, end }, entries, bytes });
    }
    Ok(parts)
}

fn native(object: &str, reader: &mut Reader<'_>) -> Result<SavepointContent> {
    let count = reader.count(MIN_HANDLE, "the number of handles")?;
    let mut handles = Vec::with_capacity(count);
    for _ in 0..count {
        let bytes = reader.bytes("a handle")?;
        let damage = |e: Error| if e.kind() == ErrorKind::Corrupt { reader.corrupt(e) } else { e.context(object) };
        handles.push(decode_handle(bytes).map_err(damage)?);
    }
    let count = reader.count(MIN_OBJECT, "the number of objects")?;
    let mut names = NamesIn::default();
    let mut objects: Vec<ObjectRef> = Vec::with_capacity(count);
    for _ in 0..count {
        objects.push(names.read(reader)?);
    }
    Ok(SavepointContent::Native { handles, objects })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn savepoint(ranges: &[(u16, u16)]) -> Savepoint {
        let part = |(start, end): &(u16, u16)| SavepointPart {
            object: ObjectRef { name: format!("part/{start:06}"), size: 10, crc: 5 },
            key_groups: KeyGroupRange { start: *start, end: *end },
            entries: 1,
            bytes: 2,
        };
        Savepoint {
            id: InstanceId(1),
            origin: SavepointOrigin {
                query_id: "q".into(),
                name: "n".into(),
                batch: BatchId(-1),
                taken_millis: u64::MAX,
            },
            shards: 1,
            max_parallelism: 10,
            hash_id: 1,
            schema_id: 0,
            schema: String::new(),
            keys: 0,
            bytes: 0,
            content: SavepointContent::Canonical(ranges.iter().map(part).collect()),
        }
    }

    #[test]
    fn parts_may_share_a_key_group_and_nothing_more() {
        for (ranges, good) in [
            (&[][..], true),
            (&[(0, 3), (3, 4)][..], true),
            (&[(0, 3), (2, 3), (2, 9)][..], true),
            (&[(0, 3), (1, 4)][..], false),
            (&[(4, 5), (0, 1)][..], false),
            (&[(4, 4)][..], false),
        ] {
            let written = savepoint(ranges);
            let read = decode_savepoint("name", &encode_savepoint(&written));
            match read {
                Ok(read) => assert!(good && read == written, "{ranges:?}"),
                Err(error) => assert!(!good && error.message().contains("out of order"), "{ranges:?}: {error}"),
            }
        }
    }

    #[test]
    fn a_newer_version_says_to_upgrade() {
        let mut bytes = encode_savepoint(&savepoint(&[])).to_vec();
        bytes[4] = 2;
        let length = bytes.len() - 4;
        let crc = crate::crc32c(&bytes[..length]).to_le_bytes();
        bytes[length..].copy_from_slice(&crc);
        let error = decode_savepoint("s3://b/sp/_fastchangelog-savepoint", &bytes).unwrap_err();
        assert_eq!(error.kind(), crate::ErrorKind::InvalidArgument);
        assert!(error.message().contains("s3://b/sp") && error.message().contains("upgrade"), "{error}");
    }
}
