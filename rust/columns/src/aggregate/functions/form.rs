//! Values of any type in the slots of a row.
//!
//! Owns: which form a type has. Does not own: the slots (the functions).

use crate::aggregate::fold::is_bytes;
use crate::aggregate::prim::Prim;
use crate::codec::KeyCodec;
use arrow_schema::DataType;

/// How a value is kept.
#[derive(Debug)]
pub(super) enum Form {
    /// As a machine value.
    Prim(Prim),
    /// Strings and binary, as they are.
    Bytes,
    /// Anything else, encoded.
    Encoded(Box<KeyCodec>),
}

impl Form {
    /// The form of a type; `normal` if equal values are to have equal bytes. None for a type without a binary form.
    pub(super) fn of(data_type: &DataType, normal: bool) -> Option<Self> {
        if is_bytes(data_type) {
            return Some(Self::Bytes);
        }
        Some(match Prim::of(data_type) {
            Some(prim) => Self::Prim(prim),
            None => Self::Encoded(Box::new(KeyCodec::of_value(data_type, normal).ok()?)),
        })
    }
}
