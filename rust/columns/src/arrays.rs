//! Normalization of Arrow arrays.
//!
//! Owns: type texts that do not depend on a session's time zone, the cast of an incoming column to the declared type
//! where only its physical form differs, and the normal form of values that count as equal in a key or a comparison.
//! Does not own: bytes of keys (`codec`) or of accumulators (`aggregate`).

use arrow_array::cast::AsArray;
use arrow_array::types::{Float32Type, Float64Type};
use arrow_array::{Array, ArrayRef, MapArray, PrimitiveArray, UInt64Array, make_array};
use arrow_data::ArrayData;
use arrow_row::{RowConverter, SortField};
use arrow_schema::{DataType, IntervalUnit, TimeUnit};
use fastchangelog_format::{Error, Result};
use std::sync::Arc;

/// The name of a type as Spark's DDL writes it. Says nothing about time zone labels, nullability or physical variants
/// (large, view, dictionary), so that it is equal for columns whose values mean the same.
pub fn type_text(data_type: &DataType) -> String {
    match data_type {
        DataType::Null => "void".into(),
        DataType::Boolean => "boolean".into(),
        DataType::Int8 => "tinyint".into(),
        DataType::Int16 => "smallint".into(),
        DataType::Int32 => "int".into(),
        DataType::Int64 => "bigint".into(),
        DataType::Float32 => "float".into(),
        DataType::Float64 => "double".into(),
        DataType::Decimal128(p, s) => format!("decimal({p},{s})"),
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => "string".into(),
        DataType::Binary | DataType::LargeBinary | DataType::BinaryView => "binary".into(),
        DataType::Date32 => "date".into(),
        DataType::Timestamp(TimeUnit::Microsecond, Some(_)) => "timestamp".into(),
        DataType::Timestamp(TimeUnit::Microsecond, None) => "timestamp_ntz".into(),
        DataType::Timestamp(unit, Some(_)) => format!("timestamp[{unit:?}]"),
        DataType::Timestamp(unit, None) => format!("timestamp_ntz[{unit:?}]"),
        DataType::Time64(_) | DataType::Time32(_) => {
            format!("time({})", if let DataType::Time64(TimeUnit::Nanosecond) = data_type { "ns" } else { "us" })
        }
        DataType::Duration(TimeUnit::Microsecond) => "interval day to second".into(),
        DataType::Interval(IntervalUnit::YearMonth) => "interval year to month".into(),
        DataType::Interval(IntervalUnit::MonthDayNano) => "interval".into(),
        DataType::Dictionary(_, values) => type_text(values),
        DataType::List(f) | DataType::LargeList(f) => format!("array<{}>", type_text(f.data_type())),
        DataType::Struct(fields) => {
            let fields: Vec<_> = fields.iter().map(|f| format!("{}:{}", f.name(), type_text(f.data_type()))).collect();
            format!("struct<{}>", fields.join(","))
        }
        DataType::Map(entries, _) => match entries.data_type() {
            DataType::Struct(kv) if kv.len() == 2 => {
                format!("map<{},{}>", type_text(kv[0].data_type()), type_text(kv[1].data_type()))
            }
            other => format!("map<{other}>"),
        },
        other => other.to_string(),
    }
}

/// The type as the codecs use it: dictionaries, views and large variants resolved at the top level.
pub(super) fn plain_type(data_type: &DataType) -> DataType {
    match data_type {
        DataType::Dictionary(_, values) => plain_type(values),
        DataType::Utf8View => DataType::Utf8,
        DataType::BinaryView => DataType::Binary,
        other => other.clone(),
    }
}

/// True when both types hold the same values, whatever their physical form and time zone label.
pub(super) fn same_values(a: &DataType, b: &DataType) -> bool {
    a == b || type_text(a) == type_text(b)
}

/// The error for a column of type `actual` where `declared` was declared.
pub(super) fn mismatch(actual: &DataType, declared: &DataType) -> Error {
    Error::invalid(format!("a column has the type {}, but {} is declared", type_text(actual), type_text(declared)))
        .with_remedy("pass the declared schema")
}

/// True when the two types have the same buffers: they differ in time zone labels, field names or nullability only.
fn same_layout(a: &DataType, b: &DataType) -> bool {
    match (a, b) {
        (DataType::Timestamp(u, za), DataType::Timestamp(v, zb)) => u == v && za.is_some() == zb.is_some(),
        (DataType::List(x), DataType::List(y)) | (DataType::LargeList(x), DataType::LargeList(y)) => {
            same_layout(x.data_type(), y.data_type())
        }
        (DataType::Map(x, _), DataType::Map(y, _)) => same_layout(x.data_type(), y.data_type()),
        (DataType::FixedSizeList(x, n), DataType::FixedSizeList(y, m)) => {
            n == m && same_layout(x.data_type(), y.data_type())
        }
        (DataType::Struct(x), DataType::Struct(y)) => {
            x.len() == y.len() && x.iter().zip(y).all(|(x, y)| same_layout(x.data_type(), y.data_type()))
        }
        _ => a == b,
    }
}

fn retype(data: ArrayData, target: &DataType) -> Result<ArrayData> {
    let children: Vec<&DataType> = match target {
        DataType::List(f) | DataType::LargeList(f) | DataType::FixedSizeList(f, _) | DataType::Map(f, _) => {
            vec![f.data_type()]
        }
        DataType::Struct(fields) => fields.iter().map(|f| f.data_type()).collect(),
        _ => vec![],
    };
    let retyped: Result<Vec<_>> =
        data.child_data().iter().zip(&children).map(|(child, target)| retype(child.clone(), target)).collect();
    Ok(data.into_builder().data_type(target.clone()).child_data(retyped?).build()?)
}

