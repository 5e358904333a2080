//! The rows of a store's column family as Arrow columns, batch by batch.
//!
//! Owns: which bytes go to which decoder, the size of a batch, the name of a damaged row.
//! Does not own: rows and keys (`fastchangelog_columns::spark_rows`, `spark_keys`), where the bytes are (`state`).

use crate::state::{Provider, StateReader};
use arrow_array::{ArrayRef, Int64Array, RecordBatch};
use arrow_schema::{DataType, Field, Fields, Schema};
use fastchangelog_columns::spark_keys::{KeyColumns, KeyEncoder, push_list, push_value};
use fastchangelog_columns::spark_rows::{Damage, RowColumns, unnamed};
use fastchangelog_format::error::{Error, Result};
use std::sync::Arc;

/// Rows and bytes of a batch. The last value of a batch may be of any size, so a list is never divided.
const BATCH_ROWS: usize = 32 << 10;
const BATCH_BYTES: usize = 4 << 20;

/// What a column family holds.
#[derive(Debug, Clone)]
pub struct FamilyRows {
    /// Its name; none in a store without families.
    pub family: Option<String>,
    /// The key's columns, as `RowColumns` takes them.
    pub key: Fields,
    /// The value's columns; of a list those of an element.
    pub value: Fields,
    /// How keys are encoded.
    pub encoder: KeyEncoder,
    /// True if a value is a list of rows.
    pub is_list: bool,
}

/// The rows of a family, from the first on.
#[derive(Debug)]
pub struct StateRows {
    rows: FamilyRows,
    after: Option<Vec<u8>>,
    /// Entries before this batch.
    entries: u64,
    is_done: bool,
}

impl StateRows {
    /// The rows of a family.
    pub fn new(rows: FamilyRows) -> Self {
        Self { rows, after: None, entries: 0, is_done: false }
    }

    /// The columns of its batches: the structs `key` and `value`; of a list a row for each element, and with `place`,
    /// its place in its list.
    pub fn declared(&self) -> Schema {
        let rows = |name, fields| Field::new(name, DataType::Struct(RowColumns::declared(fields)), false);
        let mut fields = vec![rows("key", &self.rows.key), rows("value", &self.rows.value)];
        if self.rows.is_list {
            fields.push(Field::new("place", DataType::Int64, false));
        }
        Schema::new(fields)
    }

    /// The next rows of the version that `reader` has loaded, without names; none at the end.
    pub fn next(&mut self, reader: &StateReader) -> Result<Option<RecordBatch>> {
        if self.is_done {
            return Ok(None);
        }
        let FamilyRows { family, key, value, encoder, is_list } = &self.rows;
        let has_version = reader.provider() == Provider::RocksDb;
        // The HDFS-backed provider keeps keys as rows, however they may be searched.
        let encoder = if has_version { encoder } else { &KeyEncoder::Plain };
        let mut keys = KeyColumns::new(key, encoder, has_version)?;
        let mut values = RowColumns::new(value)?;
        let mut places: Vec<i64> = Vec::new();
        let (mut bytes, mut entries) = (0, 0);
        let mut last = Vec::new();
        let mut is_full = false;
        reader.scan(family.as_deref(), self.after.as_deref(), |key, value| {
            let named = |what, damage: Damage| {
                damage.in_object(format!(
                    "{}, {what} of entry {}",
                    reader.shown_family(family.as_deref()),
                    self.entries + entries
                ))
            };
            if *is_list {
                let count = push_list(&mut values, value, has_version).map_err(|damage| named("the list", damage))?;
                for place in 0..count {
                    keys.push(key).map_err(|damage| named("the key", damage))?;
                    places.push(i64::try_from(place).unwrap_or(i64::MAX));
                }
            } else {
                push_value(&mut values, value, has_version).map_err(|damage| named("the value", damage))?;
                keys.push(key).map_err(|damage| named("the key", damage))?;
            }
            entries += 1;
            bytes += key.len() + value.len();
            is_full = keys.len() >= BATCH_ROWS || bytes >= BATCH_BYTES;
            if is_full {
                last.extend_from_slice(key);
            }
            Ok(!is_full)
        })?;
        self.is_done = !is_full;
        self.after = is_full.then_some(last);
        self.entries += entries;
        let rows = keys.len();
        if rows == 0 && self.is_done {
            return Ok(None);
        }
        let mut columns: Vec<ArrayRef> = vec![Arc::new(keys.finish()?), Arc::new(values.finish()?)];
        if *is_list {
            columns.push(Arc::new(Int64Array::from(places)));
        }
        unnamed(columns, rows).map(Some)
    }
}

/// How many keys a family has in the version that `reader` has loaded.
pub fn count(reader: &StateReader, family: Option<&str>) -> Result<u64> {
    let mut found = 0;
    reader.scan(family, None, |_, _| {
        found += 1;
        Ok::<_, Error>(true)
    })?;
    Ok(found)
}
