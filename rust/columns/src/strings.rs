//! Strings in binary form.
//!
//! Owns: the conversion of types and columns with strings, at any depth, to binary form and back.
//! Does not own: other physical forms of one type (`arrays`), the check of a column from outside (`import`).
//!
//! Spark's strings are bytes that need not be UTF-8: `cast(value as string)` takes any. An Arrow string array must be
//! UTF-8. So keys and values of a query are in their binary form between the import of a batch and the result type that
//! Python assigns. Invariants:
//! 1. a string and its binary form have the same bytes, hence the same key, hash and order;
//! 2. a column becomes text only after its bytes were validated as UTF-8.

use super::arrays::{conform, mismatch, same_values};
use arrow_array::cast::AsArray;
use arrow_array::{
    Array, ArrayRef, FixedSizeListArray, GenericBinaryArray, GenericListArray, GenericStringArray, MapArray,
    OffsetSizeTrait, RecordBatch, RecordBatchOptions, StringViewArray, StructArray,
};
use arrow_schema::{DataType, Field, FieldRef, Fields, Schema, SchemaRef};
use fastchangelog_format::{Error, Result};
use std::sync::Arc;

/// The type with binaries in the place of strings.
pub fn binary_type(data_type: &DataType) -> DataType {
    match data_type {
        DataType::Utf8 => DataType::Binary,
        DataType::LargeUtf8 => DataType::LargeBinary,
        DataType::Utf8View => DataType::BinaryView,
        DataType::Dictionary(keys, values) => DataType::Dictionary(keys.clone(), Box::new(binary_type(values))),
        DataType::List(field) => DataType::List(binary_field(field)),
        DataType::LargeList(field) => DataType::LargeList(binary_field(field)),
        DataType::FixedSizeList(field, size) => DataType::FixedSizeList(binary_field(field), *size),
        DataType::Map(entries, sorted) => DataType::Map(binary_field(entries), *sorted),
        DataType::Struct(fields) => DataType::Struct(binary_fields(fields)),
        other => other.clone(),
    }
}

/// The schema with binaries in the place of strings.
pub fn binary_schema(schema: &Schema) -> SchemaRef {
    Arc::new(Schema::new_with_metadata(binary_fields(schema.fields()), schema.metadata().clone()))
}

fn binary_fields(fields: &Fields) -> Fields {
    fields.iter().map(binary_field).collect()
}

fn binary_field(field: &FieldRef) -> FieldRef {
    if has_text(field.data_type()) {
        Arc::new(Field::clone(field).with_data_type(binary_type(field.data_type())))
    } else {
        Arc::clone(field)
    }
}

fn has_text(data_type: &DataType) -> bool {
    match data_type {
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => true,
        DataType::Dictionary(_, values) => has_text(values),
        DataType::List(field)
        | DataType::LargeList(field)
        | DataType::FixedSizeList(field, _)
        | DataType::Map(field, _) => has_text(field.data_type()),
        DataType::Struct(fields) => fields.iter().any(|field| has_text(field.data_type())),
        _ => false,
    }
}

/// The column in its binary form. The data is shared.
pub(super) fn as_binary(array: &ArrayRef) -> Result<ArrayRef> {
    if !has_text(array.data_type()) {
        return Ok(Arc::clone(array));
    }
    Ok(match array.data_type() {
        DataType::Utf8 => binary_of(array.as_string::<i32>())?,
        DataType::LargeUtf8 => binary_of(array.as_string::<i64>())?,
        DataType::Utf8View => Arc::new(array.as_string_view().clone().to_binary_view()),
        other => relabel(array, &binary_type(other), &|child, _| as_binary(child))?,
    })
}

/// The column as `declared`, whose binary form it has. Bytes that are not UTF-8 are an `InvalidArgument`.
pub(super) fn as_text(array: &ArrayRef, declared: &DataType) -> Result<ArrayRef> {
    if array.data_type() == declared {
        return Ok(Arc::clone(array));
    }
    Ok(match (array.data_type(), declared) {
        (DataType::Binary, DataType::Utf8) => text_of(array.as_binary::<i32>())?,
        (DataType::LargeBinary, DataType::LargeUtf8) => text_of(array.as_binary::<i64>())?,
        (DataType::BinaryView, DataType::Utf8View) => {
            let views = array.as_binary_view();
            let texts: StringViewArray = views.iter().map(utf8).collect::<Result<_>>()?;
            Arc::new(texts)
        }
        _ => relabel(array, declared, &as_text)?,
    })
}

