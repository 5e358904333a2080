//! Tests of fetching a snapshot: the folder is complete, or the failure is told.

use super::*;
use crate::store::fault::{Fault, FaultStore, Operation};
use crate::store::{manifest_name, sst_name};
use bytes::Bytes;
use fastchangelog_format::config::Options;
use fastchangelog_format::encode_manifest;
use fastchangelog_format::error::ErrorKind;
use fastchangelog_format::model::{InstanceId, VersionId};
use fastchangelog_store::failpoint::Failpoints;
use fastchangelog_store::metrics::SharedMetrics;
use std::collections::BTreeMap;

struct Fixture {
    dir: tempfile::TempDir,
    inner: Arc<FaultStore>,
    store: Store,
    snapshot: SnapshotRef,
    files: BTreeMap<String, Vec<u8>>,
}

async fn fixture() -> Fixture {
    let inner = FaultStore::in_memory();
    let (options, metrics) = (Options::default(), SharedMetrics::default());
    let store =
        Store::from_object_store(Arc::clone(&inner) as _, "q", "test://b/q", &options, metrics, Failpoints::none());
    let mut files = BTreeMap::new();
    let mut manifest = Manifest {
        instance: InstanceId::random(),
        version: VersionId::random(),
        replay_after: VersionId::random(),
        files: Vec::new(),
        inline: vec![("CURRENT".into(), Bytes::from_static(b"MANIFEST-000004\n"))],
    };
    files.insert("CURRENT".to_owned(), b"MANIFEST-000004\n".to_vec());
    for i in 0..6u8 {
        let content = vec![i; 1000 + usize::from(i)];
        let object = store.put_new(&sst_name(), vec![Bytes::from(content.clone())]).await.unwrap();
        let name = format!("00001{i}.sst");
        manifest.files.push(ManifestFile::whole(name.clone(), object));
        files.insert(name, content);
    }
    let object = store.put_new(&manifest_name(), vec![encode_manifest(&manifest)]).await.unwrap();
    let snapshot = SnapshotRef {
        version: manifest.version,
        replay_after: manifest.replay_after,
        manifest: object,
        total_bytes: 0,
    };
    Fixture { dir: tempfile::tempdir().unwrap(), inner, store, snapshot, files }
}

impl Fixture {
    fn content(folder: &Path) -> BTreeMap<String, Vec<u8>> {
        let entries = std::fs::read_dir(folder).unwrap().map(|e| e.unwrap());
        entries.map(|e| (e.file_name().into_string().unwrap(), std::fs::read(e.path()).unwrap())).collect()
    }

    fn cache(&self) -> Arc<ObjectCache> {
        ObjectCache::new(&self.dir.path().join("cache"), 1 << 20, SharedMetrics::default()).unwrap()
    }
}

/// Fetches into the folder `into`, which is made when it is not there.
async fn fetch(f: &Fixture, cache: Option<&Arc<ObjectCache>>, snapshot: &SnapshotRef, into: &Path) -> Result<Manifest> {
    std::fs::create_dir_all(into).unwrap();
    fetch_snapshot(&f.store, cache, snapshot, into, &|_| ()).await
}

#[tokio::test]
async fn the_folder_holds_exactly_the_files() {
    let f = fixture().await;
    let into = f.dir.path().join("plain");
    let manifest = fetch(&f, None, &f.snapshot, &into).await.unwrap();
    assert_eq!(manifest.files.len(), 6);
    assert_eq!(Fixture::content(&into), f.files);
}

#[tokio::test]
async fn the_cache_serves_the_second_time_and_damage_in_it_is_healed() {
    let f = fixture().await;
    let cache = f.cache();
    fetch(&f, Some(&cache), &f.snapshot, &f.dir.path().join("one")).await.unwrap();
    let gets = f.inner.calls_of(Operation::Get);
    fetch(&f, Some(&cache), &f.snapshot, &f.dir.path().join("two")).await.unwrap();
    assert_eq!(f.inner.calls_of(Operation::Get), gets + 1, "only the manifest");
    // Damage by replacement, so that the linked files of the first two stay as they are.
    let copy = std::fs::read_dir(f.dir.path().join("cache")).unwrap().next().unwrap().unwrap().path();
    let size = usize::try_from(std::fs::metadata(&copy).unwrap().len()).unwrap();
    std::fs::remove_file(&copy).unwrap();
    std::fs::write(&copy, vec![99; size]).unwrap();
    fetch(&f, Some(&cache), &f.snapshot, &f.dir.path().join("three")).await.unwrap();
    assert_eq!(f.inner.calls_of(Operation::Get), gets + 3, "the manifest and the damaged file");
    for folder in ["one", "two", "three"] {
        assert_eq!(Fixture::content(&f.dir.path().join(folder)), f.files, "{folder}");
    }
}

