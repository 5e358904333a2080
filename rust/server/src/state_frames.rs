//! Requests and replies of a state session.
//!
//! Owns: what each request says, which columns come with it and with its reply, their form on the socket.
//! Does not own: the layout of a body (`state_body`), what a request does (the backend), when it may come
//! (`state_connection`).
//!
//! A state session is: open, declare, any reads and changes, commit. A call has a reply; a reply that is larger than a
//! message may be comes in parts of whole rows. A change has no reply: its error is the reply to what comes next.

use crate::protocol::{Kind, check_length};
use crate::state_body::{decode_columns, decode_text, encode};
use arrow_array::{ArrayRef, RecordBatch};
use arrow_schema::{DataType, Field, Schema};
use fastchangelog_format::Result;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// The reply to the `Open` of a state session.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct OpenedStates {
    /// The stored catalog.
    pub(crate) catalog: String,
    /// The watermark of the version that the session starts from.
    pub(crate) watermark: Option<i64>,
}

/// The body of the `Commit` of a state session.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CommitStates {
    /// The watermark of the new version.
    pub(crate) watermark: Option<i64>,
}

/// A request that has a reply. Names of states are their numbers in the catalog.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum StateCall {
    /// Declares the states, before all else. Reply: nothing.
    Declare {
        /// The catalog's text.
        catalog: String,
        /// The time by which entries have ended, in milliseconds since the epoch.
        now: i64,
    },
    /// Values of keys. With: keys. Reply: values, of the first keys.
    Get {
        /// The state.
        state: u16,
    },
    /// The first entries of keys. With: keys. Reply: lists of entries; whether there are more.
    Entries {
        /// The state.
        state: u16,
        /// Bound on the bytes of each list.
        max_bytes: u64,
    },
    /// Entries of one key. Reply: map keys and values; the cursor of the next page.
    Page {
        /// The state.
        state: u16,
        /// The key.
        key: Vec<u8>,
        /// The cursor that the page before came with.
        after: Option<Vec<u8>>,
        /// Bound on the bytes of the page.
        max_bytes: u64,
    },
    /// Values of entries of maps. With: keys unless `key` stands for all of them, map keys. Reply: values, of the first
    /// entries.
    GetEntries {
        /// The state.
        state: u16,
        /// The key of all entries.
        key: Option<Vec<u8>>,
    },
    /// Timers that are due, in the order of time and key. Reply: times and keys; whether there are more.
    DueTimers {
        /// Their latest time.
        until: i64,
        /// The timer after which to begin.
        after: Option<(i64, Vec<u8>)>,
        /// Bound on their number.
        limit: u64,
    },
    /// Times of the timers of keys. With: keys. Reply: lists of times, of the first keys.
    TimersOf,
    /// The earliest timer. Reply: its time.
    NextTimer,
    /// All entries of a state. Reply: keys, map keys and values; the cursor of the next page.
    Scan {
        /// The state.
        state: u16,
        /// The cursor that the page before came with.
        after: Option<Vec<u8>>,
        /// Bound on the bytes of the page.
        max_bytes: u64,
    },
}

/// A request that has no reply.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum StateChange {
    /// Changes, in their order. With: operations, keys, map keys if `subs`, values if `values`.
    Write {
        /// The state.
        state: u16,
        /// When what is written ends, in milliseconds since the epoch.
        expires_at: Option<i64>,
        /// There is a column of map keys or times.
        subs: bool,
        /// There is a column of values.
        values: bool,
    },
    /// Removes all entries of a state.
    ClearAll {
        /// The state.
        state: u16,
    },
}

/// The text of a reply to a call.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StatePart {
    /// More rows of the same reply follow.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) more: bool,
    /// Where the next page begins; none at the end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) cursor: Option<Vec<u8>>,
    /// There are pages behind this one, whose last row names its end.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) more_pages: bool,
    /// The earliest timer's time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) time: Option<i64>,
}

/// What the frames of a kind say, and which columns come with it.
pub(crate) trait StateFrame: Serialize + for<'de> Deserialize<'de> {
    /// The kind of frame.
    const KIND: Kind;

    /// The step's name in numbers and errors.
    fn step(&self) -> &'static str;

    /// The types of the columns that come with it.
    fn columns(&self) -> Vec<DataType>;

    /// The body.
    fn encode(&self, columns: Option<&RecordBatch>) -> Result<Vec<u8>> {
        encode(self, columns)
    }

    /// What a body says, and its columns.
    fn decode(body: Vec<u8>) -> Result<(Self, Vec<ArrayRef>)> {
        let (request, at): (Self, usize) = decode_text(&body)?;
        let columns = decode_columns(body, at, &request.columns())?;
        Ok((request, columns))
    }
}

impl StateFrame for StateCall {
    const KIND: Kind = Kind::State;

