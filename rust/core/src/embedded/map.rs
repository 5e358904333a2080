//! A state of maps: entries by key and map key.
//!
//! Owns: its declaration; reads and changes of many entries at once, in Arrow; the entries of a key, in the order of map
//! keys.
//! Does not own: entries (`kinds::map`), what is durable (`core`), encodings (`columns`), the walk (`scan`).

use super::codec::{StateTypes, ValueTypes};
use super::member::Member;
use super::scan::{Scan, Walk};
use super::{EmbeddedState, GROUPS};
use crate::kinds::value::put_or_delete;
use crate::kinds::write::{Bytes, CLEAR, Changes, DELETE};
use crate::kinds::{Kind, map};
use crate::states::look_up::Values;
use crate::states::scan::Found;
use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, BinaryArray, BooleanArray, Int64Array, RecordBatch};
use arrow_schema::{DataType, Fields};
use fastchangelog_columns::codec::EncodedKeys;
use fastchangelog_columns::type_text;
use fastchangelog_columns::typed::{KeyRange, TypedEntries, columns_of, joined, successor};
use fastchangelog_format::error::{Error, Result};
use std::sync::Arc;
use std::time::Duration;

/// Entries that a walk for its own sake takes at once.
const STEP: usize = 16_384;

/// The types of a map state.
struct Types {
    /// Keys, with the values of entries.
    keys: StateTypes,
    /// Map keys.
    map_keys: TypedEntries,
    /// Both keys as one, field by field.
    entries: TypedEntries,
}

/// A declared state of maps by key. Cheap to clone; any thread may use it.
#[derive(Clone)]
pub struct MapState {
    member: Member,
    types: Arc<Types>,
}

impl EmbeddedState {
    /// A state of maps by key, with entries by map key; `ttl`: of each entry.
    pub fn map_state(
        &self,
        name: &str,
        (key, map_key): (&DataType, &DataType),
        value: &DataType,
        ttl: Option<Duration>,
    ) -> Result<MapState> {
        let fields: Fields = columns_of(key).iter().chain(&columns_of(map_key)).cloned().collect();
        let entries = TypedEntries::new(&DataType::Struct(fields), &DataType::Binary)?;
        let map_keys = TypedEntries::new(map_key, &DataType::Binary)?;
        let types = ValueTypes { key, value, ttl };
        let (member, keys) = types.declare(&self.core, name, Kind::Map, Some(&type_text(map_key)))?;
        Ok(MapState { member, types: Arc::new(Types { keys, map_keys, entries }) })
    }
}

impl MapState {
    /// The types of keys.
    pub fn keys(&self) -> &TypedEntries {
        self.types.keys.keys()
    }

    /// The types of map keys.
    pub fn map_keys(&self) -> &TypedEntries {
        &self.types.map_keys
    }

    /// The values of entries, one row each; null where there is none. Of one key any number of map keys may be given.
    pub fn get(&self, keys: &ArrayRef, map_keys: &ArrayRef) -> Result<ArrayRef> {
        let values = self.look_up(keys, map_keys)?;
        self.types.keys.decode_values(values.iter())
    }

    /// Which entries exist.
    pub fn contains(&self, keys: &ArrayRef, map_keys: &ArrayRef) -> Result<BooleanArray> {
        let values = self.look_up(keys, map_keys)?;
        Ok(values.iter().map(|value| Some(value.is_some())).collect())
    }

    /// Sets entries; a null value deletes, and of equal entries the last one counts. All or nothing.
    pub fn put(&self, keys: &ArrayRef, map_keys: &ArrayRef, values: &ArrayRef) -> Result<()> {
        let (keys, subs) = self.rows(keys, map_keys)?;
        let values = self.types.keys.encode_values(values, keys.len())?;
        let (mut ops, version) = (Vec::new(), self.types.keys.version());
        let ops = put_or_delete(Bytes::Values(&values), &mut ops);
        let (subs, values) = (Some(Bytes::Keys(&subs)), Some(Bytes::Values(&values)));
        self.member.write(Changes { ops, subs, values, version, ..Changes::of_keys(DELETE, keys.bytes()) })
    }

