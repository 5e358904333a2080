//! What all connections of a server share.
//!
//! Owns: the flags of its end, the open connections, the policies that queries ask for, the register of failed shards.
//! Does not own: the listener (`server`), frames (`session`), shards (the backend).

use crate::backend::Backend;
use crate::logfile::LogFile;
use fastchangelog_core::failpoint::SharedFailpoints;
use fastchangelog_core::{Error, ErrorKind, Result};
use parking_lot::Mutex;
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashMap};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

/// Name prefix of the options that Python's materialization policy reads.
const POLICY_PREFIX: &str = "materialization_";

/// What the connections share.
pub(crate) struct Shared {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) log: LogFile,
    pub(crate) max_message: u64,
    pub(crate) sessions: AtomicU64,
    pub(crate) max_connections: usize,
    pub(crate) failpoints: SharedFailpoints,
    pub(crate) stopping: AtomicBool,
    pub(crate) shutdown: AtomicBool,
    pub(crate) wake: OwnedFd,
    pub(crate) connections: Mutex<Connections>,
    pub(crate) registry: Mutex<Registry>,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("sessions", &self.sessions).finish_non_exhaustive()
    }
}

/// The open connections, and since when there has been none.
pub(crate) struct Connections {
    pub(crate) next: u64,
    pub(crate) open: HashMap<u64, UnixStream>,
    pub(crate) idle_since: Instant,
}

/// What the policy needs to know of each state, and which shards must fail their job.
#[derive(Default)]
pub(crate) struct Registry {
    policies: HashMap<String, BTreeMap<String, String>>,
    failed: HashMap<String, String>,
}

impl Shared {
    pub(crate) fn metrics(&self) -> BTreeMap<String, u64> {
        let mut metrics = self.backend.metrics();
        metrics.insert("server_sessions".to_owned(), self.sessions.load(Ordering::Relaxed));
        metrics.insert("server_connections".to_owned(), self.connections.lock().open.len() as u64);
        metrics
    }

    pub(crate) fn shards(&self) -> Vec<Value> {
        let mut shards = self.backend.shards();
        let mut registry = self.registry.lock();
        // The registry is bounded by the live shards: what belongs to none of them is forgotten.
        let live: std::collections::HashSet<String> = shards.iter().map(state_key).collect();
        registry.policies.retain(|key, _| live.contains(key));
        let live: std::collections::HashSet<String> = shards.iter().map(shard_key).collect();
        registry.failed.retain(|key, _| live.contains(key));
        for shard in &mut shards {
            let policy = registry.policies.get(&state_key(shard));
            shard["policy"] = json!(policy);
        }
        shards
    }

    /// Refuses a session of a shard that must fail its job; notes the policy that its query asks for.
    pub(crate) fn admit(&self, request: &Value) -> Result<()> {
        if self.stopping.load(Ordering::Acquire) {
            return Err(Error::retryable("the state server is ending; the next attempt starts another one"));
        }
        let mut registry = self.registry.lock();
        if let Some(message) = registry.failed.get(&shard_key(request)) {
            return Err(Error::new(ErrorKind::Store, message.clone()));
        }
        if let Value::Object(options) = &request["options"] {
            let policy = options
                .iter()
                .filter(|(name, _)| name.starts_with(POLICY_PREFIX))
                .filter_map(|(name, value)| Some((name.clone(), value.as_str()?.to_owned())))
                .collect();
            registry.policies.insert(state_key(request), policy);
        }
        Ok(())
    }

    /// See [`crate::server::Server::set_shard_failure`].
    pub(crate) fn set_shard_failure(&self, shard: &str, message: Option<&str>) {
        let key = self.backend.shards().iter().find(|s| s["id"] == shard).map(shard_key);
        let mut registry = self.registry.lock();
        match (key, message) {
            (Some(key), Some(message)) => drop(registry.failed.insert(key, message.to_owned())),
            (Some(key), None) => drop(registry.failed.remove(&key)),
            (None, _) => {}
        }
    }

    pub(crate) fn request_shutdown(&self) {
        self.shutdown.store(true, Ordering::Release);
    }

    pub(crate) fn set_failpoints(&self, text: &[u8]) -> Result<()> {
        let text = std::str::from_utf8(text).map_err(|_| Error::invalid("failpoints that are not UTF-8"))?;
        if text.is_empty() {
            self.failpoints.clear();
            return Ok(());
        }
        self.failpoints.set(text)
    }
}

fn text<'a>(value: &'a Value, name: &str) -> &'a str {
    value[name].as_str().unwrap_or_default()
}

fn state_key(value: &Value) -> String {
    format!("{}/{}", text(value, "query_id"), text(value, "name"))
}

fn shard_key(value: &Value) -> String {
    format!("{}/{}", state_key(value), value["shard"])
}
