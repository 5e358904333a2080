//! For tests: a backend of state sessions that keeps a map and fails on demand.
//!
//! Owns: what each request gives, in a way that a test can tell. Does not own: any assertion of a test.

use crate::backend::{Backend, MaterializeBackend, OpenedSession, StateBackend};
use crate::protocol::HandleBody;
use arrow_array::builder::{BinaryBuilder, ListBuilder, StructBuilder};
use arrow_array::cast::AsArray;
use arrow_array::types::{Int64Type, UInt8Type};
use arrow_array::{Array, ArrayRef, BinaryArray, BooleanArray, Int64Array, ListArray};
use arrow_schema::{DataType, Field};
use fastchangelog_core::engine::{Reply, StateCall};
use fastchangelog_format::{Error, Result};
use fastchangelog_store::metrics::{LabelledShard, SharedMetrics};
use parking_lot::Mutex;
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The operation that writes a value; every other one removes it.
pub(crate) const PUT: u8 = 1;

#[derive(Default)]
pub(crate) struct Fake {
    /// Sessions that ended without a commit.
    pub(crate) aborted: AtomicU64,
    /// Watermark and entries of each committed session.
    pub(crate) committed: Mutex<Vec<(Option<i64>, Entries)>>,
    /// What reached the sessions, in words.
    pub(crate) calls: Mutex<Vec<String>>,
}

/// Values by state and key.
pub(crate) type Entries = BTreeMap<(u16, Vec<u8>), Vec<u8>>;

impl Backend for Fake {
    fn open(self: Arc<Self>, request: &str) -> Result<OpenedSession> {
        let request: Value = serde_json::from_str(request).unwrap();
        assert_eq!(request["operator"], "processor");
        Ok(OpenedSession::States(Box::new(FakeStates { fake: self, entries: Entries::new(), committed: false })))
    }

    fn renew(&self, _: &str) -> Result<()> {
        Ok(())
    }

    fn shards(&self) -> Vec<Value> {
        vec![]
    }

    fn begin_materialize(&self, _: &str) -> Result<Option<Box<dyn MaterializeBackend>>> {
        Ok(None)
    }

    fn metrics(&self) -> SharedMetrics {
        SharedMetrics::default()
    }

    fn shard_gauges(&self) -> Vec<LabelledShard> {
        vec![]
    }

    fn close_idle(&self) {}

    fn close(&self) {}
}

/// Value states in a map. Pages say what they were asked for.
struct FakeStates {
    fake: Arc<Fake>,
    entries: Entries,
    committed: bool,
}

impl FakeStates {
    fn note(&self, call: String) {
        self.fake.calls.lock().push(call);
    }
}

/// The columns of a page with one entry.
pub(crate) fn pair(sub: &[u8], value: &[u8]) -> Vec<ArrayRef> {
    [sub, value].map(|bytes| Arc::new(BinaryArray::from(vec![bytes])) as ArrayRef).to_vec()
}

/// For each key a list of its suffixes.
fn entries_of(keys: &BinaryArray) -> Vec<ArrayRef> {
    let fields = vec![Field::new("sub", DataType::Binary, true), Field::new("value", DataType::Binary, false)];
    let mut lists = ListBuilder::new(StructBuilder::from_fields(fields, 0));
    for key in keys.iter().flatten() {
        for i in 0..key.len() {
            let entry = lists.values();
            entry.field_builder::<BinaryBuilder>(0).unwrap().append_null();
            entry.field_builder::<BinaryBuilder>(1).unwrap().append_value(&key[i..]);
            entry.append(true);
        }
        lists.append(true);
    }
    let more: BooleanArray = keys.iter().map(|key| key.map(|key| key.len() > 2)).collect();
    vec![Arc::new(lists.finish()), Arc::new(more)]
}

