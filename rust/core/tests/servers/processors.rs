//! Stateful processors: state sessions, and plain states.
//!
//! Owns: what an execution does, and that what it reads is what the plain states hold, before its changes and after them.
//! Does not own: which changes there are (`states`), when sessions are opened, and where (`world`).

use crate::common::GROUPS;
use crate::states::{
    ALL_STATES, APPEND, Bytes, Call, Change, DELETE, EMPTY, ENDING_LIST, ENDING_MAP, ENDING_VALUE, Entry, LIST, MAP,
    STATES, StateRow, States, TIMERS, VALUE, calls, catalog, is_declared, time,
};
use crate::story::{KEYS, Story};
use crate::work::{Trouble, Work};
use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{ArrayRef, BinaryArray, UInt8Array};
use fastchangelog_columns::codec::hash_key;
use fastchangelog_core::engine::{Engine, OpenRequest, Operator, Reply, StateCall, StateId, StateSession};
use fastchangelog_format::model::ids::shard_of;
use fastchangelog_format::model::{ShardHandle, key_group_of};
use fastchangelog_format::{Error, Result as Done};
use std::sync::Arc;

/// Due timers that are taken at once.
const DUE: u64 = 3;
/// Bytes of pages.
const PAGES: [u64; 4] = [1, 30, 700, 1 << 20];
/// Entries that a map gets at once: more than are removed one by one, if keys are short.
const MANY: u16 = 300;
const MANY_LONG: u16 = 8;

pub struct Processors {
    /// The keys of each shard.
    keys: Vec<Vec<Bytes>>,
    padding: usize,
}

/// What the executions of one shard do and find.
struct OfShard {
    before: States,
    calls: Vec<Call>,
    /// The timers that run after these calls.
    due: Vec<(i64, Bytes)>,
    after: States,
}

pub struct Batch {
    now: i64,
    shards: Vec<OfShard>,
    /// Reads whole states, too: that makes a server write what it holds to its disk.
    is_thorough: bool,
}

pub struct Executing {
    session: StateSession,
    shard: usize,
}

/// The call that runs some timers.
fn run_timers(due: &[(i64, Bytes)]) -> [Call; 2] {
    let change = |op, key: &Bytes, sub, value| Change { op, key: key.clone(), sub, value };
    let gone = due.iter().map(|(at, key)| change(DELETE, key, Some(time(*at)), None)).collect();
    let said = due.iter().map(|(at, key)| change(APPEND, key, None, Some(time(*at)))).collect();
    [Call::Write { state: TIMERS, changes: gone, ends: None }, Call::Write { state: LIST, changes: said, ends: None }]
}

impl Processors {
    /// Of one shard with these keys.
    pub fn of_keys(keys: Vec<Bytes>) -> Self {
        Self { keys: vec![keys], padding: 0 }
    }

    /// A batch of these calls for one shard, and the state after it.
    pub fn batch_of(before: &States, calls: Vec<Call>, now: i64) -> (Batch, States) {
        let shard = of_calls(before, calls, now, ALL_STATES, true);
        let after = shard.after.clone();
        (Batch { now, shards: vec![shard], is_thorough: true }, after)
    }

    fn key(&self, key: u32) -> Bytes {
        // None begins with another one.
        format!("k{key}{}\0", "=".repeat(self.padding)).into_bytes()
    }
}

/// The calls of a shard that concern states of this version, and the timers that are due after them.
fn of_calls(before: &States, mut calls: Vec<Call>, now: i64, version: u32, is_thorough: bool) -> OfShard {
    let mut after = before.clone();
    after.version = version;
    if version > ALL_STATES && version != before.version {
        // As `deleteIfExists` does.
        calls.insert(0, Call::ClearAll(STATES[version as usize % STATES.len()]));
    }
    calls.retain(|call| is_declared(call.state(), version));
    calls.iter().for_each(|call| after.apply(call));
    let due = after.due(now);
    run_timers(&due).iter().for_each(|call| after.apply(call));
    after.watermark = is_thorough.then_some(now);
    OfShard { before: before.clone(), calls, due, after }
}

