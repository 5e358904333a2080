//! Tests only: sessions of a processor with a state of each kind, and plain maps beside them.

use super::StateSession;
use crate::shard::Shard;
use crate::shard::testing::World;
use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{Array, ArrayRef, BinaryArray, ListArray, UInt8Array};
use fastchangelog_format::error::Result;
use fastchangelog_format::model::{BatchId, Op, ShardHandle, StateId};
use fastchangelog_log::read::read_segments;
use futures::TryStreamExt;
use rand::RngExt;
use rand::rngs::StdRng;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

pub(super) const CLEAR: u8 = 0;
pub(super) const PUT: u8 = 1;
pub(super) const DELETE: u8 = 2;
pub(super) const APPEND: u8 = 3;

/// A state of each kind, with and without ends.
pub(super) const VALUE: StateId = StateId(0);
pub(super) const LIST: StateId = StateId(1);
pub(super) const MAP: StateId = StateId(2);
pub(super) const TIMERS: StateId = StateId(3);
pub(super) const ENDING_VALUE: StateId = StateId(4);
pub(super) const ENDING_LIST: StateId = StateId(5);
pub(super) const ENDING_MAP: StateId = StateId(6);

pub(super) const CATALOG: &str = include_str!("../../../tests/states.json");

pub(super) type Bytes = Vec<u8>;

/// A change: what is done, to which key, map key or time, and value.
pub(super) type Row = (u8, Bytes, Option<Bytes>, Option<Bytes>);

/// One call.
#[derive(Debug, Clone)]
pub(super) struct Write {
    pub(super) state: StateId,
    pub(super) rows: Vec<Row>,
    pub(super) ends: Option<i64>,
}

/// What a plain program would hold: values with their ends.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Model {
    pub(super) values: BTreeMap<StateId, BTreeMap<Bytes, (Bytes, i64)>>,
    pub(super) lists: BTreeMap<StateId, BTreeMap<Bytes, Vec<(Bytes, i64)>>>,
    pub(super) maps: BTreeMap<StateId, BTreeMap<Bytes, BTreeMap<Bytes, (Bytes, i64)>>>,
    pub(super) timers: BTreeSet<(i64, Bytes)>,
}

/// A key. None begins with another one.
pub(super) fn key(name: &str) -> Bytes {
    [name.as_bytes(), &[0]].concat()
}

pub(super) fn time_of(sub: &[u8]) -> i64 {
    i64::from_be_bytes(sub.try_into().unwrap())
}

impl Model {
    pub(super) fn apply(&mut self, write: &Write) {
        let (state, ends) = (write.state, write.ends.unwrap_or(i64::MAX));
        for (op, key, sub, value) in &write.rows {
            let entry = || (value.clone().unwrap(), ends);
            match (state, *op) {
                (VALUE | ENDING_VALUE, PUT) => {
                    self.values.entry(state).or_default().insert(key.clone(), entry());
                }
                (VALUE | ENDING_VALUE, _) => drop(self.values.entry(state).or_default().remove(key)),
                (LIST | ENDING_LIST, APPEND) => {
                    self.lists.entry(state).or_default().entry(key.clone()).or_default().push(entry());
                }
                (LIST | ENDING_LIST, _) => drop(self.lists.entry(state).or_default().remove(key)),
                (MAP | ENDING_MAP, CLEAR) => drop(self.maps.entry(state).or_default().remove(key)),
                (MAP | ENDING_MAP, op) => {
                    let map = self.maps.entry(state).or_default().entry(key.clone()).or_default();
                    let sub = sub.clone().unwrap();
                    if op == PUT { drop(map.insert(sub, entry())) } else { drop(map.remove(&sub)) }
                }
                (TIMERS, CLEAR) => self.timers.retain(|(_, own)| own != key),
                (TIMERS, op) => {
                    let timer = (time_of(sub.as_ref().unwrap()), key.clone());
                    let _ = if op == PUT { self.timers.insert(timer) } else { self.timers.remove(&timer) };
                }
                _ => unreachable!("a state of the catalog"),
            }
        }
    }

    fn value(&self, state: StateId, key: &[u8], now: i64) -> Option<Bytes> {
        self.values.get(&state)?.get(key).filter(|(_, ends)| *ends > now).map(|(value, _)| value.clone())
    }

