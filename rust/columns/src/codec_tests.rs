use super::*;
use arrow_array::builder::{Int32Builder, ListBuilder, MapBuilder, StringBuilder};
use arrow_array::cast::AsArray;
use arrow_array::types::{Float64Type, Int32Type};
use arrow_array::{
    Array, BinaryArray, BooleanArray, Date32Array, Decimal128Array, DictionaryArray, DurationMicrosecondArray,
    Float32Array, Float64Array, Int8Array, Int16Array, Int32Array, Int64Array, IntervalYearMonthArray,
    LargeStringArray, ListArray, NullArray, StringArray, StringViewArray, StructArray, Time64MicrosecondArray,
    TimestampMicrosecondArray,
};
use arrow_schema::{Field, TimeUnit};
use fastchangelog_format::ErrorKind;
use std::collections::HashSet;
use std::fmt::Write;
use std::sync::Arc;

fn codec(columns: &[ArrayRef]) -> KeyCodec {
    let fields: Fields =
        columns.iter().enumerate().map(|(i, c)| Field::new(format!("k{i}"), c.data_type().clone(), true)).collect();
    KeyCodec::new(&fields).unwrap()
}

fn encode(columns: &[ArrayRef]) -> EncodedKeys {
    codec(columns).encode(columns, columns[0].len()).unwrap()
}

fn round_trip(columns: &[ArrayRef]) -> Vec<ArrayRef> {
    let codec = codec(columns);
    let keys = codec.encode(columns, columns[0].len()).unwrap();
    codec.decode((0..keys.len()).map(|i| keys.key(i))).unwrap()
}

fn map_array(rows: &[Option<&[(&str, i32)]>]) -> ArrayRef {
    let mut builder = MapBuilder::new(None, StringBuilder::new(), Int32Builder::new());
    for row in rows {
        for (key, value) in row.unwrap_or_default() {
            builder.keys().append_value(key);
            builder.values().append_value(*value);
        }
        builder.append(row.is_some()).unwrap();
    }
    Arc::new(builder.finish())
}

/// One column of each type that Spark can group by, three rows, the last one null.
fn every_type() -> Vec<ArrayRef> {
    let mut list = ListBuilder::new(Int32Builder::new());
    list.append_value([Some(1), None]);
    list.append_value([]);
    list.append_null();
    let pair = StructArray::new(
        Fields::from(vec![Field::new("a", DataType::Int32, true), Field::new("b", DataType::Utf8, true)]),
        vec![
            Arc::new(Int32Array::from(vec![Some(1), None, None])),
            Arc::new(StringArray::from(vec![None, Some("x"), None])),
        ],
        Some(vec![true, true, false].into()),
    );
    vec![
        Arc::new(BooleanArray::from(vec![Some(true), Some(false), None])),
        Arc::new(Int8Array::from(vec![Some(-1), Some(1), None])),
        Arc::new(Int16Array::from(vec![Some(-300), Some(300), None])),
        Arc::new(Int32Array::from(vec![Some(i32::MIN), Some(i32::MAX), None])),
        Arc::new(Int64Array::from(vec![Some(i64::MIN), Some(i64::MAX), None])),
        Arc::new(Float32Array::from(vec![Some(-1.5), Some(f32::INFINITY), None])),
        Arc::new(Float64Array::from(vec![Some(-1.5), Some(f64::MIN_POSITIVE), None])),
        Arc::new(
            Decimal128Array::from(vec![Some(-(10i128.pow(37))), Some(1), None])
                .with_precision_and_scale(38, 2)
                .unwrap(),
        ),
        Arc::new(StringArray::from(vec![Some(""), Some("grüße 😀"), None])),
        Arc::new(LargeStringArray::from(vec![Some("a"), Some("\0"), None])),
        Arc::new(BinaryArray::from(vec![Some(&b""[..]), Some(&[0, 255][..]), None])),
        Arc::new(Date32Array::from(vec![Some(-1), Some(20_000), None])),
        Arc::new(TimestampMicrosecondArray::from(vec![Some(-1), Some(1 << 50), None]).with_timezone("Europe/Berlin")),
        Arc::new(TimestampMicrosecondArray::from(vec![Some(0), Some(1 << 50), None])),
        Arc::new(Time64MicrosecondArray::from(vec![Some(0), Some(86_399_999_999), None])),
        Arc::new(DurationMicrosecondArray::from(vec![Some(-5), Some(5), None])),
        Arc::new(IntervalYearMonthArray::from(vec![Some(-5), Some(5), None])),
        Arc::new(pair),
        Arc::new(list.finish()),
        map_array(&[Some(&[("a", 1), ("b", 2)]), Some(&[]), None]),
        Arc::new(NullArray::new(3)),
    ]
}

