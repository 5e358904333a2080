//! Aggregates over accumulator rows.
