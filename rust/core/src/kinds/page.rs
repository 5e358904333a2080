//! Pages of entries, of one key and of a whole state.
//!
//! Owns: the rows of a page, its bound, and what names its end.
//! Does not own: which entries a page has (the kinds), the calls that ask for pages (the hosts).
//!
//! The end of a page is named in bytes:
//!
//! ```text
//! a map    the map key of the last entry
//! a list   u64 be  elements so far; perhaps followed by  u64 be  chunk | u64 be  elements of that chunk before the end
//! a state  u16 be  key group, perhaps followed by
//!          0 | the last key's bytes, as they lie, or  1 | the end of a page of the list (24 bytes) | its key
//! ```
//!
//! With the number of elements alone a list is passed from its start. Expired elements do not count.

use super::list_layout::{HEAD, push_key};
use super::view::View;
use super::{RowGroups, StateRef};
use crate::states::Place;
use arrow_array::builder::{ArrayBuilder, BinaryBuilder};
use arrow_array::{Array, BinaryArray, RecordBatch, StructArray};
use arrow_schema::{DataType, Field, Fields, Schema};
use fastchangelog_format::error::{Error, Result};
use fastchangelog_format::model::KeyGroup;
use std::ops::{Bound, Range};
use std::sync::Arc;

/// Bytes of the end of a page: of a list as a number of elements, and with its place.
const COUNT: usize = size_of::<u64>();
const PLACE: usize = 3 * COUNT;
/// What the end of a page of a state names.
const AFTER: u8 = 0;
const IN_LIST: u8 = 1;

/// One key's entries in a view.
#[derive(Clone, Copy)]
pub(crate) struct OfKey<'a> {
    pub(crate) view: View<'a>,
    pub(crate) state: StateRef,
    pub(crate) group: KeyGroup,
    pub(crate) key: &'a [u8],
}

impl OfKey<'_> {
    pub(super) fn place(&self) -> Place {
        (self.state.id, self.group)
    }
}

/// Some keys in a view.
#[derive(Clone, Copy)]
pub(crate) struct Keys<'a> {
    pub(crate) view: View<'a>,
    pub(crate) state: StateRef,
    pub(crate) groups: RowGroups<'a>,
    pub(crate) bytes: &'a BinaryArray,
}

impl<'a> Keys<'a> {
    pub(super) fn len(self) -> usize {
        self.bytes.len()
    }

    pub(super) fn get(self, row: usize) -> OfKey<'a> {
        OfKey { view: self.view, state: self.state, group: self.groups.of(row), key: self.bytes.value(row) }
    }
}

/// Bounds on the bytes of first pages: of each key, and of all keys together.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PageBounds {
    pub(crate) of_key: usize,
    pub(crate) all: usize,
}

/// The rows and bytes of a page at one moment.
pub(super) type Mark = (usize, usize);

/// Entries of a page.
#[derive(Default)]
pub(crate) struct Page {
    /// `sub` of an element is its expiry.
    pub(super) with_expiry: bool,
    subs: BinaryBuilder,
    values: BinaryBuilder,
    bytes: usize,
    rows: usize,
}

impl Page {
    /// A page that says when its elements expire.
    pub(super) fn with_expiry() -> Self {
        Self { with_expiry: true, ..Self::default() }
    }

    pub(super) fn push(&mut self, sub: Option<&[u8]>, value: &[u8]) {
        self.subs.append_option(sub);
        self.values.append_value(value);
        self.bytes += sub.map_or(0, <[u8]>::len) + value.len();
        self.rows += 1;
    }

