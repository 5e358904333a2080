//! Local copies of objects: one download, many readers, a bound on bytes.
//!
//! Owns: the files of one folder, their reference counts, and eviction.
//! Does not own: deletion in the store; the meaning of the objects.
//!
//! Invariants of [`ObjectCache`]:
//! 1. concurrent requests for an object share one download; no request waits for another object's download;
//! 2. a failed download leaves no file; every request that waited for it gets its error; later requests try again;
//! 3. a leased file is never evicted, and a lease is released exactly once, by its drop;
//! 4. without leases the files hold at most `max_bytes`, least recently used ones go first;
//! 5. a file that was not written or verified by this process is verified before its first lease; damage found later
//!    ([`Lease::invalidate`]) removes the file from the cache, so that the next lease downloads it again;
//! 6. [`ObjectCache::keep`] and [`ObjectCache::adopt`] never fail: without a copy there is still the store;
//! 7. a file in the folder has an entry in the table from before it appears until it is gone; a lookup during placement
//!    does not see the file as present;
//! 8. a downloaded file is removed when it was not used for the idle timeout, counted from its last use; files kept for
//!    recovery on this machine stay.
//!
//! One cache to a folder: a second one, in this process or another, would take the first one's files for its own. A
//! state server has its folder to itself; `cache_dirs` of the plain changelog ensures it elsewhere.

use super::cached_file::{Key, is_intact, key_of, size_of_name};
use crate::store::transfer::{TEMP_SUFFIX, TempFile, blocking};
use crate::store::{DownloadError, LocalCopies, Store};
use crate::sync::{Mutex, spawn};
use bytes::Bytes;
use fastchangelog_format::clock::SharedClock;
use fastchangelog_format::error::{Error, Result};
use fastchangelog_format::model::ObjectRef;
use fastchangelog_store::metrics::SharedMetrics;
use futures::FutureExt;
use futures::future::Shared;
use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;

/// How long a download stays without a use: long enough for the restore of a neighbour shard to share it.
pub const IDLE_TIMEOUT: Duration = Duration::from_mins(10);

type Loading = Shared<oneshot::Receiver<Result<(), DownloadError>>>;

#[derive(Debug)]
struct Slot {
    size: u64,
    leases: u32,
    /// Its key in `idle` while it has no lease.
    idle_since: Option<u64>,
    /// When it became idle.
    idle_at: Duration,
    /// Tells this file from a later one of the same key.
    id: u64,
    /// A download or verification in progress.
    loading: Option<Loading>,
    /// True while a thread that has the content places the file.
    placing: bool,
    /// True once the file is there.
    present: bool,
    /// True if it was downloaded, not kept by an upload.
    fetched: bool,
    /// False for a file of an earlier process whose content is not verified yet.
    verified: bool,
}

#[derive(Debug, Default)]
struct Table {
    slots: HashMap<Key, Slot>,
    /// Files without a lease, the least recently used first.
    idle: BTreeMap<u64, Key>,
    bytes: u64,
    /// Counts uses and files.
    tick: u64,
}

impl Slot {
    /// A slot without a file or a lease.
    fn new(size: u64, id: u64) -> Self {
        Self {
            size,
            leases: 0,
            idle_since: None,
            idle_at: Duration::ZERO,
            id,
            loading: None,
            placing: false,
            present: false,
            fetched: false,
            verified: false,
        }
    }
}

/// Local copies of objects of any number of states.
pub struct ObjectCache {
    dir: PathBuf,
    max_bytes: u64,
    metrics: SharedMetrics,
    table: Mutex<Table>,
    idle_clock: Option<SharedClock>,
    /// Excludes other processes from the folder while it is open.
    claim: Option<File>,
}

impl std::fmt::Debug for ObjectCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let claimed = self.claim.is_some();
        f.debug_struct("ObjectCache").field("dir", &self.dir).field("claimed", &claimed).finish_non_exhaustive()
    }
}

/// A local copy that stays while this exists.
#[derive(Debug)]
pub struct Lease {
    cache: Arc<ObjectCache>,
    key: Key,
    id: u64,
    path: PathBuf,
    object: ObjectRef,
    /// The object with its store, for messages.
    full_name: String,
}

