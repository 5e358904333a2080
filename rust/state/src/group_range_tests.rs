//! Ranges of snapshots against the whole: exactly the entries of the range, whatever tables they are in.

use super::*;
use fastchangelog_format::error::ErrorKind;
use fastchangelog_format::model::{Change, ChangeSet, KeyGroup, Op, StateId};
use fastchangelog_store::budget::MemoryBudget;
use fastchangelog_store::metrics::Metrics;
use std::collections::BTreeMap;
use std::sync::Arc;
use tempfile::TempDir;

type Content = BTreeMap<(u16, u16), Vec<u8>>;

fn shared() -> SharedResources {
    SharedResources::new(&MemoryBudget::new(256 << 20), Arc::new(Metrics::default())).unwrap()
}

fn range(start: u16, end: u16) -> KeyGroupRange {
    KeyGroupRange { start, end }
}

fn content(state: &KeyedState) -> Content {
    let mut all = Content::new();
    let mut add = |e: crate::hot::EntryRef<'_>| {
        let key = u16::from_be_bytes(e.key.try_into().unwrap());
        assert!(all.insert((e.key_group.0, key), e.value.unwrap().to_vec()).is_none(), "every key once");
        Ok(())
    };
    state.for_each(&mut add).unwrap();
    all
}

/// Twenty keys in each of `groups`.
fn fill(state: &mut KeyedState, groups: KeyGroupRange, round: u8) -> Content {
    let mut set = ChangeSet::default();
    let mut all = Content::new();
    for group in groups.start..groups.end {
        for key in 0..20u16 {
            let value = [round; 10];
            let key_group = KeyGroup(group);
            set.push(Change { op: Op::Put, state: StateId(0), key_group, key: &key.to_be_bytes(), value: &value });
            all.insert((group, key), value.to_vec());
        }
    }
    state.apply(&set).unwrap();
    all
}

fn checkpoint(state: &mut KeyedState, dir: &Path) {
    state.begin_flush();
    while state.flush_dirty(1000).unwrap() {}
    state.checkpoint(dir).unwrap();
}

/// A snapshot of `groups` whose newest entries are in level 0, and all others below it in a table for eight key groups or fewer.
fn snapshot(disk: &TempDir, groups: KeyGroupRange, shared: &SharedResources) -> (PathBuf, Content) {
    let path = |name: String| disk.path().join(name);
    let mut state = KeyedState::create(&path("all".into()), shared).unwrap();
    let mut tables = Vec::new();
    for start in (groups.start..groups.end).step_by(8) {
        let mut part = KeyedState::create(&path(format!("{start}")), shared).unwrap();
        fill(&mut part, range(start, groups.end.min(start + 8)), 1);
        let (from, into) = (path(format!("{start}-snapshot")), path(format!("{start}-tables")));
        checkpoint(&mut part, &from);
        std::fs::create_dir(&into).unwrap();
        tables.extend(export(&from, groups, &into, shared).unwrap());
        part.destroy().unwrap();
    }
    let count = tables.len();
    state.ingest(tables).unwrap();
    let mut all = content(&state);
    assert_eq!(all.len(), groups.len() * 20);
    assert!(count >= groups.len().div_ceil(8), "{count}");
    let at = groups.start + groups.len() as u16 / 2;
    all.extend(fill(&mut state, range(at, at + 1), 2));
    let dir = path("base".into());
    checkpoint(&mut state, &dir);
    state.destroy().unwrap();
    (dir, all)
}

/// A copy of a snapshot with those of its tables that `keep` names.
fn copy(disk: &TempDir, from: &Path, keep: &BTreeSet<String>) -> PathBuf {
    let to = tempfile::tempdir_in(disk.path()).unwrap().keep();
    for entry in std::fs::read_dir(from).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        if !name.ends_with(".sst") || keep.contains(&name) {
            std::fs::copy(from.join(&name), to.join(&name)).unwrap();
        }
    }
    to
}

