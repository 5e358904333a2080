//! Bounds, failures, close and deletion: what happens when something else than success does.

use super::testing::*;
use super::*;
use fastchangelog_format::error::ErrorKind;
use fastchangelog_format::model::ChangelogHandle;
use fastchangelog_store::fault::{Fault, Operation};

#[test]
fn f01_a_closed_writer_refuses() {
    let w = world(&[]);
    let writer = w.writer("a");
    writer.close();
    writer.close();
    assert_eq!(writer.append(0, b"x").unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(writer.persist(0, 1, Box::new(|_| ())).unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(writer.rollover().unwrap_err().kind(), ErrorKind::Closed);
    drop(w.writer("a")); // the name is free again
}

#[test]
fn f03_a_full_buffer_is_relieved_by_uploads_not_by_the_appender() {
    let w = world(&[
        ("preemptive_persist_threshold", "1"),
        ("persist_size_threshold", "1"),
        ("max_in_flight", "10"),
        ("persist_delay", "0s"),
    ]);
    let writer = w.writer("a");
    w.inner.hold();
    append(&writer, 1);
    std::thread::scope(|scope| {
        let third = scope.spawn(|| {
            append(&writer, 10);
            append(&writer, 1);
        });
        until("a throttled append", || w.storage.metrics().throttled_appends.get() > 0);
        w.inner.release();
        third.join().unwrap();
    });
    assert_eq!(wait(&persist(&writer, 0, 1)).unwrap().size(), 12);
    w.settled();
}

#[test]
fn b10_a_throttled_append_can_be_interrupted() {
    let w = world(&[("preemptive_persist_threshold", "1"), ("persist_size_threshold", "1"), ("max_in_flight", "10")]);
    let writer = w.writer("a");
    w.inner.hold();
    append(&writer, 10);
    assert!(writer.append(0, &[1; 10]).unwrap());
    let error = writer.apply_backpressure(&|| Err(Error::closed("interrupted"))).unwrap_err();
    assert_eq!(error.message(), "interrupted");
    w.inner.release();
    assert_eq!(wait(&persist(&writer, 0, 1)).unwrap().size(), 20, "the append itself was done");
}

#[test]
fn a16_x10_a_throttled_append_says_why_the_store_fails() {
    let w = world(&[
        ("preemptive_persist_threshold", "1"),
        ("persist_size_threshold", "1"),
        ("max_in_flight", "10"),
        ("max_attempts", "1"),
    ]);
    let writer = w.writer("a");
    w.inner.always(Operation::Put, Fault::FailBefore);
    append(&writer, 10);
    w.settled_failures(1);
    assert!(writer.append(0, &[1; 10]).unwrap());
    let error = writer.apply_backpressure(&|| Ok(())).unwrap_err();
    assert!(error.is_retryable() && error.message().contains("cannot write"), "{error}");
    w.inner.heal();
    writer.apply_backpressure(&|| Ok(())).unwrap();
    assert_eq!(wait(&persist(&writer, 0, 1)).unwrap().size(), 20, "nothing was lost");
}

#[test]
fn a01_nothing_is_acknowledged_that_the_store_did_not_confirm() {
    let w = world(&[("max_attempts", "2"), ("request_timeout", "200ms")]);
    let writer = w.writer("a");
    w.inner.always(Operation::Put, Fault::FailAfter);
    w.inner.always(Operation::Get, Fault::FailBefore);
    append(&writer, 10);
    wait(&persist(&writer, 0, 1)).unwrap_err();
    w.inner.heal();
    w.settled_failures(1);
    assert_eq!(w.objects(), 0, "nothing is left behind");
}

#[test]
fn a02_b04_two_lost_attempts_are_one_object() {
    let w = world(&[]);
    let writer = w.writer("a");
    w.inner.at(0, Fault::FailBefore);
    w.inner.at(1, Fault::FailBefore);
    append(&writer, 10);
    let handle = wait(&persist(&writer, 0, 1)).unwrap();
    assert_eq!((w.objects(), w.alive(&handle)), (1, 1));
    assert_eq!(w.storage.metrics().upload_failures.get(), 0, "the set failed never");
}

#[test]
fn a03_x03_closing_one_writer_leaves_the_others_sets() {
    let w = world(&[("persist_delay", "1m")]);
    let (one, two) = (w.writer("one"), w.writer("two"));
    append(&one, 10);
    append(&two, 20);
    w.inner.hold();
    let lost = persist(&one, 0, 1);
    let kept = persist(&two, 0, 1);
    until("the upload of both", || w.puts() == 1);
    one.close();
    assert_eq!(wait(&lost).unwrap_err().kind(), ErrorKind::Closed);
    w.inner.release();
    let handle = wait(&kept).unwrap();
    w.settled();
    assert_eq!((w.puts(), w.alive(&handle)), (1, 1));
    assert_eq!(w.read(&handle).unwrap(), [(0, vec![7; 20])]);
    two.truncate(1).unwrap();
    two.reset(0, 1, 1).unwrap();
    w.settled();
    assert_eq!(w.objects(), 0, "when the last one lets go, the object goes");
}

#[test]
fn a08_x08_close_ends_every_persist() {
    let w = world(&[("request_timeout", "1h")]);
    let writer = w.writer("a");
    append(&writer, 10);
    w.inner.always(Operation::Put, Fault::Hang);
    let uploading = persist(&writer, 0, 1);
    let other = w.writer("b");
    append(&other, 10);
    let second = persist(&other, 0, 1);
    writer.close();
    assert_eq!(wait(&uploading).unwrap_err().kind(), ErrorKind::Closed);
    w.storage.close();
    assert_eq!(wait(&second).unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(w.storage.create_writer("c", groups(1)).unwrap_err().kind(), ErrorKind::Closed);
}

#[test]
fn a08_x08_a_writer_that_is_dropped_ends_its_persists() {
    let w = world(&[("request_timeout", "1h")]);
    let writer = w.writer("a");
    append(&writer, 10);
    w.inner.always(Operation::Put, Fault::Hang);
    let pending = persist(&writer, 0, 1);
    drop(writer);
    assert_eq!(wait(&pending).unwrap_err().kind(), ErrorKind::Closed);
}

#[test]
fn m04_writers_that_persist_together_share_an_object() {
    let w = world(&[("persist_delay", "1m")]);
    let writers: Vec<Writer> = (0..16).map(|i| w.writer(&format!("w{i}"))).collect();
    for round in 1..=5 {
        for writer in &writers {
            append(writer, 100);
        }
        let persists: Vec<Persist> = writers.iter().map(|writer| persist(writer, round - 1, round)).collect();
        persists.iter().for_each(|persist| drop(wait(persist).unwrap()));
        assert_eq!(w.puts() as u64, round, "one object a round, without waiting for the delay");
    }
}

#[test]
fn d01_d03_uploads_go_when_materialized_and_subsumed_both() {
    for subsumed in [true, false] {
        let w = world(&[("preemptive_persist_threshold", "1")]);
        let writer = w.writer("a");
        (0..3).for_each(|_| append(&writer, 10));
        let handle = wait(&persist(&writer, 0, 1)).unwrap();
        writer.confirm(0, handle.to, 1).unwrap();
        if subsumed {
            writer.subsume(1).unwrap();
            w.settled();
            assert_eq!(w.objects(), 3, "not in a snapshot yet");
        }
        writer.truncate(handle.to).unwrap();
        w.settled();
        assert_eq!(w.objects(), if subsumed { 0 } else { 3 });
    }
}

#[test]
fn d02_uploads_go_at_subsumption_when_materialized_before() {
    let w = world(&[("preemptive_persist_threshold", "1")]);
    let writer = w.writer("a");
    (0..3).for_each(|_| append(&writer, 10));
    let handle = wait(&persist(&writer, 0, 1)).unwrap();
    writer.truncate(handle.to).unwrap();
    w.settled();
    assert_eq!(w.objects(), 3);
    writer.subsume(1).unwrap();
    w.settled();
    assert_eq!(w.objects(), 0);
}

#[test]
fn d04_what_lands_after_its_truncation_goes_at_once() {
    let w = world(&[("preemptive_persist_threshold", "1")]);
    let writer = w.writer("a");
    w.inner.hold();
    append(&writer, 10);
    writer.truncate(1).unwrap();
    w.inner.release();
    w.settled();
    assert_eq!(w.objects(), 0);
}

#[test]
fn d05_close_gives_up_what_no_checkpoint_names() {
    let w = world(&[("preemptive_persist_threshold", "1")]);
    let writer = w.writer("a");
    append(&writer, 10);
    let handle = wait(&persist(&writer, 0, 1)).unwrap();
    append(&writer, 10);
    until("the upload of B", || w.storage.metrics().change_sets.get() == 2);
    writer.truncate_and_close(handle.to).unwrap();
    w.settled();
    assert_eq!((w.alive(&handle), w.objects()), (1, 1));
}

#[test]
fn d06_an_object_of_two_writers_goes_with_the_second() {
    let w = world(&[("persist_delay", "1m")]);
    let (one, two) = (w.writer("one"), w.writer("two"));
    append(&one, 10);
    append(&two, 10);
    let (first, second) = (persist(&one, 0, 1), persist(&two, 0, 1));
    wait(&first).unwrap();
    wait(&second).unwrap();
    for (i, writer) in [&one, &two].into_iter().enumerate() {
        assert_eq!(w.objects(), 1, "{i}");
        writer.reset(0, 1, 1).unwrap();
        writer.truncate(1).unwrap();
        w.settled();
    }
    assert_eq!(w.objects(), 0);
}

#[test]
fn h08_an_aborted_checkpoint_takes_nothing_from_others() {
    let w = world(&[]);
    let writer = w.writer("a");
    append(&writer, 10);
    let (one, two) = (persist(&writer, 0, 1), persist(&writer, 0, 2));
    let handle = wait(&one).unwrap();
    assert_eq!(wait(&two).unwrap().sets, handle.sets);
    writer.confirm(0, 1, 1).unwrap();
    writer.reset(0, 1, 2).unwrap();
    writer.truncate(1).unwrap();
    w.settled();
    assert_eq!(w.alive(&handle), 1);
    writer.subsume(1).unwrap();
    w.settled();
    assert_eq!(w.objects(), 0);
}

#[test]
fn a06_a_sweep_deletes_unnamed_objects_and_nothing_young() {
    let w = world(&[]);
    let (one, two) = (w.writer("one"), w.writer("two"));
    append(&one, 10);
    append(&two, 10);
    let kept = wait(&persist(&one, 0, 1)).unwrap();
    let lost = wait(&persist(&two, 0, 1)).unwrap();
    let grace = Duration::from_hours(1);
    one.close();
    assert_eq!(w.storage.sweep(&[], grace, false).unwrap().deleted.len(), 0, "as young as the store's clock says");
    let counted = w.storage.sweep(std::slice::from_ref(&kept), Duration::ZERO, false).unwrap();
    assert_eq!((counted.deleted.len(), counted.kept), (0, 2), "an open writer counts the other");
    two.close();
    w.clock.advance(Duration::from_secs(1 << 32));
    let dry = w.storage.sweep(std::slice::from_ref(&kept), grace, true).unwrap();
    assert_eq!((dry.deleted.len(), w.objects()), (1, 2));
    let report = w.storage.sweep(std::slice::from_ref(&kept), Duration::ZERO, false).unwrap();
    assert_eq!((report, w.objects()), (dry, 1));
    assert_eq!((w.alive(&kept), w.alive(&lost)), (1, 0));
    let foreign = ChangelogHandle { storage: "test://elsewhere".into(), ..kept };
    assert_eq!(w.storage.sweep(&[foreign], grace, false).unwrap_err().kind(), ErrorKind::InvalidArgument);
}

#[test]
fn arguments_are_refused_by_name() {
    let w = world(&[]);
    for (groups, name) in
        [(KeyGroupRange { start: 3, end: 3 }, "a"), (KeyGroupRange { start: 0, end: 40_000 }, "a"), (groups(4), "")]
    {
        assert_eq!(w.storage.create_writer(name, groups).unwrap_err().kind(), ErrorKind::InvalidArgument);
    }
    let writer = w.writer("a");
    assert!(w.storage.create_writer("a", groups(1)).unwrap_err().message().contains("`a` is open"));
    assert!(writer.append(4, b"").unwrap_err().message().contains("key group 4"));
    let batch = writer.append_batch(&[1, 9], [&b"x"[..], b"y"].into_iter(), None, &|| Ok(()));
    assert!(batch.unwrap_err().message().contains("key group 9"));
    assert!(writer.append_batch(&[1], [&b"x"[..], b"y"].into_iter(), None, &|| Ok(())).is_err());
    assert_eq!(writer.next_sequence_number(), 0, "nothing of a refused batch is kept");
    let unknown = Options::for_changelog(&[("persist_dealy".to_owned(), "1s".to_owned())].into()).unwrap_err();
    assert!(unknown.message().contains("`persist_delay`"), "{unknown}");
    let other = Options::for_changelog(&[("memory_budget".to_owned(), "1GiB".to_owned())].into()).unwrap_err();
    assert!(other.message().contains("no effect"), "{other}");
}

#[test]
fn p2_any_order_of_writers_and_faults_gives_true_handles() {
    use rand::{RngExt, SeedableRng, rngs::StdRng};
    let seed = std::env::var("FASTCHANGELOG_SEED").map_or_else(|_| rand::random(), |s| s.parse().unwrap());
    let mut rng = StdRng::seed_from_u64(seed);
    println!("FASTCHANGELOG_SEED={seed}");
    for _ in 0..12 {
        let w = world(&[("max_attempts", "2"), ("preemptive_persist_threshold", "300"), ("persist_delay", "1ms")]);
        let faults = [Fault::FailBefore, Fault::FailAfter, Fault::Denied, Fault::Throttled];
        w.inner.seeded(rng.random(), rng.random_range(0..400), &faults);
        let writers: Vec<Writer> = (0..3).map(|i| w.writer(&format!("w{i}"))).collect();
        let mut logs: Vec<Vec<(i32, Vec<u8>)>> = vec![Vec::new(); 3];
        let mut handles = Vec::new();
        for checkpoint in 1..30_u64 {
            for (i, writer) in writers.iter().enumerate() {
                for _ in 0..rng.random_range(0..6) {
                    let group = rng.random_range(0..4_u16);
                    let value = vec![rng.random::<u8>(); rng.random_range(0..120)];
                    if writer.append(group, &value).unwrap() {
                        // A failing store may be reported here; the append is done all the same.
                        let _ = writer.apply_backpressure(&|| Ok(()));
                    }
                    logs[i].push((i32::from(group), value));
                }
            }
            let pending: Vec<Persist> = writers.iter().map(|writer| persist(writer, 0, checkpoint)).collect();
            for (i, persist) in pending.iter().enumerate() {
                if let Ok(handle) = wait(persist) {
                    handles.push((i, logs[i].len(), handle));
                }
            }
        }
        w.inner.heal();
        for (i, length, handle) in &handles {
            let by_group = |changes: &[(i32, Vec<u8>)]| {
                let mut sorted = changes.to_vec();
                sorted.sort_by_key(|(group, _)| *group);
                sorted
            };
            assert_eq!(by_group(&w.read(handle).unwrap()), by_group(&logs[*i][..*length]), "seed {seed}");
        }
    }
}

// --------------------------------------------------------------------------------------------------------- local copies

impl World {
    fn copies(&self) -> usize {
        std::fs::read_dir(self.dir.path().join("copies")).unwrap().count()
    }

    /// Uploads have ended, their copies included: permits are freed after both.
    fn copied(&self) {
        until("the copies", || {
            let metrics = self.storage.metrics();
            metrics.in_flight_bytes.get() + metrics.uploads_active.get() == 0
        });
    }
}

#[test]
fn w14_w16_l04_a09_copies_live_while_a_checkpoint_wants_them() {
    let w = world_with(&[("preemptive_persist_threshold", "100")], true);
    let writer = w.writer("a");
    append(&writer, 10);
    let first = wait(&persist(&writer, 0, 1)).unwrap();
    append(&writer, 100);
    until("the pre-emptive upload", || w.storage.metrics().change_sets.get() == 2);
    append(&writer, 10);
    let second = wait(&persist(&writer, 0, 2)).unwrap();
    w.copied();
    assert_eq!(w.copies(), 3);
    let gets = w.inner.calls_of(Operation::Get);
    assert_eq!(w.read(&second).unwrap().len(), 3);
    assert_eq!(w.inner.calls_of(Operation::Get), gets, "restored from the disk");
    // An aborted checkpoint's sets are the next one's: their copies stay.
    writer.reset(0, second.to, 2).unwrap();
    assert_eq!(w.copies(), 3);
    let third = wait(&persist(&writer, second.to, 3)).unwrap();
    writer.confirm(third.from, third.to, 3).unwrap();
    assert_eq!(w.copies(), 0, "a confirmed checkpoint needs no older copies");
    assert_eq!(w.read(&first).unwrap().len(), 1, "the store has it");
}

#[test]
fn l03_l09_a_confirm_takes_the_copies_of_older_checkpoints() {
    let w = world_with(&[], true);
    let writer = w.writer("a");
    let handles: Vec<ChangelogHandle> = (1..=4)
        .map(|id| {
            append(&writer, 10);
            wait(&persist(&writer, id - 1, id)).unwrap()
        })
        .collect();
    w.copied();
    for (confirmed, left) in [(3, 2), (4, 1)] {
        writer.confirm(confirmed - 1, confirmed, confirmed).unwrap();
        assert_eq!(w.copies(), left, "after checkpoint {confirmed}");
    }
    let gets = w.inner.calls_of(Operation::Get);
    assert_eq!(w.read(&handles[3]).unwrap().len(), 1);
    assert_eq!(w.inner.calls_of(Operation::Get), gets, "the copy of the newest is the one that is left");
}

#[test]
fn w15_copies_outlive_a_truncation_before_the_confirm() {
    let w = world_with(&[], true);
    let writer = w.writer("a");
    append(&writer, 10);
    let handle = wait(&persist(&writer, 0, 1)).unwrap();
    writer.truncate(1).unwrap();
    writer.confirm(0, 1, 1).unwrap();
    w.copied();
    assert_eq!((w.copies(), w.alive(&handle)), (1, 1));
    writer.subsume(1).unwrap();
    w.settled();
    assert_eq!((w.copies(), w.alive(&handle)), (0, 0), "the copy goes with the object");
}

#[test]
fn a07_a_full_local_disk_harms_no_checkpoint() {
    let w = world_with(&[], true);
    let writer = w.writer("a");
    std::fs::remove_dir_all(w.dir.path().join("copies")).unwrap();
    append(&writer, 10);
    let handle = wait(&persist(&writer, 0, 1)).unwrap();
    assert_eq!((w.alive(&handle), handle.size()), (1, 10));
}
