//! From a description to accumulators.
//!
//! Owns: the check of calls against columns, the slots of each accumulator in the row, and going through all calls.
//! Does not own: the functions and the types that they take (`functions`).

use super::accumulator::{Accumulator, Bound, Call, IS_EMPTY};
use super::fold::{Fold, trues};
use super::functions::AggregateFunction;
use super::lifetime::Lifetime;
use super::prim;
use super::results::RowRange;
use super::row::{Other, RowMut, Slots};
use super::schema::Description;
use super::spec::{AggCall, AggSpec, OutputMode};
use super::windows::Windows;
use crate::arrays::{conform, mismatch, plain_type, same_values, type_text};
use crate::codec::{KeyCodec, hash_key};
use crate::rows::{Rows, Shape};
use crate::session_window_keys::grouping_key;
use crate::strings::{binary_schema, binary_type, conform_binary};
use arrow_array::{Array, ArrayRef, BooleanArray, RecordBatch};
use arrow_buffer::NullBuffer;
use arrow_schema::{DataType, Field, Fields, Schema, SchemaRef, TimeUnit};
use fastchangelog_format::error::Subject;
use fastchangelog_format::{Error, Result};
use std::ops::Range;
use std::sync::Arc;

/// A checked aggregation: knows the key, the row layout, and each accumulator.
///
/// Made from an [`AggSpec`] with [`AggPlan::new`]; immutable, so that one `Arc` serves any number of tables.
#[derive(Debug)]
pub struct AggPlan {
    /// Types of the input as declared, and with binaries in the place of strings.
    input: Vec<(DataType, DataType)>,
    output: SchemaRef,
    /// The output with binaries in the place of strings.
    binary_output: SchemaRef,
    num_keys: usize,
    /// In the order of the result columns.
    pub(super) ops: Vec<Op>,
    shape: Shape,
    codec: KeyCodec,
    /// Of the time of a row and the key, if rows have times.
    pub(super) payload_codec: Option<KeyCodec>,
    schema: String,
    schema_id: u64,
    windows: Option<Windows>,
    session_windows: bool,
    output_mode: OutputMode,
    /// Of the rows that the state keeps, if it does not keep whole ones.
    pub(super) kept: Option<Arc<AggPlan>>,
    lifetime: Option<Lifetime>,
    /// Number of calls without a result.
    hidden: usize,
}

