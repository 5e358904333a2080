//! Properties of entries of Spark's state stores, whatever they contain.
//!
//! Owns: entries of invented bytes, and the writer of rows that shows what was read.
//! Does not own: the decoders (`fastchangelog_columns::spark_rows`, `spark_keys`), files of Spark.
//!
//! 1. An entry is refused as damaged, with an offset inside of it, or it is read; nothing panics, and what is allocated
//!    is bounded by its bytes.
//! 2. What was read is valid columns, and written as Spark writes it, it is read as the same.

use crate::forge::{FACTOR, GROUND, peak_of};
use arrow_array::cast::AsArray;
use arrow_array::types::Decimal128Type;
use arrow_array::{Array, ArrayRef, StructArray};
use arrow_schema::{DataType, Field, Fields, TimeUnit};
use fastchangelog_columns::spark_keys::{KeyColumns, KeyEncoder, push_list, push_value};
use fastchangelog_columns::spark_rows::{Damage, RowColumns};
use std::sync::Arc;

/// What a slot has: a value of fixed size, or bytes elsewhere.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Slot {
    /// A null.
    Null,
    /// Little-endian.
    Fixed(Vec<u8>),
    /// Of any length.
    Bytes(Vec<u8>),
}

/// The columns of keys: each type by which Spark orders, and a text.
pub fn key_fields() -> Fields {
    use DataType::{Float32, Float64, Int8, Int16, Int32, Int64, Utf8};
    named([Int64, Utf8, Float64, Int8, Int16, Int32, Float32])
}

/// The encoders of such keys.
pub fn encoders() -> [KeyEncoder; 3] {
    [KeyEncoder::Plain, KeyEncoder::Prefix(2), KeyEncoder::Range(vec![2, 0, 3, 4, 5, 6])]
}

/// The columns of values: each type, alone and in another.
pub fn value_fields() -> Fields {
    use DataType::{
        Binary, Boolean, Date32, Decimal128, Duration, Float32, Float64, Int8, Int16, Int32, Int64, Null, Struct,
        Time64, Timestamp, Utf8,
    };
    let list = |of: DataType| DataType::List(Arc::new(Field::new("element", of, true)));
    let map = |key: DataType, value: DataType| {
        let entry = Fields::from(vec![Field::new("key", key, false), Field::new("value", value, true)]);
        DataType::Map(Arc::new(Field::new("entries", Struct(entry), false)), false)
    };
    let micros = TimeUnit::Microsecond;
    named([
        Boolean,
        Int8,
        Int16,
        Int32,
        Int64,
        Float32,
        Float64,
        Date32,
        Timestamp(micros, Some("UTC".into())),
        Timestamp(micros, None),
        Duration(micros),
        Time64(TimeUnit::Nanosecond),
        Decimal128(7, 2),
        Decimal128(38, 10),
        Utf8,
        Binary,
        Null,
        list(Int16),
        list(list(Utf8)),
        list(Boolean),
        list(Null),
        list(Decimal128(20, 0)),
        map(Utf8, Decimal128(20, 5)),
        Struct(named([Boolean, list(Float32), map(Int32, Null)])),
        list(Struct(named([Int64, Utf8]))),
    ])
}

fn named<const N: usize>(types: [DataType; N]) -> Fields {
    types.into_iter().enumerate().map(|(i, data_type)| Field::new(format!("f{i}"), data_type, true)).collect()
}

/// A row of slots, as Spark writes it.
pub fn row_of(slots: &[Slot]) -> Vec<u8> {
    assembled(Vec::new(), slots, 8)
}

/// An array of slots of `width` bytes.
pub fn array_of(slots: &[Slot], width: usize) -> Vec<u8> {
    assembled((slots.len() as u64).to_le_bytes().to_vec(), slots, width)
}

/// The arrays of a map's keys and values.
pub fn map_of(keys: &[u8], values: &[u8]) -> Vec<u8> {
    [&(keys.len() as u64).to_le_bytes(), keys, values].concat()
}

