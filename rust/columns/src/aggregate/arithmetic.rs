//! Arithmetic that fails as Spark's does.
//!
//! Owns: the texts of its errors, and the division of doubles. Does not own: sums (`functions`).
//!
//! `identity` names the call.

use crate::arrays::type_text;
use arrow_schema::DataType;
use fastchangelog_format::{Error, Result};

/// The overflow of a sum of integers.
pub(super) fn long_overflow(identity: &str) -> Error {
    arithmetic(identity, "long overflow")
}

/// The overflow of a sum of decimals.
pub(super) fn decimal_overflow(identity: &str) -> Error {
    arithmetic(identity, "Overflow in sum of decimals")
}

fn arithmetic(identity: &str, what: &str) -> Error {
    Error::invalid(format!(
        "[ARITHMETIC_OVERFLOW] {what} in {identity}. If necessary set \"spark.sql.ansi.enabled\" to \"false\" to bypass this error. SQLSTATE: 22003"
    ))
}

/// A decimal result with more digits than its type has.
pub(super) fn out_of_range(identity: &str, result: &DataType) -> Error {
    Error::invalid(format!(
        "[NUMERIC_VALUE_OUT_OF_RANGE.WITH_SUGGESTION] The result of {identity} cannot be represented as {}. If necessary set \"spark.sql.ansi.enabled\" to \"false\" to bypass this error, and return NULL instead. SQLSTATE: 22003",
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
    Err(Error::invalid(format!(
        "[DIVIDE_BY_ZERO] Division by zero in {identity}. If necessary set \"spark.sql.ansi.enabled\" to \"false\" to bypass this error. SQLSTATE: 22012"
    )))
}
