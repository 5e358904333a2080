//! Reading the keys of one state in their order.
//!
//! Owns: the walk over RocksDB between two keys, and the last key before another. Does not own: what is only in the hot tier; the caller has it flushed
//! first (`keyed`).

use super::rocks::{after_prefix, push_key, rocks_error, split_key};
use fastchangelog_format::error::{Error, Result};
use fastchangelog_format::model::{KeyGroup, StateId};
use rocksdb::{DB, DBRawIterator, ReadOptions};
use std::sync::OnceLock;

/// A place in the keys of one state and key group; see [`super::keyed::KeyedState::cursor`].
pub struct Cursor<'a> {
    iterator: DBRawIterator<'a>,
    state: StateId,
    group: KeyGroup,
    /// The first failure of the state.
    broken: &'a OnceLock<Error>,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(
        (db, broken): (&'a DB, &'a OnceLock<Error>),
        state: StateId,
        group: KeyGroup,
        from: &[u8],
        to: Option<&[u8]>,
    ) -> Self {
        let mut prefix = Vec::new();
        push_key(&mut prefix, group, state, &[]);
        let end = match to {
            None => after_prefix(&prefix),
            Some(to) => {
                let mut end = prefix.clone();
                end.extend_from_slice(to);
                end
            }
        };
        let mut options = ReadOptions::default();
        options.set_iterate_upper_bound(end);
        options.set_total_order_seek(true);
        let mut iterator = db.raw_iterator_opt(options);
        prefix.extend_from_slice(from);
        iterator.seek(&prefix);
        Self { iterator, state, group, broken }
    }

    /// Key and value at this place; none at the end.
    pub fn entry(&self) -> Result<Option<(&[u8], &[u8])>> {
        match self.iterator.item() {
            Some((key, value)) => Ok(Some((split_key(key)?.2, value))),
            None => self.iterator.status().map(|()| None).map_err(|error| failed(self.broken, error)),
        }
    }

    /// Goes to the next key.
    pub fn advance(&mut self) {
        self.iterator.next();
    }

    /// Goes to the first key after all that begin with `prefix`.
    pub fn skip(&mut self, prefix: &[u8]) {
        let mut key = Vec::new();
        push_key(&mut key, self.group, self.state, prefix);
        self.iterator.seek(after_prefix(&key));
    }
}

/// The last key of `state` in `group` that is not after `key`.
pub(super) fn last_at_or_below(
    (db, broken): (&DB, &OnceLock<Error>),
    state: StateId,
    group: KeyGroup,
    key: &[u8],
) -> Result<Option<Vec<u8>>> {
    let mut place = Vec::new();
    push_key(&mut place, group, state, &[]);
    let mut options = ReadOptions::default();
    options.set_iterate_lower_bound(place.clone());
    options.set_total_order_seek(true);
    let mut iterator = db.raw_iterator_opt(options);
    place.extend_from_slice(key);
    iterator.seek_for_prev(&place);
    match iterator.key() {
        Some(found) => Ok(Some(split_key(found)?.2.to_vec())),
        None => iterator.status().map(|()| None).map_err(|error| failed(broken, error)),
    }
}

/// Takes note of a failure of the local disk.
fn failed(broken: &OnceLock<Error>, error: rocksdb::Error) -> Error {
    let error = rocks_error(error);
    let _ = broken.set(error.clone());
    error
}
