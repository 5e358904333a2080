//! Combines a table of partial rows with the base state and collects the differences.
//!
//! Owns: combining the groups of a table with the rows of the base, and the change set of the differences.
//! Does not own: the source of the table, the upload of the change set.

use crate::shard::ShardContext;
use crate::shard::base::Base;
use crate::shard::lineage::Lineage;
use crate::shard::seal::encode;
use crate::shard::session_counters::SessionCounters;
use fastchangelog_columns::table::GroupTable;
use fastchangelog_format::EncodedSet;
use fastchangelog_format::error::Result;
use fastchangelog_format::model::{Change, ChangeSet, Op, StateId, key_group_of};
use fastchangelog_state::keyed::{KeyRef, KeyedState};
use std::ops::ControlFlow;
use std::time::Instant;

/// The state that aggregates live in.
const AGGREGATE: StateId = StateId(0);

/// The version that a session builds on.
#[derive(Clone)]
pub(super) struct Combiner(pub(super) Base);

/// Fields that the handle of the next version inherits from the base.
#[derive(Clone)]
pub(super) struct Parent {
    pub(super) lineage: Lineage,
    pub(super) state_keys: u64,
    pub(super) state_bytes: u64,
}

/// The changes of a table to the base.
pub(super) struct TableChanges {
    pub(super) set: ChangeSet,
    pub(super) new_keys: u64,
    /// Bytes of added keys and values, less removed ones.
    pub(super) bytes: i64,
}

impl Combiner {
    pub(super) fn context(&self) -> &ShardContext {
        self.0.shard.context()
    }

    /// Merges the base rows below the partial rows of `table`, and collects the differences.
    pub(super) fn combine(
        &self,
        table: &mut GroupTable,
        counters: &mut SessionCounters,
    ) -> Result<(TableChanges, Parent)> {
        let context = self.context();
        let groups = self.0.shard.placement().max_parallelism;
        let start = Instant::now();
        let (combined, parent) = self.0.read(|live| {
            let combined = combine(table, groups, &live.keyed)?;
            let (state_keys, state_bytes) = (live.state_keys, live.state_bytes);
            Ok((combined, Parent { lineage: live.lineage.clone(), state_keys, state_bytes }))
        })?;
        counters.count_since("combine_micros", start);
        counters.count("hot_misses", combined.hot_misses);
        counters.count("hot_hits", table.len() as u64 - combined.hot_misses);
        context.metrics.combine_micros.add_elapsed(start);

        let start = Instant::now();
        let set = change_set(table, &combined.changed, groups);
        let bytes = i64::try_from(set.payload_bytes()).unwrap_or(i64::MAX).saturating_sub(combined.old_bytes);
        counters.count_since("encode_micros", start);
        context.metrics.encode_micros.add_elapsed(start);
        Ok((TableChanges { set, new_keys: combined.new_keys, bytes }, parent))
    }

    /// Encodes a change set for the log.
    pub(super) fn encode(&self, set: &ChangeSet, counters: &mut SessionCounters) -> Result<EncodedSet> {
        encode(self.context(), set, counters)
    }
}

/// Statistics of the batch's keys in the base state.
struct Combined {
    /// Keys that the hot tier could not answer for.
    hot_misses: u64,
    /// Which groups differ from the base and must be written.
    changed: Vec<bool>,
    new_keys: u64,
    /// Bytes of keys and values in the base of the groups that are written.
    old_bytes: i64,
}

/// Puts the base rows of all distinct keys under the batch's partial rows, in one read.
fn combine(table: &mut GroupTable, groups: u16, keyed: &KeyedState) -> Result<Combined> {
    let mut rows: Vec<u8> = Vec::with_capacity(table.len() * 32);
    let mut spans: Vec<Option<(usize, usize)>> = vec![None; table.len()];
    let hot_misses = {
        let keys: Vec<KeyRef<'_>> = (0..table.len())
            .map(|i| KeyRef { hash: table.hash(i), key_group: key_group_of(table.hash(i), groups), key: table.key(i) })
            .collect();
        keyed.get_many(AGGREGATE, &keys, &mut |i, row| {
            if let Some(row) = row {
                spans[i] = Some((rows.len(), rows.len() + row.len()));
                rows.extend_from_slice(row);
            }
            ControlFlow::Continue(())
        })?
    };
    let mut combined = Combined { hot_misses, changed: vec![true; table.len()], new_keys: 0, old_bytes: 0 };
    for (i, span) in spans.into_iter().enumerate() {
        match span {
            None => combined.new_keys += 1,
            Some((from, to)) => {
                combined.changed[i] = table.combine_base(i, Some(&rows[from..to]))?;
                if combined.changed[i] {
                    combined.old_bytes += i64::try_from(table.key(i).len() + (to - from)).unwrap_or(i64::MAX);
                }
            }
        }
    }
    Ok(combined)
}

/// One put per changed key, grouped by key group.
fn change_set(table: &GroupTable, changed: &[bool], groups: u16) -> ChangeSet {
    let mut set = ChangeSet::with_capacity(table.len(), table.used_bytes());
    let mut scratch = Vec::new();
    for i in (0..table.len()).filter(|i| changed[*i]) {
        set.push(Change {
            op: Op::Put,
            state: AGGREGATE,
            key_group: key_group_of(table.hash(i), groups),
            key: table.key(i),
            value: table.row(i, &mut scratch),
        });
    }
    set.sort_by_key_group();
    set
}
