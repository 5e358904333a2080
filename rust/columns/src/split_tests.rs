use super::*;
use crate::aggregate::{AggCall, schema_of};
use crate::codec::hash_key;
use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{ArrayRef, Int64Array};
use arrow_schema::{DataType, Field};
use fastchangelog_format::ErrorKind;
use std::collections::HashMap;

fn spec() -> AggSpec {
    let key = Field::new("k", DataType::Int64, true);
    let call = |function: &str, args: &[usize]| AggCall {
        function: function.into(),
        args: args.into(),
        filter: None,
        ignore_nulls: false,
        ansi: true,
        identity: format!("{function}({args:?})"),
    };
    let result = |name: &str| Field::new(name, DataType::Int64, true);
    AggSpec::new(
        1,
        schema_of(vec![key.clone(), Field::new("v", DataType::Int64, true)]),
        schema_of(vec![key, result("n"), result("sum"), result("last")]),
        vec![call("count", &[]), call("sum", &[1]), call("last", &[1])],
    )
}

fn batch(keys: impl IntoIterator<Item = i64>) -> RecordBatch {
    let keys: Vec<i64> = keys.into_iter().collect();
    let values: Int64Array = (0..keys.len() as i64).map(Some).collect();
    let columns: Vec<ArrayRef> = vec![Arc::new(Int64Array::from(keys)), Arc::new(values)];
    RecordBatch::try_new(spec().input, columns).unwrap()
}

/// (partial rows, key → (count, last value)) of all payloads.
fn merged(emitted: &Emitted, shards: u32) -> (u64, HashMap<i64, (i64, i64)>) {
    let plan = Arc::new(AggPlan::new(&spec()).unwrap());
    let mut rows = 0;
    let mut all = HashMap::new();
    for shard in 0..shards {
        let mut table = GroupTable::new(Arc::clone(&plan));
        for (_, payload) in emitted.iter().filter(|(s, _)| *s == shard) {
            rows += table.merge_payload(payload).unwrap().partial_rows;
        }
        let result = table.finish(0..table.len()).unwrap();
        let longs = |i: usize| result.column(i).as_primitive::<Int64Type>().values();
        for i in 0..table.len() {
            assert!(all.insert(longs(0)[i], (longs(1)[i], longs(3)[i])).is_none());
        }
    }
    (rows, all)
}

#[test]
fn a_skewed_key_is_one_partial_row() {
    let mut splitter = Splitter::new(&spec(), 4, 128, 1 << 20).unwrap();
    for _ in 0..10 {
        assert!(splitter.push(&batch(std::iter::repeat_n(7, 30_000))).unwrap().is_empty());
    }
    let emitted = splitter.finish().unwrap();
    assert_eq!(emitted.len(), 1, "shards without rows get nothing");
    let (rows, groups) = merged(&emitted, 4);
    assert_eq!((rows, groups), (1, HashMap::from([(7, (300_000, 29_999))])));
    assert!(splitter.finish().unwrap().is_empty());
}

#[test]
fn grouping_pauses_where_keys_are_new_and_is_tried_again() {
    let mut splitter = Splitter::new(&spec(), 2, 128, 64 << 20).unwrap();
    let mut emitted = splitter.push(&batch(0..100_000)).unwrap();
    assert!(splitter.effort.grouping, "a small table costs nothing");
    emitted.extend(splitter.push(&batch(100_000..200_000)).unwrap());
    assert!(!splitter.effort.grouping);
    emitted.extend(splitter.push(&batch(0..50_000)).unwrap());
    // The rest of the pause, and then a window of few keys.
    for _ in 0..30 {
        emitted.extend(splitter.push(&batch((0..10_000).map(|i| i % 10))).unwrap());
    }
    assert!(splitter.effort.grouping);
    emitted.extend(splitter.finish().unwrap());
    let (rows, groups) = merged(&emitted, 2);
    assert_eq!(groups.len(), 200_000);
    assert!(groups.iter().all(|(key, group)| match *key {
        0..10 => *group == (2 + 30_000, 9_990 + key),
        10..50_000 => *group == (2, *key),
        50_000..100_000 => *group == (1, *key),
        _ => *group == (1, *key - 100_000),
    }));
    assert!(rows > 250_000 && rows < 450_000, "{rows} partial rows");
}

