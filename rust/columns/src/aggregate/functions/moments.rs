//! `var_samp`, `var_pop`, `stddev_samp`, `stddev_pop`, `skewness`, `kurtosis`.
//!
//! Owns: the central moments of doubles, up to the fourth, and the statistics computed from them.
//!
//! The formulas are those of Spark's buffers, operation by operation, so that rounding, infinities and overflow are
//! Spark's too.

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
    VarSamp,
    VarPop,
    StddevSamp,
    StddevPop,
    Skewness,
    Kurtosis,
}

pub(super) fn var_samp(call: &Call<'_>) -> Option<Bound> {
    bind::<2>(Statistic::VarSamp, call)
}

pub(super) fn var_pop(call: &Call<'_>) -> Option<Bound> {
    bind::<2>(Statistic::VarPop, call)
}

pub(super) fn stddev_samp(call: &Call<'_>) -> Option<Bound> {
    bind::<2>(Statistic::StddevSamp, call)
}

pub(super) fn stddev_pop(call: &Call<'_>) -> Option<Bound> {
    bind::<2>(Statistic::StddevPop, call)
}

pub(super) fn skewness(call: &Call<'_>) -> Option<Bound> {
    bind::<3>(Statistic::Skewness, call)
}

pub(super) fn kurtosis(call: &Call<'_>) -> Option<Bound> {
    bind::<4>(Statistic::Kurtosis, call)
}

#[expect(clippy::unnecessary_wraps, reason = "as every function of the table")]
fn bind<const ORDER: usize>(statistic: Statistic, call: &Call<'_>) -> Option<Bound> {
    let buffers = ["n", "avg", "m2", "m3", "m4"].into_iter().take(ORDER + 1).map(|name| (name, DataType::Float64));
    let moments = CentralMoments::<ORDER> { statistic, ansi: call.ansi };
    Some(Bound::new(moments, DataType::Float64).kept_in(buffers))
}

/// The number of values, their mean, and the sums of the powers 2 to `ORDER` of their deviations from it: f64 each.
#[derive(Debug)]
struct CentralMoments<const ORDER: usize> {
    statistic: Statistic,
    ansi: bool,
}

impl<const ORDER: usize> Accumulator for CentralMoments<ORDER> {
    fn layout(&self) -> Layout {
        Layout { bytes: 8 * (ORDER + 1), ..Layout::default() }
    }

    /// For a division by a power that underflows to zero.
    fn depends_on_ansi(&self) -> bool {
        matches!(self.statistic, Statistic::Skewness | Statistic::Kurtosis)
    }

    fn update(&self, slots: &Slots, arguments: &[&ArrayRef], fold: Fold<'_>) -> Result<()> {
        let (values, at) = (doubles(arguments[0])?, slots.at);
        fold.each(|i, row| Sums::read::<ORDER>(row, at).add::<ORDER>(values[i]).write::<ORDER>(row, at));
        Ok(())
    }

    fn load(&self, slots: &Slots, buffers: &[&ArrayRef], fold: Fold<'_>) -> Result<()> {
        fold.put_doubles(slots.at, buffers)
    }

    fn merge(&self, slots: &Slots, mine: &mut RowMut<'_>, other: Other<'_>) -> Result<()> {
        let (ours, theirs) = (Sums::read::<ORDER>(mine.fixed, slots.at), Sums::read::<ORDER>(other.fixed, slots.at));
        let joined = if other.earlier { theirs.join::<ORDER>(ours) } else { ours.join::<ORDER>(theirs) };
        joined.write::<ORDER>(mine.fixed, slots.at);
        Ok(())
    }

    fn finish(&self, slots: &Slots, rows: RowRange<'_>, _: &DataType) -> Result<ArrayRef> {
        let result = |row: &[u8]| self.result(Sums::read::<ORDER>(row, slots.at), &slots.identity);
        Ok(Arc::new(rows.fixed().map(result).collect::<Result<Float64Array>>()?))
    }
}