#[tokio::test]
async fn a_broken_cache_folder_is_gone_around() {
    let f = fixture().await;
    let cache = f.cache();
    std::fs::remove_dir_all(f.dir.path().join("cache")).unwrap();
    let into = f.dir.path().join("into");
    fetch(&f, Some(&cache), &f.snapshot, &into).await.unwrap();
    assert_eq!(Fixture::content(&into), f.files);
}

#[tokio::test(start_paused = true)]
async fn a_failure_keeps_its_kind() {
    let f = fixture().await;
    let cache = f.cache();
    for (use_cache, folder) in [(false, "without"), (true, "with")] {
        // A folder of its own: a download that was cancelled may still end on its thread and write its file.
        let into = f.dir.path().join(folder);
        let calls = f.inner.calls();
        f.inner.at(calls + 3, Fault::Denied);
        let cache = use_cache.then_some(&cache);
        let error = fetch(&f, cache, &f.snapshot, &into).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::PermissionDenied);
        f.inner.heal();
    }
    let mut other = f.snapshot.clone();
    other.version = VersionId::random();
    let error = fetch(&f, None, &other, &f.dir.path().join("into")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
}

#[tokio::test]
async fn y02_what_failed_is_what_is_told() {
    let f = fixture().await;
    let manifest = fetch_manifest(&f.store, &f.snapshot).await.unwrap();
    let gone = &manifest.files[3].object.name;
    f.store.delete(gone).await.unwrap();
    for cache in [None, Some(&f.cache())] {
        let error = fetch(&f, cache, &f.snapshot, &f.dir.path().join("into")).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
        assert!(error.message().contains(gone.as_str()), "{error}");
    }
}

#[tokio::test]
async fn y03_many_files_of_many_snapshots_come_at_once() {
    let fixtures = [fixture().await, fixture().await, fixture().await];
    let cache = fixtures[0].cache();
    let fetches = fixtures.iter().map(|f| async {
        fetch(f, Some(&cache), &f.snapshot, &f.dir.path().join("into")).await.unwrap();
        assert_eq!(Fixture::content(&f.dir.path().join("into")), f.files);
    });
    futures::future::join_all(fetches).await;
}

/// The calls of the files that are fetched first, after that of the manifest.
fn first_files(f: &Fixture) -> std::ops::Range<u64> {
    let calls = f.inner.calls();
    calls + 1..calls + 1 + PARALLEL_FILES as u64
}

#[tokio::test(start_paused = true)]
async fn y05_y06_one_failure_is_told_alone_though_it_ends_the_others() {
    for others in [None, Some(Fault::Hang), Some(Fault::Delay(std::time::Duration::from_secs(1)))] {
        for bad in 0..PARALLEL_FILES as u64 {
            let f = fixture().await;
            let first = first_files(&f);
            for call in first.clone() {
                let fault = if call == first.start + bad { Some(Fault::Denied) } else { others };
                fault.into_iter().for_each(|fault| f.inner.at(call, fault));
            }
            let error = fetch(&f, None, &f.snapshot, &f.dir.path().join("into")).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
            assert_eq!(error.message().matches("cannot read").count(), 1, "{error}");
            assert!(others.is_none() || f.inner.calls() <= first.end, "nothing more is begun");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn y07_failures_at_the_same_time_are_told_together() {
    let f = fixture().await;
    let manifest = fetch_manifest(&f.store, &f.snapshot).await.unwrap();
    for file in &manifest.files[..3] {
        f.store.delete(&file.object.name).await.unwrap();
    }
    first_files(&f).for_each(|call| f.inner.at(call, Fault::Delay(std::time::Duration::from_secs(1))));
    let error = fetch(&f, None, &f.snapshot, &f.dir.path().join("into")).await.unwrap_err();
    for file in &manifest.files[..3] {
        assert!(error.message().contains(&file.object.name), "{} in {error}", file.object.name);
    }
    assert_eq!(error.kind(), ErrorKind::NotFound);
}