#[test]
fn every_type_round_trips_alone_and_together() {
    let columns = every_type();
    for column in &columns {
        let back = round_trip(std::slice::from_ref(column));
        assert_eq!(&back[0], column, "{}", column.data_type());
    }
    assert_eq!(round_trip(&columns), columns);
    // A slice is the same as a copy.
    let sliced: Vec<_> = columns.iter().map(|c| c.slice(1, 2)).collect();
    assert_eq!(round_trip(&sliced), sliced);
    let (whole, part) = (encode(&columns), encode(&sliced));
    assert_eq!(whole.key(1), part.key(0));
}

#[test]
fn null_is_a_key_of_its_own() {
    for column in every_type() {
        let keys = encode(&[Arc::clone(&column)]);
        let distinct: HashSet<_> = (0..3).map(|i| keys.key(i)).collect();
        assert_eq!(distinct.len(), if column.data_type() == &DataType::Null { 1 } else { 3 });
    }
}

#[test]
fn equal_floats_are_one_key_at_any_depth() {
    let quiet = f64::from_bits(0x7ff8_0000_0000_0001);
    let floats: ArrayRef = Arc::new(Float64Array::from(vec![f64::NAN, -f64::NAN, quiet, 0.0, -0.0, 1.0]));
    let singles: ArrayRef = Arc::new(Float32Array::from(vec![f32::NAN, -f32::NAN, f32::NAN, 0.0, -0.0, 1.0]));
    let nested: ArrayRef = Arc::new(StructArray::from(vec![
        (Arc::new(Field::new("x", DataType::Float64, true)), Arc::clone(&floats)),
        (Arc::new(Field::new("y", DataType::Float32, true)), Arc::clone(&singles)),
    ]));
    let list: ArrayRef = Arc::new(ListArray::new(
        Arc::new(Field::new_list_field(nested.data_type().clone(), true)),
        arrow_buffer::OffsetBuffer::from_lengths([1; 6]),
        Arc::clone(&nested),
        None,
    ));
    for column in [floats, singles, nested, list] {
        let keys = encode(&[Arc::clone(&column)]);
        assert_eq!(keys.key(0), keys.key(1));
        assert_eq!(keys.key(0), keys.key(2));
        assert_eq!(keys.key(3), keys.key(4));
        assert_eq!((0..6).map(|i| keys.key(i)).collect::<HashSet<_>>().len(), 3);
        assert_eq!(keys.hashes()[3], keys.hashes()[4]);
    }
    let back = round_trip(&[Arc::new(Float64Array::from(vec![-0.0, -f64::NAN]))]);
    let back = back[0].as_primitive::<Float64Type>();
    assert_eq!(back.value(0).to_bits(), 0.0f64.to_bits());
    assert!(back.value(1).is_nan());
}

#[test]
fn maps_with_the_same_entries_are_one_key() {
    let maps =
        map_array(&[Some(&[("b", 2), ("a", 1)]), Some(&[("a", 1), ("b", 2)]), Some(&[("a", 2), ("b", 1)]), None]);
    let keys = encode(&[Arc::clone(&maps)]);
    assert_eq!(keys.key(0), keys.key(1));
    assert_eq!((0..4).map(|i| keys.key(i)).collect::<HashSet<_>>().len(), 3);
    let tail = encode(&[maps.slice(1, 3)]);
    assert_eq!(tail.key(0), keys.key(1));
}

#[test]
fn the_physical_form_of_a_column_does_not_matter() {
    let plain: ArrayRef = Arc::new(StringArray::from(vec![Some("x"), None, Some("yy")]));
    let codec = codec(&[Arc::clone(&plain)]);
    let keys = codec.encode(std::slice::from_ref(&plain), 3).unwrap();
    let dictionary: DictionaryArray<Int32Type> = vec![Some("x"), None, Some("yy")].into_iter().collect();
    let forms: [ArrayRef; 3] = [
        Arc::new(dictionary),
        Arc::new(StringViewArray::from(vec![Some("x"), None, Some("yy")])),
        Arc::new(LargeStringArray::from(vec![Some("x"), None, Some("yy")])),
    ];
    for form in forms {
        let other = codec.encode(&[form], 3).unwrap();
        assert!((0..3).all(|i| other.key(i) == keys.key(i)));
    }
    assert_eq!(codec.encode(&[Arc::new(Int32Array::from(vec![1]))], 1).unwrap_err().kind(), ErrorKind::InvalidArgument);
}

