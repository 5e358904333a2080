//! Tests of files out of packed objects: as few requests as can be, nothing that was not verified.

use super::*;
use crate::store::fault::{Fault, FaultStore, Operation};
use crate::store::pack_name;
use fastchangelog_format::PackedPart;
use fastchangelog_format::config::Options;
use fastchangelog_format::model::ObjectRef;
use fastchangelog_store::failpoint::Failpoints;
use fastchangelog_store::metrics::SharedMetrics;

struct World {
    disk: tempfile::TempDir,
    faults: Arc<FaultStore>,
    store: Store,
    files: Vec<ManifestFile>,
}

/// Ten files of 100 bytes in one object.
async fn world() -> World {
    let faults = FaultStore::in_memory();
    let (options, metrics) = (Options::default(), SharedMetrics::default());
    let store =
        Store::from_object_store(Arc::clone(&faults) as _, "q", "test://b/q", &options, metrics, Failpoints::none());
    let parts: Vec<Bytes> = (0..10u8).map(|i| Bytes::from(vec![i; 100])).collect();
    let object = store.put_new(&pack_name(), parts.clone()).await.unwrap();
    let file = |(i, bytes): (usize, &Bytes)| {
        let part = PackedPart { offset: 100 * i as u64, length: 100, crc: crc32c(bytes) };
        ManifestFile { name: format!("{i}.sst"), object: object.clone(), part: Some(part) }
    };
    let files = parts.iter().enumerate().map(file).collect();
    World { disk: tempfile::tempdir().unwrap(), faults, store, files }
}

impl World {
    /// Fetches the first `count` files into a new folder; gives the requests that took.
    async fn fetch(&self, cache: Option<&Arc<ObjectCache>>, count: usize) -> Result<usize> {
        let into = tempfile::tempdir_in(self.disk.path()).unwrap();
        let before = self.faults.calls_of(Operation::Get);
        fetch_packed(&self.store, cache, self.files[..count].to_vec(), into.path().to_owned()).await?;
        for (i, file) in self.files[..count].iter().enumerate() {
            assert_eq!(std::fs::read(into.path().join(&file.name)).unwrap(), vec![u8::try_from(i).unwrap(); 100]);
        }
        assert_eq!(std::fs::read_dir(into.path()).unwrap().count(), count);
        Ok(self.faults.calls_of(Operation::Get) - before)
    }

    fn cache(&self) -> Arc<ObjectCache> {
        ObjectCache::new(&self.disk.path().join("cache"), 1 << 20, SharedMetrics::default()).unwrap()
    }
}

#[tokio::test]
async fn invariant_1_one_request_for_most_of_an_object() {
    let world = world().await;
    assert_eq!(world.fetch(None, 10).await.unwrap(), 1);
    assert_eq!(world.fetch(None, 5).await.unwrap(), 1);
    assert_eq!(world.fetch(None, 4).await.unwrap(), 4);
    let cache = world.cache();
    assert_eq!(world.fetch(Some(&cache), 4).await.unwrap(), 4, "no copy is made for a part");
    assert_eq!(world.fetch(Some(&cache), 5).await.unwrap(), 1);
    assert_eq!(world.fetch(Some(&cache), 10).await.unwrap(), 0);
    assert_eq!(world.fetch(Some(&cache), 1).await.unwrap(), 0, "a copy that is here serves a part, too");
}

#[tokio::test]
async fn a_damaged_copy_is_replaced_and_a_broken_cache_gone_around() {
    let world = world().await;
    let cache = world.cache();
    world.fetch(Some(&cache), 10).await.unwrap();
    let copy = std::fs::read_dir(world.disk.path().join("cache")).unwrap().next().unwrap().unwrap().path();
    std::fs::write(&copy, vec![77; 1000]).unwrap();
    assert_eq!(world.fetch(Some(&cache), 10).await.unwrap(), 1);
    assert_eq!(world.fetch(Some(&cache), 10).await.unwrap(), 0);
    drop(cache);
    let cache = ObjectCache::new(&world.disk.path().join("other"), 1 << 20, SharedMetrics::default()).unwrap();
    std::fs::remove_dir_all(world.disk.path().join("other")).unwrap();
    world.fetch(Some(&cache), 10).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn p10_damage_on_the_way_is_healed_lasting_damage_told() {
    let world = world().await;
    for count in [10, 1] {
        world.faults.at(world.faults.calls(), Fault::Flip);
        assert_eq!(world.fetch(None, count).await.unwrap(), 2);
    }
    world.faults.always(Operation::Get, Fault::Flip);
    for count in [10, 1] {
        let error = world.fetch(None, count).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
        assert!(error.message().contains(&world.files[0].object.name), "{error}");
    }
}

#[tokio::test]
async fn p9_a_file_that_the_object_does_not_hold_is_refused() {
    let mut world = world().await;
    let sound = world.files.clone();
    type Spoil = fn(&mut ManifestFile);
    let spoil: [(&str, Spoil); 3] = [
        ("another checksum", |f| f.part.as_mut().unwrap().crc ^= 1),
        ("another place", |f| f.part.as_mut().unwrap().offset += 1),
        ("beyond the end", |f| f.part.as_mut().unwrap().length = 2000),
    ];
    for (what, spoil) in spoil {
        for (count, cached) in [(10, false), (1, false), (10, true)] {
            world.files = sound.clone();
            spoil(&mut world.files[0]);
            let cache = cached.then(|| world.cache());
            let error = world.fetch(cache.as_ref(), count).await.expect_err(what);
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{what}, {count} files: {error}");
            assert!(error.message().contains(&world.files[0].object.name), "{error}");
        }
    }
}

#[tokio::test]
async fn an_object_that_is_gone_is_named() {
    let mut world = world().await;
    let gone = ObjectRef { name: pack_name(), ..world.files[0].object.clone() };
    world.files.iter_mut().for_each(|file| file.object = gone.clone());
    for count in [10, 1] {
        let error = world.fetch(None, count).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
        assert!(error.message().contains(&gone.name), "{error}");
    }
}
