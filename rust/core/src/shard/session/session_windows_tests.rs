//! Session windows against a plain model: results, state and handles.

use super::super::super::testing::{GROUPS, World, seeds};
use super::super::{Committed, Session, Watermarks};
use super::*;
use arrow_array::cast::AsArray;
use arrow_array::types::{Int64Type, TimestampMicrosecondType};
use arrow_array::{ArrayRef, Int64Array, RecordBatch, StringArray, TimestampMicrosecondArray};
use arrow_schema::{DataType, Field, Schema, TimeUnit};
use fastchangelog_columns::aggregate::{AggCall, AggPlan, AggSpec, OutputMode};
use fastchangelog_columns::split::Splitter;
use fastchangelog_format::model::{BatchId, ShardHandle};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::collections::{BTreeMap, BTreeSet};

#[derive(Clone, Debug)]
struct Row {
    key: String,
    start: i64,
    end: i64,
    value: i64,
    text: String,
}

/// A window: start, end, count, sum, first and last text.
type Window = (i64, i64, i64, i64, String, String);
type Model = BTreeMap<String, Vec<Window>>;
type Found = BTreeSet<(String, Window)>;

/// Without `ordered` the results do not depend on the order of rows; then first and last text are empty.
fn spec(mode: OutputMode, ordered: bool) -> AggSpec {
    let call = |function: &str, args: &[usize]| AggCall {
        function: function.into(),
        args: args.to_vec(),
        filter: None,
        ignore_nulls: false,
        ansi: true,
        identity: format!("{function}({args:?})"),
    };
    let field = |name: &str, t: &DataType| Field::new(name, t.clone(), true);
    let (time, text, long) = (DataType::Timestamp(TimeUnit::Microsecond, None), DataType::Utf8, DataType::Int64);
    let keys = vec![field("k", &text), field("start", &time), field("end", &time)];
    let input = [keys.clone(), vec![field("v", &long), field("s", &text)]].concat();
    let mut output = [keys, vec![field("n", &long), field("sum", &long)]].concat();
    let mut calls = vec![call("count", &[]), call("sum", &[3])];
    if ordered {
        output.extend([field("first", &text), field("last", &text)]);
        calls.extend([call("first", &[4]), call("last", &[4])]);
    }
    let new = AggSpec::new(3, Arc::new(Schema::new(input)), Arc::new(Schema::new(output)), calls);
    AggSpec { output_mode: mode, session_windows: true, ..new }
}

fn payloads(rows: &[Row], spec: &AggSpec) -> Vec<Vec<u8>> {
    let mut splitter = Splitter::new(spec, 1, GROUPS, 1 << 13).unwrap();
    let mut out = Vec::new();
    for chunk in rows.chunks(300) {
        let columns: Vec<ArrayRef> = vec![
            Arc::new(StringArray::from_iter_values(chunk.iter().map(|row| &row.key))),
            Arc::new(chunk.iter().map(|row| Some(row.start)).collect::<TimestampMicrosecondArray>()),
            Arc::new(chunk.iter().map(|row| Some(row.end)).collect::<TimestampMicrosecondArray>()),
            Arc::new(Int64Array::from_iter_values(chunk.iter().map(|row| row.value))),
            Arc::new(StringArray::from_iter_values(chunk.iter().map(|row| &row.text))),
        ];
        out.extend(splitter.push(&RecordBatch::try_new(Arc::clone(&spec.input), columns).unwrap()).unwrap());
    }
    out.extend(splitter.finish().unwrap());
    out.into_iter().map(|(_, payload)| payload).collect()
}

/// One batch of the model: the windows that it returns, and the least and the greatest number of late ones.
fn apply(rows: &[Row], model: &mut Model, marks: Watermarks, mode: OutputMode, ordered: bool) -> (Found, (u64, u64)) {
    let is = |end: i64, mark: i64| mode != OutputMode::Complete && end <= mark;
    let text = |row: &Row| if ordered { row.text.clone() } else { String::new() };
    let (mut arrived, mut late, mut late_rows) = (BTreeMap::<_, Vec<&Row>>::new(), BTreeSet::new(), 0);
    for row in rows {
        if row.end <= marks.late {
            late.insert((&row.key, row.start, row.end));
            late_rows += 1;
        } else {
            arrived.entry(row.key.clone()).or_default().push(row);
        }
    }
    for (key, mut rows) in arrived {
        rows.sort_by_key(|row| (row.start, row.end));
        let stored = model.remove(&key).unwrap_or_default();
        let mut parts: Vec<Window> = stored;
        parts.extend(rows.iter().map(|row| (row.start, row.end, 1, row.value, text(row), text(row))));
        parts.sort_by_key(|window| window.0);
        let mut merged: Vec<Window> = Vec::new();
        for part in parts {
            match merged.last_mut() {
                Some(last) if part.0 <= last.1 => {
                    *last = (last.0, last.1.max(part.1), last.2 + part.2, last.3 + part.3, last.4.clone(), part.5);
                }
                _ => merged.push(part),
            }
        }
        model.insert(key, merged);
    }
    let mut returned = Found::new();
    for (key, windows) in model.iter_mut() {
        for window in windows.iter() {
            if mode == OutputMode::Complete || is(window.1, marks.closed) {
                returned.insert((key.clone(), window.clone()));
            }
        }
        windows.retain(|window| !is(window.1, marks.closed));
    }
    model.retain(|_, windows| !windows.is_empty());
    (returned, (late.len() as u64, late_rows))
}

