//! Property: splitters, payloads, tables and bases together equal a plain map of rows.

use super::aggregate::{AggCall, AggPlan, AggSpec, schema_of};
use super::split::Splitter;
use super::table::GroupTable;
use arrow_array::cast::AsArray;
use arrow_array::types::{
    Date32Type, Decimal128Type, DurationMicrosecondType, Float32Type, Float64Type, Int32Type, Int64Type,
    TimestampMicrosecondType,
};
use arrow_array::{
    Array, ArrayRef, BinaryArray, BooleanArray, Date32Array, Decimal128Array, DurationMicrosecondArray, Float32Array,
    Float64Array, Int32Array, Int64Array, RecordBatch, StringArray, StructArray, TimestampMicrosecondArray,
};
use arrow_schema::{DataType, Field, Fields, SchemaRef, TimeUnit};
use fastchangelog_format::model::ids::{key_group_of, shard_of};
use proptest::prelude::*;
use proptest::sample::select;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

#[derive(Debug, Clone)]
struct Row {
    text_key: Option<String>,
    float_key: Option<f64>,
    long: Option<i64>,
    int: Option<i32>,
    double: Option<f64>,
    float: Option<f32>,
    decimal: Option<i128>,
    text: Option<String>,
    bytes: Option<Vec<u8>>,
    flag: Option<bool>,
    date: Option<i32>,
    time: Option<i64>,
    pair: Option<(Option<i32>, Option<f64>)>,
    filter: Option<bool>,
    duration: Option<i64>,
    /// Distinct, so that `max_by` has no ties.
    order: Option<i64>,
}

/// One value, comparable.
#[derive(Debug, Clone)]
enum Val {
    Null,
    Int(i128),
    Float(f64),
    Text(String),
    Bytes(Vec<u8>),
    Pair(Box<Val>, Box<Val>),
}

impl PartialEq for Val {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Val::Null, Val::Null) => true,
            (Val::Int(a), Val::Int(b)) => a == b,
            // Bit by bit, so that -0.0 is told from 0.0; NaN by kind.
            (Val::Float(a), Val::Float(b)) => a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan()),
            (Val::Text(a), Val::Text(b)) => a == b,
            (Val::Bytes(a), Val::Bytes(b)) => a == b,
            (Val::Pair(a, b), Val::Pair(c, d)) => a == c && b == d,
            _ => false,
        }
    }
}

fn spark_order(a: &Val, b: &Val) -> std::cmp::Ordering {
    use std::cmp::Ordering::{Equal, Greater, Less};
    match (a, b) {
        (Val::Null, Val::Null) => Equal,
        (Val::Null, _) => Less,
        (_, Val::Null) => Greater,
        (Val::Int(a), Val::Int(b)) => a.cmp(b),
        (Val::Float(a), Val::Float(b)) => match (a.is_nan(), b.is_nan()) {
            (true, true) => Equal,
            (true, false) => Greater,
            (false, true) => Less,
            _ => a.partial_cmp(b).unwrap(),
        },
        (Val::Text(a), Val::Text(b)) => a.as_bytes().cmp(b.as_bytes()),
        (Val::Bytes(a), Val::Bytes(b)) => a.cmp(b),
        (Val::Pair(a, b), Val::Pair(c, d)) => spark_order(a, c).then_with(|| spark_order(b, d)),
        _ => panic!("values of two types"),
    }
}

impl Row {
    fn value(&self, column: usize) -> Val {
        fn int<T: Into<i128>>(v: Option<T>) -> Val {
            v.map_or(Val::Null, |v| Val::Int(v.into()))
        }
        fn float(v: Option<f64>) -> Val {
            v.map_or(Val::Null, Val::Float)
        }
        match column {
            0 => self.text_key.clone().map_or(Val::Null, Val::Text),
            1 => float(self.float_key),
            2 => int(self.long),
            3 => int(self.int),
            4 => float(self.double),
            5 => float(self.float.map(f64::from)),
            6 => int(self.decimal),
            7 => self.text.clone().map_or(Val::Null, Val::Text),
            8 => self.bytes.clone().map_or(Val::Null, Val::Bytes),
            9 => int(self.flag),
            10 => int(self.date),
            11 => int(self.time),
            12 => self.pair.map_or(Val::Null, |(a, b)| Val::Pair(Box::new(int(a)), Box::new(float(b)))),
            13 => int(self.filter),
            14 => int(self.duration),
            _ => int(self.order),
        }
    }
}

