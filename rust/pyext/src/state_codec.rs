//! Keys and values of a processor's state, as Python sees them. Owns: signatures; the work is
//! `fastchangelog_columns::versioned`'s.

use crate::arrow_interface::{ForeignArray, to_pyarrow, to_pyarrow_as};
use crate::detached::detached;
use arrow_array::BinaryArray;
use fastchangelog_columns::versioned::VersionedEntries;
use pyo3::prelude::*;
use pyo3_arrow::PyDataType;
use std::sync::Arc;

#[pyclass(frozen, module = "fastchangelog._internal")]
pub(crate) struct StateCodec(VersionedEntries);

#[pymethods]
impl StateCodec {
    #[new]
    #[pyo3(signature = (key, value, versions = Vec::new()))]
    fn new(py: Python<'_>, key: PyDataType, value: PyDataType, versions: Vec<PyDataType>) -> PyResult<Self> {
        let (key, value) = (key.into_inner(), value.into_inner());
        let versions: Vec<_> = versions.into_iter().map(PyDataType::into_inner).collect();
        detached(py, |_| VersionedEntries::new(&key, &value, &versions)).map(Self)
    }

    fn encode_keys<'py>(&self, py: Python<'py>, keys: ForeignArray) -> PyResult<Bound<'py, PyAny>> {
        let encoded = detached(py, |_| {
            self.0.check_keys(keys.declared())?;
            self.0.encode_keys(&keys.binary()?)
        })?;
        to_pyarrow(py, Arc::new(encoded))
    }

    fn decode_keys<'py>(&self, py: Python<'py>, keys: ForeignArray) -> PyResult<Bound<'py, PyAny>> {
        let decoded = detached(py, |_| self.0.decode_keys(&keys.as_type::<BinaryArray>("keys")?))?;
        to_pyarrow_as(py, &decoded, self.0.key_type())
    }

    fn encode_values<'py>(&self, py: Python<'py>, values: ForeignArray) -> PyResult<Bound<'py, PyAny>> {
        let encoded = detached(py, |_| {
            self.0.check_values(values.declared())?;
            self.0.encode_values(&values.binary()?)
        })?;
        to_pyarrow(py, Arc::new(encoded))
    }

    fn decode_values<'py>(&self, py: Python<'py>, values: ForeignArray) -> PyResult<Bound<'py, PyAny>> {
        let decoded = detached(py, |_| self.0.decode_values(&values.as_type::<BinaryArray>("values")?))?;
        to_pyarrow_as(py, &decoded, self.0.value_type())
    }
}
