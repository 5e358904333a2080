//! Reading every byte of a savepoint, or of all objects that handles reach.
//!
//! Owns: the list of damaged objects. Does not own: repairs.
//!
//! Invariant: no damage means that every object is there with the bytes that were written, and of a savepoint that its
//! files are what the manifest says: parts in order and counted, or all that the handles reach.

use super::load::{read_savepoint, said};
use super::progress::SavepointProgress;
use crate::shard::rebuild::Rebuilder;
use crate::shard::sources::Sources;
use fastchangelog_format::Crc;
use fastchangelog_format::error::{Error, ErrorKind, Result};
use fastchangelog_format::model::{KeyGroupRange, ObjectRef, Savepoint, SavepointContent};
use fastchangelog_store::Store;
use futures::{StreamExt, stream};
use std::path::Path;

/// Objects read at the same time, and bytes of one request.
const PARALLEL: usize = 4;
const CHUNK: u64 = 8 << 20;

/// A missing or damaged object.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Damage {
    /// Its name in the folder.
    pub object: String,
    /// What is wrong with it.
    pub what: String,
}

/// Reads all of `objects` and returns the missing and the damaged ones. Any other error stops it.
pub async fn check_objects(store: &Store, objects: &[ObjectRef], progress: &SavepointProgress) -> Result<Vec<Damage>> {
    progress.expect(objects.iter().map(|object| object.size).sum());
    let checks: Vec<_> = objects.iter().map(|object| check(store, object, progress)).collect();
    let mut damages = Vec::new();
    let mut checks = stream::iter(checks).buffered(PARALLEL);
    while let Some(checked) = checks.next().await {
        damages.extend(checked?);
    }
    Ok(damages)
}

async fn check(store: &Store, object: &ObjectRef, progress: &SavepointProgress) -> Result<Option<Damage>> {
    let checked = read_all(store, object, progress).await;
    damage(&object.name, checked)
}

fn damage(object: &str, checked: Result<()>) -> Result<Option<Damage>> {
    match checked {
        Ok(()) => Ok(None),
        Err(e) if matches!(e.kind(), ErrorKind::Corrupt | ErrorKind::NotFound) => {
            Ok(Some(Damage { object: object.to_owned(), what: e.message().to_owned() }))
        }
        Err(error) => Err(error),
    }
}

async fn read_all(store: &Store, object: &ObjectRef, progress: &SavepointProgress) -> Result<()> {
    if object.size <= CHUNK {
        store.get(object).await?;
        progress.add(object.size);
        return Ok(());
    }
    let (mut crc, mut at) = (Crc::new(), 0);
    while at < object.size {
        let length = CHUNK.min(object.size - at);
        crc.update(&store.get_range(object, at, length).await?);
        progress.add(length);
        at += length;
    }
    if crc.value() == object.crc {
        return Ok(());
    }
    let what = format!("checksum {:08x} of its {} bytes, but {:08x} was written", crc.value(), object.size, object.crc);
    Err(Error::corrupt(format!("{}/{}", store.uri(), object.name), 0, what))
}

/// Checks the savepoint in the folder of `rebuilder`; `scratch` is an empty local folder for temporary files.
pub async fn check_savepoint(
    rebuilder: &Rebuilder,
    scratch: &Path,
    progress: &SavepointProgress,
) -> Result<(Savepoint, Vec<Damage>)> {
    let savepoint = read_savepoint(&rebuilder.store).await?;
    let objects: Vec<ObjectRef> = savepoint.objects().into_iter().cloned().collect();
    let mut damages = check_objects(&rebuilder.store, &objects, progress).await?;
    if damages.is_empty() {
        let content = check_content(rebuilder, &savepoint, scratch).await.map_err(|e| said(e, rebuilder.store.uri()));
        damages.extend(damage(fastchangelog_store::SAVEPOINT, content)?);
    }
    Ok((savepoint, damages))
}

async fn check_content(rebuilder: &Rebuilder, savepoint: &Savepoint, scratch: &Path) -> Result<()> {
    match &savepoint.content {
        SavepointContent::Canonical(_) => {
            let all = KeyGroupRange { start: 0, end: savepoint.max_parallelism };
            let state = rebuilder.load_savepoint(savepoint, all, &scratch.join("all")).await?;
            let found = (state.keys, state.bytes);
            state.keyed.destroy()?;
            if found != (savepoint.keys, savepoint.bytes) {
                let what = format!("it says {} keys, but its parts hold {}", savepoint.keys, found.0);
                return Err(Error::corrupt(rebuilder.store.uri(), 0, what));
            }
        }
        SavepointContent::Native { handles, objects } => {
            let sources = Sources::of(handles.clone())?;
            let mut listed = objects.clone();
            listed.sort_by(|a, b| a.name.cmp(&b.name));
            if rebuilder.objects_of(sources.handles()).await? != listed {
                return Err(Error::corrupt(rebuilder.store.uri(), 0, "its handles name other files than it lists"));
            }
        }
    }
    Ok(())
}
