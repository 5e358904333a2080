use super::*;
use crate::aggregate::{AggCall, AggSpec, schema_of};
use crate::codec::hash_key;
use crate::split::Splitter;
use arrow_array::cast::AsArray;
use arrow_array::types::{Decimal128Type, Int32Type, Int64Type};
use arrow_array::{Array, Decimal128Array, Float64Array, Int64Array, IntervalYearMonthArray, StringArray};
use arrow_schema::{DataType, Field, IntervalUnit};
use fastchangelog_format::ErrorKind;
use proptest::prelude::*;
use std::slice;

fn call(function: &str, ansi: bool) -> AggCall {
    let (args, filter, ignore_nulls) = (vec![1], None, false);
    AggCall { function: function.into(), args, filter, ignore_nulls, ansi, identity: format!("{function}(v)") }
}

fn spec(arg: &DataType, calls: Vec<(AggCall, DataType)>) -> AggSpec {
    let key = Field::new("k", DataType::Utf8, true);
    let mut output = vec![key.clone()];
    output.extend(calls.iter().map(|(call, t)| Field::new(&call.identity, t.clone(), true)));
    AggSpec::new(
        1,
        schema_of(vec![key, Field::new("v", arg.clone(), true)]),
        schema_of(output),
        calls.into_iter().map(|(call, _)| call).collect(),
    )
}

fn payloads(spec: &AggSpec, key: &str, values: ArrayRef) -> Result<Vec<u8>> {
    let keys: ArrayRef = Arc::new(StringArray::from(vec![key; values.len()]));
    let mut splitter = Splitter::new(spec, 1, 128, 1 << 20)?;
    assert!(splitter.push(&RecordBatch::try_new(Arc::clone(&spec.input), vec![keys, values])?)?.is_empty());
    Ok(splitter.finish()?.remove(0).1)
}

/// One aggregate over values that come in one or in two payloads.
fn results(arg: DataType, call: AggCall, result: DataType, parts: &[ArrayRef]) -> Result<ArrayRef> {
    let spec = spec(&arg, vec![(call, result)]);
    let mut table = GroupTable::new(Arc::new(AggPlan::new(&spec)?));
    for part in parts {
        table.merge_payload(&payloads(&spec, "k", Arc::clone(part))?)?;
    }
    Ok(Arc::clone(table.finish(0..table.len())?.column(1)))
}

fn longs(values: &[i64]) -> ArrayRef {
    Arc::new(Int64Array::from(values.to_vec()))
}

#[test]
fn a_sum_of_longs_overflows_as_in_spark() {
    let (long, max) = (DataType::Int64, i64::MAX);
    for parts in [vec![longs(&[max, 1])], vec![longs(&[max]), longs(&[1])]] {
        let error = results(long.clone(), call("sum", true), long.clone(), &parts).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(error.message().starts_with("[ARITHMETIC_OVERFLOW] long overflow in sum(v)"), "{error}");
        let wrapped = results(long.clone(), call("sum", false), long.clone(), &parts).unwrap();
        assert_eq!(wrapped.as_primitive::<Int64Type>().value(0), i64::MIN);
    }
    let parts = [longs(&[max]), longs(&[max])];
    let avg = results(long, call("avg", true), DataType::Float64, &parts).unwrap();
    assert_eq!(avg.as_primitive::<arrow_array::types::Float64Type>().value(0), 9.223_372_036_854_776e18);
}

#[test]
fn a_sum_of_decimals_overflows_for_good() {
    let wide = DataType::Decimal128(38, 0);
    let decimals = |values: &[i128]| -> ArrayRef {
        Arc::new(Decimal128Array::from(values.to_vec()).with_precision_and_scale(38, 0).unwrap())
    };
    let most = 10i128.pow(38) - 1;
    // The sum comes back below the limit, but Spark's buffer was null by then.
    for parts in [
        vec![decimals(&[most, 1, -5])],
        vec![decimals(&[most]), decimals(&[1]), decimals(&[-5])],
        vec![decimals(&[-5]), decimals(&[most, 1])],
    ] {
        let error = results(wide.clone(), call("sum", true), wide.clone(), &parts).unwrap_err();
        assert!(error.message().starts_with("[ARITHMETIC_OVERFLOW] Overflow in sum of decimals"), "{error}");
        let error = results(wide.clone(), call("avg", true), wide.clone(), &parts).unwrap_err();
        assert!(error.message().starts_with("[ARITHMETIC_OVERFLOW]"), "{error}");
        for function in ["sum", "avg"] {
            let array = results(wide.clone(), call(function, false), wide.clone(), &parts).unwrap();
            assert!(array.is_null(0), "{function}");
        }
    }
    let sum = results(wide.clone(), call("sum", true), wide.clone(), &[decimals(&[most]), decimals(&[-1])]).unwrap();
    assert_eq!(sum.as_primitive::<Decimal128Type>().value(0), most - 1);
    assert_eq!(sum.data_type(), &wide);
    // The sum fits, the average with its added decimals does not.
    let avg = DataType::Decimal128(38, 4);
    let over = results(wide.clone(), call("avg", false), avg.clone(), &[decimals(&[most])]).unwrap();
    assert!(over.is_null(0));
    let error = results(wide, call("avg", true), avg, &[decimals(&[most])]).unwrap_err();
    assert!(error.message().starts_with("[NUMERIC_VALUE_OUT_OF_RANGE"), "{error}");
}

