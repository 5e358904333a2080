//! Values as doubles and back: the type in which Spark's approximate percentiles and histograms reckon.
//!
//! Owns: both conversions, the rounding of decimals. Does not own: the results.

use crate::aggregate::prim::{Native, Prim, doubles};
use arrow_array::ArrayRef;
use arrow_buffer::NullBuffer;
use arrow_schema::DataType;
use fastchangelog_format::Result;

/// The values of a column as doubles: of dates and times their days and microseconds.
pub(super) fn to_doubles(column: &ArrayRef) -> Result<Vec<f64>> {
    Ok(match Prim::of(column.data_type()) {
        Some(Prim::I32) => i32::values(column)?.iter().map(|value| f64::from(*value)).collect(),
        _ => doubles(column)?.to_vec(),
    })
}

/// Doubles as a column with the machine type of `value`. For decimals they are rounded to `digits` before the scale.
#[expect(clippy::cast_possible_truncation, reason = "they were values of the type")]
pub(super) fn from_doubles(
    values: &[f64],
    value: &DataType,
    nulls: Option<NullBuffer>,
    digits: Option<u8>,
) -> ArrayRef {
    fn of<N: Native>(values: &[f64], cast: impl Fn(f64) -> N, nulls: Option<NullBuffer>) -> ArrayRef {
        N::array(values.iter().map(|value| cast(*value)).collect(), nulls)
    }
    match Prim::of(value) {
        Some(Prim::I8) => of(values, |value| value as i8, nulls),
        Some(Prim::I16) => of(values, |value| value as i16, nulls),
        Some(Prim::I32) => of(values, |value| value as i32, nulls),
        Some(Prim::I64) => of(values, |value| value as i64, nulls),
        Some(Prim::F32) => of(values, |value| value as f32, nulls),
        Some(Prim::I128) => {
            let decimals: Vec<Option<i128>> = values.iter().map(|number| decimal(*number, value, digits)).collect();
            let there = NullBuffer::from(decimals.iter().map(Option::is_some).collect::<Vec<_>>());
            let nulls = NullBuffer::union(nulls.as_ref(), Some(&there)).filter(|nulls| nulls.null_count() > 0);
            i128::array(decimals.into_iter().map(Option::unwrap_or_default).collect(), nulls)
        }
        _ => of(values, |value| value, nulls),
    }
}

/// The digits of a double as a decimal of a type, rounded half up, and before to `most` digits; none if it has too many.
fn decimal(number: f64, data_type: &DataType, most: Option<u8>) -> Option<i128> {
    let DataType::Decimal128(precision, scale) = data_type else {
        return None;
    };
    let text = format!("{number:e}");
    let (mantissa, exponent) = text.split_once('e')?;
    let (whole, decimals) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let mut digits: i128 = format!("{whole}{decimals}").parse().ok()?;
    let mut shift = i32::from(*scale) + exponent.parse::<i32>().ok()? - i32::try_from(decimals.len()).ok()?;
    let count = digits.unsigned_abs().checked_ilog10().map_or(1, |log| log + 1);
    let surplus = most.map_or(0, |most| count.saturating_sub(u32::from(most)));
    digits = half_up(digits, 10i128.checked_pow(surplus)?);
    shift += surplus.cast_signed();
    let unit = 10i128.checked_pow(shift.unsigned_abs());
    let found = match unit {
        Some(unit) if shift >= 0 => digits.checked_mul(unit)?,
        Some(unit) => half_up(digits, unit),
        None if shift < 0 => 0,
        None => return None,
    };
    (found.unsigned_abs() < 10u128.pow(u32::from(*precision))).then_some(found)
}

/// A number in units, rounded.
fn half_up(digits: i128, unit: i128) -> i128 {
    digits / unit + digits.signum() * i128::from((digits % unit).abs() >= unit - unit / 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decimals_are_rounded_half_up() {
        let of = |number: f64| decimal(number, &DataType::Decimal128(5, 2), None);
        assert_eq!(of(1.25), Some(125));
        assert_eq!(of(-1.255), Some(-126));
        assert_eq!(of(1.254_999), Some(125));
        assert_eq!(of(1e-300), Some(0));
        assert_eq!(of(999.995), None);
        assert_eq!(of(1e300), None);
        assert_eq!(of(f64::NAN), None);
        let twice = |number: f64| decimal(number, &DataType::Decimal128(4, 2), Some(4));
        assert_eq!([1.004_950_495, -1.004_950_495, 12.345, 99.99].map(twice), [101, -101, 1235, 9999].map(Some));
        assert_eq!(twice(99.996), None);
    }
}
