//! Combines a table of partial rows with the base state and collects the differences.
//!
//! Owns: combining the groups of a table with the rows of the base, which of them are returned, and the change set of
//! the differences.
//! Does not own: the source of the table, the upload of the change set; groups of the base that the batch does not have
//! (`event_time`, `expiry`); session windows (`session_windows`).

use super::changes::TableChanges;
use super::event_time::{EventTime, Fate, Watermarks};
use super::expiry::Expired;
use crate::shard::Live;
use crate::shard::ShardContext;
use crate::shard::base::Base;
use crate::shard::lineage::Lineage;
use crate::shard::seal::encode;
use crate::shard::session_counters::SessionCounters;
use crate::states::AGGREGATE;
use fastchangelog_columns::aggregate::{Clock, OutputMode};
use fastchangelog_columns::table::GroupTable;
use fastchangelog_format::EncodedSet;
use fastchangelog_format::error::Result;
use fastchangelog_format::model::{Change, ChangeSet, Op, key_group_of};
use fastchangelog_state::keyed::{KeyRef, KeyedState};
use std::ops::ControlFlow;
use std::time::Instant;

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

impl Parent {
    pub(super) fn of(live: &Live) -> Self {
        Self { lineage: live.lineage.clone(), state_keys: live.state_keys, state_bytes: live.state_bytes }
    }
}

impl Combiner {
    pub(super) fn context(&self) -> &ShardContext {
        self.0.shard.context()
    }

    /// Merges the base rows below the partial rows of `table`, and collects the differences; with `expired`, also the
    /// removals of expired groups whose hashes belong to `table`. Afterwards `table` has the groups that are returned.
    pub(super) fn combine(
        &self,
        table: &mut GroupTable,
        mut event_time: Option<&mut EventTime>,
        expired: Option<(&mut Expired, &dyn Fn(u64) -> bool)>,
        counters: &mut SessionCounters,
    ) -> Result<(TableChanges, Parent)> {
        if table.plan().session_windows() {
            let (changes, parent, _) = self.merge_windows(table, event_time, u64::MAX, counters)?;
            return Ok((changes, parent));
        }
        let context = self.context();
        let groups = self.0.shard.placement().max_parallelism;
        let start = Instant::now();
        let fates: Option<Vec<Fate>> = event_time
            .as_deref_mut()
            .map(|event_time| table.groups().map(|group| event_time.fate(group.key)).collect());
        let watermarks = event_time.as_deref().and_then(EventTime::watermarks);
        let (combined, parent) = self.0.read(|live| {
            let combined = combine(table, groups, fates.as_deref(), watermarks, &live.keyed)?;
            Ok((combined, Parent::of(live)))
        })?;
        counters.count_since("combine_micros", start);
        counters.count("hot_misses", combined.hot_misses);
        counters.count("hot_hits", combined.looked_up - combined.hot_misses);
        context.metrics.combine_micros.add_elapsed(start);

        let start = Instant::now();
        let set = change_set(table, &combined.changed, groups);
        let bytes = i64::try_from(set.payload_bytes()).unwrap_or(i64::MAX).saturating_sub(combined.old_bytes);
        let mut changes = TableChanges { set, keys: combined.new_keys, bytes };
        if let Some((expired, of_table)) = expired {
            changes = changes.after(expired.take(&self.0, table, event_time.as_deref(), of_table, counters)?);
        }
        if let Some(new) = &combined.new {
            table.keep(|_, i| new[i])?;
        } else if let Some(event_time) = event_time.filter(|event_time| event_time.returns_closed_alone()) {
            table.keep(|table, i| event_time.is_closed(table.key(i)))?;
        }
        counters.count_since("encode_micros", start);
        context.metrics.encode_micros.add_elapsed(start);
        Ok((changes, parent))
    }

    /// The changes that remove the closed groups of the base; none if it has none.
    pub(super) fn removals(&self, event_time: Option<&mut EventTime>) -> Result<Option<(TableChanges, Parent)>> {
        let Some(event_time) = event_time.filter(|event_time| event_time.has_removals()) else { return Ok(None) };
        let (set, keys, bytes) = event_time.take_removals();
        let less = |n: u64| i64::try_from(n).unwrap_or(i64::MAX).saturating_neg();
        let parent = self.0.read(|live| Ok(Parent::of(live)))?;
        Ok(Some((TableChanges { set, keys: less(keys), bytes: less(bytes) }, parent)))
    }

