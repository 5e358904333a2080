//! Snapshots: complete or not at all (P2), incremental, and good enough for RocksDB to open.

use super::*;
use crate::snapshot::list;
use crate::store::fault::{Fault, FaultStore, Operation};
use fastchangelog_format::clock::SystemClock;
use fastchangelog_format::config::Options;
use fastchangelog_format::error::ErrorKind;
use fastchangelog_format::{crc32c, decode_manifest};
use fastchangelog_store::failpoint::SharedFailpoints;
use fastchangelog_store::metrics::SharedMetrics;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use tempfile::TempDir;

struct World {
    faults: Arc<FaultStore>,
    store: Store,
    metrics: SharedMetrics,
    failpoints: SharedFailpoints,
    background: Arc<Background>,
    pack_below: u64,
    disk: TempDir,
}

impl World {
    fn new() -> Self {
        let (faults, metrics, failpoints) = (FaultStore::in_memory(), SharedMetrics::default(), Failpoints::none());
        let options =
            BTreeMap::from([("max_attempts", "2"), ("retry_delay", "1ms")].map(|(k, v)| (k.to_owned(), v.to_owned())));
        let options = Options::from_map(&options).unwrap();
        let store = Store::from_object_store(
            Arc::<FaultStore>::clone(&faults),
            "q/op",
            "test://q/op",
            &options,
            Arc::clone(&metrics),
            Arc::clone(&failpoints),
        );
        let background = Background::new(&options, SystemClock::shared(), Arc::clone(&metrics));
        Self { faults, store, metrics, failpoints, background, pack_below: 0, disk: tempfile::tempdir().unwrap() }
    }

    /// A folder that looks like a checkpoint with these tables.
    fn checkpoint(&self, name: &str, tables: &[(&str, &[u8])]) -> PathBuf {
        let dir = self.disk.path().join(name);
        fs::create_dir(&dir).unwrap();
        fs::write(dir.join("CURRENT"), "MANIFEST-000004\n").unwrap();
        fs::write(dir.join("MANIFEST-000004"), format!("made for {name}")).unwrap();
        fs::write(dir.join("OPTIONS-000005"), "[Version]").unwrap();
        for (name, bytes) in tables {
            fs::write(dir.join(name), bytes).unwrap();
        }
        dir
    }

    async fn push(&self, dir: &Path, known: &Inventory) -> Result<(SnapshotRef, Inventory)> {
        let stamp = Stamp { instance: InstanceId(1), version: VersionId(20), replay_after: VersionId(10) };
        push(&self.how(), dir, known, stamp).await
    }

    fn how(&self) -> PushContext<'_> {
        PushContext {
            store: &self.store,
            pack_below: self.pack_below,
            background: &self.background,
            local_copies: None,
            failpoints: &self.failpoints,
            metrics: &self.metrics,
        }
    }

    async fn manifest(&self, snapshot: &SnapshotRef) -> Manifest {
        decode_manifest(&snapshot.manifest.name, &self.store.get(&snapshot.manifest).await.unwrap()).unwrap()
    }

    /// P2: everything the snapshot names is there, whole; returns its tables.
    async fn check(&self, snapshot: &SnapshotRef, dir: &Path) -> BTreeMap<String, ManifestFile> {
        let manifest = self.manifest(snapshot).await;
        assert_eq!((manifest.version, manifest.replay_after), (snapshot.version, snapshot.replay_after));
        let mut bytes = snapshot.manifest.size;
        for file in &manifest.files {
            let mut content = self.store.get(&file.object).await.unwrap();
            if let Some(PackedPart { offset, length, .. }) = file.part {
                content = content.slice(usize::try_from(offset).unwrap()..usize::try_from(offset + length).unwrap());
            }
            assert_eq!((&content, crc32c(&content)), (&fs::read(dir.join(&file.name)).unwrap().into(), file.crc()));
            bytes += file.size();
        }
        for (name, content) in &manifest.inline {
            assert_eq!(content, &fs::read(dir.join(name)).unwrap());
        }
        assert_eq!(bytes, snapshot.total_bytes, "total_bytes is the manifest and all files it names");
        assert_eq!(manifest.files.len() + manifest.inline.len(), fs::read_dir(dir).unwrap().count());
        manifest.files.into_iter().map(|f| (f.name.clone(), f)).collect()
    }

    async fn objects(&self, folder: &str) -> usize {
        self.store.list(folder).await.unwrap().len()
    }
}

