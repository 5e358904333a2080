//! The interface between server and engine.
//!
//! Owns: the traits between frames and the engine, so that tests run the server against a fake that fails on demand.
//! Does not own: any behaviour.

use crate::protocol::HandleBody;
use arrow_array::{ArrayRef, RecordBatch};
use arrow_schema::SchemaRef;
use fastchangelog_core::engine::{Reply, StateCall, SweptState};
use fastchangelog_format::Result;
use fastchangelog_store::metrics::{LabelledShard, SharedMetrics};
use std::sync::Arc;

/// A store of shards that can be opened, one session per connection.
pub trait Backend: Send + Sync + 'static {
    /// Opens a session from the JSON of an open request.
    fn open(self: Arc<Self>, request: &str) -> Result<OpenedSession>;
    /// Takes over newer credentials of a state, from the JSON of a renewal.
    fn renew(&self, renewal: &str) -> Result<()>;
    /// The live shards as JSON values; each has at least `id`, `query_id`, `name` and `shard`.
    fn shards(&self) -> Vec<serde_json::Value>;
    /// The states that this server sweeps.
    fn swept_states(&self) -> Vec<SweptState> {
        Vec::new()
    }
    /// Starts a materialization: the part that needs the shard. None when nothing changed since the last one.
    fn begin_materialize(&self, shard: &str) -> Result<Option<Box<dyn MaterializeBackend>>>;
    /// The metrics, with gauges up to date.
    fn metrics(&self) -> SharedMetrics;
    /// The gauges of each live shard.
    fn shard_gauges(&self) -> Vec<LabelledShard>;
    /// Closes shards that were not opened for a while.
    fn close_idle(&self);
    /// Ends everything; later calls give errors of kind `Closed`.
    fn close(&self);
}

/// A session of the kind of operator that the request names.
pub enum OpenedSession {
    /// Payloads in, results out.
    Aggregate(Box<dyn SessionBackend>),
    /// Reads and writes of states.
    States(Box<dyn StateBackend>),
}

/// One execution of one shard's batch. Dropped before [`SessionBackend::commit`] has returned, it leaves nothing.
pub trait SessionBackend: Send {
    /// Merges one payload (an Arrow IPC stream).
    fn merge(&mut self, payload: &[u8]) -> Result<()>;
    /// No more payloads: computes the results and the change set.
    fn finish(&mut self) -> Result<Box<dyn ResultStream>>;
    /// After `finish`: true if a commit is to begin after the results were read, because reading them makes the change
    /// set. Otherwise it may begin at once.
    fn commits_after_results(&self) -> bool {
        false
    }
    /// Makes the change set durable.
    fn commit(&mut self) -> Result<HandleBody>;
}

/// One execution of one shard's batch of a stateful processor. A drop before [`StateBackend::commit`] has returned
/// leaves nothing.
pub trait StateBackend: Send {
    /// The stored catalog's text.
    fn catalog(&self) -> &str;
    /// The watermark of the version that the session starts from.
    fn watermark(&self) -> Option<i64>;
    /// Does a call, with the columns that it lists. The first call is the declaration.
    fn call(&mut self, call: &StateCall, columns: &[ArrayRef]) -> Result<Reply>;
    /// Makes the changes durable.
    fn commit(&mut self, watermark: Option<i64>) -> Result<HandleBody>;
}

/// Result batches of one schema. It does not borrow from its session: results travel while the commit runs.
pub trait ResultStream: Iterator<Item = Result<RecordBatch>> + Send {
    /// The schema of every batch.
    fn schema(&self) -> SchemaRef;
}

/// A materialization that has begun: `run` off the shard's thread, then exactly one of `complete` and `abort`.
pub trait MaterializeBackend: Send + Sync {
    /// Uploads; blocks until done.
    fn run(&self) -> Result<()>;
    /// Lets the next handles start from the new snapshot.
    fn complete(self: Box<Self>) -> Result<()>;
    /// Gives up; uploaded files are removed later.
    fn abort(self: Box<Self>, message: &str);
}
