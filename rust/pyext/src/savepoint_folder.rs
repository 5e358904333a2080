//! Savepoints as Python sees them. Owns: signatures, and what a savepoint says as JSON; the work is
//! `fastchangelog_core::shard::savepoint`'s.

use crate::arrow_interface::{batch_to_pyarrow, types};
use crate::attached::attached;
use crate::detached::{ProcessBound, calling, detached, exclusive, raise};
use crate::fork::let_children_exit;
use crate::provider::provider;
use fastchangelog_columns::aggregate::{self, AggPlan, AggSpec, differ_in_ansi_alone};
use fastchangelog_columns::versioned::VersionedEntries;
use fastchangelog_core::engine::parse_handle;
use fastchangelog_core::shard::savepoint::{
    Export, ExportColumns, SavepointForm, SavepointProgress, attended, attended_to_the_end, check_objects,
    check_savepoint, read_savepoint,
};
use fastchangelog_core::shard::{Rebuilder, Sources};
use fastchangelog_format::clock::{SharedClock, SystemClock};
use fastchangelog_format::config::Options;
use fastchangelog_format::model::{BatchId, Savepoint, SavepointOrigin, ShardHandle, StateId};
use fastchangelog_format::{Error, Result};
use fastchangelog_state::rocks::SharedResources;
use fastchangelog_store::budget::MemoryBudget;
use fastchangelog_store::failpoint::Failpoints;
use fastchangelog_store::metrics::SharedMetrics;
use fastchangelog_store::{Store, start_io_threads};
use pyo3::prelude::*;
use pyo3_arrow::PySchema;
use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use tokio::runtime::Runtime;

const WHAT: &str = "savepoint folder";

/// The form of a name that users write.
pub(crate) fn form(name: &str) -> Result<SavepointForm> {
    match name {
        "canonical" => Ok(SavepointForm::Canonical),
        "native" => Ok(SavepointForm::Native),
        other => {
            Err(Error::invalid(format!("format `{other}` is not known"))
                .with_remedy("write \"canonical\" or \"native\""))
        }
    }
}

/// The folder of a savepoint, or of the state that one is taken of.
#[pyclass(frozen, module = "fastchangelog._internal")]
pub(crate) struct SavepointFolder(ProcessBound<Folder>);

struct Folder {
    at: Rebuilder,
    clock: SharedClock,
    runtime: Arc<Runtime>,
}

impl SavepointFolder {
    fn here(&self) -> Result<&Folder> {
        self.0.get(WHAT)
    }

    /// Runs `work` until it is done or interrupted by Ctrl-C; calls `report` with the `progress`.
    fn run<T: Send, F: Future<Output = Result<T>>>(
        &self,
        py: Python<'_>,
        report: Option<&Py<PyAny>>,
        progress: &SavepointProgress,
        work: impl FnOnce() -> F + Send,
    ) -> PyResult<T> {
        self.run_attended(py, report, progress, work, false)
    }

    /// The same; work that `undoes` itself is told of Ctrl-C from `progress`, and has the time for that.
    fn run_attended<T: Send, F: Future<Output = Result<T>>>(
        &self,
        py: Python<'_>,
        report: Option<&Py<PyAny>>,
        progress: &SavepointProgress,
        work: impl FnOnce() -> F + Send,
        undoes: bool,
    ) -> PyResult<T> {
        let mut refused = None;
        let outcome = detached(py, |tick| {
            let runtime = self.here()?.runtime.handle();
            let refused = Mutex::new(&mut refused);
            let tell = || {
                let Some(report) = report else { return Ok(()) };
                let told = attached(|py| calling(py, || report.call1(py, progress.get())));
                match told {
                    Some(Err(error)) => {
                        **exclusive(&refused, WHAT)? = Some(error);
                        Err(Error::closed("the report of progress failed"))
                    }
                    _ => Ok(()),
                }
            };
            let look = || tick().and_then(|()| tell());
            let done = if undoes {
                attended_to_the_end(runtime, work(), progress, look)?
            } else {
                attended(runtime, work(), look)?
            };
            tell()?;
            Ok(done)
        });
        refused.map_or(outcome, Err)
    }
}

