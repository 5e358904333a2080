//! The plain changelog as Python sees it. Owns: signatures; the work is `fastchangelog_changelog`'s.

use crate::arrow_interface::{ForeignArray, batch_to_pyarrow};
use crate::detached::{ProcessBound, detached, exclusive, raise};
use crate::foreign_buffer::memory;
use crate::futures::{Make, resolve_later, start_resolving};
use crate::metrics;
use crate::provider;
use arrow_array::builder::BinaryBuilder;
use arrow_array::cast::AsArray;
use arrow_array::types::UInt16Type;
use arrow_array::{Array, BinaryArray, Int32Array, Int64Array, RecordBatch};
use arrow_buffer::{Buffer, OffsetBuffer, ScalarBuffer};
use arrow_schema::{DataType, Field, Schema};
use fastchangelog_changelog as changelog;
use fastchangelog_changelog::changes::{ChangeReader, Changes, ReadSet};
use fastchangelog_format::clock::SystemClock;
use fastchangelog_format::model::{self, INITIAL_SEQUENCE_NUMBER, KeyGroupRange};
use fastchangelog_format::{Error, Result, decode_changelog_handle, encode_changelog_handle};
use fastchangelog_store::environment::Environment;
use fastchangelog_store::failpoint::Failpoints;
use fastchangelog_store::metrics::SharedMetrics;
use fastchangelog_store::{clean_uri, shown_uri};
use pyo3::exceptions::PyStopIteration;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::runtime::Handle;

/// Between two looks for Ctrl-C.
const TICK: Duration = Duration::from_millis(50);

#[pyclass(frozen, module = "fastchangelog._internal")]
pub(crate) struct ChangelogStorage(ProcessBound<Arc<changelog::ChangelogStorage>>);

const STORAGE: &str = "changelog storage";

impl ChangelogStorage {
    fn here(&self, py: Python<'_>) -> PyResult<&Arc<changelog::ChangelogStorage>> {
        self.0.get(STORAGE).map_err(|e| raise(py, &e))
    }
}

#[pymethods]
impl ChangelogStorage {
    #[new]
    #[pyo3(signature = (uri, options, storage_options, cache_dir, provider = None))]
    fn new(
        py: Python<'_>,
        uri: &str,
        options: BTreeMap<String, String>,
        storage_options: BTreeMap<String, String>,
        cache_dir: Option<PathBuf>,
        provider: Option<Py<PyAny>>,
    ) -> PyResult<Self> {
        let storage = detached(py, |_| {
            let points = std::env::var("FASTCHANGELOG_FAILPOINTS").unwrap_or_default();
            let environment = Environment {
                clock: SystemClock::shared(),
                metrics: SharedMetrics::default(),
                failpoints: Failpoints::parse(&points)?,
            };
            provider::open(uri, &options, &storage_options, provider, cache_dir.as_deref(), &environment)
        })?;
        let storage = Arc::new(storage);
        detached(py, |_| metrics::serve(storage.options()))?;
        metrics::register_changelog(&storage);
        Ok(Self(ProcessBound::new(storage)))
    }

    #[getter]
    fn uri(&self, py: Python<'_>) -> PyResult<&str> {
        Ok(self.here(py)?.uri())
    }

    fn metrics(&self, py: Python<'_>) -> PyResult<BTreeMap<String, u64>> {
        Ok(self.here(py)?.metrics().all())
    }

    #[getter]
    fn tracked_objects(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(self.here(py)?.tracked())
    }

    fn sweep(
        &self,
        py: Python<'_>,
        needed: Vec<PyRef<'_, ChangelogHandle>>,
        grace_seconds: f64,
        dry_run: bool,
    ) -> PyResult<(Vec<String>, u64, u64)> {
        let needed: Vec<model::ChangelogHandle> = needed.iter().map(|handle| handle.0.clone()).collect();
        detached(py, |_| {
            let storage = self.0.get(STORAGE)?;
            let swept = storage.sweep(&needed, Duration::from_secs_f64(grace_seconds.max(0.0)), dry_run)?;
            Ok((swept.deleted, swept.deleted_bytes, swept.kept))
        })
    }

    fn close(&self, py: Python<'_>) -> PyResult<()> {
        detached(py, |_| {
            // A forked child has none of the threads that a close would wait for.
            if let Ok(storage) = self.0.get(STORAGE) {
                storage.close();
            }
            Ok(())
        })
    }
}

#[pyclass(frozen, subclass, module = "fastchangelog._internal")]
pub(crate) struct ChangelogWriter(ProcessBound<changelog::Writer>);

const WRITER: &str = "changelog writer";

impl ChangelogWriter {
    #[inline]
    fn here(&self, py: Python<'_>) -> PyResult<&changelog::Writer> {
        self.0.get(WRITER).map_err(|e| raise(py, &e))
    }

