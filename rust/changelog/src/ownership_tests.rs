//! The counts: what is deleted, when, and what never.

use super::*;
use crate::store::fault::{Fault, FaultStore, Operation};
use bytes::Bytes;
use fastchangelog_format::config::Options;
use fastchangelog_store::failpoint::Failpoints;

struct Fixture {
    inner: Arc<FaultStore>,
    store: Store,
    metrics: SharedMetrics,
    registry: Registry,
}

fn fixture() -> Fixture {
    let inner = FaultStore::in_memory();
    let metrics = SharedMetrics::default();
    let pairs = [("max_attempts".to_owned(), "1".to_owned())];
    let options = Options::from_map(&pairs.into()).unwrap();
    let object_store = Arc::clone(&inner) as _;
    let store =
        Store::from_object_store(object_store, "q", "test://b/q", &options, Arc::clone(&metrics), Failpoints::none());
    let registry = Registry::new(store.clone(), Handle::current(), Arc::clone(&metrics));
    Fixture { inner, store, metrics, registry }
}

impl Fixture {
    async fn object(&self, name: &str, sets: u64) {
        self.store.put_new(name, vec![Bytes::from_static(b"x")]).await.unwrap();
        self.registry.start_tracking(name, sets);
    }

    async fn settled(&self) {
        while self.metrics.discards_pending.get() > 0 {
            tokio::task::yield_now().await;
        }
    }
}

#[tokio::test]
async fn g01_deleted_when_its_last_set_is_released() {
    let f = fixture();
    f.object("log/a", 2).await;
    f.registry.release("log/a");
    f.settled().await;
    assert!(f.store.exists("log/a").await.unwrap());
    f.registry.release("log/a");
    f.settled().await;
    assert!(!f.store.exists("log/a").await.unwrap());
    assert_eq!((f.metrics.discards.get(), f.registry.tracked()), (1, 0));
    f.registry.release("log/a");
    assert_eq!(f.metrics.discards_pending.get(), 0, "once more is nothing");
}

#[tokio::test]
async fn g02_never_deleted_after_tracking_stopped() {
    let f = fixture();
    f.object("log/a", 2).await;
    f.registry.stop_tracking("log/a");
    f.registry.release("log/a");
    f.registry.release("log/a");
    f.settled().await;
    assert!(f.store.exists("log/a").await.unwrap());
    assert_eq!(f.inner.calls_of(Operation::Delete), 0);
}

#[tokio::test]
async fn a_failed_deletion_is_counted_and_nothing_more() {
    let f = fixture();
    f.object("log/a", 1).await;
    f.inner.always(Operation::Delete, Fault::Denied);
    f.registry.release("log/a");
    f.settled().await;
    assert_eq!((f.metrics.discards.get(), f.metrics.discard_failures.get()), (0, 1));
}

#[test]
fn l01_copies_go_with_the_last_checkpoint_that_used_them() {
    let object = |name: &str| ObjectRef { name: name.into(), size: 1, crc: 0 };
    let registry = LocalRegistry::default();
    for (name, checkpoint) in [("f1", 1), ("f2", 1), ("f2", 2), ("f3", 2), ("f2", 1)] {
        registry.register(&object(name), checkpoint);
    }
    let names = |objects: Vec<ObjectRef>| {
        let mut names: Vec<String> = objects.into_iter().map(|o| o.name).collect();
        names.sort();
        names
    };
    assert_eq!(names(registry.discard_up_to(1)), [""; 0]);
    assert_eq!(names(registry.discard_up_to(2)), ["f1"]);
    assert_eq!(names(registry.discard_up_to(3)), ["f2", "f3"]);
    registry.register(&object("f4"), 1);
    registry.forget(&object("f4"));
    assert_eq!(names(registry.discard_up_to(9)), [""; 0]);
}
