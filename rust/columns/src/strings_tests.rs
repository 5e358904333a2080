use super::*;
use crate::aggregate::{AggCall, AggPlan, AggSpec, schema_of};
use crate::codec::KeyCodec;
use crate::split::Splitter;
use crate::table::GroupTable;
use arrow_array::types::Int32Type;
use arrow_array::{BinaryArray, DictionaryArray, Int64Array, LargeStringArray, StringArray};
use fastchangelog_format::ErrorKind;

/// Bytes that are no UTF-8, beside text with the same beginnings.
const BYTES: &[&[u8]] = &[b"a", b"a\xff", b"\xffa", b"\xc3", b"\xc3\xa9", b"\xed\xa0\x80", b"\x80", b"", b"a\0\xfe"];

fn bytes(values: &[&[u8]]) -> ArrayRef {
    Arc::new(BinaryArray::from_iter_values(values))
}

fn field(name: &str, data_type: DataType) -> Field {
    Field::new(name, data_type, true)
}

/// A column of every type that holds strings, with text in it, a null and a slice.
fn texts() -> Vec<ArrayRef> {
    let strings = || StringArray::from(vec![Some("x"), None, Some("grüße"), Some("")]);
    let pairs: ArrayRef = Arc::new(StructArray::from(vec![
        (Arc::new(field("s", DataType::Utf8)), Arc::new(strings()) as ArrayRef),
        (Arc::new(field("n", DataType::Int64)), Arc::new(Int64Array::from(vec![1, 2, 3, 4])) as ArrayRef),
    ]));
    let offsets = || arrow_buffer::OffsetBuffer::from_lengths([1, 0, 3, 0]);
    let element = Arc::new(field("element", pairs.data_type().clone()));
    let lists: ArrayRef = Arc::new(GenericListArray::<i32>::new(element, offsets(), Arc::clone(&pairs), None));
    let entries = StructArray::from(vec![
        (
            Arc::new(Field::new("key", DataType::Utf8, false)),
            Arc::new(StringArray::from(vec!["a", "b", "c", "d"])) as ArrayRef,
        ),
        (Arc::new(field("value", DataType::Utf8)), Arc::new(strings()) as ArrayRef),
    ]);
    let entry = Arc::new(Field::new("entries", entries.data_type().clone(), false));
    let maps: ArrayRef = Arc::new(MapArray::new(entry, offsets(), entries, None, false));
    let dictionary: DictionaryArray<Int32Type> = vec![Some("x"), None, Some("y"), Some("x")].into_iter().collect();
    let three = Arc::new(field("element", DataType::Utf8));
    let fixed = FixedSizeListArray::new(three, 1, Arc::new(strings()), None);
    vec![
        Arc::new(strings()),
        Arc::new(LargeStringArray::from(vec![Some("x"), None, Some("grüße"), Some("")])),
        Arc::new(StringViewArray::from(vec![Some("x"), None, Some("grüße, longer than a view"), Some("")])),
        Arc::new(dictionary),
        pairs,
        Arc::clone(&lists),
        lists.slice(1, 2),
        maps,
        Arc::new(fixed),
    ]
}

#[test]
fn text_becomes_binary_and_text_again_at_any_depth() {
    for column in texts() {
        let binary = as_binary(&column).unwrap();
        assert_eq!(binary.data_type(), &binary_type(column.data_type()));
        assert!(!has_text(binary.data_type()) && binary.to_data().validate_full().is_ok());
        assert_eq!(&as_text(&binary, column.data_type()).unwrap(), &column, "{}", column.data_type());
    }
    let plain: ArrayRef = Arc::new(Int64Array::from(vec![1]));
    assert!(Arc::ptr_eq(&as_binary(&plain).unwrap(), &plain));
}

#[test]
fn the_binary_form_has_the_same_key() {
    for column in texts() {
        if matches!(column.data_type(), DataType::FixedSizeList(..)) {
            continue; // no type of Spark
        }
        let own = KeyCodec::new(&vec![field("k", column.data_type().clone())].into()).unwrap();
        let keys = own.encode(std::slice::from_ref(&column), column.len()).unwrap();
        let binary = as_binary(&column).unwrap();
        let other = KeyCodec::new(&vec![field("k", binary.data_type().clone())].into()).unwrap();
        // Arrow's encoding of text, without this module between.
        let sort = arrow_row::SortField::new(crate::arrays::plain_type(column.data_type()));
        let arrows = arrow_row::RowConverter::new(vec![sort]).unwrap();
        let plain = conform(&column, &crate::arrays::plain_type(column.data_type())).unwrap();
        let arrows = arrows.convert_columns(&[plain]).unwrap();
        for codec in [&own, &other] {
            let found = codec.encode(std::slice::from_ref(&binary), column.len()).unwrap();
            for i in 0..column.len() {
                assert_eq!(found.key(i), keys.key(i), "{} at {i}", column.data_type());
                assert_eq!(found.key(i), arrows.row(i).data(), "{} at {i}", column.data_type());
            }
        }
    }
}

