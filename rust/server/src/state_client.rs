//! The client of a state session.
//!
//! Owns: its requests and what their replies mean.
//! Does not own: the connection (`client`), the form of requests (`state_frames`).
//!
//! Invariants:
//! 1. changes are sent without waiting for the server; what a read returns has all changes sent before it;
//! 2. an error of a change is the error of a later call, of the commit at the latest.

use crate::client::{Client, ClientSettings};
use crate::protocol::Kind;
use crate::state_body::malformed;
use crate::state_frames::{
    CommitStates, OpenedStates, Pieces, StateCall, StateChange, StateFrame, StatePart, batch_of,
};
use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{
    Array, ArrayRef, BinaryArray, BooleanArray, Int64Array, ListArray, RecordBatch, StructArray, UInt8Array,
};
use arrow_schema::DataType;
use fastchangelog_format::clock::Tick;
use fastchangelog_format::model::StateId;
use fastchangelog_format::{Error, Result};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A page of entries, and where the next one begins; none at the end.
pub type Page<T> = (T, Option<Vec<u8>>);

/// A state session at the state server. Dropping it before [`StateSessionClient::commit`] has returned aborts it.
#[derive(Debug)]
pub struct StateSessionClient {
    client: Client,
    opened: OpenedStates,
}

impl StateSessionClient {
    /// Connects and opens a session with the JSON of an open request, whose operator is a processor.
    pub fn open(settings: ClientSettings, request: &str, tick: Tick<'_>) -> Result<Self> {
        let mut client = Client::connect(settings, tick)?;
        match client.call(Kind::Open, request.as_bytes(), tick)? {
            (Kind::Text, body) => {
                let opened = serde_json::from_slice(&body).map_err(malformed)?;
                Ok(Self { client, opened })
            }
            (kind, _) => Err(Error::internal(format!("the state server answered a state session with {kind:?}"))),
        }
    }

    /// The stored catalog's text.
    pub fn catalog(&self) -> &str {
        &self.opened.catalog
    }

    /// The watermark of the version that the session starts from.
    pub fn watermark(&self) -> Option<i64> {
        self.opened.watermark
    }

    /// Declares the states, and the time by which entries have ended, in milliseconds since the epoch.
    pub fn declare(&mut self, catalog: &str, now_millis: i64, tick: Tick<'_>) -> Result<()> {
        self.call(&StateCall::Declare { catalog: catalog.to_owned(), now: now_millis }, vec![], tick).map(drop)
    }

    /// Values of the first keys, null where there is none: of all unless they are large, of one at least.
    pub fn get(&mut self, state: StateId, keys: BinaryArray, tick: Tick<'_>) -> Result<BinaryArray> {
        let (_, columns) = self.call(&StateCall::Get { state: state.0 }, vec![("key", Arc::new(keys))], tick)?;
        Ok(columns[0].as_binary().clone())
    }

    /// The first entries of keys, and whether there are more.
    pub fn read_entries(
        &mut self,
        state: StateId,
        keys: BinaryArray,
        max_bytes_per_key: usize,
        tick: Tick<'_>,
    ) -> Result<(ListArray, BooleanArray)> {
        let call = StateCall::Entries { state: state.0, max_bytes: max_bytes_per_key as u64 };
        let (_, columns) = self.call(&call, vec![("key", Arc::new(keys))], tick)?;
        Ok((columns[0].as_list().clone(), columns[1].as_boolean().clone()))
    }

    /// A page of entries of one key.
    pub fn read_page(
        &mut self,
        state: StateId,
        key: &[u8],
        after: Option<&[u8]>,
        max_bytes: usize,
        tick: Tick<'_>,
    ) -> Result<Page<StructArray>> {
        let (key, after) = (key.to_vec(), after.map(<[u8]>::to_vec));
        let call = StateCall::Page { state: state.0, key, after, max_bytes: max_bytes as u64 };
        let (part, columns) = self.call(&call, vec![], tick)?;
        Ok((StructArray::from(named(&["sub", "value"], columns)?), part.cursor))
    }

    /// Values of the first entries of maps, as of [`Self::get`]. One key may stand for all map keys.
    pub fn get_entries(
        &mut self,
        state: StateId,
        keys: BinaryArray,
        subs: BinaryArray,
        tick: Tick<'_>,
    ) -> Result<BinaryArray> {
        let subs: (&str, ArrayRef) = ("sub", Arc::new(subs));
        let (key, columns) = if keys.len() == 1 && keys.is_valid(0) && subs.1.len() != 1 {
            (Some(keys.value(0).to_vec()), vec![subs])
        } else {
            (None, vec![("key", Arc::new(keys) as ArrayRef), subs])
        };
        let (_, columns) = self.call(&StateCall::GetEntries { state: state.0, key }, columns, tick)?;
        Ok(columns[0].as_binary().clone())
    }

    /// Changes, in their order. An error that they cause is the error of a later call.
    #[expect(clippy::too_many_arguments, reason = "the columns of a batch of changes")]
    pub fn write(
        &mut self,
        state: StateId,
        ops: UInt8Array,
        keys: BinaryArray,
        subs: Option<BinaryArray>,
        values: Option<BinaryArray>,
        expires_at: Option<i64>,
        tick: Tick<'_>,
    ) -> Result<()> {
        let change = StateChange::Write { state: state.0, expires_at, subs: subs.is_some(), values: values.is_some() };
        let mut columns: Vec<(&str, ArrayRef)> = vec![("op", Arc::new(ops)), ("key", Arc::new(keys))];
        columns.extend(subs.map(|subs| ("sub", Arc::new(subs) as ArrayRef)));
        columns.extend(values.map(|values| ("value", Arc::new(values) as ArrayRef)));
        self.change(&change, columns, tick)
    }

