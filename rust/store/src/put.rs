//! Writing objects: create-only, acknowledged, and without leftovers.
//!
//! Owns: puts of objects from memory, and the resolution of an ambiguous answer.
//! Does not own: the sending of parts (`multipart`), attempts and time limits (`retry`), second attempts beside slow
//! ones (`hedge`), reading.

use super::diagnose::cannot_create_only;
use super::multipart::PartSource;
use super::retry::{Attempts, Failure};
use super::{Store, failed_point};
use crate::budget::Buffer;
use bytes::Bytes;
use fastchangelog_format::Crc;
use fastchangelog_format::error::{Error, Result};
use fastchangelog_format::model::ObjectRef;
use futures::TryStreamExt;
use object_store::path::Path as ObjectPath;
use object_store::{ObjectStoreExt, PutMode, PutOptions, PutPayload};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::time::Instant;

/// The bytes of an object with their size and CRC-32C.
#[derive(Debug, Clone)]
pub struct ChecksummedBytes {
    /// The bytes, in order.
    pub parts: Vec<Bytes>,
    /// Bytes of all parts.
    pub size: u64,
    /// CRC-32C of all parts.
    pub crc: u32,
}

impl ChecksummedBytes {
    fn of(parts: Vec<Bytes>) -> Self {
        let mut crc = Crc::new();
        let mut size = 0;
        for part in &parts {
            crc.update(part);
            size += part.len() as u64;
        }
        Self { parts, size, crc: crc.value() }
    }
}

/// Progress of one upload, observable from another task.
#[derive(Debug, Default)]
pub(super) struct UploadProgress(Mutex<Step>);

#[derive(Debug, Default)]
struct Step {
    begun: Option<Instant>,
    touched: bool,
    given_up: bool,
}

impl UploadProgress {
    fn begin(&self) -> Result<(), Failure> {
        let mut step = self.0.lock();
        if step.given_up {
            return Err(Failure::Fatal(Error::closed("the upload was cancelled")));
        }
        step.begun = Some(Instant::now());
        step.touched = true;
        Ok(())
    }

    fn end(&self, success: bool) {
        if !success {
            self.0.lock().begun = None;
        }
    }

    /// When the attempt in progress, or has succeeded, began. None while the upload waits for a slot or pauses.
    pub(super) fn begun(&self) -> Option<Instant> {
        self.0.lock().begun
    }

    /// True when an attempt was begun: it may leave something.
    pub(super) fn touched(&self) -> bool {
        self.0.lock().touched
    }

    /// No further attempt is begun.
    pub(super) fn give_up(&self) {
        self.0.lock().given_up = true;
    }
}

/// A payload, cut into parts without copying.
struct Slices {
    rest: object_store::PutPayloadIntoIter,
    first: Bytes,
}

impl PartSource for Slices {
    async fn next(&mut self, length: u64) -> Result<(PutPayload, Option<Buffer>), Failure> {
        let mut left = usize::try_from(length).unwrap_or(usize::MAX);
        let mut slices = Vec::new();
        while left > 0 {
            if self.first.is_empty() {
                let next = self.rest.next();
                self.first = next.ok_or_else(|| Failure::Fatal(Error::internal("an object is shorter than said")))?;
            }
            let slice = self.first.split_to(left.min(self.first.len()));
            left -= slice.len();
            slices.push(slice);
        }
        Ok((PutPayload::from_iter(slices), None))
    }
}

impl Store {
    /// Writes a new object from `multipart`; returns when the store acknowledged all of it.
    ///
    /// `name` must never have been used before (draw it with [`log_name`] and its like): then a repeated put is safe,
    /// and "exists already" means that an earlier attempt arrived although its answer was lost. Such an object is
    /// looked at before it counts as acknowledged.
    pub async fn put_new(&self, name: &str, parts: Vec<Bytes>) -> Result<ObjectRef> {
        self.put_checksummed(name, ChecksummedBytes::of(parts)).await
    }

    /// [`Store::put_new`] of bytes whose checksum is known.
    pub async fn put_checksummed(&self, name: &str, content: ChecksummedBytes) -> Result<ObjectRef> {
        self.put_observed(name, content, Attempts::All, &UploadProgress::default()).await
    }

    /// [`Store::put_checksummed`] with up to `attempts` attempts, which reports its `progress` to another task.
    pub(super) async fn put_observed(
        &self,
        name: &str,
        content: ChecksummedBytes,
        attempts: Attempts,
        progress: &UploadProgress,
    ) -> Result<ObjectRef> {
        let ChecksummedBytes { parts, size, crc } = content;
        let object = ObjectRef { name: name.to_owned(), size, crc };
        let path = self.path(name)?;
        let payload = PutPayload::from_iter(parts);
        // A local file is written in one call: parts would only be copied twice.
        let whole = self.fits_one_put(size) || self.is_local_file();
        let call = self.call("write", name, whole.then_some(size));
        let foreign = AtomicBool::new(false);
        let put = self.inner.requests.run_some(call, attempts, |_| async {
            progress.begin()?;
            let result = if whole {
                self.put_attempt(&object, &path, payload.clone(), &foreign).await
            } else {
                self.parts_attempt(&object, &path, &payload, &foreign).await
            };
            progress.end(result.is_ok());
            result
        });
        match put.await {
            Ok(()) => {
                self.inner.requests.metrics.store_bytes_written.add(size);
                Ok(object)
            }
            Err(error) => {
                // An object of another writer under this name must not be removed.
                if !foreign.into_inner() {
                    self.remove_remains(&path).await;
                }
                Err(error)
            }
        }
    }

