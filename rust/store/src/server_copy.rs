//! Server-side copies: the store copies an object without its bytes passing through this machine.
//!
//! Owns: the test whether two folders are in one store, the copy request, and the checks of the copy.
//! Does not own: copies through this machine (`get` and `put_new`), the choice of objects.
//!
//! Invariants:
//! 1. a copy counts when the store reports it with the size of its reference. Its bytes were not seen here; every later
//!    `get` of the copy verifies the checksum;
//! 2. a store that cannot or will not copy is not an error: the caller moves the bytes itself;
//! 3. files are never linked: a copy that shares its bytes is lost with the original when a disk or a program damages
//!    it.

use super::retry::Failure;
use super::{Store, failed_point};
use fastchangelog_format::error::Result;
use fastchangelog_format::model::ObjectRef;
use object_store::ObjectStoreExt;
use std::sync::atomic::Ordering;

/// S3 copies objects up to 5 GB with one request.
const LARGEST: u64 = 5_000_000_000;

impl Store {
    /// Copies `object` of the folder `from` to the same name here, without its bytes coming through this machine. False
    /// if that is not possible: then nothing was changed here.
    ///
    /// The name must be free, and no other process may write it meanwhile: not every store copies create-only.
    pub async fn copy_within(&self, from: &Self, object: &ObjectRef) -> Result<bool> {
        let shared = self.inner.identity.is_some() && self.inner.identity == from.inner.identity;
        if !shared || object.size > LARGEST || !self.inner.copies.load(Ordering::Relaxed) {
            return Ok(false);
        }
        let (source, target) = (from.path(&object.name)?, self.path(&object.name)?);
        let inner = &self.inner;
        let copied = inner.requests.run(self.call("copy", &object.name, Some(object.size)), |_| async {
            inner.requests.failpoints.hit("store.before-put").map_err(failed_point)?;
            inner.store.copy(&source, &target).await?;
            inner.requests.metrics.store_requests.add(1);
            let found = inner.store.head(&target).await?.size;
            if found == object.size { Ok(()) } else { Err(Failure::Again(format!("the copy has {found} bytes"))) }
        });
        match copied.await {
            Ok(()) => Ok(true),
            Err(error) if error.is_retryable() => {
                self.remove_remains(&target).await;
                Err(error)
            }
            Err(error) => {
                tracing::debug!(%error, "the store does not copy by itself");
                // A missing source says nothing about the store; the caller that moves the bytes reports it.
                inner.copies.store(error.kind() == fastchangelog_format::error::ErrorKind::NotFound, Ordering::Relaxed);
                Ok(false)
            }
        }
    }
}

#[cfg(test)]
#[path = "server_copy_tests.rs"]
mod tests;