#[pymethods]
impl SavepointFolder {
    #[new]
    #[pyo3(signature = (uri, options, storage_options, provider = None))]
    fn new(
        py: Python<'_>,
        uri: &str,
        options: BTreeMap<String, String>,
        storage_options: BTreeMap<String, String>,
        provider: Option<Py<PyAny>>,
    ) -> PyResult<Self> {
        let folder = detached(py, |_| {
            let failpoints = Failpoints::parse(&std::env::var("FASTCHANGELOG_FAILPOINTS").unwrap_or_default())?;
            let options = Options::from_map(&options)?;
            let (clock, metrics) = (SystemClock::shared(), SharedMetrics::default());
            let ask = provider.map(|ask| self::provider(ask, &clock));
            let store =
                Store::open_with(uri, &storage_options, ask, &options, Arc::clone(&metrics), Arc::clone(&failpoints))?;
            let resources = SharedResources::new(&MemoryBudget::new(options.memory_budget), Arc::clone(&metrics))?;
            let at =
                Rebuilder { store, cache: None, resources, clock: SharedClock::clone(&clock), metrics, failpoints };
            Ok(Folder { at, clock, runtime: Arc::new(start_io_threads()?) })
        })?;
        let_children_exit(py)?;
        Ok(Self(ProcessBound::new(folder)))
    }

    #[getter]
    fn uri(&self, py: Python<'_>) -> PyResult<&str> {
        Ok(self.here().map_err(|e| raise(py, &e))?.at.store.uri())
    }

    /// Takes a savepoint of the state in this folder.
    #[pyo3(signature = (handles, target, format, query_id, name, batch, scratch, report = None))]
    #[expect(clippy::too_many_arguments, reason = "what, whereto, which form, whose, where on the way")]
    fn take(
        &self,
        py: Python<'_>,
        handles: Vec<String>,
        target: &Self,
        format: &str,
        query_id: String,
        name: String,
        batch: i64,
        scratch: PathBuf,
        report: Option<Py<PyAny>>,
    ) -> PyResult<String> {
        let progress = SavepointProgress::default();
        let taking = || async {
            let (own, target) = (self.here()?, target.here()?);
            let taken_millis = own.clock.now_millis();
            let origin = SavepointOrigin { query_id, name, batch: BatchId(batch), taken_millis };
            let sources = Sources::of_those_with_rows(parsed(&handles)?)?;
            let form = form(format)?;
            own.at.take_savepoint(&sources, form, origin, &target.at.store, &scratch, &progress).await
        };
        let savepoint = self.run_attended(py, report.as_ref(), &progress, taking, true)?;
        Ok(json(&savepoint))
    }

    /// What the savepoint in this folder says.
    fn read(&self, py: Python<'_>) -> PyResult<String> {
        let savepoint = self
            .run(py, None, &SavepointProgress::default(), || async { read_savepoint(&self.here()?.at.store).await })?;
        Ok(json(&savepoint))
    }

    /// Reads every byte of the savepoint in this folder: what it says, and what is damaged.
    #[pyo3(signature = (scratch, report = None))]
    fn verify(
        &self,
        py: Python<'_>,
        scratch: PathBuf,
        report: Option<Py<PyAny>>,
    ) -> PyResult<(String, Vec<(String, String)>)> {
        let progress = SavepointProgress::default();
        let checking = || async { check_savepoint(&self.here()?.at, &scratch, &progress).await };
        let checked = self.run(py, report.as_ref(), &progress, checking)?;
        let (savepoint, damages) = checked;
        Ok((json(&savepoint), damages.into_iter().map(|d| (d.object, d.what)).collect()))
    }

    /// Reads every byte of what handles of the state in this folder reach: objects, bytes, and what is damaged.
    #[pyo3(signature = (handles, report = None))]
    fn verify_objects(
        &self,
        py: Python<'_>,
        handles: Vec<String>,
        report: Option<Py<PyAny>>,
    ) -> PyResult<(usize, u64, Vec<(String, String)>)> {
        let progress = SavepointProgress::default();
        let checking = || async {
            let at = &self.here()?.at;
            let objects = at.objects_of(&parsed(&handles)?).await?;
            let damages = check_objects(&at.store, &objects, &progress).await?;
            Ok((objects.len(), objects.iter().map(|object| object.size).sum(), damages))
        };
        let (objects, bytes, damages) = self.run(py, report.as_ref(), &progress, checking)?;
        Ok((objects, bytes, damages.into_iter().map(|d| (d.object, d.what)).collect()))
    }

