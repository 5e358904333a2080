//! Import of Arrow columns from outside, validated before any read.
//!
//! Owns: which layouts are accepted, and the check that no value lies outside of its buffers.
//! Does not own: the source of a column (the Python extension), its type against a declaration (`arrays`, `strings`).
//!
//! Arrow's own import trusts its input: it reads offsets that decrease or point beyond their buffer without a check.
//! Here every offset, dictionary key and count of nulls is checked once, in one pass per column. Strings are taken in
//! their binary form, so their bytes are not read.

use super::arrays::type_text;
use super::strings::{as_text, binary_type};
use arrow_array::{ArrayRef, make_array};
use arrow_buffer::Buffer;
use arrow_data::ArrayData;
use arrow_schema::{ArrowError, DataType};
use fastchangelog_format::{Error, Result};
use std::borrow::Cow;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Types are nested at most this deep: as deep as a schema in Arrow's IPC format may be.
pub const DEPTH: usize = 64;

/// The type as which a column of type `data_type` is to be imported. Fails for layouts that are not taken.
pub fn import_type(data_type: &DataType) -> Result<DataType> {
    check_layout(data_type, DEPTH)?;
    Ok(binary_type(data_type))
}

/// The column of `data`, which has the type that [`import_type`] gives: strings in their binary form.
pub fn import(data: &ArrayData) -> Result<ArrayRef> {
    check_layout(data.data_type(), DEPTH)?;
    // The check itself panics on some malformed counts of buffers and children.
    let checked = catch_unwind(AssertUnwindSafe(|| {
        let data = without_stray_offsets(data)?;
        data.validate_full()?;
        Ok::<_, ArrowError>(make_array(data.into_owned()))
    }));
    let malformed = |why: &dyn std::fmt::Display| {
        let name = type_text(data.data_type());
        Error::invalid(format!("an Arrow column of type {name} is malformed: {why}"))
            .with_remedy("rebuild it from its values")
    };
    match checked {
        Ok(Ok(array)) => Ok(array),
        Ok(Err(error)) => Err(malformed(&error)),
        Err(_) => Err(malformed(&"its buffers are not those of its type")),
    }
}

/// As [`import`], with strings as text, as `declared`. Bytes that are not UTF-8 are an `InvalidArgument`.
pub fn import_text(data: &ArrayData, declared: &DataType) -> Result<ArrayRef> {
    as_text(&import(data)?, declared)
}

/// The column with empty buffers where it, or a column inside it, has no values.
///
/// A column without values has one offset, which should be 0. Arrow's Java library leaves it uninitialized inside lists
/// and maps that are all null or empty; columns of Spark 4.1 come like this.
fn without_stray_offsets(data: &ArrayData) -> Result<Cow<'_, ArrayData>, ArrowError> {
    if data.is_empty() && !data.buffers().iter().all(Buffer::is_empty) {
        return Ok(Cow::Owned(ArrayData::new_empty(data.data_type())));
    }
    let children = data.child_data().iter().map(without_stray_offsets).collect::<Result<Vec<_>, ArrowError>>()?;
    if children.iter().all(|child| matches!(child, Cow::Borrowed(_))) {
        return Ok(Cow::Borrowed(data));
    }
    let children = children.into_iter().map(Cow::into_owned).collect();
    Ok(Cow::Owned(data.clone().into_builder().child_data(children).build()?))
}

fn check_layout(data_type: &DataType, depth: usize) -> Result<()> {
    let children: Vec<&DataType> = match data_type {
        DataType::Union(..) | DataType::RunEndEncoded(..) | DataType::ListView(_) | DataType::LargeListView(_) => {
            return Err(Error::invalid(format!("an Arrow column of type {data_type} is not supported"))
                .with_remedy("cast it to a plain type or a list"));
        }
        DataType::FixedSizeBinary(size) | DataType::FixedSizeList(_, size) if *size < 0 => {
            return Err(Error::invalid(format!("an Arrow column of type {data_type} has values of negative size")));
        }
        DataType::Dictionary(_, values) => vec![values],
        DataType::List(field)
        | DataType::LargeList(field)
        | DataType::FixedSizeList(field, _)
        | DataType::Map(field, _) => vec![field.data_type()],
        DataType::Struct(fields) => fields.iter().map(|field| field.data_type()).collect(),
        _ => vec![],
    };
    let depth = depth.checked_sub(1).ok_or_else(|| {
        Error::invalid(format!("an Arrow column is nested more than {DEPTH} levels deep")).with_remedy("flatten it")
    })?;
    children.into_iter().try_for_each(|child| check_layout(child, depth))
}
