//! Sessions with watermarks against a plain model: results, state and handles.

use super::super::super::testing::{GROUPS, Squeezes, World, seeds};
use super::super::{Committed, Session, Watermarks};
use super::*;
use arrow_array::cast::AsArray;
use arrow_array::types::{Int64Type, TimestampMicrosecondType};
use arrow_array::{Array, ArrayRef, Int64Array, RecordBatch, StringArray, TimestampMicrosecondArray};
use arrow_schema::{DataType, Field, Schema, TimeUnit};
use fastchangelog_columns::aggregate::{AggCall, AggSpec};
use fastchangelog_columns::split::Splitter;
use fastchangelog_format::model::{BatchId, ShardHandle};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Time, key, value, text.
type Row = (Option<i64>, String, i64, String);
type Key = (Option<i64>, String);
/// Count, sum, last text.
type Groups_ = BTreeMap<Key, (i64, i64, String)>;

fn spec(mode: OutputMode) -> AggSpec {
    let call = |function: &str, args: &[usize]| AggCall {
        function: function.into(),
        args: args.to_vec(),
        filter: None,
        ignore_nulls: false,
        ansi: true,
        identity: format!("{function}({args:?})"),
    };
    let field = |name: &str, t: DataType| Field::new(name, t, true);
    let (time, text, long) = (DataType::Timestamp(TimeUnit::Microsecond, None), DataType::Utf8, DataType::Int64);
    let keys = vec![field("t", time), field("k", text.clone())];
    let input = [keys.clone(), vec![field("v", long.clone()), field("s", text.clone())]].concat();
    let output = [keys, vec![field("n", long.clone()), field("sum", long), field("last", text)]].concat();
    let calls = vec![call("count", &[]), call("sum", &[2]), call("last", &[3])];
    let new = AggSpec::new(2, Arc::new(Schema::new(input)), Arc::new(Schema::new(output)), calls);
    AggSpec { output_mode: mode, ..new }
}

fn payloads(rows: &[Row]) -> Vec<Vec<u8>> {
    let spec = spec(OutputMode::Update);
    let mut splitter = Splitter::new(&spec, 1, GROUPS, 1 << 13).unwrap();
    let mut out = Vec::new();
    for chunk in rows.chunks(300) {
        let columns: Vec<ArrayRef> = vec![
            Arc::new(chunk.iter().map(|row| row.0).collect::<TimestampMicrosecondArray>()),
            Arc::new(StringArray::from_iter_values(chunk.iter().map(|row| &row.1))),
            Arc::new(Int64Array::from_iter_values(chunk.iter().map(|row| row.2))),
            Arc::new(StringArray::from_iter_values(chunk.iter().map(|row| &row.3))),
        ];
        out.extend(splitter.push(&RecordBatch::try_new(Arc::clone(&spec.input), columns).unwrap()).unwrap());
    }
    out.extend(splitter.finish().unwrap());
    out.into_iter().map(|(_, payload)| payload).collect()
}

/// One batch of the model: the groups that it returns, and the late ones.
fn apply(rows: &[Row], model: &mut Groups_, marks: Watermarks, mode: OutputMode) -> (Groups_, u64) {
    let is = |time: Option<i64>, mark: i64| mode != OutputMode::Complete && time.is_some_and(|time| time <= mark);
    let (mut changed, mut late) = (BTreeSet::new(), BTreeSet::new());
    for (time, key, value, text) in rows {
        let key = (*time, key.clone());
        if is(*time, marks.late) {
            late.insert(key);
            continue;
        }
        let group = model.entry(key.clone()).or_default();
        *group = (group.0 + 1, group.1 + value, text.clone());
        changed.insert(key);
    }
    let returned = model.iter().filter(|(key, _)| match mode {
        OutputMode::Update => changed.contains(*key),
        OutputMode::Append => is(key.0, marks.closed),
        OutputMode::Complete => true,
        OutputMode::New => unreachable!("expiry_tests"),
    });
    let returned = returned.map(|(key, group)| (key.clone(), group.clone())).collect();
    model.retain(|key, _| !is(key.0, marks.closed));
    (returned, late.len() as u64)
}