fn pair_type() -> DataType {
    DataType::Struct(Fields::from(vec![
        Field::new("a", DataType::Int32, true),
        Field::new("b", DataType::Float64, true),
    ]))
}

fn input_schema() -> SchemaRef {
    let time = DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into()));
    let types = [
        DataType::Utf8,
        DataType::Float64,
        DataType::Int64,
        DataType::Int32,
        DataType::Float64,
        DataType::Float32,
        DataType::Decimal128(10, 2),
        DataType::Utf8,
        DataType::Binary,
        DataType::Boolean,
        DataType::Date32,
        time,
        pair_type(),
        DataType::Boolean,
        DataType::Duration(TimeUnit::Microsecond),
        DataType::Int64,
    ];
    schema_of(types.into_iter().enumerate().map(|(i, t)| Field::new(format!("c{i}"), t, true)).collect())
}

fn batch(rows: &[Row]) -> RecordBatch {
    let pairs: Vec<bool> = rows.iter().map(|r| r.pair.is_some()).collect();
    let a: Int32Array = rows.iter().map(|r| r.pair.and_then(|p| p.0)).collect();
    let b: Float64Array = rows.iter().map(|r| r.pair.and_then(|p| p.1)).collect();
    let DataType::Struct(fields) = pair_type() else { unreachable!() };
    let decimals: Decimal128Array = rows.iter().map(|r| r.decimal).collect();
    let columns: Vec<ArrayRef> = vec![
        Arc::new(rows.iter().map(|r| r.text_key.clone()).collect::<StringArray>()),
        Arc::new(rows.iter().map(|r| r.float_key).collect::<Float64Array>()),
        Arc::new(rows.iter().map(|r| r.long).collect::<Int64Array>()),
        Arc::new(rows.iter().map(|r| r.int).collect::<Int32Array>()),
        Arc::new(rows.iter().map(|r| r.double).collect::<Float64Array>()),
        Arc::new(rows.iter().map(|r| r.float).collect::<Float32Array>()),
        Arc::new(decimals.with_precision_and_scale(10, 2).unwrap()),
        Arc::new(rows.iter().map(|r| r.text.clone()).collect::<StringArray>()),
        Arc::new(rows.iter().map(|r| r.bytes.clone()).collect::<BinaryArray>()),
        Arc::new(rows.iter().map(|r| r.flag).collect::<BooleanArray>()),
        Arc::new(rows.iter().map(|r| r.date).collect::<Date32Array>()),
        Arc::new(rows.iter().map(|r| r.time).collect::<TimestampMicrosecondArray>().with_timezone("UTC")),
        Arc::new(StructArray::new(fields, vec![Arc::new(a), Arc::new(b)], Some(pairs.into()))),
        Arc::new(rows.iter().map(|r| r.filter).collect::<BooleanArray>()),
        Arc::new(rows.iter().map(|r| r.duration).collect::<DurationMicrosecondArray>()),
        Arc::new(rows.iter().map(|r| r.order).collect::<Int64Array>()),
    ];
    RecordBatch::try_new(input_schema(), columns).unwrap()
}

