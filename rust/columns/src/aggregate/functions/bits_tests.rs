use crate::aggregate::function_tests::{plan, result};
use arrow_array::types::Int64Type;
use arrow_array::{Array, ArrayRef, Int64Array, cast::AsArray};
use arrow_schema::DataType;
use proptest::prelude::*;
use std::sync::Arc;

const TYPES: [DataType; 4] = [DataType::Int8, DataType::Int16, DataType::Int32, DataType::Int64];

fn of(function: &str, values: &[Option<i64>], cuts: &[usize], data_type: &DataType) -> Option<i64> {
    let column: ArrayRef = Arc::new(Int64Array::from(values.to_vec()));
    let column = arrow_cast::cast(&column, data_type).unwrap();
    let found = result(function, &[column], cuts, true).unwrap();
    assert_eq!(found.data_type(), data_type, "the result has the type of the argument");
    let found = arrow_cast::cast(&found, &DataType::Int64).unwrap();
    let found = found.as_primitive::<Int64Type>();
    found.is_valid(0).then(|| found.value(0))
}

proptest! {
    #[test]
    fn any_split_gives_the_operation(
        values in prop::collection::vec(prop::option::weighted(0.7, -128i64..128), 1..30),
        cuts in prop::collection::vec(any::<usize>(), 0..6),
    ) {
        let plain = || values.iter().flatten().copied();
        for data_type in &TYPES {
            prop_assert_eq!(of("bit_and", &values, &cuts, data_type), plain().reduce(|a, b| a & b));
            prop_assert_eq!(of("bit_or", &values, &cuts, data_type), plain().reduce(|a, b| a | b));
            prop_assert_eq!(of("bit_xor", &values, &cuts, data_type), plain().reduce(|a, b| a ^ b));
        }
    }
}

#[test]
fn the_widest_values_keep_all_bits() {
    let values = [Some(i64::MIN), None, Some(i64::MAX)];
    assert_eq!(of("bit_or", &values, &[1], &DataType::Int64), Some(-1));
    assert_eq!(of("bit_and", &values, &[1], &DataType::Int64), Some(0));
    assert_eq!(of("bit_xor", &[None, None], &[1], &DataType::Int64), None);
}

#[test]
fn other_numbers_are_refused() {
    for data_type in [DataType::Float64, DataType::Decimal128(10, 0), DataType::Boolean, DataType::Date32] {
        let error = plan("bit_and", &[data_type], true).unwrap_err();
        assert!(error.message().contains("bit_and("), "{error}");
    }
}
