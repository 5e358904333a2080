//! The bytes of stored rows: rows of yesterday must be readable.
//!
//! `row_golden.txt` has the description and the row of each function over each type that it takes. A new function adds
//! lines; a changed line is a changed format.

use super::{AggCall, AggPlan, AggSpec, AggregateFunction, Argument, schema_of};
use crate::table::GroupTable;
use arrow_array::{Array, ArrayRef, Int64Array, RecordBatch, StructArray};
use arrow_schema::{DataType, Field, Fields, IntervalUnit, TimeUnit};
use std::fmt::Write;
use std::sync::Arc;

/// The same four values in each type: 5, null, −3, 7.
fn column(data_type: &DataType) -> ArrayRef {
    let values: ArrayRef = Arc::new(Int64Array::from(vec![Some(5), None, Some(-3), Some(7)]));
    let cast = |via: &DataType| arrow_cast::cast(&values, via).unwrap();
    match data_type {
        DataType::Binary => arrow_cast::cast(&cast(&DataType::Utf8), data_type).unwrap(),
        DataType::Date32 | DataType::Interval(_) => arrow_cast::cast(&cast(&DataType::Int32), data_type).unwrap(),
        DataType::Struct(fields) => {
            Arc::new(StructArray::new(fields.clone(), vec![cast(&DataType::Int32)], values.nulls().cloned()))
        }
        other => cast(other),
    }
}

fn types() -> Vec<DataType> {
    vec![
        DataType::Boolean,
        DataType::Int8,
        DataType::Int16,
        DataType::Int32,
        DataType::Int64,
        DataType::Float32,
        DataType::Float64,
        DataType::Decimal128(10, 2),
        DataType::Decimal128(38, 10),
        DataType::Utf8,
        DataType::Binary,
        DataType::Date32,
        DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into())),
        DataType::Duration(TimeUnit::Microsecond),
        DataType::Interval(IntervalUnit::YearMonth),
        DataType::Struct(Fields::from(vec![Field::new("a", DataType::Int32, true)])),
    ]
}

/// Description and row of one call over the golden column of a type; none if the function does not take it.
fn line(function: &str, args: &[usize], ignore_nulls: bool, data_type: &DataType) -> Option<String> {
    let call = AggCall {
        function: function.into(),
        args: args.into(),
        filter: None,
        ignore_nulls,
        ansi: true,
        identity: "call".into(),
    };
    let fields = vec![
        Field::new("k", DataType::Int64, true),
        Field::new("v", data_type.clone(), true),
        Field::new("o", DataType::Int64, true),
        Field::new("p", DataType::Float64, true),
    ];
    let input: Vec<DataType> = fields.iter().map(|field| field.data_type().clone()).collect();
    let result = AggPlan::result_types(&input, std::slice::from_ref(&call)).ok()?.remove(0);
    let output = schema_of(vec![Field::new("k", DataType::Int64, true), Field::new("r", result, true)]);
    let spec = AggSpec::new(1, schema_of(fields), output, vec![call]);
    let plan = Arc::new(AggPlan::new(&spec).unwrap());
    let keys: ArrayRef = Arc::new(Int64Array::from(vec![1; 4]));
    let columns = vec![keys, column(data_type), column(&DataType::Int64), column(&DataType::Float64)];
    let mut table = GroupTable::new(Arc::clone(&plan));
    table.fold_rows(&RecordBatch::try_new(Arc::clone(&spec.input), columns).unwrap()).unwrap();
    let mut scratch = Vec::new();
    let mut hex = String::new();
    for byte in table.row(0, &mut scratch) {
        write!(hex, "{byte:02x}").unwrap();
    }
    let aggregate = plan.schema().split_once("\"aggregates\":").unwrap().1;
    Some(format!("{} {hex}\n", aggregate.trim_end_matches('}')))
}

#[test]
fn rows_and_descriptions_have_their_golden_bytes() {
    let mut text = String::new();
    for function in AggregateFunction::ALL {
        let place = |(i, kind): (usize, &Argument)| if *kind == Argument::Percentages { 3 } else { i + 1 };
        let args: Vec<usize> = function.arguments.iter().enumerate().map(place).collect();
        let mut calls = vec![(args.clone(), false)];
        calls.extend(function.more.map(|_| (vec![1], false)));
        calls.extend(function.ignores_nulls.then_some((args, true)));
        for (args, ignore_nulls) in calls {
            let types = if args.is_empty() { vec![DataType::Int64] } else { types() };
            for data_type in types {
                text += &line(function.name, &args, ignore_nulls, &data_type).unwrap_or_default();
            }
        }
    }
    assert!(text == include_str!("row_golden.txt"), "stored rows changed; they are:\n{text}");
}