/// One call.
#[derive(Debug)]
pub(super) struct Op {
    pub(super) accumulator: Box<dyn Accumulator>,
    /// The function's name in the table.
    name: &'static str,
    args: Vec<usize>,
    filter: Option<usize>,
    /// Names and types of the columns in which Spark keeps the accumulator.
    buffers: Vec<(&'static str, DataType)>,
    any_order: bool,
    pub(super) slots: Slots,
}

impl AggPlan {
    /// Checks the description. An unknown function or one that cannot take the type of its argument is an
    /// `InvalidArgument` that names the aggregate and the type.
    pub fn new(spec: &AggSpec) -> Result<Self> {
        let columns = spec.input.fields().len();
        let (first_key, hidden) = (spec.first_key(), spec.hidden());
        if first_key + spec.num_keys > columns
            || spec.output.fields().len() + hidden != spec.num_keys + spec.aggs.len()
            || spec.aggs.len() < hidden
        {
            return Err(Error::invalid(format!(
                "the aggregation has {} keys and {} calls, but {columns} input and {} result columns",
                spec.num_keys,
                spec.aggs.len(),
                spec.output.fields().len()
            )));
        }
        let input: Vec<DataType> = spec.input.fields().iter().map(|f| plain_type(f.data_type())).collect();
        let keys: Fields = spec.output.fields().iter().take(spec.num_keys).cloned().collect();
        for (i, key) in keys.iter().enumerate() {
            let given = &input[first_key + i];
            if !same_values(given, key.data_type()) {
                return Err(Error::invalid(format!(
                    "key column `{}` is {} in the input, but {} in the result",
                    key.name(),
                    type_text(given),
                    type_text(key.data_type())
                ))
                .with_subject(Subject::Column(key.name().clone())));
            }
        }
        if let Some(windows) = &spec.windows {
            windows.check()?;
            if !keys.first().is_some_and(|key| is_time(key.data_type())) {
                return Err(Error::invalid("the first key of windows is not a timestamp of microseconds"));
            }
        }
        let times = keys.iter().rev().take_while(|key| is_time(key.data_type())).count();
        if spec.session_windows && (times < 2 || spec.windows.is_some()) {
            return Err(Error::invalid("the last two keys of session windows are not timestamps of microseconds"));
        }
        let codec = KeyCodec::new(&keys)?;
        let mut ops = Vec::with_capacity(spec.aggs.len());
        for call in &spec.aggs[..hidden] {
            let (op, _) = resolve(call, &input, None)?;
            if op.accumulator.layout().bytes != 8 {
                return Err(Error::invalid(format!("{} is not a time", call.identity)));
            }
            ops.push(op);
        }
        for (i, call) in spec.aggs.iter().skip(hidden).enumerate() {
            let output = spec.output.field(spec.num_keys + i);
            let (op, result) = resolve(call, &input, Some(output.data_type()))?;
            if !same_values(&result, output.data_type()) {
                return Err(Error::invalid(format!(
                    "{} gives {}, but the result column `{}` is declared {}",
                    call.identity,
                    type_text(&result),
                    output.name(),
                    type_text(output.data_type())
                ))
                .with_subject(Subject::Column(output.name().clone())));
            }
            ops.push(op);
        }
        let shape = assign_slots(&mut ops);
        let depends: Vec<_> = ops.iter().map(|op| (op.name, op.accumulator.depends_on_ansi())).collect();
        let description = Description::new(&keys, (spec.windows, spec.session_windows), &spec.aggs, &input, &depends);
        Ok(Self {
            payload_codec: spec.row_times.then(|| payload_codec(spec, &keys)).transpose()?,
            kept: (spec.output_mode == OutputMode::New).then(|| Self::of_kept(spec).map(Arc::new)).transpose()?,
            lifetime: spec.lifetime,
            hidden,
            schema: description.text(),
            schema_id: description.id(),
            binary_output: binary_schema(&spec.output),
            output: SchemaRef::clone(&spec.output),
            num_keys: spec.num_keys,
            input: input.into_iter().map(|declared| (declared.clone(), binary_type(&declared))).collect(),
            ops,
            shape,
            codec,
            windows: spec.windows,
            session_windows: spec.session_windows,
            output_mode: spec.output_mode,
        })
    }

    /// The aggregation whose rows the state of this one keeps: keys and hidden calls.
    fn of_kept(spec: &AggSpec) -> Result<Self> {
        let keys: Fields = spec.output.fields().iter().take(spec.num_keys).cloned().collect();
        Self::new(&AggSpec {
            output: SchemaRef::new(Schema::new(keys)),
            aggs: spec.aggs[..spec.hidden()].to_vec(),
            output_mode: OutputMode::default(),
            ..spec.clone()
        })
    }

    /// The plan of the rows that the state keeps.
    pub fn of_state(self: &Arc<Self>) -> Arc<Self> {
        Arc::clone(self.kept.as_ref().unwrap_or(self))
    }

    /// How long a group lives.
    pub fn lifetime(&self) -> Option<Lifetime> {
        self.lifetime
    }

    /// True if the keys of payloads begin with the time of the row.
    pub fn has_row_times(&self) -> bool {
        self.payload_codec.is_some()
    }

    /// The types of the results of `calls` over columns of the types `input`, as Spark has them.
    pub fn result_types(input: &[DataType], calls: &[AggCall]) -> Result<Vec<DataType>> {
        let input: Vec<DataType> = input.iter().map(plain_type).collect();
        calls.iter().map(|call| resolve(call, &input, None).map(|(_, result)| result)).collect()
    }

    /// The codec of the key columns.
    pub fn codec(&self) -> &KeyCodec {
        &self.codec
    }

    /// Schema of the result: keys, then one column per aggregate.
    pub fn output(&self) -> &SchemaRef {
        &self.output
    }

    /// The same with binaries in the place of strings, which need not be UTF-8.
    pub fn binary_output(&self) -> &SchemaRef {
        &self.binary_output
    }

