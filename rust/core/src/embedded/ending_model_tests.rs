//! Random histories of states with a time to live, and of timers, against plain maps; the clock goes forth and back.
//!
//! What has ended is removed some time later. If the clock goes back meanwhile, it may be there again or not: the model then
//! takes what it finds. Every run prints its seed; `FASTCHANGELOG_SEED=<n>` replays it.

use super::tests::{World, call_of_value, keys, lists, world};
use super::*;
use crate::shard::savepoint::SavepointForm;
use arrow_array::cast::AsArray;
use arrow_array::types::{Int64Type, TimestampMicrosecondType};
use arrow_array::{Array, ArrayRef, Int64Array, TimestampMicrosecondArray};
use arrow_schema::DataType;
use fastchangelog_columns::typed::KeyRange;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::sync::atomic::Ordering as Atomic;

const OPTIONS: &[(&str, &str)] = &[("max_handle_segments", "4"), ("max_attempts", "1")];

/// What was written, until when it is there, and whether it may have been removed.
#[derive(Debug, Clone, PartialEq)]
struct Written<T> {
    what: T,
    ends: i64,
    may_be_gone: bool,
}

impl<T: PartialEq + Debug> Written<T> {
    fn new(what: T, ends: i64) -> Self {
        Self { what, ends, may_be_gone: false }
    }

    /// Compares it with what was found. False if it is gone.
    fn settle(&mut self, found: Option<&T>, now: i64, of: &dyn Debug) -> bool {
        if self.ends <= now {
            assert_eq!(found, None, "{of:?} has ended");
            return true;
        }
        if found.is_none() && self.may_be_gone {
            return false;
        }
        assert_eq!(found, Some(&self.what), "{of:?} is there until {}, it is {now}", self.ends);
        self.may_be_gone = false;
        true
    }
}

#[derive(Debug, Clone, Default)]
struct Model {
    values: BTreeMap<String, Written<i64>>,
    maps: BTreeMap<(String, i64), Written<i64>>,
    lists: BTreeMap<String, Vec<Written<i64>>>,
    totals: BTreeMap<String, Written<i64>>,
    timers: BTreeSet<(i64, String)>,
}

impl Model {
    /// A checkpoint may remove what has ended.
    fn sweep(&mut self, now: i64) {
        let all = self.values.values_mut().chain(self.maps.values_mut()).chain(self.totals.values_mut());
        all.chain(self.lists.values_mut().flatten()).for_each(|one| one.may_be_gone |= one.ends <= now);
    }
}

struct Opened {
    state: EmbeddedState,
    values: ValueState,
    maps: MapState,
    lists: ListState,
    totals: AggregatingState,
    timers: TimerState,
    ttl: i64,
}

fn opened(state: EmbeddedState, ttl: i64) -> Opened {
    let (text, long) = (DataType::Utf8, DataType::Int64);
    let lives = Some(Duration::from_millis(ttl.unsigned_abs()));
    let sum = call_of_value("sum");
    Opened {
        values: state.value_state("values", &text, &long, lives).unwrap(),
        maps: state.map_state("maps", (&text, &long), &long, lives).unwrap(),
        lists: state.list_state("lists", &text, &text, lives).unwrap(),
        totals: state.aggregating_state("totals", (&text, &long), &[sum], true, lives).unwrap(),
        timers: state.timers("timers", &text).unwrap(),
        state,
        ttl,
    }
}

struct History {
    world: World,
    opened: Option<Opened>,
    model: Model,
    committed: Model,
    checkpoints: Vec<(ShardHandle, Model)>,
    /// Elements of lists that were made: no two are the same.
    elements: i64,
}

fn key(rng: &mut StdRng) -> String {
    (0..[0, 1, 2, 9][rng.random_range(0..4)]).map(|_| ['a', 'b'][rng.random_range(0..2)]).collect()
}

fn some(rng: &mut StdRng, most: usize) -> Vec<String> {
    (0..rng.random_range(1..most)).map(|_| key(rng)).collect()
}

fn texts(all: &[String]) -> ArrayRef {
    keys(&all.iter().map(String::as_str).collect::<Vec<_>>())
}

fn longs(values: &[i64]) -> ArrayRef {
    Arc::new(Int64Array::from(values.to_vec()))
}

fn times(times: &[i64]) -> ArrayRef {
    Arc::new(TimestampMicrosecondArray::from(times.to_vec()).with_timezone("UTC"))
}

/// Elements are numbers, some of them long.
fn element(n: i64) -> String {
    format!("{n:0width$}", width = if n % 7 == 0 { 20_000 } else { 1 })
}

