//! Random histories of states of every kind against plain maps and lists.
//!
//! Every run prints its seed; `FASTCHANGELOG_SEED=<n>` replays it.

use super::tests::{World, keys, lists, world};
use super::*;
use crate::shard::savepoint::SavepointForm;
use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{Array, ArrayRef, Int64Array};
use arrow_schema::DataType;
use arrow_schema::Field;
use fastchangelog_columns::aggregate::NamedCall;
use fastchangelog_columns::typed::KeyRange;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::collections::BTreeMap;

const OPTIONS: &[(&str, &str)] = &[("max_handle_segments", "4"), ("max_attempts", "1")];

/// What a plain program would hold.
#[derive(Debug, Clone, Default, PartialEq)]
struct Model {
    values: BTreeMap<String, i64>,
    maps: BTreeMap<(String, i64), String>,
    lists: BTreeMap<String, Vec<String>>,
    /// Rows, sum and newest value.
    totals: BTreeMap<String, (i64, Option<i64>, Option<i64>)>,
}

struct Opened {
    state: EmbeddedState,
    values: ValueState,
    maps: MapState,
    lists: ListState,
    totals: AggregatingState,
}

fn opened(state: EmbeddedState) -> Opened {
    let (text, long) = (DataType::Utf8, DataType::Int64);
    let call = |function: &str| NamedCall {
        function: function.to_owned(),
        args: vec!["n".to_owned()],
        filter: None,
        ignore_nulls: false,
        name: Some(function.to_owned()),
        identity: format!("{function}(n)"),
    };
    let calls = [NamedCall { args: vec![], ..call("count") }, call("sum"), call("last")];
    let row = DataType::Struct(vec![Field::new("n", DataType::Int64, true)].into());
    Opened {
        values: state.value_state("visits", &text, &long, None).unwrap(),
        maps: state.map_state("maps", (&text, &long), &text, None).unwrap(),
        lists: state.list_state("lists", &text, &text, None).unwrap(),
        totals: state.aggregating_state("totals", (&text, &row), &calls, true, None).unwrap(),
        state,
    }
}

struct History {
    world: World,
    opened: Option<Opened>,
    model: Model,
    committed: Model,
    /// Those of the newest heads: what they name is retained.
    checkpoints: Vec<(ShardHandle, Model)>,
}

fn key(rng: &mut StdRng) -> String {
    let length = [0, 1, 2, 8, 9][rng.random_range(0..5)];
    (0..length).map(|_| ['a', 'b'][rng.random_range(0..2)]).collect()
}

fn some(rng: &mut StdRng, most: usize) -> Vec<String> {
    (0..rng.random_range(1..most)).map(|_| key(rng)).collect()
}

fn texts(texts: &[String]) -> ArrayRef {
    keys(&texts.iter().map(String::as_str).collect::<Vec<_>>())
}

fn longs(values: &[Option<i64>]) -> ArrayRef {
    Arc::new(Int64Array::from(values.to_vec()))
}

fn strings(values: &[Option<String>]) -> ArrayRef {
    Arc::new(values.iter().cloned().collect::<arrow_array::StringArray>())
}

/// Often a few short elements, sometimes more than a chunk.
fn elements(rng: &mut StdRng) -> Vec<String> {
    let (most, length) = [(4, 3), (4, 3), (4, 3), (60, 40), (3, 70_000)][rng.random_range(0..5)];
    (0..rng.random_range(0..most)).map(|_| "x".repeat(rng.random_range(0..length))).collect()
}

fn all_of<T>(scan: Scan, row: impl Fn(&[ArrayRef], usize) -> T) -> Vec<T> {
    let batches: Vec<_> = scan.map(|batch| batch.unwrap()).collect();
    batches.iter().flat_map(|batch| (0..batch.num_rows()).map(|i| row(batch.columns(), i))).collect()
}

fn text(column: &ArrayRef, i: usize) -> String {
    column.as_string::<i32>().value(i).to_owned()
}

fn long(column: &ArrayRef, i: usize) -> Option<i64> {
    column.is_valid(i).then(|| column.as_primitive::<Int64Type>().value(i))
}

