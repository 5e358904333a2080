//! A state of timers: times by key, in order.
//!
//! Owns: its declaration; registration, what is due, and its removal once it was taken, in Arrow.
//! Does not own: entries and their order (`kinds::timers`), what is durable (`core`), what a timer does (the program).
//!
//! A time is in microseconds since the epoch. A timer is a key and a time: registered twice it is there once.
//!
//! Invariants:
//! 1. what is due comes in the order of time and key, a batch at a time, each batch as of its call: a timer that is registered
//!    behind the end of the batch before is in a later one, a removed one is not;
//! 2. a batch is removed when the next one is asked for, all of it at once: a checkpoint before holds its timers, one after does not;
//! 3. a batch holds a bounded part of what is due: a number of timers, and the bytes of a page beside the last one's.

use super::catalog::Declaration;
use super::lifetime::Lifetime;
use super::member::Member;
use super::scan::Walk;
use super::{EmbeddedState, GROUP};
use crate::kinds::Kind;
use crate::kinds::first_timer::{end_of_timers, entry_by_time};
use crate::kinds::timer_layout::split_by_time;
use crate::kinds::timers::{self, DueRange};
use crate::kinds::write::{Bytes, Changes, DELETE, PUT};
use crate::states::scan::Found;
use crate::states::times::ordered;
use arrow_array::builder::{ListBuilder, PrimitiveBuilder};
use arrow_array::cast::AsArray;
use arrow_array::types::TimestampMicrosecondType;
use arrow_array::{Array, ArrayRef, BinaryArray, ListArray, PrimitiveArray, RecordBatch};
use arrow_schema::{DataType, Field, Schema, SchemaRef, TimeUnit};
use fastchangelog_columns::codec::EncodedKeys;
use fastchangelog_columns::type_text;
use fastchangelog_columns::typed::{KeyRange, TypedEntries};
use fastchangelog_format::error::{Error, Result};
use std::sync::Arc;

/// The time zone of all times.
const ZONE: &str = "UTC";

/// The type of times: microseconds, UTC.
pub fn time_type() -> DataType {
    DataType::Timestamp(TimeUnit::Microsecond, Some(ZONE.into()))
}

/// A declared state of timers. Cheap to clone; any thread may use it.
#[derive(Clone)]
pub struct TimerState {
    member: Member,
    types: Arc<TypedEntries>,
    schema: SchemaRef,
}

/// Keys and times of the same number.
struct Timers {
    keys: EncodedKeys,
    times: BinaryArray,
}

impl EmbeddedState {
    /// A state of timers: times by key, in order.
    pub fn timers(&self, name: &str, key: &DataType) -> Result<TimerState> {
        let types = TypedEntries::new(key, &DataType::Binary)?;
        let fields = vec![Field::new("time", time_type(), false), Field::new("key", key.clone(), false)];
        let (key, value) = (&*type_text(key), &*type_text(&time_type()));
        let declared = Declaration { name, kind: Kind::Timers, key, map_key: None, value, ttl: false };
        let (member, ()) = Member::declare(&self.core, declared, Lifetime::UNBOUNDED, |_| Ok(()))?;
        Ok(TimerState { member, types: Arc::new(types), schema: Arc::new(Schema::new(fields)) })
    }
}

impl TimerState {
    /// The types of keys.
    pub fn types(&self) -> &TypedEntries {
        &self.types
    }

    /// Registers a timer for each key and time; one that is there stays. All or nothing.
    pub fn register(&self, keys: &ArrayRef, times: &ArrayRef) -> Result<()> {
        self.write(PUT, &self.timers(keys, times)?)
    }

    /// Removes the timer of each key and time; one that is not there is fine. All or nothing.
    pub fn delete(&self, keys: &ArrayRef, times: &ArrayRef) -> Result<()> {
        self.write(DELETE, &self.timers(keys, times)?)
    }

    /// The times of each key, in their order: a list for each, which may be empty.
    pub fn of(&self, keys: &ArrayRef) -> Result<ListArray> {
        let keys = self.types.encode_keys(keys)?;
        let item = Arc::new(Field::new("item", time_type(), true));
        let times = PrimitiveBuilder::<TimestampMicrosecondType>::new().with_timezone(ZONE);
        let mut lists = ListBuilder::with_capacity(times, keys.len()).with_field(item);
        let found = self.member.core.view(true, |view| {
            let mut spare = None;
            let place = self.member.place();
            (0..keys.len()).map(|i| timers::times_of(view, &mut spare, place, keys.key(i))).collect::<Result<Vec<_>>>()
        })?;
        for times in found {
            lists.values().append_slice(&times);
            lists.append(true);
        }
        Ok(lists.finish())
    }

    /// The first time of all timers; none if there are no timers.
    pub fn next_time(&self) -> Result<Option<i64>> {
        let (core, state) = (&self.member.core, self.member.id);
        let known = || timers::known_first(&core.hints(), state, std::iter::once(GROUP));
        let first = match core.view(false, |_| Ok(known()))? {
            (first, groups) if groups.is_empty() => first,
            // The hints are those of the moment that is read: no timer is registered meanwhile.
            _ => core.view(true, |view| {
                let (first, groups) = known();
                timers::find_first(view, state, first, &groups, &mut core.hints())
            })?,
        };
        Ok(first.as_deref().and_then(timers::time_of_timer))
    }

