//! Summaries of many numbers, from which their quantiles follow with a bounded error.
//!
//! Owns: the summary of Greenwald and Khanna as Spark keeps it, step by step, so that the same steps give the same bits.
//! Does not own: the bytes of a summary in a row, the numbers since the last step (`percentile_approx`).
//!
//! A summary has some of its numbers, in ascending order. The rank of a sample is at least the sum of `gap` up to it,
//! and at most `spread` more. While fewer than half of `1 / error` numbers came, all of them are samples.

/// One of the numbers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Sample {
    pub(super) value: f64,
    /// How far its least rank is from that of the sample before it.
    pub(super) gap: i64,
    /// How far its greatest rank is from its least one.
    pub(super) spread: i64,
}

/// The numbers of a key.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Summary {
    pub(super) count: i64,
    pub(super) samples: Vec<Sample>,
}

/// `2 * error * count`, in Spark's order of multiplications.
#[expect(clippy::cast_precision_loss, reason = "as Spark computes it")]
fn allowed(error: f64, count: i64) -> f64 {
    2.0 * error * count as f64
}

/// The same as a whole number.
#[expect(clippy::cast_possible_truncation, reason = "as Spark computes it")]
fn allowed_whole(error: f64, count: i64) -> i64 {
    allowed(error, count).floor() as i64
}

impl Summary {
    /// The summary with more numbers, in any order; compressed.
    pub(super) fn with(self, mut numbers: Vec<f64>, error: f64) -> Self {
        numbers.sort_unstable_by(f64::total_cmp);
        let (mut count, last) = (self.count, numbers.len().saturating_sub(1));
        let mut samples = Vec::with_capacity(self.samples.len() + numbers.len());
        let mut known = self.samples.into_iter().peekable();
        for (i, value) in numbers.into_iter().enumerate() {
            while let Some(sample) = known.next_if(|sample| sample.value <= value) {
                samples.push(sample);
            }
            count += 1;
            let is_extreme = samples.is_empty() || (i == last && known.peek().is_none());
            samples.push(Sample { value, gap: 1, spread: if is_extreme { 0 } else { allowed_whole(error, count) } });
        }
        samples.extend(known);
        Self { count, samples: compressed(&samples, allowed(error, count)) }
    }

    /// Both summaries in one; compressed. The order of equal numbers is that of Spark, in which `self` is the first.
    pub(super) fn joined(self, other: Self, error: f64) -> Self {
        if other.count == 0 {
            return self;
        }
        if self.count == 0 {
            return other;
        }
        let count = self.count.saturating_add(other.count);
        // Samples of one side within the other have its uncertainty, too.
        let (of_self, of_other) = (allowed_whole(error, other.count), allowed_whole(error, self.count));
        let mut samples = Vec::with_capacity(self.samples.len() + other.samples.len());
        let (mut a, mut b) = (self.samples.iter().peekable(), other.samples.iter().peekable());
        let (mut any_of_a, mut any_of_b) = (false, false);
        while let (Some(x), Some(y)) = (a.peek(), b.peek()) {
            let (sample, more) = if x.value < y.value {
                any_of_a = true;
                (a.next(), if any_of_b { of_self } else { 0 })
            } else {
                any_of_b = true;
                (b.next(), if any_of_a { of_other } else { 0 })
            };
            samples.extend(sample.map(|sample| Sample { spread: sample.spread.saturating_add(more), ..*sample }));
        }
        samples.extend(a.chain(b));
        Self { count, samples: compressed(&samples, allowed(error, count)) }
    }