fn link(from: &Path, to: &Path, name: &str) {
    fs::hard_link(from.join(name), to.join(name)).unwrap();
}

#[tokio::test]
async fn only_new_tables_are_uploaded() {
    let world = World::new();
    let first = world.checkpoint("1", &[("000001.sst", b"one"), ("000002.sst", b"two"), ("000003.blob", b"three")]);
    let (snapshot, known) = world.push(&first, &Inventory::default()).await.unwrap();
    let tables = world.check(&snapshot, &first).await;
    assert_eq!((known.len(), world.faults.calls_of(Operation::Put)), (3, 4));

    let second = world.checkpoint("2", &[("000006.sst", b"six")]);
    link(&first, &second, "000002.sst");
    let puts = world.faults.calls_of(Operation::Put);
    let (snapshot, known) = world.push(&second, &known).await.unwrap();
    let now = world.check(&snapshot, &second).await;
    assert_eq!(world.faults.calls_of(Operation::Put) - puts, 2, "one table and the manifest");
    assert_eq!(now["000002.sst"], tables["000002.sst"]);
    assert_eq!(now.len(), 2, "a table that RocksDB dropped is not in the snapshot");
    assert_eq!((known.len(), known.get("000001.sst")), (2, None));
    assert_eq!(world.metrics.materialize_reused_bytes.get(), 3);
    let uploaded: u64 = world.store.list("").await.unwrap().iter().map(|l| l.size).sum();
    assert_eq!(world.metrics.materialize_bytes.get(), uploaded);
}

#[tokio::test]
async fn a_name_alone_proves_nothing() {
    let world = World::new();
    let first = world.checkpoint("1", &[("000001.sst", b"one"), ("000002.sst", b"two"), ("000003.sst", b"333")]);
    let (snapshot, known) = world.push(&first, &Inventory::default()).await.unwrap();
    let before = world.check(&snapshot, &first).await;
    // The same number and size from another line of the shard; another size; a copy with equal bytes.
    let second = world.checkpoint("2", &[("000001.sst", b"ONE"), ("000002.sst", b"twooo"), ("000003.sst", b"333")]);
    let (snapshot, _) = world.push(&second, &known).await.unwrap();
    let now = world.check(&snapshot, &second).await;
    assert_ne!(now["000001.sst"], before["000001.sst"]);
    assert_ne!(now["000002.sst"], before["000002.sst"]);
    assert_eq!(now["000003.sst"], before["000003.sst"], "equal bytes are not uploaded again");
}

#[tokio::test]
async fn y16_a_restored_snapshot_is_known() {
    let world = World::new();
    let first = world.checkpoint("1", &[("000001.sst", b"one"), ("000002.sst", b"two")]);
    let (snapshot, _) = world.push(&first, &Inventory::default()).await.unwrap();
    let restored = Inventory::from_manifest(&world.manifest(&snapshot).await);
    assert_eq!(restored.len(), 2);
    let second = world.checkpoint("2", &[("000001.sst", b"one"), ("000002.sst", b"two"), ("000007.sst", b"7")]);
    let puts = world.faults.calls_of(Operation::Put);
    let (snapshot, _) = world.push(&second, &restored).await.unwrap();
    world.check(&snapshot, &second).await;
    assert_eq!(world.faults.calls_of(Operation::Put) - puts, 2);
}

#[tokio::test]
async fn xs19_a_failure_at_any_step_leaves_no_snapshot() {
    for (point, manifests) in [
        ("snapshot.before-sst=error@3", 0),
        ("snapshot.before-manifest=error", 0),
        ("snapshot.after-manifest=store-error", 1),
    ] {
        let world = World::new();
        let dir = world.checkpoint("1", &[("1.sst", b"1"), ("2.sst", b"2"), ("3.sst", b"3"), ("4.sst", b"4")]);
        world.failpoints.set(point).unwrap();
        world.push(&dir, &Inventory::default()).await.expect_err(point);
        assert_eq!(world.objects("base").await, manifests, "{point}: the manifest comes last");
        world.failpoints.clear();
        let (snapshot, known) = world.push(&dir, &Inventory::default()).await.unwrap();
        world.check(&snapshot, &dir).await;
        assert_eq!(known.len(), 4);
    }
}

