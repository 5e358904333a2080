//! Sessions larger than their memory: exact, whatever happens to them, and nothing stays behind.

use super::super::testing::{GROUPS, World, seeds, spilled_files};
use super::*;
use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{Array, ArrayRef, Int64Array, RecordBatch, StringArray};
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use fastchangelog_columns::aggregate::{AggCall, AggSpec};
use fastchangelog_columns::split::Splitter;
use fastchangelog_format::ErrorKind;
use fastchangelog_store::budget::{MemoryBudget, MemoryUser};
use fastchangelog_store::failpoint::SharedFailpoints;
use fastchangelog_store::fault::{Fault, Operation};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::collections::BTreeMap;

/// Memory of a session, with which a few hundred keys must be spilled.
const TINY: (&str, &str) = ("session_memory", "64KiB");

type Row = (String, i64, String);
/// count, sum, first, last
type Groups = BTreeMap<String, (i64, i64, String, String)>;

fn schema_of(fields: Vec<Field>) -> SchemaRef {
    Arc::new(Schema::new(fields))
}

fn spec() -> AggSpec {
    let call = |function: &str, args: &[usize]| AggCall {
        function: function.into(),
        args: args.to_vec(),
        filter: None,
        ignore_nulls: false,
        ansi: true,
        identity: format!("{function}({args:?})"),
    };
    let field = |name: &str, t: DataType| Field::new(name, t, true);
    let text = DataType::Utf8;
    AggSpec::new(
        1,
        schema_of(vec![field("k", text.clone()), field("v", DataType::Int64), field("s", text.clone())]),
        schema_of(vec![
            field("k", text.clone()),
            field("n", DataType::Int64),
            field("sum", DataType::Int64),
            field("first", text.clone()),
            field("last", text),
        ]),
        vec![call("count", &[]), call("sum", &[1]), call("first", &[2]), call("last", &[2])],
    )
}

fn plan() -> Arc<AggPlan> {
    Arc::new(AggPlan::new(&spec()).unwrap())
}

fn payloads(rows: &[Row]) -> Vec<Vec<u8>> {
    let spec = spec();
    let mut splitter = Splitter::new(&spec, 1, GROUPS, 1 << 13).unwrap();
    let mut out = Vec::new();
    for chunk in rows.chunks(300) {
        let columns: Vec<ArrayRef> = vec![
            Arc::new(StringArray::from_iter_values(chunk.iter().map(|row| &row.0))),
            Arc::new(Int64Array::from_iter_values(chunk.iter().map(|row| row.1))),
            Arc::new(StringArray::from_iter_values(chunk.iter().map(|row| &row.2))),
        ];
        out.extend(splitter.push(&RecordBatch::try_new(Arc::clone(&spec.input), columns).unwrap()).unwrap());
    }
    out.extend(splitter.finish().unwrap());
    out.into_iter().map(|(_, payload)| payload).collect()
}

fn random_rows(rng: &mut StdRng, n: usize, keys: u32) -> Vec<Row> {
    (0..n)
        .map(|_| {
            let key = rng.random_range(0..keys);
            let length = if rng.random_bool(0.001) { 20_000 } else { rng.random_range(0..40) };
            let text = format!("{}{}", rng.random::<u16>(), "s".repeat(length));
            (format!("{key}{}", "k".repeat(key as usize % 30)), rng.random_range(-9..100), text)
        })
        .collect()
}

/// Adds rows to `model` and returns the expected results of the batch.
fn apply(rows: &[Row], model: &mut Groups) -> Groups {
    let mut changed = Groups::new();
    for (key, v, s) in rows {
        let group = model.entry(key.clone()).or_insert_with(|| (0, 0, s.clone(), String::new()));
        (group.0, group.1) = (group.0 + 1, group.1 + v);
        group.3.clone_from(s);
        changed.insert(key.clone(), group.clone());
    }
    changed
}

fn collect(results: impl Iterator<Item = Result<RecordBatch>>) -> Result<Groups> {
    let mut found = Groups::new();
    for batch in results {
        let batch = batch?;
        let number = |i: usize, row: usize| batch.column(i).as_primitive::<Int64Type>().value(row);
        let text = |i: usize, row: usize| {
            String::from_utf8(batch.column(i).as_binary::<i32>().value(row).to_vec()).expect("a text of the test")
        };
        for row in 0..batch.num_rows() {
            let group = (number(1, row), number(2, row), text(3, row), text(4, row));
            assert!(found.insert(text(0, row), group).is_none(), "a key came out twice");
        }
    }
    Ok(found)
}

