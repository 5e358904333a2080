//! Savepoints against the plain map of the rescale tests: both forms, any number of shards before and after, moved,
//! damaged, interrupted.

use super::progress::advance;
use super::*;
use crate::shard::rebuild::Rebuilder;
use crate::shard::rescale::tests::{World, mixed};
use crate::shard::sources::Sources;
use crate::shard::testing::seeds;
use fastchangelog_format::config::Options;
use fastchangelog_format::encode_savepoint;
use fastchangelog_format::error::{Error, ErrorKind, Result};
use fastchangelog_format::model::{
    BatchId, KeyGroupRange, Op, Savepoint, SavepointContent, SavepointOrigin, shard_range,
};
use fastchangelog_store::failpoint::Failpoints;
use fastchangelog_store::fault::{Fault, FaultStore, Operation};
use fastchangelog_store::metrics::SharedMetrics;
use fastchangelog_store::{SAVEPOINT, SAVEPOINT_CLAIM, Store};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

const FORMS: [SavepointForm; 2] = [SavepointForm::Canonical, SavepointForm::Native];

fn origin() -> SavepointOrigin {
    SavepointOrigin { query_id: "query".into(), name: "default".into(), batch: BatchId(7), taken_millis: 1 }
}

/// A folder on the local disk, as a store.
fn folder(path: &Path) -> Store {
    let options = Options { file_sync: false, ..Options::default() };
    let uri = path.display().to_string();
    Store::open(&uri, &BTreeMap::new(), &options, SharedMetrics::default(), Failpoints::none()).unwrap()
}

async fn take(world: &mut World, sources: &Sources, form: SavepointForm, to: &Store) -> Result<Savepoint> {
    let scratch = world.fresh();
    std::fs::create_dir(&scratch).unwrap();
    let taken =
        world.rebuilder.take_savepoint(sources, form, origin(), to, &scratch, &SavepointProgress::default()).await;
    let left: Vec<_> = std::fs::read_dir(&scratch).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
    std::fs::remove_dir(&scratch).unwrap();
    taken
}

fn at(world: &World, store: &Store) -> Rebuilder {
    Rebuilder { store: store.clone(), ..world.rebuilder.clone() }
}

/// Loads every shard of `shards`, and checks it.
async fn load_all(world: &mut World, store: &Store, shards: u32, what: &str) {
    let savepoint = read_savepoint(store).await.unwrap();
    let from = at(world, store);
    for shard in 0..shards {
        let range = shard_range(shard, shards, savepoint.max_parallelism);
        let dir = world.fresh();
        let state = from.load_savepoint(&savepoint, range, &dir).await.unwrap();
        world.check(&state, range, what);
        state.keyed.destroy().unwrap();
    }
}

fn copy_tree(from: &Path, to: &Path) {
    std::fs::create_dir(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        if entry.path().is_dir() {
            copy_tree(&entry.path(), &to.join(entry.file_name()));
        } else {
            std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
        }
    }
}

#[tokio::test]
async fn e05_e09_y15_moved_savepoints_restore_at_any_number_of_shards() {
    for seed in seeds(8) {
        println!("FASTCHANGELOG_SEED={seed}");
        let rng = &mut StdRng::seed_from_u64(seed);
        let groups = [1, 5, 24, 128, 32_768][rng.random_range(0..5)];
        let most = u32::from(groups).min(9);
        let n = rng.random_range(1..=most);
        let mut world = World::new(groups, n);
        for _ in 0..rng.random_range(0..5) {
            let changes = rng.random_range(0..250);
            world.batch(rng, changes, 50).await;
            let shard = rng.random_range(0..n) as usize;
            world.snapshot(shard, rng.random_range(0..3)).await;
        }
        let sources = world.handles().await;
        for form in FORMS {
            let disk = tempfile::tempdir().unwrap();
            let taken = take(&mut world, &sources, form, &folder(&disk.path().join("here"))).await.unwrap();
            assert_eq!((taken.keys, taken.shards, taken.max_parallelism), (world.model.len() as u64, n, groups));
            copy_tree(&disk.path().join("here"), &disk.path().join("there"));
            std::fs::remove_dir_all(disk.path().join("here")).unwrap();
            let moved = folder(&disk.path().join("there"));
            for m in [1, n, most, rng.random_range(1..=most)] {
                load_all(&mut world, &moved, m, &format!("{form:?}: {n} to {m} of {groups} groups")).await;
            }
            let scratch = tempfile::tempdir().unwrap();
            let checked =
                check_savepoint(&at(&world, &moved), scratch.path(), &SavepointProgress::default()).await.unwrap();
            assert_eq!(checked, (taken, Vec::new()));
        }
    }
}

