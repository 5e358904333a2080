use crate::aggregate::function_tests::{plan, result};
use arrow_array::builder::{Float64Builder, ListBuilder};
use arrow_array::cast::AsArray;
use arrow_array::types::{Date32Type, Decimal128Type, Int64Type};
use arrow_array::{Array, ArrayRef, Date32Array, Decimal128Array, Float64Array, Int64Array};
use arrow_schema::DataType;
use proptest::prelude::*;
use std::sync::Arc;

fn constant(value: f64, rows: usize) -> ArrayRef {
    Arc::new(Float64Array::from(vec![value; rows]))
}

fn accuracy(value: i64, rows: usize) -> ArrayRef {
    Arc::new(Int64Array::from(vec![value; rows]))
}

proptest! {
    #[test]
    fn any_split_gives_one_of_the_values_near_the_rank(
        values in prop::collection::vec(prop::option::of(-50i64..50), 1..300),
        fraction in 0.0f64..=1.0,
        cuts in prop::collection::vec(any::<usize>(), 0..6),
    ) {
        let column: ArrayRef = Arc::new(Int64Array::from(values.clone()));
        let rows = values.len();
        let mut sorted: Vec<i64> = values.into_iter().flatten().collect();
        sorted.sort_unstable();
        let exact = [Arc::clone(&column), constant(fraction, rows)];
        let found = result("percentile_approx", &exact, &cuts, true).unwrap();
        let found = found.as_primitive::<Int64Type>();
        prop_assert_eq!(found.is_null(0), sorted.is_empty());
        if !sorted.is_empty() {
            let rank = (fraction * sorted.len() as f64).ceil() as usize;
            prop_assert_eq!(found.value(0), sorted[rank.max(1) - 1]);
            let rough = [column, constant(fraction, rows), accuracy(10, rows)];
            let found = result("percentile_approx", &rough, &cuts, true).unwrap().as_primitive::<Int64Type>().value(0);
            prop_assert!(sorted.contains(&found));
            let (first, last) = (sorted.partition_point(|v| *v < found), sorted.partition_point(|v| *v <= found));
            let (wanted, error) = (fraction * sorted.len() as f64, 1.0 + 0.2 * sorted.len() as f64);
            prop_assert!(first as f64 - error <= wanted && wanted <= last as f64 + error, "{found} at {fraction}");
        }
    }
}

#[test]
fn results_have_the_type_of_the_argument() {
    let days: ArrayRef = Arc::new(Date32Array::from(vec![Some(3), None, Some(-7)]));
    let mut lists = ListBuilder::new(Float64Builder::new());
    (0..3).for_each(|_| lists.append_value([Some(1.0), Some(0.0)]));
    let found = result("percentile_approx", &[days, Arc::new(lists.finish())], &[2], true).unwrap();
    assert_eq!(found.as_list::<i32>().value(0).as_primitive::<Date32Type>().values(), &[3, -7]);
    let prices = Decimal128Array::from(vec![125, 350]).with_precision_and_scale(9, 2).unwrap();
    let found = result("percentile_approx", &[Arc::new(prices), constant(0.5, 2)], &[], true).unwrap();
    assert_eq!(found.as_primitive::<Decimal128Type>().value(0), 125);
    assert!(plan("percentile_approx", &[DataType::Boolean, DataType::Float64], true).is_err());
    assert!(plan("percentile_approx", &[DataType::Int64, DataType::Utf8], true).is_err());
}

#[test]
fn many_values_are_kept_in_few_samples() {
    let rows = 120_000;
    let values: ArrayRef = Arc::new(Int64Array::from_iter_values((0..rows).map(|i| i * 7919 % rows)));
    let rows = usize::try_from(rows).unwrap();
    let arguments = [values, constant(0.25, rows), accuracy(100, rows)];
    let found = result("percentile_approx", &arguments, &[70_000], true).unwrap().as_primitive::<Int64Type>().value(0);
    assert!((found - 30_000).abs() <= 1_200, "{found}");
}