fn collect(results: impl Iterator<Item = Result<RecordBatch>>) -> Result<Groups_> {
    let mut found = Groups_::new();
    for batch in results {
        let batch = batch?;
        let number = |i: usize, row: usize| batch.column(i).as_primitive::<Int64Type>().value(row);
        let text = |i: usize, row| String::from_utf8(batch.column(i).as_binary::<i32>().value(row).to_vec()).unwrap();
        let times = batch.column(0).as_primitive::<TimestampMicrosecondType>();
        for row in 0..batch.num_rows() {
            let key = (times.is_valid(row).then(|| times.value(row)), text(1, row));
            let group = (number(2, row), number(3, row), text(4, row));
            assert!(found.insert(key, group).is_none(), "a group came out twice");
        }
    }
    Ok(found)
}

/// Where times lie: few, or so many that nearly each group has its own; and how far each batch goes.
#[derive(Clone, Copy, Debug)]
struct Shape {
    grain: i64,
    keys: u32,
    rows: usize,
}

fn random_rows(rng: &mut StdRng, shape: Shape, now: i64) -> Vec<Row> {
    let rows = rng.random_range(0..=shape.rows);
    (0..rows)
        .map(|i| {
            let time = now + rng.random_range(-150..100) * 1000;
            let time = rng.random_bool(0.98).then_some(time - time.rem_euclid(shape.grain));
            let key = rng.random_range(0..shape.keys);
            (time, format!("key{key}{}", "k".repeat(key as usize % 20)), rng.random_range(-9..100), format!("{i}"))
        })
        .collect()
}

fn run(
    shard: &Arc<crate::shard::Shard>,
    mode: OutputMode,
    base: Option<&ShardHandle>,
    rows: &[Vec<u8>],
    marks: Watermarks,
    squeezes: &mut Squeezes,
) -> Result<(Committed, Groups_)> {
    let plan = Arc::new(AggPlan::new(&spec(mode)).unwrap());
    let batch = BatchId(base.map_or(0, |handle| handle.batch.0 + 1));
    let mut session = Session::open(shard, plan, base.cloned(), batch, Some(marks))?;
    for payload in rows {
        session.merge(payload)?;
    }
    let results = session.finish()?;
    let found = collect(results.inspect(|_| squeezes.next(shard)))?;
    Ok((session.commit()?, found))
}

fn history(seed: u64, mode: OutputMode, shape: Shape) {
    println!("seed {seed} {mode:?} {shape:?}");
    let mut rng = StdRng::seed_from_u64(seed);
    let mut world =
        World::new(&[("session_memory", "64KiB"), ("max_handle_segments", "4"), ("result_batch_rows", "50")]);
    let mut shard = world.shard(None);
    let mut squeezes = Squeezes::in_half(&mut rng);
    let (mut model, mut base) = (Groups_::new(), None::<ShardHandle>);
    let (mut late, mut now, mut first) = (0, 100_000, None);
    for batch in 0..9 {
        let rows = random_rows(&mut rng, shape, now);
        let closed = if rng.random_bool(0.2) { late } else { late.max(now - 50_000) };
        let marks = Watermarks { late, closed, before: late, first };
        let mut next = model.clone();
        let (expected, late_groups) = apply(&rows, &mut next, marks, mode);
        let mut attempts = Vec::new();
        for _ in 0..rng.random_range(1..3) {
            let (committed, found) = run(&shard, mode, base.as_ref(), &payloads(&rows), marks, &mut squeezes).unwrap();
            assert!(found == expected, "seed {seed}: results of batch {batch}");
            let handle = committed.handle.unwrap();
            assert_eq!(handle.state_keys, next.len() as u64, "seed {seed}: batch {batch}");
            assert_eq!(committed.metrics.get("late_groups").copied().unwrap_or_default(), late_groups);
            if mode != OutputMode::Complete {
                let (bound, least) = (committed.next_close.unwrap(), next.keys().find_map(|key| key.0));
                assert!(bound > closed && least.is_none_or(|least| bound <= least), "seed {seed}: batch {batch}");
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
                let marks = Watermarks { late, closed: late, before: late, first: None };
                base = run(&shard, mode, base.as_ref(), &[], marks, &mut squeezes).unwrap().0.handle;
                if let Some(run) = shard.begin_materialize().unwrap() {
                    run.run().unwrap();
                    run.complete().unwrap();
                }
            }
            _ => {}
        }
    }
    // All that is left, on another machine.
    let marks = Watermarks { late, closed: i64::MAX - 1, before: late, first };
    let (expected, _) = apply(&[], &mut model, marks, mode);
    let (committed, found) = run(&world.shard(None), mode, base.as_ref(), &[], marks, &mut squeezes).unwrap();
    assert!(found == expected, "seed {seed}: at the end");
    assert_eq!(committed.handle.unwrap().state_keys, model.len() as u64);
}

