//! P9: whatever happened to an object, reading it gives an error that names it: never wrong data, a panic or a huge
//! allocation.
//!
//! Two attackers: accident (bytes cut, flipped or appended) must always be reported; malice (bytes changed and every
//! checksum made right again) may go unnoticed, but must neither panic nor ask for memory out of proportion.

#![allow(clippy::unwrap_used, reason = "a test")]

use fastchangelog_format::config::Compression;
use fastchangelog_format::model::handle::HASH_ID;
use fastchangelog_format::model::*;
use fastchangelog_format::segment::encode_set_in_blocks;
use fastchangelog_format::*;
use fastchangelog_format::{Error, ErrorKind};
use fastchangelog_oracles::forge::{fix_envelope, fix_file, fix_set, peak_of};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

const NAME: &str = "some/object";

/// One readable thing: a name for messages, its bytes, and a reader that only says whether it worked.
struct Case {
    name: &'static str,
    bytes: Vec<u8>,
    read: fn(&[u8]) -> Result<(), Error>,
    /// Makes all checksums right again.
    fix: fn(&mut [u8]),
    /// Bytes of memory that reading may take, per byte read.
    factor: i64,
}

fn a_set(records: u64) -> ChangeSet {
    let mut rng = StdRng::seed_from_u64(records);
    let mut set = ChangeSet::default();
    for _ in 0..records {
        let key: [u8; 9] = rng.random();
        let (op, value) = match rng.random_range(0..8) {
            0 => (Op::Delete, vec![]),
            1 => (Op::DeletePrefix, vec![]),
            n => (Op::Put, vec![rng.random(); n * 4]),
        };
        let (state, key_group) = (StateId(rng.random_range(0..2)), KeyGroup(rng.random_range(0..9)));
        set.push(Change { op, state, key_group, key: &key, value: &value });
    }
    set.sort_by_key_group();
    set
}

fn object(folder: &str, n: u128) -> ObjectRef {
    ObjectRef { name: format!("{folder}/{:032x}", n * 0x1234_5678_9abc_def0_1234_5678), size: 12345, crc: 77 }
}

fn a_handle() -> ShardHandle {
    let segment = |i: u128| SegmentRef {
        version: VersionId(i),
        batch: BatchId(1000),
        object: object("log", i / 2),
        offset: 16,
        length: 4000,
        records: 10,
    };
    ShardHandle {
        instance: InstanceId(1),
        version: VersionId(2),
        parent: Some(VersionId(3)),
        batch: BatchId(1001),
        shard: 3,
        shards: 8,
        max_parallelism: 128,
        key_groups: KeyGroupRange { start: 48, end: 64 },
        hash_id: HASH_ID,
        schema_id: 99,
        schema: "key: long; count(*)".to_owned(),
        watermark: Some(1),
        state_keys: 2,
        state_bytes: 3,
        snapshot: Some(SnapshotRef {
            version: VersionId(4),
            replay_after: VersionId(5),
            manifest: object("base", 6),
            total_bytes: 7,
        }),
        indexed: Some(object("index", 8)),
        segments: (10..20).map(segment).collect(),
    }
}

fn a_head() -> Head {
    Head { number: 43, epoch: 7, writer: 1 << 100, handle: Some(a_handle()) }
}

/// Every third one is an object of its own, the others are packed.
fn a_file_of_a_snapshot(i: u64) -> ManifestFile {
    let part = (!i.is_multiple_of(3)).then_some(PackedPart { offset: i, length: 1, crc: 77 });
    let object = ObjectRef { size: 100, ..object("sst", if part.is_some() { 100 } else { i.into() }) };
    ManifestFile { name: format!("00000{i}.sst"), object, part }
}

fn a_manifest() -> Manifest {
    Manifest {
        instance: InstanceId(1),
        version: VersionId(2),
        replay_after: VersionId(3),
        files: (0..9).map(a_file_of_a_snapshot).collect(),
        inline: vec![("CURRENT".to_owned(), vec![9; 40].into()), ("MANIFEST-000001".to_owned(), vec![8; 100].into())],
    }
}

fn a_savepoint() -> Savepoint {
    let ShardHandle { shards, max_parallelism, schema_id, schema, .. } = a_handle();
    Savepoint {
        id: InstanceId(1),
        origin: SavepointOrigin { query_id: "q".into(), name: "n".into(), batch: BatchId(3), taken_millis: 4 },
        shards,
        max_parallelism,
        hash_id: HASH_ID,
        schema_id,
        schema,
        keys: 5,
        bytes: 6,
        content: SavepointContent::Native {
            handles: vec![a_handle()],
            objects: (0..9).map(|i| object("sst", i)).collect(),
        },
    }
}

fn a_file() -> Vec<u8> {
    let mut bytes = file_header().to_vec();
    let mut places = Vec::new();
    for records in [3, 0, 20] {
        let set = encode_set_in_blocks(&a_set(records), Compression::Zstd, 300).unwrap().to_bytes();
        places.push((bytes.len() as u64, set.len() as u64));
        bytes.extend_from_slice(&set);
    }
    let crc = crc32c(&bytes);
    bytes.extend_from_slice(&file_footer(&places, crc));
    bytes
}

