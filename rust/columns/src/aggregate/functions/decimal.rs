//! Sums and averages of decimals, which `sum` and `avg` share.
//!
//! Owns: adding decimals in an i128, its overflow, and the division of a sum by a count, rounded as Spark does.
//! Does not own: counts and nulls beside the sum.
//!
//! Spark divides into 39 decimals, rounded down, and rounds that half up to the scale of the result, which is at most
//! 38. The digit that decides about the half is one of the 39, so the two steps are one rounding of the exact quotient.
//! Decimals of few digits are an exception: Spark's optimizer (`DecimalAggregates`) averages them as doubles.

use crate::aggregate::prim::{Native, has_bit, set_bit};
use arrow_array::{Array, Decimal128Array};
use arrow_buffer::i256;

/// 10 to the number of digits of Spark's buffer for sums of decimals of precision `p`.
pub(super) fn sum_limit(p: u8) -> i128 {
    10i128.pow(u32::from((p + 10).min(38)))
}

/// Adds to the sum at byte `at`, whose overflow bit is `bit`; true on (an earlier or this) overflow.
#[inline]
pub(super) fn add(row: &mut [u8], value: i128, limit: i128, bit: usize, at: usize) -> bool {
    if has_bit(row, bit) {
        return true;
    }
    match i128::read(row, at).checked_add(value) {
        Some(sum) if sum < limit && sum > -limit => {
            sum.write(row, at);
            false
        }
        _ => {
            set_bit(row, bit);
            0i128.write(row, at);
            true
        }
    }
}

/// Writes the sum in row `i` of a column at byte `at`; a null has overflowed.
pub(super) fn put(sums: &Decimal128Array, i: usize, row: &mut [u8], bit: usize, at: usize) {
    if sums.is_valid(i) {
        sums.value(i).write(row, at);
    } else {
        set_bit(row, bit);
    }
}

/// Adds their sum to mine; true on overflow.
pub(super) fn join(mine: &mut [u8], theirs: &[u8], limit: i128, bit: usize, at: usize) -> bool {
    if has_bit(theirs, bit) {
        set_bit(mine, bit);
        0i128.write(mine, at);
        return true;
    }
    add(mine, i128::read(theirs, at), limit, bit, at)
}

/// `sum / count` with `scale` decimals in the sum and `out_scale` in the result; none when the result has more than
/// `precision` digits or `count` is zero.
pub(super) fn average(sum: i128, count: i64, scale: i8, precision: u8, out_scale: i8) -> Option<i128> {
    let limit = 10i128.checked_pow(u32::from(precision))?;
    let lift = i32::from(out_scale) - i32::from(scale);
    let result = match narrow(sum, count, lift) {
        Some(result) => result,
        None => wide(sum, count, lift)?,
    };
    (result > -limit && result < limit).then_some(result)
}

/// Most digits of an average that Spark computes as a double.
const DOUBLE_DIGITS: u8 = 15;

/// True if Spark averages decimals of this precision as doubles.
pub(super) fn in_doubles(precision: u8) -> bool {
    precision + 4 <= DOUBLE_DIGITS
}

/// As [`average`], computed as a double, whose shortest text is then rounded half up.
pub(super) fn average_in_doubles(sum: i128, count: i64, scale: i8, precision: u8, out_scale: i8) -> Option<i128> {
    let limit = 10i128.checked_pow(u32::from(precision))?;
    let value = sum as f64 / count as f64 / 10f64.powi(i32::from(scale));
    let text = format!("{value:e}");
    let (digits, exponent) = text.split_once('e')?;
    let decimals = digits.split_once('.').map_or(0, |(_, decimals)| decimals.len());
    let lift = exponent.parse::<i32>().ok()? - i32::try_from(decimals).ok()? + i32::from(out_scale);
    let result = wide(digits.replace('.', "").parse().ok()?, 1, lift)?;
    (result > -limit && result < limit).then_some(result)
}