#[test]
fn intervals_of_months_stay_in_their_range() {
    let months = DataType::Interval(IntervalUnit::YearMonth);
    let array = |values: &[i32]| -> ArrayRef { Arc::new(IntervalYearMonthArray::from(values.to_vec())) };
    let sum = results(months.clone(), call("sum", true), months.clone(), &[array(&[7, 8])]).unwrap();
    assert_eq!(sum.data_type(), &months);
    for parts in [vec![array(&[i32::MAX, 1])], vec![array(&[i32::MAX]), array(&[1])]] {
        for function in ["sum", "avg"] {
            let error = results(months.clone(), call(function, false), months.clone(), &parts).unwrap_err();
            assert!(error.message().starts_with("[INTERVAL_ARITHMETIC_OVERFLOW]"), "{error}");
        }
    }
    let avg = results(months.clone(), call("avg", true), months, &[array(&[1, 2])]).unwrap();
    let avg = arrow_array::make_array(avg.to_data().into_builder().data_type(DataType::Int32).build().unwrap());
    assert_eq!(avg.as_primitive::<Int32Type>().value(0), 2);
}

#[test]
fn of_equal_zeros_the_earlier_stays() {
    let double = DataType::Float64;
    let array = |values: &[f64]| -> ArrayRef { Arc::new(Float64Array::from(values.to_vec())) };
    for parts in [vec![array(&[-0.0, 0.0])], vec![array(&[-0.0]), array(&[0.0])]] {
        for function in ["min", "max"] {
            let value = results(double.clone(), call(function, true), double.clone(), &parts).unwrap();
            assert!(value.as_primitive::<arrow_array::types::Float64Type>().value(0).is_sign_negative());
        }
    }
    let parts = [array(&[f64::NAN]), array(&[f64::INFINITY])];
    let max = results(double.clone(), call("max", true), double.clone(), &parts).unwrap();
    assert!(max.as_primitive::<arrow_array::types::Float64Type>().value(0).is_nan());
    let min = results(double.clone(), call("min", true), double, &parts).unwrap();
    assert!(min.as_primitive::<arrow_array::types::Float64Type>().value(0).is_infinite());
}

fn text_spec() -> AggSpec {
    let calls = ["count", "min", "first", "max_by"].map(|function| {
        let mut call = call(function, true);
        if function == "max_by" {
            call.args = vec![1, 1];
        }
        (call, if function == "count" { DataType::Int64 } else { DataType::Utf8 })
    });
    spec(&DataType::Utf8, calls.to_vec())
}

fn texts(values: &[&str]) -> ArrayRef {
    Arc::new(StringArray::from(values.to_vec()))
}

#[test]
fn a_base_that_changes_nothing_is_told() {
    let spec = spec(&DataType::Utf8, vec![(call("max", true), DataType::Utf8)]);
    let plan = Arc::new(AggPlan::new(&spec).unwrap());
    let mut table = GroupTable::new(Arc::clone(&plan));
    let mut scratch = vec![];
    table.merge_payload(&payloads(&spec, "k", texts(&["b"])).unwrap()).unwrap();
    assert!(table.combine_base(0, None).unwrap());
    let row = table.row(0, &mut scratch).to_vec();
    assert!(!table.combine_base(0, Some(&row)).unwrap());
    let mut greater = GroupTable::new(plan);
    greater.merge_payload(&payloads(&spec, "k", texts(&["c"])).unwrap()).unwrap();
    assert!(greater.combine_base(0, Some(&row)).unwrap());
    assert_eq!(greater.finish(0..1).unwrap().column(1).as_string::<i32>().value(0), "c");
    for len in 0..row.len() {
        assert_eq!(greater.combine_base(0, Some(&row[..len])).unwrap_err().kind(), ErrorKind::Corrupt);
    }
}

