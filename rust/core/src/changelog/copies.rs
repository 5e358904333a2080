//! The folders of local copies that this process uses.
//!
//! Owns: one cache to a folder, however many storages and readers name it; a place of its own for each process that names
//! the same; the time at which downloads that nobody uses are removed.
//! Does not own: the copies (`read::cache`).
//!
//! Invariants:
//! 1. two caches never share a folder, whichever processes they are in: a cache takes what it finds for its own;
//! 2. a place is free again when the last reader and storage that uses it is gone, or its process is.

use crate::clock::SharedClock;
use crate::config::Options;
use crate::error::{Error, Result};
use crate::metrics::SharedMetrics;
use crate::read::ObjectCache;
use parking_lot::Mutex;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use std::collections::HashMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock, Weak};
use std::time::Duration;

/// Processes that may name the same folder.
const MOST_PLACES: usize = 64;
/// Pauses between two looks for downloads that nobody uses.
const LOOK: Duration = Duration::from_secs(15);

static FOLDERS: LazyLock<Mutex<Folders>> = LazyLock::new(Mutex::default);

#[derive(Default)]
struct Folders {
    caches: HashMap<PathBuf, Weak<ObjectCache>>,
    /// True while a thread looks for downloads that nobody uses.
    watched: bool,
}

/// The cache of the folder `dir`. Options, counters and time are those of whoever names the folder first.
pub(super) fn open(
    dir: &Path,
    options: &Options,
    metrics: &SharedMetrics,
    clock: &SharedClock,
) -> Result<Arc<ObjectCache>> {
    std::fs::create_dir_all(dir).map_err(|e| unusable(dir, &e))?;
    let dir = std::fs::canonicalize(dir).map_err(|e| unusable(dir, &e))?;
    let mut folders = FOLDERS.lock();
    if let Some(cache) = folders.caches.get(&dir).and_then(Weak::upgrade) {
        return Ok(cache);
    }
    let (place, claim) = claim(&dir)?;
    let cache = ObjectCache::new(&place, options.cache_size, Arc::clone(metrics))?
        .with_idle_timeout(options.cache_idle_timeout, Arc::clone(clock))
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

/// The first place in `dir` that no other process has: the folder itself, or one below it.
fn claim(dir: &Path) -> Result<(PathBuf, File)> {
    for number in 0..MOST_PLACES {
        let place = if number == 0 { dir.to_owned() } else { dir.join(number.to_string()) };
        std::fs::create_dir_all(&place).map_err(|e| unusable(&place, &e))?;
        // A lock of the folder itself: nothing in it is not a copy.
        let folder = File::open(&place).map_err(|e| unusable(&place, &e))?;
        match flock(&folder, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok((place, folder)),
            Err(Errno::WOULDBLOCK) => {}
            Err(e) => return Err(unusable(&place, &e.into())),
        }
    }
    Err(Error::invalid(format!(
        "{} is used for local copies by {MOST_PLACES} other processes; give this one a folder of its own",
        dir.display()
    )))
}

/// Removes what nobody uses, until there is no cache any more.
fn watch() {
    loop {
        std::thread::sleep(LOOK);
        if !look() {
            return;
        }
    }
}

/// One look at all caches; false when there is none any more.
fn look() -> bool {
    let mut folders = FOLDERS.lock();
    folders.caches.retain(|_, cache| cache.strong_count() > 0);
    folders.watched &= !folders.caches.is_empty();
    // With the lock held: a place is not free while its cache is looked at.
    folders.caches.values().filter_map(Weak::upgrade).for_each(|cache| cache.evict_idle());
    folders.watched
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::ManualClock;
    use crate::failpoint::Failpoints;
    use crate::model::ObjectRef;
    use crate::read::Lease;
    use crate::store::Store;
    use bytes::Bytes;

    fn at(dir: &Path) -> Arc<ObjectCache> {
        open(dir, &Options::default(), &SharedMetrics::default(), &(ManualClock::at(0) as _)).unwrap()
    }

    #[test]
    fn invariant_1_one_cache_to_a_folder_and_a_place_to_a_process() {
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
    fn invariant_2_a_place_is_free_when_nobody_uses_it() {
        let dir = tempfile::tempdir().unwrap();
        let cache = at(dir.path());
        let (_, _, lease) = leased(&cache, "copies");
        drop(cache);
        let root = std::fs::canonicalize(dir.path()).unwrap();
        assert_ne!(claim(&root).unwrap().0, root, "a lease uses it");
        drop(lease);
        // Another test, or the thread that looks for idle copies, may be looking at it.
        let _nobody_looks = FOLDERS.lock();
        assert_eq!(claim(&root).unwrap().0, root);
    }

    #[test]
    fn downloads_that_nobody_uses_go() {
        let dir = tempfile::tempdir().unwrap();
        let clock = ManualClock::at(0);
        let clocked: SharedClock = Arc::clone(&clock) as _;
        let cache = open(dir.path(), &Options::default(), &SharedMetrics::default(), &clocked).unwrap();
        let (store, object, lease) = leased(&cache, "idle");
        drop(lease);
        assert!(look() && cache.contains(&store, &object));
        clock.advance(Options::default().cache_idle_timeout);
        assert!(look() && !cache.contains(&store, &object));
    }
}
