//! The listener: access, the bound on connections, and the shutdown.
//!
//! Owns: the socket's rights, the accept loop, one thread per connection up to a bound.
//! Does not own: frames (`session`), the state shared by connections (`shared`), materialization (`maintenance`), the process's life (Python), shards
//! (the backend).

use crate::backend::{Backend, MaterializeBackend};
use crate::logfile::LogFile;
use crate::maintenance::Maintenance;
use crate::metrics_endpoint::MetricsEndpoint;
use crate::platform::{Wake, peer_user};
use crate::protocol::{self, Kind, write_frame};
use crate::session;
use crate::shared::{Connections, Shared};
use fastchangelog_core::engine::SweptState;
use fastchangelog_format::clock::SharedClock;
use fastchangelog_format::{Error, ErrorKind, Result};
use fastchangelog_store::failpoint::SharedFailpoints;
use fastchangelog_store::metrics::SharedMetrics;
use fastchangelog_store::threads::{refused, spawn};
use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, poll};
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashMap};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Stack of a connection's thread. Merging and combining are loops over flat memory, not recursion.
const STACK: usize = 2 << 20;

/// How a server listens.
#[derive(Debug, Clone)]
pub struct ServerSettings {
    /// The socket's path. Its folder must exist and belong to this user only.
    pub socket: PathBuf,
    /// Connections at the same time.
    pub max_connections: usize,
    /// Bytes of one payload or result message.
    pub max_message: u64,
    /// Port of the text endpoint of metrics (option `metrics_port`).
    pub metrics_port: Option<u16>,
}

/// A listening server. [`Server::stop`] ends it; dropping it does the same.
#[derive(Debug)]
pub struct Server {
    shared: Arc<Shared>,
    socket: PathBuf,
    accept: Mutex<Option<JoinHandle<()>>>,
    metrics: Mutex<Option<MetricsEndpoint>>,
    maintenance: Mutex<Option<Maintenance>>,
}

impl Server {
    /// Binds the socket and starts accepting.
    pub fn start(
        settings: &ServerSettings,
        backend: Arc<dyn Backend>,
        log: LogFile,
        failpoints: SharedFailpoints,
    ) -> Result<Self> {
        let wake = Wake::new()?;
        let listener = bind(&settings.socket)?;
        let shared = Arc::new(Shared {
            backend,
            log,
            max_message: settings.max_message,
            sessions: AtomicU64::new(0),
            max_connections: settings.max_connections,
            failpoints,
            stopping: AtomicBool::new(false),
            shutdown: AtomicBool::new(false),
            wake,
            connections: Mutex::new(Connections { next: 0, open: HashMap::new(), idle_since: Instant::now() }),
            registry: Mutex::default(),
        });
        let accepting = Arc::clone(&shared);
        let accept = spawn("fcl-accept", "the thread that accepts connections", move || {
            accept_loop(&listener, &accepting);
        })?;
        let metrics = Mutex::new(settings.metrics_port.and_then(|port| serve_metrics(port, &shared)));
        let (accept, maintenance) = (Mutex::new(Some(accept)), Mutex::default());
        Ok(Self { shared, socket: settings.socket.clone(), accept, metrics, maintenance })
    }

    /// From now on a thread materializes the shards by the policies of their queries and closes idle ones.
    pub fn maintain(&self, clock: SharedClock) -> Result<()> {
        let mut maintenance = self.maintenance.lock();
        if maintenance.is_none() && !self.shared.stopping.load(Ordering::Acquire) {
            *maintenance = Some(Maintenance::start(&self.shared, clock)?);
        }
        Ok(())
    }

    /// The live shards, each with the materialization options its query asked for (`policy`), and the number of
    /// sessions that were refused because of its failure (`refused`).
    pub fn shards(&self) -> Vec<Value> {
        self.shared.shards()
    }

    /// See [`Backend::swept_states`].
    pub fn swept_states(&self) -> Vec<SweptState> {
        self.shared.backend.swept_states()
    }

    /// The instruments, for those who count.
    pub fn counters(&self) -> SharedMetrics {
        self.shared.metrics()
    }

    /// All metrics by name.
    pub fn metrics(&self) -> BTreeMap<String, u64> {
        self.shared.metrics().all()
    }

    /// See [`Backend::begin_materialize`].
    pub fn begin_materialize(&self, shard: &str) -> Result<Option<Box<dyn MaterializeBackend>>> {
        self.shared.backend.begin_materialize(shard)
    }

    /// Connections that are open now.
    pub fn connections(&self) -> usize {
        self.shared.connections.lock().open.len()
    }

    /// Time since the last connection ended; zero while one is open.
    pub fn idle(&self) -> Duration {
        let connections = self.shared.connections.lock();
        if connections.open.is_empty() { connections.idle_since.elapsed() } else { Duration::ZERO }
    }

    /// True once a client asked this server to end.
    pub fn shutdown_requested(&self) -> bool {
        self.shared.shutdown.load(Ordering::Acquire)
    }

    /// The log.
    pub fn log(&self) -> &LogFile {
        &self.shared.log
    }

