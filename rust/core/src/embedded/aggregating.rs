//! A state of aggregates by key.
//!
//! Owns: its declaration; rows in, results out, for many keys at once, in Arrow.
//! Does not own: what an aggregate means and how its row looks (`columns::aggregate`), grouping (`columns::table`), what is
//! durable (`core`).
//!
//! Entries are as those of a query's shard: the key's bytes, and an accumulator row. Invariants:
//! 1. results are those of one aggregation of all rows that were added, in the order in which they were added;
//! 2. an add changes all keys of its rows, or none;
//! 3. an aggregate that has ended is one to which nothing was added.

use super::catalog::Declaration;
use super::lifetime::Lifetime;
use super::member::Member;
use super::scan::{Scan, Walk};
use super::{EmbeddedState, GROUPS};
use crate::kinds::write::{Bytes, CLEAR, Changes};
use crate::kinds::{Kind, value};
use crate::states::look_up::Values;
use crate::states::scan::Found;
use arrow_array::builder::BinaryBuilder;
use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, BinaryArray, BooleanArray, RecordBatch, StructArray};
use arrow_buffer::{BooleanBuffer, NullBuffer};
use arrow_schema::{DataType, Field, Fields, Schema};
use fastchangelog_columns::aggregate::{AggPlan, AggSpec, NamedCall};
use fastchangelog_columns::codec::EncodedKeys;
use fastchangelog_columns::table::GroupTable;
use fastchangelog_columns::type_text;
use fastchangelog_columns::typed::{KeyRange, TypedEntries, columns_of};
use fastchangelog_format::error::{Error, Result};
use std::sync::Arc;
use std::time::Duration;

/// The types of an aggregating state.
struct Types {
    /// Keys; a value is an accumulator row.
    keys: TypedEntries,
    plan: Arc<AggPlan>,
    /// Of the rows: plain values, or a struct.
    rows: DataType,
    input: Arc<Schema>,
    result: DataType,
}

/// A declared state of aggregates by key. Cheap to clone; any thread may use it.
#[derive(Clone)]
pub struct AggregatingState {
    member: Member,
    types: Arc<Types>,
}

impl EmbeddedState {
    /// A state of aggregates by key, of rows of the type `rows`; `ansi`: an overflow is an error; `ttl`: how long an aggregate is
    /// there after the last row was added.
    pub fn aggregating_state(
        &self,
        name: &str,
        (key, rows): (&DataType, &DataType),
        calls: &[NamedCall],
        ansi: bool,
        ttl: Option<Duration>,
    ) -> Result<AggregatingState> {
        let (types, lifetime) = (Types::new(key, rows, calls, ansi)?, Lifetime::of(ttl)?);
        let (key, value, ttl) = (&*type_text(key), types.plan.schema(), lifetime.is_bounded());
        let declared = Declaration { name, kind: Kind::Aggregating, key, map_key: None, value, ttl };
        let (member, ()) = Member::declare(&self.core, declared, lifetime, |_| Ok(()))?;
        Ok(AggregatingState { member, types: Arc::new(types) })
    }
}

impl AggregatingState {
    /// The types of keys.
    pub fn keys(&self) -> &TypedEntries {
        &self.types.keys
    }

    /// The type of results.
    pub fn result_type(&self) -> &DataType {
        &self.types.result
    }

    /// The results of `keys`, one row each; null for a key to which nothing was added.
    pub fn get(&self, keys: &ArrayRef) -> Result<ArrayRef> {
        let keys = self.types.keys.encode_keys(keys)?;
        let kept = self.look_up(&keys)?;
        let rows = kept.iter().enumerate().map(|(i, row)| (keys.key(i), row));
        let results = self.types.results(rows)?;
        let there = NullBuffer::new(kept.iter().map(|row| row.is_some()).collect::<BooleanBuffer>());
        if there.null_count() == 0 {
            return Ok(results);
        }
        let nulls = arrow_array::BooleanArray::new(!there.inner(), None);
        Ok(arrow_select::nullif::nullif(&results, &nulls)?)
    }

    /// Which keys have been added to.
    pub fn contains(&self, keys: &ArrayRef) -> Result<BooleanArray> {
        let kept = self.look_up(&self.types.keys.encode_keys(keys)?)?;
        Ok(kept.iter().map(|row| Some(row.is_some())).collect())
    }

    /// Adds rows, each to the aggregates of its key. All or nothing. Rows without columns are none.
    pub fn add(&self, keys: &ArrayRef, rows: Option<&ArrayRef>) -> Result<()> {
        let mut table = GroupTable::new(Arc::clone(&self.types.plan));
        table.fold_rows(&self.types.batch(keys, rows)?)?;
        let keys = BinaryArray::from_iter_values((0..table.len()).map(|i| table.key(i)));
        self.member.update(&keys, |kept, state| {
            let (mut changed, mut rows, mut scratch) = (BinaryBuilder::new(), BinaryBuilder::new(), Vec::new());
            for (i, row) in kept.iter().enumerate() {
                // With a TTL each add begins it anew.
                if table.combine_base(i, row)? || state.ttl {
                    changed.append_value(table.key(i));
                    rows.append_value(table.row(i, &mut scratch));
                }
            }
            Ok((changed.finish(), rows.finish()))
        })
    }

