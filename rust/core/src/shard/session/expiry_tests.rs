//! Sessions of distinct rows, and groups that expire, against a plain model: results, state and handles.

use super::super::super::testing::{GROUPS, Squeezes, World, seeds};
use super::super::{Committed, Session, Watermarks};
use super::*;
use crate::shard::Shard;
use arrow_array::cast::AsArray;
use arrow_array::types::{Int64Type, TimestampMicrosecondType};
use arrow_array::{Array, ArrayRef, Int64Array, RecordBatch, StringArray, TimestampMicrosecondArray};
use arrow_schema::{DataType, Field, Schema, TimeUnit};
use fastchangelog_columns::aggregate::{AggCall, AggSpec, OutputMode};
use fastchangelog_columns::split::Splitter;
use fastchangelog_format::model::{BatchId, ShardHandle};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::collections::BTreeMap;

const TTL: i64 = 90_000;
const DELAY: i64 = 60_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Distinct by a key, for ever.
    Keys,
    /// The same; rows may be late.
    KeysOfTimes,
    /// Distinct by the event time and a key.
    TimesAndKeys,
    /// Distinct by a key until the watermark passes its first row.
    WithinWatermark,
    /// Distinct by a key for a time.
    Ttl,
    /// The same; rows may be late.
    TtlOfTimes,
    /// Counts and sums of keys with a time to live.
    Sums,
}

const KINDS: [Kind; 7] =
    [Kind::Keys, Kind::KeysOfTimes, Kind::TimesAndKeys, Kind::WithinWatermark, Kind::Ttl, Kind::TtlOfTimes, Kind::Sums];

impl Kind {
    fn has_row_times(self) -> bool {
        matches!(self, Self::KeysOfTimes | Self::WithinWatermark | Self::TtlOfTimes)
    }

    fn has_watermarks(self) -> bool {
        self.has_row_times() || self == Self::TimesAndKeys
    }

    fn lifetime(self) -> Option<Lifetime> {
        match self {
            Self::WithinWatermark => Some(Lifetime { micros: 0, clock: Clock::Watermark }),
            Self::Ttl | Self::TtlOfTimes | Self::Sums => Some(Lifetime { micros: TTL, clock: Clock::Processing }),
            _ => None,
        }
    }

    /// Columns: the time and the key or the key alone, the time from which a group lives, the value.
    fn spec(self) -> AggSpec {
        let field = |name: &str, t: DataType| Field::new(name, t, true);
        let time = field("t", DataType::Timestamp(TimeUnit::Microsecond, None));
        let (key, value) = (field("k", DataType::Utf8), field("v", DataType::Int64));
        let keys = if self == Self::TimesAndKeys { vec![time.clone(), key] } else { vec![key] };
        let mut input = if self.has_row_times() { vec![time] } else { vec![] };
        input.extend(keys.clone());
        let mut calls = Vec::new();
        let mut call = |function: &str, argument: Option<usize>| {
            calls.push(AggCall {
                function: function.into(),
                args: argument.into_iter().collect(),
                filter: None,
                ignore_nulls: false,
                ansi: true,
                identity: format!("{function}({argument:?})"),
            });
        };
        if self.lifetime().is_some() {
            call(if self == Self::Sums { "max" } else { "first" }, Some(input.len()));
            input.push(field("e", DataType::Int64));
        }
        let value_at = input.len();
        input.push(value.clone());
        let mut output = keys.clone();
        if self == Self::Sums {
            call("count", None);
            call("sum", Some(value_at));
            output.extend([value.clone(), value]);
        } else {
            call("first", Some(value_at));
            output.push(value);
        }
        let new = AggSpec::new(keys.len(), Arc::new(Schema::new(input)), Arc::new(Schema::new(output)), calls);
        let output_mode = if self == Self::Sums { OutputMode::Update } else { OutputMode::New };
        AggSpec { output_mode, row_times: self.has_row_times(), lifetime: self.lifetime(), ..new }
    }

    fn payloads(self, rows: &[Row], now: i64) -> Vec<Vec<u8>> {
        let spec = self.spec();
        let mut splitter = Splitter::new(&spec, 1, GROUPS, 1 << 13).unwrap();
        let mut out = Vec::new();
        for chunk in rows.chunks(300) {
            let times: ArrayRef = Arc::new(chunk.iter().map(|row| row.time).collect::<TimestampMicrosecondArray>());
            let mut columns = if self.has_watermarks() { vec![times] } else { vec![] };
            columns.push(Arc::new(StringArray::from_iter_values(chunk.iter().map(|row| &row.key))));
            if self.lifetime().is_some() {
                let born = chunk.iter().map(|row| self.born(row, now));
                columns.push(Arc::new(Int64Array::from_iter_values(born)));
            }
            columns.push(Arc::new(Int64Array::from_iter_values(chunk.iter().map(|row| row.value))));
            out.extend(splitter.push(&RecordBatch::try_new(Arc::clone(&spec.input), columns).unwrap()).unwrap());
        }
        out.extend(splitter.finish().unwrap());
        out.into_iter().map(|(_, payload)| payload).collect()
    }