    /// The entries of the savepoint in this folder: rows of aggregates as `spec` says, or keys and values of a state.
    #[pyo3(signature = (scratch, *, spec = None, state = None, types = None, versions = None, layout = "lasting"))]
    #[expect(clippy::too_many_arguments, reason = "the description of a state")]
    fn entries(
        &self,
        py: Python<'_>,
        scratch: PathBuf,
        spec: Option<&str>,
        state: Option<u16>,
        types: Option<PySchema>,
        versions: Option<Vec<String>>,
        layout: &str,
    ) -> PyResult<SavepointEntries> {
        let types = types.map(PySchema::into_inner);
        let columns = detached(py, |_| match (spec, state, &types) {
            (Some(spec), None, None) => {
                Ok(ExportColumns::Aggregates(Arc::new(AggPlan::new(&AggSpec::from_json(spec)?)?)))
            }
            (None, Some(state), Some(types)) => {
                let [key, value] = self::types(types)?;
                let types = match versions {
                    None => VersionedEntries::plain(key, value)?,
                    Some(versions) => VersionedEntries::of_texts(key, value, &versions)?,
                };
                let (state, types) = (StateId(state), Box::new(types));
                match layout {
                    "lasting" => Ok(ExportColumns::Values(state, types)),
                    "ending" => Ok(ExportColumns::EndingValues(state, types)),
                    "timers" => Ok(ExportColumns::Timers(state, types)),
                    other => Err(Error::internal(format!("entries of the layout {other}"))),
                }
            }
            _ => Err(Error::internal("entries are of aggregates, or of a state with types")),
        })?;
        let begin = || async { Export::begin(self.here()?.at.clone(), columns, &scratch).await };
        let export = self.run(py, None, &SavepointProgress::default(), begin)?;
        let runtime = Arc::clone(&self.here().map_err(|e| raise(py, &e))?.runtime);
        Ok(SavepointEntries(ProcessBound::new((Mutex::new((export, VecDeque::new())), runtime))))
    }
}

/// An iterator over batches.
#[pyclass(frozen, module = "fastchangelog._internal")]
pub(crate) struct SavepointEntries(ProcessBound<(Mutex<Exporting>, Arc<Runtime>)>);

/// With the batches that were made and not taken yet.
type Exporting = (Export, VecDeque<arrow_array::RecordBatch>);

#[pymethods]
impl SavepointEntries {
    fn __iter__(this: Py<Self>) -> Py<Self> {
        this
    }

    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let batch = detached(py, |tick| {
            let (export, runtime) = self.0.get(WHAT)?;
            let mut export = exclusive(export, "export")?;
            let (export, ready) = &mut *export;
            while ready.is_empty() {
                match attended(runtime.handle(), export.next(), tick)? {
                    Some(batches) => ready.extend(batches),
                    None => return Ok(None),
                }
            }
            Ok(ready.pop_front())
        })?;
        batch.map(|batch| batch_to_pyarrow(py, batch)).transpose()
    }
}

fn parsed(handles: &[String]) -> Result<Vec<ShardHandle>> {
    handles.iter().map(|text| parse_handle(text)).collect()
}

/// What a savepoint says, for Python.
fn json(savepoint: &Savepoint) -> String {
    let files: Vec<_> = savepoint.objects().into_iter().map(|object| (&object.name, object.size)).collect();
    serde_json::json!({
        "id": savepoint.id.to_string(),
        "format": savepoint.format(),
        "query_id": savepoint.origin.query_id,
        "name": savepoint.origin.name,
        "batch": savepoint.origin.batch.0,
        "taken_millis": savepoint.origin.taken_millis,
        "shards": savepoint.shards,
        "max_parallelism": savepoint.max_parallelism,
        "schema_id": savepoint.schema_id,
        "schema": savepoint.schema,
        "keys": savepoint.keys,
        "bytes": savepoint.bytes,
        "stored_bytes": savepoint.stored_bytes(),
        "files": files,
    })
    .to_string()
}

/// The store of a folder.
pub(crate) fn store_of(folder: &SavepointFolder) -> Result<Store> {
    Ok(folder.here()?.at.store.clone())
}

/// The fingerprint of the rows of an aggregation, and their description.
#[pyfunction]
pub(crate) fn spec_schema(py: Python<'_>, spec: &str) -> PyResult<(u64, String)> {
    detached(py, |_| {
        let plan = AggPlan::new(&AggSpec::from_json(spec)?)?;
        Ok((plan.schema_id(), plan.schema().to_owned()))
    })
}

/// What keeps a query whose rows are described as `new` from the savepoint of one with `old`; none if nothing does.
#[pyfunction]
pub(crate) fn schema_difference(old: &str, new: &str) -> Option<String> {
    if differ_in_ansi_alone(old, new) { None } else { aggregate::schema_difference(old, new) }
}