    /// Stops accepting, ends every connection (their sessions abort) and the maintenance, closes the backend. Waits at
    /// most `timeout` for the threads; true when every connection has ended. Safe to call again.
    pub fn stop(&self, timeout: Duration) -> bool {
        if !self.shared.stopping.swap(true, Ordering::AcqRel) {
            let _ = std::fs::remove_file(&self.socket);
            self.shared.wake.wake();
        }
        drop(self.metrics.lock().take());
        let maintenance = self.maintenance.lock().take().map(Maintenance::stop);
        let deadline = Instant::now() + timeout;
        if let Some(thread) = self.accept.lock().take() {
            let _ = thread.join();
        }
        for stream in self.shared.connections.lock().open.values() {
            let _ = stream.shutdown(std::net::Shutdown::Both);
        }
        self.shared.backend.close();
        while Instant::now() < deadline {
            if self.connections() == 0 && maintenance.as_ref().is_none_or(JoinHandle::is_finished) {
                return true;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        self.connections() == 0
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop(Duration::from_secs(5));
    }
}

/// The text endpoint. Without one the server works as well: another server of this machine may have the port.
fn serve_metrics(port: u16, shared: &Arc<Shared>) -> Option<MetricsEndpoint> {
    let read = Arc::clone(shared);
    match MetricsEndpoint::start(port, Arc::new(move || read.metrics_text())) {
        Ok(endpoint) => {
            shared.log.event("INFO", "metrics endpoint", json!({"address": endpoint.address().to_string()}));
            Some(endpoint)
        }
        Err(error) => {
            shared.log.event("WARN", "metrics endpoint", json!({"error": error.message()}));
            None
        }
    }
}

fn bind(path: &Path) -> Result<UnixListener> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(Error::io_at("cannot remove the stale socket", path, &error));
        }
        _ => {}
    }
    let what = || format!("cannot listen at {}", path.display());
    let listener = UnixListener::bind(path).map_err(|e| Error::io(what(), &e))?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).map_err(|e| Error::io(what(), &e))?;
    listener.set_nonblocking(true).map_err(|e| Error::io(what(), &e))?;
    Ok(listener)
}

fn accept_loop(listener: &UnixListener, shared: &Arc<Shared>) {
    while !shared.stopping.load(Ordering::Acquire) {
        let mut fds = [PollFd::new(listener, PollFlags::IN), PollFd::new(&shared.wake, PollFlags::IN)];
        if poll(&mut fds, None).is_err() {
            continue;
        }
        match listener.accept() {
            Ok((stream, _)) => accept(stream, shared),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(error) => {
                // Out of descriptors: wait until a connection closes instead of spinning.
                shared.log.event("WARN", "accept", json!({"error": error.to_string()}));
                std::thread::sleep(Duration::from_millis(50));
            }
        }
    }
}

fn accept(stream: UnixStream, shared: &Arc<Shared>) {
    if stream.set_nonblocking(false).is_err() {
        return;
    }
    if let Err(error) = check_peer(&stream).and_then(|()| start_thread(&stream, shared)) {
        refuse(stream, &error);
        shared.log.event("WARN", "refused", json!({"error": error.message()}));
    }
}

/// Only this user's processes (and root's) may talk to the server.
fn check_peer(stream: &UnixStream) -> Result<()> {
    let peer = peer_user(stream).map_err(|e| Error::io("cannot read the user of the peer", &e))?;
    let own = rustix::process::geteuid();
    if peer == own || peer.is_root() {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::PermissionDenied,
        format!("the state server belongs to user {} and refuses user {}", own.as_raw(), peer.as_raw()),
    ))
}

fn start_thread(stream: &UnixStream, shared: &Arc<Shared>) -> Result<()> {
    let io = |e: std::io::Error| Error::io("cannot accept a connection", &e);
    let (kept, served) = (stream.try_clone().map_err(io)?, stream.try_clone().map_err(io)?);
    let id = {
        let mut connections = shared.connections.lock();
        if connections.open.len() >= shared.max_connections {
            let what = format!("the state server already has {} connections", shared.max_connections);
            return Err(Error::retryable(what)
                .with_remedy("run fewer tasks at the same time in one executor (`spark.executor.cores`)"));
        }
        connections.next += 1;
        let id = connections.next;
        connections.open.insert(id, kept);
        id
    };
    let registered = Registered { id, shared: Arc::clone(shared) };
    std::thread::Builder::new()
        .name(format!("fcl-session-{id}"))
        .stack_size(STACK)
        .spawn(move || session::serve(served, &registered.shared))
        .map(drop)
        .map_err(|e| refused("a connection's thread", &e))
}

/// A slot among the connections, released however the thread exits.
struct Registered {
    id: u64,
    shared: Arc<Shared>,
}

impl Drop for Registered {
    fn drop(&mut self) {
        let mut connections = self.shared.connections.lock();
        if connections.open.remove(&self.id).is_some() {
            connections.idle_since = Instant::now();
        }
    }
}

fn refuse(mut stream: UnixStream, error: &Error) {
    let _ = stream.set_write_timeout(Some(Duration::from_secs(1)));
    let _ = stream.write_all(&protocol::hello());
    let _ = write_frame(&mut stream, Kind::Error, 0, &protocol::encode_error(error));
}

#[cfg(test)]
#[cfg(all(target_os = "linux", not(fastchangelog_portable)))]
#[path = "server_tests.rs"]
mod tests;
