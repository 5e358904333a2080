//! Keyed state in process as Python sees it. Owns: signatures; the work is `fastchangelog_core::local`'s.

use crate::fork::let_children_exit;
use crate::futures::{Bell, Make, settle_later};
use crate::gate::{Kept, enter, exclusive, raise};
use crate::options::all_metrics;
use crate::provider::provider;
use crate::savepoint::{SavepointFolder, save, store_of};
use arrow_array::ArrayRef;
use arrow_schema::Schema;
use fastchangelog_core::clock::SystemClock;
use fastchangelog_core::config::Options;
use fastchangelog_core::failpoint::Failpoints;
use fastchangelog_core::format::{decode_handle, encode_handle};
use fastchangelog_core::local::{self, Ground, OpenLocal};
use fastchangelog_core::metrics::SharedMetrics;
use fastchangelog_core::model::ShardHandle;
use fastchangelog_core::state::typed::{KeyRange, TypedEntries};
use fastchangelog_core::store::Store;
use fastchangelog_core::{Error, Result};
use pyo3::exceptions::PyStopIteration;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use pyo3_arrow::{PyArray, PyRecordBatch, PySchema};
use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

const STATE: &str = "state";

/// A checkpoint of a state in process.
#[pyclass(frozen, eq, hash, module = "fastchangelog._internal")]
#[derive(PartialEq, Eq)]
pub(crate) struct StateHandle(ShardHandle);

impl StateHandle {
    pub(crate) fn inner(&self) -> &ShardHandle {
        &self.0
    }
}

impl Hash for StateHandle {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.0.version, self.0.batch, self.0.schema_id).hash(state);
    }
}

#[pymethods]
impl StateHandle {
    #[staticmethod]
    fn from_bytes(py: Python<'_>, data: &[u8]) -> PyResult<Self> {
        decode_handle(data).map(Self).map_err(|e| raise(py, &e))
    }

    fn to_bytes<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &encode_handle(&self.0))
    }

    fn to_json(&self, py: Python<'_>) -> PyResult<String> {
        serde_json::to_string(&self.0).map_err(|e| raise(py, &Error::internal(e)))
    }

    #[getter]
    fn version(&self) -> String {
        self.0.version.to_string()
    }

    #[getter]
    fn checkpoint_number(&self) -> i64 {
        self.0.batch.0
    }

    #[getter]
    fn state_keys(&self) -> u64 {
        self.0.state_keys
    }

    #[getter]
    fn state_bytes(&self) -> u64 {
        self.0.state_bytes
    }
}

#[pyclass(frozen, module = "fastchangelog._internal")]
pub(crate) struct LocalState(Kept<Arc<local::LocalState>>);

impl LocalState {
    pub(crate) fn here(&self, py: Python<'_>) -> PyResult<&Arc<local::LocalState>> {
        self.0.get(STATE).map_err(|e| raise(py, &e))
    }
}

#[pymethods]
impl LocalState {
    #[new]
    #[pyo3(signature = (uri, name, options, storage_options, handle, read_only, create, provider = None, savepoint = None))]
    #[expect(clippy::too_many_arguments, reason = "what open_state takes")]
    fn new(
        py: Python<'_>,
        uri: &str,
        name: String,
        options: BTreeMap<String, String>,
        storage_options: BTreeMap<String, String>,
        handle: Option<PyRef<'_, StateHandle>>,
        read_only: bool,
        create: bool,
        provider: Option<Py<PyAny>>,
        savepoint: Option<PyRef<'_, SavepointFolder>>,
    ) -> PyResult<Self> {
        let handle = handle.map(|handle| handle.0.clone());
        let savepoint = savepoint.map(|folder| store_of(&folder));
        let state = enter(py, |tick| {
            let points = std::env::var("FASTCHANGELOG_FAILPOINTS").unwrap_or_default();
            let ground = Ground {
                clock: SystemClock::shared(),
                metrics: SharedMetrics::default(),
                failpoints: Failpoints::parse(&points)?,
            };
            let options = Options::for_local(&options)?;
            let provider = provider.map(|ask| self::provider(ask, &ground.clock));
            let (metrics, failpoints) = (Arc::clone(&ground.metrics), Arc::clone(&ground.failpoints));
            let root = Store::open_with(uri, &storage_options, provider, &options, metrics, failpoints)?;
            let request = OpenLocal { root, name, handle, read_only, create, savepoint, options, local_dir: None };
            local::LocalState::open(request, &ground, tick)
        })?;
        let opened = Self(Kept::new(Arc::new(state)));
        let_children_exit(py)?;
        Ok(opened)
    }

