//! Round trips of manifests, and names that must not become paths.

use super::*;
use crate::error::ErrorKind;
use proptest::collection::vec;
use proptest::prelude::*;

fn any_manifest() -> impl Strategy<Value = Manifest> {
    let whole = (0u64..1_000_000, any::<u128>(), any::<u64>(), any::<u32>()).prop_map(|(number, id, size, crc)| {
        let object = ObjectRef { name: format!("sst/{id:032x}.sst"), size, crc };
        ManifestFile::whole(format!("{number:06}.sst"), object)
    });
    let packed = (0u64..1_000_000, 0u32..4, any::<u32>(), any::<u32>(), any::<u32>()).prop_map(
        |(number, pack, offset, length, crc)| {
            let object = ObjectRef { name: format!("sst/{pack:032x}.pack"), size: 1 << 33, crc: pack };
            let part = PackedPart { offset: offset.into(), length: length.into(), crc };
            ManifestFile { name: format!("{number:06}.sst"), object, part: Some(part) }
        },
    );
    let file = prop_oneof![whole, packed];
    let inline = ("(CURRENT|MANIFEST-[0-9]{6}|OPTIONS-[0-9]{6})", vec(any::<u8>(), 0..300))
        .prop_map(|(n, b)| (n, Bytes::from(b)));
    (any::<[u128; 3]>(), vec(file, 0..20), vec(inline, 0..4)).prop_map(|(ids, files, inline)| Manifest {
        instance: InstanceId(ids[0]),
        version: VersionId(ids[1]),
        replay_after: VersionId(ids[2]),
        files,
        inline,
    })
}

proptest! {
    #[test]
    fn manifests_round_trip(manifest in any_manifest()) {
        prop_assert_eq!(decode_manifest("base/x", &encode_manifest(&manifest)).unwrap(), manifest);
    }

    #[test]
    fn p9_any_bytes_are_an_error(bytes in vec(any::<u8>(), 0..200)) {
        prop_assert!(decode_manifest("base/x", &bytes).is_err());
    }
}

#[test]
fn p9_file_names_that_are_paths_are_refused() {
    for name in ["../CURRENT", "a/b", "..", ".", "", "a\\b", "a\0b", "/etc/passwd"] {
        let manifest = Manifest {
            instance: InstanceId(1),
            version: VersionId(2),
            replay_after: VersionId(2),
            files: Vec::new(),
            inline: vec![(name.to_owned(), Bytes::new())],
        };
        let error = decode_manifest("base/x", &encode_manifest(&manifest)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{name:?}");
        assert!(error.to_string().contains("base/x"));
    }
}

#[test]
fn p9_a_file_beyond_its_pack_is_refused() {
    for (offset, length, fits) in [(0, 10, true), (10, 0, true), (3, 7, true), (3, 8, false), (u64::MAX, 2, false)] {
        let object = ObjectRef { name: "sst/00.pack".to_owned(), size: 10, crc: 0 };
        let part = Some(PackedPart { offset, length, crc: 0 });
        let manifest = Manifest {
            instance: InstanceId(1),
            version: VersionId(2),
            replay_after: VersionId(2),
            files: vec![ManifestFile { name: "1.sst".to_owned(), object, part }],
            inline: Vec::new(),
        };
        let read = decode_manifest("base/x", &encode_manifest(&manifest));
        assert_eq!(read.is_ok(), fits, "{length} bytes at {offset}");
        if let Err(error) = read {
            assert!(error.kind() == ErrorKind::Corrupt && error.to_string().contains("base/x"), "{error}");
        }
    }
}