fn cases() -> Vec<Case> {
    let set = |compression| encode_set_in_blocks(&a_set(60), compression, 300).unwrap().to_bytes().to_vec();
    let read_set = |bytes: &[u8]| decode_set(NAME, 1 << 40, bytes).map(drop);
    let case = |name, bytes, read, fix, factor| Case { name, bytes, read, fix, factor };
    vec![
        case("set, none", set(Compression::None), read_set, fix_set, 32),
        // lz4 may really expand 255 times, and zstd still more: the bound is what the codec can do.
        case("set, lz4", set(Compression::Lz4), read_set, fix_set, 600),
        case("set, zstd", set(Compression::Zstd), read_set, fix_set, 600),
        case("handle", encode_handle(&a_handle()), |b| decode_handle(b).map(drop), fix_envelope, 64),
        case(
            "segment index",
            encode_segment_index(&a_handle().segments).to_vec(),
            |b| decode_segment_index(NAME, b).map(drop),
            fix_envelope,
            64,
        ),
        case(
            "manifest",
            encode_manifest(&a_manifest()).to_vec(),
            |b| decode_manifest(NAME, b).map(drop),
            fix_envelope,
            64,
        ),
        case("head", encode_head(&a_head()).to_vec(), |b| decode_head(NAME, b).map(drop), fix_envelope, 64),
        case(
            "savepoint",
            encode_savepoint(&a_savepoint()).to_vec(),
            |b| decode_savepoint(NAME, b).map(drop),
            fix_envelope,
            64,
        ),
        case("log object", a_file(), |b| decode_file(NAME, b).map(drop), fix_file, 8),
    ]
}

/// Reads `bytes`; bounds memory, and checks the wording of the error if there is one.
fn read(case: &Case, bytes: &[u8]) -> Result<(), Error> {
    let (result, peak) = peak_of(|| (case.read)(bytes));
    let bound = 16 * 1024 + case.factor * bytes.len() as i64;
    assert!(peak <= bound, "{}: {peak} bytes allocated to read {} bytes", case.name, bytes.len());
    if let Err(error) = &result {
        let text = error.to_string();
        assert!(matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::InvalidArgument), "{}: {text}", case.name);
        assert!(text.contains(NAME) || text.contains("shard handle"), "{}: {text}", case.name);
    }
    result
}

#[test]
fn p9_untouched_bytes_are_read() {
    for case in cases() {
        read(&case, &case.bytes).unwrap_or_else(|e| panic!("{}: {e}", case.name));
        let mut fixed = case.bytes.clone();
        (case.fix)(&mut fixed);
        assert_eq!(fixed, case.bytes, "{}: the test's own checksums are the right ones", case.name);
    }
}

#[test]
fn p9_every_truncation_is_reported() {
    for case in cases() {
        for end in 0..case.bytes.len() {
            let error = read(&case, &case.bytes[..end]).expect_err(case.name);
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{} cut at {end}: {error}", case.name);
        }
    }
}

#[test]
fn p9_every_flipped_byte_is_reported() {
    for case in cases() {
        for at in 0..case.bytes.len() {
            for flip in [0x01, 0x10, 0x80, 0xff] {
                let mut bytes = case.bytes.clone();
                bytes[at] ^= flip;
                let error = read(&case, &bytes).expect_err(case.name);
                assert_eq!(error.kind(), ErrorKind::Corrupt, "{} flipped at {at}: {error}", case.name);
            }
        }
    }
}

#[test]
fn p9_bytes_after_the_end_are_reported() {
    for case in cases() {
        for extra in [&[0][..], b"FCLF", &[0; 100]] {
            let bytes = [&case.bytes[..], extra].concat();
            let error = read(&case, &bytes).expect_err(case.name);
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{}: {error}", case.name);
        }
    }
}

#[test]
fn p9_another_kind_of_object_is_reported() {
    let cases = cases();
    for case in &cases {
        for other in cases.iter().filter(|o| o.name.split(',').next() != case.name.split(',').next()) {
            assert!(read(case, &other.bytes).is_err(), "{} read as {}", other.name, case.name);
        }
    }
}

#[test]
fn p9_forged_checksums_cause_neither_panic_nor_huge_allocation() {
    let seed = 20_240_501;
    let mut rng = StdRng::seed_from_u64(seed);
    for case in cases() {
        for at in 0..case.bytes.len() {
            for flip in [0x01, 0x40, 0x80, 0xff] {
                let mut bytes = case.bytes.clone();
                bytes[at] ^= flip;
                (case.fix)(&mut bytes);
                let _ = read(&case, &bytes);
            }
        }
        for round in 0..3000 {
            let mut bytes = case.bytes.clone();
            for _ in 0..rng.random_range(1..6) {
                let at = rng.random_range(0..bytes.len());
                let run = rng.random_range(1..9).min(bytes.len() - at);
                let extreme = [0x00, 0x7f, 0x80, 0xff, rng.random()][rng.random_range(0..5)];
                bytes[at..at + run].fill(extreme);
            }
            (case.fix)(&mut bytes);
            let (result, _) = peak_of(|| std::panic::catch_unwind(|| read(&case, &bytes)));
            assert!(result.is_ok(), "{}: seed {seed}, round {round}", case.name);
        }
    }
}