fn assembled(mut out: Vec<u8>, slots: &[Slot], width: usize) -> Vec<u8> {
    let bits = out.len();
    out.resize(bits + slots.len().div_ceil(64) * 8, 0);
    let fixed = out.len();
    out.resize((fixed + width * slots.len()).next_multiple_of(8), 0);
    for (i, slot) in slots.iter().enumerate() {
        let at = fixed + width * i;
        match slot {
            Slot::Null => out[bits + i / 8] |= 1 << (i % 8),
            Slot::Fixed(value) => out[at..at + value.len()].copy_from_slice(value),
            Slot::Bytes(value) => {
                let place = (out.len() as u64) << 32 | value.len() as u64;
                out[at..at + 8].copy_from_slice(&place.to_le_bytes());
                out.extend_from_slice(value);
                out.resize(out.len().next_multiple_of(8), 0);
            }
        }
    }
    out
}

/// Bytes of a slot for a type in an array.
pub fn width_of(data_type: &DataType) -> usize {
    match data_type {
        DataType::Boolean => 1,
        DataType::Decimal128(..) => 8,
        other => other.primitive_width().unwrap_or(8),
    }
}

/// What a decoded column of a type has in a row.
pub fn slot_of(column: &ArrayRef, data_type: &DataType, row: usize) -> Slot {
    if column.is_null(row) {
        return Slot::Null;
    }
    let elements = |array: &ArrayRef, of: &DataType| -> Vec<u8> {
        let slots: Vec<_> = (0..array.len()).map(|i| slot_of(array, of, i)).collect();
        array_of(&slots, width_of(of))
    };
    match data_type {
        DataType::Boolean => Slot::Fixed(vec![u8::from(column.as_boolean().value(row))]),
        DataType::Utf8 | DataType::Binary => Slot::Bytes(column.as_binary::<i32>().value(row).to_vec()),
        DataType::Decimal128(precision, _) => {
            let value = column.as_primitive::<Decimal128Type>().value(row);
            if *precision <= 18 {
                return Slot::Fixed(value.to_le_bytes()[..8].to_vec());
            }
            Slot::Bytes(shortest(value))
        }
        DataType::List(of) => Slot::Bytes(elements(&column.as_list::<i32>().value(row), of.data_type())),
        DataType::Map(entries, _) => {
            let (DataType::Struct(fields), list) = (entries.data_type(), column.as_list::<i32>().value(row)) else {
                unreachable!("a map has structs for entries");
            };
            let part = |at: usize| elements(list.as_struct().column(at), fields[at].data_type());
            Slot::Bytes(map_of(&part(0), &part(1)))
        }
        DataType::Struct(fields) => Slot::Bytes(row_of(&slots_of(column.as_struct(), fields, row))),
        fixed => {
            let width = width_of(fixed);
            let data = column.to_data();
            let at = (data.offset() + row) * width;
            Slot::Fixed(data.buffers()[0].as_slice()[at..at + width].to_vec())
        }
    }
}

/// A number as Java writes it: big-endian, in as few bytes as it needs.
pub fn shortest(value: i128) -> Vec<u8> {
    let bytes = value.to_be_bytes();
    let is_sign = |at: &usize| {
        let sign = if bytes[*at + 1] & 0x80 == 0 { 0 } else { 0xFF };
        bytes[*at] == sign
    };
    bytes[(0..15).take_while(is_sign).count()..].to_vec()
}

/// The slots of a row.
pub fn slots_of(columns: &StructArray, fields: &Fields, row: usize) -> Vec<Slot> {
    columns.columns().iter().zip(fields).map(|(column, field)| slot_of(column, field.data_type(), row)).collect()
}

/// A key, as an encoder writes it.
pub fn key_of(encoder: &KeyEncoder, slots: &[Slot]) -> Vec<u8> {
    let versioned = |slots: &[Slot]| [&[0], &row_of(slots)[..]].concat();
    let two = |first: Vec<u8>, rest: Vec<Slot>| {
        let rest = if rest.is_empty() { Vec::new() } else { versioned(&rest) };
        [&(first.len() as u32).to_le_bytes(), &first[..], &rest[..]].concat()
    };
    match encoder {
        KeyEncoder::Plain => versioned(slots),
        KeyEncoder::Prefix(columns) => two(versioned(&slots[..*columns]), slots[*columns..].to_vec()),
        KeyEncoder::Range(order) => {
            let fields = key_fields();
            let ordered: Vec<_> = order.iter().map(|at| ordered(&slots[*at], fields[*at].data_type())).collect();
            let rest = (0..slots.len()).filter(|at| !order.contains(at)).map(|at| slots[at].clone());
            two(versioned(&ordered), rest.collect())
        }
    }
}

