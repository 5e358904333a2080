//! Uploading a base: new files first, the manifest last.
//!
//! Owns: the order and the concurrency of the uploads of one materialization.
//! Does not own: retries and time limits (`store`), which version the base belongs to, clearing the local folder.
//!
//! Steps, each of which may fail and then leaves no base, only objects nobody names (the sweep finds them):
//! 1. list the checkpoint, read its small files;
//! 2. upload each large file that the inventory does not know, [`CONCURRENT_FILES`] at a time;
//! 3. upload the manifest, which names the files of both kinds;
//! 4. only then there is a [`BaseRef`].

use super::hardlink::{self, LargeFile};
use super::inventory::Inventory;
use crate::error::{Error, Result};
use crate::failpoint::Failpoints;
use crate::format::{Manifest, ManifestFile, encode_manifest};
use crate::metrics::Metrics;
use crate::model::{BaseRef, InstanceId, ObjectRef, VersionId};
use crate::store::{Store, manifest_name, sst_name};
use futures::{StreamExt, stream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

/// Files uploaded at the same time: enough to hide the store's latency, few enough that the parts in memory stay below
/// what the store's own bounds give per transfer, times this.
pub(super) const CONCURRENT_FILES: usize = 4;

/// Uploads the checkpoint in `dir` as a base; returns it with the inventory for the next one (see
/// [`Inventory`], invariant 3, for when to adopt that).
///
/// When one upload fails, those under way are brought to their end (a cut-off upload would leave parts that no listing
/// shows), no further one starts, and the first error is returned. A later push is independent of this one.
#[expect(clippy::too_many_arguments, reason = "where to, what, what is known, three identities, two instruments")]
pub async fn push(
    store: &Store,
    dir: &Path,
    known: &Inventory,
    instance: InstanceId,
    version: VersionId,
    replay_after: VersionId,
    failpoints: &Failpoints,
    metrics: &Metrics,
) -> Result<(BaseRef, Inventory)> {
    // 1. what is there, and what of it is known
    let (files, objects) = survey(dir, known).await?;

    // 2. upload the others
    let way = Way { store, failpoints, metrics, failed: AtomicBool::new(false) };
    // A list, not a lazy stream of closures: so the future stays `Send` for any lifetime.
    let uploads: Vec<_> = files.large.iter().zip(objects).map(|(file, object)| way.place(file, object)).collect();
    // In order of names, so that equal checkpoints make equal manifests.
    let results: Vec<Result<Option<ObjectRef>>> = stream::iter(uploads).buffered(CONCURRENT_FILES).collect().await;
    let objects = results.into_iter().collect::<Result<Vec<_>>>()?;

    // 3. the manifest
    let mut inventory = Inventory::default();
    let mut manifest =
        Manifest { instance, version, replay_after, files: Vec::with_capacity(files.large.len()), inline: files.small };
    for (file, object) in files.large.iter().zip(objects) {
        let object = object.ok_or_else(|| Error::internal("a file of a base was skipped without an error"))?;
        inventory.insert(file, object.clone());
        manifest.files.push(ManifestFile { name: file.name.clone(), object });
    }
    let files_bytes: u64 = manifest.files.iter().map(|f| f.object.size).sum();
    failpoints.hit("snapshot.before-manifest")?;
    let object = store.put_new(&manifest_name(), vec![encode_manifest(&manifest)]).await?;
    metrics.materialize_bytes.add(object.size);
    failpoints.hit("snapshot.after-manifest")?;

    // 4. a base
    let total_bytes = files_bytes + object.size;
    Ok((BaseRef { version, replay_after, manifest: object, total_bytes }, inventory))
}

/// The checkpoint's files, and for each large one the object that already holds it. Reads the disk: off the runtime.
async fn survey(dir: &Path, known: &Inventory) -> Result<(hardlink::CheckpointFiles, Vec<Option<ObjectRef>>)> {
    let dir = dir.to_owned();
    let known = known.clone();
    let survey = move || {
        let files = hardlink::list(&dir)?;
        let objects = files.large.iter().map(|file| known.find(file)).collect::<Result<Vec<_>>>()?;
        Ok((files, objects))
    };
    tokio::task::spawn_blocking(survey).await.map_err(Error::internal)?
}

/// What all uploads of one push share.
struct Way<'a> {
    store: &'a Store,
    failpoints: &'a Failpoints,
    metrics: &'a Metrics,
    failed: AtomicBool,
}

impl Way<'_> {
    /// The object of a file: the known one, else a new one; none when another upload has failed meanwhile.
    async fn place(&self, file: &LargeFile, known: Option<ObjectRef>) -> Result<Option<ObjectRef>> {
        if let Some(object) = known {
            self.metrics.materialize_reused_bytes.add(object.size);
            return Ok(Some(object));
        }
        if self.failed.load(Ordering::Relaxed) {
            return Ok(None);
        }
        let result = self.upload(file).await;
        if result.is_err() {
            self.failed.store(true, Ordering::Relaxed);
        }
        result.map(Some)
    }

    async fn upload(&self, file: &LargeFile) -> Result<ObjectRef> {
        self.failpoints.hit("snapshot.before-sst")?;
        let object = self.store.put_file(&sst_name(), &file.path).await?;
        if object.size != file.size {
            let message =
                format!("`{}` changed from {} to {} bytes during its upload", file.name, file.size, object.size);
            return Err(Error::internal(message));
        }
        self.metrics.materialize_bytes.add(object.size);
        Ok(object)
    }
}

#[cfg(test)]
#[path = "push_tests.rs"]
mod tests;
