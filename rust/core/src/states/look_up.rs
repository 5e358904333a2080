//! Values of some keys, read through layers and what lies under them at one moment.
//!
//! Owns: the look-up, and the flat memory that found values are in. Does not own: the walk over keys in order (`scan`).

use super::entries::{LANE, hashes};
use super::layers::Layers;
use super::ttl;
use fastchangelog_format::error::Result;
use fastchangelog_format::model::{KeyGroup, StateId};
use fastchangelog_state::keyed::KeyRef;

/// Takes the values of keys: the number of the key, and its value.
pub(crate) type Out<'a> = &'a mut dyn FnMut(usize, Option<&[u8]>);

/// Values that were found, in flat memory.
pub(crate) struct Values {
    bytes: Vec<u8>,
    spans: Vec<Option<(usize, usize)>>,
}

impl Values {
    fn of(keys: usize) -> Self {
        Self { bytes: Vec::new(), spans: vec![None; keys] }
    }

    fn set(&mut self, i: usize, value: Option<&[u8]>) {
        self.spans[i] = value.map(|value| {
            self.bytes.extend_from_slice(value);
            (self.bytes.len() - value.len(), self.bytes.len())
        });
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
    let mut values = Values::of(keys.len());
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
                values.set(i, value);
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
