//! Arrow columns from outside: what is malformed is refused with a clear error, what is not UTF-8 is a string of bytes.
//!
//! Owns: one column per fault. Does not own: invented columns (`fastchangelog_oracles::columns`, replayed by `fuzz_replay`).

#![allow(clippy::unwrap_used, reason = "a test")]

use arrow_array::cast::AsArray;
use arrow_array::types::Int32Type;
use arrow_array::{Array, DictionaryArray, Int32Array, StringArray};
use arrow_buffer::Buffer;
use arrow_data::{ArrayData, ArrayDataBuilder};
use arrow_schema::{DataType, Field, Fields, UnionFields, UnionMode};
use fastchangelog_columns::import::{import, import_text, import_type};
use fastchangelog_format::ErrorKind;
use fastchangelog_oracles::columns::foreign_columns;
use proptest::prelude::*;
use std::sync::Arc;

fn build(builder: ArrayDataBuilder) -> ArrayData {
    // SAFETY: none. `import` gets to see what nothing else may.
    unsafe { builder.build_unchecked() }
}

fn bytes_with_offsets(offsets: &[i32], bytes: &[u8]) -> ArrayData {
    let builder = ArrayData::builder(DataType::Binary).len(offsets.len() - 1);
    build(builder.add_buffer(Buffer::from_slice_ref(offsets)).add_buffer(Buffer::from(bytes)))
}

fn list_with_offsets(offsets: &[i32], values: usize) -> ArrayData {
    let field = Arc::new(Field::new("element", DataType::Int32, true));
    let builder = ArrayData::builder(DataType::List(field)).len(offsets.len() - 1);
    let child = Int32Array::from(vec![7; values]).into_data();
    build(builder.add_buffer(Buffer::from_slice_ref(offsets)).add_child_data(child))
}

fn refused(data: &ArrayData, why: &str) {
    let error = import(data).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    assert!(error.message().contains("malformed") && error.message().contains(why), "{error}");
}

#[test]
fn offsets_that_decrease_or_point_behind_the_values_are_refused() {
    assert_eq!(import(&bytes_with_offsets(&[0, 1, 3], b"abc")).unwrap().as_binary::<i32>().value(1), b"bc");
    refused(&bytes_with_offsets(&[0, 2, 1, 3], b"abc"), "offset");
    refused(&bytes_with_offsets(&[0, 1, 4], b"abc"), "offset");
    refused(&bytes_with_offsets(&[0, -1, 3], b"abc"), "offset");
    refused(&bytes_with_offsets(&[-4, 1, 3], b"abc"), "offset");
    refused(&bytes_with_offsets(&[0, 1 << 30, 3], b"abc"), "offset");
    assert_eq!(import(&list_with_offsets(&[0, 1, 3], 3)).unwrap().len(), 2);
    refused(&list_with_offsets(&[0, 2, 1, 3], 3), "offset");
    refused(&list_with_offsets(&[0, 1, 4], 3), "offset");
}

#[test]
fn a_column_without_values_has_any_offset() {
    let none = |offset: i32| {
        let builder = ArrayData::builder(DataType::Binary).len(0).add_buffer(Buffer::from_slice_ref([offset]));
        build(builder.add_buffer(Buffer::from(b"")))
    };
    let lists_of = |child: ArrayData| {
        let field = Arc::new(Field::new("element", child.data_type().clone(), true));
        let builder = ArrayData::builder(DataType::List(field)).len(2).add_buffer(Buffer::from_slice_ref([0i32, 0, 0]));
        build(builder.add_child_data(child))
    };
    for offset in [0, 7, -189_153_672, i32::MAX] {
        assert!(import(&none(offset)).unwrap().is_empty());
        let lists = import(&lists_of(none(offset))).unwrap();
        assert_eq!((lists.len(), lists.as_list::<i32>().value(1).len()), (2, 0));
        let deeper = import(&lists_of(lists_of(none(offset)).slice(0, 0))).unwrap();
        assert_eq!((deeper.len(), deeper.as_list::<i32>().value(0).len()), (2, 0));
        let fields = Fields::from(vec![Field::new("a", lists.data_type().clone(), true)]);
        let structs = ArrayData::builder(DataType::Struct(fields)).len(2).add_child_data(lists_of(none(offset)));
        assert_eq!(import(&build(structs)).unwrap().as_struct().column(0).len(), 2);
    }
}

