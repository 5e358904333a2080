//! What the server serves.
//!
//! Owns: the seam between frames and the engine, so that the server can be tested against a fake that fails at will.
//! Does not own: any behaviour.

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use fastchangelog_core::clock::SystemClock;
use fastchangelog_core::config::Options;
use fastchangelog_core::engine::{Engine, EngineConfig, MaterializeRun, OpenRequest, ResultBatches, Session, format_handle};
use fastchangelog_core::failpoint::SharedFailpoints;
use fastchangelog_core::metrics::SharedMetrics;
use fastchangelog_core::{Error, Result};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

/// A store of shards that can be opened, one session per connection.
pub trait Backend: Send + Sync + 'static {
    /// Opens a session from the JSON of an open request.
    fn open(self: Arc<Self>, request: &str) -> Result<Box<dyn SessionBackend>>;
    /// The live shards as JSON values; each has at least `id`, `query_id`, `name` and `shard`.
    fn shards(&self) -> Vec<serde_json::Value>;
    /// Starts a materialization: the part that needs the shard. None when nothing changed since the last one.
    fn begin_materialize(&self, shard: &str) -> Result<Option<Box<dyn MaterializeBackend>>>;
    /// All counters by name.
    fn metrics(&self) -> BTreeMap<String, u64>;
    /// Closes shards that nobody opened for a while.
    fn close_idle(&self);
    /// Ends everything; later calls give errors of kind `Closed`.
    fn close(&self);
}

/// One execution of one shard's batch. Dropped before [`SessionBackend::commit`] has returned, it leaves nothing.
pub trait SessionBackend: Send {
    /// Merges one payload (an Arrow IPC stream).
    fn merge(&mut self, payload: &[u8]) -> Result<()>;
    /// No more payloads: computes the results and the change set.
    fn finish(&mut self) -> Result<Box<dyn ResultStream>>;
    /// Makes the change set durable: the handle as text, and the session's own metrics.
    fn commit(&mut self) -> Result<(String, BTreeMap<String, u64>)>;
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
    /// Lets the next handles start from the new base.
    fn complete(self: Box<Self>) -> Result<()>;
    /// Gives up; what was uploaded is removed later.
    fn abort(self: Box<Self>, message: &str);
}

/// The engine behind the seam.
pub(crate) fn engine(data_dir: PathBuf, options: Options, failpoints: SharedFailpoints) -> Result<Arc<dyn Backend>> {
    let engine = Engine::start(EngineConfig {
        local_dir: data_dir,
        options,
        clock: SystemClock::shared(),
        metrics: SharedMetrics::default(),
        failpoints,
    })?;
    Ok(Arc::new(Engines(engine)))
}

struct Engines(Arc<Engine>);

impl Backend for Engines {
    fn open(self: Arc<Self>, request: &str) -> Result<Box<dyn SessionBackend>> {
        let request: OpenRequest =
            serde_json::from_str(request).map_err(|e| Error::invalid(format!("the open request is not readable: {e}")))?;
        Ok(Box::new(self.0.open(&request)?))
    }

    fn shards(&self) -> Vec<serde_json::Value> {
        self.0.shards().iter().filter_map(|s| serde_json::to_value(s).ok()).collect()
    }

    fn begin_materialize(&self, shard: &str) -> Result<Option<Box<dyn MaterializeBackend>>> {
        let run = self.0.begin_materialize(shard)?;
        Ok(run.map(|run| Box::new(Run(Mutex::new(Some(Arc::new(run))))) as Box<dyn MaterializeBackend>))
    }

    fn metrics(&self) -> BTreeMap<String, u64> {
        self.0.metrics().snapshot().into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
    }

    fn close_idle(&self) {
        self.0.close_idle();
    }

    fn close(&self) {
        self.0.close();
    }
}

impl SessionBackend for Session {
    fn merge(&mut self, payload: &[u8]) -> Result<()> {
        Session::merge(self, payload)
    }

    fn finish(&mut self) -> Result<Box<dyn ResultStream>> {
        Ok(Box::new(Session::finish(self)?))
    }

    fn commit(&mut self) -> Result<(String, BTreeMap<String, u64>)> {
        let committed = Session::commit(self)?;
        Ok((committed.handle.as_ref().map(format_handle).unwrap_or_default(), committed.metrics))
    }
}

impl ResultStream for ResultBatches {
    fn schema(&self) -> SchemaRef {
        ResultBatches::schema(self)
    }
}

/// A run, until it was completed or aborted.
struct Run(Mutex<Option<Arc<MaterializeRun>>>);

impl Run {
    fn take(&self) -> Option<MaterializeRun> {
        self.0.lock().take().and_then(Arc::into_inner)
    }
}

impl MaterializeBackend for Run {
    fn run(&self) -> Result<()> {
        let run = self.0.lock().clone();
        run.ok_or_else(|| Error::closed("the materialization has ended"))?.run()
    }

    fn complete(&self) {
        if let Some(run) = self.take()
            && let Err(error) = run.complete()
        {
            tracing::warn!(%error, "a materialization could not be completed");
        }
    }

    fn abort(&self, message: &str) {
        if let Some(run) = self.take() {
            run.abort(message);
        }
    }
}
