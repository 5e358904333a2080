//! One connection, frame by frame.
//!
//! Owns: the order of requests (open, merge*, finish, commit), the reply to each, and the session's line in the log.
//! Does not own: accepting connections (`server`), the requests of a state session (`state_connection`), the
//! computation (the backend).
//!
//! Invariants:
//! 1. a connection has at most one session; a disconnect without a commit drops the session, which aborts it;
//! 2. after the first error nothing more reaches the backend; payloads in flight are read and discarded;
//! 3. a backend that panics fails its own connection only.

use crate::backend::{OpenedSession, ResultStream, SessionBackend};
use crate::protocol::{self, HEADER, HandleBody, Header, Kind, out_of_turn, write_frame};
use crate::report::{Report, labels, micros};
use crate::shared::Shared;
use crate::state_connection::{StateConnection, send_reply};
use arrow_ipc::writer::StreamWriter;
use fastchangelog_format::{Error, Result};
use fastchangelog_store::threads::spawn;
use serde_json::{Value, json};
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A peer that connects and says nothing is dropped after this time.
const HELLO_TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes of a result frame: large enough that system calls don't count, small enough to stay in the cache.
const RESULT_CHUNK: usize = 1 << 20;

type Committed = Result<HandleBody>;

/// The reason why a connection closes.
enum End {
    /// The peer closed or broke it.
    Gone,
    /// The peer broke the protocol.
    Refused(Error),
}

impl From<io::Error> for End {
    fn from(_: io::Error) -> Self {
        Self::Gone
    }
}

/// Serves one connection until it ends.
pub(crate) fn serve(mut stream: UnixStream, shared: &Arc<Shared>) {
    let greeted = stream
        .set_read_timeout(Some(HELLO_TIMEOUT))
        .and_then(|()| stream.write_all(&protocol::hello()))
        .map_err(|e| Error::io("hello", &e))
        .and_then(|()| protocol::read_hello(&mut stream, "a client"))
        .and_then(|()| stream.set_read_timeout(None).map_err(|e| Error::io("hello", &e)));
    if let Err(error) = greeted {
        shared.log.event("WARN", "hello", json!({"error": error.message()}));
        return;
    }
    let mut connection = Connection { stream, shared, phase: Phase::Idle, report: Report::default() };
    let refused = connection.run();
    if let Some(error) = refused {
        let _ = write_frame(&mut connection.stream, Kind::Error, 0, &protocol::encode_error(&error));
        shared.log.event("WARN", "connection", json!({"error": error.message()}));
    }
    connection.finish();
}

enum Phase {
    /// No session yet, or it is committed.
    Idle,
    /// Payloads may come.
    Open(Box<dyn SessionBackend>),
    /// Results were sent; the commit was not asked for yet.
    Finished(Box<dyn SessionBackend>),
    /// Results were sent while this persists.
    Committing(JoinHandle<Committed>),
    /// A state session.
    States(StateConnection),
    /// An error was sent.
    Failed,
}

struct Connection<'a> {
    stream: UnixStream,
    shared: &'a Arc<Shared>,
    phase: Phase,
    report: Report,
}

