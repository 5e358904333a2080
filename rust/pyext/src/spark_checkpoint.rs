//! Spark's checkpoints as Python sees them. Owns: signatures; files and formats are `fastchangelog-spark`'s.

use crate::detached::{ProcessBound, detached, exclusive, raise};
use crate::rows::labelled;
use arrow_schema::SchemaRef;
use fastchangelog_columns::spark_keys::KeyEncoder;
use fastchangelog_core::shard::savepoint::attended;
use fastchangelog_format::config::Options;
use fastchangelog_format::{Error, Result};
use fastchangelog_spark as spark;
use fastchangelog_spark::{Checkpoint, ColumnFamily, FamilyRows, Log, Operator, StateFiles, StateReader, StoreId};
use fastchangelog_store::failpoint::Failpoints;
use fastchangelog_store::metrics::SharedMetrics;
use fastchangelog_store::{Store, start_io_threads};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use pyo3_arrow::PySchema;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::runtime::Runtime;

const WHAT: &str = "checkpoint";
const VARIABLE: &str = "state variable";
const STATE: &str = "state";

#[pyclass(frozen, module = "fastchangelog._internal")]
pub(crate) struct SparkCheckpoint {
    folder: ProcessBound<(Store, Arc<Runtime>)>,
    /// The last answer of `operators`.
    described: Mutex<Option<Described>>,
}

/// The operators at a batch, and the files that were listed for them.
#[derive(Clone)]
struct Described {
    batch: u64,
    files: Arc<StateFiles>,
    operators: Arc<Vec<Operator>>,
}

impl Described {
    async fn read(checkpoint: &Checkpoint, batch: u64) -> Result<Self> {
        let files = checkpoint.state_files().await?;
        let operators = Arc::new(checkpoint.operators(&files, batch).await?);
        Ok(Self { batch, files: Arc::new(files), operators })
    }
}

impl SparkCheckpoint {
    fn run<T: Send, F>(&self, py: Python<'_>, work: impl FnOnce(Checkpoint) -> F + Send) -> PyResult<T>
    where
        F: Future<Output = Result<T>> + Send,
    {
        detached(py, |tick| {
            let (store, runtime) = self.folder.get(WHAT)?;
            attended(runtime.handle(), work(Checkpoint::new(store.clone())), tick)
        })
    }
}

#[pymethods]
impl SparkCheckpoint {
    #[new]
    fn new(py: Python<'_>, uri: &str, storage_options: BTreeMap<String, String>) -> PyResult<Self> {
        detached(py, |_| {
            let points = Failpoints::parse(&std::env::var("FASTCHANGELOG_FAILPOINTS").unwrap_or_default())?;
            let store = Store::open(uri, &storage_options, &Options::default(), SharedMetrics::default(), points)?;
            let folder = ProcessBound::new((store, Arc::new(start_io_threads()?)));
            Ok(Self { folder, described: Mutex::default() })
        })
    }

    #[getter]
    fn uri(&self, py: Python<'_>) -> PyResult<&str> {
        Ok(self.folder.get(WHAT).map_err(|e| raise(py, &e))?.0.uri())
    }

    fn has_files(&self, py: Python<'_>) -> PyResult<bool> {
        let (store, _) = self.folder.get(WHAT).map_err(|e| raise(py, &e))?;
        let store = store.clone();
        self.run(py, |_| async move { store.has_visible_objects().await })
    }

    #[expect(clippy::cast_precision_loss, reason = "milliseconds of this age are exact")]
    fn batches(&self, py: Python<'_>, log: &str) -> PyResult<BTreeMap<u64, f64>> {
        let log = [Log::Offsets, Log::Commits].into_iter().find(|known| known.folder() == log);
        let found = self.run(py, |checkpoint| async move {
            let log = log.ok_or_else(|| Error::internal("a log that no checkpoint has"))?;
            checkpoint.batches(log).await
        })?;
        Ok(found.into_iter().map(|(batch, millis)| (batch, millis as f64 / 1000.0)).collect())
    }

