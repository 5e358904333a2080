//! Tests of replay: order, one download per object, and what damage leads to.

use super::*;
use crate::store::fault::{Fault, FaultStore, Operation};
use crate::store::log_name;
use bytes::Bytes;
use fastchangelog_format::config::{Compression, Options};
use fastchangelog_format::error::ErrorKind;
use fastchangelog_format::model::{BatchId, Change, KeyGroup, Op, StateId, VersionId};
use fastchangelog_format::{Crc, encode_set, file_footer, file_header};
use fastchangelog_store::failpoint::Failpoints;
use fastchangelog_store::metrics::SharedMetrics;
use futures::TryStreamExt;

fn store(inner: &Arc<FaultStore>) -> Store {
    let (options, metrics) = (Options::default(), SharedMetrics::default());
    Store::from_object_store(Arc::clone(inner) as _, "q", "test://b/q", &options, metrics, Failpoints::none())
}

fn set_of(seed: u16) -> ChangeSet {
    let mut set = ChangeSet::default();
    for i in 0..5u16 {
        let key = (seed + i).to_be_bytes();
        set.push(Change { op: Op::Put, state: StateId(0), key_group: KeyGroup(i), key: &key, value: &[1; 100] });
    }
    set
}

/// Log objects of `per_object` sets each.
async fn written(store: &Store, objects: u16, per_object: u16) -> (Vec<ChangeSet>, Vec<SegmentRef>) {
    let (mut sets, mut segments) = (Vec::new(), Vec::new());
    for object in 0..objects {
        let mut parts = vec![file_header()];
        let mut places = Vec::new();
        for i in 0..per_object {
            let set = set_of(object * 100 + i);
            let bytes = encode_set(&set, Compression::Lz4).unwrap().to_bytes();
            places.push((parts.iter().map(|p| p.len() as u64).sum::<u64>(), bytes.len() as u64));
            parts.push(bytes);
            sets.push(set);
        }
        let mut crc = Crc::new();
        for part in &parts {
            crc.update(part);
        }
        parts.push(file_footer(&places, crc.value()));
        let object = store.put_new(&log_name(), parts).await.unwrap();
        segments.extend(places.into_iter().map(|(offset, length)| SegmentRef {
            version: VersionId::random(),
            batch: BatchId(0),
            object: object.clone(),
            offset,
            length,
            records: 5,
        }));
    }
    (sets, segments)
}

async fn read(store: &Store, cache: Option<&Arc<ObjectCache>>, segments: &[SegmentRef]) -> Result<Vec<ChangeSet>> {
    read_segments(store, cache, segments, 4).try_collect().await
}

#[tokio::test]
async fn p5_sets_come_in_order_and_each_object_once() {
    let inner = FaultStore::in_memory();
    let store = store(&inner);
    let (sets, segments) = written(&store, 3, 4).await;
    assert_eq!(read(&store, None, &segments).await.unwrap(), sets);
    assert_eq!(inner.calls_of(Operation::Get), 12, "a range for each set");
    let dir = tempfile::tempdir().unwrap();
    let cache = ObjectCache::new(dir.path(), 1 << 20, SharedMetrics::default()).unwrap();
    assert_eq!(read(&store, Some(&cache), &segments).await.unwrap(), sets);
    assert_eq!(inner.calls_of(Operation::Get), 15, "each object once");
    assert!(read(&store, Some(&cache), &[]).await.unwrap().is_empty());
}

#[tokio::test]
async fn p10_a_damaged_copy_is_replaced_by_the_object() {
    let inner = FaultStore::in_memory();
    let store = store(&inner);
    let (sets, segments) = written(&store, 1, 2).await;
    let dir = tempfile::tempdir().unwrap();
    let cache = ObjectCache::new(dir.path(), 1 << 20, SharedMetrics::default()).unwrap();
    read(&store, Some(&cache), &segments).await.unwrap();
    let copy = std::fs::read_dir(dir.path()).unwrap().next().unwrap().unwrap().path();
    for damage in ["flip", "cut", "remove"] {
        let mut bytes = std::fs::read(&copy).unwrap();
        match damage {
            "flip" => {
                let last = usize::try_from(segments[1].offset + segments[1].length).unwrap() - 1;
                bytes[last] ^= 1;
                std::fs::write(&copy, bytes).unwrap();
            }
            "cut" => std::fs::write(&copy, &bytes[..20]).unwrap(),
            _ => std::fs::remove_file(&copy).unwrap(),
        }
        let before = inner.calls_of(Operation::Get);
        assert_eq!(read(&store, Some(&cache), &segments).await.unwrap(), sets, "{damage}");
        assert_eq!(inner.calls_of(Operation::Get), before + 1, "{damage}");
    }
}

