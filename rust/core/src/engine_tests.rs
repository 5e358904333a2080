//! What the engine does now and then.

use super::*;
use crate::clock::ManualClock;
use crate::failpoint::Failpoints;
use crate::metrics::SharedMetrics;
use crate::store::fault::FaultStore;
use bytes::Bytes;
use std::time::Duration;

#[test]
fn close_idle_removes_downloads_that_nobody_used() {
    let local = tempfile::tempdir().unwrap();
    let (clock, metrics) = (ManualClock::at(0), SharedMetrics::default());
    let options = Options::from_map(&[("cache_idle_timeout".to_owned(), "2m".to_owned())].into()).unwrap();
    let config = EngineConfig {
        local_dir: local.path().to_owned(),
        options: options.clone(),
        clock: Arc::clone(&clock) as _,
        metrics: Arc::clone(&metrics),
        failpoints: Failpoints::none(),
    };
    let engine = Engine::start(config).unwrap();
    let inner = FaultStore::in_memory();
    let store = Store::from_object_store(inner, "q", "test://b/q", &options, metrics, Failpoints::none());
    let object = engine.runtime.block_on(async {
        let object = store.put_new("log/a", vec![Bytes::from_static(b"a")]).await.unwrap();
        drop(engine.cache.lease(&store, &object).await.unwrap());
        object
    });
    clock.advance(Duration::from_secs(119));
    engine.close_idle();
    assert!(engine.cache.contains(&store, &object));
    clock.advance(Duration::from_secs(1));
    engine.close_idle();
    assert!(!engine.cache.contains(&store, &object));
}
