//! A state of single values by key.
//!
//! Owns: its declaration; reads and changes of many keys at once, in Arrow.
//! Does not own: entries (`kinds::value`), what is durable (`core`), encodings (`columns`), the order of keys (`scan`).

use super::codec::{StateTypes, ValueTypes};
use super::member::Member;
use super::scan::{Scan, Walk};
use super::{EmbeddedState, GROUPS};
use crate::kinds::write::{Bytes, Changes, DELETE};
use crate::kinds::{Kind, value};
use crate::states::look_up::Values;
use crate::states::scan::Found;
use arrow_array::{ArrayRef, BooleanArray, RecordBatch};
use arrow_schema::DataType;
use fastchangelog_columns::typed::{KeyRange, TypedEntries};
use fastchangelog_format::error::Result;
use std::sync::Arc;
use std::time::Duration;

/// A declared state of single values by key. Cheap to clone; any thread may use it.
#[derive(Clone)]
pub struct ValueState {
    member: Member,
    types: Arc<StateTypes>,
}

impl EmbeddedState {
    /// A state of single values by key. Its types are kept: later the key's must be the same, the value's may evolve (see
    /// `columns::evolution`), and a `ttl` must be given again or not at all: how long a value lives after it was set.
    pub fn value_state(
        &self,
        name: &str,
        key: &DataType,
        value: &DataType,
        ttl: Option<Duration>,
    ) -> Result<ValueState> {
        let (member, types) = ValueTypes { key, value, ttl }.declare(&self.core, name, Kind::Value, None)?;
        Ok(ValueState { member, types: Arc::new(types) })
    }
}

impl ValueState {
    /// The types of keys and values.
    pub fn types(&self) -> &TypedEntries {
        self.types.keys()
    }

    /// The values of `keys`, one row each; null where there is none.
    pub fn get(&self, keys: &ArrayRef) -> Result<ArrayRef> {
        let values = self.look_up(keys)?;
        self.types.decode_values(values.iter())
    }

    /// Which of `keys` have a value.
    pub fn contains(&self, keys: &ArrayRef) -> Result<BooleanArray> {
        let values = self.look_up(keys)?;
        Ok(values.iter().map(|value| Some(value.is_some())).collect())
    }

    /// Sets values; a null deletes, and of equal keys the last one counts. All or nothing.
    pub fn put(&self, keys: &ArrayRef, values: &ArrayRef) -> Result<()> {
        let keys = self.types.encode_keys(keys)?;
        let values = self.types.encode_values(values, keys.len())?;
        let (mut ops, version) = (Vec::new(), self.types.version());
        let ops = value::put_or_delete(Bytes::Values(&values), &mut ops);
        let values = Some(Bytes::Values(&values));
        self.member.write(Changes { ops, values, version, ..Changes::of_keys(DELETE, Bytes::Keys(&keys)) })
    }

    /// Removes keys; one without a value is fine. All or nothing.
    pub fn delete(&self, keys: &ArrayRef) -> Result<()> {
        let keys = self.types.encode_keys(keys)?;
        self.member.write(Changes::of_keys(DELETE, Bytes::Keys(&keys)))
    }

    /// Keys and values of a range, in order of keys, `rows` at a time.
    pub fn scan(&self, range: KeyRange, rows: usize) -> Scan {
        let types = Arc::clone(&self.types);
        let columns = [("key", self.types.keys().key_type()), ("value", self.types.value_type())];
        let decode = move |found: &Found, schema: &_| {
            let keys = types.keys().decode_keys(found.keys())?;
            let values = types.decode_values(found.rows().map(|(_, value)| Some(value)))?;
            Ok(RecordBatch::try_new(Arc::clone(schema), vec![keys, values])?)
        };
        Scan::new(Walk::new(&self.member, range), rows, &columns, Box::new(decode))
    }

    fn look_up(&self, keys: &ArrayRef) -> Result<Values> {
        let keys = self.types.encode_keys(keys)?;
        self.member.read(|view, state| value::look_up(view, state, GROUPS, Bytes::Keys(&keys), usize::MAX))
    }
}
