//! `count`, `count_if`.
//!
//! Owns: their accumulators, an i64 each.

use crate::aggregate::accumulator::{Accumulator, Bound, Call, Layout};
use crate::aggregate::fold::Fold;
use crate::aggregate::prim::Native;
use crate::aggregate::results::RowRange;
use crate::aggregate::row::{Other, RowMut, Slots};
use arrow_array::ArrayRef;
use arrow_array::cast::AsArray;
use arrow_schema::DataType;
use fastchangelog_format::Result;

#[expect(clippy::unnecessary_wraps, reason = "as every function of the table")]
pub(super) fn count(_: &Call<'_>) -> Option<Bound> {
    Some(Bound::new(Rows, DataType::Int64).in_any_order().kept_as("count"))
}

/// i64 number of rows.
#[derive(Debug)]
struct Rows;

impl Accumulator for Rows {
    fn layout(&self) -> Layout {
        Layout { bytes: 8, ..Layout::default() }
    }

    fn update(&self, slots: &Slots, _: &[&ArrayRef], fold: Fold<'_>) -> Result<()> {
        let at = slots.at;
        fold.each(|_, row| (i64::read(row, at) + 1).write(row, at));
        Ok(())
    }

    fn load(&self, slots: &Slots, buffers: &[&ArrayRef], fold: Fold<'_>) -> Result<()> {
        put(buffers[0], slots.at, fold)
    }

    fn merge(&self, slots: &Slots, mine: &mut RowMut<'_>, other: Other<'_>) -> Result<()> {
        add(mine.fixed, other.fixed, slots.at);
        Ok(())
    }

    fn finish(&self, slots: &Slots, rows: RowRange<'_>, _: &DataType) -> Result<ArrayRef> {
        Ok(i64::array(rows.fixed().map(|row| i64::read(row, slots.at)).collect(), None))
    }
}

#[expect(clippy::unnecessary_wraps, reason = "as every function of the table")]
pub(super) fn count_if(_: &Call<'_>) -> Option<Bound> {
    Some(Bound::new(TrueRows, DataType::Int64).in_any_order().kept_as("count"))
}

/// i64 number of rows in which the argument is true.
#[derive(Debug)]
struct TrueRows;

impl Accumulator for TrueRows {
    fn layout(&self) -> Layout {
        Rows.layout()
    }

    fn update(&self, slots: &Slots, arguments: &[&ArrayRef], fold: Fold<'_>) -> Result<()> {
        let (values, at) = (arguments[0].as_boolean().values(), slots.at);
        fold.each(|i, row| (i64::read(row, at) + i64::from(values.value(i))).write(row, at));
        Ok(())
    }

    fn load(&self, slots: &Slots, buffers: &[&ArrayRef], fold: Fold<'_>) -> Result<()> {
        put(buffers[0], slots.at, fold)
    }

    fn merge(&self, slots: &Slots, mine: &mut RowMut<'_>, other: Other<'_>) -> Result<()> {
        Rows.merge(slots, mine, other)
    }

    fn finish(&self, slots: &Slots, rows: RowRange<'_>, declared: &DataType) -> Result<ArrayRef> {
        Rows.finish(slots, rows, declared)
    }
}

/// Writes a column of numbers of rows at byte `at`.
pub(super) fn put(counts: &ArrayRef, at: usize, fold: Fold<'_>) -> Result<()> {
    let counts = i64::values(counts)?;
    fold.each(|i, row| counts[i].write(row, at));
    Ok(())
}

/// Adds their number at byte `at` to mine.
pub(super) fn add(mine: &mut [u8], theirs: &[u8], at: usize) {
    i64::read(mine, at).wrapping_add(i64::read(theirs, at)).write(mine, at);
}

#[cfg(test)]
mod tests {
    use crate::aggregate::function_tests::result;
    use arrow_array::cast::AsArray;
    use arrow_array::types::Int64Type;
    use arrow_array::{Array, ArrayRef, BooleanArray};
    use proptest::prelude::*;
    use std::sync::Arc;

    proptest! {
        #[test]
        fn any_split_gives_the_numbers_of_rows(
            values in prop::collection::vec(any::<Option<bool>>(), 1..40),
            cuts in prop::collection::vec(any::<usize>(), 0..6),
        ) {
            let column: ArrayRef = Arc::new(BooleanArray::from(values.clone()));
            for (function, counts) in [("count", [true, false].as_slice()), ("count_if", &[true])] {
                let found = result(function, std::slice::from_ref(&column), &cuts, true).unwrap();
                let expected = values.iter().flatten().filter(|v| counts.contains(v)).count();
                prop_assert_eq!(found.null_count(), 0);
                prop_assert_eq!(found.as_primitive::<Int64Type>().value(0), i64::try_from(expected).unwrap());
            }
        }
    }
}
