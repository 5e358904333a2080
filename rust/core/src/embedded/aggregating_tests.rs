use super::*;
use crate::embedded::EmbeddedState;
use crate::embedded::tests::{keys, world};
use arrow_array::types::Int64Type;
use arrow_array::{BooleanArray, Decimal128Array, Float64Array, Int64Array, StringArray};
use fastchangelog_columns::aggregate::AggCall;
use fastchangelog_columns::split::Splitter;
use fastchangelog_format::ErrorKind;
use fastchangelog_format::model::Op;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

fn call(function: &str, args: &[&str], name: &str) -> NamedCall {
    NamedCall {
        function: function.to_owned(),
        args: args.iter().map(|arg| (*arg).to_owned()).collect(),
        filter: None,
        ignore_nulls: false,
        name: Some(name.to_owned()),
        identity: format!("{function}({})", args.join(", ")),
    }
}

fn row_type() -> DataType {
    let field = |name: &str, data_type| Field::new(name, data_type, true);
    DataType::Struct(
        vec![
            field("n", DataType::Int64),
            field("x", DataType::Float64),
            field("d", DataType::Decimal128(12, 2)),
            field("s", DataType::Utf8),
            field("b", DataType::Boolean),
        ]
        .into(),
    )
}

/// Every function whose result does not depend on how rows are split, one with a filter and one without nulls.
fn calls() -> Vec<NamedCall> {
    let mut calls = vec![call("count", &[], "rows"), call("count", &["n"], "n")];
    for function in ["sum", "avg", "min", "max"] {
        for column in ["n", "x", "d"] {
            // Sums of floats depend on their grouping.
            if column != "x" || function.starts_with('m') {
                calls.push(call(function, &[column], &format!("{function}_{column}")));
            }
        }
    }
    for function in ["min", "max", "first", "last"] {
        calls.push(call(function, &["s"], &format!("{function}_s")));
    }
    calls.push(call("bool_or", &["b"], "any"));
    calls.push(call("bool_and", &["b"], "all"));
    calls.push(call("count_if", &["b"], "true"));
    for function in ["bit_and", "bit_or", "bit_xor"] {
        calls.push(call(function, &["n"], function));
    }
    calls.push(call("max_by", &["s", "n"], "max_by"));
    calls.push(call("min_by", &["n", "s"], "min_by"));
    calls.push(NamedCall {
        filter: Some("b".into()),
        identity: "sum(n) where b".into(),
        ..call("sum", &["n"], "filtered")
    });
    calls.push(NamedCall {
        ignore_nulls: true,
        identity: "last(n) ignore nulls".into(),
        ..call("last", &["n"], "newest")
    });
    calls
}

fn random(rng: &mut StdRng, rows: usize) -> (ArrayRef, ArrayRef) {
    let mut null = |value: i64| rng.random_bool(0.8).then_some(value);
    let numbers: Vec<Option<i64>> = (0..rows).map(|i| null(i64::try_from(i).unwrap() * 7919 % 101 - 50)).collect();
    let texts: Vec<Option<String>> = (0..rows).map(|i| null(0).map(|_| format!("{}", i * 31 % 17))).collect();
    let flags: Vec<Option<bool>> = (0..rows).map(|i| null(0).map(|_| i % 3 == 0)).collect();
    let decimals = numbers.iter().map(|n| n.map(i128::from)).collect::<Decimal128Array>();
    let columns: Vec<ArrayRef> = vec![
        Arc::new(Int64Array::from(numbers.clone())),
        Arc::new(
            numbers.iter().map(|n| n.map(|n| f64::from(i32::try_from(n).unwrap()) / 2.0)).collect::<Float64Array>(),
        ),
        Arc::new(decimals.with_precision_and_scale(12, 2).unwrap()),
        Arc::new(StringArray::from(texts)),
        Arc::new(BooleanArray::from(flags)),
    ];
    let DataType::Struct(fields) = row_type() else { unreachable!() };
    let names: Vec<String> = (0..rows).map(|_| format!("key {}", rng.random_range(0..8))).collect();
    let rows = StructArray::try_new(fields, columns, None).unwrap();
    (keys(&names.iter().map(String::as_str).collect::<Vec<_>>()), Arc::new(rows))
}

fn state(state: &EmbeddedState) -> AggregatingState {
    state.aggregating_state("a", (&DataType::Utf8, &row_type()), &calls(), true, None).unwrap()
}

