//! The map side: input rows to payloads per shard.
//!
//! Owns: grouping and partial aggregation in a map task, the decision how much of it pays off, and the times of
//! payloads.
//! Does not own: their bytes (`payload`), the windows of a row (`window_rows`), the shuffle.
//!
//! Invariants:
//! 1. every input row is in exactly one partial row of exactly one payload, of the shard that owns its key group;
//! 2. of one key, partial rows leave in the order of their input; large payloads are ordered by a part of the hash;
//! 3. what is held is bounded (see [`Splitter::new`]).

use super::aggregate::{AggPlan, AggSpec};
use super::order::{ORDERED_FROM, PARTS, part_of, sorted};
use super::payload::PayloadBuilder;
use super::table::GroupTable;
use super::window_rows::{WindowRows, join_panes};
use arrow_array::{ArrayRef, RecordBatch};
use arrow_schema::Schema;
use fastchangelog_format::model::ids::{MAX_KEY_GROUPS, key_group_of, shard_of};
use fastchangelog_format::{Error, Result};
use std::sync::Arc;

/// Rows that are folded at a time.
const CHUNK: usize = 8_192;
/// Rows after which grouping is judged …
const WINDOW: usize = 20_000;
/// … once there are so many groups: while the table is small, looking up is cheap and most keys have yet to come back.
const FULL: usize = 128 << 10;
/// Rows that go ungrouped until grouping is tried again.
const PAUSE: usize = 200_000;
/// Grouping pauses when more than this part of the rows of a window had new keys.
const WORTH: (usize, usize) = (8, 10);
/// A task holds at most this, or one payload if that is more.
const HOLD: usize = 64 << 20;
/// Shard and payload, for the shuffle.
pub type Emitted = Vec<(u32, Vec<u8>)>;

/// Refuses arguments that allow no split.
pub(super) fn check_split(shards: u32, max_parallelism: u16, payload_bytes: usize) -> Result<()> {
    if shards == 0 || u64::from(shards) > u64::from(max_parallelism) || usize::from(max_parallelism) > MAX_KEY_GROUPS {
        return Err(Error::invalid(format!(
            "{shards} shards need between {} and {MAX_KEY_GROUPS} key groups, not {max_parallelism}",
            shards.max(1)
        ))
        .with_remedy("set the option `max_parallelism`"));
    }
    if payload_bytes == 0 || payload_bytes > 1 << 30 {
        return Err(
            Error::invalid(format!("payloads cannot have {payload_bytes} bytes")).with_remedy("use 1 byte to 1 GiB")
        );
    }
    Ok(())
}

/// Bytes that a splitter holds before it flushes.
pub(super) fn held_at_most(shards: u32, payload_bytes: usize) -> usize {
    payload_bytes.saturating_mul(shards as usize).min(HOLD).max(payload_bytes)
}

/// Splits the rows of one map task.
#[derive(Debug)]
pub struct Splitter {
    plan: Arc<AggPlan>,
    /// Groups of keys and windows, or keys and panes.
    table: GroupTable,
    windows: Option<WindowRows>,
    target: Target,
    hold: usize,
    effort: Effort,
    /// Input rows held, by shard; see [`Splitter::sums_rows`].
    input_rows: Vec<u64>,
}

/// Where groups go.
#[derive(Debug, Clone, Copy)]
struct Target {
    shards: u32,
    max_parallelism: u16,
    payload_bytes: usize,
}

impl Splitter {
    /// A splitter into `shards` shards. Payloads are about `payload_bytes` at most (one row may be larger). All shards
    /// together are flushed when `shards * payload_bytes`, but at most 64 MiB (at least one payload), are held.
    pub fn new(spec: &AggSpec, shards: u32, max_parallelism: u16, payload_bytes: usize) -> Result<Self> {
        check_split(shards, max_parallelism, payload_bytes)?;
        let plan = Arc::new(AggPlan::new(spec)?);
        Ok(Self {
            table: GroupTable::new(Arc::clone(&plan)),
            windows: WindowRows::of(&plan),
            plan,
            target: Target { shards, max_parallelism, payload_bytes },
            hold: held_at_most(shards, payload_bytes),
            effort: Effort::default(),
            input_rows: vec![0; shards as usize],
        })
    }

    /// The same splitter with payloads of at most `bytes` each; what it holds and groups before it flushes stays.
    #[must_use]
    pub fn with_payloads_of(mut self, bytes: usize) -> Self {
        self.target.payload_bytes = self.target.payload_bytes.min(bytes.max(1));
        self
    }

    /// Fails unless batches of this schema are of the spec's input schema.
    pub fn check(&self, schema: &Schema) -> Result<()> {
        self.plan.check_input(schema)
    }

    /// Takes a batch of the spec's input schema, with strings as text or in their binary form; returns the payloads
    /// that had to leave.
    pub fn push(&mut self, batch: &RecordBatch) -> Result<Emitted> {
        let columns = self.plan.columns(batch)?;
        self.push_columns(&columns, batch.num_rows(), Content::Input)
    }

    /// Takes a batch of the columns in which Spark keeps accumulators, [`AggPlan::buffers`]; else as
    /// [`Splitter::push`]. A splitter takes either rows or accumulators.
    pub fn push_buffers(&mut self, batch: &RecordBatch) -> Result<Emitted> {
        // Their keys are those of windows, not of rows or panes.
        self.windows = None;
        let columns = self.plan.buffer_columns(batch)?;
        self.push_columns(&columns, batch.num_rows(), Content::Buffers)
    }

