//! `avg`, `try_avg`.
//!
//! Owns: the averages of numbers and intervals. Does not own: the division of decimals (`decimal`).

use super::{count, decimal, interval};
use crate::aggregate::accumulator::{Accumulator, Bound, Call, Layout};
use crate::aggregate::arithmetic::{Overflow, decimal_overflow, out_of_range};
use crate::aggregate::fold::Fold;
use crate::aggregate::prim::{Native, doubles, has_bit, integers, is_integer};
use crate::aggregate::results::RowRange;
use crate::aggregate::row::{Other, RowMut, Slots};
use arrow_array::cast::AsArray;
use arrow_array::types::Decimal128Type;
use arrow_array::{Array, ArrayRef};
use arrow_buffer::NullBuffer;
use arrow_schema::{DataType, IntervalUnit};
use fastchangelog_format::{Error, Result};

pub(super) fn avg(call: &Call<'_>) -> Option<Bound> {
    bind(call, Overflow::with(call.ansi))
}

/// As `avg`, but null where it overflows.
pub(super) fn try_avg(call: &Call<'_>) -> Option<Bound> {
    let tried =
        |months, interval: &DataType| Some(kept(Bound::new(Tried { months }, interval.clone()), interval.clone()));
    match call.types[0] {
        t @ DataType::Duration(_) => tried(false, t),
        t @ DataType::Interval(IntervalUnit::YearMonth) => tried(true, t),
        _ => bind(call, Overflow::Null),
    }
}

fn bind(call: &Call<'_>, overflow: Overflow) -> Option<Bound> {
    Some(match call.types[0] {
        t if is_integer(t) => kept(Bound::new(Floats, DataType::Float64).in_any_order(), DataType::Float64),
        DataType::Float32 | DataType::Float64 => kept(Bound::new(Floats, DataType::Float64), DataType::Float64),
        // Precision and scale of the result are Spark's own decision, found in the declared result. Where none is declared,
        // they are as Spark decides by default.
        DataType::Decimal128(p, s) => {
            let result = match call.declared {
                Some(declared @ DataType::Decimal128(..)) => declared.clone(),
                Some(_) => return None,
                None => DataType::Decimal128((p + 4).min(38), (s + 4).min(38)),
            };
            let decimals = Decimals { limit: decimal::sum_limit(*p), precision: *p, scale: *s, overflow };
            kept(Bound::new(decimals, result).in_any_order(), DataType::Decimal128((p + 10).min(38), *s))
        }
        t @ DataType::Duration(_) => kept(Bound::new(Intervals { months: false }, t.clone()).in_any_order(), t.clone()),
        t @ DataType::Interval(IntervalUnit::YearMonth) => {
            kept(Bound::new(Intervals { months: true }, t.clone()).in_any_order(), t.clone())
        }
        _ => return None,
    })
}

fn kept(bound: Bound, sum: DataType) -> Bound {
    bound.kept_in([("sum", sum), ("count", DataType::Int64)])
}

/// f64 sum, i64 count.
#[derive(Debug)]
struct Floats;

impl Accumulator for Floats {
    fn layout(&self) -> Layout {
        Layout { bits: 0, bytes: 16, vars: 0, ..Layout::default() }
    }

    fn update(&self, slots: &Slots, arguments: &[&ArrayRef], fold: Fold<'_>) -> Result<()> {
        let (values, at) = (doubles(arguments[0])?, slots.at);
        fold.each(|i, row| {
            (f64::read(row, at) + values[i]).write(row, at);
            (i64::read(row, at + 8) + 1).write(row, at + 8);
        });
        Ok(())
    }

    fn load(&self, slots: &Slots, buffers: &[&ArrayRef], fold: Fold<'_>) -> Result<()> {
        let (sums, counts, at) = (doubles(buffers[0])?, integers(buffers[1])?, slots.at);
        fold.each(|i, row| {
            sums[i].write(row, at);
            counts[i].write(row, at + 8);
        });
        Ok(())
    }

    fn merge(&self, slots: &Slots, mine: &mut RowMut<'_>, other: Other<'_>) -> Result<()> {
        (f64::read(mine.fixed, slots.at) + f64::read(other.fixed, slots.at)).write(mine.fixed, slots.at);
        count::add(mine.fixed, other.fixed, slots.at + 8);
        Ok(())
    }