#[test]
fn invariant_1_results_are_those_of_a_query_over_all_rows() {
    let seed = std::env::var("FASTCHANGELOG_SEED").map_or_else(|_| rand::random(), |seed| seed.parse().unwrap());
    println!("seed {seed}");
    let mut rng = StdRng::seed_from_u64(seed);
    let (world, total) = (world(&[]), 500);
    let (names, rows) = random(&mut rng, total);
    let mut s = world.open();
    let mut from = 0;
    while from < total {
        let n = rng.random_range(1..60).min(total - from);
        state(&s.state).add(&names.slice(from, n), Some(&rows.slice(from, n))).unwrap();
        from += n;
        if rng.random_bool(0.3) {
            s.state.checkpoint().unwrap();
        }
        if rng.random_bool(0.2) {
            s.state.checkpoint().unwrap();
            s = world.open();
        }
    }
    // The way that a query's rows go: through the split of a map task, and the table of a shard.
    let types = Types::new(&DataType::Utf8, &row_type(), &calls(), true).unwrap();
    let (input, output) = (Arc::clone(&types.input), Arc::clone(types.plan.output()));
    let aggs = calls().into_iter().map(|c| AggCall {
        args: c.args.iter().map(|name| input.index_of(name).unwrap()).collect(),
        filter: c.filter.as_ref().map(|name| input.index_of(name).unwrap()),
        function: c.function,
        ignore_nulls: c.ignore_nulls,
        ansi: true,
        identity: c.identity,
    });
    let aggs = aggs.collect();
    let spec = AggSpec::new(1, input, output, aggs);
    let mut splitter = Splitter::new(&spec, 1, 1, 1000).unwrap();
    let mut payloads = splitter.push(&types.batch(&names, Some(&rows)).unwrap()).unwrap();
    payloads.append(&mut splitter.finish().unwrap());
    let mut table = GroupTable::new(Arc::new(AggPlan::new(&spec).unwrap()));
    for (_, payload) in payloads {
        table.merge_payload(&payload).unwrap();
    }
    let expected = table.finish(0..table.len()).unwrap();
    let found = state(&s.state).get(expected.column(0)).unwrap();
    assert_eq!(found.as_struct().columns(), &expected.columns()[1..]);
    let scanned: Vec<_> = state(&s.state).scan(KeyRange::default(), 3).map(|batch| batch.unwrap()).collect();
    assert_eq!(scanned.iter().map(RecordBatch::num_rows).sum::<usize>(), table.len());
    for batch in scanned {
        assert_eq!(&state(&s.state).get(batch.column(0)).unwrap(), batch.column(1));
    }
}

fn totals(state: &EmbeddedState, ansi: bool) -> Result<AggregatingState> {
    let only = NamedCall { name: None, ..call("sum", &["value"], "") };
    state.aggregating_state(if ansi { "t" } else { "w" }, (&DataType::Utf8, &DataType::Int64), &[only], ansi, None)
}

fn longs(values: &[Option<i64>]) -> ArrayRef {
    Arc::new(Int64Array::from(values.to_vec()))
}

#[test]
fn plain_rows_give_plain_results_and_null_without_any() {
    let world = world(&[]);
    let s = world.open();
    let t = totals(&s.state, true).unwrap();
    t.add(&keys(&["a", "b", "a", "c"]), Some(&longs(&[Some(1), None, Some(2), Some(9)]))).unwrap();
    t.clear(&keys(&["c", "none"])).unwrap();
    let found = t.get(&keys(&["a", "b", "c"])).unwrap();
    assert_eq!(found.as_primitive::<Int64Type>().iter().collect::<Vec<_>>(), [Some(3), None, None]);
    assert_eq!(t.contains(&keys(&["b", "c"])).unwrap().iter().flatten().collect::<Vec<_>>(), [true, false]);
    assert_eq!(*t.result_type(), DataType::Int64);
    let named = state(&s.state).get(&keys(&["a"])).unwrap();
    assert!(named.is_null(0) && named.as_struct().columns().len() == calls().len());
    assert!(t.add(&keys(&["a"]), None).is_err());
    assert!(t.add(&keys(&["a"]), Some(&longs(&[]))).is_err());
    let count = [NamedCall { name: None, ..call("count", &[], "") }];
    let none = DataType::Struct(Fields::empty());
    let counts = s.state.aggregating_state("n", (&DataType::Utf8, &none), &count, true, None).unwrap();
    counts.add(&keys(&["a", "a"]), None).unwrap();
    assert_eq!(counts.get(&keys(&["a"])).unwrap().as_primitive::<Int64Type>().value(0), 2);
}

