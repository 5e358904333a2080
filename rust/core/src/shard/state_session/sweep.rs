//! The removal of entries that have ended.
//!
//! Owns: the walk over the entries of states with a time to live, a bounded part of it with each commit.
//! Does not own: that nothing of an ended entry is read (`reads`, `pages`), when an entry ends (the worker).
//!
//! A walk begins when an entry may have ended, and goes on over the commits until all key groups are passed. What it removes is
//! part of the change set. Of a list, the tail is written again without what has ended; a chunk once half of it has ended. A chunk of
//! which nothing is left goes if it is the first one, and else stays empty until it is.
//!
//! Invariants:
//! 1. a commit passes at most [`MOST_PASSED`] entries, and of one state more than were changed in all;
//! 2. nothing is removed that has not ended.

use super::hints::Sweep;
use super::overlay::View;
use super::{StateSession, Used};
use crate::states::Place;
use crate::states::catalog::{DeclaredState, Kind};
use crate::states::list::{CHUNKS, HEAD, ListHeader, bad_list, elements, push_key};
use crate::states::net::FEW_KEYS;
use crate::states::scan::Found;
use crate::states::ttl;
use fastchangelog_format::error::Result;
use fastchangelog_format::model::{KeyGroup, StateId};
use fastchangelog_format::wire::put_bytes;
use std::collections::HashMap;
use std::ops::Bound;

/// Entries that a commit passes: so many for each change, at least and at most these.
const PER_CHANGE: u64 = 2;
const LEAST_PASSED: u64 = 1024;
const MOST_PASSED: u64 = 65_536;
/// Entries, and about the bytes, that are read at once.
const STEP: usize = 1024;
const STEP_BYTES: usize = 4 << 20;

/// What a step has found out: changes, the first end of what stays, how much of a list goes.
struct Outcome {
    changes: Vec<Change>,
    first: i64,
    removed: u64,
}

enum Change {
    Put(Vec<u8>, Option<Vec<u8>>),
    Clear(Vec<u8>),
}

impl StateSession {
    /// Removes some of what has ended.
    pub(super) fn sweep(&mut self) -> Result<()> {
        let declared = self.declared()?;
        let now = declared.now;
        let used = |state: &DeclaredState| Used { id: StateId(state.id), kind: state.kind, ttl: state.ttl, now };
        let with_ends: Vec<Used> = declared.catalog.states().filter(|state| state.ttl).map(used).collect();
        let due: Vec<Used> =
            with_ends.into_iter().filter(|used| self.hints.ends(used.id).may_have_ended(now)).collect();
        if due.is_empty() {
            return Ok(());
        }
        let all = (PER_CHANGE * self.counters.get("changes")).clamp(LEAST_PASSED, MOST_PASSED);
        let each = usize::try_from(all / due.len() as u64).unwrap_or(usize::MAX).max(1);
        for used in due {
            self.sweep_state(used, each)?;
        }
        Ok(())
    }

    fn sweep_state(&mut self, used: Used, mut left: usize) -> Result<()> {
        let begin = || Sweep { after: (KeyGroup(self.own_groups.start), None), first: i64::MAX };
        let mut sweep = self.hints.ends(used.id).sweep.take().unwrap_or_else(begin);
        while self.own_groups.contains(sweep.after.0) {
            let (group, after) = &sweep.after;
            let place = (used.id, *group);
            if left == 0 {
                self.hints.ends(used.id).sweep = Some(sweep);
                return Ok(());
            }
            let (found, outcome) = self.read(Some((used.id, &[])), |view| {
                let found = step(view, place, after.as_deref(), left.min(STEP))?;
                let outcome = match used.kind {
                    Kind::List => sweep_lists(view, used, place, &found)?,
                    _ => sweep_values(used, &found)?,
                };
                Ok((found, outcome))
            })?;
            self.counters.count("entries_ended", outcome.removed);
            for change in outcome.changes {
                match change {
                    Change::Put(key, value) => self.overlay.layers.put(place, &key, value.as_deref()),
                    Change::Clear(prefix) => self.overlay.layers.clear(place, std::iter::once(&prefix[..])),
                }
            }
            self.overlay.account();
            left -= found.len().min(left);
            sweep.first = sweep.first.min(outcome.first);
            sweep.after = match found.keys().last() {
                Some(last) => (*group, Some(last.to_vec())),
                None => (KeyGroup(group.0 + 1), None),
            };
        }
        self.hints.ends(used.id).first = Some(sweep.first);
        Ok(())
    }
}

