use super::*;
use crate::state::aggregate::{AggCall, AggSpec};
use crate::state::split::Splitter;
use arrow_array::{ArrayRef, RecordBatch, StringArray};
use arrow_schema::{DataType, Field, Schema};

/// Rows of each result batch of 80 keys whose values have `bytes` each.
fn batches(bytes: usize, rows: usize) -> Vec<usize> {
    let (key, value) = (Field::new("k", DataType::Utf8, true), Field::new("v", DataType::Utf8, true));
    let call = AggCall {
        function: "max".into(),
        args: vec![1],
        filter: None,
        ignore_nulls: false,
        ansi: false,
        identity: "max(v)".into(),
    };
    let spec = AggSpec {
        num_keys: 1,
        input: Arc::new(Schema::new(vec![key.clone(), value.clone()])),
        output: Arc::new(Schema::new(vec![key, value.with_name("max(v)")])),
        aggs: vec![call],
    };
    let mut session = Session::ephemeral(Arc::new(AggPlan::new(&spec).unwrap()), rows);
    let mut splitter = Splitter::new(&spec, 1, 128, 4 << 20).unwrap();
    let mut payloads = vec![];
    for i in 0..80 {
        let columns: Vec<ArrayRef> = vec![
            Arc::new(StringArray::from(vec![format!("key {i}")])),
            Arc::new(StringArray::from(vec!["x".repeat(bytes)])),
        ];
        payloads.extend(splitter.push(&RecordBatch::try_new(Arc::clone(&spec.input), columns).unwrap()).unwrap());
    }
    payloads.extend(splitter.finish().unwrap());
    for (_, payload) in payloads {
        session.merge(&payload).unwrap();
    }
    session.finish().unwrap().map(|batch| batch.unwrap().num_rows()).collect()
}

#[test]
fn a_result_batch_of_wide_rows_ends_by_its_bytes() {
    assert_eq!(batches(1 << 20, 65_536), [31, 31, 18], "32 MiB each");
    assert_eq!(batches(1 << 10, 65_536), [80]);
    assert_eq!(batches(1 << 10, 50), [50, 30], "the option `result_batch_rows` still holds");
}
