//! Local copies of objects: one download, many readers, a bound on bytes.
//!
//! Owns: the files of one folder, their reference counts, and what is evicted.
//! Does not own: deleting anything in the store; what the objects mean.
//!
//! Invariants of [`ObjectCache`]:
//! 1. however many ask for an object at once, it is downloaded once; nobody waits for another object's download;
//! 2. a failed download leaves no file, and everybody who waited for it gets its error; whoever asks later tries again;
//! 3. a leased file is never evicted, and a lease is given back exactly once, by its drop;
//! 4. without leases the files hold at most `max_bytes`, least recently used ones go first;
//! 5. a file that was not written or verified by this process is verified before its first lease; damage found later
//!    ([`Lease::condemn`]) removes the file from the cache, so that the next lease downloads it again;
//! 6. [`ObjectCache::keep`] and [`ObjectCache::adopt`] never fail: without a copy there is still the store.

use crate::error::{Error, Result};
use crate::format::Crc;
use crate::metrics::SharedMetrics;
use crate::model::ObjectRef;
use crate::store::transfer::{TEMP_SUFFIX, TempFile, blocking};
use crate::store::{DownloadError, LocalTwin, Store};
use bytes::Bytes;
use futures::FutureExt;
use futures::future::Shared;
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::sync::oneshot;

/// Which copy: by the object's full name, size and checksum; also the copy's file name.
type Key = Arc<str>;
type Loading = Shared<oneshot::Receiver<Result<(), DownloadError>>>;

const SUFFIX: &str = ".copy";

#[derive(Debug)]
struct Slot {
    size: u64,
    leases: u32,
    /// Its key in `idle`, when nobody has leased it.
    idle_since: Option<u64>,
    /// Tells this file from a later one of the same key.
    id: u64,
    /// None once the file is there.
    loading: Option<Loading>,
    /// False for a file of an earlier process whose content nobody has verified yet.
    verified: bool,
}

#[derive(Debug, Default)]
struct Table {
    slots: HashMap<Key, Slot>,
    /// Files that nobody has leased, the least recently used first.
    idle: BTreeMap<u64, Key>,
    bytes: u64,
    /// Counts uses and files.
    tick: u64,
}

