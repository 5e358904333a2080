use super::*;
use crate::row_chunks::RowChunk;
use crate::row_split::RowSplitter;
use arrow_array::types::Int64Type;
use arrow_array::{Int64Array, RecordBatch, StringArray, TimestampMicrosecondArray};
use arrow_schema::Field;
use fastchangelog_format::ErrorKind;

fn schema() -> Schema {
    let time = DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into()));
    let fields = [("k", DataType::Utf8), ("id", DataType::Int64), ("at", time), ("text", DataType::Utf8)];
    Schema::new(fields.map(|(name, data_type)| Field::new(name, data_type, true)).to_vec())
}

/// One payload with rows of these keys; ids count from `first`, times too, and each third has none.
fn payload(keys: &[String], first: i64, text: &str) -> Vec<u8> {
    let ids: Vec<i64> = (first..).take(keys.len()).collect();
    let times = ids.iter().map(|id| (id % 3 != 0).then_some(*id)).collect::<TimestampMicrosecondArray>();
    let columns: Vec<ArrayRef> = vec![
        Arc::new(StringArray::from(keys.to_vec())),
        Arc::new(Int64Array::from(ids)),
        Arc::new(times.with_timezone("UTC")),
        Arc::new(StringArray::from(vec![text; keys.len()])),
    ];
    let mut splitter = RowSplitter::new(1, &schema(), 1, 128, 1 << 30).unwrap();
    splitter.push(&RecordBatch::try_new(Arc::new(schema()), columns).unwrap()).unwrap();
    splitter.finish().unwrap().pop().unwrap().1
}

fn grouper(memory: usize, dir: &Path) -> RowGrouper {
    RowGrouper::new(1, &schema(), memory, dir, None).unwrap()
}

fn named(keys: impl IntoIterator<Item = u32>) -> Vec<String> {
    keys.into_iter().map(|key| format!("key {key:04}")).collect()
}

fn ids(chunk: &RowChunk) -> Vec<i64> {
    chunk.rows.column(1).as_primitive::<Int64Type>().values().to_vec()
}

/// Of each chunk: rows of each key, `continues`, `more`.
fn shapes(chunks: RowChunks) -> Vec<(Vec<i64>, bool, bool)> {
    let shape = |chunk: RowChunk| {
        let lengths = chunk.offsets.windows(2).map(|pair| pair[1] - pair[0]).collect();
        (lengths, chunk.continues, chunk.more)
    };
    chunks.map(|chunk| shape(chunk.unwrap())).collect()
}

#[test]
fn chunks_end_between_keys_unless_a_key_is_larger_than_a_chunk() {
    let dir = tempfile::tempdir().unwrap();
    let counts = [3, 4, 25, 1, 10, 2];
    let keys: Vec<u32> = (0..).zip(counts).flat_map(|(key, count)| std::iter::repeat_n(key, count)).collect();
    for memory in [1 << 20, 1_000] {
        let chunks = |rows: usize, bytes: usize| {
            let mut grouper = grouper(memory, dir.path());
            for part in keys.chunks(9) {
                grouper.push(&payload(&named(part.iter().copied()), 0, "0123456789")).unwrap();
            }
            assert_eq!(grouper.spilled_bytes() > 0, memory == 1_000);
            shapes(grouper.finish(rows, bytes).unwrap())
        };
        let expected = [
            (vec![3, 4], false, false),
            (vec![10], false, true),
            (vec![10], true, true),
            (vec![5, 1], true, false),
            (vec![10], false, false),
            (vec![2], false, false),
        ];
        assert_eq!(chunks(10, 1 << 20), expected);
        // A row has 50 bytes: two times eight, the ends of two texts, the texts, and its place.
        assert_eq!(chunks(1_000, 10 * 50 + 3), expected);
        assert_eq!(chunks(1_000, 1 << 20), [(counts.map(|n| n as i64).to_vec(), false, false)]);
        assert_eq!(chunks(1, 1).len(), keys.len(), "one row at least");
        assert_eq!(chunks(usize::MAX, 1 << 30).len(), 1);
    }
}