    fn list(&self, state: StateId, key: &[u8], now: i64) -> Vec<(Option<Bytes>, Bytes)> {
        let list = self.lists.get(&state).and_then(|lists| lists.get(key));
        let alive = list.into_iter().flatten().filter(|(_, ends)| *ends > now);
        alive.map(|(value, _)| (None, value.clone())).collect()
    }

    fn map(&self, state: StateId, key: &[u8], now: i64) -> Vec<(Option<Bytes>, Bytes)> {
        let map = self.maps.get(&state).and_then(|maps| maps.get(key));
        let alive = map.into_iter().flatten().filter(|(_, (_, ends))| *ends > now);
        alive.map(|(sub, (value, _))| (Some(sub.clone()), value.clone())).collect()
    }

    /// All rows of a state, in order.
    /// Of what ends, the second part is when.
    fn rows(&self, state: StateId, now: i64) -> Vec<(Bytes, Option<Bytes>, Option<Bytes>)> {
        let row = |key: Bytes, (value, ends): &(Bytes, i64)| {
            let sub = [ENDING_VALUE, ENDING_LIST, ENDING_MAP].contains(&state).then(|| ends.to_be_bytes().to_vec());
            (*ends > now).then(|| (key, sub, Some(value.clone())))
        };
        let mut rows = Vec::new();
        match state {
            VALUE | ENDING_VALUE => {
                for (key, entry) in self.values.get(&state).into_iter().flatten() {
                    rows.extend(row(key.clone(), entry));
                }
            }
            LIST | ENDING_LIST => {
                for (key, list) in self.lists.get(&state).into_iter().flatten() {
                    rows.extend(list.iter().filter_map(|entry| row(key.clone(), entry)));
                }
            }
            MAP | ENDING_MAP => {
                for (key, map) in self.maps.get(&state).into_iter().flatten() {
                    rows.extend(map.iter().filter_map(|(sub, entry)| row([&key[..], &sub[..]].concat(), entry)));
                }
            }
            _ => {
                let timers = self.timers.iter();
                rows.extend(timers.map(|(time, key)| (key.clone(), Some(time.to_be_bytes().to_vec()), None)));
            }
        }
        rows
    }
}

fn optional(rows: impl Iterator<Item = Option<Bytes>>) -> BinaryArray {
    rows.collect()
}

pub(super) fn binary<'a>(rows: impl IntoIterator<Item = &'a Bytes>) -> BinaryArray {
    BinaryArray::from_iter_values(rows)
}

pub(super) fn write(session: &mut StateSession, write: &Write) -> Result<()> {
    let ops = UInt8Array::from_iter_values(write.rows.iter().map(|row| row.0));
    let keys = binary(write.rows.iter().map(|row| &row.1));
    let subs = optional(write.rows.iter().map(|row| row.2.clone()));
    let values = optional(write.rows.iter().map(|row| row.3.clone()));
    session.write(write.state, &ops, &keys, Some(&subs), Some(&values), write.ends)
}

/// One batch's session, with its declared states.
pub(super) fn open(shard: &Arc<Shard>, base: Option<&ShardHandle>, now: i64) -> Result<StateSession> {
    let batch = BatchId(base.map_or(0, |handle| handle.batch.0 + 1));
    let mut session = StateSession::open(shard, base.cloned(), batch)?;
    session.declare(CATALOG, now)?;
    Ok(session)
}

pub(super) fn bytes(array: &ArrayRef) -> Vec<Option<Bytes>> {
    array.as_binary::<i32>().iter().map(|row| row.map(<[u8]>::to_vec)).collect()
}

fn entries(rows: &ArrayRef) -> Vec<(Option<Bytes>, Bytes)> {
    let rows = rows.as_struct();
    bytes(rows.column(0)).into_iter().zip(bytes(rows.column(1)).into_iter().flatten()).collect()
}

