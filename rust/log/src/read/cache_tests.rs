//! Tests of the local copies: one download, no leaks, a bound on bytes, and no harm from a bad disk.

use super::*;
use crate::store::fault::{Fault, FaultStore, Operation};
use fastchangelog_format::clock::ManualClock;
use fastchangelog_format::config::Options;
use fastchangelog_format::error::ErrorKind;
use fastchangelog_store::failpoint::Failpoints;
use tempfile::TempDir;

struct Fixture {
    dir: TempDir,
    inner: Arc<FaultStore>,
    store: Store,
    metrics: SharedMetrics,
    cache: Arc<ObjectCache>,
}

fn fixture(max_bytes: u64) -> Fixture {
    let dir = tempfile::tempdir().unwrap();
    let inner = FaultStore::in_memory();
    let metrics = SharedMetrics::default();
    let pairs = [("max_attempts".to_owned(), "2".to_owned())];
    let options = Options::from_map(&pairs.into()).unwrap();
    let store = Store::from_object_store(
        Arc::clone(&inner) as _,
        "q",
        "test://b/q",
        &options,
        Arc::clone(&metrics),
        Failpoints::none(),
    );
    let cache = ObjectCache::new(dir.path(), max_bytes, Arc::clone(&metrics)).unwrap();
    Fixture { dir, inner, store, metrics, cache }
}

impl Fixture {
    async fn put(&self, name: &str, bytes: &[u8]) -> ObjectRef {
        self.store.put_new(name, vec![Bytes::copy_from_slice(bytes)]).await.unwrap()
    }

    async fn lease(&self, object: &ObjectRef) -> Lease {
        self.cache.lease(&self.store, object).await.unwrap()
    }

    fn gets(&self) -> usize {
        self.inner.calls_of(Operation::Get)
    }

    fn files(&self) -> usize {
        std::fs::read_dir(self.dir.path()).unwrap().count()
    }

    fn restarted(&self, max_bytes: u64) -> Arc<ObjectCache> {
        ObjectCache::new(self.dir.path(), max_bytes, Arc::clone(&self.metrics)).unwrap()
    }
}

#[test]
fn a15_x19_sixty_four_threads_one_download() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let f = fixture(1 << 20);
    let object = runtime.block_on(f.put("log/a", &[5; 1000]));
    f.inner.hold();
    std::thread::scope(|scope| {
        for _ in 0..64 {
            scope.spawn(|| {
                let lease = runtime.block_on(f.lease(&object));
                assert_eq!(lease.read_at(990, 10).unwrap(), &[5; 10][..]);
            });
        }
        // All callers wait for the one download before it may begin.
        while f.metrics.cache_hits.get() + f.metrics.cache_misses.get() < 64 {
            std::thread::yield_now();
        }
        f.inner.release();
    });
    assert_eq!((f.gets(), f.files(), f.metrics.cache_misses.get()), (1, 1, 1));
    drop(runtime.block_on(f.lease(&object)));
    assert_eq!(f.gets(), 1);
}