    /// Number of rows.
    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    /// Bytes of all rows.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn mark(&self) -> Mark {
        (self.rows, self.bytes)
    }

    /// True if an entry of `next` bytes belongs to the page that began at this mark: it is its first one, or the page stays
    /// within `most` bytes. A key's page is one row of a message, so it must not be longer than its entries are.
    pub(super) fn has_room(&self, since: Mark, most: usize, next: usize) -> bool {
        let bytes = self.bytes - since.1;
        self.rows == since.0 || (bytes < most && bytes + next <= most)
    }

    /// Hands all rows on.
    pub(super) fn drain(mut self, mut row: impl FnMut(Option<&[u8]>, &[u8])) {
        let (subs, values) = (self.subs.finish(), self.values.finish());
        (0..values.len()).for_each(|i| row(subs.is_valid(i).then(|| subs.value(i)), values.value(i)));
    }

    /// The rows of keys in the order of the keys, and how many each has.
    pub(crate) fn finish_in_order(mut self, keys: impl Iterator<Item = Range<usize>>) -> (StructArray, Vec<usize>) {
        let (mut next, mut in_order, mut lengths) = (0, true, Vec::new());
        let keys: Vec<Range<usize>> = keys.collect();
        for rows in &keys {
            in_order &= rows.is_empty() || rows.start == next;
            next = if rows.is_empty() { next } else { rows.end };
            lengths.push(rows.len());
        }
        if in_order {
            return (self.finish(), lengths);
        }
        let (subs, values) = (self.subs.finish(), self.values.finish());
        let mut sorted = Self::default();
        for i in keys.into_iter().flatten() {
            sorted.push(subs.is_valid(i).then(|| subs.value(i)), values.value(i));
        }
        (sorted.finish(), lengths)
    }

    pub(crate) fn finish(mut self) -> StructArray {
        StructArray::new(entry_fields(), vec![Arc::new(self.subs.finish()), Arc::new(self.values.finish())], None)
    }
}

/// The fields of an entry: `sub`, which is the map key, and `value`. All pages have the same type, so that they can be joined.
pub(crate) fn entry_fields() -> Fields {
    Fields::from(["sub", "value"].map(|name| Field::new(name, DataType::Binary, true)).to_vec())
}

/// A place in a list.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct ListPlace {
    /// Elements before it that have not expired.
    pub(super) count: u64,
    /// How many of these must still be passed, from the start.
    pub(super) to_pass: u64,
    pub(super) chunk: u64,
    /// Elements of the chunk before the place.
    pub(super) passed: u64,
}

impl ListPlace {
    pub(super) fn read(bytes: &[u8]) -> Result<Self> {
        let numbers: Vec<u64> = bytes.as_chunks::<COUNT>().0.iter().map(|bytes| u64::from_be_bytes(*bytes)).collect();
        match numbers[..] {
            [count] if bytes.len() == COUNT => Ok(Self { count, to_pass: count, ..Self::default() }),
            [count, chunk, passed] if bytes.len() == PLACE => Ok(Self { count, to_pass: 0, chunk, passed }),
            _ => Err(Error::invalid(format!(
                "a cursor of {} bytes does not name the end of a page of a list",
                bytes.len()
            ))),
        }
    }

    pub(super) fn write(self) -> Vec<u8> {
        [self.count, self.chunk, self.passed].map(u64::to_be_bytes).concat()
    }
}

/// A place in all of a state.
pub(crate) struct StatePlace {
    pub(crate) group: KeyGroup,
    pub(crate) at: At,
}

/// A place in one key group.
pub(crate) enum At {
    Start,
    /// After the entry with this key.
    After(Vec<u8>),
    /// In the list of this key.
    InList(Vec<u8>, ListPlace),
}

impl StatePlace {
    pub(crate) fn read(bytes: &[u8]) -> Result<Self> {
        let bad =
            || Error::invalid(format!("a cursor of {} bytes does not name the end of a page of a state", bytes.len()));
        let (group, rest) = bytes.split_first_chunk::<2>().ok_or_else(bad)?;
        let at = match rest.split_first() {
            None => At::Start,
            Some((&AFTER, key)) => At::After(key.to_vec()),
            Some((&IN_LIST, rest)) if rest.len() >= PLACE => {
                let (list, key) = rest.split_at(PLACE);
                At::InList(key.to_vec(), ListPlace::read(list)?)
            }
            Some(_) => return Err(bad()),
        };
        Ok(Self { group: KeyGroup(u16::from_be_bytes(*group)), at })
    }

