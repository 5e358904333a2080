use super::*;
use crate::aggregate::AggregateFunction;
use arrow_array::types::Int64Type;
use arrow_array::{BooleanArray, Decimal128Array, Float64Array, Int64Array, StringArray};
use arrow_schema::Field;
use fastchangelog_format::ErrorKind;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

fn call(function: &str, args: &[&str]) -> NamedCall {
    NamedCall {
        function: function.into(),
        args: args.iter().map(|name| (*name).into()).collect(),
        filter: None,
        ignore_nulls: false,
        name: Some(format!("{function} of {}", args.join(" and "))),
        identity: format!("{function}({})", args.join(", ")),
    }
}

fn fields() -> Fields {
    vec![
        Field::new("unused", DataType::Utf8View, true),
        Field::new("long", DataType::Int64, true),
        Field::new("double", DataType::Float64, true),
        Field::new("decimal", DataType::Decimal128(10, 2), true),
        Field::new("text", DataType::Utf8, true),
        Field::new("truth", DataType::Boolean, true),
    ]
    .into()
}

/// A call of every function, over columns that it takes, and each with a condition, too.
fn every_call() -> Vec<NamedCall> {
    let mut calls =
        vec![call("count", &[]), call("sum", &["decimal"]), call("avg", &["decimal"]), call("max", &["text"])];
    // The number of bins of a histogram is a constant, and no column here is one.
    for function in AggregateFunction::ALL.iter().filter(|function| function.name != "histogram_numeric") {
        let arguments = function.arguments.len().max(1);
        let candidates = ["long", "truth", "double", "text"].map(|name| call(function.name, &vec![name; arguments]));
        let fits = |call: &NamedCall| Accumulators::new(&fields(), std::slice::from_ref(call), true).is_ok();
        calls.push(candidates.into_iter().find(fits).expect(function.name));
    }
    let filtered = calls.clone().into_iter().map(|call| NamedCall {
        filter: Some("truth".into()),
        name: call.name.map(|name| format!("{name} where truth")),
        identity: format!("{} WHERE truth", call.identity),
        ..call
    });
    calls.extend(filtered.collect::<Vec<_>>());
    calls
}

/// Rows of the columns that `own` takes.
fn rows(own: &Accumulators, rng: &mut StdRng, count: usize) -> StructArray {
    let mut some = |make: &mut dyn FnMut(&mut StdRng) -> i64| -> Vec<Option<i64>> {
        (0..count).map(|_| rng.random_bool(0.8).then(|| make(rng))).collect()
    };
    let mut small = || some(&mut |rng| rng.random_range(-9..9));
    // Small multiples of 0.5: any order of additions gives the same sum.
    let doubles: Float64Array =
        small().into_iter().map(|v| v.map(|v| f64::from(i32::try_from(v).unwrap()) / 2.0)).collect();
    let decimals: Decimal128Array = small().into_iter().map(|v| v.map(i128::from)).collect();
    let all: [ArrayRef; 6] = [
        Arc::new(StringArray::from(vec!["?"; count])),
        Arc::new(small().into_iter().collect::<Int64Array>()),
        Arc::new(doubles),
        Arc::new(decimals.with_precision_and_scale(10, 2).unwrap()),
        Arc::new(small().into_iter().map(|v| v.map(|v| format!("text {v}"))).collect::<StringArray>()),
        Arc::new(small().into_iter().map(|v| v.map(|v| v > 0)).collect::<BooleanArray>()),
    ];
    let columns = own.columns().iter().map(|i| Arc::clone(&all[*i])).collect();
    let fields: Fields = own.columns().iter().map(|i| Arc::clone(&fields()[*i])).collect();
    StructArray::try_new_with_length(fields, columns, None, count).unwrap()
}

fn random_groups(rng: &mut StdRng, rows: usize, count: u32) -> UInt32Array {
    (0..rows).map(|_| Some(rng.random_range(0..count))).collect()
}

