//! Going through the rows of a batch.
//!
//! Owns: the mapping from input rows to accumulator rows, and the view of columns of bytes.
//! Does not own: the effect of a row (`functions`), the group of a row (`table`).

use super::prim::{Native, doubles};
use super::row::RowMut;
use crate::codec::{EncodedKeys, KeyCodec};
use crate::rows::Rows;
use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef};
use arrow_buffer::NullBuffer;
use arrow_schema::DataType;
use fastchangelog_format::{Error, Result};
use std::slice;

/// The input rows that count, and the accumulator rows that they go into.
pub(super) struct Fold<'a> {
    /// The accumulator row of each input row.
    pub(super) groups: &'a [u32],
    /// Which input rows count; none means all.
    pub(super) mask: Option<NullBuffer>,
    pub(super) rows: &'a mut Rows,
}

impl Fold<'_> {
    /// Calls `f(input row, fixed part of the accumulator row)` for each input row that counts, in order.
    #[inline]
    pub(super) fn each(self, mut f: impl FnMut(usize, &mut [u8])) {
        let stride = self.rows.shape.stride;
        let fixed = self.rows.fixed.as_mut_slice();
        let mut one = |i: usize, group: u32| {
            let at = group as usize * stride;
            f(i, &mut fixed[at..at + stride]);
        };
        match &self.mask {
            None => self.groups.iter().enumerate().for_each(|(i, group)| one(i, *group)),
            Some(mask) => mask.valid_indices().for_each(|i| one(i, self.groups[i])),
        }
    }

    /// Writes columns of doubles side by side into the accumulator rows, from byte `at` on.
    pub(super) fn put_doubles(self, at: usize, columns: &[&ArrayRef]) -> Result<()> {
        let columns: Vec<_> = columns.iter().map(|column| doubles(column)).collect::<Result<_>>()?;
        self.each(|i, row| columns.iter().enumerate().for_each(|(slot, values)| values[i].write(row, at + 8 * slot)));
        Ok(())
    }

    /// As [`Fold::each`], with the variable slots.
    #[inline]
    pub(super) fn each_row(self, mut f: impl FnMut(usize, &mut RowMut<'_>)) {
        let mut one = |i: usize, group: u32| {
            let number = group as usize;
            let (fixed, vars) = self.rows.row_mut(number);
            f(i, &mut RowMut { fixed, vars, number });
        };
        match &self.mask {
            None => self.groups.iter().enumerate().for_each(|(i, group)| one(i, *group)),
            Some(mask) => mask.valid_indices().for_each(|i| one(i, self.groups[i])),
        }
    }
}

/// The rows in which a column of booleans is true.
pub(super) fn trues(column: &ArrayRef) -> NullBuffer {
    let column = column.as_boolean();
    NullBuffer::new(match column.nulls() {
        Some(nulls) => column.values() & nulls.inner(),
        None => column.values().clone(),
    })
}

/// The values of a column as the codec's bytes.
pub(super) fn encode(codec: &KeyCodec, column: &ArrayRef) -> Result<EncodedKeys> {
    codec.encode(slice::from_ref(column), column.len())
}

/// True for the types that [`Bytes`] reads; they come here in their binary form.
pub(super) fn is_bytes(data_type: &DataType) -> bool {
    matches!(data_type, DataType::Utf8 | DataType::LargeUtf8 | DataType::Binary | DataType::LargeBinary)
}

/// A column of strings or binaries: of bytes, here.
pub(super) enum Bytes<'a> {
    Small(&'a [i32], &'a [u8]),
    Large(&'a [i64], &'a [u8]),
}

impl<'a> Bytes<'a> {
    pub(super) fn of(column: &'a ArrayRef) -> Result<Self> {
        Ok(match column.data_type() {
            DataType::Binary => {
                let array = column.as_binary::<i32>();
                Self::Small(array.value_offsets(), array.value_data())
            }
            DataType::LargeBinary => {
                let array = column.as_binary::<i64>();
                Self::Large(array.value_offsets(), array.value_data())
            }
            other => return Err(Error::internal(format_args!("a column of {other} taken for bytes"))),
        })
    }

    #[inline]
    #[expect(clippy::cast_sign_loss, clippy::cast_possible_truncation, reason = "Arrow offsets into memory")]
    pub(super) fn get(&self, i: usize) -> &'a [u8] {
        match self {
            Self::Small(offsets, data) => &data[offsets[i] as usize..offsets[i + 1] as usize],
            Self::Large(offsets, data) => &data[offsets[i] as usize..offsets[i + 1] as usize],
        }
    }
}