    /// The numbers at places between 0, the first, and 1, the last, in the order of the places; none of no numbers.
    #[expect(clippy::cast_precision_loss, clippy::cast_possible_truncation, reason = "as Spark computes it")]
    pub(super) fn quantiles(&self, places: &[f64], error: f64) -> Option<Vec<f64>> {
        let (first, last) = (self.samples.first()?, self.samples.last()?);
        let widest = self.samples.iter().map(|sample| sample.spread.saturating_add(sample.gap)).max()? / 2;
        let mut ascending: Vec<usize> = (0..places.len()).collect();
        ascending.sort_by(|a, b| places[*a].total_cmp(&places[*b]));
        let mut found = vec![0.0; places.len()];
        // A search goes on where the one before it ended.
        let (mut at, mut rank) = (0, first.gap);
        for number in ascending {
            let place = places[number];
            found[number] = if place <= error {
                first.value
            } else if place >= 1.0 - error {
                last.value
            } else {
                let wanted = (place * self.count as f64).ceil() as i64 as f64;
                loop {
                    let sample = self.samples[at];
                    if at + 1 >= self.samples.len() {
                        rank = 0;
                        break last.value;
                    }
                    let most = rank.saturating_add(sample.spread) as f64 - widest as f64;
                    if most <= wanted && wanted <= rank as f64 + widest as f64 {
                        break sample.value;
                    }
                    at += 1;
                    rank = rank.saturating_add(self.samples[at].gap);
                }
            };
        }
        Some(found)
    }
}

/// Fewer samples: each goes into the one behind it while the ranks of that one stay certain enough. The first and the
/// last stay.
#[expect(clippy::cast_precision_loss, reason = "as Spark computes it")]
fn compressed(samples: &[Sample], allowed: f64) -> Vec<Sample> {
    let Some((last, others)) = samples.split_last() else {
        return Vec::new();
    };
    let (mut kept, mut head) = (Vec::new(), *last);
    for sample in others.iter().skip(1).rev() {
        if (sample.gap.saturating_add(head.gap).saturating_add(head.spread) as f64) < allowed {
            head.gap = head.gap.saturating_add(sample.gap);
        } else {
            kept.push(head);
            head = *sample;
        }
    }
    kept.push(head);
    // NaN is not less than NaN: of numbers that are all NaN the first is left out, as in Spark.
    kept.extend(others.first().filter(|first| first.value <= head.value));
    kept.reverse();
    kept
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PLACES: [f64; 7] = [0.5, 0.0, 0.25, 1.0, 0.9, 0.1, 0.501];

    /// How far a number is from the rank of a place.
    fn distance(sorted: &[f64], place: f64, found: f64) -> f64 {
        let wanted = place * sorted.len() as f64;
        let first = sorted.partition_point(|number| *number < found) as f64;
        let last = sorted.partition_point(|number| *number <= found) as f64;
        if wanted < first { first - wanted } else { (wanted - last).max(0.0) }
    }

    proptest! {
        #[test]
        fn quantiles_are_within_the_error(
            parts in prop::collection::vec(prop::collection::vec(-500i32..500, 1..400), 1..8),
            accuracy in prop::sample::select(vec![10.0, 50.0, 1000.0, 10_000.0]),
        ) {
            let error = 1.0 / accuracy;
            let part = |numbers: &Vec<i32>| numbers.iter().map(|n| f64::from(*n)).collect::<Vec<f64>>();
            let summary = parts.iter().fold(Summary::default(), |all, numbers| {
                all.joined(Summary::default().with(part(numbers), error), error)
            });
            let mut sorted: Vec<f64> = parts.iter().flat_map(part).collect();
            sorted.sort_by(f64::total_cmp);
            prop_assert_eq!(usize::try_from(summary.count).unwrap(), sorted.len());
            let found = summary.quantiles(&PLACES, error).unwrap();
            for (place, found) in PLACES.iter().zip(found) {
                let wrong = distance(&sorted, *place, found);
                prop_assert!(wrong <= 1.0 + 2.0 * error * sorted.len() as f64, "{found} at {place} is {wrong} away");
                if sorted.len() as f64 * 2.0 < accuracy && *place > error && *place < 1.0 - error {
                    let rank = (place * sorted.len() as f64).ceil() as usize;
                    prop_assert!(found == sorted[rank - 1], "all numbers are there");
                }
            }
        }
    }

    #[test]
    fn a_summary_is_smaller_than_its_numbers() {
        let summary = Summary::default().with((0..50_000).map(f64::from).collect(), 0.01);
        assert!(summary.samples.len() < 250, "{} samples", summary.samples.len());
        assert_eq!(summary.samples.iter().map(|sample| sample.gap).sum::<i64>(), 50_000);
        assert_eq!(Summary::default().quantiles(&[0.5], 0.01), None);
    }
}