fn shard_of_key(key: &[u8], shards: u32) -> usize {
    shard_of(key_group_of(hash_key(key), GROUPS), shards, GROUPS) as usize
}

impl Work for Processors {
    const OPERATOR: Operator = Operator::Processor;
    type Model = Vec<States>;
    type Batch = Batch;
    type Session = Executing;

    fn of(story: &Story) -> Self {
        let mut work = Self { keys: vec![Vec::new(); story.shards as usize], padding: story.padding };
        for key in 0..KEYS {
            let key = work.key(key);
            work.keys[shard_of_key(&key, story.shards)].push(key);
        }
        work
    }

    fn spec(&self) -> String {
        String::new()
    }

    fn nothing(&self) -> Vec<States> {
        vec![States::default(); self.keys.len()]
    }

    fn batch(&self, before: &Vec<States>, rows: &[(u32, i64)], now: i64) -> (Batch, Vec<States>) {
        let rows: Vec<(Bytes, i64)> = rows.iter().map(|(key, amount)| (self.key(*key), *amount)).collect();
        let many = if self.padding == 0 { MANY } else { MANY_LONG };
        let changes = rows.first().is_some_and(|(_, amount)| amount % 4 == 0);
        let version = before[0].version.max(1) + u32::from(changes);
        let is_thorough = rows.last().is_none_or(|(_, amount)| amount % 2 == 0);
        let shards = before.iter().enumerate().map(|(shard, before)| {
            let keys = &self.keys[shard];
            let own: Vec<_> = rows.iter().filter(|(key, _)| keys.contains(key)).cloned().collect();
            of_calls(before, calls(&own, now, many), now, version, is_thorough)
        });
        let shards: Vec<OfShard> = shards.collect();
        let model = shards.iter().map(|shard| shard.after.clone()).collect();
        (Batch { now, shards, is_thorough }, model)
    }

    fn reading(&self, state: &Vec<States>, now: i64) -> Batch {
        Batch { is_thorough: true, ..self.batch(state, &[], now).0 }
    }

    fn last_rows() -> Option<Vec<(u32, i64)>> {
        Some((0..KEYS).map(|key| (key, EMPTY)).collect())
    }

    fn answers(batch: &Batch) -> usize {
        batch.shards.iter().map(|shard| shard.due.len()).sum()
    }

    fn open(&self, engine: &Arc<Engine>, request: &OpenRequest, batch: &Batch) -> Result<Executing, Trouble> {
        let shard = request.shard as usize;
        let OfShard { before, calls, after, .. } = &batch.shards[shard];
        let mut session = engine.open_states(request)?;
        same("the watermark", &session.watermark(), &before.watermark)?;
        same("the catalog", &session.catalog(), &&*catalog(before.version))?;
        ask(&mut session, &StateCall::Declare { catalog: catalog(after.version), now: batch.now })?;
        self.compare(&mut session, batch, shard, before)?;
        calls.iter().try_for_each(|call| make(&mut session, call))?;
        Ok(Executing { session, shard })
    }

    fn finish(&self, Executing { session, shard }: &mut Executing, batch: &Batch) -> Result<usize, Trouble> {
        let OfShard { due, after, .. } = &batch.shards[*shard];
        let mut ran: Vec<(i64, Bytes)> = Vec::new();
        loop {
            let due = ask(session, &StateCall::DueTimers { until: batch.now, after: ran.last().cloned(), limit: DUE })?;
            let [times, keys] = &due.columns[..] else { unreachable!("two columns") };
            let times = times.as_primitive::<Int64Type>().values().iter().copied();
            let page: Vec<_> = times.zip(binaries(keys.as_binary()).into_iter().flatten()).collect();
            run_timers(&page).iter().try_for_each(|call| make(session, call))?;
            ran.extend(page);
            if !due.more_pages {
                break;
            }
        }
        same("the timers that are due", &ran, due)?;
        self.compare(session, batch, *shard, after)?;
        Ok(ran.len())
    }

