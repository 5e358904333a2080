//! Create-only names: at most one process can claim a name.
//!
//! Owns: claiming a predictable name, and the outcome for each competitor.
//! Does not own: the request and the proof that the store creates conditionally (`creation`), the meaning of the names,
//! random names (`put`).
//!
//! Unlike a put under a random name, a claim never falls back to a plain write: a store that cannot create
//! conditionally, or only pretends to, is refused.

use super::Store;
use super::creation::Created;
use bytes::Bytes;
use fastchangelog_format::error::Result;

/// The outcome of a claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Claim {
    /// The object with the bytes that were given; acknowledged.
    Ours,
    /// An object with other bytes, which was there before.
    Taken(Bytes),
}

impl Store {
    /// Creates `name` with `bytes`, unless it exists, in a store that is known to do so. The bytes must differ from
    /// those of any other claim of this name: they identify a claim whose answer was lost.
    ///
    /// After an error it is unknown whether the object exists, or will.
    pub async fn claim(&self, name: &str, bytes: Bytes) -> Result<Claim> {
        self.prove_creation().await?;
        match self.create(name, bytes).await? {
            Created::Ours => Ok(Claim::Ours),
            Created::Taken(found) => Ok(Claim::Taken(found)),
            Created::Unsupported => Err(self.does_not_create()),
        }
    }
}

#[cfg(test)]
#[path = "claim_tests.rs"]
mod tests;
