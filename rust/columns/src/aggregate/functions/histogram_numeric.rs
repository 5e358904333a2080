//! `histogram_numeric`.
//!
//! Owns: the bins of a key in a row, bins of the argument's type. Does not own: the choice of bins (`histogram`).

use super::doubles::{from_doubles, to_doubles};
use super::histogram::{Bin, Histogram, Random};
use crate::aggregate::accumulator::{Accumulator, Bound, Call, Layout};
use crate::aggregate::fold::{Bytes, Fold};
use crate::aggregate::prim::{Native, Prim, column, integers};
use crate::aggregate::results::RowRange;
use crate::aggregate::row::{Other, RowMut, Slots};
use crate::rows::Vars;
use arrow_array::{ArrayRef, ListArray, StructArray};
use arrow_buffer::{NullBuffer, OffsetBuffer};
use arrow_schema::{DataType, Field, Fields};
use fastchangelog_format::{Error, Result};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

pub(super) fn histogram_numeric(call: &Call<'_>) -> Option<Bound> {
    let value = call.types[0];
    Prim::of(value).filter(|prim| *prim != Prim::Bool)?;
    // With Spark's older result type all centers are doubles.
    let center = match call.declared.and_then(bin_fields) {
        Some(fields) if *fields.first()?.data_type() == DataType::Float64 => &DataType::Float64,
        _ => value,
    };
    let bin = Fields::from(vec![Field::new("x", center.clone(), true), Field::new("y", DataType::Float64, true)]);
    let result = DataType::List(Arc::new(Field::new("element", DataType::Struct(bin), true)));
    Some(Bound::new(Bins, result).kept_in([("buf", DataType::Binary)]))
}

/// The fields of the bins in a result.
fn bin_fields(result: &DataType) -> Option<&Fields> {
    match result {
        DataType::List(element) => match element.data_type() {
            DataType::Struct(fields) if fields.len() == 2 => Some(fields),
            _ => None,
        },
        _ => None,
    }
}

/// Variable slot 0: the bins, two f64 each; slot 1: how many there may be, a u32; slot 2: the state of the generator, a
/// u64, once it has drawn. Spark has a new one for each task and for each merge of its results: the highest bit says
/// that it has drawn in a merge.
#[derive(Debug)]
struct Bins;

const MERGING: u64 = 1 << 63;

fn corrupt(identity: &str) -> Error {
    Error::corrupt(format_args!("an accumulator row of {identity}"), 0, "no bins of a histogram")
}

/// The histogram of a row, and whether its generator has drawn in a merge.
fn read(bins: &[u8], most: &[u8], random: &[u8], identity: &str) -> Result<(Histogram, bool)> {
    let (pairs, rest) = bins.as_chunks::<16>();
    let most = match most.first_chunk::<4>() {
        Some(most) => u32::from_le_bytes(*most) as usize,
        None if bins.is_empty() => 0,
        None => return Err(corrupt(identity)),
    };
    if !rest.is_empty() {
        return Err(corrupt(identity));
    }
    let bin = |pair: &[u8; 16]| Bin { center: f64::read(pair, 0), height: f64::read(pair, 8) };
    let drawn = random.first_chunk::<8>().map(|state| u64::from_le_bytes(*state));
    let random = drawn.map(Random::of_state).unwrap_or_default();
    let histogram = Histogram { most, bins: pairs.iter().map(bin).collect(), random };
    Ok((histogram, drawn.is_some_and(|state| state & MERGING != 0)))
}

fn write(histogram: &Histogram, mark: u64, vars: &mut Vars, row: usize, slots: &Slots) {
    let pair = |bin: &Bin| [bin.center.to_le_bytes(), bin.height.to_le_bytes()].concat();
    vars.set(row, slots.var, &histogram.bins.iter().flat_map(pair).collect::<Vec<u8>>());
    let most = u32::try_from(histogram.most).unwrap_or(u32::MAX).to_le_bytes();
    vars.set(row, slots.var + 1, if histogram.most == 0 { &[] } else { &most });
    let drawn = (histogram.random != Random::default()).then(|| (histogram.random.state() | mark).to_le_bytes());
    vars.set(row, slots.var + 2, drawn.as_ref().map_or(&[], |state| state.as_slice()));
}

/// The most bins, where there may be so many.
fn checked(most: i64, identity: &str) -> Result<usize> {
    let known = i32::try_from(most).ok().filter(|most| *most >= 2).and_then(|most| usize::try_from(most).ok());
    known.ok_or_else(|| Error::invalid(format!("{identity}: the number of bins is {most}; it must be at least 2")))
}