#[test]
fn invariant_2_an_overflow_changes_nothing() {
    let world = world(&[]);
    let s = world.open();
    let t = totals(&s.state, true).unwrap();
    t.add(&keys(&["a"]), Some(&longs(&[Some(i64::MAX)]))).unwrap();
    let error = t.add(&keys(&["b", "a"]), Some(&longs(&[Some(1), Some(1)]))).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    let found = t.get(&keys(&["a", "b"])).unwrap();
    assert_eq!(found.as_primitive::<Int64Type>().iter().collect::<Vec<_>>(), [Some(i64::MAX), None]);
    let wraps = totals(&s.state, false).unwrap();
    wraps.add(&keys(&["a"]), Some(&longs(&[Some(i64::MAX)]))).unwrap();
    wraps.add(&keys(&["a"]), Some(&longs(&[Some(1)]))).unwrap();
    assert_eq!(wraps.get(&keys(&["a"])).unwrap().as_primitive::<Int64Type>().value(0), i64::MIN);
}

#[test]
fn a13_a_key_is_one_record_however_often_it_is_added_to() {
    let world = world(&[]);
    let s = world.open();
    let t = totals(&s.state, true).unwrap();
    for _ in 0..1000 {
        t.add(&keys(&["a"]), Some(&longs(&[Some(1)]))).unwrap();
    }
    let handle = s.state.checkpoint().unwrap();
    let ops = |handle| world.sets(handle).pop().unwrap().iter().map(|(op, _)| *op).collect::<Vec<_>>();
    assert_eq!(ops(&handle), [Op::Put]);
    t.add(&keys(&["a"]), Some(&longs(&[None]))).unwrap();
    assert_eq!(s.state.checkpoint().unwrap(), handle, "a row that changes no result is not logged");
    let again = world.open();
    let t = totals(&again.state, true).unwrap();
    assert_eq!(t.get(&keys(&["a"])).unwrap().as_primitive::<Int64Type>().value(0), 1000);
}

#[test]
fn appends_of_several_threads_are_all_counted() {
    let world = world(&[]);
    let s = world.open();
    let t = totals(&s.state, true).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..100 {
                    t.add(&keys(&["a", "b"]), Some(&longs(&[Some(1), Some(2)]))).unwrap();
                }
            });
        }
        s.state.checkpoint().unwrap();
    });
    let found = t.get(&keys(&["a", "b"])).unwrap();
    assert_eq!(found.as_primitive::<Int64Type>().values(), &[400, 800]);
}

#[test]
fn other_aggregates_say_what_differs() {
    let world = world(&[]);
    let s = world.open();
    totals(&s.state, true).unwrap();
    let other = |calls: &[NamedCall], ansi| {
        let types = (&DataType::Utf8, &DataType::Int64);
        s.state.aggregating_state("t", types, calls, ansi, None).err().unwrap()
    };
    let error = other(&[call("max", &["value"], "m")], true);
    assert_eq!(error.kind(), ErrorKind::SchemaMismatch);
    assert!(error.message().contains("`sum(value)` was removed, `max(value)` added"), "{error}");
    let error = other(&[call("sum", &["value"], "renamed")], false);
    assert!(error.message().contains("ANSI"), "{error}");
    let error = other(&[call("sum", &["price"], "p")], true);
    assert!(error.message().contains("no column `price`; they have: value"), "{error}");
    assert!(other(&[], true).message().contains("fc.count()"));
    let renamed = [call("sum", &["value"], "renamed")];
    s.state.aggregating_state("t", (&DataType::Utf8, &DataType::Int64), &renamed, true, None).unwrap();
}

#[test]
fn a_change_restores_a_local_state_that_was_lost() {
    let world = world(&[]);
    let s = world.open();
    let (t, lists) =
        (totals(&s.state, true).unwrap(), s.state.list_state("l", &DataType::Utf8, &DataType::Int64, None));
    let lists = lists.unwrap();
    for round in 1..4 {
        t.add(&keys(&["a"]), Some(&longs(&[Some(1)]))).unwrap();
        lists.append(&keys(&["a"]), &longs(&[Some(round)])).unwrap();
        s.state.checkpoint().unwrap();
        s.state.core.wait_applied();
        // As after a failed write to the local disk.
        s.state.core.shard().evict();
    }
    assert_eq!(t.get(&keys(&["a"])).unwrap().as_primitive::<Int64Type>().value(0), 3);
    assert_eq!(
        lists.get(&keys(&["a"])).unwrap().as_list::<i32>().value(0).as_ref(),
        longs(&[Some(1), Some(2), Some(3)]).as_ref()
    );
}
