//! The removal of entries that have ended.
//!
//! Owns: what of some entries goes, as changes; what is known of the ends of a state's entries; the order of a walk, and how many
//! entries one version passes ([`Allowance`]).
//! Does not own: the walk over a state, and when it takes place (the hosts).
//!
//! A walk begins when an entry may have ended, and goes on over the versions until all of the state is passed, as a ring: it begins
//! with a key that was written lately, so that walks which end early, because programs do, pass all parts of a state. Of a list, the
//! tail is written again without what has ended; a chunk once half of it has ended. A chunk of which nothing is left goes if it
//! is the first one, and else stays empty until it is.
//!
//! Invariant: nothing is removed that has not ended.

use super::Kind;
use crate::states::layers::Layers;
use crate::states::scan::{Found, MergedCursor};
use crate::states::{Place, ttl};
use fastchangelog_columns::codec::hash_key;
use fastchangelog_format::error::Result;
use fastchangelog_format::model::KeyGroup;
use std::ops::Bound;

/// Entries that a walk may pass although they stay: so many for each that was written and for each that goes.
pub(crate) const PER_CHANGE: u64 = 4;
/// The same of a version, shared by the states, if it has written fewer.
pub(crate) const LEAST_PASSED: u64 = 1024;
/// Of those that earlier versions have paid for, the most that one version passes.
pub(crate) const MOST_SAVED: u64 = 65_536;
/// Entries, and about the bytes, that are read at once; and entries if few more may stay.
const STEP: usize = 1024;
const STEP_BYTES: usize = 4 << 20;
const LEAST_STEP: usize = 64;

/// How many entries a version still passes of one state although they stay. An entry counts once, or as often as it has KiB; so does
/// a step that finds none.
///
/// Why only these are bounded: an entry that goes is read once, and was written before. One that stays is read in vain, and again by
/// the next walk, so what was written and what goes pay for it. A walk stops only where at most one entry of five has ended; so
/// those that have ended are a quarter of those that have not, and what came in the versions that a step of the walk waits.
///
/// Invariants:
/// 1. of entries that stay, a version passes [`PER_CHANGE`] for each that was written or goes, [`MOST_SAVED`] more if earlier versions
///    have written and not used them, [`LEAST_PASSED`] at least, and those of one step;
/// 2. of entries that go, it passes all that it meets.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Allowance {
    left: u64,
    /// What is paid for by writes, by removals, and what was passed.
    paid: u64,
    earned: u64,
    spent: u64,
    passed: u64,
}

impl Allowance {
    /// The most entries of the next step; 0: there is none.
    pub(crate) fn rows(&self) -> usize {
        match usize::try_from(self.left).unwrap_or(usize::MAX) {
            0 => 0,
            left => STEP.min(left.max(LEAST_STEP)),
        }
    }

    /// How often all entries count that it has passed.
    pub(crate) fn passed(&self) -> u64 {
        self.passed
    }

    /// Counts a step.
    pub(crate) fn count(&mut self, step: &Step, outcome: &Outcome) {
        let (entries, stay) = (step.found.len() as u64, outcome.stay as u64);
        let all = units(entries, step.bytes as u64).max(1);
        let staying = if entries == 0 { all } else { (all * stay).div_ceil(entries) };
        let earned = PER_CHANGE.saturating_mul(all - staying);
        self.earned = self.earned.saturating_add(earned);
        self.spent = self.spent.saturating_add(staying);
        self.passed = self.passed.saturating_add(all);
        self.left = self.left.saturating_add(earned).saturating_sub(staying);
    }
}

/// How often entries of so many bytes count.
fn units(entries: u64, bytes: u64) -> u64 {
    entries.max(bytes >> 10)
}

/// What is known of the ends of one state's entries.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Ends {
    /// No entry ends before; none = not known.
    pub(crate) first: Option<i64>,
    /// The removal that is in progress.
    pub(crate) sweep: Option<Sweep>,
    /// How often what was written since the last version counts.
    written: u64,
    /// Entries that earlier versions have paid for, and did not pass.
    saved: u64,
    /// The place of a key that was written lately; none = not known.
    lately: Option<(KeyGroup, Vec<u8>)>,
}

