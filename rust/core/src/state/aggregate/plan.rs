//! From a description to accumulators.
//!
//! Owns: the check of functions against types, and the place of each accumulator in the row.
//! Does not own: what is done with rows (`update`, `merge`, `finish`).

use super::decimal::in_doubles;
use super::schema::Description;
use super::spec::{AggCall, AggSpec};
use crate::error::Subject;
use crate::state::arrays::{has_map, plain_type, same_values, type_text};
use crate::state::codec::KeyCodec;
use crate::state::rows::Shape;
use crate::state::strings::{binary_schema, binary_type};
use crate::{Error, Result};
use arrow_schema::{DataType, Fields, IntervalUnit, SchemaRef};

/// A checked aggregation: knows the key, the row layout, and each accumulator.
///
/// Made from an [`AggSpec`] with [`AggPlan::new`]; immutable, so that one `Arc` serves any number of tables.
#[derive(Debug)]
pub struct AggPlan {
    /// Types of the input as declared, and with binaries in the place of strings.
    pub(super) input: Vec<(DataType, DataType)>,
    output: SchemaRef,
    /// The output with binaries in the place of strings.
    pub(super) binary_output: SchemaRef,
    pub(super) num_keys: usize,
    /// In the order of the result columns.
    pub(super) ops: Vec<Op>,
    shape: Shape,
    codec: KeyCodec,
    schema: String,
    schema_id: u64,
}

/// One accumulator.
#[derive(Debug)]
pub(super) struct Op {
    pub(super) kind: Kind,
    pub(super) args: Vec<usize>,
    pub(super) filter: Option<usize>,
    pub(super) ansi: bool,
    pub(super) identity: String,
    /// Number of the first of its bits.
    pub(super) bit: usize,
    /// Byte offset of its fixed slot.
    pub(super) at: usize,
    /// Number of its first variable slot.
    pub(super) var: usize,
}

/// What an accumulator holds and how. Bits: see [`Kind::bits`].
#[derive(Debug)]
pub(super) enum Kind {
    /// i64 number of rows.
    Count,
    /// i64 sum; bit 0: not null.
    SumInt,
    /// f64 sum; bit 0: not null.
    SumFloat,
    /// i128 sum, absolute value below `limit`; bit 0: not null, bit 1: overflowed for good.
    SumDecimal { limit: i128 },
    /// i64 sum of an interval's unit; bit 0: not null.
    SumInterval { months: bool },
    /// f64 sum, i64 count.
    AvgFloat,
    /// i128 sum, i64 count; bit 0: overflowed for good.
    AvgDecimal { limit: i128, scale: i8, in_doubles: bool },
    /// i64 sum, i64 count of an interval's unit.
    AvgInterval { months: bool },
    /// The least or greatest value; bit 0: not null.
    Extreme { max: bool, prim: Prim },
    /// The least or greatest byte string in variable slot 0; bit 0: not null.
    ExtremeBytes { max: bool },
    /// Variable slot 0: the encoded ordering, slot 1: the encoded value; bit 0: there is one.
    By { max: bool, later_wins_ties: bool, order: Box<KeyCodec>, value: Box<KeyCodec> },
    /// The first or last value; bit 0: there is one, bit 1: it is not null.
    Edge { last: bool, ignore_nulls: bool, form: Form },
}

/// How a value of any type is kept.
#[derive(Debug)]
pub(super) enum Form {
    /// In the fixed slot.
    Prim(Prim),
    /// Strings and binary, in a variable slot.
    Bytes,
    /// Anything else, encoded in a variable slot.
    Encoded(Box<KeyCodec>),
}

/// The machine type of values in fixed slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Prim {
    Bool,
    I8,
    I16,
    I32,
    I64,
    F32,
    F64,
    I128,
}

impl Prim {
    /// The machine type of a column's values, if it is one.
    fn of(data_type: &DataType) -> Option<Self> {
        Some(match data_type {
            DataType::Boolean => Self::Bool,
            DataType::Int8 => Self::I8,
            DataType::Int16 => Self::I16,
            DataType::Int32 | DataType::Date32 | DataType::Time32(_) | DataType::Interval(IntervalUnit::YearMonth) => {
                Self::I32
            }
            DataType::Int64
            | DataType::Date64
            | DataType::Timestamp(..)
            | DataType::Time64(_)
            | DataType::Duration(_) => Self::I64,
            DataType::Float32 => Self::F32,
            DataType::Float64 => Self::F64,
            DataType::Decimal128(..) => Self::I128,
            _ => return None,
        })
    }

    pub(super) fn width(self) -> usize {
        match self {
            Self::Bool | Self::I8 => 1,
            Self::I16 => 2,
            Self::I32 | Self::F32 => 4,
            Self::I64 | Self::F64 => 8,
            Self::I128 => 16,
        }
    }
}

impl Kind {
    /// Bits it uses.
    fn bits(&self) -> usize {
        match self {
            Self::Count | Self::AvgFloat | Self::AvgInterval { .. } => 0,
            Self::SumDecimal { .. } | Self::Edge { .. } => 2,
            _ => 1,
        }
    }