    fn apply_backpressure(&self, py: Python<'_>) -> PyResult<()> {
        detached(py, |tick| self.0.get(WRITER)?.apply_backpressure(tick))
    }

    fn step(&self, py: Python<'_>, step: impl FnOnce(&changelog::Writer) -> Result<()> + Send) -> PyResult<()> {
        detached(py, |_| step(self.0.get(WRITER)?))
    }
}

/// Numbers from Python, which may be negative: those are refused by name, not as an overflow.
fn number(py: Python<'_>, what: &str, value: i64) -> PyResult<u64> {
    u64::try_from(value).map_err(|_| {
        raise(py, &Error::invalid(format!("{what} {value} is negative")).with_remedy("sequence numbers start at 0"))
    })
}

#[pymethods]
impl ChangelogWriter {
    #[new]
    fn new(py: Python<'_>, storage: PyRef<'_, ChangelogStorage>, name: &str, start: i64, end: i64) -> PyResult<Self> {
        let bound = |value: i64| u16::try_from(value).unwrap_or(u16::MAX);
        let groups = KeyGroupRange { start: bound(start), end: bound(end) };
        let storage = storage.here(py)?;
        let writer = detached(py, |_| storage.create_writer(name, groups))?;
        Ok(Self(ProcessBound::new(writer)))
    }

    #[inline]
    fn append(&self, py: Python<'_>, key_group: i64, value: &[u8]) -> PyResult<()> {
        let group = u16::try_from(key_group).unwrap_or(u16::MAX);
        match self.here(py)?.append(group, value) {
            Ok(false) => Ok(()),
            Ok(true) => self.apply_backpressure(py),
            Err(error) => Err(raise(py, &error)),
        }
    }

    fn append_meta(&self, py: Python<'_>, value: &[u8]) -> PyResult<()> {
        match self.here(py)?.append_meta(value) {
            Ok(false) => Ok(()),
            Ok(true) => self.apply_backpressure(py),
            Err(error) => Err(raise(py, &error)),
        }
    }

    /// `held`: bytes that stay allocated with the values, if nothing ever changes those; else 0.
    fn _append_arrow(&self, py: Python<'_>, groups: ForeignArray, values: ForeignArray, held: u64) -> PyResult<()> {
        detached(py, |tick| {
            let writer = self.0.get(WRITER)?;
            let (groups, values) = (groups.text()?, values.text()?);
            if groups.null_count() + values.null_count() > 0 {
                return Err(Error::invalid("a batch of changes holds nulls: every change has a key group and a value"));
            }
            let groups = groups
                .as_primitive_opt::<UInt16Type>()
                .ok_or_else(|| Error::invalid("key groups must be 16-bit unsigned integers"))?
                .values();
            match values.data_type() {
                DataType::Binary => append_slices(writer, groups, values.as_binary::<i32>(), held, tick),
                DataType::LargeBinary => append_slices(writer, groups, values.as_binary::<i64>(), held, tick),
                DataType::FixedSizeBinary(_) => {
                    let values = values.as_fixed_size_binary();
                    let bytes = values.len() * usize::try_from(values.value_length()).unwrap_or(0);
                    let memory = memory(writer, groups, values.values(), bytes, held)?;
                    writer.append_batch(groups, (0..values.len()).map(|i| values.value(i)), memory.as_ref(), tick)
                }
                other => {
                    Err(Error::invalid(format!("values of type {other} are not bytes"))
                        .with_remedy("cast them to binary"))
                }
            }
        })
    }

    #[getter]
    fn name(&self, py: Python<'_>) -> PyResult<&str> {
        Ok(self.here(py)?.name())
    }

    #[getter]
    fn _key_groups(&self, py: Python<'_>) -> PyResult<(u16, u16)> {
        let groups = self.here(py)?.key_groups();
        Ok((groups.start, groups.end))
    }

    #[getter]
    #[expect(clippy::unused_self, reason = "a property of an object in Python")]
    fn initial_sequence_number(&self) -> u64 {
        INITIAL_SEQUENCE_NUMBER
    }

    #[getter]
    fn next_sequence_number(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(self.here(py)?.next_sequence_number())
    }

    #[getter]
    fn last_appended_sequence_number(&self, py: Python<'_>) -> PyResult<Option<u64>> {
        Ok(self.here(py)?.last_appended_sequence_number())
    }

    #[getter]
    fn closed(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(self.here(py)?.is_closed())
    }

    fn rollover(&self, py: Python<'_>) -> PyResult<u64> {
        self.here(py)?.rollover().map_err(|e| raise(py, &e))
    }