fn cell(array: &ArrayRef, i: usize) -> Val {
    if array.is_null(i) {
        return Val::Null;
    }
    match array.data_type() {
        DataType::Int64 => Val::Int(array.as_primitive::<Int64Type>().value(i).into()),
        DataType::Int32 => Val::Int(array.as_primitive::<Int32Type>().value(i).into()),
        DataType::Date32 => Val::Int(array.as_primitive::<Date32Type>().value(i).into()),
        DataType::Timestamp(..) => Val::Int(array.as_primitive::<TimestampMicrosecondType>().value(i).into()),
        DataType::Duration(..) => Val::Int(array.as_primitive::<DurationMicrosecondType>().value(i).into()),
        DataType::Decimal128(..) => Val::Int(array.as_primitive::<Decimal128Type>().value(i)),
        DataType::Float64 => Val::Float(array.as_primitive::<Float64Type>().value(i)),
        DataType::Float32 => Val::Float(array.as_primitive::<Float32Type>().value(i).into()),
        DataType::Boolean => Val::Int(array.as_boolean().value(i).into()),
        DataType::Utf8 => Val::Text(array.as_string::<i32>().value(i).into()),
        DataType::Binary => Val::Bytes(array.as_binary::<i32>().value(i).into()),
        DataType::Struct(_) => {
            let array = array.as_struct();
            Val::Pair(Box::new(cell(array.column(0), i)), Box::new(cell(array.column(1), i)))
        }
        other => panic!("{other}"),
    }
}

/// Every function over every column that takes it, each with and without a filter.
fn calls() -> Vec<(AggCall, DataType)> {
    let input = input_schema();
    let mut calls = Vec::new();
    for filter in [None, Some(13)] {
        let mut add = |function: &str, args: &[usize], ignore_nulls: bool, result: DataType| {
            let identity = format!("{function}({args:?}) nulls {ignore_nulls} WHERE {filter:?}");
            let call =
                AggCall { function: function.into(), args: args.into(), filter, ignore_nulls, ansi: true, identity };
            calls.push((call, result));
        };
        add("count", &[], false, DataType::Int64);
        add("count", &[2], false, DataType::Int64);
        add("count", &[3, 12, 7], false, DataType::Int64);
        for (column, sum, avg) in [
            (2, DataType::Int64, DataType::Float64),
            (3, DataType::Int64, DataType::Float64),
            (4, DataType::Float64, DataType::Float64),
            (5, DataType::Float64, DataType::Float64),
            (6, DataType::Decimal128(20, 2), DataType::Decimal128(14, 6)),
            (14, input.field(14).data_type().clone(), input.field(14).data_type().clone()),
        ] {
            add("sum", &[column], false, sum);
            add("avg", &[column], false, avg);
        }
        for column in [2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 14] {
            let same = input.field(column).data_type().clone();
            add("min", &[column], false, same.clone());
            add("max", &[column], false, same.clone());
            add("first", &[column], false, same.clone());
            add("first", &[column], true, same.clone());
            add("last", &[column], false, same.clone());
            add("last", &[column], true, same.clone());
            add("max_by", &[column, 15], false, same.clone());
            add("min_by", &[column, 15], false, same);
        }
        add("bool_and", &[9], false, DataType::Boolean);
        add("bool_or", &[9], false, DataType::Boolean);
    }
    calls
}

fn spec(calls: &[(AggCall, DataType)]) -> AggSpec {
    let input = input_schema();
    let mut output: Vec<Field> = input.fields()[..2].iter().map(|f| f.as_ref().clone()).collect();
    output.extend(calls.iter().map(|(call, t)| Field::new(&call.identity, t.clone(), true)));
    AggSpec::new(2, input, schema_of(output), calls.iter().map(|(call, _)| call.clone()).collect())
}