    fn finish(&self, slots: &Slots, rows: RowRange<'_>, _: &DataType) -> Result<ArrayRef> {
        #[expect(clippy::cast_precision_loss, reason = "Spark divides by the count as a double")]
        let avg = |row: &[u8]| f64::read(row, slots.at) / i64::read(row, slots.at + 8) as f64;
        Ok(f64::array(rows.fixed().map(avg).collect(), counted(rows, slots.at + 8)))
    }
}

/// i128 sum, i64 count; bit 0: overflowed for good.
#[derive(Debug)]
struct Decimals {
    limit: i128,
    /// Of the argument, as `scale`.
    precision: u8,
    scale: i8,
    overflow: Overflow,
}

impl Accumulator for Decimals {
    fn layout(&self) -> Layout {
        Layout { bits: 1, bytes: 24, vars: 0, ..Layout::default() }
    }

    fn depends_on_ansi(&self) -> bool {
        self.overflow.depends_on_ansi()
    }

    fn update(&self, slots: &Slots, arguments: &[&ArrayRef], fold: Fold<'_>) -> Result<()> {
        let values = arguments[0].as_primitive::<Decimal128Type>().values();
        let (limit, bit, at) = (self.limit, slots.bit, slots.at);
        let mut overflow = false;
        fold.each(|i, row| {
            (i64::read(row, at + 16) + 1).write(row, at + 16);
            overflow |= decimal::add(row, values[i], limit, bit, at);
        });
        if overflow && self.overflow.is_error() { Err(decimal_overflow(&slots.identity)) } else { Ok(()) }
    }

    /// Without a sum: it has overflowed.
    fn load(&self, slots: &Slots, buffers: &[&ArrayRef], fold: Fold<'_>) -> Result<()> {
        let (sums, counts) = (buffers[0].as_primitive::<Decimal128Type>(), integers(buffers[1])?);
        fold.each(|i, row| {
            counts[i].write(row, slots.at + 16);
            decimal::put(sums, i, row, slots.bit, slots.at);
        });
        Ok(())
    }

    fn merge(&self, slots: &Slots, mine: &mut RowMut<'_>, other: Other<'_>) -> Result<()> {
        count::add(mine.fixed, other.fixed, slots.at + 16);
        let overflow = decimal::join(mine.fixed, other.fixed, self.limit, slots.bit, slots.at);
        if overflow && self.overflow.is_error() {
            return Err(decimal_overflow(&slots.identity));
        }
        Ok(())
    }

    fn finish(&self, slots: &Slots, rows: RowRange<'_>, declared: &DataType) -> Result<ArrayRef> {
        let DataType::Decimal128(precision, out_scale) = *declared else {
            return Err(Error::internal(format_args!("an average of decimals declared {declared}")));
        };
        let in_doubles = decimal::in_doubles(self.precision);
        let average = if in_doubles { decimal::average_in_doubles } else { decimal::average };
        let (mut values, mut valid) = (Vec::new(), Vec::new());
        for row in rows.fixed() {
            let count = i64::read(row, slots.at + 16);
            let sum = (!has_bit(row, slots.bit)).then(|| i128::read(row, slots.at));
            let value = sum.and_then(|sum| average(sum, count, self.scale, precision, out_scale));
            if value.is_none() && count != 0 && self.overflow.is_error() {
                return Err(match sum {
                    None => decimal_overflow(&slots.identity),
                    Some(_) => out_of_range(&slots.identity, declared),
                });
            }
            values.push(value.unwrap_or_default());
            valid.push(value.is_some());
        }
        Ok(i128::array(values, Some(NullBuffer::from(valid)).filter(|nulls| nulls.null_count() > 0)))
    }
}

/// i64 sum, i64 count of an interval's unit.
#[derive(Debug)]
struct Intervals {
    months: bool,
}

impl Accumulator for Intervals {
    fn layout(&self) -> Layout {
        Layout { bits: 0, bytes: 16, vars: 0, ..Layout::default() }
    }

