//! The door to a state session: a call, its columns and its reply.
//!
//! Owns: the list of calls, the columns of each call and of its reply.
//! Does not own: the work behind a call (its module), its form on a socket (`fastchangelog-server`).
//!
//! A new call needs a variant and a row in each table of this file, the method that does the work, and a signature in the
//! Python extension. Server, client and connection forward every variant.

use super::StateSession;
use crate::kinds::page::entry_fields;
use arrow_array::cast::AsArray;
use arrow_array::types::UInt8Type;
use arrow_array::{Array, ArrayRef, BinaryArray, RecordBatch, UInt8Array};
use arrow_schema::{DataType, Field, Schema};
use fastchangelog_format::error::{Error, Result};
use fastchangelog_format::model::StateId;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// A column's name and type. Code goes by the place; the name is for a reader by hand.
pub type Column = (&'static str, DataType);

const KEY: Column = ("key", DataType::Binary);
const SUB: Column = ("sub", DataType::Binary);
const VALUE: Column = ("value", DataType::Binary);

/// A call of a state session. It names a state by its number in the catalog, and times in milliseconds since the epoch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StateCall {
    /// Declares the states. The first call of a session, and sent once.
    Declare {
        /// The catalog's text.
        catalog: String,
        /// Entries that expire by this time are absent from all later calls.
        now: i64,
    },
    /// Looks up values by key. The reply covers the first keys, and at least one.
    Get {
        /// The state.
        state: u16,
    },
    /// Reads the first entries of each key. The reply says for each key whether it has more.
    Entries {
        /// The state.
        state: u16,
        /// Bound on the bytes of each list.
        max_bytes: u64,
    },
    /// Reads one page of the entries of one key.
    Page {
        /// The state.
        state: u16,
        /// The key.
        key: Vec<u8>,
        /// The cursor of the previous page.
        after: Option<Vec<u8>>,
        /// Bound on the bytes of the page.
        max_bytes: u64,
    },
    /// Looks up map entries. The reply covers the first entries, and at least one.
    GetEntries {
        /// The state.
        state: u16,
        /// The key of every entry; without it, each row brings its own.
        key: Option<Vec<u8>>,
    },
    /// Reads one page of due timers, ordered by time and key.
    DueTimers {
        /// The latest time.
        until: i64,
        /// The last timer of the previous page.
        after: Option<(i64, Vec<u8>)>,
        /// Bound on the number of timers.
        limit: u64,
    },
    /// Reads the times of each key's timers. The reply covers the first keys, and at least one.
    TimersOf,
    /// Reads the time of the earliest timer.
    NextTimer,
    /// Reads one page of all entries of a state, in order.
    Scan {
        /// The state.
        state: u16,
        /// The cursor of the previous page.
        after: Option<Vec<u8>>,
        /// Bound on the bytes of the page.
        max_bytes: u64,
    },
    /// Applies changes in their order. No reply.
    Write {
        /// The state.
        state: u16,
        /// When the written entries expire.
        expires_at: Option<i64>,
        /// A column of map keys or timers' times is present.
        subs: bool,
        /// A column of values is present.
        values: bool,
    },
    /// Removes all entries of a state. No reply.
    ClearAll {
        /// The state.
        state: u16,
    },
}

/// The reply to a call.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Reply {
    /// The columns that [`StateCall::reply_columns`] lists.
    pub columns: Vec<ArrayRef>,
    /// Where the next page begins; none after the last page.
    pub cursor: Option<Vec<u8>>,
    /// More timers are due after the last one in the columns.
    pub more_pages: bool,
    /// The time of the earliest timer.
    pub time: Option<i64>,
}

impl Reply {
    fn of(columns: impl IntoIterator<Item = ArrayRef>) -> Self {
        Self { columns: columns.into_iter().collect(), ..Self::default() }
    }

    fn page(columns: &[ArrayRef], cursor: Option<Vec<u8>>) -> Self {
        Self { columns: columns.to_vec(), cursor, ..Self::default() }
    }
}

