//! The state session of a connection.
//!
//! Owns: the order of its requests (declare, any reads and changes, commit), the numbers of its steps.
//! Does not own: frames and the connection's end (`session`), the form of requests (`state_frames`), what they do (the
//! backend).
//!
//! Invariants:
//! 1. nothing but a declaration reaches the backend before a declaration, and none after one;
//! 2. a reply is sent in messages within the bound, of whole rows.

use crate::backend::StateBackend;
use crate::protocol::{Kind, write_frame};
use crate::report::Report;
use crate::session::out_of_turn;
use crate::state_frames::{
    CommitStates, OpenedStates, Pieces, StateCall, StateChange, StateFrame, StatePart, batch_of,
};
use arrow_array::cast::AsArray;
use arrow_array::types::UInt8Type;
use arrow_array::{ArrayRef, BinaryArray, RecordBatch};
use fastchangelog_format::model::StateId;
use fastchangelog_format::{Error, Result};
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::sync::Arc;

/// The text and the rows of a reply.
type Reply = (StatePart, Option<RecordBatch>);

/// A state session that is open.
pub(crate) struct StateConnection {
    session: Box<dyn StateBackend>,
    declared: bool,
}

impl StateConnection {
    pub(crate) fn new(session: Box<dyn StateBackend>) -> Self {
        Self { session, declared: false }
    }

    /// The reply to the request that opened it.
    pub(crate) fn opened(&self) -> Result<Vec<u8>> {
        let opened = OpenedStates { catalog: self.session.catalog().to_owned(), watermark: self.session.watermark() };
        serde_json::to_vec(&opened).map_err(|e| Error::internal(format!("a catalog's JSON: {e}")).with_source(e))
    }

    /// Answers a call.
    pub(crate) fn call(&mut self, body: Vec<u8>, report: &mut Report) -> Result<Reply> {
        let received = body.len();
        let (call, columns) = StateCall::decode(body)?;
        let step = call.step();
        if matches!(call, StateCall::Declare { .. }) == self.declared {
            return Err(out_of_turn(step));
        }
        let (part, rows) = report.timed(&format!("{step}_micros"), || self.answer(call, &columns))?;
        let rows_in_reply = rows.as_ref().map_or(0, RecordBatch::num_rows);
        count(report, step, received, columns.first().map_or(rows_in_reply, |column| column.len()));
        Ok((part, rows))
    }

    fn answer(&mut self, call: StateCall, columns: &[ArrayRef]) -> Result<Reply> {
        let session = &mut self.session;
        let mut part = StatePart::default();
        let rows = match call {
            StateCall::Declare { catalog, now } => {
                session.declare(&catalog, now)?;
                self.declared = true;
                return Ok((part, None));
            }
            StateCall::NextTimer => {
                part.time = session.next_timer()?;
                return Ok((part, None));
            }
            StateCall::Get { state } => {
                batch_of(vec![("value", Arc::new(session.get(StateId(state), binary(columns, 0))?))])?
            }
            StateCall::Entries { state, max_bytes } => {
                let (entries, more) = session.read_entries(StateId(state), binary(columns, 0), bound(max_bytes))?;
                batch_of(vec![("entries", Arc::new(entries)), ("more", Arc::new(more))])?
            }
            StateCall::Page { state, key, after, max_bytes } => {
                let (page, cursor) = session.read_page(StateId(state), &key, after.as_deref(), bound(max_bytes))?;
                part.cursor = cursor;
                RecordBatch::from(page)
            }
            StateCall::GetEntries { state, key } => {
                let values = match key {
                    Some(key) => {
                        let key = BinaryArray::from_iter_values([key]);
                        session.get_entries(StateId(state), &key, binary(columns, 0))?
                    }
                    None => session.get_entries(StateId(state), binary(columns, 0), binary(columns, 1))?,
                };
                batch_of(vec![("value", Arc::new(values))])?
            }
            StateCall::DueTimers { until, after, limit } => {
                let after = after.as_ref().map(|(time, key)| (*time, &key[..]));
                let (times, keys, more) = session.due_timers(until, after, bound(limit))?;
                part.more_pages = more;
                batch_of(vec![("time", Arc::new(times)), ("key", Arc::new(keys))])?
            }
            StateCall::TimersOf => batch_of(vec![("times", Arc::new(session.timers_of(binary(columns, 0))?))])?,
            StateCall::Scan { state, after, max_bytes } => {
                let (page, cursor) = session.scan(StateId(state), after.as_deref(), bound(max_bytes))?;
                part.cursor = cursor;
                page
            }
        };
        Ok((part, Some(rows)))
    }

    /// Makes changes.
    pub(crate) fn change(&mut self, body: Vec<u8>, report: &mut Report) -> Result<()> {
        let received = body.len();
        let (change, columns) = StateChange::decode(body)?;
        let step = change.step();
        if !self.declared {
            return Err(out_of_turn(step));
        }
        report.timed(&format!("{step}_micros"), || match change {
            StateChange::Write { state, expires_at, subs, values } => {
                let subs_at = subs.then_some(2);
                let values_at = values.then_some(if subs { 3 } else { 2 });
                self.session.write(
                    StateId(state),
                    columns[0].as_primitive::<UInt8Type>(),
                    binary(&columns, 1),
                    subs_at.map(|at| binary(&columns, at)),
                    values_at.map(|at| binary(&columns, at)),
                    expires_at,
                )
            }
            StateChange::ClearAll { state } => self.session.clear_all(StateId(state)),
        })?;
        count(report, step, received, columns.first().map_or(0, |column| column.len()));
        Ok(())
    }

    /// Makes it durable.
    pub(crate) fn commit(&mut self, body: &[u8]) -> Result<(String, BTreeMap<String, u64>)> {
        if !self.declared {
            return Err(out_of_turn("commit"));
        }
        let CommitStates { watermark } = serde_json::from_slice(body)
            .map_err(|e| Error::internal(format!("a commit that is not JSON: {e}")).with_source(e))?;
        self.session.commit(watermark)
    }
}

fn count(report: &mut Report, step: &str, received: usize, rows: usize) {
    report.add(&format!("{step}_calls"), 1);
    report.add(&format!("{step}_rows"), rows as u64);
    report.add("received_bytes", received as u64);
}

/// A column of a request; the decoder has checked the types.
fn binary(columns: &[ArrayRef], at: usize) -> &BinaryArray {
    columns[at].as_binary()
}

/// A bound that is larger than memory is none.
fn bound(n: u64) -> usize {
    usize::try_from(n).unwrap_or(usize::MAX)
}

/// Sends a reply; gives its bytes.
pub(crate) fn send_reply(
    stream: &mut impl Write,
    request: u32,
    part: StatePart,
    rows: Option<RecordBatch>,
    max_message: u64,
) -> io::Result<Result<u64>> {
    let mut sent = 0;
    let bodies = Pieces::new(Kind::StateRows, max_message, rows, |rows, last| {
        if last { part.encode(rows) } else { StatePart { more: true, ..StatePart::default() }.encode(rows) }
    });
    for body in bodies {
        let body = match body {
            Ok(body) => body,
            Err(error) => return Ok(Err(error)),
        };
        sent += body.len() as u64;
        write_frame(stream, Kind::StateRows, request, &body)?;
    }
    Ok(Ok(sent))
}

#[cfg(test)]
#[cfg(all(target_os = "linux", not(fastchangelog_portable)))]
#[path = "state_session_tests.rs"]
mod tests;
