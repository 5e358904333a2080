//! A storage over a store that fails on demand, for the tests of this folder.
//!
//! The runtime's time is real, so a test waits for events (a future, a count), never for time.

use super::*;
use fastchangelog_format::clock::ManualClock;
use fastchangelog_format::model::{ChangelogHandle, SequenceNumber};
use fastchangelog_store::failpoint::Failpoints;
use fastchangelog_store::fault::{FaultStore, Operation};
use std::collections::BTreeMap;
use std::sync::mpsc;
use std::time::Instant;

const TEST_TIMEOUT: Duration = Duration::from_mins(1);

pub(super) struct World {
    pub(super) inner: Arc<FaultStore>,
    pub(super) storage: ChangelogStorage,
    pub(super) clock: Arc<ManualClock>,
    pub(super) dir: tempfile::TempDir,
}

pub(super) type Persist = mpsc::Receiver<Result<ChangelogHandle>>;

pub(super) fn world(pairs: &[(&str, &str)]) -> World {
    world_with(pairs, false)
}

/// With copies on the local disk.
pub(super) fn world_with(pairs: &[(&str, &str)], copies: bool) -> World {
    let mut map: BTreeMap<String, String> =
        [("compression", "none"), ("retry_delay", "1ms")].map(|(k, v)| (k.to_owned(), v.to_owned())).into();
    map.extend(pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())));
    let options = Options::for_changelog(&map).unwrap();
    world_over(FaultStore::in_memory(), options, copies)
}

fn world_over(inner: Arc<FaultStore>, options: Options, copies: bool) -> World {
    let clock = ManualClock::at(1_000_000_000_000);
    let environment = Environment {
        clock: Arc::clone(&clock) as _,
        metrics: SharedMetrics::default(),
        failpoints: Failpoints::none(),
    };
    let store = Store::from_object_store(
        Arc::clone(&inner) as _,
        "root",
        "test://bucket/root",
        &options,
        Arc::clone(&environment.metrics),
        Arc::clone(&environment.failpoints),
    );
    let dir = tempfile::tempdir().unwrap();
    let local = copies.then(|| dir.path().join("copies"));
    let storage = ChangelogStorage::over(store, options, local.as_deref(), &environment).unwrap();
    World { inner, storage, clock, dir }
}

pub(super) fn groups(end: u16) -> KeyGroupRange {
    KeyGroupRange { start: 0, end }
}

pub(super) fn until(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < TEST_TIMEOUT, "{what} did not happen");
        std::thread::yield_now();
    }
}

pub(super) fn append(writer: &Writer, bytes: usize) {
    if writer.append(0, &vec![7; bytes]).unwrap() {
        writer.apply_backpressure(&|| Ok(())).unwrap();
    }
}

pub(super) fn persist(writer: &Writer, from: SequenceNumber, checkpoint: u64) -> Persist {
    let (sender, receiver) = mpsc::channel();
    writer.persist(from, checkpoint, Box::new(move |result| drop(sender.send(result)))).unwrap();
    receiver
}

pub(super) fn wait(persist: &Persist) -> Result<ChangelogHandle> {
    persist.recv_timeout(TEST_TIMEOUT).expect("every persist ends")
}

impl World {
    pub(super) fn writer(&self, name: &str) -> Writer {
        self.storage.create_writer(name, groups(4)).unwrap()
    }

    /// The process ends between two steps, and another begins: nothing but the store is left.
    pub(super) fn crashed(self) -> Self {
        let Self { inner, storage, .. } = self;
        let options = storage.shared.options.clone();
        let runtime = storage.runtime.lock().take();
        runtime.unwrap().shutdown_timeout(TEST_TIMEOUT);
        drop(storage);
        inner.heal();
        world_over(inner, options, false)
    }

    pub(super) fn puts(&self) -> usize {
        self.inner.calls_of(Operation::Put)
    }

    pub(super) fn read(&self, handle: &ChangelogHandle) -> Result<Vec<(i32, Vec<u8>)>> {
        let mut changes = self.storage.reader(None)?.read(handle, None)?;
        let mut found = Vec::new();
        while let Some(set) = self.storage.runtime().block_on(changes.next())? {
            found.extend(set.records.iter().map(|(lane, value)| (lane.key_group(), value.to_vec())));
        }
        Ok(found)
    }

    pub(super) fn alive(&self, handle: &ChangelogHandle) -> usize {
        let store = &self.storage.shared.store;
        let exists = |name: &str| self.storage.runtime().block_on(store.exists(name)).unwrap();
        handle.sets.iter().filter(|set| exists(&set.object.name)).count()
    }

    pub(super) fn objects(&self) -> usize {
        self.storage.runtime().block_on(self.storage.shared.store.list("log")).unwrap().len()
    }

    /// Nothing is uploading or being deleted.
    pub(super) fn settled(&self) {
        let metrics = self.storage.metrics();
        until("the end of uploads and deletions", || {
            metrics.in_flight_bytes.get() == 0 && metrics.discards_pending.get() == 0
        });
    }

    pub(super) fn settled_failures(&self, n: u64) {
        until("a failed upload", || self.storage.metrics().upload_failures.get() >= n);
    }
}
