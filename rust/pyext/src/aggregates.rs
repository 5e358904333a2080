//! Aggregates as Python sees them: the table of functions, and accumulators of vectorised processors. Owns: signatures;
//! the work is that of `fastchangelog_columns::aggregate` and `accumulators`.

use crate::arrow_interface::{ForeignArray, schema_to_pyarrow, to_pyarrow, to_pyarrow_as};
use crate::detached::detached;
use arrow_array::cast::AsArray;
use arrow_array::{ArrayRef, BinaryArray, StructArray, UInt32Array};
use arrow_schema::{DataType, Field, Schema};
use fastchangelog_columns::accumulators;
use fastchangelog_columns::aggregate::{AggCall, AggPlan, AggregateFunction, Argument, NamedCall};
use fastchangelog_columns::spark_collected::collected;
use fastchangelog_format::{Error, Result};
use pyo3::prelude::*;
use pyo3_arrow::PySchema;
use std::sync::Arc;

/// Name, aliases, kinds of arguments and of further ones, whether nulls can be left out, result, meaning.
type Row = (&'static str, Py<PyAny>, Py<PyAny>, Option<&'static str>, bool, &'static str, &'static str);

/// Every function.
#[pyfunction]
pub(crate) fn aggregate_functions(py: Python<'_>) -> PyResult<Vec<Row>> {
    let tuple = |names: Vec<&str>| Ok::<_, PyErr>(pyo3::types::PyTuple::new(py, names)?.into_any().unbind());
    let rows = AggregateFunction::ALL.iter().map(|function| {
        Ok((
            function.name,
            tuple(function.aliases.to_vec())?,
            tuple(function.arguments.iter().map(|argument| argument.name()).collect())?,
            function.more.map(Argument::name),
            function.ignores_nulls,
            function.result,
            function.doc.trim(),
        ))
    });
    rows.collect()
}

/// The results of calls over columns.
#[pyfunction]
pub(crate) fn aggregate_results(py: Python<'_>, input: PySchema, calls: &str) -> PyResult<Py<PyAny>> {
    let input = input.into_inner();
    let fields = detached(py, |_| {
        let types: Vec<DataType> = input.fields().iter().map(|field| field.data_type().clone()).collect();
        let calls = AggCall::list_from_json(calls)?;
        let results = AggPlan::result_types(&types, &calls)?;
        Ok(calls.iter().zip(results).map(|(call, result)| Field::new(&call.identity, result, true)).collect::<Vec<_>>())
    })?;
    schema_to_pyarrow(py, Arc::new(Schema::new(fields))).map(Bound::unbind)
}

/// The values in bytes of Spark's own.
#[pyfunction]
pub(crate) fn spark_collected(
    py: Python<'_>,
    column: ForeignArray,
    fields: PySchema,
    counted: bool,
) -> PyResult<Py<PyAny>> {
    let fields = fields.into_inner();
    let found = detached(py, |_| collected(&column.binary()?, fields.fields(), counted))?;
    to_pyarrow(py, found).map(Bound::unbind)
}

#[pyclass(frozen, module = "fastchangelog._internal")]
pub(crate) struct Accumulators(accumulators::Accumulators);

#[pymethods]
impl Accumulators {
    #[new]
    fn new(py: Python<'_>, rows: PySchema, calls: &str, ansi: bool) -> PyResult<Self> {
        let rows = rows.into_inner();
        let made =
            detached(py, |_| accumulators::Accumulators::new(rows.fields(), &NamedCall::list_from_json(calls)?, ansi))?;
        Ok(Self(made))
    }

    #[getter]
    fn columns(&self) -> Vec<usize> {
        self.0.columns().to_vec()
    }

    #[getter]
    fn identities(&self) -> Vec<String> {
        self.0.identities().to_vec()
    }

    #[getter]
    fn schema(&self) -> &str {
        self.0.schema()
    }

    #[getter]
    fn can_rebuild(&self) -> bool {
        self.0.can_rebuild()
    }

    #[getter]
    fn result_schema(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        schema_to_pyarrow(py, Arc::clone(self.0.result_schema())).map(Bound::unbind)
    }

    fn aggregate<'py>(
        &self,
        py: Python<'py>,
        count: usize,
        groups: ForeignArray,
        rows: ForeignArray,
    ) -> PyResult<Bound<'py, PyAny>> {
        let results = detached(py, |_| self.0.aggregate(count, &numbers(&groups)?, &structs(&rows)?))?;
        self.shown(py, &results)
    }

    fn fold<'py>(
        &self,
        py: Python<'py>,
        stored: ForeignArray,
        groups: ForeignArray,
        rows: ForeignArray,
    ) -> PyResult<Bound<'py, PyAny>> {
        let folded = detached(py, |_| self.0.fold(&bytes(&stored)?, &numbers(&groups)?, &structs(&rows)?))?;
        to_pyarrow(py, Arc::new(folded))
    }

    fn results<'py>(&self, py: Python<'py>, stored: ForeignArray) -> PyResult<Bound<'py, PyAny>> {
        let results = detached(py, |_| self.0.results(&bytes(&stored)?))?;
        self.shown(py, &results)
    }

    fn rebuild<'py>(&self, py: Python<'py>, results: ForeignArray) -> PyResult<Bound<'py, PyAny>> {
        let rebuilt = detached(py, |_| self.0.rebuild(&results.binary()?))?;
        to_pyarrow(py, Arc::new(rebuilt))
    }
}

impl Accumulators {
    fn shown<'py>(&self, py: Python<'py>, results: &ArrayRef) -> PyResult<Bound<'py, PyAny>> {
        to_pyarrow_as(py, results, self.0.result_type())
    }
}

fn bytes(stored: &ForeignArray) -> Result<BinaryArray> {
    stored.as_type("stored")
}

fn numbers(groups: &ForeignArray) -> Result<UInt32Array> {
    groups.as_type("groups")
}

fn structs(rows: &ForeignArray) -> Result<StructArray> {
    let rows = rows.binary()?;
    rows.as_struct_opt().cloned().ok_or_else(|| Error::invalid("rows are a record batch or structs"))
}
