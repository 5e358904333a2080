//! A state of single values by key, and scans of it.
//!
//! Owns: reads and changes of many keys at once, in Arrow; the walk through layers and live version in order of keys.
//! Does not own: what is durable (`core`), how keys and values are encoded (`state::typed`).
//!
//! A scan holds nothing between two batches, neither a lock nor memory. Its invariants: keys come in order, each at most
//! once; a key that is not changed during the scan comes exactly once, with its value.

use super::core::{Core, GROUP};
use crate::error::Result;
use crate::model::StateId;
use crate::state::codec::{EncodedKeys, hash_key};
use crate::state::keyed::KeyRef;
use crate::state::type_text;
use crate::state::typed::{KeyRange, TypedEntries};
use arrow_array::{ArrayRef, BooleanArray, RecordBatch};
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use std::ops::Bound;
use std::sync::Arc;

/// Bytes of keys and values in one batch of a scan, about.
const BATCH_BYTES: usize = 32 << 20;

/// A declared state of single values by key. Cheap to clone; any thread may use it.
#[derive(Clone)]
pub struct ValueState {
    core: Arc<Core>,
    id: StateId,
    types: Arc<TypedEntries>,
}

/// Values that were found, in flat memory.
struct Values {
    bytes: Vec<u8>,
    spans: Vec<Option<(usize, usize)>>,
}

impl Values {
    fn of(keys: usize) -> Self {
        Self { bytes: Vec::new(), spans: vec![None; keys] }
    }

    fn set(&mut self, i: usize, value: Option<&[u8]>) {
        self.spans[i] = value.map(|value| {
            self.bytes.extend_from_slice(value);
            (self.bytes.len() - value.len(), self.bytes.len())
        });
    }

    fn iter(&self) -> impl Iterator<Item = Option<&[u8]>> {
        self.spans.iter().map(|span| span.map(|(from, to)| &self.bytes[from..to]))
    }
}

impl ValueState {
    pub(super) fn declare(core: &Arc<Core>, name: &str, key: &DataType, value: &DataType) -> Result<Self> {
        let types = TypedEntries::new(key, value)?;
        let id = core.declare(name, "value", &type_text(key), &type_text(value))?;
        Ok(Self { core: Arc::clone(core), id, types: Arc::new(types) })
    }

    /// The types of keys and values.
    pub fn types(&self) -> &TypedEntries {
        &self.types
    }

    /// The values of `keys`, one row each; null where there is none.
    pub fn get(&self, keys: &ArrayRef) -> Result<ArrayRef> {
        let keys = self.types.encode_keys(keys)?;
        let values = self.look_up(&keys)?;
        self.types.decode_values(values.iter())
    }

    /// Which of `keys` have a value.
    pub fn contains(&self, keys: &ArrayRef) -> Result<BooleanArray> {
        let keys = self.types.encode_keys(keys)?;
        let values = self.look_up(&keys)?;
        Ok(values.spans.iter().map(|span| Some(span.is_some())).collect())
    }

    /// Sets values; a null deletes, and of equal keys the last one counts. All or nothing.
    pub fn put(&self, keys: &ArrayRef, values: &ArrayRef) -> Result<()> {
        let encoded = self.types.encode_keys(keys)?;
        let values = self.types.encode_values(values, encoded.len())?;
        let bytes = (0..encoded.len()).map(|i| encoded.key(i).len() + values.value(i).map_or(0, <[u8]>::len)).sum();
        self.core.change(encoded.len(), bytes, |layers| {
            for i in 0..encoded.len() {
                layers.put(self.id, encoded.key(i), values.value(i));
            }
        })
    }

    /// Removes keys; one without a value is fine. All or nothing.
    pub fn delete(&self, keys: &ArrayRef) -> Result<()> {
        let encoded = self.types.encode_keys(keys)?;
        let bytes = (0..encoded.len()).map(|i| encoded.key(i).len()).sum();
        self.core.change(encoded.len(), bytes, |layers| {
            for i in 0..encoded.len() {
                layers.put(self.id, encoded.key(i), None);
            }
        })
    }

    /// Keys and values of a range, in order of keys, `rows` at a time.
    pub fn scan(&self, range: KeyRange, rows: usize) -> Scan {
        let fields = vec![
            Field::new("key", self.types.key_type().clone(), false),
            Field::new("value", self.types.value_type().clone(), true),
        ];
        Scan {
            state: self.clone(),
            from: Bound::Included(range.from),
            to: range.to,
            rows: rows.max(1),
            schema: Arc::new(Schema::new(fields)),
            ended: false,
        }
    }

