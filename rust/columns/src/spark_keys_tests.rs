//! Encoders of keys whose bytes are written out. Random entries: `rust/oracles/tests/spark_entries.rs`.

use super::*;
use arrow_array::Array;
use arrow_array::cast::AsArray;
use arrow_array::types::{Float64Type, Int64Type};
use arrow_schema::Field;

fn fields(types: impl IntoIterator<Item = DataType>) -> Fields {
    types.into_iter().map(|data_type| Field::new("f", data_type, true)).collect()
}

#[test]
fn encoders_are_parsed() {
    let parse = |text: &str| KeyEncoder::parse(text);
    assert_eq!(parse("").unwrap(), KeyEncoder::Plain);
    assert_eq!(parse(r#"{"keyStateEncoderType":"NoPrefixKeyStateEncoderSpec"}"#).unwrap(), KeyEncoder::Plain);
    let prefix = r#"{"keyStateEncoderType":"PrefixKeyScanStateEncoderSpec","numColsPrefixKey":1}"#;
    assert_eq!(parse(prefix).unwrap(), KeyEncoder::Prefix(1));
    let range = r#"{"keyStateEncoderType":"RangeKeyScanStateEncoderSpec","orderingOrdinals":[1,0]}"#;
    assert_eq!(parse(range).unwrap(), KeyEncoder::Range(vec![1, 0]));
    for odd in ["{}", "[", r#"{"keyStateEncoderType":"Other"}"#] {
        assert!(parse(odd).is_err(), "{odd}");
    }
    let two = fields([DataType::Int64, DataType::Utf8]);
    for odd in
        [KeyEncoder::Prefix(3), KeyEncoder::Range(vec![2]), KeyEncoder::Range(vec![0, 0]), KeyEncoder::Range(vec![1])]
    {
        assert!(KeyColumns::new(&two, &odd, true).is_err(), "{odd:?}");
    }
}

#[test]
fn numbers_of_an_order_are_read_with_their_signs() {
    // NaN with its sign, infinity, zeros, the null.
    let doubles = [f64::NEG_INFINITY, -1.5, -0.0, 0.0, 1.5, f64::INFINITY, f64::NAN, -f64::NAN];
    let fields = fields([DataType::Float64]);
    for double in doubles {
        let bits = double.to_bits();
        let is_negative = bits >> 63 == 1;
        let number = if is_negative { !bits } else { bits };
        let mut key = vec![25, 0, 0, 0, 0];
        key.extend([0; 8]);
        key.extend((16_u64 << 32 | 9).to_le_bytes());
        key.push(u8::from(!is_negative));
        key.extend(number.to_be_bytes());
        key[0] = (key.len() - 4) as u8;
        let mut keys = KeyColumns::new(&fields, &KeyEncoder::Range(vec![0]), true).unwrap();
        keys.push(&key).unwrap();
        key[21] = 2;
        keys.push(&key).unwrap();
        key[21] = 3;
        assert!(keys.push(&key).is_err());
        let found = keys.finish();
        assert!(found.is_ok());
        let mut keys = KeyColumns::new(&fields, &KeyEncoder::Range(vec![0]), true).unwrap();
        key[21] = u8::from(!is_negative);
        keys.push(&key).unwrap();
        let found = keys.finish().unwrap();
        assert_eq!(found.column(0).as_primitive::<Float64Type>().value(0).to_bits(), bits);
    }
}

#[test]
fn lists_are_divided_at_their_lengths() {
    let row = |n: i64| [&[0; 8][..], &n.to_le_bytes()].concat();
    let element = |n: i64| [&17_u32.to_le_bytes()[..], &[0], &row(n)].concat();
    let fields = fields([DataType::Int64]);
    // 0x2C is the comma.
    let list = [element(0x2C2C_2C2C), vec![b','], element(1)].concat();
    let mut values = RowColumns::new(&fields).unwrap();
    assert_eq!(push_list(&mut values, &list, true), Ok(2));
    assert_eq!(push_list(&mut values, &[element(5), element(6), vec![b','], element(7)].concat(), true), Ok(3));
    assert_eq!(push_list(&mut values, &[], true), Ok(0));
    let found = values.finish().unwrap();
    assert_eq!(found.column(0).as_primitive::<Int64Type>().values(), &[0x2C2C_2C2C, 1, 5, 6, 7]);
    let refused = |list: &[u8]| push_list(&mut RowColumns::new(&fields).unwrap(), list, true).is_err();
    for cut in (1..list.len()).filter(|cut| *cut != 21) {
        assert!(refused(&list[..cut]), "{cut}");
    }
    assert!(refused(&[element(1), vec![b';'], element(1)].concat()));
    assert!(refused(&[17, 0, 0, 0x80, 0]));
    let mut plain = RowColumns::new(&fields).unwrap();
    assert!(push_value(&mut plain, &row(5), true).is_err(), "a byte is missing behind the version");
    let mut plain = RowColumns::new(&fields).unwrap();
    push_value(&mut plain, &row(5), false).unwrap();
    assert_eq!(plain.finish().unwrap().column(0).null_count(), 0);
}
