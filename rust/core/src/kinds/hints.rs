//! Optional hints about a version, beside its entries.
//!
//! Owns: bounds on the first timer of each key group, and on the first end of entries that end; where the removal of
//! ended entries goes on.
//! Does not own: entries. Losing hints only costs extra reads.
//!
//! Each version has its own. They are kept in memory, with the prepared version and then with the live one, and are
//! lost with it. So an aborted session leaves nothing behind. A batch in which no timer is due and no entry has ended
//! does not read the disk at all.

use super::first_timer::{FirstTimer, timer};
use super::sweep::Ends;
use crate::states::Place;
use fastchangelog_format::model::StateId;
use std::collections::BTreeMap;

/// A session's hints about its version.
#[derive(Debug, Clone, Default)]
pub(crate) struct StateHints {
    /// There is nothing but what was added since: what is not below is empty.
    all_known: bool,
    timers: BTreeMap<Place, FirstTimer>,
    ends: BTreeMap<StateId, Ends>,
}

impl StateHints {
    /// Of an empty state.
    pub(crate) fn of_nothing() -> Self {
        Self { all_known: true, ..Self::default() }
    }

    /// A state was added: it has no entries, but those that another thread may have written already.
    pub(crate) fn begin_empty(&mut self, place: Place) {
        self.ends.entry(place.0).or_insert_with(Ends::of_nothing);
        self.timers.entry(place).or_insert(FirstTimer::Nothing);
    }

    /// The first timer of a key group.
    pub(crate) fn first_timer(&self, place: Place) -> FirstTimer {
        self.timers.get(&place).cloned().unwrap_or_else(|| self.unknown_timer())
    }

    fn unknown_timer(&self) -> FirstTimer {
        if self.all_known { FirstTimer::Nothing } else { FirstTimer::default() }
    }

    /// Says what was read.
    pub(crate) fn learn_timer(&mut self, place: Place, first: FirstTimer) {
        self.timers.insert(place, first);
    }

    /// A timer was registered.
    pub(crate) fn added_timer(&mut self, place: Place, time: i64, key: &[u8]) {
        self.change_timer(place, |first| first.added(&timer(time, key)));
    }

    /// A timer was removed, or was not there.
    pub(crate) fn removed_timer(&mut self, place: Place, time: i64, key: &[u8]) {
        self.change_timer(place, |first| first.removed(&timer(time, key)));
    }

    /// All timers were removed.
    pub(crate) fn cleared_timers(&mut self, places: impl Iterator<Item = Place>) {
        places.for_each(|place| self.learn_timer(place, FirstTimer::Nothing));
    }

    fn change_timer(&mut self, place: Place, change: impl FnOnce(&mut FirstTimer)) {
        let unknown = self.unknown_timer();
        change(self.timers.entry(place).or_insert(unknown));
    }

    /// The ends of a state's entries.
    pub(crate) fn ends(&mut self, state: StateId) -> &mut Ends {
        let unknown = if self.all_known { Ends::of_nothing() } else { Ends::default() };
        self.ends.entry(state).or_insert(unknown)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::sweep::Written;
    use crate::kinds::timers::{end_of_due, groups_due};
    use fastchangelog_format::model::KeyGroup;

    const G: Place = (StateId(0), KeyGroup(7));

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
        let due = |hints: &StateHints, until| !groups_due(hints, G.0, [G.1].into_iter(), &end_of_due(until)).is_empty();
        assert!(!due(&hints, 4) && due(&hints, 5));
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
        assert!(due(&StateHints::default(), i64::MIN), "nothing is known");
    }

    #[test]
    fn the_first_end_is_a_bound() {
        let mut hints = StateHints::of_nothing();
        assert!(!hints.ends(StateId(1)).may_have_ended(i64::MAX - 1));
        let written = |ends| Written { ends, entries: 1, bytes: 1, one: (G.1, b"a") };
        hints.ends(StateId(1)).added(written(10));
        hints.ends(StateId(1)).added(written(20));
        assert!(!hints.ends(StateId(1)).may_have_ended(9) && hints.ends(StateId(1)).may_have_ended(10));
        assert!(StateHints::default().ends(StateId(1)).may_have_ended(i64::MIN), "nothing is known");
    }
}
