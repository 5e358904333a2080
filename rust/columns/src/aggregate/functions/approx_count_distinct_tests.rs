use crate::aggregate::function_tests::{plan, result};
use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{Array, ArrayRef, Float64Array, Int64Array};
use arrow_schema::{DataType, IntervalUnit};
use proptest::prelude::*;
use std::collections::HashSet;
use std::sync::Arc;

fn numbers(values: &[Option<i64>]) -> ArrayRef {
    Arc::new(Int64Array::from(values.to_vec()))
}

fn deviation(value: f64, rows: usize) -> ArrayRef {
    Arc::new(Float64Array::from(vec![value; rows]))
}

fn count(arguments: &[ArrayRef], cuts: &[usize]) -> i64 {
    let found = result("approx_count_distinct", arguments, cuts, true).unwrap();
    assert_eq!(found.null_count(), 0);
    found.as_primitive::<Int64Type>().value(0)
}

proptest! {
    #[test]
    fn any_split_gives_one_estimate(
        values in prop::collection::vec(prop::option::of(-2000i64..2000), 1..400),
        cuts in prop::collection::vec(any::<usize>(), 0..6),
    ) {
        let distinct = values.iter().flatten().collect::<HashSet<_>>().len();
        let column = numbers(&values);
        for rsd in [0.01, 0.05, 0.39] {
            let arguments = [Arc::clone(&column), deviation(rsd, values.len())];
            let found = count(&arguments, &cuts);
            prop_assert_eq!(found, count(&arguments, &[]));
            let wrong = (found - i64::try_from(distinct).unwrap()).abs() as f64;
            prop_assert!(wrong <= 1.0 + 5.0 * rsd * distinct as f64, "{found} of {distinct} by {rsd}");
        }
        prop_assert_eq!(count(&[Arc::clone(&column)], &cuts), count(&[column, deviation(0.05, values.len())], &[]));
    }
}

#[test]
fn no_values_are_none_and_panes_join_them_in_any_order() {
    assert_eq!(count(&[numbers(&[None, None])], &[1]), 0);
    assert!(plan("approx_count_distinct", &[DataType::Utf8], true).unwrap().any_order());
}

#[test]
fn what_has_no_hash_and_no_precision_is_refused() {
    assert!(plan("approx_count_distinct", &[DataType::Interval(IntervalUnit::MonthDayNano)], true).is_err());
    for wrong in [0.5, 0.001, 0.0, -1.0, f64::NAN] {
        let arguments = [numbers(&[Some(1)]), deviation(wrong, 1)];
        let error = result("approx_count_distinct", &arguments, &[], true).unwrap_err();
        assert!(error.to_string().contains("the relative deviation is"), "{error}");
    }
}