#[test]
fn sessions_with_watermarks_are_those_of_a_model() {
    for seed in seeds(2) {
        for mode in [OutputMode::Update, OutputMode::Append, OutputMode::Complete] {
            history(seed, mode, Shape { grain: 50_000, keys: 700, rows: 3_000 });
            history(seed, mode, Shape { grain: 10_000, keys: 5, rows: 300 });
            history(seed, mode, Shape { grain: 1, keys: 2_000, rows: 3_000 });
        }
    }
}

#[test]
fn an_old_watermark_closes_what_rows_bring_at_once() {
    let mut world = World::new(&[]);
    let shard = world.shard(None);
    let row = |time| (Some(time), "k".to_owned(), 1, "s".to_owned());
    let marks = Watermarks { late: 10, closed: 20, before: 10, first: None };
    let rows = payloads(&[row(10), row(11), row(20), row(21)]);
    let (committed, found) = run(&shard, OutputMode::Append, None, &rows, marks, &mut Squeezes::none()).unwrap();
    assert_eq!(found.keys().map(|key| key.0).collect::<Vec<_>>(), [Some(11), Some(20)]);
    assert_eq!((committed.next_close, committed.handle.as_ref().unwrap().state_keys), (Some(21), 1));
    assert_eq!(committed.metrics["late_groups"], 1);
    let marks = Watermarks { late: 20, closed: 20, before: 20, first: committed.next_close };
    let (again, found) =
        run(&shard, OutputMode::Append, committed.handle.as_ref(), &[], marks, &mut Squeezes::none()).unwrap();
    assert!(found.is_empty() && again.next_close == Some(21));
    assert_eq!(again.metrics.get("base_groups"), None, "nothing was read");
}

#[test]
fn prefixes_cover_a_range_of_times_and_no_other() {
    let mut rng = StdRng::seed_from_u64(seeds(1)[0]);
    for _ in 0..300 {
        let first = rng.random_range(-100_000..100_000);
        let last = first + rng.random_range(0..100_000);
        let found = prefixes(first, last);
        assert!(found.len() < 1_100, "{}", found.len());
        let covers = |time: i64| found.iter().filter(|prefix| time_prefix(time).starts_with(prefix)).count();
        for time in [first, last, i64::midpoint(first, last), first + (last - first) / 3] {
            assert_eq!(covers(time), 1, "{first} {time} {last}");
        }
        assert_eq!((covers(first - 1), covers(last + 1)), (0, 0));
    }
    assert!(prefixes(i64::MIN, i64::MAX).len() == 1);
    assert!(prefixes(i64::MIN + 1, i64::MAX - 1).len() <= 4_080);
}
