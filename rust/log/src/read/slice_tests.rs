//! Parts of snapshots and segments: what is asked for, no more bytes than that takes, and never wrong data.

use super::*;
use crate::store::fault::{Fault, FaultStore, Operation};
use crate::store::{log_name, manifest_name, sst_name};
use fastchangelog_format::config::{Compression, Options};
use fastchangelog_format::model::{BatchId, Change, InstanceId, KeyGroup, Op, StateId, VersionId};
use fastchangelog_format::segment::encode_set_in_blocks;
use fastchangelog_format::{FILE_HEADER_LEN, ManifestFile, crc32c, encode_manifest, file_footer, file_header};
use fastchangelog_store::failpoint::Failpoints;
use fastchangelog_store::metrics::SharedMetrics;
use futures::TryStreamExt;

fn store(inner: &Arc<FaultStore>) -> Store {
    let options = std::collections::BTreeMap::from([("retry_delay".to_owned(), "1ms".to_owned())]);
    let (options, metrics) = (Options::from_map(&options).unwrap(), SharedMetrics::default());
    Store::from_object_store(Arc::clone(inner) as _, "q", "test://b/q", &options, metrics, Failpoints::none())
}

/// Three records of each of 100 key groups.
fn set_of(value: usize) -> ChangeSet {
    let mut set = ChangeSet::default();
    for group in 0..100u16 {
        let value: Vec<u8> = (0..value).map(|i| (i * 31 + usize::from(group)) as u8).collect();
        let key_group = KeyGroup(group);
        for key in [b"a", b"b", b"c"] {
            set.push(Change { op: Op::Put, state: StateId(0), key_group, key, value: &value });
        }
    }
    set
}

async fn write(store: &Store, set: &ChangeSet, block: usize) -> SegmentRef {
    let bytes = encode_set_in_blocks(set, Compression::None, block).unwrap().to_bytes();
    let length = bytes.len() as u64;
    let mut object = file_header().to_vec();
    object.extend_from_slice(&bytes);
    object.extend_from_slice(&file_footer(&[(FILE_HEADER_LEN as u64, length)], crc32c(&object)));
    let object = store.put_new(&log_name(), vec![object.into()]).await.unwrap();
    let (offset, records) = (FILE_HEADER_LEN as u64, set.len() as u64);
    SegmentRef { version: VersionId::random(), batch: BatchId(0), object, offset, length, records }
}

fn part(set: &ChangeSet, groups: KeyGroupRange) -> ChangeSet {
    let mut part = ChangeSet::default();
    set.iter().filter(|c| groups.contains(c.key_group)).for_each(|c| part.push(c));
    part
}

async fn read(
    store: &Store,
    cache: Option<&Arc<ObjectCache>>,
    segments: &[SegmentRef],
    groups: KeyGroupRange,
) -> Result<Vec<SetSlice>> {
    read_slices(store, cache, segments, groups, 3).try_collect().await
}

#[tokio::test]
async fn invariant_2_head_and_blocks_of_a_large_segment_suffice() {
    let inner = FaultStore::in_memory();
    let store = store(&inner);
    let groups = KeyGroupRange { start: 40, end: 45 };
    // Small: one request. Large: head and blocks. Many blocks: the head did not fit the first guess.
    for (value, block, requests, least, most) in
        [(10, 1 << 20, 1, 0, 10_000), (5000, 20_000, 2, 75_000, 130_000), (1000, 1, 3, 15_000, 30_000)]
    {
        let set = set_of(value);
        let segment = write(&store, &set, block).await;
        let before = inner.calls_of(Operation::Get);
        let parts = read(&store, None, std::slice::from_ref(&segment), groups).await.unwrap();
        assert!(parts[0].set.iter().eq(part(&set, groups).iter()), "{value}");
        assert_eq!(inner.calls_of(Operation::Get) - before, requests, "{value}");
        assert!((least..most).contains(&parts[0].fetched), "{} of {}", parts[0].fetched, segment.length);
        let none = read(&store, None, std::slice::from_ref(&segment), KeyGroupRange { start: 200, end: 300 }).await;
        assert!(none.unwrap()[0].set.is_empty());
    }
}