#[tokio::test]
async fn xs18_a_store_that_refuses_any_one_request_leaves_no_snapshot() {
    let tables: &[(&str, &[u8])] = &[("1.sst", b"1"), ("2.sst", b"2"), ("3.sst", b"3")];
    let calls = {
        let world = World::new();
        world.push(&world.checkpoint("1", tables), &Inventory::default()).await.unwrap();
        world.faults.calls()
    };
    assert_eq!(calls, 4, "three tables and the manifest, one request each");
    for call in 0..calls {
        let world = World::new();
        let dir = world.checkpoint("1", tables);
        world.faults.at(call, Fault::Denied);
        let error = world.push(&dir, &Inventory::default()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::PermissionDenied, "call {call}: {error}");
        assert_eq!(world.objects("base").await, 0);
        let (snapshot, _) = world.push(&dir, &Inventory::default()).await.unwrap();
        world.check(&snapshot, &dir).await;
    }
}

#[tokio::test]
async fn passing_faults_are_retried() {
    for fault in [Fault::FailBefore, Fault::FailAfter, Fault::Throttled] {
        for call in 0..4 {
            let world = World::new();
            let dir = world.checkpoint("1", &[("1.sst", b"1"), ("2.sst", b"2"), ("3.sst", b"3")]);
            world.faults.at(call, fault);
            let (snapshot, _) =
                world.push(&dir, &Inventory::default()).await.unwrap_or_else(|e| panic!("{fault:?}@{call}: {e}"));
            world.check(&snapshot, &dir).await;
            assert_eq!((world.objects("sst").await, world.objects("base").await), (3, 1), "{fault:?}@{call}");
        }
    }
}

#[tokio::test]
async fn xs20_p7_uploads_at_the_same_time_are_bounded() {
    let world = Arc::new(World::new());
    let names: Vec<String> = (10..30).map(|i| format!("{i}.sst")).collect();
    let tables: Vec<(&str, &[u8])> = names.iter().map(|n| (n.as_str(), n.as_bytes())).collect();
    let dir = world.checkpoint("1", &tables);
    world.faults.hold();
    let push = tokio::spawn({
        let (world, dir) = (Arc::clone(&world), dir.clone());
        async move { world.push(&dir, &Inventory::default()).await }
    });
    while world.faults.calls() < CONCURRENT_FILES as u64 {
        tokio::task::yield_now().await;
    }
    for _ in 0..1000 {
        tokio::task::yield_now().await;
    }
    assert_eq!(world.faults.calls(), CONCURRENT_FILES as u64);
    world.faults.release();
    let (snapshot, _) = push.await.unwrap().unwrap();
    assert_eq!(world.check(&snapshot, &dir).await.len(), 20);
}

