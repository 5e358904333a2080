//! Small tables together in one object: a snapshot of a small state is one request, not ten.
//!
//! Owns: which files of a checkpoint keep the place they have in the bucket, which go up alone and which together.
//! Does not own: finding their places (`inventory`), uploading (`push`), the manifest's form (`format`).
//!
//! Invariants of a [`Plan`]:
//! 1. it contains each file once;
//! 2. a packed object that is taken over holds at most as many dead bytes as live ones: else its live files go up
//!    again, with other small ones, and the next sweep takes the object;
//! 3. only immutable files are packed, each pack has two files at least and [`PACK_BYTES`] at most.

use super::hardlink::LargeFile;
use fastchangelog_format::ManifestFile;
use std::collections::HashMap;

/// A pack is held in memory while it is uploaded; the same as what other files up to there take.
pub(super) const PACK_BYTES: u64 = 16 << 20;

/// What is to be done for a snapshot. Files are named by their position in the checkpoint.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Plan {
    /// Files that are in the bucket already.
    pub(super) known: Vec<(usize, ManifestFile)>,
    /// Uploads: one file each, or the files of a pack.
    pub(super) uploads: Vec<Vec<usize>>,
}

/// The plan for `files`, of which `found` says where they are in the bucket. Tables smaller than `below` are packed.
pub(super) fn plan(files: &[LargeFile], found: Vec<Option<ManifestFile>>, below: u64) -> Plan {
    let mut live: HashMap<String, u64> = HashMap::new();
    for part in found.iter().flatten().filter(|file| file.part.is_some()) {
        *live.entry(part.object.name.clone()).or_default() += part.size();
    }
    let pays = |file: &ManifestFile| {
        file.part.is_none()
            || live.get(&file.object.name).is_some_and(|live| live.saturating_mul(2) >= file.object.size)
    };
    let mut plan = Plan::default();
    let (mut pack, mut bytes) = (Vec::new(), 0);
    for (index, (file, found)) in files.iter().zip(found).enumerate() {
        match found {
            Some(place) if pays(&place) => plan.known.push((index, place)),
            _ if !file.is_immutable() || file.size >= below || file.size > PACK_BYTES => plan.uploads.push(vec![index]),
            _ => {
                if bytes + file.size > PACK_BYTES {
                    plan.uploads.push(std::mem::take(&mut pack));
                    bytes = 0;
                }
                bytes += file.size;
                pack.push(index);
            }
        }
    }
    if !pack.is_empty() {
        plan.uploads.push(pack);
    }
    plan
}

#[cfg(test)]
mod tests {
    use super::*;
    use fastchangelog_format::PackedPart;
    use fastchangelog_format::model::ObjectRef;
    use proptest::collection::vec;
    use proptest::prelude::*;
    use std::path::PathBuf;

    fn file(name: &str, size: u64) -> LargeFile {
        LargeFile { name: name.to_owned(), path: PathBuf::from(name), size, identity: (0, 0) }
    }

    fn object(name: &str, size: u64) -> ObjectRef {
        ObjectRef { name: name.to_owned(), size, crc: 0 }
    }

    fn packed(name: &str, pack: &str, pack_size: u64, length: u64) -> ManifestFile {
        let part = PackedPart { offset: 0, length, crc: 0 };
        ManifestFile { name: name.to_owned(), object: object(pack, pack_size), part: Some(part) }
    }

    #[test]
    fn small_tables_go_together_and_others_alone() {
        let files = [file("1.sst", 10), file("2.sst", 100), file("3.blob", 99), file("MANIFEST-4", 50)];
        let plan = plan(&files, vec![None; 4], 100);
        assert_eq!(plan.uploads, [vec![1], vec![3], vec![0, 2]]);
        assert_eq!(super::plan(&files, vec![None; 4], 0).uploads, [[0], [1], [2], [3]], "0 packs nothing");
    }

    #[test]
    fn invariant_2_a_pack_is_taken_over_while_half_of_it_lives() {
        let files = [file("1.sst", 10), file("2.sst", 10), file("3.sst", 10)];
        let found = |size| vec![Some(packed("1.sst", "a", size, 10)), Some(packed("2.sst", "a", size, 10)), None];
        let taken = plan(&files, found(40), 100);
        assert_eq!((taken.known.len(), taken.uploads), (2, vec![vec![2]]));
        let rewritten = plan(&files, found(41), 100);
        assert_eq!((rewritten.known.len(), rewritten.uploads), (0, vec![vec![0, 1, 2]]));
    }

    proptest! {
        #[test]
        fn invariants_1_to_3_hold_for_any_files(
            files in vec((0u64..3 * PACK_BYTES / 2, any::<bool>(), 0u8..6, 1u64..4), 0..30), below in 0..2 * PACK_BYTES
        ) {
            let (mut names, mut found) = (Vec::new(), Vec::new());
            for (i, (size, table, place, times)) in files.iter().enumerate() {
                names.push(file(&format!("{i}.{}", if *table { "sst" } else { "log" }), *size));
                found.push(match place {
                    0..3 => None,
                    3 => Some(ManifestFile::whole(i.to_string(), object(&i.to_string(), *size))),
                    // Sizes of packs may differ here: what decides is what each file says.
                    pack => Some(packed(&i.to_string(), &pack.to_string(), size * times, *size)),
                });
            }
            let plan = plan(&names, found.clone(), below);
            let mut all: Vec<usize> = plan.uploads.concat();
            all.extend(plan.known.iter().map(|(i, _)| i));
            all.sort_unstable();
            prop_assert!(all.into_iter().eq(0..names.len()));
            for pack in plan.uploads.iter().filter(|upload| upload.len() > 1) {
                prop_assert!(pack.iter().all(|&i| names[i].is_immutable() && names[i].size < below));
                prop_assert!(pack.iter().map(|&i| names[i].size).sum::<u64>() <= PACK_BYTES);
            }
            for (_, place) in plan.known.iter().filter(|(_, place)| place.part.is_some()) {
                let same = |f: &&ManifestFile| f.part.is_some() && f.object.name == place.object.name;
                let live: u64 = found.iter().flatten().filter(same).map(ManifestFile::size).sum();
                prop_assert!(2 * live >= place.object.size);
            }
        }
    }
}
