//! Result columns of a range of rows.
//!
//! Owns: columns made of fixed slots, of bytes and of encoded values, and their nulls.
//! Does not own: the slots of a result (`functions`), the size of a batch (`table`).

use super::prim::{Native, has_bit};
use super::row::Slots;
use crate::codec::KeyCodec;
use crate::rows::Rows;
use arrow_array::{ArrayRef, BinaryArray, LargeBinaryArray};
use arrow_buffer::{NullBuffer, OffsetBuffer};
use arrow_schema::DataType;
use fastchangelog_format::{Error, Result};
use std::ops::Range;
use std::sync::Arc;

/// Some successive rows.
#[derive(Clone, Copy)]
pub(super) struct RowRange<'a> {
    rows: &'a Rows,
    start: usize,
    end: usize,
}

impl<'a> RowRange<'a> {
    pub(super) fn new(rows: &'a Rows, range: &Range<usize>) -> Self {
        Self { rows, start: range.start, end: range.end }
    }

    /// The fixed parts.
    pub(super) fn fixed(self) -> impl ExactSizeIterator<Item = &'a [u8]> {
        let stride = self.rows.shape.stride;
        self.rows.fixed[self.start * stride..self.end * stride].chunks_exact(stride)
    }

    /// Null where `valid` is false of the fixed part.
    pub(super) fn nulls(self, valid: impl Fn(&[u8]) -> bool) -> Option<NullBuffer> {
        let nulls = NullBuffer::new(self.fixed().map(valid).collect());
        Some(nulls).filter(|nulls| nulls.null_count() > 0)
    }

    /// The values at byte `at`, null where bit `valid` is off.
    pub(super) fn values<N: Native>(self, at: usize, valid: usize) -> ArrayRef {
        N::array(self.fixed().map(|row| N::read(row, at)).collect(), self.nulls(|row| has_bit(row, valid)))
    }

    /// The values of variable slot `slot`.
    pub(super) fn vars(self, slot: usize) -> impl ExactSizeIterator<Item = &'a [u8]> + Clone {
        (self.start..self.end).map(move |row| self.rows.vars.get(row, slot))
    }

    /// The byte strings of the first variable slot, null where bit `valid` is off.
    pub(super) fn bytes(self, slots: &Slots, valid: usize, declared: &DataType) -> Result<ArrayRef> {
        byte_strings(self.vars(slots.var), self.nulls(|row| has_bit(row, valid)), slots, declared)
    }

    /// The values of variable slot `slot`, as `codec` encodes them; null where bit `there` is off.
    pub(super) fn encoded(self, codec: &KeyCodec, slot: usize, there: usize) -> Result<ArrayRef> {
        let null = codec.null()?;
        let value = |row: usize| {
            if has_bit(self.rows.fixed(row), there) { self.rows.vars.get(row, slot) } else { null.key(0) }
        };
        let mut columns = codec.decode_binary((self.start..self.end).map(value))?;
        columns.pop().ok_or_else(|| Error::internal("a value codec without a column"))
    }
}

/// A column of byte strings.
pub(super) fn byte_strings<'a>(
    values: impl Iterator<Item = &'a [u8]> + Clone,
    nulls: Option<NullBuffer>,
    slots: &Slots,
    declared: &DataType,
) -> Result<ArrayRef> {
    let total: usize = values.clone().map(<[u8]>::len).sum();
    let mut data = Vec::with_capacity(total);
    values.clone().for_each(|value| data.extend_from_slice(value));
    let lengths = values.map(<[u8]>::len);
    let corrupt = |e| Error::corrupt(format_args!("an accumulator row of {}", slots.identity), 0, e);
    if i32::try_from(total).is_err() && *declared != DataType::LargeBinary {
        return Err(Error::invalid(format!("the results of {} are {total} bytes in one batch", slots.identity)));
    }
    Ok(match declared {
        DataType::LargeBinary => Arc::new(
            LargeBinaryArray::try_new(OffsetBuffer::from_lengths(lengths), data.into(), nulls).map_err(corrupt)?,
        ),
        _ => Arc::new(BinaryArray::try_new(OffsetBuffer::from_lengths(lengths), data.into(), nulls).map_err(corrupt)?),
    })
}