impl StateCall {
    /// A look-up of map entries, with its columns. One key may stand for all map keys.
    pub fn get_entries(state: StateId, keys: BinaryArray, subs: BinaryArray) -> (Self, Vec<ArrayRef>) {
        let state = state.0;
        if keys.len() == 1 && keys.is_valid(0) && subs.len() != 1 {
            (Self::GetEntries { state, key: Some(keys.value(0).to_vec()) }, vec![Arc::new(subs)])
        } else {
            (Self::GetEntries { state, key: None }, vec![Arc::new(keys), Arc::new(subs)])
        }
    }

    /// A write, with its columns.
    pub fn write(
        state: StateId,
        ops: UInt8Array,
        keys: BinaryArray,
        subs: Option<BinaryArray>,
        values: Option<BinaryArray>,
        expires_at: Option<i64>,
    ) -> (Self, Vec<ArrayRef>) {
        let call = Self::Write { state: state.0, expires_at, subs: subs.is_some(), values: values.is_some() };
        let mut columns: Vec<ArrayRef> = vec![Arc::new(ops), Arc::new(keys)];
        columns.extend([subs, values].into_iter().flatten().map(|column| Arc::new(column) as ArrayRef));
        (call, columns)
    }

    /// The name in metrics and errors.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Declare { .. } => "declare",
            Self::Get { .. } => "get",
            Self::Entries { .. } => "entries",
            Self::Page { .. } => "page",
            Self::GetEntries { .. } => "get_entries",
            Self::DueTimers { .. } => "due_timers",
            Self::TimersOf => "timers_of",
            Self::NextTimer => "next_timer",
            Self::Scan { .. } => "scan",
            Self::Write { .. } => "write",
            Self::ClearAll { .. } => "clear_all",
        }
    }

    /// True for a call without a reply. A client sends it and goes on; its error is the error of a later call.
    pub fn is_change(&self) -> bool {
        matches!(self, Self::Write { .. } | Self::ClearAll { .. })
    }

    /// The columns of the call.
    pub fn columns(&self) -> Vec<Column> {
        match self {
            Self::Get { .. } | Self::Entries { .. } | Self::TimersOf | Self::GetEntries { key: None, .. } => {
                let sub = matches!(self, Self::GetEntries { .. }).then_some(SUB);
                std::iter::once(KEY).chain(sub).collect()
            }
            Self::GetEntries { key: Some(_), .. } => vec![SUB],
            Self::Write { subs, values, .. } => {
                let optional = [subs.then_some(SUB), values.then_some(VALUE)];
                [("op", DataType::UInt8), KEY].into_iter().chain(optional.into_iter().flatten()).collect()
            }
            Self::Declare { .. }
            | Self::Page { .. }
            | Self::DueTimers { .. }
            | Self::NextTimer
            | Self::Scan { .. }
            | Self::ClearAll { .. } => vec![],
        }
    }

    /// The columns of the reply.
    pub fn reply_columns(&self) -> Vec<Column> {
        match self {
            Self::Get { .. } | Self::GetEntries { .. } => vec![VALUE],
            Self::Entries { .. } => {
                vec![("entries", list_of(DataType::Struct(entry_fields()))), ("more", DataType::Boolean)]
            }
            Self::Page { .. } => vec![SUB, VALUE],
            Self::DueTimers { .. } => vec![("time", DataType::Int64), KEY],
            Self::TimersOf => vec![("times", list_of(DataType::Int64))],
            Self::Scan { .. } => vec![KEY, SUB, VALUE],
            Self::Declare { .. } | Self::NextTimer | Self::Write { .. } | Self::ClearAll { .. } => vec![],
        }
    }

    /// The columns of the call as a batch; none without columns. Fails unless they are those that the call lists.
    pub fn batch(&self, columns: Vec<ArrayRef>) -> Result<Option<RecordBatch>> {
        self.check(&columns)?;
        named(&self.columns(), columns)
    }

    /// The columns of the reply as a batch; none without columns.
    pub fn reply_batch(&self, columns: Vec<ArrayRef>) -> Result<Option<RecordBatch>> {
        named(&self.reply_columns(), columns)
    }

    fn check(&self, columns: &[ArrayRef]) -> Result<()> {
        let expected = self.columns();
        if columns.iter().map(Array::data_type).eq(expected.iter().map(|(_, data_type)| data_type)) {
            return Ok(());
        }
        let found: Vec<String> = columns.iter().map(|column| column.data_type().to_string()).collect();
        Err(Error::internal(format!("the call `{}` came with the columns ({})", self.name(), found.join(", "))))
    }
}

