//! Machine values in fixed slots.
//!
//! Owns: which types they stand for, reading and writing them in row bytes, their order, and the typed view of a
//! column.
//! Does not own: their meaning (`functions`).

use crate::arrays::relabel;
use arrow_array::cast::AsArray;
use arrow_array::types::{
    ArrowPrimitiveType, Decimal128Type, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type,
};
use arrow_array::{Array, ArrayRef, BooleanArray, PrimitiveArray};
use arrow_buffer::{ArrowNativeType, NullBuffer, ScalarBuffer};
use arrow_schema::{DataType, IntervalUnit};
use fastchangelog_format::Result;
use std::sync::Arc;

/// The machine type of values in fixed slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Prim {
    Bool,
    I8,
    I16,
    I32,
    I64,
    F32,
    F64,
    I128,
}

impl Prim {
    /// The machine type of a column's values, if it is one.
    pub(super) fn of(data_type: &DataType) -> Option<Self> {
        Some(match data_type {
            DataType::Boolean => Self::Bool,
            DataType::Int8 => Self::I8,
            DataType::Int16 => Self::I16,
            DataType::Int32 | DataType::Date32 | DataType::Time32(_) | DataType::Interval(IntervalUnit::YearMonth) => {
                Self::I32
            }
            DataType::Int64
            | DataType::Date64
            | DataType::Timestamp(..)
            | DataType::Time64(_)
            | DataType::Duration(_) => Self::I64,
            DataType::Float32 => Self::F32,
            DataType::Float64 => Self::F64,
            DataType::Decimal128(..) => Self::I128,
            _ => return None,
        })
    }

    pub(super) fn width(self) -> usize {
        match self {
            Self::Bool | Self::I8 => 1,
            Self::I16 => 2,
            Self::I32 | Self::F32 => 4,
            Self::I64 | Self::F64 => 8,
            Self::I128 => 16,
        }
    }
}

/// A machine value that a slot can hold, little endian.
pub(super) trait Native: ArrowNativeType {
    /// Reads the value at byte `at` of the row.
    fn read(row: &[u8], at: usize) -> Self;
    /// Writes the value at byte `at` of the row.
    fn write(self, row: &mut [u8], at: usize);
    /// Strictly before in Spark's order: NaN is the greatest, −0.0 equals 0.0.
    fn before(self, other: Self) -> bool;
    /// The values of a column of this machine type.
    fn values(column: &ArrayRef) -> Result<ScalarBuffer<Self>>;
    /// A column of these values.
    fn array(values: Vec<Self>, nulls: Option<NullBuffer>) -> ArrayRef;
}

macro_rules! slot_bytes {
    () => {
        #[inline]
        fn read(row: &[u8], at: usize) -> Self {
            let mut bytes = [0; size_of::<Self>()];
            bytes.copy_from_slice(&row[at..at + size_of::<Self>()]);
            Self::from_le_bytes(bytes)
        }

        #[inline]
        fn write(self, row: &mut [u8], at: usize) {
            row[at..at + size_of::<Self>()].copy_from_slice(&self.to_le_bytes());
        }
    };
}

macro_rules! native {
    ($native:ty, $arrow:ty, |$a:ident, $b:ident| $before:expr) => {
        impl Native for $native {
            slot_bytes!();

            #[inline]
            fn before(self, other: Self) -> bool {
                let ($a, $b) = (self, other);
                $before
            }

            fn values(column: &ArrayRef) -> Result<ScalarBuffer<Self>> {
                if let Some(array) = column.as_primitive_opt::<$arrow>() {
                    return Ok(array.values().clone());
                }
                let array = relabel(column, &<$arrow as ArrowPrimitiveType>::DATA_TYPE)?;
                Ok(array.as_primitive::<$arrow>().values().clone())
            }

            fn array(values: Vec<Self>, nulls: Option<NullBuffer>) -> ArrayRef {
                Arc::new(PrimitiveArray::<$arrow>::new(values.into(), nulls))
            }
        }
    };
}

native!(i8, Int8Type, |a, b| a < b);
native!(i16, Int16Type, |a, b| a < b);
native!(i32, Int32Type, |a, b| a < b);
native!(i64, Int64Type, |a, b| a < b);
native!(i128, Decimal128Type, |a, b| a < b);
native!(f32, Float32Type, |a, b| a < b || (b.is_nan() && !a.is_nan()));
native!(f64, Float64Type, |a, b| a < b || (b.is_nan() && !a.is_nan()));

/// A boolean, as the byte 0 or 1.
impl Native for u8 {
    slot_bytes!();

