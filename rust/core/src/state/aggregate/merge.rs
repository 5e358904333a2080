//! Row and row into one row.
//!
//! Owns: joining two accumulator rows of one key.
//! Does not own: which rows belong together (`table`), the bytes around the row (`rows`).

use super::plan::{AggPlan, Form, Kind, Op, Prim};
use super::prim::{Native, has_bit, put_bit, set_bit, with_native};
use super::update::{add_decimal, out_of_interval, wins};
use crate::Result;
use crate::state::rows::Rows;

/// The row that is joined to a row of a table.
#[derive(Clone, Copy)]
pub(in crate::state) struct Other<'a> {
    /// Its fixed part.
    pub(in crate::state) fixed: &'a [u8],
    /// Its variable slots.
    pub(in crate::state) vars: &'a [&'a [u8]],
    /// It stands for input that came earlier than that of the table's row.
    pub(in crate::state) earlier: bool,
}

impl AggPlan {
    /// Joins `other` into row `row`.
    #[inline]
    pub(in crate::state) fn merge(&self, rows: &mut Rows, row: usize, other: Other<'_>) -> Result<()> {
        for op in &self.ops {
            op.merge(rows, row, other)?;
        }
        Ok(())
    }
}

impl Op {
    fn merge(&self, rows: &mut Rows, row: usize, other: Other<'_>) -> Result<()> {
        let (bit, at) = (self.bit, self.at);
        let (mine, vars) = rows.row_mut(row);
        let theirs = other.fixed;
        match &self.kind {
            Kind::Count => (i64::read(mine, at).wrapping_add(i64::read(theirs, at))).write(mine, at),
            Kind::SumInt => {
                if has_bit(theirs, bit) {
                    let (sum, overflow) = i64::read(mine, at).overflowing_add(i64::read(theirs, at));
                    if overflow && self.ansi {
                        return Err(self.long_overflow());
                    }
                    sum.write(mine, at);
                    set_bit(mine, bit);
                }
            }
            Kind::SumFloat => {
                if has_bit(theirs, bit) {
                    add_doubles(mine, theirs, at);
                    set_bit(mine, bit);
                }
            }
            Kind::AvgFloat => {
                add_doubles(mine, theirs, at);
                (i64::read(mine, at + 8).wrapping_add(i64::read(theirs, at + 8))).write(mine, at + 8);
            }
            Kind::SumDecimal { limit } => {
                if has_bit(theirs, bit) {
                    set_bit(mine, bit);
                    if self.merge_decimal(mine, theirs, *limit, bit + 1) && self.ansi {
                        return Err(self.decimal_overflow());
                    }
                }
            }
            Kind::AvgDecimal { limit, .. } => {
                (i64::read(mine, at + 16).wrapping_add(i64::read(theirs, at + 16))).write(mine, at + 16);
                if self.merge_decimal(mine, theirs, *limit, bit) && self.ansi {
                    return Err(self.decimal_overflow());
                }
            }
            Kind::SumInterval { months } => {
                if has_bit(theirs, bit) {
                    self.merge_interval(mine, theirs, *months)?;
                    set_bit(mine, bit);
                }
            }
            Kind::AvgInterval { months } => {
                self.merge_interval(mine, theirs, *months)?;
                (i64::read(mine, at + 8).wrapping_add(i64::read(theirs, at + 8))).write(mine, at + 8);
            }
            Kind::Extreme { max, prim } => {
                if has_bit(theirs, bit) && (!has_bit(mine, bit) || better(*prim, mine, theirs, at, *max, other.earlier))
                {
                    mine[at..at + prim.width()].copy_from_slice(&theirs[at..at + prim.width()]);
                    set_bit(mine, bit);
                }
            }
            Kind::ExtremeBytes { max } => {
                let new = var(other, self.var);
                let old = vars.get(row, self.var);
                if has_bit(theirs, bit) && (!has_bit(mine, bit) || if *max { old < new } else { new < old }) {
                    vars.set(row, self.var, new);
                    set_bit(mine, bit);
                }
            }
            Kind::By { max, later_wins_ties, .. } => {
                let new = var(other, self.var);
                let rule = (*max, *later_wins_ties != other.earlier);
                if has_bit(theirs, bit) && (!has_bit(mine, bit) || wins(vars.get(row, self.var), new, rule)) {
                    vars.set(row, self.var, new);
                    vars.set(row, self.var + 1, var(other, self.var + 1));
                    set_bit(mine, bit);
                }
            }
            Kind::Edge { last, form, .. } => {
                // The last of (mine, theirs) is theirs, unless theirs came earlier; the first likewise.
                if has_bit(theirs, bit) && (!has_bit(mine, bit) || *last != other.earlier) {
                    set_bit(mine, bit);
                    put_bit(mine, bit + 1, has_bit(theirs, bit + 1));
                    if let Form::Prim(prim) = form {
                        mine[at..at + prim.width()].copy_from_slice(&theirs[at..at + prim.width()]);
                    } else {
                        vars.set(row, self.var, var(other, self.var));
                    }
                }
            }
        }
        Ok(())
    }

    /// Joins two decimal sums; true on overflow.
    fn merge_decimal(&self, mine: &mut [u8], theirs: &[u8], limit: i128, overflow_bit: usize) -> bool {
        if has_bit(theirs, overflow_bit) {
            set_bit(mine, overflow_bit);
            0i128.write(mine, self.at);
            return true;
        }
        add_decimal(mine, i128::read(theirs, self.at), limit, overflow_bit, self.at)
    }

    fn merge_interval(&self, mine: &mut [u8], theirs: &[u8], months: bool) -> Result<()> {
        match i64::read(mine, self.at).checked_add(i64::read(theirs, self.at)) {
            Some(sum) if !out_of_interval(sum, months) => {
                sum.write(mine, self.at);
                Ok(())
            }
            _ => Err(self.interval_overflow()),
        }
    }
}

fn var(other: Other<'_>, slot: usize) -> &[u8] {
    other.vars.get(slot).copied().unwrap_or_default()
}

fn add_doubles(mine: &mut [u8], theirs: &[u8], at: usize) {
    (f64::read(mine, at) + f64::read(theirs, at)).write(mine, at);
}

/// True when their value is to replace mine; of equal values (−0.0 and 0.0) the earlier stays.
fn better(prim: Prim, mine: &[u8], theirs: &[u8], at: usize, max: bool, earlier: bool) -> bool {
    with_native!(prim, N => {
        let (old, new) = (N::read(mine, at), N::read(theirs, at));
        let (new_wins, old_wins) = if max {
            (old.before(new), new.before(old))
        } else {
            (new.before(old), old.before(new))
        };
        new_wins || (earlier && !old_wins)
    })
}
