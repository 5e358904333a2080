//! The states of a stateful processor as a plain program would hold them.
//!
//! Owns: the declared states, which come one after another, what a row of a story changes, and what reads must find.
//! Does not own: sessions (`processors`).

use fastchangelog_core::engine::StateId;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::collections::{BTreeMap, BTreeSet};

pub type Bytes = Vec<u8>;
/// An element or a map entry as it is read: its map key, if it has one, and value.
pub type Entry = (Option<Bytes>, Bytes);
/// A row of a whole state: key, time, value.
pub type StateRow = (Bytes, Option<Bytes>, Option<Bytes>);

/// Operations of a change.
pub const CLEAR: u8 = 0;
pub const PUT: u8 = 1;
pub const DELETE: u8 = 2;
pub const APPEND: u8 = 3;

/// A state of each kind, with and without ends.
pub const VALUE: StateId = StateId(0);
pub const LIST: StateId = StateId(1);
pub const MAP: StateId = StateId(2);
pub const TIMERS: StateId = StateId(3);
pub const ENDING_VALUE: StateId = StateId(4);
pub const ENDING_LIST: StateId = StateId(5);
pub const ENDING_MAP: StateId = StateId(6);
pub const STATES: [StateId; 7] = [VALUE, LIST, MAP, TIMERS, ENDING_VALUE, ENDING_LIST, ENDING_MAP];

/// The versions of the catalog up to the one that has all states; those after it change what a server does not know.
pub const ALL_STATES: u32 = 4;

/// Which states a version of the catalog has; the first version is 1, and 0 is what a query has before its first batch.
pub fn is_declared(state: StateId, version: u32) -> bool {
    version > 0 && u32::from(state.0) < 3 + version
}

/// The catalog of a version.
pub fn catalog(version: u32) -> String {
    let mut states: Vec<serde_json::Value> = serde_json::from_str(include_str!("../states.json")).unwrap();
    states.retain(|state| state["id"].as_u64().is_some_and(|id| is_declared(StateId(id as u16), version)));
    states.iter_mut().for_each(|state| state["versions"] = version.into());
    serde_json::Value::from(states).to_string()
}

/// The row of this amount removes what lasts of its key.
pub const EMPTY: i64 = i64::MIN;
const MINUTE: i64 = 60_000;
/// When what is put ends, in minutes.
const LIVES: [i64; 7] = [-1, 0, 1, 20, 70, 200, 1000];
/// Rows of which the changes of one state are one call.
const TOGETHER: usize = 6;

/// A change of one key: a map key or a time is in `sub`.
#[derive(Debug, Clone)]
pub struct Change {
    pub op: u8,
    pub key: Bytes,
    pub sub: Option<Bytes>,
    pub value: Option<Bytes>,
}

/// One call.
#[derive(Debug, Clone)]
pub enum Call {
    Write { state: StateId, changes: Vec<Change>, ends: Option<i64> },
    ClearAll(StateId),
}

impl Call {
    pub fn state(&self) -> StateId {
        match self {
            Self::Write { state, .. } | Self::ClearAll(state) => *state,
        }
    }
}

pub fn has_ends(state: StateId) -> bool {
    [ENDING_VALUE, ENDING_LIST, ENDING_MAP].contains(&state)
}

pub fn time(millis: i64) -> Bytes {
    millis.to_be_bytes().to_vec()
}

fn millis(time: &[u8]) -> i64 {
    i64::from_be_bytes(time.try_into().unwrap())
}

/// The calls of some rows of one shard: each amount says what its row changes. `many`: entries that are put at once.
pub fn calls(rows: &[(Bytes, i64)], now: i64, many: u16) -> Vec<Call> {
    let mut calls = Vec::new();
    for rows in rows.chunks(TOGETHER) {
        let mut writes = BTreeMap::<StateId, (Vec<Change>, i64)>::new();
        for (key, amount) in rows {
            let lasting = [VALUE, LIST, MAP, TIMERS].map(|state| (state, 0));
            let mut rng = StdRng::seed_from_u64(amount.cast_unsigned());
            let random = [(STATES[rng.random_range(0..STATES.len())], rng.random_range(1..40))];
            let chosen = if *amount == EMPTY { &lasting[..] } else { &random[..] };
            for &(state, what) in chosen {
                let ends = now + LIVES[rng.random_range(0..LIVES.len())] * MINUTE;
                if what == 39 && rng.random_ratio(1, 8) {
                    // The changes before it come first.
                    calls.extend(std::mem::take(&mut writes).into_iter().map(write));
                    calls.push(Call::ClearAll(state));
                    continue;
                }
                let (changes, _) = writes.entry(state).or_insert_with(|| (Vec::new(), ends));
                for _ in 0..if what == 0 { 1 } else { rng.random_range(1..5) } {
                    change(&mut rng, state, what, key, (now, many), changes);
                }
            }
        }
        calls.extend(writes.into_iter().map(write));
    }
    calls
}

fn write((state, (changes, ends)): (StateId, (Vec<Change>, i64))) -> Call {
    Call::Write { state, changes, ends: has_ends(state).then_some(ends) }
}

