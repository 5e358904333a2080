//! New snapshots of embedded states: what carries them, and what becomes of those that fail or come too late.

use super::*;
use crate::embedded::tests::{Opened, World, keys, rows, world};
use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{ArrayRef, Int64Array, TimestampMicrosecondArray};
use arrow_schema::DataType;
use fastchangelog_format::error::ErrorKind;
use fastchangelog_format::model::ShardHandle;
use fastchangelog_store::fault::{Fault, Operation};
use std::sync::mpsc;

/// The long part on its thread; its outcome comes when it is over.
fn started(run: &Materialization) -> mpsc::Receiver<Result<()>> {
    let (sender, receiver) = mpsc::channel();
    run.start(Box::new(move |outcome| drop(sender.send(outcome)))).unwrap();
    receiver
}

fn ran(run: &Materialization) -> Result<()> {
    started(run).recv().unwrap()
}

fn begin(s: &Opened) -> Materialization {
    s.state.begin_materialize().unwrap().unwrap()
}

fn materialize(s: &Opened) {
    let run = begin(s);
    ran(&run).unwrap();
    run.complete().unwrap();
}

fn reopened(world: &World) -> Vec<(String, i64)> {
    world.open_with(|request| request.read_only = true).contents()
}

fn snapshot(handle: &ShardHandle) -> Option<String> {
    handle.snapshot.as_ref().map(|snapshot| snapshot.manifest.name.clone())
}

#[test]
fn v02_a_restore_takes_the_newest_snapshot_and_the_log_after_it() {
    let world = world(&[]);
    let s = world.open();
    s.put("a", Some(1));
    s.put("gone", Some(1));
    s.state.checkpoint().unwrap();
    materialize(&s);
    s.put("a", Some(2));
    s.put("gone", None);
    let first = s.state.checkpoint().unwrap();
    assert_eq!((first.snapshot.is_some(), first.segments.len()), (true, 1), "the log before the snapshot is cut off");
    materialize(&s);
    s.put("b", Some(3));
    let second = s.state.checkpoint().unwrap();
    assert_eq!(second.segments.len(), 1);
    assert_ne!(snapshot(&first), snapshot(&second));
    assert_eq!(s.state.replay_debt().segments, 1);
    s.put("b", Some(4));
    let third = s.state.checkpoint().unwrap();
    assert_eq!((snapshot(&third), third.segments.len()), (snapshot(&second), 2));
    drop(s);
    assert_eq!(reopened(&world), rows(&[("a", 2), ("b", 4)]));
    // A state that was opened again goes on where the other ended: its first snapshot reuses the files of the last.
    let s = world.open();
    s.put("c", Some(5));
    s.state.checkpoint().unwrap();
    materialize(&s);
    let last = s.state.checkpoint().unwrap();
    assert_eq!(last.segments.len(), 0);
    drop(s);
    assert_eq!(reopened(&world), rows(&[("a", 2), ("b", 4), ("c", 5)]));
}