    /// Number of key columns.
    pub fn num_keys(&self) -> usize {
        self.num_keys
    }

    /// The windows that the first key column of the input belongs to.
    pub fn windows(&self) -> Option<Windows> {
        self.windows
    }

    /// True if the last two key columns are start and end of a session window; see [`crate::session_window_keys`].
    pub fn session_windows(&self) -> bool {
        self.session_windows
    }

    /// The hash that says where a group belongs: of its key, without the session window.
    #[inline]
    pub fn place_hash(&self, key: &[u8]) -> u64 {
        hash_key(if self.session_windows { grouping_key(key) } else { key })
    }

    /// The encoded row of no input.
    pub fn empty_row(&self) -> Vec<u8> {
        vec![0; self.shape.stride + 4 * self.shape.vars]
    }

    /// The groups that a batch returns.
    pub fn output_mode(&self) -> OutputMode {
        self.output_mode
    }

    /// True if the first key column is a time, as [`crate::codec::time_prefix`] has it.
    pub fn begins_with_time(&self) -> bool {
        self.num_keys > 0 && is_time(self.output.field(0).data_type())
    }

    /// True if rows of one key may be joined in any order: the results have the same bits.
    pub(crate) fn any_order(&self) -> bool {
        self.ops.iter().all(|op| op.any_order)
    }

    /// Length of every encoded row, if all have the same.
    pub fn row_width(&self) -> Option<usize> {
        (self.shape.vars == 0).then_some(self.shape.stride)
    }

    /// Fingerprint of [`AggPlan::schema`]: kept rows of plans with equal ids are exchangeable.
    pub fn schema_id(&self) -> u64 {
        self.kept.as_ref().map_or(self.schema_id, |kept| kept.schema_id)
    }

    /// Readable form of the layout of kept rows: key types, and identity, argument types and mode of each aggregate. It
    /// omits the names of columns and the order of aggregates. See [`super::schema_difference`].
    pub fn schema(&self) -> &str {
        self.kept.as_ref().map_or(&self.schema, |kept| &kept.schema)
    }

    /// The fingerprint of rows in payloads.
    pub(crate) fn payload_id(&self) -> u64 {
        self.schema_id
    }

    pub(crate) fn shape(&self) -> Shape {
        self.shape
    }

    /// Fails unless the columns of `schema` are those that the plan declares.
    pub(crate) fn check_input(&self, schema: &Schema) -> Result<()> {
        self.check_count(schema.fields().len())?;
        let wrong = schema.fields().iter().zip(&self.input).find(|(f, (own, _))| !same_values(f.data_type(), own));
        wrong.map_or(Ok(()), |(field, (declared, _))| Err(mismatch(field.data_type(), declared)))
    }

    fn check_count(&self, columns: usize) -> Result<()> {
        if columns == self.input.len() {
            return Ok(());
        }
        Err(count_mismatch(columns, self.input.len()))
    }

    /// The columns of `batch` as the plan declares them, strings in their binary form. They may come in either form.
    pub(crate) fn columns(&self, batch: &RecordBatch) -> Result<Vec<ArrayRef>> {
        self.check_count(batch.num_columns())?;
        let columns = batch.columns().iter().zip(&self.input);
        columns.map(|(column, (declared, binary))| conform_binary(column, declared, binary)).collect()
    }

    /// The columns in which Spark keeps keys and accumulators: the keys, then for each call its own, in the order of
    /// the results and named `<number of the call>.<Spark's name>`.
    pub fn buffers(&self) -> Schema {
        let keys = self.input.iter().skip(usize::from(self.has_row_times())).take(self.num_keys);
        let keys = keys.enumerate().map(|(i, (key, _))| (format!("key{i}"), key.clone()));
        let calls = self.ops.iter().enumerate();
        let kept = calls.flat_map(|(i, op)| op.buffers.iter().map(move |(name, t)| (format!("{i}.{name}"), t.clone())));
        Schema::new(keys.chain(kept).map(|(name, data_type)| Field::new(name, data_type, true)).collect::<Vec<_>>())
    }

