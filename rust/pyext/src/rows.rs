//! Rows of processors as Python sees them: split, and grouped. Owns: signatures; the work is that of
//! `fastchangelog_columns::row_split` and `row_groups`.

use crate::arrow_interface::{ForeignBatches, to_pyarrow};
use crate::detached::{calling, detached, exclusive, raise};
use arrow_array::{Array, Int64Array, RecordBatch, StructArray};
use arrow_schema::{Field, SchemaRef};
use fastchangelog_columns::{row_chunks, row_groups, row_split};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyBytes, PyCapsule, PyTuple};
use pyo3_arrow::PySchema;
use pyo3_arrow::ffi::to_array_pycapsules;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

const GROUPER: &str = "row grouper";

#[pyclass(frozen, module = "fastchangelog._internal")]
pub(crate) struct RowSplitter(Mutex<row_split::RowSplitter>);

#[pymethods]
impl RowSplitter {
    #[new]
    #[pyo3(signature = (keys, input, shards, max_parallelism, payload_bytes, row_bytes=None))]
    fn new(
        py: Python<'_>,
        keys: usize,
        input: PySchema,
        shards: u32,
        max_parallelism: u16,
        payload_bytes: usize,
        row_bytes: Option<usize>,
    ) -> PyResult<Self> {
        let splitter = row_split::RowSplitter::new(keys, &input.into_inner(), shards, max_parallelism, payload_bytes);
        let splitter = splitter.map(|splitter| splitter.with_payloads_of(row_bytes.unwrap_or(usize::MAX)));
        splitter.map(|splitter| Self(Mutex::new(splitter))).map_err(|error| raise(py, &error))
    }

    fn push<'py>(&self, py: Python<'py>, batch: ForeignBatches) -> PyResult<Vec<(u32, Bound<'py, PyBytes>)>> {
        let payloads = detached(py, |_| {
            let mut splitter = exclusive(&self.0, "row splitter")?;
            let mut payloads = Vec::new();
            for batch in batch.iter() {
                let (declared, batch) = batch?;
                splitter.check(&declared)?;
                payloads.append(&mut splitter.push(&batch)?);
            }
            Ok(payloads)
        })?;
        Ok(to_python(py, &payloads))
    }

    fn finish<'py>(&self, py: Python<'py>) -> PyResult<Vec<(u32, Bound<'py, PyBytes>)>> {
        let payloads = detached(py, |_| exclusive(&self.0, "row splitter")?.finish())?;
        Ok(to_python(py, &payloads))
    }
}

fn to_python<'py>(py: Python<'py>, payloads: &[(u32, Vec<u8>)]) -> Vec<(u32, Bound<'py, PyBytes>)> {
    payloads.iter().map(|(shard, payload)| (*shard, PyBytes::new(py, payload))).collect()
}

#[pyclass(frozen, module = "fastchangelog._internal")]
pub(crate) struct RowGrouper(Mutex<row_groups::RowGrouper>);

impl RowGrouper {
    fn count(&self, py: Python<'_>, of: fn(&row_groups::RowGrouper) -> u64) -> PyResult<u64> {
        exclusive(&self.0, GROUPER).map(|grouper| of(&grouper)).map_err(|error| raise(py, &error))
    }
}

#[pymethods]
impl RowGrouper {
    #[new]
    #[pyo3(signature = (keys, input, memory_bytes, dir, *, late=None))]
    fn new(
        py: Python<'_>,
        keys: usize,
        input: PySchema,
        memory_bytes: usize,
        dir: PathBuf,
        late: Option<(usize, i64)>,
    ) -> PyResult<Self> {
        let grouper = row_groups::RowGrouper::new(keys, &input.into_inner(), memory_bytes, &dir, late);
        grouper.map(|grouper| Self(Mutex::new(grouper))).map_err(|error| raise(py, &error))
    }

