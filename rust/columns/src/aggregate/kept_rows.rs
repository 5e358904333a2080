//! Rows in payloads and rows in the state, where they differ.
//!
//! Owns: the part of an accumulator row that the state keeps, the time from which a group lives in it, the event time
//! in front of the keys of a payload.
//! Does not own: which groups are returned and when expired ones leave (`shard::session`).
//!
//! The calls in front of those with a result are hidden: with a lifetime the first one holds the time from which the
//! group lives. A state of distinct keys keeps the hidden calls alone.

use super::plan::AggPlan;
use super::prim::{has_bit, set_bit};
use crate::codec::{EncodedKeys, TIME_BYTES};
use crate::rows::Rows;
use arrow_array::ArrayRef;
use fastchangelog_format::{Error, Result};

impl AggPlan {
    /// The keys of some input rows as payloads have them.
    pub(crate) fn payload_keys(&self, columns: &[ArrayRef], rows: usize) -> Result<EncodedKeys> {
        match &self.payload_codec {
            Some(codec) => codec.encode(&columns[..=self.num_keys()], rows),
            None => self.codec().encode(&columns[..self.num_keys()], rows),
        }
    }

    /// The key of a group, of a key in a payload.
    #[inline]
    pub fn group_key<'a>(&self, key: &'a [u8]) -> &'a [u8] {
        if self.has_row_times() { key.get(TIME_BYTES..).unwrap_or_default() } else { key }
    }

    /// The time from which a group lives, of its encoded row; of the row of no input 0.
    pub fn life_begins(&self, row: &[u8]) -> Result<i64> {
        let at = self.ops.first().map_or(0, |op| op.slots.at);
        let time = row.get(at..).and_then(<[u8]>::first_chunk::<8>);
        time.map(|time| i64::from_le_bytes(*time)).ok_or_else(|| {
            Error::corrupt("an accumulator row", 0, format_args!("{} bytes have no time at {at}", row.len()))
        })
    }

    /// True if the state keeps less than whole rows.
    pub(crate) fn keeps_parts(&self) -> bool {
        self.kept.is_some()
    }

    /// Appends what the state keeps of row `i`.
    pub(crate) fn encode_kept(&self, rows: &Rows, i: usize, out: &mut Vec<u8>) {
        let Some(kept) = &self.kept else { return rows.encode(i, out) };
        let (start, from) = (out.len(), rows.fixed(i));
        out.resize(start + kept.shape().stride, 0);
        let to = &mut out[start..];
        for (source, target) in self.ops.iter().zip(&kept.ops) {
            let layout = target.accumulator.layout();
            let (source, target) = (&source.slots, &target.slots);
            for bit in (0..layout.bits).filter(|bit| has_bit(from, source.bit + bit)) {
                set_bit(to, target.bit + bit);
            }
            to[target.at..target.at + layout.bytes].copy_from_slice(&from[source.at..source.at + layout.bytes]);
        }
    }
}
