//! Canonical key bytes and their hash.
//!
//! Owns: the encoding of key columns into one order-preserving byte string per row, its inverse, and the stable hash.
//! Does not own: the key group of a hash (`model::ids`), the storage of keys.
//!
//! Invariants:
//! 1. two rows have equal bytes exactly when Spark's `groupBy` puts them into one group: null is a key, all NaN are one
//!    key, −0.0 is 0.0, a map's entries have no order, at any depth;
//! 2. bytes depend on values only: not on the physical form of the column nor on a time zone label; a string is its
//!    bytes, UTF-8 or not;
//! 3. bytes and hashes never change between releases (a golden test pins them): state outlives library versions.

use super::arrays::{conform, has_normal_form, normalise, plain_type, type_text};
use super::strings::{as_text, binary_type, conform_binary};
use arrow_array::{ArrayRef, BinaryArray, new_null_array};
use arrow_row::{RowConverter, Rows, SortField};
use arrow_schema::{DataType, Fields};
use fastchangelog_format::{Error, Result};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The stable hash of a key: XXH3, 64 bits, seed 0.
#[inline]
pub fn hash_key(key: &[u8]) -> u64 {
    xxhash_rust::xxh3::xxh3_64(key)
}

/// Bytes of a timestamp in a key.
pub const TIME_BYTES: usize = 9;

/// The bytes with which a key begins whose first column is a timestamp of microseconds.
#[inline]
pub fn time_prefix(micros: i64) -> [u8; TIME_BYTES] {
    let mut prefix = [VALUE; TIME_BYTES];
    prefix[1..].copy_from_slice(&(micros ^ i64::MIN).to_be_bytes());
    prefix
}

/// The timestamp with which a key begins; none for null.
#[inline]
pub fn time_of(key: &[u8]) -> Option<i64> {
    let (first, rest) = key.split_first()?;
    let time = rest.first_chunk::<8>()?;
    (*first == VALUE).then(|| i64::from_be_bytes(*time) ^ i64::MIN)
}

/// The first byte of a column that is not null.
const VALUE: u8 = 1;

/// Encodes the rows of some columns as byte strings and back.
///
/// The bytes of unequal values differ, and compare like the values (nulls first). With no columns every row's key is
/// the empty string.
#[derive(Debug)]
pub struct KeyCodec {
    /// As declared.
    types: Vec<DataType>,
    /// With binaries in the place of strings.
    binary: Vec<DataType>,
    /// As encoded: with dictionaries and views resolved too.
    plain: Vec<DataType>,
    /// Which columns have values that are equal without being identical.
    normal: Vec<bool>,
    converter: Option<RowConverter>,
}

/// The keys of one batch of rows.
#[derive(Debug)]
pub struct EncodedKeys {
    rows: Option<Rows>,
    len: usize,
}

impl EncodedKeys {
    /// Number of rows.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True without rows.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes of all keys.
    pub fn bytes(&self) -> usize {
        self.rows.as_ref().map_or(0, |rows| rows.lengths().sum())
    }

    /// The key of row `i`.
    #[inline]
    pub fn key(&self, i: usize) -> &[u8] {
        self.rows.as_ref().map_or(&[], |rows| rows.row(i).data())
    }

    /// The keys as a column.
    pub fn into_binary(self) -> Result<BinaryArray> {
        match self.rows {
            Some(rows) => rows.try_into_binary().map_err(|_| {
                Error::invalid("keys of more than 2 GiB cannot be encoded at once").with_remedy("pass fewer at a time")
            }),
            None => Ok(BinaryArray::from_iter_values(std::iter::repeat_n(&[], self.len))),
        }
    }

    /// The hashes of all keys, in order.
    pub fn hashes(&self) -> Vec<u64> {
        match &self.rows {
            Some(rows) => rows.iter().map(|row| hash_key(row.data())).collect(),
            None => vec![hash_key(&[]); self.len],
        }
    }
}

impl KeyCodec {
    /// The codec of key columns. [`KeyCodec::decode`] gives arrays of exactly the types of `fields`, so these are best
    /// the key fields of the *output* schema (their time zone labels included).
    ///
    /// Fails for a type that cannot be a key.
    pub fn new(fields: &Fields) -> Result<Self> {
        Self::of_types(fields.iter().map(|f| f.data_type().clone()).collect(), true)
    }

