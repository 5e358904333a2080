//! Sources for rescaling: the handles of all shards of the old state.
//!
//! Owns: the validation of the handles, the ranges of the new shards, and the choice of the source whose files a new
//! shard takes over.
//! Does not own: the origin of the handles (a checkpoint, a savepoint), reading any object.
//!
//! Invariants of [`Sources`]:
//! 1. there is one handle for each shard, in order; their key groups cover all key groups without gap or overlap;
//! 2. all have the same number of shards and key groups, the same schema, and the key hash that this version knows.
//!
//! That they are of one checkpoint cannot be seen from them: a batch without rows may leave the handles of some shards
//! as they were. The caller must take them from one version of Spark's state.

use fastchangelog_columns::aggregate::schema_difference;
use fastchangelog_format::error::{Error, Result};
use fastchangelog_format::model::handle::HASH_ID;
use fastchangelog_format::model::{InstanceId, KeyGroupRange, ShardHandle, VersionId, shard_range};

/// A snapshot is taken over as it is when the range wants at least one in so many of its key groups. Below, the entries
/// wanted are rewritten: tables that mostly hold entries of others would be kept, uploaded and compacted for nothing.
const WANTED_SHARE: usize = 4;

/// The handles of all shards of one state. See the module documentation for its invariants.
#[derive(Debug, Clone)]
pub struct Sources {
    handles: Vec<ShardHandle>,
}

/// A source and the key groups that are wanted of it; never none.
#[derive(Debug, Clone, Copy)]
pub struct SourceRange<'a> {
    /// The source.
    pub handle: &'a ShardHandle,
    /// Its wanted key groups.
    pub groups: KeyGroupRange,
}

impl SourceRange<'_> {
    /// True when all of the source is wanted.
    pub fn is_whole(&self) -> bool {
        self.groups == self.handle.key_groups
    }
}

impl Sources {
    /// Checks handles, in any order.
    pub fn of(mut handles: Vec<ShardHandle>) -> Result<Self> {
        handles.sort_by_key(|handle| handle.shard);
        let Some(first) = handles.first() else {
            return Err(Error::invalid("no handles were given; give those of all shards of the state"));
        };
        for (expected, handle) in (0..).zip(&handles) {
            check_same_state(first, handle)?;
            if handle.shard < expected {
                return Err(Error::invalid(format!(
                    "there are two handles of shard {} of {}",
                    handle.shard, handle.shards
                ))
                .with_remedy("pass those of one checkpoint"));
            }
            if handle.shard > expected {
                return Err(missing(expected, handle.shards));
            }
            if handle.shard >= handle.shards
                || handle.key_groups != shard_range(handle.shard, handle.shards, handle.max_parallelism)
            {
                return Err(Error::corrupt(
                    "a shard handle",
                    0,
                    format!(
                        "shard {} of {} has the key groups {} to {} of {}, which are not its own",
                        handle.shard,
                        handle.shards,
                        handle.key_groups.start,
                        handle.key_groups.end,
                        handle.max_parallelism
                    ),
                ));
            }
        }
        if handles.len() < first.shards as usize {
            return Err(missing(handles.len() as u32, first.shards));
        }
        Ok(Self { handles })
    }

    /// [`Sources::of`] where shards that never had a row have no handle: they are empty.
    pub fn of_those_with_rows(mut handles: Vec<ShardHandle>) -> Result<Self> {
        if let Some(like) = handles.first().cloned() {
            let known: Vec<u32> = handles.iter().map(|handle| handle.shard).collect();
            let shards = like.shards.min(u32::from(like.max_parallelism));
            handles.extend((0..shards).filter(|shard| !known.contains(shard)).map(|shard| ShardHandle {
                instance: InstanceId::random(),
                version: VersionId::random(),
                parent: None,
                shard,
                key_groups: shard_range(shard, shards, like.max_parallelism),
                state_keys: 0,
                state_bytes: 0,
                snapshot: None,
                indexed: None,
                segments: Vec::new(),
                ..like.clone()
            }));
        }
        Self::of(handles)
    }

    /// The handles, in the order of their shards.
    pub fn handles(&self) -> &[ShardHandle] {
        &self.handles
    }

    /// Number of key groups; the same before and after.
    pub fn max_parallelism(&self) -> u16 {
        self.handles[0].max_parallelism
    }

    /// The key groups of each of `shards` new shards.
    pub fn targets(&self, shards: u32) -> Result<Vec<KeyGroupRange>> {
        let groups = self.max_parallelism();
        if shards == 0 || shards > u32::from(groups) {
            return Err(Error::invalid(format!(
                "the state cannot be rescaled to {shards} shards: ask for 1 to {groups}, its number of key groups \
                 (max_parallelism), which is fixed at its first start"
            )));
        }
        Ok((0..shards).map(|shard| shard_range(shard, shards, groups)).collect())
    }

    /// The sources of `target`, in the order of key groups.
    pub fn wanted(&self, target: KeyGroupRange) -> Result<Vec<SourceRange<'_>>> {
        if target.is_empty() || target.end > self.max_parallelism() {
            return Err(Error::invalid(format!(
                "key groups {} to {} are not within the {} of the state",
                target.start,
                target.end,
                self.max_parallelism()
            )));
        }
        let wanted = self.handles.iter().map(|handle| {
            let KeyGroupRange { start, end } = handle.key_groups;
            SourceRange { handle, groups: KeyGroupRange { start: start.max(target.start), end: end.min(target.end) } }
        });
        Ok(wanted.filter(|wanted| !wanted.groups.is_empty()).collect())
    }
}

/// The position of the source whose snapshot is taken over: it has most of the wanted key groups, and least else.
pub(super) fn choose_snapshot(wanted: &[SourceRange<'_>]) -> Option<usize> {
    let fit =
        |w: &SourceRange<'_>| w.handle.snapshot.is_some() && w.groups.len() * WANTED_SHARE >= w.handle.key_groups.len();
    let value = |w: &SourceRange<'_>| (w.groups.len(), usize::MAX - w.handle.key_groups.len());
    wanted.iter().enumerate().filter(|(_, w)| fit(w)).max_by_key(|(_, w)| value(w)).map(|(i, _)| i)
}

fn missing(shard: u32, shards: u32) -> Error {
    Error::invalid(format!(
        "the handle of shard {shard} of {shards} is missing; give those of all shards of one checkpoint"
    ))
}

fn check_same_state(first: &ShardHandle, handle: &ShardHandle) -> Result<()> {
    if handle.hash_id != HASH_ID {
        return Err(Error::schema(format!(
            "shard {} uses key hash {}, but this version of fastchangelog knows {HASH_ID}",
            handle.shard, handle.hash_id
        ))
        .with_remedy("use the version that wrote it"));
    }
    if (handle.shards, handle.max_parallelism) != (first.shards, first.max_parallelism) {
        return Err(Error::invalid(format!(
            "the handles belong to different states: shard {} is one of {} with {} key groups, but shard {} is one of \
             {} with {}",
            first.shard, first.shards, first.max_parallelism, handle.shard, handle.shards, handle.max_parallelism
        )));
    }
    if handle.schema_id != first.schema_id
        && let Some(difference) = schema_difference(&first.schema, &handle.schema)
    {
        return Err(Error::schema(format!(
            "the handles belong to different queries: between shards {} and {}, {difference}",
            first.shard, handle.shard
        ))
        .with_remedy("pass those of one checkpoint"));
    }
    Ok(())
}

#[cfg(test)]
#[path = "sources_tests.rs"]
mod tests;
