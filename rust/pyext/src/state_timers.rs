//! States of timers as Python sees them. Owns: signatures; the work is `fastchangelog_core::embedded`'s.

use crate::arrow_interface::{ForeignArray, text, types};
use crate::detached::{ProcessBound, detached};
use crate::state::{LocalState, StateScan};
use crate::state_types::to_python;
use arrow_array::Array;
use fastchangelog_core::embedded;
use pyo3::prelude::*;
use pyo3_arrow::PySchema;
use std::sync::Arc;

const TIMERS: &str = "state of timers";

#[pyclass(frozen, module = "fastchangelog._internal")]
pub(crate) struct TimerState(ProcessBound<embedded::TimerState>);

#[pymethods]
impl TimerState {
    #[new]
    fn new(py: Python<'_>, state: PyRef<'_, LocalState>, name: &str, schema: PySchema) -> PyResult<Self> {
        let (schema, state) = (schema.into_inner(), state.here(py)?);
        let made = detached(py, |_| {
            let [key] = types(&schema)?;
            state.timers(name, key)
        })?;
        Ok(Self(ProcessBound::new(made)))
    }

    fn register(&self, py: Python<'_>, keys: ForeignArray, times: ForeignArray) -> PyResult<()> {
        let (keys, times) = (text(py, &keys)?, text(py, &times)?);
        detached(py, |_| self.0.get(TIMERS)?.register(&keys, &times))
    }

    fn delete(&self, py: Python<'_>, keys: ForeignArray, times: ForeignArray) -> PyResult<()> {
        let (keys, times) = (text(py, &keys)?, text(py, &times)?);
        detached(py, |_| self.0.get(TIMERS)?.delete(&keys, &times))
    }

    fn of(&self, py: Python<'_>, keys: ForeignArray) -> PyResult<Py<PyAny>> {
        let keys = text(py, &keys)?;
        let found = detached(py, |_| self.0.get(TIMERS)?.of(&keys))?;
        to_python(py, Arc::new(found) as Arc<dyn Array>)
    }

    fn next_time(&self, py: Python<'_>) -> PyResult<Option<i64>> {
        detached(py, |_| self.0.get(TIMERS)?.next_time())
    }

    fn due(&self, py: Python<'_>, until: i64, batch_size: usize) -> PyResult<StateScan> {
        detached(py, |_| self.0.get(TIMERS)?.due(until, batch_size)).map(StateScan::new)
    }

    fn scan(&self, py: Python<'_>, start: Option<i64>, end: Option<i64>, batch_size: usize) -> PyResult<StateScan> {
        detached(py, |_| Ok(self.0.get(TIMERS)?.scan(start, end, batch_size))).map(StateScan::new)
    }
}
