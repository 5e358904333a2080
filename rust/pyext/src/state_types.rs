//! States of values, maps, lists and aggregates as Python sees them. Owns: signatures; the work is `fastchangelog_core::embedded`'s.

use crate::arrow_interface::{ForeignArray, schema_to_pyarrow, text, to_pyarrow, types};
use crate::detached::{ProcessBound, detached};
use crate::state::{LocalState, StateScan};
use arrow_array::{Array, ArrayRef};
use arrow_schema::Schema;
use fastchangelog_columns::aggregate::NamedCall;
use fastchangelog_columns::typed::{KeyRange, TypedEntries};
use fastchangelog_core::embedded;
use fastchangelog_format::Result;
use pyo3::prelude::*;
use pyo3_arrow::PySchema;
use std::sync::Arc;
use std::time::Duration;

const VALUE: &str = "value state";
const MAP: &str = "map state";
const LIST: &str = "list state";
const AGGREGATING: &str = "aggregating state";

pub(crate) fn to_python(py: Python<'_>, array: impl Into<Arc<dyn Array>>) -> PyResult<Py<PyAny>> {
    to_pyarrow(py, array.into()).map(Bound::unbind)
}

fn optional(py: Python<'_>, array: Option<ForeignArray>) -> PyResult<Option<ArrayRef>> {
    array.map(|array| text(py, &array)).transpose()
}

/// Where a scan begins and ends: its first key, the one after its last, and what all begin with.
struct Bounds([Option<ArrayRef>; 3]);

impl Bounds {
    fn of(py: Python<'_>, bounds: [Option<ForeignArray>; 3]) -> PyResult<Self> {
        let [start, end, prefix] = bounds.map(|bound| optional(py, bound));
        Ok(Self([start?, end?, prefix?]))
    }

    fn range(&self, types: &TypedEntries) -> Result<KeyRange> {
        let [start, end, prefix] = &self.0;
        let within = prefix.as_ref().map(|prefix| types.beginning_with(prefix)).transpose()?.unwrap_or_default();
        let start = start.as_ref().map(|start| types.bound(start)).transpose()?.unwrap_or_default();
        let end = end.as_ref().map(|end| types.bound(end)).transpose()?;
        // None is no end, so the smaller of two ends is not the smaller option.
        Ok(KeyRange { from: within.from.max(start), to: within.to.into_iter().chain(end).min() })
    }
}

fn scan_of(
    py: Python<'_>,
    bounds: [Option<ForeignArray>; 3],
    make: impl FnOnce(&Bounds) -> Result<embedded::Scan> + Send,
) -> PyResult<StateScan> {
    let bounds = Bounds::of(py, bounds)?;
    detached(py, |_| make(&bounds)).map(StateScan::new)
}

#[pyclass(frozen, module = "fastchangelog._internal")]
pub(crate) struct ValueState(ProcessBound<embedded::ValueState>);

#[pymethods]
impl ValueState {
    #[new]
    #[pyo3(signature = (state, name, schema, ttl_millis = None))]
    fn new(
        py: Python<'_>,
        state: PyRef<'_, LocalState>,
        name: &str,
        schema: PySchema,
        ttl_millis: Option<u64>,
    ) -> PyResult<Self> {
        let (schema, state) = (schema.into_inner(), state.here(py)?);
        let made = detached(py, |_| {
            let [key, value] = types(&schema)?;
            state.value_state(name, key, value, ttl_millis.map(Duration::from_millis))
        })?;
        Ok(Self(ProcessBound::new(made)))
    }

    fn get(&self, py: Python<'_>, keys: ForeignArray) -> PyResult<Py<PyAny>> {
        let keys = text(py, &keys)?;
        let found = detached(py, |_| self.0.get(VALUE)?.get(&keys))?;
        to_python(py, found)
    }

    fn contains(&self, py: Python<'_>, keys: ForeignArray) -> PyResult<Py<PyAny>> {
        let keys = text(py, &keys)?;
        let found = detached(py, |_| self.0.get(VALUE)?.contains(&keys))?;
        to_python(py, Arc::new(found) as Arc<dyn Array>)
    }

    fn put(&self, py: Python<'_>, keys: ForeignArray, values: ForeignArray) -> PyResult<()> {
        let (keys, values) = (text(py, &keys)?, text(py, &values)?);
        detached(py, |_| self.0.get(VALUE)?.put(&keys, &values))
    }

    fn delete(&self, py: Python<'_>, keys: ForeignArray) -> PyResult<()> {
        let keys = text(py, &keys)?;
        detached(py, |_| self.0.get(VALUE)?.delete(&keys))
    }

    #[pyo3(signature = (start, end, prefix, batch_size))]
    fn scan(
        &self,
        py: Python<'_>,
        start: Option<ForeignArray>,
        end: Option<ForeignArray>,
        prefix: Option<ForeignArray>,
        batch_size: usize,
    ) -> PyResult<StateScan> {
        scan_of(py, [start, end, prefix], |bounds| {
            let state = self.0.get(VALUE)?;
            Ok(state.scan(bounds.range(state.types())?, batch_size))
        })
    }
}

