//! Tests only: what every host of states must do, against plain maps.
//!
//! A host has a state of each kind, with and without expiry, as [`CATALOG`] declares them. [`random_write`] changes it and the
//! [`Model`] alike, [`assert_is`] compares all that can be read. The hosts run it: a session of a shard, a session that keeps
//! nothing, an embedded state.

pub(crate) use super::write::{APPEND, CLEAR, DELETE, PUT};
use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{ArrayRef, BinaryArray, ListArray};
use fastchangelog_format::error::Result;
use fastchangelog_format::model::StateId;
use rand::RngExt;
use rand::rngs::StdRng;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

/// Entries under a key: map keys, and values.
pub(crate) type Entries = Vec<(Option<Bytes>, Bytes)>;
/// Rows of a whole state: key, sub-key or expiry, value.
pub(crate) type StateRows = Vec<(Bytes, Option<Bytes>, Option<Bytes>)>;

/// What reads states of each kind.
pub(crate) trait Host {
    fn get(&mut self, state: StateId, keys: &BinaryArray) -> Result<BinaryArray>;
    fn get_entries(&mut self, state: StateId, keys: &BinaryArray, subs: &BinaryArray) -> Result<BinaryArray>;
    /// All entries of a key, in pages of about so many bytes.
    fn entries(&mut self, state: StateId, key: &Bytes, max_bytes: usize) -> Result<Entries>;
    /// All rows of a state, in pages of about so many bytes.
    fn rows(&mut self, state: StateId, max_bytes: usize) -> Result<StateRows>;
    /// All timers until a time, in pages of at most so many.
    fn due(&mut self, until: i64, limit: usize) -> Result<Vec<(i64, Bytes)>>;
    fn next_timer(&mut self) -> Result<Option<i64>>;
    fn timers_of(&mut self, keys: &BinaryArray) -> Result<ListArray>;
}

/// A state of each kind, with and without ends.
pub(crate) const VALUE: StateId = StateId(0);
pub(crate) const LIST: StateId = StateId(1);
pub(crate) const MAP: StateId = StateId(2);
pub(crate) const TIMERS: StateId = StateId(3);
pub(crate) const ENDING_VALUE: StateId = StateId(4);
pub(crate) const ENDING_LIST: StateId = StateId(5);
pub(crate) const ENDING_MAP: StateId = StateId(6);

pub(crate) const CATALOG: &str = include_str!("../../tests/states.json");

pub(crate) type Bytes = Vec<u8>;

/// A change: what is done, to which key, map key or time, and value.
pub(crate) type Row = (u8, Bytes, Option<Bytes>, Option<Bytes>);

/// One call.
#[derive(Debug, Clone)]
pub(crate) struct Write {
    pub(crate) state: StateId,
    pub(crate) rows: Vec<Row>,
    pub(crate) ends: Option<i64>,
}

/// What a plain program would hold: values with their ends.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Model {
    pub(crate) values: BTreeMap<StateId, BTreeMap<Bytes, (Bytes, i64)>>,
    pub(crate) lists: BTreeMap<StateId, BTreeMap<Bytes, Vec<(Bytes, i64)>>>,
    pub(crate) maps: BTreeMap<StateId, BTreeMap<Bytes, BTreeMap<Bytes, (Bytes, i64)>>>,
    pub(crate) timers: BTreeSet<(i64, Bytes)>,
}

/// A key. None begins with another one.
pub(crate) fn key(name: &str) -> Bytes {
    [name.as_bytes(), &[0]].concat()
}

pub(crate) fn time_of(sub: &[u8]) -> i64 {
    i64::from_be_bytes(sub.try_into().unwrap())
}

