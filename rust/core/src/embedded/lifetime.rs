//! How long entries live after they were written.
//!
//! Owns: the TTL of a declared state. Does not own: expired entries (`kinds`), their removal (`sweep`), the clock.
//!
//! Each call asks the clock once, a scan with each batch. If the clock moves backwards, expired entries that were not swept yet
//! become visible again.

use fastchangelog_format::error::{Error, Result};
use std::time::Duration;

/// The TTL of a state's entries, in milliseconds; none = they live until they are removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Lifetime(Option<i64>);

impl Lifetime {
    /// Until they are removed.
    pub(super) const UNBOUNDED: Self = Self(None);

    pub(super) fn of(ttl: Option<Duration>) -> Result<Self> {
        let Some(ttl) = ttl else { return Ok(Self(None)) };
        match i64::try_from(ttl.as_millis()).unwrap_or(i64::MAX) {
            0 => Err(Error::invalid(format!("a ttl of {ttl:?} is too short; give a millisecond or more"))),
            millis => Ok(Self(Some(millis))),
        }
    }

    /// True if entries expire.
    pub(super) fn is_bounded(self) -> bool {
        self.0.is_some()
    }

    /// When an entry expires that is written at `now`.
    pub(super) fn expiry(self, now: i64) -> Option<i64> {
        self.0.map(|millis| now.saturating_add(millis))
    }
}
