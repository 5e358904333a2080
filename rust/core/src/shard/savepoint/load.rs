//! From a savepoint to the state of a range of key groups.
//!
//! Owns: reading the manifest, and the parts of the files that a range needs.
//! Does not own: building a state from copied handles (`rescale`), a shard's use of the state (`initial_state`).
//!
//! Invariants:
//! 1. the state holds exactly the entries that the range had when the savepoint was taken;
//! 2. of the parts of a canonical savepoint only those are fetched that may hold wanted entries;
//! 3. entries out of order, entries in two parts, and counts that differ from the manifest are damage (P9).

use crate::shard::rebuild::Rebuilder;
use crate::shard::rescale::RangeState;
use crate::shard::scratch_folder::ScratchFolder;
use crate::shard::sources::Sources;
use fastchangelog_format::error::{Error, ErrorKind, Result};
use fastchangelog_format::model::handle::HASH_ID;
use fastchangelog_format::model::{KeyGroupRange, Op, Savepoint, SavepointContent, SavepointPart};
use fastchangelog_format::segment::for_each_in_set;
use fastchangelog_format::{decode_file, decode_savepoint};
use fastchangelog_state::group_range::{IngestTable, write_table};
use fastchangelog_state::keyed::KeyedState;
use fastchangelog_store::transfer::blocking;
use fastchangelog_store::{SAVEPOINT, Store};
use futures::{StreamExt, TryStreamExt, stream};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::mpsc;

/// Parts in memory at the same time.
const PARALLEL_PARTS: usize = 2;

/// The savepoint of a folder.
pub async fn read_savepoint(store: &Store) -> Result<Savepoint> {
    let Some(bytes) = store.get_named(SAVEPOINT).await? else {
        return Err(Error::not_found(format!(
            "there is no savepoint in {}: the file {SAVEPOINT}, which is written last, is missing",
            store.uri()
        ))
        .with_remedy("check the address; if the savepoint was not finished or not copied whole, take it again"));
    };
    let savepoint = decode_savepoint(&format!("{}/{SAVEPOINT}", store.uri()), &bytes)?;
    if savepoint.hash_id != HASH_ID {
        return Err(Error::schema(format!(
            "the savepoint {} uses key hash {}, but this version of fastchangelog knows {HASH_ID}",
            store.uri(),
            savepoint.hash_id
        ))
        .with_remedy("use the version that wrote it"));
    }
    Ok(savepoint)
}

impl Rebuilder {
    /// The state of the key groups `target` of `savepoint`, which is in this rebuilder's store, in the new folder
    /// `dir`.
    pub async fn load_savepoint(&self, savepoint: &Savepoint, target: KeyGroupRange, dir: &Path) -> Result<RangeState> {
        let loaded = match &savepoint.content {
            SavepointContent::Canonical(parts) => {
                let (user, mut users) = mpsc::channel(1);
                let loaded = self.load_parts(parts, target, dir, user).await;
                // After a failure, threads of other parts may still run: they hold their folder.
                users.recv().await;
                loaded
            }
            SavepointContent::Native { handles, .. } => {
                self.restore_range(target, &Sources::of(handles.clone())?, dir).await
            }
        };
        loaded.map_err(|error| said(error, self.store.uri()))
    }

    async fn load_parts(
        &self,
        parts: &[SavepointPart],
        target: KeyGroupRange,
        dir: &Path,
        user: mpsc::Sender<()>,
    ) -> Result<RangeState> {
        let start = Instant::now();
        let folder = ScratchFolder::create(dir.to_owned(), user.clone())?;
        let beside = ScratchFolder::beside(dir, user)?;
        let touches = |p: &&SavepointPart| p.key_groups.start < target.end && target.start < p.key_groups.end;
        let wanted: Vec<_> = parts.iter().filter(touches).collect();
        let fetched: u64 = wanted.iter().map(|part| part.object.size).sum();
        let tables: Vec<_> = wanted.iter().enumerate().map(|(i, part)| self.table(i, part, target, &beside)).collect();
        let tables: Vec<Option<IngestTable>> = stream::iter(tables).buffered(PARALLEL_PARTS).try_collect().await?;
        let tables: Vec<IngestTable> = tables.into_iter().flatten().collect();
        for (one, next) in tables.iter().zip(tables.iter().skip(1)) {
            if one.last >= next.first {
                let name = format!("{}/{SAVEPOINT}", self.store.uri());
                return Err(Error::corrupt(name, 0, "two of its parts hold the same keys, or are out of order"));
            }
        }
        let (keys, bytes) = tables.iter().fold((0, 0), |(keys, bytes), t| (keys + t.entries, bytes + t.bytes));
        let (shared, paths) = (self.resources.clone(), tables.into_iter().map(|table| table.path).collect());
        let keyed = blocking(move || {
            let mut keyed = KeyedState::create(&folder.path, &shared)?;
            keyed.ingest(paths)?;
            drop(beside);
            folder.keep();
            Ok::<_, Error>(keyed)
        });
        let keyed = keyed.await?;
        self.metrics.restores.add(1);
        self.metrics.restore_bytes.add(fetched);
        self.metrics.restore_micros.add_elapsed(start);
        Ok(RangeState { keyed, keys, bytes, counted: true, fetched })
    }

    /// The wanted entries of a part in a new table; none if there are none.
    async fn table(
        &self,
        i: usize,
        part: &SavepointPart,
        target: KeyGroupRange,
        folder: &Arc<ScratchFolder>,
    ) -> Result<Option<IngestTable>> {
        let bytes = self.store.get(&part.object).await?;
        let name = format!("{}/{}", self.store.uri(), part.object.name);
        let (shared, folder, part) = (self.resources.clone(), Arc::clone(folder), part.clone());
        let whole = target.start <= part.key_groups.start && part.key_groups.end <= target.end;
        let table = blocking(move || {
            let table = write_table(&folder.path.join(i.to_string()), &shared, &name, |put| {
                for (offset, length) in decode_file(&name, &bytes)? {
                    let range = slice(offset, length)?;
                    for_each_in_set(&name, offset, &bytes[range], target, &mut |change| {
                        if change.op != Op::Put {
                            let what = "it deletes a key; a savepoint only has entries";
                            return Err(Error::corrupt(&name, offset, what));
                        }
                        put(change)
                    })?;
                }
                Ok(())
            })?;
            let found = table.as_ref().map_or((0, 0), |t| (t.entries, t.bytes));
            if whole && found != (part.entries, part.bytes) {
                let what =
                    format!("it has {} entries of {} bytes, but the manifest says {}", found.0, found.1, part.entries);
                return Err(Error::corrupt(&name, 0, what));
            }
            Ok(table)
        });
        table.await
    }
}

fn slice(offset: u64, length: u64) -> Result<std::ops::Range<usize>> {
    let at = usize::try_from(offset).map_err(Error::internal)?;
    Ok(at..at + usize::try_from(length).map_err(Error::internal)?)
}

/// Adds the savepoint and the remedy to an error.
pub(super) fn said(error: Error, uri: &str) -> Error {
    match error.kind() {
        ErrorKind::NotFound => error
            .context(format!("the savepoint {uri} lacks one of its files"))
            .with_remedy("copy it again, with all files, or use another one"),
        ErrorKind::Corrupt => {
            error.context(format!("the savepoint {uri} is damaged")).with_remedy("copy it again, or use another one")
        }
        _ => error.context(format!("the savepoint {uri}")),
    }
}
