//! The driver's specification of an aggregation.
//!
//! Owns: the text form of an aggregation (JSON made in Python, shipped to map tasks and inside open requests).
//! Does not own: its validation (`plan`).

use super::lifetime::Lifetime;
use super::windows::Windows;
use arrow_ipc::reader::StreamReader;
use arrow_ipc::writer::StreamWriter;
use arrow_schema::{Schema, SchemaRef};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use fastchangelog_format::{Error, Result};
use serde::{Deserialize, Serialize};
use std::io::Cursor;

/// Version of the text form.
const VERSION: u32 = 1;

/// An aggregation: key columns, argument columns, result columns, and one call per result.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Text", into = "Text")]
pub struct AggSpec {
    /// The first `num_keys` columns of `input`, behind the time of the row if there is one, are the key.
    pub num_keys: usize,
    /// Columns of the rows to aggregate: keys first, then arguments and filters.
    pub input: SchemaRef,
    /// Columns of the result: keys first, then one per call that is not hidden, of exactly the wanted types.
    pub output: SchemaRef,
    /// The calls, in the order of the result columns.
    pub aggs: Vec<AggCall>,
    /// The windows that the first key column of the input, a time, belongs to. The first key column of the result is
    /// the end of a window then.
    pub windows: Option<Windows>,
    /// The last two key columns, times, are start and end of a session window: groups that touch are one.
    pub session_windows: bool,
    /// The groups that a batch returns.
    pub output_mode: OutputMode,
    /// The first column of the input, in front of the keys, is the time by which a row is late.
    pub row_times: bool,
    /// How long a group lives; the first call is hidden then, and holds the time from which it does.
    pub lifetime: Option<Lifetime>,
}

/// The groups that a batch returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OutputMode {
    /// Those that have rows in the batch.
    #[default]
    Update,
    /// Those that the watermark has closed.
    Append,
    /// All groups of the state.
    Complete,
    /// Those that the state did not have. It keeps their keys and hidden calls.
    New,
}

/// One aggregate function applied to columns.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AggCall {
    /// A name or an alias of [`super::AggregateFunction::ALL`].
    #[serde(rename = "fn")]
    pub function: String,
    /// Columns of the input; none for `count(*)`.
    #[serde(default)]
    pub args: Vec<usize>,
    /// Boolean column: rows where it is not true are left out.
    #[serde(default, rename = "where")]
    pub filter: Option<usize>,
    /// Nulls are left out, for functions that can tell them apart.
    #[serde(default)]
    pub ignore_nulls: bool,
    /// An overflow is an error (Spark's ANSI mode), else a wrap-around or null.
    #[serde(default = "yes")]
    pub ansi: bool,
    /// Readable name, equal for equal calls: `sum(price) WHERE (price > 0)`. Aliases are no part of it.
    pub identity: String,
}

fn yes() -> bool {
    true
}

impl AggCall {
    /// Reads a list of calls, as the text form of a specification has it.
    pub fn list_from_json(text: &str) -> Result<Vec<Self>> {
        serde_json::from_str(text).map_err(|e| Error::invalid(format!("cannot read the aggregates' description: {e}")))
    }
}

#[derive(Serialize, Deserialize)]
struct Text {
    version: u32,
    num_keys: usize,
    input: String,
    output: String,
    aggs: Vec<AggCall>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    windows: Option<Windows>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    session_windows: bool,
    #[serde(default)]
    output_mode: OutputMode,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    row_times: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    lifetime: Option<Lifetime>,
}

impl AggSpec {
    /// An aggregation without windows that returns the groups with rows in a batch.
    pub fn new(num_keys: usize, input: SchemaRef, output: SchemaRef, aggs: Vec<AggCall>) -> Self {
        Self {
            num_keys,
            input,
            output,
            aggs,
            windows: None,
            session_windows: false,
            output_mode: OutputMode::default(),
            row_times: false,
            lifetime: None,
        }
    }

    /// Number of calls without a result, in front of the others.
    pub(super) fn hidden(&self) -> usize {
        usize::from(self.lifetime.is_some())
    }