    fn push(&self, py: Python<'_>, payload: PyBackedBytes) -> PyResult<()> {
        detached(py, |_| exclusive(&self.0, GROUPER)?.push(&payload))
    }

    fn finish(&self, py: Python<'_>, chunk_rows: usize, chunk_bytes: usize) -> PyResult<RowChunks> {
        let (chunks, declared) = detached(py, |_| {
            let mut grouper = exclusive(&self.0, GROUPER)?;
            let declared = Arc::clone(grouper.format().declared());
            Ok((grouper.finish(chunk_rows, chunk_bytes)?, declared))
        })?;
        Ok(RowChunks { chunks: Mutex::new(chunks), declared })
    }

    #[getter]
    fn input_rows(&self, py: Python<'_>) -> PyResult<u64> {
        self.count(py, row_groups::RowGrouper::input_rows)
    }

    #[getter]
    fn late_rows(&self, py: Python<'_>) -> PyResult<u64> {
        self.count(py, row_groups::RowGrouper::late_rows)
    }

    #[getter]
    fn spilled_bytes(&self, py: Python<'_>) -> PyResult<u64> {
        self.count(py, row_groups::RowGrouper::spilled_bytes)
    }
}

#[pyclass(frozen, module = "fastchangelog._internal")]
pub(crate) struct RowChunks {
    chunks: Mutex<row_chunks::RowChunks>,
    declared: SchemaRef,
}

#[pymethods]
impl RowChunks {
    fn __iter__(this: Py<Self>) -> Py<Self> {
        this
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<RowChunk>> {
        let chunk = detached(py, |_| exclusive(&self.chunks, "iterator of chunks")?.next().transpose())?;
        chunk.map(|chunk| RowChunk::of(py, chunk, &self.declared)).transpose()
    }
}

#[pyclass(frozen, get_all, module = "fastchangelog._internal")]
pub(crate) struct RowChunk {
    rows: Py<PyAny>,
    keys: Py<PyAny>,
    offsets: Py<PyAny>,
    continues: bool,
    more: bool,
}

impl RowChunk {
    fn of(py: Python<'_>, chunk: row_chunks::RowChunk, declared: &SchemaRef) -> PyResult<Self> {
        let array = |array: Arc<dyn Array>| to_pyarrow(py, array).map(Bound::unbind);
        Ok(Self {
            rows: labelled(py, chunk.rows, declared)?,
            keys: array(Arc::new(chunk.keys))?,
            offsets: array(Arc::new(Int64Array::from(chunk.offsets)))?,
            continues: chunk.continues,
            more: chunk.more,
        })
    }
}

/// The rows as a batch of pyarrow's with the declared schema.
pub(crate) fn labelled(py: Python<'_>, rows: RecordBatch, declared: &SchemaRef) -> PyResult<Py<PyAny>> {
    let (fields, metadata) = (declared.fields().clone(), declared.metadata().clone());
    let field = Arc::new(Field::new_struct("", fields, false).with_metadata(metadata));
    let columns: Arc<dyn Array> = Arc::new(StructArray::from(rows));
    let labelled = LabelledColumns { columns, field };
    calling(py, || Ok(py.import("pyarrow")?.call_method1("record_batch", (labelled,))?.unbind()))
}

/// Columns under a type with the same buffers. Strings are in their binary form; since Spark's need not be UTF-8, their
/// bytes get the type string without a check, on the way out only.
#[pyclass(frozen)]
struct LabelledColumns {
    columns: Arc<dyn Array>,
    field: Arc<Field>,
}

#[pymethods]
impl LabelledColumns {
    #[pyo3(signature = (requested_schema=None))]
    fn __arrow_c_array__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Bound<'py, PyCapsule>>,
    ) -> PyResult<Bound<'py, PyTuple>> {
        drop(requested_schema);
        Ok(to_array_pycapsules(py, Arc::clone(&self.field), self.columns.as_ref(), None)?)
    }
}
