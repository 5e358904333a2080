//! fastchangelog-store: the bucket, `object_store` behind retries, time limits, checks, metrics and failpoints.
//!
//! Layer 1: imports `fastchangelog-format` only.
//!
//! ```text
//! Store::put_new ─ checksum ─ retry::Requests::run ─ attempt ─ object_store
//!                                 │ limits, counters      └ acknowledged: size (and checksum, where the store has one)
//!                                 └ diagnose: again or never, and in which words
//! ```
//!
//! hedge: a second attempt beside a slow one; multipart: large objects; transfer: files; creation, claim: create-only
//! names; server_copy: server-side copies; background: limits of background transfers; named: reads by name
//! alone; listing: folders that others use, too; scheme, address, s3_endpoint: from a URI to a folder; machine:
//! metadata services
//!
//! Owns: durable writes and verified reads of whole objects; resources that the store and the layers above share in a
//! process: [`metrics`], [`budget`], [`failpoint`], [`sync`].
//! Does not own: the decision to delete, the content of objects, the schedule of uploads.
//!
//! Invariants of [`Store`]:
//! 1. an [`ObjectRef`] is returned only after the store acknowledged the complete object (P2, X-01);
//! 2. bytes are returned only if their length, and for whole objects their checksum, match the reference (P9, P10);
//! 3. an abandoned put removes its leftovers (X-05), also if it is a dropped put of a log object;
//! 4. no message holds a credential.
#![deny(unsafe_code)]
#![warn(missing_docs)]

mod address;
pub mod address_space;
mod background;
pub mod budget;
mod checksum;
mod claim;
mod connect;
mod creation;
pub mod credentials;
pub mod diagnose;
mod env_vars;
pub mod environment;
pub mod failpoint;
pub mod fault;
#[expect(unsafe_code, reason = "a handler of forks, and values that outlive them")]
pub mod forked;
mod hedge;
mod listing;
mod local;
mod machine;
pub mod metrics;
mod multipart;
mod named;
pub mod paths;
mod platform;
mod profile;
mod put;
mod redact;
mod retry;
mod s3_endpoint;
mod scheme;
mod server_copy;
mod space;
mod supplied;
pub mod sync;
pub mod threads;
pub mod transfer;
mod transport;

pub use address::{clean_uri, printable, shown_uri};
pub use background::{Background, ForegroundGuard};
pub use claim::Claim;
pub use env_vars::{is_secret, overlaid, split_credentials};
pub use listing::Survey;
pub use paths::{
    FOLDER_META, ObjectType, SAVEPOINT, SAVEPOINT_CLAIM, STARTS, SWEEP_CHECKPOINTS, SWEEP_MARK, head_name, head_number,
    index_name, is_creation_note, log_name, manifest_name, object_type, pack_name, part_name, sst_name, start_name,
    state_folder,
};
pub use put::ChecksummedBytes;
pub use scheme::schemes;
pub use threads::start_io_threads;
pub use transfer::DownloadError;

use crate::budget::MemoryBudget;
use crate::failpoint::SharedFailpoints;
use crate::metrics::SharedMetrics;
use bytes::Bytes;
use diagnose::{disk_error, is_beyond_the_end};
use env_vars::EnvVars;
use fastchangelog_format::config::Options;
use fastchangelog_format::crc32c;
use fastchangelog_format::error::{Error, ErrorKind, Result, Subject};
use fastchangelog_format::model::ObjectRef;
use hedge::Hedges;
use object_store::path::Path as ObjectPath;
use object_store::{GetOptions, GetRange, ObjectStore, ObjectStoreExt};
use redact::Redactor;
use retry::{Failure, RequestContext, Requests};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Keeps local copies of uploaded objects: best effort, never fails or delays an upload.
pub trait LocalCopies: Send + Sync {
    /// Keeps `multipart`, the bytes of `object`, if that is possible.
    fn keep(&self, object: &ObjectRef, parts: &[Bytes]);

    /// Keeps the immutable file `file`, the content of `object`, if that is possible without copying it.
    fn adopt(&self, object: &ObjectRef, file: &std::path::Path);
}

/// An object as a listing shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// Name relative to the store's folder.
    pub name: String,
    /// Size in bytes.
    pub size: u64,
    /// When it was last written, in milliseconds since the epoch, by the store's clock.
    pub modified_millis: u64,
}