/// Local copies of objects of any number of states.
#[derive(Debug)]
pub struct ObjectCache {
    dir: PathBuf,
    max_bytes: u64,
    metrics: SharedMetrics,
    table: Mutex<Table>,
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

fn key_of(uri: &str, object: &ObjectRef) -> Key {
    let name = xxhash_rust::xxh3::xxh3_128(format!("{uri}\n{}", object.name).as_bytes());
    format!("{name:032x}-{:x}-{:08x}{SUFFIX}", object.size, object.crc).into()
}

/// Size and checksum that a copy's file name promises.
fn parse_name(name: &str) -> Option<(u64, u32)> {
    let mut parts = name.strip_suffix(SUFFIX)?.split('-');
    let (hash, size, crc) = (parts.next()?, parts.next()?, parts.next()?);
    let size = u64::from_str_radix(size, 16).ok()?;
    let crc = u32::from_str_radix(crc, 16).ok().filter(|_| crc.len() == 8)?;
    (hash.len() == 32 && parts.next().is_none()).then_some((size, crc))
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
            let (Some((size, _)), Ok(meta)) = (parse_name(name), entry.metadata()) else { continue };
            if meta.len() == size {
                found.push((meta.modified().ok(), Key::from(name), size));
            } else {
                let _ = std::fs::remove_file(entry.path());
            }
        }
        found.sort();
        let this = Self { dir: dir.to_owned(), max_bytes, metrics, table: Mutex::default() };
        {
            let mut table = this.table.lock();
            for (_, key, size) in found {
                table.tick += 1;
                let slot = Slot { size, leases: 0, idle_since: None, id: table.tick, loading: None, verified: false };
                table.bytes += size;
                table.slots.insert(Arc::clone(&key), slot);
                this.set_idle(&mut table, &key);
            }
        }
        Ok(Arc::new(this))
    }

    /// The local copy of `object`, downloaded if there is none.
    pub async fn lease(self: &Arc<Self>, store: &Store, object: &ObjectRef) -> Result<Lease> {
        self.try_lease(store, object).await.map_err(DownloadError::into_inner)
    }

    /// [`ObjectCache::lease`], telling the local disk's faults from the store's.
    pub(super) async fn try_lease(self: &Arc<Self>, store: &Store, object: &ObjectRef) -> Result<Lease, DownloadError> {
        let key = key_of(store.uri(), object);
        // The lease exists before the file does, so that nothing can evict what is awaited.
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
                "the download of `{}` ended without an answer because the state server is shutting down",
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
                slot.loading = Some(self.start_loading(key, slot.id, true, store, object));
            }
            return (slot.id, slot.loading.clone());
        }
        self.metrics.cache_misses.add(1);
        self.make_room(table, object.size);
        table.bytes += object.size;
        self.metrics.cache_bytes.set(table.bytes);
        table.tick += 1;
        let id = table.tick;
        let loading = Some(self.start_loading(key, id, false, store, object));
        let slot = Slot { size: object.size, leases: 1, idle_since: None, id, loading, verified: false };
        let loading = slot.loading.clone();
        table.slots.insert(Arc::clone(key), slot);
        (id, loading)
    }

    fn start_loading(self: &Arc<Self>, key: &Key, id: u64, known: bool, store: &Store, object: &ObjectRef) -> Loading {
        let (sender, receiver) = oneshot::channel();
        let (this, key, store, object) = (Arc::clone(self), Arc::clone(key), store.clone(), object.clone());
        // A task of its own: whoever asked first may go away without harming the others.
        tokio::spawn(async move {
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
        slot.verified = ok;
        if !ok {
            self.forget(&mut table, key);
        } else if slot.leases == 0 {
            // Everybody who waited has gone.
            self.set_idle(&mut table, key);
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
            table.idle.insert(tick, Arc::clone(key));
        }
        self.make_room(table, 0);
    }

    /// Evicts until `more` bytes fit, or nothing is left that may go.
    fn make_room(&self, table: &mut Table, more: u64) {
        while table.bytes.saturating_add(more) > self.max_bytes {
            let Some((_, key)) = table.idle.pop_first() else { break };
            self.forget(table, &key);
            let _ = std::fs::remove_file(self.dir.join(&*key));
            self.metrics.cache_evictions.add(1);
        }
        self.metrics.cache_bytes.set(table.bytes);
    }

    fn release(&self, key: &Key, id: u64) {
        let mut table = self.table.lock();
        let Some(slot) = table.slots.get_mut(key).filter(|slot| slot.id == id) else { return };
        slot.leases = slot.leases.saturating_sub(1);
        if slot.leases == 0 && slot.loading.is_none() {
            self.set_idle(&mut table, key);
        }
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
            self.make_room(&mut table, object.size);
            table.bytes += object.size;
            self.metrics.cache_bytes.set(table.bytes);
            table.tick += 1;
            table.tick
        };
        let path = self.dir.join(&*key);
        let placed = place(&path);
        let mut table = self.table.lock();
        if let Err(error) = placed {
            tracing::debug!(object = %object.name, %error, "no local copy is kept");
            table.bytes = table.bytes.saturating_sub(object.size);
            self.metrics.cache_bytes.set(table.bytes);
            return;
        }
        if table.slots.contains_key(&key) {
            // A download (or another copy) of the same object came in between; it owns the file and the bytes.
            table.bytes = table.bytes.saturating_sub(object.size);
            self.metrics.cache_bytes.set(table.bytes);
            return;
        }
        let slot = Slot { size: object.size, leases: 0, idle_since: None, id, loading: None, verified: true };
        table.slots.insert(Arc::clone(&key), slot);
        self.set_idle(&mut table, &key);
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

    /// Removes the copy of an object that nobody will want, unless somebody has leased it now.
    pub fn discard(&self, store: &Store, object: &ObjectRef) {
        let key = key_of(store.uri(), object);
        let mut table = self.table.lock();
        if table.slots.get(&key).is_some_and(|slot| slot.leases == 0 && slot.loading.is_none()) {
            self.forget(&mut table, &key);
            let _ = std::fs::remove_file(self.dir.join(&*key));
        }
    }

    /// Keeps a copy of an object of `store` whose content is the immutable local file `file`: a hard link, no bytes.
    pub fn adopt(self: &Arc<Self>, store: &Store, object: &ObjectRef, file: &Path) {
        self.insert(store.uri(), object, |path| match std::fs::hard_link(file, path) {
            Err(e) if e.kind() != std::io::ErrorKind::AlreadyExists => Err(e),
            _ => Ok(()),
        });
    }

    /// This cache as the twin of `store`'s uploads.
    pub fn twin(self: &Arc<Self>, store: &Store) -> Arc<dyn LocalTwin> {
        Arc::new(Twin { cache: Arc::clone(self), uri: store.uri().to_owned() })
    }

    /// True when a copy is here, or on its way.
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
struct Twin {
    cache: Arc<ObjectCache>,
    uri: String,
}

impl LocalTwin for Twin {
    fn keep(&self, object: &ObjectRef, parts: &[Bytes]) {
        self.cache.keep_at(&self.uri, object, parts);
    }
}

/// True when the file has the size and the checksum of `object`.
fn is_intact(file: &Path, object: &ObjectRef) -> bool {
    let read = || -> std::io::Result<(u64, u32)> {
        let mut input = File::open(file)?;
        let mut crc = Crc::new();
        let mut size = 0;
        let mut buffer = vec![0; 1 << 18];
        loop {
            let n = input.read(&mut buffer)?;
            if n == 0 {
                return Ok((size, crc.value()));
            }
            size += n as u64;
            crc.update(&buffer[..n]);
        }
    };
    read().is_ok_and(|found| found == (object.size, object.crc))
}

impl Lease {
    /// The local file. It must not be changed; a hard link to it may outlive the lease.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads `length` bytes at `offset`; blocks.
    pub fn read_at(&self, offset: u64, length: u64) -> Result<Bytes> {
        offset.checked_add(length).filter(|end| *end <= self.object.size).ok_or_else(|| {
            let what = format!("{length} bytes asked for, the object has {}", self.object.size);
            Error::corrupt(&self.full_name, offset, what)
        })?;
        let failed = |e: &std::io::Error| Error::io(format!("cannot read the local copy of {}", self.full_name), e);
        let length = usize::try_from(length).map_err(Error::internal)?;
        let mut bytes = vec![0; length];
        File::open(&self.path).and_then(|file| file.read_exact_at(&mut bytes, offset)).map_err(|e| failed(&e))?;
        Ok(bytes.into())
    }

    /// Verifies size and checksum of the whole file; blocks. False: [`Lease::condemn`] it.
    pub fn is_intact(&self) -> bool {
        is_intact(&self.path, &self.object)
    }

    /// Says that the file is damaged: it leaves the cache, and the next lease downloads the object again.
    pub fn condemn(self) {
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