    /// Removes all entries of a state.
    pub fn clear_all(&mut self, state: StateId, tick: Tick<'_>) -> Result<()> {
        self.change(&StateChange::ClearAll { state: state.0 }, vec![], tick)
    }

    /// Timers of a time up to `until`, in the order of time and key, after the given one: a page, and whether there are more.
    pub fn due_timers(
        &mut self,
        until: i64,
        after: Option<(i64, &[u8])>,
        limit: usize,
        tick: Tick<'_>,
    ) -> Result<(Int64Array, BinaryArray, bool)> {
        let after = after.map(|(time, key)| (time, key.to_vec()));
        let call = StateCall::DueTimers { until, after, limit: limit as u64 };
        let (part, columns) = self.call(&call, vec![], tick)?;
        Ok((columns[0].as_primitive::<Int64Type>().clone(), columns[1].as_binary().clone(), part.more_pages))
    }

    /// Times of the timers of the first keys, ascending; of one at least.
    pub fn timers_of(&mut self, keys: BinaryArray, tick: Tick<'_>) -> Result<ListArray> {
        let (_, columns) = self.call(&StateCall::TimersOf, vec![("key", Arc::new(keys))], tick)?;
        Ok(columns[0].as_list().clone())
    }

    /// The earliest timer's time.
    pub fn next_timer(&mut self, tick: Tick<'_>) -> Result<Option<i64>> {
        Ok(self.call(&StateCall::NextTimer, vec![], tick)?.0.time)
    }

    /// A page of all entries of a state: keys, map keys or times, values.
    pub fn scan(
        &mut self,
        state: StateId,
        after: Option<&[u8]>,
        max_bytes: usize,
        tick: Tick<'_>,
    ) -> Result<Page<RecordBatch>> {
        let call = StateCall::Scan { state: state.0, after: after.map(<[u8]>::to_vec), max_bytes: max_bytes as u64 };
        let (part, columns) = self.call(&call, vec![], tick)?;
        Ok((named(&["key", "sub", "value"], columns)?, part.cursor))
    }

    /// Makes it durable: the new handle as text, and the session's metrics.
    pub fn commit(&mut self, watermark: Option<i64>, tick: Tick<'_>) -> Result<(String, BTreeMap<String, u64>)> {
        let body = serde_json::to_vec(&CommitStates { watermark }).map_err(Error::internal)?;
        self.client.commit(&body, tick)
    }

    /// Ends the connection: an abort unless the commit was done. Safe to call again, and in a forked child (which
    /// only lets go of its copy).
    pub fn close(&mut self) {
        self.client.close();
    }

    /// Sends a call and puts the parts of its reply together.
    fn call(
        &mut self,
        call: &StateCall,
        columns: Vec<(&str, ArrayRef)>,
        tick: Tick<'_>,
    ) -> Result<(StatePart, Vec<ArrayRef>)> {
        let rows = rows_of(columns)?;
        let request = self.client.request(StateCall::KIND, &call.encode(rows.as_ref())?, tick)?;
        let types = call.reply_columns();
        let mut parts = Vec::new();
        let last = loop {
            let (part, columns) = self.part(request, &types, tick)?;
            parts.push(columns);
            if !part.more {
                break part;
            }
        };
        Ok((last, joined(parts)?))
    }

    fn part(&mut self, request: u32, types: &[DataType], tick: Tick<'_>) -> Result<(StatePart, Vec<ArrayRef>)> {
        let part = match self.client.reply(request, tick)? {
            (Kind::StateRows, body) => StatePart::decode(body, types),
            (kind, _) => Err(Error::internal(format!("{kind:?} as the reply of a state session"))),
        };
        part.map_err(|error| self.client.break_with(error))
    }

    fn change(&mut self, change: &StateChange, columns: Vec<(&str, ArrayRef)>, tick: Tick<'_>) -> Result<()> {
        let rows = rows_of(columns)?;
        let max_message = self.client.max_message();
        let mut is_sent = false;
        for body in Pieces::new(StateChange::KIND, max_message, rows, |rows, _| change.encode(rows)) {
            // A session that has a part of the changes must not be committed.
            let body = body.map_err(|error| if is_sent { self.client.break_with(error) } else { error })?;
            self.client.send_unanswered(StateChange::KIND, &body, tick)?;
            is_sent = true;
        }
        Ok(())
    }
}

fn rows_of(columns: Vec<(&str, ArrayRef)>) -> Result<Option<RecordBatch>> {
    if columns.is_empty() { Ok(None) } else { batch_of(columns).map(Some) }
}

fn named(names: &[&'static str], columns: Vec<ArrayRef>) -> Result<RecordBatch> {
    batch_of(names.iter().copied().zip(columns).collect())
}

/// The columns of all parts, one after the other.
fn joined(mut parts: Vec<Vec<ArrayRef>>) -> Result<Vec<ArrayRef>> {
    match parts.pop() {
        Some(only) if parts.is_empty() => Ok(only),
        last => {
            parts.extend(last);
            let columns = parts.first().map_or(0, Vec::len);
            let column = |i: usize| {
                let pieces: Vec<&dyn Array> = parts.iter().map(|part| &*part[i]).collect();
                Ok(arrow_select::concat::concat(&pieces)?)
            };
            (0..columns).map(column).collect()
        }
    }
}