#[tokio::test]
async fn p10_a_copy_that_a_reader_replaced_is_read_again() {
    let inner = FaultStore::in_memory();
    let store = store(&inner);
    let (_, segments) = written(&store, 1, 2).await;
    let dir = tempfile::tempdir().unwrap();
    let cache = ObjectCache::new(dir.path(), 1 << 20, SharedMetrics::default()).unwrap();
    let lease = cache.try_lease(&store, &segments[0].object).await.unwrap();
    let reads = std::cell::Cell::new(0);
    // The first read met the damaged copy; by the time it is looked at, there is a good one.
    let read = |lease: &Lease| {
        reads.set(reads.get() + 1);
        if reads.get() == 1 { Err(Error::corrupt("copy", 0, "damaged")) } else { lease.read_at(0, 4) }
    };
    assert!(judged(lease, read).unwrap().is_some());
    // What is wrong with an intact copy is wrong with the object.
    let lease = cache.try_lease(&store, &segments[0].object).await.unwrap();
    assert!(judged(lease, |_| Err::<(), _>(Error::corrupt("copy", 0, "damaged"))).is_err());
}

#[tokio::test]
async fn a_broken_disk_does_not_stop_a_replay() {
    let inner = FaultStore::in_memory();
    let store = store(&inner);
    let (sets, segments) = written(&store, 2, 2).await;
    let dir = tempfile::tempdir().unwrap();
    let cache = ObjectCache::new(dir.path(), 1 << 20, SharedMetrics::default()).unwrap();
    std::fs::remove_dir_all(dir.path()).unwrap();
    assert_eq!(read(&store, Some(&cache), &segments).await.unwrap(), sets);
}

#[tokio::test]
async fn p9_foreign_and_damaged_segments_are_named() {
    let inner = FaultStore::in_memory();
    let store = store(&inner);
    let (_, segments) = written(&store, 1, 2).await;
    let dir = tempfile::tempdir().unwrap();
    let cache = ObjectCache::new(dir.path(), 1 << 20, SharedMetrics::default()).unwrap();
    let mut beyond = segments[0].clone();
    beyond.length = u64::MAX;
    let mut shifted = segments[0].clone();
    shifted.offset += 1;
    let mut short = segments[0].clone();
    short.records = 4;
    for bad in [beyond, shifted, short] {
        for cache in [None, Some(&cache)] {
            let error = read(&store, cache, std::slice::from_ref(&bad)).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
            assert!(error.message().contains(&bad.object.name), "{error}");
            assert_eq!(error.message().matches("corrupt data in").count(), 1, "{error}");
        }
    }
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "the copy is not to blame");
    // Damage in the store itself.
    let object = &segments[0].object;
    let mut bytes = store.get(object).await.unwrap().to_vec();
    let at = usize::try_from(segments[0].offset).unwrap() + 40;
    bytes[at] ^= 1;
    store.put_overwrite(&object.name, Bytes::from(bytes)).await.unwrap();
    let error = read(&store, None, &segments).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
}

#[tokio::test(start_paused = true)]
async fn the_stores_errors_are_passed_on() {
    let inner = FaultStore::in_memory();
    let store = store(&inner);
    let (_, segments) = written(&store, 1, 1).await;
    inner.always(Operation::Get, Fault::Denied);
    assert_eq!(read(&store, None, &segments).await.unwrap_err().kind(), ErrorKind::PermissionDenied);
}

#[test]
fn large_sets_are_fetched_ahead_one_or_two_at_a_time() {
    let ahead = |length: u64, records: u64| {
        let object = fastchangelog_format::model::ObjectRef { name: "log/a".into(), size: 1 << 40, crc: 0 };
        let (version, batch) = (VersionId(1), BatchId(0));
        prefetch_of(&[SegmentRef { version, batch, object, offset: 0, length, records }])
    };
    assert_eq!([ahead(1 << 10, 10), ahead(1 << 20, 100), ahead(3 << 20, 100)], [32, 8, 4]);
    assert_eq!([ahead(10 << 20, 100), ahead(100 << 20, 100)], [1, 1]);
    assert_eq!(ahead(1 << 20, 100_000), 2, "few bytes can be many records");
}
