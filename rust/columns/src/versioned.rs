//! Keys and values of a state whose value type has changed over time, between Arrow and bytes.
//!
//! Owns: the version of the value type in front of each encoded value, the choice of the type to decode with.
//! Does not own: the encoding of one type (`typed`), the conversion of types (`evolution`), which types a state had
//! (its catalog), where the bytes are kept.
//!
//! ```text
//! value   version as LEB128 | the value as `typed` encodes it
//! ```
//!
//! Versions count from 0; values are written in one of them, the newest or one that was there before. Strings are in
//! their binary form: those of a query need not be UTF-8. Invariants:
//! 1. a value read back is the value written, converted to the type that values are written in; a null has no bytes;
//! 2. keys have the bytes that `codec` gives their columns;
//! 3. bytes that no value has are an error of kind `Corrupt`.

use super::arrays::{mismatch, same_values, type_text};
use super::evolution::Evolution;
use super::strings::binary_type;
use super::typed::TypedEntries;
use arrow_array::{Array, ArrayRef, BinaryArray};
use arrow_buffer::{NullBuffer, OffsetBuffer, ScalarBuffer};
use arrow_schema::DataType;
use fastchangelog_format::wire::{Reader, put_varint};
use fastchangelog_format::{Error, Result};

const VALUE: &str = "an encoded value";

/// The types of a state: of its keys, and all that its values had.
#[derive(Debug)]
pub struct VersionedEntries {
    written: TypedEntries,
    /// The version of `written`.
    current: usize,
    /// By version, the other types; each with the way to `written`. None for the current version.
    others: Vec<Option<(TypedEntries, Evolution)>>,
}

impl VersionedEntries {
    /// `versions` are the types that values were written in, and `value`, which they are written in now, is one of
    /// them; without any, `value` is the first. The error for a type that cannot become `value` names each field that
    /// is in the way.
    pub fn new(key: &DataType, value: &DataType, versions: &[DataType]) -> Result<Self> {
        let current = match versions.iter().rposition(|version| same_values(version, value)) {
            Some(current) => current,
            None if versions.is_empty() => 0,
            None => {
                let texts: Vec<_> = versions.iter().map(type_text).collect();
                return Err(Error::invalid(format!(
                    "the value type {} is none of its versions, which are {}",
                    type_text(value),
                    texts.join(", ")
                )));
            }
        };
        let to_written = |(version, from): (usize, &DataType)| {
            if version == current {
                return Ok(None);
            }
            // The names of types in the error are the declared ones.
            Evolution::new(from, value).map_err(|e| e.context(format_args!("version {version} of the value type")))?;
            let evolution = Evolution::new(&binary_type(from), &binary_type(value))?;
            Ok(Some((TypedEntries::new(key, from)?, evolution)))
        };
        let written = TypedEntries::new(key, value)?;
        let mut others = versions.iter().enumerate().map(to_written).collect::<Result<Vec<_>>>()?;
        if others.is_empty() {
            others.push(None);
        }
        Ok(Self { written, current, others })
    }

    /// The type of keys.
    pub fn key_type(&self) -> &DataType {
        self.written.key_type()
    }

    /// The type that values are written in.
    pub fn value_type(&self) -> &DataType {
        self.written.value_type()
    }

    /// Refuses a column of another type than that of keys, before its strings become binaries.
    pub fn check_keys(&self, actual: &DataType) -> Result<()> {
        check(actual, self.key_type())
    }

    /// As [`VersionedEntries::check_keys`], of values.
    pub fn check_values(&self, actual: &DataType) -> Result<()> {
        check(actual, self.value_type())
    }

    /// Encodes keys, none of which may be null.
    pub fn encode_keys(&self, keys: &ArrayRef) -> Result<BinaryArray> {
        self.written.encode_keys(keys)?.into_binary()
    }

    /// The keys of some bytes, strings in their binary form.
    pub fn decode_keys(&self, keys: &BinaryArray) -> Result<ArrayRef> {
        if keys.null_count() > 0 {
            return Err(Error::invalid("a key's bytes are null"));
        }
        self.written.decode_keys_binary((0..keys.len()).map(|i| keys.value(i)))
    }

    /// Encodes values; a null for a null.
    pub fn encode_values(&self, values: &ArrayRef) -> Result<BinaryArray> {
        let encoded = self.written.encode_values(values, values.len())?;
        let mut prefix = Vec::new();
        put_varint(&mut prefix, self.current as u64);
        let (mut bytes, mut ends) = (Vec::new(), Vec::with_capacity(values.len() + 1));
        let mut valid = Vec::with_capacity(values.len());
        ends.push(0);
        for i in 0..values.len() {
            let value = encoded.value(i);
            valid.push(value.is_some());
            if let Some(value) = value {
                bytes.extend_from_slice(&prefix);
                bytes.extend_from_slice(value);
            }
            ends.push(i32::try_from(bytes.len()).map_err(|_| {
                Error::invalid("values of more than 2 GiB cannot be encoded at once")
                    .with_remedy("pass fewer at a time")
            })?);
        }
        let offsets = OffsetBuffer::new(ScalarBuffer::from(ends));
        let nulls = NullBuffer::from(valid);
        Ok(BinaryArray::try_new(offsets, bytes.into(), Some(nulls).filter(|nulls| nulls.null_count() > 0))?)
    }

    /// The values of some bytes, of any version, in the type that values are written in; strings in their binary form.
    pub fn decode_values(&self, values: &BinaryArray) -> Result<ArrayRef> {
        // Of each version, its values; and of each row, where its value is among them.
        let mut of_version: Vec<Vec<Option<&[u8]>>> = vec![Vec::new(); self.others.len()];
        let mut places = Vec::with_capacity(values.len());
        for i in 0..values.len() {
            let (version, value) = match values.is_valid(i).then(|| values.value(i)) {
                None => (self.current, None),
                Some(bytes) => {
                    let (version, value) = self.cut(bytes)?;
                    (version, Some(value))
                }
            };
            places.push((version, of_version[version].len()));
            of_version[version].push(value);
        }
        if of_version[self.current].len() == values.len() {
            return self.decode(self.current, std::mem::take(&mut of_version[self.current]));
        }
        let decoded = of_version.into_iter().enumerate();
        let decoded = decoded.map(|(version, values)| self.decode(version, values)).collect::<Result<Vec<_>>>()?;
        let columns: Vec<&dyn Array> = decoded.iter().map(AsRef::as_ref).collect();
        Ok(arrow_select::interleave::interleave(&columns, &places)?)
    }

    /// The version of a value, and its bytes.
    fn cut<'a>(&self, value: &'a [u8]) -> Result<(usize, &'a [u8])> {
        let mut reader = Reader::new(VALUE, 0, value);
        let version: usize = reader.varint_as("the version of the value type")?;
        if version >= self.others.len() {
            let newest = self.others.len() - 1;
            let what = format_args!("version {version} of the value type, of which the newest is {newest}");
            return Err(Error::corrupt(VALUE, 0, what));
        }
        Ok((version, reader.take(reader.remaining(), "the value")?))
    }

    fn decode(&self, version: usize, values: Vec<Option<&[u8]>>) -> Result<ArrayRef> {
        match &self.others[version] {
            None => self.written.decode_values_binary(values.into_iter()),
            Some((types, evolution)) => evolution.apply(&types.decode_values_binary(values.into_iter())?),
        }
    }
}

fn check(actual: &DataType, declared: &DataType) -> Result<()> {
    if same_values(actual, declared) { Ok(()) } else { Err(mismatch(actual, declared)) }
}

#[cfg(test)]
#[path = "versioned_tests.rs"]
mod tests;