    /// Removes entries; one that is not there is fine. All or nothing.
    pub fn delete(&self, keys: &ArrayRef, map_keys: &ArrayRef) -> Result<()> {
        let (keys, subs) = self.rows(keys, map_keys)?;
        self.member.write(Changes { subs: Some(Bytes::Keys(&subs)), ..Changes::of_keys(DELETE, keys.bytes()) })
    }

    /// Removes all entries of some keys, however many: a change for each key. All or nothing.
    pub fn clear(&self, keys: &ArrayRef) -> Result<()> {
        let keys = self.types.keys.encode_keys(keys)?;
        self.member.write(Changes::of_keys(CLEAR, Bytes::Keys(&keys)))
    }

    /// How many entries each key has.
    pub fn lengths(&self, keys: &ArrayRef) -> Result<Int64Array> {
        let keys = self.types.keys.encode_keys(keys)?;
        let mut lengths = Vec::with_capacity(keys.len());
        for i in 0..keys.len() {
            let mut walk = Walk::new(&self.member, beginning_with(keys.key(i)));
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
            ("key", types.keys.keys().key_type()),
            ("map_key", types.map_keys.key_type()),
            ("value", types.keys.value_type()),
        ];
        let own = Arc::clone(&types);
        let decode = move |found: &Found, schema: &_| {
            let both = own.entries.decode_keys(found.keys())?;
            let values = own.keys.decode_values(found.rows().map(|(_, value)| Some(value)))?;
            let mut columns = both.as_struct().columns().to_vec();
            let key = own.keys.keys().key_type();
            let rest = columns.split_off(columns_of(key).len());
            let keys = joined(key, columns)?;
            let map_keys = joined(own.map_keys.key_type(), rest)?;
            Ok(RecordBatch::try_new(Arc::clone(schema), vec![keys, map_keys, values])?)
        };
        Scan::new(Walk::new(&self.member, range), rows, &columns, Box::new(decode))
    }

    /// The range of one key's entries with map keys in `within`.
    pub fn range_of(&self, key: &ArrayRef, within: &KeyRange) -> Result<KeyRange> {
        if key.len() != 1 {
            return Err(Error::invalid("a scan reads the entries of one key; give one key"));
        }
        let key = self.types.keys.encode_keys(key)?;
        let whole = beginning_with(key.key(0));
        let and = |more: &[u8]| [key.key(0), more].concat();
        Ok(KeyRange { from: and(&within.from), to: within.to.as_deref().map(and).or(whole.to) })
    }

    /// A key and a map key for each row.
    fn rows(&self, keys: &ArrayRef, map_keys: &ArrayRef) -> Result<(RowKeys, EncodedKeys)> {
        let (keys, subs) = (self.types.keys.encode_keys(keys)?, self.types.map_keys.encode_keys(map_keys)?);
        map::check_rows(keys.len(), subs.len())?;
        if keys.len() == subs.len() {
            return Ok((RowKeys::Each(keys), subs));
        }
        let same = BinaryArray::from_iter_values(std::iter::repeat_n(keys.key(0), subs.len()));
        Ok((RowKeys::Same(same), subs))
    }

    fn look_up(&self, keys: &ArrayRef, map_keys: &ArrayRef) -> Result<Values> {
        let (keys, subs) = (self.types.keys.encode_keys(keys)?, self.types.map_keys.encode_keys(map_keys)?);
        let entries = (Bytes::Keys(&keys), Bytes::Keys(&subs));
        self.member.read(|view, state| map::look_up(view, state, GROUPS, entries, usize::MAX))
    }
}

/// The keys of rows.
enum RowKeys {
    Each(EncodedKeys),
    /// One key, again and again.
    Same(BinaryArray),
}

impl RowKeys {
    fn len(&self) -> usize {
        self.bytes().len()
    }

    fn bytes(&self) -> Bytes<'_> {
        match self {
            Self::Each(keys) => Bytes::Keys(keys),
            Self::Same(keys) => Bytes::Column(keys),
        }
    }
}

fn beginning_with(prefix: &[u8]) -> KeyRange {
    KeyRange { from: prefix.to_vec(), to: successor(prefix) }
}

#[cfg(test)]
#[path = "map_tests.rs"]
mod tests;
