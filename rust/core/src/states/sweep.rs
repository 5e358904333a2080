//! The removal of entries that have ended.
//!
//! Owns: what of some entries goes, as changes; what is known of the ends of a state's entries; how many entries one removal passes.
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

/// Entries that one version passes: so many for each change, at least and at most these.
const PER_CHANGE: u64 = 2;
pub(crate) const LEAST_PASSED: u64 = 1024;
pub(crate) const MOST_PASSED: u64 = 65_536;
/// Entries, and about the bytes, that are read at once.
pub(crate) const STEP: usize = 1024;
const STEP_BYTES: usize = 4 << 20;

/// What a step counts of the allowance: its entries, or what they would be if each had a KiB.
pub(crate) fn passed(found: &Found) -> usize {
    found.len().max(found.bytes() >> 10)
}

/// How many entries the version after so many changes passes.
pub(crate) fn allowance(changes: u64) -> u64 {
    changes.saturating_mul(PER_CHANGE).clamp(LEAST_PASSED, MOST_PASSED)
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

/// What a step has found out: changes, the first end of what stays, how many values, elements or map entries go.
pub(crate) struct Outcome {
    changes: Vec<Change>,
    pub(crate) first: i64,
    pub(crate) removed: u64,
}

enum Change {
    Put(Vec<u8>, Option<Vec<u8>>),
    Clear(Vec<u8>),
}

impl Outcome {
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
    let mut outcome = Outcome { changes: Vec::new(), first: i64::MAX, removed: 0 };
    for (key, value) in found.rows() {
        let (ends, _) = ttl::split(value)?;
        if ends > now {
            outcome.first = outcome.first.min(ends);
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
    let mut outcome = Outcome { changes: Vec::new(), first: i64::MAX, removed: 0 };
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
