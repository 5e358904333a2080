//! Tests only: a shard on a store that fails on demand, and a plain map as its model.

use super::{Placement, Shard, ShardContext};
use crate::states::net::Net;
use fastchangelog_columns::codec::hash_key;
use fastchangelog_format::clock::ManualClock;
use fastchangelog_format::config::Options;
use fastchangelog_format::error::Result;
use fastchangelog_format::model::{BatchId, Change, ChangeSet, Op, ShardHandle, StateId, key_group_of};
use fastchangelog_log::read::ObjectCache;
use fastchangelog_log::write::LogWriter;
use fastchangelog_state::keyed::KeyRef;
use fastchangelog_state::rocks::SharedResources;
use fastchangelog_store::budget::MemoryBudget;
use fastchangelog_store::failpoint::{Failpoints, SharedFailpoints};
use fastchangelog_store::fault::FaultStore;
use fastchangelog_store::metrics::SharedMetrics;
use fastchangelog_store::{Background, Store};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;
use tokio::runtime::Runtime;

/// Key groups of these shards.
pub(super) const GROUPS: u16 = 128;
const STATE: StateId = StateId(0);
const SCHEMA: (u64, &str) = (7, "{}");

pub(super) type Model = BTreeMap<Vec<u8>, Vec<u8>>;

/// Seeds of random histories: `n` new ones in a row, or the one of `FASTCHANGELOG_SEED`.
pub(crate) fn seeds(n: u64) -> Vec<u64> {
    if let Ok(seed) = std::env::var("FASTCHANGELOG_SEED") {
        return vec![seed.parse().unwrap()];
    }
    let start: u64 = rand::random_range(0..1_000_000);
    (start..start + n).collect()
}

/// A bucket, and machines that come and go.
pub(super) struct World {
    pub(super) faults: Arc<FaultStore>,
    pub(super) clock: Arc<ManualClock>,
    pub(super) metrics: SharedMetrics,
    pub(super) failpoints: SharedFailpoints,
    pub(super) disk: tempfile::TempDir,
    options: Options,
    budget: Arc<MemoryBudget>,
    resources: SharedResources,
    made: usize,
    pub(super) runtime: Runtime,
}

/// A version and its expected content.
#[derive(Clone)]
pub(super) struct Version {
    pub(super) handle: ShardHandle,
    pub(super) model: Model,
}

impl World {
    pub(super) fn new(options: &[(&str, &str)]) -> Self {
        Self::with_budget(64 << 20, options)
    }

    /// A world whose machines have this many bytes of memory.
    pub(super) fn with_budget(bytes: u64, options: &[(&str, &str)]) -> Self {
        let mut map = BTreeMap::from([("retry_delay", "1ms"), ("max_attempts", "2"), ("persist_delay", "0ms")]);
        map.extend(options.iter().copied());
        let map = map.into_iter().map(|(k, v)| (k.to_owned(), v.to_owned())).collect();
        let options = Options::from_map(&map).unwrap();
        let metrics = SharedMetrics::default();
        let budget = MemoryBudget::new(bytes);
        Self {
            faults: FaultStore::in_memory(),
            clock: ManualClock::at(1_000),
            failpoints: Failpoints::none(),
            disk: tempfile::tempdir().unwrap(),
            resources: SharedResources::new(&budget, Arc::clone(&metrics)).unwrap(),
            options,
            metrics,
            budget,
            made: 0,
            runtime: tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap(),
        }
    }

    pub(super) fn store(&self) -> Store {
        let (bucket, metrics) = (Arc::clone(&self.faults), Arc::clone(&self.metrics));
        Store::from_object_store(bucket as _, "q", "test://b/q", &self.options, metrics, Arc::clone(&self.failpoints))
    }

    /// The memory of its machines.
    pub(super) fn budget(&self) -> &Arc<MemoryBudget> {
        &self.budget
    }

    /// Removes an object from the bucket; gives its bytes.
    pub(super) fn take_away(&self, name: &str) -> bytes::Bytes {
        let store = self.store();
        self.runtime.block_on(async {
            let bytes = store.get_named(name).await.unwrap().unwrap();
            store.delete(name).await.unwrap();
            bytes
        })
    }

