//! Reading handles: order, parts, requests, the cache, and damage.

use super::*;
use fastchangelog_format::byte_set::{ByteBlock, encode_byte_set};
use fastchangelog_format::config::{Compression, Options};
use fastchangelog_format::error::ErrorKind;
use fastchangelog_format::{crc32c, file_footer, file_header};
use fastchangelog_store::failpoint::Failpoints;
use fastchangelog_store::fault::{Fault, FaultStore, Operation};
use std::task::Poll;

struct Fixture {
    dir: tempfile::TempDir,
    inner: Arc<FaultStore>,
    store: Store,
    metrics: SharedMetrics,
}

fn fixture() -> Fixture {
    let inner = FaultStore::in_memory();
    let metrics = SharedMetrics::default();
    let pairs = [("max_attempts".to_owned(), "2".to_owned()), ("retry_delay".to_owned(), "1ms".to_owned())];
    let options = Options::from_map(&pairs.into()).unwrap();
    let object_store = Arc::clone(&inner) as _;
    let store =
        Store::from_object_store(object_store, "q", "test://b/q", &options, Arc::clone(&metrics), Failpoints::none());
    Fixture { dir: tempfile::tempdir().unwrap(), inner, store, metrics }
}

const GROUPS: u16 = 64;

/// One object with `sets` sets, each with `per_group` values of 100 bytes in every key group and one metadata record.
async fn object(f: &Fixture, sets: u64, per_group: u16, compression: Compression) -> ChangelogHandle {
    let mut parts = vec![file_header()];
    let (mut at, mut refs, mut places) = (16, Vec::new(), Vec::new());
    for number in 0..sets {
        let mut blocks = vec![ByteBlock::default()];
        blocks[0].push(0, format!("meta {number}").as_bytes());
        for group in 0..GROUPS {
            let mut block = ByteBlock::default();
            (0..per_group).for_each(|i| block.push(group + 1, &[(group + i) as u8; 100]));
            blocks.push(block);
        }
        let set = encode_byte_set(blocks, compression, &Bytes::from).unwrap();
        places.push((at, set.length));
        refs.push((number, at, set.length, set.head, set.mark, set.records));
        at += set.length;
        parts.extend(set.parts);
    }
    let crc = crc32c(&parts.concat());
    parts.push(file_footer(&places, crc));
    let object = f.store.put_new(&fastchangelog_store::log_name(), parts).await.unwrap();
    let set = |(sequence_number, offset, length, head, mark, records)| SetRef {
        sequence_number,
        object: object.clone(),
        offset,
        length,
        head,
        mark,
        records,
        payload: 0,
    };
    ChangelogHandle {
        storage: f.store.uri().to_owned(),
        writer: "w".into(),
        key_groups: KeyGroupRange { start: 0, end: GROUPS },
        from: 0,
        to: sets,
        checkpoint_id: 1,
        sets: refs.into_iter().map(set).collect(),
        incremental_size: 0,
    }
}

impl Fixture {
    fn reader(&self, cache: Option<Arc<ObjectCache>>) -> ChangeReader {
        ChangeReader::new(self.store.clone(), cache, Handle::current(), Arc::clone(&self.metrics))
    }

    fn cache(&self) -> Arc<ObjectCache> {
        ObjectCache::new(&self.dir.path().join("cache"), 1 << 30, Arc::clone(&self.metrics)).unwrap()
    }

    fn gets(&self) -> usize {
        self.inner.calls_of(Operation::Get)
    }
}

async fn all(mut changes: Changes) -> Result<Vec<(u64, i32, usize)>> {
    let mut found = Vec::new();
    while let Some(set) = changes.next().await? {
        found.extend(rows(&set));
    }
    Ok(found)
}

fn rows(set: &ReadSet) -> impl Iterator<Item = (u64, i32, usize)> {
    set.records.iter().map(|(lane, value)| (set.sequence_number, lane.key_group(), value.len()))
}

#[tokio::test]
async fn sets_of_an_object_are_one_request_and_come_in_order() {
    let f = fixture();
    for compression in [Compression::None, Compression::Zstd] {
        let handle = object(&f, 5, 3, compression).await;
        let before = f.gets();
        let found = all(f.reader(None).read(&handle, None).unwrap()).await.unwrap();
        assert_eq!(f.gets() - before, 1);
        assert_eq!(found.len(), 5 * (1 + 3 * usize::from(GROUPS)));
        let key = |(number, group, _): &(u64, i32, usize)| (*number, *group);
        assert!(found.is_sorted_by_key(key), "sets in order, metadata first, then key groups");
    }
}