#[test]
fn y08_exactly_the_range_is_left() {
    for (have, wants) in [
        (range(0, 40), [range(0, 40), range(0, 1), range(39, 40), range(7, 33)]),
        (range(110, 140), [range(110, 127), range(127, 128), range(128, 140), range(120, 130)]),
        (
            range(32_730, 32_768),
            [range(32_767, 32_768), range(32_730, 32_767), range(32_740, 32_741), range(32_735, 32_768)],
        ),
    ] {
        let (disk, shared) = (tempfile::tempdir().unwrap(), shared());
        let (dir, all) = snapshot(&disk, have, &shared);
        for want in wants {
            let mut expected = all.clone();
            expected.retain(|(group, _), _| want.contains(KeyGroup(*group)));
            let tables = tables_of(&dir, want, &shared).unwrap();
            let total = std::fs::read_dir(&dir)
                .unwrap()
                .filter(|e| e.as_ref().unwrap().file_name().to_str().unwrap().ends_with(".sst"));
            if want.len() < 3 {
                assert!(tables.len() < total.count(), "{want:?} needs not all tables");
            }
            let clipped = copy(&disk, &dir, &tables);
            let mut state = clip(&clipped, have, want, &shared).unwrap();
            assert_eq!(content(&state), expected, "clip {have:?} to {want:?}");
            // It is a state like any other: it takes changes, and its checkpoints hold no more than it does.
            expected.extend(fill(&mut state, range(want.start, want.start + 1), 3));
            let again = clipped.with_extension("again");
            checkpoint(&mut state, &again);
            state.destroy().unwrap();
            let state = KeyedState::open(&again, &shared).unwrap();
            assert_eq!(content(&state), expected, "the checkpoint of {want:?}");
            state.destroy().unwrap();

            let (from, into) = (copy(&disk, &dir, &tables), tempfile::tempdir_in(disk.path()).unwrap());
            let exported = export(&from, want, into.path(), &shared).unwrap();
            let mut state = KeyedState::create(&from.with_extension("new"), &shared).unwrap();
            state.ingest(exported).unwrap();
            let mut expected = all.clone();
            expected.retain(|(group, _), _| want.contains(KeyGroup(*group)));
            assert_eq!(content(&state), expected, "export {want:?} of {have:?}");
            assert_eq!(std::fs::read_dir(into.path()).unwrap().count(), 0, "the tables were moved");
            state.destroy().unwrap();
        }
    }
}

#[test]
fn a_range_is_split_without_gap_or_overlap() {
    for (groups, parts) in
        [(range(3, 4), 4), (range(0, 3), 4), (range(5, 12), 4), (range(0, 32_768), 3), (range(32_767, 32_768), 2)]
    {
        let split = split(groups, parts);
        assert_eq!(split.len(), parts.min(groups.len()));
        assert_eq!((split[0].start, split[split.len() - 1].end), (groups.start, groups.end));
        assert!(split.windows(2).all(|pair| pair[0].end == pair[1].start));
        let lengths: Vec<_> = split.iter().map(|part| part.len()).collect();
        assert!(lengths.iter().max().unwrap() - lengths.iter().min().unwrap() <= 1, "{lengths:?}");
    }
    assert_eq!(split(range(7, 7), 4), [range(7, 7)]);
}

/// A missing table that is needed is an error, not a smaller state.
#[test]
fn p9_an_absent_table_is_an_error() {
    let (disk, shared) = (tempfile::tempdir().unwrap(), shared());
    let (dir, _) = snapshot(&disk, range(0, 40), &shared);
    let want = range(10, 30);
    let tables = tables_of(&dir, want, &shared).unwrap();
    assert!(tables.len() >= 4, "{tables:?}");
    for table in &tables {
        let mut fewer = tables.clone();
        fewer.remove(table);
        let from = copy(&disk, &dir, &fewer);
        let into = tempfile::tempdir_in(disk.path()).unwrap();
        let exported = export(&from, want, into.path(), &shared);
        assert!(exported.is_err(), "without {table}: {exported:?}");
        assert!(clip(&from, range(0, 40), want, &shared).is_err(), "without {table}");
    }
}

#[test]
fn p9_a_damaged_manifest_is_an_error() {
    let (disk, shared) = (tempfile::tempdir().unwrap(), shared());
    let (dir, _) = snapshot(&disk, range(0, 20), &shared);
    let manifest = std::fs::read_dir(&dir).unwrap().map(|e| e.unwrap().path());
    let manifest =
        manifest.into_iter().find(|p| p.file_name().unwrap().to_str().unwrap().starts_with("MANIFEST")).unwrap();
    let mut bytes = std::fs::read(&manifest).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&manifest, bytes).unwrap();
    let error = tables_of(&dir, range(0, 3), &shared).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
}