    fn push_columns(&mut self, columns: &[ArrayRef], len: usize, content: Content) -> Result<Emitted> {
        let mut emitted = Vec::new();
        let windows = self.windows;
        let step = windows.map_or(CHUNK, |windows| (CHUNK / windows.copies()).max(1));
        for start in (0..len).step_by(step) {
            let arrived = step.min(len - start);
            let mut chunk: Vec<_> = columns.iter().map(|column| column.slice(start, arrived)).collect();
            if let Some(windows) = windows {
                chunk = windows.assign(&chunk)?;
            }
            let rows = if windows.is_some() { chunk[0].len() } else { arrived };
            let keys = self.plan.payload_keys(&chunk, rows)?;
            let hashes = keys.hashes();
            if self.sums_rows() {
                self.input_rows[0] += arrived as u64;
            } else {
                for hash in &hashes {
                    self.input_rows[self.target.shard(*hash) as usize] += 1;
                }
            }
            match content {
                Content::Input => {
                    let new = self.table.fold(&chunk, &keys, &hashes, self.effort.grouping)?;
                    if self.effort.resumes(rows, new, self.table.len()) {
                        self.table.seal_groups();
                    }
                }
                Content::Buffers => self.table.load_buffers(&chunk, &keys, &hashes)?,
            }
            if self.table.used_bytes() >= self.hold {
                emitted.append(&mut self.flush()?);
            }
        }
        Ok(emitted)
    }

    /// Returns the remaining payloads. Shards without rows get none.
    pub fn finish(&mut self) -> Result<Emitted> {
        self.flush()
    }

    /// True if the hash of a row's key does not say where its groups go: input rows are counted at the first shard.
    fn sums_rows(&self) -> bool {
        self.plan.session_windows() || self.plan.has_row_times() || self.windows.is_some_and(WindowRows::overlap)
    }

    fn flush(&mut self) -> Result<Emitted> {
        let (mut emitted, summed) = (Vec::new(), self.sums_rows());
        let Self { plan, table, windows, target, hold, input_rows, .. } = self;
        let mut emit = |groups: &GroupTable| target.emit(plan, groups, summed, input_rows, &mut emitted);
        match windows {
            Some(WindowRows::Panes(windows)) => {
                let mut joined = GroupTable::new(Arc::clone(plan));
                join_panes(*windows, table, &mut joined, *hold, &mut emit)?;
            }
            _ => emit(table)?,
        }
        self.table.clear();
        Ok(emitted)
    }
}

impl Target {
    fn shard(self, hash: u64) -> u32 {
        shard_of(key_group_of(hash, self.max_parallelism), self.shards, self.max_parallelism)
    }

    /// Makes payloads of all groups. `input_rows`: rows that they stand for by shard, or if `summed`, all at the first
    /// shard.
    fn emit(
        self,
        plan: &AggPlan,
        table: &GroupTable,
        summed: bool,
        input_rows: &mut [u64],
        emitted: &mut Emitted,
    ) -> Result<()> {
        let (order, ends) = self.by_shard(table);
        let mut start = 0;
        for (shard, end) in (0u32..).zip(ends) {
            let groups = &order[start..end];
            start = end;
            if !groups.is_empty() {
                let rows = std::mem::take(&mut input_rows[if summed { 0 } else { shard as usize }]);
                self.emit_shard(plan, table, (shard, groups), rows, emitted)?;
            }
        }
        Ok(())
    }

    /// Groups sorted by shard, and within a shard by part; and the end of each shard's.
    fn by_shard(self, table: &GroupTable) -> (Vec<u32>, Vec<usize>) {
        let parts = if table.len() < ORDERED_FROM { 1 } else { PARTS };
        let (order, ends) = sorted(table.len(), self.shards as usize * parts, |group| {
            let hash = table.place_hash(group);
            self.shard(hash) as usize * parts + part_of(hash) % parts
        });
        (order, ends.into_iter().skip(parts - 1).step_by(parts).collect())
    }

    fn emit_shard(
        self,
        plan: &AggPlan,
        table: &GroupTable,
        (shard, groups): (u32, &[u32]),
        mut input_rows: u64,
        emitted: &mut Emitted,
    ) -> Result<()> {
        let mut builder = PayloadBuilder::default();
        let cap = self.payload_bytes;
        for group in groups {
            let more = table.drafted_bytes(*group as usize);
            if !builder.is_empty() && builder.bytes() + more > cap {
                // The input rows of a shard are told with the first of its payloads.
                emitted.push((shard, builder.seal(plan, std::mem::take(&mut input_rows))?));
            }
            if builder.is_empty() {
                builder.reserve(groups.len().min(cap / more + 1));
            }
            table.builder(*group as usize, &mut builder)?;
        }
        if !builder.is_empty() {
            emitted.push((shard, builder.seal(plan, input_rows)?));
        }
        Ok(())
    }
}

/// The rows of a batch.
#[derive(Debug, Clone, Copy)]
enum Content {
    Input,
    Buffers,
}

/// Decides whether to look up groups. Where nearly every key is new it saves nothing, so it pauses.
#[derive(Debug)]
struct Effort {
    grouping: bool,
    rows: usize,
    new: usize,
}

impl Default for Effort {
    fn default() -> Self {
        Self { grouping: true, rows: 0, new: 0 }
    }
}

impl Effort {
    /// Counts `rows` rows of which `new` had a new key, of now `groups`; true when grouping is taken up again.
    fn resumes(&mut self, rows: usize, new: usize, groups: usize) -> bool {
        let paused = !self.grouping;
        self.rows += rows;
        self.new += new;
        if self.rows >= if self.grouping { WINDOW } else { PAUSE } {
            let idle = groups >= FULL && self.new * WORTH.1 > self.rows * WORTH.0;
            *self = Self { grouping: paused || !idle, rows: 0, new: 0 };
        }
        paused && self.grouping
    }
}

#[cfg(test)]
#[path = "split_tests.rs"]
mod tests;
