//! Keys and values of a declared state, between Arrow and bytes.
//!
//! Owns: the encoding of keys (canonical, in order) and of values (exact), bounds and prefixes of keys.
//! Does not own: the row encoding (`codec`), the storage of the bytes.
//!
//! A type is one Arrow type; named columns are a struct. A struct key is encoded field by field, so that the leading
//! fields are a prefix of its bytes. Values have no order to keep: a string or binary is its own bytes, where the row
//! encoding would add a third; all others are encoded as rows. Invariants:
//! 1. keys compare as their bytes do; equal keys have equal bytes, as in `codec`;
//! 2. a value read back is the value written, bit by bit; a null is never encoded: it deletes.

use super::arrays::{conform, plain_type, type_text};
use super::codec::{EncodedKeys, KeyCodec};
use super::strings::{binary_type, conform_binary};
use arrow_array::builder::GenericBinaryBuilder;
use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, BinaryArray, LargeBinaryArray, OffsetSizeTrait, StructArray};
use arrow_buffer::OffsetBuffer;
use arrow_cast::CastOptions;
use arrow_schema::{DataType, Field, Fields};
use fastchangelog_format::{Error, Result};
use std::sync::Arc;

/// The types of one declared state.
#[derive(Debug)]
pub struct TypedEntries {
    key: DataType,
    value: DataType,
    keys: KeyCodec,
    values: Values,
}

/// How values become bytes.
#[derive(Debug)]
enum Values {
    /// Strings or binaries of this plain type, stored unchanged.
    Exact(DataType),
    /// As rows of one column; with the row of a null.
    Rows(KeyCodec, Vec<u8>),
}

/// Encoded values, in the order of their rows.
#[derive(Debug)]
pub enum EncodedValues {
    /// Unchanged.
    Exact(LargeBinaryArray),
    /// As rows, and which of them are null.
    Rows(EncodedKeys, ArrayRef),
}

impl EncodedValues {
    /// Number of rows.
    pub fn len(&self) -> usize {
        match self {
            Self::Exact(values) => values.len(),
            Self::Rows(_, values) => values.len(),
        }
    }

    /// True without rows.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of all values, about: those of nulls may count.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Exact(values) => {
                let offsets = values.value_offsets();
                usize::try_from(offsets[values.len()] - offsets[0]).unwrap_or(0)
            }
            Self::Rows(rows, _) => rows.bytes(),
        }
    }

    /// Number of nulls.
    pub fn null_count(&self) -> usize {
        match self {
            Self::Exact(values) => values.null_count(),
            Self::Rows(_, values) => values.null_count(),
        }
    }

    /// The value of row `i`; none for a null.
    #[inline]
    pub fn value(&self, i: usize) -> Option<&[u8]> {
        match self {
            Self::Exact(values) => values.is_valid(i).then(|| values.value(i)),
            Self::Rows(rows, values) => values.is_valid(i).then(|| rows.key(i)),
        }
    }

    /// The values as a column. Their bytes are shared.
    pub fn into_binary(self) -> Result<BinaryArray> {
        let too_much = || {
            Error::invalid("values of more than 2 GiB cannot be encoded at once").with_remedy("pass fewer at a time")
        };
        match self {
            Self::Exact(values) => {
                let (offsets, bytes, nulls) = values.into_parts();
                let offsets = offsets.iter().map(|offset| i32::try_from(*offset)).collect::<Result<Vec<_>, _>>();
                let offsets = OffsetBuffer::new(offsets.map_err(|_| too_much())?.into());
                Ok(BinaryArray::try_new(offsets, bytes, nulls)?)
            }
            Self::Rows(rows, values) => {
                let (offsets, bytes, _) = rows.into_binary().map_err(|_| too_much())?.into_parts();
                Ok(BinaryArray::try_new(offsets, bytes, values.nulls().cloned())?)
            }
        }
    }
}

/// A part of the keys, in their order: from the first bound, before the second.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KeyRange {
    /// The first key's bytes, or a prefix of them.
    pub from: Vec<u8>,
    /// Exclusive upper bound of the keys; none = no bound.
    pub to: Option<Vec<u8>>,
}

/// The columns that keys of a type are encoded as.
pub fn columns_of(data_type: &DataType) -> Fields {
    match data_type {
        DataType::Struct(fields) => fields.clone(),
        other => vec![Field::new("key", other.clone(), true)].into(),
    }
}

/// Keys of a type from their columns.
pub fn joined(data_type: &DataType, mut columns: Vec<ArrayRef>) -> Result<ArrayRef> {
    match data_type {
        DataType::Struct(fields) => Ok(Arc::new(StructArray::try_new(fields.clone(), columns, None)?)),
        _ => columns.pop().ok_or_else(|| Error::internal("a key has a column")),
    }
}