    #[getter]
    fn uri(&self, py: Python<'_>) -> PyResult<String> {
        Ok(self.here(py)?.uri().to_owned())
    }

    #[getter]
    fn read_only(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(self.here(py)?.is_read_only())
    }

    #[getter]
    fn closed(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(self.here(py)?.is_closed())
    }

    fn metrics(&self, py: Python<'_>) -> PyResult<BTreeMap<String, u64>> {
        Ok(all_metrics(self.here(py)?.metrics()))
    }

    fn newest(&self, py: Python<'_>) -> PyResult<Option<StateHandle>> {
        let newest = enter(py, |_| Ok(self.0.get(STATE)?.newest()))?;
        Ok(newest.map(StateHandle))
    }

    fn savepoint(
        &self,
        py: Python<'_>,
        handle: &StateHandle,
        to: &SavepointFolder,
        format: &str,
        scratch: PathBuf,
    ) -> PyResult<()> {
        enter(py, |tick| save(self.0.get(STATE)?, handle, to, format, &scratch, tick))
    }

    fn value_state(&self, py: Python<'_>, name: &str, types: PySchema) -> PyResult<ValueState> {
        let types = types.into_inner();
        let state = enter(py, |_| {
            let (key, value) = key_and_value(&types)?;
            self.0.get(STATE)?.value_state(name, key.data_type(), value.data_type())
        })?;
        Ok(ValueState(Kept::new(state)))
    }

    fn begin_checkpoint(&self, py: Python<'_>, settle: Py<PyAny>) -> PyResult<()> {
        enter(py, |tick| {
            let done = move |result: Result<ShardHandle>| {
                let make = |handle| -> Make { Box::new(|py| Ok(Py::new(py, StateHandle(handle))?.into_any())) };
                settle_later(settle, result.map(make));
            };
            self.0.get(STATE)?.begin_checkpoint(Box::new(done), tick)
        })
    }

    fn progress(&self, py: Python<'_>) -> PyResult<(u64, usize, u64)> {
        let found = enter(py, |_| Ok(self.0.get(STATE)?.progress()))?;
        Ok((found.log_bytes, found.segments, found.state_bytes))
    }

    fn begin_materialize(&self, py: Python<'_>) -> PyResult<Option<StateMaterialization>> {
        let begun = enter(py, |_| self.0.get(STATE)?.begin_materialize())?;
        Ok(begun.map(|run| StateMaterialization(Kept::new(run))))
    }

    fn on_event(&self, py: Python<'_>, call: Py<PyAny>) -> PyResult<()> {
        let bell = Bell::new(call);
        self.here(py)?.on_event(Box::new(move || bell.ask()));
        Ok(())
    }

    fn refuse_changes(&self, py: Python<'_>, why: Option<String>) -> PyResult<()> {
        self.here(py)?.refuse_changes(why.map(Error::store));
        Ok(())
    }

    fn close(&self, py: Python<'_>) -> PyResult<()> {
        enter(py, |_| {
            // A forked child has none of the threads that a close would wait for.
            if let Ok(state) = self.0.get(STATE) {
                state.close();
            }
            Ok(())
        })
    }
}

/// A materialization of a state in process.
#[pyclass(frozen, module = "fastchangelog._internal")]
pub(crate) struct StateMaterialization(Kept<local::Materialization>);

const RUN: &str = "materialization";

#[pymethods]
impl StateMaterialization {
    fn start(&self, py: Python<'_>, settle: Py<PyAny>) -> PyResult<()> {
        enter(py, |_| {
            let ran = move |result: Result<()>| {
                let make = |()| -> Make { Box::new(|py| Ok(py.None())) };
                settle_later(settle, result.map(make));
            };
            self.0.get(RUN)?.start(Box::new(ran))
        })
    }

