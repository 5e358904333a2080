//! Sessions at the state server, as Python sees them. Owns: signatures; the work is `fastchangelog_server::client`'s.

use crate::arrow_interface::{batch_to_pyarrow, schema_to_pyarrow};
use crate::detached::{detached, exclusive, raise};
use fastchangelog_format::Error;
use fastchangelog_server::client;
use fastchangelog_server::protocol::{Kind, MAX_MESSAGE};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;

const WHAT: &str = "session";

/// How a session connects.
pub(crate) fn session_settings(socket_path: String, log: &str) -> client::ClientSettings {
    let (timeout, max_message) = (client::SESSION_TIMEOUT, MAX_MESSAGE);
    client::ClientSettings { socket: socket_path.into(), log: log.to_owned(), timeout, max_message }
}

#[pyclass(frozen, module = "fastchangelog._internal")]
pub(crate) struct SessionClient(Mutex<client::SessionClient>);

#[pymethods]
impl SessionClient {
    #[new]
    #[pyo3(signature = (socket_path, request_json, *, log = ""))]
    fn new(py: Python<'_>, socket_path: String, request_json: &str, log: &str) -> PyResult<Self> {
        let settings = session_settings(socket_path, log);
        detached(py, |tick| client::SessionClient::open(settings, request_json, tick)).map(|s| Self(Mutex::new(s)))
    }

    fn merge(&self, py: Python<'_>, payload: PyBackedBytes) -> PyResult<()> {
        detached(py, |tick| exclusive(&self.0, WHAT)?.merge(&payload, tick))
    }

    #[pyo3(signature = (persist = true))]
    fn finish(this: Py<Self>, py: Python<'_>, persist: bool) -> PyResult<ResultBatches> {
        let schema = detached(py, |tick| exclusive(&this.get().0, WHAT)?.finish(persist, tick))?;
        let schema = schema_to_pyarrow(py, schema)?.unbind();
        Ok(ResultBatches { session: this, schema })
    }

    /// The handle, the session's metrics, and a time before which no group of the version is.
    fn commit(&self, py: Python<'_>) -> PyResult<(String, BTreeMap<String, u64>, Option<i64>)> {
        let body = detached(py, |tick| exclusive(&self.0, WHAT)?.commit(tick))?;
        Ok((body.handle, body.metrics, body.next_close))
    }

    fn close(&self, py: Python<'_>) -> PyResult<()> {
        exclusive(&self.0, WHAT).map(|mut session| session.close()).map_err(|e| raise(py, &e))
    }

    fn __enter__(this: Py<Self>) -> Py<Self> {
        this
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyAny>) -> PyResult<()> {
        self.close(py)
    }
}

#[pyclass(frozen, module = "fastchangelog._internal")]
pub(crate) struct ResultBatches {
    session: Py<SessionClient>,
    schema: Py<PyAny>,
}

#[pymethods]
impl ResultBatches {
    #[getter]
    fn schema(&self, py: Python<'_>) -> Py<PyAny> {
        self.schema.clone_ref(py)
    }

    fn __iter__(this: Py<Self>) -> Py<Self> {
        this
    }

    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let batch = detached(py, |tick| exclusive(&self.session.get().0, WHAT)?.next_batch(tick))?;
        batch.map(|batch| batch_to_pyarrow(py, batch)).transpose()
    }
}

#[pyclass(frozen, module = "fastchangelog._internal")]
pub(crate) struct ServerClient(Mutex<client::Client>);

impl ServerClient {
    fn call(&self, py: Python<'_>, kind: Kind, body: &[u8]) -> PyResult<String> {
        detached(py, |tick| {
            let (_, reply) = exclusive(&self.0, "connection")?.call(kind, body, tick)?;
            String::from_utf8(reply).map_err(|_| Error::internal("a reply that is not UTF-8"))
        })
    }
}

#[pymethods]
impl ServerClient {
    #[new]
    #[pyo3(signature = (socket_path, *, log = "", timeout_seconds = 30.0))]
    fn new(py: Python<'_>, socket_path: String, log: &str, timeout_seconds: f64) -> PyResult<Self> {
        let timeout = Duration::try_from_secs_f64(timeout_seconds).unwrap_or(Duration::MAX);
        let settings = client::ClientSettings { timeout, ..session_settings(socket_path, log) };
        detached(py, |tick| client::Client::connect(settings, tick)).map(|c| Self(Mutex::new(c)))
    }

    fn ping(&self, py: Python<'_>) -> PyResult<()> {
        self.call(py, Kind::Ping, &[]).map(drop)
    }

    fn metrics(&self, py: Python<'_>) -> PyResult<String> {
        self.call(py, Kind::Metrics, &[])
    }

    fn shards(&self, py: Python<'_>) -> PyResult<String> {
        self.call(py, Kind::Shards, &[])
    }

    fn renew(&self, py: Python<'_>, renewal_json: &str) -> PyResult<()> {
        self.call(py, Kind::Renew, renewal_json.as_bytes()).map(drop)
    }

    fn set_failpoints(&self, py: Python<'_>, text: &str) -> PyResult<()> {
        self.call(py, Kind::SetFailpoints, text.as_bytes()).map(drop)
    }

    fn shutdown(&self, py: Python<'_>) -> PyResult<()> {
        self.call(py, Kind::Shutdown, &[]).map(drop)
    }
}
