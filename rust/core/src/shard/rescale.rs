//! Rescaling: the state of a range of key groups, made from the handles of all shards of another number of shards.
//!
//! Owns: building a local state of exactly the range: which files are taken over, which entries are copied, which changes
//! are replayed, and the cleanup after a failure.
//! Does not own: which handles (`sources`), the version and the handle of the result, its use.
//!
//! Steps:
//! 1. read what leads to each source that has wanted key groups;
//! 2. take one base over: fetch the tables that may hold wanted keys, clip the rest;
//! 3. of the other bases, beside that, [`PARALLEL_SOURCES`] at a time: fetch such tables, write the wanted entries into new
//!    tables; ingest these;
//! 4. replay all segments, of each only the wanted key groups.
//!
//! Counting the keys would require to read all linked files. Without counts in the handles, they are estimates from the
//! share of key groups; a caller that needs exact numbers counts (`state::group_range::count`) when it reads everything anyway.
//!
//! Invariants:
//! 1. the result holds exactly the entries of the range, as base and segments of their sources have them (P5);
//! 2. nothing is written to the store, and sources are only read;
//! 3. after a failure both of its folders are removed; when it is dropped at any point, they are removed when its threads
//!    have ended;
//! 4. of a base only those tables are fetched that may hold a wanted key, of a large segment only such blocks.

use super::lineage::Lineage;
use super::sources::{SourceRange, Sources, choose_base};
use fastchangelog_format::error::{Error, Result};
use fastchangelog_format::handle::decode_segment_index;
use fastchangelog_format::model::{BaseRef, ChangeSet, KeyGroupRange};
use fastchangelog_log::read::{ObjectCache, fetch_base_slice, read_segments, read_slices, remove_folder};
use fastchangelog_state::group_range::{clip, export, tables_of};
use fastchangelog_state::keyed::KeyedState;
use fastchangelog_state::rocks::SharedResources;
use fastchangelog_store::Store;
use fastchangelog_store::failpoint::SharedFailpoints;
use fastchangelog_store::metrics::SharedMetrics;
use fastchangelog_store::transfer::blocking;
use futures::stream::{self, BoxStream};
use futures::{StreamExt, TryStreamExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;
use tokio::sync::mpsc;

/// Bases that are on the disk beside the new state at the same time.
const PARALLEL_SOURCES: usize = 2;
/// Change sets read ahead.
const PREFETCH: usize = 4;

/// What rescaling needs from its process, and the folder of the sources' objects.
#[derive(Clone)]
pub struct Rescaler {
    /// The folder that the handles' object names are relative to.
    pub store: Store,
    /// Local copies; none when the bucket is a local folder.
    pub cache: Option<Arc<ObjectCache>>,
    /// RocksDB's shared memory.
    pub resources: SharedResources,
    /// Counters of the process.
    pub metrics: SharedMetrics,
    /// Failpoints of the process.
    pub failpoints: SharedFailpoints,
}

/// The state of a range of key groups.
#[derive(Debug)]
pub struct RangeState {
    /// Its entries.
    pub keyed: KeyedState,
    /// Number of keys.
    pub keys: u64,
    /// Bytes of keys and values.
    pub bytes: u64,
    /// False if keys and bytes are estimates.
    pub counted: bool,
    /// Bytes of tables and changes that were fetched for it.
    pub fetched: u64,
}

/// A folder that is removed with its last user, unless it was kept.
pub(super) struct ScratchFolder {
    pub(super) path: PathBuf,
    keep: AtomicBool,
    /// The parent folder, if that is removed, too: not before this one.
    _inside: Option<Arc<ScratchFolder>>,
    /// Signals the end of all folders. A field, so that it is dropped after the folder is removed.
    user: mpsc::Sender<()>,
}

impl ScratchFolder {
    pub(super) fn create(path: PathBuf, inside: Option<&Arc<Self>>, user: mpsc::Sender<()>) -> Result<Arc<Self>> {
        std::fs::create_dir(&path).map_err(|e| Error::io_at("cannot make the folder", &path, &e))?;
        Ok(Arc::new(Self { path, keep: AtomicBool::new(false), _inside: inside.cloned(), user }))
    }

    /// It stays.
    pub(super) fn keep(&self) {
        self.keep.store(true, Ordering::Relaxed);
    }
}

impl Drop for ScratchFolder {
    fn drop(&mut self) {
        if self.keep.load(Ordering::Relaxed) {
            return;
        }
        if let Err(error) = remove_folder(&self.path) {
            tracing::warn!(%error, folder = %self.path.display(), "a local folder could not be removed");
        }
    }
}

/// A state that is being built. The state is closed before its folder is removed.
struct RangeStateBuilder {
    keyed: KeyedState,
    folder: Arc<ScratchFolder>,
}

impl RangeStateBuilder {
    /// Runs a step where it may block. After an error, or when the future is dropped, the state is removed.
    async fn step<T: Send + 'static>(
        mut self,
        step: impl FnOnce(&mut KeyedState) -> Result<T> + Send + 'static,
    ) -> Result<(Self, T)> {
        blocking(move || step(&mut self.keyed).map(|value| (self, value))).await
    }
}

