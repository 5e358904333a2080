//! Taking a savepoint: from the handles of all shards to a folder that needs nothing else.
//!
//! Owns: both forms, the order of writes.
//! Does not own: which handles and where they come from, the state of a shard (`rescale`), the folder and what is taken
//! back from it (`target`).
//!
//! Steps:
//! 1. the target is writable, empty, and claimed by this savepoint only;
//! 2. canonical: shard by shard, its state is made in a local folder, walked in order, and cut into parts; a part is
//!    uploaded while the next is cut. Native: all objects that the handles reach are copied, by the store itself where
//!    it can, else byte for byte;
//! 3. the manifest.
//!
//! Invariants:
//! 1. the manifest is written after everything else was acknowledged; without it there is no savepoint;
//! 2. the source is only read, and nothing that runs is held up;
//! 3. memory: two parts, or the parts of [`PARALLEL_COPIES`] transfers; local disk: one shard, or as many files.

use super::progress::SavepointProgress;
use super::target::Target;
use crate::shard::rebuild::Rebuilder;
use crate::shard::sources::Sources;
use bytes::Bytes;
use fastchangelog_format::config::Compression;
use fastchangelog_format::error::{Error, Result};
use fastchangelog_format::handle::decode_segment_index;
use fastchangelog_format::model::{
    Change, ChangeSet, InstanceId, KeyGroupRange, ObjectRef, Op, Savepoint, SavepointContent, SavepointOrigin,
    SavepointPart, ShardHandle,
};
use fastchangelog_format::{Crc, FILE_HEADER_LEN, encode_savepoint, encode_set, file_footer, file_header};
use fastchangelog_log::read::fetch_manifest;
use fastchangelog_state::keyed::KeyedState;
use fastchangelog_store::transfer::blocking;
use fastchangelog_store::{SAVEPOINT, Store, part_name};
use futures::{StreamExt, stream};
use std::collections::BTreeMap;
use std::path::Path;
use tokio::sync::mpsc;

/// A part is cut at the next key group when it has half of this many bytes of keys and values, and anyway when it has
/// all: large enough for a table of RocksDB, small enough to be held in memory.
const PART_BYTES: u64 = 32 << 20;
/// Bytes of keys and values in one change set of a part.
const SET_BYTES: u64 = 4 << 20;
/// Objects copied at the same time.
const PARALLEL_COPIES: usize = 4;
/// An object up to this size is copied through memory, a larger one through a file.
const SMALL_OBJECT: u64 = 8 << 20;
/// Dirty entries written to RocksDB at a time.
const FLUSH_CHUNK: usize = 100_000;

/// The parts of a savepoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SavepointForm {
    /// Sorted entries: for any later version, and other readers.
    Canonical,
    /// Copies of snapshots and segments: the fastest.
    Native,
}

impl Rebuilder {
    /// Writes the state of `sources`, whose objects are in this rebuilder's store, as a savepoint to the empty folder
    /// `target`. `scratch` is an empty local folder. See the module documentation.
    pub async fn take_savepoint(
        &self,
        sources: &Sources,
        form: SavepointForm,
        origin: SavepointOrigin,
        target: &Store,
        scratch: &Path,
        progress: &SavepointProgress,
    ) -> Result<Savepoint> {
        // 1. a place for it
        let there = |e: Error| e.context(format!("cannot write a savepoint to {}", target.uri()));
        let target = Target::claim_in_time(target, progress).await.map_err(there)?;
        let filling = self.fill(sources, form, origin, &target, scratch, progress);
        let taken = target.until_given_up(filling).await;
        if taken.is_ok() {
            target.release().await;
        } else {
            target.take_back().await;
        }
        taken.map_err(there)
    }

