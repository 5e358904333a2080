//! Values of one type, one behind the other in a variable slot.
//!
//! Owns: the bytes of elements, and the columns that they make.
//! Does not own: which values are kept, and their order (`collect`, `listagg`, `mode`).
//!
//! A machine value is its bytes; any other value is its length, a `u32`, and its bytes.

use super::form::Form;
use crate::aggregate::fold::{Bytes, encode};
use crate::aggregate::prim::{self, Native, with_native};
use crate::aggregate::results::byte_strings;
use crate::aggregate::row::{RowMut, Slots};
use crate::codec::EncodedKeys;
use crate::strings::binary_type;
use arrow_array::{ArrayRef, BinaryArray, LargeBinaryArray, ListArray};
use arrow_buffer::{NullBuffer, OffsetBuffer, ScalarBuffer};
use arrow_schema::{DataType, FieldRef};
use fastchangelog_format::{Error, Result};
use std::sync::Arc;

/// The bytes of a slot have a length of 32 bits, and its room is twice that.
const MOST_BYTES: usize = 1 << 30;

/// The elements of one type.
#[derive(Debug)]
pub(super) struct Elements {
    form: Form,
}

/// The values of a column, as elements have them.
pub(super) enum Values<'a> {
    Fixed { bytes: Vec<u8>, width: usize },
    Bytes(Bytes<'a>),
    Encoded(EncodedKeys),
}

impl Values<'_> {
    #[inline]
    pub(super) fn get(&self, i: usize) -> &[u8] {
        match self {
            Self::Fixed { bytes, width } => &bytes[i * width..(i + 1) * width],
            Self::Bytes(bytes) => bytes.get(i),
            Self::Encoded(keys) => keys.key(i),
        }
    }
}

impl Elements {
    /// The elements of a type; `normal` if equal values are to have equal bytes.
    pub(super) fn of(data_type: &DataType, normal: bool) -> Option<Self> {
        Some(Self { form: Form::of(data_type, normal)? })
    }

    /// The values of a column.
    pub(super) fn values<'a>(&self, column: &'a ArrayRef) -> Result<Values<'a>> {
        Ok(match &self.form {
            Form::Prim(prim) => with_native!(*prim, N => {
                let (values, width) = (N::values(column)?, size_of::<N>());
                let mut bytes = vec![0; values.len() * width];
                values.iter().enumerate().for_each(|(i, value)| value.write(&mut bytes, i * width));
                Values::Fixed { bytes, width }
            }),
            Form::Bytes => Values::Bytes(Bytes::of(column)?),
            Form::Encoded(codec) => Values::Encoded(encode(codec, column)?),
        })
    }

    /// Appends a value as an element.
    #[expect(clippy::cast_possible_truncation, reason = "an Arrow value is at most 2 GiB")]
    pub(super) fn put(&self, value: &[u8], out: &mut Vec<u8>) {
        if !matches!(self.form, Form::Prim(_)) {
            out.extend_from_slice(&(value.len() as u32).to_le_bytes());
        }
        out.extend_from_slice(value);
    }

    /// Adds encoded elements to a slot, or in front of it. An error where a key has more than a row can hold.
    pub(super) fn add(slots: &Slots, row: &mut RowMut<'_>, more: &[u8], in_front: bool) -> Result<()> {
        if row.var(slots.var).len() + more.len() > MOST_BYTES {
            return Err(Error::invalid(format!("the values of a key in {} are more than 1 GiB", slots.identity))
                .with_remedy("group by more keys, or leave values out"));
        }
        if in_front {
            let all = [more, row.var(slots.var)].concat();
            row.set_var(slots.var, &all);
        } else {
            row.append_var(slots.var, more);
        }
        Ok(())
    }

    /// The values in a slot.
    pub(super) fn split<'a>(&self, slot: &'a [u8], identity: &str) -> Result<Vec<&'a [u8]>> {
        let bad = || Error::corrupt(format_args!("an accumulator row of {identity}"), 0, "elements without an end");
        if let Form::Prim(prim) = self.form {
            let values = slot.chunks_exact(prim.width());
            return if values.remainder().is_empty() { Ok(values.collect()) } else { Err(bad()) };
        }
        let (mut values, mut rest) = (Vec::new(), slot);
        while !rest.is_empty() {
            let (length, tail) = rest.split_first_chunk::<4>().ok_or_else(bad)?;
            let (value, tail) = tail.split_at_checked(u32::from_le_bytes(*length) as usize).ok_or_else(bad)?;
            values.push(value);
            rest = tail;
        }
        Ok(values)
    }

    /// True if `a` is less than `b`.
    pub(super) fn is_before(&self, a: &[u8], b: &[u8]) -> bool {
        match &self.form {
            Form::Prim(prim) => with_native!(*prim, N => N::read(a, 0).before(N::read(b, 0))),
            Form::Bytes | Form::Encoded(_) => a < b,
        }
    }

    /// A column of values, null where there is none.
    pub(super) fn column(&self, values: &[Option<&[u8]>], slots: &Slots, declared: &DataType) -> Result<ArrayRef> {
        let nulls = NullBuffer::from(values.iter().map(Option::is_some).collect::<Vec<_>>());
        let nulls = Some(nulls).filter(|nulls| nulls.null_count() > 0);
        match &self.form {
            Form::Prim(prim) => Ok(with_native!(*prim, N => {
                N::array(values.iter().map(|v| v.map_or(N::default(), |v| N::read(v, 0))).collect(), nulls)
            })),
            Form::Bytes => byte_strings(values.iter().map(|v| v.unwrap_or_default()), nulls, slots, declared),
            Form::Encoded(codec) => {
                let null = codec.null()?;
                let mut columns = codec.decode_binary(values.iter().map(|value| value.unwrap_or(null.key(0))))?;
                columns.pop().ok_or_else(|| Error::internal("a value codec without a column"))
            }
        }
    }

    /// Lists of so many elements each, of all `values` in order.
    pub(super) fn lists(
        &self,
        values: &[&[u8]],
        lengths: &[usize],
        field: &FieldRef,
        identity: &str,
    ) -> Result<ArrayRef> {
        let too_many = |what: &str| {
            Error::invalid(format!("the results of {identity} are more than 2 GiB of {what} in one batch"))
        };
        if i32::try_from(values.len()).is_err() {
            return Err(too_many("elements"));
        }
        let binary = binary_type(field.data_type());
        let elements: ArrayRef = match &self.form {
            Form::Prim(kind) => {
                let array =
                    with_native!(*kind, N => N::array(values.iter().map(|value| N::read(value, 0)).collect(), None));
                prim::column(&array, &binary)?
            }
            Form::Bytes if binary == DataType::LargeBinary => {
                Arc::new(LargeBinaryArray::from_iter_values(values.iter().copied()))
            }
            Form::Bytes if i32::try_from(values.iter().map(|value| value.len()).sum::<usize>()).is_err() => {
                return Err(too_many("bytes"));
            }
            Form::Bytes => Arc::new(BinaryArray::from_iter_values(values.iter().copied())),
            Form::Encoded(codec) => {
                let mut columns = codec.decode_binary(values.iter().copied())?;
                columns.pop().ok_or_else(|| Error::internal("a value codec without a column"))?
            }
        };
        let offsets: ScalarBuffer<i32> = OffsetBuffer::from_lengths(lengths.iter().copied()).into_inner();
        let field = Arc::new(field.as_ref().clone().with_data_type(elements.data_type().clone()));
        Ok(Arc::new(ListArray::try_new(field, OffsetBuffer::new(offsets), elements, None)?))
    }
}