impl Values {
    fn of(value: &DataType) -> Result<Self> {
        let plain = plain_type(value);
        if matches!(plain, DataType::Utf8 | DataType::LargeUtf8 | DataType::Binary | DataType::LargeBinary) {
            return Ok(Self::Exact(plain));
        }
        let codec = KeyCodec::of_value(value, false)
            .map_err(|_| Error::invalid(format!("a value of type {} is not supported", type_text(value))))?;
        let null = codec.null()?.key(0).to_vec();
        Ok(Self::Rows(codec, null))
    }
}

fn binaries<O: OffsetSizeTrait>(values: &[Option<&[u8]>], bytes: usize) -> ArrayRef {
    let mut builder = GenericBinaryBuilder::<O>::with_capacity(values.len(), bytes);
    values.iter().for_each(|value| builder.append_option(*value));
    Arc::new(builder.finish())
}

/// Values that are their own bytes.
fn exact<'a>(values: impl Iterator<Item = Option<&'a [u8]>>) -> ArrayRef {
    let values: Vec<_> = values.collect();
    let bytes = values.iter().flatten().map(|value| value.len()).sum();
    match i32::try_from(bytes) {
        Ok(_) => binaries::<i32>(&values, bytes),
        Err(_) => binaries::<i64>(&values, bytes),
    }
}

fn one(mut columns: Vec<ArrayRef>) -> Result<ArrayRef> {
    columns.pop().ok_or_else(|| Error::internal("a value has a column"))
}

/// What an error of decoding so many bytes means: Arrow's columns have 32-bit offsets, and fail beyond as if bytes were
/// damaged.
fn or_too_much(error: Error, bytes: usize) -> Error {
    match i32::try_from(bytes) {
        Ok(_) => error,
        Err(_) => Error::invalid(format!("{bytes} bytes at once are beyond the limit of a column, {} bytes", i32::MAX))
            .with_remedy("read fewer keys at once, and split longer lists over several keys"),
    }
}

/// The same bytes under another type. Bytes that are no text, where text is wanted, are damage.
fn exactly(array: &ArrayRef, target: &DataType) -> Result<ArrayRef> {
    let options = CastOptions { safe: false, ..CastOptions::default() };
    arrow_cast::cast_with_options(array, target, &options).map_err(|e| Error::corrupt("an encoded value", 0, e))
}

impl TypedEntries {
    /// The types of a state. Fails for types that cannot be kept.
    pub fn new(key: &DataType, value: &DataType) -> Result<Self> {
        if columns_of(key).is_empty() {
            return Err(
                Error::invalid("a key without fields is the same for all rows").with_remedy("name at least one")
            );
        }
        let keys = KeyCodec::new(&columns_of(key))?;
        Ok(Self { key: key.clone(), value: value.clone(), keys, values: Values::of(value)? })
    }

    /// The type of keys.
    pub fn key_type(&self) -> &DataType {
        &self.key
    }

    /// The type of values.
    pub fn value_type(&self) -> &DataType {
        &self.value
    }

    /// Encodes keys, of which none may be null.
    pub fn encode_keys(&self, keys: &ArrayRef) -> Result<EncodedKeys> {
        if keys.null_count() > 0 {
            return Err(Error::invalid("a key is null").with_remedy("leave such rows out"));
        }
        self.keys.encode(&self.split(keys)?, keys.len())
    }

    /// Encodes values; those of `keys` keys. Strings may be in their binary form.
    pub fn encode_values(&self, values: &ArrayRef, keys: usize) -> Result<EncodedValues> {
        if values.len() != keys {
            return Err(Error::invalid(format!(
                "the batch has {keys} keys and {} values; give one value for each key",
                values.len()
            )));
        }
        match &self.values {
            Values::Exact(plain) => {
                let bytes = conform_binary(values, plain, &binary_type(plain))?;
                let bytes = exactly(&bytes, &DataType::LargeBinary)?;
                Ok(EncodedValues::Exact(bytes.as_binary().clone()))
            }
            Values::Rows(codec, _) => {
                let rows = codec.encode(std::slice::from_ref(values), values.len())?;
                Ok(EncodedValues::Rows(rows, Arc::clone(values)))
            }
        }
    }

