//! Rows into result columns.
//!
//! Owns: the result of each aggregate for a range of rows, of exactly the declared type in its binary form (`strings`).
//! Does not own: the key columns (`codec`), how many rows make a batch (`table`).

use super::decimal::{average, average_in_doubles};
use super::plan::{AggPlan, Form, Kind, Op};
use super::prim::{self, Native, has_bit, with_native};
use crate::state::arrays::{conform, plain_type};
use crate::state::codec::KeyCodec;
use crate::state::rows::Rows;
use crate::{Error, Result};
use arrow_array::{Array, ArrayRef, BinaryArray, LargeBinaryArray};
use arrow_buffer::{BooleanBuffer, NullBuffer, OffsetBuffer};
use arrow_schema::DataType;
use std::ops::Range;
use std::sync::Arc;

impl AggPlan {
    /// The columns of the aggregates, in the order of the output schema, strings in their binary form.
    pub(in crate::state) fn results(&self, rows: &Rows, range: &Range<usize>) -> Result<Vec<ArrayRef>> {
        let fields = self.binary_output.fields().iter().skip(self.num_keys);
        self.ops.iter().zip(fields).map(|(op, field)| op.finish(rows, range, field.data_type())).collect()
    }
}

impl Op {
    fn finish(&self, rows: &Rows, range: &Range<usize>, result: &DataType) -> Result<ArrayRef> {
        let at = self.at;
        let declared = plain_type(result);
        let array = match &self.kind {
            Kind::Count => i64::array(fixed(rows, range).map(|row| i64::read(row, at)).collect(), None),
            Kind::SumInt | Kind::SumInterval { months: false } => self.values::<i64>(rows, range, self.bit),
            Kind::SumFloat => self.values::<f64>(rows, range, self.bit),
            Kind::SumInterval { months: true } => {
                let months = fixed(rows, range).map(|row| self.months(i64::read(row, at)));
                i32::array(months.collect::<Result<_>>()?, self.nulls(rows, range, self.bit))
            }
            Kind::SumDecimal { .. } => {
                let valid = |row: &[u8]| has_bit(row, self.bit) && !has_bit(row, self.bit + 1);
                let nulls = NullBuffer::new(fixed(rows, range).map(valid).collect());
                i128::array(fixed(rows, range).map(|row| i128::read(row, at)).collect(), some_nulls(nulls))
            }
            Kind::AvgFloat => {
                let nulls = nonzero(rows, range, at + 8);
                #[expect(clippy::cast_precision_loss, reason = "Spark divides by the count as a double")]
                let avg = |row: &[u8]| f64::read(row, at) / i64::read(row, at + 8) as f64;
                f64::array(fixed(rows, range).map(avg).collect(), nulls)
            }
            Kind::AvgDecimal { scale, in_doubles, .. } => {
                let average = if *in_doubles { average_in_doubles } else { average };
                self.decimal_averages(
                    rows,
                    range,
                    |sum, count, precision, out| average(sum, count, *scale, precision, out),
                    &declared,
                )?
            }
            Kind::AvgInterval { months } => {
                let nulls = nonzero(rows, range, at + 8);
                let values = fixed(rows, range).map(|row| half_up(i64::read(row, at), i64::read(row, at + 8)));
                if *months {
                    i32::array(values.map(|v| self.months(v)).collect::<Result<_>>()?, nulls)
                } else {
                    i64::array(values.collect(), nulls)
                }
            }
            Kind::Extreme { prim, .. } => with_native!(prim, N => self.values::<N>(rows, range, self.bit)),
            Kind::ExtremeBytes { .. } => self.bytes(rows, range, self.bit, &declared)?,
            Kind::By { value, .. } => self.encoded(rows, range, value, self.var + 1)?,
            Kind::Edge { form: Form::Prim(prim), .. } => {
                with_native!(prim, N => self.values::<N>(rows, range, self.bit + 1))
            }
            Kind::Edge { form: Form::Bytes, .. } => self.bytes(rows, range, self.bit + 1, &declared)?,
            Kind::Edge { form: Form::Encoded(codec), .. } => self.encoded(rows, range, codec, self.var)?,
        };
        let array = if array.data_type().is_primitive() { prim::column(&array, &declared)? } else { array };
        conform(&array, result)
    }

    /// The slot's values, null where bit `valid` is off.
    fn values<N: Native>(&self, rows: &Rows, range: &Range<usize>, valid: usize) -> ArrayRef {
        N::array(fixed(rows, range).map(|row| N::read(row, self.at)).collect(), self.nulls(rows, range, valid))
    }