    fn commit(&self, Executing { session, shard }: &mut Executing, batch: &Batch) -> Result<ShardHandle, Trouble> {
        let committed = session.commit(batch.shards[*shard].after.watermark)?;
        Ok(committed.handle.ok_or_else(|| Error::internal("a commit without a handle"))?)
    }
}

impl Processors {
    /// All that a session reads is what the states hold.
    fn compare(
        &self,
        session: &mut StateSession,
        batch: &Batch,
        shard: usize,
        expected: &States,
    ) -> Result<(), Trouble> {
        let (keys, now, version) = (&self.keys[shard], batch.now, batch.shards[shard].after.version);
        let declared = |state: &StateId| is_declared(*state, version);
        let all: [ArrayRef; 1] = [Arc::new(binary(keys))];
        for state in [VALUE, ENDING_VALUE].into_iter().filter(declared) {
            let found = session.call(&StateCall::Get { state: state.0 }, &all)?;
            let found = binaries(found.columns[0].as_binary());
            let values: Vec<_> = keys.iter().map(|key| expected.value(state, key, now)).collect();
            same(&format!("{state:?}"), &found, &values)?;
        }
        let thorough = if batch.is_thorough { &[MAP, ENDING_MAP][..] } else { &[] };
        for (i, &state) in [LIST, ENDING_LIST].iter().chain(thorough).filter(|state| declared(state)).enumerate() {
            let found = all_entries(session, state, keys, PAGES[(keys.len() + i) % PAGES.len()])?;
            for (key, found) in keys.iter().zip(found) {
                same(&format!("{state:?} of {}", name(key)), &found, &expected.entries(state, key, now))?;
            }
        }
        let subs: Vec<Bytes> = (0..6).map(|i: u8| vec![i; usize::from(i)]).chain([vec![0, 9], vec![1, 9]]).collect();
        let maps = [MAP, ENDING_MAP].into_iter().filter(declared);
        for (key, state) in maps.flat_map(|state| keys.iter().map(move |key| (key, state))) {
            let (call, columns) = StateCall::get_entries(state, binary([key]), binary(&subs));
            let found = session.call(&call, &columns)?;
            let found = binaries(found.columns[0].as_binary());
            let map = expected.entries(state, key, now);
            let of =
                |sub: &Bytes| map.iter().find(|(own, _)| own.as_ref() == Some(sub)).map(|(_, value)| value.clone());
            same(&format!("{state:?} of {}", name(key)), &found, &subs.iter().map(of).collect())?;
        }
        if !batch.is_thorough {
            return Ok(());
        }
        for (i, state) in STATES.into_iter().filter(declared).enumerate() {
            let mut found = all_rows(session, state, PAGES[(shard + i) % PAGES.len()])?;
            let mut rows = expected.rows(state, now);
            // Key groups follow each other, in each of them keys are in order; a list stays as it is.
            found.sort_by(|one, other| (&one.0, &one.1).cmp(&(&other.0, &other.1)));
            rows.sort_by(|one, other| (&one.0, &one.1).cmp(&(&other.0, &other.1)));
            same(&format!("all of {state:?}"), &found, &rows)?;
        }
        let first = ask(session, &StateCall::NextTimer)?.time;
        same("the first timer", &first, &expected.timers.first().map(|(at, _)| *at))?;
        let times = ask(session, &StateCall::DueTimers { until: i64::MAX, after: None, limit: u64::from(u16::MAX) })?;
        let due: Vec<i64> = expected.timers.iter().map(|(at, _)| *at).collect();
        same("the times of all timers", &times.columns[0].as_primitive::<Int64Type>().values().to_vec(), &due)?;
        let lists = session.call(&StateCall::TimersOf, &all)?;
        let lists = lists.columns[0].as_list::<i32>();
        for (i, key) in keys.iter().enumerate() {
            let own = lists.value(i).as_primitive::<Int64Type>().values().to_vec();
            same(&format!("the timers of {}", name(key)), &own, &expected.timers_of(key))?;
        }
        Ok(())
    }
}

