//! The cache directories of this process.
//!
//! Owns: one cache per folder, however many storages and readers name it; a subfolder of its own for each process that
//! names the same folder; the periodic removal of unused downloads.
//! Does not own: the cached files (`read::cache`).
//!
//! Invariants:
//! 1. two caches never share a folder, even across processes: a cache takes over all files that it finds;
//! 2. a folder is free again when the last reader and storage that uses it is dropped, or its process has ended.

use fastchangelog_format::clock::SharedClock;
use fastchangelog_format::config::Options;
use fastchangelog_format::error::{Error, Result};
use fastchangelog_log::read::ObjectCache;
use fastchangelog_store::forked::PerProcess;
use fastchangelog_store::metrics::SharedMetrics;
use parking_lot::Mutex;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use std::collections::HashMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Processes that may name the same folder.
const MAX_DIRS: usize = 64;
/// Interval between two checks for unused downloads.
const CHECK_INTERVAL: Duration = Duration::from_secs(15);

/// Those of a parent are not a forked child's: it claims folders of its own.
static CACHE_DIRS: PerProcess<Mutex<CacheDirs>> = PerProcess::new(Mutex::default);

#[derive(Default)]
struct CacheDirs {
    caches: HashMap<PathBuf, Weak<ObjectCache>>,
    /// True while a thread checks for unused downloads.
    watched: bool,
}

/// The cache of the folder `dir`. Options, counters and clock are those of the first caller that names the folder.
pub(super) fn open(
    dir: &Path,
    options: &Options,
    metrics: &SharedMetrics,
    clock: &SharedClock,
) -> Result<Arc<ObjectCache>> {
    std::fs::create_dir_all(dir).map_err(|e| unusable(dir, &e))?;
    let dir = std::fs::canonicalize(dir).map_err(|e| unusable(dir, &e))?;
    let mut folders = CACHE_DIRS.get().lock();
    if let Some(cache) = folders.caches.get(&dir).and_then(Weak::upgrade) {
        return Ok(cache);
    }
    let (place, claim) = claim(&dir)?;
    let cache = ObjectCache::new(&place, options.cache_size, Arc::clone(metrics))?
        .with_idle_timeout(Arc::clone(clock))
        .with_claim(claim);
    folders.caches.insert(dir, Arc::downgrade(&cache));
    if !folders.watched {
        folders.watched = std::thread::Builder::new().name("fastchangelog-copies".to_owned()).spawn(watch).is_ok();
    }
    Ok(cache)
}

fn unusable(dir: &Path, error: &std::io::Error) -> Error {
    Error::io(format!("cannot use {} for local copies", dir.display()), error)
}

/// The first folder that no other process has claimed: `dir` itself, or one below it.
fn claim(dir: &Path) -> Result<(PathBuf, File)> {
    for number in 0..MAX_DIRS {
        let place = if number == 0 { dir.to_owned() } else { dir.join(number.to_string()) };
        std::fs::create_dir_all(&place).map_err(|e| unusable(&place, &e))?;
        // A lock of the folder itself: a lock file would look like a cached file.
        let folder = File::open(&place).map_err(|e| unusable(&place, &e))?;
        match flock(&folder, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok((place, folder)),
            Err(Errno::WOULDBLOCK) => {}
            Err(e) => return Err(unusable(&place, &e.into())),
        }
    }
    Err(Error::invalid(format!("{} is used for local copies by {MAX_DIRS} other processes", dir.display()))
        .with_remedy("give this one a folder of its own"))
}

/// Removes unused downloads until there is no cache any more.
fn watch() {
    loop {
        std::thread::sleep(CHECK_INTERVAL);
        if !check_all() {
            return;
        }
    }
}

/// Checks all caches once; false when there is none any more.
fn check_all() -> bool {
    let mut folders = CACHE_DIRS.get().lock();
    folders.caches.retain(|_, cache| cache.strong_count() > 0);
    folders.watched &= !folders.caches.is_empty();
    // With the lock held: a folder is not free while its cache is checked.
    folders.caches.values().filter_map(Weak::upgrade).for_each(|cache| cache.evict_idle());
    folders.watched
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use fastchangelog_format::clock::ManualClock;
    use fastchangelog_format::model::ObjectRef;
    use fastchangelog_log::read::{IDLE_TIMEOUT, Lease};
    use fastchangelog_store::Store;
    use fastchangelog_store::failpoint::Failpoints;

    fn at(dir: &Path) -> Arc<ObjectCache> {
        open(dir, &Options::default(), &SharedMetrics::default(), &(ManualClock::at(0) as _)).unwrap()
    }

    #[test]
    fn invariant_1_one_cache_per_folder_and_one_folder_per_process() {
        let dir = tempfile::tempdir().unwrap();
        let (one, same) = (at(dir.path()), at(&dir.path().join("x/..")));
        assert!(Arc::ptr_eq(&one, &same));
        // Another process: its lock is of another open file.
        let other = claim(&std::fs::canonicalize(dir.path()).unwrap()).unwrap();
        assert!(other.0.ends_with("1") && claim(&other.0).unwrap().0.ends_with("1/1"));
    }

    /// A lease of a new object, with what it is of.
    fn leased(cache: &Arc<ObjectCache>, name: &str) -> (Store, ObjectRef, Lease) {
        let (options, metrics) = (Options::default(), SharedMetrics::default());
        let store =
            Store::open(&format!("memory://{name}"), &[].into(), &options, metrics, Failpoints::none()).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let object = store.put_new("log/a", vec![Bytes::from_static(b"a")]).await.unwrap();
            let lease = cache.lease(&store, &object).await.unwrap();
            (store, object, lease)
        })
    }

    #[test]
    fn invariant_2_an_unused_folder_is_free() {
        let dir = tempfile::tempdir().unwrap();
        let cache = at(dir.path());
        let (_, _, lease) = leased(&cache, "copies");
        drop(cache);
        let root = std::fs::canonicalize(dir.path()).unwrap();
        assert_ne!(claim(&root).unwrap().0, root, "a lease uses it");
        drop(lease);
        // Another test, or the thread that checks for idle copies, may be using it.
        let _no_check = CACHE_DIRS.get().lock();
        assert_eq!(claim(&root).unwrap().0, root);
    }

    #[test]
    fn unused_downloads_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let clock = ManualClock::at(0);
        let clocked: SharedClock = Arc::clone(&clock) as _;
        let cache = open(dir.path(), &Options::default(), &SharedMetrics::default(), &clocked).unwrap();
        let (store, object, lease) = leased(&cache, "idle");
        drop(lease);
        assert!(check_all() && cache.contains(&store, &object));
        clock.advance(IDLE_TIMEOUT);
        assert!(check_all() && !cache.contains(&store, &object));
    }
}