fn list(column: &ArrayRef, i: usize) -> Vec<String> {
    column.as_list::<i32>().value(i).as_string::<i32>().iter().map(|text| text.unwrap().to_owned()).collect()
}

fn total(column: &ArrayRef, i: usize) -> (i64, Option<i64>, Option<i64>) {
    let columns = column.as_struct().columns();
    (long(&columns[0], i).unwrap(), long(&columns[1], i), long(&columns[2], i))
}

impl History {
    fn s(&self) -> &Opened {
        self.opened.as_ref().unwrap()
    }

    fn change_values(&mut self, rng: &mut StdRng) {
        let names = some(rng, 20);
        let values: Vec<_> = names.iter().map(|_| rng.random_bool(0.8).then(|| rng.random_range(0..9))).collect();
        self.s().values.put(&texts(&names), &longs(&values)).unwrap();
        for (name, value) in names.into_iter().zip(values) {
            self.model.values.remove(&name);
            self.model.values.extend(value.map(|value| (name, value)));
        }
    }

    fn change_maps(&mut self, rng: &mut StdRng) {
        let names = some(rng, 20);
        if rng.random_bool(0.3) {
            self.s().maps.clear(&texts(&names)).unwrap();
            self.model.maps.retain(|(name, _), _| !names.contains(name));
            return;
        }
        if rng.random_bool(0.2) {
            // More than a clear deletes one by one, and around this number.
            let most = i64::try_from(crate::states::FEW_KEYS).unwrap() + rng.random_range(-3..20);
            let (name, value) = (&names[..1], Some(key(rng)));
            let map_keys: Vec<_> = (-3..most).map(Some).collect();
            let values = vec![value.clone(); map_keys.len()];
            self.s().maps.put(&texts(name), &longs(&map_keys), &strings(&values)).unwrap();
            let entries =
                map_keys.into_iter().flatten().map(|map_key| ((name[0].clone(), map_key), value.clone().unwrap()));
            self.model.maps.extend(entries);
            return;
        }
        let map_keys: Vec<i64> = names.iter().map(|_| rng.random_range(-3..3)).collect();
        let values: Vec<_> = names.iter().map(|_| rng.random_bool(0.8).then(|| key(rng))).collect();
        let array = longs(&map_keys.iter().map(|k| Some(*k)).collect::<Vec<_>>());
        self.s().maps.put(&texts(&names), &array, &strings(&values)).unwrap();
        for ((name, map_key), value) in names.into_iter().zip(map_keys).zip(values) {
            self.model.maps.remove(&(name.clone(), map_key));
            self.model.maps.extend(value.map(|value| ((name, map_key), value)));
        }
    }

    fn change_lists(&mut self, rng: &mut StdRng) {
        let names = some(rng, 12);
        match rng.random_range(0..10) {
            0 => {
                self.s().lists.clear(&texts(&names)).unwrap();
                self.model.lists.retain(|name, _| !names.contains(name));
            }
            1..5 => {
                let values: Vec<String> = names.iter().map(|_| key(rng)).collect();
                self.s().lists.append(&texts(&names), &texts(&values)).unwrap();
                for (name, value) in names.into_iter().zip(values) {
                    self.model.lists.entry(name).or_default().push(value);
                }
            }
            kind => {
                let rows: Vec<_> = names.iter().map(|_| rng.random_bool(0.9).then(|| elements(rng))).collect();
                if kind < 8 {
                    self.s().lists.extend(&texts(&names), &lists(&rows)).unwrap();
                } else {
                    self.s().lists.put(&texts(&names), &lists(&rows)).unwrap();
                }
                for (name, row) in names.into_iter().zip(rows) {
                    let list = self.model.lists.entry(name).or_default();
                    if kind >= 8 {
                        list.clear();
                    }
                    list.extend(row.unwrap_or_default());
                }
                self.model.lists.retain(|_, list| !list.is_empty());
            }
        }
    }

