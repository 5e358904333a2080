//! `sum`, `try_sum`.
//!
//! Owns: the sums of integers, floats, decimals and intervals, and their overflow.

use super::decimal;
use crate::aggregate::accumulator::{Accumulator, Bound, Call, IS_EMPTY, Layout};
use crate::aggregate::arithmetic::{Overflow, decimal_overflow, long_overflow};
use crate::aggregate::fold::Fold;
use crate::aggregate::prim::{Native, doubles, has_bit, integers, is_integer, set_bit};
use crate::aggregate::results::RowRange;
use crate::aggregate::row::{Other, RowMut, Slots};
use arrow_array::cast::AsArray;
use arrow_array::types::Decimal128Type;
use arrow_array::{Array, ArrayRef};
use arrow_schema::{DataType, IntervalUnit};
use fastchangelog_format::Result;

use super::interval;

pub(super) fn sum(call: &Call<'_>) -> Option<Bound> {
    let ansi = call.ansi;
    Some(match call.types[0] {
        t if is_integer(t) => Bound::new(Integers { ansi }, DataType::Int64).in_any_order().kept_as("sum"),
        DataType::Float32 | DataType::Float64 => Bound::new(Floats, DataType::Float64).kept_as("sum"),
        DataType::Decimal128(p, s) => {
            let result = DataType::Decimal128((p + 10).min(38), *s);
            let buffers = [("sum", result.clone()), (IS_EMPTY, DataType::Boolean)];
            let sums = Decimals { limit: decimal::sum_limit(*p), overflow: Overflow::with(ansi) };
            Bound::new(sums, result).in_any_order().kept_in(buffers)
        }
        t @ DataType::Duration(_) => Bound::new(Intervals { months: false }, t.clone()).in_any_order().kept_as("sum"),
        t @ DataType::Interval(IntervalUnit::YearMonth) => {
            Bound::new(Intervals { months: true }, t.clone()).in_any_order().kept_as("sum")
        }
        _ => return None,
    })
}

/// As `sum`, but null where it overflows.
pub(super) fn try_sum(call: &Call<'_>) -> Option<Bound> {
    let tried = |months, result: DataType| {
        let buffers = [("sum", result.clone()), (IS_EMPTY, DataType::Boolean)];
        Some(Bound::new(Tried { months }, result).kept_in(buffers))
    };
    match call.types[0] {
        t if is_integer(t) => tried(false, DataType::Int64),
        t @ DataType::Duration(_) => tried(false, t.clone()),
        t @ DataType::Interval(IntervalUnit::YearMonth) => tried(true, t.clone()),
        DataType::Decimal128(p, s) => {
            let result = DataType::Decimal128((p + 10).min(38), *s);
            let buffers = [("sum", result.clone()), (IS_EMPTY, DataType::Boolean)];
            let sums = Decimals { limit: decimal::sum_limit(*p), overflow: Overflow::Null };
            Some(Bound::new(sums, result).in_any_order().kept_in(buffers))
        }
        _ => sum(call),
    }
}

/// i64 sum; bit 0: not null.
#[derive(Debug)]
struct Integers {
    ansi: bool,
}

impl Accumulator for Integers {
    fn layout(&self) -> Layout {
        Layout { bits: 1, bytes: 8, vars: 0, ..Layout::default() }
    }

    fn depends_on_ansi(&self) -> bool {
        true
    }

    fn update(&self, slots: &Slots, arguments: &[&ArrayRef], fold: Fold<'_>) -> Result<()> {
        let (values, bit, at) = (integers(arguments[0])?, slots.bit, slots.at);
        let mut overflow = false;
        fold.each(|i, row| {
            let (sum, over) = i64::read(row, at).overflowing_add(values[i]);
            overflow |= over;
            sum.write(row, at);
            set_bit(row, bit);
        });
        if overflow && self.ansi { Err(long_overflow(&slots.identity)) } else { Ok(()) }
    }

