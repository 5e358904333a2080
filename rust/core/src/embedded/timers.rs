//! A state of timers: times by key, in order.
//!
//! Owns: registration, what is due, and its removal once it was taken, in Arrow.
//! Does not own: how a timer lies in entries (`states::timer`), what is known of the first one (`states::first_timer`), what is
//! durable (`core`), what a timer does (the program).
//!
//! A time is in microseconds since the epoch. A timer is a key and a time: registered twice it is there once.
//!
//! Invariants:
//! 1. what is due comes in the order of time and key, a batch at a time, each batch as of its call: a timer that is registered
//!    behind the end of the batch before is in a later one, a removed one is not;
//! 2. a batch is removed when the next one is asked for, all of it at once: a checkpoint before holds its timers, one after does not;
//! 3. a batch holds a bounded part of what is due: a number of timers, and [`PAGE_BYTES`] beside the last one's.

use super::core::Core;
use super::lifetime::Lifetime;
use super::scan::Walk;
use crate::states::Place;
use crate::states::catalog::{Declaration, Kind};
use crate::states::first_timer::{FirstTimer, end_of_timers, entry_by_time, known, timer};
use crate::states::layers::Layers;
use crate::states::scan::{Found, MergedCursor};
use crate::states::timer::{
    BY_KEY, PAGE_BYTES, TIME, ordered, push_by_key, push_by_time, split_by_time, time_of, times_of_key,
};
use arrow_array::builder::{ListBuilder, PrimitiveBuilder};
use arrow_array::cast::AsArray;
use arrow_array::types::TimestampMicrosecondType;
use arrow_array::{Array, ArrayRef, ListArray, PrimitiveArray, RecordBatch, TimestampMicrosecondArray};
use arrow_schema::{DataType, Field, Schema, SchemaRef, TimeUnit};
use fastchangelog_columns::codec::EncodedKeys;
use fastchangelog_columns::type_text;
use fastchangelog_columns::typed::{KeyRange, TypedEntries, successor};
use fastchangelog_format::error::{Error, Result};
use std::ops::Bound;
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
    core: Arc<Core>,
    place: Place,
    types: Arc<TypedEntries>,
    schema: SchemaRef,
}

/// Keys and times of the same number.
struct Timers {
    keys: EncodedKeys,
    times: TimestampMicrosecondArray,
}

impl TimerState {
    pub(super) fn declare(core: &Arc<Core>, name: &str, key: &DataType) -> Result<Self> {
        let types = TypedEntries::new(key, &DataType::Binary)?;
        let fields = vec![Field::new("time", time_type(), false), Field::new("key", key.clone(), false)];
        let (key, value) = (&*type_text(key), &*type_text(&time_type()));
        let place = core.declare(Declaration { name, kind: Kind::Timers, key, value, ttl: false })?;
        let schema = Arc::new(Schema::new(fields));
        Ok(Self { core: Arc::clone(core), place, types: Arc::new(types), schema })
    }

    /// The types of keys.
    pub fn types(&self) -> &TypedEntries {
        &self.types
    }

    /// Registers a timer for each key and time; one that is there stays. All or nothing.
    pub fn register(&self, keys: &ArrayRef, times: &ArrayRef) -> Result<()> {
        self.write(&self.timers(keys, times)?, true)
    }

    /// Removes the timer of each key and time; one that is not there is fine. All or nothing.
    pub fn delete(&self, keys: &ArrayRef, times: &ArrayRef) -> Result<()> {
        self.write(&self.timers(keys, times)?, false)
    }

    /// The times of each key, in their order: a list for each, which may be empty.
    pub fn of(&self, keys: &ArrayRef) -> Result<ListArray> {
        let keys = self.types.encode_keys(keys)?;
        let item = Arc::new(Field::new("item", time_type(), true));
        let times = PrimitiveBuilder::<TimestampMicrosecondType>::new().with_timezone(ZONE);
        let mut lists = ListBuilder::with_capacity(times, keys.len()).with_field(item);
        let found = self.core.read(|layers, shard| {
            shard.read_settled(|keyed| {
                let (mut found, mut spare) = (Vec::with_capacity(keys.len()), None);
                for i in 0..keys.len() {
                    let prefix = [&[BY_KEY], keys.key(i)].concat();
                    let (from, to) = (Bound::Included(&prefix[..]), successor(&prefix));
                    let under = layers.over(Some(keyed));
                    let mut cursor = MergedCursor::new(&layers, under, spare.take(), self.place, from, to.as_deref())?;
                    found.push(times_of_key(&mut cursor, keys.key(i))?);
                    spare = cursor.into_spare();
                }
                Ok(found)
            })
        })?;
        for times in found {
            lists.values().append_slice(&times);
            lists.append(true);
        }
        Ok(lists.finish())
    }

