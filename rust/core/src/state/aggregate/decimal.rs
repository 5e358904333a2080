//! Averages of decimals.
//!
//! Owns: the division of an exact sum by a count, rounded as Spark does.
//! Does not own: the sum (`update`, `merge`).

use arrow_buffer::i256;

/// Spark divides into 38 decimals, rounding half up, and rounds that to the result's scale, half up.
const DIVISION_SCALE: i8 = 38;

/// `sum / count` with `scale` decimals in the sum and `out_scale` in the result; none when the result has more than
/// `precision` digits or `count` is zero.
pub(super) fn average(sum: i128, count: i64, scale: i8, precision: u8, out_scale: i8) -> Option<i128> {
    let limit = 10i128.checked_pow(u32::from(precision))?;
    let lift = u32::try_from(out_scale.checked_sub(scale)?).ok();
    // Rounding twice differs from rounding once only if the exact quotient is within 10^-38 of a tie, and it is at
    // least 1/(2 count 10^out_scale) away from one.
    let once = count < 1_000_000_000_000_000 && out_scale <= 22;
    let narrow = lift.and_then(|lift| sum.checked_mul(10i128.checked_pow(lift)?)).filter(|_| once);
    let result = match narrow {
        Some(dividend) => divide_half_up(dividend, i128::from(count))?,
        None => wide(sum, count, scale, out_scale)?,
    };
    (result > -limit && result < limit).then_some(result)
}

fn divide_half_up(dividend: i128, divisor: i128) -> Option<i128> {
    let quotient = dividend.checked_div(divisor)?;
    let rest = dividend % divisor;
    // |rest| < divisor, an i64 count: doubling it is safe.
    Some(if rest.abs() * 2 >= divisor { quotient + dividend.signum() } else { quotient })
}

fn wide(sum: i128, count: i64, scale: i8, out_scale: i8) -> Option<i128> {
    let ten = |n: i8| i256::from_i128(10).checked_pow(u32::try_from(n).ok()?);
    let dividend = i256::from_i128(sum).checked_mul(ten(DIVISION_SCALE - scale)?)?;
    let quotient = wide_half_up(dividend, i256::from_i128(i128::from(count)))?;
    wide_half_up(quotient, ten(DIVISION_SCALE - out_scale)?)?.to_i128()
}

fn wide_half_up(dividend: i256, divisor: i256) -> Option<i256> {
    let quotient = dividend.checked_div(divisor)?;
    let rest = dividend.checked_rem(divisor)?;
    let rest = if rest.is_negative() { rest.wrapping_neg() } else { rest };
    // half up without doubling, which could overflow: rest >= divisor - rest
    if rest >= divisor.wrapping_sub(rest) {
        let one = i256::from_i128(if dividend.is_negative() { -1 } else { 1 });
        quotient.checked_add(one)
    } else {
        Some(quotient)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

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

    proptest! {
        #[test]
        fn narrow_and_wide_agree(sum in -10i128.pow(24)..10i128.pow(24), count in 1i64..1_000_000, scale in 0i8..=10) {
            prop_assert_eq!(average(sum, count, scale, 38, scale + 4), wide(sum, count, scale, scale + 4));
        }
    }
}
