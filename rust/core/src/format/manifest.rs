//! Manifests: what a materialized base consists of.
//!
//! Owns: the layout of a manifest, and the check that the file names in it are plain names (they become files on disk).
//! Does not own: making checkpoints (`snapshot`) or fetching them (`read`).

use super::handle::{NamesIn, NamesOut};
use super::wire::{Envelope, Reader, put_bytes, put_varint};
use crate::error::Result;
use crate::model::{InstanceId, ObjectRef, VersionId};
use bytes::Bytes;

const MANIFEST: Envelope = Envelope { magic: *b"FCLM", version: 1, what: "base manifest" };

/// A RocksDB file that is an object of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ManifestFile {
    /// RocksDB's name for it, such as `000012.sst`.
    pub name: String,
    /// Where its bytes are.
    pub object: ObjectRef,
}

/// All files of a RocksDB checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Manifest {
    /// The state it is a base of.
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

/// The bytes of a manifest.
pub fn encode_manifest(manifest: &Manifest) -> Bytes {
    let inline: usize = manifest.inline.iter().map(|(name, bytes)| name.len() + bytes.len() + 8).sum();
    let mut out = MANIFEST.begin(64 + manifest.files.len() * 48 + inline);
    out.extend_from_slice(&manifest.instance.0.to_le_bytes());
    out.extend_from_slice(&manifest.version.0.to_le_bytes());
    out.extend_from_slice(&manifest.replay_after.0.to_le_bytes());
    put_varint(&mut out, manifest.files.len() as u64);
    let mut names = NamesOut::default();
    for file in &manifest.files {
        put_bytes(&mut out, file.name.as_bytes());
        names.put(&mut out, &file.object);
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
    let instance = InstanceId(reader.u128("the instance")?);
    let version = VersionId(reader.u128("the version id")?);
    let replay_after = VersionId(reader.u128("the replay mark")?);
    let count = reader.count(10, "the number of files")?;
    let mut files = Vec::with_capacity(count);
    let mut names = NamesIn::default();
    for _ in 0..count {
        let name = file_name(&mut reader)?;
        files.push(ManifestFile { name, object: names.read(&mut reader)? });
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
