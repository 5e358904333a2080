//! `percentile`, `median`.
//!
//! Owns: how often each number came, and the percentiles that follow from it.

use super::collect::{COUNTS, VALUES, elements_of, list_of};
use crate::aggregate::accumulator::{Accumulator, Bound, Call, Layout};
use crate::aggregate::fold::Fold;
use crate::aggregate::prim::{Native, doubles, integers};
use crate::aggregate::results::RowRange;
use crate::aggregate::row::{Other, RowMut, Slots};
use arrow_array::cast::AsArray;
use arrow_array::types::Float64Type;
use arrow_array::{Array, ArrayRef, Float64Array, ListArray};
use arrow_buffer::{NullBuffer, OffsetBuffer};
use arrow_schema::{DataType, Field};
use fastchangelog_format::{Error, Result};
use std::cmp::Ordering;
use std::collections::HashMap;
use std::sync::Arc;

pub(super) fn percentile(call: &Call<'_>) -> Option<Bound> {
    let result = match call.types.get(1)? {
        DataType::Float64 => DataType::Float64,
        DataType::List(element) if *element.data_type() == DataType::Float64 => {
            DataType::List(Arc::new(Field::new("element", DataType::Float64, false)))
        }
        _ => return None,
    };
    (call.types.len() < 4).then(|| bind(false, call, result))
}

#[expect(clippy::unnecessary_wraps, reason = "as every function of the table")]
pub(super) fn median(call: &Call<'_>) -> Option<Bound> {
    Some(bind(true, call, DataType::Float64))
}

fn bind(is_median: bool, call: &Call<'_>, result: DataType) -> Bound {
    let buffers = [(VALUES, list_of(call.types[0])), (COUNTS, list_of(&DataType::Int64))];
    Bound::new(Percentile { is_median }, result).kept_in(buffers).in_any_order()
}

/// Variable slot 0: each number and how often it came, an f64 and an i64, in ascending order; slot 1: which percentiles,
/// an f64 each, which are the same in all rows. The median has no slot 1.
#[derive(Debug)]
struct Percentile {
    is_median: bool,
}

/// A number's place in its order, and how often it came.
type Counted = (f64, i64);

const PAIR: usize = 16;

fn read<'a>(slot: &'a [u8], identity: &str) -> Result<impl ExactSizeIterator<Item = Counted> + use<'a>> {
    let pairs = slot.chunks_exact(PAIR);
    if pairs.remainder().is_empty() {
        return Ok(pairs.map(|pair| (f64::read(pair, 0), i64::read(pair, 8))));
    }
    Err(Error::corrupt(format_args!("an accumulator row of {identity}"), 0, "numbers without counts"))
}

fn written(pairs: impl Iterator<Item = Counted>) -> Vec<u8> {
    let mut slot = Vec::with_capacity(pairs.size_hint().0 * PAIR);
    for (value, count) in pairs {
        slot.extend_from_slice(&value.to_le_bytes());
        slot.extend_from_slice(&count.to_le_bytes());
    }
    slot
}

/// Spark's order of doubles, in which NaN is the greatest; zeros with and without a sign are apart here.
fn order(a: f64, b: f64) -> Ordering {
    a.partial_cmp(&b).filter(|order| order.is_ne()).unwrap_or_else(|| a.total_cmp(&b))
}

/// Both, with the numbers of one added to those of the other.
fn joined(a: &[u8], b: &[u8], identity: &str) -> Result<Vec<u8>> {
    let (mut a, mut b) = (read(a, identity)?.peekable(), read(b, identity)?.peekable());
    let pairs = std::iter::from_fn(|| match (a.peek().copied(), b.peek().copied()) {
        (Some((x, n)), Some((y, m))) => match order(x, y) {
            Ordering::Less => a.next(),
            Ordering::Greater => b.next(),
            Ordering::Equal => {
                a.next();
                b.next();
                Some((x, n.saturating_add(m)))
            }
        },
        (Some(_), None) => a.next(),
        (None, _) => b.next(),
    });
    Ok(written(pairs))
}

impl Accumulator for Percentile {
    fn layout(&self) -> Layout {
        Layout { vars: if self.is_median { 1 } else { 2 }, grows: true, ..Layout::default() }
    }

    fn skips_null(&self, argument: usize) -> bool {
        argument != 1
    }

    fn update(&self, slots: &Slots, arguments: &[&ArrayRef], fold: Fold<'_>) -> Result<()> {
        let values = doubles(arguments[0])?;
        let frequencies = arguments.get(2).map(|column| integers(column)).transpose()?;
        if let Some(negative) = frequencies.iter().flat_map(|all| all.iter()).find(|count| **count < 0) {
            return Err(Error::invalid(format!(
                "{}: a frequency is {negative}; it must not be negative",
                slots.identity
            )));
        }
        let mut counted: HashMap<usize, HashMap<u64, i64>> = HashMap::new();
        let wanted = arguments.get(1).filter(|_| !self.is_median).map(|column| (wanted(column), column));
        let Fold { groups, mask, rows } = fold;
        Fold { groups, mask, rows: &mut *rows }.each_row(|i, row| {
            let count = frequencies.as_ref().map_or(1, |all| all[i]);
            if count > 0 {
                // One NaN stands for all.
                let value = if values[i].is_nan() { f64::NAN } else { values[i] };
                *counted.entry(row.number).or_default().entry(value.to_bits()).or_default() += count;
                if let Some((wanted, column)) = &wanted
                    && row.var(slots.var + 1).is_empty()
                    && column.is_valid(i)
                {
                    row.set_var(slots.var + 1, &wanted(i));
                }
            }
        });
        for (number, counts) in counted {
            let mut new: Vec<Counted> = counts.into_iter().map(|(bits, count)| (f64::from_bits(bits), count)).collect();
            new.sort_unstable_by(|a, b| order(a.0, b.0));
            let all = joined(rows.vars.get(number, slots.var), &written(new.into_iter()), &slots.identity)?;
            rows.vars.set(number, slots.var, &all);
        }
        Ok(())
    }

