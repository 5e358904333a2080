use crate::aggregate::function_tests::{plan, result};
use arrow_array::builder::{Float64Builder, ListBuilder};
use arrow_array::cast::AsArray;
use arrow_array::types::Float64Type;
use arrow_array::{Array, ArrayRef, Float64Array, Int64Array};
use arrow_schema::DataType;
use proptest::prelude::*;
use std::sync::Arc;

fn doubles(values: &[Option<f64>]) -> ArrayRef {
    Arc::new(Float64Array::from(values.to_vec()))
}

fn lists(fractions: &[f64], rows: usize) -> ArrayRef {
    let mut lists = ListBuilder::new(Float64Builder::new());
    (0..rows).for_each(|_| lists.append_value(fractions.iter().copied().map(Some)));
    Arc::new(lists.finish())
}

/// The percentile by its definition, over all numbers one by one.
fn expected(values: &[f64], fraction: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let position = (sorted.len() - 1) as f64 * fraction;
    let (lower, higher) = (sorted[position.floor() as usize], sorted[position.ceil() as usize]);
    if lower == higher { lower } else { lower + (position - position.floor()) * (higher - lower) }
}

proptest! {
    #[test]
    fn any_split_gives_the_percentiles(
        values in prop::collection::vec(prop::option::of(-6i32..6), 1..50),
        weights in prop::collection::vec(0i64..4, 50),
        fractions in prop::collection::vec(0.0f64..=1.0, 1..4),
        cuts in prop::collection::vec(any::<usize>(), 0..6),
    ) {
        let column: Vec<Option<f64>> = values.iter().map(|v| v.map(|v| f64::from(v) / 2.0)).collect();
        let known: Vec<f64> = column.iter().flatten().copied().collect();
        let found = result("median", &[doubles(&column)], &cuts, true).unwrap();
        let found = found.as_primitive::<Float64Type>();
        prop_assert_eq!(found.is_valid(0).then(|| found.value(0)), (!known.is_empty()).then(|| expected(&known, 0.5)));

        let counts: ArrayRef = Arc::new(Int64Array::from(weights[..column.len()].to_vec()));
        let weighted: Vec<f64> = column
            .iter()
            .zip(&weights)
            .flat_map(|(v, n)| v.iter().flat_map(|v| std::iter::repeat_n(*v, usize::try_from(*n).unwrap())).collect::<Vec<_>>())
            .collect();
        let arguments = [doubles(&column), lists(&fractions, column.len()), counts];
        let found = result("percentile", &arguments, &cuts, true).unwrap();
        prop_assert_eq!(found.is_null(0), weighted.is_empty());
        if !weighted.is_empty() {
            let wanted: Vec<f64> = fractions.iter().map(|fraction| expected(&weighted, *fraction)).collect();
            let list = found.as_list::<i32>().value(0);
            prop_assert_eq!(list.as_primitive::<Float64Type>().values(), &wanted[..]);
        }
    }
}

#[test]
fn percentiles_are_kept_in_panes_and_nan_is_the_greatest() {
    assert!(plan("median", &[DataType::Int64], true).unwrap().any_order());
    let values = doubles(&[Some(f64::NAN), Some(1.0), Some(2.0)]);
    let fractions = doubles(&[Some(1.0); 3]);
    let found = result("percentile", &[Arc::clone(&values), fractions], &[], true).unwrap();
    assert!(found.as_primitive::<Float64Type>().value(0).is_nan());
    let found = result("median", &[values], &[], true).unwrap();
    assert!((found.as_primitive::<Float64Type>().value(0) - 2.0).abs() < f64::EPSILON);
}

#[test]
fn what_is_no_percentage_is_refused() {
    assert!(plan("percentile", &[DataType::Int64, DataType::Utf8], true).is_err());
}

#[test]
fn a_negative_frequency_is_refused() {
    let negative: ArrayRef = Arc::new(Int64Array::from(vec![-1]));
    let arguments = [doubles(&[Some(1.0)]), doubles(&[Some(0.5)]), negative];
    let error = result("percentile", &arguments, &[], true).unwrap_err();
    assert!(error.to_string().contains("a frequency is -1; it must not be negative"), "{error}");
}
