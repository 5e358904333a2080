//! State shared by all connections of a server.
//!
//! Owns: the flags for shutdown, the open connections, the queries' policies, the registry of failed shards.
//! Does not own: the listener (`server`), frames (`session`), shards (the backend).

use crate::backend::Backend;
use crate::logfile::LogFile;
use crate::platform::Wake;
use fastchangelog_format::{Error, ErrorKind, Result};
use fastchangelog_store::failpoint::SharedFailpoints;
use fastchangelog_store::metrics::{SharedMetrics, render};
use parking_lot::Mutex;
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashMap};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

/// Name prefix of the options of a materialization policy.
const POLICY_PREFIX: &str = "materialization_";

/// The shared state.
pub(crate) struct Shared {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) log: LogFile,
    pub(crate) max_message: u64,
    pub(crate) sessions: AtomicU64,
    pub(crate) max_connections: usize,
    pub(crate) failpoints: SharedFailpoints,
    pub(crate) stopping: AtomicBool,
    pub(crate) shutdown: AtomicBool,
    pub(crate) wake: Wake,
    pub(crate) connections: Mutex<Connections>,
    pub(crate) registry: Mutex<PolicyRegistry>,
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

/// The policy options of each state, and the shards that must fail their job.
#[derive(Default)]
pub(crate) struct PolicyRegistry {
    policies: HashMap<String, Policy>,
    /// Counts changes of policies.
    generation: u64,
    failed: HashMap<String, ShardFailure>,
}

/// Why a shard must fail its job.
#[derive(Default)]
struct ShardFailure {
    message: String,
    /// Sessions refused for it.
    refused: u64,
}

/// The policy options of a state's newest session.
#[derive(Default)]
struct Policy {
    options: BTreeMap<String, String>,
    /// Sessions that are opening their shards, which no list shows yet.
    opening: u64,
    /// The generation at which a session began or ended its opening.
    generation: u64,
}

/// A session that is opening its shard: until this is dropped, its policy is kept.
#[must_use]
pub(crate) struct Opening<'a> {
    shared: &'a Shared,
    key: String,
}

impl Drop for Opening<'_> {
    fn drop(&mut self) {
        self.shared.registry.lock().touch(&self.key).opening -= 1;
    }
}

impl PolicyRegistry {
    fn touch(&mut self, key: &str) -> &mut Policy {
        self.generation += 1;
        let policy = self.policies.entry(key.to_owned()).or_default();
        policy.generation = self.generation;
        policy
    }
}

impl Shared {
    /// The backend's metrics, and the server's own.
    pub(crate) fn metrics(&self) -> SharedMetrics {
        let metrics = self.backend.metrics();
        metrics.server_sessions.set(self.sessions.load(Ordering::Relaxed));
        metrics.server_connections.set(self.connections.lock().open.len() as u64);
        metrics
    }

    /// The text of the endpoint.
    pub(crate) fn metrics_text(&self) -> String {
        render(&self.metrics(), &self.backend.shard_gauges())
    }

    pub(crate) fn shards(&self) -> Vec<Value> {
        let before = self.registry.lock().generation;
        let mut shards = self.backend.shards();
        let mut registry = self.registry.lock();
        // The registry is bounded by the live shards: it forgets entries of other shards. A shard that is still
        // being opened, or was when the list was made, is not in the list.
        let live: std::collections::HashSet<String> = shards.iter().map(state_key).collect();
        registry.policies.retain(|key, p| live.contains(key) || p.opening > 0 || p.generation > before);
        let live: std::collections::HashSet<String> = shards.iter().map(shard_key).collect();
        registry.failed.retain(|key, _| live.contains(key));
        for shard in &mut shards {
            let policy = registry.policies.get(&state_key(shard));
            shard["policy"] = json!(policy.map(|policy| &policy.options));
            shard["refused"] = json!(registry.failed.get(&shard_key(shard)).map_or(0, |failed| failed.refused));
        }
        shards
    }

    /// Refuses a session of a shard that must fail its job; notes the policy that its query asks for.
    pub(crate) fn admit(&self, request: &Value) -> Result<Opening<'_>> {
        if self.stopping.load(Ordering::Acquire) {
            return Err(
                Error::retryable("the state server is ending").with_remedy("the next attempt starts another one")
            );
        }
        let mut registry = self.registry.lock();
        if let Some(failed) = registry.failed.get_mut(&shard_key(request)) {
            failed.refused += 1;
            return Err(Error::new(ErrorKind::Store, failed.message.clone()));
        }
        let key = state_key(request);
        let policy = registry.touch(&key);
        policy.opening += 1;
        if let Value::Object(options) = &request["options"] {
            policy.options = options
                .iter()
                .filter(|(name, _)| name.starts_with(POLICY_PREFIX))
                .filter_map(|(name, value)| Some((name.clone(), value.as_str()?.to_owned())))
                .collect();
        }
        Ok(Opening { shared: self, key })
    }

    /// From now on opening this shard fails with `message`, so that its job fails; with None it opens again.
    pub(crate) fn set_shard_failure(&self, shard: &str, message: Option<&str>) {
        let key = self.backend.shards().iter().find(|s| s["id"] == shard).map(shard_key);
        let mut registry = self.registry.lock();
        match (key, message) {
            (Some(key), Some(message)) => message.clone_into(&mut registry.failed.entry(key).or_default().message),
            (Some(key), None) => drop(registry.failed.remove(&key)),
            (None, _) => {}
        }
    }

    pub(crate) fn request_shutdown(&self) {
        self.shutdown.store(true, Ordering::Release);
    }

    pub(crate) fn set_failpoints(&self, text: &[u8]) -> Result<()> {
        let text = std::str::from_utf8(text).map_err(|_| Error::invalid("the failpoints are not UTF-8"))?;
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
