//! State sessions as Python sees them: at the state server, or in memory.
//!
//! Owns: the signature of each call, and the choice between the two.
//! Does not own: the calls (`StateCall`), sending them (`state_client`), doing them (the core).

use crate::arrow_interface::{ForeignArray, batch_to_pyarrow, to_pyarrow};
use crate::detached::{detached, exclusive, raise};
use crate::session::session_settings;
use arrow_array::{ArrayRef, BinaryArray, RecordBatch, StructArray, UInt8Array};
use fastchangelog_core::engine::{self, Committed, Reply, StateCall};
use fastchangelog_format::clock::Tick;
use fastchangelog_format::model::StateId;
use fastchangelog_format::{Error, Result};
use fastchangelog_server::state_client::StateSessionClient;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyBytes;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

const WHAT: &str = "state session";

/// Where the next page begins.
type Cursor<'py> = Option<Bound<'py, PyBytes>>;

/// The place where a session's calls are done.
enum Host {
    Server(StateSessionClient),
    Memory(Box<engine::StateSession>),
}

impl Host {
    fn call(&mut self, call: &StateCall, columns: Vec<ArrayRef>, tick: Tick<'_>) -> Result<Reply> {
        match self {
            Self::Server(client) => client.call(call, columns, tick),
            Self::Memory(session) => session.call(call, &columns),
        }
    }

    fn commit(&mut self, watermark: Option<i64>, tick: Tick<'_>) -> Result<(String, BTreeMap<String, u64>)> {
        match self {
            Self::Server(client) => client.commit(watermark, tick).map(|body| (body.handle, body.metrics)),
            Self::Memory(session) => {
                let Committed { metrics, .. } = session.commit(watermark)?;
                Ok((String::new(), metrics))
            }
        }
    }
}

#[pyclass(frozen, module = "fastchangelog._internal")]
pub(crate) struct StateSession {
    host: Mutex<Host>,
    #[pyo3(get)]
    catalog: String,
    #[pyo3(get)]
    watermark: Option<i64>,
}

impl StateSession {
    /// Does the call that `make` gives, with its columns, while other threads of Python run.
    fn call(
        &self,
        py: Python<'_>,
        make: impl FnOnce() -> Result<(StateCall, Vec<ArrayRef>)> + Send,
    ) -> PyResult<Reply> {
        detached(py, |tick| {
            let (call, columns) = make()?;
            exclusive(&self.host, WHAT)?.call(&call, columns, tick)
        })
    }

    /// Does a call without columns.
    fn ask(&self, py: Python<'_>, call: &StateCall) -> PyResult<Reply> {
        detached(py, |tick| exclusive(&self.host, WHAT)?.call(call, vec![], tick))
    }

    /// Reads a page.
    fn page<'py>(&self, py: Python<'py>, call: &StateCall) -> PyResult<(RecordBatch, Cursor<'py>)> {
        let Reply { columns, cursor, .. } = self.ask(py, call)?;
        let page =
            call.reply_batch(columns).and_then(|page| page.ok_or_else(|| Error::internal("a page without columns")));
        let page = page.map_err(|error| raise(py, &error))?;
        Ok((page, cursor.map(|cursor| PyBytes::new(py, &cursor))))
    }
}

/// The columns of a reply.
fn pyarrow<'py, const N: usize>(py: Python<'py>, reply: &Reply) -> PyResult<[Bound<'py, PyAny>; N]> {
    let columns = reply.columns.iter().map(|column| to_pyarrow(py, Arc::clone(column)));
    let columns: Vec<Bound<'py, PyAny>> = columns.collect::<PyResult<_>>()?;
    columns.try_into().map_err(|_| raise(py, &Error::internal("a reply with other columns than its call lists")))
}

/// The column of keys.
fn keys_of(keys: &ForeignArray) -> Result<Vec<ArrayRef>> {
    Ok(vec![Arc::new(keys.as_type::<BinaryArray>("keys")?)])
}

#[pymethods]
impl StateSession {
    #[new]
    #[pyo3(signature = (socket_path, request_json, *, log = ""))]
    fn new(py: Python<'_>, socket_path: String, request_json: &str, log: &str) -> PyResult<Self> {
        let settings = session_settings(socket_path, log);
        let client = detached(py, |tick| StateSessionClient::open(settings, request_json, tick))?;
        let (catalog, watermark) = (client.catalog().to_owned(), client.watermark());
        Ok(Self { catalog, watermark, host: Mutex::new(Host::Server(client)) })
    }

    #[staticmethod]
    #[pyo3(signature = (after = None))]
    fn in_memory(py: Python<'_>, after: Option<&Self>) -> PyResult<Self> {
        let session =
            detached(py, |_| match after.map(|after| exclusive(&after.host, WHAT)).transpose()?.as_deref() {
                None => Ok(engine::StateSession::in_memory()),
                Some(Host::Memory(session)) => session.next_in_memory(),
                Some(Host::Server(_)) => {
                    Err(Error::invalid("a session in memory cannot follow one at the state server"))
                }
            })?;
        let catalog = session.catalog().to_owned();
        Ok(Self { catalog, watermark: None, host: Mutex::new(Host::Memory(Box::new(session))) })
    }