#[tokio::test]
async fn e08_there_and_back_by_savepoints_is_equal() {
    let world = &mut mixed(&mut StdRng::seed_from_u64(11)).await;
    for (round, (form, shards)) in (0_usize..).zip([(FORMS[0], 7), (FORMS[1], 1), (FORMS[1], 4), (FORMS[0], 4)]) {
        let disk = tempfile::tempdir().unwrap();
        let sources = world.handles().await;
        take(world, &sources, form, &folder(disk.path())).await.unwrap();
        load_all(world, &folder(disk.path()), shards, &format!("round {round}")).await;
        world.rescale(shards, "between").await;
    }
}

#[tokio::test]
async fn a_range_of_a_large_state_fetches_only_its_own_parts() {
    let mut world = World::new(8, 1);
    let value = |i: u32| (Op::Put, i.to_be_bytes().repeat(1 << 16));
    for from in (0..560_u32).step_by(56) {
        let record = |i: u32| ((7 - (i % 8) as u16, 0, i.to_be_bytes().to_vec()), value(i));
        let some: Vec<_> = (from..from + 56).map(record).collect();
        world.write(&some).await;
    }
    let sources = world.handles().await;
    let disk = tempfile::tempdir().unwrap();
    let store = folder(disk.path());
    let taken = take(&mut world, &sources, SavepointForm::Canonical, &store).await.unwrap();
    let SavepointContent::Canonical(parts) = &taken.content else { panic!("canonical") };
    assert!((6..=9).contains(&parts.len()), "{parts:?}");
    assert!(parts.iter().all(|part| part.bytes <= 40 << 20), "{parts:?}");
    load_all(&mut world, &store, 8, "one group each").await;
    let range = KeyGroupRange { start: 0, end: 1 };
    let dir = world.fresh();
    let state = at(&world, &store).load_savepoint(&taken, range, &dir).await.unwrap();
    let touching: u64 = parts.iter().filter(|part| part.key_groups.start == 0).map(|part| part.object.size).sum();
    assert_eq!(state.fetched, touching);
    state.keyed.destroy().unwrap();
}

#[tokio::test]
async fn a_missing_or_changed_file_is_named_with_its_remedy() {
    for form in FORMS {
        let world = &mut mixed(&mut StdRng::seed_from_u64(12)).await;
        let sources = world.handles().await;
        let disk = tempfile::tempdir().unwrap();
        let store = folder(&disk.path().join("whole"));
        let taken = take(world, &sources, form, &store).await.unwrap();
        let all = KeyGroupRange { start: 0, end: taken.max_parallelism };
        for (i, object) in taken.objects().into_iter().enumerate() {
            for change in ["gone", "flipped", "cut"] {
                let damaged = disk.path().join(format!("{change}-{i}"));
                copy_tree(&disk.path().join("whole"), &damaged);
                let file = damaged.join(&object.name);
                let mut bytes = std::fs::read(&file).unwrap();
                match change {
                    "gone" => std::fs::remove_file(&file).unwrap(),
                    "cut" => std::fs::write(&file, &bytes[..bytes.len() / 2]).unwrap(),
                    _ => {
                        let middle = bytes.len() / 2;
                        bytes[middle] ^= 1;
                        std::fs::write(&file, bytes).unwrap();
                    }
                }
                let from = at(world, &folder(&damaged));
                let scratch = tempfile::tempdir().unwrap();
                let (_, found) = check_savepoint(&from, scratch.path(), &SavepointProgress::default()).await.unwrap();
                assert_eq!(found.iter().map(|d| &*d.object).collect::<Vec<_>>(), [&*object.name], "{change}");
                let dir = world.fresh();
                let before = world.files();
                let error = match from.load_savepoint(&taken, all, &dir).await {
                    Err(error) => error,
                    // The bytes between the segments that handles name in a log object are never read.
                    Ok(state) => {
                        assert!(form == SavepointForm::Native && change == "flipped", "{change} {}", object.name);
                        world.check(&state, all, "an unused byte differs");
                        state.keyed.destroy().unwrap();
                        std::fs::remove_dir_all(damaged).unwrap();
                        continue;
                    }
                };
                let kind = if change == "gone" { ErrorKind::NotFound } else { ErrorKind::Corrupt };
                assert_eq!(error.kind(), kind, "{error}");
                let text = error.message();
                assert!(text.contains(&object.name) && text.contains("copy it again"), "{text}");
                assert_eq!(world.files(), before, "nothing is left");
                std::fs::remove_dir_all(damaged).unwrap();
            }
        }
        store.delete(SAVEPOINT).await.unwrap();
        let error = read_savepoint(&store).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
        assert!(error.message().contains("not finished"), "{error}");
    }
}