    fn born(self, row: &Row, now: i64) -> i64 {
        if self == Self::WithinWatermark { row.time.unwrap_or(0) + DELAY } else { now }
    }
}

#[derive(Clone, Debug)]
struct Row {
    time: Option<i64>,
    key: String,
    value: i64,
}

type Key = (Option<i64>, String);
/// When the group was born; count and sum.
type Model = BTreeMap<Key, (i64, i64, i64)>;
/// The value of the first row, or count and sum.
type Found = BTreeMap<Key, Vec<i64>>;

/// One batch of the model: what it returns.
fn apply(kind: Kind, rows: &[Row], model: &mut Model, marks: Watermarks, now: i64) -> Found {
    let mut found = Found::new();
    for row in rows {
        if kind.has_watermarks() && row.time.is_some_and(|time| time <= marks.late) {
            continue;
        }
        let key = (row.time.filter(|_| kind == Kind::TimesAndKeys), row.key.clone());
        let is_over = |born: i64| match kind.lifetime() {
            None => false,
            Some(Lifetime { clock: Clock::Watermark, .. }) => born <= marks.before,
            Some(lifetime) => born + lifetime.micros <= now,
        };
        let was_here = model.get(&key).is_some_and(|(born, ..)| !is_over(*born) || found.contains_key(&key));
        let group = model.entry(key.clone()).or_default();
        if !was_here {
            *group = (kind.born(row, now), 0, 0);
        }
        if kind == Kind::Sums {
            *group = (now, group.1 + 1, group.2 + row.value);
            found.insert(key, vec![group.1, group.2]);
        } else if !was_here {
            found.insert(key, vec![row.value]);
        }
    }
    model.retain(|key, (born, ..)| match kind {
        Kind::TimesAndKeys => key.0.is_none_or(|time| time > marks.closed),
        Kind::WithinWatermark => *born > marks.closed,
        _ => true,
    });
    found
}

fn run(
    shard: &Arc<Shard>,
    kind: Kind,
    base: Option<&ShardHandle>,
    rows: &[Vec<u8>],
    marks: Watermarks,
    squeezes: &mut Squeezes,
) -> Result<(Committed, Found)> {
    let plan = Arc::new(AggPlan::new(&kind.spec()).unwrap());
    let batch = BatchId(base.map_or(0, |handle| handle.batch.0 + 1));
    let mut session = Session::open(shard, plan, base.cloned(), batch, kind.has_watermarks().then_some(marks))?;
    for payload in rows {
        session.merge(payload)?;
    }
    let mut found = Found::new();
    for batch in session.finish()? {
        squeezes.next(shard);
        let batch = batch?;
        let at = usize::from(kind == Kind::TimesAndKeys);
        for row in 0..batch.num_rows() {
            let times = batch.column(0).as_primitive_opt::<TimestampMicrosecondType>();
            let time = times.filter(|times| times.is_valid(row)).map(|times| times.value(row));
            let key = String::from_utf8(batch.column(at).as_binary::<i32>().value(row).to_vec()).unwrap();
            let values = batch.columns()[at + 1..].iter().map(|column| column.as_primitive::<Int64Type>().value(row));
            assert!(found.insert((time, key), values.collect()).is_none(), "a group came out twice");
        }
    }
    Ok((session.commit()?, found))
}

fn random_rows(rng: &mut StdRng, most: usize, keys: u32, now: i64) -> Vec<Row> {
    let rows = rng.random_range(0..=most);
    let time = |rng: &mut StdRng| rng.random_bool(0.97).then(|| now + rng.random_range(-150..100) * 1000);
    let one = |i: usize, rng: &mut StdRng| Row {
        time: time(rng),
        key: format!("key{}", rng.random_range(0..keys)),
        value: i64::try_from(i).unwrap(),
    };
    (0..rows).map(|i| one(i, rng)).collect()
}

