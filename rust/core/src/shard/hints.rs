//! Optional hints about a version, beside its entries.
//!
//! Owns: bounds on the first timer of each key group, and on the first end of entries that end; where the removal of
//! ended entries goes on.
//! Does not own: entries. Losing hints only costs extra reads.
//!
//! Each version has its own. They are kept in memory, with the prepared version and then with the live one, and are
//! lost with it. So an aborted session leaves nothing behind. A batch in which no timer is due and no entry has ended
//! does not read the disk at all.

use crate::states::first_timer::{FirstTimer, timer};
use crate::states::sweep::Ends;
use fastchangelog_format::model::{KeyGroup, StateId};
use std::collections::BTreeMap;

/// A session's hints about its version.
#[derive(Debug, Clone, Default)]
pub(super) struct StateHints {
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
        let unknown = if self.all_known { Ends::of_nothing() } else { Ends::default() };
        self.ends.entry(state).or_insert(unknown)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::states::sweep::Written;

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
        let written = |ends| Written { ends, entries: 1, bytes: 1, one: (G, b"a") };
        hints.ends(StateId(1)).added(written(10));
        hints.ends(StateId(1)).added(written(20));
        assert!(!hints.ends(StateId(1)).may_have_ended(9) && hints.ends(StateId(1)).may_have_ended(10));
        assert!(StateHints::default().ends(StateId(1)).may_have_ended(i64::MIN), "nothing is known");
    }
}