    fn update(&self, slots: &Slots, arguments: &[&ArrayRef], fold: Fold<'_>) -> Result<()> {
        let (values, count) = (integers(arguments[0])?, slots.at + 8);
        let sums = interval::Sums { months: self.months, slots };
        sums.update(fold, &values, |row| (i64::read(row, count) + 1).write(row, count))
    }

    fn load(&self, slots: &Slots, buffers: &[&ArrayRef], fold: Fold<'_>) -> Result<()> {
        let (sums, counts, at) = (integers(buffers[0])?, integers(buffers[1])?, slots.at);
        fold.each(|i, row| {
            sums[i].write(row, at);
            counts[i].write(row, at + 8);
        });
        Ok(())
    }

    fn merge(&self, slots: &Slots, mine: &mut RowMut<'_>, other: Other<'_>) -> Result<()> {
        interval::Sums { months: self.months, slots }.join(mine.fixed, other.fixed)?;
        count::add(mine.fixed, other.fixed, slots.at + 8);
        Ok(())
    }

    fn finish(&self, slots: &Slots, rows: RowRange<'_>, _: &DataType) -> Result<ArrayRef> {
        let sums = interval::Sums { months: self.months, slots };
        let values = rows.fixed().map(|row| half_up(i64::read(row, slots.at), i64::read(row, slots.at + 8)));
        sums.column(values, counted(rows, slots.at + 8))
    }
}

/// i64 sum, i64 count of an interval's unit; bit 0: overflowed for good.
#[derive(Debug)]
struct Tried {
    months: bool,
}

impl Accumulator for Tried {
    fn layout(&self) -> Layout {
        Layout { bits: 1, bytes: 16, vars: 0, ..Layout::default() }
    }

    fn update(&self, slots: &Slots, arguments: &[&ArrayRef], fold: Fold<'_>) -> Result<()> {
        let (values, count) = (integers(arguments[0])?, slots.at + 8);
        let sums = interval::Sums { months: self.months, slots };
        fold.each(|i, row| {
            sums.try_add(row, Some(values[i]), slots.bit);
            (i64::read(row, count) + 1).write(row, count);
        });
        Ok(())
    }

    /// Without a sum: it has overflowed.
    fn load(&self, slots: &Slots, buffers: &[&ArrayRef], fold: Fold<'_>) -> Result<()> {
        let (values, counts) = (integers(buffers[0])?, integers(buffers[1])?);
        let sums = interval::Sums { months: self.months, slots };
        fold.each(|i, row| {
            sums.try_add(row, buffers[0].is_valid(i).then(|| values[i]), slots.bit);
            counts[i].write(row, slots.at + 8);
        });
        Ok(())
    }

    fn merge(&self, slots: &Slots, mine: &mut RowMut<'_>, other: Other<'_>) -> Result<()> {
        let theirs = (!has_bit(other.fixed, slots.bit)).then(|| i64::read(other.fixed, slots.at));
        interval::Sums { months: self.months, slots }.try_add(mine.fixed, theirs, slots.bit);
        count::add(mine.fixed, other.fixed, slots.at + 8);
        Ok(())
    }

    fn finish(&self, slots: &Slots, rows: RowRange<'_>, _: &DataType) -> Result<ArrayRef> {
        let sums = interval::Sums { months: self.months, slots };
        let values = rows.fixed().map(|row| half_up(i64::read(row, slots.at), i64::read(row, slots.at + 8)));
        sums.column(values, rows.nulls(|row| i64::read(row, slots.at + 8) != 0 && !has_bit(row, slots.bit)))
    }
}

/// Null where the count at byte `at` is zero.
fn counted(rows: RowRange<'_>, at: usize) -> Option<NullBuffer> {
    rows.nulls(|row| i64::read(row, at) != 0)
}

/// Quotient rounded half away from zero; zero for a zero divisor.
fn half_up(sum: i64, count: i64) -> i64 {
    let (sum, count) = (i128::from(sum), i128::from(count));
    let quotient = sum.checked_div(count).unwrap_or_default();
    let rest = sum.checked_rem(count).unwrap_or_default();
    let up = if rest.abs() * 2 >= count && count > 0 { sum.signum() } else { 0 };
    i64::try_from(quotient + up).unwrap_or_default()
}
