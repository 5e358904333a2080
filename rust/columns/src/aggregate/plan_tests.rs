use super::*;
use crate::aggregate::{schema_difference, schema_of};
use arrow_schema::{Field, IntervalUnit, TimeUnit};
use fastchangelog_format::ErrorKind;

fn call(function: &str, args: &[usize]) -> AggCall {
    let identity = format!("{function}({args:?})");
    AggCall { function: function.into(), args: args.into(), filter: None, ignore_nulls: false, ansi: true, identity }
}

fn plan(key: DataType, args: &[DataType], calls: Vec<(AggCall, DataType)>) -> Result<AggPlan> {
    let mut input = vec![Field::new("k", key.clone(), true)];
    input.extend(args.iter().map(|t| Field::new("v", t.clone(), true)));
    let mut output = vec![Field::new("k", key, true)];
    output.extend(calls.iter().map(|(_, t)| Field::new("r", t.clone(), true)));
    let aggs = calls.into_iter().map(|(call, _)| call).collect();
    AggPlan::new(&AggSpec::new(1, schema_of(input), schema_of(output), aggs))
}

fn one(function: &str, arg: DataType, result: DataType) -> Result<AggPlan> {
    plan(DataType::Int64, &[arg], vec![(call(function, &[1]), result)])
}

#[test]
fn unsupported_types_are_refused_by_name() {
    let map = DataType::Map(
        std::sync::Arc::new(Field::new(
            "entries",
            DataType::Struct(Fields::from(vec![
                Field::new("key", DataType::Utf8, false),
                Field::new("value", DataType::Int32, true),
            ])),
            false,
        )),
        false,
    );
    for (function, arg, says) in [
        ("sum", DataType::Utf8, "string"),
        ("avg", DataType::Boolean, "boolean"),
        ("min", map.clone(), "map<string,int>"),
        ("max", DataType::Interval(IntervalUnit::MonthDayNano), "interval"),
        ("bool_and", DataType::Int32, "int"),
        ("median", DataType::Int32, "median"),
    ] {
        let error = one(function, arg.clone(), arg).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(error.message().contains(&format!("{function}([1])")) && error.message().contains(says), "{error}");
    }
    one("first", map.clone(), map.clone()).unwrap();
    one("last", DataType::Interval(IntervalUnit::MonthDayNano), DataType::Interval(IntervalUnit::MonthDayNano))
        .unwrap();
    let by = (call("max_by", &[1, 2]), DataType::Int32);
    let error = plan(DataType::Int64, &[DataType::Int32, map], vec![by]).unwrap_err();
    assert!(error.message().contains("max_by(int, map<string,int>)"), "{error}");
}

#[test]
fn wrong_shapes_are_refused() {
    assert!(one("sum", DataType::Int32, DataType::Int32).unwrap_err().message().contains("declared int"));
    let filtered = AggCall { filter: Some(1), ..call("count", &[]) };
    let error = plan(DataType::Int64, &[DataType::Int32], vec![(filtered, DataType::Int64)]).unwrap_err();
    assert!(error.message().contains("must be boolean"));
    for bad in [call("sum", &[]), call("sum", &[9]), call("max_by", &[1])] {
        plan(DataType::Int64, &[DataType::Int32], vec![(bad, DataType::Int64)]).unwrap_err();
    }
    let input = schema_of(vec![Field::new("k", DataType::Int32, true)]);
    let output = schema_of(vec![Field::new("k", DataType::Int64, true)]);
    AggPlan::new(&AggSpec::new(1, input.clone(), output, vec![])).unwrap_err();
    AggPlan::new(&AggSpec::new(2, input.clone(), input, vec![])).unwrap_err();
}

#[test]
fn schema_id_minds_types_and_identities_not_order_nor_time_zone() {
    let zoned = |zone: &str| DataType::Timestamp(TimeUnit::Microsecond, Some(zone.into()));
    let args = [DataType::Int32, DataType::Float64];
    let sum = || (call("sum", &[1]), DataType::Int64);
    let avg = || (call("avg", &[2]), DataType::Float64);
    let a = plan(zoned("UTC"), &args, vec![sum(), avg()]).unwrap();
    let b = plan(zoned("Asia/Tokyo"), &args, vec![avg(), sum()]).unwrap();
    assert_eq!((a.schema_id(), a.schema(), a.shape()), (b.schema_id(), b.schema(), b.shape()));
    assert_eq!((a.ops[0].slots.at, a.ops[1].slots.at), (b.ops[1].slots.at, b.ops[0].slots.at));
    assert_eq!(schema_difference(a.schema(), b.schema()), None);

    let other = plan(DataType::Int64, &args, vec![sum(), avg()]).unwrap();
    assert_ne!(a.schema_id(), other.schema_id());
    let said = schema_difference(a.schema(), other.schema()).unwrap();
    assert_eq!(said, "key types changed from (timestamp) to (bigint)");
    let off = AggCall { ansi: false, ..call("sum", &[1]) };
    let off = plan(zoned("UTC"), &args, vec![(off, DataType::Int64), avg()]).unwrap();
    assert_ne!(a.schema_id(), off.schema_id());
    let off = AggCall { ansi: false, ..call("avg", &[2]) };
    let off = plan(zoned("UTC"), &args, vec![sum(), (off, DataType::Float64)]).unwrap();
    assert_eq!(a.schema_id(), off.schema_id(), "the mode does not matter to an average of doubles");
}

#[test]
fn rows_of_fixed_slots_have_one_width() {
    let calls = vec![(call("count", &[]), DataType::Int64), (call("sum", &[1]), DataType::Int64)];
    assert_eq!(plan(DataType::Int64, &[DataType::Int32], calls).unwrap().row_width(), Some(17));
    assert_eq!(one("max", DataType::Utf8, DataType::Utf8).unwrap().row_width(), None);
    assert_eq!(plan(DataType::Int64, &[], vec![]).unwrap().row_width(), Some(1));
}
