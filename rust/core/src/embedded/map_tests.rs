use super::*;
use crate::embedded::EmbeddedState;
use crate::embedded::tests::{keys, world};
use arrow_array::types::Int64Type;
use arrow_array::{Array, Int64Array};
use fastchangelog_format::ErrorKind;
use fastchangelog_format::model::Op;

fn maps(state: &EmbeddedState) -> MapState {
    state.map_state("m", (&DataType::Utf8, &DataType::Utf8), &DataType::Int64, None).unwrap()
}

fn longs(values: &[Option<i64>]) -> ArrayRef {
    Arc::new(Int64Array::from(values.to_vec()))
}

fn rows(scan: Scan) -> Vec<(String, String, i64)> {
    let mut out = Vec::new();
    for batch in scan {
        let batch = batch.unwrap();
        let (a, b) = (batch.column(0).as_string::<i32>(), batch.column(1).as_string::<i32>());
        let values = batch.column(2).as_primitive::<Int64Type>();
        out.extend((0..batch.num_rows()).map(|i| (a.value(i).to_owned(), b.value(i).to_owned(), values.value(i))));
    }
    out
}

fn row(key: &str, map_key: &str, value: i64) -> (String, String, i64) {
    (key.to_owned(), map_key.to_owned(), value)
}

#[test]
fn t04_entries_come_in_order_and_may_be_removed_on_the_way() {
    let world = world(&[]);
    let s = world.open();
    let m = maps(&s.state);
    // "a" + "bc" and "ab" + "c" are different entries, and a key is no prefix of another.
    m.put(&keys(&["a", "ab", "a", "b"]), &keys(&["bc", "c", "", "x"]), &longs(&[Some(1), Some(2), Some(3), Some(4)]))
        .unwrap();
    let first = s.state.checkpoint().unwrap();
    assert_eq!(first.state_keys, 4);
    assert_eq!(
        rows(m.scan(KeyRange::default(), 3)),
        [row("a", "", 3), row("a", "bc", 1), row("ab", "c", 2), row("b", "x", 4)]
    );
    let of_a = m.range_of(&keys(&["a"]), &KeyRange::default()).unwrap();
    for batch in m.scan(of_a.clone(), 1) {
        let batch = batch.unwrap();
        m.delete(batch.column(0), batch.column(1)).unwrap();
    }
    assert_eq!(rows(m.scan(of_a, 9)), []);
    let handle = s.state.checkpoint().unwrap();
    let last = world.sets(&handle).pop().unwrap();
    assert_eq!(last.iter().map(|(op, _)| *op).collect::<Vec<_>>(), [Op::Delete, Op::Delete], "removals are logged");
    assert_eq!(maps(&world.open().state).lengths(&keys(&["a", "ab"])).unwrap().values(), &[0, 1]);
}

#[test]
fn t05_t06_each_change_is_one_record_of_its_entry() {
    let world = world(&[]);
    let s = world.open();
    let m = maps(&s.state);
    for i in 0..1000 {
        m.put(&keys(&["a"]), &keys(&["x", "y"]), &longs(&[Some(i), Some(i)])).unwrap();
    }
    m.delete(&keys(&["a"]), &keys(&["y"])).unwrap();
    let handle = s.state.checkpoint().unwrap();
    let ops = |handle| world.sets(handle).pop().unwrap().iter().map(|(op, _)| *op).collect::<Vec<_>>();
    assert_eq!(ops(&handle), [Op::Put], "a13: the entry's last value, and nothing of the other");
    m.put(&keys(&["a", "b"]), &keys(&["x", "x"]), &longs(&[Some(-1), Some(-2)])).unwrap();
    m.clear(&keys(&["a", "a", "none"])).unwrap();
    assert_eq!(ops(&s.state.checkpoint().unwrap()), [Op::Delete, Op::Put]);
    assert_eq!(rows(maps(&world.open().state).scan(KeyRange::default(), 9)), [row("b", "x", -2)]);
}

#[test]
fn t07_reads_are_not_logged() {
    let world = world(&[]);
    let s = world.open();
    let m = maps(&s.state);
    m.put(&keys(&["a"]), &keys(&["x"]), &longs(&[Some(1)])).unwrap();
    let handle = s.state.checkpoint().unwrap();
    let found = m.get(&keys(&["a"]), &keys(&["x", "y"])).unwrap();
    assert_eq!((found.as_primitive::<Int64Type>().value(0), found.is_null(1)), (1, true));
    assert_eq!(
        m.contains(&keys(&["a", "b"]), &keys(&["x", "x"])).unwrap().iter().flatten().collect::<Vec<_>>(),
        [true, false]
    );
    assert_eq!(rows(m.scan(KeyRange::default(), 9)).len(), 1);
    assert_eq!(m.lengths(&keys(&["a"])).unwrap().values(), &[1]);
    assert_eq!(s.state.checkpoint().unwrap(), handle);
}