#[tokio::test]
async fn a_folder_without_a_checkpoint_is_refused_at_once() {
    let world = World::new();
    let complete = || world.disk.path().join("x");
    type Spoil = (&'static str, fn(&Path));
    let spoil: [Spoil; 5] = [
        ("no CURRENT", |d| fs::remove_file(d.join("CURRENT")).unwrap()),
        ("no MANIFEST", |d| fs::remove_file(d.join("MANIFEST-000004")).unwrap()),
        ("a foreign file", |d| fs::write(d.join("notes.txt"), "x").unwrap()),
        ("a folder", |d| fs::create_dir(d.join("9.sst")).unwrap()),
        ("nothing", |d| fs::remove_dir_all(d).unwrap()),
    ];
    for (name, spoil) in spoil {
        let _ = fs::remove_dir_all(complete());
        let dir = world.checkpoint("x", &[("1.sst", b"1")]);
        spoil(&dir);
        world.push(&dir, &Inventory::default()).await.expect_err(name);
        assert_eq!(world.faults.calls(), 0, "{name}");
    }
}

#[tokio::test]
async fn a_grown_manifest_is_an_object_but_never_reused() {
    let world = World::new();
    let dir = world.checkpoint("1", &[("1.sst", b"1")]);
    fs::write(dir.join("MANIFEST-000004"), vec![7; 3 << 20]).unwrap();
    fs::write(dir.join("LOCK"), "").unwrap();
    assert_eq!(list(&dir).unwrap().large.len(), 2);
    fs::remove_file(dir.join("LOCK")).unwrap();
    let (snapshot, known) = world.push(&dir, &Inventory::default()).await.unwrap();
    let files = world.check(&snapshot, &dir).await;
    assert_eq!(files["MANIFEST-000004"].crc(), crc32c(&vec![7; 3 << 20]));
    assert!(snapshot.manifest.size < 1000 && known.len() == 1);
    assert_eq!(Inventory::from_manifest(&world.manifest(&snapshot).await).len(), 1);
}

fn packs(files: &BTreeMap<String, ManifestFile>) -> usize {
    files.values().filter(|f| f.part.is_some()).map(|f| &f.object.name).collect::<BTreeSet<_>>().len()
}

#[tokio::test]
async fn small_tables_share_an_object_while_it_pays() {
    let world = World { pack_below: 100, ..World::new() };
    let names = ["1.sst", "2.sst", "3.sst", "4.sst"];
    let contents: Vec<Vec<u8>> = (1..5).map(|i| vec![i; 90]).collect();
    let tables: Vec<(&str, &[u8])> = names.iter().zip(&contents).map(|(n, c)| (*n, &c[..])).collect();
    let first = world.checkpoint("1", &[&tables[..], &[("5.sst", &[5; 100])]].concat());
    let (snapshot, known) = world.push(&first, &Inventory::default()).await.unwrap();
    let files = world.check(&snapshot, &first).await;
    assert_eq!((world.faults.calls_of(Operation::Put), packs(&files)), (3, 1), "a pack, a table, the manifest");
    assert_eq!((known.len(), world.metrics.materialize_packed_files.get()), (5, 4));

    // Half of the pack lives on: it is taken over. The inventory of a restore knows as much.
    let second = world.checkpoint("2", &[("6.sst", &[6; 90]), ("7.sst", &[7; 90])]);
    names[..2].iter().for_each(|name| link(&first, &second, name));
    for known in [&known, &Inventory::from_manifest(&world.manifest(&snapshot).await)] {
        let puts = world.faults.calls_of(Operation::Put);
        let (snapshot, _) = world.push(&second, known).await.unwrap();
        let now = world.check(&snapshot, &second).await;
        assert_eq!((world.faults.calls_of(Operation::Put) - puts, packs(&now)), (2, 2));
        assert_eq!(now["1.sst"], files["1.sst"]);
    }

    // A quarter does not: what lives is written again, with what is new.
    let third = world.checkpoint("3", &[("8.sst", &[8; 90])]);
    link(&first, &third, "1.sst");
    let (snapshot, _) = world.push(&third, &known).await.unwrap();
    let now = world.check(&snapshot, &third).await;
    assert_eq!((packs(&now), now["1.sst"].object.size), (1, 180));
    assert_ne!(now["1.sst"].object, files["1.sst"].object);
}

/// Many snapshots, each of which drops and adds tables: what a snapshot names is never more than twice what it holds.
#[tokio::test]
async fn packs_that_a_snapshot_names_are_half_alive() {
    let seed = rand::random::<u64>();
    println!("seed {seed}");
    let mut rng = StdRng::seed_from_u64(seed);
    let world = World { pack_below: 1000, ..World::new() };
    let mut known = Inventory::default();
    let mut alive: Vec<(String, Vec<u8>)> = Vec::new();
    for round in 0..30u32 {
        alive.retain(|_| rng.random_range(0..3) > 0);
        for i in 0..rng.random_range(0..6) {
            alive.push((format!("{:03}.sst", round * 10 + i), vec![round as u8; rng.random_range(1..1000)]));
        }
        let tables: Vec<(&str, &[u8])> = alive.iter().map(|(n, c)| (n.as_str(), &c[..])).collect();
        let dir = world.checkpoint(&format!("r{round}"), &tables);
        let (snapshot, now) = world.push(&dir, &known).await.unwrap();
        let files = world.check(&snapshot, &dir).await;
        let objects: BTreeSet<(&str, u64)> = files.values().map(|f| (f.object.name.as_str(), f.object.size)).collect();
        let (held, named): (u64, u64) =
            (files.values().map(ManifestFile::size).sum(), objects.iter().map(|o| o.1).sum());
        assert!(named <= 2 * held, "seed {seed}, round {round}: {named} bytes named for {held}");
        known = now;
    }
    assert!(world.metrics.materialize_reused_bytes.get() > 0, "seed {seed}");
}

/// An upload of a log object goes on while snapshots hold all they may.
#[tokio::test]
async fn p7_a_log_object_never_waits_for_snapshots() {
    let world = World::new();
    let mut options = Options { store_concurrency: 3, ..Options::default() };
    options.background_transfers = 9;
    let store = Store::from_object_store(
        Arc::<FaultStore>::clone(&world.faults),
        "q/op",
        "test://q/op",
        &options,
        Arc::clone(&world.metrics),
        Arc::clone(&world.failpoints),
    );
    let background = Background::new(&options, SystemClock::shared(), Arc::clone(&world.metrics));
    let world = Arc::new(World { store, background, ..world });
    world.faults.hold();
    let pushes: Vec<_> = ["a", "b"]
        .map(|name| {
            let dir = world.checkpoint(name, &[("1.sst", b"1"), ("2.sst", b"2"), ("3.sst", b"3")]);
            let pushed = Arc::clone(&world);
            (dir.clone(), tokio::spawn(async move { pushed.push(&dir, &Inventory::default()).await }))
        })
        .into();
    while world.faults.calls() < 2 {
        tokio::task::yield_now().await;
    }
    let log = {
        let world = Arc::clone(&world);
        tokio::spawn(async move { world.store.put_new("log/x", vec![Bytes::from_static(b"log")]).await })
    };
    for _ in 0..1000 {
        tokio::task::yield_now().await;
    }
    let calls = world.faults.log();
    assert_eq!(calls.len(), 3, "two files of snapshots, and the log object beside them: {calls:?}");
    assert!(calls[2].1.ends_with("log/x"), "{calls:?}");
    world.faults.release();
    log.await.unwrap().unwrap();
    for (dir, push) in pushes {
        let (snapshot, _) = push.await.unwrap().unwrap();
        world.check(&snapshot, &dir).await;
    }
}

/// P10: a real RocksDB, pushed twice, opens from nothing but the objects of the second snapshot.
#[tokio::test]
async fn p10_rocksdb_opens_from_a_snapshot() {
    let world = World::new();
    let mut options = rocksdb::Options::default();
    options.create_if_missing(true);
    let db = rocksdb::DB::open(&options, world.disk.path().join("db")).unwrap();
    let mut write = rocksdb::WriteOptions::default();
    write.disable_wal(true);
    let mut known = Inventory::default();
    let mut last = None;
    for round in 0..3u32 {
        for i in 0..500u32 {
            db.put_opt((i * 3 + round).to_be_bytes(), [round.to_be_bytes(), i.to_be_bytes()].concat(), &write).unwrap();
        }
        let dir = world.disk.path().join(format!("checkpoint-{round}"));
        rocksdb::checkpoint::Checkpoint::new(&db).unwrap().create_checkpoint(&dir).unwrap();
        let before = world.objects("sst").await;
        let (snapshot, now) = world.push(&dir, &known).await.unwrap();
        assert_eq!(world.objects("sst").await, before + 1, "round {round} uploads its own table only");
        fs::remove_dir_all(&dir).unwrap();
        known = now;
        last = Some(snapshot);
    }
    drop(db);
    let restored = world.disk.path().join("restored");
    fs::create_dir(&restored).unwrap();
    let manifest = world.manifest(&last.unwrap()).await;
    for file in &manifest.files {
        fs::write(restored.join(&file.name), world.store.get(&file.object).await.unwrap()).unwrap();
    }
    for (name, bytes) in &manifest.inline {
        fs::write(restored.join(name), bytes).unwrap();
    }
    let db = rocksdb::DB::open(&rocksdb::Options::default(), &restored).unwrap();
    for n in 0..1500u32 {
        let want = [(n % 3).to_be_bytes(), (n / 3).to_be_bytes()].concat();
        assert_eq!(db.get(n.to_be_bytes()).unwrap().unwrap(), want);
    }
}
