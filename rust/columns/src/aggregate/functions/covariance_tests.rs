use crate::aggregate::function_tests::{close, double};
use fastchangelog_format::ErrorKind;
use proptest::prelude::*;

const FUNCTIONS: [&str; 3] = ["covar_samp", "covar_pop", "corr"];

/// The definition, in two passes.
fn two_pass(function: &str, pairs: &[(f64, f64)]) -> Option<f64> {
    #[expect(clippy::cast_precision_loss, reason = "a few values")]
    let n = pairs.len() as f64;
    let x_mean = pairs.iter().map(|p| p.0).sum::<f64>() / n;
    let y_mean = pairs.iter().map(|p| p.1).sum::<f64>() / n;
    let xy: f64 = pairs.iter().map(|p| (p.0 - x_mean) * (p.1 - y_mean)).sum();
    let xx: f64 = pairs.iter().map(|p| (p.0 - x_mean).powi(2)).sum();
    let yy: f64 = pairs.iter().map(|p| (p.1 - y_mean).powi(2)).sum();
    match (function, pairs.len()) {
        (_, 0) | ("covar_samp" | "corr", 1) => None,
        ("covar_pop", _) => Some(xy / n),
        ("covar_samp", _) => Some(xy / (n - 1.0)),
        _ => (xx != 0.0 && yy != 0.0).then(|| xy / (xx * yy).sqrt()),
    }
}

fn number() -> impl Strategy<Value = Option<f64>> {
    prop::option::weighted(0.8, -100.0..100.0f64)
}

proptest! {
    #[test]
    fn any_split_gives_the_definition(
        pairs in prop::collection::vec((number(), number()), 0..40),
        cuts in prop::collection::vec(any::<usize>(), 0..6),
    ) {
        let (x, y): (Vec<_>, Vec<_>) = pairs.iter().copied().unzip();
        let plain: Vec<(f64, f64)> = pairs.iter().filter_map(|(x, y)| x.zip(*y)).collect();
        for function in FUNCTIONS {
            let expected = two_pass(function, &plain);
            let found = double(function, &[&x, &y], &cuts, true).unwrap();
            let scale = if function == "corr" { 1.0 } else { 1e4 };
            prop_assert!(close(found, expected, scale, 1e-10), "{function}: {found:?}, not {expected:?}");
        }
    }
}

#[test]
fn few_pairs_and_constants_give_null() {
    let half: &[Option<f64>] = &[Some(1.0), None];
    let other: &[Option<f64>] = &[None, Some(1.0)];
    for function in FUNCTIONS {
        assert_eq!(double(function, &[half, other], &[1], true).unwrap(), None, "{function} of no pair");
        let of_one = if function == "covar_pop" { Some(0.0) } else { None };
        assert_eq!(double(function, &[half, half], &[1], true).unwrap(), of_one, "{function} of one pair");
    }
    let (constant, varies): (&[_], &[_]) = (&[Some(2.0); 3], &[Some(1.0), Some(2.0), Some(4.0)]);
    assert_eq!(double("corr", &[constant, varies], &[1], true).unwrap(), None);
    assert_eq!(double("corr", &[varies, constant], &[1], true).unwrap(), None);
    assert_eq!(double("corr", &[varies, varies], &[1], true).unwrap(), Some(1.0));
}

#[test]
fn nan_gives_nan_and_infinity_no_number() {
    for function in FUNCTIONS {
        for odd in [f64::NAN, f64::INFINITY] {
            let (x, y): (&[_], &[_]) = (&[Some(1.0), Some(odd), Some(3.0)], &[Some(2.0), Some(5.0), Some(3.0)]);
            for cuts in [&[][..], &[1], &[2]] {
                for columns in [[x, y], [y, x]] {
                    let found = double(function, &columns, cuts, true).unwrap().unwrap();
                    assert!(found.is_nan() || (odd.is_infinite() && found.is_infinite()), "{function}, {odd}: {found}");
                }
            }
        }
    }
}

#[test]
fn a_product_that_underflows_is_a_division_by_zero() {
    let tiny: &[_] = &[Some(0.0), Some(1e-100), Some(3e-100)];
    let error = double("corr", &[tiny, tiny], &[], true).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(error.message().contains("[DIVIDE_BY_ZERO]"), "{error}");
    assert_eq!(double("corr", &[tiny, tiny], &[], false).unwrap(), None);
}
