//! Spark's binary rows (`UnsafeRow`) as Arrow columns.
//!
//! Owns: the layout of rows, arrays and maps in Spark's memory and state stores, for each type that has a column here.
//! Does not own: keys with an encoding of their own (`spark_keys`), Spark's names of types (the caller's), the files.
//!
//! ```text
//! row    bits of null fields, in words of 8 bytes | a slot of 8 bytes for each field | bytes that need more
//! array  number of elements: 8 bytes | bits of null elements | a slot for each element, of its own size | bytes
//! map    length of the array of keys: 8 bytes | array of keys | array of values
//! slot   a fixed value at its beginning; else 4 bytes of length and 4 of the place, from the beginning of row or array
//! ```
//!
//! Words are little-endian, as every machine writes them that Spark runs on; the digits of a wide decimal are
//! big-endian. A map becomes a list of its entries, a text its bytes: Spark's texts need not be UTF-8.

use arrow_array::{
    Array, ArrayRef, BinaryArray, BooleanArray, Decimal128Array, ListArray, RecordBatch, RecordBatchOptions,
    StructArray, make_array,
};
use arrow_buffer::{BooleanBuffer, BooleanBufferBuilder, Buffer, MutableBuffer, NullBuffer, OffsetBuffer};
use arrow_data::ArrayData;
use arrow_schema::{DataType, Field, Fields, Schema, TimeUnit};
use fastchangelog_format::error::{Error, Result};
use std::sync::Arc;

/// Digits of a decimal that fits into a slot.
const COMPACT_DIGITS: u8 = 18;
const SLOT: usize = 8;

/// What is wrong with bytes, and where in them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Damage {
    /// The offset.
    pub at: usize,
    /// The fault.
    pub what: String,
}

impl Damage {
    pub(crate) fn new(at: usize, what: impl Into<String>) -> Self {
        Self { at, what: what.into() }
    }

    /// The error for damage in the object `name`.
    pub fn in_object(&self, name: impl std::fmt::Display) -> Error {
        Error::corrupt(name, self.at as u64, &self.what)
    }
}

type Read<T> = std::result::Result<T, Damage>;

/// Bytes with their place in what is read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Region<'a> {
    pub(crate) bytes: &'a [u8],
    pub(crate) start: usize,
}

impl<'a> Region<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, start: 0 }
    }

    /// A part of it.
    pub(crate) fn part(self, at: usize, length: usize) -> Read<Self> {
        let found = at.checked_add(length).and_then(|end| self.bytes.get(at..end));
        let found = found.ok_or_else(|| {
            let size = self.bytes.len();
            Damage::new(self.start, format!("{length} bytes at {at} are named, of {size}"))
        })?;
        Ok(Self { bytes: found, start: self.start + at })
    }

    pub(crate) fn word(self, at: usize) -> Read<u64> {
        let bytes = self.part(at, SLOT)?.bytes;
        Ok(u64::from_le_bytes(bytes.try_into().expect("a part has the length that was asked for")))
    }

    /// The bytes that a slot refers to.
    pub(crate) fn referred(self, slot: usize) -> Read<Self> {
        let word = self.word(slot)?;
        self.part((word >> 32) as usize, (word & 0xFFFF_FFFF) as usize)
    }

    fn is_null(self, bits: usize, index: usize) -> Read<bool> {
        Ok(self.part(bits + index / 8, 1)?.bytes[0] >> (index % 8) & 1 == 1)
    }
}

/// Rows as they become columns.
#[derive(Debug)]
pub struct RowColumns {
    pub(crate) columns: Vec<Column>,
    all: Vec<usize>,
    pub(crate) rows: usize,
}

impl RowColumns {
    /// Columns of these types: those of Spark's, with maps as Arrow's maps and the type of nothing as `Null`.
    pub fn new(fields: &Fields) -> Result<Self> {
        let columns: Vec<_> = fields.iter().map(|f| Column::new(f.data_type())).collect::<Result<_>>()?;
        Ok(Self { all: (0..columns.len()).collect(), columns, rows: 0 })
    }

    /// Appends a row. After an error there is half a row: give the columns up.
    pub fn push(&mut self, row: &[u8]) -> std::result::Result<(), Damage> {
        self.push_region(Region::new(row))
    }