    fn load(&self, slots: &Slots, buffers: &[&ArrayRef], fold: Fold<'_>) -> Result<()> {
        if !self.is_median {
            return Err(Error::invalid(format!("{}: Spark's state of it has no percentages", slots.identity)));
        }
        let (values, groups, mask) = elements_of(buffers[0], fold.groups);
        let (counts, ..) = elements_of(buffers[1], fold.groups);
        let fold = Fold { groups: &groups, mask: Some(mask), rows: fold.rows };
        self.update(slots, &[&values, &values, &counts], fold)
    }

    fn merge(&self, slots: &Slots, mine: &mut RowMut<'_>, other: Other<'_>) -> Result<()> {
        let theirs = other.var(slots.var);
        if theirs.is_empty() {
            return Ok(());
        }
        let all = joined(mine.var(slots.var), theirs, &slots.identity)?;
        mine.set_var(slots.var, &all);
        if !self.is_median && mine.var(slots.var + 1).is_empty() {
            mine.set_var(slots.var + 1, other.var(slots.var + 1));
        }
        Ok(())
    }

    fn finish(&self, slots: &Slots, rows: RowRange<'_>, declared: &DataType) -> Result<ArrayRef> {
        let (mut values, mut lengths, mut valid) = (Vec::new(), Vec::new(), Vec::new());
        let half = 0.5f64.to_le_bytes();
        let wanted: Vec<&[u8]> = if self.is_median {
            rows.vars(slots.var).map(|_| &half[..]).collect()
        } else {
            rows.vars(slots.var + 1).collect()
        };
        for (slot, wanted) in rows.vars(slots.var).zip(wanted) {
            let counts = Counts::of(read(slot, &slots.identity)?);
            let wanted = wanted.chunks_exact(8).map(|fraction| f64::read(fraction, 0));
            let before = values.len();
            if !slot.is_empty() {
                values.extend(wanted.map(|fraction| counts.percentile(fraction)));
            }
            valid.push(values.len() > before);
            if values.len() == before && *declared == DataType::Float64 {
                values.push(0.0);
            }
            lengths.push(values.len() - before);
        }
        let nulls = Some(NullBuffer::from(valid)).filter(|nulls| nulls.null_count() > 0);
        let DataType::List(element) = declared else {
            return Ok(f64::array(values, nulls));
        };
        let values: ArrayRef = Arc::new(Float64Array::from(values));
        Ok(Arc::new(ListArray::try_new(Arc::clone(element), OffsetBuffer::from_lengths(lengths), values, nulls)?))
    }
}

/// What gives the percentiles of a row, an f64 each.
pub(super) fn wanted(column: &ArrayRef) -> Box<dyn Fn(usize) -> Vec<u8>> {
    let bytes = |values: &Float64Array| values.values().iter().flat_map(|value| value.to_le_bytes()).collect();
    if let Some(one) = column.as_primitive_opt::<Float64Type>() {
        let one = one.clone();
        return Box::new(move |i| bytes(&one.slice(i, 1)));
    }
    let lists = column.as_list::<i32>().clone();
    Box::new(move |i| bytes(lists.value(i).as_primitive()))
}

/// Numbers in ascending order, each with how many are no greater.
struct Counts(Vec<Counted>);

impl Counts {
    fn of(pairs: impl Iterator<Item = Counted>) -> Self {
        let mut sum = 0i64;
        let sums = pairs.map(|(value, count)| {
            sum = sum.saturating_add(count);
            (value, sum)
        });
        Self(sums.collect())
    }

    /// The number at a place between the first and the last, with a linear interpolation between two.
    #[expect(clippy::cast_precision_loss, clippy::cast_possible_truncation, reason = "as Spark computes it")]
    fn percentile(&self, fraction: f64) -> f64 {
        let last = self.0.last().map_or(0, |(_, count)| count - 1);
        let position = last as f64 * fraction;
        let at = |place: f64| {
            let place = place as i64 + 1;
            let found = self.0.partition_point(|(_, count)| *count < place);
            self.0.get(found).map_or(f64::NAN, |(value, _)| *value)
        };
        let (lower, higher) = (at(position.floor()), at(position.ceil()));
        if lower.to_bits() == higher.to_bits() || lower == higher {
            return lower;
        }
        lower + (position - position.floor()) * (higher - lower)
    }
}

#[cfg(test)]
#[path = "percentile_tests.rs"]
mod tests;