fn rows<T>(
    scan: impl Iterator<Item = Result<arrow_array::RecordBatch>>,
    row: impl Fn(&[ArrayRef], usize) -> T,
) -> Vec<T> {
    let batches: Vec<_> = scan.map(|batch| batch.unwrap()).collect();
    batches.iter().flat_map(|batch| (0..batch.num_rows()).map(|i| row(batch.columns(), i))).collect()
}

fn text(column: &ArrayRef, i: usize) -> String {
    column.as_string::<i32>().value(i).to_owned()
}

fn long(column: &ArrayRef, i: usize) -> i64 {
    column.as_primitive::<Int64Type>().value(i)
}

fn timer(columns: &[ArrayRef], i: usize) -> (i64, String) {
    (columns[0].as_primitive::<TimestampMicrosecondType>().value(i), text(&columns[1], i))
}

fn numbers(list: &ArrayRef) -> Vec<i64> {
    list.as_string::<i32>().iter().map(|one| one.unwrap().parse().unwrap()).collect()
}

impl History {
    fn s(&self) -> &Opened {
        self.opened.as_ref().unwrap()
    }

    fn now(&self) -> i64 {
        self.world.now.load(Atomic::SeqCst)
    }

    fn ends(&self) -> i64 {
        self.now() + self.s().ttl
    }

    fn change(&mut self, rng: &mut StdRng) {
        let (names, ends, now) = (some(rng, 12), self.ends(), self.now());
        let numbers: Vec<i64> = names.iter().map(|_| rng.random_range(1..50)).collect();
        let subs: Vec<i64> = names.iter().map(|_| rng.random_range(0..4)).collect();
        let new: Vec<i64> = names.iter().zip(self.elements..).map(|(_, n)| n).collect();
        self.elements += names.len() as i64;
        let s = self.opened.as_ref().unwrap();
        let model = &mut self.model;
        match rng.random_range(0..12) {
            0..3 => {
                s.values.put(&texts(&names), &longs(&numbers)).unwrap();
                let written = names.into_iter().zip(numbers.into_iter().map(|n| Written::new(n, ends)));
                model.values.extend(written);
            }
            3 => {
                s.values.delete(&texts(&names)).unwrap();
                model.values.retain(|name, _| !names.contains(name));
            }
            4..6 => {
                s.maps.put(&texts(&names), &longs(&subs), &longs(&numbers)).unwrap();
                let entries = names.into_iter().zip(subs);
                model.maps.extend(entries.zip(numbers.into_iter().map(|n| Written::new(n, ends))));
            }
            6 => {
                s.maps.clear(&texts(&names)).unwrap();
                model.maps.retain(|(name, _), _| !names.contains(name));
            }
            7..10 => {
                let elements: Vec<String> = new.iter().map(|n| element(*n)).collect();
                s.lists.append(&texts(&names), &texts(&elements)).unwrap();
                for (name, n) in names.into_iter().zip(new) {
                    model.lists.entry(name).or_default().push(Written::new(n, ends));
                }
            }
            10 => {
                let of_row = |i: usize| new[..i % 3].to_vec();
                let lists_of: Vec<_> =
                    (0..names.len()).map(|i| Some(of_row(i).into_iter().map(element).collect())).collect();
                s.lists.put(&texts(&names), &lists(&lists_of)).unwrap();
                for (i, name) in names.iter().enumerate() {
                    let written = of_row(i).into_iter().map(|n| Written::new(n, ends)).collect();
                    model.lists.insert(name.clone(), written);
                }
            }
            _ => {
                s.totals.add(&texts(&names), Some(&longs(&numbers))).unwrap();
                for (name, n) in names.into_iter().zip(numbers) {
                    let before = model.totals.get(&name).filter(|total| total.ends > now).map_or(0, |total| total.what);
                    model.totals.insert(name, Written::new(before + n, ends));
                }
            }
        }
    }

    fn change_timers(&mut self, rng: &mut StdRng) {
        let names = some(rng, 12);
        let when: Vec<i64> = names.iter().map(|_| rng.random_range(-20..20)).collect();
        let timers = when.iter().copied().zip(names.clone());
        if rng.random_bool(0.7) {
            self.s().timers.register(&texts(&names), &times(&when)).unwrap();
            self.model.timers.extend(timers);
        } else {
            self.s().timers.delete(&texts(&names), &times(&when)).unwrap();
            let gone: Vec<_> = timers.collect();
            self.model.timers.retain(|timer| !gone.contains(timer));
        }
    }

