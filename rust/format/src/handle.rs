//! Shard handles and segment indexes: the small binary objects that name larger ones.
//!
//! Owns: their layout, and keeping it small (P2): object names shrink to a folder number and raw bytes, segments that
//! share an object share its entry.
//! Does not own: the rules between a handle's parts (`model::handle`), base64 for transport.

use super::wire::{Envelope, Reader, put_bytes, put_signed, put_varint};
use crate::error::Result;
use crate::model::{BatchId, InstanceId, KeyGroupRange, ObjectRef, SegmentRef, ShardHandle, SnapshotRef, VersionId};
use bytes::Bytes;
use std::collections::HashMap;

const HANDLE: Envelope = Envelope { magic: *b"FCLH", version: 1, what: "shard handle" };
const INDEX: Envelope = Envelope { magic: *b"FCLI", version: 1, what: "segment index" };

/// The name of a handle in errors. A handle has no name in the bucket: it is in Spark's checkpoint.
const HANDLE_NAME: &str = "the shard handle in Spark's state";

const HAS_PARENT: u8 = 1;
const HAS_WATERMARK: u8 = 2;
const HAS_SNAPSHOT: u8 = 4;
const HAS_INDEXED: u8 = 8;

/// The bytes of a handle.
pub fn encode_handle(handle: &ShardHandle) -> Vec<u8> {
    let mut out = HANDLE.begin(192 + handle.schema.len() + handle.segments.len() * 56);
    let flags = (u8::from(handle.parent.is_some()) * HAS_PARENT)
        | (u8::from(handle.watermark.is_some()) * HAS_WATERMARK)
        | (u8::from(handle.snapshot.is_some()) * HAS_SNAPSHOT)
        | (u8::from(handle.indexed.is_some()) * HAS_INDEXED);
    out.push(flags);
    out.extend_from_slice(&handle.instance.0.to_le_bytes());
    out.extend_from_slice(&handle.version.0.to_le_bytes());
    if let Some(parent) = handle.parent {
        out.extend_from_slice(&parent.0.to_le_bytes());
    }
    put_signed(&mut out, handle.batch.0);
    put_varint(&mut out, u64::from(handle.shard));
    put_varint(&mut out, u64::from(handle.shards));
    put_varint(&mut out, u64::from(handle.max_parallelism));
    put_varint(&mut out, u64::from(handle.key_groups.start));
    put_varint(&mut out, u64::from(handle.key_groups.end));
    put_varint(&mut out, u64::from(handle.hash_id));
    out.extend_from_slice(&handle.schema_id.to_le_bytes());
    put_bytes(&mut out, handle.schema.as_bytes());
    if let Some(watermark) = handle.watermark {
        put_signed(&mut out, watermark);
    }
    put_varint(&mut out, handle.state_keys);
    put_varint(&mut out, handle.state_bytes);

    let mut objects = ObjectsOut::default();
    let snapshot = handle.snapshot.as_ref().map(|b| (b, objects.add(&b.manifest)));
    let indexed = handle.indexed.as_ref().map(|o| objects.add(o));
    let segments: Vec<usize> = handle.segments.iter().map(|s| objects.add(&s.object)).collect();
    objects.write(&mut out);
    if let Some((snapshot, manifest)) = snapshot {
        out.extend_from_slice(&snapshot.version.0.to_le_bytes());
        out.extend_from_slice(&snapshot.replay_after.0.to_le_bytes());
        put_varint(&mut out, manifest as u64);
        put_varint(&mut out, snapshot.total_bytes);
    }
    if let Some(indexed) = indexed {
        put_varint(&mut out, indexed as u64);
    }
    put_segments(&mut out, &handle.segments, &segments, handle.batch);
    Envelope::seal(out)
}