#[tokio::test]
async fn h07_x29_a_part_of_the_key_groups_fetches_a_part_of_the_bytes() {
    let f = fixture();
    let handle = object(&f, 2, 200, Compression::None).await;
    let read = |groups| {
        let (f, handle) = (&f, &handle);
        async move {
            let before = f.metrics.store_bytes_read.get();
            let found = all(f.reader(None).read(handle, groups).unwrap()).await.unwrap();
            (found, f.metrics.store_bytes_read.get() - before)
        }
    };
    let (everything, bytes) = read(None).await;
    let part = KeyGroupRange { start: 24, end: 32 };
    let (found, part_bytes) = read(Some(part)).await;
    let wanted: Vec<_> =
        everything.iter().filter(|(_, group, _)| *group == -1 || (24..32).contains(group)).copied().collect();
    assert_eq!(found, wanted);
    assert!(part_bytes * 6 <= bytes, "{part_bytes} of {bytes}");
    let (whole, _) = read(Some(KeyGroupRange { start: 0, end: GROUPS })).await;
    assert_eq!(whole, everything);
    let (none, _) = read(Some(KeyGroupRange { start: 5, end: 5 })).await;
    assert!(none.iter().all(|(_, group, _)| *group == -1));
}

#[test]
fn a15_c02_sixty_four_readers_of_one_object_are_one_download() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let f = fixture();
        let handle = object(&f, 4, 10, Compression::Lz4).await;
        let reader = f.reader(Some(f.cache()));
        let readers = (0..64).map(|_| {
            let (reader, handle) = (reader.clone(), handle.clone());
            tokio::spawn(async move { all(reader.read(&handle, None).unwrap()).await.unwrap().len() })
        });
        for count in futures::future::join_all(readers).await {
            assert_eq!(count.unwrap(), 4 * (1 + 10 * usize::from(GROUPS)));
        }
        assert_eq!(f.gets(), 1);
        // A part of an object that is here needs no request either.
        let part = KeyGroupRange { start: 1, end: 2 };
        assert_eq!(all(reader.read(&handle, Some(part)).unwrap()).await.unwrap().len(), 4 * 11);
        assert_eq!(f.gets(), 1);
    });
}

#[tokio::test]
async fn p9_damage_is_named_and_ends_the_read() {
    let f = fixture();
    let handle = object(&f, 3, 2, Compression::None).await;
    f.inner.always(Operation::Get, Fault::Flip);
    let mut changes = f.reader(None).read(&handle, None).unwrap();
    let error = loop {
        match changes.next().await {
            Ok(Some(_)) => {}
            Ok(None) => panic!("the damage was not seen"),
            Err(error) => break error,
        }
    };
    assert!(error.kind() == ErrorKind::Corrupt && error.message().contains("log/"), "{error}");
    assert!(changes.next().await.unwrap().is_none(), "nothing comes after an error");
    f.inner.heal();
    let mut lie = handle.clone();
    lie.sets[1].records += 1;
    assert_eq!(all(f.reader(None).read(&lie, None).unwrap()).await.unwrap_err().kind(), ErrorKind::Corrupt);
    let foreign = ChangelogHandle { storage: "test://elsewhere".into(), ..handle };
    let error = f.reader(None).read(&foreign, None).err().unwrap();
    assert!(error.kind() == ErrorKind::InvalidArgument && error.message().contains("test://elsewhere"), "{error}");
}

#[tokio::test]
async fn a_missing_object_is_named() {
    let f = fixture();
    let handle = object(&f, 1, 1, Compression::None).await;
    f.store.delete(&handle.sets[0].object.name).await.unwrap();
    for cache in [None, Some(f.cache())] {
        let error = all(f.reader(cache).read(&handle, None).unwrap()).await.unwrap_err();
        assert!(
            error.kind() == ErrorKind::NotFound && error.message().contains(&handle.sets[0].object.name),
            "{error}"
        );
    }
}

#[tokio::test]
async fn a07_x07_a_lost_copy_costs_a_request_and_nothing_else() {
    let f = fixture();
    let handle = object(&f, 2, 3, Compression::None).await;
    let reader = f.reader(Some(f.cache()));
    let folder = f.dir.path().join("cache");
    let expected = all(reader.read(&handle, None).unwrap()).await.unwrap();
    for harm in ["flip", "cut", "remove", "remove all"] {
        let copy = std::fs::read_dir(&folder).unwrap().next().unwrap().unwrap().path();
        let mut bytes = std::fs::read(&copy).unwrap();
        match harm {
            "flip" => {
                let last = usize::try_from(handle.sets[1].offset + handle.sets[1].length).unwrap() - 1;
                bytes[last] ^= 1;
                std::fs::write(&copy, bytes).unwrap();
            }
            "cut" => std::fs::write(&copy, &bytes[..20]).unwrap(),
            "remove" => std::fs::remove_file(&copy).unwrap(),
            _ => std::fs::remove_dir_all(&folder).unwrap(),
        }
        let before = f.gets();
        assert_eq!(all(reader.read(&handle, None).unwrap()).await.unwrap(), expected, "{harm}");
        assert_eq!(f.gets(), before + 1, "{harm}");
        assert_eq!(all(reader.read(&handle, None).unwrap()).await.unwrap(), expected, "once more after {harm}");
    }
}

