//! `percentile_approx`.
//!
//! Owns: the numbers of a key in a row, when they go into its summary, percentiles of the argument's type.
//! Does not own: the summary (`quantile_summary`).

use super::collect::VALUES;
use super::doubles::{from_doubles, to_doubles};
use super::percentile::wanted;
use super::quantile_summary::{Sample, Summary};
use crate::aggregate::accumulator::{Accumulator, Bound, Call, Layout};
use crate::aggregate::fold::Fold;
use crate::aggregate::prim::{Native, Prim, column, integers};
use crate::aggregate::results::RowRange;
use crate::aggregate::row::{Other, RowMut, Slots};
use arrow_array::{Array, ArrayRef, ListArray};
use arrow_buffer::{NullBuffer, OffsetBuffer};
use arrow_schema::{DataType, Field};
use fastchangelog_format::{Error, Result};
use std::sync::Arc;

/// Spark's default: the error of a rank is one ten-thousandth of all numbers.
const ACCURACY: i64 = 10_000;
/// So many bytes of numbers go into a summary at once, as in Spark.
const HEAD_BYTES: usize = 50_000 * 8;

pub(super) fn percentile_approx(call: &Call<'_>) -> Option<Bound> {
    let value = call.types[0].clone();
    let result = match call.types.get(1)? {
        DataType::Float64 => value.clone(),
        DataType::List(element) if *element.data_type() == DataType::Float64 => {
            DataType::List(Arc::new(Field::new("element", value.clone(), false)))
        }
        _ => return None,
    };
    let known = call.types.len() < 4 && Prim::of(&value).is_some_and(|prim| prim != Prim::Bool);
    known.then(|| Bound::new(Approximate { value }, result).kept_in([(VALUES, DataType::Binary)]))
}

/// Variable slot 0: the summary; slot 1: the numbers that are not in it yet, an f64 each; slot 2: the error, and which
/// percentiles, an f64 each, which are the same in all rows.
///
/// A summary is `count | (value, gap, spread)…`: values are f64, all others LEB128.
#[derive(Debug)]
struct Approximate {
    /// The type of the argument.
    value: DataType,
}

fn put_number(mut number: u64, out: &mut Vec<u8>) {
    while number > 0x7f {
        out.push(number.to_le_bytes()[0] | 0x80);
        number >>= 7;
    }
    out.push(number.to_le_bytes()[0]);
}

fn take_number(rest: &mut &[u8]) -> Option<i64> {
    let mut number = 0u64;
    for shift in (0..63).step_by(7) {
        let (byte, tail) = rest.split_first()?;
        *rest = tail;
        number |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return i64::try_from(number).ok();
        }
    }
    None
}

fn written(summary: &Summary) -> Vec<u8> {
    let mut out = Vec::with_capacity(4 + summary.samples.len() * 10);
    put_number(summary.count.cast_unsigned(), &mut out);
    for sample in &summary.samples {
        out.extend_from_slice(&sample.value.to_le_bytes());
        put_number(sample.gap.cast_unsigned(), &mut out);
        put_number(sample.spread.cast_unsigned(), &mut out);
    }
    out
}

fn read(slot: &[u8]) -> Option<Summary> {
    let mut rest = slot;
    if rest.is_empty() {
        return Some(Summary::default());
    }
    let mut summary = Summary { count: take_number(&mut rest)?, samples: Vec::with_capacity(rest.len() / 10) };
    while !rest.is_empty() {
        let (value, tail) = rest.split_first_chunk::<8>()?;
        rest = tail;
        let (gap, spread) = (take_number(&mut rest)?, take_number(&mut rest)?);
        summary.samples.push(Sample { value: f64::from_le_bytes(*value), gap, spread });
    }
    Some(summary)
}

/// The numbers of a row, all of them in the summary.
fn all(summary: &[u8], head: &[u8], error: f64, identity: &str) -> Result<Summary> {
    let bad = || Error::corrupt(format_args!("an accumulator row of {identity}"), 0, "no summary of numbers");
    let known = read(summary).ok_or_else(bad)?;
    let (numbers, rest) = head.as_chunks::<8>();
    if !rest.is_empty() {
        return Err(bad());
    }
    let numbers: Vec<f64> = numbers.iter().map(|number| f64::from_le_bytes(*number)).collect();
    Ok(if numbers.is_empty() { known } else { known.with(numbers, error) })
}

/// The error and the percentiles of slot 2.
fn constants(slot: &[u8]) -> (f64, Vec<f64>) {
    let mut numbers = slot.chunks_exact(8).map(|number| f64::read(number, 0));
    (numbers.next().unwrap_or_default(), numbers.collect())
}

