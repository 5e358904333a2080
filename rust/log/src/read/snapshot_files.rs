//! Snapshots: the files of a materialized RocksDB checkpoint, fetched into a new folder.
//!
//! Owns: downloading or linking every file that a manifest names, verified.
//! Does not own: opening RocksDB, checking that the snapshot belongs to the handle's ancestry (`shard` does both).
//!
//! Invariant: when [`fetch_snapshot`] returns, the folder holds exactly the files of the manifest.

use super::cache::ObjectCache;
use super::packed::fetch_packed;
use crate::store::transfer::blocking;
use crate::store::{DownloadError, Store};
use fastchangelog_format::error::{Error, Result};
use fastchangelog_format::model::SnapshotRef;
use fastchangelog_format::{Manifest, ManifestFile, decode_manifest};
use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt, stream};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Files fetched at the same time.
const PARALLEL_FILES: usize = 4;

/// Fetches all files of `snapshot` into the folder `into`, which is there and empty. Returns the manifest. What a failure
/// leaves in the folder is the caller's to remove.
///
/// With a cache, cached files are linked, and fetched files are kept in it. `add_done` is called with the bytes of
/// each file that has arrived.
pub async fn fetch_snapshot(
    store: &Store,
    cache: Option<&Arc<ObjectCache>>,
    snapshot: &SnapshotRef,
    into: &Path,
    add_done: &(dyn Fn(u64) + Sync),
) -> Result<Manifest> {
    let manifest = fetch_manifest(store, snapshot).await?;
    place_inline(&manifest, into)?;
    add_done(snapshot.manifest.size);
    fetch_files(store, cache, &manifest, into, |_| true, add_done).await?;
    Ok(manifest)
}

/// The manifest of `snapshot`, checked to be its.
pub async fn fetch_manifest(store: &Store, snapshot: &SnapshotRef) -> Result<Manifest> {
    let bytes = store.get(&snapshot.manifest).await?;
    let name = format!("{}/{}", store.uri(), snapshot.manifest.name);
    let manifest = decode_manifest(&name, &bytes)?;
    if manifest.version != snapshot.version || manifest.replay_after != snapshot.replay_after {
        return Err(Error::corrupt(
            name,
            0,
            format!("it is the manifest of version {}, but the handle names {}", manifest.version, snapshot.version),
        ));
    }
    Ok(manifest)
}

/// Writes the files whose bytes are in the manifest.
pub(super) fn place_inline(manifest: &Manifest, into: &Path) -> Result<()> {
    for (name, content) in &manifest.inline {
        let file = into.join(name);
        std::fs::write(&file, content).map_err(|e| Error::io_at("cannot write", &file, &e))?;
    }
    Ok(())
}

/// Fetches the files of the manifest that `wanted` names, into the folder `into`. Returns their bytes.
pub(super) async fn fetch_files(
    store: &Store,
    cache: Option<&Arc<ObjectCache>>,
    manifest: &Manifest,
    into: &Path,
    wanted: impl Fn(&str) -> bool,
    add_done: &(dyn Fn(u64) + Sync),
) -> Result<u64> {
    let files: Vec<&ManifestFile> = manifest.files.iter().filter(|file| wanted(&file.name)).collect();
    let bytes = files.iter().map(|file| file.size()).sum();
    let mut packs: BTreeMap<&str, Vec<ManifestFile>> = BTreeMap::new();
    // A list, not a lazy stream of closures: so the future stays `Send` for any lifetime.
    let mut fetches: Vec<BoxFuture<'_, Result<()>>> = Vec::new();
    for file in files {
        if file.part.is_some() {
            packs.entry(&file.object.name).or_default().push(file.clone());
            continue;
        }
        let whole = async move {
            fetch_file(store, cache, file, into.join(&file.name)).await?;
            add_done(file.size());
            Ok(())
        };
        fetches.push(whole.boxed());
    }
    for files in packs.into_values() {
        let packed = async move {
            let bytes = files.iter().map(ManifestFile::size).sum();
            fetch_packed(store, cache, files, into.to_owned()).await?;
            add_done(bytes);
            Ok(())
        };
        fetches.push(packed.boxed());
    }
    all_of(fetches).await?;
    Ok(bytes)
}

fn unless<'a>(failed: &'a AtomicBool, fetch: BoxFuture<'a, Result<()>>) -> BoxFuture<'a, Result<()>> {
    async { if failed.load(Ordering::Relaxed) { Ok(()) } else { fetch.await } }.boxed()
}

/// Awaits all, some at a time. After a failure nothing more is started, and what is in flight is cancelled; failures that
/// occur at the same time are reported together.
async fn all_of(fetches: Vec<BoxFuture<'_, Result<()>>>) -> Result<()> {
    let failed = AtomicBool::new(false);
    let fetches: Vec<BoxFuture<'_, Result<()>>> = fetches.into_iter().map(|fetch| unless(&failed, fetch)).collect();
    let mut running = stream::iter(fetches).buffer_unordered(PARALLEL_FILES);
    let mut first = None;
    while let Some(result) = running.next().await {
        if let Err(error) = result {
            first = Some(error);
            break;
        }
    }
    let Some(first) = first else { return Ok(()) };
    failed.store(true, Ordering::Relaxed);
    let mut others: Vec<Error> = Vec::new();
    while let Some(Some(result)) = running.next().now_or_never() {
        if let Err(other) = result
            && !std::iter::once(&first).chain(&others).any(|known| known.says_the_same(&other))
        {
            others.push(other);
        }
    }
    Err(others.into_iter().fold(first, Error::and))
}

async fn fetch_file(
    store: &Store,
    cache: Option<&Arc<ObjectCache>>,
    file: &ManifestFile,
    target: PathBuf,
) -> Result<()> {
    if let Some(cache) = cache {
        for _ in 0..2 {
            let known = cache.contains(store, &file.object);
            let lease = match cache.try_lease(store, &file.object).await {
                Ok(lease) => lease,
                Err(DownloadError::Store(error)) => return Err(error),
                Err(DownloadError::Local(_)) => break,
            };
            let target = target.clone();
            let linked = blocking(move || {
                // What was downloaded just now has been verified; a copy that was here may have aged.
                if known && !lease.is_intact() {
                    lease.invalidate();
                    return None;
                }
                let link = std::fs::hard_link(lease.path(), &target);
                Some(link.or_else(|_| std::fs::copy(lease.path(), &target).map(|_| ())).is_ok())
            })
            .await;
            match linked {
                Some(true) => return Ok(()),
                Some(false) => break,
                None => {}
            }
        }
        let _ = std::fs::remove_file(&target);
    }
    store.get_to_file(&file.object, &target).await
}

#[cfg(test)]
#[path = "snapshot_files_tests.rs"]
mod tests;