#[tokio::test(start_paused = true)]
async fn a15_x19_a_failed_download_leaves_nothing() {
    let f = fixture(1 << 20);
    let object = f.put("log/a", &[5; 1000]).await;
    for fault in [Fault::FailBefore, Fault::Truncate, Fault::Flip, Fault::Hang] {
        f.inner.always(Operation::Get, fault);
        let before = f.gets();
        let leases = futures::future::join_all((0..8).map(|_| f.cache.lease(&f.store, &object))).await;
        assert!(leases.iter().all(Result::is_err), "{fault:?}");
        assert_eq!(f.gets() - before, 2, "two attempts for all waiting callers: {fault:?}");
        assert_eq!((f.files(), f.cache.bytes()), (0, 0), "{fault:?}");
        f.inner.heal();
    }
    f.lease(&object).await;
    let missing = ObjectRef { name: "log/none".into(), size: 5, crc: 0 };
    assert_eq!(f.cache.lease(&f.store, &missing).await.unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(f.files(), 1);
}

#[tokio::test(start_paused = true)]
async fn x19_no_caller_waits_for_another_object() {
    let f = fixture(1 << 20);
    let (a, b) = (f.put("log/a", &[1; 10]).await, f.put("log/b", &[2; 10]).await);
    f.inner.next(Fault::Hang);
    let (cache, store) = (Arc::clone(&f.cache), f.store.clone());
    let slow = tokio::spawn(async move { cache.lease(&store, &a).await.map(|_| tokio::time::Instant::now()) });
    tokio::task::yield_now().await;
    let start = tokio::time::Instant::now();
    drop(f.lease(&b).await);
    assert_eq!(start.elapsed(), std::time::Duration::ZERO);
    assert!(slow.await.unwrap().unwrap() > start);
}

#[tokio::test(start_paused = true)]
async fn the_first_caller_may_be_dropped() {
    let f = fixture(1 << 20);
    let object = f.put("log/a", &[1; 10]).await;
    f.inner.hold();
    let mut first = Box::pin(f.cache.lease(&f.store, &object));
    assert!(futures::poll!(first.as_mut()).is_pending());
    drop(first);
    f.inner.release();
    drop(f.lease(&object).await);
    assert_eq!(f.gets(), 1);
    // Without any caller the download ends and the file can be evicted.
    let other = f.put("log/b", &[1; 10]).await;
    let mut only = Box::pin(f.cache.lease(&f.store, &other));
    assert!(futures::poll!(only.as_mut()).is_pending());
    drop(only);
    while f.files() < 2 {
        tokio::task::yield_now().await;
    }
    assert_eq!(f.cache.bytes(), 20);
}

#[tokio::test]
async fn a15_the_least_recently_used_goes_and_a_leased_file_never() {
    let f = fixture(25);
    let mut objects = Vec::new();
    for i in 0..4u8 {
        objects.push(f.put(&format!("log/{i}"), &[i; 10]).await);
    }
    let held = f.lease(&objects[0]).await;
    drop(f.lease(&objects[1]).await);
    drop(f.lease(&objects[2]).await);
    assert!(held.path().exists() && !f.cache.contains(&f.store, &objects[1]), "1 made room for 2");
    drop(f.lease(&objects[2]).await);
    drop(f.lease(&objects[3]).await);
    assert!(!f.cache.contains(&f.store, &objects[2]));
    assert_eq!(held.read_at(0, 10).unwrap(), &[0; 10][..]);
    // Leases may exceed the bound; giving them back brings it under again.
    let more = [f.lease(&objects[1]).await, f.lease(&objects[2]).await, f.lease(&objects[3]).await];
    assert_eq!(f.cache.bytes(), 40);
    assert!(more.iter().all(Lease::is_intact));
    drop((held, more));
    assert!(f.cache.bytes() <= 25);
    assert_eq!(f.files() as u64 * 10, f.cache.bytes());
    assert_eq!(f.metrics.cache_bytes.get(), f.cache.bytes());
}

#[tokio::test]
async fn x19_unused_downloads_are_removed_after_the_idle_timeout() {
    let f = fixture(1 << 20);
    let clock = ManualClock::at(1000);
    let dir = tempfile::tempdir().unwrap();
    let cache = ObjectCache::new(dir.path(), 1 << 20, Arc::clone(&f.metrics)).unwrap();
    let cache = cache.with_idle_timeout(Arc::clone(&clock) as _);
    let (used, held, kept) =
        (f.put("used", &[1; 10]).await, f.put("held", &[2; 10]).await, f.put("kept", b"kept").await);
    cache.keep(&f.store, &kept, &[Bytes::from_static(b"kept")]);
    let lease = cache.lease(&f.store, &held).await.unwrap();
    drop(cache.lease(&f.store, &used).await.unwrap());
    let here = || [&used, &held, &kept].map(|object| cache.contains(&f.store, object));
    clock.advance(Duration::from_millis(599_999));
    cache.evict_idle();
    assert_eq!(here(), [true; 3], "not yet");
    // An old timer of the original evicted what had just been used again: here a use restarts the timeout.
    drop(cache.lease(&f.store, &used).await.unwrap());
    clock.advance(Duration::from_millis(1));
    cache.evict_idle();
    assert_eq!(here(), [true; 3], "used again");
    clock.advance(IDLE_TIMEOUT);
    cache.evict_idle();
    assert_eq!(here(), [false, true, true], "in use, or kept for recovery");
    assert!(lease.is_intact() && f.metrics.cache_evictions.get() == 1);
    drop(lease);
    cache.evict_idle();
    assert!(here()[1], "its time begins when it is given back");
    clock.advance(IDLE_TIMEOUT);
    cache.evict_idle();
    assert_eq!((here(), cache.bytes()), ([false, false, true], 4));
    // The next reader downloads it again.
    drop(cache.lease(&f.store, &used).await.unwrap());
    assert_eq!(f.gets(), 3);
}

/// A server's shards share one cache, whatever state they are of: one download for all of its processes' sessions.
#[tokio::test]
async fn x19_all_stores_over_one_cache_share_a_download() {
    let f = fixture(1 << 20);
    let object = f.put("log/a", &[5; 1000]).await;
    let stores: Vec<Store> = (0..8).map(|_| f.store.clone()).collect();
    let leases = futures::future::join_all(stores.iter().map(|store| f.cache.lease(store, &object))).await;
    assert!(leases.iter().all(|lease| lease.as_ref().unwrap().is_intact()));
    assert_eq!((f.gets(), f.files()), (1, 1));
}

#[tokio::test]
async fn a15_x19_use_makes_recent() {
    let f = fixture(25);
    let (a, b, c) = (f.put("a", &[1; 10]).await, f.put("b", &[2; 10]).await, f.put("c", &[3; 10]).await);
    drop(f.lease(&a).await);
    drop(f.lease(&b).await);
    drop(f.lease(&a).await);
    drop(f.lease(&c).await);
    assert!(f.cache.contains(&f.store, &a) && !f.cache.contains(&f.store, &b));
}

#[tokio::test]
async fn a15_x19_what_is_leased_again_or_twice_is_in_use() {
    let f = fixture(25);
    let (a, b, c) = (f.put("a", &[1; 10]).await, f.put("b", &[2; 10]).await, f.put("c", &[3; 10]).await);
    drop(f.lease(&a).await);
    let again = f.lease(&a).await;
    drop(f.lease(&a).await);
    drop(f.lease(&b).await);
    drop(f.lease(&c).await);
    assert!(f.cache.contains(&f.store, &a) && !f.cache.contains(&f.store, &b), "b made room for c");
    assert_eq!(again.read_at(0, 10).unwrap(), &[1; 10][..]);
}

#[tokio::test]
async fn l05_l06_copies_survive_a_restart_and_are_verified() {
    let f = fixture(1 << 20);
    let (a, b, c) = (f.put("a", &[1; 10]).await, f.put("b", &[2; 10]).await, f.put("c", &[3; 10]).await);
    for object in [&a, &b, &c] {
        drop(f.lease(object).await);
    }
    let path = |object: &ObjectRef| f.dir.path().join(&*key_of(f.store.uri(), object));
    std::fs::write(path(&b), [9; 10]).unwrap();
    std::fs::write(path(&c), [3; 4]).unwrap();
    std::fs::write(f.dir.path().join(format!(".half{TEMP_SUFFIX}")), b"x").unwrap();
    std::fs::write(f.dir.path().join("foreign"), b"x").unwrap();
    let cache = f.restarted(1 << 20);
    assert_eq!(cache.bytes(), 20, "what is cut off is gone");
    let before = f.gets();
    assert_eq!(cache.lease(&f.store, &a).await.unwrap().read_at(0, 10).unwrap(), &[1; 10][..]);
    assert_eq!(f.gets(), before, "from the disk");
    assert_eq!(cache.lease(&f.store, &b).await.unwrap().read_at(0, 10).unwrap(), &[2; 10][..]);
    assert_eq!(cache.lease(&f.store, &c).await.unwrap().read_at(0, 10).unwrap(), &[3; 10][..]);
    assert_eq!(f.gets(), before + 2, "damage is downloaded again");
    assert_eq!((f.metrics.cache_damaged.get(), f.files()), (1, 4));
    assert_eq!(f.restarted(10).bytes(), 10);
}

#[tokio::test]
async fn a_condemned_copy_is_replaced() {
    let f = fixture(1 << 20);
    let a = f.put("a", &[1; 10]).await;
    let (one, two) = (f.lease(&a).await, f.lease(&a).await);
    std::fs::write(one.path(), [9; 10]).unwrap();
    assert!(!two.is_intact());
    two.invalidate();
    let three = f.lease(&a).await;
    assert!(three.is_intact());
    // The lease on the damaged file neither counts for the new one nor takes from it.
    drop(one);
    assert_eq!(f.cache.bytes(), 10);
    drop(three);
    assert_eq!((f.cache.bytes(), f.files()), (10, 1));
}

#[tokio::test]
async fn l08_kept_and_adopted_objects_need_no_download_and_others_do() {
    let f = fixture(1 << 20);
    let (a, b) = (f.put("log/a", b"12345678").await, f.put("sst/b", b"sst").await);
    f.cache.local_copies(&f.store).keep(&a, &[Bytes::from_static(b"1234"), Bytes::from_static(b"5678")]);
    let file = f.dir.path().parent().unwrap().join(format!("{}.sst", rand::random::<u64>()));
    std::fs::write(&file, b"sst").unwrap();
    f.cache.adopt(f.store.uri(), &b, &file);
    std::fs::remove_file(&file).unwrap();
    assert_eq!(f.lease(&a).await.read_at(2, 4).unwrap(), "3456");
    assert_eq!(f.lease(&b).await.read_at(0, 3).unwrap(), "sst");
    assert_eq!(f.gets(), 0);
    // Another state's object of the same name is another object.
    let elsewhere = f.store.child("other");
    assert!(!f.cache.contains(&elsewhere, &a));
    let unknown = f.put("log/c", b"unknown").await;
    assert!(!f.cache.contains(&f.store, &unknown));
    assert_eq!((f.lease(&unknown).await.read_at(0, 7).unwrap(), f.gets()), ("unknown".into(), 1));
}

#[tokio::test]
async fn x07_a_broken_disk_never_hurts_keep() {
    let f = fixture(100);
    let a = f.put("a", &[1; 10]).await;
    f.cache.keep(&f.store, &ObjectRef { name: "big".into(), size: 1000, crc: 0 }, &[]);
    std::fs::remove_dir_all(f.dir.path()).unwrap();
    f.cache.keep(&f.store, &a, &[Bytes::from_static(&[1; 10])]);
    f.cache.adopt(f.store.uri(), &a, Path::new("/nowhere"));
    assert_eq!((f.cache.bytes(), f.metrics.cache_bytes.get()), (0, 0));
    assert!(matches!(f.cache.try_lease(&f.store, &a).await, Err(DownloadError::Local(_))));
    assert_eq!(f.cache.bytes(), 0);
}

#[tokio::test]
async fn p9_reads_beyond_the_object_are_refused() {
    let f = fixture(100);
    let a = f.put("a", &[1; 10]).await;
    let lease = f.lease(&a).await;
    for (offset, length) in [(5, 6), (u64::MAX, 2), (0, u64::MAX)] {
        assert_eq!(lease.read_at(offset, length).unwrap_err().kind(), ErrorKind::Corrupt);
    }
    assert_eq!(lease.read_at(10, 0).unwrap().len(), 0);
}
