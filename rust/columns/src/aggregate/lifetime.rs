//! The lifetime of a group.
//!
//! Owns: when a group expires. Does not own: the time from which it lives (`kept_rows`), its removal (`shard::session`).

use serde::{Deserialize, Serialize};

/// How long a group lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lifetime {
    /// From the time in the first call on, in microseconds.
    pub micros: i64,
    /// The clock by which it expires.
    pub clock: Clock,
}

/// The clock by which groups expire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Clock {
    /// The time of the batch: that in the rows of the batch itself.
    Processing,
    /// The watermark.
    Watermark,
}

impl Lifetime {
    /// True if a group with this time has expired at `now`, in microseconds.
    #[inline]
    pub fn is_over(&self, time: i64, now: i64) -> bool {
        time.saturating_add(self.micros) <= now
    }
}