/// The handle of some bytes.
pub fn decode_handle(bytes: &[u8]) -> Result<ShardHandle> {
    let mut reader = HANDLE.open(HANDLE_NAME, bytes)?;
    let flags = reader.u8("the flags")?;
    if flags & !(HAS_PARENT | HAS_WATERMARK | HAS_SNAPSHOT | HAS_INDEXED) != 0 {
        return Err(reader.corrupt(format_args!("flags {flags:#x} are unknown")));
    }
    let has = |flag| flags & flag != 0;
    let instance = InstanceId(reader.u128("the instance")?);
    let version = VersionId(reader.u128("the version id")?);
    let parent = if has(HAS_PARENT) { Some(VersionId(reader.u128("the parent")?)) } else { None };
    let batch = BatchId(reader.signed("the batch")?);
    let shard = reader.varint_as("the shard")?;
    let shards = reader.varint_as("the number of shards")?;
    let max_parallelism = reader.varint_as("the number of key groups")?;
    let key_groups =
        KeyGroupRange { start: reader.varint_as("the first key group")?, end: reader.varint_as("the last key group")? };
    let hash_id = reader.varint_as("the hash id")?;
    let schema_id = reader.u64("the schema id")?;
    let schema = reader.text("the schema")?.to_owned();
    let watermark = if has(HAS_WATERMARK) { Some(reader.signed("the watermark")?) } else { None };
    let state_keys = reader.varint("the number of keys")?;
    let state_bytes = reader.varint("the size of the state")?;
    let objects = read_objects(&mut reader)?;
    let snapshot = if has(HAS_SNAPSHOT) {
        Some(SnapshotRef {
            version: VersionId(reader.u128("the snapshot's version")?),
            replay_after: VersionId(reader.u128("the snapshot's replay mark")?),
            manifest: pick(&objects, &mut reader)?,
            total_bytes: reader.varint("the snapshot's size")?,
        })
    } else {
        None
    };
    let indexed = if has(HAS_INDEXED) { Some(pick(&objects, &mut reader)?) } else { None };
    let segments = read_segments(&mut reader, &objects, batch)?;
    reader.finish("the handle")?;
    Ok(ShardHandle {
        instance,
        version,
        parent,
        batch,
        shard,
        shards,
        max_parallelism,
        key_groups,
        hash_id,
        schema_id,
        schema,
        watermark,
        state_keys,
        state_bytes,
        snapshot,
        indexed,
        segments,
    })
}

/// The bytes of an object that lists older segments of a handle.
pub fn encode_segment_index(segments: &[SegmentRef]) -> Bytes {
    let mut out = INDEX.begin(16 + segments.len() * 56);
    let mut objects = ObjectsOut::default();
    let refs: Vec<usize> = segments.iter().map(|s| objects.add(&s.object)).collect();
    objects.write(&mut out);
    put_segments(&mut out, segments, &refs, BatchId(0));
    Envelope::seal(out).into()
}

/// The segments that the index object `object` lists.
pub fn decode_segment_index(object: &str, bytes: &[u8]) -> Result<Vec<SegmentRef>> {
    let mut reader = INDEX.open(object, bytes)?;
    let objects = read_objects(&mut reader)?;
    let segments = read_segments(&mut reader, &objects, BatchId(0))?;
    reader.finish("the segment index")?;
    Ok(segments)
}

// -------------------------------------------------------------------------------------------------------------
// segments

/// Smallest size of a segment: version, object number and five numbers.
const MIN_SEGMENT: usize = 16 + 5;

fn put_segments(out: &mut Vec<u8>, segments: &[SegmentRef], objects: &[usize], mut batch: BatchId) {
    put_varint(out, segments.len() as u64);
    for (segment, object) in segments.iter().zip(objects) {
        out.extend_from_slice(&segment.version.0.to_le_bytes());
        put_signed(out, segment.batch.0.wrapping_sub(batch.0));
        put_varint(out, *object as u64);
        put_varint(out, segment.offset);
        put_varint(out, segment.length);
        put_varint(out, segment.records);
        batch = segment.batch;
    }
}

fn read_segments(reader: &mut Reader<'_>, objects: &[ObjectRef], mut batch: BatchId) -> Result<Vec<SegmentRef>> {
    let count = reader.count(MIN_SEGMENT, "the number of segments")?;
    let mut segments = Vec::with_capacity(count);
    for _ in 0..count {
        let version = VersionId(reader.u128("a segment's version")?);
        batch = BatchId(batch.0.wrapping_add(reader.signed("a segment's batch")?));
        let object = pick(objects, reader)?;
        let offset = reader.varint("a segment's offset")?;
        let length = reader.varint("a segment's length")?;
        let records = reader.varint("a segment's records")?;
        segments.push(SegmentRef { version, batch, object, offset, length, records });
    }
    Ok(segments)
}

pub(super) fn pick(objects: &[ObjectRef], reader: &mut Reader<'_>) -> Result<ObjectRef> {
    let number: usize = reader.varint_as("an object number")?;
    objects.get(number).cloned().ok_or_else(|| reader.corrupt(format_args!("object {number} of {}", objects.len())))
}

// --------------------------------------------------------------------------------------------------------------
// objects

