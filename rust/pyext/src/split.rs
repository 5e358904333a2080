//! The map side as Python sees it. Owns: signatures; the work is `fastchangelog_columns::split`'s.

use crate::arrow_interface::{ForeignBatches, schema_to_pyarrow};
use crate::detached::{detached, exclusive, raise};
use fastchangelog_columns::aggregate::{AggPlan, AggSpec};
use fastchangelog_columns::split;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::sync::{Arc, Mutex};

type Payloads<'py> = Vec<(u32, Bound<'py, PyBytes>)>;

#[pyclass(frozen, module = "fastchangelog._internal")]
pub(crate) struct Splitter(Mutex<split::Splitter>);

#[pymethods]
impl Splitter {
    #[new]
    #[pyo3(signature = (spec, shards, max_parallelism, payload_bytes, row_bytes=None))]
    fn new(
        py: Python<'_>,
        spec: &str,
        shards: u32,
        max_parallelism: u16,
        payload_bytes: usize,
        row_bytes: Option<usize>,
    ) -> PyResult<Self> {
        let splitter = AggSpec::from_json(spec)
            .and_then(|spec| split::Splitter::new(&spec, shards, max_parallelism, payload_bytes))
            .map(|splitter| splitter.with_payloads_of(row_bytes.unwrap_or(usize::MAX)));
        splitter.map(|s| Self(Mutex::new(s))).map_err(|e| raise(py, &e))
    }

    fn push<'py>(&self, py: Python<'py>, batch: ForeignBatches) -> PyResult<Payloads<'py>> {
        let payloads = detached(py, |_| {
            let mut splitter = exclusive(&self.0, "splitter")?;
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

    fn push_buffers<'py>(&self, py: Python<'py>, batch: ForeignBatches) -> PyResult<Payloads<'py>> {
        let payloads = detached(py, |_| {
            let mut splitter = exclusive(&self.0, "splitter")?;
            let mut payloads = Vec::new();
            for batch in batch.iter() {
                payloads.append(&mut splitter.push_buffers(&batch?.1)?);
            }
            Ok(payloads)
        })?;
        Ok(to_python(py, &payloads))
    }

    fn finish<'py>(&self, py: Python<'py>) -> PyResult<Payloads<'py>> {
        let payloads = detached(py, |_| exclusive(&self.0, "splitter")?.finish())?;
        Ok(to_python(py, &payloads))
    }
}

fn to_python<'py>(py: Python<'py>, payloads: &[(u32, Vec<u8>)]) -> Payloads<'py> {
    payloads.iter().map(|(shard, payload)| (*shard, PyBytes::new(py, payload))).collect()
}

/// Checks a specification where the query is built, before any task runs.
#[pyfunction]
pub(crate) fn spec_check(py: Python<'_>, spec: &str) -> PyResult<()> {
    detached(py, |_| AggSpec::from_json(spec).and_then(|spec| AggPlan::new(&spec)).map(drop))
}

/// The columns in which Spark keeps the keys and accumulators of a specification.
#[pyfunction]
pub(crate) fn spec_buffers(py: Python<'_>, spec: &str) -> PyResult<Py<PyAny>> {
    let buffers = detached(py, |_| Ok(AggPlan::new(&AggSpec::from_json(spec)?)?.buffers()))?;
    schema_to_pyarrow(py, Arc::new(buffers)).map(Bound::unbind)
}
