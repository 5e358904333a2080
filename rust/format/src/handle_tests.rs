//! Round trips, sizes and damage of handles and segment indexes.

use super::*;
use crate::crc32c;
use crate::error::ErrorKind;
use crate::model::handle::HASH_ID;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

fn any_object() -> impl Strategy<Value = ObjectRef> {
    let name = prop_oneof![
        any::<u128>().prop_map(|id| format!("log/{id:032x}")),
        any::<u128>().prop_map(|id| format!("sst/{id:032x}.sst")),
        "[a-z0-9./ -]{1,40}",
        "[0-9a-f]{1,200}",
        "\\PC{1,20}",
    ];
    (name, any::<u64>(), any::<u32>())
        .prop_filter("an object name", |(n, ..)| !n.starts_with('/') && !n.split('/').any(|p| p == ".."))
        .prop_map(|(name, size, crc)| ObjectRef { name, size, crc })
}

fn any_segment() -> impl Strategy<Value = SegmentRef> {
    (any::<u128>(), any::<i64>(), any_object(), any::<u64>(), any::<u64>(), any::<u64>()).prop_map(
        |(version, batch, object, offset, length, records)| SegmentRef {
            version: VersionId(version),
            batch: BatchId(batch),
            object,
            offset,
            length,
            records,
        },
    )
}

fn any_handle() -> impl Strategy<Value = ShardHandle> {
    let snapshot =
        (any::<u128>(), any::<u128>(), any_object(), any::<u64>()).prop_map(|(v, r, manifest, total_bytes)| {
            SnapshotRef { version: VersionId(v), replay_after: VersionId(r), manifest, total_bytes }
        });
    let ids = (any::<u128>(), any::<u128>(), option::of(any::<u128>()), any::<i64>());
    let place = (any::<u32>(), any::<u32>(), any::<u16>(), any::<u16>(), any::<u16>(), any::<u16>());
    let schema = (any::<u64>(), "\\PC{0,40}", option::of(any::<i64>()), any::<u64>(), any::<u64>());
    let objects = (option::of(snapshot), option::of(any_object()), vec(any_segment(), 0..8));
    (ids, place, schema, objects).prop_map(|(ids, place, schema, objects)| ShardHandle {
        instance: InstanceId(ids.0),
        version: VersionId(ids.1),
        parent: ids.2.map(VersionId),
        batch: BatchId(ids.3),
        shard: place.0,
        shards: place.1,
        max_parallelism: place.2,
        key_groups: KeyGroupRange { start: place.3, end: place.4 },
        hash_id: place.5,
        schema_id: schema.0,
        schema: schema.1,
        watermark: schema.2,
        state_keys: schema.3,
        state_bytes: schema.4,
        snapshot: objects.0,
        indexed: objects.1,
        segments: objects.2,
    })
}

/// The handle of a long-running job: a snapshot, an index, and the most segments that the cap allows.
fn typical_handle(segments: u64) -> ShardHandle {
    let object =
        |folder: &str, size| ObjectRef { name: format!("{folder}/{}", VersionId::random()), size, crc: rand::random() };
    ShardHandle {
        instance: InstanceId::random(),
        version: VersionId::random(),
        parent: Some(VersionId::random()),
        batch: BatchId(123_456),
        shard: 117,
        shards: 200,
        max_parallelism: 512,
        key_groups: KeyGroupRange { start: 300, end: 302 },
        hash_id: HASH_ID,
        schema_id: rand::random(),
        schema: "key: long, string; count(*), sum(price: decimal(10,2))".to_owned(),
        watermark: Some(1_700_000_000_000),
        state_keys: 1_234_567,
        state_bytes: 123_456_789,
        snapshot: Some(SnapshotRef {
            version: VersionId::random(),
            replay_after: VersionId::random(),
            manifest: object("base", 30_000),
            total_bytes: 200_000_000,
        }),
        indexed: Some(object("index", 100_000)),
        segments: (0..segments)
            .map(|i| SegmentRef {
                version: VersionId::random(),
                batch: BatchId(123_400 + i.cast_signed()),
                object: object("log", 16_000_000),
                offset: 8_000_000,
                length: 300_000,
                records: 20_000,
            })
            .collect(),
    }
}

proptest! {
    #[test]
    fn p2_handles_round_trip(handle in any_handle()) {
        prop_assert_eq!(decode_handle(&encode_handle(&handle)).unwrap(), handle);
    }

    #[test]
    fn segment_indexes_round_trip(segments in vec(any_segment(), 0..20)) {
        prop_assert_eq!(decode_segment_index("index/x", &encode_segment_index(&segments)).unwrap(), segments);
    }

    #[test]
    fn p9_any_bytes_are_an_error(bytes in vec(any::<u8>(), 0..200)) {
        prop_assert!(decode_handle(&bytes).is_err());
        prop_assert!(decode_segment_index("index/x", &bytes).is_err());
    }
}

#[test]
fn p2_a_handle_stays_small() {
    let empty = encode_handle(&typical_handle(0)).len();
    let full = encode_handle(&typical_handle(32)).len();
    assert!(empty < 320, "{empty} bytes without segments");
    assert!((full - empty) / 32 < 58, "{} bytes per segment", (full - empty) / 32);
    assert!(full < 2200, "{full} bytes with 32 segments");
}

#[test]
fn p2_segments_of_one_object_share_its_name() {
    let mut handle = typical_handle(32);
    let apart = encode_handle(&handle).len();
    let object = handle.segments[0].object.clone();
    handle.segments.iter_mut().for_each(|s| s.object = object.clone());
    let shared = encode_handle(&handle);
    assert!(shared.len() + 31 * 24 < apart, "{} of {apart}", shared.len());
    assert_eq!(decode_handle(&shared).unwrap(), handle);
}

#[test]
fn a_newer_version_is_no_damage_and_names_both_versions() {
    let mut bytes = encode_handle(&typical_handle(1));
    bytes[4] = 7;
    let text = decode_handle(&bytes).unwrap_err();
    assert_eq!(text.kind(), ErrorKind::Corrupt, "a version that was not written is damage: {text}");
    let end = bytes.len() - 4;
    let crc = crc32c(&bytes[..end]).to_le_bytes();
    bytes[end..].copy_from_slice(&crc);
    let error = decode_handle(&bytes).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    let text = error.to_string();
    assert!(text.contains("version 7") && text.contains("up to 1") && text.contains("upgrade"), "{text}");
}

#[test]
fn p9_names_that_leave_the_folder_are_refused() {
    for name in ["../x", "log/../../x", "/etc/x", "", &"x".repeat(600), &format!("{}/x", "y".repeat(600))] {
        let mut handle = typical_handle(1);
        handle.segments[0].object.name = name.to_owned();
        let error = decode_handle(&encode_handle(&handle)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{name}");
    }
}