    /// The columns of a batch of [`AggPlan::buffers`], strings in their binary form. They may come in either form.
    pub(crate) fn buffer_columns(&self, batch: &RecordBatch) -> Result<Vec<ArrayRef>> {
        let schema = self.buffers();
        if schema.fields().len() != batch.num_columns() {
            return Err(count_mismatch(batch.num_columns(), schema.fields().len()));
        }
        let columns = batch.columns().iter().zip(schema.fields());
        columns.map(|(column, f)| conform_binary(column, f.data_type(), &binary_type(f.data_type()))).collect()
    }

    /// Folds row `i` of columns of [`AggPlan::buffers`] into accumulator row `groups[i]`, which is that of no input.
    pub(crate) fn load(&self, columns: &[ArrayRef], groups: &[u32], rows: &mut Rows) -> Result<()> {
        let mut rest = &columns[self.num_keys..];
        for op in &self.ops {
            let (own, others) = rest.split_at(op.buffers.len());
            rest = others;
            op.accumulator.load(&op.slots, &own.iter().collect::<Vec<_>>(), Fold { groups, mask: None, rows })?;
        }
        Ok(())
    }

    /// True if each accumulator can be rebuilt from its result; see [`AggPlan::rebuild`].
    pub(crate) fn can_rebuild(&self) -> bool {
        let mut ops = self.ops.iter().zip(self.output.fields().iter().skip(self.num_keys));
        self.hidden == 0
            && ops.all(|(op, result)| match &op.buffers[..] {
                _ if !op.accumulator.is_known_by_result() => false,
                [(_, kept)] | [(_, kept), (IS_EMPTY, _)] => kept == result.data_type(),
                _ => false,
            })
    }

    /// Makes accumulator row `groups[i]`, which is that of no input, the one with the results in row `i` of `results`;
    /// a null stands for no input. Needs [`AggPlan::can_rebuild`].
    pub(crate) fn rebuild(&self, results: &[ArrayRef], groups: &[u32], rows: &mut Rows) -> Result<()> {
        if !self.can_rebuild() {
            return Err(Error::internal("accumulators that their results do not determine"));
        }
        for (op, result) in self.ops.iter().zip(results) {
            let not_empty: ArrayRef = Arc::new(BooleanArray::from(vec![false; result.len()]));
            let buffers = [result, &not_empty];
            let fold = Fold { groups, mask: result.logical_nulls(), rows };
            op.accumulator.load(&op.slots, &buffers[..op.buffers.len()], fold)?;
        }
        Ok(())
    }

    /// Folds input row `i` into accumulator row `groups[i]`, for all `i`, in order.
    pub(crate) fn update(&self, columns: &[ArrayRef], groups: &[u32], rows: &mut Rows) -> Result<()> {
        for op in &self.ops {
            let arguments: Vec<&ArrayRef> = op.args.iter().map(|i| &columns[*i]).collect();
            let fold = Fold { groups, mask: op.mask(columns), rows };
            op.accumulator.update(&op.slots, &arguments, fold)?;
        }
        Ok(())
    }

    /// Joins `other` into row `row`.
    #[inline]
    pub(crate) fn merge(&self, rows: &mut Rows, row: usize, other: Other<'_>) -> Result<()> {
        let (fixed, vars) = rows.row_mut(row);
        let mut mine = RowMut { fixed, vars, number: row };
        for op in &self.ops {
            op.accumulator.merge(&op.slots, &mut mine, other)?;
        }
        Ok(())
    }