    /// The keys of some bytes.
    pub fn decode_keys<'a>(&self, keys: impl Iterator<Item = &'a [u8]>) -> Result<ArrayRef> {
        let mut bytes = 0;
        let decoded = self.keys.decode(keys.inspect(|key| bytes += key.len()));
        joined(&self.key, decoded.map_err(|error| or_too_much(error, bytes))?)
    }

    /// As [`TypedEntries::decode_keys`], with strings in their binary form.
    pub fn decode_keys_binary<'a>(&self, keys: impl Iterator<Item = &'a [u8]>) -> Result<ArrayRef> {
        joined(&binary_type(&self.key), self.keys.decode_binary(keys)?)
    }

    /// The values of some bytes; a null where there are none.
    pub fn decode_values<'a>(&self, values: impl Iterator<Item = Option<&'a [u8]>>) -> Result<ArrayRef> {
        let mut bytes = 0;
        let values = values.inspect(|value| bytes += value.map_or(0, <[u8]>::len));
        let decoded = match &self.values {
            Values::Exact(plain) => exactly(&exact(values), plain).and_then(|plain| conform(&plain, &self.value)),
            Values::Rows(codec, null) => codec.decode(values.map(|value| value.unwrap_or(null))).and_then(one),
        };
        decoded.map_err(|error| or_too_much(error, bytes))
    }

    /// As [`TypedEntries::decode_values`], with strings in their binary form.
    pub fn decode_values_binary<'a>(&self, values: impl Iterator<Item = Option<&'a [u8]>>) -> Result<ArrayRef> {
        match &self.values {
            Values::Exact(_) => conform(&exact(values), &binary_type(&self.value)),
            Values::Rows(codec, null) => one(codec.decode_binary(values.map(|value| value.unwrap_or(null)))?),
        }
    }

    /// The bytes of one key, or of the leading fields of one.
    pub fn bound(&self, key: &ArrayRef) -> Result<Vec<u8>> {
        if key.len() != 1 || key.null_count() > 0 {
            return Err(Error::invalid("the bound of a scan is null; give one key"));
        }
        let columns = self.leading(key)?;
        let fields: Fields = self.fields()[..columns.len()].to_vec().into();
        Ok(KeyCodec::new(&fields)?.encode(&columns, 1)?.key(0).to_vec())
    }

    /// The keys that begin with `prefix`: with these bytes, for strings and binaries; with these leading fields, for
    /// structs.
    pub fn beginning_with(&self, prefix: &ArrayRef) -> Result<KeyRange> {
        match &self.key {
            DataType::Struct(_) => {
                let from = self.bound(prefix)?;
                let to = successor(&from);
                Ok(KeyRange { from, to })
            }
            DataType::Utf8 | DataType::Binary => {
                let from = self.bound(prefix)?;
                let plain = arrow_cast::cast(prefix, &DataType::Binary)?;
                // The encoding cuts strings into blocks: a prefix of a string is none of its bytes. Strings are encoded
                // as their bytes are, so the end is the next string of bytes, whether it is text or not.
                let to = successor(plain.as_binary::<i32>().value(0)).map(|end| {
                    let end: ArrayRef = Arc::new(BinaryArray::from(vec![&end[..]]));
                    let codec = KeyCodec::of_value(&DataType::Binary, false)?;
                    Ok::<_, Error>(codec.encode(&[end], 1)?.key(0).to_vec())
                });
                Ok(KeyRange { from, to: to.transpose()? })
            }
            other => Err(Error::invalid(format!("keys of type {} have no prefixes", type_text(other)))
                .with_remedy("give `start` and `end`")),
        }
    }

    fn fields(&self) -> Fields {
        columns_of(&self.key)
    }

    /// The columns of keys.
    pub fn split(&self, keys: &ArrayRef) -> Result<Vec<ArrayRef>> {
        match (&self.key, keys.as_struct_opt()) {
            (DataType::Struct(fields), Some(found)) if found.num_columns() == fields.len() => {
                Ok(found.columns().to_vec())
            }
            (DataType::Struct(_), _) => Err(self.wrong_key(keys)),
            _ => Ok(vec![Arc::clone(keys)]),
        }
    }

    fn leading(&self, key: &ArrayRef) -> Result<Vec<ArrayRef>> {
        match (&self.key, key.as_struct_opt()) {
            (DataType::Struct(fields), Some(found)) if (1..=fields.len()).contains(&found.num_columns()) => {
                Ok(found.columns().to_vec())
            }
            (DataType::Struct(_), _) => Err(self.wrong_key(key)),
            _ => Ok(vec![Arc::clone(key)]),
        }
    }

    fn wrong_key(&self, keys: &ArrayRef) -> Error {
        Error::invalid(format!(
            "a key has the type {}, but {} is declared",
            type_text(keys.data_type()),
            type_text(&self.key)
        ))
    }
}

/// The first bytes after all that begin with `prefix`; none if there are none.
pub fn successor(prefix: &[u8]) -> Option<Vec<u8>> {
    let end = prefix.iter().rposition(|&b| b != u8::MAX)? + 1;
    let mut next = prefix[..end].to_vec();
    next[end - 1] += 1;
    Some(next)
}

#[cfg(test)]
#[path = "typed_tests.rs"]
mod tests;