impl StateSession {
    /// Does a call. Fails with an internal error unless `columns` are those that the call lists.
    pub fn call(&mut self, call: &StateCall, columns: &[ArrayRef]) -> Result<Reply> {
        call.check(columns)?;
        Ok(match call {
            StateCall::Declare { catalog, now } => {
                self.declare(catalog, *now)?;
                Reply::default()
            }
            StateCall::Get { state } => Reply::of([array(self.get(StateId(*state), binary(columns, 0))?)]),
            StateCall::Entries { state, max_bytes } => {
                let (lists, more) = self.read_entries(StateId(*state), binary(columns, 0), bound(*max_bytes))?;
                Reply::of([array(lists), array(more)])
            }
            StateCall::Page { state, key, after, max_bytes } => {
                let (page, cursor) = self.read_page(StateId(*state), key, after.as_deref(), bound(*max_bytes))?;
                Reply::page(page.columns(), cursor)
            }
            StateCall::GetEntries { state, key } => {
                let values = match key {
                    Some(key) => {
                        let key = BinaryArray::from_iter_values([key]);
                        self.get_entries(StateId(*state), &key, binary(columns, 0))?
                    }
                    None => self.get_entries(StateId(*state), binary(columns, 0), binary(columns, 1))?,
                };
                Reply::of([array(values)])
            }
            StateCall::DueTimers { until, after, limit } => {
                let after = after.as_ref().map(|(time, key)| (*time, &key[..]));
                let (times, keys, more_pages) = self.due_timers(*until, after, bound(*limit))?;
                Reply { more_pages, ..Reply::of([array(times), array(keys)]) }
            }
            StateCall::TimersOf => Reply::of([array(self.timers_of(binary(columns, 0))?)]),
            StateCall::NextTimer => Reply { time: self.next_timer()?, ..Reply::default() },
            StateCall::Scan { state, after, max_bytes } => {
                let (page, cursor) = self.scan(StateId(*state), after.as_deref(), bound(*max_bytes))?;
                Reply::page(page.columns(), cursor)
            }
            StateCall::Write { state, expires_at, subs, values } => {
                let (ops, keys) = (columns[0].as_primitive::<UInt8Type>(), binary(columns, 1));
                let subs_at = subs.then_some(2);
                let values_at = values.then_some(if *subs { 3 } else { 2 });
                let [subs, values] = [subs_at, values_at].map(|at| at.map(|at| binary(columns, at)));
                self.write(StateId(*state), ops, keys, subs, values, *expires_at)?;
                Reply::default()
            }
            StateCall::ClearAll { state } => {
                self.clear_all(StateId(*state))?;
                Reply::default()
            }
        })
    }
}

fn array(array: impl Array + 'static) -> ArrayRef {
    Arc::new(array)
}

fn binary(columns: &[ArrayRef], at: usize) -> &BinaryArray {
    columns[at].as_binary()
}

/// A bound beyond the address space is none.
fn bound(n: u64) -> usize {
    usize::try_from(n).unwrap_or(usize::MAX)
}

fn named(names: &[Column], columns: Vec<ArrayRef>) -> Result<Option<RecordBatch>> {
    if columns.is_empty() {
        return Ok(None);
    }
    let named = names.iter().zip(&columns);
    let fields: Vec<Field> =
        named.map(|((name, _), column)| Field::new(*name, column.data_type().clone(), true)).collect();
    Ok(Some(RecordBatch::try_new(Arc::new(Schema::new(fields)), columns)?))
}

fn list_of(element: DataType) -> DataType {
    DataType::List(Arc::new(Field::new("element", element, true)))
}

#[cfg(test)]
#[path = "call_tests.rs"]
mod tests;