/// `array` as `target`, which must hold the same values: relabels where the buffers are the same, else casts.
pub(super) fn conform(array: &ArrayRef, target: &DataType) -> Result<ArrayRef> {
    let actual = array.data_type();
    if actual == target {
        return Ok(Arc::clone(array));
    }
    if !same_values(actual, target) {
        return Err(mismatch(actual, target));
    }
    if same_layout(actual, target) {
        return Ok(make_array(retype(array.to_data(), target)?));
    }
    Ok(arrow_cast::cast_with_options(
        array,
        target,
        &arrow_cast::CastOptions { safe: false, ..arrow_cast::CastOptions::default() },
    )?)
}

/// Relabels a primitive array as `target`, which must have the same width.
pub(super) fn relabel(array: &ArrayRef, target: &DataType) -> Result<ArrayRef> {
    if array.data_type() == target {
        return Ok(Arc::clone(array));
    }
    Ok(make_array(array.to_data().into_builder().data_type(target.clone()).build()?))
}

/// True when values of the type can be equal without being the same bytes: floats and maps, at any depth.
pub(super) fn has_normal_form(data_type: &DataType) -> bool {
    match data_type {
        DataType::Float32 | DataType::Float64 | DataType::Map(..) => true,
        DataType::Dictionary(_, values) => has_normal_form(values),
        DataType::List(f) | DataType::LargeList(f) | DataType::FixedSizeList(f, _) => has_normal_form(f.data_type()),
        DataType::Struct(fields) => fields.iter().any(|f| has_normal_form(f.data_type())),
        _ => false,
    }
}

/// True when a map is in the type: such values have no order.
pub(super) fn has_map(data_type: &DataType) -> bool {
    match data_type {
        DataType::Map(..) => true,
        DataType::List(f) | DataType::LargeList(f) | DataType::FixedSizeList(f, _) => has_map(f.data_type()),
        DataType::Struct(fields) => fields.iter().any(|f| has_map(f.data_type())),
        _ => false,
    }
}

/// The normal form: every NaN is the same NaN, −0.0 is 0.0, map entries are in the order of their keys; at any depth.
pub(super) fn normalise(array: &ArrayRef) -> Result<ArrayRef> {
    match array.data_type() {
        DataType::Float32 => {
            let floats = array.as_primitive::<Float32Type>();
            if floats.values().iter().all(|v| !v.is_nan() && v.to_bits() != (-0.0f32).to_bits()) {
                return Ok(Arc::clone(array));
            }
            let normal: PrimitiveArray<Float32Type> = floats.unary(|v| {
                if v.is_nan() {
                    f32::NAN
                } else if v == 0.0 {
                    0.0
                } else {
                    v
                }
            });
            Ok(Arc::new(normal))
        }
        DataType::Float64 => {
            let floats = array.as_primitive::<Float64Type>();
            if floats.values().iter().all(|v| !v.is_nan() && v.to_bits() != (-0.0f64).to_bits()) {
                return Ok(Arc::clone(array));
            }
            let normal: PrimitiveArray<Float64Type> = floats.unary(|v| {
                if v.is_nan() {
                    f64::NAN
                } else if v == 0.0 {
                    0.0
                } else {
                    v
                }
            });
            Ok(Arc::new(normal))
        }
        data_type if !has_normal_form(data_type) => Ok(Arc::clone(array)),
        _ => {
            let data = array.to_data();
            let children: Result<Vec<_>> =
                data.child_data().iter().map(|child| Ok(normalise(&make_array(child.clone()))?.to_data())).collect();
            let array = make_array(data.into_builder().child_data(children?).build()?);
            match array.data_type() {
                DataType::Map(..) => sort_entries(array.as_map()),
                _ => Ok(array),
            }
        }
    }
}

fn sort_entries(map: &MapArray) -> Result<ArrayRef> {
    let converter = RowConverter::new(vec![SortField::new(map.keys().data_type().clone())])?;
    let keys = converter.convert_columns(&[Arc::clone(map.keys())])?;
    let offsets = map.value_offsets();
    let start = offset(offsets[0]);
    let end = offset(offsets[map.len()]);
    let mut order: Vec<u64> = (start as u64..end as u64).collect();
    for pair in offsets.windows(2) {
        order[offset(pair[0]) - start..offset(pair[1]) - start].sort_by_key(|i| keys.row(index(*i)));
    }
    let entries = arrow_select::take::take(map.entries(), &UInt64Array::from(order), None)?;
    let (DataType::Map(field, sorted), true) = (map.data_type(), entries.data_type().is_nested()) else {
        return Err(Error::internal("a map array without a map type"));
    };
    let offsets = arrow_buffer::OffsetBuffer::from_lengths(offsets.windows(2).map(|p| offset(p[1]) - offset(p[0])));
    let array =
        MapArray::try_new(Arc::clone(field), offsets, entries.as_struct().clone(), map.nulls().cloned(), *sorted)?;
    Ok(Arc::new(array))
}

#[expect(clippy::cast_sign_loss, reason = "Arrow offsets are not negative")]
fn offset(value: i32) -> usize {
    value as usize
}

#[expect(clippy::cast_possible_truncation, reason = "an index into memory")]
fn index(value: u64) -> usize {
    value as usize
}