/// `sum * 10^lift / count`, rounded half up, where that fits into 128 bits; else none.
fn narrow(sum: i128, count: i64, lift: i32) -> Option<i128> {
    let dividend = sum.checked_mul(10i128.checked_pow(u32::try_from(lift).ok()?)?)?;
    let divisor = i128::from(count);
    let quotient = dividend.checked_div(divisor)?;
    // |rest| < divisor, an i64 count: doubling it is safe.
    let up = (dividend % divisor).abs() * 2 >= divisor;
    Some(if up { quotient + dividend.signum() } else { quotient })
}

/// The same in 256 bits, for any `lift`; none where the result does not fit into 128 bits.
fn wide(sum: i128, count: i64, lift: i32) -> Option<i128> {
    let ten = i256::from_i128(10).checked_pow(lift.unsigned_abs())?;
    let (sum, count) = (i256::from_i128(sum), i256::from_i128(i128::from(count)));
    let (dividend, divisor) = if lift < 0 { (sum, count.checked_mul(ten)?) } else { (sum.checked_mul(ten)?, count) };
    let quotient = dividend.checked_div(divisor)?;
    let rest = dividend.checked_rem(divisor)?;
    let rest = if rest.is_negative() { rest.wrapping_neg() } else { rest };
    // half up without doubling, which could overflow: rest >= divisor - rest
    let up = rest >= divisor.wrapping_sub(rest);
    let step = i256::from_i128(if dividend.is_negative() { -1 } else { 1 });
    if up { quotient.checked_add(step)?.to_i128() } else { quotient.to_i128() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Decimals of Spark's quotient, before it is rounded to the result's.
    const SPARK_SCALE: usize = 39;

    /// Spark's rule, digit by digit: long division into 39 decimals, the rest cut off, then half up at `out_scale`.
    fn spark(sum: i128, count: i64, scale: u8, precision: u8, out_scale: u8) -> Option<i128> {
        let count = u128::try_from(count).unwrap();
        // Zeros in front, so that there are digits left of every point.
        let mut digits = vec![0; SPARK_SCALE];
        digits.extend(sum.unsigned_abs().to_string().bytes().map(|digit| digit - b'0'));
        digits.resize(digits.len() + SPARK_SCALE - usize::from(scale), 0);
        let mut rest = 0u128;
        for digit in &mut digits {
            rest = rest * 10 + u128::from(*digit);
            *digit = u8::try_from(rest / count).unwrap();
            rest %= count;
        }
        let kept = digits.len() - (SPARK_SCALE - usize::from(out_scale));
        let half = digits[kept] >= 5;
        let text: String = digits[..kept].iter().map(|digit| char::from(digit + b'0')).collect();
        let text = text.trim_start_matches('0');
        if text.len() > 38 {
            return None;
        }
        let magnitude: i128 = if text.is_empty() { 0 } else { text.parse().unwrap() };
        let magnitude = magnitude + i128::from(half);
        (magnitude < 10i128.pow(u32::from(precision))).then_some(magnitude * sum.signum())
    }

    #[test]
    fn half_up_away_from_zero() {
        // 1/3, 2/3 at 4 decimals; 0.5 → 1, −0.5 → −1 at none.
        assert_eq!(average(1, 3, 0, 10, 4), Some(3333));
        assert_eq!(average(2, 3, 0, 10, 4), Some(6667));
        assert_eq!(average(1, 2, 0, 10, 0), Some(1));
        assert_eq!(average(-1, 2, 0, 10, 0), Some(-1));
        assert_eq!(average(-2, 3, 0, 10, 4), Some(-6667));
        assert_eq!(average(1, 0, 0, 10, 4), None);
    }

    #[test]
    fn too_many_digits_are_none() {
        let nines = 10i128.pow(38) - 1;
        assert_eq!(average(nines, 1, 0, 38, 0), Some(nines));
        assert_eq!(average(nines, 1, 0, 38, 4), None);
        assert_eq!(average(nines, 1, 0, 37, 0), None);
        assert_eq!(average(nines, 10_000, 0, 38, 4), Some(nines));
        assert_eq!(average(-nines, 3, 38, 38, 38), Some(-33_333_333_333_333_333_333_333_333_333_333_333_333));
    }

    /// The quotient 0.(36 threes)149…: half up at 38 decimals makes …15, and half up of that at 37 rounds it up once
    /// more.
    #[test]
    fn a_quotient_is_rounded_once() {
        // 10^33 / 701 at 37 decimals: its decimals 37 to 39 are 4, 4 and more than 5 for some counts below 2,000.
        let mut near = 0;
        for count in 1..2_000 {
            let sum = 10i128.pow(33) + i128::from(count);
            let once = spark(sum, count, 33, 38, 37);
            assert_eq!(average(sum, count, 33, 38, 37), once, "{sum} / {count}");
            let twice = wide(sum, count, 5).and_then(|at_38| wide(at_38, 1, -1));
            near += i32::from(twice != once);
        }
        assert!(near > 20, "only {near} of these quotients differ when they are rounded twice");
    }

    #[test]
    fn every_scale_of_the_widest_decimals_is_sparks() {
        for scale in 0..=38u8 {
            let out = (scale + 4).min(38);
            for count in [1, 2, 3, 7, 9, 11, 999, 1_000_003, i64::MAX] {
                for sum in [1, 5, 49, 10i128.pow(19) + 1, 10i128.pow(37) + 3, 10i128.pow(38) - 1] {
                    for sum in [sum, -sum] {
                        let [s, o] = [scale, out].map(|n| i8::try_from(n).unwrap());
                        let expected = spark(sum, count, scale, 38, out);
                        assert_eq!(average(sum, count, s, 38, o), expected, "{sum} / {count} at {scale}");
                    }
                }
            }
        }
    }

    #[test]
    fn averages_of_few_digits_are_those_of_doubles() {
        assert!(in_doubles(11) && !in_doubles(12));
        let both = |sum, count, scale, precision| {
            let out = scale + 4;
            (average_in_doubles(sum, count, scale, precision, out), average(sum, count, scale, precision, out))
        };
        assert_eq!(both(1, 3, 2, 15), (Some(3333), Some(3333)));
        assert_eq!(both(-2, 3, 0, 10), (Some(-6667), Some(-6667)));
        assert_eq!(both(0, 3, 0, 10), (Some(0), Some(0)));
        assert_eq!(both(1, 0, 0, 10), (None, None));
        assert_eq!(both(99_999_999_999, 1, 11, 11), (None, None));
        // A double has 16 digits for the 15 that are asked for, and two divisions err in the last.
        let differ = (1..2_000i128).filter(|n| {
            let (doubles, exact) = both(97 * 99_990_000_000 + n * 7_919, 97, 0, 15);
            assert!(doubles.zip(exact).is_some_and(|(a, b)| (a - b).abs() <= 1));
            doubles != exact
        });
        assert!(differ.count() > 20);
    }

    fn digits() -> impl Strategy<Value = i128> {
        (0u32..=38).prop_flat_map(|digits| -(10i128.pow(digits) - 1)..=10i128.pow(digits) - 1)
    }

    fn counts() -> impl Strategy<Value = i64> {
        prop_oneof![1i64..1000, 1i64..1_000_000_000, 1..=i64::MAX]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(20_000))]

        #[test]
        fn averages_are_sparks(sum in digits(), count in counts(), scale in 0u8..=38, out in 0u8..=38, p in 1u8..=38) {
            // Results of any scale: Spark's own is four more than the input's, and at most 38.
            for out in [out, (scale + 4).min(38)] {
                let [s, o] = [scale, out].map(|n| i8::try_from(n).unwrap());
                prop_assert_eq!(average(sum, count, s, p, o), spark(sum, count, scale, p, out));
            }
        }

        #[test]
        fn narrow_and_wide_agree(sum in digits(), count in counts(), lift in 0i32..=38) {
            if let Some(result) = narrow(sum, count, lift) {
                prop_assert_eq!(Some(result), wide(sum, count, lift));
            }
        }

        #[test]
        fn a_negative_scale_is_more_zeros(sum in -10i128.pow(20)..10i128.pow(20), count in counts(), scale in -17i8..0) {
            let zeros = sum * 10i128.pow(u32::from(scale.unsigned_abs()));
            prop_assert_eq!(average(sum, count, scale, 38, 0), average(zeros, count, 0, 38, 0));
        }
    }
}