#[test]
fn invariant_1_bounds_are_inclusive_and_neighbours_come_along() {
    let table = |name: &str, level, first: &[u8], last: &[u8]| TableMeta {
        name: name.into(),
        level,
        first: first.to_vec(),
        last: last.to_vec(),
    };
    let tables = [
        table("level 0", 0, &[0, 0, 0, 0, 1], &[0, 1, 0, 0, 1]),
        table("before", 6, &[0, 0, 0, 0, 1], &[0, 3, 0, 0, 1]),
        table("neighbour", 6, &[0, 3, 0, 0, 9], &[0, 4, 0, 0, 1]),
        table("to the start", 6, &[0, 4, 0, 0, 1], &[0, 5]),
        table("in", 6, &[0, 6, 0, 0, 1], &[0, 7, 0, 0, 1]),
        table("after", 6, &[0, 8], &[0, 9, 0, 0, 1]),
        table("another level", 5, &[0, 3, 0, 0, 9], &[0, 4, 0, 0, 1]),
    ];
    let names = |start, end| -> Vec<&str> {
        let needed = needed(&tables, range(start, end));
        tables.iter().zip(needed).filter(|(_, needed)| *needed).map(|(t, _)| t.name.as_str()).collect()
    };
    assert_eq!(names(5, 8), ["level 0", "neighbour", "to the start", "in"]);
    assert_eq!(names(6, 7), ["level 0", "in"]);
    assert_eq!(names(8, 9), ["level 0", "after"]);
    assert_eq!(names(20, 30), ["level 0"]);
}

/// RocksDB opens the next table after a gap, even one beside the range.
#[test]
fn a_range_between_two_tables_is_empty() {
    let (disk, shared) = (tempfile::tempdir().unwrap(), shared());
    let (dir, _) = snapshot(&disk, range(0, 8), &shared);
    let mut state = KeyedState::open(&dir, &shared).unwrap();
    let (other, into) = (disk.path().join("other"), disk.path().join("into"));
    let mut beyond = KeyedState::create(&disk.path().join("beyond"), &shared).unwrap();
    fill(&mut beyond, range(30, 31), 1);
    checkpoint(&mut beyond, &other);
    std::fs::create_dir(&into).unwrap();
    state.ingest(export(&other, range(30, 31), &into, &shared).unwrap()).unwrap();
    let gap = disk.path().join("gap");
    checkpoint(&mut state, &gap);
    for want in [range(10, 12), range(31, 40)] {
        let from = copy(&disk, &gap, &tables_of(&gap, want, &shared).unwrap());
        assert!(export(&from, want, &into, &shared).unwrap().is_empty());
        let from = copy(&disk, &gap, &tables_of(&gap, want, &shared).unwrap());
        assert!(content(&clip(&from, range(0, 40), want, &shared).unwrap()).is_empty());
    }
}

/// Also X-30: overlapping tables with deletes, and a clip's own deletes at the bounds.
#[test]
fn y14_level_0_with_deletes_is_exported_as_it_is() {
    let (disk, shared) = (tempfile::tempdir().unwrap(), shared());
    let mut state = KeyedState::create(&disk.path().join("db"), &shared).unwrap();
    let mut expected = Content::new();
    for round in 0..4u8 {
        expected.extend(fill(&mut state, range(0, 10), round));
        let mut set = ChangeSet::default();
        for group in 0..10u16 {
            let key = u16::from(round) * 3;
            let (key_group, key_bytes) = (KeyGroup(group), key.to_be_bytes());
            set.push(Change { op: Op::Delete, state: StateId(0), key_group, key: &key_bytes, value: &[] });
            expected.remove(&(group, key));
        }
        state.apply(&set).unwrap();
        // Each a table of its own.
        checkpoint(&mut state, &disk.path().join(format!("{round}")));
    }
    let last = disk.path().join("3");
    let clipped = disk.path().join("clipped");
    let mut clip_of = clip(
        &copy(&disk, &last, &tables_of(&last, range(0, 10), &shared).unwrap()),
        range(0, 10),
        range(2, 8),
        &shared,
    )
    .unwrap();
    checkpoint(&mut clip_of, &clipped);
    for from in [last, clipped] {
        for want in [range(2, 8), range(3, 4), range(7, 8)] {
            let tables = tables_of(&from, want, &shared).unwrap();
            let from = copy(&disk, &from, &tables);
            let into = tempfile::tempdir_in(disk.path()).unwrap();
            let exported = export(&from, want, into.path(), &shared).unwrap();
            let listed = tables_of(&from, want, &shared).unwrap();
            assert_eq!(listed, tables, "nothing was compacted");
            let mut state = KeyedState::create(&into.path().join("db"), &shared).unwrap();
            state.ingest(exported).unwrap();
            let mut expected = expected.clone();
            expected.retain(|(group, _), _| want.contains(KeyGroup(*group)));
            assert_eq!(content(&state), expected, "{want:?}");
        }
    }
}