#[test]
fn groups_finish_in_chunks() {
    let spec = text_spec();
    let mut table = GroupTable::new(Arc::new(AggPlan::new(&spec).unwrap()));
    for key in ["x", "y", "x", "z"] {
        let merged = table.merge_payload(&payloads(&spec, key, texts(&["1", "2"])).unwrap()).unwrap();
        assert_eq!(merged, Merged { partial_rows: 1, input_rows: 2 });
    }
    assert_eq!(table.len(), 3);
    assert!(table.memory_bytes() > 0);
    let all = table.finish(0..3).unwrap();
    assert_eq!(all.schema(), spec.output);
    assert_eq!(all.column(0).as_string::<i32>(), &StringArray::from(vec!["x", "y", "z"]));
    assert_eq!(all.column(1).as_primitive::<Int64Type>(), &Int64Array::from(vec![4, 2, 2]));
    assert_eq!(table.finish(1..2).unwrap(), all.slice(1, 1));
    assert_eq!(table.finish(3..3).unwrap().num_rows(), 0);
    for (i, group) in table.groups().enumerate() {
        assert_eq!((group.hash, group.key), (hash_key(table.key(i)), table.key(i)));
    }
    table.clear();
    assert!(table.is_empty());
    table.merge_payload(&payloads(&spec, "z", texts(&["9"])).unwrap()).unwrap();
    assert_eq!(table.finish(0..1).unwrap().column(2).as_string::<i32>().value(0), "9");
}

#[test]
fn a_payload_of_another_aggregation_is_refused() {
    let spec = text_spec();
    let payload = payloads(&spec, "k", texts(&["a"])).unwrap();
    let other = self::spec(&DataType::Utf8, vec![(call("max", true), DataType::Utf8)]);
    let mut table = GroupTable::new(Arc::new(AggPlan::new(&other).unwrap()));
    assert_eq!(table.merge_payload(&payload).unwrap_err().kind(), ErrorKind::SchemaMismatch);
}

/// P9 for payloads.
#[test]
fn a_damaged_payload_is_corrupt() {
    let spec = text_spec();
    let payload = payloads(&spec, "k", texts(&["a", "b"])).unwrap();
    let mut table = GroupTable::new(Arc::new(AggPlan::new(&spec).unwrap()));
    for len in 0..payload.len() {
        assert_eq!(table.merge_payload(&payload[..len]).unwrap_err().kind(), ErrorKind::Corrupt);
    }
    for i in 0..payload.len() {
        let mut damaged = payload.clone();
        damaged[i] ^= 1 << (i % 8);
        assert_eq!(table.merge_payload(&damaged).unwrap_err().kind(), ErrorKind::Corrupt);
    }
    assert!(table.is_empty());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    /// Bytes that were made wrongly, with a checksum that says they are right, do no harm either.
    #[test]
    fn a_forged_payload_is_an_error_or_rows(at in any::<prop::sample::Index>(), byte in any::<u8>(), cut in 0usize..3) {
        let spec = text_spec();
        let payload = payloads(&spec, "k", texts(&["a", "b"])).unwrap();
        let mut forged = payload[..payload.len() - 8].to_vec();
        let at = at.index(forged.len());
        forged[at] = byte;
        if cut == 0 {
            forged.truncate(at);
        }
        let crc = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, &forged);
        forged.extend_from_slice(b"FCP1");
        forged.extend_from_slice(&u32::try_from(crc).unwrap().to_le_bytes());
        let mut table = GroupTable::new(Arc::new(AggPlan::new(&spec).unwrap()));
        if table.merge_payload(&forged).is_ok() {
            let _ = table.finish(0..table.len());
        }
    }
}

#[test]
fn a_global_aggregate_has_one_group() {
    let input = schema_of(vec![Field::new("v", DataType::Int64, true)]);
    let output = schema_of(vec![Field::new("n", DataType::Int64, true)]);
    let aggs = vec![AggCall { args: vec![0], ..call("sum", true) }];
    let spec = AggSpec::new(0, Arc::clone(&input), output, aggs);
    let mut table = GroupTable::new(Arc::new(AggPlan::new(&spec).unwrap()));
    for part in [longs(&[1, 2]), longs(&[4])] {
        let mut splitter = Splitter::new(&spec, 1, 128, 100).unwrap();
        splitter.push(&RecordBatch::try_new(Arc::clone(&input), vec![part]).unwrap()).unwrap();
        for (_, payload) in splitter.finish().unwrap() {
            table.merge_payload(&payload).unwrap();
        }
    }
    assert_eq!((table.len(), table.key(0)), (1, &b""[..]));
    let result = table.finish(0..1).unwrap();
    assert_eq!(slice::from_ref(result.column(0).as_primitive::<Int64Type>().values().first().unwrap()), &[7]);
}
