//! A state of maps: entries by key and map key.
//!
//! Owns: reads and changes of many entries at once, in Arrow; the entries of a key, in the order of map keys.
//! Does not own: what is durable (`core`), how keys and values are encoded (`columns::typed`), the walk (`scan`).
//!
//! An entry of the state is an entry of a map: its key is the key's bytes, then the map key's. No key's bytes begin with
//! another key's, so the entries of a key are those that begin with its bytes, in the order of map keys.
//!
//! Invariants:
//! 1. a key without entries does not exist;
//! 2. a clear is one change of the key, whatever the number of its entries.

use super::core::{Core, Entered, look_up};
use super::lifetime::Lifetime;
use super::scan::{Scan, Walk};
use crate::states::Place;
use crate::states::catalog::{Declaration, Kind};
use crate::states::layers::Layers;
use crate::states::look_up::Values;
use crate::states::scan::Found;
use crate::states::sweep::any_of;
use arrow_array::cast::AsArray;
use arrow_array::{ArrayRef, BooleanArray, Int64Array, RecordBatch};
use arrow_schema::{DataType, Fields};
use fastchangelog_columns::codec::EncodedKeys;
use fastchangelog_columns::type_text;
use fastchangelog_columns::typed::{EncodedValues, KeyRange, TypedEntries, columns_of, joined, successor};
use fastchangelog_format::check_records;
use fastchangelog_format::error::{Error, Result};
use std::sync::Arc;
use std::time::Duration;

/// Entries that a walk for its own sake takes at once.
const STEP: usize = 16_384;

/// The types of a map state.
struct Types {
    /// Keys, with the values of entries.
    keys: TypedEntries,
    /// Map keys, with the values of entries.
    map_keys: TypedEntries,
    /// Both keys as one, field by field.
    entries: TypedEntries,
}

/// A declared state of maps by key. Cheap to clone; any thread may use it.
#[derive(Clone)]
pub struct MapState {
    core: Arc<Core>,
    place: Place,
    types: Arc<Types>,
    lifetime: Lifetime,
}

/// Keys of entries, in flat memory.
struct EntryKeys {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl EntryKeys {
    /// One entry for each key and map key; or one key and all its map keys.
    fn new(keys: &EncodedKeys, map_keys: &EncodedKeys) -> Result<Self> {
        let (n, one) = (map_keys.len(), keys.len() == 1);
        if !one && keys.len() != n {
            return Err(Error::invalid(format!(
                "{} keys and {n} map keys: a batch needs one of each, or one key for all map keys",
                keys.len()
            )));
        }
        let mut made = Self { bytes: Vec::new(), ends: Vec::with_capacity(n) };
        for i in 0..n {
            made.bytes.extend_from_slice(keys.key(if one { 0 } else { i }));
            made.bytes.extend_from_slice(map_keys.key(i));
            made.ends.push(made.bytes.len());
        }
        Ok(made)
    }

    fn len(&self) -> usize {
        self.ends.len()
    }

    fn key(&self, i: usize) -> &[u8] {
        &self.bytes[if i == 0 { 0 } else { self.ends[i - 1] }..self.ends[i]]
    }
}

impl MapState {
    pub(super) fn declare(
        core: &Arc<Core>,
        name: &str,
        (key, map_key): (&DataType, &DataType),
        value: &DataType,
        ttl: Option<Duration>,
    ) -> Result<Self> {
        let lifetime = Lifetime::of(ttl)?;
        let fields: Fields = columns_of(key).iter().chain(&columns_of(map_key)).cloned().collect();
        let types = Types {
            keys: TypedEntries::new(key, value)?,
            map_keys: TypedEntries::new(map_key, value)?,
            entries: TypedEntries::new(&DataType::Struct(fields), value)?,
        };
        let text = format!("map<{},{}>", type_text(map_key), type_text(value));
        let (key, value, ttl) = (&*type_text(key), &*text, lifetime.is_bounded());
        let place = core.declare(Declaration { name, kind: Kind::Map, key, value, ttl })?;
        Ok(Self { core: Arc::clone(core), place, types: Arc::new(types), lifetime })
    }

    /// The types of keys.
    pub fn keys(&self) -> &TypedEntries {
        &self.types.keys
    }

    /// The types of map keys and values.
    pub fn map_keys(&self) -> &TypedEntries {
        &self.types.map_keys
    }

    /// The values of entries, one row each; null where there is none. Of one key any number of map keys may be given.
    pub fn get(&self, keys: &ArrayRef, map_keys: &ArrayRef) -> Result<ArrayRef> {
        let values = self.look_up(&self.entries(keys, map_keys)?)?;
        self.types.entries.decode_values(values.iter())
    }

    /// Which entries exist.
    pub fn contains(&self, keys: &ArrayRef, map_keys: &ArrayRef) -> Result<BooleanArray> {
        let values = self.look_up(&self.entries(keys, map_keys)?)?;
        Ok(values.iter().map(|value| Some(value.is_some())).collect())
    }

    /// Sets entries; a null value deletes, and of equal entries the last one counts. All or nothing.
    pub fn put(&self, keys: &ArrayRef, map_keys: &ArrayRef, values: &ArrayRef) -> Result<()> {
        let entries = self.entries(keys, map_keys)?;
        let values = self.types.entries.encode_values(values, entries.len())?;
        self.change(&entries, Some(&values))
    }