    /// The codec of one column of values that are compared or kept; `normal` as for keys, else bit by bit.
    pub(super) fn of_value(data_type: &DataType, normal: bool) -> Result<Self> {
        Self::of_types(vec![data_type.clone()], normal)
    }

    fn of_types(types: Vec<DataType>, normal: bool) -> Result<Self> {
        let binary: Vec<_> = types.iter().map(binary_type).collect();
        let plain: Vec<_> = binary.iter().map(plain_type).collect();
        let converter = if plain.is_empty() {
            None
        } else {
            let fields = plain.iter().map(|t| SortField::new(t.clone())).collect();
            Some(RowConverter::new(fields).map_err(|_| {
                let names: Vec<_> = types.iter().map(type_text).collect();
                Error::invalid(format!("a key of type ({}) is not supported", names.join(", ")))
                    .with_remedy("group by other columns")
            })?)
        };
        let normal = plain.iter().map(|t| normal && has_normal_form(t)).collect();
        Ok(Self { types, binary, plain, normal, converter })
    }

    /// The types that [`KeyCodec::decode`] gives.
    pub fn types(&self) -> &[DataType] {
        &self.types
    }

    /// Encodes `rows` rows of the key columns. A column may differ from its field in physical form (dictionary, large
    /// or view variant, time zone label), not in the type of its values; strings may be in their binary form.
    pub fn encode(&self, columns: &[ArrayRef], rows: usize) -> Result<EncodedKeys> {
        if columns.len() != self.plain.len() || columns.iter().any(|c| c.len() != rows) {
            return Err(Error::invalid(format!(
                "{} key columns of {rows} rows were declared, but {} columns came",
                self.plain.len(),
                columns.len()
            )));
        }
        let Some(converter) = &self.converter else {
            return Ok(EncodedKeys { rows: None, len: rows });
        };
        let mut normal = Vec::with_capacity(columns.len());
        for (i, column) in columns.iter().enumerate() {
            let column = conform_binary(column, &self.types[i], &self.plain[i])?;
            normal.push(if self.normal[i] { normalise(&column)? } else { column });
        }
        Ok(EncodedKeys { rows: Some(converter.convert_columns(&normal)?), len: rows })
    }

    /// The encoding of one row of nulls.
    pub(super) fn null(&self) -> Result<EncodedKeys> {
        let nulls: Vec<_> = self.plain.iter().map(|t| new_null_array(t, 1)).collect();
        self.encode(&nulls, 1)
    }

    /// The columns of the given keys, in order. Bytes that no key has, and strings that are not UTF-8, are an error of
    /// kind `Corrupt`: for keys whose strings were UTF-8 when they were encoded.
    pub fn decode<'a>(&self, keys: impl Iterator<Item = &'a [u8]>) -> Result<Vec<ArrayRef>> {
        let columns = self.decode_binary(keys)?;
        let text = columns.iter().zip(&self.types).map(|(column, declared)| as_text(column, declared));
        text.collect::<Result<_>>().map_err(|e| Error::corrupt("an encoded value", 0, e.message()))
    }

    /// As [`KeyCodec::decode`], with strings in their binary form.
    pub fn decode_binary<'a>(&self, keys: impl Iterator<Item = &'a [u8]>) -> Result<Vec<ArrayRef>> {
        let Some(converter) = &self.converter else {
            return Ok(vec![]);
        };
        let parser = converter.parser();
        let rows: Vec<_> = keys.map(|key| parser.parse(key)).collect();
        // The decoder trusts its input and panics on bytes that it did not write.
        let arrays = catch_unwind(AssertUnwindSafe(|| converter.convert_rows(rows)))
            .map_err(|_| Error::corrupt("an encoded value", 0, "not an encoding of the declared type"))?
            .map_err(|e| Error::corrupt("an encoded value", 0, e))?;
        arrays.iter().zip(&self.binary).map(|(array, data_type)| conform(array, data_type)).collect()
    }
}

#[cfg(test)]
#[path = "codec_tests.rs"]
mod tests;
