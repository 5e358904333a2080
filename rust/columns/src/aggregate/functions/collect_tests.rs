use crate::aggregate::function_tests::{plan, result};
use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{Array, ArrayRef, Float64Array, Int64Array, StringArray, StructArray};
use arrow_schema::{DataType, Field, Fields};
use proptest::prelude::*;
use std::sync::Arc;

fn longs(values: &[Option<i64>]) -> ArrayRef {
    Arc::new(Int64Array::from(values.to_vec()))
}

fn texts(values: &[Option<String>]) -> ArrayRef {
    Arc::new(StringArray::from(values.to_vec()))
}

/// The elements of the one list of a result.
fn elements(function: &str, column: ArrayRef, cuts: &[usize]) -> ArrayRef {
    let lists = result(function, &[column], cuts, true).unwrap();
    assert_eq!((lists.len(), lists.null_count()), (1, 0));
    lists.as_list::<i32>().value(0)
}

fn distinct<T: Clone + PartialEq>(values: &[T]) -> Vec<T> {
    let mut found = Vec::new();
    values.iter().for_each(|value| {
        if !found.contains(value) {
            found.push(value.clone());
        }
    });
    found
}

proptest! {
    #[test]
    fn any_split_gives_the_values_in_order(
        values in prop::collection::vec(prop::option::of(-20i64..20), 1..60),
        cuts in prop::collection::vec(any::<usize>(), 0..6),
    ) {
        let known: Vec<i64> = values.iter().flatten().copied().collect();
        let list = elements("collect_list", longs(&values), &cuts);
        prop_assert_eq!(list.as_primitive::<Int64Type>().values(), &known[..]);
        let set = elements("collect_set", longs(&values), &cuts);
        let mut expected = distinct(&known);
        let mut found = set.as_primitive::<Int64Type>().values().to_vec();
        prop_assert_eq!(found.len(), expected.len());
        found.sort_unstable();
        expected.sort_unstable();
        prop_assert_eq!(found, expected);
    }

    #[test]
    fn texts_and_structs_keep_their_order(
        values in prop::collection::vec(prop::option::of("[a-c]{0,3}"), 1..40),
        cuts in prop::collection::vec(any::<usize>(), 0..6),
    ) {
        let known: Vec<Option<String>> = values.iter().filter(|v| v.is_some()).cloned().collect();
        prop_assert!(elements("collect_list", texts(&values), &cuts) == texts(&known));
        let fields = Fields::from(vec![Field::new("s", DataType::Utf8, true), Field::new("n", DataType::Int64, true)]);
        let numbers: Vec<Option<i64>> = values.iter().map(|v| v.as_ref().map(|v| v.len() as i64)).collect();
        let structs: ArrayRef = Arc::new(StructArray::new(fields, vec![texts(&values), longs(&numbers)], None));
        let list = elements("collect_list", Arc::clone(&structs), &cuts);
        prop_assert!(*list.as_struct().column(0) == texts(&values));
        prop_assert!(*list.as_struct().column(1) == longs(&numbers));
        // Structs are in a set in the order in which they came.
        let set = elements("collect_set", structs, &cuts);
        prop_assert!(*set.as_struct().column(0) == texts(&distinct(&values)));
    }

    #[test]
    fn joined_texts_are_those_in_order(
        values in prop::collection::vec(prop::option::of("[a-c]{0,3}"), 1..40),
        cuts in prop::collection::vec(any::<usize>(), 0..6),
    ) {
        let known: Vec<String> = values.iter().flatten().cloned().collect();
        let delimiters = texts(&vec![Some(", ".to_owned()); values.len()]);
        let joined = result("listagg", &[texts(&values), delimiters], &cuts, true).unwrap();
        let expected = (!known.is_empty()).then(|| known.join(", "));
        prop_assert_eq!(joined.is_valid(0).then(|| joined.as_string::<i32>().value(0).to_owned()), expected);
        let joined = result("string_agg", &[texts(&values)], &cuts, true).unwrap();
        let expected = (!known.is_empty()).then(|| known.concat());
        prop_assert_eq!(joined.is_valid(0).then(|| joined.as_string::<i32>().value(0).to_owned()), expected);
    }
}

#[test]
fn equal_doubles_are_one_element_of_a_set() {
    let doubles = [0.0, f64::NAN, -0.0, f64::from_bits(0x7ff8_0000_0000_0001), 1.5];
    let set = elements("collect_set", Arc::new(Float64Array::from(doubles.to_vec())), &[2]);
    assert_eq!(set.len(), 3);
    let list = elements("collect_list", Arc::new(Float64Array::from(doubles.to_vec())), &[2]);
    assert_eq!(list.len(), 5);
}

#[test]
fn a_list_is_not_kept_in_panes() {
    for function in ["collect_list", "collect_set", "listagg"] {
        assert!(!plan(function, &[DataType::Utf8], true).unwrap().any_order(), "{function}");
    }
    assert!(plan("listagg", &[DataType::Utf8, DataType::Int64], true).is_err());
}
