//! Rows of processors: splitting and grouping a million rows of three narrow columns, in memory and through the disk.
#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

use arrow_array::{Array, ArrayRef, Float64Array, Int64Array, RecordBatch, StringArray, TimestampMicrosecondArray};
use arrow_schema::{Field, Schema};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use fastchangelog_columns::row_groups::RowGrouper;
use fastchangelog_columns::row_split::RowSplitter;
use std::hint::black_box;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

const ROWS: i64 = 1_000_000;
const KEYS: i64 = 100_000;
const PAYLOAD: usize = 4 << 20;

/// Batches as Spark hands them over, with keys in no order.
fn batches(keys: impl Fn(Range<i64>) -> ArrayRef) -> Vec<RecordBatch> {
    (0..ROWS)
        .step_by(10_000)
        .map(|start| {
            let rows = start..start + 10_000;
            let columns: Vec<ArrayRef> = vec![
                keys(rows.clone()),
                Arc::new(rows.clone().map(Some).collect::<TimestampMicrosecondArray>()),
                Arc::new(rows.map(|row| row as f64).collect::<Float64Array>()),
            ];
            let names = ["k", "at", "amount"].iter().zip(&columns);
            let fields: Vec<_> =
                names.map(|(name, column)| Field::new(*name, column.data_type().clone(), true)).collect();
            RecordBatch::try_new(Arc::new(Schema::new(fields)), columns).unwrap()
        })
        .collect()
}

fn key_of(row: i64) -> i64 {
    row * 7_919 % KEYS
}

fn longs(rows: Range<i64>) -> ArrayRef {
    Arc::new(rows.map(key_of).collect::<Int64Array>())
}

fn texts(rows: Range<i64>) -> ArrayRef {
    Arc::new(rows.map(|row| Some(format!("customer-{:08}", key_of(row)))).collect::<StringArray>())
}

fn split(batches: &[RecordBatch]) -> Vec<Vec<u8>> {
    let mut splitter = RowSplitter::new(1, &batches[0].schema(), 2, 128, PAYLOAD).unwrap();
    let mut payloads: Vec<_> = batches.iter().flat_map(|batch| splitter.push(batch).unwrap()).collect();
    payloads.extend(splitter.finish().unwrap());
    payloads.into_iter().map(|(_, payload)| payload).collect()
}

fn group(schema: &Schema, payloads: &[Vec<u8>], memory: usize, dir: &Path) -> usize {
    let mut grouper = RowGrouper::new(1, schema, memory, dir, None).unwrap();
    payloads.iter().for_each(|payload| grouper.push(payload).unwrap());
    let chunks = grouper.finish(65_536, 16 << 20).unwrap();
    chunks.map(|chunk| black_box(chunk.unwrap()).rows.num_rows()).sum()
}

fn rows(c: &mut Criterion) {
    let dir = tempfile::tempdir().unwrap();
    let mut bench = c.benchmark_group("rows");
    bench.throughput(Throughput::Elements(ROWS as u64)).sample_size(10).measurement_time(Duration::from_secs(5));
    for (name, batches) in [("long", batches(longs)), ("string", batches(texts))] {
        let schema = batches[0].schema();
        bench.bench_function(format!("split, {name} key"), |b| b.iter(|| split(&batches)));
        let payloads = split(&batches);
        for (place, memory) in [("in memory", 1 << 30), ("through the disk", 8 << 20)] {
            bench.bench_function(format!("group {place}, {name} key"), |b| {
                b.iter(|| assert_eq!(group(&schema, &payloads, memory, dir.path()), ROWS as usize));
            });
        }
    }
    bench.finish();
}

criterion_group!(benches, rows);
criterion_main!(benches);
