//! Arithmetic that fails as Spark's does.
//!
//! Owns: the effects of an overflow, the texts of its errors, the division of doubles. Does not own: sums
//! (`functions`), the refusal of a state that was begun in the other mode (`core`).
//!
//! The errors have Spark's conditions, but another remedy: a state keeps its ANSI mode.
//! `identity` names the call.

use crate::arrays::type_text;
use arrow_schema::DataType;
use fastchangelog_format::{Error, Result};

/// The effect of an overflow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Overflow {
    /// An error, as with ANSI mode.
    Error,
    /// What Spark gives without ANSI mode: a sum of integers wraps, others are null.
    Silent,
    /// Null in any mode.
    Null,
}

impl Overflow {
    /// The effect in ANSI mode, or without it.
    pub(super) fn with(ansi: bool) -> Self {
        if ansi { Self::Error } else { Self::Silent }
    }

    pub(super) fn is_error(self) -> bool {
        self == Self::Error
    }

    pub(super) fn depends_on_ansi(self) -> bool {
        self != Self::Null
    }
}

/// The remedy for values that are too large, or for a divisor of zero.
const REMEDY: &str = "Leave out what causes it, with a filter before. Or do without ANSI mode: a state keeps the mode that \
it began with, so take a savepoint of the checkpoint and start a new one from it (`start_from`) with \
\"spark.sql.ansi.enabled\" set to \"false\"; an embedded state is declared under another name with ansi=False";

/// The overflow of a sum of integers.
pub(super) fn long_overflow(identity: &str) -> Error {
    arithmetic(identity, "long overflow")
}

/// The overflow of a sum of decimals.
pub(super) fn decimal_overflow(identity: &str) -> Error {
    arithmetic(identity, "Overflow in sum of decimals")
}

fn arithmetic(identity: &str, what: &str) -> Error {
    Error::invalid(format!("[ARITHMETIC_OVERFLOW] {what} in {identity}. {REMEDY}. SQLSTATE: 22003"))
}

/// A decimal result with more digits than its type has.
pub(super) fn out_of_range(identity: &str, result: &DataType) -> Error {
    Error::invalid(format!(
        "[NUMERIC_VALUE_OUT_OF_RANGE.WITH_SUGGESTION] The result of {identity} cannot be represented as {}. {REMEDY}. SQLSTATE: 22003",
        type_text(result)
    ))
}

/// The overflow of a sum of intervals, in any mode.
pub(super) fn interval_overflow(identity: &str) -> Error {
    Error::invalid(format!(
        "[INTERVAL_ARITHMETIC_OVERFLOW] Interval overflow in {identity}; leave out or cast the values that are too large. SQLSTATE: 22015"
    ))
}

/// The quotient of doubles; with a divisor of zero an error with ANSI mode, else none.
pub(super) fn quotient(dividend: f64, divisor: f64, ansi: bool, identity: &str) -> Result<Option<f64>> {
    if divisor != 0.0 {
        return Ok(Some(dividend / divisor));
    }
    if !ansi {
        return Ok(None);
    }
    Err(Error::invalid(format!("[DIVIDE_BY_ZERO] Division by zero in {identity}. {REMEDY}. SQLSTATE: 22012")))
}