/// The function, by its definition.
fn expected(call: &AggCall, rows: &[&Row]) -> Val {
    let rows: Vec<&&Row> = rows.iter().filter(|r| call.filter.is_none() || r.filter == Some(true)).collect();
    let column = |c: usize| rows.iter().map(move |r| r.value(c));
    let is_null = |v: &Val| matches!(v, Val::Null);
    let arg = call.args.first().copied().unwrap_or_default();
    let values: Vec<Val> = column(arg).filter(|v| !is_null(v)).collect();
    match call.function.as_str() {
        "count" => {
            let full = rows.iter().filter(|r| call.args.iter().all(|c| !is_null(&r.value(*c))));
            Val::Int(full.count() as i128)
        }
        "sum" | "avg" if values.is_empty() => Val::Null,
        function @ ("sum" | "avg") => {
            let n = values.len() as i128;
            let ints: i128 = values.iter().map(|v| if let Val::Int(i) = v { *i } else { 0 }).sum();
            let floats: f64 = values.iter().map(|v| if let Val::Float(f) = v { *f } else { 0.0 }).sum::<f64>() + 0.0;
            let rounded = |sum: i128| {
                let (q, r) = (sum / n, sum % n);
                Val::Int(q + if r.abs() * 2 >= n { sum.signum() } else { 0 })
            };
            #[expect(clippy::cast_precision_loss)]
            match (function, arg) {
                ("sum", 4 | 5) => Val::Float(floats),
                ("sum", _) => Val::Int(ints),
                (_, 4 | 5) => Val::Float(floats / n as f64),
                (_, 6) => rounded(ints * 10_000),
                (_, 14) => rounded(ints),
                _ => Val::Float(ints as f64 / n as f64),
            }
        }
        "min" | "bool_and" => {
            let least = |a: Val, b: Val| if spark_order(&b, &a).is_lt() { b } else { a };
            values.into_iter().reduce(least).unwrap_or(Val::Null)
        }
        "max" | "bool_or" => {
            let most = |a: Val, b: Val| if spark_order(&b, &a).is_gt() { b } else { a };
            values.into_iter().reduce(most).unwrap_or(Val::Null)
        }
        "first" | "last" => {
            let all: Vec<Val> = column(arg).filter(|v| !call.ignore_nulls || !is_null(v)).collect();
            let value = if call.function == "first" { all.first() } else { all.last() };
            value.cloned().unwrap_or(Val::Null)
        }
        _ => {
            let ordered = rows.iter().filter(|r| r.order.is_some());
            let row = if call.function == "max_by" {
                ordered.max_by_key(|r| r.order)
            } else {
                ordered.min_by_key(|r| r.order)
            };
            row.map_or(Val::Null, |r| r.value(arg))
        }
    }
}

fn key_of(row: &Row) -> (Option<String>, Option<u64>) {
    let float = row.float_key.map(|f| if f.is_nan() { f64::NAN } else { f + 0.0 });
    (row.text_key.clone(), float.map(f64::to_bits))
}

const SHARDS: u32 = 3;
const GROUPS: u16 = 16;

/// Runs tasks through splitters and batches through tables: `batches` of tasks, each task some batches of rows.
fn run(spec: &AggSpec, batches: &[Vec<Vec<RecordBatch>>], payload_bytes: usize) -> Vec<RecordBatch> {
    let plan = Arc::new(AggPlan::new(spec).unwrap());
    let mut state: HashMap<Vec<u8>, Vec<u8>> = HashMap::new();
    let mut last: BTreeMap<Vec<u8>, RecordBatch> = BTreeMap::new();
    for tasks in batches {
        let mut tables: Vec<GroupTable> = (0..SHARDS).map(|_| GroupTable::new(Arc::clone(&plan))).collect();
        for task in tasks {
            let mut splitter = Splitter::new(spec, SHARDS, GROUPS, payload_bytes).unwrap();
            let mut emitted = Vec::new();
            for batch in task {
                emitted.extend(splitter.push(batch).unwrap());
            }
            emitted.extend(splitter.finish().unwrap());
            let mut input = 0;
            for (shard, payload) in emitted {
                input += tables[shard as usize].merge_payload(&payload).unwrap().input_rows;
            }
            assert_eq!(input, task.iter().map(|b| b.num_rows() as u64).sum::<u64>());
        }
        for (shard, table) in (0..).zip(&mut tables) {
            let mut scratch = Vec::new();
            for i in 0..table.len() {
                assert_eq!(shard_of(key_group_of(table.hash(i), GROUPS), SHARDS, GROUPS), shard);
                let key = table.key(i).to_vec();
                let base = state.get(&key).cloned();
                let changed = table.combine_base(i, base.as_deref()).unwrap();
                let row = table.row(i, &mut scratch).to_vec();
                assert_eq!(changed, base.as_ref() != Some(&row));
                state.insert(key.clone(), row);
                last.insert(key, table.finish(i..i + 1).unwrap());
            }
        }
    }
    last.into_values().collect()
}

