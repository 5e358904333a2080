//! The client through which a Python worker talks to its executor's state server.
//!
//! Owns: connecting, waiting (bounded, interruptible), and the error message when the server has ended.
//! Does not own: starting a server (Python does, under a lock), trust in a socket (`trust`).
//!
//! Invariants:
//! 1. every wait has a bound: progress within [`ClientSettings::timeout`], or an error that names the option;
//! 2. every wait calls the [`Tick`] at least every 100 ms, so Ctrl-C is heard;
//! 3. a client refuses to work in a forked child: two processes on one socket would read each other's answers.

use crate::protocol::{self, HEADER, HandleBody, Header, Kind};
use crate::trust;
use arrow_array::RecordBatch;
use arrow_buffer::Buffer;
use arrow_ipc::reader::StreamDecoder;
use arrow_schema::SchemaRef;
use fastchangelog_format::clock::Tick;
use fastchangelog_format::error::Subject;
use fastchangelog_format::{Error, ErrorKind, Result};
use std::io::{self, IoSlice, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

const TICK: Duration = Duration::from_millis(100);

/// How long a session waits without any sign of its server: longer than a restore of the largest shard takes, short
/// enough that Spark repeats the task of a server that hangs.
pub const SESSION_TIMEOUT: Duration = Duration::from_mins(30);

/// How a client connects.
#[derive(Debug, Clone)]
pub struct ClientSettings {
    /// The server's socket.
    pub socket: PathBuf,
    /// The server's log, for messages.
    pub log: String,
    /// Longest time without any progress of an answer.
    pub timeout: Duration,
    /// Bytes of one payload or result message.
    pub max_message: u64,
}

/// A connection.
#[derive(Debug)]
pub struct Client {
    stream: UnixStream,
    settings: ClientSettings,
    pid: u32,
    next_request: u32,
    /// The first error that makes this connection useless; later calls repeat it.
    broken: Option<Error>,
}

impl Client {
    /// Connects to a server of this user, and exchanges hellos.
    pub fn connect(settings: ClientSettings, tick: Tick<'_>) -> Result<Self> {
        let stream = trust::connect(&settings.socket)?.map_err(|e| {
            Error::retryable(format!("no state server answers at {}: {e}", settings.socket.display()))
                .with_subject(Subject::Path(settings.socket.clone()))
                .with_io_source(&e)
                .with_remedy(format_args!("the next attempt of the task starts one, its log is {}", settings.log))
        })?;
        let tuned = stream.set_read_timeout(Some(TICK)).and_then(|()| stream.set_write_timeout(Some(TICK)));
        tuned.map_err(|e| Error::io("cannot set up the socket", &e))?;
        let mut this = Self { stream, settings, pid: std::process::id(), next_request: 0, broken: None };
        let sent = this.send(&[&protocol::hello()], tick);
        // A server that refuses the connection says hello and why, whether or not it has read ours.
        protocol::read_hello(&mut this.waiting(tick), "the state server")?;
        sent.or_else(|error| this.unsent(error, tick))?;
        Ok(this)
    }

    /// Sends a request and waits for its one reply.
    pub fn call(&mut self, kind: Kind, body: &[u8], tick: Tick<'_>) -> Result<(Kind, Vec<u8>)> {
        let request = self.request(kind, body, tick)?;
        self.reply(request, tick)
    }

    /// Sends a request whose replies are read later.
    pub(crate) fn request(&mut self, kind: Kind, body: &[u8], tick: Tick<'_>) -> Result<u32> {
        self.check()?;
        protocol::check_length(kind, body.len() as u64, self.settings.max_message)?;
        self.next_request += 1;
        let header = Header { kind, request: self.next_request, length: body.len() as u64 }.encode();
        self.send(&[&header, body], tick).or_else(|error| self.unsent(error, tick))?;
        Ok(self.next_request)
    }

    /// Why something could not be sent: the server may have said so before it stopped reading.
    fn unsent(&mut self, error: io::Error, tick: Tick<'_>) -> Result<()> {
        if matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset) {
            self.reply(self.next_request, tick)?;
        }
        let error = self.waiting(tick).error(error);
        Err(self.break_with(error))
    }

    /// Sends a request without a reply. Anything that the server has sent meanwhile is the error of an earlier request,
    /// or its disconnect.
    pub(crate) fn send_unanswered(&mut self, kind: Kind, body: &[u8], tick: Tick<'_>) -> Result<()> {
        if self.broken.is_none() && self.has_news() {
            self.reply(self.next_request, tick)?;
        }
        self.request(kind, body, tick).map(drop)
    }

    /// Makes a session durable.
    pub(crate) fn commit(&mut self, body: &[u8], tick: Tick<'_>) -> Result<HandleBody> {
        let (kind, body) = self.call(Kind::Commit, body, tick)?;
        if kind != Kind::Handle {
            return Err(Error::internal(format!("the state server answered a commit with {kind:?}")));
        }
        serde_json::from_slice(&body).map_err(|e| Error::internal(format!("a handle: {e}")).with_source(e))
    }

    /// Ends the connection; in a forked child only this copy of it.
    pub(crate) fn close(&mut self) {
        if self.pid == std::process::id() {
            self.break_with(Error::closed("this session is closed"));
        }
    }

    /// Bytes of one message.
    pub(crate) fn max_message(&self) -> u64 {
        self.settings.max_message
    }

    /// Reads the next reply; an error reply is the error.
    pub(crate) fn reply(&mut self, request: u32, tick: Tick<'_>) -> Result<(Kind, Vec<u8>)> {
        self.check()?;
        let (header, body) = self.waiting(tick).frame().map_err(|e| self.break_with(e))?;
        match header.kind {
            Kind::Error => Err(self.break_with(protocol::decode_error(&body))),
            _ if header.request != request => Err(self.break_with(Error::internal(format!(
                "the state server answered request {} instead of {request}",
                header.request
            )))),
            kind => Ok((kind, body)),
        }
    }

    /// True when the server has sent an unrequested frame: an error.
    fn has_news(&self) -> bool {
        let mut fds = [rustix::event::PollFd::new(&self.stream, rustix::event::PollFlags::IN)];
        let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        rustix::event::poll(&mut fds, Some(&now)).is_ok_and(|n| n > 0)
    }

    /// Refuses forked children and repeats the error that broke the connection.
    fn check(&self) -> Result<()> {
        let pid = std::process::id();
        if pid != self.pid {
            return Err(Error::closed(format!(
                "this session belongs to process {} and cannot be used in its forked child {pid}",
                self.pid
            ))
            .with_remedy("open one in the child"));
        }
        self.broken.clone().map_or(Ok(()), Err)
    }

    /// Makes the connection useless; later calls repeat this error, or an earlier one.
    pub(crate) fn break_with(&mut self, mut error: Error) -> Error {
        // Details for a bug report: only this side knows the path of the server's log.
        if error.kind() == ErrorKind::Internal {
            error = error.with_remedy(format_args!("the state server's log is {}", self.settings.log));
        }
        self.broken.get_or_insert_with(|| error.clone());
        let _ = self.stream.shutdown(std::net::Shutdown::Both);
        error
    }

    fn send(&self, parts: &[&[u8]], tick: Tick<'_>) -> io::Result<()> {
        let mut slices: Vec<IoSlice<'_>> = parts.iter().map(|p| IoSlice::new(p)).collect();
        let mut slices = &mut slices[..];
        let mut stream = self.waiting(tick);
        IoSlice::advance_slices(&mut slices, 0);
        while !slices.is_empty() {
            let n = stream.write_vectored(slices)?;
            IoSlice::advance_slices(&mut slices, n);
        }
        Ok(())
    }

    fn waiting<'a>(&'a self, tick: Tick<'a>) -> Waiting<'a> {
        Waiting { stream: &self.stream, settings: &self.settings, tick }
    }
}