/// A source, and what leads to it.
struct SourceVersion<'a> {
    wanted: SourceRange<'a>,
    lineage: Lineage,
}

impl Rescaler {
    /// The state of `target` from the shards of `sources`, in the new folder `dir`. See the module documentation.
    pub async fn restore_range(&self, target: KeyGroupRange, sources: &Sources, dir: &Path) -> Result<RangeState> {
        let (user, mut users) = mpsc::channel(1);
        let result = self.restore(target, sources, dir, user).await;
        // After a failure, threads of other sources may still run: they hold their folders.
        users.recv().await;
        result
    }

    async fn restore(
        &self,
        target: KeyGroupRange,
        sources: &Sources,
        dir: &Path,
        user: mpsc::Sender<()>,
    ) -> Result<RangeState> {
        let start = Instant::now();
        let wanted = sources.wanted(target)?;
        self.failpoints.hit("rescale.before")?;
        let folder = ScratchFolder::create(dir.to_owned(), None, user.clone())?;
        let mut parts = dir.as_os_str().to_owned();
        parts.push(".parts");
        let parts = ScratchFolder::create(parts.into(), None, user)?;

        // 1. what leads to the sources
        let chosen = choose_base(&wanted);
        let lineages: Vec<_> = wanted.iter().map(|wanted| self.lineage(*wanted)).collect();
        let sources: Vec<SourceVersion<'_>> = stream::iter(lineages).buffered(PREFETCH).try_collect().await?;
        self.failpoints.hit("rescale.lineages")?;

        // 2. one base as it is, and meanwhile 3. the entries of the others
        let others =
            sources.iter().enumerate().filter(|(i, source)| Some(*i) != chosen && source.lineage.base.is_some());
        let exports: Vec<_> = others.map(|(_, source)| self.export(source, &parts)).collect();
        let mut exports = stream::iter(exports).buffered(PARALLEL_SOURCES);
        let begin = self.begin(chosen.map(|i| &sources[i]), folder);
        let ((mut building, mut fetched), mut exported) = futures::try_join!(begin, exports.try_next())?;
        self.failpoints.hit("rescale.taken-over")?;
        while let Some((tables, bytes)) = exported {
            self.failpoints.hit("rescale.exported")?;
            // The tables are in that folder until RocksDB has taken them.
            let keep = Arc::clone(&parts);
            (building, ()) = building
                .step(move |keyed| {
                    let ingested = keyed.ingest(tables);
                    drop(keep);
                    ingested
                })
                .await?;
            fetched += bytes;
            self.failpoints.hit("rescale.ingested")?;
            exported = exports.try_next().await?;
        }
        drop(exports);
        drop(parts);

        // 4. the changes of all
        for source in &sources {
            let mut sets = self.changes(source);
            while let Some((set, bytes)) = sets.try_next().await? {
                (building, ()) = building.step(move |keyed| keyed.apply(&set)).await?;
                fetched += bytes;
                self.failpoints.hit("rescale.replayed")?;
            }
        }

        self.failpoints.hit("rescale.done")?;
        let (keys, bytes) = share(&sources);
        let counted = sources.iter().all(|source| source.wanted.is_whole());
        let RangeStateBuilder { keyed, folder } = building;
        folder.keep();
        self.metrics.restores.add(1);
        self.metrics.restore_bytes.add(fetched);
        self.metrics.restore_micros.add_elapsed(start);
        tracing::info!(
            from = target.start,
            to = target.end,
            sources = sources.len(),
            keys,
            fetched,
            millis = start.elapsed().as_millis(),
            "restored a range of key groups"
        );
        Ok(RangeState { keyed, keys, bytes, counted, fetched })
    }

