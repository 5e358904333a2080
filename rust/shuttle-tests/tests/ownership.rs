//! `ownership::Registry` under schedules of all kinds; the names are those of its invariants.

#![allow(clippy::unwrap_used, reason = "a test")]

use bytes::Bytes;
use fastchangelog_shuttle_tests::explore;
use fastchangelog_shuttle_tests::ownership::Registry;
use fastchangelog_shuttle_tests::store::Store;
use fastchangelog_shuttle_tests::sync::{Handle, quiet};
use fastchangelog_store::metrics::SharedMetrics;
use shuttle::future::{block_on, spawn, yield_now};

const SETS: usize = 3;

/// Some writers need a set of one object each, check that it is there, and release it; `stops`: another component takes it over.
fn scenario(stops: bool) {
    block_on(async move {
        let store = Store::new(0);
        store.look(|state| state.objects.insert("log/a".to_owned(), Bytes::from_static(b"a")));
        let metrics = SharedMetrics::default();
        let registry = Registry::new(store.clone(), Handle, SharedMetrics::clone(&metrics));
        registry.start_tracking("log/a", SETS as u64);
        let mut tasks: Vec<_> = (0..SETS)
            .map(|_| {
                let (registry, store) = (registry.clone(), store.clone());
                spawn(async move {
                    yield_now().await;
                    let there = store.look(|state| state.objects.contains_key("log/a"));
                    assert!(there, "an object is deleted while a set in it is needed");
                    registry.release("log/a");
                })
            })
            .collect();
        if stops {
            let registry = registry.clone();
            tasks.push(spawn(async move { registry.stop_tracking("log/a") }));
        }
        for task in tasks {
            task.await.unwrap();
        }
        quiet().await;
        let deleted = store.look(|state| state.deleted.len());
        assert!(!registry.is_tracked("log/a") && (deleted == 1 || (stops && deleted == 0)), "{deleted} deletions");
        assert_eq!((metrics.discards_pending.get(), metrics.discards.get()), (0, deleted as u64));
    });
}

#[test]
fn x03_the_last_release_deletes_and_no_other() {
    explore(20_000, || scenario(false));
}

#[test]
fn x03_a_foreign_object_is_deleted_once_at_most() {
    explore(20_000, || scenario(true));
}
