//! Values that Spark's aggregates keep in bytes of their own, as Arrow columns.
//!
//! Owns: the two forms of those bytes. Does not own: rows in them (`spark_rows`), which aggregate has which form.
//!
//! ```text
//! values   a row of one field, the array of all values: collect_list, collect_set, listagg
//! counts   for each value 4 bytes of length, big-endian, and a row of the value and how often it came; then -1: mode,
//!          percentile
//! ```

use crate::spark_rows::RowColumns;
use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, ListArray};
use arrow_buffer::OffsetBuffer;
use arrow_schema::{DataType, Field, Fields};
use fastchangelog_format::{Error, Result};
use std::sync::Arc;

/// The values in each row of a column of bytes: lists of them, with counts lists of structs of both. `fields` are those
/// of the rows in the bytes.
pub fn collected(column: &ArrayRef, fields: &Fields, counted: bool) -> Result<ArrayRef> {
    let DataType::Binary = column.data_type() else {
        return Err(Error::internal(format_args!("bytes of Spark's in a column of {}", column.data_type())));
    };
    let bytes = column.as_binary::<i32>();
    let corrupt = |damage: crate::spark_rows::Damage| damage.in_object("the state of an aggregate of Spark's");
    let mut rows = RowColumns::new(fields)?;
    let mut lengths = Vec::with_capacity(bytes.len());
    for i in 0..bytes.len() {
        let mut rest = bytes.value(i);
        if !counted {
            rows.push(rest).map_err(corrupt)?;
            continue;
        }
        let before = lengths.len();
        let mut length = 0;
        loop {
            let bad = || Error::corrupt("the state of an aggregate of Spark's", before as u64, "counts without an end");
            let (size, tail) = rest.split_first_chunk::<4>().ok_or_else(bad)?;
            let Ok(size) = usize::try_from(i32::from_be_bytes(*size)) else { break };
            let (row, tail) = tail.split_at_checked(size).ok_or_else(bad)?;
            rows.push(row).map_err(corrupt)?;
            (rest, length) = (tail, length + 1);
        }
        lengths.push(length);
    }
    let found = rows.finish()?;
    if !counted {
        let column = found.columns().first().map(Arc::clone);
        return column.ok_or_else(|| Error::internal("a row of no field"));
    }
    let field = Arc::new(Field::new("element", found.data_type().clone(), false));
    Ok(Arc::new(ListArray::try_new(field, OffsetBuffer::from_lengths(lengths), Arc::new(found), None)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow_array::BinaryArray;
    use arrow_array::types::{Int32Type, Int64Type};

    /// A row of two fixed fields.
    fn row(value: i32, count: i64) -> Vec<u8> {
        [0, i64::from(value), count].iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    fn fields() -> Fields {
        Fields::from(vec![Field::new("v", DataType::Int32, true), Field::new("n", DataType::Int64, true)])
    }

    fn column(bytes: &[u8]) -> ArrayRef {
        Arc::new(BinaryArray::from(vec![bytes, &[0xff; 4]]))
    }

    #[test]
    fn counts_are_read_up_to_their_end() {
        let mut bytes = Vec::new();
        for (value, count) in [(7, 2), (-3, 1)] {
            bytes.extend_from_slice(&24i32.to_be_bytes());
            bytes.extend(row(value, count));
        }
        for cut in 1..bytes.len() {
            assert!(collected(&column(&bytes[..cut]), &fields(), true).is_err(), "cut at {cut}");
        }
        bytes.extend_from_slice(&(-1i32).to_be_bytes());
        let found = collected(&column(&bytes), &fields(), true).unwrap();
        let lists = found.as_list::<i32>();
        assert_eq!(lists.value_offsets(), [0, 2, 2]);
        let pairs = lists.values().as_struct();
        assert_eq!(pairs.column(0).as_primitive::<Int32Type>().values(), &[7, -3]);
        assert_eq!(pairs.column(1).as_primitive::<Int64Type>().values(), &[2, 1]);
    }

    #[test]
    fn an_array_is_the_field_of_a_row() {
        let words = [0, 16 << 32 | 32, 2, 0, 5i64, 9];
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let element = Field::new("element", DataType::Int64, true);
        let fields = Fields::from(vec![Field::new("a", DataType::List(Arc::new(element)), true)]);
        let column: ArrayRef = Arc::new(BinaryArray::from(vec![&bytes[..]]));
        let found = collected(&column, &fields, false).unwrap();
        assert_eq!(found.as_list::<i32>().value(0).as_primitive::<Int64Type>().values(), &[5, 9]);
        let cut: ArrayRef = Arc::new(BinaryArray::from(vec![&bytes[..20]]));
        assert!(collected(&cut, &fields, false).is_err());
    }
}
