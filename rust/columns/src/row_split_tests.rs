use super::*;
use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{Int64Array, StringArray};
use arrow_schema::{DataType, Field};
use fastchangelog_format::ErrorKind;

fn schema() -> Schema {
    Schema::new(vec![Field::new("k", DataType::Int64, true), Field::new("v", DataType::Utf8, true)])
}

fn batch(keys: impl Iterator<Item = i64>, text: &str) -> RecordBatch {
    let keys: Int64Array = keys.collect();
    let texts = StringArray::from(vec![text; keys.len()]);
    RecordBatch::try_new(Arc::new(schema()), vec![Arc::new(keys), Arc::new(texts)]).unwrap()
}

/// The keys in the payloads of each shard, in order.
fn keys(emitted: &Emitted, shards: u32) -> Vec<Vec<i64>> {
    let format = RowFormat::new(1, &schema()).unwrap();
    let mut keys = vec![vec![]; shards as usize];
    for (shard, payload) in emitted {
        let block = format.read(payload).unwrap();
        keys[*shard as usize].extend(block.columns[0].as_primitive::<Int64Type>().values());
    }
    keys
}

#[test]
fn rows_of_a_shard_leave_in_their_order() {
    let mut splitter = RowSplitter::new(1, &schema(), 4, 128, 1 << 20).unwrap();
    let mut emitted = splitter.push(&batch(0..30_000, "x")).unwrap();
    emitted.extend(splitter.push(&batch(30_000..50_000, "y")).unwrap());
    emitted.extend(splitter.finish().unwrap());
    let found = keys(&emitted, 4);
    assert!(found.iter().all(|keys| keys.is_sorted() && keys.len() > 5_000));
    assert_eq!(found.iter().map(Vec::len).sum::<usize>(), 50_000);
    assert!(splitter.finish().unwrap().is_empty());
    splitter.push(&batch(std::iter::repeat_n(7, 1000), "x")).unwrap();
    assert_eq!(splitter.finish().unwrap().len(), 1);
    assert!(splitter.push(&batch(0..0, "x")).unwrap().is_empty());
    assert!(splitter.finish().unwrap().is_empty());
}

#[test]
fn payloads_are_capped_and_nothing_is_held_beyond_the_bound() {
    let mut splitter = RowSplitter::new(1, &schema(), 3, 128, 4_000).unwrap();
    let mut emitted = vec![];
    for start in (0..100_000).step_by(5_000) {
        emitted.extend(splitter.push(&batch(start..start + 5_000, "some text")).unwrap());
        assert!(splitter.held_bytes < 12_000);
    }
    assert!(emitted.len() > 500, "most left while rows came");
    emitted.extend(splitter.finish().unwrap());
    // A payload's beginning, the metadata of its message and the padding come on top.
    assert!(emitted.iter().all(|(_, payload)| payload.len() < 4_000 + 1_500));
    assert_eq!(keys(&emitted, 3).iter().map(Vec::len).sum::<usize>(), 100_000);

    let mut splitter = RowSplitter::new(1, &schema(), 3, 128, 1).unwrap();
    let mut emitted = splitter.push(&batch(0..10, "x")).unwrap();
    emitted.extend(splitter.finish().unwrap());
    assert_eq!(emitted.len(), 10, "one row per payload at least and at most");
}

#[test]
fn a_few_large_rows_leave_alone_and_small_ones_together() {
    let text = "t".repeat(1_000_000);
    let mut splitter = RowSplitter::new(1, &schema(), 2, 128, 1_500_000).unwrap();
    let mut emitted = splitter.push(&batch(0..20, &text)).unwrap();
    emitted.extend(splitter.finish().unwrap());
    assert_eq!(emitted.len(), 20);
    let mut emitted = splitter.push(&batch(0..2_000, "small")).unwrap();
    emitted.extend(splitter.finish().unwrap());
    assert_eq!(emitted.len(), 2);
}

#[test]
fn smaller_payloads_hold_the_same_rows() {
    let split = |small: usize| {
        let mut splitter = RowSplitter::new(1, &schema(), 2, 128, 1 << 20).unwrap().with_payloads_of(small);
        let mut emitted = splitter.push(&batch(0..10_000, "text")).unwrap();
        assert!(emitted.is_empty(), "what is held before it leaves stays");
        emitted.extend(splitter.finish().unwrap());
        emitted
    };
    let (large, small) = (split(usize::MAX), split(2_000));
    assert_eq!(large.len(), 2);
    assert!(small.len() > 100 && small.iter().all(|(_, payload)| payload.len() < 2_000 + 1_500));
    assert_eq!(keys(&large, 2), keys(&small, 2));
}

#[test]
fn impossible_settings_and_foreign_batches_are_refused() {
    for (shards, groups, bytes) in [(0, 128, 1), (129, 128, 1), (1, 128, 0), (1, 128, 2 << 30), (1, 40_000, 1)] {
        let error = RowSplitter::new(1, &schema(), shards, groups, bytes).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    }
    assert!(RowSplitter::new(3, &schema(), 1, 128, 100).is_err());
    let mut splitter = RowSplitter::new(1, &schema(), 1, 128, 100).unwrap();
    let wrong = RecordBatch::try_from_iter([("k", Arc::new(Int64Array::from(vec![1])) as ArrayRef)]).unwrap();
    assert_eq!(splitter.push(&wrong).unwrap_err().kind(), ErrorKind::InvalidArgument);
    splitter.check(&schema()).unwrap();
    assert!(splitter.check(&wrong.schema()).is_err());
}