#[tokio::test]
async fn segments_come_in_order_and_local_copies_are_read() {
    let inner = FaultStore::in_memory();
    let store = store(&inner);
    let dir = tempfile::tempdir().unwrap();
    let cache = ObjectCache::new(dir.path(), 64 << 20, SharedMetrics::default()).unwrap();
    let groups = KeyGroupRange { start: 7, end: 60 };
    let sets: Vec<_> = (1..8).map(|i| set_of(i * 400)).collect();
    let mut segments = Vec::new();
    for set in &sets {
        segments.push(write(&store, set, 10_000).await);
    }
    let expected: Vec<_> = sets.iter().map(|set| part(set, groups)).collect();
    let equal = |parts: Vec<SetSlice>| parts.iter().map(|p| &p.set).zip(&expected).all(|(a, b)| a.iter().eq(b.iter()));
    assert!(equal(read(&store, Some(&cache), &segments, groups).await.unwrap()));
    assert_eq!(cache.bytes(), 0, "a part is no reason to copy the whole");
    for segment in &segments {
        cache.lease(&store, &segment.object).await.unwrap();
    }
    let before = inner.calls();
    let parts = read(&store, Some(&cache), &segments, groups).await.unwrap();
    assert!(parts.iter().all(|part| part.fetched == 0) && equal(parts));
    assert_eq!(inner.calls(), before);
    // A copy that has changed on disk is thrown away, and the object read.
    let copy = std::fs::read_dir(dir.path()).unwrap().next().unwrap().unwrap().path();
    let mut bytes = std::fs::read(&copy).unwrap();
    bytes.iter_mut().skip(40).for_each(|b| *b ^= 1);
    std::fs::write(&copy, bytes).unwrap();
    assert!(equal(read(&store, Some(&cache), &segments, groups).await.unwrap()));
    assert!(inner.calls() > before && !copy.exists());
}

#[tokio::test]
async fn p9_another_set_at_that_place_is_refused() {
    let inner = FaultStore::in_memory();
    let store = store(&inner);
    for value in [10, 2000] {
        let segment = write(&store, &set_of(value), 10_000).await;
        let groups = KeyGroupRange { start: 0, end: 3 };
        let mut others = vec![segment.clone(); 3];
        others[0].records += 1;
        others[1].length -= 1;
        others[2].offset += 1;
        for other in others {
            let error = read(&store, None, &[other], groups).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
            assert!(error.to_string().contains(&segment.object.name), "{error}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn p10_damage_on_the_way_is_healed_lasting_damage_told() {
    let inner = FaultStore::in_memory();
    let store = store(&inner);
    let (set, groups) = (set_of(5000), KeyGroupRange { start: 40, end: 45 });
    let segment = write(&store, &set, 20_000).await;
    for call in 0..2 {
        inner.at(inner.calls() + call, Fault::Flip);
        let parts = read(&store, None, std::slice::from_ref(&segment), groups).await.unwrap();
        assert!(parts[0].set.iter().eq(part(&set, groups).iter()), "call {call}");
    }
    inner.always(Operation::Get, Fault::Flip);
    let error = read(&store, None, &[segment], groups).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
}

#[tokio::test]
async fn invariant_1_the_folder_holds_small_files_and_chosen_tables() {
    let inner = FaultStore::in_memory();
    let store = store(&inner);
    let (instance, version) = (InstanceId::random(), VersionId::random());
    let inline = vec![("CURRENT".to_owned(), Bytes::from_static(b"MANIFEST-000004\n"))];
    let mut manifest = Manifest { instance, version, replay_after: version, files: Vec::new(), inline };
    for name in ["000001.sst", "000002.sst", "000003.sst", "MANIFEST-000004"] {
        let object = store.put_new(&sst_name(), vec![Bytes::from(vec![1; 100])]).await.unwrap();
        manifest.files.push(ManifestFile::whole(name.into(), object));
    }
    let object = store.put_new(&manifest_name(), vec![encode_manifest(&manifest)]).await.unwrap();
    let snapshot = SnapshotRef { version, replay_after: version, manifest: object, total_bytes: 0 };
    let dir = tempfile::tempdir().unwrap();
    let into = dir.path().to_owned();
    let seen = into.clone();
    let choose = move || {
        assert!(seen.join("CURRENT").exists() && seen.join("MANIFEST-000004").exists(), "there before the choice");
        Ok(BTreeSet::from(["000002.sst".to_owned()]))
    };
    let part = fetch_snapshot_slice(&store, None, &snapshot, &into, choose).await.unwrap();
    assert_eq!((part.manifest, part.bytes), (manifest, 200));
    let mut names: Vec<_> = std::fs::read_dir(&into).unwrap().map(|e| e.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["000002.sst", "CURRENT", "MANIFEST-000004"]);

    let (unknown, calls) = (|| Ok(BTreeSet::from(["000009.sst".to_owned()])), inner.calls());
    let error = fetch_snapshot_slice(&store, None, &snapshot, &into, unknown).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    assert!(error.to_string().contains("000009.sst"), "{error}");
    assert_eq!(inner.calls(), calls + 2, "no table was fetched");
}