/// The stream with patience: retries short timeouts until there is progress, an interrupt, or no time left.
struct Waiting<'a> {
    stream: &'a UnixStream,
    settings: &'a ClientSettings,
    tick: Tick<'a>,
}

impl Waiting<'_> {
    fn wait(&self, mut work: impl FnMut(&UnixStream) -> io::Result<usize>) -> io::Result<usize> {
        let start = Instant::now();
        loop {
            match work(self.stream) {
                Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
                    (self.tick)().map_err(io::Error::other)?;
                    if start.elapsed() >= self.settings.timeout {
                        let what = format!("the state server has not answered for {:?}", self.settings.timeout);
                        let remedy = format!("read its log, {}", self.settings.log);
                        return Err(io::Error::other(Error::retryable(what).with_remedy(remedy)));
                    }
                }
                other => return other,
            }
        }
    }

    fn frame(&mut self) -> Result<(Header, Vec<u8>)> {
        let mut bytes = [0; HEADER];
        self.read_exact(&mut bytes).map_err(|e| self.error(e))?;
        let header = Header::decode(&bytes, self.settings.max_message)?;
        let body = protocol::read_body(self, header.length).map_err(|e| self.error(e))?;
        Ok((header, body))
    }

    fn error(&self, error: io::Error) -> Error {
        match error.downcast::<Error>() {
            Ok(error) => error,
            Err(error) => Error::retryable(format!("the state server went away ({error})"))
                .with_io_source(&error)
                .with_remedy(format_args!(
                    "another attempt of the task starts a new one and restores, the reason is in its log {}",
                    self.settings.log
                )),
        }
    }
}

