//! Tests of refused sets of handles, and of the choice of the snapshot to take over.

use super::*;
use fastchangelog_format::error::ErrorKind;
use fastchangelog_format::model::{BatchId, InstanceId, ObjectRef, SnapshotRef, VersionId};

fn handle(shard: u32, shards: u32, groups: u16) -> ShardHandle {
    ShardHandle {
        instance: InstanceId(u128::from(shard)),
        version: VersionId(1),
        parent: None,
        batch: BatchId(i64::from(shard)),
        shard,
        shards,
        max_parallelism: groups,
        key_groups: shard_range(shard, shards, groups),
        hash_id: HASH_ID,
        schema_id: 1,
        schema: "{}".into(),
        watermark: None,
        state_keys: 0,
        state_bytes: 0,
        snapshot: None,
        indexed: None,
        segments: Vec::new(),
    }
}

fn handles(shards: u32, groups: u16) -> Vec<ShardHandle> {
    (0..shards).map(|shard| handle(shard, shards, groups)).collect()
}

fn refused(handles: Vec<ShardHandle>, kind: ErrorKind, text: &str) {
    let error = Sources::of(handles).unwrap_err();
    assert_eq!(error.kind(), kind, "{error}");
    assert!(error.to_string().contains(text), "{error}");
}

#[test]
fn invariant_1_one_handle_for_each_shard_in_any_order() {
    let mut all = handles(5, 128);
    all.swap(0, 3);
    let sources = Sources::of(all.clone()).unwrap();
    assert_eq!(sources.handles().iter().map(|h| h.shard).collect::<Vec<_>>(), [0, 1, 2, 3, 4]);

    refused(Vec::new(), ErrorKind::InvalidArgument, "no handles were given");
    for i in 0..5 {
        let mut some = all.clone();
        let lost = some.remove(i).shard;
        refused(some, ErrorKind::InvalidArgument, &format!("the handle of shard {lost} of 5 is missing"));
        let mut twice = all.clone();
        twice.push(all[i].clone());
        let text = format!("two handles of shard {} of 5", all[i].shard);
        refused(twice, ErrorKind::InvalidArgument, &text);
    }
    let mut all = handles(2, 128);
    all[1].key_groups.start += 1;
    refused(all, ErrorKind::Corrupt, "not its own");
    let mut all = handles(2, 128);
    all.push(handle(2, 2, 128));
    refused(all, ErrorKind::Corrupt, "shard 2 of 2");
}

#[test]
fn invariant_2_foreign_handles_are_refused() {
    for (shards, groups) in [(3, 128), (2, 64)] {
        let foreign = vec![handle(0, 2, 128), handle(1, shards, groups)];
        refused(foreign, ErrorKind::InvalidArgument, "different states");
    }
    let mut all = handles(2, 128);
    (all[1].schema_id, all[1].schema) = (2, "[]".into());
    refused(all, ErrorKind::SchemaMismatch, "different queries");
    let mut all = handles(2, 128);
    all[1].hash_id = 9;
    refused(all, ErrorKind::SchemaMismatch, "key hash 9");
}

#[test]
fn targets_cover_all_key_groups_or_are_refused() {
    let sources = Sources::of(handles(3, 10)).unwrap();
    for shards in 1..=10 {
        let targets = sources.targets(shards).unwrap();
        assert_eq!((targets[0].start, targets.last().unwrap().end), (0, 10));
        assert!(targets.windows(2).all(|pair| pair[0].end == pair[1].start));
    }
    for shards in [0, 11, u32::MAX] {
        let error = sources.targets(shards).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(error.to_string().contains(&format!("to {shards} shards: ask for 1 to 10")), "{error}");
    }
}

#[test]
fn a_target_wants_the_sources_it_meets() {
    let sources = Sources::of(handles(3, 12)).unwrap();
    let wanted = |start, end| {
        let wanted = sources.wanted(KeyGroupRange { start, end }).unwrap();
        wanted.iter().map(|w| (w.handle.shard, w.groups.start, w.groups.end, w.is_whole())).collect::<Vec<_>>()
    };
    assert_eq!(wanted(0, 12), [(0, 0, 4, true), (1, 4, 8, true), (2, 8, 12, true)]);
    assert_eq!(wanted(4, 8), [(1, 4, 8, true)]);
    assert_eq!(wanted(3, 9), [(0, 3, 4, false), (1, 4, 8, true), (2, 8, 9, false)]);
    for (start, end) in [(3, 3), (5, 4), (0, 13), (12, 20)] {
        let error = sources.wanted(KeyGroupRange { start, end }).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    }
}

#[test]
fn y09_the_snapshot_with_most_wanted_key_groups_is_taken() {
    let object = ObjectRef { name: "base/1".into(), size: 1, crc: 0 };
    let snapshot = SnapshotRef { version: VersionId(1), replay_after: VersionId(1), manifest: object, total_bytes: 1 };
    let ranges = [(0, 4), (4, 8), (8, 13)];
    let mut handles: Vec<_> = (0..3).map(|shard| handle(shard, 3, 13)).collect();
    for (handle, (start, end)) in handles.iter_mut().zip(ranges) {
        (handle.key_groups, handle.snapshot) = (KeyGroupRange { start, end }, Some(snapshot.clone()));
    }
    let choose = |handles: &[ShardHandle], start, end| {
        choose_snapshot(&Sources { handles: handles.to_vec() }.wanted(KeyGroupRange { start, end }).unwrap())
    };
    // The position is among those that the target meets.
    assert_eq!(choose(&handles, 3, 7), Some(1), "3 of 4 instead of 1 of 4");
    assert_eq!(choose(&handles, 5, 13), Some(1), "all 5 of the third");
    assert_eq!(choose(&handles, 4, 12), Some(0), "4 of 4 instead of 4 of 5");
    assert_eq!(choose(&handles, 3, 13), Some(2), "all 5 of the third");
    assert_eq!(choose(&handles, 12, 13), None, "1 of 5 is not worth the rest");
    handles[1].snapshot = None;
    assert_eq!(choose(&handles, 4, 8), None, "no snapshot to take over");
}