#[test]
fn invariant_1_folds_go_on_from_stored_accumulators() {
    // Without moments: they differ in their last bits with the places of the splits.
    let calls: Vec<_> = every_call().into_iter().filter(|call| !is_statistic(&call.function)).collect();
    let own = Accumulators::new(&fields(), &calls, true).unwrap();
    let rng = &mut StdRng::seed_from_u64(5);
    for count in [1, 7] {
        let parts: Vec<_> = (0..4).map(|size| rows(&own, rng, size * 9)).collect();
        let groups: Vec<_> = parts.iter().map(|part| random_groups(rng, part.len(), count)).collect();
        let mut stored = BinaryArray::new_null(count as usize);
        for (part, groups) in parts.iter().zip(&groups) {
            stored = own.fold(&stored, groups, part).unwrap();
        }
        let whole =
            arrow_select::concat::concat(&parts.iter().map(|part| part as &dyn Array).collect::<Vec<_>>()).unwrap();
        let numbers: Vec<&dyn Array> = groups.iter().map(|groups| groups as &dyn Array).collect();
        let numbers = arrow_select::concat::concat(&numbers).unwrap();
        let at_once = own.aggregate(count as usize, numbers.as_primitive(), whole.as_struct()).unwrap();
        assert_eq!(own.results(&stored).unwrap().as_ref(), at_once.as_ref());
    }
}

fn is_statistic(function: &str) -> bool {
    ["var", "stddev", "skewness", "kurtosis", "covar", "corr"].iter().any(|name| function.starts_with(name))
}

#[test]
fn invariant_2_a_null_has_null_results() {
    let own = Accumulators::new(&fields(), &every_call(), true).unwrap();
    let rng = &mut StdRng::seed_from_u64(6);
    let stored = own.fold(&BinaryArray::new_null(1), &UInt32Array::from(vec![0; 5]), &rows(&own, rng, 5)).unwrap();
    let stored: BinaryArray = [None, Some(stored.value(0)), None].into_iter().collect();
    let found = own.results(&stored).unwrap();
    assert_eq!(found.nulls().unwrap().iter().collect::<Vec<_>>(), [false, true, false]);
    assert!(found.as_struct().columns().iter().all(|column| column.is_null(0) && column.is_null(2)));
    assert!(found.as_struct().column(0).is_valid(1));
}

#[test]
fn results_of_some_functions_are_their_accumulators() {
    let functions = [("count", "text"), ("sum", "long"), ("sum", "double"), ("sum", "decimal"), ("min", "long")];
    let more = [("max", "text"), ("bool_and", "truth"), ("bool_or", "truth"), ("bit_xor", "long")];
    let calls: Vec<_> = functions.into_iter().chain(more).map(|(function, arg)| call(function, &[arg])).collect();
    let own = Accumulators::new(&fields(), &calls, true).unwrap();
    assert!(own.can_rebuild());
    let rng = &mut StdRng::seed_from_u64(7);
    let groups = random_groups(rng, 40, 12);
    let stored = own.fold(&BinaryArray::new_null(12), &groups, &rows(&own, rng, 40)).unwrap();
    assert_eq!(own.rebuild(&own.results(&stored).unwrap()).unwrap(), stored, "byte by byte");
    let nothing = own.results(&BinaryArray::new_null(2)).unwrap();
    assert_eq!(own.rebuild(&nothing).unwrap(), BinaryArray::new_null(2));
    for function in ["avg", "first", "var_samp"] {
        let other = Accumulators::new(&fields(), &[call(function, &["long"])], true).unwrap();
        assert!(!other.can_rebuild(), "{function}");
        let results = other.results(&BinaryArray::new_null(1)).unwrap();
        assert_eq!(other.rebuild(&results).unwrap_err().kind(), ErrorKind::Internal);
    }
}

#[test]
fn a_count_of_rows_takes_no_column() {
    let own = Accumulators::new(&fields(), &[call("count", &[])], true).unwrap();
    assert!(own.columns().is_empty());
    let none = StructArray::new_empty_fields(0, None);
    let found = own.aggregate(2, &UInt32Array::from(vec![1, 0, 1]), &none).unwrap();
    assert_eq!(found.as_struct().column(0).as_primitive::<Int64Type>().values(), &[1, 2]);
}

#[test]
fn what_does_not_fit_is_refused() {
    let own = Accumulators::new(&fields(), &[call("sum", &["long"])], true).unwrap();
    let given = rows(&own, &mut StdRng::seed_from_u64(8), 2);
    let none = BinaryArray::new_null(1);
    for groups in [vec![Some(0)], vec![Some(0), Some(1)], vec![Some(0), None]] {
        let error = own.fold(&none, &UInt32Array::from(groups), &given).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    }
    let groups = UInt32Array::from(vec![0, 0]);
    let error = own.fold(&BinaryArray::from_vec(vec![b"?"]), &groups, &given).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    let empty = StructArray::new_empty_fields(2, None);
    assert_eq!(own.fold(&none, &groups, &empty).unwrap_err().kind(), ErrorKind::InvalidArgument);
    let error = Accumulators::new(&fields(), &[call("sum", &["none"])], true).unwrap_err();
    assert!(error.message().contains("rows have no column `none`; they have: unused, long,"), "{error}");
}
