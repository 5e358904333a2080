//! Attempts of an upload, through the real store layer: how many, when, and what a failed one leaves. Virtual time.

use super::tests::{Fixture, fixture};
use crate::store::fault::{Fault, Operation};
use fastchangelog_format::error::ErrorKind;
use std::time::Duration;
use tokio::time::Instant;

async fn upload(f: &Fixture) -> fastchangelog_format::Result<super::SetLocation> {
    f.submit(f.writer.join(), 10).await
}

#[tokio::test(start_paused = true)]
async fn r01_one_attempt_is_not_repeated() {
    let f = fixture(&[("max_attempts", "1")]);
    f.inner.always(Operation::Put, Fault::FailBefore);
    assert!(upload(&f).await.unwrap_err().is_retryable());
    assert_eq!(f.puts(), 1);
}

#[tokio::test(start_paused = true)]
async fn r02_attempts_end_at_their_limit() {
    let f = fixture(&[("max_attempts", "5")]);
    f.inner.always(Operation::Put, Fault::FailBefore);
    let error = upload(&f).await.unwrap_err();
    assert_eq!((f.puts(), f.metrics.upload_failures.get()), (5, 1));
    assert!(error.message().contains("5 attempts"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn r03_m05_success_on_the_third_attempt_ends_it() {
    let f = fixture(&[]);
    (0..2).for_each(|call| f.inner.at(call, Fault::FailBefore));
    upload(&f).await.unwrap();
    assert_eq!((f.puts(), f.metrics.request_attempts.get().max, f.metrics.store_retries.get()), (3, 3, 2));
}

#[tokio::test(start_paused = true)]
async fn r04_permanent_errors_are_not_repeated() {
    let f = fixture(&[]);
    f.inner.next(Fault::Denied);
    assert_eq!(upload(&f).await.unwrap_err().kind(), ErrorKind::PermissionDenied);
    assert_eq!(f.puts(), 1);
}

#[tokio::test(start_paused = true)]
async fn r05_the_pause_is_as_set() {
    let f = fixture(&[("retry_delay", "123ms")]);
    f.inner.at(0, Fault::FailBefore);
    let start = Instant::now();
    upload(&f).await.unwrap();
    let waited = start.elapsed();
    // With jitter: between half and all of it.
    assert!(waited >= Duration::from_millis(61) && waited <= Duration::from_millis(124), "{waited:?}");
}

#[tokio::test(start_paused = true)]
async fn r06_r07_b06_a_hanging_attempt_is_given_up_and_repeated() {
    let f = fixture(&[("request_timeout", "500ms"), ("retry_delay", "1ms")]);
    f.inner.at(0, Fault::Hang);
    let start = Instant::now();
    upload(&f).await.unwrap();
    let waited = start.elapsed();
    assert!(waited >= Duration::from_millis(500) && waited < Duration::from_millis(510), "{waited:?}");
    assert_eq!((f.puts(), f.metrics.upload_failures.get(), f.objects().await), (2, 0, 1));
}

#[tokio::test(start_paused = true)]
async fn b05_an_upload_that_hangs_fails_its_sets() {
    let f = fixture(&[("request_timeout", "500ms"), ("max_attempts", "1")]);
    f.inner.always(Operation::Put, Fault::Hang);
    let open = f.writer.join();
    let sets = [f.submit(f.writer.join(), 10), f.submit(open, 10)];
    for set in sets {
        assert!(set.await.unwrap_err().message().contains("500ms"));
    }
}

#[tokio::test(start_paused = true)]
async fn r08_a12_given_up_attempts_leave_one_object_and_bounded_bytes() {
    let f = fixture(&[("request_timeout", "5ms"), ("max_attempts", "7"), ("retry_delay", "1ms")]);
    // Each took effect but never answered.
    (0..6).for_each(|call| f.inner.at(call * 2, Fault::HangAfter));
    let placed = upload(&f).await.unwrap();
    assert_eq!((f.objects().await, f.metrics.upload_failures.get()), (1, 0));
    assert!(f.store.get(&placed.object).await.is_ok());
    assert!(f.puts() <= 7);
}

#[tokio::test(start_paused = true)]
async fn a12_x14_sets_of_a_doubled_upload_name_the_winner() {
    let f = fixture(&[]);
    f.inner.always(Operation::Put, Fault::Delay(Duration::from_millis(10)));
    for _ in 0..30 {
        upload(&f).await.unwrap();
    }
    let objects = f.objects().await;
    f.inner.next(Fault::Delay(Duration::from_secs(5)));
    let start = Instant::now();
    let sets = [f.writer.join(), f.writer.join()].map(|guard| f.submit(guard, 10));
    for set in sets {
        let placed = set.await.unwrap();
        assert!(f.store.get(&placed.object).await.unwrap().len() as u64 == placed.object.size);
        let (_, path) = f.inner.log().into_iter().rev().find(|(o, _)| *o == Operation::Put).unwrap();
        assert!(path.ends_with(&placed.object.name), "the second attempt's: {path}");
    }
    let waited = start.elapsed();
    assert!(waited >= Duration::from_millis(210) && waited < Duration::from_millis(220), "{waited:?}");
    assert_eq!((f.metrics.hedges_started.get(), f.metrics.hedges_won.get(), f.metrics.log_objects.get()), (1, 1, 31));
    assert!(f.metrics.hedge_bytes.get() * 10 <= f.metrics.log_bytes.get());
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!((f.objects().await, f.metrics.discards_pending.get()), (objects + 1, 0));
}

#[tokio::test(start_paused = true)]
async fn a08_a_close_between_two_attempts_leaves_nothing() {
    let f = fixture(&[]);
    for _ in 0..30 {
        upload(&f).await.unwrap();
    }
    let objects = f.objects().await;
    f.inner.always(Operation::Put, Fault::HangAfter);
    let set = f.submit(f.writer.join(), 10);
    tokio::time::sleep(Duration::from_millis(250)).await;
    assert_eq!((f.metrics.hedges_started.get(), f.objects().await), (1, objects + 2));
    f.writer.close();
    assert_eq!(set.await.unwrap_err().kind(), ErrorKind::Closed);
    while f.metrics.discards_pending.get() + f.metrics.uploads_active.get() > 0 {
        tokio::task::yield_now().await;
    }
    assert_eq!(f.objects().await, objects);
}

#[tokio::test(start_paused = true)]
async fn a12_x14_a_silent_store_costs_bounded_bytes() {
    let f = fixture(&[("request_timeout", "500ms"), ("max_attempts", "3")]);
    f.inner.always(Operation::Put, Fault::Hang);
    upload(&f).await.unwrap_err();
    assert!((3..=6).contains(&f.puts()), "{}", f.puts());
    assert_eq!((f.objects().await, f.metrics.in_flight_bytes.get()), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn b07_nothing_is_taken_after_close() {
    let f = fixture(&[]);
    f.writer.close();
    assert_eq!(upload(&f).await.unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(f.puts(), 0);
}

#[tokio::test(start_paused = true)]
async fn m01_m02_uploads_their_sizes_and_latencies_are_counted() {
    let f = fixture(&[]);
    let small = upload(&f).await.unwrap().object.size - 10;
    for _ in 0..4 {
        f.submit(f.writer.join(), 33).await.unwrap();
    }
    let (sizes, latencies) = (f.metrics.upload_bytes.get(), f.metrics.upload_micros.get());
    assert_eq!((f.metrics.log_objects.get(), sizes.count, sizes.max, sizes.min), (5, 5, small + 33, small + 10));
    assert!(latencies.min > 0);
}

#[tokio::test(start_paused = true)]
async fn m03_failures_are_counted() {
    let f = fixture(&[("max_attempts", "1")]);
    f.inner.always(Operation::Put, Fault::FailBefore);
    for _ in 0..5 {
        upload(&f).await.unwrap_err();
    }
    assert_eq!((f.metrics.upload_failures.get(), f.metrics.upload_micros.get().count), (5, 0));
}

#[tokio::test(start_paused = true)]
async fn m07_sets_that_wait_are_counted() {
    let f = fixture(&[("persist_delay", "1h")]);
    let open = f.writer.join();
    let sets: Vec<_> = (0..11).map(|_| f.submit(f.writer.join(), 1)).collect();
    assert_eq!(f.metrics.upload_queue_size.get(), 11);
    drop(open);
    for set in sets {
        set.await.unwrap();
    }
    assert_eq!((f.metrics.upload_queue_size.get(), f.metrics.upload_sets.get().max), (0, 11));
}

#[tokio::test(start_paused = true)]
async fn u01_objects_lie_in_the_folder_of_logs() {
    let f = fixture(&[]);
    assert!(upload(&f).await.unwrap().object.name.starts_with("log/"));
}
