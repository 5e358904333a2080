//! Multipart uploads: several requests make one object, which appears when the upload is completed.
//!
//! Owns: sending the parts, their retries, and aborting uploads that fail.
//! Does not own: the source of the bytes (`put`: memory, `transfer`: files), attempts of the whole (`retry`).
//!
//! Invariants:
//! 1. an upload that fails or is dropped is aborted, with the usual number of attempts: stores keep and bill the parts
//!    of an upload that is neither completed nor aborted;
//! 2. memory: at most [`PARALLEL_PARTS`] parts of one upload are taken from its source and not sent.

use super::retry::{Attempts, Failure};
use super::{Inner, Store};
use crate::budget::Buffer;
use async_trait::async_trait;
use futures::{TryStreamExt, stream};
use object_store::path::Path as ObjectPath;
use object_store::retry::{RetryContext, RetryFailure, RetryPolicy};
use object_store::{MultipartUpload, ObjectStoreExt, PutMultipartOptions, PutPayload};
use std::sync::{Arc, Weak};
use tokio::sync::Mutex;

/// Below the limit of stores (10,000 parts): larger objects get larger parts.
const MAX_PARTS: u64 = 9_000;
/// Parts of one transfer in progress at the same time.
pub(super) const PARALLEL_PARTS: usize = 4;

/// The source of an upload's bytes.
pub(super) trait PartSource: Send {
    /// The next `length` bytes, and the memory to be given back when they have been sent: a store may keep the bytes.
    fn next(&mut self, length: u64) -> impl Future<Output = Result<(PutPayload, Option<Buffer>), Failure>> + Send;
}

/// The size of the parts of `size` bytes, of at least `least` each.
pub(super) fn part_size(size: u64, least: u64) -> u64 {
    least.max(size.div_ceil(MAX_PARTS).next_multiple_of(1 << 20))
}

impl Store {
    /// True for sizes that go in one request.
    pub(super) fn fits_one_put(&self, size: u64) -> bool {
        size <= 2 * self.inner.part_size
    }

    /// Writes `size` bytes of `source` in parts; gives the size that the store then has.
    ///
    /// Multipart uploads have no create-only mode. With `look`, a name that is found to be in use before its object
    /// would be replaced is an error, [`object_store::Error::AlreadyExists`]; the look costs no time of its own.
    pub(super) async fn put_parts(
        &self,
        name: &str,
        size: u64,
        source: &mut impl PartSource,
        look: bool,
    ) -> Result<u64, Failure> {
        let path = &self.path(name).map_err(Failure::Fatal)?;
        let policy = PartRetries { inner: Arc::downgrade(&self.inner) };
        let options = PutMultipartOptions::default().with_retry_policy(Arc::new(policy));
        let upload = self.limited(0, self.inner.store.put_multipart_opts(path, options)).await?;
        let mut unfinished = Unfinished { store: self, name, upload: None };
        let upload = unfinished.upload.insert(upload);
        let vacant = async { if look { self.expect_vacant(path).await } else { Ok(()) } };
        let sent = match tokio::try_join!(vacant, self.send_parts(upload.as_mut(), size, source)) {
            Ok(_) => self.limited(0, upload.complete()).await.map(|_| ()),
            Err(failure) => Err(failure),
        };
        if let Err(failure) = sent {
            self.abort(name, upload.as_mut()).await;
            unfinished.upload = None;
            return Err(failure);
        }
        unfinished.upload = None;
        Ok(self.limited(0, self.inner.store.head(path)).await?.size)
    }

    async fn expect_vacant(&self, path: &ObjectPath) -> Result<(), Failure> {
        use object_store::Error as E;
        match self.limited(0, self.inner.store.head(path)).await {
            // Without `s3:ListBucket`, S3 answers 403 instead of 404. A missing write permission surfaces on the next
            // request.
            Err(Failure::Store(E::NotFound { .. } | E::PermissionDenied { .. })) => Ok(()),
            Err(failure) => Err(failure),
            Ok(_) => Err(Failure::Store(E::AlreadyExists {
                path: path.to_string(),
                source: "an object has this name".into(),
            })),
        }
    }

    async fn send_parts(
        &self,
        upload: &mut dyn MultipartUpload,
        size: u64,
        source: &mut impl PartSource,
    ) -> Result<(), Failure> {
        let part = part_size(size, self.inner.part_size);
        let mut left = size;
        let mut running = stream::FuturesUnordered::new();
        while left > 0 {
            if running.len() >= PARALLEL_PARTS {
                running.try_next().await?;
            }
            let length = left.min(part);
            let (payload, buffer) = {
                // The next part may wait for memory that these parts hold, so they must progress meanwhile.
                let mut next = std::pin::pin!(source.next(length));
                loop {
                    tokio::select! {
                        biased;
                        payload = &mut next => break payload?,
                        sent = running.try_next(), if !running.is_empty() => drop(sent?),
                    }
                }
            };
            let sending = self.limited(length, upload.put_part(payload));
            running.push(async move {
                let sent = sending.await;
                drop(buffer);
                sent
            });
            left -= length;
        }
        while running.try_next().await?.is_some() {}
        Ok(())
    }

    /// Aborts an upload. A store may refuse that while it still has parts of it under way.
    async fn abort(&self, name: &str, upload: &mut dyn MultipartUpload) {
        let upload = Mutex::new(upload);
        let call = self.call("abort the upload of", name, Some(0));
        let abort = self.inner.requests.run_some(call, Attempts::Inside, |_| async {
            match upload.lock().await.abort().await {
                Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
                Err(error) => Err(Failure::Store(error)),
            }
        });
        if let Err(error) = abort.await {
            tracing::warn!(%error, "cannot remove the parts of an upload from the store");
        }
    }

    /// One request inside a larger one: counted and limited in time, part retries included.
    pub(super) async fn limited<T, E: Into<Failure>>(
        &self,
        bytes: u64,
        request: impl Future<Output = Result<T, E>>,
    ) -> Result<T, Failure> {
        let requests = &self.inner.requests;
        requests.metrics.store_requests.add(1);
        let attempts = u32::try_from(requests.limits.attempts).unwrap_or(u32::MAX);
        let limit = requests.limits.time_for(bytes).saturating_mul(attempts);
        match tokio::time::timeout(limit, request).await {
            Ok(result) => result.map_err(Into::into),
            Err(_) => Err(Failure::Again(format!("no answer within {limit:?}"))),
        }
    }
}

/// An upload that is neither completed nor aborted. A drop aborts it in the background.
struct Unfinished<'a> {
    store: &'a Store,
    name: &'a str,
    upload: Option<Box<dyn MultipartUpload>>,
}

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        if let Some(mut upload) = self.upload.take() {
            let (store, name) = (self.store.clone(), self.name.to_owned());
            self.store.in_background(async move { store.abort(&name, upload.as_mut()).await });
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
