//! The kinds of arguments that functions take.
//!
//! Owns: the kinds, and the types of each kind. Does not own: the arguments of each function (`functions`).

use crate::aggregate::fold::is_bytes;
use crate::aggregate::prim::{Prim, is_integer};
use arrow_schema::{DataType, IntervalUnit};

/// A kind of arguments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Argument {
    /// Any type; only whether it is null counts.
    Presence,
    /// Any type.
    Any,
    /// A type whose values Spark hashes as the core does.
    Hashed,
    /// A type whose values have an order.
    Ordered,
    /// A number or an interval.
    Quantity,
    /// A number, taken as a double.
    Double,
    /// A number, a date, a time or an interval, taken as a double.
    Measured,
    /// An integer.
    Integer,
    /// A boolean.
    Boolean,
    /// A text or a binary.
    Text,
    /// A double from 0 to 1, or an array of them.
    Percentages,
    /// A relative deviation: a constant number.
    Deviation,
}

impl Argument {
    /// Its name in Python's table.
    pub fn name(self) -> &'static str {
        match self {
            Self::Presence => "presence",
            Self::Any => "any",
            Self::Hashed => "hashed",
            Self::Ordered => "ordered",
            Self::Quantity => "quantity",
            Self::Double => "double",
            Self::Measured => "measured",
            Self::Integer => "integer",
            Self::Boolean => "boolean",
            Self::Text => "text",
            Self::Percentages => "percentages",
            Self::Deviation => "deviation",
        }
    }

    /// False for a type that is not of this kind. A function may refuse more: a type without a binary form.
    pub(super) fn accepts(self, data_type: &DataType) -> bool {
        let number = || {
            is_integer(data_type)
                || matches!(data_type, DataType::Float32 | DataType::Float64 | DataType::Decimal128(..))
        };
        match self {
            Self::Presence | Self::Any | Self::Hashed | Self::Ordered => true,
            Self::Quantity => {
                number() || matches!(data_type, DataType::Duration(_) | DataType::Interval(IntervalUnit::YearMonth))
            }
            Self::Double | Self::Deviation => number(),
            Self::Measured => Prim::of(data_type).is_some_and(|prim| prim != Prim::Bool),
            Self::Integer => is_integer(data_type),
            Self::Boolean => *data_type == DataType::Boolean,
            Self::Text => is_bytes(data_type),
            Self::Percentages => matches!(data_type, DataType::Float64 | DataType::List(_)),
        }
    }
}