/// A histogram in the bytes in which Spark keeps it: how many bins there may be, how many there are, and the bins.
fn of_spark(bytes: &[u8], identity: &str) -> Result<Histogram> {
    let bad = || Error::invalid(format!("{identity}: Spark's state of it has {} bytes, no histogram", bytes.len()));
    let (head, bins) = bytes.split_first_chunk::<8>().ok_or_else(bad)?;
    let [a, b, c, d, used @ ..] = *head;
    let (pairs, rest) = bins.as_chunks::<8>();
    let used = usize::try_from(i32::from_be_bytes(used)).map_err(|_| bad())?;
    if !rest.is_empty() || pairs.len() != used.saturating_mul(2) {
        return Err(bad());
    }
    let numbers: Vec<f64> = pairs.iter().map(|bytes| f64::from_be_bytes(*bytes)).collect();
    let bins = numbers.chunks_exact(2).map(|pair| Bin { center: pair[0], height: pair[1] }).collect();
    let most = checked(i32::from_be_bytes([a, b, c, d]).into(), identity)?;
    Ok(Histogram { most, bins, ..Histogram::default() })
}

impl Accumulator for Bins {
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
        let (values, most) = (to_doubles(arguments[0])?, integers(arguments[1])?);
        let (mut known, mut done): (HashMap<usize, Histogram>, _) = (HashMap::new(), Ok(()));
        let there = |row: &RowMut<'_>| {
            let (bins, most, random) = (row.var(slots.var), row.var(slots.var + 1), row.var(slots.var + 2));
            read(bins, most, random, &slots.identity).map(|(histogram, _)| histogram)
        };
        let Fold { groups, mask, rows } = fold;
        Fold { groups, mask, rows: &mut *rows }.each_row(|i, row| {
            let mut add = || -> Result<()> {
                let histogram = match known.entry(row.number) {
                    Entry::Occupied(found) => found.into_mut(),
                    Entry::Vacant(place) => place.insert(there(row)?),
                };
                if histogram.bins.is_empty() {
                    histogram.most = checked(most[i], &slots.identity)?;
                }
                // One NaN stands for all.
                histogram.add(if values[i].is_nan() { f64::NAN } else { values[i] });
                Ok(())
            };
            if done.is_ok() {
                done = add();
            }
        });
        for (number, histogram) in known {
            write(&histogram, 0, &mut rows.vars, number, slots);
        }
        done
    }

    fn load(&self, slots: &Slots, buffers: &[&ArrayRef], fold: Fold<'_>) -> Result<()> {
        let (states, mut done) = (Bytes::of(buffers[0])?, Ok(()));
        fold.each_row(|i, row| match of_spark(states.get(i), &slots.identity) {
            Ok(histogram) => write(&histogram, 0, row.vars, row.number, slots),
            Err(error) => done = Err(error),
        });
        done
    }

    fn merge(&self, slots: &Slots, mine: &mut RowMut<'_>, other: Other<'_>) -> Result<()> {
        let at = slots.var;
        let (theirs, _) = read(other.var(at), other.var(at + 1), other.var(at + 2), &slots.identity)?;
        let (own, merging) = read(mine.var(at), mine.var(at + 1), mine.var(at + 2), &slots.identity)?;
        let (mut first, second) = if other.earlier { (theirs, own) } else { (own, theirs) };
        if other.earlier || !merging {
            first.random = Random::default();
        }
        first.join(second);
        if other.earlier {
            first.random = Random::default();
        }
        write(&first, MERGING, mine.vars, mine.number, slots);
        Ok(())
    }

    fn finish(&self, slots: &Slots, rows: RowRange<'_>, declared: &DataType) -> Result<ArrayRef> {
        let wrong = || Error::internal(format_args!("a histogram declared {declared}"));
        let (DataType::List(element), Some(fields)) = (declared, bin_fields(declared)) else {
            return Err(wrong());
        };
        let (mut bins, mut lengths) = (Vec::new(), Vec::new());
        for slot in rows.vars(slots.var) {
            let (pairs, _) = slot.as_chunks::<16>();
            lengths.push(pairs.len());
            bins.extend(pairs.iter().map(|pair| (f64::read(pair, 0), f64::read(pair, 8))));
        }
        if i32::try_from(bins.len()).is_err() {
            return Err(Error::invalid(format!(
                "the results of {} have more than 2^31 bins in one batch",
                slots.identity
            )));
        }
        let (centers, heights): (Vec<f64>, Vec<f64>) = bins.into_iter().unzip();
        let center = fields[0].data_type();
        // Spark rounds to the digits of a decimal before it rounds to its scale.
        let digits = if let DataType::Decimal128(digits, _) = center { Some(*digits) } else { None };
        let columns = vec![column(&from_doubles(&centers, center, None, digits), center)?, f64::array(heights, None)];
        let bins: ArrayRef = Arc::new(StructArray::try_new(fields.clone(), columns, None)?);
        let nulls = NullBuffer::from(lengths.iter().map(|length| *length > 0).collect::<Vec<_>>());
        let nulls = Some(nulls).filter(|nulls| nulls.null_count() > 0);
        Ok(Arc::new(ListArray::try_new(Arc::clone(element), OffsetBuffer::from_lengths(lengths), bins, nulls)?))
    }
}

#[cfg(test)]
#[path = "histogram_numeric_tests.rs"]
mod tests;
