//! Aggregates over columns that have names.
//!
//! Owns: the calls that a program declares by the names of columns, and the specification that they make.
//! Does not own: functions and types of results (`functions`, `plan`), conditions: they are boolean columns here.

use super::plan::AggPlan;
use super::spec::{AggCall, AggSpec};
use arrow_schema::{DataType, Field, Fields, Schema};
use fastchangelog_format::{Error, Result};
use serde::Deserialize;
use std::sync::Arc;

/// One aggregate, by the names of the columns that it takes.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct NamedCall {
    /// The function; see [`AggCall`].
    #[serde(rename = "fn")]
    pub function: String,
    /// Names of columns of the rows; none for `count(*)`.
    pub args: Vec<String>,
    /// Name of a boolean column: rows where it is not true are left out.
    #[serde(rename = "where")]
    pub filter: Option<String>,
    /// For `first` and `last`: nulls are left out.
    pub ignore_nulls: bool,
    /// Name of the result; none for the only one: then results are plain values.
    pub name: Option<String>,
    /// Readable name, equal for equal calls.
    pub identity: String,
}

impl NamedCall {
    /// Reads the JSON list that Python writes.
    pub fn list_from_json(text: &str) -> Result<Vec<Self>> {
        serde_json::from_str(text).map_err(Error::internal)
    }
}

impl AggSpec {
    /// The aggregation of rows with the columns `rows` by the columns `keys`. An unknown column is an `InvalidArgument`
    /// that lists the known ones. A result without a name is the column `value`.
    pub fn by_name(keys: &Fields, rows: &Fields, calls: &[NamedCall], ansi: bool) -> Result<Self> {
        let aggs = calls
            .iter()
            .map(|call| {
                let place = |name: &String| column(call, rows, name).map(|i| keys.len() + i);
                Ok(AggCall {
                    function: call.function.clone(),
                    args: call.args.iter().map(place).collect::<Result<_>>()?,
                    filter: call.filter.as_ref().map(place).transpose()?,
                    ignore_nulls: call.ignore_nulls,
                    ansi,
                    identity: call.identity.clone(),
                })
            })
            .collect::<Result<Vec<_>>>()?;
        let nullable = |fields: &mut dyn Iterator<Item = &Arc<Field>>| -> Vec<Field> {
            fields.map(|field| field.as_ref().clone().with_nullable(true)).collect()
        };
        let input = Schema::new(nullable(&mut keys.iter().chain(rows)));
        let types: Vec<DataType> = input.fields().iter().map(|field| field.data_type().clone()).collect();
        let results = AggPlan::result_types(&types, &aggs)?;
        let mut output = nullable(&mut keys.iter());
        let named = calls.iter().zip(results);
        output.extend(named.map(|(call, result)| Field::new(call.name.as_deref().unwrap_or("value"), result, true)));
        let (input, output) = (Arc::new(input), Arc::new(Schema::new(output)));
        Ok(Self::new(keys.len(), input, output, aggs))
    }
}

/// The number of a column that a call takes.
pub(crate) fn column(call: &NamedCall, rows: &Fields, name: &str) -> Result<usize> {
    rows.iter().position(|column| column.name() == name).ok_or_else(|| {
        let names: Vec<&str> = rows.iter().map(|column| column.name().as_str()).collect();
        Error::invalid(format!("{}: rows have no column `{name}`; they have: {}", call.identity, names.join(", ")))
    })
}
