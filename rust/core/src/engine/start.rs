//! The start of a state: the note of its folder, and its initial state from a savepoint.
//!
//! Owns: writing the note at the first start, and the checks of later starts against it; the registration of a start's
//! checkpoint.
//! Does not own: the note's layout (`format::note`), reading and loading savepoints (`shard`).
//!
//! Invariants:
//! 1. a shard that gets its first rows weeks later starts as the first ones did: from the same savepoint, in the same
//!    key groups, whatever the options are then;
//! 2. the note's grace period is at least that of every server that ever opened the state, before that server relies on
//!    any object;
//! 3. a checkpoint that a query starts from has a note in the folder before the first session opens, so that sweeps
//!    count its handles. These notes are claimed: two queries that start at once overwrite nothing;
//! 4. a note that is damaged, or of another format, is an error; only a folder without a note gets one.

use super::folder::{Folder, ProcessContext, Start};
use super::request::OpenRequest;
use crate::shard::InitialState;
use bytes::Bytes;
use fastchangelog_format::error::{Error, Result, Subject};
use fastchangelog_format::model::ids::default_max_parallelism;
use fastchangelog_format::{FolderNote, StartNote, decode_note, encode_note, encode_start};
use fastchangelog_store::{Claim, FOLDER_META, Store, start_name};
use std::sync::Arc;

/// How the state of `request` starts: as its folder's note says, which is written if there is none.
pub(super) fn start_of(process: &ProcessContext, folder: &Folder, request: &OpenRequest) -> Result<Start> {
    if let Some(known) = folder.start.get() {
        return Ok(known.clone());
    }
    let _reading = folder.noting.lock();
    if let Some(known) = folder.start.get() {
        return Ok(known.clone());
    }
    let start = match read_note(process, folder)? {
        Some(note) => {
            let start = restart(process, folder, &note)?;
            raise_grace(process, folder, note)?;
            start
        }
        None => first_start(process, folder, request)?,
    };
    folder.grace_noted.get_or_init(|| ());
    Ok(folder.start.get_or_init(|| start).clone())
}

/// Raises the grace period in the folder's note to that of the options, before anything counts on it. Without a note
/// the folder is never swept.
pub(super) fn raise_noted_grace(process: &ProcessContext, folder: &Folder) -> Result<()> {
    if folder.grace_noted.get().is_some() {
        return Ok(());
    }
    let _reading = folder.noting.lock();
    if folder.grace_noted.get().is_some() {
        return Ok(());
    }
    if let Some(note) = read_note(process, folder)? {
        raise_grace(process, folder, note)?;
    }
    folder.grace_noted.get_or_init(|| ());
    Ok(())
}

/// Registers the checkpoint of `request` in the folder, unless this process has done so.
pub(super) fn register_checkpoint(process: &ProcessContext, folder: &Folder, request: &OpenRequest) -> Result<()> {
    let Some(given) = &request.checkpoint else { return Ok(()) };
    let location = given.trim_end_matches('/');
    if folder.registered.lock().contains(location) {
        return Ok(());
    }
    let checkpoint = (!location.is_empty()).then(|| location.to_owned());
    let note = encode_start(&StartNote { checkpoint, gone: false })?;
    process
        .runtime
        .block_on(claim_start(&folder.store, &note))
        .map_err(|e| e.context(format!("cannot register the checkpoint in the state folder {}", folder.store.uri())))?;
    folder.registered.lock().insert(location.to_owned());
    Ok(())
}

/// Makes sure that some note of a start has these bytes.
async fn claim_start(store: &Store, note: &Bytes) -> Result<()> {
    for number in 0.. {
        let name = start_name(number);
        let found = match store.get_named(&name).await? {
            Some(found) => found,
            None => match store.claim(&name, note.clone()).await? {
                Claim::Ours => return Ok(()),
                Claim::Taken(found) => found,
            },
        };
        // One that is damaged is a doubt for sweeps, and none for queries.
        if found == *note {
            return Ok(());
        }
    }
    Ok(())
}

fn raise_grace(process: &ProcessContext, folder: &Folder, note: FolderNote) -> Result<()> {
    let sweep_grace_seconds = folder.options.sweep_grace.as_secs();
    if note.sweep_grace_seconds < sweep_grace_seconds {
        write_note(process, folder, &FolderNote { sweep_grace_seconds, ..note })?;
    }
    Ok(())
}

fn read_note(process: &ProcessContext, folder: &Folder) -> Result<Option<FolderNote>> {
    let name = format!("{}/{FOLDER_META}", folder.store.uri());
    let noted = process.runtime.block_on(folder.store.get_named(FOLDER_META))?;
    noted.map(|bytes| decode_note(&name, &bytes)).transpose()
}

