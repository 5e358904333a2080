//! Objects from and to files, in parts.
//!
//! Owns: uploads of files in parts, verified downloads into files, the walk over a local store's folder, and the threads
//! for all that.
//! Does not own: which files (`snapshot`, `read`).
//!
//! Invariants:
//! 1. a download that fails or is dropped leaves no file, neither half nor under another name;
//! 2. the file that appears has the size and the checksum of its reference;
//! 3. memory: at most [`PARALLEL_PARTS`] parts per transfer.

use super::diagnose::diagnose_io;
use super::retry::Failure;
use super::{Inner, Listed, Store, failed_point};
use crate::error::{Error, Result};
use crate::format::Crc;
use crate::model::ObjectRef;
use async_trait::async_trait;
use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};
use object_store::retry::{RetryContext, RetryFailure, RetryPolicy};
use object_store::{MultipartUpload, ObjectStoreExt, PutMultipartOptions, PutPayload};
use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Weak};
use std::time::UNIX_EPOCH;

/// Size of a part; larger files than 80 GiB get larger parts (stores allow 10,000).
const PART: u64 = 8 << 20;
const MAX_PARTS: u64 = 9_000;
/// Parts of one transfer under way at the same time.
const PARALLEL_PARTS: usize = 4;
/// Files up to this size are put in one request.
const ONE_PUT: u64 = 2 * PART;

/// Why a download failed: callers can do without a local file, but not without the store.
#[derive(Debug, Clone)]
pub enum DownloadError {
    /// The local disk.
    Local(Error),
    /// The store, or the object.
    Store(Error),
}

impl DownloadError {
    /// The error itself.
    pub fn into_inner(self) -> Error {
        match self {
            Self::Local(e) | Self::Store(e) => e,
        }
    }
}

impl Store {
    /// Writes a new object with the content of a file, in parts if it is large; rules as for [`Store::put_new`].
    pub async fn put_file(&self, name: &str, file: &Path) -> Result<ObjectRef> {
        let size = std::fs::metadata(file).map_err(|e| unreadable(file, &e))?.len();
        if size <= ONE_PUT {
            let file = file.to_owned();
            let bytes = blocking(move || std::fs::read(&file).map_err(|e| unreadable(&file, &e))).await?;
            return self.put_new(name, vec![Bytes::from(bytes)]).await;
        }
        let path = self.path(name)?;
        let result =
            self.inner.requests.run(self.call("write", name, None), |_| self.put_parts(name, &path, file, size)).await;
        match result {
            Ok(object) => {
                self.inner.requests.metrics.store_bytes_written.add(object.size);
                Ok(object)
            }
            Err(error) => {
                self.remove_remains(&path).await;
                Err(error)
            }
        }
    }

    async fn put_parts(
        &self,
        name: &str,
        path: &object_store::path::Path,
        file: &Path,
        size: u64,
    ) -> Result<ObjectRef, Failure> {
        self.inner.requests.failpoints.hit("store.before-put").map_err(failed_point)?;
        let policy = PartRetries { inner: Arc::downgrade(&self.inner) };
        let options = PutMultipartOptions::default().with_retry_policy(Arc::new(policy));
        let mut upload = self.limited(0, self.inner.store.put_multipart_opts(path, options)).await?;
        let sent = self.send_parts(name, upload.as_mut(), file, size).await;
        let object = match sent {
            Ok(object) => self.limited(0, upload.complete()).await.map(|_| object),
            Err(failure) => Err(failure),
        };
        match object {
            Ok(object) => {
                self.limited(0, self.inner.store.head(path))
                    .await
                    .and_then(|meta| self.check_size(&object, meta.size))?;
                self.inner.requests.failpoints.hit("store.after-put").map_err(failed_point)?;
                Ok(object)
            }
            Err(failure) => {
                // Best effort: the store keeps and bills parts of an upload that is neither completed nor aborted.
                let _ = self.limited(0, upload.abort()).await;
                Err(failure)
            }
        }
    }

