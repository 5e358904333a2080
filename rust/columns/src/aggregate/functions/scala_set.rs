//! The order in which Spark reads a set of values: that of Scala's `mutable.HashSet`.
//!
//! Owns: the order, and the hashes that it comes from. Does not own: the values (`collect`).
//!
//! Spark fills the set that it reads anew, from the set that its state has. So the order depends on the values alone,
//! and on which of those with one hash came first. Values of nested types are hashed by their bytes in Spark's memory,
//! which are not at hand: they stay in the order in which they came.

use crate::aggregate::prim::Native;
use arrow_schema::{DataType, IntervalUnit};

/// Sorts distinct values of a type, which are in the order in which they came first.
pub(super) fn sort(data_type: &DataType, values: &mut Vec<&[u8]>) {
    let Some(hash) = hash_of(data_type) else {
        return;
    };
    let last = places(values.len()) - 1;
    // Buckets in order; in each of them the values by hash, and those of one hash as they came.
    values.sort_by_cached_key(|value| {
        let hash = hash(value);
        let improved = hash ^ (hash.cast_unsigned() >> 16).cast_signed();
        (improved.cast_unsigned() & last, improved)
    });
}

/// The size of the table of so many values: the smallest power of two of which they fill less than three quarters.
fn places(values: usize) -> u32 {
    let mut places = 16usize;
    while values + 1 > places / 4 * 3 {
        places *= 2;
    }
    u32::try_from(places).unwrap_or(1 << 31)
}

type Hash = Box<dyn Fn(&[u8]) -> i32>;

/// Scala's hash of a value that Spark's set has for one of the type.
fn hash_of(data_type: &DataType) -> Option<Hash> {
    Some(match data_type {
        DataType::Boolean => Box::new(|value| if value == [0] { 1237 } else { 1231 }),
        DataType::Int8 => Box::new(|value| i32::from(i8::read(value, 0))),
        DataType::Int16 => Box::new(|value| i32::from(i16::read(value, 0))),
        // A float is in the set as its bits, and so is a double.
        DataType::Int32 | DataType::Date32 | DataType::Float32 | DataType::Interval(IntervalUnit::YearMonth) => {
            Box::new(|value| i32::read(value, 0))
        }
        DataType::Int64 | DataType::Float64 | DataType::Timestamp(..) | DataType::Duration(_) | DataType::Time64(_) => {
            Box::new(|value| of_long(i64::read(value, 0)))
        }
        DataType::Decimal128(_, scale) => {
            let scale = *scale;
            Box::new(move |value| of_decimal(i128::read(value, 0), scale))
        }
        DataType::Utf8 | DataType::LargeUtf8 => Box::new(murmur),
        DataType::Binary | DataType::LargeBinary => Box::new(|value| murmur(&unsafe_array(value))),
        _ => return None,
    })
}

fn of_long(value: i64) -> i32 {
    i32::try_from(value).unwrap_or_else(|_| fold(value))
}

#[expect(clippy::cast_possible_truncation, reason = "the halves of a long")]
fn fold(value: i64) -> i32 {
    (value ^ (value.cast_unsigned() >> 32).cast_signed()) as i32
}

/// `BigDecimal.hashCode` of Scala.
#[expect(clippy::cast_possible_truncation, reason = "as Scala casts")]
fn of_decimal(value: i128, scale: i8) -> i32 {
    let (mut digits, mut scale) = (value, i32::from(scale));
    while digits != 0 && digits % 10 == 0 {
        (digits, scale) = (digits / 10, scale - 1);
    }
    if digits == 0 {
        return 0;
    }
    if scale <= 0 {
        let whole = 10i128.checked_pow(scale.unsigned_abs()).and_then(|unit| digits.checked_mul(unit));
        return of_whole(whole.unwrap_or(value));
    }
    let double: f64 = format!("{digits}e-{scale}").parse().unwrap_or(f64::NAN);
    if is_text_of(double, digits, scale) {
        let float = double as f32;
        return if f64::from(float) == double {
            float.to_bits().cast_signed()
        } else {
            fold(double.to_bits().cast_signed())
        };
    }
    // Murmur's last step of the digits and the scale.
    of_integer(digits) ^ mixed(scale)
}

/// True if the shortest text of a double has these decimals.
fn is_text_of(double: f64, digits: i128, scale: i32) -> bool {
    let text = format!("{double:e}");
    let Some((mantissa, exponent)) = text.split_once('e') else {
        return false;
    };
    let decimals = mantissa.split_once('.').map_or(0, |(_, decimals)| decimals.len());
    let decimals = i32::try_from(decimals).unwrap_or_default() - exponent.parse::<i32>().unwrap_or_default();
    mantissa.replace('.', "").parse() == Ok(digits) && decimals == scale
}

fn of_whole(value: i128) -> i32 {
    i64::try_from(value).map_or_else(|_| of_integer(value), of_long)
}

/// `BigInteger.hashCode` of Java.
#[expect(clippy::cast_possible_truncation, reason = "words of 32 bits")]
fn of_integer(value: i128) -> i32 {
    let magnitude = value.unsigned_abs();
    let words = (0..4).rev().map(|word| (magnitude >> (32 * word)) as u32).skip_while(|word| *word == 0);
    let hash = words.fold(0u32, |hash, word| hash.wrapping_mul(31).wrapping_add(word)).cast_signed();
    if value < 0 { hash.wrapping_neg() } else { hash }
}

/// An array of bytes in Spark's memory: their number, a bit for each, the bytes; each part in words of eight bytes.
fn unsafe_array(value: &[u8]) -> Vec<u8> {
    let mut bytes = (value.len() as u64).to_le_bytes().to_vec();
    bytes.resize(8 + value.len().div_ceil(64) * 8, 0);
    bytes.extend_from_slice(value);
    bytes.resize(bytes.len().next_multiple_of(8), 0);
    bytes
}

/// Spark's `Murmur3_x86_32.hashUnsafeBytes` with the seed 42: of the bytes behind the last word, each is a word.
#[expect(clippy::cast_possible_truncation, reason = "an Arrow value is at most 2 GiB")]
fn murmur(bytes: &[u8]) -> i32 {
    let (words, rest) = bytes.as_chunks::<4>();
    let words = words.iter().map(|word| i32::from_le_bytes(*word));
    let rest = rest.iter().map(|byte| i32::from(byte.cast_signed()));
    let hash = words.chain(rest).fold(42u32, |hash, word| {
        (hash ^ mixed(word).cast_unsigned()).rotate_left(13).wrapping_mul(5).wrapping_add(0xe654_6b64)
    });
    let mut hash = hash ^ bytes.len() as u32;
    hash = (hash ^ (hash >> 16)).wrapping_mul(0x85eb_ca6b);
    hash = (hash ^ (hash >> 13)).wrapping_mul(0xc2b2_ae35);
    (hash ^ (hash >> 16)).cast_signed()
}

fn mixed(word: i32) -> i32 {
    word.cast_unsigned().wrapping_mul(0xcc9e_2d51).rotate_left(15).wrapping_mul(0x1b87_3593).cast_signed()
}

#[cfg(test)]
#[path = "scala_set_tests.rs"]
mod tests;
