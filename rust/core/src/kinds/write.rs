//! The rows of a write, and what they change.
//!
//! Owns: the check of a write before anything changes, the expiry of written entries.
//! Does not own: the meaning of an operation (the kinds), admission and memory (the hosts).

use super::hints::StateHints;
use super::sweep::{Written, any_of};
use super::{RowGroups, StateRef};
use crate::states::layers::Layers;
use crate::states::ttl;
use arrow_array::{Array, BinaryArray};
use fastchangelog_columns::codec::EncodedKeys;
use fastchangelog_columns::typed::EncodedValues;
use fastchangelog_format::check_records;
use fastchangelog_format::error::{Error, Result};
use std::ops::Range;

/// Removes everything of a key.
pub(crate) const CLEAR: u8 = 0;
/// Sets a value, a map entry or a timer; replaces a list.
pub(crate) const PUT: u8 = 1;
/// Removes a value, a map entry or a timer.
pub(crate) const DELETE: u8 = 2;
/// Adds elements to a list.
pub(crate) const APPEND: u8 = 3;

/// About the bytes of a change beside its key and value.
pub(crate) const CHANGE_BYTES: u64 = 80;

/// An upper bound on the bytes of an entry beside its key, sub-key and value: its prefix, the length of an element, its place in
/// a list.
const ENTRY_BYTES: usize = 32;

/// Most bytes before a stored value: an expiry, and a version as a varint.
const MOST_PREFIX: usize = ttl::PREFIX + 5;

/// The operations of a write.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Ops<'a> {
    /// All rows have this one.
    All(u8),
    /// The operation of each row.
    Each(&'a [u8]),
}

/// Byte strings of some rows: a column of a call, or as they were encoded.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Bytes<'a> {
    Column(&'a BinaryArray),
    Keys(&'a EncodedKeys),
    Values(&'a EncodedValues),
}

impl<'a> Bytes<'a> {
    #[inline]
    pub(crate) fn len(self) -> usize {
        match self {
            Self::Column(column) => column.len(),
            Self::Keys(keys) => keys.len(),
            Self::Values(values) => values.len(),
        }
    }

    /// The bytes of a row; none for a null.
    #[inline]
    pub(crate) fn get(self, row: usize) -> Option<&'a [u8]> {
        match self {
            Self::Column(column) => column.is_valid(row).then(|| column.value(row)),
            Self::Keys(keys) => Some(keys.key(row)),
            Self::Values(values) => values.value(row),
        }
    }

    /// True if no row is null.
    pub(crate) fn is_whole(self) -> bool {
        match self {
            Self::Column(column) => column.null_count() == 0,
            Self::Keys(_) => true,
            Self::Values(values) => values.null_count() == 0,
        }
    }

    fn bytes(self) -> u64 {
        match self {
            Self::Column(column) => bytes_of(column) as u64,
            Self::Keys(keys) => keys.bytes() as u64,
            Self::Values(values) => values.bytes() as u64,
        }
    }
}

/// The rows of a write, in order.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Changes<'a> {
    pub(crate) ops: Ops<'a>,
    pub(crate) keys: Bytes<'a>,
    /// Map keys, or times of timers: eight bytes, big endian.
    pub(crate) subs: Option<Bytes<'a>>,
    pub(crate) values: Option<Bytes<'a>>,
    /// Of lists: which values belong to each row. None: value `i` belongs to row `i`.
    pub(crate) spans: Option<&'a [Range<usize>]>,
    /// The version of the type of values, in front of each stored value; empty: values have none, or bring it.
    pub(crate) version: &'a [u8],
    /// When written entries expire; only in a state with a TTL.
    pub(crate) expires_at: Option<i64>,
}

impl<'a> Changes<'a> {
    /// One operation for all keys, without values.
    pub(crate) fn of_keys(op: u8, keys: Bytes<'a>) -> Self {
        Self { ops: Ops::All(op), keys, subs: None, values: None, spans: None, version: &[], expires_at: None }
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.keys.len()
    }

    #[inline]
    pub(crate) fn op(&self, row: usize) -> u8 {
        match self.ops {
            Ops::All(op) => op,
            Ops::Each(ops) => ops[row],
        }
    }

    /// True if a row has this operation.
    pub(crate) fn has(&self, op: u8) -> bool {
        match self.ops {
            Ops::All(own) => own == op && self.len() > 0,
            Ops::Each(ops) => ops.contains(&op),
        }
    }

