//! Frozen bytes: the library reads what every version of every format wrote, and writes the same bytes again unless
//! they depend on a compressor's version.
//!
//! `FASTCHANGELOG_WRITE_GOLDEN=1 cargo test golden` writes files that are missing. A change of an existing file is a
//! change of the format: it needs a new version number and a new file beside the old one.

use super::*;
use crate::byte_set::*;
use crate::config::Compression;
use crate::model::handle::HASH_ID;
use crate::model::{
    BatchId, Change, ChangeSet, ChangelogHandle, InstanceId, KeyGroup, KeyGroupRange, ObjectRef, Op, Savepoint,
    SavepointContent, SavepointOrigin, SavepointPart, SegmentRef, SetRef, ShardHandle, SnapshotRef, StateId, VersionId,
};
use bytes::Bytes;
use std::path::PathBuf;

/// The folder of this package. Asked for when the test runs: clones that share a target folder share its binaries.
fn manifest_dir() -> PathBuf {
    std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo names the package's folder").into()
}

fn golden(name: &str, fresh: &[u8]) -> Vec<u8> {
    let path = manifest_dir().join("tests/golden").join(name);
    if !path.exists() && std::env::var_os("FASTCHANGELOG_WRITE_GOLDEN").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, fresh).unwrap();
    }
    std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// A small deterministic generator, so that the content of the files is written down here and nowhere else.
fn id(n: u128) -> u128 {
    n.wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835).rotate_left(61) ^ 0x0123_4567_89ab_cdef
}

fn object(folder: &str, n: u128, extension: &str) -> ObjectRef {
    let crc = u32::try_from(id(n) >> 96).unwrap();
    ObjectRef { name: format!("{folder}/{:032x}{extension}", id(n)), size: 1000 * u64::try_from(n).unwrap(), crc }
}

fn segments() -> Vec<SegmentRef> {
    (0..5u64)
        .map(|i| SegmentRef {
            version: VersionId(id(100 + u128::from(i))),
            batch: BatchId(40 + i.cast_signed()),
            object: object("log", 200 + u128::from(i / 2), ""),
            offset: 16 + 70_000 * i,
            length: 65_000 + i,
            records: 1000 + i,
        })
        .collect()
}

fn handle() -> ShardHandle {
    ShardHandle {
        instance: InstanceId(id(1)),
        version: VersionId(id(104)),
        parent: Some(VersionId(id(103))),
        batch: BatchId(44),
        shard: 3,
        shards: 8,
        max_parallelism: 128,
        key_groups: KeyGroupRange { start: 48, end: 64 },
        hash_id: HASH_ID,
        schema_id: 0xfeed_beef_0123_4567,
        schema: "key: long; count(*) → long".to_owned(),
        watermark: Some(-5),
        state_keys: 123_456,
        state_bytes: 9_876_543,
        snapshot: Some(SnapshotRef {
            version: VersionId(id(99)),
            replay_after: VersionId(id(98)),
            manifest: object("base", 300, ""),
            total_bytes: 1 << 33,
        }),
        indexed: Some(object("index", 301, "")),
        segments: segments(),
    }
}

fn manifest() -> Manifest {
    Manifest {
        instance: InstanceId(id(1)),
        version: VersionId(id(99)),
        replay_after: VersionId(id(98)),
        files: (0..3u128)
            .map(|i| ManifestFile::whole(format!("{:06}.sst", 7 + i), object("sst", 400 + i, ".sst")))
            .collect(),
        inline: vec![
            ("CURRENT".to_owned(), Bytes::from_static(b"MANIFEST-000005\n")),
            ("MANIFEST-000005".to_owned(), Bytes::from_static(&[0, 1, 2, 255])),
        ],
    }
}

fn set(seed: u128) -> ChangeSet {
    let mut set = ChangeSet::default();
    for i in 0..60u128 {
        let random = id(seed * 1000 + i).to_le_bytes();
        let op = [Op::Put, Op::Put, Op::Put, Op::Put, Op::Delete, Op::DeletePrefix][usize::from(random[0]) % 6];
        let value = if op == Op::Put { vec![random[1]; usize::from(random[2]) / 2] } else { Vec::new() };
        let (state, key_group) = (StateId(u16::from(random[3] % 2)), KeyGroup(u16::from(random[4]) * 100));
        set.push(Change { op, state, key_group, key: &random[5..5 + usize::from(random[5]) % 9], value: &value });
    }
    set.sort_by_key_group();
    set
}

