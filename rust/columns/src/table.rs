//! Groups: distinct keys and their accumulator rows.
//!
//! Owns: the group of each key, and the rows of all groups of one batch of one shard (or of one map task).
//! Does not own: the state between batches (`keyed`), the meaning of rows (`aggregate`).
//!
//! Invariants:
//! 1. groups are numbered from 0; a number never changes;
//! 2. after [`GroupTable::merge_payload`] alone, keys are distinct, but for session windows: each row of a payload is a group of
//!    its own, to be merged by [`super::session_windows`].

use super::aggregate::AggPlan;
use super::codec::EncodedKeys;
use super::memory_estimate::{GrowthEstimate, IncomingGroups, MemoryNeed};
use super::payload::{Payload, PayloadBuilder};
use super::rows::Rows;
use super::strings::text_batch;
use crate::aggregate::Other;
use arrow_array::{ArrayRef, RecordBatch, RecordBatchOptions};
use fastchangelog_format::{Error, Result};
use hashbrown::HashTable;
use hashbrown::hash_table::Entry;
use std::ops::Range;
use std::sync::Arc;

/// Rows that are folded at a time.
const CHUNK: usize = 8_192;
/// Bytes beside a group while it is finished: its key's reference, its base row's place, its record in the change set.
const BESIDE_A_GROUP: u64 = 64;
/// The same beside a session window, with its place in the order, its span and the records of the index.
const BESIDE_A_WINDOW: u64 = 160;

/// Distinct keys with one accumulator row each, in flat memory.
///
/// The life of one batch of a shard: [`merge_payload`](Self::merge_payload) for every payload, then
/// [`combine_base`](Self::combine_base) for every group with the row kept so far, then [`row`](Self::row) for what to
/// keep and [`finish`](Self::finish) for what to emit.
#[derive(Debug)]
pub struct GroupTable {
    plan: Arc<AggPlan>,
    index: HashTable<IndexEntry>,
    hashes: Vec<u64>,
    key_ends: Vec<usize>,
    keys: Vec<u8>,
    rows: Rows,
}

/// A group in the index, with the half of the hash that the index does not look at first.
#[derive(Debug, Clone, Copy)]
struct IndexEntry {
    group: u32,
    tag: u32,
}

impl IndexEntry {
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "groups are counted as u32, a tag is part of a hash")]
    fn new(group: usize, hash: u64) -> Self {
        Self { group: group as u32, tag: tag(hash) }
    }
}

#[inline]
#[expect(clippy::cast_possible_truncation, reason = "a tag is part of a hash")]
fn tag(hash: u64) -> u32 {
    (hash >> 24) as u32
}

/// Row counts of a merged payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Merged {
    /// Partial rows in it.
    pub partial_rows: u64,
    /// Input rows it stands for.
    pub input_rows: u64,
}

/// A group's identity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Group<'a> {
    /// [`hash_key`] of the key.
    pub hash: u64,
    /// Canonical key bytes.
    pub key: &'a [u8],
}

impl GroupTable {
    /// An empty table.
    pub fn new(plan: Arc<AggPlan>) -> Self {
        let rows = Rows::new(plan.shape());
        Self { plan, index: HashTable::new(), hashes: Vec::new(), key_ends: Vec::new(), keys: Vec::new(), rows }
    }

    /// The plan of its rows.
    pub fn plan(&self) -> &Arc<AggPlan> {
        &self.plan
    }

    /// Number of groups.
    pub fn len(&self) -> usize {
        self.hashes.len()
    }

    /// True without groups.
    pub fn is_empty(&self) -> bool {
        self.hashes.is_empty()
    }

    /// Bytes of memory held.
    pub fn memory_bytes(&self) -> u64 {
        let flat = self.hashes.capacity() * 8 + self.key_ends.capacity() * size_of::<usize>() + self.keys.capacity();
        (flat + self.index.allocation_size()) as u64 + self.rows.memory_bytes()
    }

