//! Keys and values of Spark's state stores: their encodings around rows.
//!
//! Owns: the version byte, the key encoders (none, prefix scan, range scan), the elements of a list.
//! Does not own: rows (`spark_rows`), the id of a column family before a key (the store's reader).
//!
//! ```text
//! plain    0 | row
//! prefix   length of the next part: 4 bytes | 0 | row of the first columns | 0 | row of the others
//! range    the same with the columns of the order first, each as binary: 0 negative, 1, or 2 null | big-endian
//! list     for each element: length: 4 bytes | 0 | row; between elements a comma, or nothing
//! ```
//!
//! RocksDB merges the elements of a list: with a comma up to Spark 4.1, without from 4.2 on
//! (`spark.sql.streaming.stateStore.rocksdb.mergeOperatorVersion`). A row has a multiple of eight bytes, so the first
//! byte of a length is no comma, and both forms are read, also mixed.
//!
//! The HDFS-backed provider keeps plain rows, without the version byte.

use crate::spark_rows::{Column, Damage, Region, RowColumns, push_fields};
use arrow_array::StructArray;
use arrow_schema::{DataType, Fields};
use fastchangelog_format::error::{Error, Result};
use serde::Deserialize;

/// Before each row.
const ROW_VERSION: u8 = 0;
const DELIMITER: u8 = b',';
/// Bytes of a row are a multiple of it.
const ALIGNMENT: usize = 8;
const LENGTH: usize = 4;
const NEGATIVE: u8 = 0;
const POSITIVE: u8 = 1;
const NULL: u8 = 2;

type Read<T> = std::result::Result<T, Damage>;

/// How keys are encoded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeyEncoder {
    /// As a row.
    Plain,
    /// So many first columns, which a scan may give, then the others.
    Prefix(usize),
    /// These columns in an order that RocksDB keeps, then the others.
    Range(Vec<usize>),
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Written {
    key_state_encoder_type: String,
    #[serde(default)]
    num_cols_prefix_key: usize,
    #[serde(default)]
    ordering_ordinals: Vec<usize>,
}

impl KeyEncoder {
    /// The encoder that a schema file describes, in Spark's JSON; an empty text is that of plain rows.
    pub fn parse(text: &str) -> Result<Self> {
        if text.is_empty() {
            return Ok(Self::Plain);
        }
        let odd = |what: &dyn std::fmt::Display| Error::schema(format!("keys by {text} are not read: {what}"));
        let found: Written = serde_json::from_str(text).map_err(|e| odd(&e))?;
        match found.key_state_encoder_type.as_str() {
            "NoPrefixKeyStateEncoderSpec" => Ok(Self::Plain),
            "PrefixKeyScanStateEncoderSpec" => Ok(Self::Prefix(found.num_cols_prefix_key)),
            "RangeKeyScanStateEncoderSpec" => Ok(Self::Range(found.ordering_ordinals)),
            _ => Err(odd(&"the encoder is unknown")),
        }
    }
}

/// Keys as they become columns.
#[derive(Debug)]
pub struct KeyColumns {
    rows: RowColumns,
    /// Columns of the first part, in its order; empty for plain keys.
    first: Vec<usize>,
    rest: Vec<usize>,
    encoder: KeyEncoder,
    has_version: bool,
}

impl KeyColumns {
    /// Columns of these types, as for [`RowColumns`]. `has_version`: rows have a version byte.
    pub fn new(fields: &Fields, encoder: &KeyEncoder, has_version: bool) -> Result<Self> {
        let count = fields.len();
        let first: Vec<usize> = match encoder {
            KeyEncoder::Plain => Vec::new(),
            KeyEncoder::Prefix(columns) => (0..*columns).collect(),
            KeyEncoder::Range(ordinals) => ordinals.clone(),
        };
        let is_odd = |at: usize| first[at] >= count || first[..at].contains(&first[at]);
        if first.len() > count || (0..first.len()).any(is_odd) {
            return Err(Error::schema(format!("{encoder:?} names columns that a key of {count} does not have")));
        }
        let rest = (0..count).filter(|column| !first.contains(column)).collect();
        let rows = RowColumns::new(fields)?;
        if matches!(encoder, KeyEncoder::Range(_)) {
            for column in &first {
                let data_type = fields[*column].data_type();
                if !is_ordered(data_type) {
                    return Err(Error::schema(format!("keys ordered by {data_type} are not read")));
                }
            }
        }
        Ok(Self { rows, first, rest, encoder: encoder.clone(), has_version })
    }