fn collect(results: impl Iterator<Item = Result<RecordBatch>>, ordered: bool) -> Result<Found> {
    let mut found = Found::new();
    for batch in results {
        let batch = batch?;
        let number = |i: usize, row: usize| batch.column(i).as_primitive::<Int64Type>().value(row);
        let time = |i: usize, row: usize| batch.column(i).as_primitive::<TimestampMicrosecondType>().value(row);
        let text = |i: usize, row| String::from_utf8(batch.column(i).as_binary::<i32>().value(row).to_vec()).unwrap();
        let edge = |i: usize, row| if ordered { text(i, row) } else { String::new() };
        for row in 0..batch.num_rows() {
            let window = (time(1, row), time(2, row), number(3, row), number(4, row), edge(5, row), edge(6, row));
            assert!(found.insert((text(0, row), window)), "a window came out twice");
        }
    }
    Ok(found)
}

#[derive(Clone, Copy, Debug)]
struct Shape {
    mode: OutputMode,
    ordered: bool,
    /// Times are multiples of it, so that windows touch and rows are equal.
    grain: i64,
    /// Greatest gap.
    gap: i64,
    keys: u32,
    rows: usize,
}

fn random_rows(rng: &mut StdRng, shape: Shape, now: i64) -> Vec<Row> {
    let rows = rng.random_range(0..=shape.rows);
    (0..rows)
        .map(|i| {
            let start = now + rng.random_range(-150_000..100_000);
            let start = start - start.rem_euclid(shape.grain);
            let gap = if rng.random_bool(0.05) { 200_000 } else { rng.random_range(1..=shape.gap) };
            let gap = (gap / shape.grain).max(1) * shape.grain;
            let key = rng.random_range(0..shape.keys);
            let key = format!("key{key}{}", "k".repeat(key as usize % 20));
            Row { key, start, end: start + gap, value: rng.random_range(-9..100), text: format!("{i}") }
        })
        .collect()
}

fn run(
    shard: &Arc<crate::shard::Shard>,
    shape: Shape,
    base: Option<&ShardHandle>,
    rows: &[Row],
    marks: Watermarks,
) -> Result<(Committed, Found)> {
    let spec = spec(shape.mode, shape.ordered);
    let plan = Arc::new(AggPlan::new(&spec).unwrap());
    let batch = BatchId(base.map_or(0, |handle| handle.batch.0 + 1));
    let mut session = Session::open(shard, plan, base.cloned(), batch, Some(marks))?;
    for payload in payloads(rows, &spec) {
        session.merge(&payload)?;
    }
    let results = session.finish()?;
    let found = collect(results, shape.ordered)?;
    Ok((session.commit()?, found))
}

/// Invariants of the live state: each key has its windows and one entry in the index.
fn check_state(shard: &crate::shard::Shard, model: &Model, handle: &ShardHandle) {
    let (mut indexed, mut listed) = (BTreeMap::new(), BTreeMap::new());
    let (mut windows, mut bytes) = (0, 0);
    let live = shard.live.read();
    let live = live.as_ref().unwrap();
    assert_eq!(live.version, Some(handle.version));
    live.keyed
        .for_each(&mut |entry| {
            let key = entry.key.to_vec();
            let Some(value) = entry.value else { return Ok(()) };
            bytes += (key.len() + value.len()) as u64;
            if entry.state == WINDOW_ENDS {
                let due = fastchangelog_columns::codec::time_of(&key).unwrap();
                assert!(value.is_empty() && indexed.insert(key[9..].to_vec(), due).is_none());
            } else {
                let list = WindowList::parse(value).unwrap();
                let ends: Vec<i64> = list.iter().map(|window| window.unwrap().1).collect();
                assert!(ends.iter().all(|end| *end >= list.due), "invariant 2");
                windows += ends.len();
                listed.insert(key, list.due);
            }
            Ok(())
        })
        .unwrap();
    assert_eq!(indexed, listed, "invariant 1");
    assert_eq!((listed.len(), windows), (model.len(), model.values().map(Vec::len).sum()));
    assert_eq!(handle.state_bytes, bytes);
}