/// How a session ends.
#[derive(Clone, Copy, Debug)]
enum End {
    ResultsFirst,
    CommitFirst,
    SomeResultsThenCommit,
    NoResults,
}

fn begin(shard: &Arc<Shard>, base: Option<&ShardHandle>, payloads: &[Vec<u8>]) -> Result<Session> {
    let batch = BatchId(base.map_or(0, |handle| handle.batch.0 + 1));
    let mut session = Session::open(shard, plan(), base.cloned(), batch, None)?;
    for payload in payloads {
        session.merge(payload)?;
    }
    Ok(session)
}

fn run(
    shard: &Arc<Shard>,
    base: Option<&ShardHandle>,
    payloads: &[Vec<u8>],
    end: End,
) -> Result<(Committed, Option<Groups>)> {
    let mut session = begin(shard, base, payloads)?;
    let mut results = session.finish()?;
    Ok(match end {
        End::ResultsFirst => {
            let found = collect(&mut results)?;
            (session.commit()?, Some(found))
        }
        End::CommitFirst => (session.commit()?, Some(collect(&mut results)?)),
        End::SomeResultsThenCommit => {
            let some: Vec<_> = results.by_ref().take(2).collect();
            (session.commit()?, Some(collect(some.into_iter().chain(&mut results))?))
        }
        End::NoResults => {
            drop(results);
            (session.commit()?, None)
        }
    })
}

fn handle(committed: &Committed) -> ShardHandle {
    committed.handle.clone().unwrap()
}

#[test]
fn p7_a_batch_larger_than_memory_is_exact_whatever_its_history() {
    for seed in seeds(3) {
        println!("seed {seed}");
        let mut rng = StdRng::seed_from_u64(seed);
        let mut world = World::new(&[TINY, ("max_handle_segments", "4"), ("result_batch_rows", "50")]);
        let mut dir = world.next_dir();
        let mut shard = world.shard(None);
        let (mut model, mut base) = (Groups::new(), None::<ShardHandle>);
        for batch in 0..7 {
            let n = [3_000, 40, 5_000][rng.random_range(0..3)];
            let rows = random_rows(&mut rng, n, 2_500);
            let payloads = payloads(&rows);
            let mut next = model.clone();
            let expected = apply(&rows, &mut next);
            let mut executions = Vec::new();
            for _ in 0..rng.random_range(1..3) {
                let end = [End::ResultsFirst, End::CommitFirst, End::SomeResultsThenCommit, End::NoResults]
                    [rng.random_range(0..4)];
                let (committed, found) = run(&shard, base.as_ref(), &payloads, end).unwrap();
                if let Some(found) = found {
                    assert!(found == expected, "seed {seed}: results of batch {batch}, {end:?}");
                }
                let counters = &committed.metrics;
                assert_eq!(counters["keys_updated"], expected.len() as u64);
                if n == 5_000 {
                    assert!(counters["spills"] > 0 && counters["spilled_bytes"] > 0 && counters["ranges"] > 1);
                }
                let handle = handle(&committed);
                assert_eq!(handle.state_keys, next.len() as u64, "seed {seed}: batch {batch}, {end:?}");
                let segments = handle.segments.iter().filter(|s| s.version == handle.version).count();
                assert!(handle.segments.len() <= 5 && segments > 0);
                executions.push(handle);
                assert_eq!(spilled_files(&dir.join("spill")), [""; 0], "nothing stays");
            }
            base = Some(executions.swap_remove(rng.random_range(0..executions.len())));
            model = next;
            match rng.random_range(0..4) {
                0 => {
                    // another machine
                    dir = world.next_dir();
                    shard = world.shard(None);
                }
                1 => {
                    let (committed, _) = run(&shard, base.as_ref(), &[], End::NoResults).unwrap();
                    base = Some(handle(&committed));
                    if let Some(run) = shard.begin_materialize().unwrap() {
                        run.run().unwrap();
                        run.complete().unwrap();
                    }
                }
                _ => {}
            }
        }
        let fresh = world.shard(None);
        let rows: Vec<Row> = model.keys().map(|key| (key.clone(), 0, "end".to_owned())).collect();
        let expected = apply(&rows, &mut model);
        let (_, found) = run(&fresh, base.as_ref(), &payloads(&rows), End::ResultsFirst).unwrap();
        assert!(found.unwrap() == expected, "seed {seed}: restored");
        assert_eq!(world.budget().used_by(MemoryUser::Sessions), 0);
        assert!(world.metrics.spills.get() > 0 && world.metrics.spilled_bytes.get() > 0);
    }
}