fn history(seed: u64, kind: Kind, keys: u32, most: usize) {
    println!("seed {seed} {kind:?} {keys} {most}");
    let mut rng = StdRng::seed_from_u64(seed);
    let mut world =
        World::new(&[("session_memory", "64KiB"), ("max_handle_segments", "4"), ("result_batch_rows", "50")]);
    let mut shard = world.shard(None);
    let mut squeezes = Squeezes::in_half(&mut rng);
    let (mut model, mut base, mut now) = (Model::new(), None::<ShardHandle>, 100_000);
    let mut marks = Watermarks { late: 0, closed: 0, before: 0, first: None };
    for batch in 0..12 {
        let rows = random_rows(&mut rng, most, keys, now);
        let closed = if rng.random_bool(0.2) { marks.closed } else { marks.closed.max(now - 50_000) };
        marks = Watermarks { late: marks.closed, closed, before: marks.closed, first: None };
        let mut next = model.clone();
        let expected = apply(kind, &rows, &mut next, marks, now);
        let mut attempts = Vec::new();
        for _ in 0..rng.random_range(1..3) {
            let (committed, found) =
                run(&shard, kind, base.as_ref(), &kind.payloads(&rows, now), marks, &mut squeezes).unwrap();
            assert!(found == expected, "seed {seed}: results of batch {batch}");
            let handle = committed.handle.unwrap();
            if kind.lifetime().is_none() {
                assert_eq!(handle.state_keys, next.len() as u64, "seed {seed}: batch {batch}");
            }
            attempts.push(handle);
        }
        (base, model) = (Some(attempts.swap_remove(rng.random_range(0..attempts.len()))), next);
        now += rng.random_range(0..120) * 1000;
        match rng.random_range(0..4) {
            0 => shard = world.shard(None),
            1 => {
                if let Some(run) = shard.begin_materialize().unwrap() {
                    run.run().unwrap();
                    run.complete().unwrap();
                }
            }
            _ => {}
        }
    }
    if kind.lifetime().is_some() {
        all_leave(&mut world, kind, base.unwrap(), now + 10_000_000);
    }
}

/// Whatever has expired leaves with the next few batches, on this server or another.
fn all_leave(world: &mut World, kind: Kind, mut base: ShardHandle, now: i64) {
    let shard = world.shard(None);
    let closed = if kind.has_watermarks() { now } else { 0 };
    let marks = Watermarks { late: closed, closed, before: closed, first: None };
    for batch in 0..8 {
        let row = Row { time: Some(now + 1), key: format!("last{batch}"), value: 1 };
        let payloads = kind.payloads(&[row], now);
        base = run(&shard, kind, Some(&base), &payloads, marks, &mut Squeezes::none()).unwrap().0.handle.unwrap();
    }
    assert_eq!(base.state_keys, 8, "{kind:?}: expired groups are left");
    assert!(base.state_bytes < 8 * 40, "{kind:?}: {} bytes", base.state_bytes);
}

#[test]
fn distinct_and_expiring_groups_are_those_of_a_model() {
    for seed in seeds(2) {
        for kind in KINDS {
            history(seed, kind, 700, 3_000);
            history(seed, kind, 5, 300);
        }
    }
}

#[test]
fn a_walk_over_a_large_state_goes_on_over_the_commits() {
    let mut world = World::new(&[]);
    let (kind, marks) = (Kind::Ttl, Watermarks { late: 0, closed: 0, before: 0, first: None });
    let rows = |keys: std::ops::Range<usize>| -> Vec<Row> {
        keys.map(|i| Row { time: None, key: format!("key{i}"), value: 0 }).collect()
    };
    let shard = world.shard(None);
    let (committed, _) =
        run(&shard, kind, None, &kind.payloads(&rows(0..20_000), 1), marks, &mut Squeezes::none()).unwrap();
    let run_one = |shard: &Arc<Shard>, base: &ShardHandle, at: usize, now: i64| {
        run(shard, kind, Some(base), &kind.payloads(&rows(at..at + 1), now), marks, &mut Squeezes::none()).unwrap().0
    };
    let base = run_one(&shard, &committed.handle.unwrap(), 20_000, TTL).handle.unwrap();
    crate::shard::testing::materialize(&shard);
    let mut base = run_one(&shard, &base, 20_001, TTL).handle.unwrap();
    let elsewhere = world.shard(None);
    let mut removed = 0;
    for batch in 0..60 {
        let committed = run_one(&elsewhere, &base, 20_002 + batch, TTL + 1);
        removed += committed.metrics.get("entries_ended").copied().unwrap_or_default();
        base = committed.handle.unwrap();
    }
    assert_eq!((removed, base.state_keys), (20_000, 62));
}
