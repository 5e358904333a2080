//! The state session of a connection.
//!
//! Owns: the order of its requests (declare, any reads and changes, commit), the numbers of its steps.
//! Does not own: frames and disconnects (`session`), the form of requests (`state_frames`), their effect (the backend).
//!
//! Invariants:
//! 1. `declare` must be the first request, and is accepted once;
//! 2. a reply is sent in messages within the bound, of whole rows.

use crate::backend::StateBackend;
use crate::protocol::{HandleBody, Kind, out_of_turn, write_frame};
use crate::report::Report;
use crate::state_frames::{CommitStates, OpenedStates, Pieces, StatePart, decode_call};
use fastchangelog_core::engine::{Reply, StateCall};
use fastchangelog_format::{Error, Result};
use std::io::{self, Write};

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

    /// Does the call that a frame of this kind brings.
    pub(crate) fn call(&mut self, kind: Kind, body: Vec<u8>, report: &mut Report) -> Result<(StateCall, Reply)> {
        let received = body.len();
        let (call, columns) = decode_call(kind, body)?;
        let declares = matches!(call, StateCall::Declare { .. });
        if declares == self.declared {
            return Err(out_of_turn(call.name()));
        }
        let name = call.name();
        let reply = report.timed(&format!("{name}_micros"), || self.session.call(&call, &columns))?;
        self.declared = true;
        let rows = columns.first().or(reply.columns.first()).map_or(0, |column| column.len());
        report.add(&format!("{name}_calls"), 1);
        report.add(&format!("{name}_rows"), rows as u64);
        report.add("received_bytes", received as u64);
        Ok((call, reply))
    }

    /// Makes it durable.
    pub(crate) fn commit(&mut self, body: &[u8]) -> Result<HandleBody> {
        if !self.declared {
            return Err(out_of_turn("commit"));
        }
        let CommitStates { watermark } = serde_json::from_slice(body)
            .map_err(|e| Error::internal(format!("a commit request is not JSON: {e}")).with_source(e))?;
        self.session.commit(watermark)
    }
}

/// Sends a reply; gives its bytes.
pub(crate) fn send_reply(
    stream: &mut impl Write,
    request: u32,
    call: &StateCall,
    reply: Reply,
    max_message: u64,
) -> io::Result<Result<u64>> {
    let Reply { columns, cursor, more_pages, time } = reply;
    let part = StatePart { more: false, cursor, more_pages, time };
    let rows = match call.reply_batch(columns) {
        Ok(rows) => rows,
        Err(error) => return Ok(Err(error)),
    };
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
