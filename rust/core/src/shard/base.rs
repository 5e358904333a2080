//! The version that a session builds on.
//!
//! Owns: reading that version as long as it is live.
//! Does not own: the choice of the live version (`transition`), the choice of entries.

use super::{Live, Shard};
use fastchangelog_format::error::{Error, Result};
use fastchangelog_format::model::{InstanceId, VersionId};
use fastchangelog_state::keyed::StatePart;
use std::sync::Arc;

/// The version that a session builds on.
#[derive(Clone)]
pub(super) struct Base {
    pub(super) shard: Arc<Shard>,
    pub(super) instance: InstanceId,
    /// None = the state before the first batch.
    pub(super) version: Option<VersionId>,
}

impl Base {
    /// Reads the version. Fails, retryable, once another one is live.
    pub(super) fn read<T>(&self, read: impl FnOnce(&Live) -> Result<T>) -> Result<T> {
        read(self.of(self.shard.live.read().as_ref())?)
    }

    /// Reads the version when RocksDB holds these parts of it. Fails, retryable, once another one is live.
    pub(super) fn read_settled<T>(&self, parts: &[StatePart], read: impl FnOnce(&Live) -> Result<T>) -> Result<T> {
        loop {
            {
                let live = self.shard.live.read();
                let live = self.of(live.as_ref())?;
                if parts.iter().all(|part| live.keyed.is_flushed(part)) {
                    return read(live);
                }
            }
            self.shard.settle_parts(parts)?;
        }
    }

    /// True if that is the version.
    pub(super) fn is(&self, live: &Live) -> bool {
        live.instance == self.instance && live.version == self.version
    }

    fn of<'l>(&self, live: Option<&'l Live>) -> Result<&'l Live> {
        live.filter(|live| self.is(live)).ok_or_else(|| {
            Error::retryable(format!(
                "shard {} moved on to another version while this task was running (a zombie or speculative attempt)",
                self.shard.id()
            ))
            .with_remedy("Spark will retry or drop it")
        })
    }
}
