//! Rows by their places: how many bytes they take, and new columns made of them.
//!
//! Owns: the place of a row, the size of a row of any type, gathering rows of many blocks into new columns.
//! Does not own: the order of rows (`row_order`), the blocks (`row_payload`).

use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, BinaryArray, OffsetSizeTrait};
use arrow_buffer::{OffsetBuffer, ScalarBuffer};
use arrow_schema::DataType;
use arrow_select::interleave::interleave;
use fastchangelog_format::{Error, Result};
use std::ops::Range;

/// Extra bytes charged for each non-primitive element of a list, whose place gathering lists.
const ELEMENT: usize = 16;
/// Bytes charged for a zero-size element, to bound how many fit into one payload.
const WEIGHTLESS: usize = 1 << 10;
/// Most zero-size list elements of a payload; nothing else bounds their number.
pub(super) const MOST_WEIGHTLESS: usize = 1 << 20;

/// A row of one of many blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) block: u32,
    pub(super) row: u32,
}

/// New columns with the rows of `places`, in this order. There is at least one; `columns` are those of a block.
pub(super) fn gather<'a>(places: &[Place], columns: impl Fn(u32) -> &'a [ArrayRef]) -> Result<Vec<ArrayRef>> {
    let (mut numbers, mut sources) = (Vec::<Option<usize>>::new(), Vec::<&[ArrayRef]>::new());
    let mut indices = Vec::with_capacity(places.len());
    for place in places {
        let block = place.block as usize;
        if block >= numbers.len() {
            numbers.resize(block + 1, None);
        }
        let number = *numbers[block].get_or_insert_with(|| {
            sources.push(columns(place.block));
            sources.len() - 1
        });
        indices.push((number, place.row as usize));
    }
    let count = sources.first().map_or(0, |columns| columns.len());
    let column = |i: usize| {
        let arrays: Vec<&dyn Array> = sources.iter().map(|columns| columns[i].as_ref()).collect();
        Ok(interleave(&arrays, &indices)?)
    };
    (0..count).map(column).collect()
}

/// The keys as a column.
pub(super) fn key_column<'a>(keys: impl ExactSizeIterator<Item = &'a [u8]> + Clone) -> Result<BinaryArray> {
    let mut ends = Vec::with_capacity(keys.len() + 1);
    let mut end = 0;
    ends.push(0);
    for key in keys.clone() {
        end += key.len();
        ends.push(i32::try_from(end).map_err(|_| Error::invalid("the keys of some rows have more than 2 GiB"))?);
    }
    let mut bytes = Vec::with_capacity(end);
    keys.for_each(|key| bytes.extend_from_slice(key));
    Ok(BinaryArray::try_new(OffsetBuffer::new(ScalarBuffer::from(ends)), bytes.into(), None)?)
}

/// How many bytes rows of some types take.
#[derive(Debug)]
pub(super) struct RowSizes {
    /// Of all columns whose values have one width.
    fixed: usize,
    /// The other columns.
    variable: Vec<usize>,
}

impl RowSizes {
    pub(super) fn new<'a>(types: impl Iterator<Item = &'a DataType>) -> Self {
        let mut sizes = Self { fixed: 0, variable: Vec::new() };
        for (i, data_type) in types.enumerate() {
            match width(data_type) {
                Some(width) => sizes.fixed += width,
                None => sizes.variable.push(i),
            }
        }
        sizes
    }

    /// The bytes of some rows, without their keys.
    pub(super) fn of(&self, columns: &[ArrayRef], rows: Range<usize>) -> usize {
        let variable = self.variable.iter().map(|i| bytes_of(columns[*i].as_ref(), &rows));
        self.fixed * rows.len() + variable.sum::<usize>()
    }
}

/// Bytes of each value of the type; none if values differ.
fn width(data_type: &DataType) -> Option<usize> {
    match data_type {
        DataType::Null => Some(0),
        DataType::Boolean => Some(1),
        DataType::FixedSizeBinary(size) => usize::try_from(*size).ok(),
        other => other.primitive_width(),
    }
}

fn bytes_of(array: &dyn Array, rows: &Range<usize>) -> usize {
    let n = rows.len();
    match array.data_type() {
        DataType::Binary => 4 * n + span(array.as_binary::<i32>().value_offsets(), rows).len(),
        DataType::LargeBinary => 8 * n + span(array.as_binary::<i64>().value_offsets(), rows).len(),
        DataType::List(_) => {
            let list = array.as_list::<i32>();
            4 * n + bytes_of_elements(list.values().as_ref(), &span(list.value_offsets(), rows))
        }
        DataType::LargeList(_) => {
            let list = array.as_list::<i64>();
            8 * n + bytes_of_elements(list.values().as_ref(), &span(list.value_offsets(), rows))
        }
        DataType::Map(..) => {
            let map = array.as_map();
            4 * n + bytes_of_elements(map.entries(), &span(map.value_offsets(), rows))
        }
        DataType::FixedSizeList(_, size) => {
            let size = usize::try_from(*size).unwrap_or(0);
            let elements = rows.start * size..rows.end * size;
            bytes_of_elements(array.as_fixed_size_list().values().as_ref(), &elements)
        }
        DataType::Struct(_) => {
            array.as_struct().columns().iter().map(|column| bytes_of(column.as_ref(), rows)).sum::<usize>() + n
        }
        other => width(other).unwrap_or(ELEMENT) * n,
    }
}

fn bytes_of_elements(values: &dyn Array, elements: &Range<usize>) -> usize {
    let beside = match values.data_type() {
        data_type if data_type.is_primitive() => 0,
        data_type if is_weightless(data_type) => WEIGHTLESS,
        _ => ELEMENT,
    };
    bytes_of(values, elements) + beside * elements.len()
}

/// The elements of the lists in `rows`.
fn span<O: OffsetSizeTrait>(offsets: &[O], rows: &Range<usize>) -> Range<usize> {
    offsets[rows.start].as_usize()..offsets[rows.end].as_usize()
}

/// True for types whose values may take no bytes.
fn is_weightless(data_type: &DataType) -> bool {
    match data_type {
        DataType::Null | DataType::FixedSizeBinary(0) | DataType::FixedSizeList(_, 0) => true,
        DataType::FixedSizeList(field, _) => is_weightless(field.data_type()),
        DataType::Struct(fields) => fields.iter().all(|field| is_weightless(field.data_type())),
        _ => false,
    }
}

/// How many elements of lists in a column take no bytes.
pub(super) fn weightless_elements(array: &dyn Array) -> usize {
    let of = |values: &dyn Array| {
        if is_weightless(values.data_type()) { values.len() } else { weightless_elements(values) }
    };
    match array.data_type() {
        DataType::List(_) => of(array.as_list::<i32>().values().as_ref()),
        DataType::LargeList(_) => of(array.as_list::<i64>().values().as_ref()),
        DataType::FixedSizeList(..) => of(array.as_fixed_size_list().values().as_ref()),
        DataType::Map(..) => of(array.as_map().entries()),
        DataType::Struct(_) => array.as_struct().columns().iter().map(|c| weightless_elements(c.as_ref())).sum(),
        _ => 0,
    }
}

#[cfg(test)]
#[path = "row_gather_tests.rs"]
mod tests;
