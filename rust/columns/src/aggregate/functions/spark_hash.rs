//! Spark's `xxhash64` of values.
//!
//! Owns: the hash of a value of each type, with the seed 42. Does not own: its use (`approx_count_distinct`).
//!
//! The hash of a nested value goes through its parts: the hash of one is the seed of the next, and a null leaves it.

use crate::aggregate::fold::Bytes;
use crate::aggregate::prim::{Native, Prim};
use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef};
use arrow_schema::DataType;
use fastchangelog_format::{Error, Result};
use xxhash_rust::xxh64::xxh64;

const SEED: u64 = 42;
/// Digits of the decimals that Spark keeps in a long.
const LONG_DIGITS: u8 = 18;

/// The hash of a row's value that goes on from another one.
type Hasher<'a> = Box<dyn Fn(usize, u64) -> u64 + 'a>;

/// True for the types that have a hash.
pub(super) fn has_hash(data_type: &DataType) -> bool {
    match data_type {
        DataType::Struct(fields) => fields.iter().all(|field| has_hash(field.data_type())),
        DataType::List(element) => has_hash(element.data_type()),
        DataType::Map(entries, _) => has_hash(entries.data_type()),
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Binary | DataType::LargeBinary => true,
        other => Prim::of(other).is_some(),
    }
}

/// The hash of the value of each row, which is not null.
pub(super) fn hashes(column: &ArrayRef) -> Result<impl Fn(usize) -> u64> {
    let hasher = hasher(column)?;
    Ok(move |row| hasher(row, SEED))
}

fn hasher(column: &ArrayRef) -> Result<Hasher<'_>> {
    let of_values: Hasher<'_> = match column.data_type() {
        DataType::Struct(_) => {
            let parts = column.as_struct().columns().iter().map(hasher).collect::<Result<Vec<_>>>()?;
            Box::new(move |row, seed| parts.iter().fold(seed, |seed, part| part(row, seed)))
        }
        DataType::List(_) => elements(column.as_list::<i32>().value_offsets(), column.as_list::<i32>().values())?,
        DataType::Map(..) => {
            let map = column.as_map();
            let (keys, values) = (hasher(map.keys())?, hasher(map.values())?);
            in_order(map.value_offsets(), move |entry, seed| values(entry, keys(entry, seed)))
        }
        DataType::Binary | DataType::LargeBinary => {
            let bytes = Bytes::of(column)?;
            Box::new(move |row, seed| xxh64(bytes.get(row), seed))
        }
        other => prims(column, other)?,
    };
    if column.null_count() == 0 {
        return Ok(of_values);
    }
    Ok(Box::new(move |row, seed| if column.is_null(row) { seed } else { of_values(row, seed) }))
}

fn elements<'a>(offsets: &'a [i32], values: &'a ArrayRef) -> Result<Hasher<'a>> {
    Ok(in_order(offsets, hasher(values)?))
}

/// The hash of the elements between two offsets, one after the other.
#[expect(clippy::cast_sign_loss, reason = "Arrow offsets into memory")]
fn in_order<'a>(offsets: &'a [i32], element: impl Fn(usize, u64) -> u64 + 'a) -> Hasher<'a> {
    Box::new(move |row, seed| {
        let range = offsets[row] as usize..offsets[row + 1] as usize;
        range.fold(seed, |seed, i| element(i, seed))
    })
}