    fn look_up(&self, keys: &EncodedKeys) -> Result<Values> {
        self.core.read(|layers, shard| {
            let mut values = Values::of(keys.len());
            let mut below = Vec::new();
            let mut places = Vec::new();
            for i in 0..keys.len() {
                let key = keys.key(i);
                if let Some(value) = layers.get(self.id, key) {
                    values.set(i, value);
                } else {
                    below.push(KeyRef { hash: hash_key(key), key_group: GROUP, key });
                    places.push(i);
                }
            }
            if !below.is_empty() {
                shard.read(|keyed| {
                    keyed.get_many(self.id, &below, &mut |i, value| values.set(places[i], value)).map(drop)
                })?;
            }
            Ok(values)
        })
    }
}

/// A walk over keys in their order.
pub struct Scan {
    state: ValueState,
    from: Bound<Vec<u8>>,
    to: Option<Vec<u8>>,
    rows: usize,
    schema: SchemaRef,
    ended: bool,
}

/// Rows of one batch.
#[derive(Default)]
struct Found {
    bytes: Vec<u8>,
    /// Where each key and each value ends.
    ends: Vec<(usize, usize)>,
    complete: bool,
}

impl Found {
    fn push(&mut self, key: &[u8], value: &[u8]) {
        self.bytes.extend_from_slice(key);
        let key_end = self.bytes.len();
        self.bytes.extend_from_slice(value);
        self.ends.push((key_end, self.bytes.len()));
    }

    fn rows(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        let starts = std::iter::once(0).chain(self.ends.iter().map(|(_, end)| *end));
        starts.zip(&self.ends).map(|(start, &(key_end, end))| (&self.bytes[start..key_end], &self.bytes[key_end..end]))
    }
}

impl Scan {
    /// The schema of every batch: the columns `key` and `value`.
    pub fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    fn fetch(&self) -> Result<Found> {
        let from = match &self.from {
            Bound::Included(key) => Bound::Included(&key[..]),
            Bound::Excluded(key) => Bound::Excluded(&key[..]),
            Bound::Unbounded => Bound::Unbounded,
        };
        let (first, after) = match from {
            Bound::Included(key) => (key, None),
            Bound::Excluded(key) => (key, Some(key)),
            Bound::Unbounded => (&[][..], None),
        };
        self.state.core.read(|layers, shard| {
            shard.read_settled(|keyed| {
                let mut parts = layers.range(self.state.id, from, self.to.as_deref());
                let mut disk = keyed.cursor(self.state.id, GROUP, first, self.to.as_deref())?;
                if let (Some(after), Some((key, _))) = (after, disk.entry()?)
                    && key == after
                {
                    disk.advance();
                }
                let mut found = Found::default();
                while found.ends.len() < self.rows && found.bytes.len() < BATCH_BYTES {
                    // The smallest key, of the newest layer that has it.
                    let changed = parts.iter_mut().filter_map(|part| part.peek().map(|(key, _)| &***key)).min();
                    let stored = disk.entry()?;
                    match (changed, stored) {
                        (None, None) => {
                            found.complete = true;
                            break;
                        }
                        (changed, Some((key, value))) if changed.is_none_or(|changed| key < changed) => {
                            found.push(key, value);
                            disk.advance();
                        }
                        (Some(changed), stored) => {
                            if stored.is_some_and(|(key, _)| key == changed) {
                                disk.advance();
                            }
                            let mut newest = None;
                            for part in &mut parts {
                                if let Some((_, value)) = part.next_if(|(key, _)| ***key == *changed) {
                                    newest = newest.or(Some(value));
                                }
                            }
                            if let Some(Some(value)) = newest {
                                found.push(changed, value);
                            }
                        }
                        (None, Some(_)) => unreachable!("the arm above takes it"),
                    }
                }
                Ok(found)
            })
        })
    }

    fn batch(&mut self) -> Result<Option<RecordBatch>> {
        while !self.ended {
            let found = self.fetch()?;
            self.ended = found.complete;
            let Some((last, _)) = found.rows().last() else { continue };
            self.from = Bound::Excluded(last.to_vec());
            let keys = self.state.types.decode_keys(found.rows().map(|(key, _)| key))?;
            let values = self.state.types.decode_values(found.rows().map(|(_, value)| Some(value)))?;
            return Ok(Some(RecordBatch::try_new(Arc::clone(&self.schema), vec![keys, values])?));
        }
        Ok(None)
    }
}

impl Iterator for Scan {
    type Item = Result<RecordBatch>;

    fn next(&mut self) -> Option<Self::Item> {
        let next = self.batch().transpose();
        self.ended |= matches!(next, Some(Err(_)));
        next
    }
}
