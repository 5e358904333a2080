//! More changes than memory: they move to the local disk, and a checkpoint has all of them.

use super::tests::{call_of_value, keys, lists, rows, world};
use super::*;
use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{Array, ArrayRef, Int64Array};
use arrow_schema::DataType;
use fastchangelog_columns::typed::KeyRange;

/// More than a quarter of a budget of 64 MiB.
const LARGE: usize = 20 << 20;

struct Kinds {
    values: ValueState,
    ending: ValueState,
    maps: MapState,
    lists: ListState,
    longest: AggregatingState,
}

impl Kinds {
    fn of(state: &EmbeddedState) -> Self {
        let text = DataType::Utf8;
        let ttl = Some(Duration::from_secs(1));
        Self {
            values: state.value_state("values", &text, &text, None).unwrap(),
            ending: state.value_state("ending", &text, &text, ttl).unwrap(),
            maps: state.map_state("maps", (&text, &text), &text, None).unwrap(),
            lists: state.list_state("lists", &text, &text, None).unwrap(),
            longest: state.aggregating_state("longest", (&text, &text), &[call_of_value("max")], true, None).unwrap(),
        }
    }

    fn check(&self, large: &ArrayRef) {
        let one = keys(&["a"]);
        let length = |found: &dyn Array| found.as_string::<i32>().value(0).len();
        assert_eq!(length(&self.values.get(&one).unwrap()), LARGE);
        assert_eq!(length(&self.values.get(large).unwrap()), 1);
        assert_eq!(length(&self.ending.get(&one).unwrap()), LARGE);
        assert_eq!(length(&self.maps.get(&one, &one).unwrap()), LARGE);
        assert_eq!(length(&self.lists.get(&one).unwrap().as_list::<i32>().value(0)), LARGE);
        assert_eq!(length(&self.longest.get(&one).unwrap()), LARGE);
    }
}

#[test]
fn values_larger_than_the_memory_of_changes_are_kept() {
    let world = world(&[("memory_budget", "64MiB")]);
    let s = world.open();
    let text = "x".repeat(LARGE);
    let (one, large) = (keys(&["a"]), keys(&[&text]));
    let kinds = Kinds::of(&s.state);
    kinds.values.put(&one, &large).unwrap();
    kinds.values.put(&large, &one).unwrap();
    kinds.ending.put(&one, &large).unwrap();
    kinds.maps.put(&one, &one, &large).unwrap();
    kinds.lists.put(&one, &lists(&[Some(vec!["gone".to_owned()])])).unwrap();
    kinds.lists.put(&one, &lists(&[Some(vec![text.clone()])])).unwrap();
    kinds.longest.add(&one, Some(&large)).unwrap();
    assert!(s.state.metrics().spills.get() > 0);
    kinds.check(&large);
    s.state.checkpoint().unwrap();
    kinds.check(&large);
    drop((kinds, s));
    Kinds::of(&world.open().state).check(&large);
}

#[test]
fn a_million_rows_load_with_a_budget_of_a_fraction() {
    let world = world(&[("memory_budget", "16MiB")]);
    let (all, step, long) = (1_000_000_i64, 100_000, DataType::Int64);
    let loaded = |state: &EmbeddedState| state.value_state("loaded", &long, &long, None).unwrap();
    let column = |from: i64, factor: i64| -> ArrayRef {
        Arc::new(Int64Array::from((from..from + step).map(|i| i * factor).collect::<Vec<_>>()))
    };
    let steps = || (0..10).map(|i| i * step);
    let check = |values: &ValueState| {
        for from in steps() {
            let found = values.get(&column(from, 1)).unwrap();
            assert_eq!(found.as_primitive::<Int64Type>(), column(from, 3).as_primitive::<Int64Type>());
        }
        let keys = values.scan(KeyRange::default(), 50_000).map(|batch| batch.unwrap().column(0).clone());
        let keys = keys.flat_map(|keys| keys.as_primitive::<Int64Type>().values().to_vec());
        assert!(keys.eq(0..all));
    };
    let s = world.open();
    let values = loaded(&s.state);
    for from in steps() {
        values.put(&column(from, 1), &column(from, 3)).unwrap();
    }
    assert!(s.state.metrics().spills.get() > 5);
    check(&values);
    let handle = s.state.checkpoint().unwrap();
    assert_eq!(handle.state_keys, 1_000_000);
    assert!(handle.segments.len() > 1, "in parts");
    check(&values);
    drop((values, s));
    let again = world.open();
    check(&loaded(&again.state));
}

#[test]
fn invariant_4_a_failed_spill_refuses_the_change_and_loses_none() {
    for point in ["local.spill", "local.spilled", "local.part", "local.before-seal", "local.before-head"] {
        let mut world = world(&[]);
        world.changes = Some(100);
        let s = world.open();
        s.put("a", Some(1));
        s.put("b", Some(1));
        world.failpoints.set(&format!("{point}=error")).unwrap();
        let column: ArrayRef = Arc::new(Int64Array::from(vec![2, 2]));
        let put = s.table.put(&keys(&["a", "c"]), &column);
        let is_put = put.is_ok();
        assert!(is_put || point.starts_with("local.spill"), "{point}: {put:?}");
        let made = s.state.checkpoint();
        assert!(made.is_err() || point.starts_with("local.spill"), "{point}");
        world.failpoints.clear();
        let expected = if is_put { rows(&[("a", 2), ("b", 1), ("c", 2)]) } else { rows(&[("a", 1), ("b", 1)]) };
        assert_eq!(s.contents(), expected, "{point}");
        s.put("d", Some(4));
        s.state.checkpoint().unwrap();
        let expected: Vec<_> = expected.into_iter().chain(rows(&[("d", 4)])).collect();
        assert_eq!(s.contents(), expected, "{point}");
        drop(s);
        assert_eq!(world.open().contents(), expected, "{point}");
    }
}

#[test]
fn spilled_changes_leave_the_disk_with_their_checkpoint() {
    fn folders(folder: &std::path::Path) -> usize {
        let entries = std::fs::read_dir(folder).into_iter().flatten().map(|entry| entry.unwrap().path());
        let own = |path: &std::path::Path| {
            path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("changes-"))
        };
        entries.map(|path| usize::from(own(&path)) + folders(&path)).sum()
    }
    let mut world = world(&[]);
    world.changes = Some(100);
    let s = world.open();
    for round in 0..3 {
        s.put("a", Some(round));
        s.put("b", Some(round));
        assert_eq!(folders(world.local.path()), 1);
        s.state.checkpoint().unwrap();
        // The files go after the answer, and before the next checkpoint.
        s.state.checkpoint().unwrap();
        s.state.core.wait_applied();
        assert_eq!(folders(world.local.path()), 0);
    }
    s.put("a", Some(9));
    s.put("b", Some(9));
    s.state.close();
    assert_eq!(folders(world.local.path()), 0);
    drop(s);
    assert_eq!(world.open().contents(), rows(&[("a", 2), ("b", 2)]));
}
