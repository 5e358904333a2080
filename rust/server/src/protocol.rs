//! The protocol between a Python worker and the state server of its executor.
//!
//! Owns: the hello, the frames, their limits, and the errors of frames that are malformed or out of turn.
//! Does not own: the meaning of requests (`session`, `client`), waiting (`client`).
//!
//! ```text
//! hello   "fclhello" | protocol version u32 | length of the package version u32 | package version
//! frame   kind u32 | request id u32 | body length u64 | body                 (all integers little endian)
//! ```
//!
//! Each side sends a hello first; its layout never changes, so that any two versions can name each other. A client
//! numbers its requests; every reply carries the number of the request it answers. `Merge` and `StateChange` have no
//! reply of their own: an error of theirs arrives as the reply to what comes next.

use fastchangelog_format::error::{Cause, Subject};
use fastchangelog_format::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};
use std::io::{self, Read, Write};

/// Version of the frames. Raised with every change that an older peer would misread.
pub const PROTOCOL_VERSION: u32 = 4;

const MAGIC: &[u8; 8] = b"fclhello";
const MAX_VERSION_TEXT: u32 = 64;
/// Bytes of a frame's header.
pub const HEADER: usize = 16;

/// Bytes of one payload, call or result: what a peer allocates for one frame at most. Splitting keeps far below it;
/// only a single huge row comes near.
pub const MAX_MESSAGE: u64 = 256 << 20;

/// Bodies that are texts (requests, handles, metrics, errors) never need more.
pub const MAX_TEXT_BODY: u64 = 64 << 20;

/// The kind of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Kind {
    /// Request: open a session; JSON. Reply: `Ok`, or of a state session `Text`, JSON.
    Open = 1,
    /// Request: a payload, Arrow IPC. No reply.
    Merge = 2,
    /// Request: no more payloads. A body of one byte 1 lets the server persist while results travel.
    /// Reply: `Result`…, `ResultEnd`.
    Finish = 3,
    /// Request: make it durable; of a state session with a body, JSON. Reply: `Handle`.
    Commit = 4,
    /// Request: all metrics. Reply: `Text`, JSON.
    Metrics = 5,
    /// Request: the live shards. Reply: `Text`, JSON.
    Shards = 6,
    /// Request: are you there? Reply: `Ok`.
    Ping = 7,
    /// Request, for tests: end the server. Reply: `Ok`.
    Shutdown = 8,
    /// Request, for tests: set failpoints from their text form. Reply: `Ok`.
    SetFailpoints = 9,
    /// Request: newer credentials of a state that sessions have open; JSON. Reply: `Ok`.
    Renew = 10,
    /// Request to a state session: a declaration or a read (`StateCall`). Reply: `StateRows`…
    State = 11,
    /// Request to a state session: changes (`StateChange`). No reply.
    StateChange = 12,
    /// Reply: done.
    Ok = 100,
    /// Reply: a piece of the result's Arrow IPC stream.
    Result = 101,
    /// Reply: the result is complete.
    ResultEnd = 102,
    /// Reply: JSON of [`HandleBody`].
    Handle = 103,
    /// Reply: a text.
    Text = 104,
    /// Reply: an error with its parts ([`encode_error`]), as JSON.
    Error = 105,
    /// Reply: the answer to a state session's call, or a part of it.
    StateRows = 106,
}

impl Kind {
    fn from_u32(value: u32) -> Option<Self> {
        Some(match value {
            1 => Self::Open,
            2 => Self::Merge,
            3 => Self::Finish,
            4 => Self::Commit,
            5 => Self::Metrics,
            6 => Self::Shards,
            7 => Self::Ping,
            8 => Self::Shutdown,
            9 => Self::SetFailpoints,
            10 => Self::Renew,
            11 => Self::State,
            12 => Self::StateChange,
            100 => Self::Ok,
            101 => Self::Result,
            102 => Self::ResultEnd,
            103 => Self::Handle,
            104 => Self::Text,
            105 => Self::Error,
            106 => Self::StateRows,
            _ => return None,
        })
    }
}

/// The first part of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// The frame's kind.
    pub kind: Kind,
    /// Which request it is or answers.
    pub request: u32,
    /// Bytes that follow.
    pub length: u64,
}

impl Header {
    /// The header's bytes.
    pub fn encode(self) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        bytes[..4].copy_from_slice(&(self.kind as u32).to_le_bytes());
        bytes[4..8].copy_from_slice(&self.request.to_le_bytes());
        bytes[8..].copy_from_slice(&self.length.to_le_bytes());
        bytes
    }

    /// Reads a header and refuses kinds and lengths that no peer of ours sends.
    pub fn decode(bytes: &[u8; HEADER], max_message: u64) -> Result<Self> {
        let [a, b, c, d, e, f, g, h, rest @ ..] = *bytes;
        let number = u32::from_le_bytes([a, b, c, d]);
        let kind = Kind::from_u32(number)
            .ok_or_else(|| Error::internal(format!("a frame of unknown kind {number} on the state server's socket")))?;
        let header = Self { kind, request: u32::from_le_bytes([e, f, g, h]), length: u64::from_le_bytes(rest) };
        check_length(kind, header.length, max_message)?;
        Ok(header)
    }
}

/// Refuses bodies beyond the bound of their kind; used before sending too, so that the sender gets the error.
pub fn check_length(kind: Kind, length: u64, max_message: u64) -> Result<()> {
    let remedy = match kind {
        Kind::Merge | Kind::Result => "one row with all its columns must fit: make its values smaller",
        Kind::State | Kind::StateChange | Kind::StateRows => {
            "one key with its value must fit: make it smaller, or keep it as a map or several keys"
        }
        _ if length > MAX_TEXT_BODY => {
            return Err(Error::internal(format!("a frame {kind:?} of {length} bytes; the limit is {MAX_TEXT_BODY}")));
        }
        _ => return Ok(()),
    };
    if length <= max_message {
        return Ok(());
    }
    let what = format!("a message of {length} bytes can never fit: the limit is {max_message} bytes");
    Err(Error::invalid(what).with_remedy(remedy))
}