#[tokio::test]
async fn x29_objects_are_fetched_ahead() {
    let f = fixture();
    let mut handle = object(&f, 1, 1, Compression::None).await;
    for number in 1..5 {
        let mut set = object(&f, 1, 1, Compression::None).await.sets.remove(0);
        set.sequence_number = number;
        handle.sets.push(set);
    }
    handle.to = 5;
    f.inner.hold();
    let before = f.gets();
    let mut reading = Box::pin(all(f.reader(None).read(&handle, None).unwrap()));
    assert!(futures::poll!(reading.as_mut()).is_pending());
    for _ in 0..1000 {
        tokio::task::yield_now().await;
    }
    assert_eq!(f.gets() - before, 5, "the second is requested before the first has arrived");
    f.inner.release();
    let found = reading.await.unwrap();
    assert!(found.is_sorted_by_key(|(number, group, _)| (*number, *group)) && found.len() == 5 * 65);
}

#[tokio::test]
async fn a14_offsets_above_four_gibibytes_are_read_right() {
    use std::os::unix::fs::FileExt;
    let dir = tempfile::tempdir().unwrap();
    let metrics = SharedMetrics::default();
    let uri = dir.path().to_str().unwrap();
    let store = Store::open(uri, &[].into(), &Options::default(), Arc::clone(&metrics), Failpoints::none()).unwrap();
    let mut block = ByteBlock::default();
    block.push(3, b"far away");
    let set = encode_byte_set(vec![block], Compression::None, &Bytes::from).unwrap();
    let name = fastchangelog_store::log_name();
    std::fs::create_dir_all(dir.path().join("log")).unwrap();
    let file = std::fs::File::create(dir.path().join(&name)).unwrap();
    let mut sets = Vec::new();
    for (number, offset) in [(0, 1 << 20), (1, (2 << 30) + 5), (2, (4 << 30) + 7)] {
        file.write_all_at(&set.to_bytes(), offset).unwrap();
        let object = ObjectRef { name: name.clone(), size: (5 << 30) + 3, crc: 0 };
        let (length, head, mark, records) = (set.length, set.head, set.mark, set.records);
        sets.push(SetRef { sequence_number: number, object, offset, length, head, mark, records, payload: 8 });
    }
    file.set_len((5 << 30) + 3).unwrap();
    let handle = ChangelogHandle {
        storage: store.uri().to_owned(),
        writer: "w".into(),
        key_groups: KeyGroupRange { start: 0, end: GROUPS },
        from: 0,
        to: 3,
        checkpoint_id: 1,
        sets,
        incremental_size: 0,
    };
    let reader = ChangeReader::new(store, None, Handle::current(), metrics);
    for groups in [None, Some(KeyGroupRange { start: 2, end: 3 })] {
        let found = all(reader.read(&handle, groups).unwrap()).await.unwrap();
        assert_eq!(found, [(0, 2, 8), (1, 2, 8), (2, 2, 8)]);
    }
}

/// As [`all`], by calls that are dropped after each look.
async fn all_with_dropped_calls(mut changes: Changes) -> Vec<(u64, i32, usize)> {
    let mut found = Vec::new();
    loop {
        match futures::poll!(std::pin::pin!(changes.next())) {
            Poll::Ready(Ok(Some(set))) => found.extend(rows(&set)),
            Poll::Ready(end) => {
                assert!(end.unwrap().is_none());
                return found;
            }
            Poll::Pending => tokio::task::yield_now().await,
        }
    }
}

#[tokio::test]
async fn invariants_4_and_6_one_batch_of_large_sets_is_in_memory() {
    let f = fixture();
    // Some KiB that unpack to 80 MiB.
    let (length, blocks) = (16 << 20, 5);
    let packed = |group: u16| {
        let mut block = ByteBlock::default();
        block.push(group + 1, &vec![u8::try_from(group).unwrap(); length]);
        block
    };
    let set = encode_byte_set((0..blocks).map(packed).collect(), Compression::Zstd, &Bytes::from).unwrap();
    assert!(set.length < 64 << 10);
    let (head, mark, records, length_of_set) = (set.head, set.mark, set.records, set.length);
    let mut parts = vec![file_header()];
    parts.extend(set.parts);
    let crc = crc32c(&parts.concat());
    parts.push(file_footer(&[(16, length_of_set)], crc));
    let object_of = f.store.put_new(&fastchangelog_store::log_name(), parts).await.unwrap();
    let mut handle = object(&f, 1, 1, Compression::Zstd).await;
    handle.sets[0] =
        SetRef { object: object_of, offset: 16, length: length_of_set, head, mark, records, ..handle.sets[0].clone() };
    for groups in [None, Some(KeyGroupRange { start: 0, end: blocks })] {
        let mut changes = f.reader(None).read(&handle, groups).unwrap();
        let mut run = changes.runs.next().await.unwrap().unwrap();
        let Some(Fetched::Packed(packed)) = run.first_mut() else { panic!("it is unpacked") };
        assert!(packed.columns.is_none());
        changes.ready.extend(run);
        let expected: Vec<_> = (0..i32::from(blocks)).map(|group| (0, group, length)).collect();
        assert_eq!(all(changes).await.unwrap(), expected);
        let again = f.reader(None).read(&handle, groups).unwrap();
        assert_eq!(all_with_dropped_calls(again).await, expected);
    }
    assert_eq!(f.metrics.changes_read.get(), 4 * u64::from(blocks));
}