#[test]
fn v03_entries_that_end_come_back_with_their_ends() {
    let world = world(&[]);
    let s = world.open();
    let ending = |s: &Opened| {
        let ttl = Some(std::time::Duration::from_millis(100));
        s.state.value_state("ending", &DataType::Utf8, &DataType::Int64, ttl).unwrap()
    };
    let put = |s: &Opened, key: &str, n: i64| {
        let value: ArrayRef = Arc::new(Int64Array::from(vec![n]));
        ending(s).put(&keys(&[key]), &value).unwrap();
    };
    put(&s, "a", 1);
    put(&s, "first", 1);
    s.state.checkpoint().unwrap();
    materialize(&s);
    world.at(50);
    put(&s, "a", 2);
    put(&s, "second", 2);
    assert_eq!(s.state.checkpoint().unwrap().segments.len(), 1);
    materialize(&s);
    world.at(70);
    put(&s, "third", 3);
    let handle = s.state.checkpoint().unwrap();
    assert_eq!((handle.segments.len(), handle.state_keys), (1, 4), "each materialization cut off the log before it");
    drop(s);
    let s = world.open();
    let found = |now: i64| {
        world.at(now);
        let found = ending(&s).get(&keys(&["a", "first", "second", "third"])).unwrap();
        found.as_primitive::<Int64Type>().iter().collect::<Vec<_>>()
    };
    assert_eq!(found(99), [Some(2), Some(1), Some(2), Some(3)]);
    assert_eq!(found(100), [Some(2), None, Some(2), Some(3)]);
    assert_eq!(found(150), [None, None, None, Some(3)]);
    assert_eq!(s.state.checkpoint().unwrap().state_keys, 1);
    materialize(&s);
    s.state.checkpoint().unwrap();
    world.at(170);
    assert_eq!(s.state.checkpoint().unwrap().state_keys, 0);
}

#[test]
fn v04_timers_around_snapshots_come_back_in_order() {
    let world = world(&[]);
    let s = world.open();
    let timers = |s: &Opened| s.state.timers("timers", &DataType::Utf8).unwrap();
    let register = |time: i64, key: &str| {
        let times: ArrayRef = Arc::new(TimestampMicrosecondArray::from(vec![time]).with_timezone("UTC"));
        timers(&s).register(&keys(&[key]), &times).unwrap();
    };
    register(30, "before");
    register(10, "gone");
    s.state.checkpoint().unwrap();
    materialize(&s);
    register(20, "between");
    timers(&s).due(10, 9).unwrap().for_each(|batch| assert_eq!(batch.unwrap().num_rows(), 1));
    s.state.checkpoint().unwrap();
    materialize(&s);
    register(25, "after");
    assert_eq!(s.state.checkpoint().unwrap().segments.len(), 1);
    drop(s);
    let s = world.open();
    assert_eq!(timers(&s).next_time().unwrap(), Some(20));
    let batches: Vec<_> = timers(&s).due(99, 9).unwrap().map(|batch| batch.unwrap()).collect();
    let found: Vec<_> = batches[0].column(1).as_string::<i32>().iter().flatten().collect();
    assert_eq!((found, batches.len()), (vec!["between", "after", "before"], 1));
    assert_eq!(s.state.checkpoint().unwrap().state_keys, 0);
}

#[test]
fn k02_one_run_at_a_time_and_only_after_the_last_is_carried() {
    let world = world(&[]);
    let s = world.open();
    assert!(s.state.begin_materialize().unwrap().is_none(), "nothing is there");
    s.put("a", Some(1));
    assert!(s.state.begin_materialize().unwrap().is_none(), "no checkpoint holds it yet");
    s.state.checkpoint().unwrap();
    let run = begin(&s);
    assert!(s.state.begin_materialize().unwrap().is_none(), "one is under way");
    run.abort("a failure elsewhere");
    let run = begin(&s);
    assert!(s.state.begin_materialize().unwrap().is_none());
    ran(&run).unwrap();
    run.complete().unwrap();
    assert!(s.state.begin_materialize().unwrap().is_none(), "its snapshot waits for a checkpoint");
    s.put("a", Some(2));
    s.state.checkpoint().unwrap();
    begin(&s).abort("done");
}

#[test]
fn k01_a_checkpoint_without_changes_carries_a_new_snapshot() {
    let world = world(&[]);
    let s = world.open();
    s.put("a", Some(1));
    let before = s.state.checkpoint().unwrap();
    assert_eq!(s.state.checkpoint().unwrap(), before);
    materialize(&s);
    let after = s.state.checkpoint().unwrap();
    assert_eq!((after.version, after.segments.len(), after.state_keys), (before.version, 0, 1));
    assert!(after.snapshot.is_some() && before.snapshot.is_none());
    assert_eq!(s.state.checkpoint().unwrap(), after, "and then nothing is new any more");
    assert!(s.state.begin_materialize().unwrap().is_none());
    s.put("a", Some(2));
    s.state.checkpoint().unwrap();
    drop(s);
    assert_eq!(reopened(&world), rows(&[("a", 2)]));
    let old = world.open_with(|request| (request.handle, request.read_only) = (Some(before), true));
    assert_eq!(old.contents(), rows(&[("a", 1)]));
}

