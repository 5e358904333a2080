//! Values of several versions against plain values, and bytes that are none.

use super::*;
use crate::codec::KeyCodec;
use crate::plain_values::{
    Plain, changed_type, changed_value, column, flat_types, plain, random_type, random_value, seeded,
};
use crate::strings::as_binary;
use arrow_array::{Int64Array, StringArray, StructArray};
use arrow_schema::{Field, Fields};
use fastchangelog_format::ErrorKind;
use rand::RngExt;
use std::collections::HashSet;
use std::sync::Arc;

fn entries(value: &DataType) -> VersionedEntries {
    VersionedEntries::new(&DataType::Utf8, value, &[]).unwrap()
}

#[test]
fn invariant_1_values_of_any_versions_are_read_as_the_newest() {
    let mut rng = seeded();
    for _ in 0..500 {
        let mut types = vec![random_type(&mut rng, 3)];
        for version in 1..rng.random_range(1..5) {
            let next = changed_type(&mut rng, &types[version - 1], &format!("v{version}_"));
            types.push(next);
        }
        let newest = types.last().unwrap().clone();
        let mut expected = Vec::new();
        let mut bytes: Vec<Option<Vec<u8>>> = Vec::new();
        for _ in 0..rng.random_range(0..30) {
            let version = rng.random_range(0..types.len());
            let value = random_value(&mut rng, &types[version]);
            // Written when that version was the newest.
            let writer = VersionedEntries::new(&DataType::Utf8, &types[version], &types[..=version]).unwrap();
            let encoded = writer.encode_values(&column(&types[version], std::slice::from_ref(&value))).unwrap();
            bytes.push(encoded.is_valid(0).then(|| encoded.value(0).to_vec()));
            expected.push(changed_value(&value, &types[version], &newest));
        }
        let reader = VersionedEntries::new(&DataType::Utf8, &newest, &types).unwrap();
        let made = reader.decode_values(&bytes.iter().map(Option::as_deref).collect::<BinaryArray>()).unwrap();
        assert_eq!(made.data_type(), &binary_type(&newest));
        made.to_data().validate_full().unwrap();
        assert_eq!((0..made.len()).map(|i| plain(&made, i)).collect::<Vec<_>>(), expected, "{types:?}");
    }
}

#[test]
fn invariant_1_every_flat_type_is_kept_bit_by_bit() {
    let mut rng = seeded();
    for data_type in flat_types() {
        let values: Vec<Plain> = (0..100).map(|_| random_value(&mut rng, &data_type)).collect();
        let array = column(&data_type, &values);
        let codec = entries(&data_type);
        let encoded = codec.encode_values(&array).unwrap();
        if data_type != DataType::Null {
            let nulls = values.iter().filter(|value| *value == &Plain::Null).count();
            assert_eq!(encoded.null_count(), nulls, "a null has no bytes");
        }
        assert_eq!(&codec.decode_values(&encoded).unwrap(), &array, "{data_type}");
        // As a field, where a null is a value's part.
        let row = DataType::Struct(vec![Field::new("f", data_type, true)].into());
        let rows: Vec<Plain> = values.into_iter().map(|value| Plain::Struct(vec![value])).collect();
        let rows = column(&row, &rows);
        let codec = entries(&row);
        let encoded = codec.encode_values(&rows).unwrap();
        assert_eq!(encoded.null_count(), 0);
        assert_eq!(&codec.decode_values(&encoded).unwrap(), &rows);
    }
}

#[test]
fn the_bytes_begin_with_the_version() {
    let value = |codec: &VersionedEntries| {
        let text: ArrayRef = Arc::new(StringArray::from(vec!["é"]));
        codec.encode_values(&text).unwrap().value(0).to_vec()
    };
    assert_eq!(value(&entries(&DataType::Utf8)), b"\0\xc3\xa9");
    let many = vec![DataType::Utf8; 131];
    let codec = VersionedEntries::new(&DataType::Utf8, &DataType::Utf8, &many).unwrap();
    assert_eq!(value(&codec), b"\x82\x01\xc3\xa9");
    let back = codec.decode_values(&BinaryArray::from(vec![&b"\x82\x01b"[..], b"\0a", b"\x81\x01\xff"])).unwrap();
    assert_eq!(&back, &(Arc::new(BinaryArray::from(vec![&b"b"[..], b"a", b"\xff"])) as ArrayRef));
}

