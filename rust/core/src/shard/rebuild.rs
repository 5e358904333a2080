//! Rebuild: a local state out of snapshots and segments, the one way for restore, rescale, savepoints and initial
//! states.
//!
//! Owns: building a local state of exactly a range of key groups: which files are taken over, which entries are copied,
//! which changes are replayed, and the cleanup after a failure.
//! Does not own: which handles and what leads to them (`restore`, `rescale`), the version and the handle of the result,
//! its use.
//!
//! Steps:
//! 1. begin to fetch the log of the first source;
//! 2. take one snapshot over: all of it, or the tables that may hold wanted keys, clipped;
//! 3. of the other snapshots, beside that, [`PARALLEL_SOURCES`] at a time: fetch such tables, write the wanted entries
//!    into new tables; ingest these;
//! 4. replay all segments, of each only the wanted key groups.
//!
//! Invariants:
//! 1. the result holds exactly the entries of the range, as snapshot and segments of their sources have them (P5);
//! 2. nothing is written to the store, and sources are only read;
//! 3. after a failure its folders are removed; when it is dropped at any point, they are removed when its threads have
//!    ended;
//! 4. of a snapshot only those tables are fetched that may hold a wanted key, of a large segment only such blocks
//!

use super::lineage::Lineage;
use super::replay::Replay;
use super::scratch_folder::ScratchFolder;
use super::sources::{SourceRange, choose_snapshot};
use fastchangelog_format::Manifest;
use fastchangelog_format::clock::SharedClock;
use fastchangelog_format::error::{Error, Result};
use fastchangelog_format::model::{InstanceId, SnapshotRef};
use fastchangelog_log::read::{ObjectCache, RestoreProgress, SetsAhead, fetch_snapshot, fetch_snapshot_slice};
use fastchangelog_log::snapshot::Inventory;
use fastchangelog_state::group_range::{clip, export, tables_of};
use fastchangelog_state::keyed::KeyedState;
use fastchangelog_state::rocks::SharedResources;
use fastchangelog_store::Store;
use fastchangelog_store::failpoint::SharedFailpoints;
use fastchangelog_store::metrics::SharedMetrics;
use fastchangelog_store::transfer::blocking;
use futures::{StreamExt, TryStreamExt, stream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;

/// Snapshots on disk at the same time, beside the new state.
const PARALLEL_SOURCES: usize = 2;

/// Resources of the process for a rebuild, and the folder of the sources' objects.
#[derive(Clone)]
pub struct Rebuilder {
    /// The folder that the handles' object names are relative to.
    pub store: Store,
    /// Local copies; none when the bucket is a local folder.
    pub cache: Option<Arc<ObjectCache>>,
    /// RocksDB's shared memory.
    pub resources: SharedResources,
    /// Time.
    pub clock: SharedClock,
    /// Counters of the process.
    pub metrics: SharedMetrics,
    /// Failpoints of the process.
    pub failpoints: SharedFailpoints,
}

/// A source and its lineage.
pub(super) struct SourceVersion<'a> {
    pub(super) wanted: SourceRange<'a>,
    pub(super) lineage: Lineage,
}

/// A state that is whole, and not in use yet: dropped, it is closed, and its folder removed.
pub(super) struct Rebuilt {
    /// Its entries. Before the folder: it is closed first.
    keyed: KeyedState,
    folder: Arc<ScratchFolder>,
    /// The files of the only source's snapshot, if all of it was taken over.
    pub(super) inventory: Inventory,
    /// Bytes fetched for it.
    pub(super) fetched: u64,
    /// When the snapshots were there, since the rebuild began.
    pub(super) snapshots_after: Duration,
}

impl Rebuilt {
    pub(super) fn keyed(&mut self) -> &mut KeyedState {
        &mut self.keyed
    }

    /// It stays.
    pub(super) fn keep(self) -> KeyedState {
        self.folder.keep();
        self.keyed
    }

    /// Runs a step where it may block. After an error, or when the future is dropped, the state is removed.
    async fn step<T: Send + 'static>(
        mut self,
        step: impl FnOnce(&mut KeyedState) -> Result<T> + Send + 'static,
    ) -> Result<(Self, T)> {
        blocking(move || step(&mut self.keyed).map(|value| (self, value))).await
    }
}