    async fn send_parts(
        &self,
        name: &str,
        upload: &mut dyn MultipartUpload,
        file: &Path,
        size: u64,
    ) -> Result<ObjectRef, Failure> {
        let part = part_size(size);
        let mut input = File::open(file).map_err(|e| Failure::Fatal(unreadable(file, &e)))?;
        let mut crc = Crc::new();
        let mut left = size;
        let mut running = stream::FuturesUnordered::new();
        while left > 0 {
            if running.len() >= PARALLEL_PARTS {
                running.try_next().await?;
            }
            let length = left.min(part);
            let (back, bytes) = blocking(move || {
                let mut bytes = Vec::with_capacity(usize::try_from(length).unwrap_or(0));
                Read::by_ref(&mut input).take(length).read_to_end(&mut bytes).map(|_| (input, bytes))
            })
            .await
            .map_err(|e| Failure::Fatal(unreadable(file, &e)))?;
            input = back;
            if bytes.len() as u64 != length {
                return Err(Failure::Fatal(Error::internal(format!("{} changed during its upload", file.display()))));
            }
            crc.update(&bytes);
            let sending = upload.put_part(PutPayload::from(bytes));
            running.push(self.limited(length, sending));
            left -= length;
        }
        while running.try_next().await?.is_some() {}
        Ok(ObjectRef { name: name.to_owned(), size, crc: crc.value() })
    }

    /// One request inside a larger one: counted and limited in time, part retries included.
    async fn limited<T>(
        &self,
        bytes: u64,
        request: impl Future<Output = Result<T, object_store::Error>>,
    ) -> Result<T, Failure> {
        let requests = &self.inner.requests;
        requests.metrics.store_requests.add(1);
        let attempts = u32::try_from(requests.limits.attempts).unwrap_or(u32::MAX);
        let limit = (requests.limits.timeout + std::time::Duration::from_secs(bytes >> 20)).saturating_mul(attempts);
        match tokio::time::timeout(limit, request).await {
            Ok(result) => Ok(result?),
            Err(_) => Err(Failure::Again(format!("no answer within {limit:?}"))),
        }
    }

    /// Downloads an object into the file `path`, verified; a file of that name is replaced.
    pub async fn get_to_file(&self, object: &ObjectRef, path: &Path) -> Result<()> {
        self.download(object, path).await.map_err(DownloadError::into_inner)
    }

    /// [`Store::get_to_file`], telling the local disk's faults from the store's.
    pub async fn download(&self, object: &ObjectRef, path: &Path) -> Result<(), DownloadError> {
        let damaged = AtomicUsize::new(0);
        loop {
            let temp = TempFile::create(path).map_err(|e| unwritable(path, &e))?;
            let (temp, crc) = self.fill(object, temp, path).await?;
            match self.check_crc(object, crc, &damaged) {
                Ok(()) => return temp.publish(path).map_err(|e| unwritable(path, &e)),
                Err(Failure::Fatal(error)) => return Err(DownloadError::Store(error)),
                // Damaged on the way, perhaps: once more.
                Err(_) => self.inner.requests.metrics.store_retries.add(1),
            }
        }
    }

    async fn fill(
        &self,
        object: &ObjectRef,
        mut temp: TempFile,
        path: &Path,
    ) -> Result<(TempFile, u32), DownloadError> {
        let part = part_size(object.size);
        let ranges = (0..object.size.div_ceil(part).max(1)).map(|i| {
            let offset = i * part;
            (offset, part.min(object.size - offset))
        });
        let mut parts = stream::iter(ranges)
            .map(|(offset, length)| async move {
                // An empty object has no range, but its existence and size are checked all the same.
                if object.size <= part { self.get(object).await } else { self.get_range(object, offset, length).await }
            })
            .buffered(PARALLEL_PARTS);
        let mut crc = Crc::new();
        while let Some(bytes) = parts.try_next().await.map_err(DownloadError::Store)? {
            crc.update(&bytes);
            temp =
                blocking(move || temp.file.write_all(&bytes).map(|()| temp)).await.map_err(|e| unwritable(path, &e))?;
        }
        Ok((temp, crc.value()))
    }

    /// The file behind a name that only a listing of a local store can have given: a staged upload.
    pub(super) fn staged_file(&self, name: &str) -> Option<PathBuf> {
        let root = self.inner.local.as_ref()?;
        (name.contains('#') && super::object_type(name).is_some()).then(|| root.join(&self.below_root).join(name))
    }
}

fn part_size(size: u64) -> u64 {
    PART.max(size.div_ceil(MAX_PARTS).next_multiple_of(1 << 20))
}