    async fn lineage<'a>(&self, wanted: SourceRange<'a>) -> Result<SourceVersion<'a>> {
        let index = match &wanted.handle.indexed {
            None => Vec::new(),
            Some(object) => decode_segment_index(&object.name, &self.store.get(object).await?)?,
        };
        Ok(SourceVersion { wanted, lineage: Lineage::of(wanted.handle, index)? })
    }

    /// The base of `source` clipped to what is wanted of it, or nothing yet.
    async fn begin(
        &self,
        source: Option<&SourceVersion<'_>>,
        folder: Arc<ScratchFolder>,
    ) -> Result<(RangeStateBuilder, u64)> {
        let shared = self.resources.clone();
        let Some((source, base)) = source.and_then(|source| Some((source, source.lineage.base.as_ref()?))) else {
            let created = blocking(move || {
                Ok::<_, Error>(RangeStateBuilder { keyed: KeyedState::create(&folder.path, &shared)?, folder })
            });
            return Ok((created.await?, 0));
        };
        let bytes = self.fetch(source, base, &folder).await?;
        self.failpoints.hit("rescale.fetched")?;
        let (have, want) = (source.wanted.handle.key_groups, source.wanted.groups);
        let clipped = blocking(move || {
            Ok::<_, Error>(RangeStateBuilder { keyed: clip(&folder.path, have, want, &shared)?, folder })
        });
        Ok((clipped.await?, bytes))
    }

    /// The wanted entries of the base of `source` in new tables in the folder `parts`, and the bytes fetched for them.
    async fn export(&self, source: &SourceVersion<'_>, parts: &Arc<ScratchFolder>) -> Result<(Vec<PathBuf>, u64)> {
        let Some(base) = &source.lineage.base else { return Ok((Vec::new(), 0)) };
        let shard = source.wanted.handle.shard;
        // Removed as soon as the entries are out of it; the tables are beside it.
        let from = ScratchFolder::create(parts.path.join(format!("base-{shard}")), Some(parts), parts.user.clone())?;
        let bytes = self.fetch(source, base, &from).await?;
        self.failpoints.hit("rescale.fetched")?;
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

    /// Brings of `base` what is wanted to the folder; gives the bytes.
    async fn fetch(&self, source: &SourceVersion<'_>, base: &BaseRef, folder: &Arc<ScratchFolder>) -> Result<u64> {
        let (groups, shared, chosen_in) = (source.wanted.groups, self.resources.clone(), Arc::clone(folder));
        let choose = move || tables_of(&chosen_in.path, groups, &shared);
        let part = fetch_base_slice(&self.store, self.cache.as_ref(), base, &folder.path, choose).await?;
        if part.manifest.instance != source.wanted.handle.instance {
            let name = format!("{}/{}", self.store.uri(), base.manifest.name);
            return Err(Error::corrupt(name, 0, "the base belongs to another state"));
        }
        Ok(part.bytes)
    }

    /// The wanted changes of a source, and the bytes of each.
    fn changes(&self, source: &SourceVersion<'_>) -> BoxStream<'static, Result<(ChangeSet, u64)>> {
        let (store, cache, segments) = (&self.store, self.cache.as_ref(), &source.lineage.segments);
        if source.wanted.is_whole() {
            let lengths = stream::iter(segments.iter().map(|s| s.length).collect::<Vec<_>>());
            let sets = read_segments(store, cache, segments, PREFETCH);
            sets.zip(lengths).map(|(set, length)| Ok((set?, length))).boxed()
        } else {
            let sets = read_slices(store, cache, segments, source.wanted.groups, PREFETCH);
            sets.map_ok(|part| (part.set, part.fetched)).boxed()
        }
    }
}

/// Keys and bytes: of each source, the share of its key groups that is wanted.
fn share(sources: &[SourceVersion<'_>]) -> (u64, u64) {
    let part = |source: &SourceVersion<'_>, all: u64| {
        let (wanted, groups) = (source.wanted.groups.len(), source.wanted.handle.key_groups.len());
        let share = u128::from(all) * wanted as u128 / groups.max(1) as u128;
        u64::try_from(share).unwrap_or(u64::MAX)
    };
    let keys = sources.iter().map(|s| part(s, s.wanted.handle.state_keys)).sum();
    (keys, sources.iter().map(|s| part(s, s.wanted.handle.state_bytes)).sum())
}

#[cfg(test)]
#[path = "rescale_tests.rs"]
pub(super) mod tests;
