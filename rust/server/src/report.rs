//! A session's line in the log.
//!
//! Owns: the sums of a session's steps by name, its labels. Does not own: writing the line (`session`).

use serde_json::Value;
use std::collections::BTreeMap;
use std::time::Instant;

/// The numbers of one session.
#[derive(Default)]
pub(crate) struct Report {
    pub(crate) opened: Option<Instant>,
    pub(crate) labels: Value,
    pub(crate) steps: BTreeMap<String, u64>,
    pub(crate) outcome: Option<&'static str>,
}

impl Report {
    /// Adds to the number of this name.
    pub(crate) fn add(&mut self, name: &str, value: u64) {
        *self.steps.entry(name.to_owned()).or_default() += value;
    }

    /// Adds the microseconds that `work` takes.
    pub(crate) fn timed<T>(&mut self, name: &str, work: impl FnOnce() -> T) -> T {
        let start = Instant::now();
        let value = work();
        self.add(name, micros(start));
        value
    }
}

/// Microseconds since `start`.
pub(crate) fn micros(start: Instant) -> u64 {
    u64::try_from(start.elapsed().as_micros()).unwrap_or(u64::MAX)
}

/// The parts of an open request that are not secret.
pub(crate) fn labels(request: &Value) -> Value {
    let mut labels = serde_json::Map::new();
    for name in ["query_id", "name", "shard", "shards", "batch", "ephemeral", "operator"] {
        if let Some(value) = request.get(name) {
            labels.insert(name.to_owned(), value.clone());
        }
    }
    Value::Object(labels)
}