impl Connection<'_> {
    /// Reads frames until the peer disconnects; returns the error that made this side end the connection.
    fn run(&mut self) -> Option<Error> {
        loop {
            match self.step() {
                Ok(()) => {}
                Err(End::Gone) => return None,
                Err(End::Refused(error)) => return Some(error),
            }
        }
    }

    fn step(&mut self) -> Result<(), End> {
        let mut bytes = [0; HEADER];
        self.stream.read_exact(&mut bytes)?;
        let header = Header::decode(&bytes, self.shared.max_message).map_err(End::Refused)?;
        if matches!(self.phase, Phase::Failed) {
            io::copy(&mut (&mut self.stream).take(header.length), &mut io::sink())?;
            return Ok(());
        }
        let body = protocol::read_body(&mut self.stream, header.length)?;
        let outcome = catch_unwind(AssertUnwindSafe(|| self.answer(header, body))).unwrap_or_else(|panic| {
            Ok(Err(Error::internal(format!("the state server panicked: {}", text_of(&*panic)))))
        })?;
        if let Err(error) = outcome {
            self.phase = Phase::Failed;
            self.report.outcome = Some("failed");
            self.log("WARN", Some(&error));
            self.reply(header, Kind::Error, &protocol::encode_error(&error))?;
        }
        Ok(())
    }

    /// An outer error closes the connection. An inner error is sent to the peer.
    fn answer(&mut self, header: Header, body: Vec<u8>) -> Result<Result<()>, End> {
        let replied = match header.kind {
            Kind::Open => self.open(&body),
            Kind::Merge => return Ok(self.merge(&body)),
            Kind::Finish => return self.results(header, body == [1]),
            Kind::State | Kind::StateChange => return self.state_call(header, body),
            Kind::Commit => self.commit(&body).map(|handle| (Kind::Handle, handle)),
            Kind::Ping => Ok((Kind::Ok, Vec::new())),
            Kind::Renew => self.renew(&body).map(|()| (Kind::Ok, Vec::new())),
            Kind::Metrics => Ok((Kind::Text, json!(self.shared.metrics().all()).to_string().into_bytes())),
            Kind::Shards => Ok((Kind::Text, json!(self.shared.shards()).to_string().into_bytes())),
            Kind::Shutdown => {
                self.shared.request_shutdown();
                Ok((Kind::Ok, Vec::new()))
            }
            Kind::SetFailpoints => self.shared.set_failpoints(&body).map(|()| (Kind::Ok, Vec::new())),
            Kind::Ok | Kind::Result | Kind::ResultEnd | Kind::Handle | Kind::Text | Kind::Error | Kind::StateRows => {
                return Err(End::Refused(Error::internal(format!("a client sent a reply ({:?})", header.kind))));
            }
        };
        match replied {
            Ok((kind, body)) => Ok(Ok(self.reply(header, kind, &body)?)),
            Err(error) => Ok(Err(error)),
        }
    }

    fn reply(&mut self, to: Header, kind: Kind, body: &[u8]) -> io::Result<()> {
        write_frame(&mut self.stream, kind, to.request, body)
    }

    fn open(&mut self, body: &[u8]) -> Result<(Kind, Vec<u8>)> {
        if !matches!(self.phase, Phase::Idle) || self.report.opened.is_some() {
            return Err(out_of_turn("open"));
        }
        let text = std::str::from_utf8(body).map_err(|_| Error::internal("an open request is not UTF-8"))?;
        let request: Value = serde_json::from_str(text)
            .map_err(|e| Error::internal(format!("an open request is not JSON: {e}")).with_source(e))?;
        self.report.opened = Some(Instant::now());
        self.report.labels = labels(&request);
        let shared = self.shared;
        let opening = shared.admit(&request)?;
        let session = self.report.timed("open_micros", || Arc::clone(&shared.backend).open(text))?;
        drop(opening);
        self.shared.sessions.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let (phase, reply) = match session {
            OpenedSession::Aggregate(session) => (Phase::Open(session), (Kind::Ok, Vec::new())),
            OpenedSession::States(session) => {
                let states = StateConnection::new(session);
                let opened = states.opened()?;
                (Phase::States(states), (Kind::Text, opened))
            }
        };
        self.phase = phase;
        Ok(reply)
    }

    fn renew(&self, body: &[u8]) -> Result<()> {
        let text = std::str::from_utf8(body).map_err(|_| Error::internal("new credentials are not UTF-8"))?;
        self.shared.backend.renew(text)
    }

    fn merge(&mut self, payload: &[u8]) -> Result<()> {
        let Phase::Open(session) = &mut self.phase else { return Err(out_of_turn("merge")) };
        self.report.timed("merge_micros", || session.merge(payload))?;
        self.report.add("payloads", 1);
        self.report.add("payload_bytes", payload.len() as u64);
        Ok(())
    }

    fn results(&mut self, header: Header, persist: bool) -> Result<Result<()>, End> {
        let Phase::Open(mut session) = std::mem::replace(&mut self.phase, Phase::Failed) else {
            return Ok(Err(out_of_turn("finish")));
        };
        let results = match self.report.timed("finish_micros", || session.finish()) {
            Ok(results) => results,
            Err(error) => return Ok(Err(error)),
        };
        let later = session.commits_after_results();
        self.phase = Phase::Finished(session);
        if persist
            && !later
            && let Err(error) = self.start_commit()
        {
            return Ok(Err(error));
        }
        let start = Instant::now();
        let sent = send_results(&mut self.stream, header.request, results);
        self.report.add("send_micros", micros(start));
        match sent? {
            Ok((rows, bytes)) => {
                if persist
                    && later
                    && let Err(error) = self.start_commit()
                {
                    return Ok(Err(error));
                }
                self.report.add("result_rows", rows);
                self.report.add("result_bytes", bytes);
                Ok(Ok(self.reply(header, Kind::ResultEnd, &[])?))
            }
            Err(error) => Ok(Err(error)),
        }
    }

    fn state_call(&mut self, header: Header, body: Vec<u8>) -> Result<Result<()>, End> {
        let Phase::States(states) = &mut self.phase else { return Ok(Err(out_of_turn("state"))) };
        let (call, reply) = match states.call(header.kind, body, &mut self.report) {
            Ok((call, _)) if call.is_change() => return Ok(Ok(())),
            Ok(done) => done,
            Err(error) => return Ok(Err(error)),
        };
        let start = Instant::now();
        let sent = send_reply(&mut self.stream, header.request, &call, reply, self.shared.max_message)?;
        self.report.add("send_micros", micros(start));
        Ok(sent.map(|bytes| self.report.add("sent_bytes", bytes)))
    }

    /// Lets the commit of a finished session run beside this connection.
    fn start_commit(&mut self) -> Result<()> {
        let Phase::Finished(mut session) = std::mem::replace(&mut self.phase, Phase::Failed) else {
            return Err(out_of_turn("commit"));
        };
        self.phase = Phase::Committing(spawn("fcl-commit", "the commit's thread", move || session.commit())?);
        Ok(())
    }

    fn commit(&mut self, body: &[u8]) -> Result<Vec<u8>> {
        let start = Instant::now();
        let HandleBody { handle, metrics, next_close } = match std::mem::replace(&mut self.phase, Phase::Failed) {
            Phase::Finished(mut session) => session.commit()?,
            Phase::Committing(thread) => joined(thread)?,
            Phase::States(mut states) => states.commit(body)?,
            _ => return Err(out_of_turn("commit")),
        };
        self.report.add("commit_wait_micros", micros(start));
        for (name, value) in metrics {
            self.report.steps.insert(name, value);
        }
        if let Some(opened) = self.report.opened {
            self.report.add("session_micros", micros(opened));
        }
        self.phase = Phase::Idle;
        self.report.outcome = Some("committed");
        self.log("INFO", None);
        let body = HandleBody { handle, metrics: self.report.steps.clone(), next_close };
        serde_json::to_vec(&body).map_err(|e| Error::internal(format!("a handle's JSON: {e}")).with_source(e))
    }

    /// The session's one line: its counters, the duration of each step, its outcome.
    fn log(&self, level: &str, error: Option<&Error>) {
        let mut fields = json!({"outcome": self.report.outcome, "steps": self.report.steps});
        if let (Value::Object(fields), Value::Object(labels)) = (&mut fields, &self.report.labels) {
            fields.extend(labels.clone());
        }
        if let Some(error) = error {
            fields["error"] = json!(error.message());
            fields["kind"] = json!(error.kind().name());
            let causes: Vec<String> = error.causes().into_iter().map(|cause| cause.text).collect();
            if !causes.is_empty() {
                fields["causes"] = json!(causes);
            }
        }
        self.shared.log.event(level, "session", fields);
    }

    /// Drops the session (an abort unless it was committed) and waits for a running commit.
    fn finish(&mut self) {
        let unfinished = !matches!(self.phase, Phase::Idle | Phase::Failed);
        if let Phase::Committing(thread) = std::mem::replace(&mut self.phase, Phase::Idle) {
            let _ = joined(thread);
        }
        if unfinished {
            self.report.outcome = Some("aborted");
            self.log("INFO", None);
        }
    }
}

