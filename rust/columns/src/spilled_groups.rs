//! Spilled groups: groups on the local disk, partitioned by ranges of the hash of their keys.
//!
//! Owns: runs (the content of a table when it was spilled), the position of each hash range in each run, an upper bound of
//! a range's rows; reading the rows of a range back.
//! Does not own: the file (`spill_file`) and its bytes (`group_chunks`), when to spill and how a range is processed
//! (`shard::session`).
//!
//! A slot is a number of 24 bits out of the middle of a key's hash: the table's index uses the others. A run holds its
//! groups in sections, each an equal range of slots. Sections are small enough to take a few of them at a time, so the
//! ranges in which rows are read back need not be known when rows are spilled.
//!
//! Invariants:
//! 1. rows of one key are read back in the order of their runs: the order in which they were spilled;
//! 2. [`SpilledGroups::upper_bound`] is never less than what a range of whole [`PARTS`] holds.

use super::group_chunks::{GroupWriter, read_groups};
use super::memory_estimate::IncomingGroups;
use super::spill_file::SpillFile;
use super::table::GroupTable;
use fastchangelog_format::Result;
use std::ops::Range;
use std::path::Path;

/// Bits of a slot.
const SLOT_BITS: u32 = 24;
/// Slots are numbered from 0 to this.
pub const SLOTS: u32 = 1 << SLOT_BITS;
/// The sizes of all rows are known for so many equal ranges of slots; a run has no more sections than that.
const PARTS: u32 = 1 << PART_BITS;
const PART_BITS: u32 = 10;
/// Slots of a part.
const PART: u32 = SLOTS / PARTS;
/// A section has about so many bytes, if that does not make too many of them.
const SECTION: usize = 16 << 10;
/// Rows that are joined between two looks at the table's size.
const STEP: usize = 64;

/// The slot of a key with this hash.
pub fn slot(hash: u64) -> u32 {
    (hash >> 32) as u32 & (SLOTS - 1)
}

/// The content of a table when it was spilled.
#[derive(Debug)]
struct SpillRun {
    /// A section is this many bits of a slot.
    bits: u32,
    /// Where each section starts in the file, and where the last one ends.
    starts: Vec<u64>,
}

impl SpillRun {
    /// The bytes of the sections that hold `slots`.
    fn bytes_of(&self, slots: &Range<u32>) -> Range<u64> {
        let shift = SLOT_BITS - self.bits;
        self.starts[(slots.start >> shift) as usize]..self.starts[((slots.end - 1) >> shift) as usize + 1]
    }
}

/// Rows that [`SpilledGroups::keep`] has saved.
#[derive(Debug)]
pub struct SavedGroups {
    bytes: Range<u64>,
    rows: usize,
}

/// Groups on the local disk, in the order in which they were spilled. Their file goes with them.
#[derive(Debug)]
pub struct SpilledGroups {
    file: SpillFile,
    runs: Vec<SpillRun>,
    parts: Vec<IncomingGroups>,
}

impl SpilledGroups {
    /// Nothing yet, in a new file in the folder `dir`.
    pub fn create(dir: &Path) -> Result<Self> {
        let parts = vec![IncomingGroups::NONE; PARTS as usize];
        Ok(Self { file: SpillFile::create(dir, "memory_budget")?, runs: Vec::new(), parts })
    }

    /// Bytes on the disk.
    pub fn bytes(&self) -> u64 {
        self.file.end()
    }

    /// Bytes of memory held.
    pub fn memory_bytes(&self) -> u64 {
        let runs: usize = self.runs.iter().map(|run| run.starts.capacity() * 8 + size_of::<SpillRun>()).sum();
        (runs + self.parts.capacity() * size_of::<IncomingGroups>()) as u64
    }