    fn _persist(&self, py: Python<'_>, from_sqn: i64, checkpoint_id: i64, settle: Py<PyAny>) -> PyResult<()> {
        let from = number(py, "sequence number", from_sqn)?;
        let checkpoint = number(py, "checkpoint id", checkpoint_id)?;
        self.step(py, |writer| {
            start_resolving()?;
            let done = move |result: Result<model::ChangelogHandle>| {
                let make = |handle| -> Make { Box::new(|py| Ok(Py::new(py, ChangelogHandle(handle))?.into_any())) };
                resolve_later(settle, result.map(make));
            };
            writer.persist(from, checkpoint, Box::new(done))
        })
    }

    fn confirm(&self, py: Python<'_>, from_sqn: i64, to_sqn: i64, checkpoint_id: i64) -> PyResult<()> {
        let (from, to) = (number(py, "sequence number", from_sqn)?, number(py, "sequence number", to_sqn)?);
        let checkpoint = number(py, "checkpoint id", checkpoint_id)?;
        self.step(py, |writer| writer.confirm(from, to, checkpoint))
    }

    fn reset(&self, py: Python<'_>, from_sqn: i64, to_sqn: i64, checkpoint_id: i64) -> PyResult<()> {
        let (from, to) = (number(py, "sequence number", from_sqn)?, number(py, "sequence number", to_sqn)?);
        let checkpoint = number(py, "checkpoint id", checkpoint_id)?;
        self.step(py, |writer| writer.reset(from, to, checkpoint))
    }

    fn subsume(&self, py: Python<'_>, checkpoint_id: i64) -> PyResult<()> {
        let checkpoint = number(py, "checkpoint id", checkpoint_id)?;
        self.step(py, |writer| writer.subsume(checkpoint))
    }

    fn truncate(&self, py: Python<'_>, to_sqn: i64) -> PyResult<()> {
        let to = number(py, "sequence number", to_sqn)?;
        self.step(py, |writer| writer.truncate(to))
    }

    fn truncate_and_close(&self, py: Python<'_>, from_sqn: i64) -> PyResult<()> {
        let from = number(py, "sequence number", from_sqn)?;
        self.step(py, |writer| writer.truncate_and_close(from))
    }

    fn close(&self, py: Python<'_>) -> PyResult<()> {
        detached(py, |_| {
            if let Ok(writer) = self.0.get(WRITER) {
                writer.close();
            }
            Ok(())
        })
    }
}

fn append_slices<O: arrow_array::OffsetSizeTrait>(
    writer: &changelog::Writer,
    groups: &[u16],
    values: &arrow_array::GenericBinaryArray<O>,
    held: u64,
    tick: fastchangelog_format::clock::Tick<'_>,
) -> Result<()> {
    let (data, ends) = (values.value_data(), values.value_offsets());
    let bytes = ends.last().map_or(0, |end| end.as_usize()) - ends.first().map_or(0, |start| start.as_usize());
    let memory = memory(writer, groups, values.values(), bytes, held)?;
    let slices = ends.windows(2).map(|ends| &data[ends[0].as_usize()..ends[1].as_usize()]);
    writer.append_batch(groups, slices, memory.as_ref(), tick)
}

/// A durable range of a writer's changes.
#[pyclass(frozen, eq, hash, module = "fastchangelog._internal")]
#[derive(PartialEq, Eq, Hash)]
pub(crate) struct ChangelogHandle(model::ChangelogHandle);

#[pymethods]
impl ChangelogHandle {
    #[staticmethod]
    fn from_bytes(py: Python<'_>, data: &[u8]) -> PyResult<Self> {
        decode_changelog_handle(data).map(Self).map_err(|e| raise(py, &e))
    }

    fn to_bytes<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &encode_changelog_handle(&self.0))
    }

    fn to_json(&self, py: Python<'_>) -> PyResult<String> {
        serde_json::to_string(&self.0).map_err(|e| raise(py, &Error::internal(e)))
    }

    fn moved_to(&self, py: Python<'_>, uri: &str) -> PyResult<Self> {
        let shown = clean_uri(uri);
        if shown.contains("***") && !uri.contains("***") {
            let error = Error::invalid(format!("{shown} holds a user's name, a password or a query"));
            return Err(raise(py, &error.with_remedy("pass credentials as `storage_options`")));
        }
        Ok(Self(model::ChangelogHandle { storage: shown_uri(uri), ..self.0.clone() }))
    }

    #[getter]
    fn storage(&self) -> &str {
        &self.0.storage
    }

    #[getter]
    fn writer(&self) -> &str {
        &self.0.writer
    }

    #[getter]
    fn key_groups(&self) -> (u16, u16) {
        (self.0.key_groups.start, self.0.key_groups.end)
    }

    #[getter]
    #[expect(clippy::wrong_self_convention, reason = "the number where it begins")]
    fn from_sequence_number(&self) -> u64 {
        self.0.from
    }

    #[getter]
    fn to_sequence_number(&self) -> u64 {
        self.0.to
    }

    #[getter]
    fn checkpoint_id(&self) -> u64 {
        self.0.checkpoint_id
    }

    #[getter]
    fn size(&self) -> u64 {
        self.0.size()
    }

    #[getter]
    fn incremental_size(&self) -> u64 {
        self.0.incremental_size
    }

    #[getter]
    fn change_count(&self) -> u64 {
        self.0.records()
    }
}