#[derive(Debug)]
struct Inner {
    store: Arc<dyn ObjectStore>,
    requests: Requests,
    /// The root folder on disk, for `file://`.
    local: Option<PathBuf>,
    remote: bool,
    part_size: u64,
    hedges: Hedges,
    /// Counts and bounds the buffers of transfers.
    memory: Arc<MemoryBudget>,
    /// False once the store said that it cannot put create-only; names are random, so plain puts are as safe.
    create_only: AtomicBool,
    /// Identity of the store: equal for two connections if one can copy the other's objects. None = it cannot copy.
    identity: Option<String>,
    /// False once the store refused to copy.
    copies: AtomicBool,
    /// The opened folder: its place in the store, and its displayed address.
    root: (String, Arc<str>),
    /// The store and its bucket, as they were addressed.
    place: String,
    /// True once the store is known to create an object only if its name is free.
    creation_proved: AtomicBool,
}

/// A folder in an object store. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Store {
    inner: Arc<Inner>,
    /// Folder inside the object store; empty for its root.
    prefix: String,
    /// The folder as messages show it.
    uri: Arc<str>,
    /// The folder below the root of `inner.local`.
    below_root: String,
}

impl Store {
    /// Connects to the folder `uri`: a plain path, or a URI with one of the [`schemes`].
    ///
    /// A local folder is made if need be. Nothing is sent to a remote store; [`Store::check`] does that.
    pub fn open(
        uri: &str,
        storage_options: &BTreeMap<String, String>,
        options: &Options,
        metrics: SharedMetrics,
        failpoints: SharedFailpoints,
    ) -> Result<Self> {
        Self::open_with(uri, storage_options, None, options, metrics, failpoints)
    }

    /// The same with credentials of `provider`, which win over all others.
    pub fn open_with(
        uri: &str,
        storage_options: &BTreeMap<String, String>,
        provider: Option<credentials::Provider>,
        options: &Options,
        metrics: SharedMetrics,
        failpoints: SharedFailpoints,
    ) -> Result<Self> {
        let connected = connect::connect(uri, storage_options, provider, options, &EnvVars::of_process())?;
        let requests =
            Requests::new(options, metrics, failpoints, connected.redactor, rand::random()).renewed_by(connected.renew);
        let uri: Arc<str> = connected.uri.into();
        let inner = Inner {
            store: connected.store,
            requests,
            local: connected.local,
            remote: connected.remote,
            part_size: options.upload_part_size,
            hedges: Hedges::new(options, connected.remote),
            memory: MemoryBudget::unlimited(),
            create_only: AtomicBool::new(true),
            identity: connected.identity,
            place: connected.place,
            copies: AtomicBool::new(true),
            root: (connected.prefix.clone(), Arc::clone(&uri)),
            creation_proved: AtomicBool::new(!connected.remote),
        };
        Ok(Self { inner: Arc::new(inner), prefix: connected.prefix, uri, below_root: String::new() })
    }

    /// The folder `prefix` of any `object_store`, shown as `uri_for_messages`: for tests and fault injection. It is
    /// taken to create objects conditionally.
    pub fn from_object_store(
        inner: Arc<dyn ObjectStore>,
        prefix: &str,
        uri_for_messages: &str,
        options: &Options,
        metrics: SharedMetrics,
        failpoints: SharedFailpoints,
    ) -> Self {
        let requests = Requests::new(options, metrics, failpoints, Redactor::default(), 0);
        let identity = Some(format!("{:p}", Arc::as_ptr(&inner).cast::<()>()));
        let prefix = ObjectPath::from(prefix).as_ref().to_owned();
        let uri: Arc<str> = uri_for_messages.trim_end_matches('/').into();
        let inner = Inner {
            store: inner,
            requests,
            local: None,
            remote: true,
            part_size: options.upload_part_size,
            hedges: Hedges::new(options, true),
            memory: MemoryBudget::unlimited(),
            create_only: AtomicBool::new(true),
            identity,
            copies: AtomicBool::new(true),
            root: (prefix.clone(), Arc::clone(&uri)),
            place: uri.to_string(),
            creation_proved: AtomicBool::new(true),
        };
        Self { inner: Arc::new(inner), prefix, uri, below_root: String::new() }
    }

    /// The same store, whose transfers take their buffers from `budget`.
    ///
    /// # Panics
    /// If the store is in use already.
    #[must_use]
    pub fn within(mut self, budget: &Arc<MemoryBudget>) -> Self {
        Arc::get_mut(&mut self.inner).expect("the store is not shared yet").memory = Arc::clone(budget);
        self
    }

    /// The folder of the name `name` in this one; requests and limits are shared. What an object store does not like in
    /// names is escaped, so any name will do.
    #[must_use]
    pub fn child(&self, name: &str) -> Self {
        self.below(ObjectPath::from(name).as_ref())
    }