    /// Encodes a change set for the log.
    pub(super) fn encode(&self, set: &ChangeSet, counters: &mut SessionCounters) -> Result<EncodedSet> {
        encode(self.context(), set, counters)
    }
}

/// Statistics of the batch's keys in the base state.
struct Combined {
    /// Keys that were looked up, and those of them that the hot tier could not answer for.
    looked_up: u64,
    hot_misses: u64,
    /// Which groups differ from the base and must be written.
    changed: Vec<bool>,
    /// Which groups the base does not have, if these alone are returned.
    new: Option<Vec<bool>>,
    new_keys: i64,
    /// Bytes of keys and values in the base of the groups that are written.
    old_bytes: i64,
}

/// Puts the base rows of all distinct keys under the batch's partial rows, in one read. Without `fates` all groups
/// stay. A row that has expired is none.
fn combine(
    table: &mut GroupTable,
    groups: u16,
    fates: Option<&[Fate]>,
    watermarks: Option<Watermarks>,
    keyed: &KeyedState,
) -> Result<Combined> {
    let (kept, lifetime) = (table.plan().of_state(), table.plan().lifetime());
    let returns_new = table.plan().output_mode() == OutputMode::New;
    let lives = |table: &GroupTable, i: usize, base: &[u8]| -> Result<bool> {
        let Some(lifetime) = lifetime else { return Ok(true) };
        let now = match (lifetime.clock, watermarks) {
            (Clock::Processing, _) => table.life_begins(i)?,
            (Clock::Watermark, watermarks) => watermarks.map_or(i64::MIN, |watermarks| watermarks.before),
        };
        Ok(!lifetime.is_over(kept.life_begins(base)?, now))
    };
    let fate = |i: usize| fates.map_or(Fate::Stays, |fates| fates[i]);
    let mut rows: Vec<u8> = Vec::with_capacity(table.len() * 32);
    let mut spans: Vec<Option<(usize, usize)>> = vec![None; table.len()];
    let wanted: Option<Vec<usize>> =
        fates.map(|fates| (0..table.len()).filter(|i| fates[*i] != Fate::WasMerged).collect());
    let (looked_up, hot_misses) = {
        let key = |i| KeyRef { hash: table.hash(i), key_group: key_group_of(table.hash(i), groups), key: table.key(i) };
        let keys: Vec<KeyRef<'_>> = match &wanted {
            None => (0..table.len()).map(key).collect(),
            Some(wanted) => wanted.iter().copied().map(key).collect(),
        };
        let misses = keyed.get_many(AGGREGATE, &keys, &mut |i, row| {
            if let Some(row) = row {
                let group = wanted.as_ref().map_or(i, |wanted| wanted[i]);
                spans[group] = Some((rows.len(), rows.len() + row.len()));
                rows.extend_from_slice(row);
            }
            ControlFlow::Continue(())
        })?;
        (keys.len() as u64, misses)
    };
    let mut combined = Combined {
        looked_up,
        hot_misses,
        changed: vec![true; table.len()],
        new: returns_new.then(|| Vec::with_capacity(table.len())),
        new_keys: 0,
        old_bytes: 0,
    };
    for (i, span) in spans.into_iter().enumerate() {
        let base = span.map(|(from, to)| &rows[from..to]);
        let known = match base {
            Some(base) if lives(table, i, base)? => Some(base),
            _ => None,
        };
        combined.changed[i] = if let Some(new) = &mut combined.new {
            new.push(known.is_none());
            known.is_none() && fate(i) == Fate::Stays
        } else {
            match fate(i) {
                Fate::Stays => table.combine_base(i, known)?,
                Fate::IsCompared => !known.map_or(Ok(false), |base| table.has_row(i, base))?,
                Fate::Leaves => table.combine_base(i, known).map(|_| false)?,
                Fate::WasMerged => false,
            }
        };
        if combined.changed[i] {
            match base {
                None => combined.new_keys += 1,
                Some(base) => {
                    combined.old_bytes += i64::try_from(table.key(i).len() + base.len()).unwrap_or(i64::MAX);
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
            value: table.kept_row(i, &mut scratch),
        });
    }
    set.sort_by_key_group();
    set
}