#[tokio::test]
async fn p9_parts_that_lie_are_damage_not_data() {
    let world = &mut mixed(&mut StdRng::seed_from_u64(13)).await;
    let sources = world.handles().await;
    let disk = tempfile::tempdir().unwrap();
    let store = folder(disk.path());
    let taken = take(world, &sources, SavepointForm::Canonical, &store).await.unwrap();
    let lies: [fn(&mut Vec<fastchangelog_format::model::SavepointPart>); 3] = [
        |parts| parts[0].entries += 1,
        |parts| parts[0] = parts[1].clone(),
        |parts| parts[1].object = parts[0].object.clone(),
    ];
    for lie in lies {
        let mut told = taken.clone();
        let SavepointContent::Canonical(parts) = &mut told.content else { panic!("canonical") };
        lie(parts);
        store.put_overwrite(SAVEPOINT, encode_savepoint(&told)).await.unwrap();
        let scratch = tempfile::tempdir().unwrap();
        match check_savepoint(&at(world, &store), scratch.path(), &SavepointProgress::default()).await {
            Ok((_, found)) => assert_eq!(found.len(), 1, "{found:?}"),
            Err(error) => assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}"),
        }
        let (all, dir) = (KeyGroupRange { start: 0, end: told.max_parallelism }, world.fresh());
        let loaded = at(world, &store).load_savepoint(&told, all, &dir).await;
        assert_eq!(loaded.map(drop).unwrap_err().kind(), ErrorKind::Corrupt, "nor is it loaded");
    }
}

#[tokio::test(start_paused = true)]
async fn y04_a_target_that_fails_is_left_empty_and_named() {
    let world = &mut mixed(&mut StdRng::seed_from_u64(14)).await;
    let sources = world.handles().await;
    let before = world.files();
    for form in FORMS {
        for call in 0.. {
            let faults = FaultStore::in_memory();
            let target = faulty(&faults);
            faults.at(call, Fault::Denied);
            let taken = take(world, &sources, form, &target).await;
            assert_eq!(world.files(), before);
            let Err(error) = taken else {
                assert!(call > 4, "{form:?}: some calls were made");
                break;
            };
            assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
            assert!(error.message().contains("cannot write a savepoint to test://b/sp"), "{error}");
            faults.heal();
            let left = target.list("").await.unwrap();
            assert!(left.iter().all(|o| o.name.starts_with("probe/")), "call {call}: {left:?}");
        }
    }
}

fn faulty(faults: &Arc<FaultStore>) -> Store {
    let (options, metrics) = (Options::default(), SharedMetrics::default());
    Store::from_object_store(Arc::clone(faults) as _, "sp", "test://b/sp", &options, metrics, Failpoints::none())
}

#[tokio::test(start_paused = true)]
async fn y01_y04_a_cancelled_savepoint_takes_back_what_it_wrote() {
    let world = &mut mixed(&mut StdRng::seed_from_u64(16)).await;
    let sources = world.handles().await;
    for form in FORMS {
        for ticks in (0..).step_by(3) {
            let faults = FaultStore::in_memory();
            let target = faulty(&faults);
            faults.always(Operation::Put, Fault::Delay(Duration::from_millis(250)));
            let (heard, progress, scratch) = (AtomicUsize::new(0), SavepointProgress::default(), world.fresh());
            std::fs::create_dir(&scratch).unwrap();
            let tick = || match heard.fetch_add(1, Ordering::Relaxed) {
                tick if tick >= ticks => Err(Error::closed("Ctrl-C")),
                _ => Ok(()),
            };
            let taking = world.rebuilder.take_savepoint(&sources, form, origin(), &target, &scratch, &progress);
            // As `attended_to_the_end` waits, which the clock of this test cannot see.
            let mut taking = Box::pin(taking);
            let taken = loop {
                match advance(taking.as_mut()).await {
                    Some(taken) => break taken,
                    None => {
                        if let Err(error) = tick() {
                            progress.give_up();
                            let _ = taking.as_mut().await;
                            break Err(error);
                        }
                    }
                }
            };
            drop(taking);
            faults.heal();
            let left = target.list("").await.unwrap();
            let Err(error) = taken else {
                assert!(ticks > 5, "{form:?}: it was given up at some times");
                break;
            };
            assert_eq!(error.message(), "Ctrl-C");
            if left.iter().any(|object| object.name == SAVEPOINT) {
                // Given up when all was written: whole.
                let scratch = world.fresh();
                std::fs::create_dir(&scratch).unwrap();
                let found =
                    check_savepoint(&at(world, &target), &scratch, &SavepointProgress::default()).await.unwrap();
                assert_eq!(found.1, []);
                continue;
            }
            assert_eq!(left, [], "{form:?}, given up at tick {ticks}");
            take(world, &sources, form, &target).await.unwrap();
        }
    }
}

