//! Values by key.
//!
//! Owns: look-ups of many keys at once, and of map entries. Does not own: lists, and maps in order (`pages`).

use super::{StateSession, Used};
use crate::states::catalog::Kind;
use crate::states::look_up::Values;
use crate::states::timer::TIME;
use crate::states::ttl;
use arrow_array::builder::BinaryBuilder;
use arrow_array::{Array, BinaryArray};
use fastchangelog_format::error::{Error, Result};
use fastchangelog_format::model::{KeyGroup, StateId};
use std::time::Instant;

/// Most bytes of the values that one call answers with, however many keys it has: keys beyond are read by a call of their
/// own. A single value may be larger.
pub(super) const MOST_BYTES: usize = 64 << 20;

impl StateSession {
    /// The values of each of the first keys, in their order; null where there is none: of all keys, unless their values are
    /// too large for one answer; of one key at least.
    pub(super) fn get(&mut self, state: StateId, keys: &BinaryArray) -> Result<BinaryArray> {
        self.get_some(state, keys, MOST_BYTES)
    }

    /// The same with this bound.
    pub(super) fn get_some(&mut self, state: StateId, keys: &BinaryArray, most: usize) -> Result<BinaryArray> {
        let start = Instant::now();
        let used = self.used(state, &[Kind::Value, Kind::Aggregating], "have values by key")?;
        check_keys(keys)?;
        let groups = self.groups_of(keys)?;
        let key = |i: usize| (groups[i], keys.value(i));
        let values = self.read(None, |view| view.look_up_first(state, keys.len(), key, most))?;
        self.count_read(start);
        used.binaries(&values)
    }

    /// The values of map entries, a row for each key and map key, or for each map key of one key; null where there is none. Of
    /// the first entries, as [`Self::get`].
    pub(super) fn get_entries(
        &mut self,
        state: StateId,
        keys: &BinaryArray,
        subs: &BinaryArray,
    ) -> Result<BinaryArray> {
        self.get_some_entries(state, keys, subs, MOST_BYTES)
    }

    /// The same with this bound.
    pub(super) fn get_some_entries(
        &mut self,
        state: StateId,
        keys: &BinaryArray,
        subs: &BinaryArray,
        most: usize,
    ) -> Result<BinaryArray> {
        let start = Instant::now();
        let used = self.used(state, &[Kind::Map], "have entries by map key")?;
        check_keys(keys)?;
        check_keys(subs)?;
        let one = keys.len() == 1;
        if !one && keys.len() != subs.len() {
            return Err(Error::invalid(format!(
                "{} keys and {} map keys: a call needs one of each, or one key for all map keys",
                keys.len(),
                subs.len()
            )));
        }
        let groups = self.groups_of(keys)?;
        let (mut bytes, mut ends) = (Vec::new(), Vec::with_capacity(subs.len()));
        for i in 0..subs.len() {
            bytes.extend_from_slice(keys.value(if one { 0 } else { i }));
            bytes.extend_from_slice(subs.value(i));
            ends.push(bytes.len());
        }
        let entry = |i: usize| {
            let from = if i == 0 { 0 } else { ends[i - 1] };
            (groups[if one { 0 } else { i }], &bytes[from..ends[i]])
        };
        let values = self.read(None, |view| view.look_up_first(state, subs.len(), entry, most))?;
        self.count_read(start);
        used.binaries(&values)
    }

    pub(super) fn groups_of(&self, keys: &BinaryArray) -> Result<Vec<KeyGroup>> {
        (0..keys.len()).map(|i| self.group(keys.value(i))).collect()
    }
}

impl Used {
    /// The bytes of a stored value; none if it has ended.
    pub(super) fn alive(self, stored: &[u8]) -> Result<Option<&[u8]>> {
        if self.ttl { ttl::alive(stored, self.now) } else { Ok(Some(stored)) }
    }

    /// The same, with when it ends, in eight bytes, big endian; none for what does not end.
    pub(super) fn alive_until(self, stored: &[u8]) -> Result<Option<(Option<[u8; TIME]>, &[u8])>> {
        if !self.ttl {
            return Ok(Some((None, stored)));
        }
        let (ends, value) = ttl::split(stored)?;
        Ok((ends > self.now).then(|| (Some(ends.to_be_bytes()), value)))
    }

    fn binaries(self, values: &Values) -> Result<BinaryArray> {
        let mut rows = BinaryBuilder::with_capacity(values.len(), values.bytes());
        for value in values.iter() {
            rows.append_option(value.map(|value| self.alive(value)).transpose()?.flatten());
        }
        Ok(rows.finish())
    }
}

pub(super) fn check_keys(keys: &BinaryArray) -> Result<()> {
    if keys.null_count() > 0 {
        return Err(Error::invalid("a key is null").with_remedy("leave such rows out"));
    }
    Ok(())
}

#[cfg(test)]
#[path = "reads_tests.rs"]
mod tests;
