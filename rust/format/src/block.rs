//! One block of a change set: some records, in columns.
//!
//! Owns: the layout of a block's raw bytes. Columns compress better and faster than rows: lengths are mostly constant,
//! keys look like keys, values like values.
//! Does not own: compression, checksums, which records a block gets (`segment`).
//!
//! ```text
//! runs          varint count, then per run: varint records, u8 op, varint state, varint key group - previous key group
//! key lengths   u8 0, varint the one length of all, never 0   |   u8 1, one varint per record
//! value lengths u8 0, varint the one length of all            |   u8 1, one varint per record
//! keys          the bytes of all keys
//! values        the bytes of all values, up to the end of the block
//! ```
//! The first run's previous key group is the block's first key group in the index. A record costs at least one byte, so
//! a block of n bytes has at most n records.

use super::wire::{Reader, put_varint};
use crate::error::Result;
use crate::model::{Change, ChangeSet, KeyGroup, KeyGroupRange, Op, StateId};
use std::ops::Range;

/// Highest length of one key and value together.
pub const MAX_RECORD: u64 = 1 << 30;
/// Largest overhead of a block of one record, beside its key and value: one run and two lengths.
pub(crate) const MAX_OVERHEAD: u64 = 64;
/// Records whose bytes are asked for before they are copied: enough loads to keep memory busy, few enough to stay
/// cached.
const LOOK_AHEAD: usize = 32;

/// The columns of the block under construction; reused from block to block.
#[derive(Debug, Default)]
pub(crate) struct BlockEncoder {
    runs: Vec<u8>,
    key_lengths: Lengths,
    value_lengths: Lengths,
}

#[derive(Debug, Default)]
struct Lengths {
    varints: Vec<u8>,
    common: Option<u64>,
    mixed: bool,
}

impl Lengths {
    fn clear(&mut self) {
        self.varints.clear();
        self.common = None;
        self.mixed = false;
    }

    #[inline]
    fn push(&mut self, length: u64) {
        put_varint(&mut self.varints, length);
        self.mixed |= *self.common.get_or_insert(length) != length;
    }

    fn write(&self, zero_allowed: bool, out: &mut Vec<u8>) {
        match self.common {
            Some(length) if !self.mixed && (zero_allowed || length > 0) => {
                out.push(0);
                put_varint(out, length);
            }
            _ => {
                out.push(1);
                out.extend_from_slice(&self.varints);
            }
        }
    }
}

impl BlockEncoder {
    /// Appends the raw bytes of the records `range` of `set`, which are grouped by key group. Keys and values are
    /// copied once, from the set: between the columns' passes they are in the cache.
    pub(crate) fn encode(&mut self, set: &ChangeSet, range: Range<usize>, out: &mut Vec<u8>) {
        self.runs.clear();
        self.key_lengths.clear();
        self.value_lengths.clear();
        let mut runs = 0_u64;
        let mut run_records = 0_u64;
        let mut bytes = 0;
        let mut previous =
            (Op::Put, StateId(0), if range.is_empty() { KeyGroup(0) } else { set.get(range.start).key_group });
        let mut run_start_group = previous.2;
        for start in range.clone().step_by(LOOK_AHEAD) {
            let some = start..(start + LOOK_AHEAD).min(range.end);
            touch(set, some.clone());
            for i in some {
                let change = set.get(i);
                let current = (change.op, change.state, change.key_group);
                if current != previous && run_records > 0 {
                    put_run(&mut self.runs, run_records, previous, run_start_group);
                    run_start_group = previous.2;
                    runs += 1;
                    run_records = 0;
                }
                previous = current;
                run_records += 1;
                self.key_lengths.push(change.key.len() as u64);
                self.value_lengths.push(change.value.len() as u64);
                bytes += change.key.len() + change.value.len();
            }
        }
        if run_records > 0 {
            put_run(&mut self.runs, run_records, previous, run_start_group);
            runs += 1;
        }
        put_varint(out, runs);
        out.extend_from_slice(&self.runs);
        self.key_lengths.write(false, out);
        self.value_lengths.write(true, out);
        out.reserve(bytes);
        range.clone().for_each(|i| out.extend_from_slice(set.get(i).key));
        range.for_each(|i| out.extend_from_slice(set.get(i).value));
    }
}

/// Reads a byte at both ends of some records. Grouping by key group leaves records scattered in memory; loads that do
/// not depend on each other wait together, so this halves the time of the copies that follow.
#[inline]
fn touch(set: &ChangeSet, range: Range<usize>) {
    let mut sink = 0;
    for i in range {
        let change = set.get(i);
        sink ^= change.key.first().copied().unwrap_or(0) ^ change.value.last().copied().unwrap_or(0);
    }
    std::hint::black_box(sink);
}