/// A removal of all ended entries of a state that goes on over several versions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Sweep {
    /// It goes on after this entry; none = at the beginning of the key group.
    at: (KeyGroup, Option<Vec<u8>>),
    /// It began after this entry, and ends with it.
    begun: (KeyGroup, Option<Vec<u8>>),
    /// It has come to the key group that it began in again.
    is_last: bool,
    /// The first end of what it has passed and left, and of what was written meanwhile.
    pub(crate) first: i64,
}

impl Sweep {
    fn from(begun: (KeyGroup, Option<Vec<u8>>)) -> Self {
        Self { at: begun.clone(), begun, is_last: false, first: i64::MAX }
    }

    /// The key group that it is in.
    pub(crate) fn group(&self) -> KeyGroup {
        self.at.0
    }

    /// Where the next step begins.
    pub(crate) fn lower_bound(&self) -> Bound<&[u8]> {
        self.at.1.as_deref().map_or(Bound::Unbounded, Bound::Excluded)
    }

    /// Before which key this key group ends for it; none = it has no end.
    pub(crate) fn to_key(&self) -> Option<Vec<u8>> {
        let key = self.begun.1.as_ref().filter(|_| self.is_last)?;
        Some([key, &[0][..]].concat())
    }

    /// It has passed what a step has found; if that was nothing, the key group `next` is next. True once all is passed.
    pub(crate) fn pass(&mut self, step: &Step, next: KeyGroup) -> bool {
        if let Some(last) = step.found.keys().last() {
            self.at.1 = Some(last.to_vec());
            return false;
        }
        if self.is_last {
            return true;
        }
        self.at = (next, None);
        self.is_last = next == self.begun.0;
        self.is_last && self.begun.1.is_none()
    }
}

/// Entries that are written at once, and end at the same time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Written<'a> {
    /// Their end.
    pub(crate) ends: i64,
    pub(crate) entries: u64,
    pub(crate) bytes: u64,
    /// One of their keys, and its key group: any of them, so that no part of a state is never it.
    pub(crate) one: (KeyGroup, &'a [u8]),
}

/// Which of `n` keys is as good as any: not always the first or the middle one of those in order.
pub(crate) fn any_of<'a>(n: usize, key: impl Fn(usize) -> &'a [u8]) -> usize {
    match n.checked_sub(1) {
        Some(last) => usize::try_from(hash_key(key(last)) % n as u64).unwrap_or(last),
        None => 0,
    }
}

impl Ends {
    /// Of a state without entries.
    pub(crate) fn of_nothing() -> Self {
        Self { first: Some(i64::MAX), ..Self::default() }
    }

    /// Entries were written.
    pub(crate) fn added(&mut self, written: Written<'_>) {
        let Written { ends, entries, bytes, one: (group, key) } = written;
        if let Some(first) = &mut self.first {
            *first = ends.min(*first);
        }
        if let Some(sweep) = &mut self.sweep {
            sweep.first = ends.min(sweep.first);
        }
        self.written = self.written.saturating_add(units(entries, bytes));
        let lately = self.lately.get_or_insert_with(|| (group, Vec::new()));
        lately.0 = group;
        lately.1.clear();
        lately.1.extend_from_slice(key);
    }

    /// True if entries may have ended at `now`.
    pub(crate) fn may_have_ended(&self, now: i64) -> bool {
        self.sweep.is_some() || self.first.is_none_or(|first| first <= now)
    }

    /// How many entries the next version passes, if it is one of so many states.
    pub(crate) fn begin(&mut self, states: usize) -> Allowance {
        let new = PER_CHANGE.saturating_mul(std::mem::take(&mut self.written));
        self.saved = self.saved.saturating_add(new);
        let least = LEAST_PASSED.div_ceil(states.max(1) as u64);
        let left = self.saved.min(new.saturating_add(MOST_SAVED)).max(least);
        Allowance { left, paid: self.saved, earned: 0, spent: 0, passed: 0 }
    }

