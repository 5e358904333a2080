//! `mode`.
//!
//! Owns: how often each value came, and the most frequent one. Does not own: the bytes of elements (`elements`).

use super::collect::{COUNTS, VALUES, elements_of, list_of};
use super::elements::Elements;
use crate::aggregate::accumulator::{Accumulator, Bound, Call, Layout};
use crate::aggregate::fold::Fold;
use crate::aggregate::prim::{Native, has_bit, set_bit};
use crate::aggregate::results::RowRange;
use crate::aggregate::row::{Other, RowMut, Slots};
use arrow_array::ArrayRef;
use arrow_array::cast::AsArray;
use arrow_buffer::BooleanBuffer;
use arrow_schema::DataType;
use fastchangelog_format::{Error, Result};
use std::collections::HashMap;

pub(super) fn mode(call: &Call<'_>) -> Option<Bound> {
    let value = call.types[0];
    let elements = Elements::of(value, false)?;
    let buffers = [(VALUES, list_of(value)), (COUNTS, list_of(&DataType::Int64))];
    (call.types.len() < 3).then(|| Bound::new(Mode { elements }, value.clone()).kept_in(buffers))
}

/// Variable slot 0: values in the order in which they came first, slot 1: how often each came, an i64; bit 0: of the
/// most frequent values the smallest counts, else the first.
#[derive(Debug)]
struct Mode {
    elements: Elements,
}

/// Values and how often they came.
#[derive(Default)]
struct Counts<'a> {
    known: HashMap<&'a [u8], usize>,
    values: Vec<&'a [u8]>,
    times: Vec<i64>,
}

impl<'a> Counts<'a> {
    fn add(&mut self, value: &'a [u8], count: i64) {
        let at = *self.known.entry(value).or_insert_with(|| {
            self.values.push(value);
            self.times.push(0);
            self.values.len() - 1
        });
        self.times[at] = self.times[at].saturating_add(count);
    }
}

impl Mode {
    /// The values in the slots of a row, each with how often it came.
    fn read<'a>(&self, values: &'a [u8], counts: &'a [u8], identity: &str) -> Result<Vec<(&'a [u8], i64)>> {
        let values = self.elements.split(values, identity)?;
        if values.len() * 8 != counts.len() {
            return Err(Error::corrupt(format_args!("an accumulator row of {identity}"), 0, "values without counts"));
        }
        Ok(values.into_iter().zip(counts.chunks_exact(8).map(|count| i64::read(count, 0))).collect())
    }

    /// The bytes of both slots.
    fn written(&self, counts: &Counts<'_>) -> (Vec<u8>, Vec<u8>) {
        let mut values = Vec::new();
        counts.values.iter().for_each(|value| self.elements.put(value, &mut values));
        (values, counts.times.iter().flat_map(|count| count.to_le_bytes()).collect())
    }

    /// Adds the values of a column to rows, each as often as `times` says.
    fn add(
        &self,
        slots: &Slots,
        column: &ArrayRef,
        smallest: Option<&BooleanBuffer>,
        times: impl Fn(usize) -> i64,
        fold: Fold<'_>,
    ) -> Result<()> {
        let values = self.elements.values(column)?;
        let mut new: HashMap<usize, Counts<'_>> = HashMap::new();
        let Fold { groups, mask, rows } = fold;
        Fold { groups, mask, rows: &mut *rows }.each_row(|i, row| {
            new.entry(row.number).or_default().add(values.get(i), times(i));
            if smallest.is_some_and(|smallest| smallest.value(i)) {
                set_bit(row.fixed, slots.bit);
            }
        });
        for (number, of_row) in new {
            let mut all = Counts::default();
            let (known, counts) = (rows.vars.get(number, slots.var), rows.vars.get(number, slots.var + 1));
            let known = self.read(known, counts, &slots.identity)?.into_iter();
            known.chain(of_row.values.into_iter().zip(of_row.times)).for_each(|(value, count)| all.add(value, count));
            let (values, counts) = self.written(&all);
            rows.vars.set(number, slots.var, &values);
            rows.vars.set(number, slots.var + 1, &counts);
        }
        Ok(())
    }
}

impl Accumulator for Mode {
    fn layout(&self) -> Layout {
        Layout { bits: 1, vars: 2, grows: true, ..Layout::default() }
    }

    fn update(&self, slots: &Slots, arguments: &[&ArrayRef], fold: Fold<'_>) -> Result<()> {
        let smallest = arguments.get(1).map(|column| column.as_boolean().values());
        self.add(slots, arguments[0], smallest, |_| 1, fold)
    }

    fn load(&self, slots: &Slots, buffers: &[&ArrayRef], fold: Fold<'_>) -> Result<()> {
        let (values, groups, mask) = elements_of(buffers[0], fold.groups);
        let (counts, ..) = elements_of(buffers[1], fold.groups);
        let counts = i64::values(&counts)?;
        self.add(slots, &values, None, |i| counts[i], Fold { groups: &groups, mask: Some(mask), rows: fold.rows })
    }

    fn merge(&self, slots: &Slots, mine: &mut RowMut<'_>, other: Other<'_>) -> Result<()> {
        let own = self.read(mine.var(slots.var), mine.var(slots.var + 1), &slots.identity)?;
        let theirs = self.read(other.var(slots.var), other.var(slots.var + 1), &slots.identity)?;
        let (first, second) = if other.earlier { (theirs, own) } else { (own, theirs) };
        let mut all = Counts::default();
        first.into_iter().chain(second).for_each(|(value, count)| all.add(value, count));
        let (values, counts) = self.written(&all);
        mine.set_var(slots.var, &values);
        mine.set_var(slots.var + 1, &counts);
        if has_bit(other.fixed, slots.bit) {
            set_bit(mine.fixed, slots.bit);
        }
        Ok(())
    }

    fn finish(&self, slots: &Slots, rows: RowRange<'_>, declared: &DataType) -> Result<ArrayRef> {
        let mut found = Vec::new();
        let columns = rows.fixed().zip(rows.vars(slots.var)).zip(rows.vars(slots.var + 1));
        for ((fixed, values), counts) in columns {
            let counted = self.read(values, counts, &slots.identity)?;
            let most = counted.iter().map(|(_, count)| *count).max();
            let mut candidates = counted.into_iter().filter(|(_, count)| Some(*count) == most).map(|(value, _)| value);
            found.push(if has_bit(fixed, slots.bit) {
                candidates.reduce(|a, b| if self.elements.is_before(b, a) { b } else { a })
            } else {
                candidates.next()
            });
        }
        self.elements.column(&found, slots, declared)
    }
}

#[cfg(test)]
#[path = "mode_tests.rs"]
mod tests;
