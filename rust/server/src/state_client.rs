//! The client of a state session.
//!
//! Owns: sending calls, joining the parts of a reply.
//! Does not own: the connection (`client`), the calls (`StateCall`), their frames (`state_frames`).
//!
//! Invariants:
//! 1. changes are sent without waiting for the server; a read sees all changes sent before it;
//! 2. an error of a change is the error of a later call, of the commit at the latest.

use crate::client::{Client, ClientSettings};
use crate::protocol::{HandleBody, Kind};
use crate::state_body::{encode, malformed};
use crate::state_frames::{CommitStates, OpenedStates, Pieces, StatePart};
use arrow_array::{Array, ArrayRef, RecordBatch};
use fastchangelog_core::engine::{Column, Reply, StateCall};
use fastchangelog_format::clock::Tick;
use fastchangelog_format::{Error, Result};

/// A state session at the state server. Dropping it before [`StateSessionClient::commit`] has returned aborts it.
#[derive(Debug)]
pub struct StateSessionClient {
    client: Client,
    opened: OpenedStates,
}

impl StateSessionClient {
    /// Connects and opens a session with the JSON of an open request, whose operator is a processor.
    pub fn open(settings: ClientSettings, request: &str, tick: Tick<'_>) -> Result<Self> {
        let mut client = Client::connect(settings, tick)?;
        match client.call(Kind::Open, request.as_bytes(), tick)? {
            (Kind::Text, body) => {
                let opened = serde_json::from_slice(&body).map_err(malformed)?;
                Ok(Self { client, opened })
            }
            (kind, _) => Err(Error::internal(format!("the state server answered a state session with {kind:?}"))),
        }
    }

    /// The stored catalog's text.
    pub fn catalog(&self) -> &str {
        &self.opened.catalog
    }

    /// The watermark of the version that the session starts from.
    pub fn watermark(&self) -> Option<i64> {
        self.opened.watermark
    }

    /// Does a call, with the columns that it lists. A change is sent without waiting, and its reply is empty.
    pub fn call(&mut self, call: &StateCall, columns: Vec<ArrayRef>, tick: Tick<'_>) -> Result<Reply> {
        let rows = call.batch(columns)?;
        if call.is_change() {
            self.change(call, rows, tick)?;
            return Ok(Reply::default());
        }
        let request = self.client.request(Kind::State, &encode(call, rows.as_ref())?, tick)?;
        let expected = call.reply_columns();
        let mut parts = Vec::new();
        let StatePart { cursor, more_pages, time, .. } = loop {
            let (part, columns) = self.part(request, &expected, tick)?;
            parts.push(columns);
            if !part.more {
                break part;
            }
        };
        Ok(Reply { columns: joined(parts)?, cursor, more_pages, time })
    }

    /// Makes it durable: the new handle as text, and the session's metrics.
    pub fn commit(&mut self, watermark: Option<i64>, tick: Tick<'_>) -> Result<HandleBody> {
        let body = serde_json::to_vec(&CommitStates { watermark }).map_err(Error::internal)?;
        self.client.commit(&body, tick)
    }

    /// Ends the connection: an abort unless the commit was done. Safe to call again, and in a forked child (which
    /// only lets go of its copy).
    pub fn close(&mut self) {
        self.client.close();
    }

    fn part(&mut self, request: u32, expected: &[Column], tick: Tick<'_>) -> Result<(StatePart, Vec<ArrayRef>)> {
        let part = match self.client.reply(request, tick)? {
            (Kind::StateRows, body) => StatePart::decode(body, expected),
            (kind, _) => Err(Error::internal(format!("{kind:?} as the reply of a state session"))),
        };
        part.map_err(|error| self.client.break_with(error))
    }

    fn change(&mut self, change: &StateCall, rows: Option<RecordBatch>, tick: Tick<'_>) -> Result<()> {
        let max_message = self.client.max_message();
        let mut is_sent = false;
        for body in Pieces::new(Kind::StateChange, max_message, rows, |rows, _| encode(change, rows)) {
            // A session that has a part of the changes must not be committed.
            let body = body.map_err(|error| if is_sent { self.client.break_with(error) } else { error })?;
            self.client.send_unanswered(Kind::StateChange, &body, tick)?;
            is_sent = true;
        }
        Ok(())
    }
}

/// The columns of all parts, one after the other.
fn joined(mut parts: Vec<Vec<ArrayRef>>) -> Result<Vec<ArrayRef>> {
    match parts.pop() {
        Some(only) if parts.is_empty() => Ok(only),
        last => {
            parts.extend(last);
            let columns = parts.first().map_or(0, Vec::len);
            let column = |i: usize| {
                let pieces: Vec<&dyn Array> = parts.iter().map(|part| &*part[i]).collect();
                Ok(arrow_select::concat::concat(&pieces)?)
            };
            (0..columns).map(column).collect()
        }
    }
}