fn joined(thread: JoinHandle<Committed>) -> Committed {
    thread.join().unwrap_or_else(|panic| Err(Error::internal(format!("the commit panicked: {}", text_of(&*panic)))))
}

fn text_of(panic: &(dyn std::any::Any + Send)) -> &str {
    panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("?")
}

/// Streams the results as frames; the socket's own backpressure paces the backend.
fn send_results(
    stream: &mut UnixStream,
    request: u32,
    mut results: Box<dyn ResultStream>,
) -> io::Result<Result<(u64, u64)>> {
    let mut rows = 0;
    let mut writer = match StreamWriter::try_new(Frames::new(stream, request), &results.schema()) {
        Ok(writer) => writer,
        Err(error) => return as_io(error).map(Err),
    };
    loop {
        let batch = match results.next() {
            None => break,
            Some(Ok(batch)) => batch,
            Some(Err(error)) => return Ok(Err(error)),
        };
        rows += batch.num_rows() as u64;
        if let Err(error) = writer.write(&batch) {
            return as_io(error).map(Err);
        }
        // A frame ends with its batch, so the reader decodes it in place, without joining pieces.
        writer.get_mut().send()?;
    }
    if let Err(error) = writer.finish() {
        return as_io(error).map(Err);
    }
    writer.get_mut().send()?;
    Ok(Ok((rows, writer.get_ref().bytes)))
}

/// A broken connection is distinguished from a batch that cannot be encoded.
fn as_io(error: arrow_schema::ArrowError) -> io::Result<Error> {
    match error {
        arrow_schema::ArrowError::IoError(_, error) => Err(error),
        other => Ok(Error::from(other)),
    }
}

/// Cuts a byte stream into `Result` frames.
struct Frames<'a> {
    stream: &'a mut UnixStream,
    request: u32,
    buffer: Vec<u8>,
    bytes: u64,
}

impl<'a> Frames<'a> {
    fn new(stream: &'a mut UnixStream, request: u32) -> Self {
        Self { stream, request, buffer: Vec::with_capacity(RESULT_CHUNK), bytes: 0 }
    }

    fn send(&mut self) -> io::Result<()> {
        if !self.buffer.is_empty() {
            self.bytes += self.buffer.len() as u64;
            write_frame(self.stream, Kind::Result, self.request, &self.buffer)?;
            self.buffer.clear();
        }
        Ok(())
    }
}

impl Write for Frames<'_> {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        if self.buffer.len() == RESULT_CHUNK {
            self.send()?;
        }
        let n = data.len().min(RESULT_CHUNK - self.buffer.len());
        self.buffer.extend_from_slice(&data[..n]);
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