    /// What is due is taken, or only the first batches of it, with checkpoints on the way.
    fn take_due(&mut self, rng: &mut StdRng) {
        let (until, size) = (rng.random_range(-25..25), rng.random_range(1..6));
        let mut left: Vec<_> = self.model.timers.iter().filter(|(time, _)| *time <= until).cloned().collect();
        let (mut batches, mut taken) = (self.s().timers.due(until, size).unwrap(), Vec::<(i64, String)>::new());
        loop {
            let batch = batches.next();
            self.model.timers.retain(|timer| !taken.contains(timer));
            let Some(batch) = batch else { break };
            taken = rows(std::iter::once(batch), timer);
            let rest = left.split_off(left.len().min(size));
            assert_eq!(taken, left);
            left = rest;
            if rng.random_bool(0.3) {
                // It holds the timers of this batch.
                self.checkpoint();
            }
            if rng.random_bool(0.2) {
                return;
            }
        }
        assert_eq!(left, []);
    }

    fn check(&mut self, rng: &mut StdRng) {
        let (now, size) = (self.now(), [1, 3, 1_000][rng.random_range(0..3)]);
        let s = self.opened.as_ref().unwrap();
        let model = &mut self.model;
        let all = KeyRange::default;
        let found: BTreeMap<_, _> =
            rows(s.values.scan(all(), size), |c, i| (text(&c[0], i), long(&c[1], i))).into_iter().collect();
        assert!(found.keys().all(|name| model.values.contains_key(name)));
        model.values.retain(|name, value| value.settle(found.get(name), now, name));
        let found: BTreeMap<_, _> =
            rows(s.maps.scan(all(), size), |c, i| ((text(&c[0], i), long(&c[1], i)), long(&c[2], i)))
                .into_iter()
                .collect();
        assert!(found.keys().all(|name| model.maps.contains_key(name)));
        model.maps.retain(|name, value| value.settle(found.get(name), now, name));
        let found: BTreeMap<_, _> =
            rows(s.totals.scan(all(), size), |c, i| (text(&c[0], i), long(&c[1], i))).into_iter().collect();
        assert!(found.keys().all(|name| model.totals.contains_key(name)));
        model.totals.retain(|name, value| value.settle(found.get(name), now, name));
        let list_of = |c: &[ArrayRef], i: usize| (text(&c[0], i), numbers(&c[1].as_list::<i32>().value(i)));
        let mut found: BTreeMap<_, _> = rows(s.lists.scan(all(), size), list_of).into_iter().collect();
        for (name, list) in &mut model.lists {
            let elements = found.remove(name).unwrap_or_default();
            let mut next = elements.iter().peekable();
            list.retain_mut(|one| {
                let element = if one.ends > now { next.next_if_eq(&&one.what) } else { None };
                one.settle(element, now, name)
            });
            assert_eq!(next.next(), None, "of {name:?}: {elements:?}");
        }
        assert!(found.is_empty(), "{found:?}");
        assert_eq!(rows(s.timers.scan(None, None, size), timer), model.timers.iter().cloned().collect::<Vec<_>>());
        assert_eq!(s.timers.next_time().unwrap(), model.timers.first().map(|(time, _)| *time));
        // One by one, as all together.
        let names = some(rng, 6);
        let (values, sizes) = (s.values.get(&texts(&names)).unwrap(), s.maps.lengths(&texts(&names)).unwrap());
        let lengths = s.lists.lengths(&texts(&names)).unwrap();
        let (totals, of) = (s.totals.get(&texts(&names)).unwrap(), s.timers.of(&texts(&names)).unwrap());
        for (i, name) in names.iter().enumerate() {
            let there = |one: &&Written<i64>| one.ends > now;
            let expected = model.values.get(name).filter(there).map(|one| one.what);
            assert_eq!(values.is_valid(i).then(|| long(&values, i)), expected, "{name:?}");
            let expected = model.totals.get(name).filter(there).map(|one| one.what);
            assert_eq!(totals.is_valid(i).then(|| long(&totals, i)), expected, "{name:?}");
            let length = model.lists.get(name).map_or(0, |list| list.iter().filter(there).count());
            assert_eq!(usize::try_from(lengths.value(i)).unwrap(), length, "{name:?}");
            let size = model.maps.iter().filter(|((own, _), one)| own == name && there(one)).count();
            assert_eq!(usize::try_from(sizes.value(i)).unwrap(), size, "{name:?}");
            let expected: Vec<i64> =
                model.timers.iter().filter(|(_, own)| own == name).map(|(time, _)| *time).collect();
            assert_eq!(of.value(i).as_primitive::<TimestampMicrosecondType>().values().to_vec(), expected);
        }
    }

