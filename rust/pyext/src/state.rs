//! Keyed embedded state as Python sees it. Owns: signatures; the work is `fastchangelog_core::embedded`'s.

use crate::arrow_interface::batch_to_pyarrow;
use crate::attached::attached;
use crate::detached::{ProcessBound, calling, check_signals, detached, exclusive, raise};
use crate::fork::let_children_exit;
use crate::futures::{CoalescedCallback, Make, resolve_later, start_resolving};
use crate::metrics;
use crate::provider::provider;
use crate::savepoint_folder::{SavepointFolder, form, store_of};
use arrow_array::RecordBatch;
use fastchangelog_core::embedded::{self, Attend, OpenEmbedded, StateClock};
use fastchangelog_format::clock::SystemClock;
use fastchangelog_format::config::Options;
use fastchangelog_format::model::ShardHandle;
use fastchangelog_format::{Error, Result, decode_handle, encode_handle};
use fastchangelog_store::Store;
use fastchangelog_store::environment::Environment;
use fastchangelog_store::failpoint::Failpoints;
use fastchangelog_store::metrics::SharedMetrics;
use pyo3::exceptions::PyStopIteration;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

const STATE: &str = "state";

/// A checkpoint of an embedded state.
#[pyclass(frozen, eq, hash, module = "fastchangelog._internal")]
#[derive(PartialEq, Eq)]
pub(crate) struct StateHandle(ShardHandle);

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
pub(crate) struct LocalState(ProcessBound<Arc<embedded::EmbeddedState>>);

impl LocalState {
    pub(crate) fn here(&self, py: Python<'_>) -> PyResult<&Arc<embedded::EmbeddedState>> {
        self.0.get(STATE).map_err(|e| raise(py, &e))
    }
}

/// A function of Python that gives milliseconds since the epoch.
fn clock_of(ask: Py<PyAny>) -> StateClock {
    Arc::new(move || {
        let answer = attached(|py| {
            let answer = calling(py, || ask.call0(py)).and_then(|answer| answer.extract::<i64>(py));
            answer.map_err(|error| Error::invalid(format!("clock= gave no time: {error}")))
        });
        answer.unwrap_or_else(|| Err(Error::closed("the Python interpreter is ending")))
    })
}

