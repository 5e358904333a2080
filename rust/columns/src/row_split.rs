//! The map side of processors: input rows to payloads of whole rows, by shard.
//!
//! Owns: the shard of a row, and the times and sizes of payloads.
//! Does not own: the bytes of payloads (`row_payload`), the shuffle.
//!
//! Invariants:
//! 1. every input row is in exactly one payload, of the shard that owns its key group;
//! 2. rows of one shard leave in the order in which they came;
//! 3. what is held is bounded (see [`RowSplitter::new`]).

use super::codec::{EncodedKeys, KeyCodec, hash_key};
use super::row_gather::{Place, gather, key_column};
use super::row_payload::{RowBlock, RowEncoder, RowFormat};
use super::split::{Emitted, check_split, held_at_most};
use arrow_array::{ArrayRef, RecordBatch};
use arrow_schema::Schema;
use fastchangelog_format::Result;
use fastchangelog_format::model::ids::{key_group_of, shard_of};
use std::sync::Arc;

/// Rows that are encoded at a time.
const CHUNK: usize = 8_192;
/// Bytes held per row beside its values: its place and the end of its key.
const PLACE: usize = 16;

/// Splits the rows of one map task.
#[derive(Debug)]
pub struct RowSplitter {
    format: Arc<RowFormat>,
    codec: KeyCodec,
    encoder: RowEncoder,
    shards: u32,
    max_parallelism: u16,
    payload_bytes: usize,
    hold: usize,
    held: Vec<HeldRows>,
    held_bytes: usize,
    by_shard: Vec<Vec<Place>>,
}

/// Rows as they came, and their keys.
#[derive(Debug)]
struct HeldRows {
    columns: Vec<ArrayRef>,
    keys: EncodedKeys,
}

impl RowSplitter {
    /// A splitter into `shards` shards of rows with the columns `input`, of which the first `keys` are the key.
    /// A payload has about `payload_bytes` at most; a single row may be larger. The splitter flushes all shards when it holds
    /// `payload_bytes` for each shard, at most 64 MiB and at least one payload; the new payloads then take as much again.
    pub fn new(keys: usize, input: &Schema, shards: u32, max_parallelism: u16, payload_bytes: usize) -> Result<Self> {
        check_split(shards, max_parallelism, payload_bytes)?;
        let format = Arc::new(RowFormat::new(keys, input)?);
        Ok(Self {
            codec: KeyCodec::new(&format.key_fields())?,
            encoder: RowEncoder::new(Arc::clone(&format))?,
            format,
            shards,
            max_parallelism,
            payload_bytes,
            hold: held_at_most(shards, payload_bytes),
            held: Vec::new(),
            held_bytes: 0,
            by_shard: vec![Vec::new(); shards as usize],
        })
    }

    /// The same splitter with payloads of at most `bytes` each; what it holds before it flushes stays.
    #[must_use]
    pub fn with_payloads_of(mut self, bytes: usize) -> Self {
        self.payload_bytes = self.payload_bytes.min(bytes.max(1));
        self
    }

    /// Fails unless batches of this schema are of the input schema.
    pub fn check(&self, schema: &Schema) -> Result<()> {
        self.format.check(schema)
    }

    /// Takes a batch of the input schema, with strings as text or in their binary form; returns the payloads that had
    /// to leave.
    pub fn push(&mut self, batch: &RecordBatch) -> Result<Emitted> {
        let columns = self.format.columns(batch)?;
        let mut emitted = Vec::new();
        let mut start = 0;
        while start < batch.num_rows() {
            let mut rows = CHUNK.min(batch.num_rows() - start);
            // Few large rows at a time, so memory exceeds the bound by at most one portion.
            while rows > 1 && self.format.sizes().of(&columns, start..start + rows) > self.hold {
                rows /= 2;
            }
            let chunk = columns.iter().map(|column| column.slice(start, rows)).collect();
            self.hold_rows(chunk, rows)?;
            if self.held_bytes >= self.hold {
                emitted.append(&mut self.flush()?);
            }
            start += rows;
        }
        Ok(emitted)
    }

    fn hold_rows(&mut self, columns: Vec<ArrayRef>, rows: usize) -> Result<()> {
        let keys = self.codec.encode(&columns[..self.codec.types().len()], rows)?;
        let block = self.held.len() as u32;
        self.held_bytes += self.format.sizes().of(&columns, 0..rows) + PLACE * rows;
        for row in 0..rows {
            let key = keys.key(row);
            let group = key_group_of(hash_key(key), self.max_parallelism);
            let shard = shard_of(group, self.shards, self.max_parallelism);
            self.by_shard[shard as usize].push(Place { block, row: row as u32 });
            self.held_bytes += key.len();
        }
        self.held.push(HeldRows { columns, keys });
        Ok(())
    }

    /// Returns the remaining payloads. Shards without rows get none.
    pub fn finish(&mut self) -> Result<Emitted> {
        self.flush()
    }

    fn flush(&mut self) -> Result<Emitted> {
        let held = std::mem::take(&mut self.held);
        let by_shard = vec![Vec::new(); self.shards as usize];
        let by_shard = std::mem::replace(&mut self.by_shard, by_shard);
        self.held_bytes = 0;
        let mut emitted = Vec::new();
        for (shard, places) in (0u32..).zip(by_shard) {
            let (mut start, mut bytes) = (0, 0);
            for (i, place) in places.iter().enumerate() {
                let size = self.size(&held, *place);
                if i > start && bytes + size > self.payload_bytes {
                    emitted.push((shard, self.payload(&held, &places[start..i])?));
                    (start, bytes) = (i, 0);
                }
                bytes += size;
            }
            if start < places.len() {
                emitted.push((shard, self.payload(&held, &places[start..])?));
            }
        }
        Ok(emitted)
    }

    /// Bytes of a row in a payload.
    fn size(&self, held: &[HeldRows], place: Place) -> usize {
        let (rows, row) = (&held[place.block as usize], place.row as usize);
        self.format.sizes().of(&rows.columns, row..row + 1) + 4 + rows.keys.key(row).len()
    }

    fn payload(&mut self, held: &[HeldRows], places: &[Place]) -> Result<Vec<u8>> {
        let columns = gather(places, |block| held[block as usize].columns.as_slice())?;
        let keys = places.iter().map(|place| held[place.block as usize].keys.key(place.row as usize));
        self.encoder.payload(RowBlock { columns, keys: key_column(keys)? })
    }
}

#[cfg(test)]
#[path = "row_split_tests.rs"]
mod tests;