/// The next entries of a key group.
fn step(view: View<'_>, place: Place, after: Option<&[u8]>, rows: usize) -> Result<Found> {
    let from = after.map_or(Bound::Unbounded, Bound::Excluded);
    let mut cursor = view.cursor(place, from, None)?;
    let mut found = Found::default();
    while let Some((key, value)) = cursor.entry()?.filter(|_| found.len() < rows && found.bytes() < STEP_BYTES) {
        found.push(key, value);
        cursor.advance()?;
    }
    Ok(found)
}

fn sweep_values(used: Used, found: &Found) -> Result<Outcome> {
    let mut outcome = Outcome { changes: Vec::new(), first: i64::MAX, removed: 0 };
    for (key, value) in found.rows() {
        let (ends, _) = ttl::split(value)?;
        if ends > used.now {
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
fn sweep_lists(view: View<'_>, used: Used, place: Place, found: &Found) -> Result<Outcome> {
    let mut outcome = Outcome { changes: Vec::new(), first: i64::MAX, removed: 0 };
    // The heads of lists of which this step has changed something, as they are by now.
    let mut heads: HashMap<Vec<u8>, Option<Vec<u8>>> = HashMap::new();
    for (entry, part) in found.rows() {
        let (is_head, key, chunk) = match entry.split_last_chunk::<{ size_of::<u64>() }>() {
            Some((key, chunk)) if key.first() == Some(&CHUNKS) => (false, &key[1..], u64::from_be_bytes(*chunk)),
            _ => (true, entry.get(1..).unwrap_or_default(), 0),
        };
        if is_head {
            let head = ListHeader::read(Some(part), used.layout())?;
            let left = Left::of(head.tail, used.now)?;
            outcome.first = outcome.first.min(left.first);
            if left.gone > 0 {
                let head = ListHeader { elements: head.elements.saturating_sub(left.gone), tail: &left.bytes, ..head };
                outcome.removed += left.gone;
                heads.insert(key.to_vec(), outcome.change_head(key, head, used));
            }
            continue;
        }
        let own = match heads.get(key) {
            Some(head) => head.clone(),
            None => head_of(view, place, key)?,
        };
        // A list that was removed as a whole has no chunks any more, but for those of this step.
        let Some(own) = own else { continue };
        let head = ListHeader::read(Some(&own), used.layout())?;
        if chunk < head.first || chunk >= head.chunks {
            return Err(bad_list("it has a chunk that is not one of its own"));
        }
        let left = Left::of(part, used.now)?;
        let is_first = chunk == head.first;
        let stays = if left.elements + left.gone == 0 { !is_first } else { left.half > used.now };
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
        heads.insert(key.to_vec(), outcome.change_head(key, head, used));
    }
    Ok(outcome)
}

impl Outcome {
    /// Puts the head of a list, or removes the list if it has no elements. Returns the head's bytes.
    fn change_head(&mut self, key: &[u8], head: ListHeader<'_>, used: Used) -> Option<Vec<u8>> {
        let bytes = head.write(used.layout());
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

fn head_of(view: View<'_>, (state, group): Place, key: &[u8]) -> Result<Option<Vec<u8>>> {
    let mut head = Vec::new();
    push_key(&mut head, (HEAD, key, None));
    Ok(view.look_up(state, std::iter::once((group, &head[..])))?.get(0).map(<[u8]>::to_vec))
}

#[cfg(test)]
#[path = "sweep_tests.rs"]
mod tests;
