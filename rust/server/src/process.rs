//! From a text of settings to a running state server.
//!
//! Owns: assembling the parts of a server process. Does not own: the parts, the life of the process (Python).

use crate::logfile::{LogFile, MAX_LOG_BYTES};
use crate::protocol::MAX_MESSAGE;
use crate::server::{Server, ServerSettings};
use fastchangelog_core::engine::{Engine, EngineConfig};
use fastchangelog_format::clock::SystemClock;
use fastchangelog_format::config::Options;
use fastchangelog_format::{Error, Result};
use fastchangelog_store::failpoint::Failpoints;
use fastchangelog_store::metrics::SharedMetrics;
use serde::Deserialize;
use serde_json::json;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Sessions that one server holds open at the same time, each with a thread: far more than an executor has tasks.
const MAX_SESSIONS: usize = 512;

/// Python's settings for a server process.
#[derive(Debug, Deserialize)]
struct ProcessSettings {
    socket: PathBuf,
    log: PathBuf,
    data_dir: PathBuf,
    #[serde(default)]
    options: BTreeMap<String, String>,
    #[serde(default)]
    failpoints: String,
    #[serde(default = "info")]
    log_level: String,
    /// The process's standard output and error follow the log.
    #[serde(default)]
    owns_stdio: bool,
    /// Facts that the log's first line should hold.
    #[serde(default)]
    labels: BTreeMap<String, String>,
}

fn info() -> String {
    "info".to_owned()
}

/// Starts the server that the JSON `settings` describe.
pub fn start(settings: &str) -> Result<Server> {
    let settings: ProcessSettings = serde_json::from_str(settings)
        .map_err(|e| Error::internal(format!("the server's settings: {e}")).with_source(e))?;
    let clock = SystemClock::shared();
    let log = LogFile::open(&settings.log, MAX_LOG_BYTES, settings.owns_stdio, clock.clone())
        .map_err(|e| Error::io_at("cannot open the log", &settings.log, &e))?;
    log.subscribe(&settings.log_level);
    let options = Options::from_map(&settings.options)?;
    let failpoints = Failpoints::parse(&settings.failpoints)?;
    let listen = ServerSettings {
        socket: settings.socket,
        max_connections: MAX_SESSIONS,
        max_message: MAX_MESSAGE,
        metrics_port: options.metrics_port(),
    };
    // Before any client can connect: every served client finds this line.
    log.event("INFO", "started", json!({"pid": std::process::id(), "facts": settings.labels}));
    let engine = Engine::start(EngineConfig {
        local_dir: settings.data_dir,
        options,
        clock,
        metrics: SharedMetrics::default(),
        failpoints: failpoints.clone(),
    })?;
    Server::start(&listen, engine, log, failpoints)
}
