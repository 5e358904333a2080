//! Objects from and to files, in parts.
//!
//! Owns: uploads of files and verified downloads into files.
//! Does not own: the choice of files (`snapshot`, `read`), the sending of parts (`multipart`), the threads (`threads`).
//!
//! Invariants:
//! 1. a download that fails or is dropped leaves no file, neither half nor under another name;
//! 2. the file that appears has the size and the checksum of its reference; of a listed object, which has no checksum
//!    that we know, the size;
//! 3. memory: at most [`PARALLEL_PARTS`] parts per transfer, and all transfers together stay within their budget.

use super::diagnose::disk_error;
use super::multipart::{PARALLEL_PARTS, PartSource, part_size};
use super::retry::Failure;
use super::space::reserve_space;
use super::{Background, Store, failed_point};
use crate::budget::{Buffer, MemoryBudget, MemoryUser, Order};
use bytes::Bytes;
use fastchangelog_format::Crc;
use fastchangelog_format::error::{Error, ErrorKind, Result, Subject};
use fastchangelog_format::model::ObjectRef;
use futures::{StreamExt, TryStreamExt, stream};
use object_store::PutPayload;
use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use tokio::runtime::{Handle, RuntimeFlavor};

/// Size of a part of a download; of one from a local folder, which is copied through the processor's cache.
const PART: u64 = 8 << 20;
const LOCAL_PART: u64 = 1 << 20;

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
    /// Writes a new object with the content of a file, in parts if it is large; rules as for [`Store::put_new`]. With a
    /// `pace` its bytes go as fast as that allows.
    pub async fn put_file(&self, name: &str, file: &Path, pace: Option<&Background>) -> Result<ObjectRef> {
        let size = std::fs::metadata(file).map_err(|e| unreadable(file, &e))?.len();
        if self.fits_one_put(size) {
            let file = file.to_owned();
            if let Some(pace) = pace {
                pace.pass(size).await;
            }
            let buffer = self.inner.memory.transfer(MemoryUser::Uploads, size, Order::MemoryFirst).await;
            let bytes = blocking(move || std::fs::read(&file).map_err(|e| unreadable(&file, &e))).await?;
            let object = self.put_new(name, vec![Bytes::from(bytes)]).await;
            drop(buffer);
            return object;
        }
        let path = self.path(name)?;
        let put = self.inner.requests.run(self.call("write", name, None), |_| async {
            self.inner.requests.failpoints.hit("store.before-put").map_err(failed_point)?;
            let mut source = FileSource::open(file, &self.inner.memory, pace)?;
            let found = self.put_parts(name, size, &mut source, false).await?;
            let object = ObjectRef { name: name.to_owned(), size, crc: source.crc.value() };
            self.check_size(&object, found)?;
            self.inner.requests.failpoints.hit("store.after-put").map_err(failed_point)?;
            Ok(object)
        });
        match put.await {
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

    /// [`Store::put_new`] as fast as `pace` allows.
    pub async fn put_paced(&self, name: &str, parts: Vec<Bytes>, pace: &Background) -> Result<ObjectRef> {
        pace.pass(parts.iter().map(|part| part.len() as u64).sum()).await;
        self.put_new(name, parts).await
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
            reserve_space(&temp.file, path, object.size).map_err(|e| unwritable(path, &e))?;
            let (temp, crc) = self.fill(object, temp, path, true).await?;
            match self.check_crc(object, crc, &damaged) {
                Ok(()) => return temp.publish(path).map_err(|e| unwritable(path, &e)),
                Err(Failure::Fatal(error)) => return Err(DownloadError::Store(error)),
                // Damaged on the way, perhaps: once more.
                Err(_) => self.inner.requests.metrics.store_retries.add(1),
            }
        }
    }

    /// Downloads an object that another program wrote into the file `path`; `size` is what a listing or that program
    /// says. Only the size is verified. A file of that name is replaced.
    pub async fn download_foreign(&self, name: &str, size: u64, path: &Path) -> Result<(), DownloadError> {
        let object = ObjectRef { name: name.to_owned(), size, crc: 0 };
        let temp = TempFile::create(path).map_err(|e| unwritable(path, &e))?;
        let (temp, _) = self.fill(&object, temp, path, false).await?;
        temp.publish(path).map_err(|e| unwritable(path, &e))
    }

    /// Reads an object into a file; returns the checksum of its bytes. `has_crc`: that of the reference is known.
    async fn fill(
        &self,
        object: &ObjectRef,
        mut temp: TempFile,
        path: &Path,
        has_crc: bool,
    ) -> Result<(TempFile, u32), DownloadError> {
        let part = part_size(object.size, if self.is_local_file() { LOCAL_PART } else { PART });
        let ranges = (0..object.size.div_ceil(part).max(1)).map(|i| {
            let offset = i * part;
            (offset, part.min(object.size - offset))
        });
        let mut parts = stream::iter(ranges)
            .map(|(offset, length)| async move {
                // Asked for in the order of the parts, served in order: what is held is always of the parts next to
                // write.
                let buffer = self.inner.memory.transfer(MemoryUser::Downloads, length, Order::MemoryFirst).await;
                // An empty object has no range, but its existence and size are checked all the same.
                // The checksum of no bytes is 0.
                let whole = object.size == 0 || (has_crc && object.size <= part);
                let bytes =
                    if whole { self.get(object).await? } else { self.get_range(object, offset, length).await? };
                Ok((bytes, buffer))
            })
            .buffered(PARALLEL_PARTS);
        let mut crc = Crc::new();
        while let Some((bytes, buffer)) = parts.try_next().await.map_err(DownloadError::Store)? {
            crc.update(&bytes);
            let full = |_| unwritable(path, &std::io::ErrorKind::StorageFull.into());
            self.inner.requests.failpoints.hit("transfer.disk-full").map_err(full)?;
            temp =
                blocking(move || temp.file.write_all(&bytes).map(|()| temp)).await.map_err(|e| unwritable(path, &e))?;
            drop(buffer);
        }
        Ok((temp, crc.value()))
    }

    /// The file behind a name that only a listing of a local store can have given: a staged upload.
    pub(super) fn staged_file(&self, name: &str) -> Option<PathBuf> {
        let root = self.inner.local.as_ref()?;
        (name.contains('#') && super::object_type(name).is_some()).then(|| root.join(&self.below_root).join(name))
    }
}