#[test]
fn ranges_of_map_keys_stay_within_the_key() {
    let world = world(&[]);
    let s = world.open();
    let m = maps(&s.state);
    for key in ["a", "b", "c"] {
        m.put(&keys(&[key]), &keys(&["x", "xy", "y"]), &longs(&[Some(1), Some(2), Some(3)])).unwrap();
    }
    let bound = |name: &str| m.map_keys().bound(&keys(&[name])).unwrap();
    let found = |within: &KeyRange| rows(m.scan(m.range_of(&keys(&["b"]), within).unwrap(), 2));
    assert_eq!(found(&KeyRange::default()).len(), 3);
    assert_eq!(found(&KeyRange { from: bound("xy"), to: None }), [row("b", "xy", 2), row("b", "y", 3)]);
    assert_eq!(found(&KeyRange { from: bound(""), to: Some(bound("xy")) }), [row("b", "x", 1)]);
    assert_eq!(found(&m.map_keys().beginning_with(&keys(&["x"])).unwrap()).len(), 2);
    let from_b =
        KeyRange { from: m.keys().bound(&keys(&["b"])).unwrap(), to: Some(m.keys().bound(&keys(&["c"])).unwrap()) };
    assert_eq!(rows(m.scan(from_b, 9)), found(&KeyRange::default()));
    assert!(m.range_of(&keys(&["a", "b"]), &KeyRange::default()).is_err());
}

#[test]
fn what_does_not_fit_changes_nothing() {
    let world = world(&[("memory_budget", "16MiB")]);
    let s = world.open();
    let m = maps(&s.state);
    let error = m.put(&keys(&["a", "b"]), &keys(&["x", "y", "z"]), &longs(&[None; 3])).unwrap_err();
    assert!(error.message().contains("2 keys and 3 map keys"), "{error}");
    assert!(m.put(&keys(&["a"]), &keys(&["x", "y"]), &longs(&[Some(1)])).is_err());
    let many: Vec<String> = (0..30_000).map(|i| format!("entry {i}")).collect();
    let many = keys(&many.iter().map(String::as_str).collect::<Vec<_>>());
    let values = longs(&vec![Some(1); many.len()]);
    m.put(&keys(&["a"]), &many, &values).unwrap();
    s.state.checkpoint().unwrap();
    m.put(&keys(&["b"]), &many, &values).unwrap();
    // A clear is not refused for the number of entries, here or below.
    let unsaved = || s.state.metrics().uncheckpointed_bytes.get();
    let before = unsaved();
    m.clear(&keys(&["a"])).unwrap();
    assert!(unsaved() - before < 200, "{before}, then {}", unsaved());
    m.clear(&keys(&["b"])).unwrap();
    assert!(unsaved() < 100_000, "{}", unsaved());
    assert_eq!(m.lengths(&keys(&["a", "b"])).unwrap().values(), &[0, 0]);
    assert_eq!(s.state.checkpoint().unwrap().state_keys, 0);
}

