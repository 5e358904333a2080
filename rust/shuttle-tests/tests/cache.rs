//! `read::cache` under schedules of all kinds; the names are those of its invariants.

#![allow(clippy::unwrap_used, reason = "a test")]

use bytes::Bytes;
use fastchangelog_format::clock::ManualClock;
use fastchangelog_format::crc32c;
use fastchangelog_format::model::ObjectRef;
use fastchangelog_shuttle_tests::cache::{IDLE_TIMEOUT, ObjectCache};
use fastchangelog_shuttle_tests::explore;
use fastchangelog_shuttle_tests::store::Store;
use fastchangelog_shuttle_tests::sync::quiet;
use fastchangelog_store::metrics::SharedMetrics;
use shuttle::future::{JoinHandle, block_on, spawn, yield_now};
use shuttle::rand::{Rng, thread_rng};
use std::sync::Arc;
use tempfile::TempDir;

struct World {
    dir: TempDir,
    store: Store,
    cache: Arc<ObjectCache>,
    clock: Arc<ManualClock>,
    metrics: SharedMetrics,
    max_bytes: u64,
}

fn content(name: &str) -> Bytes {
    Bytes::from(name.repeat(10))
}

fn object(name: &str) -> ObjectRef {
    let bytes = content(name);
    ObjectRef { name: name.to_owned(), size: bytes.len() as u64, crc: crc32c(&bytes) }
}

fn world(max_bytes: u64, fails_one_in: u32) -> Arc<World> {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::new(fails_one_in);
    store.look(|state| {
        for name in ["a", "b", "c"] {
            state.objects.insert(name.to_owned(), content(name));
        }
    });
    let metrics = SharedMetrics::default();
    let clock = ManualClock::at(0);
    let cache = ObjectCache::new(dir.path(), max_bytes, Arc::clone(&metrics)).unwrap();
    let cache = cache.with_idle_timeout(Arc::clone(&clock) as _);
    Arc::new(World { dir, store, cache, clock, metrics, max_bytes })
}

impl World {
    fn task<F>(self: &Arc<Self>, work: impl FnOnce(Arc<Self>) -> F) -> JoinHandle<F::Output>
    where
        F: Future<Output: Send> + Send + 'static,
    {
        spawn(work(Arc::clone(self)))
    }

    /// Takes a lease, and reads while it has it.
    async fn read(&self, name: &str) -> bool {
        let object = object(name);
        let Ok(lease) = self.cache.lease(&self.store, &object).await else { return false };
        for _ in 0..thread_rng().gen_range(1..3) {
            let read = lease.read_at(0, object.size).expect("a leased file is there");
            assert_eq!(read, content(name), "a leased file has the object's bytes");
            yield_now().await;
        }
        true
    }

    /// The invariant while no operation runs: the folder matches the table, within the bound.
    async fn at_rest(&self) {
        quiet().await;
        assert!(self.store.look(|state| state.downloading.is_empty()));
        let mut bytes = 0;
        let mut files = 0;
        for entry in std::fs::read_dir(self.dir.path()).unwrap() {
            bytes += entry.unwrap().metadata().unwrap().len();
            files += 1;
        }
        let known = ["a", "b", "c"].iter().filter(|name| self.cache.contains(&self.store, &object(name))).count();
        assert_eq!((files, bytes), (known, self.cache.bytes()), "files and the table differ");
        assert!(bytes <= self.max_bytes, "{bytes} bytes are kept");
        assert_eq!(self.metrics.cache_bytes.get(), bytes);
    }
}

fn one_of(names: &'static [&'static str]) -> &'static str {
    names[thread_rng().gen_range(0..names.len())]
}

#[test]
fn x19_one_download_however_many_ask() {
    explore(600, || {
        block_on(async {
            let world = world(1000, 0);
            let readers: Vec<_> = (0..4).map(|_| world.task(|w| async move { w.read("a").await })).collect();
            for reader in readers {
                assert!(reader.await.unwrap());
            }
            assert_eq!(world.store.look(|state| state.downloads), 1);
            world.at_rest().await;
        });
    });
}

