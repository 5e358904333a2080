//! The walk over the keys of one state, in their order, through layers and live version.
//!
//! Owns: the walk, and batches of it. Does not own: what keys and values mean; the state that is walked decodes them.
//!
//! A walk holds nothing between two steps, neither a lock nor memory. Its invariants: keys are returned in order, each at most
//! once; a key that is not changed during the walk is returned exactly once, with its value.

use super::GROUP;
use super::core::Core;
use arrow_array::RecordBatch;
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use fastchangelog_columns::typed::KeyRange;
use fastchangelog_format::error::Result;
use fastchangelog_format::model::StateId;
use std::ops::Bound;
use std::sync::Arc;

/// Bytes of keys and values in one batch of a scan, about.
const BATCH_BYTES: usize = 32 << 20;

/// The entries of one step.
#[derive(Default)]
pub(super) struct Found {
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

    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    /// Keys and values in order.
    pub(super) fn rows(&self) -> impl ExactSizeIterator<Item = (&[u8], &[u8])> + Clone {
        (0..self.ends.len()).map(|i| {
            let start = if i == 0 { 0 } else { self.ends[i - 1].1 };
            let (key_end, end) = self.ends[i];
            (&self.bytes[start..key_end], &self.bytes[key_end..end])
        })
    }

    /// The keys in order.
    pub(super) fn keys(&self) -> impl ExactSizeIterator<Item = &[u8]> + Clone {
        self.rows().map(|(key, _)| key)
    }
}

/// A place in the keys of one state.
pub(super) struct Walk {
    core: Arc<Core>,
    id: StateId,
    from: Bound<Vec<u8>>,
    to: Option<Vec<u8>>,
    ended: bool,
}

impl Walk {
    pub(super) fn new(core: &Arc<Core>, id: StateId, range: KeyRange) -> Self {
        Self { core: Arc::clone(core), id, from: Bound::Included(range.from), to: range.to, ended: false }
    }

    /// The next entries, `rows` at most; none at the end.
    pub(super) fn step(&mut self, rows: usize) -> Result<Option<Found>> {
        while !self.ended {
            let found = self.fetch(rows)?;
            self.ended = found.complete;
            let Some(last) = found.keys().last() else { continue };
            self.from = Bound::Excluded(last.to_vec());
            return Ok(Some(found));
        }
        Ok(None)
    }

    fn fetch(&self, rows: usize) -> Result<Found> {
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
        self.core.read(|layers, shard| {
            shard.read_settled(|keyed| {
                let mut changes = layers.range(self.id, from, self.to.as_deref());
                let mut disk = keyed.cursor(self.id, GROUP, first, self.to.as_deref())?;
                if let (Some(after), Some((key, _))) = (after, disk.entry()?)
                    && key == after
                {
                    disk.advance();
                }
                let mut found = Found::default();
                while found.ends.len() < rows && found.bytes.len() < BATCH_BYTES {
                    let stored = disk.entry()?;
                    match (changes.key(), stored) {
                        (None, None) => {
                            found.complete = true;
                            break;
                        }
                        (changed, Some((key, value))) if changed.is_none_or(|changed| key < changed) => {
                            if let Some(prefix) = changes.cleared_with(key) {
                                disk.skip(prefix);
                                continue;
                            }
                            found.push(key, value);
                            disk.advance();
                        }
                        (Some(changed), stored) => {
                            if stored.is_some_and(|(key, _)| key == changed) {
                                disk.advance();
                            }
                            if let Some(value) = changes.take(changed) {
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
}

type Decode = Box<dyn Fn(&Found, &SchemaRef) -> Result<RecordBatch> + Send>;

/// Record batches of a walk.
pub struct Scan {
    walk: Walk,
    rows: usize,
    schema: SchemaRef,
    decode: Decode,
    ended: bool,
}

impl Scan {
    /// A scan of columns with these names and types; the first ones are of the key, the last one is the value.
    pub(super) fn new(walk: Walk, rows: usize, columns: &[(&str, &DataType)], decode: Decode) -> Self {
        let last = columns.len() - 1;
        let field =
            |(i, (name, data_type)): (usize, &(&str, &DataType))| Field::new(*name, (*data_type).clone(), i == last);
        let schema = Arc::new(Schema::new(columns.iter().enumerate().map(field).collect::<Vec<_>>()));
        Self { walk, rows: rows.max(1), schema, decode, ended: false }
    }

    /// The schema of every batch.
    pub fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    fn batch(&mut self) -> Result<Option<RecordBatch>> {
        while let Some(found) = self.walk.step(self.rows)? {
            let batch = (self.decode)(&found, &self.schema)?;
            // All keys found may have been removed by now.
            if batch.num_rows() > 0 {
                return Ok(Some(batch));
            }
        }
        Ok(None)
    }
}

impl Iterator for Scan {
    type Item = Result<RecordBatch>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let next = self.batch().transpose();
        self.ended = !matches!(next, Some(Ok(_)));
        next
    }
}