#[test]
fn time_zone_labels_come_from_the_declared_type() {
    let time = |zone: &str| -> ArrayRef {
        let times = TimestampMicrosecondArray::from(vec![1, 2]).with_timezone(zone);
        Arc::new(StructArray::from(vec![(
            Arc::new(Field::new("t", times.data_type().clone(), true)),
            Arc::new(times) as ArrayRef,
        )]))
    };
    let berlin = codec(&[time("Europe/Berlin")]);
    let keys = berlin.encode(&[time("America/Los_Angeles")], 2).unwrap();
    assert_eq!(keys.key(0), encode(&[time("Europe/Berlin")]).key(0));
    assert_eq!(&berlin.decode((0..2).map(|i| keys.key(i))).unwrap()[0], &time("Europe/Berlin"));
    let local: ArrayRef = Arc::new(TimestampMicrosecondArray::from(vec![1]));
    let zoned = DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into()));
    let fields = Fields::from(vec![Field::new("t", zoned, true)]);
    assert!(KeyCodec::new(&fields).unwrap().encode(&[local], 1).is_err());
}

#[test]
fn no_columns_is_one_key() {
    let codec = KeyCodec::new(&Fields::empty()).unwrap();
    let keys = codec.encode(&[], 3).unwrap();
    assert_eq!((keys.len(), keys.key(2), keys.hashes().len()), (3, &b""[..], 3));
    assert!(codec.decode(std::iter::once(&b""[..])).unwrap().is_empty());
}

#[test]
fn foreign_bytes_are_corrupt() {
    let column: ArrayRef = Arc::new(Int64Array::from(vec![1]));
    let codec = codec(&[column]);
    assert_eq!(codec.decode(std::iter::once(&[1u8, 2][..])).unwrap_err().kind(), ErrorKind::Corrupt);
}

#[test]
fn byte_order_is_value_order() {
    let keys = encode(&[Arc::new(Int64Array::from(vec![None, Some(i64::MIN), Some(-1), Some(0), Some(7)]))]);
    assert!((1..5).all(|i| keys.key(i - 1) < keys.key(i)));
    let keys =
        encode(&[Arc::new(StringArray::from(vec![None, Some(""), Some("a"), Some("a\0"), Some("ab"), Some("ß")]))]);
    assert!((1..6).all(|i| keys.key(i - 1) < keys.key(i)));
}

/// Stored state depends on these bytes: a change here is a change of the format (see `model::handle::HASH_ID`).
#[test]
fn golden_bytes_and_hashes() {
    let mut text = String::new();
    for column in every_type() {
        let keys = encode(&[Arc::clone(&column)]);
        for i in 0..3 {
            write!(text, "{} {i} ", type_text(column.data_type())).unwrap();
            keys.key(i).iter().for_each(|byte| write!(text, "{byte:02x}").unwrap());
            writeln!(text, " {:016x}", keys.hashes()[i]).unwrap();
        }
    }
    let keys = encode(&every_type());
    writeln!(text, "all {:016x} {:016x}", keys.hashes()[0], keys.hashes()[1]).unwrap();
    writeln!(text, "none {:016x}", hash_key(b"")).unwrap();
    assert_eq!(text, include_str!("codec_golden.txt"), "the bytes of keys changed; they are:\n{text}");
}

#[test]
fn the_bytes_of_all_keys_are_counted() {
    let codec = KeyCodec::of_value(&DataType::Utf8, true).unwrap();
    for texts in [vec![], vec![""], vec!["a", "a longer text than one block of the encoding has", ""]] {
        let column: ArrayRef = Arc::new(arrow_array::StringArray::from(texts));
        let keys = codec.encode(&[Arc::clone(&column)], column.len()).unwrap();
        assert_eq!(keys.bytes(), (0..keys.len()).map(|i| keys.key(i).len()).sum::<usize>());
    }
}