    pub(crate) fn push_region(&mut self, row: Region<'_>) -> Read<()> {
        push_fields(&mut self.columns, &self.all, row)?;
        self.rows += 1;
        Ok(())
    }

    /// The rows so far, as columns without names.
    pub fn finish(self) -> Result<StructArray> {
        struct_of(self.columns, self.rows, None)
    }

    /// The types of the columns that come out for columns of these types: those of the wire.
    pub fn declared(fields: &Fields) -> Fields {
        fields.iter().map(|f| Field::new(f.name(), declared(f.data_type()), f.is_nullable())).collect()
    }
}

/// A batch of columns without names.
pub fn unnamed(columns: Vec<ArrayRef>, rows: usize) -> Result<RecordBatch> {
    let schema = Schema::new(unnamed_fields(&columns));
    let options = RecordBatchOptions::new().with_row_count(Some(rows));
    Ok(RecordBatch::try_new_with_options(Arc::new(schema), columns, &options)?)
}

fn unnamed_fields(columns: &[ArrayRef]) -> Fields {
    columns.iter().map(|c| Field::new("", c.data_type().clone(), true)).collect()
}

fn declared(data_type: &DataType) -> DataType {
    let of = |field: &Field| Arc::new(Field::new(field.name(), declared(field.data_type()), field.is_nullable()));
    match data_type {
        DataType::Null => DataType::Boolean,
        DataType::List(element) => DataType::List(of(element)),
        DataType::Struct(fields) => DataType::Struct(RowColumns::declared(fields)),
        DataType::Map(entries, _) => {
            DataType::List(Arc::new(Field::new("element", declared(entries.data_type()), false)))
        }
        other => other.clone(),
    }
}

/// Appends the fields of a row to the columns `order`.
pub(crate) fn push_fields(columns: &mut [Column], order: &[usize], row: Region<'_>) -> Read<()> {
    let slots = order.len().div_ceil(64) * 8;
    if row.bytes.len() < slots + SLOT * order.len() {
        let size = row.bytes.len();
        return Err(Damage::new(row.start, format!("{size} bytes are no row of {} fields", order.len())));
    }
    for (field, column) in order.iter().enumerate() {
        let column = &mut columns[*column];
        if row.is_null(0, field)? { column.push_null() } else { column.push(row, slots + SLOT * field)? }
    }
    Ok(())
}

/// A column that grows.
#[derive(Debug)]
pub(crate) struct Column {
    /// A bit for each value that is there.
    valid: BooleanBufferBuilder,
    values: Values,
}

#[derive(Debug)]
enum Values {
    Nothing,
    Boolean(BooleanBufferBuilder),
    Fixed { data_type: DataType, width: usize, bytes: MutableBuffer },
    Decimal { precision: u8, scale: i8, limit: u128, values: Vec<i128> },
    Bytes { ends: Vec<i32>, bytes: Vec<u8> },
    List { ends: Vec<i32>, element: Box<Column> },
    Map { ends: Vec<i32>, key: Box<Column>, value: Box<Column> },
    Struct { columns: Vec<Column>, all: Vec<usize> },
}

