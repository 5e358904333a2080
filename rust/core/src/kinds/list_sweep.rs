//! The removal of expired elements from lists.
//!
//! Owns: which heads and chunks change. Does not own: the walk (`sweep`), the entries of a list (`list_layout`).
//!
//! The tail is written again without its expired elements; a chunk once half of it has expired. A chunk without elements goes
//! if it is the first one, and else stays empty until it is.

use super::list_layout::{CHUNKS, HEAD, ListHeader, ListLayout, bad_list, elements, push_key};
use super::sweep::{Change, Outcome};
use crate::states::scan::Found;
use crate::states::{FEW_KEYS, ttl};
use fastchangelog_format::error::Result;
use fastchangelog_format::wire::put_bytes;
use std::collections::HashMap;

impl Outcome {
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
pub(super) fn sweep_lists(
    found: &Found,
    now: i64,
    head_of: &mut dyn FnMut(&[u8]) -> Result<Option<Vec<u8>>>,
) -> Result<Outcome> {
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
            return Err(bad_list("it has a chunk that does not belong to it"));
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
