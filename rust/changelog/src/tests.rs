//! The writer: the conformance cases of persisting and of sequence numbers.

use super::testing::*;
use super::*;
use fastchangelog_format::error::ErrorKind;
use fastchangelog_format::model::SequenceNumber;
use fastchangelog_store::fault::{Fault, Operation};

#[test]
fn w01_appends_below_the_threshold_upload_nothing() {
    let w = world(&[("preemptive_persist_threshold", "1000")]);
    let writer = w.writer("a");
    (0..3).for_each(|_| append(&writer, 10));
    assert_eq!((w.puts(), writer.next_sequence_number()), (0, 1));
}

#[test]
fn w02_the_threshold_uploads_at_once_and_persist_nothing_more() {
    let w = world(&[("preemptive_persist_threshold", "1000")]);
    let writer = w.writer("a");
    append(&writer, 1000);
    until("the pre-emptive upload", || w.puts() == 1);
    let handle = wait(&persist(&writer, 0, 1)).unwrap();
    assert_eq!((w.puts(), handle.sets.len(), handle.size()), (1, 1, 1000));
}

#[test]
fn w03_persist_uploads_exactly_what_was_appended() {
    let w = world(&[]);
    let writer = w.writer("a");
    writer.append(3, b"0123456789").unwrap();
    let handle = wait(&persist(&writer, 0, 1)).unwrap();
    assert_eq!(w.read(&handle).unwrap(), [(3, b"0123456789".to_vec())]);
    assert_eq!(
        (handle.sets.len(), handle.incremental_size, handle.key_groups, &*handle.writer),
        (1, 10, groups(4), "a")
    );
}

#[test]
fn w04_a_confirmed_range_is_not_uploaded_again() {
    let w = world(&[]);
    let writer = w.writer("a");
    append(&writer, 10);
    wait(&persist(&writer, 0, 1)).unwrap();
    writer.confirm(0, 1, 1).unwrap();
    let again = wait(&persist(&writer, 0, 2)).unwrap();
    assert_eq!((w.puts(), again.sets.len(), again.incremental_size), (1, 1, 0));
}

#[test]
fn w05_no_second_upload_while_the_first_is_pending() {
    let w = world(&[]);
    let writer = w.writer("a");
    append(&writer, 10);
    w.inner.hold();
    let first = persist(&writer, 0, 1);
    let second = persist(&writer, 0, 2);
    w.inner.release();
    assert_eq!(wait(&first).unwrap().sets, wait(&second).unwrap().sets);
    assert_eq!(w.puts(), 1);
}

#[test]
fn w06_only_new_bytes_go_up() {
    let w = world(&[]);
    let writer = w.writer("a");
    append(&writer, 10);
    wait(&persist(&writer, 0, 1)).unwrap();
    let from = writer.next_sequence_number();
    append(&writer, 20);
    let handle = wait(&persist(&writer, from, 2)).unwrap();
    assert_eq!((handle.size(), handle.sets.len(), w.puts()), (20, 1, 2));
}

#[test]
fn w07_a_reset_before_any_persist_loses_nothing() {
    let w = world(&[]);
    let writer = w.writer("a");
    append(&writer, 10);
    writer.reset(0, 1, 1).unwrap();
    assert_eq!(wait(&persist(&writer, 0, 2)).unwrap().size(), 10);
}

#[test]
fn w08_a_failed_upload_fails_the_persist() {
    let w = world(&[]);
    let writer = w.writer("a");
    append(&writer, 10);
    w.inner.next(Fault::Denied);
    assert_eq!(wait(&persist(&writer, 0, 1)).unwrap_err().kind(), ErrorKind::PermissionDenied);
}

#[test]
fn w09_a10_the_next_persist_sends_what_failed_once_more() {
    let w = world(&[("max_attempts", "1")]);
    let writer = w.writer("a");
    w.inner.always(Operation::Put, Fault::FailBefore);
    for checkpoint in 1..=3 {
        append(&writer, 10);
        assert!(wait(&persist(&writer, 0, checkpoint)).unwrap_err().is_retryable());
    }
    w.inner.heal();
    append(&writer, 10);
    let handle = wait(&persist(&writer, 0, 4)).unwrap();
    assert_eq!(w.read(&handle).unwrap().len(), 4, "all changes, each once");
    assert_eq!(handle.sets.len(), 4);
}

#[test]
fn w10_newer_ranges_do_not_care_about_a_failure() {
    let w = world(&[("max_attempts", "1")]);
    let writer = w.writer("a");
    append(&writer, 10);
    w.inner.next(Fault::FailBefore);
    wait(&persist(&writer, 0, 1)).unwrap_err();
    append(&writer, 20);
    assert_eq!(wait(&persist(&writer, 1, 2)).unwrap().size(), 20);
}

#[test]
fn w11_what_is_truncated_cannot_be_persisted() {
    let w = world(&[]);
    let writer = w.writer("a");
    append(&writer, 10);
    writer.truncate(writer.next_sequence_number()).unwrap();
    let error = writer.persist(0, 1, Box::new(|_| ())).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
}

