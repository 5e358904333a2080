//! Tests of objects in parts, from memory. Those of files are among the store's.

use super::fault::{Fault, FaultStore, Operation};
use super::*;
use crate::failpoint::Failpoints;
use std::time::Duration;

/// Three parts, the last one short, in pieces that end at no part's end.
fn content() -> (Vec<Bytes>, Vec<u8>) {
    let whole: Vec<u8> = (0..(17u32 << 20)).map(|i| (i ^ (i >> 9)) as u8).collect();
    (whole.chunks(3_000_017).map(Bytes::copy_from_slice).collect(), whole)
}

/// A store of three attempts and one slot: what is inside of a request must not wait for another.
fn over(inner: &Arc<FaultStore>) -> Store {
    let few = [("max_attempts", "3"), ("store_concurrency", "1")];
    let few = Options::from_map(&few.map(|(name, value)| (name.to_owned(), value.to_owned())).into()).unwrap();
    let metrics = SharedMetrics::default();
    Store::from_object_store(Arc::clone(inner) as _, "q", "test://b/q", &few, metrics, Failpoints::none())
}

#[tokio::test(start_paused = true)]
async fn large_objects_go_up_in_parts_small_ones_at_once() {
    let inner = FaultStore::in_memory();
    let store = over(&inner);
    let (parts, whole) = content();
    let object = store.put_new("log/a", parts).await.unwrap();
    assert_eq!((object.size, object.crc), (whole.len() as u64, crc32c(&whole)));
    // Start, three parts, completion; a look before it and one after it.
    let count = |operation| inner.calls_of(operation);
    assert_eq!((count(Operation::Put), count(Operation::Multipart), count(Operation::Get)), (0, 5, 2));
    assert!(store.get(&object).await.unwrap() == whole);
    store.put_new("log/b", vec![Bytes::from(vec![1; 16 << 20])]).await.unwrap();
    assert_eq!((count(Operation::Put), count(Operation::Multipart)), (1, 5));
}