#[test]
fn buffers_and_children_that_are_too_short_are_refused() {
    let three = || ArrayData::builder(DataType::Int32).len(3);
    refused(&build(three().add_buffer(Buffer::from_slice_ref([1i32, 2]))), "bytes");
    refused(&build(three()), "buffers");
    let offsets = ArrayData::builder(DataType::Binary).len(3).add_buffer(Buffer::from_slice_ref([0i32, 0]));
    refused(&build(offsets.add_buffer(Buffer::from(b"abc"))), "bytes");
    let fields = Fields::from(vec![Field::new("a", DataType::Int32, true)]);
    let pair = || ArrayData::builder(DataType::Struct(fields.clone())).len(3);
    refused(&build(pair().add_child_data(Int32Array::from(vec![1, 2]).into_data())), "length");
    refused(&build(pair()), "child");
}

#[test]
fn keys_outside_of_a_dictionary_and_wrong_nulls_are_refused() {
    let good: DictionaryArray<Int32Type> = vec!["x", "y"].into_iter().collect();
    let data_type = import_type(good.data_type()).unwrap();
    let with_key = |key: i32| {
        let builder = ArrayData::builder(data_type.clone()).len(2);
        let values = build(StringArray::from(vec!["x", "y"]).into_data().into_builder().data_type(DataType::Binary));
        build(builder.add_buffer(Buffer::from_slice_ref([0, key])).add_child_data(values))
    };
    assert_eq!(import(&with_key(1)).unwrap().len(), 2);
    refused(&with_key(2), "out of bounds");
    refused(&with_key(-1), "out of bounds");
    let bitmap = Some(Buffer::from(&[0b101u8]));
    let three = ArrayData::builder(DataType::Int32).len(3).add_buffer(Buffer::from_slice_ref([1i32, 2, 3]));
    refused(&build(three.null_bit_buffer(bitmap).null_count(2)), "null_count");
}

#[test]
fn layouts_that_no_column_of_spark_has_are_refused_by_name() {
    let inner = || Arc::new(Field::new("element", DataType::Utf8, true));
    let union = UnionFields::try_new([0], [Field::new("a", DataType::Int8, true)]).unwrap();
    let ends = Arc::new(Field::new("run_ends", DataType::Int32, false));
    for layout in [
        DataType::Union(union, UnionMode::Dense),
        DataType::RunEndEncoded(ends, inner()),
        DataType::ListView(inner()),
        DataType::LargeListView(inner()),
    ] {
        let nested = DataType::Struct(Fields::from(vec![Field::new("a", layout.clone(), true)]));
        for layout in [layout, nested] {
            let error = import_type(&layout).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
            assert!(error.message().contains("is not supported"), "{error}");
        }
    }
    let deep = (0..100).fold(DataType::Int8, |of, _| DataType::List(Arc::new(Field::new("element", of, true))));
    assert!(import_type(&deep).unwrap_err().message().contains("64 levels"));
}

#[test]
fn a_string_that_is_not_utf8_is_bytes_and_no_text() {
    let data = bytes_with_offsets(&[0, 2, 3], b"a\xffb");
    assert_eq!(import_type(&DataType::Utf8).unwrap(), DataType::Binary);
    assert_eq!(import(&data).unwrap().as_binary::<i32>().value(0), b"a\xff");
    let error = import_text(&data, &DataType::Utf8).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(error.message().contains("not UTF-8"), "{error}");
    let text = import_text(&bytes_with_offsets(&[0, 2, 3], b"abc"), &DataType::Utf8).unwrap();
    assert_eq!(text.as_string::<i32>(), &StringArray::from(vec!["ab", "c"]));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3_000))]

    #[test]
    fn no_column_breaks_anything(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        foreign_columns(&bytes);
    }

    /// Bytes of which most are small: columns of these are taken more often.
    #[test]
    fn no_mild_column_breaks_anything(bytes in proptest::collection::vec(0u8..30, 0..400)) {
        foreign_columns(&bytes);
    }
}
