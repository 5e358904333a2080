use super::*;
use crate::aggregate::{AggCall, AggPlan, AggSpec, schema_of};
use crate::split::Splitter;
use arrow_array::{ArrayRef, RecordBatch, StringArray};
use arrow_schema::{DataType, Field};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Encoded rows by key.
type Model = BTreeMap<Vec<u8>, Vec<u8>>;

fn spec() -> AggSpec {
    let call = |function: &str| AggCall {
        function: function.into(),
        args: vec![1],
        filter: None,
        ignore_nulls: false,
        ansi: true,
        identity: format!("{function}(v)"),
    };
    let field = |name: &str, t: DataType| Field::new(name, t, true);
    AggSpec::new(
        1,
        schema_of(vec![field("k", DataType::Utf8), field("v", DataType::Utf8)]),
        schema_of(vec![
            field("k", DataType::Utf8),
            field("n", DataType::Int64),
            field("first", DataType::Utf8),
            field("last", DataType::Utf8),
            field("max", DataType::Utf8),
        ]),
        vec![call("count"), call("first"), call("last"), call("max")],
    )
}

fn rng() -> StdRng {
    let seed: u64 = rand::random_range(0..1_000_000);
    println!("seed {seed}");
    StdRng::seed_from_u64(seed)
}

/// Payloads with random rows of `keys` keys.
fn payloads(rng: &mut StdRng, spec: &AggSpec, rows: usize, keys: u32) -> Vec<Vec<u8>> {
    let mut splitter = Splitter::new(spec, 1, 128, 1 << 14).unwrap();
    let mut out = Vec::new();
    for chunk in 0..rows.div_ceil(500) {
        let n = 500.min(rows - chunk * 500);
        let texts = (0..n).map(|_| {
            let key = rng.random_range(0..keys);
            (
                format!("{key}-{}", "k".repeat(key as usize % 50)),
                "v".repeat(rng.random_range(0..40)) + &rng.random::<u16>().to_string(),
            )
        });
        let (k, v): (Vec<String>, Vec<String>) = texts.unzip();
        let columns: Vec<ArrayRef> = vec![Arc::new(StringArray::from(k)), Arc::new(StringArray::from(v))];
        out.extend(splitter.push(&RecordBatch::try_new(Arc::clone(&spec.input), columns).unwrap()).unwrap());
    }
    out.extend(splitter.finish().unwrap());
    out.into_iter().map(|(_, payload)| payload).collect()
}

fn add(table: &GroupTable, model: &mut Model) {
    let mut scratch = Vec::new();
    for i in 0..table.len() {
        let row = table.row(i, &mut scratch).to_vec();
        assert!(model.insert(table.key(i).to_vec(), row).is_none(), "a key is in two ranges");
    }
}

#[test]
fn invariant_1_ranges_hold_what_one_table_would() {
    let (mut rng, spec, dir) = (rng(), spec(), tempfile::tempdir().unwrap());
    let plan = Arc::new(AggPlan::new(&spec).unwrap());
    for (rows, keys) in [(3_000, 40), (6_000, 5_000), (200, 100_000), (1, 1)] {
        let mut whole = GroupTable::new(Arc::clone(&plan));
        let mut table = GroupTable::new(Arc::clone(&plan));
        let mut spilled = SpilledGroups::create(dir.path()).unwrap();
        for payload in payloads(&mut rng, &spec, rows, keys) {
            whole.merge_payload(&payload).unwrap();
            table.merge_payload(&payload).unwrap();
            if rng.random_bool(0.4) {
                spilled.spill(&table).unwrap();
                table.clear();
            }
        }
        spilled.spill(&table).unwrap();
        let mut expected = Model::new();
        add(&whole, &mut expected);
        // Whatever the ranges are, also within a section.
        let mut cuts: Vec<u32> = (0..rng.random_range(0..40)).map(|_| rng.random_range(1..SLOTS)).collect();
        cuts.extend([0, SLOTS]);
        cuts.sort_unstable();
        cuts.dedup();
        let mut found = Model::new();
        for range in cuts.windows(2) {
            let slots = range[0]..range[1];
            table.clear();
            assert!(spilled.load(&slots, &mut table, u64::MAX).unwrap());
            add(&table, &mut found);
        }
        assert!(found == expected, "{rows} rows of {keys} keys");
        assert!(spilled.bytes() > 0 && spilled.memory_bytes() > 0);
    }
}

