//! Values of some keys, read through layers and what lies under them at one moment.
//!
//! Owns: the look-up of all keys, or of as many as a bound allows; the flat memory that found values are in. Does not own: the walk over keys in order (`scan`).

use super::entries::{LANE, hashes};
use super::layers::Layers;
use super::ttl;
use arrow_array::BinaryArray;
use arrow_array::builder::BinaryBuilder;
use fastchangelog_format::error::Result;
use fastchangelog_format::model::{KeyGroup, StateId};
use fastchangelog_state::keyed::{KeyRef, Out};
use std::ops::{ControlFlow, Range};

/// Values that were found, in flat memory.
pub(crate) struct Values {
    bytes: Vec<u8>,
    spans: Vec<Option<(usize, usize)>>,
    /// Most bytes of all values: those beyond are not taken.
    most: usize,
    /// Number of keys whose values were taken.
    taken: usize,
}

impl Values {
    fn of(keys: usize, most: usize) -> Self {
        Self { bytes: Vec::new(), spans: vec![None; keys], most, taken: 0 }
    }

    fn set(&mut self, i: usize, value: Option<&[u8]>) -> ControlFlow<()> {
        if let Some(value) = value {
            if value.len() > self.most - self.bytes.len() {
                return ControlFlow::Break(());
            }
            self.bytes.extend_from_slice(value);
            self.spans[i] = Some((self.bytes.len() - value.len(), self.bytes.len()));
        }
        self.taken += 1;
        ControlFlow::Continue(())
    }

    /// True if the values of all keys were taken.
    fn is_whole(&self) -> bool {
        self.taken == self.spans.len()
    }

    /// Takes the values of more keys.
    fn append(&mut self, next: &Self) {
        let at = self.bytes.len();
        self.bytes.extend_from_slice(&next.bytes);
        self.spans.extend(next.spans.iter().map(|span| span.map(|(from, to)| (at + from, at + to))));
        self.taken += next.taken;
    }

    /// Number of keys.
    pub(crate) fn len(&self) -> usize {
        self.spans.len()
    }

    /// The value of key `i`.
    pub(crate) fn get(&self, i: usize) -> Option<&[u8]> {
        self.spans[i].map(|(from, to)| &self.bytes[from..to])
    }

    /// The values in the order of their keys.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Option<&[u8]>> {
        (0..self.spans.len()).map(|i| self.get(i))
    }

    /// Leaves out what has ended at `now`, and of the rest the bytes that say when it ends.
    pub(crate) fn leave_alive(&mut self, now: i64) -> Result<()> {
        for span in &mut self.spans {
            if let Some((from, to)) = *span {
                *span = ttl::alive(&self.bytes[from..to], now)?.map(|value| (to - value.len(), to));
            }
        }
        Ok(())
    }

    /// As a column.
    pub(crate) fn to_column(&self) -> BinaryArray {
        let mut rows = BinaryBuilder::with_capacity(self.len(), self.bytes());
        self.iter().for_each(|value| rows.append_option(value));
        rows.finish()
    }

    /// Bytes of all values.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes.len()
    }
}

/// The values of `keys`, each with its key group; `below` reads those that no layer has a change of.
pub(crate) fn look_up<'a>(
    layers: &Layers,
    state: StateId,
    keys: impl ExactSizeIterator<Item = (KeyGroup, &'a [u8])>,
    below: impl FnOnce(&[KeyRef<'_>], Out<'_>) -> Result<()>,
) -> Result<Values> {
    look_up_within(layers, state, keys, usize::MAX, below)
}

/// The same of the first of so many keys: of as many as have at most `most` bytes, of one at least.
pub(crate) fn look_up_first<'a>(
    layers: &Layers,
    state: StateId,
    keys: usize,
    key: impl Fn(usize) -> (KeyGroup, &'a [u8]),
    most: usize,
    mut below: impl FnMut(&[KeyRef<'_>], Out<'_>) -> Result<()>,
) -> Result<Values> {
    let mut look_up = |keys: Range<usize>, most| look_up_within(layers, state, keys.map(&key), most, &mut below);
    let all = look_up(0..keys, most)?;
    if all.is_whole() {
        return Ok(all);
    }
    // Values come in the order that costs least: those that were taken need not be of the first keys.
    drop(all);
    let (mut first, mut width) = (look_up(0..1, usize::MAX)?, LANE);
    loop {
        let next = first.len()..keys.min(first.len() + width);
        if next.is_empty() {
            return Ok(first);
        }
        let values = look_up(next.clone(), most.saturating_sub(first.bytes()))?;
        if values.is_whole() {
            first.append(&values);
            width *= 2;
        } else if next.len() == 1 {
            return Ok(first);
        } else {
            width = next.len() / 2;
        }
    }
}

/// The same of all keys, or of some of them if their values have more than `most` bytes.
fn look_up_within<'a>(
    layers: &Layers,
    state: StateId,
    keys: impl ExactSizeIterator<Item = (KeyGroup, &'a [u8])>,
    most: usize,
    below: impl FnOnce(&[KeyRef<'_>], Out<'_>) -> Result<()>,
) -> Result<Values> {
    let mut values = Values::of(keys.len(), most);
    let (mut rest, mut places) = (Vec::with_capacity(keys.len()), Vec::with_capacity(keys.len()));
    let mut keys = keys.enumerate();
    let mut lane = Vec::with_capacity(LANE);
    loop {
        lane.clear();
        lane.extend(keys.by_ref().take(LANE));
        let Some(&(_, (group, _))) = lane.first() else { break };
        let hashes = hashes(lane.iter().map(|&(_, (_, key))| key));
        // Keys of several groups are in several tables, which are smaller.
        if lane.iter().all(|&(_, (other, _))| other == group) {
            layers.prefetch((state, group), &hashes[..lane.len()]);
        }
        for (&(i, (key_group, key)), hash) in lane.iter().zip(hashes) {
            if let Some(value) = layers.get((state, key_group), hash, key) {
                if values.set(i, value).is_break() {
                    return Ok(values);
                }
            } else {
                rest.push(KeyRef { hash, key_group, key });
                places.push(i);
            }
        }
    }
    if !rest.is_empty() {
        below(&rest, &mut |i, value| values.set(places[i], value))?;
    }
    Ok(values)
}