#[pyclass(frozen, module = "fastchangelog._internal")]
pub(crate) struct MapState(ProcessBound<embedded::MapState>);

#[pymethods]
impl MapState {
    #[new]
    #[pyo3(signature = (state, name, schema, ttl_millis = None))]
    fn new(
        py: Python<'_>,
        state: PyRef<'_, LocalState>,
        name: &str,
        schema: PySchema,
        ttl_millis: Option<u64>,
    ) -> PyResult<Self> {
        let (schema, state) = (schema.into_inner(), state.here(py)?);
        let made = detached(py, |_| {
            let [key, map_key, value] = types(&schema)?;
            state.map_state(name, (key, map_key), value, ttl_millis.map(Duration::from_millis))
        })?;
        Ok(Self(ProcessBound::new(made)))
    }

    fn get(&self, py: Python<'_>, keys: ForeignArray, map_keys: ForeignArray) -> PyResult<Py<PyAny>> {
        let (keys, map_keys) = (text(py, &keys)?, text(py, &map_keys)?);
        let found = detached(py, |_| self.0.get(MAP)?.get(&keys, &map_keys))?;
        to_python(py, found)
    }

    fn contains(&self, py: Python<'_>, keys: ForeignArray, map_keys: ForeignArray) -> PyResult<Py<PyAny>> {
        let (keys, map_keys) = (text(py, &keys)?, text(py, &map_keys)?);
        let found = detached(py, |_| self.0.get(MAP)?.contains(&keys, &map_keys))?;
        to_python(py, Arc::new(found) as Arc<dyn Array>)
    }

    fn put(&self, py: Python<'_>, keys: ForeignArray, map_keys: ForeignArray, values: ForeignArray) -> PyResult<()> {
        let (keys, map_keys, values) = (text(py, &keys)?, text(py, &map_keys)?, text(py, &values)?);
        detached(py, |_| self.0.get(MAP)?.put(&keys, &map_keys, &values))
    }

    fn delete(&self, py: Python<'_>, keys: ForeignArray, map_keys: ForeignArray) -> PyResult<()> {
        let (keys, map_keys) = (text(py, &keys)?, text(py, &map_keys)?);
        detached(py, |_| self.0.get(MAP)?.delete(&keys, &map_keys))
    }

    fn clear(&self, py: Python<'_>, keys: ForeignArray) -> PyResult<()> {
        let keys = text(py, &keys)?;
        detached(py, |_| self.0.get(MAP)?.clear(&keys))
    }

    fn lengths(&self, py: Python<'_>, keys: ForeignArray) -> PyResult<Py<PyAny>> {
        let keys = text(py, &keys)?;
        let found = detached(py, |_| self.0.get(MAP)?.lengths(&keys))?;
        to_python(py, Arc::new(found) as Arc<dyn Array>)
    }

    #[pyo3(signature = (key, start, end, prefix, batch_size))]
    fn scan(
        &self,
        py: Python<'_>,
        key: Option<ForeignArray>,
        start: Option<ForeignArray>,
        end: Option<ForeignArray>,
        prefix: Option<ForeignArray>,
        batch_size: usize,
    ) -> PyResult<StateScan> {
        let key = optional(py, key)?;
        scan_of(py, [start, end, prefix], |bounds| {
            let state = self.0.get(MAP)?;
            let range = match &key {
                None => bounds.range(state.keys())?,
                Some(key) => state.range_of(key, &bounds.range(state.map_keys())?)?,
            };
            Ok(state.scan(range, batch_size))
        })
    }
}

#[pyclass(frozen, module = "fastchangelog._internal")]
pub(crate) struct ListState(ProcessBound<embedded::ListState>);

#[pymethods]
impl ListState {
    #[new]
    #[pyo3(signature = (state, name, schema, ttl_millis = None))]
    fn new(
        py: Python<'_>,
        state: PyRef<'_, LocalState>,
        name: &str,
        schema: PySchema,
        ttl_millis: Option<u64>,
    ) -> PyResult<Self> {
        let (schema, state) = (schema.into_inner(), state.here(py)?);
        let made = detached(py, |_| {
            let [key, value] = types(&schema)?;
            state.list_state(name, key, value, ttl_millis.map(Duration::from_millis))
        })?;
        Ok(Self(ProcessBound::new(made)))
    }

    fn get(&self, py: Python<'_>, keys: ForeignArray) -> PyResult<Py<PyAny>> {
        let keys = text(py, &keys)?;
        let found = detached(py, |_| self.0.get(LIST)?.get(&keys))?;
        to_python(py, found)
    }

