//! Which files of a shard's RocksDB are in the bucket already.
//!
//! Owns: the answer to "is this local file what the last snapshot names, and where is that?".
//! Does not own: whether that object may still be deleted, uploading.
//!
//! Invariants of an [`Inventory`]:
//! 1. it holds immutable files only;
//! 2. a name alone proves nothing: RocksDB counts file numbers on from wherever it was restored, so two lines of one
//!    shard may give one name to two files. A file counts as known if name and size match and it is the same inode, or
//!    else if its bytes have the checksum of what is there;
//! 3. it must describe a snapshot that is still retained. The caller adopts the inventory of a new snapshot only when a handle
//!    naming this snapshot came back from Spark: objects of a snapshot that no retained handle names are swept, and a later
//!    snapshot must not count on them. When the handle names a snapshot of another server, the inventory of that snapshot takes
//!    the place of this one ([`Inventory::with_identities_of`]).

use super::hardlink::LargeFile;
use fastchangelog_format::error::{Error, Result};
use fastchangelog_format::{Crc, Manifest, ManifestFile};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;

/// The files of one snapshot, by RocksDB name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Inventory {
    files: BTreeMap<String, Known>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Known {
    file: ManifestFile,
    /// Device and inode of the local file, once it was seen.
    identity: Option<(u64, u64)>,
}

impl Inventory {
    /// The files of a snapshot that was restored.
    pub fn from_manifest(manifest: &Manifest) -> Self {
        let tables = manifest.files.iter().filter(|f| super::hardlink::is_table(&f.name));
        Self { files: tables.map(|f| (f.name.clone(), Known { file: f.clone(), identity: None })).collect() }
    }

    /// The same files. A file that `other` knows at the same place keeps its identity, so that its bytes are not read
    /// again.
    #[must_use]
    pub fn with_identities_of(mut self, other: &Self) -> Self {
        for (name, known) in &mut self.files {
            if let Some(same) = other.files.get(name).filter(|same| same.file == known.file) {
                known.identity = same.identity;
            }
        }
        self
    }

    /// Number of files.
    pub fn len(&self) -> usize {
        self.files.len()
    }

    /// True when nothing is known: the next snapshot uploads everything.
    pub fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// The place of a RocksDB file in the bucket.
    pub fn get(&self, name: &str) -> Option<&ManifestFile> {
        self.files.get(name).map(|known| &known.file)
    }

    /// Remembers that `file` is at `place`; files that may change are not remembered (invariant 1).
    pub(super) fn insert(&mut self, file: &LargeFile, place: ManifestFile) {
        if file.is_immutable() {
            self.files.insert(file.name.clone(), Known { file: place, identity: Some(file.identity) });
        }
    }

    /// The place of exactly the bytes of `file`, if it is known. May read the whole file, the first time after a restore.
    pub(super) fn find(&self, file: &LargeFile) -> Result<Option<ManifestFile>> {
        let Some(known) = self.files.get(&file.name).filter(|known| known.file.size() == file.size) else {
            return Ok(None);
        };
        let same = known.identity == Some(file.identity) || crc_of(file)? == known.file.crc();
        Ok(same.then(|| known.file.clone()))
    }
}

fn crc_of(file: &LargeFile) -> Result<u32> {
    let failed = |e: &std::io::Error| Error::io_at("cannot read", &file.path, e);
    let mut reader = File::open(&file.path).map_err(|e| failed(&e))?;
    let mut buffer = vec![0; 1 << 20];
    let mut crc = Crc::new();
    loop {
        match reader.read(&mut buffer).map_err(|e| failed(&e))? {
            0 => return Ok(crc.value()),
            n => crc.update(&buffer[..n]),
        }
    }
}
