//! `covar_samp`, `covar_pop`, `corr`.
//!
//! Owns: the joint moments of two columns of doubles, and the statistics computed from them.
//!
//! As in `moments`, the formulas are Spark's, operation by operation.

use crate::aggregate::accumulator::{Accumulator, Bound, Call, Layout};
use crate::aggregate::arithmetic::quotient;
use crate::aggregate::fold::Fold;
use crate::aggregate::prim::{Native, doubles};
use crate::aggregate::results::RowRange;
use crate::aggregate::row::{Other, RowMut, Slots};
use arrow_array::{ArrayRef, Float64Array};
use arrow_schema::DataType;
use fastchangelog_format::Result;
use std::sync::Arc;

#[derive(Debug, Clone, Copy)]
enum Statistic {
    CovarSamp,
    CovarPop,
    Corr,
}

/// Doubles of a covariance, and of a correlation.
const COVARIANCE: usize = 4;
const CORRELATION: usize = 6;

pub(super) fn covar_samp(call: &Call<'_>) -> Option<Bound> {
    bind::<COVARIANCE>(Statistic::CovarSamp, call)
}

pub(super) fn covar_pop(call: &Call<'_>) -> Option<Bound> {
    bind::<COVARIANCE>(Statistic::CovarPop, call)
}

pub(super) fn corr(call: &Call<'_>) -> Option<Bound> {
    bind::<CORRELATION>(Statistic::Corr, call)
}

#[expect(clippy::unnecessary_wraps, reason = "as every function of the table")]
fn bind<const SLOTS: usize>(statistic: Statistic, call: &Call<'_>) -> Option<Bound> {
    let names = ["n", "xAvg", "yAvg", "ck", "xMk", "yMk"].into_iter().take(SLOTS);
    let moments = JointMoments::<SLOTS> { statistic, ansi: call.ansi };
    Some(Bound::new(moments, DataType::Float64).kept_in(names.map(|name| (name, DataType::Float64))))
}

/// The number of pairs, the means of x and y, the sum of the products of their deviations, and for a correlation the
/// sums of the squares of each: f64 each.
#[derive(Debug)]
struct JointMoments<const SLOTS: usize> {
    statistic: Statistic,
    ansi: bool,
}

impl<const SLOTS: usize> Accumulator for JointMoments<SLOTS> {
    fn layout(&self) -> Layout {
        Layout { bytes: 8 * SLOTS, ..Layout::default() }
    }

    /// For a division by a product that underflows to zero.
    fn depends_on_ansi(&self) -> bool {
        matches!(self.statistic, Statistic::Corr)
    }

    fn update(&self, slots: &Slots, arguments: &[&ArrayRef], fold: Fold<'_>) -> Result<()> {
        let (x, y, at) = (doubles(arguments[0])?, doubles(arguments[1])?, slots.at);
        fold.each(|i, row| Sums::read::<SLOTS>(row, at).add(x[i], y[i]).write::<SLOTS>(row, at));
        Ok(())
    }

    fn load(&self, slots: &Slots, buffers: &[&ArrayRef], fold: Fold<'_>) -> Result<()> {
        fold.put_doubles(slots.at, buffers)
    }

    fn merge(&self, slots: &Slots, mine: &mut RowMut<'_>, other: Other<'_>) -> Result<()> {
        let (ours, theirs) = (Sums::read::<SLOTS>(mine.fixed, slots.at), Sums::read::<SLOTS>(other.fixed, slots.at));
        let joined = if other.earlier { theirs.join(ours) } else { ours.join(theirs) };
        joined.write::<SLOTS>(mine.fixed, slots.at);
        Ok(())
    }

    fn finish(&self, slots: &Slots, rows: RowRange<'_>, _: &DataType) -> Result<ArrayRef> {
        let result = |row: &[u8]| self.result(Sums::read::<SLOTS>(row, slots.at), &slots.identity);
        Ok(Arc::new(rows.fixed().map(result).collect::<Result<Float64Array>>()?))
    }
}

impl<const SLOTS: usize> JointMoments<SLOTS> {
    fn result(&self, Sums { n, xy, xx, yy, .. }: Sums, identity: &str) -> Result<Option<f64>> {
        if n == 0.0 {
            return Ok(None);
        }
        Ok(match self.statistic {
            Statistic::CovarPop => Some(xy / n),
            Statistic::CovarSamp | Statistic::Corr if n == 1.0 => None,
            Statistic::CovarSamp => Some(xy / (n - 1.0)),
            Statistic::Corr if xx == 0.0 || yy == 0.0 => None,
            Statistic::Corr => quotient(xy, (xx * yy).sqrt(), self.ansi, identity)?,
        })
    }
}

/// Content of the accumulator; a covariance leaves the squares at zero.
#[derive(Debug, Clone, Copy, Default)]
struct Sums {
    n: f64,
    x_mean: f64,
    y_mean: f64,
    xy: f64,
    xx: f64,
    yy: f64,
}

impl Sums {
    #[inline]
    fn read<const SLOTS: usize>(row: &[u8], at: usize) -> Self {
        let slot = |i: usize| if i < SLOTS { f64::read(row, at + 8 * i) } else { 0.0 };
        Self { n: slot(0), x_mean: slot(1), y_mean: slot(2), xy: slot(3), xx: slot(4), yy: slot(5) }
    }

    #[inline]
    fn write<const SLOTS: usize>(self, row: &mut [u8], at: usize) {
        let values = [self.n, self.x_mean, self.y_mean, self.xy, self.xx, self.yy];
        for (i, value) in values.into_iter().enumerate().take(SLOTS) {
            value.write(row, at + 8 * i);
        }
    }

    #[inline]
    fn add(self, x: f64, y: f64) -> Self {
        let n = self.n + 1.0;
        let (dx, dy) = (x - self.x_mean, y - self.y_mean);
        let (x_mean, y_mean) = (self.x_mean + dx / n, self.y_mean + dy / n);
        Self {
            n,
            x_mean,
            y_mean,
            xy: self.xy + dx * (y - y_mean),
            xx: self.xx + dx * (x - x_mean),
            yy: self.yy + dy * (y - y_mean),
        }
    }

    #[inline]
    fn join(self, other: Self) -> Self {
        let (n1, n2) = (self.n, other.n);
        // A merge with an empty accumulator changes nothing: the formulas would round the means.
        if n2 == 0.0 {
            return self;
        }
        if n1 == 0.0 {
            return other;
        }
        let n = n1 + n2;
        let (dx, dy) = (other.x_mean - self.x_mean, other.y_mean - self.y_mean);
        let (dx_n, dy_n) = (dx / n, dy / n);
        Self {
            n,
            x_mean: self.x_mean + dx_n * n2,
            y_mean: self.y_mean + dy_n * n2,
            xy: self.xy + other.xy + dx * dy_n * n1 * n2,
            xx: self.xx + other.xx + dx * dx_n * n1 * n2,
            yy: self.yy + other.yy + dy * dy_n * n1 * n2,
        }
    }
}

#[cfg(test)]
#[path = "covariance_tests.rs"]
mod tests;