impl Read for Waiting<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.wait(|mut stream| stream.read(buffer))
    }
}

impl Write for Waiting<'_> {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        self.wait(|mut stream| stream.write(data))
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        self.wait(|mut stream| stream.write_vectored(slices))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A session at the state server. Dropping it before [`SessionClient::commit`] has returned aborts it.
#[derive(Debug)]
pub struct SessionClient {
    client: Client,
    results: Option<Results>,
}

#[derive(Debug)]
struct Results {
    request: u32,
    decoder: StreamDecoder,
    chunk: Buffer,
    /// A batch that came in the same frame as the schema.
    pending: Option<RecordBatch>,
}

impl SessionClient {
    /// Connects and opens a session with the JSON of an open request.
    pub fn open(settings: ClientSettings, request: &str, tick: Tick<'_>) -> Result<Self> {
        let mut client = Client::connect(settings, tick)?;
        client.call(Kind::Open, request.as_bytes(), tick)?;
        Ok(Self { client, results: None })
    }

    /// Sends a payload (an Arrow IPC stream).
    pub fn merge(&mut self, payload: &[u8], tick: Tick<'_>) -> Result<()> {
        self.client.send_unanswered(Kind::Merge, payload, tick)
    }

    /// Ends the payloads and gives the results' schema. With `persist`, the server makes the version durable while
    /// the results travel; [`SessionClient::commit`] then only waits for the rest.
    pub fn finish(&mut self, persist: bool, tick: Tick<'_>) -> Result<SchemaRef> {
        let request = self.client.request(Kind::Finish, &[u8::from(persist)], tick)?;
        let chunk = Buffer::from(Vec::<u8>::new());
        let mut results = Results { request, decoder: StreamDecoder::new(), chunk, pending: None };
        while results.decoder.schema().is_none() {
            if !self.client.next_chunk(&mut results, tick)? {
                return Err(Error::internal("a result without a schema"));
            }
            results.pending = self.client.decode(&mut results)?;
        }
        let schema = results.decoder.schema();
        self.results = Some(results);
        schema.ok_or_else(|| Error::internal("a result without a schema"))
    }

    /// The next result batch; None after the last.
    pub fn next_batch(&mut self, tick: Tick<'_>) -> Result<Option<RecordBatch>> {
        let Some(mut results) = self.results.take() else { return Ok(None) };
        loop {
            let batch = results.pending.take();
            let batch = if batch.is_some() { batch } else { self.client.decode(&mut results)? };
            if let Some(batch) = batch {
                self.results = Some(results);
                return Ok(Some(batch));
            }
            if !self.client.next_chunk(&mut results, tick)? {
                results
                    .decoder
                    .finish()
                    .map_err(|e| self.client.break_with(Error::internal(format!("results: {e}"))))?;
                return Ok(None);
            }
        }
    }

    /// Makes it durable. Results that were not read are skipped.
    pub fn commit(&mut self, tick: Tick<'_>) -> Result<HandleBody> {
        while self.next_batch(tick)?.is_some() {}
        self.client.commit(&[], tick)
    }

    /// Ends the connection: an abort unless the commit was done. Safe to call again, and in a forked child (which
    /// only lets go of its copy).
    pub fn close(&mut self) {
        self.results = None;
        self.client.close();
    }
}

impl Client {
    /// Receives the next piece of the results; false at their end.
    fn next_chunk(&mut self, results: &mut Results, tick: Tick<'_>) -> Result<bool> {
        match self.reply(results.request, tick)? {
            (Kind::Result, body) => {
                results.chunk = Buffer::from(body);
                Ok(true)
            }
            (Kind::ResultEnd, _) => Ok(false),
            (kind, _) => Err(self.break_with(Error::internal(format!("{kind:?} among the results")))),
        }
    }

    fn decode(&mut self, results: &mut Results) -> Result<Option<RecordBatch>> {
        results
            .decoder
            .decode(&mut results.chunk)
            .map_err(|e| self.break_with(Error::internal(format!("results: {e}"))))
    }
}