    pub(crate) fn write(self) -> Vec<u8> {
        let mut bytes = self.group.0.to_be_bytes().to_vec();
        match self.at {
            At::Start => {}
            At::After(key) => {
                bytes.push(AFTER);
                bytes.extend_from_slice(&key);
            }
            At::InList(key, list) => {
                bytes.push(IN_LIST);
                bytes.extend_from_slice(&list.write());
                bytes.extend_from_slice(&key);
            }
        }
        bytes
    }
}

impl From<Bound<Vec<u8>>> for At {
    fn from(bound: Bound<Vec<u8>>) -> Self {
        match bound {
            Bound::Excluded(key) => Self::After(key),
            Bound::Included(_) | Bound::Unbounded => Self::Start,
        }
    }
}

/// Rows of a page of a state.
#[derive(Default)]
pub(crate) struct Rows {
    keys: BinaryBuilder,
    subs: BinaryBuilder,
    values: BinaryBuilder,
    bytes: usize,
    max_bytes: usize,
}

impl Rows {
    /// Rows of about so many bytes.
    pub(crate) fn new(max_bytes: usize) -> Self {
        Self { max_bytes, ..Self::default() }
    }

    pub(super) fn push(&mut self, key: &[u8], sub: Option<&[u8]>, value: Option<&[u8]>) {
        self.keys.append_value(key);
        self.subs.append_option(sub);
        self.values.append_option(value);
        self.bytes += key.len() + sub.map_or(0, <[u8]>::len) + value.map_or(0, <[u8]>::len);
    }

    /// Adds a stored value, unless it has expired.
    pub(super) fn push_alive(&mut self, state: StateRef, key: &[u8], stored: &[u8]) -> Result<()> {
        if let Some((expiry, value)) = state.alive_until(stored)? {
            self.push(key, expiry.as_ref().map(|expiry| &expiry[..]), Some(value));
        }
        Ok(())
    }

    pub(crate) fn is_full(&self) -> bool {
        self.keys.len() > 0 && self.bytes >= self.max_bytes
    }

    /// Bytes that still fit.
    pub(super) fn room(&self) -> usize {
        self.max_bytes.saturating_sub(self.bytes)
    }

    /// Adds rows of one key group; the end of the page if there is no room for all.
    pub(crate) fn add(&mut self, view: View<'_>, state: StateRef, group: KeyGroup, at: At) -> Result<Option<At>> {
        let (rules, first) = (state.kind.rules(), state.kind.rules().walked());
        let from = match at {
            At::Start => Bound::Included(first.into_iter().collect()),
            At::After(key) => Bound::Excluded(key),
            At::InList(key, list) => {
                if let Some(list) = rules.add_rest(self, OfKey { view, state, group, key: &key }, list)? {
                    return Ok(Some(At::InList(key, list)));
                }
                let mut head = Vec::new();
                push_key(&mut head, (HEAD, &key, None));
                Bound::Excluded(head)
            }
        };
        let to = first.map(|first| [first + 1]);
        let to = to.as_ref().map(<[u8; 1]>::as_slice);
        let mut cursor = view.cursor((state.id, group), from.as_ref().map(Vec::as_slice), to)?;
        let mut last = None;
        while let Some((entry, value)) = cursor.entry()? {
            if self.is_full() {
                return Ok(Some(last.map_or_else(|| from.into(), At::After)));
            }
            if let Some(at) = rules.add_rows(self, OfKey { view, state, group, key: &[] }, entry, value)? {
                return Ok(Some(at));
            }
            last = Some(entry.to_vec());
            cursor.advance()?;
        }
        Ok(None)
    }

    pub(crate) fn finish(mut self) -> Result<RecordBatch> {
        let field = |name: &str, nullable| Field::new(name, DataType::Binary, nullable);
        let schema = Schema::new(vec![field("key", false), field("sub", true), field("value", true)]);
        let columns = [self.keys.finish(), self.subs.finish(), self.values.finish()];
        Ok(RecordBatch::try_new(Arc::new(schema), columns.into_iter().map(|c| Arc::new(c) as _).collect())?)
    }
}
