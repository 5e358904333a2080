//! The request of a task to open a session.
//!
//! Owns: the request's fields, their JSON form, and the list of credentials among them.
//! Does not own: their origin (Python), their effect (`engine`).

use crate::shard::Watermarks;
use fastchangelog_format::clock::SharedClock;
use fastchangelog_format::error::{Error, Result};
use fastchangelog_store::credentials::{Granted, SuppliedCredentials};
use fastchangelog_store::split_credentials;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// The purpose of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Operator {
    /// Aggregates by key; see [`crate::shard::Session`].
    #[default]
    Aggregate,
    /// A stateful processor; see [`crate::shard::StateSession`].
    Processor,
}

/// The request of a task to open a session.
#[derive(Clone, Serialize, Deserialize)]
pub struct OpenRequest {
    /// The state root, such as `s3://bucket/state`.
    pub root: String,
    /// Spark's query id.
    pub query_id: String,
    /// Name of the operator in the query.
    pub name: String,
    /// This shard's number.
    pub shard: u32,
    /// Number of shards.
    pub shards: u32,
    /// Spark's batch id.
    pub batch: i64,
    /// The handle that Spark returned, in base64; none for the first batch.
    pub handle: Option<String>,
    /// The query's checkpoint location; empty if the task does not know it. None for a caller that is no query: it keeps
    /// its handles elsewhere.
    #[serde(default)]
    pub checkpoint: Option<String>,
    /// The purpose of the session.
    #[serde(default)]
    pub operator: Operator,
    /// The JSON of an aggregate specification. A processor has none.
    #[serde(default)]
    pub spec: String,
    /// The watermarks of the batch, for an aggregation by event time.
    #[serde(default)]
    pub watermarks: Option<Watermarks>,
    /// True for batch DataFrames: starts from nothing, keeps nothing.
    #[serde(default)]
    pub ephemeral: bool,
    /// Options by name.
    #[serde(default)]
    pub options: BTreeMap<String, String>,
    /// Options of the object store by name, credentials included.
    #[serde(default)]
    pub storage_options: BTreeMap<String, String>,
    /// When the credentials in the storage options end, in milliseconds since the epoch; none = never.
    #[serde(default)]
    pub credentials_expire_at: Option<u64>,
}

impl fmt::Debug for OpenRequest {
    /// Without storage options: they hold credentials.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { root, query_id, name, shard, shards, batch, .. } = self;
        write!(f, "OpenRequest({root}, {query_id}/{name}, shard {shard} of {shards}, batch {batch})")
    }
}

/// Newer credentials of a state that sessions have open.
#[derive(Clone, Deserialize)]
pub struct Renewal {
    /// As in the open request.
    pub root: String,
    /// As in the open request.
    pub query_id: String,
    /// As in the open request.
    pub name: String,
    /// As in the open request.
    pub storage_options: BTreeMap<String, String>,
    /// As in the open request.
    #[serde(default)]
    pub credentials_expire_at: Option<u64>,
}

impl fmt::Debug for Renewal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Renewal({}, {}/{})", self.root, self.query_id, self.name)
    }
}

impl OpenRequest {
    /// From its form as JSON.
    pub fn parse(text: &str) -> Result<Self> {
        parse("an open request", text)
    }
}

impl Renewal {
    /// From its form as JSON.
    pub fn parse(text: &str) -> Result<Self> {
        parse("newer credentials", text)
    }
}

/// The text holds credentials: no error repeats any of it.
fn parse<T: DeserializeOwned>(what: &str, text: &str) -> Result<T> {
    serde_json::from_str(text).map_err(|error| {
        let (line, column) = (error.line(), error.column());
        Error::internal(format!("cannot read {what} ({:?} at line {line} column {column})", error.classify()))
    })
}

/// The storage options of a request: the credentials apart from the options of location and access.
#[derive(Clone)]
pub(super) struct Access {
    pub(super) storage: BTreeMap<String, String>,
    /// None if the options hold no credentials.
    pub(super) granted: Option<Granted>,
}

impl Access {
    pub(super) fn of(storage_options: &BTreeMap<String, String>, expires_at_millis: Option<u64>) -> Self {
        let (options, storage) = split_credentials(storage_options);
        Self { storage, granted: (!options.is_empty()).then_some(Granted { options, expires_at_millis }) }
    }

    /// The shared holder of these credentials and of their successors, for a folder's stores.
    pub(super) fn supplied(&self, clock: &SharedClock) -> Option<Arc<SuppliedCredentials>> {
        self.granted.clone().map(|granted| SuppliedCredentials::new(granted, Arc::clone(clock)))
    }
}