fn history(seed: u64, shape: Shape) {
    println!("seed {seed} {shape:?}");
    let mut rng = StdRng::seed_from_u64(seed);
    let mut world =
        World::new(&[("session_memory", "64KiB"), ("max_handle_segments", "4"), ("result_batch_rows", "50")]);
    let mut shard = world.shard(None);
    let (mut model, mut base) = (Model::new(), None::<ShardHandle>);
    let (mut late, mut now, mut first) = (0, 100_000, None);
    for batch in 0..9 {
        let rows = random_rows(&mut rng, shape, now);
        let closed = if rng.random_bool(0.2) { late } else { late.max(now - 50_000) };
        let marks = Watermarks { late, before: late, closed, first };
        let mut next = model.clone();
        let (expected, (least, most)) = apply(&rows, &mut next, marks, shape.mode, shape.ordered);
        let mut attempts = Vec::new();
        for _ in 0..rng.random_range(1..3) {
            let (committed, found) = run(&shard, shape, base.as_ref(), &rows, marks).unwrap();
            assert!(found == expected, "seed {seed}: results of batch {batch}: {found:?} {expected:?}");
            let handle = committed.handle.unwrap();
            assert_eq!(handle.state_keys, 2 * next.len() as u64, "a list and an index entry for each key");
            let counted = committed.metrics.get("late_groups").copied().unwrap_or_default();
            assert!((least..=most).contains(&counted), "seed {seed}: {counted} of {least} to {most} are late");
            if shape.mode == OutputMode::Append {
                let bound = committed.next_close.unwrap();
                let ends = next.values().flatten().map(|window| window.1).min();
                assert!(bound > closed && ends.is_none_or(|end| bound <= end), "seed {seed}: batch {batch}");
            }
            attempts.push((handle, committed.next_close));
        }
        let (handle, next_close) = attempts.swap_remove(rng.random_range(0..attempts.len()));
        (base, model, late) = (Some(handle), next, closed);
        first = next_close.filter(|_| rng.random_bool(0.7));
        now += rng.random_range(0..120) * 1000;
        match rng.random_range(0..4) {
            0 => shard = world.shard(None),
            1 => {
                let marks = Watermarks { late, before: late, closed: late, first: None };
                let again = run(&shard, shape, base.as_ref(), &[], marks).unwrap().0.handle.unwrap();
                check_state(&shard, &model, base.as_ref().unwrap());
                base = Some(again);
                if let Some(run) = shard.begin_materialize().unwrap() {
                    run.run().unwrap();
                    run.complete().unwrap();
                }
            }
            _ => {}
        }
    }
    // All that is left, on another machine.
    let marks = Watermarks { late, before: late, closed: i64::MAX - 1, first };
    let (expected, _) = apply(&[], &mut model, marks, shape.mode, shape.ordered);
    let (committed, found) = run(&world.shard(None), shape, base.as_ref(), &[], marks).unwrap();
    assert!(found == expected, "seed {seed}: at the end");
    let handle = committed.handle.unwrap();
    assert_eq!(handle.state_keys, 2 * model.len() as u64);
    assert!(shape.mode == OutputMode::Complete || handle.state_bytes == 0, "seed {seed}");
}

#[test]
fn session_windows_are_those_of_a_model() {
    for seed in seeds(2) {
        for mode in [OutputMode::Append, OutputMode::Complete] {
            for ordered in [true, false] {
                let shape = Shape { mode, ordered, grain: 1_000, gap: 10_000, keys: 700, rows: 3_000 };
                history(seed, shape);
                history(seed, Shape { grain: 500, gap: 3_000, keys: 3, rows: 300, ..shape });
                history(seed, Shape { grain: 1, gap: 20, keys: 2, rows: 3_000, ..shape });
            }
        }
    }
}

fn row(start: i64, end: i64, text: &str) -> Row {
    Row { key: "k".into(), start, end, value: 1, text: text.into() }
}

const ORDERED: Shape = Shape { mode: OutputMode::Append, ordered: true, grain: 1, gap: 1, keys: 1, rows: 1 };

fn windows(found: &Found) -> Vec<(i64, i64, i64, &str, &str)> {
    found.iter().map(|(_, window)| (window.0, window.1, window.2, &*window.4, &*window.5)).collect()
}