fn put_run(out: &mut Vec<u8>, records: u64, (op, state, group): (Op, StateId, KeyGroup), from: KeyGroup) {
    put_varint(out, records);
    out.push(op as u8);
    put_varint(out, u64::from(state.0));
    put_varint(out, u64::from(group.0 - from.0));
}

/// The index's claims about a block.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Promise {
    pub first: KeyGroup,
    pub last: KeyGroup,
    pub records: u32,
}

/// Buffers reused from block to block.
#[derive(Debug, Default)]
pub(crate) struct BlockDecoder {
    runs: Vec<(u32, Op, StateId, KeyGroup)>,
    key_lengths: Vec<u32>,
    value_lengths: Vec<u32>,
}

impl BlockDecoder {
    /// Passes the records of a block to `sink`: all of them, or only the key groups in `groups`.
    pub(crate) fn decode(
        &mut self,
        mut reader: Reader<'_>,
        promise: Promise,
        groups: Option<KeyGroupRange>,
        sink: &mut dyn FnMut(Change<'_>) -> Result<()>,
    ) -> Result<()> {
        let records = promise.records as usize;
        if records > reader.remaining() {
            return Err(reader.corrupt(format_args!("{records} records do not fit {} bytes", reader.remaining())));
        }
        self.runs(&mut reader, promise)?;
        let keys_len = lengths(&mut reader, records, false, "key lengths", &mut self.key_lengths)?;
        let values_len = lengths(&mut reader, records, true, "value lengths", &mut self.value_lengths)?;
        let keys = reader.take(keys_len, "the keys")?;
        let values = reader.take(values_len, "the values")?;
        reader.finish("the block")?;
        let (mut i, mut key_at, mut value_at) = (0, 0, 0);
        for &(count, op, state, key_group) in &self.runs {
            let wanted = groups.is_none_or(|g| g.contains(key_group));
            for _ in 0..count {
                let key_end = key_at + self.key_lengths[i] as usize;
                let value_end = value_at + self.value_lengths[i] as usize;
                if wanted {
                    sink(Change {
                        op,
                        state,
                        key_group,
                        key: &keys[key_at..key_end],
                        value: &values[value_at..value_end],
                    })?;
                }
                (i, key_at, value_at) = (i + 1, key_end, value_end);
            }
        }
        Ok(())
    }

    /// Reads the runs; afterwards they hold exactly the promised records and key groups, in ascending order.
    fn runs(&mut self, reader: &mut Reader<'_>, promise: Promise) -> Result<()> {
        self.runs.clear();
        let count = reader.count(4, "the number of runs")?;
        let mut left = promise.records;
        let mut group = promise.first;
        for i in 0..count {
            let records: u32 = reader.varint_as("the records of a run")?;
            if records == 0 || records > left {
                return Err(reader.corrupt(format_args!("a run of {records} records where {left} are left")));
            }
            left -= records;
            let op = reader.u8("the op of a run")?;
            let op = Op::from_u8(op).ok_or_else(|| reader.corrupt(format_args!("op {op} is unknown")))?;
            let state = StateId(reader.varint_as("the state of a run")?);
            let step: u16 = reader.varint_as("the key group of a run")?;
            group = match group.0.checked_add(step) {
                Some(g) if g <= promise.last.0 && (i > 0 || step == 0) => KeyGroup(g),
                _ => return Err(reader.corrupt("a run's key group is not in the block")),
            };
            self.runs.push((records, op, state, group));
        }
        if left > 0 || group != promise.last {
            return Err(reader.corrupt("the runs do not hold the block's records and key groups"));
        }
        Ok(())
    }
}

/// Reads a column of lengths; returns their sum, which the rest of the block can hold.
fn lengths(
    reader: &mut Reader<'_>,
    records: usize,
    zero_allowed: bool,
    what: &str,
    out: &mut Vec<u32>,
) -> Result<usize> {
    out.clear();
    let sum = match reader.u8(what)? {
        0 => {
            let length: u32 = reader.varint_as(what)?;
            if length == 0 && !zero_allowed {
                return Err(reader.corrupt(format_args!("{what}: a common length of 0")));
            }
            out.resize(records, length);
            u64::from(length) * records as u64
        }
        1 => {
            let mut sum = 0_u64;
            for _ in 0..records {
                let length: u32 = reader.varint_as(what)?;
                sum += u64::from(length);
                out.push(length);
            }
            sum
        }
        mode => return Err(reader.corrupt(format_args!("{what}: mode {mode} is unknown"))),
    };
    match usize::try_from(sum) {
        Ok(sum) if sum <= reader.remaining() => Ok(sum),
        _ => Err(reader.corrupt(format_args!("{what} add up to {sum} of {} bytes", reader.remaining()))),
    }
}
