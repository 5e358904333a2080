//! The estimate of HyperLogLog++, as Spark computes it.
//!
//! Owns: the estimate of distinct values from registers, the figures that correct its bias.
//! Does not own: the registers (`registers`).

use super::registers::Registers;
use std::cmp::Ordering;
use std::sync::LazyLock;

/// Neighbours whose mean bias counts.
const NEIGHBOURS: usize = 6;
/// Up to these estimates, from precision 4 on, empty registers are counted.
const THRESHOLDS: [f64; 15] = [
    10.0, 20.0, 40.0, 80.0, 220.0, 400.0, 900.0, 1800.0, 3100.0, 6500.0, 15500.0, 20000.0, 50000.0, 120_000.0,
    350_000.0,
];

/// The raw estimates of numbers of values, and how much each is above the number.
struct Figures {
    estimates: Vec<f64>,
    biases: Vec<f64>,
}

/// The figures of each precision, from 4 on.
static FIGURES: LazyLock<Vec<Figures>> = LazyLock::new(|| figures(include_str!("hyperloglog_estimates.txt")));

fn figures(text: &str) -> Vec<Figures> {
    let mut found: Vec<Figures> = Vec::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        if line.starts_with("precision") {
            found.push(Figures { estimates: Vec::new(), biases: Vec::new() });
            continue;
        }
        let pairs = line.split(' ').filter_map(|pair| pair.split_once(':'));
        for (values, estimate) in pairs {
            let (values, estimate) = (values.parse().unwrap_or(f64::NAN), estimate.parse().unwrap_or(f64::NAN));
            if let Some(figures) = found.last_mut() {
                figures.estimates.push(estimate);
                // The paper has the differences in fifteen digits.
                figures.biases.push(format!("{:.14e}", estimate - values).parse().unwrap_or(f64::NAN));
            }
        }
    }
    found
}

/// How many distinct values have set the registers.
#[expect(clippy::cast_precision_loss, clippy::cast_possible_truncation, reason = "as Spark computes it")]
pub(super) fn estimate(registers: &Registers) -> i64 {
    let precision = registers.precision;
    let m = f64::from(1u32 << precision);
    let (mut sum, mut empty) = (0.0, 0.0);
    for value in registers.values() {
        sum += 1.0 / (1u64 << value) as f64;
        empty += f64::from(u8::from(value == 0));
    }
    let alpha = match precision {
        4 => 0.673,
        5 => 0.697,
        6 => 0.709,
        _ => 0.7213 / (1.0 + 1.079 / m),
    };
    let raw = alpha * m * m / sum;
    let counted = m * (m / empty).ln();
    let place = usize::from(precision - 4);
    let estimate = if empty > 0.0 && (counted <= THRESHOLDS[place] || raw <= 2.5 * m) {
        counted
    } else if raw < 5.0 * m {
        raw - FIGURES[place].bias(raw)
    } else {
        raw
    };
    // As Java rounds: up from a half on.
    let below = estimate.floor();
    (if estimate - below >= 0.5 { below + 1.0 } else { below }) as i64
}

impl Figures {
    /// The mean bias of the estimates that are nearest to one.
    #[expect(clippy::cast_precision_loss, reason = "a few neighbours")]
    fn bias(&self, estimate: f64) -> f64 {
        let distance = |i: usize| {
            let difference = estimate - self.estimates[i];
            difference * difference
        };
        let mut low = (place_of(&self.estimates, estimate) + 1).saturating_sub(NEIGHBOURS);
        let mut high = (low + NEIGHBOURS).min(self.estimates.len());
        while high < self.estimates.len() && distance(high) < distance(low) {
            (low, high) = (low + 1, high + 1);
        }
        self.biases[low..high].iter().sum::<f64>() / (high - low) as f64
    }
}

/// Where Java's binary search finds a number, or where it belongs. The paper's estimates are not quite in order, so
/// another search may end at another place.
fn place_of(estimates: &[f64], wanted: f64) -> usize {
    let (mut from, mut to) = (0, estimates.len());
    while from < to {
        // The middle of the first and the last place.
        let middle = (from + to - 1) / 2;
        match estimates[middle].total_cmp(&wanted) {
            Ordering::Less => from = middle + 1,
            Ordering::Greater => to = middle,
            Ordering::Equal => return middle,
        }
    }
    from
}

#[cfg(test)]
mod tests {
    use super::super::registers::{PRECISIONS, Register};
    use super::*;

    #[test]
    fn every_precision_has_figures() {
        assert_eq!(FIGURES.len(), PRECISIONS.count());
        for figures in FIGURES.iter() {
            assert!(figures.estimates.len() >= 79);
            assert!(figures.estimates.iter().chain(&figures.biases).all(|number| number.is_finite()));
        }
        let last = |place: usize| (FIGURES[place].estimates.last().copied(), FIGURES[place].biases.last().copied());
        assert_eq!(last(0), (Some(77.2394), Some(-1.7606)));
        assert_eq!(last(14), (Some(1_303_455.691), Some(-713.308_999_999_892)));
    }

    #[test]
    #[expect(clippy::cast_precision_loss, reason = "small numbers")]
    fn estimates_are_near_the_number_of_values() {
        for precision in [4, 7, 9, 12] {
            let m = 1u64 << precision;
            for values in [1, 5, m / 2, 2 * m, 4 * m, 20 * m] {
                let hashes = (0..values).map(|i| xxhash_rust::xxh64::xxh64(&i.to_le_bytes(), 42));
                let set = hashes.map(|hash| Register::of_hash(hash, precision)).collect();
                let found = estimate(&Registers::of(precision, set)) as f64;
                let deviation = 4.0 * 1.04 / (m as f64).sqrt();
                assert!((found / values as f64 - 1.0).abs() <= deviation, "{found} of {values} at {precision}");
            }
        }
        assert_eq!(estimate(&Registers::of(9, Vec::new())), 0);
    }
}