#[test]
fn a_key_with_many_rows_comes_in_parts_and_in_its_order() {
    let dir = tempfile::tempdir().unwrap();
    for memory in [64 << 20, 200_000] {
        let mut grouper = grouper(memory, dir.path());
        for part in 0..20 {
            grouper.push(&payload(&named(std::iter::repeat_n(7, 5_000)), part * 5_000, "x")).unwrap();
            assert!(grouper.held_bytes() <= memory.max(400_000));
        }
        let mut next = 0..100_000;
        for (i, chunk) in grouper.finish(1_000, 1 << 20).unwrap().enumerate() {
            let chunk = chunk.unwrap();
            assert_eq!((chunk.continues, chunk.more), (i > 0, i < 99));
            assert_eq!(chunk.keys.len(), 1);
            assert!(ids(&chunk).into_iter().eq(next.by_ref().take(1_000)));
        }
        assert!(next.is_empty());
    }
}

#[test]
fn what_is_held_is_bounded_and_what_is_more_is_spilled() {
    let dir = tempfile::tempdir().unwrap();
    let memory = 300_000;
    let mut grouper = grouper(memory, dir.path());
    let mut payloads = 0;
    for round in 0..50 {
        let made = payload(&named((0..500).map(|i| (i * 7 + round) % 1_000)), i64::from(round) * 500, "some text");
        payloads += made.len() as u64;
        grouper.push(&made).unwrap();
        assert!(grouper.held_bytes() <= memory);
    }
    assert!(grouper.spilled_bytes() > payloads / 2 && grouper.spilled_bytes() < 2 * payloads);
    let chunks = grouper.finish(10_000, 1 << 20).unwrap();
    assert_eq!(grouper.held_bytes(), 0, "what came last is spilled as well");
    let rows: usize = chunks.map(|chunk| chunk.unwrap().rows.num_rows()).sum();
    assert_eq!((rows, grouper.input_rows()), (25_000, 25_000));
    // The grouper is empty and can be used again; its counts go on.
    grouper.push(&payload(&named([1, 2, 1]), 0, "x")).unwrap();
    assert_eq!(shapes(grouper.finish(10, 1 << 20).unwrap()), [(vec![2, 1], false, false)]);
    assert_eq!(grouper.input_rows(), 25_003);
}

#[test]
fn late_rows_are_counted_and_rows_without_a_time_are_kept() {
    let dir = tempfile::tempdir().unwrap();
    let keys = named(std::iter::repeat_n(1, 30));
    let found = |mark: i64| {
        let mut grouper = RowGrouper::new(1, &schema(), 1 << 20, dir.path(), Some((2, mark))).unwrap();
        grouper.push(&payload(&keys, 0, "x")).unwrap();
        let left = grouper.finish(100, 1 << 20).unwrap().flat_map(|chunk| ids(&chunk.unwrap())).collect::<Vec<_>>();
        assert_eq!(grouper.input_rows(), 30);
        assert_eq!(grouper.late_rows(), 30 - left.len() as u64);
        left
    };
    assert_eq!(found(10), (0..30).filter(|id| id % 3 == 0 || *id > 10).collect::<Vec<_>>());
    assert_eq!(found(-1).len(), 30);
    assert_eq!(found(i64::MAX).len(), 10);
    for column in [0, 1, 9] {
        let error = RowGrouper::new(1, &schema(), 1 << 20, dir.path(), Some((column, 0))).unwrap_err();
        assert!(error.kind() == ErrorKind::InvalidArgument && error.message().contains("event times"), "{error}");
    }
    // Nothing at all is left.
    let mut grouper = RowGrouper::new(0, &schema(), 1 << 20, dir.path(), Some((2, 100))).unwrap();
    grouper.push(&payload_without_key(&[1, 2])).unwrap();
    assert_eq!((grouper.late_rows(), grouper.held_bytes()), (2, 0));
    assert!(grouper.finish(1, 1).unwrap().next().is_none());
}

fn payload_without_key(ids: &[i64]) -> Vec<u8> {
    let rows = ids.len();
    let columns: Vec<ArrayRef> = vec![
        Arc::new(StringArray::from(vec!["k"; rows])),
        Arc::new(Int64Array::from(ids.to_vec())),
        Arc::new(TimestampMicrosecondArray::from(ids.to_vec()).with_timezone("UTC")),
        Arc::new(StringArray::from(vec!["t"; rows])),
    ];
    let mut splitter = RowSplitter::new(0, &schema(), 1, 128, 1 << 20).unwrap();
    splitter.push(&RecordBatch::try_new(Arc::new(schema()), columns).unwrap()).unwrap();
    splitter.finish().unwrap().pop().unwrap().1
}