    /// Puts an object back.
    pub(super) fn bring_back(&self, name: &str, bytes: bytes::Bytes) {
        self.runtime.block_on(self.store().put_overwrite(name, bytes)).unwrap();
    }

    /// Local copies in a folder of this name.
    pub(super) fn cache(&self, name: &str) -> Arc<ObjectCache> {
        ObjectCache::new(&self.disk.path().join(name), 1 << 30, Arc::clone(&self.metrics)).unwrap()
    }

    /// Where the next shard will live.
    pub(super) fn next_dir(&self) -> PathBuf {
        self.disk.path().join(format!("shard-{}", self.made + 1))
    }

    /// A shard on a machine of its own.
    pub(super) fn shard(&mut self, cache: Option<Arc<ObjectCache>>) -> Arc<Shard> {
        let dir = self.next_dir();
        self.made += 1;
        let store = self.store();
        let log = LogWriter::new(
            store.clone(),
            &self.options,
            self.runtime.handle().clone(),
            Arc::clone(&self.clock) as _,
            Arc::clone(&self.metrics),
            Arc::clone(&self.failpoints),
            None,
        );
        let context = ShardContext {
            query_id: "q".into(),
            name: "s".into(),
            store,
            log,
            background: Background::new(&self.options, Arc::clone(&self.clock) as _, Arc::clone(&self.metrics)),
            cache,
            runtime: self.runtime.handle().clone(),
            resources: self.resources.clone(),
            budget: Arc::clone(&self.budget),
            options: self.options.clone(),
            clock: Arc::clone(&self.clock) as _,
            metrics: Arc::clone(&self.metrics),
            failpoints: Arc::clone(&self.failpoints),
            dir,
        };
        Shard::new("q/s#0".into(), Placement::new(0, 1, usize::from(GROUPS)).unwrap(), context)
    }
}

pub(super) fn open(shard: &Shard, handle: Option<&ShardHandle>) -> Result<()> {
    let batch = BatchId(handle.map_or(0, |h| h.batch.0 + 1));
    shard.make_live(handle, batch, SCHEMA).map(drop)
}

/// The next version: `changes` on top of `base`, which is live.
pub(super) fn extend(shard: &Shard, base: Option<&Version>, changes: &[(Vec<u8>, Option<Vec<u8>>)]) -> Version {
    open(shard, base.map(|v| &v.handle)).unwrap();
    let mut model = base.map(|v| v.model.clone()).unwrap_or_default();
    let mut set = ChangeSet::default();
    let latest: BTreeMap<_, _> = changes.iter().cloned().collect();
    for (key, value) in &latest {
        let group = key_group_of(hash_key(key), GROUPS);
        let op = if value.is_some() { Op::Put } else { Op::Delete };
        let value = value.as_deref().unwrap_or_default();
        set.push(Change { op, state: STATE, key_group: group, key, value });
        match op {
            Op::Put => drop(model.insert(key.clone(), value.to_vec())),
            _ => drop(model.remove(key)),
        }
    }
    set.sort_by_key_group();
    let batch = BatchId(base.map_or(0, |v| v.handle.batch.0 + 1));
    let net = |_: &_| Ok(Net { set, ..Net::default() });
    let handle = shard.extend(batch, SCHEMA, false, net).unwrap().expect("there are changes");
    Version { handle, model }
}

/// Random puts and some deletes of `keys` keys.
pub(super) fn changes(rng: &mut StdRng, n: usize, keys: u32) -> Vec<(Vec<u8>, Option<Vec<u8>>)> {
    (0..n)
        .map(|_| {
            let key = rng.random_range(0..keys).to_be_bytes().to_vec();
            let value: Option<Vec<u8>> =
                rng.random_bool(0.9).then(|| (0..rng.random_range(0..40)).map(|_| rng.random()).collect());
            (key, value)
        })
        .collect()
}

/// Moves of the hot tier's limit while a session reads: entries leave the memory.
pub(super) struct Squeezes(Option<StdRng>);

