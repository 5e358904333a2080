//! The state server inside its Python process. Owns: signatures; the work is `fastchangelog_server`'s.

use crate::detached::{ProcessBound, detached, raise};
use fastchangelog_format::Error;
use fastchangelog_format::clock::SystemClock;
use fastchangelog_server::process;
use pyo3::prelude::*;
use std::collections::BTreeMap;
use std::time::Duration;

#[pyclass(frozen, module = "fastchangelog._internal")]
pub(crate) struct Server(ProcessBound<fastchangelog_server::Server>);

type Texts = BTreeMap<String, String>;
type SweptRow = (String, String, String, Texts, Texts);

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

    /// Root, query, name, options and storage options of each state that this server sweeps. The last hold credentials.
    fn swept_states(&self, py: Python<'_>) -> PyResult<Vec<SweptRow>> {
        let found = detached(py, |_| Ok(self.0.get(SERVER)?.swept_states()))?;
        Ok(found.into_iter().map(|s| (s.root, s.query_id, s.name, s.options, s.storage_options)).collect())
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
        detached(py, |_| {
            self.0.get(SERVER)?.counters().count_sweep(deleted, deleted_bytes, waiting, requests, in_doubt);
            Ok(())
        })
    }

    fn maintain(&self, py: Python<'_>) -> PyResult<()> {
        detached(py, |_| self.0.get(SERVER)?.maintain(SystemClock::shared()))
    }

    fn materialize(&self, py: Python<'_>, shard_id: &str, completes: bool) -> PyResult<bool> {
        detached(py, |_| {
            let Some(run) = self.0.get(SERVER)?.begin_materialize(shard_id)? else { return Ok(false) };
            run.run()?;
            if completes {
                run.complete()?;
            } else {
                run.abort("a test");
            }
            Ok(true)
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