fn log_object(compression: Compression) -> Vec<u8> {
    let mut bytes = file_header().to_vec();
    let mut places = Vec::new();
    for seed in 1..4 {
        let set = segment::encode_set_in_blocks(&set(seed), compression, 1000).unwrap().to_bytes();
        places.push((bytes.len() as u64, set.len() as u64));
        bytes.extend_from_slice(&set);
    }
    let crc = crc32c(&bytes);
    bytes.extend_from_slice(&file_footer(&places, crc));
    bytes
}

#[test]
fn golden_handle() {
    let fresh = encode_handle(&handle());
    let stored = golden("handle_v1.bin", &fresh);
    assert_eq!(decode_handle(&stored).unwrap(), handle());
    assert_eq!(stored, fresh);
}

#[test]
fn golden_segment_index() {
    let fresh = encode_segment_index(&segments());
    let stored = golden("segment_index_v1.bin", &fresh);
    assert_eq!(decode_segment_index("golden", &stored).unwrap(), segments());
    assert_eq!(stored, fresh);
}

/// Version 1 knew no packed files. It is not written any more.
#[test]
fn golden_manifest_v1() {
    let stored = golden("manifest_v1.bin", &[]);
    assert_eq!(decode_manifest("golden", &stored).unwrap(), manifest());
}

#[test]
fn golden_head() {
    for (name, handle) in [("head_v1.bin", Some(handle())), ("head_empty_v1.bin", None)] {
        let head = Head { number: 43, epoch: 7, writer: id(800), handle };
        let fresh = encode_head(&head);
        let stored = golden(name, &fresh);
        assert_eq!(decode_head("golden", &stored).unwrap(), head);
        assert_eq!(stored, fresh);
    }
}

#[test]
fn golden_manifest() {
    let mut manifest = manifest();
    for i in 0..5u32 {
        let number = u128::from(i);
        let crc = u32::try_from(id(420 + number) >> 96).unwrap();
        let part = PackedPart { offset: 1000 * u64::from(i), length: 1000 - u64::from(i), crc };
        let object = object("sst", 410 + number % 2, ".pack");
        manifest.files.push(ManifestFile { name: format!("{:06}.sst", 10 + i), object, part: Some(part) });
    }
    let fresh = encode_manifest(&manifest);
    let stored = golden("manifest_v2.bin", &fresh);
    assert_eq!(decode_manifest("golden", &stored).unwrap(), manifest);
    assert_eq!(stored, fresh);
}

fn savepoint(content: SavepointContent) -> Savepoint {
    Savepoint {
        id: InstanceId(id(2)),
        origin: SavepointOrigin {
            query_id: "9c0f8c1e-5d6c-4b6a-8d0f-2f6f1f4e7a10".to_owned(),
            name: "default".to_owned(),
            batch: BatchId(44),
            taken_millis: 1_760_000_000_000,
        },
        shards: 8,
        max_parallelism: 128,
        hash_id: HASH_ID,
        schema_id: 0xfeed_beef_0123_4567,
        schema: "key: long; count(*) → long".to_owned(),
        keys: 123_456,
        bytes: 9_876_543,
        content,
    }
}

#[test]
fn golden_savepoints() {
    let part = |i: u16| SavepointPart {
        object: object("part", 700 + u128::from(i), ""),
        key_groups: KeyGroupRange { start: 40 * i, end: 40 * i + 41 },
        entries: 10 + u64::from(i),
        bytes: 1000 + u64::from(i),
    };
    let objects = vec![object("log", 200, ""), object("base", 300, ""), object("sst", 400, ".sst")];
    for (name, content) in [
        ("savepoint_canonical_v1.bin", SavepointContent::Canonical((0..3).map(part).collect())),
        ("savepoint_native_v1.bin", SavepointContent::Native { handles: vec![handle()], objects }),
    ] {
        let fresh = encode_savepoint(&savepoint(content.clone()));
        let stored = golden(name, &fresh);
        assert_eq!(decode_savepoint("golden", &stored).unwrap(), savepoint(content), "{name}");
        assert_eq!(stored, fresh, "{name}");
    }
}

