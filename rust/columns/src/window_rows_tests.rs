//! Splitters of windows against a plain model.

use crate::aggregate::{AggCall, AggPlan, AggSpec, Windows, schema_of};
use crate::split::Splitter;
use crate::table::GroupTable;
use crate::window_rows::WindowRows;
use arrow_array::cast::AsArray;
use arrow_array::types::{Int64Type, TimestampMicrosecondType};
use arrow_array::{Array, ArrayRef, Int64Array, RecordBatch, TimestampMicrosecondArray};
use arrow_schema::{DataType, Field, TimeUnit};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Time, key, value.
type Row = (Option<i64>, Option<i64>, i64);

fn spec(windows: Windows, functions: &[&str]) -> AggSpec {
    let time = Field::new("t", DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into())), true);
    let long = |name: &str| Field::new(name, DataType::Int64, true);
    let calls = functions.iter().map(|function| AggCall {
        function: (*function).into(),
        args: vec![2],
        filter: None,
        ignore_nulls: false,
        ansi: true,
        identity: format!("{function}(v)"),
    });
    let mut output = vec![time.clone(), long("k")];
    output.extend(functions.iter().map(|name| long(name)));
    let input = schema_of(vec![time, long("k"), long("v")]);
    AggSpec { windows: Some(windows), ..AggSpec::new(2, input, schema_of(output), calls.collect()) }
}

fn batch(spec: &AggSpec, rows: &[Row]) -> RecordBatch {
    let times: TimestampMicrosecondArray = rows.iter().map(|row| row.0).collect();
    let columns: Vec<ArrayRef> = vec![
        Arc::new(times.with_timezone("UTC")),
        Arc::new(rows.iter().map(|row| row.1).collect::<Int64Array>()),
        Arc::new(rows.iter().map(|row| Some(row.2)).collect::<Int64Array>()),
    ];
    RecordBatch::try_new(Arc::clone(&spec.input), columns).unwrap()
}

/// (end, key) → results, and the number of input rows that payloads tell of.
type Split = (BTreeMap<(i64, Option<i64>), Vec<i64>>, u64);

fn split(spec: &AggSpec, rows: &[Row], payload_bytes: usize) -> Split {
    let (plan, shards) = (Arc::new(AggPlan::new(spec).unwrap()), 3);
    let mut splitter = Splitter::new(spec, shards, 128, payload_bytes).unwrap();
    let mut emitted = Vec::new();
    for part in rows.chunks(7) {
        emitted.extend(splitter.push(&batch(spec, part)).unwrap());
    }
    emitted.extend(splitter.finish().unwrap());
    let (mut found, mut input) = (BTreeMap::new(), 0);
    for shard in 0..shards {
        let mut table = GroupTable::new(Arc::clone(&plan));
        for (_, payload) in emitted.iter().filter(|(own, _)| *own == shard) {
            input += table.merge_payload(payload).unwrap().input_rows;
        }
        let result = table.finish(0..table.len()).unwrap();
        let ends = result.column(0).as_primitive::<TimestampMicrosecondType>();
        let long = |i: usize| result.column(i).as_primitive::<Int64Type>();
        for row in 0..table.len() {
            let key = long(1).is_valid(row).then(|| long(1).value(row));
            let results = (2..result.num_columns()).map(|i| long(i).value(row)).collect();
            assert!(found.insert((ends.value(row), key), results).is_none(), "a group is at one shard");
        }
    }
    (found, input)
}

fn windows() -> impl Strategy<Value = Windows> {
    (1..30_i64, 1..30_i64).prop_flat_map(|(a, b)| {
        let (size, slide) = (a.max(b), a.min(b));
        (1 - slide..slide).prop_map(move |start| Windows { size, slide, start })
    })
}

fn rows() -> impl Strategy<Value = Vec<Row>> {
    let key = prop_oneof![Just(None), (0..3_i64).prop_map(Some)];
    prop::collection::vec((prop::option::weighted(0.9, -60..60_i64), key, -100..100_i64), 0..120)
}

proptest! {
    #[test]
    fn each_window_gets_its_rows(windows in windows(), rows in rows(), few in any::<bool>(), ordered in any::<bool>()) {
        // `last` depends on the order of rows, so that panes cannot be used.
        let functions: &[&str] = if ordered { &["count", "sum", "last"] } else { &["count", "sum", "max"] };
        let spec = spec(windows, functions);
        let plan = AggPlan::new(&spec).unwrap();
        let panes = !ordered && windows.slide < windows.size;
        prop_assert_eq!(matches!(WindowRows::of(&plan), Some(WindowRows::Panes(_))), panes);
        let mut expected: BTreeMap<(i64, Option<i64>), Vec<i64>> = BTreeMap::new();
        for &(time, key, value) in rows.iter().filter(|row| row.0.is_some()) {
            for end in windows.ends(time.unwrap()) {
                let group = expected.entry((end, key)).or_insert_with(|| vec![0, 0, i64::MIN]);
                group[0] += 1;
                group[1] += value;
                group[2] = if ordered { value } else { group[2].max(value) };
            }
        }
        let (found, input) = split(&spec, &rows, if few { 40 } else { 1 << 20 });
        prop_assert_eq!(found, expected.clone());
        // Rows without a time may come after the last payload.
        prop_assert!(input <= rows.len() as u64 && input >= rows.iter().filter(|row| row.0.is_some()).count() as u64);
    }
}

#[test]
fn panes_of_many_windows_leave_in_bounded_parts() {
    let windows = Windows { size: 600, slide: 1, start: 0 };
    let spec = spec(windows, &["count", "sum"]);
    let rows: Vec<Row> = (0..400).map(|i| (Some(i % 50), Some(i), 1)).collect();
    let (found, _) = split(&spec, &rows, 1 << 12);
    assert_eq!(found.len(), 400 * 600);
    assert!(found.values().all(|results| results[..] == [1, 1]));
}
