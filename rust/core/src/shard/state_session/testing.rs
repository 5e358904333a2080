//! Tests only: sessions of a processor as hosts of states, and what a commit wrote.

use super::StateSession;
pub(super) use crate::kinds::testing::*;
use crate::shard::Shard;
use crate::shard::testing::World;
use arrow_array::{Array, ArrayRef, BinaryArray, ListArray, UInt8Array};
use fastchangelog_format::error::Result;
use fastchangelog_format::model::{BatchId, Op, ShardHandle, StateId};
use fastchangelog_log::read::read_segments;
use futures::TryStreamExt;
use std::sync::Arc;

impl Host for StateSession {
    fn get(&mut self, state: StateId, keys: &BinaryArray) -> Result<BinaryArray> {
        StateSession::get(self, state, keys)
    }

    fn get_entries(&mut self, state: StateId, keys: &BinaryArray, subs: &BinaryArray) -> Result<BinaryArray> {
        StateSession::get_entries(self, state, keys, subs)
    }

    fn entries(&mut self, state: StateId, key: &Bytes, max_bytes: usize) -> Result<Entries> {
        all_entries(self, state, key, max_bytes)
    }

    fn rows(&mut self, state: StateId, max_bytes: usize) -> Result<StateRows> {
        all_rows(self, state, max_bytes)
    }

    fn due(&mut self, until: i64, limit: usize) -> Result<Vec<(i64, Bytes)>> {
        all_due(self, until, limit)
    }

    fn next_timer(&mut self) -> Result<Option<i64>> {
        StateSession::next_timer(self)
    }

    fn timers_of(&mut self, keys: &BinaryArray) -> Result<ListArray> {
        StateSession::timers_of(self, keys)
    }
}

pub(super) fn write(session: &mut StateSession, write: &Write) -> Result<()> {
    let ops = UInt8Array::from_iter_values(write.rows.iter().map(|row| row.0));
    let keys = binary(write.rows.iter().map(|row| &row.1));
    let subs = optional(write.rows.iter().map(|row| row.2.clone()));
    let values = optional(write.rows.iter().map(|row| row.3.clone()));
    session.write(write.state, &ops, &keys, Some(&subs), Some(&values), write.ends)
}

/// One batch's session, with its declared states.
pub(super) fn open(shard: &Arc<Shard>, base: Option<&ShardHandle>, now: i64) -> Result<StateSession> {
    let batch = BatchId(base.map_or(0, |handle| handle.batch.0 + 1));
    let mut session = StateSession::open(shard, base.cloned(), batch)?;
    session.declare(CATALOG, now)?;
    Ok(session)
}

/// All entries of a key: the first page from `read_entries`, then page after page.
pub(super) fn all_entries(
    session: &mut StateSession,
    state: StateId,
    key: &Bytes,
    max_bytes: usize,
) -> Result<Entries> {
    let (lists, more): (ListArray, _) = session.read_entries(state, &binary([key]), max_bytes)?;
    let mut found = entries_of(&lists.value(0));
    let mut after = more.value(0).then(|| match found.last() {
        Some((Some(sub), _)) => sub.clone(),
        _ => (found.len() as u64).to_be_bytes().to_vec(),
    });
    while let Some(end) = after {
        let (page, next) = session.read_page(state, key, Some(&end), max_bytes)?;
        assert!(!page.is_empty() || next.is_none(), "a page that is not the last one has an entry");
        found.extend(entries_of(&(Arc::new(page) as ArrayRef)));
        after = next;
    }
    Ok(found)
}

/// All timers until a time, page after page.
pub(super) fn all_due(session: &mut StateSession, until: i64, limit: usize) -> Result<Vec<(i64, Bytes)>> {
    let mut found: Vec<(i64, Bytes)> = Vec::new();
    loop {
        let after = found.last().map(|(time, key)| (*time, &key[..]));
        let (times, keys, more) = session.due_timers(until, after, limit)?;
        assert!(times.len() <= limit && !(more && times.is_empty()));
        found.extend(times.values().iter().copied().zip(keys.iter().flatten().map(<[u8]>::to_vec)));
        if !more {
            return Ok(found);
        }
    }
}

/// All rows of a state, page after page, in order.
pub(super) fn all_rows(session: &mut StateSession, state: StateId, max_bytes: usize) -> Result<StateRows> {
    let (mut found, mut after) = (Vec::new(), None::<Bytes>);
    loop {
        let (page, next) = session.scan(state, after.as_deref(), max_bytes)?;
        assert!(page.num_rows() > 0 || next.is_none(), "a page that is not the last one has a row");
        let keys = bytes(page.column(0)).into_iter().flatten();
        let rest = bytes(page.column(1)).into_iter().zip(bytes(page.column(2)));
        found.extend(keys.zip(rest).map(|(key, (sub, value))| (key, sub, value)));
        match next {
            Some(next) => after = Some(next),
            None => return Ok(found),
        }
    }
}

/// The change sets of a handle's last version: of each its changes.
pub(super) fn last_sets(world: &World, handle: &ShardHandle) -> Vec<Vec<(Op, StateId, u16, Bytes)>> {
    let own: Vec<_> = handle.segments.iter().filter(|segment| segment.version == handle.version).cloned().collect();
    let store = world.store();
    let sets = world.runtime.block_on(read_segments(&store, None, &own, 1).try_collect::<Vec<_>>()).unwrap();
    let change = |c: fastchangelog_format::model::Change<'_>| (c.op, c.state, c.key_group.0, c.key.to_vec());
    sets.iter().map(|set| set.iter().map(change).collect()).collect()
}

/// Number of entries of what is live, and bytes of their keys and values.
pub(super) fn live_counts(shard: &Shard) -> (u64, u64) {
    let (mut entries, mut bytes) = (0, 0);
    let mut count = |entry: fastchangelog_state::hot::EntryRef<'_>| {
        entries += 1;
        bytes += (entry.key.len() + entry.value.map_or(0, <[u8]>::len)) as u64;
        Ok(())
    };
    shard.read(|keyed| keyed.for_each(&mut count)).unwrap();
    (entries, bytes)
}
