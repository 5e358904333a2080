use crate::embedded::tests::{Opened, World, call_of_value, keys, lists as rows_of, world};
use crate::embedded::{AggregatingState, EmbeddedState, ListState, MapState, ValueState};
use crate::kinds::list_layout::CHUNK;
use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{Array, ArrayRef, Int64Array};
use arrow_schema::DataType;
use fastchangelog_columns::typed::KeyRange;
use fastchangelog_format::ErrorKind;
use std::sync::Arc;
use std::time::Duration;

const TTL: u64 = 100;

/// States of which what is written ends after [`TTL`].
struct States {
    values: ValueState,
    lists: ListState,
    maps: MapState,
    totals: AggregatingState,
}

fn with(state: &EmbeddedState, ttl: u64) -> States {
    let (text, long, ttl) = (DataType::Utf8, DataType::Int64, Some(Duration::from_millis(ttl)));
    let total = call_of_value("sum");
    States {
        values: state.value_state("values", &text, &long, ttl).unwrap(),
        lists: state.list_state("lists", &text, &text, ttl).unwrap(),
        maps: state.map_state("maps", (&text, &text), &long, ttl).unwrap(),
        totals: state.aggregating_state("totals", (&text, &long), &[total], true, ttl).unwrap(),
    }
}

fn states(s: &Opened) -> States {
    with(&s.state, TTL)
}

fn longs(values: &[i64]) -> ArrayRef {
    Arc::new(Int64Array::from(values.to_vec()))
}

impl States {
    /// Writes to each state.
    fn write(&self, key: &str, n: i64) {
        self.values.put(&keys(&[key]), &longs(&[n])).unwrap();
        self.lists.append(&keys(&[key]), &keys(&[&n.to_string()])).unwrap();
        self.maps.put(&keys(&[key]), &keys(&[&n.to_string()]), &longs(&[n])).unwrap();
        self.totals.add(&keys(&[key]), Some(&longs(&[n]))).unwrap();
    }

    /// What each state has for a key: value, elements, map keys, sum.
    fn found(&self, key: &str) -> (Option<i64>, Vec<String>, Vec<String>, Option<i64>) {
        let one = keys(&[key]);
        let long = |array: &ArrayRef| array.is_valid(0).then(|| array.as_primitive::<Int64Type>().value(0));
        let texts = |array: &ArrayRef| array.as_string::<i32>().iter().flatten().map(str::to_owned).collect::<Vec<_>>();
        let value = long(&self.values.get(&one).unwrap());
        assert_eq!(self.values.contains(&one).unwrap().value(0), value.is_some());
        let list = self.lists.get(&one).unwrap();
        let list = if list.is_valid(0) { texts(&list.as_list::<i32>().value(0)) } else { Vec::new() };
        assert_eq!(usize::try_from(self.lists.lengths(&one).unwrap().value(0)).unwrap(), list.len());
        let of_key = self.maps.range_of(&one, &KeyRange::default()).unwrap();
        let map: Vec<_> = self.maps.scan(of_key, 1).flat_map(|batch| texts(batch.unwrap().column(1))).collect();
        assert_eq!(usize::try_from(self.maps.lengths(&one).unwrap().value(0)).unwrap(), map.len());
        for map_key in ["1", "2", "3"] {
            let there = self.maps.contains(&one, &keys(&[map_key])).unwrap().value(0);
            assert_eq!(there, map.contains(&map_key.to_owned()));
            assert_eq!(self.maps.get(&one, &keys(&[map_key])).unwrap().is_valid(0), there);
        }
        let total = long(&self.totals.get(&one).unwrap());
        assert_eq!(self.totals.contains(&one).unwrap().value(0), total.is_some());
        let scanned = [
            (self.values.scan(KeyRange::default(), 1).count(), value.is_some()),
            (self.lists.scan(KeyRange::default(), 1).count(), !list.is_empty()),
            (self.totals.scan(KeyRange::default(), 1).count(), total.is_some()),
        ];
        scanned.iter().for_each(|(rows, there)| assert_eq!(*rows > 0, *there, "the only key"));
        (value, list, map, total)
    }
}