/// A base version, a session's payloads on top of it, and the results.
fn large(world: &mut World, rng: &mut StdRng) -> (Arc<Shard>, ShardHandle, Vec<Row>, Groups) {
    let shard = world.shard(None);
    let rows = random_rows(rng, 500, 2_000);
    let mut model = Groups::new();
    apply(&rows, &mut model);
    let (committed, _) = run(&shard, None, &payloads(&rows), End::NoResults).unwrap();
    (shard, handle(&committed), random_rows(rng, 6_000, 2_000), model)
}

#[test]
fn a_fault_at_any_step_of_a_spill_costs_the_attempt_alone() {
    let mut rng = StdRng::seed_from_u64(rand::random_range(0..1_000));
    let mut world = World::new(&[TINY]);
    let dir = world.next_dir();
    let (shard, base, rows, mut model) = large(&mut world, &mut rng);
    let payloads = payloads(&rows);
    let expected = apply(&rows, &mut model);
    let points = ["session.spill", "session.spilled", "session.range", "session.before-persist", "session.durable"];
    for point in points {
        for (nth, end) in [(1, End::ResultsFirst), (2, End::CommitFirst), (3, End::NoResults)] {
            let nth = if point == "session.durable" { 1 } else { nth };
            world.failpoints.clear();
            world.failpoints.set(&format!("{point}=error@{nth}")).unwrap();
            let error = run(&shard, Some(&base), &payloads, end).unwrap_err();
            assert!(error.message().contains(point), "{error}");
            assert_eq!(spilled_files(&dir.join("spill")), [""; 0], "{point}");
            assert_eq!(world.budget().used_by(MemoryUser::Sessions), 0, "{point}");
        }
    }
    world.failpoints.clear();
    let (committed, found) = run(&shard, Some(&base), &payloads, End::ResultsFirst).unwrap();
    assert!(found.unwrap() == expected);
    assert_eq!(handle(&committed).state_keys, model.len() as u64);
}

#[test]
fn files_of_a_session_go_with_it_wherever_it_ends() {
    let mut rng = StdRng::seed_from_u64(7);
    let mut world = World::new(&[TINY]);
    let dir = world.next_dir();
    let (shard, base, rows, _) = large(&mut world, &mut rng);
    let (payloads, spilling) = (payloads(&rows), usize::from(cfg!(target_os = "linux")));
    for end in 0..4 {
        let mut session = begin(&shard, Some(&base), &payloads).unwrap();
        assert_eq!(spilled_files(&dir.join("spill")).len(), spilling);
        match end {
            0 => drop(session),
            1 => {
                let results = session.finish().unwrap();
                assert_eq!(spilled_files(&dir.join("spill")).len(), spilling);
                drop((session, results));
            }
            2 => {
                let mut results = session.finish().unwrap();
                results.next().unwrap().unwrap();
                drop((results, session));
            }
            _ => {
                drop(session.finish().unwrap());
                session.commit().unwrap();
                assert_eq!(spilled_files(&dir.join("spill")), [""; 0], "committed");
                assert!(session.commit().is_err(), "twice");
            }
        }
        assert_eq!(spilled_files(&dir.join("spill")), [""; 0], "{end}");
    }
}

#[test]
fn a_failed_upload_of_one_part_fails_the_commit_and_the_results() {
    let mut rng = StdRng::seed_from_u64(8);
    let mut world = World::new(&[TINY]);
    let (shard, base, rows, mut model) = large(&mut world, &mut rng);
    let payloads = payloads(&rows);
    for end in [End::ResultsFirst, End::CommitFirst, End::NoResults] {
        world.faults.always(Operation::Put, Fault::FailBefore);
        let error = run(&shard, Some(&base), &payloads, end).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Store | ErrorKind::Retryable), "{error}");
        world.faults.heal();
    }
    let expected = apply(&rows, &mut model);
    let (_, found) = run(&shard, Some(&base), &payloads, End::ResultsFirst).unwrap();
    assert!(found.unwrap() == expected);
}