#[pymethods]
impl LocalState {
    #[new]
    #[pyo3(signature = (uri, name, options, storage_options, handle, read_only, create, provider = None, savepoint = None, clock = None))]
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
        clock: Option<Py<PyAny>>,
    ) -> PyResult<Self> {
        let handle = handle.map(|handle| handle.0.clone());
        let savepoint = savepoint.map(|folder| store_of(&folder)).transpose().map_err(|e| raise(py, &e))?;
        let state = detached(py, |tick| {
            let points = std::env::var("FASTCHANGELOG_FAILPOINTS").unwrap_or_default();
            let environment = Environment {
                clock: SystemClock::shared(),
                metrics: SharedMetrics::default(),
                failpoints: Failpoints::parse(&points)?,
            };
            let options = Options::for_local(&options)?;
            metrics::serve(&options)?;
            let provider = provider.map(|ask| self::provider(ask, &environment.clock));
            let (counters, failpoints) = (Arc::clone(&environment.metrics), Arc::clone(&environment.failpoints));
            let root = Store::open_with(uri, &storage_options, provider, &options, counters, failpoints)?;
            let clock = clock.map(clock_of);
            let local_dir = None;
            let attend = Some(Arc::new(check_signals) as Attend);
            let request =
                OpenEmbedded { root, name, handle, read_only, create, savepoint, options, clock, attend, local_dir };
            embedded::EmbeddedState::open(request, &environment, tick)
        })?;
        let state = Arc::new(state);
        metrics::register_state(&state);
        let opened = Self(ProcessBound::new(state));
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
        Ok(self.here(py)?.metrics().all())
    }

    fn newest(&self, py: Python<'_>) -> PyResult<Option<StateHandle>> {
        let newest = detached(py, |_| Ok(self.0.get(STATE)?.newest()))?;
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
        detached(py, |tick| {
            let state = self.0.get(STATE)?;
            state.savepoint(&handle.0, form(format)?, &store_of(to)?, &scratch, tick).map(drop)
        })
    }

    fn checkpoint(&self, py: Python<'_>) -> PyResult<StateHandle> {
        detached(py, |tick| self.0.get(STATE)?.checkpoint_attended(tick)).map(StateHandle)
    }

    fn begin_checkpoint(&self, py: Python<'_>, settle: Py<PyAny>) -> PyResult<()> {
        detached(py, |tick| {
            let state = self.0.get(STATE)?;
            start_resolving()?;
            let done = move |result: Result<ShardHandle>| {
                let make = |handle| -> Make { Box::new(|py| Ok(Py::new(py, StateHandle(handle))?.into_any())) };
                resolve_later(settle, result.map(make));
            };
            state.begin_checkpoint(Box::new(done), tick)
        })
    }

    fn progress(&self, py: Python<'_>) -> PyResult<(u64, usize, u64)> {
        let found = detached(py, |_| Ok(self.0.get(STATE)?.replay_debt()))?;
        Ok((found.log_bytes, found.segments, found.state_bytes))
    }

    fn begin_materialize(&self, py: Python<'_>) -> PyResult<Option<StateMaterialization>> {
        let begun = detached(py, |_| self.0.get(STATE)?.begin_materialize())?;
        Ok(begun.map(|run| StateMaterialization(ProcessBound::new(run))))
    }

    fn on_event(&self, py: Python<'_>, call: Py<PyAny>) -> PyResult<()> {
        let state = self.here(py)?;
        detached(py, |_| start_resolving())?;
        let bell = CoalescedCallback::new(call);
        state.on_event(Box::new(move || bell.ask()));
        Ok(())
    }

    fn refuse_changes(&self, py: Python<'_>, why: Option<String>) -> PyResult<()> {
        self.here(py)?.refuse_changes(why.map(Error::store));
        Ok(())
    }

    fn count_sweep(
        &self,
        py: Python<'_>,
        deleted: u64,
        deleted_bytes: u64,
        waiting: u64,
        requests: u64,
        in_doubt: bool,
    ) -> PyResult<()> {
        self.here(py)?.metrics().count_sweep(deleted, deleted_bytes, waiting, requests, in_doubt);
        Ok(())
    }

    fn close(&self, py: Python<'_>) -> PyResult<()> {
        detached(py, |_| {
            // A forked child has none of the threads that a close would wait for.
            if let Ok(state) = self.0.get(STATE) {
                state.close();
            }
            Ok(())
        })
    }
}

/// A materialization of an embedded state.
#[pyclass(frozen, module = "fastchangelog._internal")]
pub(crate) struct StateMaterialization(ProcessBound<embedded::Materialization>);

const RUN: &str = "materialization";

#[pymethods]
impl StateMaterialization {
    fn start(&self, py: Python<'_>, settle: Py<PyAny>) -> PyResult<()> {
        detached(py, |_| {
            start_resolving()?;
            let ran = move |result: Result<()>| {
                let make = |()| -> Make { Box::new(|py| Ok(py.None())) };
                resolve_later(settle, result.map(make));
            };
            self.0.get(RUN)?.start(Box::new(ran))
        })
    }

    fn complete(&self, py: Python<'_>) -> PyResult<()> {
        detached(py, |_| self.0.get(RUN)?.complete())
    }

    fn abort(&self, py: Python<'_>, reason: &str) -> PyResult<()> {
        detached(py, |_| {
            self.0.get(RUN)?.abort(reason);
            Ok(())
        })
    }
}

type Batches = Box<dyn Iterator<Item = Result<RecordBatch>> + Send>;

#[pyclass(frozen, module = "fastchangelog._internal")]
pub(crate) struct StateScan(ProcessBound<Mutex<Batches>>);

impl StateScan {
    pub(crate) fn new(batches: impl Iterator<Item = Result<RecordBatch>> + Send + 'static) -> Self {
        Self(ProcessBound::new(Mutex::new(Box::new(batches))))
    }
}

#[pymethods]
impl StateScan {
    fn __iter__(this: Py<Self>) -> Py<Self> {
        this
    }

    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let next = detached(py, |_| exclusive(self.0.get("scan")?, "scan")?.next().transpose())?;
        match next {
            Some(batch) => batch_to_pyarrow(py, batch),
            None => Err(PyStopIteration::new_err(())),
        }
    }
}