    fn complete(&self, py: Python<'_>) -> PyResult<()> {
        enter(py, |_| self.0.get(RUN)?.complete())
    }

    fn abort(&self, py: Python<'_>, reason: &str) -> PyResult<()> {
        enter(py, |_| {
            self.0.get(RUN)?.abort(reason);
            Ok(())
        })
    }
}

pub(crate) fn key_and_value(types: &Schema) -> Result<(&arrow_schema::Field, &arrow_schema::Field)> {
    match &types.fields()[..] {
        [key, value] => Ok((key, value)),
        other => Err(Error::internal(format!("{} types where a key's and a value's are needed", other.len()))),
    }
}

#[pyclass(frozen, module = "fastchangelog._internal")]
pub(crate) struct ValueState(Kept<local::ValueState>);

const VALUE: &str = "value state";

#[pymethods]
impl ValueState {
    fn get(&self, py: Python<'_>, keys: PyArray) -> PyResult<Py<PyAny>> {
        let keys = array(keys);
        let values = enter(py, |_| self.0.get(VALUE)?.get(&keys))?;
        Ok(PyArray::from_array_ref(values).to_pyarrow(py)?.unbind())
    }

    fn contains(&self, py: Python<'_>, keys: PyArray) -> PyResult<Py<PyAny>> {
        let keys = array(keys);
        let found = enter(py, |_| self.0.get(VALUE)?.contains(&keys))?;
        Ok(PyArray::from_array_ref(Arc::new(found)).to_pyarrow(py)?.unbind())
    }

    fn put(&self, py: Python<'_>, keys: PyArray, values: PyArray) -> PyResult<()> {
        let (keys, values) = (array(keys), array(values));
        enter(py, |_| self.0.get(VALUE)?.put(&keys, &values))
    }

    fn delete(&self, py: Python<'_>, keys: PyArray) -> PyResult<()> {
        let keys = array(keys);
        enter(py, |_| self.0.get(VALUE)?.delete(&keys))
    }

    #[pyo3(signature = (start, end, prefix, batch_size))]
    fn scan(
        &self,
        py: Python<'_>,
        start: Option<PyArray>,
        end: Option<PyArray>,
        prefix: Option<PyArray>,
        batch_size: usize,
    ) -> PyResult<StateScan> {
        let (start, end, prefix) = (start.map(array), end.map(array), prefix.map(array));
        let scan = enter(py, |_| {
            let state = self.0.get(VALUE)?;
            let range = range(state.types(), start.as_ref(), end.as_ref(), prefix.as_ref())?;
            Ok(state.scan(range, batch_size))
        })?;
        Ok(StateScan::new(scan))
    }
}

pub(crate) fn array(array: PyArray) -> ArrayRef {
    array.into_inner().0
}

pub(crate) fn range(
    types: &TypedEntries,
    start: Option<&ArrayRef>,
    end: Option<&ArrayRef>,
    prefix: Option<&ArrayRef>,
) -> Result<KeyRange> {
    let within = prefix.map(|prefix| types.beginning_with(prefix)).transpose()?.unwrap_or_default();
    let start = start.map(|start| types.bound(start)).transpose()?.unwrap_or_default();
    let end = end.map(|end| types.bound(end)).transpose()?;
    // None is no end, so the smaller of two ends is not the smaller option.
    Ok(KeyRange { from: within.from.max(start), to: within.to.into_iter().chain(end).min() })
}

#[pyclass(frozen, module = "fastchangelog._internal")]
pub(crate) struct StateScan(Kept<Mutex<local::Scan>>);

impl StateScan {
    pub(crate) fn new(scan: local::Scan) -> Self {
        Self(Kept::new(Mutex::new(scan)))
    }
}

#[pymethods]
impl StateScan {
    fn __iter__(this: Py<Self>) -> Py<Self> {
        this
    }

    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let next = enter(py, |_| exclusive(self.0.get("scan")?, "scan")?.next().transpose())?;
        match next {
            Some(batch) => PyRecordBatch::new(batch).into_pyarrow(py),
            None => Err(PyStopIteration::new_err(())),
        }
    }
}