    /// The first time of all timers; none if there are no timers.
    pub fn next_time(&self) -> Result<Option<i64>> {
        let first = self.core.read(|layers, shard| {
            let first = self.core.with_first_timer(self.place.0, |first| first.clone());
            let FirstTimer::NotBefore(bound) = &first else { return Ok(first) };
            shard.read_settled(|keyed| {
                let from = entry_by_time(bound);
                let (from, to) = (Bound::Included(&from[..]), end_of_timers());
                let cursor = MergedCursor::new(&layers, layers.over(Some(keyed)), None, self.place, from, Some(&to))?;
                let found = known(cursor.entry()?.map(|(entry, _)| entry), None);
                // Still under the lock of the layers: no timer was registered meanwhile.
                self.core.with_first_timer(self.place.0, |first| first.clone_from(&found));
                Ok(found)
            })
        })?;
        let FirstTimer::Is(timer) = first else { return Ok(None) };
        Ok(timer.first_chunk::<TIME>().map(|time| time_of(*time)))
    }

    /// What is due at `until` (inclusive), `rows` at a time, fewer if keys are long. See [`DueTimers`].
    pub fn due(&self, until: i64, rows: usize) -> Result<DueTimers> {
        self.core.check_writable()?;
        let to = until.checked_add(1).map_or_else(end_of_timers, |end| entry_by_time(&ordered(end)));
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
        let mut walk = Walk::new(&self.core, self.place, KeyRange { from, to }, Lifetime::UNBOUNDED);
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
            Error::invalid(format!("times of type {} came where {} is needed", times.data_type(), time_type()))
        })?;
        if times.len() != keys.len() {
            return Err(Error::invalid(format!(
                "{} keys and {} times: a batch needs one of each",
                keys.len(),
                times.len()
            )));
        }
        if times.null_count() > 0 {
            return Err(Error::invalid("a time is null").with_remedy("leave such rows out"));
        }
        Ok(Timers { keys, times: times.clone() })
    }

    fn write(&self, timers: &Timers, is_there: bool) -> Result<()> {
        let Timers { keys, times } = timers;
        let bytes = (0..keys.len()).map(|i| 2 * (1 + TIME + keys.key(i).len())).sum();
        let admission = self.core.admit_change()?;
        self.core.change(&admission, 2 * keys.len(), bytes, |layers| {
            for (i, &time) in times.values().iter().enumerate() {
                self.put(layers, keys.key(i), time, is_there);
            }
        })
    }

    fn put(&self, layers: &mut Layers, key: &[u8], time: i64, is_there: bool) {
        let mut entry = Vec::with_capacity(1 + TIME + key.len());
        let value = is_there.then_some(&[][..]);
        push_by_key(&mut entry, key, time);
        layers.put(self.place, &entry, value);
        push_by_time(&mut entry, time, key);
        layers.put(self.place, &entry, value);
        let own = timer(time, key);
        self.core
            .with_first_timer(self.place.0, |first| if is_there { first.added(&own) } else { first.removed(&own) });
    }

    /// Removes those of some entries by time.
    fn remove(&self, taken: &Found) -> Result<()> {
        let timers = taken.keys().map(split_by_time).collect::<Result<Vec<_>>>()?;
        let admission = self.core.admit_change()?;
        self.core.change(&admission, 2 * timers.len(), 2 * taken.bytes(), |layers| {
            for (time, key) in timers {
                self.put(layers, key, time, false);
            }
        })
    }

    /// Entries by time after one of them, below `to`, `rows` at most, fewer if they are long.
    fn fetch(&self, after: Option<&[u8]>, to: &[u8], rows: usize) -> Result<Found> {
        self.core.read(|layers, shard| {
            let first = self.core.with_first_timer(self.place.0, |first| first.clone());
            let Some(bound) = first.bound().map(entry_by_time).filter(|bound| bound.as_slice() < to) else {
                return Ok(Found::default());
            };
            let passes = after.filter(|after| **after >= bound[..]);
            shard.read_settled(|keyed| {
                let from = passes.map_or(Bound::Included(&bound[..]), Bound::Excluded);
                let mut cursor =
                    MergedCursor::new(&layers, layers.over(Some(keyed)), None, self.place, from, Some(to))?;
                if passes.is_none() {
                    // Still under the lock of the layers: no timer was registered meanwhile.
                    let found = known(cursor.entry()?.map(|(entry, _)| entry), Some(to));
                    self.core.with_first_timer(self.place.0, |first| *first = found);
                }
                let mut found = Found::default();
                while let Some((entry, _)) =
                    cursor.entry()?.filter(|_| found.len() < rows && found.bytes() < PAGE_BYTES)
                {
                    found.push(entry, &[]);
                    cursor.advance()?;
                }
                Ok(found)
            })
        })
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
        let found = self.state.fetch(self.after.as_deref(), &self.to, self.rows)?;
        let Some(last) = found.keys().last() else { return Ok(None) };
        self.after = Some(last.to_vec());
        let batch = self.state.batch(&found)?;
        self.state.core.shard().context().metrics.due_timers.add(found.len() as u64);
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