/// Machine values: those of up to four bytes are hashed as an int, others as a long, and decimals that no long holds as
/// the bytes of Java's `BigInteger`. There is one zero and one NaN.
fn prims(column: &ArrayRef, data_type: &DataType) -> Result<Hasher<'static>> {
    fn hashed<N: Native, const WIDTH: usize>(
        column: &ArrayRef,
        bytes: impl Fn(N) -> [u8; WIDTH] + 'static,
    ) -> Result<Hasher<'static>> {
        let values = N::values(column)?;
        Ok(Box::new(move |row, seed| xxh64(&bytes(values[row]), seed)))
    }
    match Prim::of(data_type) {
        Some(Prim::Bool) => hashed(column, |value: u8| i32::from(value).to_le_bytes()),
        Some(Prim::I8) => hashed(column, |value: i8| i32::from(value).to_le_bytes()),
        Some(Prim::I16) => hashed(column, |value: i16| i32::from(value).to_le_bytes()),
        Some(Prim::I32) => hashed(column, i32::to_le_bytes),
        Some(Prim::I64) => hashed(column, i64::to_le_bytes),
        Some(Prim::F32) => hashed(column, |value: f32| {
            let bits = if value == 0.0 { 0 } else { value.to_bits() };
            (if value.is_nan() { 0x7fc0_0000 } else { bits }).to_le_bytes()
        }),
        Some(Prim::F64) => hashed(column, |value: f64| {
            let bits = if value == 0.0 { 0 } else { value.to_bits() };
            (if value.is_nan() { 0x7ff8_0000_0000_0000 } else { bits }).to_le_bytes()
        }),
        Some(Prim::I128) => match data_type {
            DataType::Decimal128(digits, _) if *digits > LONG_DIGITS => {
                let values = i128::values(column)?;
                Ok(Box::new(move |row, seed| xxh64(shortest(&values[row].to_be_bytes()), seed)))
            }
            #[expect(clippy::cast_possible_truncation, reason = "a long has all digits")]
            _ => hashed(column, |value: i128| (value as i64).to_le_bytes()),
        },
        None => Err(Error::internal(format_args!("a column of {data_type} has no hash"))),
    }
}

/// The fewest last bytes of a number in two's complement that are the same number.
fn shortest(number: &[u8; 16]) -> &[u8] {
    let sign = if number[0] < 0x80 { 0 } else { 0xff };
    let same_sign = |i: usize| (number[i] ^ sign) & 0x80 == 0;
    let from = (0..15).find(|i| number[*i] != sign || !same_sign(i + 1)).unwrap_or(15);
    &number[from..]
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow_array::types::Int32Type;
    use arrow_array::{BinaryArray, Decimal128Array, Float64Array, Int32Array, Int64Array, ListArray, StructArray};
    use std::sync::Arc;

    #[test]
    fn a_decimal_has_the_bytes_of_javas_integer() {
        let bytes = |number: i128| shortest(&number.to_be_bytes()).to_vec();
        assert_eq!(bytes(0), [0]);
        assert_eq!(bytes(-1), [0xff]);
        assert_eq!(bytes(127), [0x7f]);
        assert_eq!(bytes(128), [0, 0x80]);
        assert_eq!(bytes(-128), [0x80]);
        assert_eq!(bytes(-129), [0xff, 0x7f]);
        assert_eq!(bytes(i128::MAX)[..2], [0x7f, 0xff]);
    }

    /// `xxhash64('Spark', array(123), 2)` of Spark's documentation.
    #[test]
    fn hashes_are_sparks() {
        let array = ListArray::from_iter_primitive::<Int32Type, _, _>([Some([Some(123)])]);
        let parts: Vec<(&str, ArrayRef)> = vec![
            ("text", Arc::new(BinaryArray::from(vec![b"Spark".as_slice()]))),
            ("null", Arc::new(Int32Array::from(vec![None]))),
            ("array", Arc::new(array)),
            ("number", Arc::new(Int32Array::from(vec![2]))),
        ];
        let parts: ArrayRef = Arc::new(StructArray::try_from(parts).unwrap());
        assert_eq!(hashes(&parts).unwrap()(0).cast_signed(), 5_602_566_077_635_097_486);
    }

    #[test]
    fn equal_numbers_have_one_hash() {
        let one = |column: ArrayRef| hashes(&column).unwrap()(0);
        let double = |value: f64| one(Arc::new(Float64Array::from(vec![value])));
        assert_eq!(double(0.0), double(-0.0));
        assert_eq!(double(f64::NAN), double(-f64::NAN));
        let decimal =
            |digits| one(Arc::new(Decimal128Array::from(vec![5]).with_precision_and_scale(digits, 2).unwrap()));
        assert_eq!(decimal(18), one(Arc::new(Int64Array::from(vec![5]))));
        assert_ne!(decimal(19), decimal(18));
    }
}