    /// What is due at `until` (inclusive), `rows` at a time, fewer if keys are long. See [`DueTimers`].
    pub fn due(&self, until: i64, rows: usize) -> Result<DueTimers> {
        self.member.core.check_writable()?;
        let to = timers::end_of_due(until);
        Ok(DueTimers { state: self.clone(), to, rows: rows.max(1), after: None, taken: None, ended: false })
    }

    /// Timers from a time on, before another, in the order of time and key, `rows` at a time. Nothing is removed.
    pub fn scan(
        &self,
        start: Option<i64>,
        end: Option<i64>,
        rows: usize,
    ) -> impl Iterator<Item = Result<RecordBatch>> + use<> {
        let bound = |time: i64| entry_by_time(&ordered(time));
        let from = start.map_or_else(|| entry_by_time(&[]), bound);
        let to = Some(end.map_or_else(end_of_timers, bound));
        let mut walk = Walk::new(&self.member, KeyRange { from, to });
        let (own, mut failed) = (self.clone(), false);
        std::iter::from_fn(move || {
            let step = |walk: &mut Walk| walk.step(rows.max(1))?.map(|found| own.batch(&found)).transpose();
            let next = if failed { None } else { step(&mut walk).transpose() };
            failed = matches!(next, Some(Err(_)));
            next
        })
    }

    fn timers(&self, keys: &ArrayRef, times: &ArrayRef) -> Result<Timers> {
        let keys = self.types.encode_keys(keys)?;
        let times = times.as_primitive_opt::<TimestampMicrosecondType>().ok_or_else(|| {
            Error::invalid(format!("the times have the type {}; give {}", times.data_type(), time_type()))
        })?;
        if times.len() != keys.len() {
            return Err(Error::invalid(format!(
                "the batch has {} keys and {} times; give one time for each key",
                keys.len(),
                times.len()
            )));
        }
        if times.null_count() > 0 {
            return Err(Error::invalid("a time is null").with_remedy("leave such rows out"));
        }
        let times = BinaryArray::from_iter_values(times.values().iter().map(|time| time.to_be_bytes()));
        Ok(Timers { keys, times })
    }

    fn write(&self, op: u8, Timers { keys, times }: &Timers) -> Result<()> {
        self.member.write(Changes { subs: Some(Bytes::Column(times)), ..Changes::of_keys(op, Bytes::Keys(keys)) })
    }

    /// Removes the timers of a page.
    fn remove(&self, taken: &Found) -> Result<()> {
        let timers = timers::split(taken)?;
        let keys = BinaryArray::from_iter_values(timers.iter().map(|(_, key)| key));
        let times = BinaryArray::from_iter_values(timers.iter().map(|(time, _)| time.to_be_bytes()));
        let (keys, times) = (Bytes::Column(&keys), Some(Bytes::Column(&times)));
        self.member.write(Changes { subs: times, ..Changes::of_keys(DELETE, keys) })
    }

    /// The next timers of a page.
    fn fetch(&self, range: DueRange<'_>) -> Result<Found> {
        let (core, state) = (&self.member.core, self.member.id);
        let is_due = || !timers::groups_due(&core.hints(), state, std::iter::once(GROUP), range.to).is_empty();
        if !core.view(false, |_| Ok(is_due()))? {
            return Ok(Found::default());
        }
        let page = core.view(true, |view| timers::due(view, state, &[GROUP], range, &mut core.hints()))?;
        Ok(page.timers)
    }

    fn batch(&self, found: &Found) -> Result<RecordBatch> {
        let (mut times, mut keys) = (Vec::with_capacity(found.len()), Vec::with_capacity(found.len()));
        for entry in found.keys() {
            let (time, key) = split_by_time(entry)?;
            times.push(time);
            keys.push(key);
        }
        let times: PrimitiveArray<TimestampMicrosecondType> = times.into();
        let columns: Vec<ArrayRef> =
            vec![Arc::new(times.with_timezone(ZONE)), self.types.decode_keys(keys.into_iter())?];
        Ok(RecordBatch::try_new(Arc::clone(&self.schema), columns)?)
    }
}

/// Record batches of due timers, of `time` and `key`. A batch is removed when the next one, or the end, is asked for. After an
/// error there are no more; the batch before it is due again.
pub struct DueTimers {
    state: TimerState,
    /// The end of what is due.
    to: Vec<u8>,
    rows: usize,
    /// The last one of the batch before.
    after: Option<Vec<u8>>,
    /// The batch before.
    taken: Option<Found>,
    ended: bool,
}

impl DueTimers {
    fn step(&mut self) -> Result<Option<RecordBatch>> {
        if let Some(taken) = self.taken.take() {
            self.state.remove(&taken)?;
        }
        let found = self.state.fetch(DueRange { after: self.after.as_deref(), to: &self.to, limit: self.rows })?;
        let Some(last) = found.keys().last() else { return Ok(None) };
        self.after = last.get(1..).map(<[u8]>::to_vec);
        let batch = self.state.batch(&found)?;
        self.state.member.core.shard().context().metrics.due_timers.add(found.len() as u64);
        self.taken = Some(found);
        Ok(Some(batch))
    }
}

impl Iterator for DueTimers {
    type Item = Result<RecordBatch>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let next = self.step().transpose();
        self.ended = !matches!(next, Some(Ok(_)));
        next
    }
}

#[cfg(test)]
#[path = "timers_tests.rs"]
mod tests;
