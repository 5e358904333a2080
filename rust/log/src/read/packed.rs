//! Files of a snapshot that share an object.
//!
//! Owns: the choice to fetch a packed object whole or in parts, and cutting verified files out of it.
//! Does not own: the choice of files (`snapshot`, `slice`), packing them (`snapshot`).
//!
//! Invariants:
//! 1. an object of which half or more is wanted, or a copy is here, is fetched once, through the cache if there is one;
//!    of others only the wanted files are;
//! 2. a file is written only if its bytes have its own checksum (P10).

use super::cache::{Lease, ObjectCache};
use crate::store::transfer::blocking;
use crate::store::{DownloadError, Store};
use bytes::Bytes;
use fastchangelog_format::error::{Error, ErrorKind, Result};
use fastchangelog_format::{ManifestFile, crc32c};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A larger object is never taken into memory whole.
const MAX_IN_MEMORY: u64 = 64 << 20;

/// Writes `files`, all of one packed object, into the folder `into`.
pub(super) async fn fetch_packed(
    store: &Store,
    cache: Option<&Arc<ObjectCache>>,
    files: Vec<ManifestFile>,
    into: PathBuf,
) -> Result<()> {
    let Some(object) = files.first().map(|file| file.object.clone()) else { return Ok(()) };
    let wanted: u64 = files.iter().map(ManifestFile::size).sum();
    let most = wanted.saturating_mul(2) >= object.size;
    if let Some(cache) = cache.filter(|cache| most || cache.contains(store, &object)) {
        for _ in 0..2 {
            let known = cache.contains(store, &object);
            let lease = match cache.try_lease(store, &object).await {
                Ok(lease) => lease,
                Err(DownloadError::Store(error)) => return Err(error),
                Err(DownloadError::Local(_)) => break,
            };
            let (files, into, name) = (files.clone(), into.clone(), name_of(store, &object.name));
            if blocking(move || cut_copy(lease, known, &files, &into, &name)).await? {
                return Ok(());
            }
        }
    } else if most && object.size <= MAX_IN_MEMORY {
        let (bytes, name) = (store.get(&object).await?, name_of(store, &object.name));
        return blocking(move || {
            files.iter().try_for_each(|file| {
                let part = place_of(file, &name)?;
                let bytes = bytes.slice(part);
                write_file(file, &bytes, &into, &name)
            })
        })
        .await;
    }
    for file in files {
        fetch_one(store, file, &into).await?;
    }
    Ok(())
}

fn name_of(store: &Store, name: &str) -> String {
    format!("{}/{name}", store.uri())
}

fn place_of(file: &ManifestFile, name: &str) -> Result<std::ops::Range<usize>> {
    let beyond = || Error::corrupt(name, 0, format!("`{}` is said to be beyond its end", file.name));
    let part = file.part.ok_or_else(|| Error::internal("a file of its own was taken for a packed one"))?;
    let end = part.offset.checked_add(part.length).filter(|end| *end <= file.object.size).ok_or_else(beyond)?;
    Ok(usize::try_from(part.offset).map_err(Error::internal)?..usize::try_from(end).map_err(Error::internal)?)
}

/// Cuts the files out of a local copy. False if the copy is of no use: it was damaged, or cannot be read.
fn cut_copy(lease: Lease, known: bool, files: &[ManifestFile], into: &Path, name: &str) -> Result<bool> {
    // What was downloaded just now has been verified; a copy that was here may have aged.
    if known && !lease.is_intact() {
        lease.invalidate();
        return Ok(false);
    }
    for file in files {
        let place = place_of(file, name)?;
        let Ok(bytes) = lease.read_at(place.start as u64, place.len() as u64) else { return Ok(false) };
        write_file(file, &bytes, into, name)?;
    }
    Ok(true)
}

async fn fetch_one(store: &Store, file: ManifestFile, into: &Path) -> Result<()> {
    let name = name_of(store, &file.object.name);
    let place = place_of(&file, &name)?;
    let mut again = true;
    loop {
        let bytes = store.get_range(&file.object, place.start as u64, place.len() as u64).await?;
        let (into, name, wanted) = (into.to_owned(), name.clone(), file.clone());
        match blocking(move || write_file(&wanted, &bytes, &into, &name)).await {
            // Damaged on the way, perhaps: once more.
            Err(error) if error.kind() == ErrorKind::Corrupt && again => again = false,
            result => return result,
        }
    }
}

fn write_file(file: &ManifestFile, bytes: &Bytes, into: &Path, name: &str) -> Result<()> {
    let found = crc32c(bytes);
    if found != file.crc() {
        let at = file.part.map_or(0, |part| part.offset);
        let what = format!("checksum {found:08x} of `{}` in it, but {:08x} was written", file.name, file.crc());
        return Err(Error::corrupt(name, at, what));
    }
    let target = into.join(&file.name);
    std::fs::write(&target, bytes).map_err(|e| Error::io_at("cannot write", &target, &e))
}

#[cfg(test)]
#[path = "packed_tests.rs"]
mod tests;