impl StateBackend for FakeStates {
    fn catalog(&self) -> &'static str {
        "[{}]"
    }

    fn watermark(&self) -> Option<i64> {
        Some(-7)
    }

    fn call(&mut self, call: &StateCall, columns: &[ArrayRef]) -> Result<Reply> {
        let column = |at: usize| columns[at].as_binary::<i32>();
        let mut reply = Reply::default();
        match call {
            StateCall::Declare { catalog, .. } if catalog == "other" => {
                return Err(Error::schema("state `n` was of kind value"));
            }
            StateCall::Declare { catalog, now } => self.note(format!("declare {catalog} {now}")),
            StateCall::Get { state } => {
                let found = column(0).iter().map(|key| self.entries.get(&(*state, key?.to_vec())).map(Vec::as_slice));
                reply.columns = vec![Arc::new(found.collect::<BinaryArray>())];
            }
            StateCall::Entries { state, max_bytes } => {
                self.note(format!("entries {state} {max_bytes}"));
                reply.columns = entries_of(column(0));
            }
            StateCall::Page { state, key, after, max_bytes } => {
                self.note(format!("page {state} {max_bytes}"));
                reply.columns = pair(key, after.as_deref().unwrap_or(b"from the start"));
                reply.cursor = after.is_none().then(|| b"\xffnext".to_vec());
            }
            StateCall::GetEntries { state, key } => {
                let subs = &columns[usize::from(key.is_none())];
                let keys = if key.is_some() { 1 } else { columns[0].len() };
                self.note(format!("get_entries {state} {keys} {}", subs.len()));
                reply.columns = vec![Arc::clone(subs)];
            }
            StateCall::DueTimers { until, after, limit } => {
                let (time, key) = after.as_ref().map_or((i64::MIN, &b"none"[..]), |(time, key)| (*time, &key[..]));
                let times = Int64Array::from(vec![*until, time, i64::try_from(*limit).unwrap()]);
                reply.columns = vec![Arc::new(times), Arc::new(BinaryArray::from(vec![key; 3]))];
                reply.more_pages = *limit < 9;
            }
            StateCall::TimersOf => {
                let times =
                    column(0).iter().map(|key| Some((0..key?.len()).map(|i| Some(i as i64)).collect::<Vec<_>>()));
                reply.columns = vec![Arc::new(ListArray::from_iter_primitive::<Int64Type, _, _>(times))];
            }
            StateCall::NextTimer => reply.time = self.entries.keys().next().map(|(state, _)| i64::from(*state)),
            StateCall::Scan { state, after, .. } => {
                let entries = self.entries.iter().filter(|((of, _), _)| of == state);
                let (keys, values): (Vec<_>, Vec<_>) = entries
                    .filter(|((_, key), _)| after.as_ref().is_none_or(|after| key > after))
                    .map(|((_, k), v)| (k, v))
                    .unzip();
                let column = |values: &[&Vec<u8>]| BinaryArray::from_iter_values(values.iter().take(2));
                let subs = BinaryArray::new_null(keys.len().min(2));
                reply.columns = vec![Arc::new(column(&keys)), Arc::new(subs), Arc::new(column(&values))];
                reply.cursor = (keys.len() > 2).then(|| keys[1].clone());
            }
            StateCall::Write { expires_at: Some(-1), .. } => return Err(Error::invalid("state `n` has no ttl")),
            StateCall::Write { expires_at: Some(-2), .. } => panic!("a bug"),
            StateCall::Write { state, subs, values, .. } => {
                let ops = columns[0].as_primitive::<UInt8Type>();
                self.note(format!("write {state} {} {:?}", ops.len(), subs.then(|| columns[2].len())));
                let values = values.then(|| columns[columns.len() - 1].as_binary::<i32>());
                for i in 0..ops.len() {
                    let key = (*state, columns[1].as_binary::<i32>().value(i).to_vec());
                    match (ops.value(i), values) {
                        (PUT, Some(values)) => drop(self.entries.insert(key, values.value(i).to_vec())),
                        _ => drop(self.entries.remove(&key)),
                    }
                }
            }
            StateCall::ClearAll { state } => self.entries.retain(|(of, _), _| of != state),
        }
        Ok(reply)
    }

    fn commit(&mut self, watermark: Option<i64>) -> Result<HandleBody> {
        self.committed = true;
        self.fake.committed.lock().push((watermark, std::mem::take(&mut self.entries)));
        let metrics = BTreeMap::from([("changes".to_owned(), 3)]);
        Ok(HandleBody { handle: "handle".to_owned(), metrics, next_close: None })
    }
}

impl Drop for FakeStates {
    fn drop(&mut self) {
        if !self.committed {
            self.fake.aborted.fetch_add(1, Ordering::SeqCst);
        }
    }
}
