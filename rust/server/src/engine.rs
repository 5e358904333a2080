//! The engine behind the server's seam.
//!
//! Owns: the translation between frames' texts and the engine's types. Does not own: any behaviour.

use crate::backend::{Backend, MaterializeBackend, OpenedSession, ResultStream, SessionBackend, StateBackend};
use arrow_array::{BinaryArray, BooleanArray, Int64Array, ListArray, RecordBatch, StructArray, UInt8Array};
use arrow_schema::SchemaRef;
use fastchangelog_core::engine::{
    Committed, Engine, MaterializeRun, OpenRequest, Operator, Renewal, ResultBatches, Session, ShardStatus, StateId,
    StateSession, format_handle,
};
use fastchangelog_format::Result;
use fastchangelog_store::metrics::{LabelledShard, SharedMetrics};
use std::collections::BTreeMap;
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

    fn commit(&mut self) -> Result<(String, BTreeMap<String, u64>)> {
        Session::commit(self).map(as_text)
    }
}

impl StateBackend for StateSession {
    fn catalog(&self) -> &str {
        StateSession::catalog(self)
    }

    fn watermark(&self) -> Option<i64> {
        StateSession::watermark(self)
    }

    fn declare(&mut self, catalog: &str, now_millis: i64) -> Result<()> {
        StateSession::declare(self, catalog, now_millis)
    }

    fn get(&mut self, state: StateId, keys: &BinaryArray) -> Result<BinaryArray> {
        StateSession::get(self, state, keys)
    }

    fn read_entries(
        &mut self,
        state: StateId,
        keys: &BinaryArray,
        max_bytes_per_key: usize,
    ) -> Result<(ListArray, BooleanArray)> {
        StateSession::read_entries(self, state, keys, max_bytes_per_key)
    }

    fn read_page(
        &mut self,
        state: StateId,
        key: &[u8],
        after: Option<&[u8]>,
        max_bytes: usize,
    ) -> Result<(StructArray, Option<Vec<u8>>)> {
        StateSession::read_page(self, state, key, after, max_bytes)
    }

    fn get_entries(&mut self, state: StateId, keys: &BinaryArray, subs: &BinaryArray) -> Result<BinaryArray> {
        StateSession::get_entries(self, state, keys, subs)
    }

    fn write(
        &mut self,
        state: StateId,
        ops: &UInt8Array,
        keys: &BinaryArray,
        subs: Option<&BinaryArray>,
        values: Option<&BinaryArray>,
        expires_at: Option<i64>,
    ) -> Result<()> {
        StateSession::write(self, state, ops, keys, subs, values, expires_at)
    }

    fn clear_all(&mut self, state: StateId) -> Result<()> {
        StateSession::clear_all(self, state)
    }

    fn due_timers(
        &mut self,
        until: i64,
        after: Option<(i64, &[u8])>,
        limit: usize,
    ) -> Result<(Int64Array, BinaryArray, bool)> {
        StateSession::due_timers(self, until, after, limit)
    }

    fn timers_of(&mut self, keys: &BinaryArray) -> Result<ListArray> {
        StateSession::timers_of(self, keys)
    }

    fn next_timer(&mut self) -> Result<Option<i64>> {
        StateSession::next_timer(self)
    }

    fn scan(
        &mut self,
        state: StateId,
        after: Option<&[u8]>,
        max_bytes: usize,
    ) -> Result<(RecordBatch, Option<Vec<u8>>)> {
        StateSession::scan(self, state, after, max_bytes)
    }

    fn commit(&mut self, watermark: Option<i64>) -> Result<(String, BTreeMap<String, u64>)> {
        StateSession::commit(self, watermark).map(as_text)
    }
}

/// An empty text for a session that keeps nothing.
fn as_text(committed: Committed) -> (String, BTreeMap<String, u64>) {
    (committed.handle.as_ref().map(format_handle).unwrap_or_default(), committed.metrics)
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