    fn declare(&self, py: Python<'_>, catalog: String, now_millis: i64) -> PyResult<()> {
        self.ask(py, &StateCall::Declare { catalog, now: now_millis }).map(drop)
    }

    fn get<'py>(&self, py: Python<'py>, state: u16, keys: ForeignArray) -> PyResult<Bound<'py, PyAny>> {
        let reply = self.call(py, || Ok((StateCall::Get { state }, keys_of(&keys)?)))?;
        let [values] = pyarrow(py, &reply)?;
        Ok(values)
    }

    fn read_entries<'py>(
        &self,
        py: Python<'py>,
        state: u16,
        keys: ForeignArray,
        max_bytes_per_key: u64,
    ) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyAny>)> {
        let call = StateCall::Entries { state, max_bytes: max_bytes_per_key };
        let reply = self.call(py, || Ok((call, keys_of(&keys)?)))?;
        let [entries, more] = pyarrow(py, &reply)?;
        Ok((entries, more))
    }

    #[pyo3(signature = (state, key, after, max_bytes))]
    fn read_page<'py>(
        &self,
        py: Python<'py>,
        state: u16,
        key: PyBackedBytes,
        after: Option<PyBackedBytes>,
        max_bytes: u64,
    ) -> PyResult<(Bound<'py, PyAny>, Cursor<'py>)> {
        let call = StateCall::Page { state, key: key.to_vec(), after: after.map(|after| after.to_vec()), max_bytes };
        let (page, next) = self.page(py, &call)?;
        Ok((to_pyarrow(py, Arc::new(StructArray::from(page)))?, next))
    }

    fn get_entries<'py>(
        &self,
        py: Python<'py>,
        state: u16,
        keys: ForeignArray,
        subs: ForeignArray,
    ) -> PyResult<Bound<'py, PyAny>> {
        let reply = self.call(py, || {
            let (keys, subs) = (keys.as_type::<BinaryArray>("keys")?, subs.as_type::<BinaryArray>("subs")?);
            Ok(StateCall::get_entries(StateId(state), keys, subs))
        })?;
        let [values] = pyarrow(py, &reply)?;
        Ok(values)
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
        let change = self.call(py, || {
            let (ops, keys) = (ops.as_type::<UInt8Array>("ops")?, keys.as_type::<BinaryArray>("keys")?);
            let subs = subs.map(|subs| subs.as_type::<BinaryArray>("subs")).transpose()?;
            let values = values.map(|values| values.as_type::<BinaryArray>("values")).transpose()?;
            Ok(StateCall::write(StateId(state), ops, keys, subs, values, expires_at))
        });
        change.map(drop)
    }

    fn clear_all(&self, py: Python<'_>, state: u16) -> PyResult<()> {
        self.ask(py, &StateCall::ClearAll { state }).map(drop)
    }

    #[pyo3(signature = (until, after, limit))]
    fn due_timers<'py>(
        &self,
        py: Python<'py>,
        until: i64,
        after: Option<(i64, PyBackedBytes)>,
        limit: u64,
    ) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyAny>, bool)> {
        let after = after.map(|(time, key)| (time, key.to_vec()));
        let reply = self.ask(py, &StateCall::DueTimers { until, after, limit })?;
        let [times, keys] = pyarrow(py, &reply)?;
        Ok((times, keys, reply.more_pages))
    }

    fn timers_of<'py>(&self, py: Python<'py>, keys: ForeignArray) -> PyResult<Bound<'py, PyAny>> {
        let reply = self.call(py, || Ok((StateCall::TimersOf, keys_of(&keys)?)))?;
        let [times] = pyarrow(py, &reply)?;
        Ok(times)
    }

    fn next_timer(&self, py: Python<'_>) -> PyResult<Option<i64>> {
        Ok(self.ask(py, &StateCall::NextTimer)?.time)
    }

    #[pyo3(signature = (state, after, max_bytes))]
    fn scan<'py>(
        &self,
        py: Python<'py>,
        state: u16,
        after: Option<PyBackedBytes>,
        max_bytes: u64,
    ) -> PyResult<(Bound<'py, PyAny>, Cursor<'py>)> {
        let call = StateCall::Scan { state, after: after.map(|after| after.to_vec()), max_bytes };
        let (page, next) = self.page(py, &call)?;
        Ok((batch_to_pyarrow(py, page)?, next))
    }

    #[pyo3(signature = (watermark = None))]
    fn commit(&self, py: Python<'_>, watermark: Option<i64>) -> PyResult<(String, BTreeMap<String, u64>)> {
        detached(py, |tick| exclusive(&self.host, WHAT)?.commit(watermark, tick))
    }

    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let mut host = exclusive(&self.host, WHAT).map_err(|e| raise(py, &e))?;
        if let Host::Server(client) = &mut *host {
            client.close();
        }
        Ok(())
    }

    fn __enter__(this: Py<Self>) -> Py<Self> {
        this
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyAny>) -> PyResult<()> {
        self.close(py)
    }
}
