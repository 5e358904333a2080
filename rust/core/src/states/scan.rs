//! The walk over the keys of one state and key group, in their order, through layers and what lies under them.
//!
//! Owns: the place of such a walk, and the flat memory that entries are in.
//! Does not own: what keys and values mean, how far one step goes, locks.

use super::Place;
use super::layers::{LayerRanges, Layers};
use super::under::{Spare, Under, UnderCursor};
use fastchangelog_format::error::Result;
use std::ops::Bound;

/// Entries that were found, in order.
#[derive(Debug, Default)]
pub(crate) struct Found {
    bytes: Vec<u8>,
    /// Where each key and each value ends.
    ends: Vec<(usize, usize)>,
}

impl Found {
    pub(crate) fn push(&mut self, key: &[u8], value: &[u8]) {
        self.bytes.extend_from_slice(key);
        let key_end = self.bytes.len();
        self.bytes.extend_from_slice(value);
        self.ends.push((key_end, self.bytes.len()));
    }

    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }

    /// Bytes of keys and values.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Key and value of entry `i`.
    pub(crate) fn row(&self, i: usize) -> (&[u8], &[u8]) {
        let start = if i == 0 { 0 } else { self.ends[i - 1].1 };
        let (key_end, end) = self.ends[i];
        (&self.bytes[start..key_end], &self.bytes[key_end..end])
    }

    /// Keys and values in order.
    pub(crate) fn rows(&self) -> impl ExactSizeIterator<Item = (&[u8], &[u8])> + Clone {
        (0..self.ends.len()).map(|i| self.row(i))
    }

    /// The keys in order.
    pub(crate) fn keys(&self) -> impl ExactSizeIterator<Item = &[u8]> + Clone {
        self.rows().map(|(key, _)| key)
    }
}

/// A place in the keys of one state and key group: the newest value of each key, in order.
pub(crate) struct MergedCursor<'a> {
    changes: LayerRanges<'a>,
    under: UnderCursor<'a>,
    at: At<'a>,
}

/// Where the entry of this place is.
enum At<'a> {
    End,
    Changed(&'a [u8], &'a [u8]),
    Under,
}

impl<'a> MergedCursor<'a> {
    /// The first key from `from` on (or after it), below `to`.
    pub(crate) fn new(
        layers: &'a Layers,
        under: Under<'a>,
        spare: Spare<'a>,
        place: Place,
        from: Bound<&[u8]>,
        to: Option<&[u8]>,
    ) -> Result<Self> {
        let (first, after) = match from {
            Bound::Included(key) => (key, None),
            Bound::Excluded(key) => (key, Some(key)),
            Bound::Unbounded => (&[][..], None),
        };
        let mut under = under.cursor(spare, place, first, to)?;
        if after.is_some() && under.entry()?.map(|(key, _)| key) == after {
            under.advance()?;
        }
        let mut cursor = Self { changes: layers.range(place, from, to), under, at: At::End };
        cursor.settle()?;
        Ok(cursor)
    }

    /// Its part for the next one.
    pub(crate) fn into_spare(self) -> Spare<'a> {
        self.under.into_spare()
    }

    /// Key and value at this place; none at the end.
    pub(crate) fn entry(&self) -> Result<Option<(&[u8], &[u8])>> {
        match self.at {
            At::End => Ok(None),
            At::Changed(key, value) => Ok(Some((key, value))),
            At::Under => self.under.entry(),
        }
    }

    /// Goes to the next key.
    pub(crate) fn advance(&mut self) -> Result<()> {
        if matches!(self.at, At::Under) {
            self.under.advance()?;
        }
        self.settle()
    }

    /// Passes what is deleted or older.
    fn settle(&mut self) -> Result<()> {
        loop {
            match (self.changes.key(), self.under.entry()?) {
                (None, None) => {
                    self.at = At::End;
                    return Ok(());
                }
                (changed, Some((key, _))) if changed.is_none_or(|changed| key < changed) => {
                    let Some(prefix) = self.changes.cleared_with(key) else {
                        self.at = At::Under;
                        return Ok(());
                    };
                    self.under.skip(prefix)?;
                }
                (Some(changed), stored) => {
                    if stored.is_some_and(|(key, _)| key == changed) {
                        self.under.advance()?;
                    }
                    if let Some(value) = self.changes.take(changed) {
                        self.at = At::Changed(changed, value);
                        return Ok(());
                    }
                }
                (None, Some(_)) => unreachable!("the arm above takes it"),
            }
        }
    }
}