fn unreadable(file: &Path, error: &std::io::Error) -> Error {
    Error::io(format!("cannot read {} for its upload", file.display()), error)
}

fn unwritable(file: &Path, error: &std::io::Error) -> DownloadError {
    let diagnosis = diagnose_io(error);
    DownloadError::Local(Error::new(
        diagnosis.permanent.unwrap_or(crate::error::ErrorKind::Retryable),
        format!("cannot write {}: {}; {}", file.display(), diagnosis.cause, diagnosis.advice),
    ))
}

/// The threads that wait for stores, and on which callers' tasks run.
pub(crate) fn start_io_threads() -> Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .thread_name("fastchangelog-io")
        .enable_all()
        .build()
        .map_err(|e| Error::io("cannot start the I/O threads; raise the limit of processes (ulimit -u)", &e))
}

/// Runs `work` where it may block; a panic in it is passed on.
pub(crate) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await {
        Ok(value) => value,
        Err(e) => match e.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // The runtime is shutting down: this task is dropped at its next await, which is this one.
            Err(_) => std::future::pending().await,
        },
    }
}

/// A file that vanishes unless it is published.
#[derive(Debug)]
pub(crate) struct TempFile {
    pub(crate) file: File,
    path: PathBuf,
    published: bool,
}

/// Ending of files that are being written; leftovers of killed processes are told by it.
pub(crate) const TEMP_SUFFIX: &str = ".part";

impl TempFile {
    /// A new file beside `target`.
    pub(crate) fn create(target: &Path) -> std::io::Result<Self> {
        let name = target.file_name().unwrap_or_default().to_string_lossy();
        let path = target.with_file_name(format!(".{name}.{:016x}{TEMP_SUFFIX}", rand::random::<u64>()));
        let file = File::options().write(true).create_new(true).open(&path)?;
        Ok(Self { file, path, published: false })
    }

    /// Gives the file its name, replacing another.
    pub(crate) fn publish(mut self, target: &Path) -> std::io::Result<()> {
        std::fs::rename(&self.path, target)?;
        self.published = true;
        Ok(())
    }
}

impl Drop for TempFile {
    fn drop(&mut self) {
        if !self.published {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Retries of single parts: a part keeps its number, so the library that numbers them has to repeat it.
#[derive(Debug)]
struct PartRetries {
    inner: Weak<Inner>,
}

#[async_trait]
impl RetryPolicy for PartRetries {
    async fn retry(&self, context: RetryContext) -> bool {
        let Some(inner) = self.inner.upgrade() else { return false };
        let requests = &inner.requests;
        let passing = match context.failure {
            RetryFailure::Status(status) => {
                status.is_server_error() || matches!(status.as_u16(), 200 | 408 | 425 | 429)
            }
            _ => true,
        };
        if !passing || context.attempt >= requests.limits.attempts {
            return false;
        }
        requests.metrics.store_retries.add(1);
        requests.metrics.store_requests.add(1);
        tokio::time::sleep(requests.limits.pause(context.attempt, requests.jitter.next())).await;
        true
    }
}

/// Every file under `base/folder`, by its name relative to `base`.
pub(super) fn walk(base: &Path, folder: &str) -> std::io::Result<Vec<Listed>> {
    let mut found = Vec::new();
    let mut folders = vec![base.join(folder)];
    while let Some(next) = folders.pop() {
        let entries = match std::fs::read_dir(&next) {
            Err(e) if matches!(e.kind(), std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory) => continue,
            entries => entries?,
        };
        for entry in entries {
            let path = entry?.path();
            let meta = match std::fs::metadata(&path) {
                Err(e) if e.kind() == std::io::ErrorKind::NotFound => continue,
                meta => meta?,
            };
            if meta.is_dir() {
                folders.push(path);
            } else if let Some(name) = path.strip_prefix(base).ok().and_then(Path::to_str) {
                let modified = meta.modified().ok().and_then(|t| t.duration_since(UNIX_EPOCH).ok()).unwrap_or_default();
                let modified_millis = u64::try_from(modified.as_millis()).unwrap_or(u64::MAX);
                found.push(Listed { name: name.to_owned(), size: meta.len(), modified_millis });
            }
        }
    }
    Ok(found)
}