#[test]
fn x19_a_failed_download_fails_all_callers_and_leaves_nothing() {
    explore(600, || {
        block_on(async {
            let world = world(1000, 2);
            let readers: Vec<_> = (0..3).map(|_| world.task(|w| async move { w.read("a").await })).collect();
            let mut got = 0;
            for reader in readers {
                got += usize::from(reader.await.unwrap());
            }
            let (downloads, failed) = world.store.look(|state| (state.downloads, state.failed));
            assert!(downloads - failed <= 1 && (got == 0 || downloads > failed), "{got} of 3, {failed} of {downloads}");
            world.at_rest().await;
        });
    });
}

#[test]
fn a15_a_leased_file_stays_and_the_bound_holds_at_rest() {
    explore(800, || {
        block_on(async {
            let world = world(15, 4);
            let readers: Vec<_> = (0..3)
                .map(|_| {
                    world.task(|w| async move {
                        for _ in 0..2 {
                            w.read(one_of(&["a", "b", "c"])).await;
                        }
                    })
                })
                .collect();
            // The caller may be dropped.
            if thread_rng().gen_bool(0.5) {
                yield_now().await;
                readers[0].abort();
            }
            for reader in readers {
                let _ = reader.await;
            }
            world.at_rest().await;
        });
    });
}

#[test]
fn invariant_7_a_placed_copy_meets_readers_and_downloads() {
    explore(1500, || {
        block_on(async {
            let world = world(25, 3);
            let keep = |w: Arc<World>| async move { w.cache.keep(&w.store, &object("a"), &[content("a")]) };
            let discard = |w: Arc<World>| async move { w.cache.discard(&w.store, &object("a")) };
            let mut tasks = vec![world.task(keep), world.task(discard), world.task(keep)];
            for _ in 0..2 {
                tasks.push(world.task(|w| async move {
                    w.read("a").await;
                    w.read(one_of(&["a", "b", "c"])).await;
                }));
            }
            for task in tasks {
                task.await.unwrap();
            }
            world.at_rest().await;
        });
    });
}

#[test]
fn invariant_5_a_condemned_copy_goes_and_no_other() {
    explore(1000, || {
        block_on(async {
            let world = world(25, 3);
            let invalidate = |w: Arc<World>| async move {
                if let Ok(lease) = w.cache.lease(&w.store, &object("a")).await {
                    yield_now().await;
                    lease.invalidate();
                }
            };
            let keep = |w: Arc<World>| async move { w.cache.keep(&w.store, &object("a"), &[content("a")]) };
            let read = |w: Arc<World>| async move { while !w.read("b").await {} };
            let tasks = [world.task(invalidate), world.task(invalidate), world.task(keep), world.task(read)];
            for task in tasks {
                task.await.unwrap();
            }
            world.at_rest().await;
        });
    });
}

#[test]
fn invariant_8_idle_downloads_go_and_kept_or_leased_ones_stay() {
    explore(800, || {
        block_on(async {
            let world = world(1000, 0);
            world.cache.keep(&world.store, &object("c"), &[content("c")]);
            let sweep = |w: Arc<World>| async move {
                w.clock.advance(IDLE_TIMEOUT);
                w.cache.evict_idle();
            };
            let read = |w: Arc<World>| async move { w.read(one_of(&["a", "b"])).await };
            let tasks = [world.task(read), world.task(read), world.task(read)];
            let sweeps = [world.task(sweep), world.task(sweep)];
            for task in tasks {
                assert!(task.await.unwrap());
            }
            for task in sweeps {
                task.await.unwrap();
            }
            world.at_rest().await;
            world.clock.advance(IDLE_TIMEOUT);
            world.cache.evict_idle();
            world.at_rest().await;
            assert_eq!(world.cache.bytes(), 10, "what was kept for recovery stays");
        });
    });
}