impl ObjectCache {
    /// A cache in the folder `dir` of at most `max_bytes`; copies that an earlier process left there are taken over.
    pub fn new(dir: &Path, max_bytes: u64, metrics: SharedMetrics) -> Result<Arc<Self>> {
        let failed = |e: std::io::Error| Error::io(format!("cannot use {} for local copies", dir.display()), &e);
        std::fs::create_dir_all(dir).map_err(failed)?;
        let mut found = Vec::new();
        for entry in std::fs::read_dir(dir).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let name = entry.file_name();
            let Some(name) = name.to_str() else { continue };
            if name.ends_with(TEMP_SUFFIX) {
                let _ = std::fs::remove_file(entry.path());
                continue;
            }
            let (Some(size), Ok(meta)) = (size_of_name(name), entry.metadata()) else { continue };
            if meta.len() == size {
                found.push((meta.modified().ok(), Key::from(name), size));
            } else {
                let _ = std::fs::remove_file(entry.path());
            }
        }
        found.sort();
        let this =
            Self { dir: dir.to_owned(), max_bytes, metrics, table: Mutex::default(), idle_clock: None, claim: None };
        {
            let mut table = this.table.lock();
            for (_, key, size) in found {
                table.tick += 1;
                let slot = Slot { present: true, ..Slot::new(size, table.tick) };
                table.bytes += size;
                table.slots.insert(Arc::clone(&key), slot);
                this.set_idle(&mut table, &key);
            }
        }
        Ok(Arc::new(this))
    }

    /// The same cache, whose downloads are removed when unused for [`IDLE_TIMEOUT`]; see [`ObjectCache::evict_idle`].
    ///
    /// # Panics
    /// If the cache is in use already.
    #[must_use]
    pub fn with_idle_timeout(mut self: Arc<Self>, clock: SharedClock) -> Arc<Self> {
        Arc::get_mut(&mut self).expect("the cache is not shared yet").idle_clock = Some(clock);
        self
    }

    /// The same cache, which keeps `claim` open as long as it is used.
    ///
    /// # Panics
    /// If the cache is in use already.
    #[must_use]
    pub fn with_claim(mut self: Arc<Self>, claim: File) -> Arc<Self> {
        Arc::get_mut(&mut self).expect("the cache is not shared yet").claim = Some(claim);
        self
    }

    /// Removes the downloads that were not used for the idle timeout. The owner of the cache calls it periodically.
    pub fn evict_idle(&self) {
        let Some(clock) = &self.idle_clock else { return };
        let (mut table, now) = (self.table.lock(), clock.monotonic());
        let is_old = |slot: &Slot| slot.fetched && now.saturating_sub(slot.idle_at) >= IDLE_TIMEOUT;
        let old: Vec<Key> =
            table.idle.values().filter(|key| table.slots.get(*key).is_some_and(is_old)).cloned().collect();
        old.iter().for_each(|key| self.evict(&mut table, key));
    }

    /// The local copy of `object`, downloaded if there is none.
    pub async fn lease(self: &Arc<Self>, store: &Store, object: &ObjectRef) -> Result<Lease> {
        self.try_lease(store, object).await.map_err(DownloadError::into_inner)
    }

    /// [`ObjectCache::lease`], telling the local disk's faults from the store's.
    pub async fn try_lease(self: &Arc<Self>, store: &Store, object: &ObjectRef) -> Result<Lease, DownloadError> {
        let key = key_of(store.uri(), object);
        // The lease exists before the file, so that nothing can evict an awaited file.
        let (lease, loading) = {
            let mut table = self.table.lock();
            let (id, loading) = self.enter(&mut table, &key, store, object);
            (self.lease_of(&key, id, store.uri(), object), loading)
        };
        let Some(loading) = loading else { return Ok(lease) };
        match loading.await {
            Ok(Ok(())) => Ok(lease),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(DownloadError::Local(Error::retryable(format!(
                "the download of `{}` was cancelled because the state server is shutting down",
                object.name
            )))),
        }
    }

    fn lease_of(self: &Arc<Self>, key: &Key, id: u64, uri: &str, object: &ObjectRef) -> Lease {
        Lease {
            cache: Arc::clone(self),
            key: Arc::clone(key),
            id,
            path: self.dir.join(&**key),
            object: object.clone(),
            full_name: format!("{uri}/{}", object.name),
        }
    }

    /// Counts a lease of `key`, starting its download if need be.
    fn enter(
        self: &Arc<Self>,
        table: &mut Table,
        key: &Key,
        store: &Store,
        object: &ObjectRef,
    ) -> (u64, Option<Loading>) {
        if let Some(slot) = table.slots.get_mut(key) {
            slot.leases += 1;
            if let Some(since) = slot.idle_since.take() {
                table.idle.remove(&since);
            }
            self.metrics.cache_hits.add(1);
            if slot.loading.is_none() && !slot.verified {
                // A placement in progress may still fail: this download replaces its file, or is replaced by it.
                slot.loading = Some(self.start_loading(key, slot.id, slot.present, store, object));
            }
            return (slot.id, slot.loading.clone());
        }
        self.metrics.cache_misses.add(1);
        self.evict_for(table, object.size);
        table.bytes += object.size;
        self.metrics.cache_bytes.set(table.bytes);
        table.tick += 1;
        let id = table.tick;
        let loading = Some(self.start_loading(key, id, false, store, object));
        let slot = Slot { leases: 1, loading: loading.clone(), fetched: true, ..Slot::new(object.size, id) };
        table.slots.insert(Arc::clone(key), slot);
        (id, loading)
    }

    fn start_loading(self: &Arc<Self>, key: &Key, id: u64, known: bool, store: &Store, object: &ObjectRef) -> Loading {
        let (sender, receiver) = oneshot::channel();
        let (this, key, store, object) = (Arc::clone(self), Arc::clone(key), store.clone(), object.clone());
        // A task of its own: the first caller may be dropped without affecting the others.
        spawn(async move {
            let result = this.load(&key, known, &store, &object).await;
            this.loaded(&key, id, result.is_ok());
            let _ = sender.send(result);
        });
        receiver.shared()
    }

    async fn load(&self, key: &Key, known: bool, store: &Store, object: &ObjectRef) -> Result<(), DownloadError> {
        let path = self.dir.join(&**key);
        if known {
            let (file, object) = (path.clone(), object.clone());
            if blocking(move || is_intact(&file, &object)).await {
                return Ok(());
            }
            self.metrics.cache_damaged.add(1);
            let _ = std::fs::remove_file(&path);
        }
        store.download(object, &path).await
    }

    fn loaded(&self, key: &Key, id: u64, ok: bool) {
        let mut table = self.table.lock();
        let Some(slot) = table.slots.get_mut(key).filter(|slot| slot.id == id) else { return };
        slot.loading = None;
        // A failed one took the file away that it found damaged; one that was placed meanwhile is sound.
        slot.present = ok || (slot.present && slot.verified);
        slot.verified = slot.present;
        self.remove_or_idle(&mut table, key);
    }

    /// Removes a slot without a file, or marks an unused one as idle, after a download, a placing or a lease has ended.
    fn remove_or_idle(&self, table: &mut Table, key: &Key) {
        let Some(slot) = table.slots.get(key).filter(|slot| slot.loading.is_none() && !slot.placing) else { return };
        if !slot.present {
            self.forget(table, key);
            let _ = std::fs::remove_file(self.dir.join(&**key));
        } else if slot.leases == 0 {
            self.set_idle(table, key);
        }
    }

    /// Takes the slot out of the table; its file is the caller's business.
    fn forget(&self, table: &mut Table, key: &Key) {
        if let Some(slot) = table.slots.remove(key) {
            table.bytes = table.bytes.saturating_sub(slot.size);
            self.metrics.cache_bytes.set(table.bytes);
            if let Some(since) = slot.idle_since {
                table.idle.remove(&since);
            }
        }
    }

    fn set_idle(&self, table: &mut Table, key: &Key) {
        table.tick += 1;
        let tick = table.tick;
        if let Some(slot) = table.slots.get_mut(key) {
            slot.idle_since = Some(tick);
            slot.idle_at = self.idle_clock.as_ref().map_or(Duration::ZERO, |clock| clock.monotonic());
            table.idle.insert(tick, Arc::clone(key));
        }
        self.evict_for(table, 0);
    }

    /// Evicts until `more` bytes fit, or nothing is left that may go.
    fn evict_for(&self, table: &mut Table, more: u64) {
        while table.bytes.saturating_add(more) > self.max_bytes {
            let Some((_, key)) = table.idle.pop_first() else { break };
            self.evict(table, &key);
        }
        self.metrics.cache_bytes.set(table.bytes);
    }

    fn evict(&self, table: &mut Table, key: &Key) {
        self.forget(table, key);
        let _ = std::fs::remove_file(self.dir.join(&**key));
        self.metrics.cache_evictions.add(1);
    }

    fn release(&self, key: &Key, id: u64) {
        let mut table = self.table.lock();
        let Some(slot) = table.slots.get_mut(key).filter(|slot| slot.id == id) else { return };
        slot.leases = slot.leases.saturating_sub(1);
        self.remove_or_idle(&mut table, key);
    }

    /// Adds a file that appears by `place`, unless there is one already or no room.
    fn insert(self: &Arc<Self>, uri: &str, object: &ObjectRef, place: impl FnOnce(&Path) -> std::io::Result<()>) {
        let key = key_of(uri, object);
        if object.size > self.max_bytes {
            return;
        }
        let id = {
            let mut table = self.table.lock();
            if table.slots.contains_key(&key) {
                return;
            }
            self.evict_for(&mut table, object.size);
            table.bytes += object.size;
            self.metrics.cache_bytes.set(table.bytes);
            table.tick += 1;
            let slot = Slot { placing: true, ..Slot::new(object.size, table.tick) };
            table.slots.insert(Arc::clone(&key), slot);
            table.tick
        };
        let path = self.dir.join(&*key);
        let placed = place(&path);
        if let Err(error) = &placed {
            tracing::debug!(object = %object.name, %error, "no local copy is kept");
        }
        let mut table = self.table.lock();
        match table.slots.get_mut(&key) {
            Some(slot) if slot.id == id => {
                slot.placing = false;
                if placed.is_ok() {
                    (slot.present, slot.verified) = (true, true);
                }
                self.remove_or_idle(&mut table, &key);
            }
            // Another slot's file is as good as this one.
            Some(_) => {}
            // Invalidated by a caller that had downloaded it meanwhile.
            None => drop(std::fs::remove_file(&path)),
        }
    }

    /// Keeps a copy of an object of `store` from its bytes in memory.
    pub fn keep(self: &Arc<Self>, store: &Store, object: &ObjectRef, parts: &[Bytes]) {
        self.keep_at(store.uri(), object, parts);
    }

    fn keep_at(self: &Arc<Self>, uri: &str, object: &ObjectRef, parts: &[Bytes]) {
        self.insert(uri, object, |path| {
            let mut temp = TempFile::create(path)?;
            parts.iter().try_for_each(|part| temp.file.write_all(part))?;
            temp.publish(path)
        });
    }

    /// Removes the copy of an object that is not needed any more, unless it is leased now.
    pub fn discard(&self, store: &Store, object: &ObjectRef) {
        let key = key_of(store.uri(), object);
        let mut table = self.table.lock();
        if table.slots.get(&key).is_some_and(|slot| slot.idle_since.is_some()) {
            self.forget(&mut table, &key);
            let _ = std::fs::remove_file(self.dir.join(&*key));
        }
    }

    /// Keeps a copy of an object of the store `uri` whose content is the immutable local file `file`, by a hard link.
    pub fn adopt(self: &Arc<Self>, uri: &str, object: &ObjectRef, file: &Path) {
        self.insert(uri, object, |path| match std::fs::hard_link(file, path) {
            Err(e) if e.kind() != std::io::ErrorKind::AlreadyExists => Err(e),
            _ => Ok(()),
        });
    }

    /// This cache as the local copies of `store`'s uploads.
    pub fn local_copies(self: &Arc<Self>, store: &Store) -> Arc<dyn LocalCopies> {
        Arc::new(StoreCopies { cache: Arc::clone(self), uri: store.uri().to_owned() })
    }

    /// True when a copy is present or being downloaded.
    pub fn contains(&self, store: &Store, object: &ObjectRef) -> bool {
        let key = key_of(store.uri(), object);
        self.table.lock().slots.contains_key(&key)
    }

    /// Bytes of all copies.
    pub fn bytes(&self) -> u64 {
        self.table.lock().bytes
    }
}

