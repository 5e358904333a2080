//! Credentials that the caller supplies, and replaces whenever it has newer ones.
//!
//! Owns: the choice among the supplied sets.
//! Does not own: the caller's source of credentials, nor their form as a store's credential (`credentials`).
//!
//! Invariants:
//! 1. at most two sets are kept: the newest, and of the others the one that expires last. Several callers supply sets
//!    of their own, and the newest does not always expire last;
//! 2. a set that has expired, or that the store refused while another was available, is not used.

use fastchangelog_format::clock::SharedClock;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// Credentials with their expiry.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Granted {
    /// Credentials under the names that they have as storage options.
    pub options: BTreeMap<String, String>,
    /// Expiry, in milliseconds since the epoch; none = never.
    pub expires_at_millis: Option<u64>,
}

impl fmt::Debug for Granted {
    /// Names only.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Granted({:?}, until {:?})", self.options.keys().collect::<Vec<_>>(), self.expires_at_millis)
    }
}

impl Granted {
    fn is_good(&self, now: u64) -> bool {
        self.expires_at_millis.is_none_or(|end| now < end)
    }

    fn lasts(&self) -> u64 {
        self.expires_at_millis.unwrap_or(u64::MAX)
    }
}

/// A set of credentials, and its number in the order of supply.
#[derive(Debug, Clone)]
pub(super) struct Set {
    pub(super) number: u64,
    pub(super) granted: Arc<Granted>,
}

#[derive(Debug)]
struct Sets {
    newest: Set,
    other: Option<Set>,
    last_number: u64,
}

/// The credentials that a caller has supplied. Shared by the caller and the stores that use them.
pub struct SuppliedCredentials {
    clock: SharedClock,
    sets: Mutex<Sets>,
}

impl fmt::Debug for SuppliedCredentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SuppliedCredentials")
    }
}

impl SuppliedCredentials {
    /// Starts with the set `first`.
    pub fn new(first: Granted, clock: SharedClock) -> Arc<Self> {
        let newest = Set { number: 1, granted: Arc::new(first) };
        Arc::new(Self { clock, sets: Mutex::new(Sets { newest, other: None, last_number: 1 }) })
    }

    /// Adds a set: requests use it from their next attempt on.
    pub fn supply(&self, granted: Granted) {
        let mut sets = self.sets.lock();
        let Sets { newest, other, last_number } = &mut *sets;
        let granted = Arc::new(granted);
        if newest.granted.options == granted.options {
            newest.granted = granted;
            return;
        }
        let again = other.take_if(|other| other.granted.options == granted.options);
        let number = again.map_or_else(
            || {
                *last_number += 1;
                *last_number
            },
            |again| again.number,
        );
        let old = std::mem::replace(newest, Set { number, granted });
        if other.as_ref().is_none_or(|other| other.granted.lasts() < old.granted.lasts()) {
            *other = Some(old);
        }
    }

    /// The options of the newest set.
    pub fn newest(&self) -> BTreeMap<String, String> {
        self.sets.lock().newest.granted.options.clone()
    }

    /// True when all sets have expired.
    pub fn have_expired(&self) -> bool {
        self.set().is_none()
    }

    /// The set to use now; none if all have expired.
    pub(super) fn set(&self) -> Option<Set> {
        let now = self.clock.now_millis();
        let sets = self.sets.lock();
        let good = [Some(&sets.newest), sets.other.as_ref()].into_iter().flatten().find(|set| set.granted.is_good(now));
        good.cloned()
    }

    /// The number of the set in use.
    pub(super) fn number(&self) -> u64 {
        self.set().map_or(0, |set| set.number)
    }

    /// Reports that the store refused the set `number`. Returns true if there is another set to try.
    pub(super) fn refuse(&self, number: u64) -> bool {
        let now = self.clock.now_millis();
        {
            let mut sets = self.sets.lock();
            let Sets { newest, other, .. } = &mut *sets;
            if newest.number == number
                && let Some(good) = other.take_if(|other| other.granted.is_good(now))
            {
                *newest = good;
            }
        }
        self.set().is_some_and(|set| set.number != number)
    }
}

#[cfg(test)]
#[path = "supplied_tests.rs"]
mod tests;
