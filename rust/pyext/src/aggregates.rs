//! The table of aggregate functions. Owns: nothing; the table and the types of results are the core's.

use crate::arrow_interface::schema_to_pyarrow;
use crate::detached::detached;
use arrow_schema::{DataType, Field, Schema};
use fastchangelog_columns::aggregate::{AggCall, AggPlan, AggregateFunction, Argument};
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
