//! For tests: a backend of state sessions that keeps a map and fails at will.
//!
//! Owns: what each request gives, in a way that a test can tell. Does not own: any assertion of a test.

use crate::backend::{Backend, MaterializeBackend, OpenedSession, StateBackend};
use arrow_array::builder::{BinaryBuilder, ListBuilder, StructBuilder};
use arrow_array::types::Int64Type;
use arrow_array::{Array, BinaryArray, BooleanArray, Int64Array, ListArray, RecordBatch, StructArray, UInt8Array};
use arrow_schema::{DataType, Field};
use fastchangelog_format::model::StateId;
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
    /// What each committed session had: its watermark, and its entries.
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

/// One entry.
pub(crate) fn pair(sub: &[u8], value: &[u8]) -> StructArray {
    let field = |name: &str| Arc::new(Field::new(name, DataType::Binary, true));
    let column = |bytes: &[u8]| Arc::new(BinaryArray::from(vec![bytes])) as Arc<dyn Array>;
    StructArray::from(vec![(field("sub"), column(sub)), (field("value"), column(value))])
}

impl StateBackend for FakeStates {
    fn catalog(&self) -> &'static str {
        "[{}]"
    }

    fn watermark(&self) -> Option<i64> {
        Some(-7)
    }

    fn declare(&mut self, catalog: &str, now_millis: i64) -> Result<()> {
        if catalog == "other" {
            return Err(Error::schema("state `n` was of kind value"));
        }
        self.note(format!("declare {catalog} {now_millis}"));
        Ok(())
    }

    fn get(&mut self, state: StateId, keys: &BinaryArray) -> Result<BinaryArray> {
        let found = keys.iter().map(|key| self.entries.get(&(state.0, key?.to_vec())).map(Vec::as_slice));
        Ok(found.collect())
    }

    fn read_entries(
        &mut self,
        state: StateId,
        keys: &BinaryArray,
        max_bytes_per_key: usize,
    ) -> Result<(ListArray, BooleanArray)> {
        self.note(format!("read_entries {} {max_bytes_per_key}", state.0));
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
        let more = keys.iter().map(|key| key.map(|key| key.len() > 2)).collect();
        Ok((lists.finish(), more))
    }

    fn read_page(
        &mut self,
        state: StateId,
        key: &[u8],
        after: Option<&[u8]>,
        max_bytes: usize,
    ) -> Result<(StructArray, Option<Vec<u8>>)> {
        self.note(format!("read_page {} {max_bytes}", state.0));
        Ok((pair(key, after.unwrap_or(b"from the start")), after.is_none().then(|| b"\xffnext".to_vec())))
    }

    fn get_entries(&mut self, state: StateId, keys: &BinaryArray, subs: &BinaryArray) -> Result<BinaryArray> {
        self.note(format!("get_entries {} {} {}", state.0, keys.len(), subs.len()));
        Ok(subs.clone())
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
        match expires_at {
            Some(-1) => return Err(Error::invalid("state `n` has no ttl")),
            Some(-2) => panic!("a bug"),
            _ => self.note(format!("write {} {} {:?}", state.0, ops.len(), subs.map(BinaryArray::len))),
        }
        for i in 0..ops.len() {
            let key = (state.0, keys.value(i).to_vec());
            match (ops.value(i), values) {
                (PUT, Some(values)) => drop(self.entries.insert(key, values.value(i).to_vec())),
                _ => drop(self.entries.remove(&key)),
            }
        }
        Ok(())
    }

    fn clear_all(&mut self, state: StateId) -> Result<()> {
        self.entries.retain(|(of, _), _| *of != state.0);
        Ok(())
    }

    fn due_timers(
        &mut self,
        until: i64,
        after: Option<(i64, &[u8])>,
        limit: usize,
    ) -> Result<(Int64Array, BinaryArray, bool)> {
        let (time, key) = after.unwrap_or((i64::MIN, b"none"));
        let (limit, more) = (i64::try_from(limit).unwrap(), limit < 9);
        Ok((Int64Array::from(vec![until, time, limit]), BinaryArray::from(vec![key; 3]), more))
    }

    fn timers_of(&mut self, keys: &BinaryArray) -> Result<ListArray> {
        let times = keys.iter().map(|key| Some((0..key?.len()).map(|i| Some(i as i64)).collect::<Vec<_>>()));
        Ok(ListArray::from_iter_primitive::<Int64Type, _, _>(times))
    }

    fn next_timer(&mut self) -> Result<Option<i64>> {
        Ok(self.entries.keys().next().map(|(state, _)| i64::from(*state)))
    }

    fn scan(&mut self, state: StateId, after: Option<&[u8]>, _: usize) -> Result<(RecordBatch, Option<Vec<u8>>)> {
        let entries = self.entries.iter().filter(|((of, _), _)| *of == state.0);
        let (keys, values): (Vec<_>, Vec<_>) = entries
            .filter(|((_, key), _)| after.is_none_or(|after| &key[..] > after))
            .map(|((_, k), v)| (k, v))
            .unzip();
        let column = |values: Vec<&Vec<u8>>| {
            Arc::new(BinaryArray::from_iter_values(values.into_iter().take(2))) as Arc<dyn Array>
        };
        let cursor = (keys.len() > 2).then(|| keys[1].clone());
        let (keys, values) = (column(keys), column(values));
        let subs: Arc<dyn Array> = Arc::new(BinaryArray::new_null(keys.len()));
        Ok((RecordBatch::try_from_iter([("key", keys), ("sub", subs), ("value", values)])?, cursor))
    }

    fn commit(&mut self, watermark: Option<i64>) -> Result<(String, BTreeMap<String, u64>)> {
        self.committed = true;
        self.fake.committed.lock().push((watermark, std::mem::take(&mut self.entries)));
        Ok(("handle".to_owned(), BTreeMap::from([("changes".to_owned(), 3)])))
    }
}

impl Drop for FakeStates {
    fn drop(&mut self) {
        if !self.committed {
            self.fake.aborted.fetch_add(1, Ordering::SeqCst);
        }
    }
}
