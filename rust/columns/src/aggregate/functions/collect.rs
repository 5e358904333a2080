//! `collect_list`, `collect_set`.
//!
//! Owns: which values they keep, and in which order. Does not own: the bytes of elements (`elements`), the order in
//! which Spark reads a set (`scala_set`).
//!
//! A set keeps values in the order in which they came first. Spark keeps both in bytes of its own (`spark_collected`).

use super::elements::Elements;
use super::scala_set;
use crate::aggregate::accumulator::{Accumulator, Bound, Call, Layout};
use crate::aggregate::fold::Fold;
use crate::aggregate::results::RowRange;
use crate::aggregate::row::{Other, RowMut, Slots};
use crate::arrays::normalise;
use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef};
use arrow_buffer::NullBuffer;
use arrow_schema::{DataType, Field};
use fastchangelog_format::{Error, Result};
use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

pub(super) fn collect_list(call: &Call<'_>) -> Option<Bound> {
    let elements = Elements::of(call.types[0], false)?;
    Some(bind(List(Kept { elements, data_type: call.types[0].clone() }), call.types[0]))
}

pub(super) fn collect_set(call: &Call<'_>) -> Option<Bound> {
    let elements = Elements::of(call.types[0], true)?;
    Some(bind(Set(Kept { elements, data_type: call.types[0].clone() }), call.types[0]))
}

fn bind(accumulator: impl Accumulator + 'static, element: &DataType) -> Bound {
    Bound::new(accumulator, list_of(element)).kept_as(VALUES)
}

pub(super) fn list_of(element: &DataType) -> DataType {
    DataType::List(Arc::new(Field::new("element", element.clone(), false)))
}

/// The elements of lists, the accumulator row of each, and which of them are there.
pub(super) fn elements_of(lists: &ArrayRef, groups: &[u32]) -> (ArrayRef, Vec<u32>, NullBuffer) {
    let lists = lists.as_list::<i32>();
    let offsets = lists.value_offsets();
    let (mut of_elements, mut there) = (Vec::new(), Vec::new());
    for (i, (group, ends)) in groups.iter().zip(offsets.windows(2)).enumerate() {
        of_elements.extend((ends[0]..ends[1]).map(|_| *group));
        there.resize(of_elements.len(), lists.is_valid(i));
    }
    let first = offsets.first().map_or(0, |first| usize::try_from(*first).unwrap_or_default());
    let elements = lists.values().slice(first, of_elements.len());
    let mask = NullBuffer::union(Some(&NullBuffer::from(there)), elements.logical_nulls().as_ref());
    let mask = mask.unwrap_or_else(|| NullBuffer::new_valid(elements.len()));
    (elements, of_elements, mask)
}

/// Values in variable slot 0.
#[derive(Debug)]
struct Kept {
    elements: Elements,
    data_type: DataType,
}

/// The name of the column of an accumulator, which is not Spark's.
pub(super) const VALUES: &str = "values";
/// The name of the column beside it, with how often each value came.
pub(super) const COUNTS: &str = "counts";

const LAYOUT: Layout = Layout { bits: 0, bytes: 0, vars: 1, grows: true };

impl Kept {
    /// The lists, each in the order that `order` gives it.
    fn finish(
        &self,
        slots: &Slots,
        rows: RowRange<'_>,
        declared: &DataType,
        mut order: impl FnMut(&mut Vec<&[u8]>),
    ) -> Result<ArrayRef> {
        let DataType::List(field) = declared else {
            return Err(Error::internal(format_args!("a list of values declared {declared}")));
        };
        let (mut values, mut lengths) = (Vec::new(), Vec::new());
        for slot in rows.vars(slots.var) {
            let mut of_row = self.elements.split(slot, &slots.identity)?;
            order(&mut of_row);
            lengths.push(of_row.len());
            values.append(&mut of_row);
        }
        self.elements.lists(&values, &lengths, field, &slots.identity)
    }
}

/// All values.
#[derive(Debug)]
struct List(Kept);