impl Column {
    fn new(data_type: &DataType) -> Result<Self> {
        let column = |data_type: &DataType| Ok::<_, Error>(Box::new(Self::new(data_type)?));
        let fixed = |width| Values::Fixed { data_type: data_type.clone(), width, bytes: MutableBuffer::new(0) };
        let values = match data_type {
            DataType::Null => Values::Nothing,
            DataType::Boolean => Values::Boolean(BooleanBufferBuilder::new(0)),
            DataType::Int8 => fixed(1),
            DataType::Int16 => fixed(2),
            DataType::Int32 | DataType::Float32 | DataType::Date32 => fixed(4),
            DataType::Int64
            | DataType::Float64
            | DataType::Timestamp(TimeUnit::Microsecond, _)
            | DataType::Duration(TimeUnit::Microsecond)
            | DataType::Time64(TimeUnit::Nanosecond) => fixed(8),
            DataType::Decimal128(precision, scale) => {
                let limit = 10_u128.pow(u32::from(*precision));
                Values::Decimal { precision: *precision, scale: *scale, limit, values: Vec::new() }
            }
            DataType::Utf8 | DataType::Binary => Values::Bytes { ends: vec![0], bytes: Vec::new() },
            DataType::List(element) => Values::List { ends: vec![0], element: column(element.data_type())? },
            DataType::Map(entries, _) => match entries.data_type() {
                DataType::Struct(fields) if fields.len() == 2 => Values::Map {
                    ends: vec![0],
                    key: column(fields[0].data_type())?,
                    value: column(fields[1].data_type())?,
                },
                _ => return Err(Error::internal("a map has entries of a key and a value")),
            },
            DataType::Struct(fields) => {
                let columns: Vec<_> = fields.iter().map(|f| Self::new(f.data_type())).collect::<Result<_>>()?;
                Values::Struct { all: (0..columns.len()).collect(), columns }
            }
            other => return Err(Error::schema(format!("rows of Spark with the type {other} are not read"))),
        };
        Ok(Self { valid: BooleanBufferBuilder::new(0), values })
    }

    /// Bytes of a slot in an array.
    fn width(&self) -> usize {
        match &self.values {
            Values::Nothing => 0,
            Values::Boolean(_) => 1,
            Values::Fixed { width, .. } => *width,
            _ => SLOT,
        }
    }

    pub(crate) fn push_null(&mut self) {
        self.valid.append(false);
        match &mut self.values {
            Values::Nothing => {}
            Values::Boolean(values) => values.append(false),
            Values::Fixed { width, bytes, .. } => bytes.extend_zeros(*width),
            Values::Decimal { values, .. } => values.push(0),
            Values::Bytes { ends, .. } | Values::List { ends, .. } | Values::Map { ends, .. } => {
                ends.push(ends.last().copied().unwrap_or(0));
            }
            Values::Struct { columns, .. } => columns.iter_mut().for_each(Self::push_null),
        }
    }

    /// Appends the value that has the slot at `slot`.
    fn push(&mut self, region: Region<'_>, slot: usize) -> Read<()> {
        match &mut self.values {
            Values::Nothing => return Err(Damage::new(region.start + slot, "a value of the type of nothing")),
            Values::Boolean(values) => values.append(region.part(slot, 1)?.bytes[0] != 0),
            Values::Fixed { width, bytes, .. } => bytes.extend_from_slice(region.part(slot, *width)?.bytes),
            Values::Decimal { precision, limit, values, .. } => {
                let value = if *precision <= COMPACT_DIGITS {
                    i128::from(region.word(slot)?.cast_signed())
                } else {
                    wide(region.referred(slot)?)?
                };
                if value.unsigned_abs() >= *limit {
                    return Err(Damage::new(region.start + slot, format!("a decimal of more than {precision} digits")));
                }
                values.push(value);
            }
            Values::Bytes { ends, bytes } => {
                bytes.extend_from_slice(region.referred(slot)?.bytes);
                ends.push(end(bytes.len(), region, slot)?);
            }
            Values::List { ends, element } => {
                push_elements(element, region.referred(slot)?)?;
                ends.push(end(element.valid.len(), region, slot)?);
            }
            Values::Map { ends, key, value } => {
                let map = region.referred(slot)?;
                let length = usize::try_from(map.word(0)?).unwrap_or(usize::MAX);
                let keys = map.part(SLOT, length)?;
                let values = map.part(SLOT + length, map.bytes.len() - SLOT - length)?;
                push_elements(key, keys)?;
                push_elements(value, values)?;
                if key.valid.len() != value.valid.len() {
                    return Err(Damage::new(map.start, "a map with more keys than values, or fewer"));
                }
                ends.push(end(key.valid.len(), region, slot)?);
            }
            Values::Struct { columns, all } => push_fields(columns, all, region.referred(slot)?)?,
        }
        self.valid.append(true);
        Ok(())
    }

    /// Appends the bytes of a fixed value, little-endian; false if the column is of another type.
    pub(crate) fn push_fixed(&mut self, value: &[u8]) -> bool {
        match &mut self.values {
            Values::Fixed { width, bytes, .. } if *width == value.len() => bytes.extend_from_slice(value),
            _ => return false,
        }
        self.valid.append(true);
        true
    }