#[test]
fn p4_a_version_without_a_segment_is_never_live_in_part() {
    let mut rng = StdRng::seed_from_u64(9);
    let mut world = World::new(&[TINY]);
    let (shard, base, rows, mut model) = large(&mut world, &mut rng);
    let (committed, _) = run(&shard, Some(&base), &payloads(&rows), End::NoResults).unwrap();
    let large = handle(&committed);
    let own: Vec<_> = large.segments.iter().filter(|s| s.version == large.version).collect();
    assert!(own.len() > 3, "several segments of one version");
    // What is live is the base; the next batch replays the large version, whose third segment is gone for a while.
    let gone = own[2].object.name.clone();
    let bytes = world.take_away(&gone);
    let error = run(&shard, Some(&large), &payloads(&rows), End::NoResults).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    assert!(shard.status().state_keys == 0 && shard.read(|_| Ok(())).is_err(), "no half version is live");
    // The base is a version still, and its siblings can be made.
    let more = random_rows(&mut rng, 30, 2_000);
    let mut sibling = model.clone();
    let expected = apply(&more, &mut sibling);
    let (_, found) = run(&shard, Some(&base), &payloads(&more), End::ResultsFirst).unwrap();
    assert!(found.unwrap() == expected);
    world.bring_back(&gone, bytes);
    apply(&rows, &mut model);
    let expected = apply(&more, &mut model);
    let (_, found) = run(&shard, Some(&large), &payloads(&more), End::ResultsFirst).unwrap();
    assert!(found.unwrap() == expected);
}

#[test]
fn a_zombie_between_two_ranges_is_told_so_and_makes_no_version() {
    let mut rng = StdRng::seed_from_u64(10);
    let mut world = World::new(&[TINY, ("result_batch_rows", "10")]);
    let (shard, base, rows, _) = large(&mut world, &mut rng);
    let mut zombie = begin(&shard, Some(&base), &payloads(&rows)).unwrap();
    let mut results = zombie.finish().unwrap();
    results.next().unwrap().unwrap();
    let (sibling, _) = run(&shard, Some(&base), &payloads(&rows), End::NoResults).unwrap();
    run(&shard, Some(&handle(&sibling)), &payloads(&rows[..10]), End::NoResults).unwrap();
    let error = results.find_map(Result::err).expect("the shard moved on");
    assert!(error.message().contains("moved on") && error.kind() == ErrorKind::Retryable, "{error}");
    assert_eq!(zombie.commit().unwrap_err().message(), error.message());
}

#[test]
fn a_large_batch_without_changes_keeps_its_version() {
    let mut world = World::new(&[TINY]);
    let shard = world.shard(None);
    // Rows that leave every group as it is: first and last of the same text, a count is what must not be there.
    let spec = AggSpec {
        output: schema_of(
            spec()
                .output
                .fields()
                .iter()
                .enumerate()
                .filter(|(i, _)| [0, 3].contains(i))
                .map(|(_, f)| f.as_ref().clone())
                .collect(),
        ),
        aggs: vec![spec().aggs.swap_remove(2)],
        ..spec()
    };
    let plan = Arc::new(AggPlan::new(&spec).unwrap());
    let rows: Vec<Row> = (0..3_000).map(|i| (format!("key {i}"), 1, "same".to_owned())).collect();
    let mut splitter = Splitter::new(&spec, 1, GROUPS, 1 << 13).unwrap();
    let columns: Vec<ArrayRef> = vec![
        Arc::new(StringArray::from_iter_values(rows.iter().map(|row| &row.0))),
        Arc::new(Int64Array::from_iter_values(rows.iter().map(|row| row.1))),
        Arc::new(StringArray::from_iter_values(rows.iter().map(|row| &row.2))),
    ];
    let mut payloads = splitter.push(&RecordBatch::try_new(Arc::clone(&spec.input), columns).unwrap()).unwrap();
    payloads.extend(splitter.finish().unwrap());
    let mut versions = Vec::new();
    for batch in 0..2 {
        let base = versions.last().cloned();
        let mut session = Session::open(&shard, Arc::clone(&plan), base, BatchId(batch), None).unwrap();
        payloads.iter().for_each(|(_, payload)| session.merge(payload).unwrap());
        let rows: usize = session.finish().unwrap().map(|batch| batch.unwrap().num_rows()).sum();
        assert_eq!(rows, 3_000);
        let committed = session.commit().unwrap();
        assert!(committed.metrics["ranges"] > 1);
        versions.push(handle(&committed));
    }
    assert_eq!(versions[0].version, versions[1].version);
    assert_eq!((versions[1].batch, versions[1].segments.len()), (BatchId(1), versions[0].segments.len()));
}