#[test]
fn large_payloads_go_through_a_hash_table_from_front_to_back() {
    let mut splitter = Splitter::new(&spec(), 2, 128, 64 << 20).unwrap();
    splitter.push(&batch((0..50_000).chain(0..50_000))).unwrap();
    let plan = AggPlan::new(&spec()).unwrap();
    for (_, payload) in splitter.finish().unwrap() {
        let payload = crate::payload::Payload::read(&plan, &payload).unwrap();
        let parts: Vec<usize> = (0..payload.len()).map(|i| part_of(hash_key(payload.key(i)))).collect();
        assert!(parts.len() > 20_000 && parts.is_sorted());
    }
}

#[test]
fn payloads_are_capped_and_nothing_is_held_beyond_the_bound() {
    let mut splitter = Splitter::new(&spec(), 3, 128, 4_000).unwrap();
    let mut emitted = splitter.push(&batch(0..100_000)).unwrap();
    assert!(emitted.len() > 500, "most left while rows came");
    emitted.extend(splitter.finish().unwrap());
    let plan = AggPlan::new(&spec()).unwrap();
    for (_, payload) in &emitted {
        assert!(payload.len() < 4_000 + 2_000, "{} bytes", payload.len());
        crate::payload::Payload::read(&plan, payload).unwrap();
    }
    assert_eq!(merged(&emitted, 3).1.len(), 100_000);

    let mut splitter = Splitter::new(&spec(), 3, 128, 1).unwrap();
    let mut emitted = splitter.push(&batch(0..10)).unwrap();
    emitted.extend(splitter.finish().unwrap());
    assert_eq!(emitted.len(), 10, "one row per payload at least and at most");
}

#[test]
fn smaller_payloads_group_as_many_rows_as_large_ones() {
    let split = |payload_bytes: usize, small: usize| {
        let mut splitter = Splitter::new(&spec(), 3, 128, payload_bytes).unwrap().with_payloads_of(small);
        let mut emitted = splitter.push(&batch((0..50_000).map(|i| i % 2_000))).unwrap();
        emitted.extend(splitter.finish().unwrap());
        let largest = emitted.iter().map(|(_, payload)| payload.len()).max().unwrap();
        let (rows, groups) = merged(&emitted, 3);
        (rows, largest, groups)
    };
    let (large, small) = (split(1 << 20, usize::MAX), split(1 << 20, 2_000));
    assert_eq!((large.0, small.0), (2_000, 2_000), "one partial row for each key");
    assert_eq!(large.2, small.2);
    assert!(large.1 > 10_000 && small.1 < 2_000 + 2_000, "{} and {} bytes", large.1, small.1);
    assert!(split(2_000, usize::MAX).0 > 10_000, "a small `payload_size` groups little");
}

#[test]
fn impossible_settings_are_refused() {
    for (shards, groups, bytes) in [(0, 128, 1), (129, 128, 1), (1, 128, 0), (1, 128, 2 << 30), (1, 40_000, 1)] {
        assert_eq!(Splitter::new(&spec(), shards, groups, bytes).unwrap_err().kind(), ErrorKind::InvalidArgument);
    }
    let mut splitter = Splitter::new(&spec(), 1, 128, 100).unwrap();
    let wrong = RecordBatch::try_from_iter([("k", Arc::new(Int64Array::from(vec![1])) as ArrayRef)]).unwrap();
    assert_eq!(splitter.push(&wrong).unwrap_err().kind(), ErrorKind::InvalidArgument);
}

#[test]
fn accumulators_as_spark_keeps_them_reach_their_shards() {
    let mut splitter = Splitter::new(&spec(), 4, 128, 1 << 10).unwrap();
    let plan = AggPlan::new(&spec()).unwrap();
    let names: Vec<_> = plan.buffers().fields().iter().map(|f| f.name().clone()).collect();
    assert_eq!(names, ["key0", "0.count", "1.sum", "2.last", "2.valueSet"]);
    let longs = |values: &mut dyn Iterator<Item = i64>| Arc::new(values.map(Some).collect::<Int64Array>()) as ArrayRef;
    let columns = vec![
        longs(&mut (0..1000)),
        longs(&mut (0..1000).map(|i| i + 1)),
        longs(&mut (0..1000)),
        longs(&mut (0..1000).map(|i| -i)),
        Arc::new((0..1000).map(|_| Some(true)).collect::<arrow_array::BooleanArray>()),
    ];
    let batch = RecordBatch::try_new(Arc::new(plan.buffers()), columns).unwrap();
    let mut emitted = splitter.push_buffers(&batch).unwrap();
    emitted.extend(splitter.finish().unwrap());
    let (rows, groups) = merged(&emitted, 4);
    assert_eq!((rows, groups.len()), (1000, 1000));
    assert!((0..1000).all(|i| groups[&i] == (i + 1, -i)));
    let error = splitter.push_buffers(&batch.project(&[0, 1]).unwrap()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
}
