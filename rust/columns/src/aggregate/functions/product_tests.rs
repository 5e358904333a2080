use crate::aggregate::function_tests::{close, double};
use proptest::prelude::*;

proptest! {
    #[test]
    fn any_split_gives_the_product(
        values in prop::collection::vec(prop::option::weighted(0.7, -8.0..8.0f64), 0..30),
        cuts in prop::collection::vec(any::<usize>(), 0..6),
    ) {
        let plain: Vec<f64> = values.iter().flatten().copied().collect();
        let expected = (!plain.is_empty()).then(|| plain.iter().product::<f64>());
        let found = double("product", &[&values], &cuts, true).unwrap();
        prop_assert!(close(found, expected, expected.unwrap_or_default().abs(), 1e-13), "{found:?}, not {expected:?}");
    }
}

#[test]
fn nulls_are_left_out_and_the_rest_is_that_of_doubles() {
    let product = |values: &[Option<f64>]| double("product", &[values], &[1], true).unwrap();
    assert_eq!(product(&[None, None]), None);
    assert_eq!(product(&[None, Some(-0.0)]).map(f64::to_bits), Some((-0.0f64).to_bits()));
    assert_eq!(product(&[Some(1e200), Some(1e200)]), Some(f64::INFINITY));
    assert!(product(&[Some(f64::INFINITY), Some(0.0)]).unwrap().is_nan());
    assert!(product(&[Some(f64::NAN), None]).unwrap().is_nan());
}