#[pyclass(frozen, module = "fastchangelog._internal")]
pub(crate) struct ChangelogReader(ProcessBound<Reader>);

struct Reader {
    changes: ChangeReader,
    runtime: Handle,
    closed: AtomicBool,
}

const READER: &str = "changelog reader";

#[pymethods]
impl ChangelogReader {
    #[new]
    fn new(py: Python<'_>, storage: PyRef<'_, ChangelogStorage>, cache_dir: Option<PathBuf>) -> PyResult<Self> {
        let storage = storage.here(py)?;
        let changes = detached(py, |_| storage.reader(cache_dir.as_deref()))?;
        let runtime = storage.runtime().clone();
        Ok(Self(ProcessBound::new(Reader { changes, runtime, closed: false.into() })))
    }

    fn batches(
        &self,
        py: Python<'_>,
        handle: PyRef<'_, ChangelogHandle>,
        key_groups: Option<(i64, i64)>,
    ) -> PyResult<ChangeBatches> {
        let handle = handle.0.clone();
        let opened = detached(py, |_| {
            let Reader { changes, runtime, closed } = self.0.get(READER)?;
            if closed.load(Ordering::Relaxed) {
                return Err(Error::closed("this changelog reader is closed").with_remedy("make a new one"));
            }
            let groups = match key_groups {
                None => None,
                Some((start, end)) => Some(part(start, end, handle.key_groups)?),
            };
            Ok((Mutex::new(changes.read(&handle, groups)?), runtime.clone()))
        })?;
        Ok(ChangeBatches(ProcessBound::new(opened)))
    }

    fn close(&self) {
        if let Ok(reader) = self.0.get(READER) {
            reader.closed.store(true, Ordering::Relaxed);
        }
    }
}

/// The key groups `[start, end)` as far as a handle has them.
fn part(start: i64, end: i64, of: KeyGroupRange) -> Result<KeyGroupRange> {
    if start < 0 || end < start || end > model::ids::MAX_KEY_GROUPS as i64 {
        return Err(Error::invalid(format!(
            "key groups {start} to {} are not a range; give the lower end first",
            end - 1
        )));
    }
    let clip = |value: i64| u16::try_from(value).unwrap_or(u16::MAX).clamp(of.start, of.end);
    Ok(KeyGroupRange { start: clip(start), end: clip(end) })
}

#[pyclass(frozen, module = "fastchangelog._internal")]
pub(crate) struct ChangeBatches(ProcessBound<(Mutex<Changes>, Handle)>);

#[pymethods]
impl ChangeBatches {
    fn __iter__(this: Py<Self>) -> Py<Self> {
        this
    }

    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let batch = detached(py, |tick| {
            let (changes, runtime) = self.0.get(READER)?;
            let mut changes = exclusive(changes, "iterator of changes")?;
            loop {
                let next = runtime.block_on(async { tokio::time::timeout(TICK, changes.next()).await });
                match next {
                    Ok(set) => return set?.map(record_batch).transpose(),
                    Err(_) => tick()?,
                }
            }
        })?;
        match batch {
            Some(batch) => batch_to_pyarrow(py, batch),
            None => Err(PyStopIteration::new_err(())),
        }
    }
}

/// One set as Arrow has it; values are not copied.
fn record_batch(set: ReadSet) -> Result<RecordBatch> {
    let records = set.records;
    let rows = records.len();
    let mut groups = Vec::with_capacity(rows);
    for (lane, count) in &records.runs {
        groups.resize(groups.len() + *count as usize, lane.key_group());
    }
    let number = i64::try_from(set.sequence_number).map_err(Error::internal)?;
    let values = if records.is_empty() {
        BinaryBuilder::new().finish()
    } else {
        let offsets = OffsetBuffer::new(ScalarBuffer::from(records.offsets));
        BinaryArray::try_new(offsets, Buffer::from(records.values), None).map_err(Error::internal)?
    };
    let schema = Schema::new(vec![
        Field::new("key_group", DataType::Int32, false),
        Field::new("value", DataType::Binary, false),
        Field::new("sequence_number", DataType::Int64, false),
    ]);
    let columns: Vec<Arc<dyn Array>> =
        vec![Arc::new(Int32Array::from(groups)), Arc::new(values), Arc::new(Int64Array::from(vec![number; rows]))];
    RecordBatch::try_new(Arc::new(schema), columns).map_err(Error::internal)
}
