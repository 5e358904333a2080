//! Accumulator rows without keys, for callers that group rows by themselves.
//!
//! Owns: folding Arrow columns into numbered accumulators, and their conversion from and to stored bytes.
//! Does not own: functions and layouts (`aggregate`), which rows belong together, keys and where bytes are kept (the
//! caller).
//!
//! An accumulator is stored as the accumulator row of a query or of an embedded state with the same aggregates.
//! Invariants:
//! 1. folding rows into stored accumulators gives the accumulators of all rows, in the order in which they were folded;
//! 2. a null is the accumulator of no rows; its results are null.

use super::aggregate::{AggPlan, AggSpec, NamedCall, column};
use super::arrays::mismatch;
use super::rows::Rows;
use super::strings::{binary_type, conform_binary};
use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, BinaryArray, RecordBatch, RecordBatchOptions, StructArray, UInt32Array};
use arrow_buffer::{NullBuffer, OffsetBuffer, ScalarBuffer};
use arrow_schema::{DataType, Fields, Schema, SchemaRef};
use fastchangelog_format::{Error, Result};
use std::collections::BTreeSet;
use std::sync::Arc;

/// The accumulators of some aggregates. Immutable: accumulators come and go as bytes.
#[derive(Debug)]
pub struct Accumulators {
    plan: AggPlan,
    /// Numbers of the columns that the aggregates take, in ascending order.
    columns: Vec<usize>,
    input: SchemaRef,
    output: SchemaRef,
    /// The struct of `output`.
    result: DataType,
    identities: Vec<String>,
}

impl Accumulators {
    /// The aggregates `calls` over rows with the columns `rows`; `ansi`: an overflow is an error. Results have the
    /// types of Spark's aggregates.
    pub fn new(rows: &Fields, calls: &[NamedCall], ansi: bool) -> Result<Self> {
        let mut columns = BTreeSet::new();
        for call in calls {
            for name in call.args.iter().chain(&call.filter) {
                columns.insert(column(call, rows, name)?);
            }
        }
        let columns: Vec<usize> = columns.into_iter().collect();
        let used: Fields = columns.iter().map(|i| Arc::clone(&rows[*i])).collect();
        let spec = AggSpec::by_name(&Fields::empty(), &used, calls, ansi)?;
        Ok(Self {
            plan: AggPlan::new(&spec)?,
            columns,
            result: DataType::Struct(spec.output.fields().clone()),
            output: spec.output,
            identities: spec.aggs.into_iter().map(|call| call.identity).collect(),
            input: spec.input,
        })
    }

    /// The columns that [`Accumulators::fold`] takes, by their numbers among all columns of the rows.
    pub fn columns(&self) -> &[usize] {
        &self.columns
    }

    /// The type of results: a struct with a field for each call, named after it.
    pub fn result_type(&self) -> &DataType {
        &self.result
    }

    /// The columns of results.
    pub fn result_schema(&self) -> &SchemaRef {
        &self.output
    }

    /// The readable names of the aggregates, in the order of the results.
    pub fn identities(&self) -> &[String] {
        &self.identities
    }

    /// The description of the stored bytes; see [`AggPlan::schema`].
    pub fn schema(&self) -> &str {
        self.plan.schema()
    }

    /// True if accumulators can be rebuilt from results alone: see [`Accumulators::rebuild`].
    pub fn can_rebuild(&self) -> bool {
        self.plan.can_rebuild()
    }

    /// The results of `count` groups of rows; row `i` belongs to group `groups[i]`. Strings are in their binary form.
    pub fn aggregate(&self, count: usize, groups: &UInt32Array, rows: &StructArray) -> Result<ArrayRef> {
        let mut accumulators = Rows::new(self.plan.shape());
        accumulators.grow_to(count);
        self.update(&mut accumulators, count, groups, rows)?;
        self.finish(&accumulators, count)
    }

    /// Folds row `i` of `rows` into the accumulator `groups[i]` of `stored`. All or nothing.
    pub fn fold(&self, stored: &BinaryArray, groups: &UInt32Array, rows: &StructArray) -> Result<BinaryArray> {
        let mut accumulators = Rows::new(self.plan.shape());
        let mut vars = Vec::new();
        for (i, row) in stored.iter().enumerate() {
            match row {
                Some(row) => accumulators.push(self.plan.shape().parse(row, &mut vars)?, &vars),
                None => accumulators.grow_to(i + 1),
            }
        }
        self.update(&mut accumulators, stored.len(), groups, rows)?;
        encoded(&accumulators, stored.len(), None)
    }

