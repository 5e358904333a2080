//! `count`, `count_if`.
//!
//! Owns: their accumulator, an i64.

use crate::Result;
use crate::state::aggregate::accumulator::{Accumulator, Bound, Call, Layout, Other, RowMut, Slots};
use crate::state::aggregate::fold::Fold;
use crate::state::aggregate::prim::Native;
use crate::state::aggregate::results::RowRange;
use arrow_array::ArrayRef;
use arrow_schema::DataType;

#[expect(clippy::unnecessary_wraps, reason = "as every function of the table")]
pub(super) fn count(_: &Call<'_>) -> Option<Bound> {
    Some(Bound::new(Rows, DataType::Int64))
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

    fn merge(&self, slots: &Slots, mine: &mut RowMut<'_>, other: Other<'_>) -> Result<()> {
        add(mine.fixed, other.fixed, slots.at);
        Ok(())
    }

    fn finish(&self, slots: &Slots, rows: RowRange<'_>, _: &DataType) -> Result<ArrayRef> {
        Ok(i64::array(rows.fixed().map(|row| i64::read(row, slots.at)).collect(), None))
    }
}

/// Adds their number at byte `at` to mine.
pub(super) fn add(mine: &mut [u8], theirs: &[u8], at: usize) {
    i64::read(mine, at).wrapping_add(i64::read(theirs, at)).write(mine, at);
}
