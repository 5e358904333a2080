//! Sums of intervals, which `sum` and `avg` share; and of integers where an overflow is null.
//!
//! Owns: adding them in an i64 at the beginning of the slot, and their range.
//! Does not own: counts and nulls beside the sum.

use crate::aggregate::arithmetic::interval_overflow;
use crate::aggregate::fold::Fold;
use crate::aggregate::prim::{Native, has_bit, set_bit};
use crate::aggregate::row::Slots;
use arrow_array::ArrayRef;
use arrow_buffer::NullBuffer;
use fastchangelog_format::Result;

/// The sums of one call, of months or of a duration's unit.
pub(super) struct Sums<'a> {
    pub(super) months: bool,
    pub(super) slots: &'a Slots,
}

impl Sums<'_> {
    /// Adds values; `also` changes the row beside the sum.
    pub(super) fn update(&self, fold: Fold<'_>, values: &[i64], also: impl Fn(&mut [u8])) -> Result<()> {
        let (mut overflow, at) = (false, self.slots.at);
        fold.each(|i, row| {
            let (sum, over) = i64::read(row, at).overflowing_add(values[i]);
            overflow |= over || self.is_outside(sum);
            sum.write(row, at);
            also(row);
        });
        if overflow { Err(interval_overflow(&self.slots.identity)) } else { Ok(()) }
    }

    /// Adds their sum to mine.
    pub(super) fn join(&self, mine: &mut [u8], theirs: &[u8]) -> Result<()> {
        let at = self.slots.at;
        match i64::read(mine, at).checked_add(i64::read(theirs, at)) {
            Some(sum) if !self.is_outside(sum) => {
                sum.write(mine, at);
                Ok(())
            }
            _ => Err(interval_overflow(&self.slots.identity)),
        }
    }

    /// Adds a value; where there is none, or the sum overflows, bit `overflowed` is set for good, and the sum is zero.
    pub(super) fn try_add(&self, row: &mut [u8], value: Option<i64>, overflowed: usize) {
        if has_bit(row, overflowed) {
            return;
        }
        let sum = value.and_then(|value| i64::read(row, self.slots.at).checked_add(value));
        match sum.filter(|sum| !self.is_outside(*sum)) {
            Some(sum) => sum.write(row, self.slots.at),
            None => {
                set_bit(row, overflowed);
                0i64.write(row, self.slots.at);
            }
        }
    }

    /// A column of intervals.
    pub(super) fn column(&self, values: impl Iterator<Item = i64>, nulls: Option<NullBuffer>) -> Result<ArrayRef> {
        if !self.months {
            return Ok(i64::array(values.collect(), nulls));
        }
        let months = values.map(|v| i32::try_from(v).map_err(|_| interval_overflow(&self.slots.identity)));
        Ok(i32::array(months.collect::<Result<_>>()?, nulls))
    }

    /// True when a sum of months is outside Spark's year-month interval.
    fn is_outside(&self, sum: i64) -> bool {
        self.months && i32::try_from(sum).is_err()
    }
}