impl Model {
    pub(crate) fn apply(&mut self, write: &Write) {
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

pub(crate) fn optional(rows: impl Iterator<Item = Option<Bytes>>) -> BinaryArray {
    rows.collect()
}

pub(crate) fn binary<'a>(rows: impl IntoIterator<Item = &'a Bytes>) -> BinaryArray {
    BinaryArray::from_iter_values(rows)
}

pub(crate) fn bytes(array: &ArrayRef) -> Vec<Option<Bytes>> {
    array.as_binary::<i32>().iter().map(|row| row.map(<[u8]>::to_vec)).collect()
}

pub(crate) fn entries_of(rows: &ArrayRef) -> Vec<(Option<Bytes>, Bytes)> {
    let rows = rows.as_struct();
    bytes(rows.column(0)).into_iter().zip(bytes(rows.column(1)).into_iter().flatten()).collect()
}

/// Asserts that a host reads exactly the model.
pub(crate) fn assert_is(host: &mut impl Host, model: &Model, now: i64, names: &[Bytes], rng: &mut StdRng, when: &str) {
    for state in [VALUE, ENDING_VALUE] {
        let expected: Vec<_> = names.iter().map(|key| model.value(state, key, now)).collect();
        let found: ArrayRef = Arc::new(host.get(state, &binary(names)).unwrap());
        assert_eq!(bytes(&found), expected, "{when}: {state:?}");
    }
    let page = |rng: &mut StdRng| [1, 30, 700, 1 << 20][rng.random_range(0..4)];
    for key in names {
        for state in [LIST, ENDING_LIST] {
            let found = host.entries(state, key, page(rng)).unwrap();
            assert!(found == model.list(state, key, now), "{when}: {state:?} of {key:?}");
        }
        for state in [MAP, ENDING_MAP] {
            let found = host.entries(state, key, page(rng)).unwrap();
            assert!(found == model.map(state, key, now), "{when}: {state:?} of {key:?}");
            let subs: Vec<Bytes> = (0..4).map(|i: u8| vec![i; usize::from(i)]).collect();
            let map = model.map(state, key, now);
            let of =
                |sub: &Bytes| map.iter().find(|(own, _)| own.as_ref() == Some(sub)).map(|(_, value)| value.clone());
            let found: ArrayRef = Arc::new(host.get_entries(state, &binary([key]), &binary(&subs)).unwrap());
            assert_eq!(bytes(&found), subs.iter().map(of).collect::<Vec<_>>(), "{when}: {state:?} of {key:?}");
        }
    }
    for state in [VALUE, ENDING_VALUE, LIST, ENDING_LIST, MAP, ENDING_MAP, TIMERS] {
        let mut found = host.rows(state, page(rng)).unwrap();
        let mut expected = model.rows(state, now);
        // Key groups follow each other, in each of them keys are in order; a list stays as it is.
        found.sort_by(|one, other| (&one.0, &one.1).cmp(&(&other.0, &other.1)));
        expected.sort_by(|one, other| (&one.0, &one.1).cmp(&(&other.0, &other.1)));
        assert!(found == expected, "{when}: all of {state:?}");
    }
    let first = model.timers.first().map(|(time, _)| *time);
    if rng.random_bool(0.5) {
        assert_eq!(host.next_timer().unwrap(), first, "{when}");
    }
    let until = [i64::MAX, i64::MIN, 0, 3, 50][rng.random_range(0..5)];
    let due: Vec<_> = model.timers.iter().filter(|(time, _)| *time <= until).cloned().collect();
    assert_eq!(host.due(until, [1, 3, 1000][rng.random_range(0..3)]).unwrap(), due, "{when}: until {until}");
    assert_eq!(host.next_timer().unwrap(), first, "{when}");
    let lists = host.timers_of(&binary(names)).unwrap();
    for (i, key) in names.iter().enumerate() {
        let own: Vec<i64> = model.timers.iter().filter(|(_, own)| own == key).map(|(time, _)| *time).collect();
        assert_eq!(lists.value(i).as_primitive::<Int64Type>().values(), &own[..], "{when}: timers of {key:?}");
    }
}

/// Random changes of one state.
pub(crate) fn random_write(rng: &mut StdRng, names: &[Bytes], now: i64, most_bytes: usize) -> Write {
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

/// Names of keys.
pub(crate) fn names(range: Range<u32>) -> Vec<Bytes> {
    range.map(|i| key(&format!("k{i}"))).collect()
}
