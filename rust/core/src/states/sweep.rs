//! The removal of entries that have ended.
//!
//! Owns: what of some entries goes, as changes; what is known of the ends of a state's entries; how many entries one removal
//! passes ([`Allowance`]).
//! Does not own: the walk over a state, and when it takes place (`shard::state_session`, `embedded`).
//!
//! A walk begins when an entry may have ended, and goes on over the versions until all of the state is passed. Of a list, the
//! tail is written again without what has ended; a chunk once half of it has ended. A chunk of which nothing is left goes if it
//! is the first one, and else stays empty until it is.
//!
//! Invariant: nothing is removed that has not ended.

use super::Place;
use super::catalog::Kind;
use super::layers::Layers;
use super::list::{CHUNKS, HEAD, ListHeader, ListLayout, bad_list, elements, push_key};
use super::net::FEW_KEYS;
use super::scan::{Found, MergedCursor};
use super::ttl;
use fastchangelog_format::error::Result;
use fastchangelog_format::model::KeyGroup;
use fastchangelog_format::wire::put_bytes;
use std::collections::HashMap;

/// Entries that one version passes although they stay: so many for each change, at least and at most these.
const PER_CHANGE: u64 = 2;
pub(crate) const LEAST_PASSED: u64 = 1024;
pub(crate) const MOST_PASSED: u64 = 65_536;
/// Entries that one version passes if they go, however few its changes are.
pub(crate) const MOST_GOING: u64 = 16_384;
/// Entries, and about the bytes, that are read at once; and entries if few more may stay.
const STEP: usize = 1024;
const STEP_BYTES: usize = 4 << 20;
const LEAST_STEP: usize = 64;

/// How many entries a version still passes of one state. An entry counts once, or as often as it has KiB; so does a step that
/// finds none.
///
/// Why it has two numbers: an entry that stays is read in vain, and again by the next walk, so these follow the changes of the
/// version. One that goes is read once, and a walk over many of them must end.
///
/// Invariants:
/// 1. it ends: a version passes at most [`MOST_PASSED`] entries, and those of one step for each state;
/// 2. of entries that stay, it passes [`PER_CHANGE`] for each change, [`LEAST_PASSED`] at least, and [`LEAST_STEP`] for each state;
/// 3. of entries that go, it passes [`MOST_GOING`] at least, shared by the states.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Allowance {
    all: usize,
    staying: usize,
}

impl Allowance {
    /// Of the version after so many changes, for each of so many states.
    pub(crate) fn of(changes: u64, states: usize) -> Self {
        let staying = changes.saturating_mul(PER_CHANGE).clamp(LEAST_PASSED, MOST_PASSED);
        let each = |all: u64| usize::try_from(all).unwrap_or(usize::MAX).div_ceil(states.max(1));
        Self { all: each(staying.max(MOST_GOING)), staying: each(staying) }
    }

    /// The most entries of the next step; 0: there is none.
    pub(crate) fn rows(&self) -> usize {
        if self.staying == 0 { 0 } else { self.all.min(STEP).min(self.staying.max(LEAST_STEP)) }
    }

    /// Counts a step.
    pub(crate) fn count(&mut self, found: &Found, outcome: &Outcome) {
        let all = found.len().max(found.bytes() >> 10).max(1);
        let staying = if found.len() == 0 { 1 } else { (all * outcome.stay).div_ceil(found.len()) };
        self.all = self.all.saturating_sub(all);
        self.staying = self.staying.saturating_sub(staying);
    }
}

/// What is known of the ends of one state's entries.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Ends {
    /// No entry ends before; none = not known.
    pub(crate) first: Option<i64>,
    /// The removal that is in progress.
    pub(crate) sweep: Option<Sweep>,
}

/// A removal of all ended entries of a state that goes on over several versions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Sweep {
    /// It goes on after this entry; none = at its beginning.
    pub(crate) after: (KeyGroup, Option<Vec<u8>>),
    /// The key group that it began with, and ends before.
    pub(crate) begun: KeyGroup,
    /// The first end of what it has passed and left, and of what was written meanwhile.
    pub(crate) first: i64,
}

impl Sweep {
    /// One that begins with a key group.
    pub(crate) fn from(group: KeyGroup) -> Self {
        Self { after: (group, None), begun: group, first: i64::MAX }
    }
}

impl Ends {
    /// Of a state without entries.
    pub(crate) fn of_nothing() -> Self {
        Self { first: Some(i64::MAX), sweep: None }
    }

    /// An entry was written that ends at `millis`.
    pub(crate) fn added(&mut self, millis: i64) {
        if let Some(first) = &mut self.first {
            *first = millis.min(*first);
        }
        if let Some(sweep) = &mut self.sweep {
            sweep.first = millis.min(sweep.first);
        }
    }