#[tokio::test]
async fn a_folder_is_one_savepoints_alone() {
    let world = &mut mixed(&mut StdRng::seed_from_u64(17)).await;
    let sources = world.handles().await;
    for form in FORMS {
        let target = faulty(&FaultStore::in_memory());
        let scratch = [world.fresh(), world.fresh()];
        let progress = [SavepointProgress::default(), SavepointProgress::default()];
        scratch.iter().for_each(|scratch| std::fs::create_dir(scratch).unwrap());
        let taking =
            |i: usize| world.rebuilder.take_savepoint(&sources, form, origin(), &target, &scratch[i], &progress[i]);
        let (first, second) = tokio::join!(taking(0), taking(1));
        let error = match (first, second) {
            (Ok(_), Err(error)) | (Err(error), Ok(_)) => error,
            (first, second) => panic!("{form:?}: one of two, not {first:?} and {second:?}"),
        };
        assert!(error.message().contains("not empty") && error.message().contains("new folder"), "{error}");
        let scratch = world.fresh();
        std::fs::create_dir(&scratch).unwrap();
        let found = check_savepoint(&at(world, &target), &scratch, &SavepointProgress::default()).await.unwrap();
        assert_eq!(found.1, [], "the other one's is whole");
        let error = take(world, &sources, form, &target).await.unwrap_err();
        assert!(error.message().contains("it has a savepoint"), "{error}");
        // Killed: nothing was cleaned up.
        target.delete(SAVEPOINT).await.unwrap();
        target.put_overwrite(SAVEPOINT_CLAIM, "x".into()).await.unwrap();
        let error = take(world, &sources, form, &target).await.unwrap_err();
        assert!(error.message().contains("was not finished and may be removed"), "{error}");
        assert!(target.list("").await.unwrap().len() > 1, "it is not ours to remove");
    }
}

#[tokio::test]
async fn a_native_savepoint_in_the_store_of_the_state_moves_no_bytes() {
    let world = &mut mixed(&mut StdRng::seed_from_u64(18)).await;
    let sources = world.handles().await;
    let (options, metrics) = (Options::default(), SharedMetrics::default());
    let faults = Arc::clone(&world.faults) as _;
    let target =
        Store::from_object_store(faults, "sp", "test://b/sp", &options, Arc::clone(&metrics), Failpoints::none());
    let taken = take(world, &sources, SavepointForm::Native, &target).await.unwrap();
    let manifest = target.list("").await.unwrap().into_iter().find(|o| o.name == SAVEPOINT).unwrap().size;
    let written = metrics.store_bytes_written.get();
    assert!(written < manifest + 100, "{written} bytes: the manifest of {manifest}, a probe, a claim");
    for object in taken.objects() {
        world.rebuilder.store.delete(&object.name).await.unwrap();
    }
    load_all(world, &target, 3, "copied").await;
}

#[tokio::test]
async fn a_savepoint_has_its_own_folder_and_whole_sources() {
    let world = &mut mixed(&mut StdRng::seed_from_u64(15)).await;
    let sources = world.handles().await;
    let disk = tempfile::tempdir().unwrap();
    std::fs::write(disk.path().join("mine"), "x").unwrap();
    for form in FORMS {
        let error = take(world, &sources, form, &folder(disk.path())).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(error.message().contains("`mine`") && error.message().contains("new folder"), "{error}");
    }
    assert_eq!(std::fs::read(disk.path().join("mine")).unwrap(), b"x");
    // An object that a handle names is deleted.
    let lost = world.rebuilder.objects_of(sources.handles()).await.unwrap().swap_remove(0);
    world.rebuilder.store.delete(&lost.name).await.unwrap();
    for form in FORMS {
        let target = folder(&disk.path().join(format!("{form:?}")));
        let error: Error = take(world, &sources, form, &target).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
        assert!(error.message().contains(&lost.name), "{error}");
        assert!(target.list("").await.unwrap().is_empty());
    }
}