#[derive(Debug)]
struct StoreCopies {
    cache: Arc<ObjectCache>,
    uri: String,
}

impl LocalCopies for StoreCopies {
    fn keep(&self, object: &ObjectRef, parts: &[Bytes]) {
        self.cache.keep_at(&self.uri, object, parts);
    }

    fn adopt(&self, object: &ObjectRef, file: &Path) {
        self.cache.adopt(&self.uri, object, file);
    }
}

impl Lease {
    /// The local file. It must not be changed; a hard link to it may outlive the lease.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads `length` bytes at `offset`; blocks.
    pub fn read_at(&self, offset: u64, length: u64) -> Result<Bytes> {
        offset.checked_add(length).filter(|end| *end <= self.object.size).ok_or_else(|| {
            let what = format!("{length} bytes were requested, but the object has {}", self.object.size);
            Error::corrupt(&self.full_name, offset, what)
        })?;
        let failed = |e: &std::io::Error| Error::io(format!("cannot read the local copy of {}", self.full_name), e);
        let length = usize::try_from(length).map_err(Error::internal)?;
        let mut bytes = vec![0; length];
        File::open(&self.path).and_then(|file| file.read_exact_at(&mut bytes, offset)).map_err(|e| failed(&e))?;
        Ok(bytes.into())
    }

    /// Verifies size and checksum of the whole file; blocks. False: [`Lease::invalidate`] it.
    pub fn is_intact(&self) -> bool {
        is_intact(&self.path, &self.object)
    }

    /// Says that the file is damaged: it leaves the cache, and the next lease downloads the object again.
    pub fn invalidate(self) {
        self.cache.metrics.cache_damaged.add(1);
        let mut table = self.cache.table.lock();
        if table.slots.get(&self.key).is_some_and(|slot| slot.id == self.id) {
            self.cache.forget(&mut table, &self.key);
            // Others that have it open keep reading what they opened.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.cache.release(&self.key, self.id);
    }
}

#[cfg(test)]
#[path = "cache_tests.rs"]
mod tests;