/// The distinct objects that something names, in order of first mention.
#[derive(Default)]
pub(super) struct ObjectsOut<'a> {
    list: Vec<&'a ObjectRef>,
    numbers: HashMap<&'a ObjectRef, usize>,
}

impl<'a> ObjectsOut<'a> {
    pub(super) fn add(&mut self, object: &'a ObjectRef) -> usize {
        *self.numbers.entry(object).or_insert_with(|| {
            self.list.push(object);
            self.list.len() - 1
        })
    }

    pub(super) fn write(&self, out: &mut Vec<u8>) {
        put_varint(out, self.list.len() as u64);
        let mut names = NamesOut::default();
        for object in &self.list {
            names.put(out, object);
        }
    }
}

/// Smallest size of an object: number of the name's folder, two lengths, size and checksum.
const MIN_OBJECT: usize = 3 + 1 + 4;

pub(super) fn read_objects(reader: &mut Reader<'_>) -> Result<Vec<ObjectRef>> {
    let count = reader.count(MIN_OBJECT, "the number of objects")?;
    let mut objects = Vec::with_capacity(count);
    let mut names = NamesIn::default();
    for _ in 0..count {
        objects.push(names.read(reader)?);
    }
    Ok(objects)
}

/// Writes object references; a name is folder, hex digits as raw bytes, and the rest.
#[derive(Default)]
pub(super) struct NamesOut<'a> {
    folders: Vec<&'a str>,
}

impl<'a> NamesOut<'a> {
    pub(super) fn put(&mut self, out: &mut Vec<u8>, object: &'a ObjectRef) {
        let (folder, file) = object.name.split_at(object.name.rfind('/').map_or(0, |i| i + 1));
        if let Some(number) = self.folders.iter().position(|f| *f == folder) {
            put_varint(out, number as u64);
        } else {
            put_varint(out, self.folders.len() as u64);
            put_bytes(out, folder.as_bytes());
            self.folders.push(folder);
        }
        let digits = file.bytes().take(MAX_HEX * 2).take_while(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')).count() & !1;
        #[expect(clippy::cast_possible_truncation, reason = "at most MAX_HEX")]
        out.push((digits / 2) as u8);
        let nibble = |b: u8| if b <= b'9' { b - b'0' } else { b - b'a' + 10 };
        out.extend(file.as_bytes()[..digits].chunks_exact(2).map(|pair| nibble(pair[0]) << 4 | nibble(pair[1])));
        put_bytes(out, &file.as_bytes()[digits..]);
        put_varint(out, object.size);
        out.extend_from_slice(&object.crc.to_le_bytes());
    }
}

/// Most raw bytes of a name, each of which is written as two hex digits.
const MAX_HEX: usize = 64;
/// Longest accepted name of an object. Real names have about 40 bytes; without a bound, few bytes that repeat a
/// long name many times could ask for much memory.
const MAX_NAME: usize = 512;

/// The inverse of [`NamesOut`].
#[derive(Default)]
pub(super) struct NamesIn<'a> {
    folders: Vec<&'a str>,
}

impl<'a> NamesIn<'a> {
    pub(super) fn read(&mut self, reader: &mut Reader<'a>) -> Result<ObjectRef> {
        let number: usize = reader.varint_as("a folder number")?;
        if number == self.folders.len() {
            let folder = reader.text("a folder")?;
            if folder.len() > MAX_NAME {
                return Err(reader.corrupt("a folder is too long"));
            }
            self.folders.push(folder);
        }
        let Some(folder) = self.folders.get(number) else {
            return Err(reader.corrupt(format_args!("folder {number} of {}", self.folders.len())));
        };
        let digits = usize::from(reader.u8("the length of a name")?);
        if digits > MAX_HEX {
            return Err(reader.corrupt("a name is too long"));
        }
        let mut name = String::with_capacity(folder.len() + digits * 2 + 8);
        name.push_str(folder);
        for byte in reader.take(digits, "a name")? {
            name.extend([byte >> 4, byte & 15].map(|n| char::from(if n < 10 { b'0' + n } else { b'a' + n - 10 })));
        }
        name.push_str(reader.text("the end of a name")?);
        if name.is_empty() || name.len() > MAX_NAME || name.split('/').any(|part| part == "..") || name.starts_with('/')
        {
            return Err(reader.corrupt(format_args!("`{name}` is no object name")));
        }
        let size = reader.varint("an object's size")?;
        let crc = reader.u32("an object's checksum")?;
        Ok(ObjectRef { name, size, crc })
    }
}

#[cfg(test)]
#[path = "handle_tests.rs"]
mod tests;