impl Accumulator for Approximate {
    fn layout(&self) -> Layout {
        Layout { vars: 3, grows: true, ..Layout::default() }
    }

    fn skips_null(&self, argument: usize) -> bool {
        argument == 0
    }

    fn is_known_by_result(&self) -> bool {
        false
    }

    fn update(&self, slots: &Slots, arguments: &[&ArrayRef], fold: Fold<'_>) -> Result<()> {
        let values = to_doubles(arguments[0])?;
        let (percentiles, accuracies) = (wanted(arguments[1]), arguments.get(2).map(|c| integers(c)).transpose()?);
        let mut done = Ok(());
        fold.each_row(|i, row| {
            if row.var(slots.var + 2).is_empty() && arguments[1].is_valid(i) {
                #[expect(clippy::cast_precision_loss, reason = "as Spark computes it")]
                let error = 1.0 / accuracies.as_ref().map_or(ACCURACY, |all| all[i]) as f64;
                row.set_var(slots.var + 2, &[&error.to_le_bytes()[..], &percentiles(i)].concat());
            }
            // One NaN stands for all.
            let value = if values[i].is_nan() { f64::NAN } else { values[i] };
            row.append_var(slots.var + 1, &value.to_le_bytes());
            if row.var(slots.var + 1).len() >= HEAD_BYTES && done.is_ok() {
                done = settle(slots, row).map(|_| ());
            }
        });
        done
    }

    fn load(&self, slots: &Slots, _: &[&ArrayRef], _: Fold<'_>) -> Result<()> {
        Err(Error::invalid(format!("{} cannot go on from a stored accumulator", slots.identity)))
    }

    fn merge(&self, slots: &Slots, mine: &mut RowMut<'_>, other: Other<'_>) -> Result<()> {
        let (summary, head, given) = (other.var(slots.var), other.var(slots.var + 1), other.var(slots.var + 2));
        if summary.is_empty() && head.is_empty() {
            return Ok(());
        }
        if mine.var(slots.var + 2).is_empty() {
            mine.set_var(slots.var + 2, given);
        }
        if mine.var(slots.var).is_empty() && mine.var(slots.var + 1).is_empty() {
            mine.set_var(slots.var, summary);
            mine.set_var(slots.var + 1, head);
            return Ok(());
        }
        let error = constants(mine.var(slots.var + 2)).0;
        let theirs = all(summary, head, error, &slots.identity)?;
        let own = settle(slots, mine)?;
        let (first, second) = if other.earlier { (theirs, own) } else { (own, theirs) };
        mine.set_var(slots.var, &written(&first.joined(second, error)));
        Ok(())
    }

    fn finish(&self, slots: &Slots, rows: RowRange<'_>, declared: &DataType) -> Result<ArrayRef> {
        let (mut values, mut lengths, mut valid) = (Vec::new(), Vec::new(), Vec::new());
        let columns = rows.vars(slots.var).zip(rows.vars(slots.var + 1)).zip(rows.vars(slots.var + 2));
        for ((summary, head), given) in columns {
            let (error, places) = constants(given);
            let found = all(summary, head, error, &slots.identity)?.quantiles(&places, error).unwrap_or_default();
            valid.push(!found.is_empty());
            let before = values.len();
            values.extend(found);
            if values.len() == before && !matches!(declared, DataType::List(_)) {
                values.push(0.0);
            }
            lengths.push(values.len() - before);
        }
        let nulls = NullBuffer::from(valid);
        let DataType::List(element) = declared else {
            return Ok(from_doubles(&values, &self.value, Some(nulls), None));
        };
        let values = from_doubles(&values, &self.value, None, None);
        let values = column(&values, element.data_type())?;
        Ok(Arc::new(ListArray::try_new(Arc::clone(element), OffsetBuffer::from_lengths(lengths), values, Some(nulls))?))
    }
}

/// Moves the numbers of a row into its summary, which is returned.
fn settle(slots: &Slots, row: &mut RowMut<'_>) -> Result<Summary> {
    let error = constants(row.var(slots.var + 2)).0;
    let summary = all(row.var(slots.var), row.var(slots.var + 1), error, &slots.identity)?;
    if !row.var(slots.var + 1).is_empty() {
        row.set_var(slots.var, &written(&summary));
        row.set_var(slots.var + 1, &[]);
    }
    Ok(summary)
}

#[cfg(test)]
#[path = "percentile_approx_tests.rs"]
mod tests;
