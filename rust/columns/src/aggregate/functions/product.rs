//! `product`.
//!
//! Owns: the product of doubles.

use crate::aggregate::accumulator::{Accumulator, Bound, Call, Layout};
use crate::aggregate::fold::Fold;
use crate::aggregate::prim::{Native, doubles, has_bit, set_bit};
use crate::aggregate::results::RowRange;
use crate::aggregate::row::{Other, RowMut, Slots};
use arrow_array::ArrayRef;
use arrow_schema::DataType;
use fastchangelog_format::Result;

#[expect(clippy::unnecessary_wraps, reason = "as every function of the table")]
pub(super) fn product(_: &Call<'_>) -> Option<Bound> {
    Some(Bound::new(Product, DataType::Float64).kept_as("product"))
}

/// f64 product; bit 0: not null.
#[derive(Debug)]
struct Product;

impl Accumulator for Product {
    fn layout(&self) -> Layout {
        Layout { bits: 1, bytes: 8, vars: 0, ..Layout::default() }
    }

    fn update(&self, slots: &Slots, arguments: &[&ArrayRef], fold: Fold<'_>) -> Result<()> {
        let (values, bit, at) = (doubles(arguments[0])?, slots.bit, slots.at);
        fold.each(|i, row| multiply(row, values[i], bit, at));
        Ok(())
    }

    fn merge(&self, slots: &Slots, mine: &mut RowMut<'_>, other: Other<'_>) -> Result<()> {
        if has_bit(other.fixed, slots.bit) {
            multiply(mine.fixed, f64::read(other.fixed, slots.at), slots.bit, slots.at);
        }
        Ok(())
    }

    fn finish(&self, slots: &Slots, rows: RowRange<'_>, _: &DataType) -> Result<ArrayRef> {
        Ok(rows.values::<f64>(slots.at, slots.bit))
    }
}

#[inline]
fn multiply(row: &mut [u8], value: f64, bit: usize, at: usize) {
    let product = if has_bit(row, bit) { f64::read(row, at) } else { 1.0 };
    (product * value).write(row, at);
    set_bit(row, bit);
}

#[cfg(test)]
#[path = "product_tests.rs"]
mod tests;
