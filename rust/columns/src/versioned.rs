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
use super::strings::{as_text, binary_type};
use super::type_parser::{declared_text, parse_type};
use super::typed::TypedEntries;
use arrow_array::{Array, ArrayRef, BinaryArray};
use arrow_buffer::{OffsetBuffer, ScalarBuffer};
use arrow_schema::DataType;
use fastchangelog_format::wire::{Reader, put_varint};
use fastchangelog_format::{Error, Result};

const VALUE: &str = "an encoded value";
/// Versions below this one take one byte.
const ONE_BYTE: usize = 0x80;

/// The types of a state: of its keys, and all that its values had.
#[derive(Debug)]
pub struct VersionedEntries {
    written: TypedEntries,
    /// The version of `written`.
    current: usize,
    /// By version, the other types; each with the way to `written`. None for the current version.
    others: Vec<Option<(TypedEntries, Evolution)>>,
    /// The current version as bytes; none: values have no version in front.
    prefix: Vec<u8>,
}

/// Values in the order of their versions.
enum Sorted<'a> {
    /// All are of the current version.
    Current(Vec<Option<&'a [u8]>>),
    /// The values of each version; and for each row, its version and its place among these.
    Mixed(Vec<Vec<Option<&'a [u8]>>>, Vec<(usize, usize)>),
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
                    "the value type {} is not among its versions, {}",
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
        let mut prefix = Vec::new();
        put_varint(&mut prefix, current as u64);
        Ok(Self { written, current, others, prefix })
    }

    /// As [`VersionedEntries::new`], with the versions as texts; see [`declared_text`]. A version of the text of `value` is
    /// `value` itself.
    pub fn of_texts(key: &DataType, value: &DataType, versions: &[String]) -> Result<Self> {
        let declared = declared_text(value);
        let version = |text: &String| if *text == declared { Ok(value.clone()) } else { parse_type(text) };
        Self::new(key, value, &versions.iter().map(version).collect::<Result<Vec<_>>>()?)
    }

    /// The types of a state whose values have no version in front: they have one type for ever.
    pub fn plain(key: &DataType, value: &DataType) -> Result<Self> {
        Ok(Self { written: TypedEntries::new(key, value)?, current: 0, others: vec![None], prefix: Vec::new() })
    }

    /// Keys, and the type that values are written in.
    pub fn typed(&self) -> &TypedEntries {
        &self.written
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
        let encoded = self.written.encode_values(values, values.len())?.into_binary()?;
        if self.prefix.is_empty() {
            return Ok(encoded);
        }
        let mut bytes = Vec::with_capacity(encoded.value_data().len() + self.prefix.len() * encoded.len());
        let mut ends = Vec::with_capacity(encoded.len() + 1);
        ends.push(0);
        for i in 0..encoded.len() {
            if encoded.is_valid(i) {
                bytes.extend_from_slice(&self.prefix);
                bytes.extend_from_slice(encoded.value(i));
            }
            ends.push(i32::try_from(bytes.len()).map_err(|_| too_many_bytes())?);
        }
        let offsets = OffsetBuffer::new(ScalarBuffer::from(ends));
        Ok(BinaryArray::try_new(offsets, bytes.into(), encoded.nulls().cloned())?)
    }

    /// The version that values are written in, as bytes; empty if values have none.
    pub fn version(&self) -> &[u8] {
        &self.prefix
    }

    /// The values of some bytes, of any version, in the type that values are written in; strings in their binary form.
    pub fn decode_values(&self, values: &BinaryArray) -> Result<ArrayRef> {
        match self.sorted((0..values.len()).map(|i| values.is_valid(i).then(|| values.value(i))))? {
            Sorted::Current(values) => self.written.decode_values_binary(values.into_iter()),
            Sorted::Mixed(of_version, places) => self.interleaved(of_version, &places),
        }
    }

    /// As [`VersionedEntries::decode_values`], with strings as text.
    pub fn decode_text<'a>(&self, values: impl Iterator<Item = Option<&'a [u8]>>) -> Result<ArrayRef> {
        match self.sorted(values)? {
            Sorted::Current(values) => self.written.decode_values(values.into_iter()),
            Sorted::Mixed(of_version, places) => {
                let binary = self.interleaved(of_version, &places)?;
                as_text(&binary, self.value_type()).map_err(|error| Error::corrupt(VALUE, 0, error))
            }
        }
    }

    fn sorted<'a>(&self, values: impl Iterator<Item = Option<&'a [u8]>>) -> Result<Sorted<'a>> {
        if self.prefix.is_empty() {
            return Ok(Sorted::Current(values.collect()));
        }
        let mut current = Vec::with_capacity(values.size_hint().0);
        let mut values = values;
        for bytes in values.by_ref() {
            let Some(bytes) = bytes else {
                current.push(None);
                continue;
            };
            let (version, value) = self.cut(bytes)?;
            if version != self.current {
                return self.mixed(current, (version, value), values);
            }
            current.push(Some(value));
        }
        Ok(Sorted::Current(current))
    }

    /// Sorts values after some of the current version, `first` before the rest.
    fn mixed<'a>(
        &self,
        current: Vec<Option<&'a [u8]>>,
        first: (usize, &'a [u8]),
        rest: impl Iterator<Item = Option<&'a [u8]>>,
    ) -> Result<Sorted<'a>> {
        let mut of_version: Vec<Vec<Option<&[u8]>>> = vec![Vec::new(); self.others.len()];
        let mut places: Vec<_> = (0..current.len()).map(|i| (self.current, i)).collect();
        of_version[self.current] = current;
        let mut push = |version: usize, value| {
            places.push((version, of_version[version].len()));
            of_version[version].push(value);
        };
        push(first.0, Some(first.1));
        for bytes in rest {
            match bytes {
                None => push(self.current, None),
                Some(bytes) => self.cut(bytes).map(|(version, value)| push(version, Some(value)))?,
            }
        }
        Ok(Sorted::Mixed(of_version, places))
    }

    fn interleaved(&self, of_version: Vec<Vec<Option<&[u8]>>>, places: &[(usize, usize)]) -> Result<ArrayRef> {
        let decoded = of_version.into_iter().enumerate();
        let decoded = decoded.map(|(version, values)| self.decode(version, values)).collect::<Result<Vec<_>>>()?;
        let columns: Vec<&dyn Array> = decoded.iter().map(AsRef::as_ref).collect();
        Ok(arrow_select::interleave::interleave(&columns, places)?)
    }

    /// The version of a value, and its bytes.
    fn cut<'a>(&self, value: &'a [u8]) -> Result<(usize, &'a [u8])> {
        // Nearly all versions take one byte.
        if let Some((&version, rest)) = value.split_first()
            && usize::from(version) < self.others.len().min(ONE_BYTE)
        {
            return Ok((usize::from(version), rest));
        }
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

fn too_many_bytes() -> Error {
    Error::invalid("values of more than 2 GiB cannot be encoded at once").with_remedy("pass fewer at a time")
}

fn check(actual: &DataType, declared: &DataType) -> Result<()> {
    if same_values(actual, declared) { Ok(()) } else { Err(mismatch(actual, declared)) }
}

#[cfg(test)]
#[path = "versioned_tests.rs"]
mod tests;
