//! Property: splitters, payloads and groupers together equal a plain map from keys to lists of rows.

use super::codec::{KeyCodec, hash_key};
use super::row_chunks::RowChunk;
use super::row_groups::RowGrouper;
use super::row_payload::RowFormat;
use super::row_split::RowSplitter;
use super::row_test_data::{batch, rng, schema, types};
use arrow_array::cast::AsArray;
use arrow_array::types::{Int64Type, TimestampMicrosecondType};
use arrow_array::{Array, RecordBatch};
use arrow_schema::{DataType, TimeUnit};
use fastchangelog_format::model::ids::{key_group_of, shard_of};
use rand::RngExt;
use rand::rngs::StdRng;
use std::collections::{BTreeMap, HashSet};
use std::path::Path;

const GROUPS: u16 = 64;

/// Rows as they came, by their ids.
struct Input {
    batches: Vec<RecordBatch>,
    keys: Vec<Vec<u8>>,
}

impl Input {
    fn row(&self, id: i64) -> (&RecordBatch, usize) {
        let mut row = usize::try_from(id).unwrap();
        for batch in &self.batches {
            if row < batch.num_rows() {
                return (batch, row);
            }
            row -= batch.num_rows();
        }
        panic!("no row {id}");
    }

    fn shard(&self, id: i64, shards: u32) -> u32 {
        shard_of(key_group_of(hash_key(&self.keys[usize::try_from(id).unwrap()]), GROUPS), shards, GROUPS)
    }

    fn is_late(&self, id: i64, late: Option<(usize, i64)>) -> bool {
        let Some((column, mark)) = late else { return false };
        let (batch, row) = self.row(id);
        let times = batch.column(column).as_primitive::<TimestampMicrosecondType>();
        times.is_valid(row) && times.value(row) <= mark
    }
}

fn ids(rows: &RecordBatch) -> Vec<i64> {
    rows.columns().last().unwrap().as_primitive::<Int64Type>().values().to_vec()
}

/// Checks a chunk's shape against the chunk before it, and adds its rows to what was found.
fn add(chunk: &RowChunk, limit: usize, last: &mut Option<(Vec<u8>, bool)>, found: &mut BTreeMap<Vec<u8>, Vec<i64>>) {
    let rows = chunk.rows.num_rows();
    assert!(rows > 0 && rows <= limit);
    assert!(chunk.offsets.is_sorted_by(|a, b| a < b) && chunk.offsets.first() == Some(&0));
    assert_eq!(chunk.offsets.last().copied(), i64::try_from(rows).ok());
    assert_eq!(chunk.offsets.len(), chunk.keys.len() + 1);
    let ids = ids(&chunk.rows);
    for (i, pair) in chunk.offsets.windows(2).enumerate() {
        let key = chunk.keys.value(i).to_vec();
        let continues = i == 0 && chunk.continues;
        match last {
            Some((before, more)) if continues => assert!(*more && *before == key),
            Some((before, more)) => assert!(!*more && *before < key),
            None => assert!(!continues),
        }
        let more = chunk.more && i + 1 == chunk.keys.len();
        assert!(!more || i == 0, "a key that goes on begins its chunk");
        *last = Some((key.clone(), more));
        let rows = usize::try_from(pair[0]).unwrap()..usize::try_from(pair[1]).unwrap();
        found.entry(key).or_default().extend(&ids[rows]);
    }
}

fn one_round(rng: &mut StdRng, dir: &Path) {
    let all = types();
    let mut some: Vec<DataType> =
        (0..rng.random_range(0..6)).map(|_| all[rng.random_range(0..all.len())].clone()).collect();
    let late = rng.random_bool(0.3).then(|| {
        some.push(DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into())));
        (some.len() - 1, rng.random_range(-3..4))
    });
    let schema = schema(&some);
    let mut keys = rng.random_range(0..=some.len().min(3));
    let codec = loop {
        // Some types are no keys.
        match KeyCodec::new(&schema.fields().iter().take(keys).cloned().collect()) {
            Ok(codec) => break codec,
            Err(_) => keys -= 1,
        }
    };
    let mut input = Input { batches: vec![], keys: vec![] };
    for _ in 0..rng.random_range(0..8) {
        let first = i64::try_from(input.keys.len()).unwrap();
        let end = first + rng.random_range(0..300);
        let made = batch(rng, &some, first..end);
        let encoded = codec.encode(&made.columns()[..keys], made.num_rows()).unwrap();
        input.keys.extend((0..made.num_rows()).map(|row| encoded.key(row).to_vec()));
        input.batches.push(made);
    }
    let shards = rng.random_range(1..5);
    let payload_bytes = [1, 300, 4_000, 1 << 20][rng.random_range(0..4)];
    let mut splitters: Vec<_> =
        (0..2).map(|_| RowSplitter::new(keys, &schema, shards, GROUPS, payload_bytes).unwrap()).collect();
    let mut payloads = vec![];
    for batch in &input.batches {
        let splitter = &mut splitters[rng.random_range(0..2)];
        splitter.check(&schema).unwrap();
        payloads.extend(splitter.push(batch).unwrap());
    }
    payloads.extend(splitters.iter_mut().flat_map(|splitter| splitter.finish().unwrap()));

    let format = RowFormat::new(keys, &schema).unwrap();
    let memory = [100, 5_000, 60_000, 64 << 20][rng.random_range(0..4)];
    let (limit, bytes) =
        ([1, 10, 1_000, 100_000][rng.random_range(0..4)], [100, 10_000, 16 << 20][rng.random_range(0..3)]);
    let mut seen = HashSet::new();
    for shard in 0..shards {
        let mut grouper = RowGrouper::new(keys, &schema, memory, dir, late).unwrap();
        let (mut model, mut late_rows, mut rows) = (BTreeMap::<Vec<u8>, Vec<i64>>::new(), 0, 0);
        for (_, payload) in payloads.iter().filter(|(of, _)| *of == shard) {
            grouper.push(payload).unwrap();
            let block = format.read(payload).unwrap();
            for id in block.columns.last().unwrap().as_primitive::<Int64Type>().values() {
                assert!(seen.insert(*id), "row {id} is in two payloads");
                assert_eq!(input.shard(*id, shards), shard);
                rows += 1;
                if input.is_late(*id, late) {
                    late_rows += 1;
                } else {
                    model.entry(input.keys[usize::try_from(*id).unwrap()].clone()).or_default().push(*id);
                }
            }
        }
        assert_eq!((grouper.input_rows(), grouper.late_rows()), (rows, late_rows));
        let (mut found, mut last) = (BTreeMap::new(), None);
        for chunk in grouper.finish(limit, bytes).unwrap() {
            let chunk = chunk.unwrap();
            add(&chunk, limit, &mut last, &mut found);
            for (at, id) in ids(&chunk.rows).into_iter().enumerate() {
                let (batch, row) = input.row(id);
                for (ours, theirs) in chunk.rows.columns().iter().zip(batch.columns()) {
                    assert_eq!(&ours.slice(at, 1), &theirs.slice(row, 1));
                }
            }
        }
        assert!(last.is_none_or(|(_, more)| !more));
        assert_eq!(found, model, "shard {shard}");
    }
    assert_eq!(seen.len(), input.keys.len());
    assert_eq!(std::fs::read_dir(dir).unwrap().count(), 0);
}

#[test]
fn rows_come_back_once_grouped_in_order_and_as_they_were() {
    let (mut rng, dir) = (rng(), tempfile::tempdir().unwrap());
    for _ in 0..120 {
        one_round(&mut rng, dir.path());
    }
}