    /// The key of a row. No key of a checked write is null.
    #[inline]
    pub(crate) fn key(&self, row: usize) -> &'a [u8] {
        self.keys.get(row).unwrap_or_default()
    }

    #[inline]
    pub(crate) fn sub(&self, row: usize) -> Option<&'a [u8]> {
        self.subs.and_then(|subs| subs.get(row))
    }

    /// The value of a row, where rows have one value each.
    #[inline]
    pub(crate) fn value(&self, row: usize) -> Option<&'a [u8]> {
        self.values.and_then(|values| values.get(row))
    }

    /// The values of a row.
    #[inline]
    pub(crate) fn span(&self, row: usize) -> Range<usize> {
        self.spans.map_or(row..row + 1, |spans| spans[row].clone())
    }

    /// The time of a timer.
    #[inline]
    pub(crate) fn time(&self, row: usize) -> Option<i64> {
        self.sub(row).and_then(|sub| sub.try_into().ok()).map(i64::from_be_bytes)
    }

    /// Bytes of keys, sub-keys and values, about.
    pub(crate) fn bytes(&self) -> u64 {
        [Some(self.keys), self.subs, self.values].into_iter().flatten().map(Bytes::bytes).sum()
    }

    /// The bytes before each stored value.
    pub(crate) fn prefix(&self) -> Prefix {
        let mut prefix = Prefix { bytes: [0; MOST_PREFIX], length: 0 };
        let expiry = self.expires_at.map(ttl::prefix);
        let parts = [expiry.as_ref().map_or(&[][..], |expiry| expiry), self.version];
        for byte in parts.into_iter().flatten().take(MOST_PREFIX) {
            prefix.bytes[prefix.length] = *byte;
            prefix.length += 1;
        }
        prefix
    }

    /// Refuses rows that do not fit together, the state, or into a record. `name` is the state's.
    pub(crate) fn check(&self, state: StateRef, name: &str) -> Result<()> {
        let rows = self.len();
        let spanned =
            self.spans.map_or(Some(rows), |spans| (spans.len() == rows).then(|| self.values.map_or(0, Bytes::len)));
        let columns =
            [self.subs.map(|subs| (subs.len(), Some(rows))), self.values.map(|values| (values.len(), spanned))];
        let ops = if let Ops::Each(ops) = self.ops { ops.len() } else { rows };
        if ops != rows || columns.iter().flatten().any(|(length, wanted)| Some(*length) != *wanted) {
            let lengths: Vec<usize> = std::iter::once(rows).chain(columns.iter().flatten().map(|(n, _)| *n)).collect();
            return Err(Error::invalid(format!(
                "the call has {ops} operations on the state `{name}`, but columns of {lengths:?} rows; give one row \
                 for each operation"
            )));
        }
        if !self.keys.is_whole() {
            let row = (0..rows).find(|row| self.keys.get(*row).is_none()).unwrap_or(0);
            return Err(self.refused(name, row, "it has no key"));
        }
        if let Some((row, why)) = state.kind.rules().refusal(*self) {
            return Err(self.refused(name, row, why));
        }
        let longest = |row: usize| {
            let values = self
                .values
                .into_iter()
                .flat_map(|values| self.span(row).map(move |i| values.get(i).map_or(0, <[u8]>::len)));
            self.key(row).len() + self.sub(row).map_or(0, <[u8]>::len) + values.max().unwrap_or(0) + ENTRY_BYTES
        };
        let bytes = usize::try_from(self.bytes()).unwrap_or(usize::MAX).saturating_add(ENTRY_BYTES);
        check_records(bytes, (0..rows).map(longest)).map_err(|error| error.context(format!("the state `{name}`")))?;
        match self.expires_at {
            None if state.ttl && (self.has(PUT) || self.has(APPEND)) => {
                Err(Error::invalid(format!("the state `{name}` has a TTL; give its changes a time of expiry")))
            }
            Some(_) if !state.ttl => {
                Err(Error::invalid(format!("the state `{name}` has no TTL; give its changes no time of expiry")))
            }
            _ => Ok(()),
        }
    }

    fn refused(&self, name: &str, row: usize, why: &str) -> Error {
        Error::invalid(format!("change {row} of the state `{name}`, operation {}: {why}", self.op(row)))
    }
}

fn bytes_of(array: &BinaryArray) -> usize {
    let offsets = array.value_offsets();
    let length = offsets[array.len()] - offsets[0];
    usize::try_from(length).unwrap_or(0)
}

/// The bytes before each stored value: its expiry, in a state with a TTL, and the version of its type.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Prefix {
    bytes: [u8; MOST_PREFIX],
    length: usize,
}

impl Prefix {
    #[inline]
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

type Apply<'c> = Box<dyn FnOnce(&mut Layers, &mut StateHints) + 'c>;

/// What a write changes. It is complete: applying it cannot fail.
pub(crate) struct Write<'c> {
    /// Number of changed entries, and about the bytes of their keys and values.
    pub(crate) entries: usize,
    pub(crate) bytes: usize,
    apply: Apply<'c>,
}

impl<'c> Write<'c> {
    pub(crate) fn new(entries: usize, bytes: usize, apply: impl FnOnce(&mut Layers, &mut StateHints) + 'c) -> Self {
        Self { entries, bytes, apply: Box::new(apply) }
    }

    /// Changes the entries. `changes` are the rows that it was prepared from.
    pub(crate) fn apply(
        self,
        state: StateRef,
        changes: Changes<'_>,
        groups: RowGroups<'_>,
        layers: &mut Layers,
        hints: &mut StateHints,
    ) {
        if let Some(ends) = changes.expires_at.filter(|_| state.ttl && changes.len() > 0) {
            let row = any_of(changes.len(), |row| changes.key(row));
            let entries = changes.values.map_or(changes.len(), Bytes::len) as u64;
            let one = (groups.of(row), changes.key(row));
            hints.ends(state.id).added(Written { ends, entries, bytes: changes.bytes(), one });
        }
        (self.apply)(layers, hints);
    }
}