    fn merge(&self, slots: &Slots, mine: &mut RowMut<'_>, other: Other<'_>) -> Result<()> {
        if has_bit(other.fixed, slots.bit) {
            let (sum, overflow) = i64::read(mine.fixed, slots.at).overflowing_add(i64::read(other.fixed, slots.at));
            if overflow && self.ansi {
                return Err(long_overflow(&slots.identity));
            }
            sum.write(mine.fixed, slots.at);
            set_bit(mine.fixed, slots.bit);
        }
        Ok(())
    }

    fn finish(&self, slots: &Slots, rows: RowRange<'_>, _: &DataType) -> Result<ArrayRef> {
        Ok(rows.values::<i64>(slots.at, slots.bit))
    }
}

/// f64 sum; bit 0: not null.
#[derive(Debug)]
struct Floats;

impl Accumulator for Floats {
    fn layout(&self) -> Layout {
        Layout { bits: 1, bytes: 8, vars: 0, ..Layout::default() }
    }

    fn update(&self, slots: &Slots, arguments: &[&ArrayRef], fold: Fold<'_>) -> Result<()> {
        let (values, bit, at) = (doubles(arguments[0])?, slots.bit, slots.at);
        fold.each(|i, row| {
            (f64::read(row, at) + values[i]).write(row, at);
            set_bit(row, bit);
        });
        Ok(())
    }

    fn merge(&self, slots: &Slots, mine: &mut RowMut<'_>, other: Other<'_>) -> Result<()> {
        if has_bit(other.fixed, slots.bit) {
            (f64::read(mine.fixed, slots.at) + f64::read(other.fixed, slots.at)).write(mine.fixed, slots.at);
            set_bit(mine.fixed, slots.bit);
        }
        Ok(())
    }

    fn finish(&self, slots: &Slots, rows: RowRange<'_>, _: &DataType) -> Result<ArrayRef> {
        Ok(rows.values::<f64>(slots.at, slots.bit))
    }
}

/// i128 sum, absolute value below `limit`; bit 0: not null, bit 1: overflowed for good.
#[derive(Debug)]
struct Decimals {
    limit: i128,
    overflow: Overflow,
}

impl Accumulator for Decimals {
    fn layout(&self) -> Layout {
        Layout { bits: 2, bytes: 16, vars: 0, ..Layout::default() }
    }

    fn depends_on_ansi(&self) -> bool {
        self.overflow.depends_on_ansi()
    }

    fn is_known_by_result(&self) -> bool {
        self.overflow != Overflow::Null
    }

    fn update(&self, slots: &Slots, arguments: &[&ArrayRef], fold: Fold<'_>) -> Result<()> {
        let values = arguments[0].as_primitive::<Decimal128Type>().values();
        let (limit, bit, at) = (self.limit, slots.bit, slots.at);
        let mut overflow = false;
        fold.each(|i, row| {
            set_bit(row, bit);
            overflow |= decimal::add(row, values[i], limit, bit + 1, at);
        });
        if overflow && self.overflow.is_error() { Err(decimal_overflow(&slots.identity)) } else { Ok(()) }
    }

    /// Without a sum, and not empty: it has overflowed.
    fn load(&self, slots: &Slots, buffers: &[&ArrayRef], fold: Fold<'_>) -> Result<()> {
        let (sums, empty, bit) = (buffers[0].as_primitive::<Decimal128Type>(), buffers[1].as_boolean(), slots.bit);
        fold.each(|i, row| {
            if !empty.value(i) {
                set_bit(row, bit);
                decimal::put(sums, i, row, bit + 1, slots.at);
            }
        });
        Ok(())
    }

    fn merge(&self, slots: &Slots, mine: &mut RowMut<'_>, other: Other<'_>) -> Result<()> {
        if has_bit(other.fixed, slots.bit) {
            set_bit(mine.fixed, slots.bit);
            let overflow = decimal::join(mine.fixed, other.fixed, self.limit, slots.bit + 1, slots.at);
            if overflow && self.overflow.is_error() {
                return Err(decimal_overflow(&slots.identity));
            }
        }
        Ok(())
    }

