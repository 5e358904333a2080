//! Groups: distinct keys and their accumulator rows.
