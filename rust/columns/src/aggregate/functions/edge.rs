//! `first`, `last`.
//!
//! Owns: the first and last values of any type, in the order of arrival.

use super::form::Form;
use crate::aggregate::accumulator::{Accumulator, Bound, Call, Layout};
use crate::aggregate::fold::{Bytes, Fold, encode, trues};
use crate::aggregate::prim::{Native, has_bit, put_bit, set_bit, with_native};
use crate::aggregate::results::RowRange;
use crate::aggregate::row::{Other, RowMut, Slots};
use arrow_array::{Array, ArrayRef};
use arrow_schema::DataType;
use fastchangelog_format::Result;

pub(super) fn first(call: &Call<'_>) -> Option<Bound> {
    bind(false, call)
}

pub(super) fn last(call: &Call<'_>) -> Option<Bound> {
    bind(true, call)
}

fn bind(last: bool, call: &Call<'_>) -> Option<Bound> {
    let argument = call.types[0];
    let form = Form::of(argument, false)?;
    let name = if last { "last" } else { "first" };
    let edge = Edge { last, ignore_nulls: call.ignore_nulls, form };
    let buffers = [(name, argument.clone()), ("valueSet", DataType::Boolean)];
    Some(Bound::new(edge, argument.clone()).kept_in(buffers))
}

/// The first or last value; bit 0: there is one, bit 1: it is not null.
#[derive(Debug)]
struct Edge {
    last: bool,
    ignore_nulls: bool,
    form: Form,
}

impl Accumulator for Edge {
    fn layout(&self) -> Layout {
        match &self.form {
            Form::Prim(prim) => Layout { bits: 2, bytes: prim.width(), vars: 0, ..Layout::default() },
            Form::Bytes | Form::Encoded(_) => Layout { bits: 2, bytes: 0, vars: 1, ..Layout::default() },
        }
    }

    fn skips_null(&self, _: usize) -> bool {
        self.ignore_nulls
    }

    fn update(&self, slots: &Slots, arguments: &[&ArrayRef], fold: Fold<'_>) -> Result<()> {
        let (bit, at, last, column) = (slots.bit, slots.at, self.last, arguments[0]);
        let nulls = column.logical_nulls();
        let valid = |i: usize| nulls.as_ref().is_none_or(|nulls| nulls.is_valid(i));
        match &self.form {
            Form::Prim(prim) => with_native!(prim, N => {
                let values = N::values(column)?;
                fold.each(|i, row| {
                    if last || !has_bit(row, bit) {
                        set_bit(row, bit);
                        put_bit(row, bit + 1, valid(i));
                        // Under a null the slot is zero, so that equal rows have equal bytes.
                        if valid(i) { values[i] } else { N::default() }.write(row, at);
                    }
                });
            }),
            Form::Bytes => {
                let values = Bytes::of(column)?;
                fold.each_row(|i, row| {
                    if last || !has_bit(row.fixed, bit) {
                        set_bit(row.fixed, bit);
                        put_bit(row.fixed, bit + 1, valid(i));
                        row.set_var(slots.var, if valid(i) { values.get(i) } else { &[] });
                    }
                });
            }
            Form::Encoded(codec) => {
                let values = encode(codec, column)?;
                fold.each_row(|i, row| {
                    if last || !has_bit(row.fixed, bit) {
                        set_bit(row.fixed, bit);
                        set_bit(row.fixed, bit + 1);
                        row.set_var(slots.var, values.key(i));
                    }
                });
            }
        }
        Ok(())
    }

    fn load(&self, slots: &Slots, buffers: &[&ArrayRef], fold: Fold<'_>) -> Result<()> {
        self.update(slots, &buffers[..1], Fold { mask: Some(trues(buffers[1])), ..fold })
    }

    fn merge(&self, slots: &Slots, mine: &mut RowMut<'_>, other: Other<'_>) -> Result<()> {
        let (bit, at) = (slots.bit, slots.at);
        // The last of (mine, theirs) is theirs, unless theirs came earlier; the first likewise.
        if has_bit(other.fixed, bit) && (!has_bit(mine.fixed, bit) || self.last != other.earlier) {
            set_bit(mine.fixed, bit);
            put_bit(mine.fixed, bit + 1, has_bit(other.fixed, bit + 1));
            if let Form::Prim(prim) = &self.form {
                mine.fixed[at..at + prim.width()].copy_from_slice(&other.fixed[at..at + prim.width()]);
            } else {
                mine.set_var(slots.var, other.var(slots.var));
            }
        }
        Ok(())
    }

    fn finish(&self, slots: &Slots, rows: RowRange<'_>, declared: &DataType) -> Result<ArrayRef> {
        match &self.form {
            Form::Prim(prim) => Ok(with_native!(prim, N => rows.values::<N>(slots.at, slots.bit + 1))),
            Form::Bytes => rows.bytes(slots, slots.bit + 1, declared),
            Form::Encoded(codec) => rows.encoded(codec, slots.var, slots.bit),
        }
    }
}
