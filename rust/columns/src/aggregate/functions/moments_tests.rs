use crate::aggregate::function_tests::{close, double, result};
use arrow_array::types::Float64Type;
use arrow_array::{Array, ArrayRef, Decimal128Array, Float32Array, Int32Array, cast::AsArray};
use fastchangelog_format::ErrorKind;
use proptest::prelude::*;
use std::sync::Arc;

const FUNCTIONS: [&str; 6] = ["var_samp", "var_pop", "stddev_samp", "stddev_pop", "skewness", "kurtosis"];

/// The definition, in two passes.
fn two_pass(function: &str, values: &[f64]) -> Option<f64> {
    #[expect(clippy::cast_precision_loss, reason = "a few values")]
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;
    let power = |p: i32| values.iter().map(|v| (v - mean).powi(p)).sum::<f64>();
    match function {
        _ if values.is_empty() => None,
        "var_pop" => Some(power(2) / n),
        "stddev_pop" => Some((power(2) / n).sqrt()),
        "var_samp" => (values.len() > 1).then(|| power(2) / (n - 1.0)),
        "stddev_samp" => (values.len() > 1).then(|| (power(2) / (n - 1.0)).sqrt()),
        _ if power(2) == 0.0 => None,
        "skewness" => Some(n.sqrt() * power(3) / power(2).powi(3).sqrt()),
        _ => Some(n * power(4) / power(2).powi(2) - 3.0),
    }
}

fn values() -> impl Strategy<Value = Vec<Option<f64>>> {
    prop::collection::vec(prop::option::weighted(0.8, -100.0..100.0f64), 0..40)
}

proptest! {
    #[test]
    fn any_split_gives_the_definition(values in values(), cuts in prop::collection::vec(any::<usize>(), 0..6)) {
        let plain: Vec<f64> = values.iter().flatten().copied().collect();
        for function in FUNCTIONS {
            let expected = two_pass(function, &plain);
            // A statistic of values that hardly differ has few digits, whichever way it is computed.
            prop_assume!(plain.len() < 2 || two_pass("stddev_pop", &plain).unwrap() > 1e-3);
            let found = double(function, &[&values], &cuts, true).unwrap();
            let scale = expected.map_or(1.0, |e| e.abs().max(1.0));
            prop_assert!(close(found, expected, scale, 1e-9), "{function}: {found:?}, not {expected:?}");
        }
    }
}

#[test]
fn few_values_give_null() {
    for function in FUNCTIONS {
        assert_eq!(double(function, &[&[None, None]], &[1], true).unwrap(), None, "{function} of none");
        let of_one = if function.ends_with("_pop") { Some(0.0) } else { None };
        assert_eq!(double(function, &[&[None, Some(7.0)]], &[1], true).unwrap(), of_one, "{function} of one");
    }
    for function in ["skewness", "kurtosis"] {
        assert_eq!(double(function, &[&[Some(2.0); 3]], &[1, 2], true).unwrap(), None, "{function} of equal values");
    }
}

#[test]
fn nan_and_infinity_give_nan() {
    for function in FUNCTIONS {
        for odd in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            for cuts in [&[][..], &[1], &[2]] {
                let found = double(function, &[&[Some(1.0), Some(odd), Some(3.0)]], cuts, true).unwrap();
                assert!(found.is_some_and(f64::is_nan), "{function} with {odd}: {found:?}");
            }
        }
    }
    assert_eq!(double("var_samp", &[&[Some(f64::NAN)]], &[], true).unwrap(), None, "one value has no sample variance");
}

/// The formulas would multiply the infinite square of the mean with zero values.
#[test]
fn a_join_with_no_input_changes_nothing() {
    for function in ["var_pop", "stddev_pop"] {
        for values in [[None, Some(1e200)], [Some(1e200), None]] {
            assert_eq!(double(function, &[&values], &[1], true).unwrap(), Some(0.0));
        }
    }
    let values = [Some(0.1), Some(0.7), Some(0.3)];
    let longer = [Some(0.1), Some(0.7), Some(0.3), None, None, None];
    for function in FUNCTIONS {
        let bits = |values: &[_], cuts: &[_]| double(function, &[values], cuts, true).unwrap().map(f64::to_bits);
        assert_eq!(bits(&longer, &[3, 4, 5]), bits(&values, &[]), "{function}");
    }
}

#[test]
fn a_power_that_underflows_is_a_division_by_zero() {
    let tiny = [Some(0.0), Some(1e-60), Some(3e-60)];
    for function in ["skewness", "kurtosis"] {
        let tiny = if function == "skewness" { tiny } else { tiny.map(|v| v.map(|v| v * 1e-40)) };
        let error = double(function, &[&tiny], &[], true).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(error.message().contains("[DIVIDE_BY_ZERO]"), "{error}");
        assert_eq!(double(function, &[&tiny], &[], false).unwrap(), None);
    }
}

#[test]
fn every_number_counts_as_a_double() {
    let decimals = Decimal128Array::from(vec![Some(150), None, Some(-225)]).with_precision_and_scale(38, 2).unwrap();
    let columns: [(ArrayRef, f64); 3] = [
        (Arc::new(Int32Array::from(vec![Some(1), None, Some(4)])), 2.25),
        (Arc::new(Float32Array::from(vec![Some(0.5), None, Some(2.5)])), 1.0),
        (Arc::new(decimals), 3.515_625),
    ];
    for (column, expected) in columns {
        let found = result("var_pop", std::slice::from_ref(&column), &[1], true).unwrap();
        assert_eq!(found.as_primitive::<Float64Type>().value(0), expected, "{}", column.data_type());
    }
}