impl Accumulator for List {
    fn layout(&self) -> Layout {
        LAYOUT
    }

    fn update(&self, slots: &Slots, arguments: &[&ArrayRef], fold: Fold<'_>) -> Result<()> {
        let (values, mut element, mut done) = (self.0.elements.values(arguments[0])?, Vec::new(), Ok(()));
        fold.each_row(|i, row| {
            element.clear();
            self.0.elements.put(values.get(i), &mut element);
            if done.is_ok() {
                done = Elements::add(slots, row, &element, false);
            }
        });
        done
    }

    fn load(&self, slots: &Slots, buffers: &[&ArrayRef], fold: Fold<'_>) -> Result<()> {
        let (values, groups, mask) = elements_of(buffers[0], fold.groups);
        self.update(slots, &[&values], Fold { groups: &groups, mask: Some(mask), rows: fold.rows })
    }

    fn merge(&self, slots: &Slots, mine: &mut RowMut<'_>, other: Other<'_>) -> Result<()> {
        Elements::add(slots, mine, other.var(slots.var), other.earlier)
    }

    fn finish(&self, slots: &Slots, rows: RowRange<'_>, declared: &DataType) -> Result<ArrayRef> {
        self.0.finish(slots, rows, declared, |_| ())
    }
}

/// Distinct values.
#[derive(Debug)]
struct Set(Kept);

impl Accumulator for Set {
    fn layout(&self) -> Layout {
        LAYOUT
    }

    /// The result has another order.
    fn is_known_by_result(&self) -> bool {
        false
    }

    fn update(&self, slots: &Slots, arguments: &[&ArrayRef], fold: Fold<'_>) -> Result<()> {
        let column = normalise(arguments[0])?;
        let (elements, values) = (&self.0.elements, self.0.elements.values(&column)?);
        let (mut known, mut element, mut done) = (HashMap::new(), Vec::new(), Ok(()));
        let mut add = |i: usize, row: &mut RowMut<'_>| -> Result<()> {
            let of_row: &mut HashSet<Box<[u8]>> = match known.entry(row.number) {
                Entry::Occupied(there) => there.into_mut(),
                Entry::Vacant(new) => {
                    let there = elements.split(row.var(slots.var), &slots.identity)?;
                    new.insert(there.into_iter().map(Box::from).collect())
                }
            };
            let value = values.get(i);
            if of_row.contains(value) {
                return Ok(());
            }
            of_row.insert(value.into());
            element.clear();
            elements.put(value, &mut element);
            Elements::add(slots, row, &element, false)
        };
        fold.each_row(|i, row| {
            if done.is_ok() {
                done = add(i, row);
            }
        });
        done
    }

    fn load(&self, slots: &Slots, buffers: &[&ArrayRef], fold: Fold<'_>) -> Result<()> {
        let (values, groups, mask) = elements_of(buffers[0], fold.groups);
        self.update(slots, &[&values], Fold { groups: &groups, mask: Some(mask), rows: fold.rows })
    }

    fn merge(&self, slots: &Slots, mine: &mut RowMut<'_>, other: Other<'_>) -> Result<()> {
        let (elements, own) = (&self.0.elements, mine.var(slots.var));
        let (first, second) = if other.earlier { (other.var(slots.var), own) } else { (own, other.var(slots.var)) };
        let known: HashSet<&[u8]> = elements.split(first, &slots.identity)?.into_iter().collect();
        let mut new = Vec::new();
        for value in elements.split(second, &slots.identity)? {
            if !known.contains(value) {
                elements.put(value, &mut new);
            }
        }
        if other.earlier {
            mine.set_var(slots.var, &new);
            return Elements::add(slots, mine, other.var(slots.var), true);
        }
        Elements::add(slots, mine, &new, false)
    }

    fn finish(&self, slots: &Slots, rows: RowRange<'_>, declared: &DataType) -> Result<ArrayRef> {
        self.0.finish(slots, rows, declared, |values| scala_set::sort(&self.0.data_type, values))
    }
}

#[cfg(test)]
#[path = "collect_tests.rs"]
mod tests;