fn changelog_handle() -> ChangelogHandle {
    let set = |i: u64| SetRef {
        sequence_number: 5 + i,
        object: object("log", 500 + u128::from(i / 2), ""),
        offset: 16 + 200 * i,
        length: 190 + i,
        head: 70 + i,
        mark: u32::try_from(id(600 + u128::from(i)) >> 96).unwrap(),
        records: 10 + i,
        payload: 120 + i,
    };
    ChangelogHandle {
        storage: "s3://bucket/log".to_owned(),
        writer: "operator-1".to_owned(),
        key_groups: KeyGroupRange { start: 3, end: 128 },
        from: 5,
        to: 9,
        checkpoint_id: 77,
        sets: (0..4).map(set).collect(),
        incremental_size: 243,
    }
}

/// Metadata, then some key groups, in blocks of about ten records.
fn byte_set(compression: Compression) -> (EncodedSet, Vec<(u16, Vec<u8>)>) {
    let mut records: Vec<(u16, Vec<u8>)> = vec![(0, b"metadata".to_vec())];
    for i in 0..50u128 {
        let random = id(7000 + i).to_le_bytes();
        let length = if i < 20 { 9 } else { usize::from(random[0]) / 4 };
        records.push((1 + u16::try_from(i / 7).unwrap() * 100, vec![random[1]; length]));
    }
    let blocks = records.chunks(11).map(|chunk| {
        let mut block = ByteBlock::default();
        chunk.iter().for_each(|(lane, value)| block.push(*lane, value));
        block
    });
    (encode_byte_set(blocks.collect(), compression, &Bytes::from).unwrap(), records)
}

#[test]
fn golden_changelog_handle() {
    let fresh = encode_changelog_handle(&changelog_handle());
    let stored = golden("changelog_handle_v1.bin", &fresh);
    assert_eq!(decode_changelog_handle(&stored).unwrap(), changelog_handle());
    assert_eq!(stored, fresh);
}

#[test]
fn golden_byte_sets() {
    for (name, compression) in [
        ("byte_set_none_v1.bin", Compression::None),
        ("byte_set_lz4_v1.bin", Compression::Lz4),
        ("byte_set_zstd_v1.bin", Compression::Zstd),
    ] {
        let (fresh, written) = byte_set(compression);
        let stored = Bytes::from(golden(name, &fresh.to_bytes()));
        let index = decode_set_index(name, 0, &stored).unwrap();
        let from = SetBytes { object: name, offset_in_object: 0, start: 0, bytes: &stored };
        let columns = decode_columns(&index, from).unwrap();
        let read = decode_byte_blocks(&index, &columns, from, 0..index.blocks.len(), &Wanted::ALL).unwrap();
        let read: Vec<_> = read.iter().map(|(lane, value)| (lane.0, value.to_vec())).collect();
        assert_eq!(read, written, "{name}");
        if compression == Compression::None {
            assert_eq!(stored, fresh.to_bytes(), "{name}");
        }
    }
}

#[test]
fn golden_log_objects() {
    for (name, compression) in [
        ("log_none_v1.bin", Compression::None),
        ("log_lz4_v1.bin", Compression::Lz4),
        ("log_zstd_v1.bin", Compression::Zstd),
    ] {
        let fresh = log_object(compression);
        let stored = golden(name, &fresh);
        let places = decode_file(name, &stored).unwrap();
        assert_eq!(places.len(), 3);
        for (seed, (offset, length)) in (1..).zip(places) {
            let start = usize::try_from(offset).unwrap();
            let bytes = &stored[start..start + usize::try_from(length).unwrap()];
            let (read, written) = (decode_set(name, offset, bytes).unwrap(), set(seed));
            assert!(read.iter().eq(written.iter()), "{name}, set {seed}");
        }
        if compression == Compression::None {
            assert_eq!(stored, fresh, "{name}");
        }
    }
}

#[test]
fn golden_notes() {
    let note = FolderNote {
        query_id: "0b1c6d2e-5d0e-4a7e-9a53-2f1f3f0c9e11".to_owned(),
        name: "größte".to_owned(),
        shards: 8,
        max_parallelism: 128,
        sweep_grace_seconds: 86_400,
        start_from: Some(("s3://b/savepoint".to_owned(), format!("{:032x}", id(7)))),
    };
    let fresh = encode_note(&note).unwrap();
    let stored = golden("note_v2.json", &fresh);
    assert_eq!(decode_note("note_v2.json", &stored).unwrap(), note);
    assert_eq!(stored, fresh);
}