    /// The folder `folder` as a listing of this one shows it.
    pub fn folder(&self, folder: &str) -> Result<Self> {
        self.path(folder)?;
        Ok(self.below(folder.trim_matches('/')))
    }

    fn below(&self, folder: &str) -> Self {
        let join = |base: &str| address::join(base, folder).trim_start_matches('/').to_owned();
        let below_root = join(&self.below_root);
        let uri = match &self.inner.local {
            Some(root) => address::of_disk(&root.join(&below_root)),
            None => address::address(&self.uri, folder),
        };
        Self { inner: Arc::clone(&self.inner), prefix: join(&self.prefix), uri: uri.into(), below_root }
    }

    /// The opened folder, which contains this one.
    fn root(&self) -> Self {
        let (prefix, uri) = self.inner.root.clone();
        Self { inner: Arc::clone(&self.inner), prefix, uri, below_root: String::new() }
    }

    /// The folder's URI, without credentials and without a trailing slash. It leads here again.
    pub fn uri(&self) -> &str {
        &self.uri
    }

    /// True if `uri`, as displayed by this or an earlier release, is the address of this folder.
    pub fn is_at(&self, uri: &str) -> bool {
        address::is_same(&self.uri, uri)
    }

    /// True when objects are files on this machine (or a mounted file system).
    pub fn is_local_file(&self) -> bool {
        self.inner.local.is_some()
    }

    /// True when bytes travel over a network: not for local files or memory.
    pub fn is_remote(&self) -> bool {
        self.inner.remote
    }

    /// Deletes in the background; `close` waits for it, since it counts as pending. Outside of a runtime, and at the
    /// end of one, the object is left to garbage collection.
    fn in_background(&self, removal: impl Future<Output = ()> + Send + 'static) {
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let pending = Pending::counted(&self.inner.requests.metrics);
        runtime.spawn(async move {
            removal.await;
            drop(pending);
        });
    }