#[test]
fn a02_parts_of_memory_survive_faults() {
    let (parts, whole) = content();
    for call in 0..8 {
        for fault in [Fault::FailBefore, Fault::FailAfter, Fault::Hang, Fault::HangAfter, Fault::Throttled] {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
            runtime.unwrap().block_on(async {
                let inner = FaultStore::in_memory();
                inner.at(call, fault);
                let store = over(&inner);
                let object = store.put_new("log/a", parts.clone()).await.unwrap();
                assert!(store.get(&object).await.unwrap() == whole, "{call} {fault:?}");
            });
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_lost_answer_to_the_completion_is_looked_up() {
    let inner = FaultStore::in_memory();
    // Start, look, three parts: the completion.
    inner.at(5, Fault::FailAfter);
    let store = over(&inner);
    let (parts, whole) = content();
    let object = store.put_new("log/a", parts).await.unwrap();
    assert!(store.get(&object).await.unwrap() == whole);
    // Five calls and the abort; then a start and its abort.
    assert_eq!(inner.calls_of(Operation::Multipart), 6 + 2);
}

#[tokio::test(start_paused = true)]
async fn a_foreign_object_is_neither_replaced_nor_removed() {
    let inner = FaultStore::in_memory();
    let store = over(&inner);
    let (parts, whole) = content();
    for other in [vec![1], whole.to_ascii_uppercase()] {
        store.put_overwrite("log/a", Bytes::from(other.clone())).await.unwrap();
        let error = store.put_new("log/a", parts.clone()).await.unwrap_err();
        assert!(error.kind() == ErrorKind::Store && error.message().contains("another object"), "{error}");
        assert!(store.get_named("log/a").await.unwrap().unwrap() == other);
    }
}

#[tokio::test(start_paused = true)]
async fn who_may_not_list_may_write() {
    let inner = FaultStore::in_memory();
    let store = over(&inner);
    let (parts, whole) = content();
    // The look, after the start.
    inner.at(1, Fault::Denied);
    let object = store.put_new("log/a", parts).await.unwrap();
    assert_eq!((inner.log()[1].0, inner.calls_of(Operation::Multipart)), (Operation::Get, 5));
    assert!(store.get(&object).await.unwrap() == whole);
}

#[tokio::test(start_paused = true)]
async fn x05_a_failed_and_a_dropped_upload_are_aborted() {
    let (parts, _) = content();
    let inner = FaultStore::in_memory();
    let store = over(&inner);
    // Start, look, and the first part, which is refused for good.
    inner.at(2, Fault::Denied);
    assert_eq!(store.put_new("log/a", parts.clone()).await.unwrap_err().kind(), ErrorKind::PermissionDenied);
    let last = inner.log().into_iter().map(|(operation, _)| operation).rev().take(2).collect::<Vec<_>>();
    assert_eq!(last, [Operation::Delete, Operation::Multipart], "the abort, then what may have arrived");

    let before = inner.calls_of(Operation::Multipart);
    inner.at(inner.calls() + 3, Fault::Hang);
    let waited = tokio::time::timeout(Duration::from_secs(1), store.put_new("log/b", parts)).await;
    assert!(waited.is_err(), "its second part hangs");
    assert_eq!(inner.calls_of(Operation::Multipart), before + 4, "start and three parts");
    while store.inner.requests.metrics.discards_pending.get() > 0 {
        tokio::task::yield_now().await;
    }
    assert_eq!(inner.calls_of(Operation::Multipart), before + 5, "the abort");
    assert!(store.list("").await.unwrap().is_empty());
}

#[tokio::test(start_paused = true)]
async fn x05_a_refused_abort_is_repeated_as_a_request_is() {
    let (parts, _) = content();
    // After the start and the look: the part that is refused, and the aborts.
    let since = |inner: &FaultStore| inner.log()[2..].iter().filter(|(call, _)| *call == Operation::Multipart).count();
    for (fault, aborts) in [(Fault::Throttled, 2), (Fault::Hang, 2), (Fault::FailAfter, 2), (Fault::Denied, 1)] {
        let inner = FaultStore::in_memory();
        let store = over(&inner);
        // Start, look, the first part, which is refused for good; its abort.
        inner.at(2, Fault::Denied);
        inner.at(3, fault);
        assert_eq!(store.put_new("log/a", parts.clone()).await.unwrap_err().kind(), ErrorKind::PermissionDenied);
        assert_eq!(since(&inner), 1 + aborts, "{fault:?}");
    }
    let inner = FaultStore::in_memory();
    let store = over(&inner);
    inner.at(2, Fault::Denied);
    (3..20).for_each(|call| inner.at(call, Fault::Throttled));
    assert_eq!(store.put_new("log/a", parts).await.unwrap_err().kind(), ErrorKind::PermissionDenied);
    assert_eq!(since(&inner), 1 + 3, "as many as max_attempts");
}

#[test]
fn part_sizes_have_bounds() {
    let refused = |size: &str| {
        let map = BTreeMap::from([("upload_part_size".to_owned(), size.to_owned())]);
        Options::from_map(&map).unwrap_err().message().contains("5MiB to 1GiB")
    };
    assert!(refused("4MiB") && refused("2GiB"));
    assert_eq!(multipart::part_size(80 << 30, 8 << 20), 10 << 20, "stores allow ten thousand parts");
    assert_eq!(multipart::part_size(1 << 30, 8 << 20), 8 << 20);
}

#[test]
fn p7_files_on_their_way_share_memory_and_all_arrive() {
    for (concurrency, seed) in [("1", 1), ("2", 2), ("32", 3)] {
        let options = [("max_attempts", "6"), ("store_concurrency", concurrency), ("retry_delay", "1ms")];
        let options = options.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        let options = Options::from_map(&options).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
        runtime.unwrap().block_on(async {
            let (inner, budget) = (FaultStore::in_memory(), MemoryBudget::new(64 << 20));
            let metrics = SharedMetrics::default();
            let store = Store::from_object_store(
                Arc::clone(&inner) as _,
                "q",
                "test://b/q",
                &options,
                metrics,
                Failpoints::none(),
            )
            .within(&budget);
            let disk = tempfile::tempdir().unwrap();
            let whole = content().1;
            let (large, small) = (disk.path().join("large"), disk.path().join("small"));
            std::fs::write(&large, &whole).unwrap();
            std::fs::write(&small, &whole[..9 << 20]).unwrap();
            let there = store.put_new("sst/there", vec![Bytes::copy_from_slice(&whole)]).await.unwrap();
            inner.seeded(seed, 50, &[Fault::FailBefore, Fault::Delay(Duration::from_secs(1)), Fault::Throttled]);
            let (store, budget, there) = (&store, &budget, &there);
            let all = futures::future::join_all((0..6).map(|i| {
                let (large, small, target) = (&large, &small, disk.path().join(format!("copy-{i}")));
                async move {
                    let (large_name, small_name) = (format!("sst/l{i}"), format!("sst/s{i}"));
                    let (up, also_up, down) = tokio::join!(
                        store.put_file(&large_name, large, None),
                        store.put_file(&small_name, small, None),
                        store.get_to_file(there, &target),
                    );
                    assert_eq!((up.unwrap().size, also_up.unwrap().size), (17 << 20, 9 << 20));
                    down.unwrap();
                    target
                }
            }));
            // Virtual time: an endless wait fails here.
            let targets = tokio::time::timeout(Duration::from_hours(1), all).await.unwrap();
            assert!(targets.iter().all(|target| std::fs::read(target).unwrap() == whole));
            assert_eq!(budget.used(), 0);
        });
    }
}