    /// Appends a key, without the id of its family. After an error there is half a key: give the columns up.
    pub fn push(&mut self, key: &[u8]) -> std::result::Result<(), Damage> {
        let key = Region::new(key);
        let columns = &mut self.rows.columns;
        match self.encoder {
            KeyEncoder::Plain => push_fields(columns, &self.rest, row(key, self.has_version)?)?,
            KeyEncoder::Prefix(_) | KeyEncoder::Range(_) => {
                let length = length_at(key, 0)?;
                let first = row(key.part(LENGTH, length)?, self.has_version)?;
                if matches!(self.encoder, KeyEncoder::Range(_)) {
                    push_ordered(columns, &self.first, first)?;
                } else {
                    push_fields(columns, &self.first, first)?;
                }
                let rest = key.part(LENGTH + length, key.bytes.len() - LENGTH - length)?;
                if !self.rest.is_empty() {
                    push_fields(columns, &self.rest, row(rest, self.has_version)?)?;
                }
            }
        }
        self.rows.rows += 1;
        Ok(())
    }

    /// Keys so far.
    pub fn len(&self) -> usize {
        self.rows.rows
    }

    /// True without any.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The keys so far, as columns without names.
    pub fn finish(self) -> Result<StructArray> {
        self.rows.finish()
    }
}

/// Appends the row of a value.
pub fn push_value(columns: &mut RowColumns, value: &[u8], has_version: bool) -> std::result::Result<(), Damage> {
    columns.push_region(row(Region::new(value), has_version)?)
}

/// Appends the rows of a list, and says how many they are.
pub fn push_list(columns: &mut RowColumns, value: &[u8], has_version: bool) -> std::result::Result<usize, Damage> {
    let value = Region::new(value);
    let (mut at, mut count) = (0, 0);
    while at < value.bytes.len() {
        if count > 0 && value.bytes[at] == DELIMITER {
            at += 1;
        }
        let length = length_at(value, at)?;
        if length % ALIGNMENT != usize::from(has_version) {
            return Err(Damage::new(at, format!("{length} bytes are no element of a list")));
        }
        columns.push_region(row(value.part(at + LENGTH, length)?, has_version)?)?;
        at += LENGTH + length;
        count += 1;
    }
    Ok(count)
}

fn length_at(region: Region<'_>, at: usize) -> Read<usize> {
    let bytes = region.part(at, LENGTH)?.bytes;
    let length = i32::from_le_bytes(bytes.try_into().expect("a part has the length that was asked for"));
    usize::try_from(length).map_err(|_| Damage::new(region.start + at, format!("a length of {length} bytes")))
}

/// The row behind its version.
fn row(region: Region<'_>, has_version: bool) -> Read<Region<'_>> {
    if !has_version {
        return Ok(region);
    }
    match region.bytes.first() {
        Some(&ROW_VERSION) => region.part(1, region.bytes.len() - 1),
        Some(version) => Err(Damage::new(region.start, format!("a row of the unknown version {version}"))),
        None => Err(Damage::new(region.start, "a row without a version")),
    }
}

/// True for the types by which Spark orders keys.
fn is_ordered(data_type: &DataType) -> bool {
    use DataType::{Float32, Float64, Int8, Int16, Int32, Int64};
    matches!(data_type, Int8 | Int16 | Int32 | Int64 | Float32 | Float64)
}

/// Appends the columns of an order: a null is marked, and of a negative floating-point number all bits are flipped.
fn push_ordered(columns: &mut [Column], order: &[usize], row: Region<'_>) -> Read<()> {
    let slots = order.len().div_ceil(64) * 8;
    for (field, column) in order.iter().enumerate() {
        let column = &mut columns[*column];
        let value = row.referred(slots + 8 * field)?;
        let odd = |what: &str| Damage::new(value.start, what.to_owned());
        let Some((data_type, width)) = column.fixed_type() else { return Err(odd("a type without an order")) };
        let is_float = matches!(data_type, DataType::Float32 | DataType::Float64);
        if value.bytes.len() != width + 1 {
            return Err(odd("a column of an order with the size of another type"));
        }
        let mut number = [0; 8];
        let number = &mut number[..width];
        number.copy_from_slice(&value.bytes[1..]);
        number.reverse();
        match value.bytes[0] {
            NULL => column.push_null(),
            sign @ (NEGATIVE | POSITIVE) => {
                if is_float && sign == NEGATIVE {
                    number.iter_mut().for_each(|byte| *byte = !*byte);
                }
                if !column.push_fixed(number) {
                    return Err(odd("a type without an order"));
                }
            }
            _ => return Err(odd("a column of an order without a sign")),
        }
    }
    Ok(())
}

#[cfg(test)]
#[path = "spark_keys_tests.rs"]
mod tests;
