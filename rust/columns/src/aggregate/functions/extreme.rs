//! `min`, `max`.
//!
//! Owns: the least and greatest values of machine types and of bytes.
//! Does not own: types ordered by their encoded bytes (`by`).

use super::by;
use crate::aggregate::accumulator::{Accumulator, Bound, Call, Layout};
use crate::aggregate::fold::{Bytes, Fold, is_bytes};
use crate::aggregate::prim::{Native, Prim, has_bit, set_bit, with_native};
use crate::aggregate::results::RowRange;
use crate::aggregate::row::{Other, RowMut, Slots};
use arrow_array::ArrayRef;
use arrow_schema::DataType;
use fastchangelog_format::Result;

pub(super) fn min(call: &Call<'_>) -> Option<Bound> {
    bind(false, call.types[0])
}

pub(super) fn max(call: &Call<'_>) -> Option<Bound> {
    bind(true, call.types[0])
}

pub(super) fn bind(max: bool, argument: &DataType) -> Option<Bound> {
    let (name, result) = (if max { "max" } else { "min" }, argument.clone());
    if is_bytes(argument) {
        return Some(Bound::new(ByteStrings { max }, result).in_any_order().kept_as(name));
    }
    match Prim::of(argument) {
        Some(prim) => {
            let bound = Bound::new(Values { max, prim }, result).kept_as(name);
            // 0.0 and -0.0 are equal, and the first one stays.
            Some(if matches!(prim, Prim::F32 | Prim::F64) { bound } else { bound.in_any_order() })
        }
        None => by::extreme(max, argument).map(|bound| bound.kept_as(name)),
    }
}

/// The least or greatest value; bit 0: not null.
#[derive(Debug)]
struct Values {
    max: bool,
    prim: Prim,
}

impl Accumulator for Values {
    fn layout(&self) -> Layout {
        Layout { bits: 1, bytes: self.prim.width(), vars: 0, ..Layout::default() }
    }

    fn update(&self, slots: &Slots, arguments: &[&ArrayRef], fold: Fold<'_>) -> Result<()> {
        let (bit, at) = (slots.bit, slots.at);
        with_native!(self.prim, N => {
            let values = N::values(arguments[0])?;
            if self.max { update::<N, true>(fold, &values, bit, at) } else { update::<N, false>(fold, &values, bit, at) }
        });
        Ok(())
    }

    fn merge(&self, slots: &Slots, mine: &mut RowMut<'_>, other: Other<'_>) -> Result<()> {
        let (bit, at, width) = (slots.bit, slots.at, self.prim.width());
        if has_bit(other.fixed, bit) && (!has_bit(mine.fixed, bit) || self.better(mine.fixed, other, at)) {
            mine.fixed[at..at + width].copy_from_slice(&other.fixed[at..at + width]);
            set_bit(mine.fixed, bit);
        }
        Ok(())
    }

    fn finish(&self, slots: &Slots, rows: RowRange<'_>, _: &DataType) -> Result<ArrayRef> {
        Ok(with_native!(self.prim, N => rows.values::<N>(slots.at, slots.bit)))
    }
}

impl Values {
    /// True when their value is to replace mine; of equal values (−0.0 and 0.0) the earlier stays.
    fn better(&self, mine: &[u8], other: Other<'_>, at: usize) -> bool {
        with_native!(self.prim, N => {
            let (old, new) = (N::read(mine, at), N::read(other.fixed, at));
            let (new_wins, old_wins) = if self.max {
                (old.before(new), new.before(old))
            } else {
                (new.before(old), old.before(new))
            };
            new_wins || (other.earlier && !old_wins)
        })
    }
}

fn update<N: Native, const MAX: bool>(fold: Fold<'_>, values: &[N], bit: usize, at: usize) {
    fold.each(|i, row| {
        let (old, new) = (N::read(row, at), values[i]);
        if !has_bit(row, bit) || if MAX { old.before(new) } else { new.before(old) } {
            new.write(row, at);
            set_bit(row, bit);
        }
    });
}

/// The least or greatest byte string in variable slot 0; bit 0: not null.
#[derive(Debug)]
struct ByteStrings {
    max: bool,
}

impl Accumulator for ByteStrings {
    fn layout(&self) -> Layout {
        Layout { bits: 1, bytes: 0, vars: 1, ..Layout::default() }
    }

    fn update(&self, slots: &Slots, arguments: &[&ArrayRef], fold: Fold<'_>) -> Result<()> {
        let (values, max, bit, var) = (Bytes::of(arguments[0])?, self.max, slots.bit, slots.var);
        fold.each_row(|i, row| {
            let new = values.get(i);
            if !has_bit(row.fixed, bit) || is_better(row.var(var), new, max) {
                row.set_var(var, new);
                set_bit(row.fixed, bit);
            }
        });
        Ok(())
    }

    fn merge(&self, slots: &Slots, mine: &mut RowMut<'_>, other: Other<'_>) -> Result<()> {
        let new = other.var(slots.var);
        if has_bit(other.fixed, slots.bit)
            && (!has_bit(mine.fixed, slots.bit) || is_better(mine.var(slots.var), new, self.max))
        {
            mine.set_var(slots.var, new);
            set_bit(mine.fixed, slots.bit);
        }
        Ok(())
    }

    fn finish(&self, slots: &Slots, rows: RowRange<'_>, declared: &DataType) -> Result<ArrayRef> {
        rows.bytes(slots, slots.bit, declared)
    }
}

#[inline]
fn is_better(old: &[u8], new: &[u8], max: bool) -> bool {
    if max { old < new } else { new < old }
}
