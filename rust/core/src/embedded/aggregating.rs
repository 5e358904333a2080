//! A state of aggregates by key.
//!
//! Owns: rows in, results out, for many keys at once, in Arrow.
//! Does not own: what an aggregate means and how its row looks (`columns::aggregate`), grouping (`columns::table`), what is
//! durable (`core`).
//!
//! Entries are as those of a query's shard: the key's bytes, and an accumulator row. Invariants:
//! 1. results are those of one aggregation of all rows that were added, in the order in which they were added;
//! 2. an add changes all keys of its rows, or none;
//! 3. an aggregate that has ended is one to which nothing was added.

use super::core::{Core, Entered, look_up};
use super::lifetime::{Lifetime, Moment};
use super::scan::{Scan, Walk};
use crate::states::Place;
use crate::states::catalog::{Declaration, Kind};
use crate::states::look_up::Values;
use crate::states::scan::Found;
use crate::states::sweep::any_of;
use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, BooleanArray, RecordBatch, StructArray};
use arrow_buffer::{BooleanBuffer, NullBuffer};
use arrow_schema::{DataType, Field, Fields, Schema};
use fastchangelog_columns::aggregate::{AggPlan, AggSpec, NamedCall};
use fastchangelog_columns::codec::EncodedKeys;
use fastchangelog_columns::table::GroupTable;
use fastchangelog_columns::type_text;
use fastchangelog_columns::typed::{KeyRange, TypedEntries, columns_of};
use fastchangelog_format::check_records;
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
    core: Arc<Core>,
    place: Place,
    types: Arc<Types>,
    lifetime: Lifetime,
}

impl AggregatingState {
    pub(super) fn declare(
        core: &Arc<Core>,
        name: &str,
        (key, rows): (&DataType, &DataType),
        calls: &[NamedCall],
        ansi: bool,
        ttl: Option<Duration>,
    ) -> Result<Self> {
        let (types, lifetime) = (Types::new(key, rows, calls, ansi)?, Lifetime::of(ttl)?);
        let (key, value, ttl) = (&*type_text(key), types.plan.schema(), lifetime.is_bounded());
        let place = core.declare(Declaration { name, kind: Kind::Aggregating, key, value, ttl })?;
        Ok(Self { core: Arc::clone(core), place, types: Arc::new(types), lifetime })
    }

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
        let kept = self.look_up((0..keys.len()).map(|i| keys.key(i)), self.lifetime.now(&self.core)?)?;
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
        let keys = self.types.keys.encode_keys(keys)?;
        let kept = self.look_up((0..keys.len()).map(|i| keys.key(i)), self.lifetime.now(&self.core)?)?;
        Ok(kept.iter().map(|row| Some(row.is_some())).collect())
    }

    /// Adds rows, each to the aggregates of its key. All or nothing. Rows without columns are none.
    pub fn add(&self, keys: &ArrayRef, rows: Option<&ArrayRef>) -> Result<()> {
        let mut table = GroupTable::new(Arc::clone(&self.types.plan));
        table.fold_rows(&self.types.batch(keys, rows)?)?;
        let admission = self.core.admit_change()?;
        // Before the lock: the clock may be the program's.
        let at = self.lifetime.now(&self.core)?;
        let _exclusive = self.core.exclusive(&admission);
        let kept = self.look_up((0..table.len()).map(|i| table.key(i)), at)?;
        let mut changed = Vec::new();
        for (i, row) in kept.iter().enumerate() {
            // With a time to live each add says anew when it ends.
            if table.combine_base(i, row)? || at.ends().is_some() {
                changed.push(i);
            }
        }
        let mut scratch = Vec::new();
        let stored = |row: &[u8]| at.prefix().len() + row.len();
        let changes = changed.len();
        let bytes = changed.iter().map(|&i| table.key(i).len() + stored(table.row(i, &mut scratch))).sum::<usize>();
        check_records(bytes, changed.iter().map(|&i| table.key(i).len() + stored(table.row(i, &mut scratch))))?;
        let any = any_of(changes, |i| table.key(changed[i]));
        let one = changed.get(any).map_or(&[][..], |&i| table.key(i));
        self.core.write(&admission, self.place, at.ends(), Entered { changes, bytes, one }, |layers| {
            let mut out = Vec::new();
            for &i in &changed {
                layers.put(self.place, table.key(i), at.stored(Some(table.row(i, &mut scratch)), &mut out));
            }
        })
    }

    /// Forgets keys; one to which nothing was added is fine. All or nothing.
    pub fn clear(&self, keys: &ArrayRef) -> Result<()> {
        let keys: EncodedKeys = self.types.keys.encode_keys(keys)?;
        let bytes = (0..keys.len()).map(|i| keys.key(i).len()).sum();
        let admission = self.core.admit_change()?;
        let _exclusive = self.core.exclusive(&admission);
        self.core.change(&admission, keys.len(), bytes, |layers| {
            for i in 0..keys.len() {
                layers.put(self.place, keys.key(i), None);
            }
        })
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
        Scan::new(Walk::new(&self.core, self.place, range, self.lifetime), rows, &columns, Box::new(decode))
    }

    fn look_up<'a>(&self, keys: impl ExactSizeIterator<Item = &'a [u8]> + Clone, at: Moment) -> Result<Values> {
        at.values(self.core.read(|layers, shard| look_up(&layers, shard, self.place, keys.clone()))?)
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
            (_, None) => return Err(Error::invalid("rows to add are needed, beside their keys")),
            (_, Some(rows)) if rows.len() != keys.len() => {
                return Err(Error::invalid(format!(
                    "{} keys and {} rows: a batch needs one of each",
                    keys.len(),
                    rows.len()
                )));
            }
            (DataType::Struct(_), Some(rows)) => match rows.as_struct_opt() {
                Some(rows) if rows.null_count() == 0 => columns.extend(rows.columns().iter().cloned()),
                _ => {
                    return Err(
                        Error::invalid("a row is null, or rows are no structs").with_remedy("leave such rows out")
                    );
                }
            },
            (_, Some(rows)) => columns.push(Arc::clone(rows)),
        }
        if columns.len() != self.input.fields().len() {
            return Err(Error::invalid(format!(
                "rows of {} columns came where {} were declared",
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
