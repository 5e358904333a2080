//! Memory of grouping rows, as the allocator counts it: bounded whatever the batch.
//!
//! Owns: batches many times larger than the memory. Does not own: what comes out of them (`fastchangelog-columns`).

#![allow(clippy::unwrap_used, reason = "a test")]

use arrow_array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use arrow_schema::{DataType, Field, Schema};
use fastchangelog_columns::row_groups::RowGrouper;
use fastchangelog_columns::row_split::RowSplitter;
use fastchangelog_oracles::forge::peak_of;
use std::path::Path;
use std::sync::Arc;

const MEMORY: usize = 4 << 20;
const PAYLOAD: usize = 256 << 10;
const CHUNK: usize = 1 << 20;

fn schema() -> Schema {
    Schema::new(vec![Field::new("k", DataType::Int64, true), Field::new("text", DataType::Utf8, true)])
}

/// Payloads of rows with `key` of their number and texts of `length` bytes.
fn payloads(rows: i64, length: usize, key: impl Fn(i64) -> i64) -> Vec<Vec<u8>> {
    let mut splitter = RowSplitter::new(1, &schema(), 1, 128, PAYLOAD).unwrap();
    let keys: Int64Array = (0..rows).map(|row| Some(key(row))).collect();
    let texts = StringArray::from(vec!["t".repeat(length); keys.len()]);
    let columns: Vec<ArrayRef> = vec![Arc::new(keys), Arc::new(texts)];
    let mut out = splitter.push(&RecordBatch::try_new(Arc::new(schema()), columns).unwrap()).unwrap();
    out.extend(splitter.finish().unwrap());
    out.into_iter().map(|(_, payload)| payload).collect()
}

/// Rows and chunks of all payloads, `times` times over; and the most memory that grouping them took.
fn group(payloads: &[Vec<u8>], times: usize) -> (usize, usize, usize) {
    let ((rows, chunks), peak) = peak_of(|| {
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let mut grouper = RowGrouper::new(1, &schema(), MEMORY, dir, None).unwrap();
        for payload in std::iter::repeat_n(payloads, times).flatten() {
            grouper.push(payload).unwrap();
        }
        let (mut rows, mut chunks) = (0, 0);
        for chunk in grouper.finish(1 << 20, CHUNK).unwrap() {
            rows += chunk.unwrap().rows.num_rows();
            chunks += 1;
        }
        (rows, chunks)
    });
    (rows, chunks, usize::try_from(peak).unwrap())
}

/// The rows that are held, a payload on top of them, and a chunk twice: its places and its columns.
const MOST: usize = MEMORY + 2 * PAYLOAD + 3 * CHUNK;

#[test]
fn a_batch_much_larger_than_memory_is_grouped_within_it() {
    let payloads = payloads(20_000, 100, |row| row * 7_919 % 20_000);
    let bytes = 20 * payloads.iter().map(Vec::len).sum::<usize>();
    assert!(bytes > 10 * MEMORY, "{bytes}");
    let (rows, chunks, peak) = group(&payloads, 20);
    assert_eq!(rows, 400_000);
    assert!(chunks > bytes / CHUNK / 2, "{chunks}");
    assert!(peak < MOST, "{peak} bytes for a batch of {bytes}");
}

#[test]
fn a_key_with_a_million_rows_is_grouped_within_the_memory() {
    let payloads = payloads(50_000, 4, |_| 7);
    let (rows, chunks, peak) = group(&payloads, 20);
    assert!(rows == 1_000_000 && chunks > 20, "{rows} rows in {chunks} chunks");
    assert!(peak < MOST, "{peak} bytes");
}

#[test]
fn rows_that_are_large_themselves_are_merged_two_by_two() {
    // Each is a quarter of the memory, so no more than a few can be in memory at a time.
    let payloads = payloads(8, 1 << 20, |row| row);
    let (rows, chunks, peak) = group(&payloads, 5);
    assert_eq!((rows, chunks), (40, 40));
    assert!(peak < MOST + (4 << 20), "{peak} bytes");
}