/// The batch as `declared`, whose binary form it has. Bytes that are not UTF-8 are an `InvalidArgument`.
pub fn text_batch(batch: &RecordBatch, declared: &SchemaRef) -> Result<RecordBatch> {
    let columns = batch.columns().iter().zip(declared.fields());
    let columns = columns.map(|(column, field)| as_text(column, field.data_type())).collect::<Result<_>>()?;
    let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
    Ok(RecordBatch::try_new_with_options(Arc::clone(declared), columns, &options)?)
}

/// The column in the binary form of `declared`, which is `binary`. It comes as declared, or in a binary form already.
pub(super) fn conform_binary(array: &ArrayRef, declared: &DataType, binary: &DataType) -> Result<ArrayRef> {
    let actual = array.data_type();
    if !same_values(actual, declared) && !same_values(actual, binary) {
        return Err(mismatch(actual, declared));
    }
    conform(&as_binary(array)?, binary)
}

fn binary_of<O: OffsetSizeTrait>(strings: &GenericStringArray<O>) -> Result<ArrayRef> {
    let (offsets, values, nulls) = strings.clone().into_parts();
    Ok(Arc::new(GenericBinaryArray::<O>::try_new(offsets, values, nulls)?))
}

fn text_of<O: OffsetSizeTrait>(bytes: &GenericBinaryArray<O>) -> Result<ArrayRef> {
    let (offsets, values, nulls) = bytes.clone().into_parts();
    if let Ok(strings) = GenericStringArray::<O>::try_new(offsets, values, nulls) {
        return Ok(Arc::new(strings));
    }
    // Bytes under a null, or outside of a slice, are not values.
    let strings: GenericStringArray<O> = bytes.iter().map(utf8).collect::<Result<_>>()?;
    Ok(Arc::new(strings))
}

fn utf8(value: Option<&[u8]>) -> Result<Option<&str>> {
    value.map(std::str::from_utf8).transpose().map_err(|error| {
        Error::invalid(format!("a string is not UTF-8 ({error})"))
            .with_remedy("declare the column binary, or leave such rows out")
    })
}

/// A nested column under another type, its children made by `child`.
fn relabel(
    array: &ArrayRef,
    target: &DataType,
    child: &dyn Fn(&ArrayRef, &DataType) -> Result<ArrayRef>,
) -> Result<ArrayRef> {
    let nulls = array.nulls().cloned();
    Ok(match (array.data_type(), target) {
        (DataType::Dictionary(..), DataType::Dictionary(_, values)) => {
            let dictionary = array.as_any_dictionary();
            dictionary.with_values(child(dictionary.values(), values)?)
        }
        (DataType::List(_), DataType::List(field)) => list(array.as_list::<i32>(), field, child)?,
        (DataType::LargeList(_), DataType::LargeList(field)) => list(array.as_list::<i64>(), field, child)?,
        (DataType::FixedSizeList(..), DataType::FixedSizeList(field, size)) => {
            let values = child(array.as_fixed_size_list().values(), field.data_type())?;
            let field = Arc::clone(field);
            Arc::new(FixedSizeListArray::try_new_with_length(field, *size, values, nulls, array.len())?)
        }
        (DataType::Map(..), DataType::Map(field, sorted)) => {
            let map = array.as_map();
            let entries: ArrayRef = Arc::new(map.entries().clone());
            let entries = child(&entries, field.data_type())?;
            let entries = entries.as_struct_opt().ok_or_else(|| mismatch(array.data_type(), target))?.clone();
            Arc::new(MapArray::try_new(Arc::clone(field), map.offsets().clone(), entries, nulls, *sorted)?)
        }
        (DataType::Struct(_), DataType::Struct(fields)) if array.as_struct().num_columns() == fields.len() => {
            let columns = array.as_struct().columns().iter().zip(fields);
            let columns = columns.map(|(column, field)| child(column, field.data_type())).collect::<Result<_>>()?;
            Arc::new(StructArray::try_new_with_length(fields.clone(), columns, nulls, array.len())?)
        }
        _ => return Err(mismatch(array.data_type(), target)),
    })
}

fn list<O: OffsetSizeTrait>(
    array: &GenericListArray<O>,
    field: &FieldRef,
    child: &dyn Fn(&ArrayRef, &DataType) -> Result<ArrayRef>,
) -> Result<ArrayRef> {
    let values = child(array.values(), field.data_type())?;
    let (offsets, nulls) = (array.offsets().clone(), array.nulls().cloned());
    Ok(Arc::new(GenericListArray::<O>::try_new(Arc::clone(field), offsets, values, nulls)?))
}

#[cfg(test)]
#[path = "strings_tests.rs"]
mod tests;