    async fn put_attempt(
        &self,
        object: &ObjectRef,
        path: &ObjectPath,
        payload: PutPayload,
        foreign: &AtomicBool,
    ) -> Result<(), Failure> {
        let inner = &self.inner;
        inner.requests.failpoints.hit("store.before-put").map_err(failed_point)?;
        let mode = if inner.create_only.load(Ordering::Relaxed) { PutMode::Create } else { PutMode::Overwrite };
        let mut result = inner.store.put_opts(path, payload.clone(), PutOptions::from(mode.clone())).await;
        if mode == PutMode::Create && result.as_ref().is_err_and(cannot_create_only) {
            inner.create_only.store(false, Ordering::Relaxed);
            result = inner.store.put_opts(path, payload, PutOptions::from(PutMode::Overwrite)).await;
        }
        match result {
            Ok(_) => {}
            Err(object_store::Error::AlreadyExists { .. } | object_store::Error::Precondition { .. }) => {
                inner.requests.metrics.store_requests.add(1);
                self.expect_ours(object, path, foreign).await?;
            }
            Err(error) => return Err(error.into()),
        }
        inner.requests.failpoints.hit("store.after-put").map_err(failed_point)
    }

    /// The same in parts. A name in use is detected unless it was created concurrently.
    async fn parts_attempt(
        &self,
        object: &ObjectRef,
        path: &ObjectPath,
        payload: &PutPayload,
        foreign: &AtomicBool,
    ) -> Result<(), Failure> {
        let failpoints = &self.inner.requests.failpoints;
        failpoints.hit("store.before-put").map_err(failed_point)?;
        let mut source = Slices { rest: payload.clone().into_iter(), first: Bytes::new() };
        match self.put_parts(&object.name, object.size, &mut source, true).await {
            Ok(found) => self.check_size(object, found)?,
            Err(Failure::Store(object_store::Error::AlreadyExists { .. })) => {
                self.limited(object.size, self.expect_ours(object, path, foreign)).await?;
            }
            Err(failure) => return Err(failure),
        }
        failpoints.hit("store.after-put").map_err(failed_point)
    }

    /// After an ambiguous answer, look; don't guess. Only its content proves an object ours.
    async fn expect_ours(&self, object: &ObjectRef, path: &ObjectPath, foreign: &AtomicBool) -> Result<(), Failure> {
        let (mut crc, mut size) = (Crc::new(), 0);
        match self.inner.store.get(path).await {
            Ok(found) if found.meta.size == object.size => {
                let mut bytes = found.into_stream();
                while let Some(chunk) = bytes.try_next().await? {
                    crc.update(&chunk);
                    size += chunk.len() as u64;
                }
            }
            Ok(_) => {}
            // A conflict with an attempt that was then undone.
            Err(object_store::Error::NotFound { .. }) => {
                return Err(Failure::Again("the object vanished after the write".into()));
            }
            Err(error) => return Err(error.into()),
        }
        if (size, crc.value()) != (object.size, object.crc) {
            foreign.store(true, Ordering::Relaxed);
            return Err(Failure::Fatal(self.occupied(object)));
        }
        Ok(())
    }

    fn occupied(&self, object: &ObjectRef) -> Error {
        Error::store(format!("cannot write `{}` in {}: another object has this name", object.name, self.uri))
            .with_remedy("give each state a folder of its own")
    }

    /// Best effort, one attempt: an abandoned attempt may still have arrived. What arrives even
    /// later is left to the sweep.
    pub(super) async fn remove_remains(&self, path: &ObjectPath) {
        let limit = self.inner.requests.limits.timeout.min(Duration::from_secs(5));
        self.inner.requests.metrics.store_requests.add(1);
        let _ = tokio::time::timeout(limit, self.inner.store.delete(path)).await;
    }

    /// Writes `name`, replacing what was there: only for the few objects that are not immutable.
    pub async fn put_overwrite(&self, name: &str, bytes: Bytes) -> Result<()> {
        let path = self.path(name)?;
        let size = bytes.len() as u64;
        let payload = PutPayload::from(bytes);
        let call = self.call("write", name, Some(size));
        self.inner
            .requests
            .run(call, |_| async { Ok(self.inner.store.put(&path, payload.clone()).await.map(|_| ())?) })
            .await?;
        self.inner.requests.metrics.store_bytes_written.add(size);
        Ok(())
    }
}
