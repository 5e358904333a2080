//! The engine behind the server's seam.
//!
//! Owns: the translation between frames' texts and the engine's types. Does not own: any behaviour.

use crate::backend::{Backend, MaterializeBackend, OpenedSession, ResultStream, SessionBackend, StateBackend};
use crate::protocol::HandleBody;
use arrow_array::ArrayRef;
use arrow_schema::SchemaRef;
use fastchangelog_core::engine::{
    Committed, Engine, MaterializeRun, OpenRequest, Operator, Renewal, Reply, ResultBatches, Session, ShardStatus,
    StateCall, StateSession, SweptState, format_handle,
};
use fastchangelog_format::Result;
use fastchangelog_store::metrics::{LabelledShard, SharedMetrics};
use std::sync::Arc;

impl Backend for Engine {
    fn open(self: Arc<Self>, request: &str) -> Result<OpenedSession> {
        let request = OpenRequest::parse(request)?;
        Ok(match request.operator {
            Operator::Aggregate => OpenedSession::Aggregate(Box::new(Engine::open(&self, &request)?)),
            Operator::Processor => OpenedSession::States(Box::new(Engine::open_states(&self, &request)?)),
        })
    }

    fn renew(&self, renewal: &str) -> Result<()> {
        Engine::renew(self, Renewal::parse(renewal)?);
        Ok(())
    }

    fn shards(&self) -> Vec<serde_json::Value> {
        Engine::shards(self).into_iter().filter_map(|status| serde_json::to_value(status).ok()).collect()
    }

    fn swept_states(&self) -> Vec<SweptState> {
        Engine::swept_states(self)
    }

    fn begin_materialize(&self, shard: &str) -> Result<Option<Box<dyn MaterializeBackend>>> {
        Ok(Engine::begin_materialize(self, shard)?.map(|run| Box::new(run) as Box<dyn MaterializeBackend>))
    }

    fn metrics(&self) -> SharedMetrics {
        Arc::clone(Engine::metrics(self))
    }

    fn shard_gauges(&self) -> Vec<LabelledShard> {
        Engine::shards(self).iter().map(ShardStatus::labelled).collect()
    }

    fn close_idle(&self) {
        Engine::close_idle(self);
    }

    fn close(&self) {
        Engine::close(self);
    }
}

impl SessionBackend for Session {
    fn merge(&mut self, payload: &[u8]) -> Result<()> {
        Session::merge(self, payload)
    }

    fn finish(&mut self) -> Result<Box<dyn ResultStream>> {
        Ok(Box::new(Session::finish(self)?))
    }

    fn commits_after_results(&self) -> bool {
        Session::is_made_by_results(self)
    }

    fn commit(&mut self) -> Result<HandleBody> {
        Session::commit(self).map(as_body)
    }
}

impl StateBackend for StateSession {
    fn catalog(&self) -> &str {
        StateSession::catalog(self)
    }

    fn watermark(&self) -> Option<i64> {
        StateSession::watermark(self)
    }

    fn call(&mut self, call: &StateCall, columns: &[ArrayRef]) -> Result<Reply> {
        StateSession::call(self, call, columns)
    }

    fn commit(&mut self, watermark: Option<i64>) -> Result<HandleBody> {
        StateSession::commit(self, watermark).map(as_body)
    }
}

/// An empty text for a session that keeps nothing.
fn as_body(committed: Committed) -> HandleBody {
    let Committed { handle, metrics, next_close } = committed;
    HandleBody { handle: handle.as_ref().map(format_handle).unwrap_or_default(), metrics, next_close }
}

impl ResultStream for ResultBatches {
    fn schema(&self) -> SchemaRef {
        ResultBatches::schema(self)
    }
}

impl MaterializeBackend for MaterializeRun {
    fn run(&self) -> Result<()> {
        MaterializeRun::run(self)
    }

    fn complete(self: Box<Self>) -> Result<()> {
        MaterializeRun::complete(*self)
    }

    fn abort(self: Box<Self>, message: &str) {
        MaterializeRun::abort(*self, message);
    }
}