/// All entries of a key: the first page from `read_entries`, then page after page.
pub(super) fn all_entries(
    session: &mut StateSession,
    state: StateId,
    key: &Bytes,
    max_bytes: usize,
) -> Result<Vec<(Option<Bytes>, Bytes)>> {
    let (lists, more): (ListArray, _) = session.read_entries(state, &binary([key]), max_bytes)?;
    let mut found = entries(&lists.value(0));
    let mut after = more.value(0).then(|| match found.last() {
        Some((Some(sub), _)) => sub.clone(),
        _ => (found.len() as u64).to_be_bytes().to_vec(),
    });
    while let Some(end) = after {
        let (page, next) = session.read_page(state, key, Some(&end), max_bytes)?;
        assert!(!page.is_empty() || next.is_none(), "a page that is not the last one has an entry");
        found.extend(entries(&(Arc::new(page) as ArrayRef)));
        after = next;
    }
    Ok(found)
}

/// All timers until a time, page after page.
pub(super) fn all_due(session: &mut StateSession, until: i64, limit: usize) -> Result<Vec<(i64, Bytes)>> {
    let mut found: Vec<(i64, Bytes)> = Vec::new();
    loop {
        let after = found.last().map(|(time, key)| (*time, &key[..]));
        let (times, keys, more) = session.due_timers(until, after, limit)?;
        assert!(times.len() <= limit && !(more && times.is_empty()));
        found.extend(times.values().iter().copied().zip(keys.iter().flatten().map(<[u8]>::to_vec)));
        if !more {
            return Ok(found);
        }
    }
}

/// All rows of a state, page after page, in order.
pub(super) fn all_rows(
    session: &mut StateSession,
    state: StateId,
    max_bytes: usize,
) -> Result<Vec<(Bytes, Option<Bytes>, Option<Bytes>)>> {
    let (mut found, mut after) = (Vec::new(), None::<Bytes>);
    loop {
        let (page, next) = session.scan(state, after.as_deref(), max_bytes)?;
        assert!(page.num_rows() > 0 || next.is_none(), "a page that is not the last one has a row");
        let keys = bytes(page.column(0)).into_iter().flatten();
        let rest = bytes(page.column(1)).into_iter().zip(bytes(page.column(2)));
        found.extend(keys.zip(rest).map(|(key, (sub, value))| (key, sub, value)));
        match next {
            Some(next) => after = Some(next),
            None => return Ok(found),
        }
    }
}

/// Asserts that a session reads exactly the model.
pub(super) fn assert_is(
    session: &mut StateSession,
    model: &Model,
    now: i64,
    names: &[Bytes],
    rng: &mut StdRng,
    when: &str,
) {
    for state in [VALUE, ENDING_VALUE] {
        let expected: Vec<_> = names.iter().map(|key| model.value(state, key, now)).collect();
        let found: ArrayRef = Arc::new(session.get(state, &binary(names)).unwrap());
        assert_eq!(bytes(&found), expected, "{when}: {state:?}");
    }
    let page = |rng: &mut StdRng| [1, 30, 700, 1 << 20][rng.random_range(0..4)];
    for key in names {
        for state in [LIST, ENDING_LIST] {
            let found = all_entries(session, state, key, page(rng)).unwrap();
            assert!(found == model.list(state, key, now), "{when}: {state:?} of {key:?}");
        }
        for state in [MAP, ENDING_MAP] {
            let found = all_entries(session, state, key, page(rng)).unwrap();
            assert!(found == model.map(state, key, now), "{when}: {state:?} of {key:?}");
            let subs: Vec<Bytes> = (0..4).map(|i: u8| vec![i; usize::from(i)]).collect();
            let map = model.map(state, key, now);
            let of =
                |sub: &Bytes| map.iter().find(|(own, _)| own.as_ref() == Some(sub)).map(|(_, value)| value.clone());
            let found: ArrayRef = Arc::new(session.get_entries(state, &binary([key]), &binary(&subs)).unwrap());
            assert_eq!(bytes(&found), subs.iter().map(of).collect::<Vec<_>>(), "{when}: {state:?} of {key:?}");
        }
    }
    for state in [VALUE, ENDING_VALUE, LIST, ENDING_LIST, MAP, ENDING_MAP, TIMERS] {
        let mut found = all_rows(session, state, page(rng)).unwrap();
        let mut expected = model.rows(state, now);
        // Key groups follow each other, in each of them keys are in order; a list stays as it is.
        found.sort_by(|one, other| (&one.0, &one.1).cmp(&(&other.0, &other.1)));
        expected.sort_by(|one, other| (&one.0, &one.1).cmp(&(&other.0, &other.1)));
        assert!(found == expected, "{when}: all of {state:?}");
    }
    let first = model.timers.first().map(|(time, _)| *time);
    if rng.random_bool(0.5) {
        assert_eq!(session.next_timer().unwrap(), first, "{when}");
    }
    let until = [i64::MAX, i64::MIN, 0, 3, 50][rng.random_range(0..5)];
    let due: Vec<_> = model.timers.iter().filter(|(time, _)| *time <= until).cloned().collect();
    assert_eq!(all_due(session, until, [1, 3, 1000][rng.random_range(0..3)]).unwrap(), due, "{when}: until {until}");
    assert_eq!(session.next_timer().unwrap(), first, "{when}");
    let lists = session.timers_of(&binary(names)).unwrap();
    for (i, key) in names.iter().enumerate() {
        let own: Vec<i64> = model.timers.iter().filter(|(_, own)| own == key).map(|(time, _)| *time).collect();
        assert_eq!(lists.value(i).as_primitive::<Int64Type>().values(), &own[..], "{when}: timers of {key:?}");
    }
}