impl Squeezes {
    pub(super) fn none() -> Self {
        Self(None)
    }

    /// None in half of the histories.
    pub(super) fn in_half(rng: &mut StdRng) -> Self {
        Self(rng.random_bool(0.5).then(|| StdRng::seed_from_u64(rng.random())))
    }

    pub(super) fn next(&mut self, shard: &Shard) {
        if let Some(rng) = &mut self.0 {
            shard.set_hot_limit(1 << rng.random_range(10..20));
            shard.fit_hot();
        }
    }
}

pub(super) fn materialize(shard: &Arc<Shard>) {
    let run = shard.begin_materialize().unwrap().expect("there is something to do");
    run.run().unwrap();
    run.complete().unwrap();
}

/// A version with a base and `after` change sets after it.
pub(super) fn grown(world: &mut World, rng: &mut StdRng, keys: u32, after: usize) -> Version {
    let shard = world.shard(None);
    grown_on(&shard, rng, keys, after)
}

/// The same, on a shard of the caller's.
pub(super) fn grown_on(shard: &Arc<Shard>, rng: &mut StdRng, keys: u32, after: usize) -> Version {
    let mut version = extend(shard, None, &changes(rng, keys as usize, keys));
    version = extend(shard, Some(&version), &changes(rng, 50, keys));
    open(shard, Some(&version.handle)).unwrap();
    materialize(shard);
    for _ in 0..after.max(1) {
        version = extend(shard, Some(&version), &changes(rng, 50, keys));
    }
    assert!(version.handle.snapshot.is_some());
    version
}

/// The values of `keys` in the live version.
pub(super) fn look_up(shard: &Shard, keys: &[Vec<u8>]) -> Result<Vec<Option<Vec<u8>>>> {
    let refs: Vec<KeyRef<'_>> = keys
        .iter()
        .map(|key| KeyRef { hash: hash_key(key), key_group: key_group_of(hash_key(key), GROUPS), key })
        .collect();
    let mut found = vec![None; keys.len()];
    let mut take = |i: usize, value: Option<&[u8]>| {
        found[i] = value.map(<[u8]>::to_vec);
        ControlFlow::Continue(())
    };
    shard.read(|keyed| keyed.get_many(STATE, &refs, &mut take))?;
    Ok(found)
}

/// Asserts that the live version equals `model`, by look-ups and by a walk over everything.
pub(super) fn assert_is(shard: &Shard, model: &Model, keys: u32, when: &str) {
    let all: Vec<Vec<u8>> = (0..keys).map(|key| key.to_be_bytes().to_vec()).collect();
    let expected: Vec<Option<Vec<u8>>> = all.iter().map(|key| model.get(key).cloned()).collect();
    assert_eq!(look_up(shard, &all).unwrap(), expected, "{when}");
    let mut walked = Model::new();
    let walk = |entry: fastchangelog_state::hot::EntryRef<'_>| {
        assert_eq!(entry.key_group, key_group_of(hash_key(entry.key), GROUPS), "{when}");
        walked.insert(entry.key.to_vec(), entry.value.unwrap_or_default().to_vec());
        Ok(())
    };
    let mut walk = walk;
    shard.read(|keyed| keyed.for_each(&mut walk)).unwrap();
    assert_eq!(&walked, model, "{when}");
}

/// Spilled files of a folder: those with a name, and those without one that are open. Only Linux lists the latter.
pub(super) fn spilled_files(dir: &std::path::Path) -> Vec<String> {
    let open = std::fs::read_dir("/proc/self/fd").into_iter().flatten();
    let open = open.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok());
    let dir = dir.canonicalize().unwrap_or_else(|_| dir.to_owned());
    folders(&dir)
        .into_iter()
        .chain(open.filter_map(|path| Some(path.strip_prefix(&dir).ok()?.to_str()?.to_owned())))
        .collect()
}

/// The content of a shard's folder.
pub(super) fn folders(dir: &std::path::Path) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(dir) else { return Vec::new() };
    entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect()
}