    fn call<'a>(&'a self, verb: &'static str, name: &'a str, bytes: Option<u64>) -> RequestContext<'a> {
        RequestContext { verb, name, bytes, uri: &self.uri }
    }

    fn path(&self, name: &str) -> Result<ObjectPath> {
        let full = address::join(&self.prefix, name);
        ObjectPath::parse(full.trim_start_matches('/')).map_err(|e| {
            let name = printable(name);
            Error::invalid(format!("`{name}` is not a name of an object in {}", self.uri)).with_source(e)
        })
    }

    /// Reads a whole object and verifies its size and checksum.
    pub async fn get(&self, object: &ObjectRef) -> Result<Bytes> {
        let path = self.path(&object.name)?;
        let damaged = AtomicUsize::new(0);
        let call = self.call("read", &object.name, Some(object.size));
        let bytes = self
            .inner
            .requests
            .run(call, |_| async {
                self.inner.requests.failpoints.hit("store.before-get").map_err(failed_point)?;
                let result = self.inner.store.get(&path).await?;
                self.check_size(object, result.meta.size)?;
                let bytes = result.bytes().await?;
                if bytes.len() as u64 != object.size {
                    return Err(Failure::Again(format!(
                        "the store returned only {} of {} bytes",
                        bytes.len(),
                        object.size
                    )));
                }
                self.check_crc(object, crc32c(&bytes), &damaged)?;
                Ok(bytes)
            })
            .await?;
        self.inner.requests.metrics.store_bytes_read.add(bytes.len() as u64);
        Ok(bytes)
    }

    /// Reads `length` bytes at `offset`. Their checksum is the reader's business; the object's size is checked.
    pub async fn get_range(&self, object: &ObjectRef, offset: u64, length: u64) -> Result<Bytes> {
        let end = offset.checked_add(length).filter(|end| *end <= object.size).ok_or_else(|| {
            Error::corrupt(
                self.full_name(object),
                offset,
                format!("{length} bytes were requested, but the object has {}", object.size),
            )
        })?;
        if length == 0 {
            return Ok(Bytes::new());
        }
        let path = self.path(&object.name)?;
        let call = self.call("read", &object.name, Some(length));
        let bytes = self
            .inner
            .requests
            .run(call, |_| async {
                self.inner.requests.failpoints.hit("store.before-get").map_err(failed_point)?;
                let options = GetOptions { range: Some(GetRange::Bounded(offset..end)), ..GetOptions::default() };
                let result = match self.inner.store.get_opts(&path, options).await {
                    Ok(result) => result,
                    Err(error) if is_beyond_the_end(&error) => {
                        // Shorter than it was written: how short, says the store.
                        self.inner.requests.metrics.store_requests.add(1);
                        self.check_size(object, self.inner.store.head(&path).await?.size)?;
                        return Err(error.into());
                    }
                    Err(error) => return Err(error.into()),
                };
                self.check_size(object, result.meta.size)?;
                let bytes = result.bytes().await?;
                if bytes.len() as u64 != length {
                    return Err(Failure::Again(format!("the store returned only {} of {length} bytes", bytes.len())));
                }
                Ok(bytes)
            })
            .await?;
        self.inner.requests.metrics.store_bytes_read.add(length);
        Ok(bytes)
    }

    fn full_name(&self, object: &ObjectRef) -> String {
        format!("{}/{}", self.uri, object.name)
    }

    fn check_size(&self, object: &ObjectRef, found: u64) -> Result<(), Failure> {
        if found == object.size {
            return Ok(());
        }
        let what = format!("the object has {found} bytes, but {} were written", object.size);
        Err(Failure::Fatal(Error::corrupt(self.full_name(object), found.min(object.size), what)))
    }

    /// A wrong checksum can stem from the transfer: only the second mismatch counts as corruption.
    fn check_crc(&self, object: &ObjectRef, found: u32, damaged: &AtomicUsize) -> Result<(), Failure> {
        if found == object.crc {
            return Ok(());
        }
        let what = format!("checksum {found:08x} of its {} bytes, but {:08x} was written", object.size, object.crc);
        if damaged.fetch_add(1, Ordering::Relaxed) == 0 && self.inner.requests.limits.attempts > 1 {
            return Err(Failure::Again(what));
        }
        Err(Failure::Fatal(Error::corrupt(self.full_name(object), 0, what)))
    }

    /// True when `name` exists.
    pub async fn exists(&self, name: &str) -> Result<bool> {
        let path = self.path(name)?;
        let head = self.inner.requests.run(self.call("look at", name, Some(0)), |_| async {
            Ok(self.inner.store.head(&path).await.map(|_| ())?)
        });
        match head.await {
            Ok(()) => Ok(true),
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(false),
            Err(e) => Err(e),
        }
    }

    /// Removes `name`; one that does not exist is fine.
    pub async fn delete(&self, name: &str) -> Result<()> {
        if let Some(file) = self.staged_file(name) {
            return remove_file(&file, &self.uri, name);
        }
        let path = self.path(name)?;
        let delete = self
            .inner
            .requests
            .run(self.call("delete", name, Some(0)), |_| async { Ok(self.inner.store.delete(&path).await?) });
        match delete.await {
            Err(e) if e.kind() != ErrorKind::NotFound => Err(e),
            _ => Ok(()),
        }
    }

    /// The time of the clock that dates the objects, in milliseconds since the epoch.
    pub async fn now_millis(&self) -> Result<u64> {
        let probe = self.put_new(&paths::probe_name(), vec![Bytes::from_static(b"fastchangelog")]).await?;
        let listed = self.list("probe").await;
        self.delete(&probe.name).await?;
        let found = listed?.into_iter().find(|listed| listed.name == probe.name);
        found.map(|listed| listed.modified_millis).ok_or_else(|| {
            let what = format!("{} was written to {}, which does not list it", probe.name, self.uri());
            Error::retryable(format!("{what}: its listings cannot be trusted")).with_remedy("try again later")
        })
    }
}

/// A removal in the background, counted from its start to its end, whichever that is.
struct Pending(SharedMetrics);

impl Pending {
    fn counted(metrics: &SharedMetrics) -> Self {
        metrics.discards_pending.add(1);
        Self(Arc::clone(metrics))
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        self.0.discards_pending.sub(1);
    }
}

fn failed_point(error: Error) -> Failure {
    if error.is_retryable() { Failure::Again(error.message().to_owned()) } else { Failure::Fatal(error) }
}

fn remove_file(file: &std::path::Path, uri: &str, name: &str) -> Result<()> {
    match std::fs::remove_file(file) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
            let what = format!("cannot delete `{name}` in {uri}");
            Err(disk_error(what, &e, ErrorKind::Retryable).with_subject(Subject::Object(format!("{uri}/{name}"))))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod error_tests;
#[cfg(test)]
mod hedge_tests;
#[cfg(test)]
mod multipart_tests;
#[cfg(test)]
mod refusal_tests;
#[cfg(test)]
#[path = "store_tests.rs"]
mod tests;