/// One key with a million entries.
#[test]
fn invariant_2_the_cost_of_a_clear_is_the_same_for_any_size() {
    let world = world(&[]);
    let s = world.open();
    let m = maps(&s.state);
    for part in 0..10 {
        let many: Vec<String> = (0..100_000).map(|i| format!("{part} {i}")).collect();
        let many = keys(&many.iter().map(String::as_str).collect::<Vec<_>>());
        m.put(&keys(&["big"]), &many, &longs(&vec![Some(7); 100_000])).unwrap();
        assert_eq!(s.state.checkpoint().unwrap().state_keys, (part + 1) * 100_000);
    }
    m.put(&keys(&["small", "other"]), &keys(&["x", "x"]), &longs(&[Some(1), Some(2)])).unwrap();
    let filled = s.state.checkpoint().unwrap();
    s.state.core.wait_applied();
    let unsaved = || s.state.metrics().uncheckpointed_bytes.get();
    assert_eq!(unsaved(), 0);
    m.clear(&keys(&["small"])).unwrap();
    let of_small = unsaved();
    m.clear(&keys(&["big", "big"])).unwrap();
    assert!(unsaved() - of_small < 200, "{of_small}, then {}", unsaved());
    assert_eq!(m.lengths(&keys(&["big", "small", "other"])).unwrap().values(), &[0, 0, 1]);
    assert_eq!(rows(m.scan(KeyRange::default(), 9)), [row("other", "x", 2)]);
    let handle = s.state.checkpoint().unwrap();
    let ops: Vec<_> = world.sets(&handle).pop().unwrap().iter().map(|(op, _)| *op).collect();
    assert_eq!(ops, [Op::DeletePrefix, Op::Delete], "many entries are one record, few are one each");
    let log = handle.segments.last().unwrap();
    assert!((log.records, log.length < 300) == (2, true), "{log:?}");
    assert_eq!((handle.state_keys, filled.state_keys), (1, 1_000_002));
    let before = filled.state_bytes;
    assert!(handle.state_bytes < 100 && before > 10_000_000, "{before}, then {}", handle.state_bytes);
    s.state.core.wait_applied();
    for s in [s, world.open()] {
        let m = maps(&s.state);
        assert_eq!(rows(m.scan(KeyRange::default(), 9)), [row("other", "x", 2)]);
        let found = m.contains(&keys(&["big"]), &keys(&["3 77"])).unwrap();
        assert!(!found.value(0));
    }
}

#[test]
fn a_clear_between_puts_keeps_the_later_ones() {
    let world = world(&[]);
    let s = world.open();
    let m = maps(&s.state);
    let many: Vec<String> = (0..1_000).map(|i| format!("{i:03}")).collect();
    let all = keys(&many.iter().map(String::as_str).collect::<Vec<_>>());
    let put = |key: &str, n: i64| m.put(&keys(&[key]), &all, &longs(&vec![Some(n); 1_000])).unwrap();
    let ops = |handle| {
        let ops = world.sets(handle).pop().unwrap();
        [Op::Put, Op::Delete, Op::DeletePrefix].map(|op| ops.iter().filter(|(o, _)| *o == op).count())
    };
    for key in ["a", "b", "c", "d"] {
        put(key, 1);
    }
    s.state.checkpoint().unwrap();
    // Put, cleared, put again; cleared twice; cleared and put as it was; a put and a delete after the clear.
    put("a", 2);
    m.clear(&keys(&["a"])).unwrap();
    m.put(&keys(&["a"]), &keys(&["007"]), &longs(&[Some(3)])).unwrap();
    m.clear(&keys(&["b"])).unwrap();
    m.clear(&keys(&["b", "none"])).unwrap();
    m.clear(&keys(&["c"])).unwrap();
    put("c", 1);
    m.clear(&keys(&["d"])).unwrap();
    m.put(&keys(&["d"]), &keys(&["1", "2"]), &longs(&[Some(4), Some(5)])).unwrap();
    m.delete(&keys(&["d"]), &keys(&["1", "003"])).unwrap();
    let check = |m: &MapState| {
        assert_eq!(m.lengths(&keys(&["a", "b", "c", "d"])).unwrap().values(), &[1, 0, 1_000, 1]);
        let found = m.get(&keys(&["a", "b", "c", "d"]), &keys(&["007", "007", "007", "2"])).unwrap();
        let found: Vec<_> = found.as_primitive::<Int64Type>().iter().collect();
        assert_eq!(found, [Some(3), None, Some(1), Some(5)]);
        assert_eq!(rows(m.scan(KeyRange::default(), 100)).len(), 1_002);
    };
    check(&m);
    let handle = s.state.checkpoint().unwrap();
    assert_eq!((handle.state_keys, ops(&handle)), (1_002, [1_002, 0, 4]));
    s.state.core.wait_applied();
    check(&m);
    check(&maps(&world.open().state));
}

#[test]
fn another_kind_or_type_says_what_differs() {
    let world = world(&[]);
    let s = world.open();
    maps(&s.state);
    let other = s.state.map_state("m", (&DataType::Utf8, &DataType::Int64), &DataType::Int64, None).err().unwrap();
    assert_eq!(other.kind(), ErrorKind::SchemaMismatch);
    assert!(other.message().contains("map key `string`") && other.message().contains("`bigint`"));
    let other = s.state.list_state("m", &DataType::Utf8, &DataType::Int64, None).err().unwrap();
    assert!(other.message().contains("kind `map`, now with `list`"), "{other}");
    let other = s.state.map_state("visits", (&DataType::Utf8, &DataType::Int64), &DataType::Int64, None).err().unwrap();
    assert!(other.message().contains("kind `value`, now with `map`"), "{other}");
}
