//! What is known of the first timer of a key group.
//!
//! Owns: the bound on it, and the keys of the entries by time from which a walk begins and at which it ends.
//! Does not own: how a timer lies in entries (`timer_layout`), the walk.
//!
//! Why: a delete leaves a tombstone in RocksDB until the next compaction. A search for the first timer would pass those of all
//! timers before it, each time; with its bound it begins behind them.

use super::timer_layout::BY_TIME;
use crate::states::times::ordered;

/// What is known of the first timer of a key group. A timer is its time and its key, in their order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum FirstTimer {
    /// There is none before this one.
    NotBefore(Vec<u8>),
    /// It is this one.
    Is(Vec<u8>),
    /// There is none.
    Nothing,
}

impl Default for FirstTimer {
    fn default() -> Self {
        Self::NotBefore(Vec::new())
    }
}

impl FirstTimer {
    /// The first timer that there may be; none if there is none.
    pub(crate) fn bound(&self) -> Option<&[u8]> {
        match self {
            Self::NotBefore(timer) | Self::Is(timer) => Some(timer),
            Self::Nothing => None,
        }
    }

    /// It was registered.
    pub(crate) fn added(&mut self, timer: &[u8]) {
        match self {
            Self::NotBefore(bound) if bound.as_slice() < timer => {}
            Self::Is(first) if first.as_slice() < timer => {}
            _ => *self = Self::Is(timer.to_vec()),
        }
    }

    /// It was removed, or was not there.
    pub(crate) fn removed(&mut self, timer: &[u8]) {
        if matches!(self, Self::Is(first) if first == timer) {
            *self = Self::NotBefore(timer.to_vec());
        }
    }
}

/// A timer as one in the order of time and key.
pub(crate) fn timer(time: i64, key: &[u8]) -> Vec<u8> {
    [&ordered(time)[..], key].concat()
}

/// The key of the entry by time of a timer, or of the first one of a time.
pub(crate) fn entry_by_time(timer: &[u8]) -> Vec<u8> {
    [&[BY_TIME], timer].concat()
}

/// After all entries by time.
pub(crate) fn end_of_timers() -> Vec<u8> {
    vec![BY_TIME + 1]
}

/// What the first entry says that was found below `to` (none = among all).
pub(crate) fn known(found: Option<&[u8]>, to: Option<&[u8]>) -> FirstTimer {
    match (found, to) {
        (Some(entry), _) => FirstTimer::Is(entry[1..].to_vec()),
        (None, Some(to)) if to.first() == Some(&BY_TIME) => FirstTimer::NotBefore(to[1..].to_vec()),
        (None, _) => FirstTimer::Nothing,
    }
}