#[test]
fn invariant_2_a_range_of_whole_parts_holds_what_was_counted() {
    let (mut rng, spec, dir) = (rng(), spec(), tempfile::tempdir().unwrap());
    let plan = Arc::new(AggPlan::new(&spec).unwrap());
    let mut table = GroupTable::new(Arc::clone(&plan));
    let mut spilled = SpilledGroups::create(dir.path()).unwrap();
    for payload in payloads(&mut rng, &spec, 8_000, 3_000) {
        table.clear();
        table.merge_payload(&payload).unwrap();
        spilled.spill(&table).unwrap();
    }
    for _ in 0..50 {
        let (a, b) = (rng.random_range(0..PARTS), rng.random_range(0..PARTS));
        let slots = a.min(b) * PART..(a.max(b) + 1) * PART;
        table.release();
        let most = spilled.upper_bound(slots.clone());
        let need = table.need(most).most();
        assert!(spilled.load(&slots, &mut table, u64::MAX).unwrap());
        let keys: usize = (0..table.len()).map(|i| table.key(i).len()).sum();
        assert!(table.len() <= most.groups && keys <= most.key_bytes);
        assert!(table.need(IncomingGroups::NONE).most() <= need, "growth was estimated");
    }
}

#[test]
fn ranges_that_fit_are_found_and_one_that_does_not_is_cut_off() {
    let (mut rng, spec, dir) = (rng(), spec(), tempfile::tempdir().unwrap());
    let plan = Arc::new(AggPlan::new(&spec).unwrap());
    let mut table = GroupTable::new(Arc::clone(&plan));
    let mut spilled = SpilledGroups::create(dir.path()).unwrap();
    for payload in payloads(&mut rng, &spec, 10_000, 100_000) {
        table.merge_payload(&payload).unwrap();
    }
    spilled.spill(&table).unwrap();
    let (all, limit) = (table.len(), 100 << 10);
    let (mut next, mut ranges, mut groups) = (0, 0, 0);
    while next < SLOTS {
        table.release();
        let mut end = spilled.extent(next, &table, limit);
        assert!(end > next);
        // A range that ends within a part is estimated, and may hold more.
        while !spilled.load(&(next..end), &mut table, limit).unwrap() {
            table.release();
            assert!(end > next + 1, "a slot has few groups");
            end = next + (end - next) / 2;
        }
        assert_eq!(spilled.extent(end, &table, 0), end, "a table with groups gets nothing that does not fit");
        (next, ranges, groups) = (end, ranges + 1, groups + table.len());
    }
    assert_eq!(groups, all);
    assert!((10..1_000).contains(&ranges), "{ranges} ranges");
    table.release();
    assert!(!spilled.load(&(0..SLOTS), &mut table, limit).unwrap());
    assert!(table.len() < all);
    table.release();
    let least = spilled.extent(0, &table, 1);
    assert!((1..PART).contains(&least), "an empty table gets at least a slot: {least}");
}

#[test]
fn what_was_put_aside_comes_back_as_it_was() {
    let (mut rng, spec, dir) = (rng(), spec(), tempfile::tempdir().unwrap());
    let plan = Arc::new(AggPlan::new(&spec).unwrap());
    let mut table = GroupTable::new(Arc::clone(&plan));
    for payload in payloads(&mut rng, &spec, 3_000, 500) {
        table.merge_payload(&payload).unwrap();
    }
    let mut spilled = SpilledGroups::create(dir.path()).unwrap();
    spilled.spill(&table).unwrap();
    let kept = spilled.keep(&table).unwrap();
    let mut again = GroupTable::new(Arc::clone(&plan));
    spilled.take(&kept, &mut again).unwrap();
    assert_eq!(again.finish(0..again.len()).unwrap(), table.finish(0..table.len()).unwrap());
    let none = spilled.keep(&GroupTable::new(Arc::clone(&plan))).unwrap();
    again.clear();
    spilled.take(&none, &mut again).unwrap();
    assert!(again.is_empty());
}