    #[inline]
    fn before(self, other: Self) -> bool {
        self < other
    }

    fn values(column: &ArrayRef) -> Result<ScalarBuffer<Self>> {
        Ok(column.as_boolean().values().iter().map(u8::from).collect())
    }

    fn array(values: Vec<Self>, nulls: Option<NullBuffer>) -> ArrayRef {
        Arc::new(BooleanArray::new(values.into_iter().map(|v| v != 0).collect(), nulls))
    }
}

/// Runs `$body` with `$native` bound to the machine type of `$prim`.
macro_rules! with_native {
    ($prim:expr, $native:ident => $body:expr) => {{
        use $crate::aggregate::prim::Prim;
        match $prim {
            Prim::Bool => {
                type $native = u8;
                $body
            }
            Prim::I8 => {
                type $native = i8;
                $body
            }
            Prim::I16 => {
                type $native = i16;
                $body
            }
            Prim::I32 => {
                type $native = i32;
                $body
            }
            Prim::I64 => {
                type $native = i64;
                $body
            }
            Prim::F32 => {
                type $native = f32;
                $body
            }
            Prim::F64 => {
                type $native = f64;
                $body
            }
            Prim::I128 => {
                type $native = i128;
                $body
            }
        }
    }};
}
pub(super) use with_native;

/// True for the types of integers.
pub(super) fn is_integer(data_type: &DataType) -> bool {
    matches!(data_type, DataType::Int8 | DataType::Int16 | DataType::Int32 | DataType::Int64)
}

/// An integer column (or one of dates, times, intervals) as i64.
pub(super) fn integers(column: &ArrayRef) -> Result<ScalarBuffer<i64>> {
    Ok(match column.data_type() {
        DataType::Int8 => i8::values(column)?.iter().map(|v| i64::from(*v)).collect(),
        DataType::Int16 => i16::values(column)?.iter().map(|v| i64::from(*v)).collect(),
        DataType::Int32 | DataType::Interval(_) => i32::values(column)?.iter().map(|v| i64::from(*v)).collect(),
        _ => i64::values(column)?,
    })
}

/// A numeric column as f64, as Spark casts it.
#[expect(clippy::cast_precision_loss, reason = "as Spark casts it")]
pub(super) fn doubles(column: &ArrayRef) -> Result<ScalarBuffer<f64>> {
    Ok(match column.data_type() {
        DataType::Float64 => f64::values(column)?,
        DataType::Float32 => f32::values(column)?.iter().map(|v| f64::from(*v)).collect(),
        DataType::Decimal128(_, scale) => i128::values(column)?.iter().map(|v| decimal_as_double(*v, *scale)).collect(),
        _ => integers(column)?.iter().map(|v| *v as f64).collect(),
    })
}

/// The double that is nearest to a decimal.
#[expect(clippy::cast_precision_loss, reason = "exact below 2^53, and read from a text above")]
fn decimal_as_double(value: i128, scale: i8) -> f64 {
    /// Powers of ten up to this one are doubles.
    const EXACT: i8 = 22;
    if value.unsigned_abs() < 1 << 53 && (0..=EXACT).contains(&scale) {
        // One division of two exact doubles rounds once.
        return value as f64 / 10f64.powi(i32::from(scale));
    }
    format!("{value}e{}", -i32::from(scale)).parse().unwrap_or(f64::NAN)
}

/// An array of the slots' values as a column of `data_type`, which has the same machine type.
pub(super) fn column(array: &ArrayRef, data_type: &DataType) -> Result<ArrayRef> {
    relabel(array, data_type)
}

/// Bit `bit` of the row.
#[inline]
pub(super) fn has_bit(row: &[u8], bit: usize) -> bool {
    row[bit / 8] & (1 << (bit % 8)) != 0
}

/// Sets bit `bit` of the row.
#[inline]
pub(super) fn set_bit(row: &mut [u8], bit: usize) {
    row[bit / 8] |= 1 << (bit % 8);
}

/// Sets or clears bit `bit` of the row.
#[inline]
pub(super) fn put_bit(row: &mut [u8], bit: usize, on: bool) {
    let mask = 1 << (bit % 8);
    row[bit / 8] = (row[bit / 8] & !mask) | if on { mask } else { 0 };
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_decimal_is_the_nearest_double(digits in 0u32..=38, seed in any::<i128>(), scale in -5i8..=38) {
            let value = seed % 10i128.pow(digits);
            let text = format!("{value}e{}", -i32::from(scale));
            prop_assert_eq!(decimal_as_double(value, scale), text.parse::<f64>().unwrap());
        }
    }
}
