//! Creating an object only if its name is free, and the proof that the store does that.
//!
//! Owns: conditional creation with its outcomes, the check of a store, and the note that a root's store has passed it.
//! Does not own: the use of an outcome (`claim`), puts under random names, which need no condition (`put`).
//!
//! A store that ignores the condition acknowledges two writers of one name, and the first writer's object is lost.
//! Hence the proof: one name is created twice, and the second attempt must be refused. It is made once for a root; a
//! note in the root keeps the answer. The note's name depends on the store, so a root that was copied to another store
//! is without one. Files and memory of this machine need no proof.

use super::diagnose::cannot_create_only;
use super::paths::{PROBES, creation_note_name, probe_name};
use super::retry::Failure;
use super::{Store, failed_point};
use bytes::Bytes;
use fastchangelog_format::error::{Error, ErrorKind, Result};
use object_store::{Error as StoreError, ObjectStoreExt, PutMode, PutOptions, PutPayload};
use std::sync::atomic::Ordering;

/// Content of the note; any other content under its name proves nothing.
const PROVED: &[u8] = b"The store of this folder creates an object only if its name is free.\n";

const IGNORES: &str = "it acknowledges the creation of an object whose name is taken (it ignores `If-None-Match`), so \
    that two writers of one state would overwrite each other's checkpoints";
const REFUSES: &str = "it does not create an object only if its name is free (`If-None-Match`), which a state with one \
                       writer needs";
const REMEDY: &str = "upgrade the store or the gateway in front of it to a version that creates objects conditionally, \
    or use a store or a file system that does; `fastchangelog doctor --state` checks one";

/// The outcome of a conditional creation.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Created {
    /// The object has the bytes that were given; acknowledged.
    Ours,
    /// The object has other bytes.
    Taken(Bytes),
    /// The store said that it does not know the condition. Nothing was written.
    Unsupported,
}

impl Store {
    /// Creates `name` with `bytes` if the name is free. The bytes must differ from those of any other creation of this
    /// name: they identify one whose answer was lost.
    pub(super) async fn create(&self, name: &str, bytes: Bytes) -> Result<Created> {
        let path = self.path(name)?;
        let size = bytes.len() as u64;
        let payload = PutPayload::from(bytes.clone());
        let inner = &self.inner;
        let created = inner.requests.run(self.call("create", name, Some(size)), |_| async {
            inner.requests.failpoints.hit("store.before-put").map_err(failed_point)?;
            match inner.store.put_opts(&path, payload.clone(), PutOptions::from(PutMode::Create)).await {
                Ok(_) => {}
                Err(StoreError::AlreadyExists { .. } | StoreError::Precondition { .. }) => {
                    inner.requests.metrics.store_requests.add(1);
                    let found = match inner.store.get(&path).await {
                        Ok(found) => {
                            self.check_limit(name, found.meta.size)?;
                            found.bytes().await?
                        }
                        Err(StoreError::NotFound { .. }) => {
                            return Err(Failure::Again("the object vanished after the write".into()));
                        }
                        Err(error) => return Err(error.into()),
                    };
                    if found != bytes {
                        return Ok(Created::Taken(found));
                    }
                }
                Err(error) if cannot_create_only(&error) => return Ok(Created::Unsupported),
                Err(error) => return Err(error.into()),
            }
            inner.requests.failpoints.hit("store.after-put").map_err(failed_point)?;
            Ok(Created::Ours)
        });
        let created = created.await?;
        if created == Created::Ours {
            inner.requests.metrics.store_bytes_written.add(size);
        }
        Ok(created)
    }

    /// Fails unless the store creates objects conditionally: known of this connection, noted in its root, or proved now
    /// and noted there.
    pub async fn prove_creation(&self) -> Result<()> {
        if self.inner.creation_proved.load(Ordering::Relaxed) {
            return Ok(());
        }
        let root = self.root();
        let note = creation_note_name(&self.inner.place);
        let noted = match root.get_named(&note).await {
            Ok(found) => found.is_some_and(|found| found == PROVED),
            // S3 answers this for a missing object if the caller may not list.
            Err(error) if error.kind() == ErrorKind::PermissionDenied => false,
            Err(error) => return Err(error),
        };
        if !noted {
            let proved = match root.probe().await {
                // The caller may have rights for the state's folder alone. No note is kept then.
                Err(error) if error.kind() == ErrorKind::PermissionDenied && root.uri != self.uri => self.probe().await,
                Ok(removed) => root.put_overwrite(&note, Bytes::from_static(PROVED)).await.map(|()| removed),
                refused => refused,
            };
            if let Err(error) = proved? {
                tracing::warn!(%error, "cannot remove an object that checked the store");
            }
        }
        self.inner.creation_proved.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Creates a small object, tries to create it again, reads and removes it: finds a store that is unreachable,
    /// read-only or full, or that does not create objects conditionally, before work begins.
    pub async fn check(&self) -> Result<()> {
        self.probe().await?
    }

    /// The same; that the object could not be removed is told apart.
    async fn probe(&self) -> Result<Result<()>> {
        let name = probe_name();
        if let Err(error) = self.create_twice(&name).await {
            self.remove_remains(&self.path(&name)?).await;
            return Err(error);
        }
        let removed = self.delete(&name).await;
        if let Some(files) = &self.inner.local {
            // Unless another check has an object in it.
            let _ = std::fs::remove_dir(files.join(&self.below_root).join(PROBES));
        }
        Ok(removed)
    }

    /// Fails unless `name` is created, and not created again.
    async fn create_twice(&self, name: &str) -> Result<()> {
        let (first, second) = (Bytes::from_static(b"fastchangelog 1"), Bytes::from_static(b"fastchangelog 2"));
        match self.create(name, first.clone()).await? {
            Created::Ours => {}
            Created::Taken(_) => return Err(self.reads_something_else(name)),
            Created::Unsupported => {
                // A store that takes no put at all says so here, with its own reason.
                self.put_overwrite(name, first).await?;
                return Err(self.does_not_create());
            }
        }
        match self.create(name, second).await? {
            Created::Taken(found) if found == first => Ok(()),
            Created::Taken(_) => Err(self.reads_something_else(name)),
            Created::Ours => Err(self.cannot_create(IGNORES)),
            Created::Unsupported => Err(self.does_not_create()),
        }
    }

    /// The error of a store that does not know the condition.
    pub(super) fn does_not_create(&self) -> Error {
        self.cannot_create(REFUSES)
    }

    fn cannot_create(&self, why: &str) -> Error {
        Error::invalid(format!("the store of {} cannot keep a state: {why}", self.uri)).with_remedy(REMEDY)
    }

    fn reads_something_else(&self, name: &str) -> Error {
        Error::corrupt(format_args!("{}/{name}", self.uri), 0, "a read returned other bytes than the last write")
    }
}

#[cfg(test)]
#[path = "creation_tests.rs"]
mod tests;