    async fn fill(
        &self,
        sources: &Sources,
        form: SavepointForm,
        origin: SavepointOrigin,
        target: &Target<'_>,
        scratch: &Path,
        progress: &SavepointProgress,
    ) -> Result<Savepoint> {
        self.failpoints.hit("savepoint.begin")?;
        // 2. the state
        let handles = sources.handles();
        let content = match form {
            SavepointForm::Canonical => {
                SavepointContent::Canonical(self.sort(sources, target, scratch, progress).await?)
            }
            SavepointForm::Native => {
                let objects = self.objects_of(handles).await?;
                self.copy(&objects, target, scratch, progress).await?;
                SavepointContent::Native { handles: handles.to_vec(), objects }
            }
        };
        let (keys, bytes) = match &content {
            SavepointContent::Canonical(parts) => {
                (parts.iter().map(|p| p.entries).sum(), parts.iter().map(|p| p.bytes).sum())
            }
            SavepointContent::Native { .. } => {
                (handles.iter().map(|h| h.state_keys).sum(), handles.iter().map(|h| h.state_bytes).sum())
            }
        };
        let first = &handles[0];
        let savepoint = Savepoint {
            id: InstanceId::random(),
            origin,
            shards: first.shards,
            max_parallelism: first.max_parallelism,
            hash_id: first.hash_id,
            schema_id: first.schema_id,
            schema: first.schema.clone(),
            keys,
            bytes,
            content,
        };

        // 3. the manifest, which makes it a savepoint
        self.failpoints.hit("savepoint.before-manifest")?;
        target.put(SAVEPOINT, vec![encode_savepoint(&savepoint)]).await?;
        tracing::info!(savepoint = target.uri(), keys, bytes, "took a savepoint");
        Ok(savepoint)
    }

    /// The entries of all shards in order, in new parts.
    async fn sort(
        &self,
        sources: &Sources,
        target: &Target<'_>,
        scratch: &Path,
        progress: &SavepointProgress,
    ) -> Result<Vec<SavepointPart>> {
        progress.expect(sources.handles().iter().map(|h| h.state_bytes).sum());
        let mut parts = Vec::new();
        for handle in sources.handles() {
            if handle.snapshot.is_none() && handle.indexed.is_none() && handle.segments.is_empty() {
                continue; // without rows: a folder and a database for it would be made for nothing
            }
            let dir = scratch.join(format!("shard-{}", handle.shard));
            let state = self.restore_range(handle.key_groups, sources, &dir).await?;
            let (sender, mut receiver) = mpsc::channel(1);
            let cutting = blocking(move || cut(state.keyed, &sender));
            // Owns the receiver: when a put fails, the sender notices and stops.
            let sending = async {
                let mut receiver = std::mem::replace(&mut receiver, mpsc::channel(1).1);
                while let Some(builder) = receiver.recv().await {
                    self.failpoints.hit("savepoint.part")?;
                    let Cut { bytes, key_groups, entries, size } = builder;
                    let object = target.put(&part_name(parts.len()), bytes).await?;
                    parts.push(SavepointPart { object, key_groups, entries, bytes: size });
                    progress.add(size);
                }
                Ok::<_, Error>(())
            };
            let (cut, sent) = tokio::join!(cutting, sending);
            sent.and(cut)?;
        }
        Ok(parts)
    }

    /// Everything that `handles` reach, each once, by name.
    pub async fn objects_of(&self, handles: &[ShardHandle]) -> Result<Vec<ObjectRef>> {
        let mut found: BTreeMap<String, ObjectRef> = BTreeMap::new();
        let mut note = |object: &ObjectRef| drop(found.insert(object.name.clone(), object.clone()));
        for handle in handles {
            handle.segments.iter().for_each(|segment| note(&segment.object));
            if let Some(index) = &handle.indexed {
                note(index);
                let listed = decode_segment_index(&index.name, &self.store.get(index).await?)?;
                listed.iter().for_each(|segment| note(&segment.object));
            }
            if let Some(snapshot) = &handle.snapshot {
                note(&snapshot.manifest);
                let manifest = fetch_manifest(&self.store, snapshot).await?;
                manifest.files.iter().for_each(|file| note(&file.object));
            }
        }
        Ok(found.into_values().collect())
    }

    /// Copies all of `objects`. After a failure those in progress are completed, and the first error is returned.
    async fn copy(
        &self,
        objects: &[ObjectRef],
        target: &Target<'_>,
        scratch: &Path,
        progress: &SavepointProgress,
    ) -> Result<()> {
        progress.expect(objects.iter().map(|object| object.size).sum());
        let copies: Vec<_> =
            objects.iter().enumerate().map(|(i, object)| self.copy_one(i, object, target, scratch, progress)).collect();
        let mut copies = stream::iter(copies).buffer_unordered(PARALLEL_COPIES);
        let mut all = Ok(());
        while let Some(copied) = copies.next().await {
            all = all.and(copied);
        }
        all
    }

