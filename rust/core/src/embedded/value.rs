//! A state of single values by key.
//!
//! Owns: reads and changes of many keys at once, in Arrow.
//! Does not own: what is durable (`core`), how keys and values are encoded (`columns::typed`), the order of keys (`scan`).

use super::core::{Core, Entered, look_up};
use super::lifetime::Lifetime;
use super::scan::{Scan, Walk};
use crate::states::Place;
use crate::states::catalog::{Declaration, Kind};
use crate::states::look_up::Values;
use crate::states::scan::Found;
use crate::states::sweep::any_of;
use arrow_array::{ArrayRef, BooleanArray, RecordBatch};
use arrow_schema::DataType;
use fastchangelog_columns::codec::EncodedKeys;
use fastchangelog_columns::type_text;
use fastchangelog_columns::typed::{KeyRange, TypedEntries};
use fastchangelog_format::check_records;
use fastchangelog_format::error::Result;
use std::sync::Arc;
use std::time::Duration;

/// A declared state of single values by key. Cheap to clone; any thread may use it.
#[derive(Clone)]
pub struct ValueState {
    core: Arc<Core>,
    place: Place,
    types: Arc<TypedEntries>,
    lifetime: Lifetime,
}

impl ValueState {
    pub(super) fn declare(
        core: &Arc<Core>,
        name: &str,
        key: &DataType,
        value: &DataType,
        ttl: Option<Duration>,
    ) -> Result<Self> {
        let (types, lifetime) = (TypedEntries::new(key, value)?, Lifetime::of(ttl)?);
        let (key, value, ttl) = (&*type_text(key), &*type_text(value), lifetime.is_bounded());
        let place = core.declare(Declaration { name, kind: Kind::Value, key, value, ttl })?;
        Ok(Self { core: Arc::clone(core), place, types: Arc::new(types), lifetime })
    }

    /// The types of keys and values.
    pub fn types(&self) -> &TypedEntries {
        &self.types
    }

    /// The values of `keys`, one row each; null where there is none.
    pub fn get(&self, keys: &ArrayRef) -> Result<ArrayRef> {
        let keys = self.types.encode_keys(keys)?;
        let values = self.look_up(&keys)?;
        self.types.decode_values(values.iter())
    }

    /// Which of `keys` have a value.
    pub fn contains(&self, keys: &ArrayRef) -> Result<BooleanArray> {
        let keys = self.types.encode_keys(keys)?;
        let values = self.look_up(&keys)?;
        Ok(values.iter().map(|value| Some(value.is_some())).collect())
    }

    /// Sets values; a null deletes, and of equal keys the last one counts. All or nothing.
    pub fn put(&self, keys: &ArrayRef, values: &ArrayRef) -> Result<()> {
        let admission = self.core.admit_change()?;
        let encoded = self.types.encode_keys(keys)?;
        let values = self.types.encode_values(values, encoded.len())?;
        let at = self.lifetime.now(&self.core)?;
        let stored = |value: &[u8]| at.prefix().len() + value.len();
        let changes = encoded.len();
        let length = |i: usize| encoded.key(i).len() + values.value(i).map_or(0, stored);
        let bytes = (0..changes).map(length).sum::<usize>();
        check_records(bytes, (0..changes).map(length))?;
        let one = if changes == 0 { &[][..] } else { encoded.key(any_of(changes, |i| encoded.key(i))) };
        self.core.write(&admission, self.place, at.ends(), Entered { changes, bytes, one }, |layers| {
            if at.ends().is_none() {
                return layers.put_all(self.place, encoded.len(), |i| encoded.key(i), |i| values.value(i));
            }
            let mut out = Vec::new();
            for i in 0..encoded.len() {
                layers.put(self.place, encoded.key(i), at.stored(values.value(i), &mut out));
            }
        })
    }

    /// Removes keys; one without a value is fine. All or nothing.
    pub fn delete(&self, keys: &ArrayRef) -> Result<()> {
        let admission = self.core.admit_change()?;
        let encoded = self.types.encode_keys(keys)?;
        let bytes = (0..encoded.len()).map(|i| encoded.key(i).len()).sum();
        self.core.change(&admission, encoded.len(), bytes, |layers| {
            for i in 0..encoded.len() {
                layers.put(self.place, encoded.key(i), None);
            }
        })
    }

    /// Keys and values of a range, in order of keys, `rows` at a time.
    pub fn scan(&self, range: KeyRange, rows: usize) -> Scan {
        let types = Arc::clone(&self.types);
        let columns = [("key", self.types.key_type()), ("value", self.types.value_type())];
        let decode = move |found: &Found, schema: &_| {
            let keys = types.decode_keys(found.keys())?;
            let values = types.decode_values(found.rows().map(|(_, value)| Some(value)))?;
            Ok(RecordBatch::try_new(Arc::clone(schema), vec![keys, values])?)
        };
        Scan::new(Walk::new(&self.core, self.place, range, self.lifetime), rows, &columns, Box::new(decode))
    }

    fn look_up(&self, keys: &EncodedKeys) -> Result<Values> {
        let at = self.lifetime.now(&self.core)?;
        let all = || (0..keys.len()).map(|i| keys.key(i));
        at.values(self.core.read(|layers, shard| look_up(&layers, shard, self.place, all()))?)
    }
}