    /// The type of a column of fixed values.
    pub(crate) fn fixed_type(&self) -> Option<(&DataType, usize)> {
        match &self.values {
            Values::Fixed { data_type, width, .. } => Some((data_type, *width)),
            _ => None,
        }
    }

    fn finish(mut self) -> Result<ArrayRef> {
        let length = self.valid.len();
        let valid = NullBuffer::new(self.valid.finish());
        let nulls = (valid.null_count() > 0).then_some(valid);
        Ok(match self.values {
            Values::Nothing => Arc::new(BooleanArray::new(BooleanBuffer::new_unset(length), nulls)),
            Values::Boolean(mut values) => Arc::new(BooleanArray::new(values.finish(), nulls)),
            Values::Fixed { data_type, bytes, .. } => {
                let data = ArrayData::builder(data_type).len(length).nulls(nulls).add_buffer(bytes.into());
                make_array(data.build()?)
            }
            Values::Decimal { precision, scale, values, .. } => {
                Arc::new(Decimal128Array::new(values.into(), nulls).with_precision_and_scale(precision, scale)?)
            }
            Values::Bytes { ends, bytes } => {
                let offsets = OffsetBuffer::new(ends.into());
                Arc::new(BinaryArray::try_new(offsets, Buffer::from_vec(bytes), nulls)?)
            }
            Values::List { ends, element } => list(ends, element.finish()?, nulls)?,
            Values::Map { ends, key, value } => {
                let entries = key.valid.len();
                list(ends, Arc::new(struct_of(vec![*key, *value], entries, None)?), nulls)?
            }
            Values::Struct { columns, .. } => Arc::new(struct_of(columns, length, nulls)?),
        })
    }
}

fn list(ends: Vec<i32>, elements: ArrayRef, nulls: Option<NullBuffer>) -> Result<ArrayRef> {
    let field = Arc::new(Field::new("", elements.data_type().clone(), true));
    Ok(Arc::new(ListArray::try_new(field, OffsetBuffer::new(ends.into()), elements, nulls)?))
}

pub(crate) fn struct_of(columns: Vec<Column>, rows: usize, nulls: Option<NullBuffer>) -> Result<StructArray> {
    let arrays: Vec<_> = columns.into_iter().map(Column::finish).collect::<Result<_>>()?;
    Ok(StructArray::try_new_with_length(unnamed_fields(&arrays), arrays, nulls, rows)?)
}

/// An end of a value in the bytes or elements of its column.
fn end(length: usize, region: Region<'_>, slot: usize) -> Read<i32> {
    i32::try_from(length).map_err(|_| Damage::new(region.start + slot, "the values of a batch exceed 2 GiB"))
}

fn push_elements(column: &mut Column, array: Region<'_>) -> Read<()> {
    let count = usize::try_from(array.word(0)?).unwrap_or(usize::MAX);
    let fault = || Damage::new(array.start, format!("{} bytes are no array of {count} elements", array.bytes.len()));
    let slots = count.div_ceil(64).checked_mul(8).and_then(|bits| bits.checked_add(SLOT)).ok_or_else(fault)?;
    let width = column.width();
    let needed = count.checked_mul(width).and_then(|size| size.checked_add(slots));
    if needed.is_none_or(|needed| needed > array.bytes.len()) {
        return Err(fault());
    }
    for index in 0..count {
        if array.is_null(SLOT, index)? {
            column.push_null();
        } else {
            column.push(array, slots + width * index)?;
        }
    }
    Ok(())
}

/// A big-endian number of up to 16 bytes.
fn wide(digits: Region<'_>) -> Read<i128> {
    let bytes = digits.bytes;
    if bytes.is_empty() || bytes.len() > 16 {
        return Err(Damage::new(digits.start, format!("{} bytes are no decimal", bytes.len())));
    }
    let sign = if bytes[0] & 0x80 == 0 { 0 } else { 0xFF };
    let mut all = [sign; 16];
    all[16 - bytes.len()..].copy_from_slice(bytes);
    Ok(i128::from_be_bytes(all))
}

#[cfg(test)]
#[path = "spark_rows_tests.rs"]
mod tests;
