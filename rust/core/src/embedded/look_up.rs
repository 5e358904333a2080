//! Values of some keys, read through layers and live version at one moment.
//!
//! Owns: the look-up, and the flat memory that found values are in. Does not own: the walk over keys in order (`scan`).

use super::GROUP;
use super::entries::{LANE, hashes};
use super::layers::Layers;
use crate::shard::Shard;
use fastchangelog_format::error::Result;
use fastchangelog_format::model::StateId;
use fastchangelog_state::keyed::KeyRef;

/// Values that were found, in flat memory.
pub(super) struct Values {
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

    /// The value of key `i`.
    pub(super) fn get(&self, i: usize) -> Option<&[u8]> {
        self.spans[i].map(|(from, to)| &self.bytes[from..to])
    }

    /// The values in the order of their keys.
    pub(super) fn iter(&self) -> impl Iterator<Item = Option<&[u8]>> {
        (0..self.spans.len()).map(|i| self.get(i))
    }
}

/// The values of `keys`. What one call of [`super::core::Core::read`] looks up, however often, is of one moment.
pub(super) fn look_up<'a>(
    layers: &Layers,
    shard: &Shard,
    state: StateId,
    keys: impl ExactSizeIterator<Item = &'a [u8]>,
) -> Result<Values> {
    let mut values = Values::of(keys.len());
    let (mut below, mut places) = (Vec::with_capacity(keys.len()), Vec::with_capacity(keys.len()));
    let mut keys = keys.enumerate();
    let mut lane = Vec::with_capacity(LANE);
    loop {
        lane.clear();
        lane.extend(keys.by_ref().take(LANE));
        if lane.is_empty() {
            break;
        }
        let hashes = hashes(lane.iter().map(|&(_, key)| key));
        layers.prefetch(state, &hashes[..lane.len()]);
        for (&(i, key), hash) in lane.iter().zip(hashes) {
            if let Some(value) = layers.get(state, hash, key) {
                values.set(i, value);
            } else {
                below.push(KeyRef { hash, key_group: GROUP, key });
                places.push(i);
            }
        }
    }
    if !below.is_empty() {
        shard.read(|keyed| keyed.get_many(state, &below, &mut |i, value| values.set(places[i], value)).map(drop))?;
    }
    Ok(values)
}