    /// The results of stored accumulators; strings are in their binary form.
    pub fn results(&self, stored: &BinaryArray) -> Result<ArrayRef> {
        let mut accumulators = Rows::new(self.plan.shape());
        let mut vars = Vec::new();
        let mut places = Vec::with_capacity(stored.len());
        let mut count = 0_u32;
        for row in stored {
            places.push(row.map(|_| count));
            if let Some(row) = row {
                accumulators.push(self.plan.shape().parse(row, &mut vars)?, &vars);
                count += 1;
            }
        }
        let results = self.finish(&accumulators, count as usize)?;
        if stored.null_count() == 0 {
            return Ok(results);
        }
        Ok(arrow_select::take::take(&results, &UInt32Array::from(places), None)?)
    }

    /// The accumulators that have these results, where [`Accumulators::can_rebuild`].
    pub fn rebuild(&self, results: &ArrayRef) -> Result<BinaryArray> {
        let fields = self.output.fields();
        let given = results.as_struct_opt().filter(|given| given.num_columns() == fields.len());
        let given = given.ok_or_else(|| mismatch(results.data_type(), &self.result))?;
        let columns = given.columns().iter().zip(fields);
        let columns: Vec<ArrayRef> = columns
            .map(|(column, f)| conform_binary(column, f.data_type(), &binary_type(f.data_type())))
            .collect::<Result<_>>()?;
        let groups: Vec<u32> = (0..given.len()).map(number).collect::<Result<_>>()?;
        let mut accumulators = Rows::new(self.plan.shape());
        accumulators.grow_to(given.len());
        self.plan.rebuild(&columns, &groups, &mut accumulators)?;
        encoded(&accumulators, given.len(), given.nulls())
    }

    fn update(&self, accumulators: &mut Rows, count: usize, groups: &UInt32Array, rows: &StructArray) -> Result<()> {
        let fits = groups.null_count() == 0 && groups.values().iter().all(|group| (*group as usize) < count);
        if !fits || (rows.num_columns() > 0 && rows.len() != groups.len()) {
            return Err(Error::invalid(format!(
                "{} rows and {} groups, of {count}: each row needs a group",
                rows.len(),
                groups.len()
            )));
        }
        if rows.num_columns() != self.input.fields().len() {
            return Err(mismatch(rows.data_type(), &DataType::Struct(self.input.fields().clone())));
        }
        let schema = Arc::new(Schema::new(rows.fields().clone()));
        let options = RecordBatchOptions::new().with_row_count(Some(rows.len()));
        let batch = RecordBatch::try_new_with_options(schema, rows.columns().to_vec(), &options)?;
        self.plan.update(&self.plan.columns(&batch)?, groups.values(), accumulators)
    }

    fn finish(&self, accumulators: &Rows, count: usize) -> Result<ArrayRef> {
        let columns = self.plan.results(accumulators, &(0..count))?;
        let fields = self.plan.binary_output().fields();
        Ok(Arc::new(StructArray::try_new_with_length(fields.clone(), columns, None, count)?))
    }
}

/// The bytes of accumulators, null where `nulls` says so.
fn encoded(accumulators: &Rows, count: usize, nulls: Option<&NullBuffer>) -> Result<BinaryArray> {
    let mut bytes = Vec::with_capacity(accumulators.used_bytes());
    let mut ends = Vec::with_capacity(count + 1);
    ends.push(0_i32);
    for i in 0..count {
        if nulls.is_none_or(|nulls| nulls.is_valid(i)) {
            accumulators.encode(i, &mut bytes);
        }
        ends.push(i32::try_from(bytes.len()).map_err(|_| {
            Error::invalid("accumulators of more than 2 GiB cannot be stored at once").with_remedy("add fewer rows")
        })?);
    }
    let offsets = OffsetBuffer::new(ScalarBuffer::from(ends));
    Ok(BinaryArray::try_new(offsets, bytes.into(), nulls.cloned())?)
}

fn number(i: usize) -> Result<u32> {
    u32::try_from(i).map_err(|_| Error::invalid("one call has more than 4 billion groups"))
}

#[cfg(test)]
#[path = "accumulators_tests.rs"]
mod tests;
