//! The walk over the keys of one state, in their order, through layers and live version.
//!
//! Owns: the walk, and batches of it. Does not own: what keys and values mean; the state that is walked decodes them.
//!
//! A walk holds nothing between two steps, neither a lock nor memory. Its invariants: keys are returned in order, each at most
//! once; a key that is not changed during the walk is returned exactly once, with its value.

use super::core::Core;
use super::lifetime::Lifetime;
use crate::states::Place;
use crate::states::scan::{Found, MergedCursor};
use arrow_array::RecordBatch;
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use fastchangelog_columns::typed::KeyRange;
use fastchangelog_format::error::Result;
use std::ops::Bound;
use std::sync::Arc;

/// Bytes of keys and values in one batch of a scan, about.
const BATCH_BYTES: usize = 32 << 20;
/// Entries that have ended and are passed at once: a batch may then have fewer rows.
const PASSED: usize = 65_536;

/// A place in the keys of one state.
pub(super) struct Walk {
    core: Arc<Core>,
    place: Place,
    from: Bound<Vec<u8>>,
    to: Option<Vec<u8>>,
    lifetime: Lifetime,
    ended: bool,
}

impl Walk {
    /// Of entries with this time to live; those that have ended are passed.
    pub(super) fn new(core: &Arc<Core>, place: Place, range: KeyRange, lifetime: Lifetime) -> Self {
        Self { core: Arc::clone(core), place, from: Bound::Included(range.from), to: range.to, lifetime, ended: false }
    }

    /// The next entries, `rows` at most; none at the end.
    pub(super) fn step(&mut self, rows: usize) -> Result<Option<Found>> {
        while !self.ended {
            let (found, last) = self.fetch(rows)?;
            match last {
                Some(last) => self.from = Bound::Excluded(last),
                None => self.ended = true,
            }
            if found.len() > 0 {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// Entries, and the key of the last one that was passed; none if there are no more.
    fn fetch(&self, rows: usize) -> Result<(Found, Option<Vec<u8>>)> {
        let from = self.from.as_ref().map(Vec::as_slice);
        let at = self.lifetime.now(&self.core)?;
        self.core.read(|layers, shard| {
            shard.read_settled(|keyed| {
                let (under, to) = (layers.over(Some(keyed)), self.to.as_deref());
                let mut cursor = MergedCursor::new(&layers, under, None, self.place, from, to)?;
                let (mut found, mut ended, mut last_ended) = (Found::default(), 0, None);
                while found.len() < rows && found.bytes() < BATCH_BYTES && ended < PASSED {
                    let Some((key, stored)) = cursor.entry()? else { return Ok((found, None)) };
                    if let Some(value) = at.alive(stored)? {
                        found.push(key, value);
                    } else {
                        ended += 1;
                        last_ended = (ended == PASSED).then(|| key.to_vec());
                    }
                    cursor.advance()?;
                }
                let last = last_ended.or_else(|| found.keys().last().map(<[u8]>::to_vec));
                Ok((found, last))
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
