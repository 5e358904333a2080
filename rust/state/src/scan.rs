//! Reading the keys of one state in their order.
//!
//! Owns: the walk over RocksDB between two keys, and the last key before another.
//! Does not own: entries that are only in the hot tier; the caller flushes them first (`keyed`).

use super::rocks::{after_prefix, push_key, rocks_error, split_key};
use fastchangelog_format::error::{Error, Result};
use fastchangelog_format::model::{KeyGroup, StateId};
use rocksdb::{DB, DBRawIterator, ReadOptions};
use std::sync::OnceLock;

/// Deleted keys that a cursor which will be moved passes beyond its end, before it gets an end in RocksDB.
const PASSED: u64 = 64;
/// Keys that a cursor which is moved steps over, at most, before it seeks. A seek costs as much as some twenty steps.
const STEPS: u32 = 8;

/// A place in the keys of one state and key group; see [`super::keyed::KeyedState::cursor`].
///
/// An iterator of RocksDB costs many times what a seek costs, so one serves many ranges of keys: [`Cursor::moved`]. The
/// end of a range is then known here only. RocksDB passes deleted keys beyond it; after a few it says so, and this
/// range gets an iterator of its own, which ends where the range does.
///
/// Invariant: no key from the end of the range on is before the iterator's place. So a range which begins there or
/// later can be reached by steps.
pub struct Cursor<'a> {
    db: &'a DB,
    iterator: DBRawIterator<'a>,
    state: StateId,
    group: KeyGroup,
    /// Where the keys end, in the form on disk.
    end: Vec<u8>,
    /// RocksDB does not know the end.
    is_open: bool,
    /// The last key that was seen, in the form on disk; or the first to look for.
    last: Vec<u8>,
    /// Keys to step over before a seek, the next time: fewer where the ranges lie far from each other.
    steps: u32,
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
        let (first, end) = bounds(state, group, from, to);
        let mut iterator = db.raw_iterator_opt(bounded(&end));
        iterator.seek(&first);
        Self { db, iterator, state, group, end, is_open: false, last: Vec::new(), steps: STEPS, broken }
    }

    /// The same over other keys. Costs less than a new one from the second time on, least if they follow closely on
    /// those before.
    pub fn moved(self, state: StateId, group: KeyGroup, from: &[u8], to: Option<&[u8]>) -> Self {
        let Self { db, iterator, is_open, end: passed, steps, broken, .. } = self;
        let iterator = if is_open {
            iterator
        } else {
            let mut options = ReadOptions::default();
            options.set_total_order_seek(true);
            options.set_max_skippable_internal_keys(PASSED);
            db.raw_iterator_opt(options)
        };
        let (first, end) = bounds(state, group, from, to);
        let mut moved = Self { db, iterator, state, group, end, is_open: true, last: first, steps, broken };
        if !(is_open && passed <= moved.last && moved.step()) {
            moved.iterator.seek(&moved.last);
        }
        moved.found(true);
        moved
    }

    /// Steps to the first key that is not before `last`; false if it is not near.
    fn step(&mut self) -> bool {
        for left in (0..=self.steps).rev() {
            match self.iterator.key() {
                Some(key) if key >= &self.last[..] => {
                    self.steps = STEPS;
                    return true;
                }
                Some(_) if left > 0 => self.iterator.next(),
                _ => break,
            }
        }
        self.steps /= 2;
        false
    }

    /// Key and value at this place; none at the end.
    pub fn entry(&self) -> Result<Option<(&[u8], &[u8])>> {
        match self.iterator.item() {
            Some((key, _)) if self.is_open && key >= &self.end[..] => Ok(None),
            Some((key, value)) => Ok(Some((split_key(key)?.2, value))),
            None => self.iterator.status().map(|()| None).map_err(|error| failed(self.broken, error)),
        }
    }

    /// Goes to the next key; stays at the end.
    pub fn advance(&mut self) {
        if self.iterator.key().is_some_and(|key| self.is_open && key >= &self.end[..]) {
            return;
        }
        self.iterator.next();
        self.found(false);
    }

    /// Goes to the first key after all that begin with `prefix`.
    pub fn skip(&mut self, prefix: &[u8]) {
        let mut key = Vec::new();
        push_key(&mut key, self.group, self.state, prefix);
        self.last = after_prefix(&key);
        if self.last > self.end {
            self.last.clone_from(&self.end);
        }
        self.iterator.seek(&self.last);
        self.found(true);
    }

    /// Takes note of the place after a step, which was a seek to the last key, or one beyond it.
    fn found(&mut self, is_seek: bool) {
        if !self.is_open {
            return;
        }
        if let Some(key) = self.iterator.key() {
            self.last.clear();
            self.last.extend_from_slice(key);
            return;
        }
        let Err(error) = self.iterator.status() else { return };
        if error.kind() != rocksdb::ErrorKind::Incomplete {
            return;
        }
        self.iterator = self.db.raw_iterator_opt(bounded(&self.end));
        self.is_open = false;
        self.iterator.seek(&self.last);
        if !is_seek && self.iterator.key() == Some(&self.last) {
            self.iterator.next();
        }
    }
}

/// The first key and the end of a range, in the form on disk; the end is not before the first key.
fn bounds(state: StateId, group: KeyGroup, from: &[u8], to: Option<&[u8]>) -> (Vec<u8>, Vec<u8>) {
    let mut first = Vec::new();
    push_key(&mut first, group, state, &[]);
    let mut end = match to {
        None => after_prefix(&first),
        Some(to) => [&first[..], to].concat(),
    };
    first.extend_from_slice(from);
    if end < first {
        end.clone_from(&first);
    }
    (first, end)
}

fn bounded(end: &[u8]) -> ReadOptions {
    let mut options = ReadOptions::default();
    options.set_iterate_upper_bound(end);
    options.set_total_order_seek(true);
    options
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

#[cfg(test)]
#[path = "scan_tests.rs"]
mod tests;
