use crate::aggregate::function_tests::result;
use arrow_array::cast::AsArray;
use arrow_array::types::Int32Type;
use arrow_array::{Array, ArrayRef, BooleanArray, Int32Array, StringArray, StructArray};
use arrow_schema::{DataType, Field, Fields};
use proptest::prelude::*;
use std::sync::Arc;

/// The most frequent value; of several the first that came, or the smallest.
fn expected(values: &[i32], smallest: bool) -> Option<i32> {
    let count = |value: &i32| values.iter().filter(|v| *v == value).count();
    let most = values.iter().map(count).max()?;
    let mut candidates = values.iter().filter(|v| count(v) == most).copied();
    if smallest { candidates.min() } else { candidates.next() }
}

proptest! {
    #[test]
    fn any_split_gives_the_most_frequent_value(
        values in prop::collection::vec(prop::option::of(-3i32..3), 1..40),
        smallest in any::<bool>(),
        cuts in prop::collection::vec(any::<usize>(), 0..6),
    ) {
        let known: Vec<i32> = values.iter().flatten().copied().collect();
        let wanted = expected(&known, smallest);
        let flag: ArrayRef = Arc::new(BooleanArray::from(vec![smallest; values.len()]));
        let numbers: ArrayRef = Arc::new(Int32Array::from(values.clone()));
        let found = result("mode", &[Arc::clone(&numbers), Arc::clone(&flag)], &cuts, true).unwrap();
        let found = found.as_primitive::<Int32Type>();
        prop_assert_eq!(found.is_valid(0).then(|| found.value(0)), wanted);

        let text = |v: i32| char::from(b'm'.wrapping_add_signed(i8::try_from(v).unwrap())).to_string();
        let texts: ArrayRef = Arc::new(values.iter().map(|v| v.map(text)).collect::<StringArray>());
        let found = result("mode", &[texts, Arc::clone(&flag)], &cuts, true).unwrap();
        let found = found.as_string::<i32>();
        prop_assert_eq!(found.is_valid(0).then(|| found.value(0).to_owned()), wanted.map(text));

        let fields = Fields::from(vec![Field::new("n", DataType::Int32, true)]);
        let structs: ArrayRef = Arc::new(StructArray::new(fields, vec![Arc::clone(&numbers)], numbers.nulls().cloned()));
        let found = result("mode", &[structs, flag], &cuts, true).unwrap();
        let found = found.is_valid(0).then(|| found.as_struct().column(0).as_primitive::<Int32Type>().value(0));
        prop_assert_eq!(found, wanted);
    }
}
