//! The walk over the keys of one state, in their order, through layers and live version.
//!
//! Owns: the walk, and batches of it. Does not own: what keys and values mean; the state that is walked decodes them.
//!
//! A walk holds nothing between two steps, neither a lock nor memory. Its invariants: keys are returned in order, each at most
//! once; a key that is not changed during the walk is returned exactly once, with its value.

use super::member::Member;
use crate::kinds::StateRef;
use crate::states::scan::Found;
use arrow_array::RecordBatch;
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use fastchangelog_columns::typed::KeyRange;
use fastchangelog_format::error::Result;
use std::ops::Bound;
use std::sync::Arc;

/// Bytes of keys and values in one batch of a scan, about.
const BATCH_BYTES: usize = 32 << 20;
/// Expired entries that are passed at once: a batch may then have fewer rows.
const PASSED: usize = 65_536;

/// A walk at some place.
pub(super) struct Walk {
    member: Member,
    /// Values say when they expire.
    expires: bool,
    from: Bound<Vec<u8>>,
    to: Option<Vec<u8>>,
    ended: bool,
}

impl Walk {
    /// The entries of a range that have not expired.
    pub(super) fn new(member: &Member, range: KeyRange) -> Self {
        let expires = member.lifetime.is_bounded();
        let from = Bound::Included(range.from);
        Self { member: member.clone(), expires, from, to: range.to, ended: false }
    }

    /// All entries of a range, which are no values.
    pub(super) fn of_all(member: &Member, range: KeyRange) -> Self {
        Self { expires: false, ..Self::new(member, range) }
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
        let now = self.member.now()?;
        let state = StateRef { ttl: self.expires, ..now };
        self.member.core.view(true, |view| {
            let mut cursor = view.cursor(self.member.place(), from, self.to.as_deref())?;
            let (mut found, mut expired, mut last_expired) = (Found::default(), 0, None);
            while found.len() < rows && found.bytes() < BATCH_BYTES && expired < PASSED {
                let Some((key, stored)) = cursor.entry()? else { return Ok((found, None)) };
                if let Some(value) = state.alive(stored)? {
                    found.push(key, value);
                } else {
                    expired += 1;
                    last_expired = (expired == PASSED).then(|| key.to_vec());
                }
                cursor.advance()?;
            }
            let last = last_expired.or_else(|| found.keys().last().map(<[u8]>::to_vec));
            Ok((found, last))
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
