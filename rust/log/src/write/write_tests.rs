//! Tests of the changelog writer: when batches go, what a failure touches, and that every wait ends. Virtual time.

use super::*;
use crate::store::fault::{Fault, FaultStore, Operation};
use bytes::Bytes;
use fastchangelog_format::clock::{Clock, ManualClock};
use fastchangelog_format::config::Compression;
use fastchangelog_format::error::ErrorKind;
use fastchangelog_format::model::{Change, ChangeSet, KeyGroup, ObjectRef, Op, StateId};
use fastchangelog_format::{crc32c, decode_file, decode_set, encode_set};
use fastchangelog_store::budget::MemoryUser;
use fastchangelog_store::failpoint::Failpoints;
use parking_lot::Mutex;
use proptest::prelude::*;
use tokio::time::Instant;

/// Virtual time.
struct VirtualClock(Instant);

impl Clock for VirtualClock {
    fn now_millis(&self) -> u64 {
        u64::try_from(self.monotonic().as_millis()).unwrap()
    }

    fn monotonic(&self) -> Duration {
        self.0.elapsed()
    }
}

pub(super) struct Fixture {
    pub(super) writer: LogWriter,
    pub(super) store: Store,
    pub(super) inner: Arc<FaultStore>,
    pub(super) metrics: SharedMetrics,
    failpoints: SharedFailpoints,
}

fn fixture_with(pairs: &[(&str, &str)], local_copies: Option<Arc<dyn LocalCopies>>) -> Fixture {
    let options = Options::from_map(&pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()).unwrap();
    let inner = FaultStore::in_memory();
    let (metrics, failpoints) = (SharedMetrics::default(), Failpoints::none());
    let store = Store::from_object_store(
        Arc::clone(&inner) as _,
        "q/op",
        "test://bucket/q/op",
        &options,
        Arc::clone(&metrics),
        Arc::clone(&failpoints),
    );
    let writer = LogWriter::new(
        store.clone(),
        &options,
        Handle::current(),
        Arc::new(VirtualClock(Instant::now())),
        Arc::clone(&metrics),
        Arc::clone(&failpoints),
        local_copies,
    );
    Fixture { writer, store, inner, metrics, failpoints }
}

pub(super) fn fixture(pairs: &[(&str, &str)]) -> Fixture {
    fixture_with(pairs, None)
}

impl Fixture {
    pub(super) fn submit(&self, guard: JoinGuard, bytes: usize) -> PersistFuture {
        self.writer.submit(guard, encoded(Bytes::from(vec![7; bytes]), 1))
    }

    pub(super) fn puts(&self) -> usize {
        self.inner.calls_of(Operation::Put)
    }

    pub(super) async fn objects(&self) -> usize {
        self.store.list("log").await.unwrap().len()
    }
}

pub(super) fn encoded(bytes: Bytes, records: u64) -> EncodedSet {
    let length = bytes.len() as u64;
    let crc = crc32c(&bytes);
    EncodedSet { parts: vec![bytes], length, crc, head: 0, mark: 0, records }
}

fn change_set(seed: u8) -> (ChangeSet, Bytes) {
    let mut set = ChangeSet::with_capacity(3, 64);
    for i in 0..3 {
        let (key, value) = ([seed, i], vec![seed; usize::from(i)]);
        set.push(Change { op: Op::Put, state: StateId(0), key_group: KeyGroup(i.into()), key: &key, value: &value });
    }
    let bytes = encode_set(&set, Compression::None).unwrap().to_bytes();
    (set, bytes)
}

#[tokio::test(start_paused = true)]
async fn x18_sets_of_open_sessions_share_one_object() {
    let f = fixture(&[]);
    let guards: Vec<JoinGuard> = (0..3).map(|_| f.writer.join()).collect();
    let sets: Vec<(ChangeSet, Bytes)> = (0..3).map(change_set).collect();
    let start = Instant::now();
    let futures: Vec<PersistFuture> = guards
        .into_iter()
        .zip(&sets)
        .map(|(guard, (_, bytes))| f.writer.submit(guard, encoded(bytes.clone(), 3)))
        .collect();
    let mut segments = Vec::new();
    for future in futures {
        segments.push(future.await.unwrap());
    }
    assert_eq!(start.elapsed(), Duration::ZERO, "no session could join any more: no wait");
    assert_eq!((f.puts(), f.metrics.log_objects.get(), f.metrics.change_sets.get()), (1, 1, 3));

    let bytes = f.store.get(&segments[0].object).await.unwrap();
    let listed = decode_file("x", &bytes).unwrap();
    for (i, segment) in segments.iter().enumerate() {
        assert_eq!(segment.records, 3);
        assert_eq!(segment.object, segments[0].object);
        assert_eq!(listed[i], (segment.offset, segment.length));
        let set = f.store.get_range(&segment.object, segment.offset, segment.length).await.unwrap();
        assert_eq!(decode_set("x", segment.offset, &set).unwrap(), sets[i].0);
    }
    assert_eq!(f.metrics.log_bytes.get(), bytes.len() as u64);
}