    fn change_totals(&mut self, rng: &mut StdRng) {
        let names = some(rng, 20);
        if rng.random_bool(0.1) {
            self.s().totals.clear(&texts(&names)).unwrap();
            self.model.totals.retain(|name, _| !names.contains(name));
            return;
        }
        let values: Vec<_> = names.iter().map(|_| rng.random_bool(0.8).then(|| rng.random_range(-9..9))).collect();
        let fields = vec![Field::new("n", DataType::Int64, true)].into();
        let rows: ArrayRef = Arc::new(arrow_array::StructArray::new(fields, vec![longs(&values)], None));
        self.s().totals.add(&texts(&names), Some(&rows)).unwrap();
        for (name, value) in names.into_iter().zip(values) {
            let (n, sum, last) = self.model.totals.entry(name).or_default();
            *n += 1;
            *sum = value.map(|value| sum.unwrap_or_default() + value).or(*sum);
            *last = value;
        }
    }

    fn check(&self, rng: &mut StdRng) {
        let (s, model, rows) = (self.s(), &self.model, [rng.random_range(1..9), 100, 1_000][rng.random_range(0..3)]);
        let names = some(rng, 8);
        let asked = texts(&names);
        let values = s.values.get(&asked).unwrap();
        let map_keys: Vec<i64> = names.iter().map(|_| rng.random_range(-3..3)).collect();
        let map_array = longs(&map_keys.iter().map(|k| Some(*k)).collect::<Vec<_>>());
        let maps = s.maps.get(&asked, &map_array).unwrap();
        let (found, lengths) = (s.lists.get(&asked).unwrap(), s.lists.lengths(&asked).unwrap());
        let (totals, sizes) = (s.totals.get(&asked).unwrap(), s.maps.lengths(&asked).unwrap());
        for (i, name) in names.iter().enumerate() {
            assert_eq!(long(&values, i), model.values.get(name).copied(), "value of {name:?}");
            let value = maps.is_valid(i).then(|| text(&maps, i));
            assert_eq!(value.as_ref(), model.maps.get(&(name.clone(), map_keys[i])), "entry of {name:?}");
            let length = model.maps.keys().filter(|(key, _)| key == name).count();
            assert_eq!(usize::try_from(sizes.value(i)).unwrap(), length, "entries of {name:?}");
            let value = found.is_valid(i).then(|| list(&found, i));
            assert_eq!(value.as_ref(), model.lists.get(name), "list of {name:?}");
            let length = model.lists.get(name).map_or(0, Vec::len);
            assert_eq!(usize::try_from(lengths.value(i)).unwrap(), length, "elements of {name:?}");
            let value = totals.is_valid(i).then(|| total(&totals, i));
            assert_eq!(value.as_ref(), model.totals.get(name), "totals of {name:?}");
        }
        let range = KeyRange::default;
        let found = all_of(s.values.scan(range(), rows), |c, i| (text(&c[0], i), long(&c[1], i).unwrap()));
        assert_eq!(found, model.values.clone().into_iter().collect::<Vec<_>>());
        let entry = |c: &[ArrayRef], i: usize| ((text(&c[0], i), long(&c[1], i).unwrap()), text(&c[2], i));
        let found = all_of(s.maps.scan(range(), rows), entry);
        assert_eq!(found, model.maps.clone().into_iter().collect::<Vec<_>>());
        let one = s.maps.range_of(&texts(&names[..1]), &range()).unwrap();
        let of_one: Vec<_> = model.maps.clone().into_iter().filter(|((key, _), _)| *key == names[0]).collect();
        assert_eq!(all_of(s.maps.scan(one, rows), entry), of_one);
        let found = all_of(s.lists.scan(range(), rows), |c, i| (text(&c[0], i), list(&c[1], i)));
        assert_eq!(found, model.lists.clone().into_iter().collect::<Vec<_>>());
        let found = all_of(s.totals.scan(range(), rows), |c, i| (text(&c[0], i), total(&c[1], i)));
        assert_eq!(found, model.totals.clone().into_iter().collect::<Vec<_>>());
    }

    fn checkpoint(&mut self) {
        let handle = self.s().state.checkpoint().unwrap();
        // An entry for each value, map entry and aggregate; of a list its head and its chunks.
        let entries = self.model.values.len() + self.model.maps.len() + self.model.totals.len();
        let keys = usize::try_from(handle.state_keys).unwrap();
        assert!(keys >= entries + self.model.lists.len(), "{keys} keys, {entries} entries");
        if self.model.lists.is_empty() {
            assert_eq!(keys, entries);
        }
        self.committed = self.model.clone();
        self.checkpoints.push((handle, self.model.clone()));
    }