impl<const ORDER: usize> CentralMoments<ORDER> {
    fn result(&self, Sums { n, m2, m3, m4, .. }: Sums, identity: &str) -> Result<Option<f64>> {
        if n == 0.0 {
            return Ok(None);
        }
        let sample = (n != 1.0).then(|| m2 / (n - 1.0));
        Ok(match self.statistic {
            Statistic::VarSamp => sample,
            Statistic::StddevSamp => sample.map(f64::sqrt),
            Statistic::VarPop => Some(m2 / n),
            Statistic::StddevPop => Some((m2 / n).sqrt()),
            Statistic::Skewness | Statistic::Kurtosis if m2 == 0.0 => None,
            Statistic::Skewness => quotient(n.sqrt() * m3, (m2 * m2 * m2).sqrt(), self.ansi, identity)?,
            Statistic::Kurtosis => quotient(n * m4, m2 * m2, self.ansi, identity)?.map(|moment| moment - 3.0),
        })
    }
}

/// Content of the accumulator; moments above its order are zero.
#[derive(Debug, Clone, Copy, Default)]
struct Sums {
    n: f64,
    mean: f64,
    m2: f64,
    m3: f64,
    m4: f64,
}

impl Sums {
    #[inline]
    fn read<const ORDER: usize>(row: &[u8], at: usize) -> Self {
        let slot = |i: usize| if i <= ORDER { f64::read(row, at + 8 * i) } else { 0.0 };
        Self { n: slot(0), mean: slot(1), m2: slot(2), m3: slot(3), m4: slot(4) }
    }

    #[inline]
    fn write<const ORDER: usize>(self, row: &mut [u8], at: usize) {
        for (i, value) in [self.n, self.mean, self.m2, self.m3, self.m4].into_iter().enumerate().take(ORDER + 1) {
            value.write(row, at + 8 * i);
        }
    }

    #[inline]
    fn add<const ORDER: usize>(self, value: f64) -> Self {
        let n = self.n + 1.0;
        let delta = value - self.mean;
        let delta_n = delta / n;
        let m2 = self.m2 + delta * (delta - delta_n);
        let (delta2, delta_n2) = (delta * delta, delta_n * delta_n);
        let m3 = if ORDER >= 3 { self.m3 - 3.0 * delta_n * m2 + delta * (delta2 - delta_n2) } else { 0.0 };
        let m4 = if ORDER >= 4 {
            self.m4 - 4.0 * delta_n * m3 - 6.0 * delta_n2 * m2 + delta * (delta * delta2 - delta_n * delta_n2)
        } else {
            0.0
        };
        Self { n, mean: self.mean + delta_n, m2, m3, m4 }
    }

    #[inline]
    fn join<const ORDER: usize>(self, other: Self) -> Self {
        let (n1, n2) = (self.n, other.n);
        // A merge with an empty accumulator changes nothing: the formulas would round the mean.
        if n2 == 0.0 {
            return self;
        }
        if n1 == 0.0 {
            return other;
        }
        let n = n1 + n2;
        let delta = other.mean - self.mean;
        let delta_n = delta / n;
        let m2 = self.m2 + other.m2 + delta * delta_n * n1 * n2;
        let m3 = if ORDER >= 3 {
            self.m3
                + other.m3
                + delta_n * delta_n * delta * n1 * n2 * (n1 - n2)
                + 3.0 * delta_n * (n1 * other.m2 - n2 * self.m2)
        } else {
            0.0
        };
        let m4 = if ORDER >= 4 {
            self.m4
                + other.m4
                + delta_n * delta_n * delta_n * delta * n1 * n2 * (n1 * n1 - n1 * n2 + n2 * n2)
                + 6.0 * delta_n * delta_n * (n1 * n1 * other.m2 + n2 * n2 * self.m2)
                + 4.0 * delta_n * (n1 * other.m3 - n2 * self.m3)
        } else {
            0.0
        };
        Self { n, mean: self.mean + delta_n * n2, m2, m3, m4 }
    }
}

#[cfg(test)]
#[path = "moments_tests.rs"]
mod tests;