    /// Adds the groups of `table` as a run.
    pub fn spill(&mut self, table: &GroupTable) -> Result<()> {
        let sections = (table.used_bytes() / SECTION).next_power_of_two().clamp(1, PARTS as usize);
        let bits = sections.ilog2();
        let section_of = |i: usize| (slot(table.hash(i)) >> (SLOT_BITS - bits)) as usize;
        // The groups by section, those of one in their order.
        let mut ends = vec![0_usize; sections + 1];
        (0..table.len()).for_each(|i| ends[section_of(i) + 1] += 1);
        (0..sections).for_each(|s| ends[s + 1] += ends[s]);
        let mut order = vec![0_u32; table.len()];
        let mut next = ends.clone();
        for i in 0..table.len() {
            let place = &mut next[section_of(i)];
            order[*place] = u32::try_from(i).unwrap_or(u32::MAX);
            *place += 1;
        }
        drop(next);
        let mut starts = Vec::with_capacity(sections + 1);
        let mut writer = GroupWriter::new(&mut self.file);
        for section in ends.windows(2) {
            starts.push(writer.cut()?);
            for i in order[section[0]..section[1]].iter().map(|i| *i as usize) {
                let (key, row_len) = (table.key(i), table.row_len(i));
                writer.push(key, row_len, |out| table.encode_row(i, out))?;
                let part = &mut self.parts[(slot(table.hash(i)) / PART) as usize];
                *part = part.plus(IncomingGroups { groups: 1, key_bytes: key.len(), row_bytes: row_len });
            }
        }
        starts.push(writer.cut()?);
        self.runs.push(SpillRun { bits, starts });
        Ok(())
    }

    /// An upper bound of the slots' content: rows of a key in several runs count each. Parts that are not whole are estimated.
    pub fn upper_bound(&self, slots: Range<u32>) -> IncomingGroups {
        let mut sum = IncomingGroups::NONE;
        for part in slots.start / PART..slots.end.div_ceil(PART) {
            let wanted = slots.end.min((part + 1) * PART) - slots.start.max(part * PART);
            let all = self.parts[part as usize];
            let share = |n: usize| (n as u64 * u64::from(wanted)).div_ceil(u64::from(PART));
            let share = |n: usize| usize::try_from(share(n)).unwrap_or(usize::MAX);
            sum = sum.plus(IncomingGroups {
                groups: share(all.groups),
                key_bytes: share(all.key_bytes),
                row_bytes: share(all.row_bytes),
            });
        }
        sum
    }

    /// The end of the slots from `from` on with which `table` needs at most `limit` bytes; `from` if it is none. An empty
    /// table gets at least one slot.
    pub fn extent(&self, from: u32, table: &GroupTable, limit: u64) -> u32 {
        let (mut end, mut incoming) = (from, IncomingGroups::NONE);
        while end < SLOTS {
            let next = (end / PART + 1) * PART;
            let more = incoming.plus(self.upper_bound(end..next));
            if table.need(more).most() > limit {
                break;
            }
            (end, incoming) = (next, more);
        }
        if end > from || !table.is_empty() || from == SLOTS {
            return end;
        }
        let mut width = (from / PART + 1) * PART - from;
        while width > 1 && table.need(self.upper_bound(from..from + width)).most() > limit {
            width /= 2;
        }
        from + width
    }

    /// Joins the rows of `slots` into `table`, run by run. False as soon as it needs more than `limit` bytes: then the
    /// table holds a part of them.
    pub fn load(&self, slots: &Range<u32>, table: &mut GroupTable, limit: u64) -> Result<bool> {
        let incoming = self.upper_bound(slots.clone());
        if table.need(incoming).most() <= limit {
            table.reserve(incoming);
        }
        for run in &self.runs {
            let fits = read_groups(&self.file, run.bytes_of(slots), &mut |rows| {
                let mut step = Vec::with_capacity(STEP);
                for chunk in rows.chunks(STEP) {
                    let hashed = chunk.iter().map(|(key, row)| (table.plan().place_hash(key), *key, *row));
                    step.clear();
                    step.extend(hashed.filter(|(hash, ..)| slots.contains(&slot(*hash))));
                    table.merge_step(&step)?;
                    if table.need(IncomingGroups::NONE).most() > limit {
                        return Ok(false);
                    }
                }
                Ok(true)
            })?;
            if !fits {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Saves the groups of `table` unchanged.
    pub fn keep(&mut self, table: &GroupTable) -> Result<SavedGroups> {
        let mut writer = GroupWriter::new(&mut self.file);
        let start = writer.cut()?;
        for i in 0..table.len() {
            writer.push(table.key(i), table.row_len(i), |out| table.encode_row(i, out))?;
        }
        Ok(SavedGroups { bytes: start..writer.cut()?, rows: table.len() })
    }

    /// Reads saved groups back into an empty table.
    pub fn take(&self, kept: &SavedGroups, table: &mut GroupTable) -> Result<()> {
        table.reserve(IncomingGroups { groups: kept.rows, ..IncomingGroups::NONE });
        read_groups(&self.file, kept.bytes.clone(), &mut |rows| {
            rows.iter().try_for_each(|(key, row)| table.load(key, row)).map(|()| true)
        })?;
        Ok(())
    }
}

#[cfg(test)]
#[path = "spilled_groups_tests.rs"]
mod tests;