/// Random changes of one state.
pub(super) fn random_write(rng: &mut StdRng, names: &[Bytes], now: i64, most_bytes: usize) -> Write {
    let states = [VALUE, LIST, MAP, TIMERS, ENDING_VALUE, ENDING_LIST, ENDING_MAP];
    let state = states[rng.random_range(0..states.len())];
    let rows = (0..rng.random_range(1..30)).map(|_| {
        let key = names[rng.random_range(0..names.len())].clone();
        let value = vec![rng.random(); rng.random_range(0..most_bytes)];
        let few: u8 = rng.random_range(0..6);
        let sub = vec![few; usize::from(few)];
        match (state, rng.random_range(0..20)) {
            (_, 0) => (CLEAR, key, None, None),
            (VALUE | ENDING_VALUE, 1..5) => (DELETE, key, None, None),
            (VALUE | ENDING_VALUE, _) => (PUT, key, None, Some(value)),
            (LIST | ENDING_LIST, _) => (APPEND, key, None, Some(value)),
            (MAP | ENDING_MAP, 1..5) => (DELETE, key, Some(sub), None),
            (MAP | ENDING_MAP, _) => (PUT, key, Some(sub), Some(value)),
            (_, n) => {
                let time: i64 =
                    [rng.random_range(-5..100), i64::MIN, i64::MAX][if n == 1 { rng.random_range(0..3) } else { 0 }];
                (if n < 8 { DELETE } else { PUT }, key, Some(time.to_be_bytes().to_vec()), None)
            }
        }
    });
    let rows = rows.collect();
    let ends = [ENDING_VALUE, ENDING_LIST, ENDING_MAP].contains(&state).then(|| now + rng.random_range(-2..40));
    Write { state, rows, ends }
}

/// The change sets of a handle's last version: of each its changes.
pub(super) fn last_sets(world: &World, handle: &ShardHandle) -> Vec<Vec<(Op, StateId, u16, Bytes)>> {
    let own: Vec<_> = handle.segments.iter().filter(|segment| segment.version == handle.version).cloned().collect();
    let store = world.store();
    let sets = world.runtime.block_on(read_segments(&store, None, &own, 1).try_collect::<Vec<_>>()).unwrap();
    let change = |c: fastchangelog_format::model::Change<'_>| (c.op, c.state, c.key_group.0, c.key.to_vec());
    sets.iter().map(|set| set.iter().map(change).collect()).collect()
}

/// Number of entries of what is live, and bytes of their keys and values.
pub(super) fn live_counts(shard: &Shard) -> (u64, u64) {
    let (mut entries, mut bytes) = (0, 0);
    let mut count = |entry: fastchangelog_state::hot::EntryRef<'_>| {
        entries += 1;
        bytes += (entry.key.len() + entry.value.map_or(0, <[u8]>::len)) as u64;
        Ok(())
    };
    shard.read(|keyed| keyed.for_each(&mut count)).unwrap();
    (entries, bytes)
}

/// Names of keys.
pub(super) fn names(range: Range<u32>) -> Vec<Bytes> {
    range.map(|i| key(&format!("k{i}"))).collect()
}