impl Rebuilder {
    /// The state of the ranges of `sources` in the new folder `dir`. With `hot_limit` the hot tier takes so many bytes
    /// of what is replayed. See the module documentation.
    pub(super) async fn rebuild(
        &self,
        sources: &[SourceVersion<'_>],
        dir: &Path,
        hot_limit: Option<u64>,
        progress: &Arc<RestoreProgress>,
    ) -> Result<Rebuilt> {
        let (user, mut users) = mpsc::channel(1);
        let result = self.run(sources, dir, hot_limit, progress, user).await;
        if result.is_err() {
            // Threads of other sources may still run: they hold their folders.
            users.recv().await;
        }
        result
    }

    async fn run(
        &self,
        sources: &[SourceVersion<'_>],
        dir: &Path,
        hot_limit: Option<u64>,
        progress: &Arc<RestoreProgress>,
        user: mpsc::Sender<()>,
    ) -> Result<Rebuilt> {
        let start = self.clock.monotonic();
        let folder = ScratchFolder::create(dir.to_owned(), user.clone())?;

        // 1. the log of the first source
        let mut first = sources.first().map(|source| self.changes(source));

        // 2. one snapshot as it is, and meanwhile 3. the entries of the others
        let wanted: Vec<SourceRange<'_>> = sources.iter().map(|source| source.wanted).collect();
        let chosen = choose_snapshot(&wanted);
        let others: Vec<_> = sources
            .iter()
            .enumerate()
            .filter(|(i, source)| Some(*i) != chosen && source.lineage.snapshot.is_some())
            .map(|(_, source)| source)
            .collect();
        let parts = if others.is_empty() { None } else { Some(ScratchFolder::beside(dir, user)?) };
        let exports: Vec<_> =
            parts.iter().flat_map(|parts| others.iter().map(|source| self.export(source, parts, progress))).collect();
        let mut exports = stream::iter(exports).buffered(PARALLEL_SOURCES);
        let begin = self.begin(chosen.map(|i| &sources[i]), folder, progress);
        let (mut building, mut exported) = futures::try_join!(begin, exports.try_next())?;
        self.failpoints.hit("rebuild.taken-over")?;
        while let Some((tables, bytes)) = exported {
            self.failpoints.hit("rebuild.exported")?;
            // The tables are in that folder until RocksDB has taken them.
            let keep = parts.clone();
            (building, ()) = building
                .step(move |keyed| {
                    let ingested = keyed.ingest(tables);
                    drop(keep);
                    ingested
                })
                .await?;
            building.fetched += bytes;
            self.failpoints.hit("rebuild.ingested")?;
            exported = exports.try_next().await?;
        }
        drop(exports);
        drop(parts);
        if sources.len() > 1 {
            building.inventory = Inventory::default();
        }
        building.snapshots_after = self.clock.monotonic().saturating_sub(start);

        // 4. the changes of all
        if let Some(limit) = hot_limit {
            building.keyed.set_hot_limit(limit)?;
        }
        for source in sources {
            let sets = first.take().unwrap_or_else(|| self.changes(source));
            let expected = source.wanted.is_whole().then(|| source.lineage.log_bytes());
            let mut replay = Replay::of(sets, expected, progress, &self.metrics);
            while let Some(set) = replay.next().await? {
                (building, ()) = building.step(move |keyed| keyed.apply(&set)).await?;
                self.failpoints.hit("rebuild.replayed")?;
            }
            building.fetched += replay.fetched();
        }
        Ok(building)
    }

    /// The state to start from: the snapshot of `source`, whole or clipped to the wanted range, or an empty state.
    async fn begin(
        &self,
        source: Option<&SourceVersion<'_>>,
        folder: Arc<ScratchFolder>,
        progress: &RestoreProgress,
    ) -> Result<Rebuilt> {
        let shared = self.resources.clone();
        let begun = |keyed, folder, inventory, fetched| Rebuilt {
            keyed,
            folder,
            inventory,
            fetched,
            snapshots_after: Duration::ZERO,
        };
        let Some((source, snapshot)) = source.and_then(|source| Some((source, source.lineage.snapshot.as_ref()?)))
        else {
            let created = blocking(move || {
                let keyed = KeyedState::create(&folder.path, &shared)?;
                Ok::<_, Error>(begun(keyed, folder, Inventory::default(), 0))
            });
            return created.await;
        };
        let (have, want) = (source.wanted.handle.key_groups, source.wanted.groups);
        if source.wanted.is_whole() {
            progress.expect(snapshot.total_bytes);
            let (add_done, cache) = (|bytes| progress.add_done(bytes), self.cache.as_ref());
            let manifest = fetch_snapshot(&self.store, cache, snapshot, &folder.path, &add_done).await?;
            self.check_instance(&manifest, snapshot, source.wanted.handle.instance)?;
            self.failpoints.hit("rebuild.fetched")?;
            let bytes = snapshot.total_bytes;
            let opened = blocking(move || {
                let keyed = KeyedState::open(&folder.path, &shared)?;
                Ok::<_, Error>(begun(keyed, folder, Inventory::from_manifest(&manifest), bytes))
            });
            return opened.await;
        }
        let bytes = self.fetch(source, snapshot, &folder, progress).await?;
        self.failpoints.hit("rebuild.fetched")?;
        let clipped = blocking(move || {
            let keyed = clip(&folder.path, have, want, &shared)?;
            Ok::<_, Error>(begun(keyed, folder, Inventory::default(), bytes))
        });
        clipped.await
    }

    /// The wanted entries of the snapshot of `source` in new tables in the folder `parts`, and the bytes fetched for
    /// them.
    async fn export(
        &self,
        source: &SourceVersion<'_>,
        parts: &Arc<ScratchFolder>,
        progress: &RestoreProgress,
    ) -> Result<(Vec<PathBuf>, u64)> {
        let Some(snapshot) = &source.lineage.snapshot else { return Ok((Vec::new(), 0)) };
        let shard = source.wanted.handle.shard;
        // Removed once its entries are extracted; the tables are outside of it.
        let from = parts.inside(&format!("snapshot-{shard}"))?;
        let bytes = self.fetch(source, snapshot, &from, progress).await?;
        self.failpoints.hit("rebuild.fetched")?;
        let (groups, shared) = (source.wanted.groups, self.resources.clone());
        let into = parts.path.join(format!("tables-{shard}"));
        let tables = blocking(move || {
            std::fs::create_dir(&into).map_err(|e| Error::io_at("cannot make", &into, &e))?;
            let tables = export(&from.path, groups, &into, &shared);
            drop(from);
            tables
        });
        Ok((tables.await?, bytes))
    }

    /// Fetches the wanted part of `snapshot` into the folder. Returns the number of bytes.
    async fn fetch(
        &self,
        source: &SourceVersion<'_>,
        snapshot: &SnapshotRef,
        folder: &Arc<ScratchFolder>,
        progress: &RestoreProgress,
    ) -> Result<u64> {
        let (groups, shared, chosen_in) = (source.wanted.groups, self.resources.clone(), Arc::clone(folder));
        let choose = move || tables_of(&chosen_in.path, groups, &shared);
        let part = fetch_snapshot_slice(&self.store, self.cache.as_ref(), snapshot, &folder.path, choose).await?;
        self.check_instance(&part.manifest, snapshot, source.wanted.handle.instance)?;
        progress.add_done(part.bytes);
        Ok(part.bytes)
    }

    fn check_instance(&self, manifest: &Manifest, snapshot: &SnapshotRef, instance: InstanceId) -> Result<()> {
        if manifest.instance == instance {
            return Ok(());
        }
        let name = format!("{}/{}", self.store.uri(), snapshot.manifest.name);
        Err(Error::corrupt(name, 0, "the snapshot belongs to another state"))
    }

    /// The wanted changes of a source, fetched from now on.
    fn changes(&self, source: &SourceVersion<'_>) -> SetsAhead {
        let (store, cache, segments) = (&self.store, self.cache.as_ref(), &source.lineage.segments);
        let runtime = tokio::runtime::Handle::current();
        if source.wanted.is_whole() {
            SetsAhead::start(&runtime, store, cache, segments)
        } else {
            SetsAhead::slices(&runtime, store, cache, segments, source.wanted.groups)
        }
    }
}
