//! State sessions at the state server, as Python sees them. Owns: signatures; the work is
//! `fastchangelog_server::state_client`'s.

use crate::arrow_interface::{ForeignArray, batch_to_pyarrow, to_pyarrow};
use crate::detached::{detached, exclusive, raise};
use crate::session::settings;
use arrow_array::{BinaryArray, UInt8Array};
use fastchangelog_format::model::StateId;
use fastchangelog_server::state_client::StateSessionClient;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyBytes;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

const WHAT: &str = "state session";

/// Where the next page begins.
type Cursor<'py> = Option<Bound<'py, PyBytes>>;

fn cursor(py: Python<'_>, cursor: Option<Vec<u8>>) -> Cursor<'_> {
    cursor.map(|cursor| PyBytes::new(py, &cursor))
}

#[pyclass(frozen, module = "fastchangelog._internal")]
pub(crate) struct StateSession {
    client: Mutex<StateSessionClient>,
    #[pyo3(get)]
    catalog: String,
    #[pyo3(get)]
    watermark: Option<i64>,
}

#[pymethods]
impl StateSession {
    #[new]
    #[pyo3(signature = (socket_path, request_json, *, log = "", timeout_seconds = 1800.0, max_message = 268_435_456))]
    fn new(
        py: Python<'_>,
        socket_path: String,
        request_json: &str,
        log: &str,
        timeout_seconds: f64,
        max_message: u64,
    ) -> PyResult<Self> {
        let settings = settings(socket_path, log, timeout_seconds, max_message);
        let client = detached(py, |tick| StateSessionClient::open(settings, request_json, tick))?;
        Ok(Self { catalog: client.catalog().to_owned(), watermark: client.watermark(), client: Mutex::new(client) })
    }

    fn declare(&self, py: Python<'_>, catalog: &str, now_millis: i64) -> PyResult<()> {
        detached(py, |tick| exclusive(&self.client, WHAT)?.declare(catalog, now_millis, tick))
    }

    fn get<'py>(&self, py: Python<'py>, state: u16, keys: ForeignArray) -> PyResult<Bound<'py, PyAny>> {
        let found = detached(py, |tick| {
            exclusive(&self.client, WHAT)?.get(StateId(state), keys.as_type::<BinaryArray>("keys")?, tick)
        })?;
        to_pyarrow(py, Arc::new(found))
    }

    fn read_entries<'py>(
        &self,
        py: Python<'py>,
        state: u16,
        keys: ForeignArray,
        max_bytes_per_key: usize,
    ) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyAny>)> {
        let (entries, more) = detached(py, |tick| {
            let keys = keys.as_type::<BinaryArray>("keys")?;
            exclusive(&self.client, WHAT)?.read_entries(StateId(state), keys, max_bytes_per_key, tick)
        })?;
        Ok((to_pyarrow(py, Arc::new(entries))?, to_pyarrow(py, Arc::new(more))?))
    }

    #[pyo3(signature = (state, key, after, max_bytes))]
    fn read_page<'py>(
        &self,
        py: Python<'py>,
        state: u16,
        key: PyBackedBytes,
        after: Option<PyBackedBytes>,
        max_bytes: usize,
    ) -> PyResult<(Bound<'py, PyAny>, Cursor<'py>)> {
        let (page, next) = detached(py, |tick| {
            exclusive(&self.client, WHAT)?.read_page(StateId(state), &key, after.as_deref(), max_bytes, tick)
        })?;
        Ok((to_pyarrow(py, Arc::new(page))?, cursor(py, next)))
    }

    fn get_entries<'py>(
        &self,
        py: Python<'py>,
        state: u16,
        keys: ForeignArray,
        subs: ForeignArray,
    ) -> PyResult<Bound<'py, PyAny>> {
        let found = detached(py, |tick| {
            let (keys, subs) = (keys.as_type::<BinaryArray>("keys")?, subs.as_type::<BinaryArray>("subs")?);
            exclusive(&self.client, WHAT)?.get_entries(StateId(state), keys, subs, tick)
        })?;
        to_pyarrow(py, Arc::new(found))
    }

    #[pyo3(signature = (state, ops, keys, subs, values, expires_at = None))]
    #[expect(clippy::too_many_arguments, reason = "the columns of a batch of changes")]
    fn write(
        &self,
        py: Python<'_>,
        state: u16,
        ops: ForeignArray,
        keys: ForeignArray,
        subs: Option<ForeignArray>,
        values: Option<ForeignArray>,
        expires_at: Option<i64>,
    ) -> PyResult<()> {
        detached(py, |tick| {
            let (ops, keys) = (ops.as_type::<UInt8Array>("ops")?, keys.as_type::<BinaryArray>("keys")?);
            let subs = subs.map(|subs| subs.as_type::<BinaryArray>("subs")).transpose()?;
            let values = values.map(|values| values.as_type::<BinaryArray>("values")).transpose()?;
            exclusive(&self.client, WHAT)?.write(StateId(state), ops, keys, subs, values, expires_at, tick)
        })
    }

    fn clear_all(&self, py: Python<'_>, state: u16) -> PyResult<()> {
        detached(py, |tick| exclusive(&self.client, WHAT)?.clear_all(StateId(state), tick))
    }

    #[pyo3(signature = (until, after, limit))]
    fn due_timers<'py>(
        &self,
        py: Python<'py>,
        until: i64,
        after: Option<(i64, PyBackedBytes)>,
        limit: usize,
    ) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyAny>, bool)> {
        let (times, keys, more) = detached(py, |tick| {
            let after = after.as_ref().map(|(time, key)| (*time, &key[..]));
            exclusive(&self.client, WHAT)?.due_timers(until, after, limit, tick)
        })?;
        Ok((to_pyarrow(py, Arc::new(times))?, to_pyarrow(py, Arc::new(keys))?, more))
    }

    fn timers_of<'py>(&self, py: Python<'py>, keys: ForeignArray) -> PyResult<Bound<'py, PyAny>> {
        let times =
            detached(py, |tick| exclusive(&self.client, WHAT)?.timers_of(keys.as_type::<BinaryArray>("keys")?, tick))?;
        to_pyarrow(py, Arc::new(times))
    }

    fn next_timer(&self, py: Python<'_>) -> PyResult<Option<i64>> {
        detached(py, |tick| exclusive(&self.client, WHAT)?.next_timer(tick))
    }

    #[pyo3(signature = (state, after, max_bytes))]
    fn scan<'py>(
        &self,
        py: Python<'py>,
        state: u16,
        after: Option<PyBackedBytes>,
        max_bytes: usize,
    ) -> PyResult<(Bound<'py, PyAny>, Cursor<'py>)> {
        let (page, next) = detached(py, |tick| {
            exclusive(&self.client, WHAT)?.scan(StateId(state), after.as_deref(), max_bytes, tick)
        })?;
        Ok((batch_to_pyarrow(py, page)?, cursor(py, next)))
    }

    #[pyo3(signature = (watermark = None))]
    fn commit(&self, py: Python<'_>, watermark: Option<i64>) -> PyResult<(String, BTreeMap<String, u64>)> {
        detached(py, |tick| exclusive(&self.client, WHAT)?.commit(watermark, tick))
    }

    fn close(&self, py: Python<'_>) -> PyResult<()> {
        exclusive(&self.client, WHAT).map(|mut session| session.close()).map_err(|e| raise(py, &e))
    }

    fn __enter__(this: Py<Self>) -> Py<Self> {
        this
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyAny>) -> PyResult<()> {
        self.close(py)
    }
}