    fn lengths(&self, py: Python<'_>, keys: ForeignArray) -> PyResult<Py<PyAny>> {
        let keys = text(py, &keys)?;
        let found = detached(py, |_| self.0.get(LIST)?.lengths(&keys))?;
        to_python(py, Arc::new(found) as Arc<dyn Array>)
    }

    fn append(&self, py: Python<'_>, keys: ForeignArray, values: ForeignArray) -> PyResult<()> {
        let (keys, values) = (text(py, &keys)?, text(py, &values)?);
        detached(py, |_| self.0.get(LIST)?.append(&keys, &values))
    }

    fn extend(&self, py: Python<'_>, keys: ForeignArray, lists: ForeignArray) -> PyResult<()> {
        let (keys, lists) = (text(py, &keys)?, text(py, &lists)?);
        detached(py, |_| self.0.get(LIST)?.extend(&keys, &lists))
    }

    fn put(&self, py: Python<'_>, keys: ForeignArray, lists: ForeignArray) -> PyResult<()> {
        let (keys, lists) = (text(py, &keys)?, text(py, &lists)?);
        detached(py, |_| self.0.get(LIST)?.put(&keys, &lists))
    }

    fn clear(&self, py: Python<'_>, keys: ForeignArray) -> PyResult<()> {
        let keys = text(py, &keys)?;
        detached(py, |_| self.0.get(LIST)?.clear(&keys))
    }

    #[pyo3(signature = (start, end, prefix, batch_size))]
    fn scan(
        &self,
        py: Python<'_>,
        start: Option<ForeignArray>,
        end: Option<ForeignArray>,
        prefix: Option<ForeignArray>,
        batch_size: usize,
    ) -> PyResult<StateScan> {
        scan_of(py, [start, end, prefix], |bounds| {
            let state = self.0.get(LIST)?;
            Ok(state.scan(bounds.range(state.types())?, batch_size))
        })
    }
}

#[pyclass(frozen, module = "fastchangelog._internal")]
pub(crate) struct AggregatingState(ProcessBound<embedded::AggregatingState>);

#[pymethods]
impl AggregatingState {
    #[new]
    #[pyo3(signature = (state, name, schema, calls, ansi, ttl_millis = None))]
    fn new(
        py: Python<'_>,
        state: PyRef<'_, LocalState>,
        name: &str,
        schema: PySchema,
        calls: &str,
        ansi: bool,
        ttl_millis: Option<u64>,
    ) -> PyResult<Self> {
        let (schema, state) = (schema.into_inner(), state.here(py)?);
        let made = detached(py, |_| {
            let [key, rows] = types(&schema)?;
            let calls = NamedCall::list_from_json(calls)?;
            let ttl = ttl_millis.map(Duration::from_millis);
            state.aggregating_state(name, (key, rows), &calls, ansi, ttl)
        })?;
        Ok(Self(ProcessBound::new(made)))
    }

    fn result_schema(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let result = detached(py, |_| Ok(self.0.get(AGGREGATING)?.result_type().clone()))?;
        let field = arrow_schema::Field::new("value", result, true);
        Ok(schema_to_pyarrow(py, Arc::new(Schema::new(vec![field])))?.unbind())
    }

    fn get(&self, py: Python<'_>, keys: ForeignArray) -> PyResult<Py<PyAny>> {
        let keys = text(py, &keys)?;
        let found = detached(py, |_| self.0.get(AGGREGATING)?.get(&keys))?;
        to_python(py, found)
    }

    fn contains(&self, py: Python<'_>, keys: ForeignArray) -> PyResult<Py<PyAny>> {
        let keys = text(py, &keys)?;
        let found = detached(py, |_| self.0.get(AGGREGATING)?.contains(&keys))?;
        to_python(py, Arc::new(found) as Arc<dyn Array>)
    }

    #[pyo3(signature = (keys, rows))]
    fn add(&self, py: Python<'_>, keys: ForeignArray, rows: Option<ForeignArray>) -> PyResult<()> {
        let (keys, rows) = (text(py, &keys)?, optional(py, rows)?);
        detached(py, |_| self.0.get(AGGREGATING)?.add(&keys, rows.as_ref()))
    }

    fn clear(&self, py: Python<'_>, keys: ForeignArray) -> PyResult<()> {
        let keys = text(py, &keys)?;
        detached(py, |_| self.0.get(AGGREGATING)?.clear(&keys))
    }

    #[pyo3(signature = (start, end, prefix, batch_size))]
    fn scan(
        &self,
        py: Python<'_>,
        start: Option<ForeignArray>,
        end: Option<ForeignArray>,
        prefix: Option<ForeignArray>,
        batch_size: usize,
    ) -> PyResult<StateScan> {
        scan_of(py, [start, end, prefix], |bounds| {
            let state = self.0.get(AGGREGATING)?;
            Ok(state.scan(bounds.range(state.keys())?, batch_size))
        })
    }
}