    fn step(&self) -> &'static str {
        match self {
            Self::Declare { .. } => "declare",
            Self::Get { .. } => "get",
            Self::Entries { .. } => "entries",
            Self::Page { .. } => "page",
            Self::GetEntries { .. } => "get_entries",
            Self::DueTimers { .. } => "due_timers",
            Self::TimersOf => "timers_of",
            Self::NextTimer => "next_timer",
            Self::Scan { .. } => "scan",
        }
    }

    fn columns(&self) -> Vec<DataType> {
        match self {
            Self::Declare { .. } | Self::Page { .. } | Self::DueTimers { .. } | Self::NextTimer | Self::Scan { .. } => {
                vec![]
            }
            Self::Get { .. } | Self::Entries { .. } | Self::TimersOf => vec![DataType::Binary],
            Self::GetEntries { key, .. } => vec![DataType::Binary; if key.is_some() { 1 } else { 2 }],
        }
    }
}

impl StateCall {
    /// The types of the columns of its reply.
    pub(crate) fn reply_columns(&self) -> Vec<DataType> {
        match self {
            Self::Declare { .. } | Self::NextTimer => vec![],
            Self::Get { .. } | Self::GetEntries { .. } => vec![DataType::Binary],
            Self::Entries { .. } => {
                let fields = vec![nullable("sub", DataType::Binary), nullable("value", DataType::Binary)];
                vec![list_of(DataType::Struct(fields.into())), DataType::Boolean]
            }
            Self::Page { .. } => vec![DataType::Binary, DataType::Binary],
            Self::DueTimers { .. } => vec![DataType::Int64, DataType::Binary],
            Self::TimersOf => vec![list_of(DataType::Int64)],
            Self::Scan { .. } => vec![DataType::Binary, DataType::Binary, DataType::Binary],
        }
    }
}

impl StateFrame for StateChange {
    const KIND: Kind = Kind::StateChange;

    fn step(&self) -> &'static str {
        match self {
            Self::Write { .. } => "write",
            Self::ClearAll { .. } => "clear_all",
        }
    }

    fn columns(&self) -> Vec<DataType> {
        match self {
            Self::Write { subs, values, .. } => {
                let optional = usize::from(*subs) + usize::from(*values);
                [vec![DataType::UInt8], vec![DataType::Binary; 1 + optional]].concat()
            }
            Self::ClearAll { .. } => vec![],
        }
    }
}

impl StatePart {
    /// The body.
    pub(crate) fn encode(&self, columns: Option<&RecordBatch>) -> Result<Vec<u8>> {
        encode(self, columns)
    }

    /// The reply of a body, with columns of these types.
    pub(crate) fn decode(body: Vec<u8>, types: &[DataType]) -> Result<(Self, Vec<ArrayRef>)> {
        let (part, at): (Self, usize) = decode_text(&body)?;
        let columns = decode_columns(body, at, types)?;
        Ok((part, columns))
    }
}

fn nullable(name: &str, data_type: DataType) -> Field {
    Field::new(name, data_type, true)
}

fn list_of(element: DataType) -> DataType {
    DataType::List(Arc::new(nullable("element", element)))
}

/// The bodies of rows that may be too many for one message: as few as halving gives, each within the bound.
pub(crate) struct Pieces<F> {
    kind: Kind,
    max_message: u64,
    encode: F,
    /// What is left, the next rows last.
    rest: Vec<Option<RecordBatch>>,
}

impl<F: Fn(Option<&RecordBatch>, bool) -> Result<Vec<u8>>> Pieces<F> {
    /// `encode` makes the body of some rows; it is told whether they are the last.
    pub(crate) fn new(kind: Kind, max_message: u64, rows: Option<RecordBatch>, encode: F) -> Self {
        Self { kind, max_message, encode, rest: vec![rows] }
    }
}

impl<F: Fn(Option<&RecordBatch>, bool) -> Result<Vec<u8>>> Iterator for Pieces<F> {
    type Item = Result<Vec<u8>>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let rows = self.rest.pop()?;
            let body = match (self.encode)(rows.as_ref(), self.rest.is_empty()) {
                Ok(body) => body,
                Err(error) => return Some(Err(error)),
            };
            match (check_length(self.kind, body.len() as u64, self.max_message), rows) {
                (Ok(()), _) => return Some(Ok(body)),
                (Err(_), Some(rows)) if rows.num_rows() > 1 => {
                    let half = rows.num_rows() / 2;
                    self.rest.push(Some(rows.slice(half, rows.num_rows() - half)));
                    self.rest.push(Some(rows.slice(0, half)));
                }
                (Err(error), _) => return Some(Err(error)),
            }
        }
    }
}

/// A batch of columns of one length. Only their places count; their names help with reading a message by hand.
pub(crate) fn batch_of(columns: Vec<(&str, ArrayRef)>) -> Result<RecordBatch> {
    let fields: Vec<Field> = columns.iter().map(|(name, column)| nullable(name, column.data_type().clone())).collect();
    let columns = columns.into_iter().map(|(_, column)| column).collect();
    Ok(RecordBatch::try_new(Arc::new(Schema::new(fields)), columns)?)
}

#[cfg(test)]
#[path = "state_frames_tests.rs"]
mod tests;
