//! Writing objects: create-only, acknowledged, and without remains.
//!
//! Owns: puts of whole objects from memory, and what an ambiguous answer means.
//! Does not own: puts in parts (`transfer`), attempts and time limits (`retry`), reading.

use super::retry::Failure;
use super::{Store, failed_point};
use crate::error::{Error, Result};
use crate::format::{Crc, crc32c};
use crate::model::ObjectRef;
use bytes::Bytes;
use object_store::path::Path as ObjectPath;
use object_store::{ObjectStoreExt, PutMode, PutOptions, PutPayload};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The bytes of an object with their size and CRC-32C, whoever computed them.
#[derive(Debug, Clone)]
pub struct Sealed {
    /// The bytes, in order.
    pub parts: Vec<Bytes>,
    /// Bytes of all parts.
    pub size: u64,
    /// CRC-32C of all parts.
    pub crc: u32,
}

impl Sealed {
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

impl Store {
    /// Writes a new object from `parts`; returns when the store acknowledged all of it.
    ///
    /// `name` must never have been used before (draw it with [`log_name`] and its like): then a repeated put is safe,
    /// and "exists already" means that an earlier attempt arrived although its answer was lost. Such an object is
    /// looked at before it counts as acknowledged.
    pub async fn put_new(&self, name: &str, parts: Vec<Bytes>) -> Result<ObjectRef> {
        self.put_sealed(name, Sealed::of(parts)).await
    }

    /// [`Store::put_new`] of bytes whose checksum is known.
    pub async fn put_sealed(&self, name: &str, sealed: Sealed) -> Result<ObjectRef> {
        let Sealed { parts, size, crc } = sealed;
        let object = ObjectRef { name: name.to_owned(), size, crc };
        let path = self.path(name)?;
        let payload = PutPayload::from_iter(parts);
        let call = self.call("write", name, Some(size));
        let foreign = AtomicBool::new(false);
        let result =
            self.inner.requests.run(call, |_| self.put_attempt(&object, &path, payload.clone(), &foreign)).await;
        match result {
            Ok(()) => {
                self.inner.requests.metrics.store_bytes_written.add(size);
                Ok(object)
            }
            Err(error) => {
                // What somebody else wrote under this name is not ours to remove.
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
            // After an ambiguous answer, look; don't guess.
            Err(object_store::Error::AlreadyExists { .. } | object_store::Error::Precondition { .. }) => {
                inner.requests.metrics.store_requests.add(1);
                // Only its content proves an object ours.
                let bytes = match inner.store.get(path).await {
                    Ok(found) if found.meta.size == object.size => found.bytes().await?,
                    Ok(_) => Bytes::new(),
                    // A conflict with an attempt that was then undone.
                    Err(object_store::Error::NotFound { .. }) => {
                        return Err(Failure::Again("the object vanished after the write".into()));
                    }
                    Err(error) => return Err(error.into()),
                };
                if bytes.len() as u64 != object.size || crc32c(&bytes) != object.crc {
                    foreign.store(true, Ordering::Relaxed);
                    return Err(Failure::Fatal(self.occupied(object)));
                }
            }
            Err(error) => return Err(error.into()),
        }
        inner.requests.failpoints.hit("store.after-put").map_err(failed_point)
    }

    fn occupied(&self, object: &ObjectRef) -> Error {
        Error::store(format!(
            "cannot write `{}` in {}: another object has this name; give each state a folder of its own",
            object.name, self.uri
        ))
    }

    /// Best effort, one attempt: an attempt that was given up may have arrived all the same. What arrives even
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

fn cannot_create_only(error: &object_store::Error) -> bool {
    use object_store::Error as E;
    match error {
        E::NotImplemented { .. } | E::NotSupported { .. } => true,
        // A store that does not know the condition, or a file system without hard links (EPERM, ENOTSUP, ENOSYS).
        E::Generic { store, .. } => {
            let text = format!("{error:?}");
            let no_links = *store == "LocalFileSystem" && (text.contains("code: 1,") || text.contains("Unsupported"));
            no_links || text.contains("501") && text.contains("NotImplemented")
        }
        _ => false,
    }
}
