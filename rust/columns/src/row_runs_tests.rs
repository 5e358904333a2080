use super::*;
use crate::row_order::SortedBlocks;
use crate::row_test_data::rng;
use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{ArrayRef, Int64Array, StringArray};
use arrow_schema::{DataType, Field, Schema};
use rand::RngExt;
use rand::rngs::StdRng;
use std::collections::BTreeMap;

/// Ids by key, in order.
type Model = BTreeMap<Vec<u8>, Vec<i64>>;

fn format() -> Arc<RowFormat> {
    let fields = vec![Field::new("id", DataType::Int64, true), Field::new("text", DataType::Utf8, true)];
    Arc::new(RowFormat::new(0, &Schema::new(fields)).unwrap())
}

/// A block of rows with random keys; the model gets them too.
fn block(rng: &mut StdRng, rows: usize, keys: u32, next: &mut i64, model: &mut Model) -> RowBlock {
    let own: Vec<Vec<u8>> = (0..rows).map(|_| rng.random_range(0..keys).to_string().into_bytes()).collect();
    let ids: Vec<i64> = (*next..).take(rows).collect();
    *next += rows as i64;
    for (key, id) in own.iter().zip(&ids) {
        model.entry(key.clone()).or_default().push(*id);
    }
    let texts: StringArray = (0..rows).map(|_| Some("t".repeat(rng.random_range(0..200)))).collect();
    let texts = crate::strings::as_binary(&(Arc::new(texts) as ArrayRef)).unwrap();
    let keys = key_column(own.iter().map(Vec::as_slice)).unwrap();
    RowBlock { columns: vec![Arc::new(Int64Array::from(ids)), texts], keys }
}

/// All rows by key; asserts that keys ascend and are marked. Also the most frames held at once.
fn read(mut rows: MergedRuns) -> (Model, usize) {
    let (mut model, mut last, mut most) = (Model::new(), None::<Vec<u8>>, 0);
    while let Some((place, starts)) = rows.advance().unwrap() {
        let block = rows.block(place.block);
        let key = block.keys.value(place.row as usize).to_vec();
        assert_eq!(starts, last.as_ref() != Some(&key));
        assert!(last.is_none_or(|last| last <= key), "keys descend");
        let id = block.columns[0].as_primitive::<Int64Type>().value(place.row as usize);
        model.entry(key.clone()).or_default().push(id);
        last = Some(key);
        rows.keep(&mut std::iter::empty());
        most = most.max(rows.frames_held());
    }
    (model, most)
}

#[test]
fn rows_of_many_runs_come_back_in_order_whatever_the_memory() {
    let (mut rng, dir) = (rng(), tempfile::tempdir().unwrap());
    for (memory, runs, rows, keys) in [
        (0, 20, 300, 50),
        (200_000, 40, 800, 10_000),
        (1 << 20, 5, 2_000, 3),
        (0, 1, 100, 10),
        (0, 2, 50, 1),
        (9, 0, 0, 1),
    ] {
        let (mut model, mut next) = (Model::new(), 0);
        let mut spilled = SpilledRuns::create(format(), dir.path(), memory).unwrap();
        for _ in 0..runs {
            let blocks = (0..rng.random_range(1..4)).map(|_| block(&mut rng, rows, keys, &mut next, &mut model));
            spilled.add(&mut SortedBlocks::new(blocks.collect())).unwrap();
        }
        let frame = spilled.runs.iter().map(|run| run.frame).max().unwrap_or(0);
        let before = spilled.written();
        let (merged, written) = spilled.merged().unwrap();
        assert!(written >= before && (runs == 0 || before > 0));
        assert_eq!(written > before, runs > 2 && memory < runs * frame, "{memory} bytes for {runs} runs");
        let (found, most) = read(merged);
        assert_eq!(found, model);
        assert!(most <= 2.max(memory / SMALLEST_FRAME + 1), "{most} frames in {memory} bytes");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}

#[test]
fn neighbours_are_merged_as_far_as_memory_allows() {
    let run = |frame: usize| Run { bytes: 0..1, frame };
    let sizes = |frames: &[usize], memory: usize| {
        let runs: Vec<_> = frames.iter().map(|frame| run(*frame)).collect();
        let groups = groups(&runs, memory).iter().map(|group| group.len()).collect::<Vec<_>>();
        assert_eq!(groups.iter().sum::<usize>(), frames.len());
        groups
    };
    assert_eq!(sizes(&[1; 10], 4), [4, 4, 2]);
    assert_eq!(sizes(&[9; 5], 4), [2, 2, 1], "two at least, or there would never be fewer");
    assert_eq!(sizes(&[1, 1, 9, 1], 4), [2, 2]);
    assert_eq!(sizes(&[], 4), [0; 0]);
}
