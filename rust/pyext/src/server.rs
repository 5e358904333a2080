//! The state server inside its Python process. Owns: signatures; the work is `fastchangelog_server`'s.

use crate::detached::{ProcessBound, detached, raise};
use fastchangelog_format::{Error, Result};
use fastchangelog_server::{MaterializeBackend, process};
use pyo3::prelude::*;
use std::collections::BTreeMap;
use std::sync::{PoisonError, RwLock};
use std::time::Duration;

#[pyclass(frozen, module = "fastchangelog._internal")]
pub(crate) struct Server(ProcessBound<fastchangelog_server::Server>);

const SERVER: &str = "server";

#[pymethods]
impl Server {
    #[new]
    fn new(py: Python<'_>, config_json: &str) -> PyResult<Self> {
        detached(py, |_| process::start(config_json)).map(|server| Self(ProcessBound::new(server)))
    }

    fn shards(&self, py: Python<'_>) -> PyResult<String> {
        detached(py, |_| {
            serde_json::to_string(&self.0.get(SERVER)?.shards())
                .map_err(|e| Error::internal(format!("shards: {e}")).with_source(e))
        })
    }

    fn begin_materialize(&self, py: Python<'_>, shard_id: &str) -> PyResult<Option<MaterializeRun>> {
        detached(py, |_| {
            Ok(self.0.get(SERVER)?.begin_materialize(shard_id)?.map(|run| MaterializeRun(RwLock::new(Some(run)))))
        })
    }

    #[pyo3(signature = (shard_id, message))]
    fn set_shard_failure(&self, py: Python<'_>, shard_id: &str, message: Option<&str>) -> PyResult<()> {
        detached(py, |_| {
            self.0.get(SERVER)?.set_shard_failure(shard_id, message);
            Ok(())
        })
    }

    fn close_idle(&self, py: Python<'_>) -> PyResult<()> {
        detached(py, |_| {
            self.0.get(SERVER)?.close_idle();
            Ok(())
        })
    }

    fn metrics(&self, py: Python<'_>) -> PyResult<BTreeMap<String, u64>> {
        detached(py, |_| Ok(self.0.get(SERVER)?.metrics()))
    }

    fn connections(&self, py: Python<'_>) -> PyResult<usize> {
        detached(py, |_| Ok(self.0.get(SERVER)?.connections()))
    }

    fn idle_seconds(&self, py: Python<'_>) -> PyResult<f64> {
        detached(py, |_| Ok(self.0.get(SERVER)?.idle().as_secs_f64()))
    }

    fn shutdown_requested(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(self.0.get(SERVER).map_err(|e| raise(py, &e))?.shutdown_requested())
    }

    fn log(&self, py: Python<'_>, level: &str, event: &str, fields: BTreeMap<String, String>) -> PyResult<()> {
        detached(py, |_| {
            self.0.get(SERVER)?.log().event(level, event, serde_json::json!(fields));
            Ok(())
        })
    }

    fn stop(&self, py: Python<'_>, patience_seconds: f64) -> PyResult<bool> {
        let timeout = Duration::try_from_secs_f64(patience_seconds).unwrap_or_default();
        detached(py, |_| Ok(self.0.get(SERVER)?.stop(timeout)))
    }
}

/// None once it has ended. `complete` and `abort` wait until `run`, in another thread, has returned.
#[pyclass(frozen, module = "fastchangelog._internal")]
pub(crate) struct MaterializeRun(RwLock<Option<Box<dyn MaterializeBackend>>>);

impl MaterializeRun {
    fn take(&self) -> Result<Box<dyn MaterializeBackend>> {
        self.0.write().unwrap_or_else(PoisonError::into_inner).take().ok_or_else(ended)
    }
}

fn ended() -> Error {
    Error::closed("this materialization has already ended")
}

#[pymethods]
impl MaterializeRun {
    fn run(&self, py: Python<'_>) -> PyResult<()> {
        detached(py, |_| self.0.read().unwrap_or_else(PoisonError::into_inner).as_ref().ok_or_else(ended)?.run())
    }

    fn complete(&self, py: Python<'_>) -> PyResult<()> {
        detached(py, |_| self.take()?.complete())
    }

    fn abort(&self, py: Python<'_>, message: &str) -> PyResult<()> {
        detached(py, |_| {
            // A run whose `complete` failed has ended already; giving it up is then all the same.
            if let Ok(run) = self.take() {
                run.abort(message);
            }
            Ok(())
        })
    }
}