    /// Bytes of keys and rows, as a payload would hold them.
    pub fn used_bytes(&self) -> usize {
        self.keys.len() + self.rows.used_bytes() + 4 * self.len()
    }

    /// Bytes of memory that the table needs at most while `incoming` is merged and while all groups are finished then.
    pub fn need(&self, incoming: IncomingGroups) -> MemoryNeed {
        let mut growth = GrowthEstimate::default();
        let (len, more) = (self.len(), incoming.groups);
        growth.of(len, more, self.hashes.capacity(), size_of::<u64>());
        growth.of(len, more, self.key_ends.capacity(), size_of::<usize>());
        growth.of(self.keys.len(), incoming.key_bytes, self.keys.capacity(), 1);
        growth.of_index(len, more, self.index.capacity(), self.index.allocation_size(), size_of::<IndexEntry>());
        self.rows.grow(&mut growth, incoming);
        let used = self.used_bytes() + incoming.key_bytes + incoming.row_bytes;
        let (copies, beside) = if self.plan.session_windows() { (3, BESIDE_A_WINDOW) } else { (2, BESIDE_A_GROUP) };
        let beside = copies * used as u64 + beside * (len + more) as u64;
        MemoryNeed { merging: growth.peak(), finishing: growth.after() + beside }
    }

    /// Forgets all groups and gives the memory back.
    pub fn release(&mut self) {
        *self = Self::new(Arc::clone(&self.plan));
    }

    /// The hash of group `i`'s key; in a map task that of all of it, else the one that says where the group belongs.
    #[inline]
    pub fn hash(&self, i: usize) -> u64 {
        self.hashes[i]
    }

    /// The canonical key of group `i`.
    #[inline]
    pub fn key(&self, i: usize) -> &[u8] {
        let start = if i == 0 { 0 } else { self.key_ends[i - 1] };
        &self.keys[start..self.key_ends[i]]
    }