    fn finish(&self, slots: &Slots, rows: RowRange<'_>, _: &DataType) -> Result<ArrayRef> {
        let nulls = rows.nulls(|row| has_bit(row, slots.bit) && !has_bit(row, slots.bit + 1));
        Ok(i128::array(rows.fixed().map(|row| i128::read(row, slots.at)).collect(), nulls))
    }
}

/// i64 sum of an interval's unit; bit 0: not null.
#[derive(Debug)]
struct Intervals {
    months: bool,
}

impl Accumulator for Intervals {
    fn layout(&self) -> Layout {
        Layout { bits: 1, bytes: 8, vars: 0, ..Layout::default() }
    }

    fn update(&self, slots: &Slots, arguments: &[&ArrayRef], fold: Fold<'_>) -> Result<()> {
        let values = integers(arguments[0])?;
        let sums = interval::Sums { months: self.months, slots };
        sums.update(fold, &values, |row| set_bit(row, slots.bit))
    }

    fn merge(&self, slots: &Slots, mine: &mut RowMut<'_>, other: Other<'_>) -> Result<()> {
        if has_bit(other.fixed, slots.bit) {
            interval::Sums { months: self.months, slots }.join(mine.fixed, other.fixed)?;
            set_bit(mine.fixed, slots.bit);
        }
        Ok(())
    }

    fn finish(&self, slots: &Slots, rows: RowRange<'_>, _: &DataType) -> Result<ArrayRef> {
        let sums = interval::Sums { months: self.months, slots };
        let nulls = rows.nulls(|row| has_bit(row, slots.bit));
        sums.column(rows.fixed().map(|row| i64::read(row, slots.at)), nulls)
    }
}

/// i64 sum of integers or of an interval's unit; bit 0: not empty, bit 1: overflowed for good.
#[derive(Debug)]
struct Tried {
    months: bool,
}

impl Accumulator for Tried {
    fn layout(&self) -> Layout {
        Layout { bits: 2, bytes: 8, vars: 0, ..Layout::default() }
    }

    fn is_known_by_result(&self) -> bool {
        false
    }

    fn update(&self, slots: &Slots, arguments: &[&ArrayRef], fold: Fold<'_>) -> Result<()> {
        let (values, sums) = (integers(arguments[0])?, interval::Sums { months: self.months, slots });
        fold.each(|i, row| {
            set_bit(row, slots.bit);
            sums.try_add(row, Some(values[i]), slots.bit + 1);
        });
        Ok(())
    }

    /// Without a sum, and not empty: it has overflowed.
    fn load(&self, slots: &Slots, buffers: &[&ArrayRef], fold: Fold<'_>) -> Result<()> {
        let (values, empty) = (integers(buffers[0])?, buffers[1].as_boolean());
        let sums = interval::Sums { months: self.months, slots };
        fold.each(|i, row| {
            if !empty.value(i) {
                set_bit(row, slots.bit);
                sums.try_add(row, buffers[0].is_valid(i).then(|| values[i]), slots.bit + 1);
            }
        });
        Ok(())
    }

    fn merge(&self, slots: &Slots, mine: &mut RowMut<'_>, other: Other<'_>) -> Result<()> {
        if has_bit(other.fixed, slots.bit) {
            set_bit(mine.fixed, slots.bit);
            let theirs = (!has_bit(other.fixed, slots.bit + 1)).then(|| i64::read(other.fixed, slots.at));
            interval::Sums { months: self.months, slots }.try_add(mine.fixed, theirs, slots.bit + 1);
        }
        Ok(())
    }

    fn finish(&self, slots: &Slots, rows: RowRange<'_>, _: &DataType) -> Result<ArrayRef> {
        let sums = interval::Sums { months: self.months, slots };
        let nulls = rows.nulls(|row| has_bit(row, slots.bit) && !has_bit(row, slots.bit + 1));
        sums.column(rows.fixed().map(|row| i64::read(row, slots.at)), nulls)
    }
}
