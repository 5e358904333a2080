use super::*;
use arrow_array::{Float64Array, Int64Array, StringArray};

fn strings(values: &[&str]) -> ArrayRef {
    Arc::new(StringArray::from(values.to_vec()))
}

fn bytes(types: &TypedEntries, keys: &ArrayRef) -> Vec<Vec<u8>> {
    let encoded = types.encode_keys(keys).unwrap();
    (0..encoded.len()).map(|i| encoded.key(i).to_vec()).collect()
}

fn within(range: &KeyRange, key: &[u8]) -> bool {
    range.from[..] <= *key && range.to.as_ref().is_none_or(|to| *key < to[..])
}

#[test]
fn invariant_1_a_prefix_of_any_length_is_a_range() {
    let types = TypedEntries::new(&DataType::Utf8, &DataType::Int64).unwrap();
    let alphabet = ["a", "b", "ü", "\u{7f}", "\u{10ffff}"];
    let mut words = vec![String::new()];
    for n in [1usize, 7, 8, 9, 16, 31, 32, 33, 64, 65] {
        words.extend(alphabet.iter().map(|letter| letter.repeat(n)));
        words.extend(alphabet.iter().map(|letter| format!("{}{letter}", "a".repeat(n))));
    }
    let array = strings(&words.iter().map(String::as_str).collect::<Vec<_>>());
    let encoded = bytes(&types, &array);
    for prefix in &words {
        let range = types.beginning_with(&strings(&[prefix])).unwrap();
        for (word, key) in words.iter().zip(&encoded) {
            assert_eq!(within(&range, key), word.starts_with(prefix.as_str()), "{word:?} begins with {prefix:?}");
        }
    }
    let all: ArrayRef = Arc::new(BinaryArray::from(vec![&[255u8, 255][..]]));
    let binaries = TypedEntries::new(&DataType::Binary, &DataType::Int64).unwrap();
    assert_eq!(binaries.beginning_with(&all).unwrap().to, None);
}

#[test]
fn invariant_1_leading_fields_are_a_prefix() {
    let fields: Fields =
        vec![Field::new("user", DataType::Utf8, true), Field::new("day", DataType::Int64, true)].into();
    let types = TypedEntries::new(&DataType::Struct(fields.clone()), &DataType::Int64).unwrap();
    let users = strings(&["a", "a", "ab", "b"]);
    let days: ArrayRef = Arc::new(Int64Array::from(vec![-1, 5, 0, 0]));
    let keys: ArrayRef = Arc::new(StructArray::try_new(fields.clone(), vec![users, days], None).unwrap());
    let encoded = bytes(&types, &keys);
    let leading: ArrayRef =
        Arc::new(StructArray::try_new(vec![fields[0].clone()].into(), vec![strings(&["a"])], None).unwrap());
    let range = types.beginning_with(&leading).unwrap();
    assert_eq!(encoded.iter().map(|key| within(&range, key)).collect::<Vec<_>>(), [true, true, false, false]);
    let back = types.decode_keys(encoded.iter().map(Vec::as_slice)).unwrap();
    assert_eq!(&back, &keys);
    assert!(encoded.is_sorted());
    let wrong = types.encode_keys(&strings(&["a"])).unwrap_err();
    assert!(wrong.message().contains("struct<user:string,day:bigint>"), "{wrong}");
}

#[test]
fn invariant_2_values_are_kept_bit_by_bit() {
    let types = TypedEntries::new(&DataType::Int64, &DataType::Float64).unwrap();
    let nan = f64::from_bits(0x7ff8_dead_beef_0001);
    let values: ArrayRef = Arc::new(Float64Array::from(vec![Some(-0.0), Some(nan), None, Some(f64::INFINITY)]));
    let encoded = types.encode_values(&values, 4).unwrap();
    assert_eq!(encoded.value(2), None);
    let back = types.decode_values((0..4).map(|i| encoded.value(i))).unwrap();
    let back = back.as_primitive::<arrow_array::types::Float64Type>();
    assert_eq!(back.value(0).to_bits(), (-0.0f64).to_bits());
    assert_eq!(back.value(1).to_bits(), nan.to_bits());
    assert!(back.is_null(2));
}

#[test]
fn invariant_2_strings_and_binaries_are_their_own_bytes() {
    let texts = [Some("é"), None, Some(""), Some("a string of more than one block of thirty-two bytes")];
    let plain: ArrayRef = Arc::new(StringArray::from(texts.to_vec()));
    let forms = [
        DataType::Utf8,
        DataType::LargeUtf8,
        DataType::Utf8View,
        DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Utf8)),
        DataType::Binary,
        DataType::LargeBinary,
        DataType::BinaryView,
    ];
    for form in forms {
        let types = TypedEntries::new(&DataType::Int64, &form).unwrap();
        let values = arrow_cast::cast(&plain, &form).unwrap();
        // A slice, too: its offsets do not begin at 0.
        for values in [Arc::clone(&values), values.slice(1, 3)] {
            let encoded = types.encode_values(&values, values.len()).unwrap();
            let bytes: Vec<_> = (0..values.len()).map(|i| encoded.value(i)).collect();
            let expected: Vec<_> = texts[4 - values.len()..].iter().map(|text| text.map(str::as_bytes)).collect();
            assert_eq!(bytes, expected, "{form}");
            let back = types.decode_values(bytes.into_iter()).unwrap();
            assert_eq!(back.data_type(), &form);
            let (back, values) =
                (arrow_cast::cast(&back, &DataType::Binary), arrow_cast::cast(&values, &DataType::Binary));
            assert_eq!(&back.unwrap(), &values.unwrap(), "{form}");
        }
    }
    let types = TypedEntries::new(&DataType::Int64, &DataType::Utf8).unwrap();
    let error = types.decode_values([Some(&b"\xff"[..])].into_iter()).unwrap_err();
    assert_eq!(error.kind(), fastchangelog_format::ErrorKind::Corrupt);
    let numbers: ArrayRef = Arc::new(Int64Array::from(vec![1]));
    assert!(types.encode_values(&numbers, 1).unwrap_err().message().contains("bigint"));
}

#[test]
fn what_cannot_be_kept_is_refused_by_name() {
    let keys = TypedEntries::new(&DataType::Utf8, &DataType::Int64).unwrap();
    let null: ArrayRef = Arc::new(StringArray::from(vec![None::<&str>]));
    assert!(keys.encode_keys(&null).unwrap_err().message().contains("null"));
    let numbers: ArrayRef = Arc::new(Int64Array::from(vec![1]));
    assert!(keys.encode_keys(&numbers).unwrap_err().message().contains("bigint"));
    assert!(keys.encode_values(&numbers, 2).unwrap_err().message().contains("2 keys and 1 values"));
    let by_number = TypedEntries::new(&DataType::Int64, &DataType::Int64).unwrap();
    assert!(by_number.beginning_with(&numbers).unwrap_err().message().contains("prefix"));
}