    /// The columns of the aggregates, in the order of the output schema, strings in their binary form.
    pub(crate) fn results(&self, rows: &Rows, range: &Range<usize>) -> Result<Vec<ArrayRef>> {
        let fields = self.binary_output.fields().iter().skip(self.num_keys);
        self.ops
            .iter()
            .skip(self.hidden)
            .zip(fields)
            .map(|(op, field)| op.finish(RowRange::new(rows, range), field.data_type()))
            .collect()
    }
}

/// The codec of the time of a row and its key.
fn payload_codec(spec: &AggSpec, keys: &Fields) -> Result<KeyCodec> {
    let time = spec.input.field(0);
    if !is_time(&plain_type(time.data_type())) {
        return Err(Error::invalid("the time of a row is not a timestamp of microseconds"));
    }
    KeyCodec::new(&std::iter::once(Arc::new(time.clone())).chain(keys.iter().cloned()).collect())
}

fn is_time(data_type: &DataType) -> bool {
    matches!(data_type, DataType::Timestamp(TimeUnit::Microsecond, _))
}

fn count_mismatch(columns: usize, declared: usize) -> Error {
    Error::invalid(format!("the batch has {columns} columns, but {declared} are declared"))
}

impl Op {
    /// The rows that count: the filter is true, and no argument that skips nulls is null. None means all.
    fn mask(&self, columns: &[ArrayRef]) -> Option<NullBuffer> {
        let mut mask: Option<NullBuffer> = self.filter.map(|filter| trues(&columns[filter]));
        for (_, column) in self.args.iter().enumerate().filter(|(i, _)| self.accumulator.skips_null(*i)) {
            mask = NullBuffer::union(mask.as_ref(), columns[*column].logical_nulls().as_ref());
        }
        mask.filter(|mask| mask.null_count() > 0)
    }

    fn finish(&self, rows: RowRange<'_>, result: &DataType) -> Result<ArrayRef> {
        let declared = plain_type(result);
        let array = self.accumulator.finish(&self.slots, rows, &declared)?;
        let array = if array.data_type().is_primitive() { prim::column(&array, &declared)? } else { array };
        conform(&array, result)
    }
}

/// Gives each accumulator its slots. Wider slots first would need no padding; slots are read bytewise, so none is
/// needed anyway, and the order of identities makes the layout independent of the order of the query.
fn assign_slots(ops: &mut [Op]) -> Shape {
    let mut order: Vec<usize> = (0..ops.len()).collect();
    order.sort_by(|a, b| ops[*a].slots.identity.cmp(&ops[*b].slots.identity));
    let bits: usize = ops.iter().map(|op| op.accumulator.layout().bits).sum();
    let (mut bit, mut at, mut var, mut grows) = (0, bits.div_ceil(8), 0, false);
    for i in order {
        let layout = ops[i].accumulator.layout();
        let slots = &mut ops[i].slots;
        (slots.bit, slots.at, slots.var) = (bit, at, var);
        bit += layout.bits;
        at += layout.bytes;
        var += layout.vars;
        grows |= layout.grows;
    }
    Shape { stride: at.max(1), vars: var, grows }
}

/// The accumulator of a call, and the type of its result; `declared` is the wanted one, if it is known.
fn resolve(call: &AggCall, input: &[DataType], declared: Option<&DataType>) -> Result<(Op, DataType)> {
    let identity = &call.identity;
    let outside = |i: &usize| *i >= input.len();
    if let Some(i) = call.args.iter().chain(&call.filter).find(|i| outside(i)) {
        return Err(Error::invalid(format!("{identity} uses column {i}, but the input has {}", input.len())));
    }
    if let Some(filter) = call.filter
        && input[filter] != DataType::Boolean
    {
        return Err(Error::invalid(format!(
            "the filter of {identity} is of type {}; it must be boolean",
            type_text(&input[filter])
        )));
    }
    let types: Vec<&DataType> = call.args.iter().map(|i| &input[*i]).collect();
    let function = AggregateFunction::named(&call.function).ok_or_else(|| {
        Error::invalid(format!(
            "{identity}: the function `{}` is not known; known are {}",
            call.function,
            AggregateFunction::names()
        ))
    })?;
    if !function.takes(types.len()) {
        let wanted = function.arguments.len();
        return Err(Error::invalid(format!("{identity} takes {wanted} columns, not {}", types.len())));
    }
    let seen = Call { types: &types, declared, ignore_nulls: call.ignore_nulls, ansi: call.ansi };
    let Bound { accumulator, result, buffers, any_order } = function.bind(&seen).ok_or_else(|| {
        let names: Vec<_> = types.iter().map(|t| type_text(t)).collect();
        Error::invalid(format!("{identity}: {}({}) is not supported", call.function, names.join(", ")))
            .with_remedy("cast the column or use another function")
    })?;
    let slots = Slots { identity: identity.clone(), ..Slots::default() };
    let (name, args, filter) = (function.name, call.args.clone(), call.filter);
    Ok((Op { accumulator, name, args, filter, buffers, any_order, slots }, result))
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