#[tokio::test(start_paused = true)]
async fn b01_without_delay_every_set_goes_at_once() {
    let f = fixture(&[("persist_delay", "0s")]);
    let _open = f.writer.join();
    for n in 1..=2 {
        f.submit(f.writer.join(), 10).await.unwrap();
        assert_eq!(f.puts(), n);
    }
}

#[tokio::test(start_paused = true)]
async fn b02_the_size_threshold_sends_the_batch() {
    let f = fixture(&[("persist_delay", "365 days"), ("persist_size_threshold", "77")]);
    let _open = f.writer.join();
    let mut futures = Vec::new();
    for n in 1..=7 {
        assert_eq!(f.puts(), 0);
        futures.push(f.submit(f.writer.join(), 11));
        assert_eq!(futures.len(), n);
    }
    for future in futures {
        future.await.unwrap();
    }
    assert_eq!(f.puts(), 1);
}

#[tokio::test(start_paused = true)]
async fn b03_a_set_waits_for_company_for_the_persist_delay_only() {
    let f = fixture(&[("persist_delay", "50ms")]);
    let _open = f.writer.join();
    let start = Instant::now();
    let first = f.submit(f.writer.join(), 10);
    tokio::time::sleep(Duration::from_millis(30)).await;
    let second = f.submit(f.writer.join(), 10);
    tokio::time::sleep(Duration::from_millis(19)).await;
    assert_eq!(f.puts(), 0);
    let (first, second) = (first.await.unwrap(), second.await.unwrap());
    assert_eq!(start.elapsed().as_millis(), 50, "since the first set that waits");
    assert_eq!(first.object, second.object);
    // The timer of the next batch is its own.
    f.submit(f.writer.join(), 10).await.unwrap();
    assert_eq!(start.elapsed().as_millis(), 100);
}