#[test]
fn w12_files_of_a_later_checkpoint_survive_subsumption() {
    let w = world(&[("preemptive_persist_threshold", "100")]);
    let writer = w.writer("a");
    let checkpoint = |id: u64, from: SequenceNumber| {
        append(&writer, 30);
        let handle = wait(&persist(&writer, from, id)).unwrap();
        writer.confirm(handle.from, handle.to, id).unwrap();
        handle
    };
    checkpoint(1, 0);
    let second = checkpoint(2, 0);
    let materialized = second.to;
    writer.subsume(1).unwrap();
    append(&writer, 100);
    let third = checkpoint(3, materialized);
    writer.truncate(materialized).unwrap();
    writer.subsume(2).unwrap();
    let fourth = checkpoint(4, materialized);
    w.settled();
    assert_eq!(w.alive(&fourth), fourth.sets.len());
    assert_eq!(w.alive(&third), third.sets.len());
    assert_eq!(w.alive(&second), 0, "those are not needed any more");
    assert_eq!(w.read(&fourth).unwrap().len(), 3);
}

#[test]
fn w13_files_of_a_pending_checkpoint_survive_close() {
    let w = world(&[("preemptive_persist_threshold", "100")]);
    let writer = w.writer("a");
    append(&writer, 30);
    w.inner.hold();
    let pending = persist(&writer, 0, 1);
    append(&writer, 100);
    w.inner.release();
    let handle = wait(&pending).unwrap();
    until("the pre-emptive upload", || w.storage.metrics().change_sets.get() == 2);
    w.settled();
    writer.truncate_and_close(handle.to).unwrap();
    w.settled();
    assert_eq!((w.alive(&handle), w.objects()), (1, 1), "the rest is gone");
}

#[test]
fn w15_truncation_before_the_confirm_harms_nothing() {
    let w = world(&[]);
    let writer = w.writer("a");
    let mut handles = Vec::new();
    for id in 1..=3 {
        append(&writer, 10);
        handles.push(wait(&persist(&writer, 0, id)).unwrap());
        if id < 3 {
            writer.confirm(0, id, id).unwrap();
        }
    }
    writer.truncate(3).unwrap();
    writer.confirm(0, 3, 3).unwrap();
    w.settled();
    assert_eq!(w.alive(&handles[2]), 3);
}

// ---------------------------------------------------------------------------------------------------- sequence numbers

#[test]
fn q01_to_q09_numbers_grow_at_rollover_only() {
    let w = world(&[]);
    let active = |writer: &Writer| writer.inner.active();
    let case = |id: &str, appended: bool, act: &dyn Fn(&Writer), grown: u64| {
        let writer = w.writer(id);
        if appended {
            append(&writer, 10);
        }
        act(&writer);
        assert_eq!(active(&writer), grown, "{id}");
    };
    case("q01 rollover, nothing appended", false, &|w| assert_eq!(w.rollover().unwrap(), 0), 0);
    case("q02 rollover after an append", true, &|w| assert_eq!(w.rollover().unwrap(), 1), 1);
    case("q03 persist, nothing appended", false, &|w| drop(persist(w, 0, 1)), 0);
    case("q04 persist after an append", true, &|w| drop(persist(w, 0, 1)), 1);
    case("q05 append after append", true, &|w| append(w, 10), 0);
    case("q06 append", false, &|w| append(w, 10), 0);
    case("q07 truncate, nothing appended", false, &|w| w.truncate(0).unwrap(), 0);
    case("q08 truncate to the first after an append", true, &|w| w.truncate(0).unwrap(), 0);
    case("q09 truncate to the next after an append", true, &|w| w.truncate(w.next_sequence_number()).unwrap(), 1);
    let writer = w.writer("asking changes nothing");
    assert_eq!((writer.next_sequence_number(), writer.last_appended_sequence_number()), (0, None));
    append(&writer, 1);
    assert_eq!((writer.next_sequence_number(), writer.last_appended_sequence_number()), (1, Some(0)));
    assert_eq!(active(&writer), 0);
}

#[test]
fn p7_little_is_in_flight_to_a_folder_that_takes_it_at_once() {
    let in_flight = |uri: &str, more: &[(&str, &str)]| {
        let pairs = [("file_sync", "false")].iter().chain(more).map(|(k, v)| ((*k).to_owned(), (*v).to_owned()));
        let options = Options::for_changelog(&pairs.collect()).unwrap();
        let metrics = SharedMetrics::default();
        let failpoints = fastchangelog_store::failpoint::Failpoints::none();
        let store =
            Store::open_with(uri, &std::collections::BTreeMap::new(), None, &options, metrics, failpoints).unwrap();
        in_flight_to(&store, &options) >> 20
    };
    let dir = tempfile::tempdir().unwrap();
    let folder = format!("file://{}", dir.path().display());
    assert_eq!(in_flight(&folder, &[]), 30, "three objects");
    assert_eq!(in_flight(&folder, &[("preemptive_persist_threshold", "20MiB")]), 60);
    assert_eq!(in_flight(&folder, &[("max_in_flight", "20MiB")]), 20);
    assert_eq!(in_flight(&folder, &[("file_sync", "true")]), 100, "a sync takes time");
    assert_eq!(in_flight("memory://in-flight", &[]), 100);
}