    async fn copy_one(
        &self,
        i: usize,
        object: &ObjectRef,
        target: &Target<'_>,
        scratch: &Path,
        progress: &SavepointProgress,
    ) -> Result<()> {
        let name = &object.name;
        let copy = async |to: &Store| {
            self.failpoints.hit("savepoint.copy")?;
            // The store's own copy: the object's bytes stay where they are.
            if to.copy_within(&self.store, object).await? {
                return Ok(());
            }
            let written = if object.size <= SMALL_OBJECT {
                to.put_new(name, vec![self.store.get(object).await?]).await?
            } else {
                let file = scratch.join(format!("copy-{i}"));
                self.store.get_to_file(object, &file).await?;
                let written = to.put_file(name, &file, None).await;
                let _ = std::fs::remove_file(&file);
                written?
            };
            if written != *object {
                let what = format!("its copy has the checksum {:08x}, but {:08x} was written", written.crc, object.crc);
                return Err(Error::corrupt(format!("{}/{name}", to.uri()), 0, what));
            }
            Ok(())
        };
        target.write(name, copy).await?;
        progress.add(object.size);
        Ok(())
    }
}

/// A part that is ready to be uploaded.
struct Cut {
    bytes: Vec<Bytes>,
    key_groups: KeyGroupRange,
    entries: u64,
    size: u64,
}

/// Scans a state in order and sends its parts to `to`; the state's folder is removed afterwards.
fn cut(mut keyed: KeyedState, to: &mpsc::Sender<Cut>) -> Result<()> {
    let walked = walk(&mut keyed, to);
    let destroyed = keyed.destroy();
    walked.and(destroyed)
}

fn walk(keyed: &mut KeyedState, to: &mpsc::Sender<Cut>) -> Result<()> {
    let send = |cut: Cut| to.blocking_send(cut).map_err(|_| Error::closed("the savepoint was cancelled"));
    keyed.begin_flush();
    while keyed.flush_dirty(FLUSH_CHUNK)? {}
    let mut builder = PartBuilder::new();
    keyed.for_each_in_order(&mut |change| {
        if builder.ends_before(change.key_group.0) {
            send(std::mem::replace(&mut builder, PartBuilder::new()).seal()?)?;
        }
        builder.push(change)
    })?;
    if builder.entries > 0 {
        send(builder.seal()?)?;
    }
    Ok(())
}

/// A part that is being built: a log object whose sets are in order.
struct PartBuilder {
    bytes: Vec<Bytes>,
    crc: Crc,
    at: u64,
    places: Vec<(u64, u64)>,
    set: ChangeSet,
    range: KeyGroupRange,
    entries: u64,
    size: u64,
}

impl PartBuilder {
    fn new() -> Self {
        let header = file_header();
        let mut crc = Crc::new();
        crc.update(&header);
        Self {
            bytes: vec![header],
            crc,
            at: FILE_HEADER_LEN as u64,
            places: Vec::new(),
            set: ChangeSet::default(),
            range: KeyGroupRange { start: u16::MAX, end: 0 },
            entries: 0,
            size: 0,
        }
    }

    fn ends_before(&self, group: u16) -> bool {
        self.size >= PART_BYTES || (self.size >= PART_BYTES / 2 && group >= self.range.end)
    }

    fn push(&mut self, change: Change<'_>) -> Result<()> {
        debug_assert_eq!(change.op, Op::Put);
        self.range.start = self.range.start.min(change.key_group.0);
        self.range.end = change.key_group.0 + 1;
        self.entries += 1;
        self.size += (change.key.len() + change.value.len()) as u64;
        self.set.push(change);
        if self.set.payload_bytes() >= SET_BYTES { self.close_set() } else { Ok(()) }
    }

    fn close_set(&mut self) -> Result<()> {
        let encoded = encode_set(&std::mem::take(&mut self.set), Compression::Zstd)?;
        self.places.push((self.at, encoded.length));
        self.at += encoded.length;
        encoded.parts.iter().for_each(|part| self.crc.update(part));
        self.bytes.extend(encoded.parts);
        Ok(())
    }

    fn seal(mut self) -> Result<Cut> {
        if !self.set.is_empty() {
            self.close_set()?;
        }
        self.bytes.push(file_footer(&self.places, self.crc.value()));
        Ok(Cut { bytes: self.bytes, key_groups: self.range, entries: self.entries, size: self.size })
    }
}
