//! Histograms of many numbers in a bounded number of bins.
//!
//! Owns: the histogram of Ben-Haim and Tom-Tov as Spark keeps it, step by step, so that the same steps give the same
//! bits; the generator that chooses among bins that are equally close.
//! Does not own: the bytes of a histogram (`histogram_numeric`).

use std::cmp::Ordering;

/// Some numbers in one place.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Bin {
    /// The mean of the numbers.
    pub(super) center: f64,
    /// How many there are.
    pub(super) height: f64,
}

/// The numbers of a key.
#[derive(Debug, Default)]
pub(super) struct Histogram {
    /// The most bins that it may have.
    pub(super) most: usize,
    pub(super) bins: Vec<Bin>,
    pub(super) random: Random,
}

/// The generator of `java.util.Random`, from Spark's seed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Random(u64);

const MULTIPLIER: u64 = 0x5_DEEC_E66D;
const MASK: u64 = (1 << 48) - 1;
const SEED: u64 = 31_183;

impl Default for Random {
    fn default() -> Self {
        Self::of_seed(SEED)
    }
}

impl Random {
    fn of_seed(seed: u64) -> Self {
        Self((seed ^ MULTIPLIER) & MASK)
    }

    /// A generator that has drawn already.
    pub(super) fn of_state(state: u64) -> Self {
        Self(state & MASK)
    }

    /// Its 48 bits.
    pub(super) fn state(self) -> u64 {
        self.0
    }

    fn bits(&mut self, bits: u32) -> u64 {
        self.0 = self.0.wrapping_mul(MULTIPLIER).wrapping_add(0xB) & MASK;
        self.0 >> (48 - bits)
    }

    /// A number from 0 to 1.
    #[expect(clippy::cast_precision_loss, reason = "53 bits")]
    fn next(&mut self) -> f64 {
        let high = self.bits(26) << 27;
        (high + self.bits(27)) as f64 / (1u64 << 53) as f64
    }
}

/// Java's order of doubles: −0.0 is less than 0.0, and NaN is the greatest.
fn order(a: f64, b: f64) -> Ordering {
    let one_nan = |number: f64| if number.is_nan() { f64::NAN } else { number };
    one_nan(a).total_cmp(&one_nan(b))
}

impl Histogram {
    /// Counts a number: in a bin of its own, or in one with the same center.
    pub(super) fn add(&mut self, number: f64) {
        let (mut low, mut high, mut at) = (0, self.bins.len(), 0);
        while low < high {
            at = usize::midpoint(low, high);
            let center = self.bins[at].center;
            if center > number {
                high = at;
            } else if center < number {
                at += 1;
                low = at;
            } else {
                break; // of equal ones, or beside NaN
            }
        }
        match self.bins.get_mut(at) {
            #[expect(clippy::float_cmp, reason = "as Spark compares them")]
            Some(bin) if bin.center == number => bin.height += 1.0,
            _ => {
                self.bins.insert(at, Bin { center: number, height: 1.0 });
                self.trim();
            }
        }
    }

    /// Adds the bins of another one. Without any of its own it becomes a copy.
    pub(super) fn join(&mut self, other: Self) {
        if self.bins.is_empty() {
            (self.most, self.bins) = (other.most, other.bins);
            return;
        }
        self.bins.extend(other.bins);
        self.bins.sort_by(|a, b| order(a.center, b.center));
        self.trim();
    }

    /// Joins the two closest bins until there are few enough.
    #[expect(clippy::float_cmp, reason = "as Spark compares them")]
    fn trim(&mut self) {
        while self.bins.len() > self.most.max(1) {
            let distance = |i: usize| self.bins[i + 1].center - self.bins[i].center;
            let (mut least, mut at, mut equal) = (distance(0), 0, 1.0);
            for i in 1..self.bins.len() - 1 {
                let found = distance(i);
                if found < least {
                    (least, at, equal) = (found, i, 1.0);
                } else if found == least {
                    equal += 1.0;
                    if self.random.next() <= 1.0 / equal {
                        at = i;
                    }
                }
            }
            let (left, right) = (self.bins[at], self.bins[at + 1]);
            let height = left.height + right.height;
            // In Spark's order of operations.
            let center = left.center * (left.height / height) + right.center / height * right.height;
            self.bins[at] = Bin { center, height };
            self.bins.remove(at + 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_generator_is_javas() {
        let mut random = Random::of_seed(42);
        assert_eq!([random.next(), random.next()], [0.727_563_680_032_868_1, 0.683_223_471_759_845_4]);
    }

    fn of(most: usize, numbers: &[f64]) -> Histogram {
        let mut found = Histogram { most, ..Histogram::default() };
        numbers.iter().for_each(|number| found.add(*number));
        found
    }

    proptest! {
        #[test]
        fn bins_are_few_and_count_all(
            parts in prop::collection::vec(prop::collection::vec(-40i32..40, 0..60), 1..6),
            most in 2usize..120,
        ) {
            let numbers = |part: &Vec<i32>| part.iter().map(|n| f64::from(*n)).collect::<Vec<f64>>();
            let mut joined = Histogram::default();
            parts.iter().for_each(|part| joined.join(of(most, &numbers(part))));
            let all: Vec<f64> = parts.iter().flat_map(numbers).collect();
            for found in [&joined, &of(most, &all)] {
                prop_assert!(found.bins.len() <= most);
                prop_assert_eq!(found.bins.iter().map(|bin| bin.height).sum::<f64>(), all.len() as f64);
                // The mean of equal centers may be a last bit away from them.
                prop_assert!(found.bins.is_sorted_by(|a, b| a.center <= b.center + 1e-9));
                let sum: f64 = found.bins.iter().map(|bin| bin.center * bin.height).sum();
                prop_assert!((sum - all.iter().sum::<f64>()).abs() < 1e-6);
            }
            // With room for all of them, each number has a bin.
            let mut distinct = all.clone();
            distinct.sort_by(f64::total_cmp);
            distinct.dedup();
            let exact = of(80, &all);
            prop_assert_eq!(exact.bins.iter().map(|bin| bin.center).collect::<Vec<_>>(), distinct);
        }
    }

    #[test]
    fn odd_numbers_have_their_places() {
        let centers = |histogram: &Histogram| histogram.bins.iter().map(|bin| bin.center).collect::<Vec<f64>>();
        let zeros = of(5, &[-0.0, 0.0]);
        assert_eq!((zeros.bins.len(), zeros.bins[0].center.is_sign_negative()), (1, true));
        let infinite = of(3, &[f64::INFINITY, 1.0, f64::NEG_INFINITY, 4.0]);
        assert_eq!(centers(&infinite), [f64::NEG_INFINITY, 2.5, f64::INFINITY]);
        // NaN enters beside the bin that it was compared with, and goes to the end once bins are joined.
        let mut odd = of(5, &[1.0, 2.0, f64::NAN]);
        assert!(odd.bins[1].center.is_nan());
        odd.join(Histogram::default());
        assert!(odd.bins[2].center.is_nan());
    }
}