    /// Removes entries; one that is not there is fine. All or nothing.
    pub fn delete(&self, keys: &ArrayRef, map_keys: &ArrayRef) -> Result<()> {
        self.change(&self.entries(keys, map_keys)?, None)
    }

    /// Removes all entries of some keys, however many: a change for each key. All or nothing.
    pub fn clear(&self, keys: &ArrayRef) -> Result<()> {
        let keys = self.types.keys.encode_keys(keys)?;
        let bytes = (0..keys.len()).map(|i| keys.key(i).len()).sum();
        let admission = self.core.admit_change()?;
        let cleared = || (0..keys.len()).map(|i| keys.key(i));
        self.core.change(&admission, keys.len(), bytes, |layers| layers.clear(self.place, cleared()))
    }

    /// How many entries each key has.
    pub fn lengths(&self, keys: &ArrayRef) -> Result<Int64Array> {
        let keys = self.types.keys.encode_keys(keys)?;
        let mut lengths = Vec::with_capacity(keys.len());
        for i in 0..keys.len() {
            let mut walk = Walk::new(&self.core, self.place, beginning_with(keys.key(i)), self.lifetime);
            let mut length = 0;
            while let Some(found) = walk.step(STEP)? {
                length += i64::try_from(found.len()).map_err(Error::internal)?;
            }
            lengths.push(length);
        }
        Ok(lengths.into())
    }

    /// Entries of a range of keys, in order of keys, then of map keys; `rows` at a time.
    pub fn scan(&self, range: KeyRange, rows: usize) -> Scan {
        let types = Arc::clone(&self.types);
        let columns = [
            ("key", types.keys.key_type()),
            ("map_key", types.map_keys.key_type()),
            ("value", types.keys.value_type()),
        ];
        let own = Arc::clone(&types);
        let decode = move |found: &Found, schema: &_| {
            let both = own.entries.decode_keys(found.keys())?;
            let values = own.entries.decode_values(found.rows().map(|(_, value)| Some(value)))?;
            let mut columns = both.as_struct().columns().to_vec();
            let rest = columns.split_off(columns_of(own.keys.key_type()).len());
            let keys = joined(own.keys.key_type(), columns)?;
            let map_keys = joined(own.map_keys.key_type(), rest)?;
            Ok(RecordBatch::try_new(Arc::clone(schema), vec![keys, map_keys, values])?)
        };
        Scan::new(Walk::new(&self.core, self.place, range, self.lifetime), rows, &columns, Box::new(decode))
    }

    /// The range of one key's entries with map keys in `within`.
    pub fn range_of(&self, key: &ArrayRef, within: &KeyRange) -> Result<KeyRange> {
        if key.len() != 1 {
            return Err(Error::invalid("the entries of one key are scanned at a time: give one key"));
        }
        let key = self.types.keys.encode_keys(key)?;
        let whole = beginning_with(key.key(0));
        let and = |more: &[u8]| [key.key(0), more].concat();
        Ok(KeyRange { from: and(&within.from), to: within.to.as_deref().map(and).or(whole.to) })
    }

    fn entries(&self, keys: &ArrayRef, map_keys: &ArrayRef) -> Result<EntryKeys> {
        EntryKeys::new(&self.types.keys.encode_keys(keys)?, &self.types.map_keys.encode_keys(map_keys)?)
    }

    fn look_up(&self, entries: &EntryKeys) -> Result<Values> {
        let at = self.lifetime.now(&self.core)?;
        let all = || (0..entries.len()).map(|i| entries.key(i));
        at.values(self.core.read(|layers, shard| look_up(&layers, shard, self.place, all()))?)
    }

    /// Sets entries, or deletes them if there are no values.
    fn change(&self, entries: &EntryKeys, values: Option<&EncodedValues>) -> Result<()> {
        let admission = self.core.admit_change()?;
        let value = |i: usize| values.and_then(|values| values.value(i));
        let at = self.lifetime.now(&self.core)?;
        let stored = |value: &[u8]| at.prefix().len() + value.len();
        let changes = entries.len();
        let bytes = entries.bytes.len() + (0..changes).map(|i| value(i).map_or(0, stored)).sum::<usize>();
        check_records(bytes, (0..changes).map(|i| entries.key(i).len() + value(i).map_or(0, stored)))?;
        let change = |layers: &mut Layers| {
            let mut out = Vec::new();
            for i in 0..changes {
                layers.put(self.place, entries.key(i), at.stored(value(i), &mut out));
            }
        };
        if values.is_none() || changes == 0 {
            return self.core.change(&admission, changes, bytes, change);
        }
        let one = entries.key(any_of(changes, |i| entries.key(i)));
        self.core.write(&admission, self.place, at.ends(), Entered { changes, bytes, one }, change)
    }
}

fn beginning_with(prefix: &[u8]) -> KeyRange {
    KeyRange { from: prefix.to_vec(), to: successor(prefix) }
}

#[cfg(test)]
#[path = "map_tests.rs"]
mod tests;