#[tokio::test(start_paused = true)]
async fn the_last_session_that_leaves_sends_what_waits() {
    let f = fixture(&[("persist_delay", "1h")]);
    let open = f.writer.join();
    let future = f.submit(f.writer.join(), 10);
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(f.puts(), 0);
    drop(open);
    future.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn x02_the_set_fails_once_after_the_last_attempt() {
    let f = fixture(&[]);
    f.inner.at(0, Fault::FailBefore);
    f.inner.at(1, Fault::FailAfter);
    let segment = f.submit(f.writer.join(), 10).await.unwrap();
    assert_eq!(f.objects().await, 1, "one object, whatever happened on the way");
    assert!(f.store.get(&segment.object).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn x25_a_failure_stays_with_its_batch() {
    let f = fixture(&[]);
    f.inner.next(Fault::Denied);
    let error = f.submit(f.writer.join(), 10).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PermissionDenied);
    f.submit(f.writer.join(), 10).await.unwrap();
    assert_eq!((f.objects().await, f.metrics.in_flight_bytes.get()), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn b08_x08_close_ends_every_future() {
    let f = fixture(&[("max_in_flight", "4KiB"), ("persist_size_threshold", "1KiB"), ("persist_delay", "1h")]);
    f.inner.always(Operation::Put, Fault::Hang);
    let uploading = f.submit(f.writer.join(), 2048);
    let open = f.writer.join();
    let queued = f.submit(f.writer.join(), 10);
    let without_room = f.submit(f.writer.join(), 4096);
    tokio::task::yield_now().await;
    let start = Instant::now();
    f.writer.close();
    let late = f.submit(open, 10);
    for future in [uploading, queued, without_room, late] {
        assert_eq!(future.await.unwrap_err().kind(), ErrorKind::Closed);
    }
    assert_eq!(start.elapsed(), Duration::ZERO);
    f.writer.close();
    assert_eq!(f.metrics.in_flight_bytes.get(), 0);
}

#[tokio::test]
async fn x08_the_end_of_the_runtime_ends_every_future() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let f = {
        let _inside = runtime.enter();
        fixture(&[])
    };
    f.inner.always(Operation::Put, Fault::Hang);
    let future = f.submit(f.writer.join(), 10);
    runtime.shutdown_background();
    assert!(future.await.unwrap_err().is_retryable());
}

#[test]
fn a_thread_can_wait() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let f = {
        let _inside = runtime.enter();
        fixture(&[])
    };
    assert_eq!(f.submit(f.writer.join(), 10).wait().unwrap().length, 10);
}

#[tokio::test(start_paused = true)]
async fn b09_p7_bytes_in_flight_are_bounded() {
    let f = fixture(&[("max_in_flight", "10KiB"), ("persist_size_threshold", "1KiB")]);
    f.inner.hold();
    let first = f.submit(f.writer.join(), 10 << 10);
    let second = f.submit(f.writer.join(), 1);
    let larger_than_all = f.submit(f.writer.join(), 100 << 10);
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!((f.puts(), f.metrics.persist_waits.get()), (1, 2));
    assert_eq!(f.metrics.in_flight_bytes.get(), 10 << 10);
    f.inner.release();
    first.await.unwrap();
    second.await.unwrap();
    larger_than_all.await.unwrap();
    tokio::task::yield_now().await;
    assert_eq!(f.metrics.in_flight_bytes.get(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_wait_for_room_does_not_wait_for_company() {
    // A set that waits for others holds the permit that the next one needs: it must be uploaded at once.
    let f = fixture(&[("max_in_flight", "2KiB"), ("persist_size_threshold", "2KiB"), ("persist_delay", "1h")]);
    let open = f.writer.join();
    let start = Instant::now();
    let first = f.submit(f.writer.join(), 1500);
    let second = f.submit(f.writer.join(), 1500);
    first.await.unwrap();
    drop(open);
    second.await.unwrap();
    assert_eq!(start.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn p7_bytes_in_flight_are_a_quarter_of_the_budget() {
    let f = fixture(&[("max_in_flight", "1GiB"), ("persist_size_threshold", "1KiB")]);
    let budget = MemoryBudget::new(8 << 10);
    let Fixture { writer, inner, .. } = f;
    let writer = writer.within(&budget);
    inner.always(Operation::Put, Fault::Hang);
    let submit = |bytes: usize| writer.submit(writer.join(), encoded(Bytes::from(vec![7; bytes]), 1));
    let (first, second) = (submit(1500), submit(1500));
    tokio::task::yield_now().await;
    let set = budget.used_by(MemoryUser::Log);
    assert!((1500..=2048).contains(&set), "{set}: one of the two has a permit");
    assert!(first.await.is_err());
    drop(second);
    inner.heal();
    submit(1500).await.unwrap();
    // Larger than the limit: uploaded alone.
    submit(5000).await.unwrap();
    assert_eq!(budget.used(), 0);
    inner.always(Operation::Put, Fault::Hang);
    let waiting = [submit(1500), submit(1500), submit(1500)];
    let mut messages = Vec::new();
    for answer in waiting {
        messages.push(answer.await.unwrap_err().message().to_owned());
    }
    assert!(messages[2].contains("`memory_budget`"), "{messages:?}");
}

#[tokio::test(start_paused = true)]
async fn b10_p7_a_wait_for_room_can_be_cancelled_and_ends() {
    let f = fixture(&[("max_in_flight", "1KiB"), ("persist_size_threshold", "1KiB")]);
    f.inner.always(Operation::Put, Fault::Hang);
    let first = f.submit(f.writer.join(), 1024);
    let cancelled = f.submit(f.writer.join(), 1024);
    let second = f.submit(f.writer.join(), 1024);
    let third = f.submit(f.writer.join(), 1024);
    drop(cancelled);
    assert!(first.await.unwrap_err().message().contains("request_timeout"));
    assert!(second.await.unwrap_err().message().contains("request_timeout"));
    let error = third.await.unwrap_err();
    assert!(error.is_retryable() && error.message().contains("`max_in_flight`"), "{error}");
    f.inner.heal();
    f.submit(f.writer.join(), 1024).await.unwrap();
    assert_eq!(f.objects().await, 1, "the cancelled set was never uploaded");
}

#[tokio::test(start_paused = true)]
async fn a_session_that_is_gone_costs_no_upload() {
    let f = fixture(&[]);
    let open = f.writer.join();
    drop(f.submit(f.writer.join(), 10));
    drop(open);
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!((f.puts(), f.metrics.in_flight_bytes.get()), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn uploads_at_the_same_time_are_bounded() {
    let f = fixture(&[("upload_threads", "2")]);
    f.inner.hold();
    let futures: Vec<PersistFuture> = (0..5).map(|_| f.submit(f.writer.join(), 10)).collect();
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(f.puts(), 2);
    f.inner.release();
    for future in futures {
        future.await.unwrap();
    }
    assert_eq!(f.puts(), 5);
}

#[tokio::test(start_paused = true)]
async fn failpoints_stand_before_and_after_the_acknowledgement() {
    let f = fixture(&[]);
    for (point, objects) in [("write.before-upload", 0), ("write.after-upload", 1)] {
        f.failpoints.clear();
        f.failpoints.set(&format!("{point}=error")).unwrap();
        let error = f.submit(f.writer.join(), 10).await.unwrap_err();
        assert!(error.message().contains(point), "{error}");
        assert_eq!(f.objects().await, objects);
    }
}

struct KeptCopies(Mutex<Vec<(ObjectRef, u64)>>);

impl LocalCopies for KeptCopies {
    fn keep(&self, object: &ObjectRef, parts: &[Bytes]) {
        self.0.lock().push((object.clone(), parts.iter().map(|p| p.len() as u64).sum()));
        panic!("the local disk is broken");
    }

    fn adopt(&self, object: &ObjectRef, _: &std::path::Path) {
        unreachable!("`{}` was never a file", object.name);
    }
}

#[tokio::test]
async fn a07_x07_the_local_copy_never_harms() {
    let local_copies = Arc::new(KeptCopies(Mutex::default()));
    let f = fixture_with(&[], Some(Arc::clone(&local_copies) as _));
    let segment = f.submit(f.writer.join(), 10).await.unwrap();
    while f.metrics.in_flight_bytes.get() > 0 {
        tokio::task::yield_now().await;
    }
    let kept = local_copies.0.lock().clone();
    assert_eq!(kept, vec![(segment.object.clone(), segment.object.size)]);
    f.submit(f.writer.join(), 10).await.unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]
    #[test]
    fn p2_every_future_ends_and_every_segment_is_readable(
        seed: u64,
        per_mille in 0u64..600,
        steps in prop::collection::vec((0usize..3, 0u64..900, any::<bool>()), 1..24),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let f = fixture(&[("max_in_flight", "1KiB"), ("persist_size_threshold", "300"), ("max_attempts", "3")]);
            let faults = [Fault::FailBefore, Fault::FailAfter, Fault::Hang, Fault::HangAfter, Fault::Denied, Fault::Throttled];
            f.inner.seeded(seed, per_mille, &faults);
            let mut futures = Vec::new();
            let mut open = Vec::new();
            for (i, (joins, pause, leave)) in steps.iter().enumerate() {
                open.extend((0..*joins).map(|_| f.writer.join()));
                let (set, bytes) = change_set(u8::try_from(i).unwrap());
                futures.push((set, f.writer.submit(f.writer.join(), encoded(bytes, 3))));
                tokio::time::sleep(Duration::from_millis(*pause)).await;
                if *leave {
                    open.pop();
                }
            }
            let mut segments = Vec::new();
            for (set, future) in futures {
                if let Ok(segment) = future.await {
                    segments.push((set, segment));
                }
            }
            f.inner.heal();
            for (set, segment) in &segments {
                let bytes = f.store.get_range(&segment.object, segment.offset, segment.length).await.unwrap();
                prop_assert_eq!(&decode_set("x", segment.offset, &bytes).unwrap(), set);
                decode_file("x", &f.store.get(&segment.object).await.unwrap()).unwrap();
            }
            prop_assert_eq!(f.metrics.in_flight_bytes.get(), 0);
            Ok(())
        })?;
    }
}

#[test]
fn a_set_alone_is_on_a_local_disk_when_the_call_returns() {
    let folder = tempfile::tempdir().unwrap();
    let options = Options { file_sync: false, ..Options::default() };
    let (metrics, failpoints) = (SharedMetrics::default(), Failpoints::none());
    let uri = folder.path().display().to_string();
    let store = Store::open(&uri, &[].into(), &options, Arc::clone(&metrics), Arc::clone(&failpoints)).unwrap();
    let runtime = crate::store::start_io_threads().unwrap();
    let clock = ManualClock::at(0);
    let writer = LogWriter::new(store.clone(), &options, runtime.handle().clone(), clock, metrics, failpoints, None);
    // Another session is open: a set that waits for others would wait for it.
    let open = writer.join();
    let (set, bytes) = change_set(1);
    let mut future = writer.submit_alone(encoded(bytes, 3));
    let placed = future.answer.try_recv().expect("no other thread is needed").unwrap();
    let read = runtime.block_on(store.get_range(&placed.object, placed.offset, placed.length)).unwrap();
    assert_eq!(decode_set("x", placed.offset, &read).unwrap(), set);
    assert_eq!(writer.shared.metrics.in_flight_bytes.get() + writer.shared.metrics.uploads_active.get(), 0);
    writer.close();
    let closed = writer.submit_alone(encoded(change_set(2).1, 3)).wait().unwrap_err();
    assert_eq!(closed.kind(), ErrorKind::Closed);
    drop(open);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_set_alone_is_a_task_where_the_store_is_far_away() {
    let f = fixture(&[]);
    let (set, bytes) = change_set(1);
    let placed = f.writer.submit_alone(encoded(bytes, 3)).await.unwrap();
    let read = f.store.get_range(&placed.object, placed.offset, placed.length).await.unwrap();
    assert_eq!(decode_set("x", placed.offset, &read).unwrap(), set);
}