    /// Forgets keys; one to which nothing was added is fine. All or nothing.
    pub fn clear(&self, keys: &ArrayRef) -> Result<()> {
        let keys = self.types.keys.encode_keys(keys)?;
        self.member.write(Changes::of_keys(CLEAR, Bytes::Keys(&keys)))
    }

    /// Keys and results of a range, in order of keys, `rows` at a time.
    pub fn scan(&self, range: KeyRange, rows: usize) -> Scan {
        let columns = [("key", self.types.keys.key_type()), ("value", &self.types.result)];
        let own = Arc::clone(&self.types);
        let decode = move |found: &Found, schema: &_| {
            let keys = own.keys.decode_keys(found.keys())?;
            let results = own.results(found.rows().map(|(key, row)| (key, Some(row))))?;
            Ok(RecordBatch::try_new(Arc::clone(schema), vec![keys, results])?)
        };
        Scan::new(Walk::new(&self.member, range), rows, &columns, Box::new(decode))
    }

    fn look_up(&self, keys: &EncodedKeys) -> Result<Values> {
        self.member.read(|view, state| value::look_up(view, state, GROUPS, Bytes::Keys(keys), usize::MAX))
    }
}

impl Types {
    fn new(key: &DataType, rows: &DataType, calls: &[NamedCall], ansi: bool) -> Result<Self> {
        let keys = columns_of(key);
        let columns: Fields = match rows {
            DataType::Struct(fields) => fields.clone(),
            other => vec![Field::new("value", other.clone(), true)].into(),
        };
        let spec = AggSpec::by_name(&keys, &columns, calls, ansi)?;
        let named: Fields = spec.output.fields().iter().skip(keys.len()).cloned().collect();
        let result = match (calls, &named[..]) {
            ([], _) => return Err(Error::invalid("an aggregating state needs an aggregate, such as n=fc.count()")),
            ([NamedCall { name: None, .. }], [plain]) => plain.data_type().clone(),
            _ => DataType::Struct(named),
        };
        Ok(Self {
            // The value of an entry is an accumulator row.
            keys: TypedEntries::new(key, &DataType::Binary)?,
            plan: Arc::new(AggPlan::new(&spec)?),
            rows: rows.clone(),
            input: spec.input,
            result,
        })
    }

    fn batch(&self, keys: &ArrayRef, rows: Option<&ArrayRef>) -> Result<RecordBatch> {
        if keys.null_count() > 0 {
            return Err(Error::invalid("a key is null").with_remedy("leave such rows out"));
        }
        let mut columns = self.keys.split(keys)?;
        match (&self.rows, rows) {
            (DataType::Struct(fields), None) if fields.is_empty() => {}
            (_, None) => return Err(Error::invalid("the call has keys but no rows; give the rows to add")),
            (_, Some(rows)) if rows.len() != keys.len() => {
                return Err(Error::invalid(format!(
                    "the batch has {} keys and {} rows; give one row for each key",
                    keys.len(),
                    rows.len()
                )));
            }
            (DataType::Struct(_), Some(rows)) => match rows.as_struct_opt() {
                Some(rows) if rows.null_count() == 0 => columns.extend(rows.columns().iter().cloned()),
                _ => {
                    return Err(
                        Error::invalid("a row is null, or the rows are not structs").with_remedy("leave such rows out")
                    );
                }
            },
            (_, Some(rows)) => columns.push(Arc::clone(rows)),
        }
        if columns.len() != self.input.fields().len() {
            return Err(Error::invalid(format!(
                "the rows have {} columns, but the state declares {}",
                columns.len(),
                self.input.fields().len()
            )));
        }
        Ok(RecordBatch::try_new(Arc::clone(&self.input), columns)?)
    }

    /// The results of kept rows, of no input where there is none.
    fn results<'a>(&self, rows: impl Iterator<Item = (&'a [u8], Option<&'a [u8]>)>) -> Result<ArrayRef> {
        let mut table = GroupTable::new(Arc::clone(&self.plan));
        for (key, row) in rows {
            table.add_kept(key, row)?;
        }
        let batch = table.finish(0..table.len())?;
        let results = &batch.columns()[self.plan.num_keys()..];
        match (&self.result, results) {
            (DataType::Struct(fields), results) if !self.is_plain() => {
                Ok(Arc::new(StructArray::try_new(fields.clone(), results.to_vec(), None)?))
            }
            (_, [result]) => Ok(Arc::clone(result)),
            _ => Err(Error::internal("an aggregation without a result")),
        }
    }

    /// True if results are plain values, even if these are structs.
    fn is_plain(&self) -> bool {
        matches!(self.plan.output().fields().get(self.plan.num_keys()), Some(first) if *first.data_type() == self.result)
    }
}

#[cfg(test)]
#[path = "aggregating_tests.rs"]
mod tests;
