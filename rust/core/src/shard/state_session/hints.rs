//! What a session knows of its version beside the entries.
//!
//! Owns: bounds on the first timer of each key group, and on the first end of entries that end; where the removal of ended
//! entries goes on.
//! Does not own: entries. Hints are never needed: a session without them reads more.
//!
//! Each version has its own. They are kept in memory, with the prepared version and then with the live one, and are lost with
//! it. So an aborted session leaves nothing behind. Why: a delete leaves a tombstone in RocksDB until the next compaction. A search
//! for the first timer would pass those of all timers before it, in each batch; with its bound it begins behind them.
//! A batch in which no timer is due and no entry has ended does not read the disk at all.

use crate::states::timer::{TIME, ordered, time_of};
use fastchangelog_format::model::{KeyGroup, StateId};
use std::collections::BTreeMap;

/// What is known of the first timer of a key group. A timer is its time and its key, in their order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum FirstTimer {
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
    pub(super) fn bound(&self) -> Option<&[u8]> {
        match self {
            Self::NotBefore(timer) | Self::Is(timer) => Some(timer),
            Self::Nothing => None,
        }
    }

    /// True if a timer may be due at `until`.
    pub(super) fn may_be_due(&self, until: i64) -> bool {
        self.bound().is_some_and(|timer| timer.first_chunk::<TIME>().is_none_or(|time| time_of(*time) <= until))
    }

    fn added(&mut self, timer: &[u8]) {
        match self {
            Self::NotBefore(bound) if bound.as_slice() < timer => {}
            Self::Is(first) if first.as_slice() < timer => {}
            _ => *self = Self::Is(timer.to_vec()),
        }
    }

    fn removed(&mut self, timer: &[u8]) {
        if matches!(self, Self::Is(first) if first == timer) {
            *self = Self::NotBefore(timer.to_vec());
        }
    }
}

/// What is known of the ends of one state's entries.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Ends {
    /// No entry ends before; none = not known.
    pub(super) first: Option<i64>,
    /// The removal that is in progress.
    pub(super) sweep: Option<Sweep>,
}

/// A removal of all ended entries of a state that goes on over several batches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Sweep {
    /// It goes on after this entry; none = at its beginning.
    pub(super) after: (KeyGroup, Option<Vec<u8>>),
    /// The first end of what it has passed and left, and of what was written meanwhile.
    pub(super) first: i64,
}

impl Ends {
    /// An entry was written that ends at `millis`.
    pub(super) fn added(&mut self, millis: i64) {
        if let Some(first) = &mut self.first {
            *first = millis.min(*first);
        }
        if let Some(sweep) = &mut self.sweep {
            sweep.first = millis.min(sweep.first);
        }
    }

    /// True if entries may have ended at `now`.
    pub(super) fn may_have_ended(&self, now: i64) -> bool {
        self.sweep.is_some() || self.first.is_none_or(|first| first <= now)
    }
}

/// What a session knows of its version.
#[derive(Debug, Clone, Default)]
pub(in crate::shard) struct StateHints {
    /// There is nothing but what was added since: what is not below is empty.
    all_known: bool,
    timers: BTreeMap<KeyGroup, FirstTimer>,
    ends: BTreeMap<StateId, Ends>,
}

impl StateHints {
    /// Of an empty state.
    pub(super) fn of_nothing() -> Self {
        Self { all_known: true, ..Self::default() }
    }

    /// The first timer of a key group.
    pub(super) fn first_timer(&self, group: KeyGroup) -> FirstTimer {
        self.timers.get(&group).cloned().unwrap_or_else(|| self.unknown_timer())
    }

    fn unknown_timer(&self) -> FirstTimer {
        if self.all_known { FirstTimer::Nothing } else { FirstTimer::default() }
    }

    /// Says what was read.
    pub(super) fn learn_timer(&mut self, group: KeyGroup, first: FirstTimer) {
        self.timers.insert(group, first);
    }

    /// A timer was registered.
    pub(super) fn added_timer(&mut self, group: KeyGroup, time: i64, key: &[u8]) {
        self.change_timer(group, |first| first.added(&timer(time, key)));
    }

    /// A timer was removed, or was not there.
    pub(super) fn removed_timer(&mut self, group: KeyGroup, time: i64, key: &[u8]) {
        self.change_timer(group, |first| first.removed(&timer(time, key)));
    }

    /// All timers were removed.
    pub(super) fn cleared_timers(&mut self, groups: impl Iterator<Item = KeyGroup>) {
        groups.for_each(|group| self.learn_timer(group, FirstTimer::Nothing));
    }

    fn change_timer(&mut self, group: KeyGroup, change: impl FnOnce(&mut FirstTimer)) {
        let unknown = self.unknown_timer();
        change(self.timers.entry(group).or_insert(unknown));
    }

    /// The ends of a state's entries.
    pub(super) fn ends(&mut self, state: StateId) -> &mut Ends {
        let first = self.all_known.then_some(i64::MAX);
        self.ends.entry(state).or_insert(Ends { first, sweep: None })
    }
}

/// A timer as one in the order of time and key.
pub(super) fn timer(time: i64, key: &[u8]) -> Vec<u8> {
    [&ordered(time)[..], key].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    const G: KeyGroup = KeyGroup(7);

    #[test]
    fn the_first_timer_is_known_as_far_as_it_can_be() {
        let mut hints = StateHints::of_nothing();
        assert_eq!(hints.first_timer(G), FirstTimer::Nothing);
        hints.removed_timer(G, 5, b"a");
        assert_eq!(hints.first_timer(G), FirstTimer::Nothing);
        hints.added_timer(G, 5, b"b");
        hints.added_timer(G, 5, b"a");
        hints.added_timer(G, 9, b"");
        assert_eq!(hints.first_timer(G), FirstTimer::Is(timer(5, b"a")));
        assert!(!hints.first_timer(G).may_be_due(4) && hints.first_timer(G).may_be_due(5));
        hints.removed_timer(G, 9, b"");
        hints.removed_timer(G, 5, b"a");
        assert_eq!(hints.first_timer(G), FirstTimer::NotBefore(timer(5, b"a")), "which is the next, is not known");
        hints.added_timer(G, 6, b"");
        assert_eq!(hints.first_timer(G), FirstTimer::NotBefore(timer(5, b"a")));
        hints.added_timer(G, -1, b"x");
        assert_eq!(hints.first_timer(G), FirstTimer::Is(timer(-1, b"x")));

        let mut unknown = StateHints::default();
        unknown.added_timer(G, i64::MIN, b"");
        assert_eq!(unknown.first_timer(G), FirstTimer::default(), "there may be others of this time");
        assert!(unknown.first_timer(KeyGroup(0)).may_be_due(i64::MIN));
    }

    #[test]
    fn the_first_end_is_a_bound() {
        let mut hints = StateHints::of_nothing();
        assert!(!hints.ends(StateId(1)).may_have_ended(i64::MAX - 1));
        hints.ends(StateId(1)).added(10);
        hints.ends(StateId(1)).added(20);
        assert!(!hints.ends(StateId(1)).may_have_ended(9) && hints.ends(StateId(1)).may_have_ended(10));
        assert!(StateHints::default().ends(StateId(1)).may_have_ended(i64::MIN), "nothing is known");
    }
}