fn write_note(process: &ProcessContext, folder: &Folder, note: &FolderNote) -> Result<()> {
    let store = &folder.store;
    process
        .runtime
        .block_on(store.put_overwrite(FOLDER_META, encode_note(note)?))
        .map_err(|e| e.context(format!("cannot write to the state folder {}", store.uri())))
}

fn read(process: &ProcessContext, folder: &Folder, from: &str) -> Result<InitialState> {
    let initial_state =
        folder.sibling(process, from).and_then(|store| process.runtime.block_on(InitialState::read(store)));
    initial_state.map_err(|e| e.context("option `start_from`"))
}

fn id(initial_state: &InitialState) -> String {
    initial_state.savepoint().id.to_string()
}

/// A start after the first one.
fn restart(process: &ProcessContext, folder: &Folder, note: &FolderNote) -> Result<Start> {
    let (asked, uri) = (&folder.options.start_from, folder.store.uri());
    let initial_state = match &note.start_from {
        Some((from, noted)) => {
            let initial_state = read(process, folder, if asked.is_empty() { from } else { asked })?;
            if id(&initial_state) != *noted {
                return Err(Error::invalid(format!(
                    "the state {uri} began with the savepoint {noted} in {from}, which some shards have yet \
                     to read, but {} holds the savepoint {}",
                    initial_state.uri(),
                    id(&initial_state)
                ))
                .with_remedy("put back the savepoint that it began with")
                .with_subject(Subject::State(uri.to_owned())));
            }
            Some(Arc::new(initial_state))
        }
        None if !asked.is_empty() => {
            return Err(Error::invalid(format!(
                "the state {uri} began without a savepoint, so option `start_from` cannot be set now"
            ))
            .with_remedy(format_args!("use a new checkpointLocation to start from {asked}, or take the option out"))
            .with_subject(Subject::Option("start_from".to_owned())));
        }
        None => None,
    };
    Ok(Start { groups: note.max_parallelism, initial_state })
}

/// The first start: writes the note for later starts and sweeps. Detects an unusable store before any work is done.
fn first_start(process: &ProcessContext, folder: &Folder, request: &OpenRequest) -> Result<Start> {
    let asked = &folder.options.start_from;
    let initial_state = if asked.is_empty() { None } else { Some(read(process, folder, asked)?) };
    let groups = match &initial_state {
        Some(initial_state) => initial_state.savepoint().max_parallelism,
        None => asked_groups(folder.options.max_parallelism, request.shards)?,
    };
    // Before the note is written: it could not be undone.
    check_groups(folder, request, groups)?;
    process.runtime.block_on(folder.store.prove_creation())?;
    let note = FolderNote {
        query_id: request.query_id.clone(),
        name: request.name.clone(),
        shards: request.shards,
        max_parallelism: groups,
        sweep_grace_seconds: folder.options.sweep_grace.as_secs(),
        start_from: initial_state.as_ref().map(|initial_state| (initial_state.uri().to_owned(), id(initial_state))),
    };
    write_note(process, folder, &note)?;
    Ok(Start { groups, initial_state: initial_state.map(Arc::new) })
}

/// The key groups that the map side splits rows for.
fn asked_groups(option: usize, shards: u32) -> Result<u16> {
    if option == 0 {
        return Ok(default_max_parallelism(shards));
    }
    u16::try_from(option).map_err(|_| {
        Error::invalid(format!("option `max_parallelism` = {option} is beyond 32768"))
            .with_subject(Subject::Option("max_parallelism".to_owned()))
    })
}

/// Refuses a request whose rows were split for other key groups than the state has: keys would go to other shards.
pub(super) fn check_groups(folder: &Folder, request: &OpenRequest, groups: u16) -> Result<()> {
    let option = folder.options.max_parallelism;
    let split = asked_groups(option, request.shards)?;
    if split == groups {
        return Ok(());
    }
    let shards = request.shards;
    let why = match option {
        0 => format!("the rows are split for {split}, the default for {shards} partitions"),
        _ => format!("the option `max_parallelism` is {option}"),
    };
    let remedy = if default_max_parallelism(shards) == groups && option != 0 {
        format!("take the option out, or set `max_parallelism` = {groups}")
    } else {
        format!("set the option `max_parallelism` = {groups}, as when the state began")
    };
    Err(Error::invalid(format!(
        "the state {} has {groups} key groups, fixed at its first start, but {why}",
        folder.store.uri()
    ))
    .with_remedy(remedy)
    .with_subject(Subject::State(folder.store.uri().to_owned())))
}
