//! Handles for people. Owns: nothing; a handle's bytes and meaning are the core's.

use crate::detached::raise;
use fastchangelog_core::engine::parse_handle;
use fastchangelog_format::Error;
use pyo3::prelude::*;

/// A handle, as it is kept in Spark's state, as a JSON object.
#[pyfunction]
pub(crate) fn handle_json(py: Python<'_>, text: &str) -> PyResult<String> {
    let handle = parse_handle(text).map_err(|e| raise(py, &e))?;
    serde_json::to_string(&handle).map_err(|e| raise(py, &Error::internal(e)))
}
