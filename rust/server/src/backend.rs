//! What the server serves.
//!
//! Owns: the seam between frames and the engine, so that the server can be tested against a fake that fails at will.
//! Does not own: any behaviour.

use arrow_array::{BinaryArray, BooleanArray, Int64Array, ListArray, RecordBatch, StructArray, UInt8Array};
use arrow_schema::SchemaRef;
use fastchangelog_format::Result;
use fastchangelog_format::model::StateId;
use fastchangelog_store::metrics::{LabelledShard, SharedMetrics};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A store of shards that can be opened, one session per connection.
pub trait Backend: Send + Sync + 'static {
    /// Opens a session from the JSON of an open request.
    fn open(self: Arc<Self>, request: &str) -> Result<OpenedSession>;
    /// Takes over newer credentials of a state, from the JSON of a renewal.
    fn renew(&self, renewal: &str) -> Result<()>;
    /// The live shards as JSON values; each has at least `id`, `query_id`, `name` and `shard`.
    fn shards(&self) -> Vec<serde_json::Value>;
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
    /// Makes the change set durable: the handle as text, and the session's own metrics.
    fn commit(&mut self) -> Result<(String, BTreeMap<String, u64>)>;
}

/// One execution of one shard's batch of a stateful processor. Dropped before [`StateBackend::commit`] has returned, it
/// leaves nothing. [`StateBackend::declare`] comes first.
///
/// The methods are those of `fastchangelog_core::engine::StateSession`, which says what each does.
pub trait StateBackend: Send {
    /// The stored catalog's text.
    fn catalog(&self) -> &str;
    /// The watermark of the version that the session starts from.
    fn watermark(&self) -> Option<i64>;
    /// Declares the states, and the time by which entries have ended.
    fn declare(&mut self, catalog: &str, now_millis: i64) -> Result<()>;
    /// Values of the first keys; of one at least.
    fn get(&mut self, state: StateId, keys: &BinaryArray) -> Result<BinaryArray>;
    /// The first entries of each key, and whether there are more.
    fn read_entries(
        &mut self,
        state: StateId,
        keys: &BinaryArray,
        max_bytes_per_key: usize,
    ) -> Result<(ListArray, BooleanArray)>;
    /// A page of entries of one key, and the cursor of the next one.
    fn read_page(
        &mut self,
        state: StateId,
        key: &[u8],
        after: Option<&[u8]>,
        max_bytes: usize,
    ) -> Result<(StructArray, Option<Vec<u8>>)>;
    /// Values of the first entries of maps; of one at least.
    fn get_entries(&mut self, state: StateId, keys: &BinaryArray, subs: &BinaryArray) -> Result<BinaryArray>;
    /// Changes, in their order.
    fn write(
        &mut self,
        state: StateId,
        ops: &UInt8Array,
        keys: &BinaryArray,
        subs: Option<&BinaryArray>,
        values: Option<&BinaryArray>,
        expires_at: Option<i64>,
    ) -> Result<()>;
    /// Removes all entries of a state.
    fn clear_all(&mut self, state: StateId) -> Result<()>;
    /// A page of timers that are due, and whether there are more.
    fn due_timers(
        &mut self,
        until: i64,
        after: Option<(i64, &[u8])>,
        limit: usize,
    ) -> Result<(Int64Array, BinaryArray, bool)>;
    /// Times of the timers of the first keys; of one at least.
    fn timers_of(&mut self, keys: &BinaryArray) -> Result<ListArray>;
    /// The earliest timer's time.
    fn next_timer(&mut self) -> Result<Option<i64>>;
    /// A page of all entries of a state, and the cursor of the next one.
    fn scan(
        &mut self,
        state: StateId,
        after: Option<&[u8]>,
        max_bytes: usize,
    ) -> Result<(RecordBatch, Option<Vec<u8>>)>;
    /// Makes the changes durable: the handle as text, and the session's own metrics.
    fn commit(&mut self, watermark: Option<i64>) -> Result<(String, BTreeMap<String, u64>)>;
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
    /// Gives up; what was uploaded is removed later.
    fn abort(self: Box<Self>, message: &str);
}
