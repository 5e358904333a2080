//! Values that stay in the caller's memory until their set is durable.
//!
//! Owns: the choice between references and copies, batch by batch, and the bound on memory that is held for them.
//! Does not own: blocks (`buffer`), the memory itself (its owner frees it when the last set that refers to it is
//! dropped).
//!
//! A copy reads a batch in order, ahead of which the processor fetches, and leaves blocks in the cache. References are
//! read key group by key group, from memory that no cache holds: they pay off only where many bytes lie together.
//!
//! Invariants:
//! 1. memory that is held never exceeds [`HELD`] times `max_in_flight`: a batch beyond it is copied;
//! 2. a batch holds at most [`SPARE`] times the bytes of its values.

use fastchangelog_format::config::{Compression, Options};
use fastchangelog_store::metrics::SharedMetrics;
use parking_lot::Mutex;
use std::sync::Arc;

/// Fewer bytes of one key group in a row are copied.
const LEAST: u64 = 4 << 10;
/// A slice holds its whole buffer, which has at most this many times its bytes.
const SPARE: u64 = 2;
/// Multiple of `max_in_flight`: more than one, because the last set of a batch holds all of it.
const HELD: u64 = 2;

/// What is held for the writers of a storage. Cheap to clone.
#[derive(Clone)]
pub(crate) struct References {
    limit: u64,
    held: Arc<Mutex<u64>>,
    metrics: SharedMetrics,
}

/// Memory of a caller that counts as held until this is dropped.
pub struct Hold {
    bytes: u64,
    references: References,
}

impl References {
    /// None if values are compressed: that is a copy already.
    pub(crate) fn new(options: &Options, compression: Compression, metrics: &SharedMetrics) -> Option<Self> {
        let limit = options.max_in_flight.saturating_mul(HELD);
        let metrics = Arc::clone(metrics);
        (compression == Compression::None).then(|| Self { limit, held: Arc::default(), metrics })
    }

    /// Permission to refer to the values of a batch, `bytes` bytes in a buffer of `held` bytes. None if that may change
    /// (0), if a copy is cheaper, or if too much is held.
    pub(crate) fn hold(&self, groups: &[u16], bytes: u64, held: u64) -> Option<Hold> {
        if held == 0 || held > bytes.saturating_mul(SPARE) {
            return None;
        }
        let runs = 1 + groups.windows(2).filter(|pair| pair[0] != pair[1]).count() as u64;
        if bytes / runs < LEAST {
            return None;
        }
        let held = held.max(bytes);
        let mut all = self.held.lock();
        let next = all.checked_add(held).filter(|next| *next <= self.limit)?;
        *all = next;
        self.metrics.referenced_bytes.add(held);
        Some(Hold { bytes: held, references: self.clone() })
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        *self.references.held.lock() -= self.bytes;
        self.references.metrics.referenced_bytes.sub(self.bytes);
    }
}

#[cfg(test)]
#[path = "references_tests.rs"]
mod tests;