/// A file that is read part by part, and its checksum so far.
struct FileSource<'a> {
    path: &'a Path,
    /// None while a thread reads from it.
    file: Option<File>,
    crc: Crc,
    memory: &'a Arc<MemoryBudget>,
    pace: Option<&'a Background>,
}

impl<'a> FileSource<'a> {
    fn open(path: &'a Path, memory: &'a Arc<MemoryBudget>, pace: Option<&'a Background>) -> Result<Self, Failure> {
        let file = File::open(path).map_err(|e| Failure::Fatal(unreadable(path, &e)))?;
        Ok(Self { path, file: Some(file), crc: Crc::new(), memory, pace })
    }
}

impl PartSource for FileSource<'_> {
    async fn next(&mut self, length: u64) -> Result<(PutPayload, Option<Buffer>), Failure> {
        let changed = || Failure::Fatal(Error::internal(format!("{} changed during its upload", self.path.display())));
        if let Some(pace) = self.pace {
            pace.pass(length).await;
        }
        let buffer = self.memory.transfer(MemoryUser::Uploads, length, Order::RequestFirst).await;
        let mut file = self.file.take().ok_or_else(changed)?;
        let (file, bytes) = blocking(move || {
            let mut bytes = Vec::with_capacity(usize::try_from(length).unwrap_or(0));
            Read::by_ref(&mut file).take(length).read_to_end(&mut bytes).map(|_| (file, bytes))
        })
        .await
        .map_err(|e| Failure::Fatal(unreadable(self.path, &e)))?;
        if bytes.len() as u64 != length {
            return Err(changed());
        }
        self.file = Some(file);
        self.crc.update(&bytes);
        Ok((PutPayload::from(bytes), Some(buffer)))
    }
}

fn unreadable(file: &Path, error: &std::io::Error) -> Error {
    Error::io(format!("cannot read {} for its upload", file.display()), error)
        .with_subject(Subject::Path(file.to_owned()))
}

fn unwritable(file: &Path, error: &std::io::Error) -> DownloadError {
    let what = format!("cannot write {}", file.display());
    DownloadError::Local(disk_error(what, error, ErrorKind::Retryable).with_subject(Subject::Path(file.to_owned())))
}

/// Runs `work` where it may block; a panic in it is passed on.
pub async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await {
        Ok(value) => value,
        Err(e) => match e.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // The runtime is shutting down: this task is dropped at its next await, which is this one.
            Err(_) => std::future::pending().await,
        },
    }
}

/// Runs `work`, which may block for a millisecond or so, on this thread, if others can go on with what it had to do.
pub(super) async fn in_place<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    if Handle::current().runtime_flavor() == RuntimeFlavor::MultiThread {
        tokio::task::block_in_place(work)
    } else {
        blocking(work).await
    }
}

/// A file that is removed unless it is published.
#[derive(Debug)]
pub struct TempFile {
    /// The file, open for writing.
    pub file: File,
    path: PathBuf,
    published: bool,
}

/// Ending of files that are being written; it identifies leftovers of killed processes.
pub const TEMP_SUFFIX: &str = ".part";

impl TempFile {
    /// A new file beside `target`.
    pub fn create(target: &Path) -> std::io::Result<Self> {
        let name = target.file_name().unwrap_or_default().to_string_lossy();
        let path = target.with_file_name(format!(".{name}.{:016x}{TEMP_SUFFIX}", rand::random::<u64>()));
        let file = File::options().write(true).create_new(true).open(&path)?;
        Ok(Self { file, path, published: false })
    }

    /// Gives the file its name, replacing another.
    pub fn publish(mut self, target: &Path) -> std::io::Result<()> {
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
