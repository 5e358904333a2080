//! Manifests: what a materialized snapshot consists of.
//!
//! Owns: the layout of a manifest, and the checks that the file names in it are plain names (they become files on disk)
//! and that packed files lie in their objects.
//! Does not own: making checkpoints (`snapshot`) or fetching them (`read`).

use super::handle::{NamesIn, NamesOut};
use super::wire::{Envelope, Reader, put_bytes, put_varint};
use crate::error::Result;
use crate::model::{InstanceId, ObjectRef, VersionId};
use bytes::Bytes;

const MANIFEST: Envelope = Envelope { magic: *b"FCLM", version: 2, what: "snapshot manifest" };

/// A RocksDB file in the bucket: an object of its own, or a part of one that holds several small files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ManifestFile {
    /// RocksDB's name for it, such as `000012.sst`.
    pub name: String,
    /// The object with its bytes.
    pub object: ObjectRef,
    /// Where in the object they are; none = the file is the object.
    pub part: Option<PackedPart>,
}

/// The place of a file in a packed object, and its checksum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PackedPart {
    /// First byte in the object.
    pub offset: u64,
    /// Bytes of the file.
    pub length: u64,
    /// CRC-32C of the file.
    pub crc: u32,
}

impl ManifestFile {
    /// A file that is an object of its own.
    pub fn whole(name: String, object: ObjectRef) -> Self {
        Self { name, object, part: None }
    }

    /// Bytes of the file.
    pub fn size(&self) -> u64 {
        self.part.map_or(self.object.size, |part| part.length)
    }

    /// CRC-32C of the file.
    pub fn crc(&self) -> u32 {
        self.part.map_or(self.object.crc, |part| part.crc)
    }
}

/// All files of a RocksDB checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Manifest {
    /// The state it is a snapshot of.
    pub instance: InstanceId,
    /// Newest version whose changes may be in it.
    pub version: VersionId,
    /// Newest version whose changes are all in it.
    pub replay_after: VersionId,
    /// The large, immutable files.
    pub files: Vec<ManifestFile>,
    /// The small ones with their bytes: `CURRENT`, `MANIFEST-*`, `OPTIONS-*`.
    pub inline: Vec<(String, Bytes)>,
}

const WHOLE: u8 = 0;
const PACKED: u8 = 1;

/// The bytes of a manifest.
pub fn encode_manifest(manifest: &Manifest) -> Bytes {
    let inline: usize = manifest.inline.iter().map(|(name, bytes)| name.len() + bytes.len() + 8).sum();
    let mut out = MANIFEST.begin(64 + manifest.files.len() * 48 + inline);
    out.extend_from_slice(&manifest.instance.0.to_le_bytes());
    out.extend_from_slice(&manifest.version.0.to_le_bytes());
    out.extend_from_slice(&manifest.replay_after.0.to_le_bytes());
    put_varint(&mut out, manifest.files.len() as u64);
    let mut names = NamesOut::default();
    let mut packs: Vec<&ObjectRef> = Vec::new();
    for file in &manifest.files {
        put_bytes(&mut out, file.name.as_bytes());
        let Some(part) = file.part else {
            out.push(WHOLE);
            names.put(&mut out, &file.object);
            continue;
        };
        out.push(PACKED);
        let number = packs.iter().position(|pack| **pack == file.object);
        put_varint(&mut out, number.unwrap_or(packs.len()) as u64);
        if number.is_none() {
            names.put(&mut out, &file.object);
            packs.push(&file.object);
        }
        put_varint(&mut out, part.offset);
        put_varint(&mut out, part.length);
        out.extend_from_slice(&part.crc.to_le_bytes());
    }
    put_varint(&mut out, manifest.inline.len() as u64);
    for (name, bytes) in &manifest.inline {
        put_bytes(&mut out, name.as_bytes());
        put_bytes(&mut out, bytes);
    }
    Envelope::seal(out).into()
}

/// The manifest that is the object `object`.
pub fn decode_manifest(object: &str, bytes: &[u8]) -> Result<Manifest> {
    let mut reader = MANIFEST.open(object, bytes)?;
    let version_of_format = Envelope::version_of(bytes);
    let instance = InstanceId(reader.u128("the instance")?);
    let version = VersionId(reader.u128("the version id")?);
    let replay_after = VersionId(reader.u128("the replay mark")?);
    let count = reader.count(10, "the number of files")?;
    let mut files = Vec::with_capacity(count);
    let mut names = NamesIn::default();
    let mut packs: Vec<ObjectRef> = Vec::new();
    for _ in 0..count {
        let name = file_name(&mut reader)?;
        // Version 1 had whole objects only, and did not say so.
        let kind = if version_of_format == 1 { WHOLE } else { reader.u8("the kind of a file")? };
        files.push(match kind {
            WHOLE => ManifestFile::whole(name, names.read(&mut reader)?),
            PACKED => packed_file(&mut reader, name, &mut names, &mut packs)?,
            _ => return Err(reader.corrupt(format_args!("{kind} is no kind of a file"))),
        });
    }
    let count = reader.count(3, "the number of inline files")?;
    let mut inline = Vec::with_capacity(count);
    for _ in 0..count {
        let name = file_name(&mut reader)?;
        inline.push((name, Bytes::copy_from_slice(reader.bytes("an inline file")?)));
    }
    reader.finish("the manifest")?;
    Ok(Manifest { instance, version, replay_after, files, inline })
}

fn packed_file<'a>(
    reader: &mut Reader<'a>,
    name: String,
    names: &mut NamesIn<'a>,
    packs: &mut Vec<ObjectRef>,
) -> Result<ManifestFile> {
    let number: usize = reader.varint_as("the number of a packed object")?;
    if number == packs.len() {
        packs.push(names.read(reader)?);
    }
    let Some(object) = packs.get(number).cloned() else {
        return Err(reader.corrupt(format_args!("packed object {number} of {}", packs.len())));
    };
    let offset = reader.varint("the offset of a file")?;
    let length = reader.varint("the length of a file")?;
    let crc = reader.u32("the checksum of a file")?;
    if offset.checked_add(length).is_none_or(|end| end > object.size) {
        let what = format!("`{name}` is said to be {length} bytes at {offset} of an object of {}", object.size);
        return Err(reader.corrupt(what));
    }
    Ok(ManifestFile { name, object, part: Some(PackedPart { offset, length, crc }) })
}

/// A file name that cannot leave the folder it is written to.
fn file_name(reader: &mut Reader<'_>) -> Result<String> {
    let name = reader.text("a file name")?;
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_');
    if name.is_empty() || name.starts_with('.') || !name.bytes().all(plain) {
        return Err(reader.corrupt(format_args!("`{}` is no name of a RocksDB file", name.escape_debug())));
    }
    Ok(name.to_owned())
}

#[cfg(test)]
#[path = "manifest_tests.rs"]
mod tests;