#[test]
fn touching_windows_join_by_start_and_late_ones_stay_out() {
    let mut world = World::new(&[]);
    let shard = world.shard(None);
    let marks = |late, closed, first| Watermarks { late, before: late, closed, first };
    let rows =
        [row(20, 30, "c"), row(0, 10, "late"), row(0, 10, "late"), row(5, 11, "a"), row(30, 40, "d"), row(50, 60, "e")];
    let (first, found) = run(&shard, ORDERED, None, &rows, marks(10, 10, None)).unwrap();
    assert!(found.is_empty());
    assert_eq!((first.metrics["late_groups"], first.next_close), (1, Some(11)));
    // Bridged, and prolonged in the batch that would have closed it; the stored one comes first where starts are equal.
    let rows = [row(11, 20, "b"), row(50, 55, "x"), row(40, 45, "f")];
    let (second, found) = run(&shard, ORDERED, first.handle.as_ref(), &rows, marks(10, 44, first.next_close)).unwrap();
    assert!(found.is_empty(), "{found:?}");
    let marks = marks(44, 60, second.next_close);
    let (third, found) = run(&shard, ORDERED, second.handle.as_ref(), &[row(45, 46, "g")], marks).unwrap();
    assert_eq!(windows(&found), [(5, 46, 6, "a", "g"), (50, 60, 2, "e", "x")]);
    let handle = third.handle.unwrap();
    assert_eq!((handle.state_keys, handle.state_bytes, third.next_close), (0, 0, Some(i64::MAX)));
}

#[test]
fn a_window_that_grows_leaves_the_index_alone() {
    let mut world = World::new(&[]);
    let shard = world.shard(None);
    let mut base = None;
    let mut first = None;
    for step in 0..5_i64 {
        let marks = Watermarks { late: 0, before: 0, closed: 0, first };
        let rows = [row(10 * step + 1, 10 * step + 11, "a")];
        let (committed, found) = run(&shard, ORDERED, base.as_ref(), &rows, marks).unwrap();
        assert!(found.is_empty());
        assert_eq!(committed.next_close, Some(11), "step {step}");
        (base, first) = (committed.handle, committed.next_close);
    }
    let marks = Watermarks { late: 0, before: 0, closed: 20, first };
    let (moved, found) = run(&shard, ORDERED, base.as_ref(), &[], marks).unwrap();
    assert!(found.is_empty() && moved.next_close == Some(51));
    assert_eq!(moved.metrics["base_groups"], 1);
}

#[test]
fn many_windows_that_close_leave_in_ranges() {
    let mut world = World::new(&[("session_memory", "1MiB")]);
    let shard = world.shard(None);
    let marks = |late, closed, first| Watermarks { late, before: late, closed, first };
    let key = |i: i64| format!("a key of some length {i}");
    let rows: Vec<Row> = (0..20_000).map(|i| Row { key: key(i), ..row(i + 1, i + 10, "text") }).collect();
    let (filled, found) = run(&shard, ORDERED, None, &rows, marks(0, 0, None)).unwrap();
    assert!(found.is_empty());
    let (closed, found) =
        run(&shard, ORDERED, filled.handle.as_ref(), &[], marks(0, 30_000, filled.next_close)).unwrap();
    assert_eq!((found.len(), closed.handle.unwrap().state_bytes), (20_000, 0));
    assert!(closed.metrics["ranges"] > 4 && closed.metrics["spills"] > 1, "{:?}", closed.metrics);
}

#[test]
fn keys_with_many_windows_are_merged_some_at_a_time() {
    let mut world = World::new(&[("session_memory", "1MiB")]);
    let shard = world.shard(None);
    let marks = |late, closed| Watermarks { late, before: late, closed, first: None };
    let key = |i: i64| format!("key {i}");
    let (mut model, mut base) = (Model::new(), None);
    for part in 0..6_i64 {
        let windows = (1_000 * part..1_000 * part + 20).flat_map(|at| (0..2_000).map(move |i| (10 * at, i)));
        let rows: Vec<Row> = windows.map(|(at, i)| Row { key: key(i), ..row(at + 1, at + 5, "text") }).collect();
        apply(&rows, &mut model, marks(0, 0), OutputMode::Append, true);
        base = run(&shard, ORDERED, base.as_ref(), &rows, marks(0, 0)).unwrap().0.handle;
    }
    // Few rows, of keys that have much.
    let rows: Vec<Row> = (0..2_000).map(|i| Row { key: key(i), ..row(5, 11, "new") }).collect();
    let (expected, _) = apply(&rows, &mut model, marks(0, 15), OutputMode::Append, true);
    let (committed, found) = run(&shard, ORDERED, base.as_ref(), &rows, marks(0, 15)).unwrap();
    assert!(found == expected && found.len() == 2_000);
    assert_eq!(committed.handle.unwrap().state_keys, 4_000);
    assert!(committed.metrics["ranges"] > 10, "{:?}", committed.metrics);
}