    fn read<'py>(&self, py: Python<'py>, name: &str) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let bytes = self.run(py, |checkpoint| async move { checkpoint.read(name).await })?;
        Ok(bytes.map(|bytes| PyBytes::new(py, &bytes)))
    }

    fn unreadable_form(&self, py: Python<'_>, batch: u64) -> PyResult<Option<String>> {
        self.run(py, |checkpoint| async move { checkpoint.unreadable_form(batch).await })
    }

    fn operators(&self, py: Python<'_>, batch: u64) -> PyResult<Vec<(u64, String, String, u32)>> {
        let found = self.run(py, |checkpoint| async move { Described::read(&checkpoint, batch).await })?;
        let operators = Arc::clone(&found.operators);
        *self.described.lock().unwrap_or_else(PoisonError::into_inner) = Some(found);
        let told = |Operator { number, name, properties, stores }: &Operator| {
            let partitions = stores.first().map_or(0, |store: &spark::StateStoreInfo| store.num_partitions);
            (*number, name.clone(), properties.clone(), partitions)
        };
        Ok(operators.iter().map(told).collect())
    }

    fn families(&self, py: Python<'_>, operator: u64, batch: u64) -> PyResult<Vec<(String, String, String, String)>> {
        let found = self.run(py, |checkpoint| async move {
            let files = checkpoint.state_files().await?;
            checkpoint.families(&files, operator, batch).await
        })?;
        let told = |ColumnFamily { name, key_type, value_type, key_encoder }| (name, key_type, value_type, key_encoder);
        Ok(found.into_iter().map(told).collect())
    }

    fn state(
        &self,
        py: Python<'_>,
        operator: u64,
        partition: u32,
        batch: u64,
        scratch: PathBuf,
    ) -> PyResult<StoredState> {
        let id = StoreId::only(operator, partition);
        let reader = self.run(py, |checkpoint| async move { checkpoint.state(&id, batch, &scratch).await })?;
        Ok(StoredState(ProcessBound::new(Mutex::new(reader))))
    }

    fn variable(
        &self,
        py: Python<'_>,
        operator: u64,
        name: &str,
        batch: u64,
        scratch: PathBuf,
    ) -> PyResult<TextVariable> {
        let (_, runtime) = self.folder.get(WHAT).map_err(|e| raise(py, &e))?;
        let described = self.described.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let opened = self.run(py, |checkpoint| async move {
            let Described { files, operators, .. } = match described.filter(|described| described.batch == batch) {
                Some(described) => described,
                None => Described::read(&checkpoint, batch).await?,
            };
            let found = operators.iter().find(|known| known.number == operator);
            let found = found.ok_or_else(|| Error::not_found(format!("there is no operator {operator}")))?;
            spark::TextVariable::open(&checkpoint, &files, found, name, batch, &scratch).await
        })?;
        Ok(TextVariable(ProcessBound::new((Mutex::new(opened), Arc::clone(runtime)))))
    }
}

#[pyclass(frozen, module = "fastchangelog._internal")]
pub(crate) struct StoredState(ProcessBound<Mutex<StateReader>>);

#[pymethods]
impl StoredState {
    #[pyo3(signature = (family, key, value, key_encoder, *, is_list=false))]
    fn rows(
        this: Py<Self>,
        py: Python<'_>,
        family: Option<String>,
        key: PySchema,
        value: PySchema,
        key_encoder: &str,
        is_list: bool,
    ) -> PyResult<StateRows> {
        let encoder = KeyEncoder::parse(key_encoder).map_err(|e| raise(py, &e))?;
        let fields = |schema: PySchema| schema.into_inner().fields().clone();
        let rows =
            spark::StateRows::new(FamilyRows { family, key: fields(key), value: fields(value), encoder, is_list });
        Ok(StateRows { state: this, declared: Arc::new(rows.declared()), rows: Mutex::new(rows) })
    }

    fn count(&self, py: Python<'_>, family: Option<&str>) -> PyResult<u64> {
        detached(py, |_| {
            let reader = exclusive(self.0.get(STATE)?, STATE)?;
            spark::count(&reader, family)
        })
    }
}

#[pyclass(frozen, module = "fastchangelog._internal")]
pub(crate) struct StateRows {
    state: Py<StoredState>,
    rows: Mutex<spark::StateRows>,
    declared: SchemaRef,
}

#[pymethods]
impl StateRows {
    fn __iter__(this: Py<Self>) -> Py<Self> {
        this
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        let state = self.state.get();
        let batch = detached(py, |_| {
            let reader = exclusive(state.0.get(STATE)?, STATE)?;
            exclusive(&self.rows, "iterator of rows")?.next(&reader)
        })?;
        batch.map(|batch| labelled(py, batch, &self.declared)).transpose()
    }
}

#[pyclass(frozen, module = "fastchangelog._internal")]
pub(crate) struct TextVariable(ProcessBound<(Mutex<spark::TextVariable>, Arc<Runtime>)>);

#[pymethods]
impl TextVariable {
    fn after(&self, py: Python<'_>, batch: u64) -> PyResult<Vec<(u32, String)>> {
        detached(py, |tick| {
            let (variable, runtime) = self.0.get(VARIABLE)?;
            let mut variable = exclusive(variable, VARIABLE)?;
            attended(runtime.handle(), variable.after(batch), tick)
        })
    }

    fn removed(&self, py: Python<'_>, batch: u64) -> PyResult<Option<String>> {
        detached(py, |_| Ok(exclusive(&self.0.get(VARIABLE)?.0, VARIABLE)?.removed(batch)))
    }
}