/// The reply to `Commit`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct HandleBody {
    /// The durable version's handle, as text.
    pub handle: String,
    /// The session's counters and the duration of each step.
    pub metrics: std::collections::BTreeMap<String, u64>,
    /// Of an aggregation by event time: no group of the version has a time before this one, in microseconds.
    #[serde(default)]
    pub next_close: Option<i64>,
}

/// The parts of an error, from which the client rebuilds it.
#[derive(Serialize, Deserialize)]
struct ErrorBody {
    kind: String,
    what: String,
    remedy: Option<String>,
    subject: Option<Subject>,
    causes: Vec<Cause>,
}

/// An error as a body: kind, description, remedy, subject, and the causes as texts.
pub fn encode_error(error: &Error) -> Vec<u8> {
    let body = ErrorBody {
        kind: error.kind().name().to_owned(),
        what: error.what().to_owned(),
        remedy: error.remedy().map(ToOwned::to_owned),
        subject: error.subject().cloned(),
        causes: error.causes(),
    };
    serde_json::to_vec(&body).unwrap_or_default()
}

/// The error of a body.
pub fn decode_error(body: &[u8]) -> Error {
    let body = match serde_json::from_slice::<ErrorBody>(body) {
        Ok(body) => body,
        Err(error) => {
            return Error::internal(format!("an unreadable error from the state server: {error}")).with_source(error);
        }
    };
    let mut error = Error::new(ErrorKind::from_name(&body.kind), body.what).with_causes(body.causes);
    if let Some(remedy) = body.remedy {
        error = error.with_remedy(remedy);
    }
    if let Some(subject) = body.subject {
        error = error.with_subject(subject);
    }
    error
}

/// The error of a request that does not come next in its session.
pub(crate) fn out_of_turn(what: &str) -> Error {
    Error::internal(format!(
        "`{what}` out of turn (a session is: open, merge*, finish, commit; or: open, declare, reads and writes, commit)"
    ))
}

/// The hello of this build.
pub fn hello() -> Vec<u8> {
    hello_of(PROTOCOL_VERSION, crate::VERSION)
}

/// The hello of any build.
pub fn hello_of(protocol: u32, version: &str) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    bytes.extend_from_slice(&protocol.to_le_bytes());
    bytes.extend_from_slice(&u32::try_from(version.len()).unwrap_or(u32::MAX).to_le_bytes());
    bytes.extend_from_slice(version.as_bytes());
    bytes
}

/// Reads the peer's hello; `peer` is its name in messages. Any difference is an error that names both versions.
pub fn read_hello(stream: &mut impl Read, peer: &str) -> Result<()> {
    let mut fixed = [0; 16];
    stream.read_exact(&mut fixed).map_err(|e| lost(peer, e))?;
    let (magic, rest) = fixed.split_at(8);
    if magic != MAGIC {
        return Err(Error::invalid(format!(
            "{peer} does not speak fastchangelog's protocol; check that no other program uses the socket"
        )));
    }
    let word = |at: usize| u32::from_le_bytes([rest[at], rest[at + 1], rest[at + 2], rest[at + 3]]);
    let (protocol, length) = (word(0), word(4));
    if length > MAX_VERSION_TEXT {
        return Err(Error::invalid(format!(
            "{peer} sent no hello of fastchangelog; check that no other program uses the socket"
        )));
    }
    let mut text = vec![0; length as usize];
    stream.read_exact(&mut text).map_err(|e| lost(peer, e))?;
    let version = String::from_utf8_lossy(&text);
    if protocol != PROTOCOL_VERSION || version != crate::VERSION {
        return Err(Error::invalid(format!(
            "two fastchangelog versions in one cluster: this process has {} (protocol \
             {PROTOCOL_VERSION}), {peer} has {version} (protocol {protocol})",
            crate::VERSION
        ))
        .with_remedy("install one version on the driver and on every executor"));
    }
    Ok(())
}

/// An error of the transport; a waiting one may carry an error of ours.
fn lost(peer: &str, error: io::Error) -> Error {
    error.downcast::<Error>().unwrap_or_else(|error| {
        Error::retryable(format!("{peer} went away during the hello: {error}")).with_io_source(&error)
    })
}

/// Writes one frame.
pub fn write_frame(stream: &mut impl Write, kind: Kind, request: u32, body: &[u8]) -> io::Result<()> {
    let header = Header { kind, request, length: body.len() as u64 }.encode();
    let mut slices = [io::IoSlice::new(&header), io::IoSlice::new(body)];
    let mut slices = &mut slices[..];
    io::IoSlice::advance_slices(&mut slices, 0);
    while !slices.is_empty() {
        match stream.write_vectored(slices) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(n) => io::IoSlice::advance_slices(&mut slices, n),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Reads a body of `length` bytes straight into a buffer of that size, without clearing it first.
pub fn read_body(stream: &mut impl Read, length: u64) -> io::Result<Vec<u8>> {
    let size = usize::try_from(length).map_err(|_| io::Error::from(io::ErrorKind::OutOfMemory))?;
    let mut body = Vec::new();
    body.try_reserve_exact(size).map_err(|_| io::Error::from(io::ErrorKind::OutOfMemory))?;
    stream.take(length).read_to_end(&mut body)?;
    if body.len() < size {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(body)
}

#[cfg(test)]
#[path = "protocol_tests.rs"]
mod tests;
