//! `max_by`, `min_by`.
//!
//! Owns: values chosen by an order that is that of encoded bytes, and with it the least and greatest values of types
//! that are no machine type.

use crate::aggregate::accumulator::{Accumulator, Bound, Call, Layout};
use crate::aggregate::fold::{Fold, encode};
use crate::aggregate::prim::{has_bit, set_bit};
use crate::aggregate::results::RowRange;
use crate::aggregate::row::{Other, RowMut, Slots};
use crate::arrays::has_map;
use crate::codec::KeyCodec;
use arrow_array::ArrayRef;
use arrow_schema::{DataType, IntervalUnit};
use fastchangelog_format::Result;
use std::cmp::Ordering;

pub(super) fn max_by(call: &Call<'_>) -> Option<Bound> {
    bind(true, call)
}

pub(super) fn min_by(call: &Call<'_>) -> Option<Bound> {
    bind(false, call)
}

fn bind(max: bool, call: &Call<'_>) -> Option<Bound> {
    let (value, order) = (call.types[0], call.types[1]);
    let by = By { max, later_wins_ties: true, order: ordering(order)?, value: any(value)?, arguments: Arguments::Two };
    let buffers = [("valueWithExtremumOrdering", value.clone()), ("extremumOrdering", order.clone())];
    Some(Bound::new(by, value.clone()).kept_in(buffers))
}

/// The least or greatest value of a type, by the order of its own bytes.
pub(super) fn extreme(max: bool, argument: &DataType) -> Option<Bound> {
    let by = By {
        max,
        later_wins_ties: false,
        order: ordering(argument)?,
        value: any(argument)?,
        arguments: Arguments::One,
    };
    Some(Bound::new(by, argument.clone()))
}

/// The codec whose bytes compare as values of the type do.
fn ordering(data_type: &DataType) -> Option<KeyCodec> {
    if has_map(data_type) || matches!(data_type, DataType::Interval(IntervalUnit::MonthDayNano)) {
        return None;
    }
    KeyCodec::of_value(data_type, true).ok()
}

fn any(data_type: &DataType) -> Option<KeyCodec> {
    KeyCodec::of_value(data_type, false).ok()
}

/// Variable slot 0: the encoded ordering, slot 1: the encoded value; bit 0: there is one.
#[derive(Debug)]
struct By {
    max: bool,
    later_wins_ties: bool,
    order: KeyCodec,
    value: KeyCodec,
    arguments: Arguments,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Arguments {
    /// One that is the value and the ordering.
    One,
    /// The value, then the ordering.
    Two,
}

impl By {
    fn order_argument(&self) -> usize {
        usize::from(self.arguments == Arguments::Two)
    }
}

impl Accumulator for By {
    fn layout(&self) -> Layout {
        Layout { bits: 1, bytes: 0, vars: 2, ..Layout::default() }
    }

    /// Rows with a null ordering are skipped; null values are kept.
    fn skips_null(&self, argument: usize) -> bool {
        argument == self.order_argument()
    }

    fn update(&self, slots: &Slots, arguments: &[&ArrayRef], fold: Fold<'_>) -> Result<()> {
        let order = encode(&self.order, arguments[self.order_argument()])?;
        let value = encode(&self.value, arguments[0])?;
        let (bit, var) = (slots.bit, slots.var);
        let rule = (self.max, self.later_wins_ties);
        fold.each_row(|i, row| {
            let new = order.key(i);
            if !has_bit(row.fixed, bit) || wins(row.var(var), new, rule) {
                row.set_var(var, new);
                row.set_var(var + 1, value.key(i));
                set_bit(row.fixed, bit);
            }
        });
        Ok(())
    }

    fn merge(&self, slots: &Slots, mine: &mut RowMut<'_>, other: Other<'_>) -> Result<()> {
        let (bit, var) = (slots.bit, slots.var);
        let new = other.var(var);
        let rule = (self.max, self.later_wins_ties != other.earlier);
        if has_bit(other.fixed, bit) && (!has_bit(mine.fixed, bit) || wins(mine.var(var), new, rule)) {
            mine.set_var(var, new);
            mine.set_var(var + 1, other.var(var + 1));
            set_bit(mine.fixed, bit);
        }
        Ok(())
    }

    fn finish(&self, slots: &Slots, rows: RowRange<'_>, _: &DataType) -> Result<ArrayRef> {
        rows.encoded(&self.value, slots.var + 1, slots.bit)
    }
}

/// True when the later ordering `new` replaces `old`; the rule is (greatest wins, the later of equals wins).
#[inline]
fn wins(old: &[u8], new: &[u8], (max, later_wins_ties): (bool, bool)) -> bool {
    match new.cmp(old) {
        Ordering::Equal => later_wins_ties,
        Ordering::Greater => max,
        Ordering::Less => !max,
    }
}