    /// True if entries may have ended at `now`.
    pub(crate) fn may_have_ended(&self, now: i64) -> bool {
        self.sweep.is_some() || self.first.is_none_or(|first| first <= now)
    }
}

/// The next entries of a walk, `rows` at most; none at the end of the place.
pub(crate) fn step(mut cursor: MergedCursor<'_>, rows: usize) -> Result<Found> {
    let mut found = Found::default();
    while let Some((key, value)) = cursor.entry()?.filter(|_| found.len() < rows && found.bytes() < STEP_BYTES) {
        found.push(key, value);
        cursor.advance()?;
    }
    Ok(found)
}

/// What a step has found out: changes, the first end of what stays, how many values, elements or map entries go, and how many
/// entries stay as they are.
pub(crate) struct Outcome {
    changes: Vec<Change>,
    pub(crate) first: i64,
    pub(crate) removed: u64,
    stay: usize,
}

enum Change {
    Put(Vec<u8>, Option<Vec<u8>>),
    Clear(Vec<u8>),
}

impl Outcome {
    fn new() -> Self {
        Self { changes: Vec::new(), first: i64::MAX, removed: 0, stay: 0 }
    }

    /// What goes of the entries of a place, which a state of this kind has found in their order. `head` reads the head of a
    /// list, by the key of its entry.
    pub(crate) fn of(
        kind: Kind,
        found: &Found,
        now: i64,
        head: impl FnMut(&[u8]) -> Result<Option<Vec<u8>>>,
    ) -> Result<Self> {
        match kind {
            Kind::List => sweep_lists(found, now, head),
            _ => sweep_values(found, now),
        }
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

    /// Puts the head of a list, or removes the list if it has no elements. Returns the head's bytes.
    fn change_head(&mut self, key: &[u8], head: ListHeader<'_>) -> Option<Vec<u8>> {
        let bytes = head.write(ListLayout::Ending);
        let mut entry = Vec::new();
        if bytes.is_none() {
            // What is left of its chunks is empty.
            let chunks = head.first..head.chunks;
            if chunks.end - chunks.start > FEW_KEYS as u64 {
                push_key(&mut entry, (CHUNKS, key, None));
                self.changes.push(Change::Clear(std::mem::take(&mut entry)));
            } else {
                for chunk in chunks {
                    push_key(&mut entry, (CHUNKS, key, Some(chunk)));
                    self.changes.push(Change::Put(std::mem::take(&mut entry), None));
                }
            }
        }
        push_key(&mut entry, (HEAD, key, None));
        self.changes.push(Change::Put(entry, bytes.clone()));
        bytes
    }
}

fn sweep_values(found: &Found, now: i64) -> Result<Outcome> {
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

/// The elements of a tail or a chunk that have not ended.
struct Left {
    bytes: Vec<u8>,
    elements: u64,
    gone: u64,
    /// When the next one ends, and when half of all have.
    first: i64,
    half: i64,
}

impl Left {
    fn of(part: &[u8], now: i64) -> Result<Self> {
        let (mut bytes, mut ends, mut left) = (Vec::new(), Vec::new(), 0);
        for element in elements(part) {
            let element = element?;
            let (end, _) = ttl::split(element)?;
            ends.push(end);
            if end > now {
                put_bytes(&mut bytes, element);
                left += 1;
            }
        }
        let all = ends.len();
        ends.sort_unstable();
        let half = ends.get(all.div_ceil(2).saturating_sub(1)).copied().unwrap_or(i64::MIN);
        let first = ends.into_iter().find(|end| *end > now).unwrap_or(i64::MAX);
        Ok(Self { bytes, elements: left, gone: all as u64 - left, first, half })
    }
}

/// Heads and chunks of a place, in their order: heads come first.
fn sweep_lists(found: &Found, now: i64, mut head_of: impl FnMut(&[u8]) -> Result<Option<Vec<u8>>>) -> Result<Outcome> {
    let mut outcome = Outcome::new();
    // The heads of lists of which this step has changed something, as they are by now.
    let mut heads: HashMap<Vec<u8>, Option<Vec<u8>>> = HashMap::new();
    let mut head_key = Vec::new();
    for (entry, part) in found.rows() {
        let (is_head, key, chunk) = match entry.split_last_chunk::<{ size_of::<u64>() }>() {
            Some((key, chunk)) if key.first() == Some(&CHUNKS) => (false, &key[1..], u64::from_be_bytes(*chunk)),
            _ => (true, entry.get(1..).unwrap_or_default(), 0),
        };
        if is_head {
            let head = ListHeader::read(Some(part), ListLayout::Ending)?;
            let left = Left::of(head.tail, now)?;
            outcome.first = outcome.first.min(left.first);
            if left.gone > 0 {
                let head = ListHeader { elements: head.elements.saturating_sub(left.gone), tail: &left.bytes, ..head };
                outcome.removed += left.gone;
                heads.insert(key.to_vec(), outcome.change_head(key, head));
            } else {
                outcome.stay += 1;
            }
            continue;
        }
        let own = match heads.get(key) {
            Some(head) => head.clone(),
            None => {
                push_key(&mut head_key, (HEAD, key, None));
                head_of(&head_key)?
            }
        };
        // A list that was removed as a whole has no chunks any more, but for those of this step.
        let Some(own) = own else { continue };
        let head = ListHeader::read(Some(&own), ListLayout::Ending)?;
        if chunk < head.first || chunk >= head.chunks {
            return Err(bad_list("it has a chunk that is not one of its own"));
        }
        let left = Left::of(part, now)?;
        let is_first = chunk == head.first;
        let stays = if left.elements + left.gone == 0 { !is_first } else { left.half > now };
        if stays {
            outcome.first = outcome.first.min(if left.elements == 0 { i64::MAX } else { left.half });
            outcome.stay += 1;
            continue;
        }
        outcome.removed += left.gone;
        outcome.first = outcome.first.min(left.first);
        let goes = left.elements == 0 && is_first;
        outcome.changes.push(Change::Put(entry.to_vec(), (!goes).then_some(left.bytes)));
        let head = ListHeader {
            elements: head.elements.saturating_sub(left.gone),
            first: if goes { head.first + 1 } else { head.first },
            ..head
        };
        heads.insert(key.to_vec(), outcome.change_head(key, head));
    }
    Ok(outcome)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Entries of so many bytes each, of which every `nth` one has ended.
    fn found(entries: usize, bytes: usize, nth: usize) -> (Found, Outcome) {
        let mut found = Found::default();
        for i in 0..entries {
            let ends = if i % nth == nth - 1 { 0 } else { 9 };
            let value = [&ttl::prefix(ends)[..], &vec![7; bytes - 12]].concat();
            found.push(&u32::try_from(i).unwrap().to_be_bytes(), &value);
        }
        let outcome = Outcome::of(Kind::Value, &found, 1, |_| Ok(None)).unwrap();
        (found, outcome)
    }

    /// What a version passes and removes of endless entries like these, in steps.
    fn passed(changes: u64, states: usize, bytes: usize, nth: usize) -> (u64, u64) {
        let (mut passed, mut removed) = (0, 0);
        for _ in 0..states {
            let mut left = Allowance::of(changes, states);
            while left.rows() > 0 {
                let (found, outcome) = found(left.rows(), bytes, nth);
                (passed, removed) = (passed + found.len() as u64, removed + outcome.removed);
                left.count(&found, &outcome);
            }
        }
        (passed, removed)
    }

    const ALL: usize = 1;
    const HARDLY: usize = 1 << 20;
    const STATES: [usize; 4] = [1, 2, 7, 300];

    #[test]
    fn invariant_1_of_an_allowance_it_ends() {
        for changes in [0, 10, 1000, 100_000, u64::MAX] {
            for states in STATES {
                for nth in [ALL, 2, HARDLY] {
                    let most = MOST_PASSED + (states * STEP) as u64;
                    let (entries, _) = passed(changes, states, 20, nth);
                    assert!(entries <= most, "{changes} changes, {states} states: {entries}");
                }
            }
        }
        let (entries, _) = passed(0, 1, 16 << 10, ALL);
        assert_eq!(entries, MOST_GOING / 16, "each has sixteen KiB");
        // Empty places count, too.
        let (mut left, mut steps) = (Allowance::of(0, 1), 0);
        while left.rows() > 0 {
            left.count(&Found::default(), &Outcome::new());
            steps += 1;
        }
        assert_eq!(steps, LEAST_PASSED);
    }

    #[test]
    fn invariant_2_of_an_allowance_entries_that_stay_follow_the_changes() {
        for (changes, most) in [(0, LEAST_PASSED), (10, LEAST_PASSED), (5000, 10_000), (1 << 40, MOST_PASSED)] {
            for states in STATES {
                let (entries, _) = passed(changes, states, 20, HARDLY);
                assert!(
                    (most..=most + (states * LEAST_STEP) as u64).contains(&entries),
                    "{changes}, {states}: {entries}"
                );
            }
        }
    }

    #[test]
    fn invariant_3_of_an_allowance_entries_that_go_do_not_wait_for_changes() {
        for changes in [0, 1000, 1 << 40] {
            for states in STATES {
                let (_, removed) = passed(changes, states, 20, ALL);
                assert!(removed >= MOST_GOING, "{changes} changes, {states} states: {removed}");
            }
        }
        let (entries, removed) = passed(0, 1, 20, 2);
        assert!(entries <= 2 * (LEAST_PASSED + LEAST_STEP as u64), "{entries}: half of them stay");
        assert!(removed >= LEAST_PASSED, "{removed}");
    }
}