fn option<S: Strategy>(s: S) -> impl Strategy<Value = Option<S::Value>> {
    prop::option::weighted(0.75, s)
}

fn row() -> impl Strategy<Value = Row> {
    // Floats are whole numbers, so that their sums do not depend on the order of addition.
    let double = || select(vec![0.0, -0.0, 1.0, -3.0, 1e6, f64::NAN, f64::INFINITY, -7.0]);
    let float = select(vec![0.0f32, -0.0, 2.0, -5.0, f32::NAN, f32::INFINITY, 8.0]);
    let text = || "[a-c]{0,2}|[äß€😀]{1,3}";
    let keys = (option(text()), option(select(vec![0.0, -0.0, f64::NAN, -f64::NAN, 1.5])));
    let numbers = (option(any::<i32>()), option(any::<i16>()), option(double()), option(float));
    let more = (
        option(-(10i128.pow(10)) + 1..10i128.pow(10)),
        option(text()),
        option(prop::collection::vec(any::<u8>(), 0..4)),
    );
    let rest =
        (option(any::<bool>()), option(any::<i32>()), option(any::<i64>()), option((option(0..3), option(double()))));
    let last = (option(any::<bool>()), option(any::<i32>()));
    (keys, numbers, more, rest, last).prop_map(|(keys, numbers, more, rest, last)| Row {
        text_key: keys.0,
        float_key: keys.1,
        long: numbers.0.map(i64::from),
        int: numbers.1.map(i32::from),
        double: numbers.2,
        float: numbers.3,
        decimal: more.0,
        text: more.1,
        bytes: more.2,
        flag: rest.0,
        date: rest.1,
        time: rest.2,
        pair: rest.3,
        filter: last.0,
        duration: last.1.map(i64::from),
        order: None,
    })
}

fn rows() -> impl Strategy<Value = Vec<Row>> {
    prop::collection::vec((row(), any::<bool>(), any::<u32>()), 0..120).prop_map(|rows| {
        let n = rows.len() as i64;
        // Distinct orderings in an order of their own.
        rows.into_iter()
            .enumerate()
            .map(|(i, (row, ordered, mix))| Row {
                order: ordered.then_some(i64::from(mix) * (n + 1) + i as i64),
                ..row
            })
            .collect()
    })
}

/// Cuts `items` at the given places (taken modulo the length).
fn cut<T: Clone>(items: &[T], at: &[usize]) -> Vec<Vec<T>> {
    let mut at: Vec<usize> = at.iter().map(|at| at % (items.len() + 1)).collect();
    at.extend([0, items.len()]);
    at.sort_unstable();
    at.windows(2).map(|w| items[w[0]..w[1]].to_vec()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn all_functions_equal_the_model(
        rows in rows(),
        cuts in prop::collection::vec(0usize..200, 0..6),
        tasks in prop::collection::vec(0usize..200, 0..3),
        batches in prop::collection::vec(0usize..200, 0..2),
        payload_bytes in select(vec![1usize, 300, 5_000, 1 << 20]),
    ) {
        let calls = calls();
        let spec = spec(&calls);
        let pieces: Vec<RecordBatch> = cut(&rows, &cuts).iter().map(|piece| batch(piece)).collect();
        let tasks = cut(&pieces, &tasks);
        let result = run(&spec, &cut(&tasks, &batches), payload_bytes);

        let mut groups: HashMap<_, Vec<&Row>> = HashMap::new();
        for row in &rows {
            groups.entry(key_of(row)).or_default().push(row);
        }
        prop_assert_eq!(result.len(), groups.len());
        for one in &result {
            let float = cell(one.column(1), 0);
            let key = (
                if let Val::Text(t) = cell(one.column(0), 0) { Some(t) } else { None },
                if let Val::Float(f) = float { Some(f.to_bits()) } else { None },
            );
            let members = &groups[&key];
            for (i, (call, result_type)) in calls.iter().enumerate() {
                let column = one.column(2 + i);
                prop_assert_eq!(column.data_type(), result_type);
                prop_assert_eq!(cell(column, 0), expected(call, members), "{} of {:?}", call.identity, key);
            }
        }
    }
}