fn texts(all: &[&str]) -> Vec<String> {
    all.iter().map(|text| (*text).to_owned()).collect()
}

#[test]
fn what_has_ended_is_never_returned_and_each_write_refreshes() {
    for is_saved in [false, true] {
        let world = world(&[]);
        let s = world.open();
        let t = states(&s);
        let save = || {
            if is_saved {
                s.state.checkpoint().unwrap();
                s.state.core.wait_applied();
            }
        };
        world.at(0);
        t.write("a", 1);
        save();
        world.at(60);
        t.write("a", 2);
        save();
        world.at(99);
        assert_eq!(t.found("a"), (Some(2), texts(&["1", "2"]), texts(&["1", "2"]), Some(3)));
        // Elements and map entries end by themselves; a value and an aggregate after their last write.
        world.at(100);
        assert_eq!(t.found("a"), (Some(2), texts(&["2"]), texts(&["2"]), Some(3)));
        world.at(159);
        assert_eq!(t.found("a"), (Some(2), texts(&["2"]), texts(&["2"]), Some(3)));
        world.at(160);
        assert_eq!(t.found("a"), (None, vec![], vec![], None));
        // The clock goes back: what nothing has removed is there again, until it ends.
        world.at(120);
        assert_eq!(t.found("a"), (Some(2), texts(&["2"]), texts(&["2"]), Some(3)));
        world.at(500);
        t.write("a", 3);
        assert_eq!(t.found("a"), (Some(3), texts(&["3"]), texts(&["3"]), Some(3)), "an aggregate begins anew");
        save();
        assert_eq!(t.found("a"), (Some(3), texts(&["3"]), texts(&["3"]), Some(3)));
    }
}

#[test]
fn invariant_1_what_has_ended_goes_with_the_next_checkpoint() {
    const KEYS: usize = 5000;
    let world = world(&[]);
    let s = world.open();
    let t = states(&s);
    let names: Vec<String> = (0..KEYS).map(|i| format!("k{i:05}")).collect();
    let names = keys(&names.iter().map(String::as_str).collect::<Vec<_>>());
    let ones = longs(&vec![1; KEYS]);
    t.values.put(&names, &ones).unwrap();
    t.maps.put(&names, &names, &ones).unwrap();
    t.lists.append(&names, &names).unwrap();
    t.totals.add(&names, Some(&ones)).unwrap();
    assert_eq!(s.state.checkpoint().unwrap().state_keys, 4 * KEYS as u64);
    world.at(50);
    t.write("k00007", 1);
    let full = s.state.checkpoint().unwrap();
    assert_eq!(full.state_keys, 4 * KEYS as u64 + 1, "nothing has ended");
    assert_eq!(s.state.metrics().entries_ended.get(), 0);
    world.at(100);
    assert_eq!(s.state.checkpoint().unwrap().state_keys, 4);
    assert_eq!(
        s.state.metrics().entries_ended.get(),
        KEYS as u64 * 4 - 2 + 1 - 1,
        "of the renewed key an element and a map entry"
    );
    assert_eq!(t.found("k00007"), (Some(1), texts(&["1"]), texts(&["1"]), Some(2)));
    // What is known now spares the walk until something ends.
    for (id, _) in s.state.core.states_that_end() {
        assert!(!s.state.core.with_ends(id, |ends| ends.may_have_ended(149)));
        assert!(s.state.core.with_ends(id, |ends| ends.may_have_ended(150)));
    }
    world.at(150);
    assert_eq!(s.state.checkpoint().unwrap().state_keys, 0);
    assert_eq!(world.open_with(|request| request.read_only = true).state.newest().unwrap().state_bytes, 0);
}