    /// A checkpoint that fails before it is published.
    fn failed_checkpoint(&self, rng: &mut StdRng) {
        let points = ["local.before-seal", "write.before-upload", "session.durable", "local.before-head"];
        self.world.failpoints.set(&format!("{}=error", points[rng.random_range(0..points.len())])).unwrap();
        let failed = self.s().state.checkpoint();
        self.world.failpoints.clear();
        assert!(failed.is_err() || self.model == self.committed);
    }

    /// The newest checkpoint, or any that is retained.
    fn reopen(&mut self, rng: &mut StdRng) {
        self.opened = None;
        let back = rng.random_range(0..5);
        match self.checkpoints.len().checked_sub(back).filter(|_| back > 0) {
            Some(at) => {
                let (handle, model) = self.checkpoints[at].clone();
                self.opened = Some(opened(self.world.open_with(|request| request.handle = Some(handle)).state));
                (self.model, self.committed) = (model.clone(), model);
            }
            None => {
                self.opened = Some(opened(self.world.open().state));
                self.model = self.committed.clone();
            }
        }
    }

    /// The newest checkpoint as a savepoint, with which the state of the next world begins.
    fn move_to_a_savepoint(&mut self, rng: &mut StdRng) {
        self.checkpoint();
        let form = [SavepointForm::Native, SavepointForm::Canonical][rng.random_range(0..2)];
        let scratch = tempfile::tempdir().unwrap();
        let handle = self.checkpoints.last().unwrap().0.clone();
        let to = self.world.root().child("savepoint");
        self.s().state.savepoint(&handle, form, &to, scratch.path(), &|| Ok(())).unwrap();
        self.opened = None;
        self.world = World { changes: self.world.changes, ..world(OPTIONS) };
        self.opened = Some(opened(self.world.open_with(|request| request.savepoint = Some(to)).state));
        self.checkpoints.clear();
    }

    fn materialize(&self) {
        if let Some(run) = self.s().state.core.shard().begin_materialize().unwrap() {
            run.run().unwrap();
            run.complete().unwrap();
        }
    }

    /// What is cleared leaves nothing behind, neither a chunk nor an entry.
    fn clear_all(&mut self) {
        let names = |keys: Vec<&String>| texts(&keys.into_iter().cloned().collect::<Vec<_>>());
        self.s().values.delete(&names(self.model.values.keys().collect())).unwrap();
        self.s().maps.clear(&names(self.model.maps.keys().map(|(key, _)| key).collect())).unwrap();
        self.s().lists.clear(&names(self.model.lists.keys().collect())).unwrap();
        self.s().totals.clear(&names(self.model.totals.keys().collect())).unwrap();
        self.model = Model::default();
        let handle = self.s().state.checkpoint().unwrap();
        assert_eq!((handle.state_keys, handle.state_bytes), (0, 0));
    }
}

#[test]
fn a17_states_of_all_kinds_are_what_plain_ones_would_be() {
    for seed in crate::shard::testing::seeds(6) {
        println!("seed {seed}");
        let mut rng = StdRng::seed_from_u64(seed);
        let changes = rng.random_bool(0.5).then(|| rng.random_range(0..6_000));
        let world = World { changes, ..world(OPTIONS) };
        let first = Some(opened(world.open().state));
        let (model, committed) = (Model::default(), Model::default());
        let mut history = History { world, opened: first, model, committed, checkpoints: Vec::new() };
        for _ in 0..100 {
            match rng.random_range(0..27) {
                0..3 => history.change_values(&mut rng),
                3..7 => history.change_maps(&mut rng),
                7..13 => history.change_lists(&mut rng),
                13..17 => history.change_totals(&mut rng),
                17..21 => history.checkpoint(),
                21 | 22 => history.failed_checkpoint(&mut rng),
                23 | 24 => history.reopen(&mut rng),
                25 => history.move_to_a_savepoint(&mut rng),
                _ => history.materialize(),
            }
            history.check(&mut rng);
        }
        history.clear_all();
        history.check(&mut rng);
    }
}
