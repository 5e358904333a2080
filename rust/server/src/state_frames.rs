//! The calls of a state session and their replies, as frames.
//!
//! Owns: the frame of each call and reply, and the split of rows that exceed a message.
//! Does not own: the calls and their columns (`StateCall`), the layout of a body (`state_body`), the order of calls
//! (`state_connection`).
//!
//! A state session is: open, declare, any reads and changes, commit. A reply that exceeds a message comes in parts of whole
//! rows. A change has no reply: its error is the reply to a later call.

use crate::protocol::{Kind, check_length};
use crate::state_body::{decode_columns, decode_text, encode, malformed};
use arrow_array::{ArrayRef, RecordBatch};
use arrow_schema::DataType;
use fastchangelog_core::engine::{Column, StateCall};
use fastchangelog_format::Result;
use serde::{Deserialize, Serialize};

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

/// The kind of frame that carries a call.
fn kind_of(call: &StateCall) -> Kind {
    if call.is_change() { Kind::StateChange } else { Kind::State }
}

/// A call and its columns, from the body of a frame of this kind.
pub(crate) fn decode_call(kind: Kind, body: Vec<u8>) -> Result<(StateCall, Vec<ArrayRef>)> {
    let (call, at): (StateCall, usize) = decode_text(&body)?;
    if kind_of(&call) != kind {
        return Err(malformed(format!("the call `{}` in a frame of the kind {kind:?}", call.name())));
    }
    let columns = decode_columns(body, at, &types_of(&call.columns()))?;
    Ok((call, columns))
}

impl StatePart {
    /// The body.
    pub(crate) fn encode(&self, columns: Option<&RecordBatch>) -> Result<Vec<u8>> {
        encode(self, columns)
    }

    /// A part of a reply, and its columns.
    pub(crate) fn decode(body: Vec<u8>, columns: &[Column]) -> Result<(Self, Vec<ArrayRef>)> {
        let (part, at): (Self, usize) = decode_text(&body)?;
        let columns = decode_columns(body, at, &types_of(columns))?;
        Ok((part, columns))
    }
}

fn types_of(columns: &[Column]) -> Vec<DataType> {
    columns.iter().map(|(_, data_type)| data_type.clone()).collect()
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

#[cfg(test)]
#[path = "state_frames_tests.rs"]
mod tests;