    /// Number of the input's first key column.
    pub(super) fn first_key(&self) -> usize {
        usize::from(self.row_times)
    }

    /// Reads the text form.
    pub fn from_json(text: &str) -> Result<Self> {
        serde_json::from_str(text)
            .map_err(|e| Error::invalid(format!("cannot read the aggregation's description: {e}")))
    }

    /// Writes the text form.
    pub fn to_json(&self) -> Result<String> {
        serde_json::to_string(self).map_err(|e| Error::internal(format_args!("an aggregation's description: {e}")))
    }
}

impl TryFrom<Text> for AggSpec {
    type Error = Error;

    fn try_from(text: Text) -> Result<Self> {
        if text.version != VERSION {
            return Err(Error::invalid(format!(
                "an aggregation's description has the version {}, but this process knows {VERSION}",
                text.version
            ))
            .with_remedy("use the same fastchangelog version on the driver and on all executors"));
        }
        let (input, output) = (read_schema(&text.input)?, read_schema(&text.output)?);
        let Text { num_keys, aggs, windows, session_windows, output_mode, row_times, lifetime, .. } = text;
        Ok(Self { num_keys, input, output, aggs, windows, session_windows, output_mode, row_times, lifetime })
    }
}

impl From<AggSpec> for Text {
    fn from(spec: AggSpec) -> Self {
        Self {
            version: VERSION,
            num_keys: spec.num_keys,
            input: write_schema(&spec.input),
            output: write_schema(&spec.output),
            aggs: spec.aggs,
            windows: spec.windows,
            session_windows: spec.session_windows,
            output_mode: spec.output_mode,
            row_times: spec.row_times,
            lifetime: spec.lifetime,
        }
    }
}

fn read_schema(text: &str) -> Result<SchemaRef> {
    let bytes = STANDARD.decode(text).map_err(|e| Error::invalid(format!("the schema is not base64: {e}")))?;
    let reader = StreamReader::try_new(Cursor::new(bytes), None)
        .map_err(|e| Error::invalid(format!("the schema is not an Arrow IPC stream: {e}")))?;
    Ok(reader.schema())
}

fn write_schema(schema: &Schema) -> String {
    let mut bytes = Vec::new();
    // Writing into memory fails only for a schema that has no IPC form; it then reads back as an error.
    if let Ok(mut writer) = StreamWriter::try_new(&mut bytes, schema) {
        let _ = writer.finish();
    }
    STANDARD.encode(bytes)
}

/// A schema of these fields.
#[cfg(test)]
pub(crate) fn schema_of(fields: Vec<arrow_schema::Field>) -> SchemaRef {
    std::sync::Arc::new(Schema::new(fields))
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow_schema::{DataType, Field};

    fn spec() -> AggSpec {
        AggSpec::new(
            1,
            schema_of(vec![Field::new("k", DataType::Utf8, true), Field::new("v", DataType::Int64, true)]),
            schema_of(vec![Field::new("k", DataType::Utf8, true), Field::new("n", DataType::Int64, false)]),
            vec![AggCall {
                function: "count".into(),
                args: vec![],
                filter: None,
                ignore_nulls: false,
                ansi: true,
                identity: "count(1)".into(),
            }],
        )
    }

    #[test]
    fn text_form_reads_back() {
        let text = spec().to_json().unwrap();
        assert!(text.contains("\"fn\":\"count\"") && text.contains("\"where\":null"));
        assert_eq!(AggSpec::from_json(&text).unwrap(), spec());
    }

    #[test]
    fn another_version_is_refused() {
        let text = spec().to_json().unwrap().replace("\"version\":1", "\"version\":9");
        assert!(AggSpec::from_json(&text).unwrap_err().message().contains("version 9"));
        assert!(AggSpec::from_json("{}").is_err());
        assert!(AggSpec::from_json(&spec().to_json().unwrap().replace("\"input\":\"", "\"input\":\"A")).is_err());
    }
}
