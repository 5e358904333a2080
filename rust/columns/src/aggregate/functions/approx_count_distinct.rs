//! `approx_count_distinct`.
//!
//! Owns: the registers of a key, and how many a relative deviation needs.
//! Does not own: hashes (`spark_hash`), the bytes of registers (`registers`), the estimate (`hyperloglog`).

use super::collect::VALUES;
use super::hyperloglog::estimate;
use super::registers::{PRECISIONS, Register, Registers};
use super::spark_hash::{has_hash, hashes};
use crate::aggregate::accumulator::{Accumulator, Bound, Call, Layout};
use crate::aggregate::fold::{Bytes, Fold};
use crate::aggregate::prim::{Native, doubles};
use crate::aggregate::results::RowRange;
use crate::aggregate::row::{Other, RowMut, Slots};
use arrow_array::{Array, ArrayRef};
use arrow_schema::DataType;
use fastchangelog_format::{Error, Result};
use std::collections::HashMap;

/// Spark's default.
const DEVIATION: f64 = 0.05;
/// The least and the greatest relative deviation for which there are registers.
pub const DEVIATIONS: (f64, f64) = (0.0022, 0.39);

pub(super) fn approx_count_distinct(call: &Call<'_>) -> Option<Bound> {
    let known = call.types.len() < 3 && has_hash(call.types[0]);
    let buffers = [(VALUES, DataType::Binary)];
    known.then(|| Bound::new(Distinct, DataType::Int64).kept_in(buffers).in_any_order())
}

/// Variable slot 0: the registers.
#[derive(Debug)]
struct Distinct;

/// The precision with which estimates deviate by no more than `deviation`.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a few bits; other numbers are refused")]
fn precision(deviation: f64, identity: &str) -> Result<u8> {
    let (least, greatest) = DEVIATIONS;
    let bits = (2.0 * (1.106 / deviation).ln() / 2f64.ln()).ceil();
    let found = PRECISIONS.contains(&(bits as u8)).then_some(bits as u8);
    found.ok_or_else(|| {
        Error::invalid(format!(
            "{identity}: the relative deviation is {deviation}; it must be from {least} to {greatest}"
        ))
    })
}

impl Accumulator for Distinct {
    fn layout(&self) -> Layout {
        Layout { vars: 1, grows: true, ..Layout::default() }
    }

    fn skips_null(&self, argument: usize) -> bool {
        argument == 0
    }

    /// The result is a number, the accumulator is not.
    fn is_known_by_result(&self) -> bool {
        false
    }

    fn update(&self, slots: &Slots, arguments: &[&ArrayRef], fold: Fold<'_>) -> Result<()> {
        let hash = hashes(arguments[0])?;
        let deviations = arguments.get(1).map(|column| doubles(column).map(|values| (values, column))).transpose()?;
        let mut known = (DEVIATION.to_bits(), precision(DEVIATION, &slots.identity)?);
        let mut new: HashMap<usize, (u8, Vec<Register>)> = HashMap::new();
        let mut done = Ok(());
        let Fold { groups, mask, rows } = fold;
        Fold { groups, mask, rows: &mut *rows }.each_row(|i, row| {
            if let Some((values, column)) = &deviations
                && column.is_valid(i)
                && values[i].to_bits() != known.0
            {
                match precision(values[i], &slots.identity) {
                    Ok(precision) => known = (values[i].to_bits(), precision),
                    Err(error) => done = Err(error),
                }
            }
            let (precision, set) = new.entry(row.number).or_insert_with(|| (known.1, Vec::new()));
            set.push(Register::of_hash(hash(i), *precision));
        });
        done?;
        for (number, (precision, set)) in new {
            let new = Registers::of(precision, set);
            let all = match Registers::read(rows.vars.get(number, slots.var), &slots.identity)? {
                Some(own) => own.joined(new, &slots.identity)?,
                None => new,
            };
            rows.vars.set(number, slots.var, &all.written());
        }
        Ok(())
    }

    fn load(&self, slots: &Slots, buffers: &[&ArrayRef], fold: Fold<'_>) -> Result<()> {
        let (words, mut done) = (Bytes::of(buffers[0])?, Ok(()));
        fold.each_row(|i, row| match Registers::of_words(words.get(i), &slots.identity) {
            Ok(registers) => row.set_var(slots.var, &registers.written()),
            Err(error) => done = Err(error),
        });
        done
    }

    fn merge(&self, slots: &Slots, mine: &mut RowMut<'_>, other: Other<'_>) -> Result<()> {
        let Some(theirs) = Registers::read(other.var(slots.var), &slots.identity)? else {
            return Ok(());
        };
        let all = match Registers::read(mine.var(slots.var), &slots.identity)? {
            Some(own) => own.joined(theirs, &slots.identity)?.written(),
            None => theirs.written(),
        };
        mine.set_var(slots.var, &all);
        Ok(())
    }

    fn finish(&self, slots: &Slots, rows: RowRange<'_>, _: &DataType) -> Result<ArrayRef> {
        let registers = rows.vars(slots.var).map(|slot| Registers::read(slot, &slots.identity));
        let counts = registers.map(|read| read.map(|registers| registers.as_ref().map_or(0, estimate)));
        Ok(i64::array(counts.collect::<Result<Vec<_>>>()?, None))
    }
}

#[cfg(test)]
#[path = "approx_count_distinct_tests.rs"]
mod tests;