    /// Bytes of its fixed slot.
    fn width(&self) -> usize {
        match self {
            Self::Count | Self::SumInt | Self::SumFloat | Self::SumInterval { .. } => 8,
            Self::SumDecimal { .. } | Self::AvgFloat | Self::AvgInterval { .. } => 16,
            Self::AvgDecimal { .. } => 24,
            Self::Extreme { prim, .. } | Self::Edge { form: Form::Prim(prim), .. } => prim.width(),
            Self::ExtremeBytes { .. } | Self::By { .. } | Self::Edge { .. } => 0,
        }
    }

    /// Variable slots it uses.
    pub(super) fn vars(&self) -> usize {
        match self {
            Self::By { .. } => 2,
            Self::ExtremeBytes { .. } | Self::Edge { form: Form::Bytes | Form::Encoded(_), .. } => 1,
            _ => 0,
        }
    }

    /// True when ANSI mode changes what it does.
    fn minds_ansi(&self) -> bool {
        matches!(self, Self::SumInt | Self::SumDecimal { .. } | Self::AvgDecimal { .. })
    }
}

impl AggPlan {
    /// Checks the description. An unknown function or one that cannot take the type of its argument is an
    /// `InvalidArgument` that names the aggregate and the type.
    pub fn new(spec: &AggSpec) -> Result<Self> {
        let columns = spec.input.fields().len();
        if spec.num_keys > columns || spec.output.fields().len() != spec.num_keys + spec.aggs.len() {
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
            if !same_values(&input[i], key.data_type()) {
                return Err(Error::invalid(format!(
                    "key column `{}` is {} in the input, but {} in the result",
                    key.name(),
                    type_text(&input[i]),
                    type_text(key.data_type())
                ))
                .with_subject(Subject::Column(key.name().clone())));
            }
        }
        let codec = KeyCodec::new(&keys)?;
        let mut ops = Vec::with_capacity(spec.aggs.len());
        for (i, call) in spec.aggs.iter().enumerate() {
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
        let shape = place(&mut ops);
        let minds: Vec<_> = ops.iter().map(|op| op.kind.minds_ansi()).collect();
        let description = Description::new(&keys, &spec.aggs, &input, &minds);
        Ok(Self {
            schema: description.text(),
            schema_id: description.id(),
            binary_output: binary_schema(&spec.output),
            output: SchemaRef::clone(&spec.output),
            num_keys: spec.num_keys,
            input: input.into_iter().map(|declared| (declared.clone(), binary_type(&declared))).collect(),
            ops,
            shape,
            codec,
        })
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

    /// Length of every encoded row, if all have the same.
    pub fn row_width(&self) -> Option<usize> {
        (self.shape.vars == 0).then_some(self.shape.stride)
    }

    /// Fingerprint of [`AggPlan::schema`]: rows of plans with equal ids are exchangeable.
    pub fn schema_id(&self) -> u64 {
        self.schema_id
    }

    /// Readable form of what rows depend on: key types, and identity, argument types and mode of each aggregate. Not
    /// names of columns, nor the order of aggregates. See [`super::schema_difference`].
    pub fn schema(&self) -> &str {
        &self.schema
    }

    pub(in crate::state) fn shape(&self) -> Shape {
        self.shape
    }
}

/// Gives each accumulator its place. Wider slots first would need no padding; slots are read bytewise, so none is
/// needed anyway, and the order of identities makes the layout independent of the order of the query.
fn place(ops: &mut [Op]) -> Shape {
    let mut order: Vec<usize> = (0..ops.len()).collect();
    order.sort_by(|a, b| ops[*a].identity.cmp(&ops[*b].identity));
    let bits: usize = ops.iter().map(|op| op.kind.bits()).sum();
    let (mut bit, mut at, mut var) = (0, bits.div_ceil(8), 0);
    for i in order {
        let op = &mut ops[i];
        (op.bit, op.at, op.var) = (bit, at, var);
        bit += op.kind.bits();
        at += op.kind.width();
        var += op.kind.vars();
    }
    Shape { stride: at.max(1), vars: var }
}

/// The accumulator of a call, and the type of its result; `output` is the wanted one, if it is known.
fn resolve(call: &AggCall, input: &[DataType], output: Option<&DataType>) -> Result<(Op, DataType)> {
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
    let wanted: Option<&[usize]> = match call.function.as_str() {
        "count" => None,
        "max_by" | "min_by" => Some(&[2]),
        _ => Some(&[1]),
    };
    if let Some(wanted) = wanted
        && wanted[0] != types.len()
    {
        return Err(Error::invalid(format!("{identity} takes {} columns, not {}", wanted[0], types.len())));
    }
    let mut args = call.args.clone();
    let refuse = || {
        let names: Vec<_> = types.iter().map(|t| type_text(t)).collect();
        Error::invalid(format!(
            "{identity}: {}({}) is not supported; cast the column or use another function",
            call.function,
            names.join(", ")
        ))
    };
    let (kind, result) = match call.function.as_str() {
        "count" => (Kind::Count, DataType::Int64),
        "sum" => sum(types[0]).ok_or_else(refuse)?,
        "avg" | "mean" => avg(types[0], output).ok_or_else(refuse)?,
        "bool_and" | "every" | "bool_or" | "any" | "some" if types[0] != &DataType::Boolean => return Err(refuse()),
        "min" | "bool_and" | "every" => extreme(false, types[0], &mut args).ok_or_else(refuse)?,
        "max" | "bool_or" | "any" | "some" => extreme(true, types[0], &mut args).ok_or_else(refuse)?,
        "min_by" | "max_by" => {
            let order = ordering(types[1]).ok_or_else(refuse)?;
            let value = Box::new(KeyCodec::of_value(types[0], false).map_err(|_| refuse())?);
            args.swap(0, 1);
            (Kind::By { max: call.function == "max_by", later_wins_ties: true, order, value }, types[0].clone())
        }
        "first" | "first_value" | "any_value" | "last" | "last_value" => {
            let form = match types[0] {
                DataType::Utf8 | DataType::LargeUtf8 | DataType::Binary | DataType::LargeBinary => Form::Bytes,
                other => match Prim::of(other) {
                    Some(prim) => Form::Prim(prim),
                    None => Form::Encoded(Box::new(KeyCodec::of_value(other, false).map_err(|_| refuse())?)),
                },
            };
            let last = call.function.starts_with("last");
            (Kind::Edge { last, ignore_nulls: call.ignore_nulls, form }, types[0].clone())
        }
        other => {
            return Err(Error::invalid(format!(
                "{identity}: the function `{other}` is not known; known are count, sum, min, max, avg, first, last, bool_and, bool_or, max_by and min_by"
            )));
        }
    };
    let (filter, ansi, identity) = (call.filter, call.ansi, identity.clone());
    Ok((Op { kind, args, filter, ansi, identity, bit: 0, at: 0, var: 0 }, result))
}

fn is_integer(data_type: &DataType) -> bool {
    matches!(data_type, DataType::Int8 | DataType::Int16 | DataType::Int32 | DataType::Int64)
}

/// 10 to the number of digits of Spark's buffer for sums of decimals of precision `p`.
fn decimal_limit(p: u8) -> i128 {
    10i128.pow(u32::from((p + 10).min(38)))
}

fn sum(arg: &DataType) -> Option<(Kind, DataType)> {
    Some(match arg {
        t if is_integer(t) => (Kind::SumInt, DataType::Int64),
        DataType::Float32 | DataType::Float64 => (Kind::SumFloat, DataType::Float64),
        DataType::Decimal128(p, s) => {
            (Kind::SumDecimal { limit: decimal_limit(*p) }, DataType::Decimal128((p + 10).min(38), *s))
        }
        DataType::Duration(_) => (Kind::SumInterval { months: false }, arg.clone()),
        DataType::Interval(IntervalUnit::YearMonth) => (Kind::SumInterval { months: true }, arg.clone()),
        _ => return None,
    })
}

fn avg(arg: &DataType, output: Option<&DataType>) -> Option<(Kind, DataType)> {
    Some(match arg {
        t if is_integer(t) => (Kind::AvgFloat, DataType::Float64),
        DataType::Float32 | DataType::Float64 => (Kind::AvgFloat, DataType::Float64),
        // Precision and scale of the result are Spark's own decision, found in the declared result. Where none is declared,
        // they are as Spark decides by default.
        DataType::Decimal128(p, s) => {
            let result = match output {
                Some(declared @ DataType::Decimal128(..)) => declared.clone(),
                Some(_) => return None,
                None => DataType::Decimal128((p + 4).min(38), (s + 4).min(38)),
            };
            (Kind::AvgDecimal { limit: decimal_limit(*p), scale: *s, in_doubles: in_doubles(*p) }, result)
        }
        DataType::Duration(_) => (Kind::AvgInterval { months: false }, arg.clone()),
        DataType::Interval(IntervalUnit::YearMonth) => (Kind::AvgInterval { months: true }, arg.clone()),
        _ => return None,
    })
}

fn extreme(max: bool, arg: &DataType, args: &mut Vec<usize>) -> Option<(Kind, DataType)> {
    let kind = match arg {
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Binary | DataType::LargeBinary => Kind::ExtremeBytes { max },
        other => match Prim::of(other) {
            Some(prim) => Kind::Extreme { max, prim },
            None => {
                let order = ordering(other)?;
                let value = Box::new(KeyCodec::of_value(other, false).ok()?);
                args.push(args[0]);
                Kind::By { max, later_wins_ties: false, order, value }
            }
        },
    };
    Some((kind, arg.clone()))
}

/// The codec whose bytes compare as values of the type do.
fn ordering(data_type: &DataType) -> Option<Box<KeyCodec>> {
    if has_map(data_type) || matches!(data_type, DataType::Interval(IntervalUnit::MonthDayNano)) {
        return None;
    }
    KeyCodec::of_value(data_type, true).ok().map(Box::new)
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