/// Adds a change of a state; of a map it may be one of many entries.
fn change(rng: &mut StdRng, state: StateId, what: u8, key: &Bytes, (now, many): (i64, u16), changes: &mut Vec<Change>) {
    let mut push = |op, sub, value| changes.push(Change { op, key: key.clone(), sub, value });
    let value = Some(vec![rng.random(); rng.random_range(0..300)]);
    let few: u8 = rng.random_range(0..6);
    let sub = Some(vec![few; usize::from(few)]);
    match (state, what) {
        (_, 0..4) => push(CLEAR, None, None),
        (MAP | ENDING_MAP, 4) => (0..many).for_each(|i| push(PUT, Some(i.to_be_bytes().to_vec()), Some(vec![7]))),
        (VALUE | ENDING_VALUE, 4..12) => push(DELETE, None, None),
        (VALUE | ENDING_VALUE, _) => push(PUT, None, value),
        (LIST | ENDING_LIST, _) => push(APPEND, None, value),
        (MAP | ENDING_MAP, 5..12) => push(DELETE, sub, None),
        (MAP | ENDING_MAP, _) => push(PUT, sub, value),
        (_, n) => {
            let ahead = now + rng.random_range(-1..120) * MINUTE;
            let at = [ahead, ahead, ahead, ahead, ahead, i64::MIN, i64::MAX][rng.random_range(0..7)];
            push(if n < 8 { DELETE } else { PUT }, Some(time(at)), None);
        }
    }
}

/// What the states of one shard hold. Values, elements and entries have the time of their end beside them.
#[derive(Debug, Clone, Default)]
pub struct States {
    values: BTreeMap<(StateId, Bytes), (Bytes, i64)>,
    lists: BTreeMap<(StateId, Bytes), Vec<(Bytes, i64)>>,
    maps: BTreeMap<(StateId, Bytes), BTreeMap<Bytes, (Bytes, i64)>>,
    pub timers: BTreeSet<(i64, Bytes)>,
    pub watermark: Option<i64>,
    /// Of the catalog.
    pub version: u32,
}

impl States {
    pub fn apply(&mut self, call: &Call) {
        match call {
            Call::Write { state, changes, ends } => {
                changes.iter().for_each(|change| self.change(*state, change, ends.unwrap_or(i64::MAX)));
            }
            Call::ClearAll(TIMERS) => self.timers.clear(),
            Call::ClearAll(state) => {
                self.values.retain(|(own, _), _| own != state);
                self.lists.retain(|(own, _), _| own != state);
                self.maps.retain(|(own, _), _| own != state);
            }
        }
    }

    fn change(&mut self, state: StateId, change: &Change, ends: i64) {
        let Change { op, key, sub, value } = change.clone();
        let (own, value) = ((state, key.clone()), (value.unwrap_or_default(), ends));
        match (state, op, sub) {
            (VALUE | ENDING_VALUE, PUT, _) => drop(self.values.insert(own, value)),
            (VALUE | ENDING_VALUE, ..) => drop(self.values.remove(&own)),
            (LIST | ENDING_LIST, APPEND, _) => self.lists.entry(own).or_default().push(value),
            (LIST | ENDING_LIST, ..) => drop(self.lists.remove(&own)),
            (MAP | ENDING_MAP, PUT, Some(sub)) => drop(self.maps.entry(own).or_default().insert(sub, value)),
            (MAP | ENDING_MAP, DELETE, Some(sub)) => drop(self.maps.entry(own).or_default().remove(&sub)),
            (MAP | ENDING_MAP, ..) => drop(self.maps.remove(&own)),
            (_, PUT, Some(time)) => {
                self.timers.insert((millis(&time), key));
            }
            (_, DELETE, Some(time)) => {
                self.timers.remove(&(millis(&time), key));
            }
            _ => self.timers.retain(|(_, own)| *own != key),
        }
    }

    /// The timers until a time, in their order.
    pub fn due(&self, until: i64) -> Vec<(i64, Bytes)> {
        self.timers.iter().take_while(|(time, _)| *time <= until).cloned().collect()
    }

    /// The times of a key's timers.
    pub fn timers_of(&self, key: &Bytes) -> Vec<i64> {
        self.timers.iter().filter(|(_, own)| own == key).map(|(time, _)| *time).collect()
    }

    pub fn value(&self, state: StateId, key: &Bytes, now: i64) -> Option<Bytes> {
        let value = self.values.get(&(state, key.clone()));
        value.filter(|(_, ends)| *ends > now).map(|(value, _)| value.clone())
    }

    /// The elements or map entries of a key.
    pub fn entries(&self, state: StateId, key: &Bytes, now: i64) -> Vec<Entry> {
        let own = (state, key.clone());
        let elements = self.lists.get(&own).into_iter().flatten().map(|element| (None, element));
        let entries = self.maps.get(&own).into_iter().flatten().map(|(sub, value)| (Some(sub.clone()), value));
        let alive = elements.chain(entries).filter(|(_, (_, ends))| *ends > now);
        alive.map(|(sub, (value, _))| (sub, value.clone())).collect()
    }

    /// All rows of a state, those of a key in their order.
    pub fn rows(&self, state: StateId, now: i64) -> Vec<StateRow> {
        if state == TIMERS {
            return self.timers.iter().map(|(at, key)| (key.clone(), Some(time(*at)), None)).collect();
        }
        let own = |(of, _): &&(StateId, Bytes)| *of == state;
        let values = self.values.iter().filter(|(of, _)| own(of)).map(|((_, key), value)| (key.clone(), value));
        let lists = self.lists.iter().filter(|(of, _)| own(of));
        let elements = lists.flat_map(|((_, key), list)| list.iter().map(|element| (key.clone(), element)));
        let maps = self.maps.iter().filter(|(of, _)| own(of));
        let entries = maps.flat_map(|((_, key), map)| map.iter().map(|(sub, value)| ([&key[..], sub].concat(), value)));
        let alive = values.chain(elements).chain(entries).filter(|(_, (_, ends))| *ends > now);
        let until = |ends: i64| has_ends(state).then(|| time(ends));
        alive.map(|(key, (value, ends))| (key, until(*ends), Some(value.clone()))).collect()
    }
}
