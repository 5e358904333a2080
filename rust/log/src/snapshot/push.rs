//! Uploading a snapshot: new files first, the manifest last.
//!
//! Owns: the order and the concurrency of the uploads of one materialization, and the local copies of uploaded files.
//! Does not own: retries and time limits (`store`), which version the snapshot belongs to, clearing the local folder.
//!
//! Steps, each of which may fail and then leaves no snapshot, only unnamed objects (garbage collection finds them):
//! 1. list the checkpoint, read its small files;
//! 2. upload each large file that the inventory does not know, small ones packed, [`CONCURRENT_FILES`] at a time and
//!    within the process's budget for the background;
//! 3. upload the manifest, which names the files of both kinds;
//! 4. only then there is a [`SnapshotRef`].

use super::hardlink::{self, LargeFile};
use super::inventory::Inventory;
use super::pack::{Plan, plan};
use crate::store::transfer::blocking;
use crate::store::{Background, LocalCopies, Store, manifest_name, pack_name, sst_name};
use bytes::Bytes;
use fastchangelog_format::error::{Error, Result};
use fastchangelog_format::model::{InstanceId, SnapshotRef, VersionId};
use fastchangelog_format::{Manifest, ManifestFile, PackedPart, crc32c, encode_manifest};
use fastchangelog_store::failpoint::Failpoints;
use fastchangelog_store::metrics::Metrics;
use futures::{StreamExt, stream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Files of one snapshot uploaded at the same time: enough to hide the store's latency, few enough that the parts in memory
/// stay below what the store's own bounds give per transfer, times this.
pub(super) const CONCURRENT_FILES: usize = 4;

/// How snapshots are uploaded.
#[derive(Clone)]
pub struct PushContext<'a> {
    /// Where to.
    pub store: &'a Store,
    /// Tables smaller than this share objects.
    pub pack_below: u64,
    /// What uploads of snapshots may take.
    pub background: &'a Background,
    /// Keeps copies of what goes up, for recovery on this machine.
    pub local_copies: Option<Arc<dyn LocalCopies>>,
    /// Failpoints of the process.
    pub failpoints: &'a Failpoints,
    /// Counters of the process.
    pub metrics: &'a Metrics,
}

/// What a snapshot is a snapshot of.
#[derive(Debug, Clone, Copy)]
pub struct Stamp {
    /// The state.
    pub instance: InstanceId,
    /// Newest version whose changes may be in it.
    pub version: VersionId,
    /// Newest version whose changes are all in it.
    pub replay_after: VersionId,
}

/// Uploads the checkpoint in `dir` as a snapshot; returns it with the inventory for the next one (see
/// [`Inventory`], invariant 3, for when to adopt that). With an empty inventory the snapshot shares nothing with others.
///
/// When one upload fails, those in progress are completed (a cancelled upload would leave parts that no listing
/// shows), no further one starts, and the first error is returned. A later push is independent of this one.
pub async fn push(
    how: &PushContext<'_>,
    dir: &Path,
    known: &Inventory,
    stamp: Stamp,
) -> Result<(SnapshotRef, Inventory)> {
    // 1. what is there, and what of it is known
    let (files, Plan { known, uploads }) = survey(dir, known, how.pack_below).await?;

    // 2. upload the others
    let mut places: Vec<Option<ManifestFile>> = vec![None; files.large.len()];
    for (index, place) in known {
        how.metrics.materialize_reused_bytes.add(place.size());
        places[index] = Some(place);
    }
    let failed = AtomicBool::new(false);
    // A list, not a lazy stream of closures: so the future stays `Send` for any lifetime.
    let running: Vec<_> = uploads
        .iter()
        .map(|upload| how.unless_failed(&failed, upload.iter().map(|i| &files.large[*i]).collect()))
        .collect();
    let results: Vec<Result<Vec<ManifestFile>>> = stream::iter(running).buffered(CONCURRENT_FILES).collect().await;
    for (upload, result) in uploads.iter().zip(results) {
        for (index, place) in upload.iter().zip(result?) {
            places[*index] = Some(place);
        }
    }

    // 3. the manifest; in order of names, so that equal checkpoints make equal manifests
    let mut inventory = Inventory::default();
    let Stamp { instance, version, replay_after } = stamp;
    let mut manifest =
        Manifest { instance, version, replay_after, files: Vec::with_capacity(files.large.len()), inline: files.small };
    for (file, place) in files.large.iter().zip(places) {
        let place = place.ok_or_else(|| Error::internal("a file of a snapshot was skipped without an error"))?;
        inventory.insert(file, place.clone());
        manifest.files.push(place);
    }
    let files_bytes: u64 = manifest.files.iter().map(ManifestFile::size).sum();
    how.failpoints.hit("snapshot.before-manifest")?;
    let slot = how.background.slot().await?;
    let object = how.store.put_new(&manifest_name(), vec![encode_manifest(&manifest)]).await?;
    drop(slot);
    how.metrics.materialize_bytes.add(object.size);
    how.failpoints.hit("snapshot.after-manifest")?;

    // 4. a snapshot
    let total_bytes = files_bytes + object.size;
    Ok((SnapshotRef { version, replay_after, manifest: object, total_bytes }, inventory))
}