#[test]
fn invariant_2_keys_have_the_bytes_of_their_columns() {
    let fields: Fields = vec![Field::new("k", DataType::Utf8, true), Field::new("n", DataType::Int64, true)].into();
    let columns: Vec<ArrayRef> = vec![
        Arc::new(StringArray::from(vec![Some("a"), None, Some(""), Some("a")])),
        Arc::new(Int64Array::from(vec![Some(1), None, Some(i64::MIN), Some(1)])),
    ];
    let own = KeyCodec::new(&fields).unwrap().encode(&columns, 4).unwrap();
    let rows: ArrayRef = Arc::new(StructArray::new(fields.clone(), columns, None));
    let codec = VersionedEntries::new(&DataType::Struct(fields), &DataType::Int64, &[]).unwrap();
    for rows in [Arc::clone(&rows), as_binary(&rows).unwrap()] {
        let keys = codec.encode_keys(&rows).unwrap();
        assert!((0..4).all(|i| keys.value(i) == own.key(i)));
        assert_eq!(keys.iter().collect::<HashSet<_>>().len(), 3, "a null is a key");
        assert_eq!(&codec.decode_keys(&keys).unwrap(), &as_binary(&rows).unwrap());
    }
    let wrong = codec.decode_keys(&BinaryArray::from(vec![None, Some(&b"x"[..])])).unwrap_err();
    assert!(wrong.message().contains("null"), "{wrong}");
    assert_eq!(codec.decode_keys(&BinaryArray::from(vec![&b"x"[..]])).unwrap_err().kind(), ErrorKind::Corrupt);
}

#[test]
fn invariant_3_other_bytes_are_damage() {
    let row = DataType::Struct(vec![Field::new("n", DataType::Int64, true)].into());
    for value in [row, DataType::Int64] {
        let codec = entries(&value);
        let long = [0xff; 11];
        for bytes in [&b""[..], b"\x01", b"\x80", &long, b"\0", b"\0\x07"] {
            let error = codec.decode_values(&BinaryArray::from(vec![bytes])).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{bytes:?}: {error}");
        }
    }
}

#[test]
fn types_that_come_back_are_written_in_their_own_version() {
    let [one, two] = [1, 2].map(|n| {
        let fields: Vec<_> = ["n", "m"][..n].iter().map(|name| Field::new(*name, DataType::Int64, true)).collect();
        DataType::Struct(fields.into())
    });
    let versions = [one.clone(), two.clone()];
    let codec = |value: &DataType| VersionedEntries::new(&DataType::Utf8, value, &versions).unwrap();
    let row = |data_type: &DataType, n: usize| column(data_type, &[Plain::Struct(vec![Plain::Int(7); n])]);
    let (first, second) = (codec(&one), codec(&two));
    let old = first.encode_values(&row(&one, 1)).unwrap();
    let new = second.encode_values(&row(&two, 2)).unwrap();
    assert_eq!((old.value(0)[0], new.value(0)[0]), (0, 1));
    let both: BinaryArray = [old.value(0), new.value(0)].into_iter().map(Some).collect();
    let back = first.decode_values(&both).unwrap();
    assert_eq!((back.data_type(), back.len()), (&one, 2));
    assert_eq!((plain(&back, 0), plain(&back, 1)), (plain(&row(&one, 1), 0), plain(&row(&one, 1), 0)));
    let back = second.decode_values(&both).unwrap();
    assert_eq!(plain(&back, 0), Plain::Struct(vec![Plain::Int(7), Plain::Null]));
}

#[test]
fn a_value_type_that_fits_no_version_is_refused() {
    let new = |value, versions: &[DataType]| VersionedEntries::new(&DataType::Utf8, &value, versions).unwrap_err();
    let error = new(DataType::Int64, &[DataType::Int8, DataType::Int32]);
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    let error = new(DataType::Int64, &[DataType::Int32, DataType::Utf8, DataType::Int64]);
    assert_eq!(error.kind(), ErrorKind::SchemaMismatch);
    assert!(error.message().contains("version 1") && error.message().contains("was string"), "{error}");
}

#[test]
fn a_string_is_told_from_a_binary_before_it_becomes_one() {
    let codec = entries(&DataType::Utf8);
    codec.check_values(&DataType::LargeUtf8).unwrap();
    let error = codec.check_values(&DataType::Binary).unwrap_err();
    assert!(error.message().contains("type binary, but string is declared"), "{error}");
    assert!(codec.check_keys(&DataType::Int64).is_err());
}