    /// The walk in progress, or a new one; without a key that was written lately it begins with the key group `other`.
    pub(crate) fn walk(&mut self, kind: Kind, other: KeyGroup) -> Sweep {
        if let Some(sweep) = self.sweep.take() {
            return sweep;
        }
        Sweep::from(match &self.lately {
            None => (other, None),
            Some((group, key)) => (*group, Some(kind.rules().sweep_start(key))),
        })
    }

    /// The version passes no more; of the walk nothing is left if `is_over`.
    pub(crate) fn end(&mut self, allowance: Allowance, sweep: Sweep, is_over: bool) {
        if is_over {
            (self.first, self.sweep, self.saved) = (Some(sweep.first), None, 0);
        } else {
            self.saved = allowance.paid.saturating_sub(allowance.spent.saturating_sub(allowance.earned));
            self.sweep = Some(sweep);
        }
    }
}

/// What a step of a walk has found.
#[derive(Debug, Default)]
pub(crate) struct Step {
    /// Entries in order; of a value only its end.
    found: Found,
    /// Bytes that were read.
    bytes: usize,
}

/// The next entries of a walk over a state of this kind, `rows` at most; none at the end of the place.
pub(crate) fn step(mut cursor: MergedCursor<'_>, kind: Kind, rows: usize) -> Result<Step> {
    let mut step = Step::default();
    while let Some((key, value)) = cursor.entry()?.filter(|_| step.found.len() < rows && step.bytes < STEP_BYTES) {
        step.bytes += key.len() + value.len();
        let kept = value.len().min(kind.rules().swept_bytes());
        step.found.push(key, &value[..kept]);
        cursor.advance()?;
    }
    Ok(step)
}

/// What a step has found out: changes, the first end of what stays, how many values, elements or map entries go, and how many
/// entries stay as they are.
pub(crate) struct Outcome {
    pub(super) changes: Vec<Change>,
    pub(crate) first: i64,
    pub(crate) removed: u64,
    pub(super) stay: usize,
}

/// A change of an entry, or the removal of all entries with a prefix.
pub(super) enum Change {
    Put(Vec<u8>, Option<Vec<u8>>),
    Clear(Vec<u8>),
}

impl Outcome {
    pub(super) fn new() -> Self {
        Self { changes: Vec::new(), first: i64::MAX, removed: 0, stay: 0 }
    }

    /// What goes of the entries of a place, which a state of this kind has found in their order. `head` reads the head of a
    /// list, by the key of its entry.
    pub(crate) fn of(
        kind: Kind,
        step: &Step,
        now: i64,
        mut head: impl FnMut(&[u8]) -> Result<Option<Vec<u8>>>,
    ) -> Result<Self> {
        kind.rules().sweep(&step.found, now, &mut head)
    }

    /// The number of its changes, and about their bytes.
    pub(crate) fn size(&self) -> (usize, usize) {
        let bytes = self.changes.iter().map(|change| match change {
            Change::Put(key, value) => key.len() + value.as_ref().map_or(0, Vec::len),
            Change::Clear(prefix) => prefix.len(),
        });
        (self.changes.len(), bytes.sum())
    }

    /// Makes its changes.
    pub(crate) fn apply(self, layers: &mut Layers, place: Place) {
        for change in self.changes {
            match change {
                Change::Put(key, value) => layers.put(place, &key, value.as_deref()),
                Change::Clear(prefix) => layers.clear(place, std::iter::once(&prefix[..])),
            }
        }
    }
}

/// Values, each with its expiry in front.
pub(super) fn sweep_values(found: &Found, now: i64) -> Result<Outcome> {
    let mut outcome = Outcome::new();
    for (key, value) in found.rows() {
        let (ends, _) = ttl::split(value)?;
        if ends > now {
            outcome.first = outcome.first.min(ends);
            outcome.stay += 1;
        } else {
            outcome.changes.push(Change::Put(key.to_vec(), None));
            outcome.removed += 1;
        }
    }
    Ok(outcome)
}

#[cfg(test)]
#[path = "sweep_tests.rs"]
mod tests;