#[test]
fn rows_without_a_key_are_one_group() {
    let dir = tempfile::tempdir().unwrap();
    let mut grouper = RowGrouper::new(0, &schema(), 1 << 20, dir.path(), None).unwrap();
    for first in [1, 4] {
        grouper.push(&payload_without_key(&[first, first + 1, first + 2])).unwrap();
    }
    let chunks: Vec<_> = grouper.finish(100, 1 << 20).unwrap().map(Result::unwrap).collect();
    assert_eq!(chunks.len(), 1);
    assert_eq!(ids(&chunks[0]), [1, 2, 3, 4, 5, 6]);
    assert_eq!((chunks[0].keys.value(0), chunks[0].offsets.as_slice()), (&b""[..], &[0, 6][..]));
}

#[test]
fn payloads_without_rows_are_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let mut grouper = grouper(1 << 20, dir.path());
    grouper.push(b"").unwrap();
    assert!(grouper.finish(10, 100).unwrap().next().is_none());
    assert_eq!((grouper.input_rows(), grouper.spilled_bytes()), (0, 0));
}

#[test]
fn many_small_payloads_are_put_together_in_their_order() {
    let dir = tempfile::tempdir().unwrap();
    let mut grouper = grouper(64 << 20, dir.path());
    let mut count = 0;
    for i in 0..2_000 {
        // Now and then a large one comes between.
        let rows = if i % 300 == 299 { 5_000 } else { 2 };
        grouper.push(&payload(&named((0..rows).map(|row| row % 2)), count, "some text")).unwrap();
        count += i64::from(rows);
        assert!(grouper.small.len() < MANY && grouper.small_bytes < TOGETHER + SMALL);
    }
    assert!(grouper.blocks.len() < 30, "{} blocks", grouper.blocks.len());
    let mut last = [-2, -1];
    for chunk in grouper.finish(1 << 20, 1 << 30).unwrap() {
        for id in ids(&chunk.unwrap()) {
            let last = &mut last[usize::try_from(id % 2).unwrap()];
            assert_eq!(id, *last + 2);
            *last = id;
        }
    }
    assert_eq!(last, [count - 2, count - 1]);
}

#[test]
fn a_failed_spill_is_remembered() {
    let dir = tempfile::tempdir().unwrap();
    let blocked = dir.path().join("a file");
    std::fs::write(&blocked, b"").unwrap();
    let mut grouper = grouper(1_000, &blocked);
    let made = payload(&named(0..20), 0, "x");
    grouper.push(&made).unwrap();
    let error = grouper.push(&made).unwrap_err();
    for part in [blocked.to_str().unwrap(), "worker_memory"] {
        assert!(error.message().contains(part), "{error}");
    }
    assert!(grouper.push(&made).unwrap_err().says_the_same(&error), "rows are missing: nothing works any more");
    assert!(grouper.finish(10, 100).unwrap_err().says_the_same(&error));
}

#[test]
fn a_damaged_payload_is_refused_and_the_others_stay() {
    let dir = tempfile::tempdir().unwrap();
    let mut grouper = grouper(1 << 20, dir.path());
    let good = payload(&named(0..20), 0, "x");
    grouper.push(&good).unwrap();
    let mut bad = good.clone();
    bad[good.len() / 2] ^= 1;
    let error = grouper.push(&bad).unwrap_err();
    assert!(error.kind() == ErrorKind::Corrupt && error.message().contains("at byte"), "{error}");
    assert_eq!(shapes(grouper.finish(100, 1 << 20).unwrap()), [(vec![1; 20], false, false)]);
    assert_eq!(grouper.input_rows(), 20);
}

#[test]
fn impossible_chunks_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    for (rows, bytes) in [(0, 1), (1, 0), (1, 2 << 30)] {
        let error = grouper(1, dir.path()).finish(rows, bytes).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    }
}