#[test]
fn k03_changes_after_a_run_that_was_given_up_are_materialized() {
    let world = world(&[]);
    let s = world.open();
    s.put("a", Some(1));
    s.state.checkpoint().unwrap();
    let run = begin(&s);
    ran(&run).unwrap();
    run.abort("not wanted");
    assert_eq!(run.complete().unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(run.start(Box::new(|_| ())).unwrap_err().kind(), ErrorKind::Closed);
    s.put("a", Some(2));
    assert!(s.state.checkpoint().unwrap().snapshot.is_none());
    materialize(&s);
    assert!(s.state.checkpoint().unwrap().snapshot.is_some());
}

#[test]
fn a_run_that_fails_at_any_step_leaves_the_state_as_it_was() {
    for point in ["materialize.flush", "materialize.checkpoint", "materialize.push", "snapshot.before-manifest"] {
        let world = world(&[]);
        let s = world.open();
        s.put("a", Some(1));
        s.state.checkpoint().unwrap();
        let run = begin(&s);
        world.failpoints.set(&format!("{point}=error")).unwrap();
        ran(&run).unwrap_err();
        assert!(run.complete().is_err(), "{point}: there is no snapshot");
        world.failpoints.clear();
        s.put("b", Some(2));
        assert!(s.state.checkpoint().unwrap().snapshot.is_none(), "{point}");
        assert_eq!(reopened(&world), rows(&[("a", 1), ("b", 2)]), "{point}");
        materialize(&s);
        assert_eq!(s.state.checkpoint().unwrap().segments.len(), 0, "{point}");
        assert_eq!(reopened(&world), rows(&[("a", 1), ("b", 2)]), "{point}");
    }
}

#[test]
fn invariant_5_the_next_checkpoint_carries_it_after_a_failure() {
    for point in ["session.durable", "local.before-head", "local.after-head"] {
        for changed in [true, false] {
            let world = world(&[("max_attempts", "1")]);
            let s = world.open();
            s.put("a", Some(1));
            s.state.checkpoint().unwrap();
            materialize(&s);
            if changed {
                s.put("a", Some(2));
            } else if point == "session.durable" {
                continue;
            }
            world.failpoints.set(&format!("{point}=error@1")).unwrap();
            s.state.checkpoint().unwrap_err();
            world.failpoints.clear();
            let last = if changed { 2 } else { 1 };
            let handle = s.state.checkpoint().unwrap();
            assert_eq!((handle.snapshot.is_some(), handle.segments.len()), (true, usize::from(changed)), "{point}");
            assert_eq!(reopened(&world), rows(&[("a", last)]), "{point}");
        }
    }
}

#[test]
fn a_run_whose_state_has_to_be_restored_meanwhile_has_no_effect() {
    let world = world(&[]);
    let s = world.open();
    s.put("a", Some(1));
    s.state.checkpoint().unwrap();
    let run = begin(&s);
    s.put("a", Some(2));
    world.failpoints.set("promote.applied=error@1").unwrap();
    s.state.checkpoint().unwrap();
    s.state.core.wait_applied();
    world.failpoints.clear();
    assert_eq!(s.get("a"), Some(2));
    assert!(ran(&run).is_err());
    run.abort("replaced");
    materialize(&s);
    assert!(s.state.checkpoint().unwrap().snapshot.is_some());
    assert_eq!(reopened(&world), rows(&[("a", 2)]));
}

#[test]
fn checkpoints_go_on_while_a_snapshot_is_made() {
    let world = world(&[]);
    let s = world.open();
    for i in 0..200 {
        s.put(&format!("k{i:03}"), Some(i));
    }
    s.state.checkpoint().unwrap();
    let run = begin(&s);
    s.put("k000", Some(-1));
    s.state.checkpoint().unwrap();
    let receiver = started(&run);
    let mut last = s.state.checkpoint().unwrap();
    for i in 0..50 {
        s.put(&format!("k{i:03}"), Some(1000 + i));
        if i == 25 {
            receiver.recv().unwrap().unwrap();
            run.complete().unwrap();
        }
        last = s.state.checkpoint().unwrap();
        assert_eq!(last.snapshot.is_some(), i >= 25, "{i}");
    }
    // Fuzzy: what came between its begin and its end may be in the snapshot already, and is replayed all the same.
    let segments = s.state.replay_debt().segments;
    assert!((25..=51).contains(&segments) && last.segments.len() <= segments, "{segments}");
    let all = s.contents();
    assert_eq!((all.len(), all[0].1, all[199].1), (200, 1000, 199));
    drop(s);
    assert_eq!(reopened(&world), all);
}

#[test]
fn invariant_2_a_close_ends_a_run_that_completes_later() {
    let world = world(&[]);
    let s = world.open();
    s.put("a", Some(1));
    s.state.checkpoint().unwrap();
    let run = begin(&s);
    world.bucket.always(Operation::Put, Fault::Hang);
    let receiver = started(&run);
    s.state.close();
    assert_eq!(receiver.recv().unwrap().unwrap_err().kind(), ErrorKind::Closed);
    assert!(run.complete().is_err());
    assert_eq!(s.state.begin_materialize().err().unwrap().kind(), ErrorKind::Closed);
    assert_eq!(std::fs::read_dir(world.local.path()).unwrap().count(), 0);
}

#[test]
fn a_run_that_is_over_when_the_state_is_closed_is_ignored() {
    let world = world(&[]);
    let s = world.open();
    s.put("a", Some(1));
    let handle = s.state.checkpoint().unwrap();
    let run = begin(&s);
    ran(&run).unwrap();
    s.state.close();
    drop(s);
    let s = world.open();
    run.complete().unwrap();
    assert_eq!(s.state.checkpoint().unwrap(), handle);
}

#[test]
fn invariant_1_cancelling_a_run_does_not_wait_for_it() {
    let world = world(&[]);
    let s = world.open();
    s.put("a", Some(1));
    s.state.checkpoint().unwrap();
    let run = begin(&s);
    world.bucket.always(Operation::Put, Fault::Hang);
    let receiver = started(&run);
    run.abort("enough");
    receiver.recv().unwrap().unwrap_err();
    assert_eq!(run.complete().unwrap_err().kind(), ErrorKind::Closed);
    world.bucket.heal();
    materialize(&s);
    assert!(s.state.checkpoint().unwrap().snapshot.is_some());
}

#[test]
fn a16_refused_changes_are_told_of_and_checkpoints_go_on() {
    let world = world(&[]);
    let s = world.open();
    let (sender, receiver) = mpsc::channel();
    s.state.on_event(Box::new(move || {
        let _ = sender.send(());
    }));
    s.put("a", Some(1));
    s.state.refuse_changes(Some(Error::store("no snapshot")));
    let one = crate::embedded::tests::keys(&["a"]);
    for _ in 0..2 {
        assert_eq!(s.table.delete(&one).unwrap_err().message(), "no snapshot");
        receiver.recv().unwrap();
    }
    s.state.checkpoint().unwrap();
    receiver.recv().unwrap();
    assert_eq!(reopened(&world), rows(&[("a", 1)]));
    s.state.refuse_changes(None);
    s.table.delete(&one).unwrap();
    assert_eq!(s.contents(), rows(&[]));
}
