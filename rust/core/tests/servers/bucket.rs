//! The bucket of a story: what handles reach, and what a sweep removes.
//!
//! Owns: reachability by way of handles, manifests and indexes; a sweep by the rules of the product's one.
//! Does not own: which handles are retained (`world`).
//!
//! The rules: what a retained handle names is kept, with all that it names; so is a snapshot that a retained version may take
//! over; so is what is younger than the grace period. Anything else is deleted when sweeps have found it unreachable for
//! the grace period.

use fastchangelog_format::clock::{Clock, ManualClock};
use fastchangelog_format::config::Options;
use fastchangelog_format::model::{ObjectRef, SegmentRef, ShardHandle, VersionId};
use fastchangelog_format::{Manifest, Result, decode_manifest, decode_segment_index};
use fastchangelog_store::failpoint::Failpoints;
use fastchangelog_store::{ObjectType, Store, object_type};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Minutes for which nothing unreachable is deleted.
pub const GRACE: u64 = 60;

pub struct Bucket {
    pub root: String,
    store: Store,
    runtime: tokio::runtime::Runtime,
    clock: Arc<ManualClock>,
    /// When each object was seen first.
    born: RefCell<BTreeMap<String, u64>>,
    /// Since when sweeps find an object unreachable.
    unreachable: RefCell<BTreeMap<String, u64>>,
    /// Contents of objects that never change.
    manifests: RefCell<BTreeMap<String, Manifest>>,
    indexes: RefCell<BTreeMap<String, Vec<SegmentRef>>>,
}

impl Bucket {
    pub fn new(clock: &Arc<ManualClock>, folder: &str) -> Self {
        static NAMES: AtomicU64 = AtomicU64::new(0);
        Self::at(format!("memory://story-{}", NAMES.fetch_add(1, Ordering::Relaxed)), clock, folder)
    }

    pub fn at(root: String, clock: &Arc<ManualClock>, folder: &str) -> Self {
        let store =
            Store::open(&root, &BTreeMap::new(), &Options::default(), Arc::default(), Failpoints::none()).unwrap();
        Self {
            store: store.child(folder),
            root,
            runtime: tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap(),
            clock: Arc::clone(clock),
            born: RefCell::default(),
            unreachable: RefCell::default(),
            manifests: RefCell::default(),
            indexes: RefCell::default(),
        }
    }

    /// Names of all objects but notes; dates those that are new.
    pub fn listed(&self) -> BTreeSet<String> {
        let listed = self.runtime.block_on(self.store.list("")).unwrap().into_iter().map(|entry| entry.name);
        let listed: BTreeSet<String> = listed.filter(|name| object_type(name) != Some(ObjectType::Note)).collect();
        let (mut born, now) = (self.born.borrow_mut(), self.clock.now_millis());
        born.retain(|name, _| listed.contains(name));
        for name in &listed {
            born.entry(name.clone()).or_insert(now);
        }
        listed
    }

    /// Reads an object and checks it against what names it.
    pub fn get(&self, object: &ObjectRef) -> Result<Vec<u8>> {
        self.runtime.block_on(self.store.get(object)).map(|bytes| bytes.to_vec())
    }

    fn manifest(&self, name: &str) -> Option<Manifest> {
        let mut known = self.manifests.borrow_mut();
        if !known.contains_key(name) {
            let bytes = self.runtime.block_on(self.store.get_named(name)).unwrap()?;
            known.insert(name.to_owned(), decode_manifest(name, &bytes).unwrap());
        }
        known.get(name).cloned()
    }

    fn index(&self, name: &str) -> Vec<SegmentRef> {
        let mut known = self.indexes.borrow_mut();
        if let Some(segments) = known.get(name) {
            return segments.clone();
        }
        let Some(bytes) = self.runtime.block_on(self.store.get_named(name)).unwrap() else { return Vec::new() };
        let segments = decode_segment_index(name, &bytes).unwrap();
        known.insert(name.to_owned(), segments.clone());
        segments
    }

    fn segments(&self, handle: &ShardHandle) -> Vec<SegmentRef> {
        let older = handle.indexed.as_ref().map(|index| self.index(&index.name)).unwrap_or_default();
        older.into_iter().chain(handle.segments.iter().cloned()).collect()
    }

    /// Versions that are replayed after a handle's snapshot.
    pub fn replayed(&self, handle: &ShardHandle) -> usize {
        self.segments(handle).iter().map(|segment| segment.version).collect::<BTreeSet<_>>().len()
    }

    /// All objects that a handle leads to.
    pub fn closure(&self, handle: &ShardHandle) -> Vec<ObjectRef> {
        let mut found: Vec<ObjectRef> = self.segments(handle).into_iter().map(|segment| segment.object).collect();
        found.extend(handle.indexed.clone());
        if let Some(snapshot) = &handle.snapshot {
            found.push(snapshot.manifest.clone());
            let files = self.manifest(&snapshot.manifest.name).map(|manifest| manifest.files).unwrap_or_default();
            found.extend(files.into_iter().map(|file| file.object));
        }
        found
    }

    /// Versions by which a snapshot may be taken over.
    fn line(&self, handle: &ShardHandle) -> BTreeSet<VersionId> {
        let snapshot = handle
            .snapshot
            .iter()
            .filter(|snapshot| snapshot.version == snapshot.replay_after)
            .map(|snapshot| snapshot.version);
        self.segments(handle).into_iter().map(|segment| segment.version).chain(snapshot).collect()
    }

    /// One sweep; `since`: when the batch in progress began.
    pub fn sweep(&self, retained: &[ShardHandle], since: Option<u64>) {
        let (listed, now, grace) = (self.listed(), self.clock.now_millis(), GRACE * 60_000);
        let mut kept: BTreeSet<String> =
            retained.iter().flat_map(|handle| self.closure(handle)).map(|object| object.name).collect();
        let lines: Vec<_> = retained.iter().map(|handle| self.line(handle)).collect();
        let edge = since.unwrap_or(now).min(now).saturating_sub(grace);
        let born = self.born.borrow().clone();
        for name in &listed {
            let young = born[name] > edge;
            let mut keep = young;
            if let Some(manifest) =
                (object_type(name) == Some(ObjectType::Manifest)).then(|| self.manifest(name)).flatten()
            {
                let both = [manifest.version, manifest.replay_after];
                keep |= lines.iter().any(|line| both.iter().all(|version| line.contains(version)));
                if keep {
                    kept.extend(manifest.files.into_iter().map(|file| file.object.name));
                }
            }
            if keep {
                kept.insert(name.clone());
            }
            if young && object_type(name) == Some(ObjectType::Index) {
                kept.extend(self.index(name).into_iter().map(|segment| segment.object.name));
            }
        }
        let mut unreachable = self.unreachable.borrow_mut();
        unreachable.retain(|name, _| listed.contains(name) && !kept.contains(name));
        for name in listed.difference(&kept) {
            if *unreachable.entry(name.clone()).or_insert(now) + grace <= now {
                self.runtime.block_on(self.store.delete(name)).unwrap();
            }
        }
    }
}

impl Drop for Bucket {
    /// The memory of a story ends with it.
    fn drop(&mut self) {
        for name in self.listed() {
            let _ = self.runtime.block_on(self.store.delete(&name));
        }
    }
}