    fn checkpoint(&mut self) {
        let now = self.now();
        self.model.sweep(now);
        let handle = self.s().state.checkpoint().unwrap();
        self.committed = self.model.clone();
        self.checkpoints.push((handle, self.model.clone()));
    }

    fn failed_checkpoint(&mut self, rng: &mut StdRng) {
        let now = self.now();
        self.model.sweep(now);
        let points = ["local.before-seal", "write.before-upload", "session.durable", "local.before-head"];
        self.world.failpoints.set(&format!("{}=error", points[rng.random_range(0..points.len())])).unwrap();
        // It succeeds if nothing has changed.
        let made = self.s().state.checkpoint();
        self.world.failpoints.clear();
        if let Ok(handle) = made {
            self.committed = self.model.clone();
            self.checkpoints.push((handle, self.model.clone()));
        }
    }

    fn reopen(&mut self, rng: &mut StdRng) {
        self.opened = None;
        let (back, ttl) = (rng.random_range(0..5), rng.random_range(1..200));
        match self.checkpoints.len().checked_sub(back).filter(|_| back > 0) {
            Some(at) => {
                let (handle, model) = self.checkpoints[at].clone();
                self.opened = Some(opened(self.world.open_with(|request| request.handle = Some(handle)).state, ttl));
                (self.model, self.committed) = (model.clone(), model);
            }
            None => {
                self.opened = Some(opened(self.world.open().state, ttl));
                self.model = self.committed.clone();
            }
        }
    }

    /// A reader sees what the newest checkpoint holds, by its own clock.
    fn read(&mut self, rng: &mut StdRng) {
        self.checkpoint();
        let reader = self.world.open_with(|request| request.read_only = true).state;
        let writer = self.opened.replace(opened(reader, 1));
        let model = self.model.clone();
        self.check(rng);
        (self.model, self.opened) = (model, writer);
    }

    fn move_to_a_savepoint(&mut self, rng: &mut StdRng) {
        self.checkpoint();
        let form = [SavepointForm::Native, SavepointForm::Canonical][rng.random_range(0..2)];
        let scratch = tempfile::tempdir().unwrap();
        let handle = self.checkpoints.last().unwrap().0.clone();
        let to = self.world.root().child("savepoint");
        self.s().state.savepoint(&handle, form, &to, scratch.path(), &|| Ok(())).unwrap();
        self.opened = None;
        let now = self.now();
        self.world = World { changes: self.world.changes, ..world(OPTIONS) };
        self.world.at(now);
        let begun = self.world.open_with(|request| request.savepoint = Some(to)).state;
        self.opened = Some(opened(begun, rng.random_range(1..200)));
        self.checkpoints.clear();
        self.committed = self.model.clone();
    }

    fn materialize(&self) {
        if let Some(run) = self.s().state.core.shard().begin_materialize().unwrap() {
            run.run().unwrap();
            run.complete().unwrap();
        }
    }

    /// In the end all has ended, and nothing is left.
    fn end(&mut self) {
        self.world.at(i64::MAX - 1);
        rows(self.s().timers.due(i64::MAX, 9).unwrap(), timer);
        self.model = Model::default();
        for _ in 0..20 {
            self.checkpoint();
        }
        let handle = &self.checkpoints.last().unwrap().0;
        assert_eq!((handle.state_keys, handle.state_bytes), (0, 0));
    }
}

#[test]
fn a17_what_ends_and_what_is_due_are_what_plain_maps_would_say() {
    for seed in crate::shard::testing::seeds(6) {
        println!("seed {seed}");
        let mut rng = StdRng::seed_from_u64(seed);
        let changes = rng.random_bool(0.5).then(|| rng.random_range(0..6_000));
        let world = World { changes, ..world(OPTIONS) };
        world.at(1_000);
        let first = Some(opened(world.open().state, 50));
        let (model, committed) = (Model::default(), Model::default());
        let mut history = History { world, opened: first, model, committed, checkpoints: Vec::new(), elements: 0 };
        for _ in 0..120 {
            match rng.random_range(0..30) {
                0..12 => history.change(&mut rng),
                12..15 => history.change_timers(&mut rng),
                15 | 16 => history.take_due(&mut rng),
                17..21 => history.world.at(history.now() + rng.random_range(1..60)),
                21 => history.world.at(history.now() - rng.random_range(1..60)),
                22..25 => history.checkpoint(),
                25 => history.failed_checkpoint(&mut rng),
                26 => history.reopen(&mut rng),
                27 => history.read(&mut rng),
                28 => history.move_to_a_savepoint(&mut rng),
                _ => history.materialize(),
            }
            history.check(&mut rng);
        }
        history.end();
    }
}