#[test]
fn invariant_2_what_is_written_while_it_is_removed_stays() {
    let world = world(&[]);
    let s = world.open();
    let t = states(&s);
    for i in 0..40 {
        t.write(&format!("k{i}"), 1);
    }
    s.state.checkpoint().unwrap();
    for round in 1..30_i64 {
        // All that the last round wrote has ended.
        world.at(round * 1000);
        std::thread::scope(|scope| {
            scope.spawn(|| s.state.checkpoint().unwrap());
            for i in 0..40 {
                t.write(&format!("k{i}"), round);
            }
        });
        for i in 0..40 {
            let one = keys(&[&format!("k{i}")]);
            assert_eq!(t.values.get(&one).unwrap().as_primitive::<Int64Type>().value(0), round);
            assert_eq!(t.lists.lengths(&one).unwrap().value(0), 1);
            assert_eq!(t.maps.lengths(&one).unwrap().value(0), 1);
            assert_eq!(t.totals.get(&one).unwrap().as_primitive::<Int64Type>().value(0), round);
        }
    }
}

#[test]
fn of_a_long_list_the_first_elements_go() {
    let world = world(&[]);
    let s = world.open();
    let t = states(&s);
    let long = "x".repeat(CHUNK / 2 + 1);
    t.lists.put(&keys(&["a"]), &rows_of(&[Some(vec![long.clone(); 5])])).unwrap();
    world.at(50);
    t.lists.extend(&keys(&["a"]), &rows_of(&[Some(vec![long; 3])])).unwrap();
    assert_eq!(s.state.checkpoint().unwrap().state_keys, 9, "each element is a chunk");
    world.at(100);
    assert_eq!(t.lists.lengths(&keys(&["a"])).unwrap().value(0), 3);
    assert_eq!(s.state.checkpoint().unwrap().state_keys, 4);
    assert_eq!(t.lists.lengths(&keys(&["a"])).unwrap().value(0), 3);
    t.lists.append(&keys(&["a"]), &keys(&["y"])).unwrap();
    assert_eq!(states(&s).lists.lengths(&keys(&["a"])).unwrap().value(0), 4);
    world.at(199);
    s.state.checkpoint().unwrap();
    let found = t.lists.get(&keys(&["a"])).unwrap();
    assert_eq!(found.as_list::<i32>().value(0).as_string::<i32>().value(0), "y");
    world.at(200);
    assert_eq!(s.state.checkpoint().unwrap().state_keys, 0);
}

#[test]
fn another_length_of_the_ttl_is_fine_and_none_is_not() {
    let world = world(&[]);
    let s = world.open();
    with(&s.state, TTL).write("a", 1);
    s.state.checkpoint().unwrap();
    drop(s);
    let s = world.open();
    let longer = with(&s.state, 10 * TTL);
    longer.write("a", 2);
    world.at(100);
    assert_eq!(longer.found("a"), (Some(2), texts(&["2"]), texts(&["2"]), Some(3)), "what was written keeps its end");
    world.at(999);
    assert_eq!(longer.found("a").0, Some(2));
    let (text, long) = (DataType::Utf8, DataType::Int64);
    let second = Some(Duration::from_secs(1));
    s.put("a", Some(1));
    for (error, said) in [
        (s.state.value_state("values", &text, &long, None).err().unwrap(), "give ttl="),
        (s.state.value_state("visits", &text, &long, second).err().unwrap(), "leave ttl= out"),
    ] {
        assert_eq!(error.kind(), ErrorKind::SchemaMismatch);
        assert!(error.message().contains(said), "{error}");
    }
    let error = s.state.value_state("new", &text, &long, Some(Duration::from_nanos(1))).err().unwrap();
    assert!(error.message().contains("too short"), "{error}");
}

#[test]
fn a_failure_of_the_removal_fails_no_checkpoint() {
    let world = world(&[]);
    let broken: crate::embedded::StateClock =
        Arc::new(|| Err(fastchangelog_format::Error::invalid("the clock has stopped")));
    let s = world.open();
    states(&s).write("a", 1);
    s.state.checkpoint().unwrap();
    drop(s);
    let s = world.open_with(|request| request.clock = Some(broken));
    s.put("b", Some(1));
    s.state.checkpoint().unwrap();
    let error = states(&s).values.get(&keys(&["a"])).unwrap_err();
    assert!(error.message().contains("the clock has stopped"), "{error}");
    drop(s);
    assert_eq!(World::open(&world).get("b"), Some(1));
}
