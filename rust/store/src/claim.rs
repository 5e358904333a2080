//! Create-only names: at most one process can claim a name.
//!
//! Owns: creating an object under a predictable name, and the outcome for each competitor.
//! Does not own: what the names mean, random names (`put`).
//!
//! Unlike a put of a new, random name, a claim is never softened to a plain write: a store that cannot create
//! conditionally refuses it.

use super::diagnose::cannot_create_only;
use super::retry::Failure;
use super::{Store, failed_point};
use bytes::Bytes;
use fastchangelog_format::error::{Error, Result};
use object_store::{Error as StoreError, ObjectStoreExt, PutMode, PutOptions, PutPayload};

/// The outcome of a claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Claim {
    /// The object with the bytes that were given; acknowledged.
    Ours,
    /// An object with other bytes, which was there before.
    Taken(Bytes),
}

impl Store {
    /// Creates `name` with `bytes`, unless it exists. The bytes must differ from those of any other claim of this name: they
    /// identify a claim whose answer was lost.
    ///
    /// After an error it is unknown whether the object exists, or will.
    pub async fn claim(&self, name: &str, bytes: Bytes) -> Result<Claim> {
        let path = self.path(name)?;
        let size = bytes.len() as u64;
        let payload = PutPayload::from(bytes.clone());
        let inner = &self.inner;
        let claimed = inner.requests.run(self.call("create", name, Some(size)), |_| async {
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
                        return Ok(Claim::Taken(found));
                    }
                }
                Err(error) if cannot_create_only(&error) => {
                    return Err(Failure::Fatal(
                        Error::invalid(format!(
                            "{} cannot create an object only if its name is free, which a state with one writer needs",
                            self.uri
                        ))
                        .with_remedy("use a store or a file system that can"),
                    ));
                }
                Err(error) => return Err(error.into()),
            }
            inner.requests.failpoints.hit("store.after-put").map_err(failed_point)?;
            Ok(Claim::Ours)
        });
        let claim = claimed.await?;
        if claim == Claim::Ours {
            inner.requests.metrics.store_bytes_written.add(size);
        }
        Ok(claim)
    }
}

#[cfg(test)]
#[path = "claim_tests.rs"]
mod tests;