#[test]
fn a_session_without_a_shard_is_bounded_too() {
    let mut rng = StdRng::seed_from_u64(11);
    let dir = tempfile::tempdir().unwrap();
    let session_environment = SessionEnvironment {
        budget: MemoryBudget::new(64 << 20),
        dir: dir.path().join("spill"),
        metrics: SharedMetrics::default(),
        failpoints: SharedFailpoints::default(),
        session_memory: 64 << 10,
        result_batch_rows: 100,
    };
    let rows = random_rows(&mut rng, 6_000, 3_000);
    let expected = apply(&rows, &mut Groups::new());
    let mut session = Session::ephemeral(plan(), session_environment.clone());
    payloads(&rows).iter().for_each(|payload| session.merge(payload).unwrap());
    assert!(session_environment.metrics.spills.get() > 0);
    assert!(collect(session.finish().unwrap()).unwrap() == expected);
    let committed = session.commit().unwrap();
    assert!(committed.handle.is_none() && committed.metrics["ranges"] > 1);
    drop(session);
    assert_eq!(spilled_files(&session_environment.dir), [""; 0]);
}

#[test]
fn a_session_stays_within_its_memory_in_a_large_batch() {
    let mut world = World::new(&[("session_memory", "1MiB")]);
    let shard = world.shard(None);
    let mut session = Session::open(&shard, plan(), None, BatchId(0), None).unwrap();
    let mut most = 0;
    for part in 0..40_i64 {
        let rows: Vec<Row> = (0..1_000).map(|i| (format!("key {part} {i}"), i, "text".repeat(5))).collect();
        for payload in payloads(&rows) {
            session.merge(&payload).unwrap();
            most = most.max(world.budget().used_by(MemoryUser::Sessions));
        }
    }
    let (mut rows, mut results) = (0, session.finish().unwrap());
    for batch in &mut results {
        rows += batch.unwrap().num_rows();
        most = most.max(world.budget().used_by(MemoryUser::Sessions));
    }
    assert_eq!(rows, 40_000);
    assert!(most <= 1 << 20, "{most} bytes");
    assert!(world.metrics.spilled_bytes.get() > 2 << 20);
    session.commit().unwrap();
}

#[test]
fn a_batch_that_fits_is_one_segment_and_touches_no_disk() {
    let mut world = World::new(&[]);
    let dir = world.next_dir();
    let shard = world.shard(None);
    let rows = random_rows(&mut StdRng::seed_from_u64(12), 5_000, 3_000);
    let (committed, _) = run(&shard, None, &payloads(&rows), End::ResultsFirst).unwrap();
    assert_eq!(handle(&committed).segments.len(), 1);
    assert_eq!(world.metrics.spills.get(), 0);
    assert!(!dir.join("spill").exists());
}

#[test]
fn prepared_versions_are_given_up_by_bytes_and_replayed() {
    let mut rng = StdRng::seed_from_u64(13);
    let mut world = World::with_budget(4 << 20, &[("session_memory", "64MiB")]);
    let shard = world.shard(None);
    let rows: Vec<Row> = (0..8_000).map(|i| (format!("key {i}"), i, "t".repeat(20))).collect();
    let mut model = Groups::new();
    apply(&rows, &mut model);
    // Each is in progress as a whole and within its bound by number, but together they are too many bytes.
    let versions: Vec<_> =
        (0..3).map(|_| handle(&run(&shard, None, &payloads(&rows), End::NoResults).unwrap().0)).collect();
    assert!(world.budget().used_by(MemoryUser::Prepared) <= 1 << 20);
    assert!(shard.control.lock().prepared.len() < 3);
    let more = random_rows(&mut rng, 20, 100);
    let expected = apply(&more, &mut model);
    let (_, found) = run(&shard, Some(&versions[0]), &payloads(&more), End::ResultsFirst).unwrap();
    assert!(found.unwrap() == expected, "the oldest was replayed");
}

#[test]
fn result_batches_are_cut_by_bytes() {
    let mut world = World::new(&[]);
    let shard = world.shard(None);
    let rows: Vec<Row> =
        (0..200).map(|i| (format!("{i}"), i, "x".repeat(if i == 77 { 50_000 } else { 100 }))).collect();
    let mut session = begin(&shard, None, &payloads(&rows)).unwrap();
    let mut results = session.finish().unwrap();
    results.set_batch_bytes(2_000);
    let batches: Vec<_> = results.map(Result::unwrap).collect();
    assert_eq!(batches.iter().map(RecordBatch::num_rows).sum::<usize>(), 200);
    assert!(batches.len() > 10);
    for batch in &batches {
        let bytes: usize = (0..batch.num_rows()).map(|i| batch.column(3).as_binary::<i32>().value(i).len()).sum();
        assert!(batch.num_rows() == 1 || bytes <= 2_000, "{bytes} bytes in {} rows", batch.num_rows());
        assert!(batch.column(0).null_count() == 0);
    }
}