/// A value of an order: a sign, then the number, so that bytes are ordered as the numbers are.
fn ordered(slot: &Slot, data_type: &DataType) -> Slot {
    let Slot::Fixed(value) = slot else { return Slot::Bytes([&[2], &vec![0; width_of(data_type)][..]].concat()) };
    let mut number: Vec<u8> = value.iter().rev().copied().collect();
    let is_negative = number[0] & 0x80 != 0;
    if is_negative && matches!(data_type, DataType::Float32 | DataType::Float64) {
        number.iter_mut().for_each(|byte| *byte = !*byte);
    }
    Slot::Bytes([&[u8::from(!is_negative)], &number[..]].concat())
}

/// The elements of a list in a value.
pub fn list_of(rows: &[Vec<u8>], delimiter: &[u8]) -> Vec<u8> {
    let elements: Vec<_> =
        rows.iter().map(|row| [&(row.len() as u32 + 1).to_le_bytes()[..], &[0], &row[..]].concat()).collect();
    elements.join(delimiter)
}

/// Keys and values of an entry.
pub type Entry = (StructArray, StructArray);

/// What is read of an entry.
pub fn read(encoder: &KeyEncoder, is_list: bool, key: &[u8], value: &[u8]) -> Result<Entry, Damage> {
    let refused = |error| panic!("the columns are refused: {error}");
    let mut keys = KeyColumns::new(&key_fields(), encoder, true).unwrap_or_else(refused);
    keys.push(key)?;
    let mut values = RowColumns::new(&value_fields()).unwrap_or_else(|error| panic!("refused: {error}"));
    if is_list {
        push_list(&mut values, value, true)?;
    } else {
        push_value(&mut values, value, true)?;
    }
    let built = |columns: Result<StructArray, _>| columns.unwrap_or_else(|error| panic!("no columns: {error}"));
    Ok((built(keys.finish()), built(values.finish())))
}

/// An entry: a byte for encoder and kind, 2 bytes of the key's length, key, value; true where it is taken.
pub fn spark_entry(bytes: &[u8]) -> bool {
    let [kind, low, high, rest @ ..] = bytes else { return false };
    let encoder = &encoders()[usize::from(kind % 3)];
    let is_list = kind & 0x80 != 0;
    let (key, value) = rest.split_at(usize::from(u16::from_le_bytes([*low, *high])).min(rest.len()));
    let (result, peak) = peak_of(|| read(encoder, is_list, key, value));
    let bound = GROUND + FACTOR * bytes.len() as u64;
    assert!(peak.cast_unsigned() <= bound, "{peak} bytes allocated for {} bytes", bytes.len());
    let (keys, values) = match result {
        Ok(found) => found,
        Err(damage) => {
            assert!(damage.at <= key.len().max(value.len()), "{damage:?} is outside");
            return false;
        }
    };
    for column in [&keys, &values] {
        assert!(column.to_data().validate_full().is_ok(), "an entry has a column that is not valid");
    }
    let key = key_of(encoder, &slots_of(&keys, &key_fields(), 0));
    let rows: Vec<_> = (0..values.len()).map(|row| row_of(&slots_of(&values, &value_fields(), row))).collect();
    let value = if is_list { list_of(&rows, b",") } else { [&[0], &rows[0][..]].concat() };
    let again = read(encoder, is_list, &key, &value);
    let (keys_again, values_again) = again.unwrap_or_else(|damage| panic!("what was read is refused: {damage:?}"));
    assert!(keys.to_data() == keys_again.to_data() && values.to_data() == values_again.to_data());
    true
}