    #[expect(clippy::unused_self, reason = "reads like its siblings")]
    fn nulls(&self, rows: &Rows, range: &Range<usize>, valid: usize) -> Option<NullBuffer> {
        let valid: BooleanBuffer = fixed(rows, range).map(|row| has_bit(row, valid)).collect();
        some_nulls(NullBuffer::new(valid))
    }

    fn months(&self, value: i64) -> Result<i32> {
        i32::try_from(value).map_err(|_| self.interval_overflow())
    }

    /// `average` takes a sum, a count, and the precision and scale of the result.
    fn decimal_averages(
        &self,
        rows: &Rows,
        range: &Range<usize>,
        average: impl Fn(i128, i64, u8, i8) -> Option<i128>,
        declared: &DataType,
    ) -> Result<ArrayRef> {
        let DataType::Decimal128(precision, out_scale) = *declared else {
            return Err(Error::internal(format_args!("an average of decimals declared {declared}")));
        };
        let mut values = Vec::with_capacity(range.len());
        let mut valid = Vec::with_capacity(range.len());
        for row in fixed(rows, range) {
            let count = i64::read(row, self.at + 16);
            let sum = (!has_bit(row, self.bit)).then(|| i128::read(row, self.at));
            let value = sum.and_then(|sum| average(sum, count, precision, out_scale));
            if value.is_none() && count != 0 && self.ansi {
                return Err(match sum {
                    None => self.decimal_overflow(),
                    Some(_) => self.out_of_range(declared),
                });
            }
            values.push(value.unwrap_or_default());
            valid.push(value.is_some());
        }
        Ok(i128::array(values, some_nulls(NullBuffer::from(valid))))
    }

    fn bytes(&self, rows: &Rows, range: &Range<usize>, valid: usize, declared: &DataType) -> Result<ArrayRef> {
        let nulls = self.nulls(rows, range, valid);
        let total: usize = range.clone().map(|row| rows.vars.get(row, self.var).len()).sum();
        let mut data = Vec::with_capacity(total);
        range.clone().for_each(|row| data.extend_from_slice(rows.vars.get(row, self.var)));
        let lengths = range.clone().map(|row| rows.vars.get(row, self.var).len());
        let corrupt = |e| Error::corrupt(format_args!("an accumulator row of {}", self.identity), 0, e);
        if i32::try_from(total).is_err() && *declared != DataType::LargeBinary {
            return Err(Error::invalid(format!("the results of {} are {total} bytes in one batch", self.identity)));
        }
        Ok(match declared {
            DataType::LargeBinary => Arc::new(
                LargeBinaryArray::try_new(OffsetBuffer::from_lengths(lengths), data.into(), nulls).map_err(corrupt)?,
            ),
            _ => Arc::new(
                BinaryArray::try_new(OffsetBuffer::from_lengths(lengths), data.into(), nulls).map_err(corrupt)?,
            ),
        })
    }

    fn encoded(&self, rows: &Rows, range: &Range<usize>, codec: &KeyCodec, slot: usize) -> Result<ArrayRef> {
        let null = codec.null()?;
        let value = |row: usize| {
            let there = has_bit(rows.fixed(row), self.bit);
            if there { rows.vars.get(row, slot) } else { null.key(0) }
        };
        let mut columns = codec.decode_binary(range.clone().map(value))?;
        columns.pop().ok_or_else(|| Error::internal("a value codec without a column"))
    }
}

fn fixed<'a>(rows: &'a Rows, range: &Range<usize>) -> impl Iterator<Item = &'a [u8]> {
    let stride = rows.shape.stride;
    rows.fixed[range.start * stride..range.end * stride].chunks_exact(stride)
}

fn some_nulls(nulls: NullBuffer) -> Option<NullBuffer> {
    Some(nulls).filter(|nulls| nulls.null_count() > 0)
}

/// Null where the count at byte `at` is zero.
fn nonzero(rows: &Rows, range: &Range<usize>, at: usize) -> Option<NullBuffer> {
    some_nulls(NullBuffer::new(fixed(rows, range).map(|row| i64::read(row, at) != 0).collect()))
}

/// Quotient rounded half away from zero; zero for a zero divisor.
fn half_up(sum: i64, count: i64) -> i64 {
    let (sum, count) = (i128::from(sum), i128::from(count));
    let quotient = sum.checked_div(count).unwrap_or_default();
    let rest = sum.checked_rem(count).unwrap_or_default();
    let up = if rest.abs() * 2 >= count && count > 0 { sum.signum() } else { 0 };
    i64::try_from(quotient + up).unwrap_or_default()
}
