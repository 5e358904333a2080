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

#[test]
fn p6_the_note_of_a_folder_keeps_the_longest_grace_that_any_server_counts_on() {
    let local = tempfile::tempdir().unwrap();
    let root = format!("file://{}", local.path().join("state").display());
    let request = |grace: &str| -> OpenRequest {
        let text = serde_json::json!({
            "root": root, "query_id": "q", "name": "s", "shard": 0, "shards": 1, "batch": 0, "handle": null, "spec": "",
            "options": {"sweep_grace": grace, "file_sync": "false"}, "checkpoint": "s3a://b/ckpt",
        });
        serde_json::from_value(text).unwrap()
    };
    let engine = || {
        let config = EngineConfig {
            local_dir: local.path().join("local"),
            options: Options::default(),
            clock: ManualClock::at(0) as _,
            metrics: SharedMetrics::default(),
            failpoints: Failpoints::none(),
        };
        Engine::start(config).unwrap()
    };
    let path = local.path().join("state/q/s").join(FOLDER_META);
    let note = || serde_json::from_slice::<serde_json::Value>(&std::fs::read(&path).unwrap()).unwrap();
    let first = engine();
    first.note_grace(&first.folder(&request("2h")).unwrap()).unwrap();
    assert!(!path.exists(), "a folder that was never begun is left alone");
    first.beginning(&first.folder(&request("2h")).unwrap(), &request("2h")).unwrap();
    assert_eq!(note()["sweep_grace_seconds"], 7200);
    for (grace, noted) in [("1h", 7200), ("3h", 10_800), ("2h", 10_800)] {
        let server = engine();
        server.note_grace(&server.folder(&request(grace)).unwrap()).unwrap();
        assert_eq!(note()["sweep_grace_seconds"], noted, "{grace}");
        assert_eq!(note()["checkpoint"], "s3a://b/ckpt");
    }
    // As older versions wrote it.
    let mut old = note();
    old.as_object_mut().unwrap().remove("sweep_grace_seconds");
    std::fs::write(&path, old.to_string()).unwrap();
    let server = engine();
    server.note_grace(&server.folder(&request("1h")).unwrap()).unwrap();
    assert_eq!(note()["sweep_grace_seconds"], 3600);
    // Of another format, or damaged: nothing that a sweep would believe.
    for other in ["{\"format\": 2}", "{"] {
        std::fs::write(&path, other).unwrap();
        let server = engine();
        server.note_grace(&server.folder(&request("9h")).unwrap()).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), other);
    }
}