/// A key as a story names it.
fn name(key: &[u8]) -> String {
    key.iter().take_while(|byte| byte.is_ascii_alphanumeric()).map(|byte| char::from(*byte)).collect()
}

fn same<T: PartialEq + std::fmt::Debug>(what: &str, found: &T, expected: &T) -> Result<(), Trouble> {
    if found == expected {
        return Ok(());
    }
    let short = |value: &T| format!("{value:?}").chars().take(400).collect::<String>();
    Err(Trouble::Wrong(format!("{what}: found {}, expected is {}", short(found), short(expected))))
}

fn binary<'a>(rows: impl IntoIterator<Item = &'a Bytes>) -> BinaryArray {
    BinaryArray::from_iter_values(rows)
}

fn binaries(array: &BinaryArray) -> Vec<Option<Bytes>> {
    array.iter().map(|row| row.map(<[u8]>::to_vec)).collect()
}

fn entries(rows: &[ArrayRef]) -> Vec<Entry> {
    let [subs, values] = [0, 1].map(|i| binaries(rows[i].as_binary::<i32>()));
    subs.into_iter().zip(values.into_iter().flatten()).collect()
}

/// A call without columns.
fn ask(session: &mut StateSession, call: &StateCall) -> Done<Reply> {
    session.call(call, &[])
}

fn make(session: &mut StateSession, call: &Call) -> Done<()> {
    match call {
        Call::ClearAll(state) => ask(session, &StateCall::ClearAll { state: state.0 }).map(drop),
        Call::Write { state, changes, ends } => {
            let ops = UInt8Array::from_iter_values(changes.iter().map(|change| change.op));
            let keys = binary(changes.iter().map(|change| &change.key));
            let subs: BinaryArray = changes.iter().map(|change| change.sub.as_deref()).collect();
            let values: BinaryArray = changes.iter().map(|change| change.value.as_deref()).collect();
            let (call, columns) = StateCall::write(*state, ops, keys, Some(subs), Some(values), *ends);
            session.call(&call, &columns).map(drop)
        }
    }
}

/// All entries of each key: the first pages together, then page after page.
fn all_entries(session: &mut StateSession, state: StateId, keys: &[Bytes], bytes: u64) -> Done<Vec<Vec<Entry>>> {
    let (state, max_bytes) = (state.0, bytes);
    let first = session.call(&StateCall::Entries { state, max_bytes }, &[Arc::new(binary(keys))])?;
    let (lists, more) = (first.columns[0].as_list::<i32>(), first.columns[1].as_boolean());
    let mut all = Vec::new();
    for (i, key) in keys.iter().enumerate() {
        let mut found = entries(lists.value(i).as_struct().columns());
        let mut after = more.value(i).then(|| match found.last() {
            Some((Some(sub), _)) => sub.clone(),
            _ => (found.len() as u64).to_be_bytes().to_vec(),
        });
        while let Some(end) = after {
            let call = StateCall::Page { state, key: key.clone(), after: Some(end), max_bytes };
            let page = ask(session, &call)?;
            found.extend(entries(&page.columns));
            after = page.cursor;
        }
        all.push(found);
    }
    Ok(all)
}

/// All rows of a state, page after page.
fn all_rows(session: &mut StateSession, state: StateId, bytes: u64) -> Done<Vec<StateRow>> {
    let (mut found, mut after) = (Vec::new(), None::<Bytes>);
    loop {
        let page = ask(session, &StateCall::Scan { state: state.0, after, max_bytes: bytes })?;
        let [keys, subs, values] = [0, 1, 2].map(|i| binaries(page.columns[i].as_binary::<i32>()));
        let rest = subs.into_iter().zip(values);
        found.extend(keys.into_iter().flatten().zip(rest).map(|(key, (sub, value))| (key, sub, value)));
        after = page.cursor;
        if after.is_none() {
            return Ok(found);
        }
    }
}