/// The checkpoint's files, and what to do about the large ones. Reads the disk: off the runtime.
async fn survey(dir: &Path, known: &Inventory, below: u64) -> Result<(hardlink::CheckpointFiles, Plan)> {
    let dir = dir.to_owned();
    let known = known.clone();
    blocking(move || {
        let files = hardlink::list(&dir)?;
        let found = files.large.iter().map(|file| known.find(file)).collect::<Result<Vec<_>>>()?;
        let plan = plan(&files.large, found, below);
        Ok((files, plan))
    })
    .await
}

impl PushContext<'_> {
    /// The places of `files` after their upload; none when another upload has failed meanwhile.
    async fn unless_failed(&self, failed: &AtomicBool, files: Vec<&LargeFile>) -> Result<Vec<ManifestFile>> {
        let _slot = self.background.slot().await?;
        if failed.load(Ordering::Relaxed) {
            return Ok(Vec::new());
        }
        let result = match files[..] {
            [file] => self.upload(file).await.map(|place| vec![place]),
            _ => self.upload_packed(&files).await,
        };
        if result.is_err() {
            failed.store(true, Ordering::Relaxed);
        }
        result
    }

    async fn upload(&self, file: &LargeFile) -> Result<ManifestFile> {
        self.failpoints.hit("snapshot.before-sst")?;
        let object = self.store.put_file(&sst_name(), &file.path, Some(self.background)).await?;
        if object.size != file.size {
            return Err(changed(file, object.size));
        }
        self.metrics.materialize_bytes.add(object.size);
        if let Some(local_copies) = self.local_copies.clone().filter(|_| file.is_immutable()) {
            let (object, path) = (object.clone(), file.path.clone());
            blocking(move || local_copies.adopt(&object, &path)).await;
        }
        Ok(ManifestFile::whole(file.name.clone(), object))
    }

    async fn upload_packed(&self, files: &[&LargeFile]) -> Result<Vec<ManifestFile>> {
        self.failpoints.hit("snapshot.before-sst")?;
        let files: Vec<LargeFile> = files.iter().map(|file| (*file).clone()).collect();
        let (files, parts) = blocking(move || read_all(files)).await?;
        let object = self.store.put_paced(&pack_name(), parts.clone(), self.background).await?;
        self.metrics.materialize_bytes.add(object.size);
        self.metrics.materialize_packed_files.add(files.len() as u64);
        if let Some(local_copies) = self.local_copies.clone() {
            let (object, parts) = (object.clone(), parts.clone());
            blocking(move || local_copies.keep(&object, &parts)).await;
        }
        let mut offset = 0;
        let place = |(file, bytes): (LargeFile, Bytes)| {
            let part = PackedPart { offset, length: bytes.len() as u64, crc: crc32c(&bytes) };
            offset += part.length;
            ManifestFile { name: file.name, object: object.clone(), part: Some(part) }
        };
        Ok(files.into_iter().zip(parts).map(place).collect())
    }
}

fn read_all(files: Vec<LargeFile>) -> Result<(Vec<LargeFile>, Vec<Bytes>)> {
    let mut parts = Vec::with_capacity(files.len());
    for file in &files {
        let bytes = std::fs::read(&file.path)
            .map_err(|e| Error::io(format!("cannot read {} for its upload", file.path.display()), &e))?;
        if bytes.len() as u64 != file.size {
            return Err(changed(file, bytes.len() as u64));
        }
        parts.push(Bytes::from(bytes));
    }
    Ok((files, parts))
}

fn changed(file: &LargeFile, now: u64) -> Error {
    Error::internal(format!("`{}` changed from {} to {now} bytes during its upload", file.name, file.size))
}

#[cfg(test)]
#[path = "push_tests.rs"]
mod tests;