    /// All groups in order.
    pub fn groups(&self) -> impl ExactSizeIterator<Item = Group<'_>> {
        (0..self.len()).map(|i| Group { hash: self.hash(i), key: self.key(i) })
    }

    /// The encoded row of group `i`. `scratch` is used when the row is not in one
    /// piece; keep it between calls.
    #[inline]
    pub fn row<'a>(&'a self, i: usize, scratch: &'a mut Vec<u8>) -> &'a [u8] {
        if self.plan.row_width().is_some() {
            return self.rows.fixed(i);
        }
        scratch.clear();
        self.rows.encode(i, scratch);
        scratch
    }

    /// As [`GroupTable::row`], of what the state keeps.
    #[inline]
    pub fn kept_row<'a>(&'a self, i: usize, scratch: &'a mut Vec<u8>) -> &'a [u8] {
        if !self.plan.keeps_parts() {
            return self.row(i, scratch);
        }
        scratch.clear();
        self.plan.encode_kept(&self.rows, i, scratch);
        scratch
    }

    /// The time from which group `i` lives.
    pub fn life_begins(&self, i: usize) -> Result<i64> {
        self.plan.life_begins(self.rows.fixed(i))
    }

    /// Joins the partial rows of a payload; those of one key in their order. Malformed bytes are an error of kind
    /// `Corrupt`, a payload of another aggregation one of kind `SchemaMismatch`; an ANSI overflow is an
    /// `InvalidArgument` whose text is Spark's. After an error the table is in a valid state, but holds part of the
    /// payload.
    pub fn merge_payload(&mut self, payload: &[u8]) -> Result<Merged> {
        let payload = self.read_payload(payload)?;
        self.merge_rows(&payload, 0..payload.len())?;
        Ok(Merged { partial_rows: payload.len() as u64, input_rows: payload.input_rows })
    }

    /// Reads a payload without joining its rows.
    pub fn read_payload(&self, payload: &[u8]) -> Result<Payload> {
        Payload::read(&self.plan, payload)
    }

    /// Joins some of the partial rows of a payload, as [`GroupTable::merge_payload`] does with all of them.
    pub fn merge_rows(&mut self, payload: &Payload, range: Range<usize>) -> Result<()> {
        self.check_room(range.len())?;
        let hashes: Vec<u64> = range.clone().map(|i| self.plan.place_hash(payload.key(i))).collect();
        self.reserve(payload.incoming(&range));
        let plan = Arc::clone(&self.plan);
        let mut vars = Vec::new();
        for (i, hash) in range.zip(hashes) {
            self.merge_row(&plan, hash, payload.key(i), payload.row(i), &mut vars)?;
        }
        Ok(())
    }

    /// Joins an encoded row into the group of its key.
    pub(super) fn join_row(&mut self, key: &[u8], row: &[u8]) -> Result<()> {
        self.check_room(1)?;
        let plan = Arc::clone(&self.plan);
        self.merge_row(&plan, plan.place_hash(key), key, row, &mut Vec::new())
    }

    /// Joins the partial rows of a step of spilled rows; those of one key in their order.
    pub(super) fn merge_step<'a>(&mut self, rows: &[(u64, &'a [u8], &'a [u8])]) -> Result<()> {
        self.check_room(rows.len())?;
        let plan = Arc::clone(&self.plan);
        let mut vars = Vec::new();
        for (hash, key, row) in rows {
            self.merge_row(&plan, *hash, key, row, &mut vars)?;
        }
        Ok(())
    }

    #[inline]
    fn merge_row<'a>(
        &mut self,
        plan: &AggPlan,
        hash: u64,
        key: &[u8],
        row: &'a [u8],
        vars: &mut Vec<&'a [u8]>,
    ) -> Result<()> {
        let fixed = plan.shape().parse(row, vars)?;
        let (group, new) =
            if plan.session_windows() { (self.add(hash, key), true) } else { self.find_or_add(hash, key) };
        if new {
            self.rows.push(fixed, vars);
            return Ok(());
        }
        plan.merge(&mut self.rows, group, Other { fixed, vars, earlier: false })
    }

    /// Folds rows of the plan's input, each into the group of its key.
    pub fn fold_rows(&mut self, batch: &RecordBatch) -> Result<()> {
        let columns = self.plan.columns(batch)?;
        let plan = Arc::clone(&self.plan);
        for start in (0..batch.num_rows()).step_by(CHUNK) {
            let rows = CHUNK.min(batch.num_rows() - start);
            let chunk: Vec<_> = columns.iter().map(|column| column.slice(start, rows)).collect();
            let keys = plan.codec().encode(&chunk[..plan.num_keys()], rows)?;
            self.fold(&chunk, &keys, &keys.hashes(), true)?;
        }
        Ok(())
    }

    /// Adds a group with the row that was kept of it, or with the row of no input. It is not looked for: later rows of
    /// the key do not find it.
    pub fn add_kept(&mut self, key: &[u8], row: Option<&[u8]>) -> Result<()> {
        self.check_room(1)?;
        let mut vars = Vec::new();
        let fixed = row.map(|row| self.plan.shape().parse(row, &mut vars)).transpose()?;
        self.add(self.plan.place_hash(key), key);
        match fixed {
            Some(fixed) => self.rows.push(fixed, &vars),
            None => self.rows.grow_to(self.len()),
        }
        Ok(())
    }

    /// True if there is a group of this key.
    pub fn contains(&self, hash: u64, key: &[u8]) -> bool {
        let same = |place: &IndexEntry| place.tag == tag(hash) && self.key(place.group as usize) == key;
        self.index.find(hash, same).is_some()
    }

    /// Joins group `i`'s row with the row kept so far, which stands for earlier input. Returns whether the row now
    /// differs from `base` (without a base it does): if not, there is nothing to write.
    pub fn combine_base(&mut self, i: usize, base: Option<&[u8]>) -> Result<bool> {
        let Some(base) = base else { return Ok(true) };
        let mut vars = Vec::new();
        let fixed = self.plan.shape().parse(base, &mut vars)?;
        self.plan.merge(&mut self.rows, i, Other { fixed, vars: &vars, earlier: true })?;
        Ok(!self.is_same(i, fixed, &vars))
    }

    /// True if group `i`'s row has the bytes of `row`.
    pub fn has_row(&self, i: usize, row: &[u8]) -> Result<bool> {
        let mut vars = Vec::new();
        let fixed = self.plan.shape().parse(row, &mut vars)?;
        Ok(self.is_same(i, fixed, &vars))
    }

    fn is_same(&self, i: usize, fixed: &[u8], vars: &[&[u8]]) -> bool {
        self.rows.fixed(i) == fixed
            && vars.iter().enumerate().all(|(slot, value)| self.rows.vars.get(i, slot) == *value)
    }

    /// The hash that says where group `i` of a map task belongs.
    pub(super) fn place_hash(&self, i: usize) -> u64 {
        if self.plan.session_windows() || self.plan.has_row_times() {
            self.plan.place_hash(self.plan.group_key(self.key(i)))
        } else {
            self.hash(i)
        }
    }

    /// Leaves the groups for whose number `wanted` says yes, without a copy if it says so for all.
    pub fn keep(&mut self, wanted: impl Fn(&Self, usize) -> bool) -> Result<()> {
        if (0..self.len()).all(|i| wanted(self, i)) {
            return Ok(());
        }
        let (mut kept, mut scratch) = (Self::new(Arc::clone(&self.plan)), Vec::new());
        for i in (0..self.len()).filter(|i| wanted(self, *i)) {
            kept.load(self.key(i), self.row(i, &mut scratch))?;
        }
        *self = kept;
        Ok(())
    }

    /// Adds a group that is kept in the state, under a key that the table does not have.
    pub fn load(&mut self, key: &[u8], row: &[u8]) -> Result<()> {
        self.check_room(1)?;
        let mut vars = Vec::new();
        let fixed = self.plan.shape().parse(row, &mut vars)?;
        self.add(self.plan.place_hash(key), key);
        self.rows.push(fixed, &vars);
        Ok(())
    }

    /// Joins a row into the last group.
    pub(super) fn join_last(&mut self, row: &[u8]) -> Result<()> {
        let mut vars = Vec::new();
        let fixed = self.plan.shape().parse(row, &mut vars)?;
        let last = self.len().checked_sub(1).ok_or_else(|| Error::internal("a row for the last of no groups"))?;
        self.plan.merge(&mut self.rows, last, Other { fixed, vars: &vars, earlier: false })
    }

    /// The results of groups `range`, with the plan's output schema. A string that is not UTF-8 is an
    /// `InvalidArgument`.
    pub fn finish(&self, range: Range<usize>) -> Result<RecordBatch> {
        text_batch(&self.finish_binary(range)?, self.plan.output())
    }

    /// As [`GroupTable::finish`], with strings in their binary form.
    pub fn finish_binary(&self, range: Range<usize>) -> Result<RecordBatch> {
        let mut columns: Vec<ArrayRef> = self.plan.codec().decode_binary(range.clone().map(|i| self.key(i)))?;
        columns.extend(self.plan.results(&self.rows, &range)?);
        let options = RecordBatchOptions::new().with_row_count(Some(range.len()));
        Ok(RecordBatch::try_new_with_options(Arc::clone(self.plan.binary_output()), columns, &options)?)
    }

    /// Forgets all groups, keeps the memory.
    pub fn clear(&mut self) {
        self.index.clear();
        self.hashes.clear();
        self.key_ends.clear();
        self.keys.clear();
        self.rows.clear();
    }

    /// Lets no later look-up find the groups so far. Groups that were added without a look-up must not be overtaken:
    /// a later row of their key would else join an earlier group, out of order.
    pub(super) fn seal_groups(&mut self) {
        self.index.clear();
    }

    /// Folds input rows with these keys. `probe` false: each becomes a group of its own, unseen by later look-ups.
    /// Returns the number of new groups.
    pub(super) fn fold(
        &mut self,
        columns: &[ArrayRef],
        keys: &EncodedKeys,
        hashes: &[u64],
        probe: bool,
    ) -> Result<usize> {
        let before = self.len();
        let groups = self.groups_of(keys, hashes, probe)?;
        self.plan.update(columns, &groups, &mut self.rows)?;
        Ok(self.len() - before)
    }

    /// Adds rows of the plan's buffers with these keys: each becomes a group of its own, unseen by later look-ups.
    pub(super) fn load_buffers(&mut self, columns: &[ArrayRef], keys: &EncodedKeys, hashes: &[u64]) -> Result<()> {
        let groups = self.groups_of(keys, hashes, false)?;
        self.plan.load(columns, &groups, &mut self.rows)
    }

    /// The group of each key, with a row; see [`GroupTable::fold`] for `probe`.
    fn groups_of(&mut self, keys: &EncodedKeys, hashes: &[u64], probe: bool) -> Result<Vec<u32>> {
        self.check_room(keys.len())?;
        let mut groups = Vec::with_capacity(keys.len());
        for (i, hash) in hashes.iter().enumerate() {
            let group = if probe { self.find_or_add(*hash, keys.key(i)).0 } else { self.add(*hash, keys.key(i)) };
            #[expect(clippy::cast_possible_truncation, reason = "check_room")]
            groups.push(group as u32);
        }
        self.rows.grow_to(self.len());
        Ok(groups)
    }

    /// Appends the encoded row of group `i`.
    pub(super) fn encode_row(&self, i: usize, out: &mut Vec<u8>) {
        self.rows.encode(i, out);
    }

    /// Bytes of the encoded row of group `i`.
    pub fn row_len(&self, i: usize) -> usize {
        self.rows.encoded_len(i)
    }

    /// Puts group `i` into a payload.
    pub(super) fn builder(&self, i: usize, builder: &mut PayloadBuilder) -> Result<()> {
        self.rows.encode(i, &mut builder.rows);
        builder.push(self.key(i))
    }

    /// Bytes that group `i` takes in a payload.
    pub(super) fn drafted_bytes(&self, i: usize) -> usize {
        self.key(i).len() + self.rows.encoded_len(i) + 8
    }

    fn check_room(&self, more: usize) -> Result<()> {
        match u32::try_from(self.len() + more) {
            Ok(_) => Ok(()),
            Err(_) => Err(Error::invalid("one batch of one shard has more than 4 billion groups")
                .with_remedy("use more shuffle partitions or smaller batches")),
        }
    }

    /// Reserves memory for the incoming groups.
    pub(super) fn reserve(&mut self, incoming: IncomingGroups) {
        let IncomingGroups { groups, key_bytes, row_bytes } = incoming;
        if !self.plan.session_windows() {
            self.index.reserve(groups, |place| self.hashes[place.group as usize]);
        }
        self.hashes.reserve(groups);
        self.key_ends.reserve(groups);
        self.keys.reserve(key_bytes);
        self.rows.reserve(groups, row_bytes);
    }

    /// The group of the key and whether it is new. A new group has no row yet.
    #[inline]
    fn find_or_add(&mut self, hash: u64, key: &[u8]) -> (usize, bool) {
        let Self { index, hashes, key_ends, keys, .. } = self;
        let same = |place: &IndexEntry| {
            let group = place.group as usize;
            let start = if group == 0 { 0 } else { key_ends[group - 1] };
            place.tag == tag(hash) && &keys[start..key_ends[group]] == key
        };
        match index.entry(hash, same, |place| hashes[place.group as usize]) {
            Entry::Occupied(entry) => (entry.get().group as usize, false),
            Entry::Vacant(entry) => {
                entry.insert(IndexEntry::new(hashes.len(), hash));
                (self.add(hash, key), true)
            }
        }
    }

    #[inline]
    fn add(&mut self, hash: u64, key: &[u8]) -> usize {
        self.hashes.push(hash);
        self.keys.extend_from_slice(key);
        self.key_ends.push(self.keys.len());
        self.hashes.len() - 1
    }
}

#[cfg(test)]
#[path = "table_tests.rs"]
mod tests;