#[test]
fn bytes_that_are_not_utf8_are_refused_as_text_only() {
    let error = as_text(&bytes(BYTES), &DataType::Utf8).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(error.message().contains("not UTF-8") && error.message().contains("declare the column binary"), "{error}");
    // A slice without them is text, and so is a null above them.
    assert!(as_text(&bytes(BYTES).slice(0, 1), &DataType::Utf8).is_ok());
    let nulls = Some(vec![true, false].into());
    let hidden = BinaryArray::new(arrow_buffer::OffsetBuffer::from_lengths([1, 1]), b"a\xff".into(), nulls);
    let text = as_text(&(Arc::new(hidden) as ArrayRef), &DataType::Utf8).unwrap();
    assert_eq!(text.as_string::<i32>(), &StringArray::from(vec![Some("a"), None]));
}

fn call(function: &str, args: &[usize]) -> AggCall {
    AggCall {
        function: function.into(),
        args: args.into(),
        filter: None,
        ignore_nulls: false,
        ansi: true,
        identity: format!("{function}({args:?})"),
    }
}

fn pair() -> DataType {
    DataType::Struct(vec![field("s", DataType::Utf8), field("n", DataType::Int64)].into())
}

fn spec() -> AggSpec {
    let string = |name: &str| field(name, DataType::Utf8);
    AggSpec::new(
        1,
        schema_of(vec![string("k"), string("v"), field("n", DataType::Int64), field("p", pair())]),
        schema_of(vec![
            string("k"),
            string("min"),
            string("max"),
            string("first"),
            string("last"),
            string("by"),
            field("of", DataType::Int64),
            field("pair", pair()),
            field("greatest", pair()),
        ]),
        vec![
            call("min", &[1]),
            call("max", &[1]),
            call("first", &[1]),
            call("last", &[1]),
            call("max_by", &[1, 2]),
            call("min_by", &[2, 1]),
            call("last", &[3]),
            call("max", &[3]),
        ],
    )
}

fn batch(rows: &[(&[u8], &[u8], i64)]) -> RecordBatch {
    let values: ArrayRef = bytes(&rows.iter().map(|row| row.1).collect::<Vec<_>>());
    let numbers: ArrayRef = Arc::new(Int64Array::from_iter_values(rows.iter().map(|row| row.2)));
    let DataType::Struct(fields) = binary_type(&pair()) else { unreachable!() };
    let pairs = StructArray::new(fields, vec![Arc::clone(&values), Arc::clone(&numbers)], None);
    let keys = bytes(&rows.iter().map(|row| row.0).collect::<Vec<_>>());
    RecordBatch::try_new(binary_schema(&spec().input), vec![keys, values, numbers, Arc::new(pairs)]).unwrap()
}

/// Every pair of strings of bytes as a group's values: results are those of comparing bytes, unsigned.
#[test]
fn strings_that_are_not_utf8_are_keys_and_values() {
    let plan = Arc::new(AggPlan::new(&spec()).unwrap());
    let mut table = GroupTable::new(Arc::clone(&plan));
    let mut splitter = Splitter::new(&spec(), 1, 128, 1 << 20).unwrap();
    for (n, values) in [BYTES.to_vec(), BYTES.iter().rev().copied().collect()].into_iter().enumerate() {
        let n = i64::try_from(n).unwrap();
        let rows: Vec<_> = BYTES.iter().flat_map(|key| values.iter().map(|value| (*key, *value, n))).collect();
        let mut payloads = splitter.push(&batch(&rows)).unwrap();
        payloads.extend(splitter.finish().unwrap());
        for (_, payload) in payloads {
            table.merge_payload(&payload).unwrap();
        }
    }
    let found = table.finish_binary(0..table.len()).unwrap();
    assert_eq!(found.schema(), *plan.binary_output());
    assert_eq!(found.num_rows(), BYTES.len(), "one group for each string of bytes");
    let column = |i: usize| found.column(i).as_binary::<i32>();
    let keys: std::collections::HashSet<&[u8]> = column(0).iter().flatten().collect();
    assert_eq!(keys, BYTES.iter().copied().collect());
    let (least, greatest) = (BYTES.iter().min().unwrap(), BYTES.iter().max().unwrap());
    for i in 0..found.num_rows() {
        let expected = [*least, greatest, BYTES[0], BYTES[0]];
        assert_eq!([1, 2, 3, 4].map(|c| column(c).value(i)), expected);
        let of = |c: usize| found.column(c).as_struct().column(0).as_binary::<i32>().value(i);
        assert_eq!([of(7), of(8)], [BYTES[0], greatest]);
    }
    let error = table.finish(0..table.len()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
}

#[test]
fn the_fingerprint_of_rows_knows_strings_from_binaries() {
    let plan = AggPlan::new(&spec()).unwrap();
    assert!(plan.schema().contains(r#""keys":["string"]"#), "{}", plan.schema());
    assert!(plan.schema().contains("struct<s:string,n:bigint>"), "{}", plan.schema());
    let splitter = Splitter::new(&spec(), 1, 128, 1 << 20).unwrap();
    assert!(splitter.check(&spec().input).is_ok());
    let error = splitter.check(&binary_schema(&spec().input)).unwrap_err();
    assert!(error.message().contains("type binary, but string is declared"), "{error}");
}
