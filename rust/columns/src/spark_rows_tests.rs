//! Rows whose bytes are written out. Random rows of every type: `rust/oracles/tests/spark_entries.rs`.

use super::*;
use arrow_array::cast::AsArray;
use arrow_array::types::{Decimal128Type, Int64Type};

fn fields(types: impl IntoIterator<Item = DataType>) -> Fields {
    types.into_iter().map(|data_type| Field::new("f", data_type, true)).collect()
}

fn word(place: usize, length: usize) -> [u8; 8] {
    ((place as u64) << 32 | length as u64).to_le_bytes()
}

#[test]
fn a_number_a_null_and_a_text_are_read() {
    let mut row = vec![0b10, 0, 0, 0, 0, 0, 0, 0];
    row.extend(7_i64.to_le_bytes());
    row.extend([0; 8]);
    row.extend(word(32, 3));
    row.extend(b"abc\0\0\0\0\0");
    let fields = fields([DataType::Int64, DataType::Int64, DataType::Utf8]);
    let mut columns = RowColumns::new(&fields).unwrap();
    columns.push(&row).unwrap();
    let found = columns.finish().unwrap();
    assert_eq!(found.column(0).as_primitive::<Int64Type>().value(0), 7);
    assert!(found.column(1).is_null(0));
    assert_eq!(found.column(2).as_binary::<i32>().value(0), b"abc");
    for cut in 0..35 {
        let damage = RowColumns::new(&fields).unwrap().push(&row[..cut]).unwrap_err();
        assert!(damage.at <= cut, "{damage:?}");
    }
    let error = Damage::new(5, "odd").in_object("state/0/1");
    assert!(error.message().contains("state/0/1") && error.message().contains('5'), "{error}");
}

#[test]
fn decimals_are_read_in_both_forms() {
    let narrow = fields([DataType::Decimal128(18, 2)]);
    let wide = fields([DataType::Decimal128(20, 2)]);
    let number = |fields: &Fields, tail: &[u8], slot: [u8; 8]| {
        let mut columns = RowColumns::new(fields).unwrap();
        columns.push(&[&[0; 8], &slot[..], tail].concat())?;
        Ok::<_, Damage>(columns.finish().unwrap().column(0).as_primitive::<Decimal128Type>().value(0))
    };
    assert_eq!(number(&narrow, &[], (-125_i64).to_le_bytes()), Ok(-125));
    assert_eq!(number(&wide, &[0xFF, 0x83, 0, 0, 0, 0, 0, 0], word(16, 2)), Ok(-125));
    assert_eq!(number(&wide, &[0, 0x83], word(16, 2)), Ok(131));
    assert!(number(&narrow, &[], i64::MAX.to_le_bytes()).is_err(), "19 digits");
    assert!(number(&wide, &[0; 24], word(16, 17)).is_err());
    assert!(number(&wide, &[], word(16, 0)).is_err());
}

#[test]
fn what_comes_out_has_the_types_of_the_wire() {
    let entry =
        Fields::from(vec![Field::new("key", DataType::Int64, false), Field::new("value", DataType::Null, true)]);
    let map = DataType::Map(Arc::new(Field::new("entries", DataType::Struct(entry), false)), false);
    let declared = RowColumns::declared(&fields([map, DataType::Null]));
    let entry =
        Fields::from(vec![Field::new("key", DataType::Int64, false), Field::new("value", DataType::Boolean, true)]);
    let list = DataType::List(Arc::new(Field::new("element", DataType::Struct(entry), false)));
    assert_eq!(declared, fields([list, DataType::Boolean]));
    assert!(RowColumns::new(&fields([DataType::Int64, DataType::UInt8])).is_err());
}

#[test]
fn p9_an_array_that_claims_more_than_it_has_is_refused() {
    let list = DataType::List(Arc::new(Field::new("element", DataType::Int32, true)));
    for count in [3_u64, 1 << 40, u64::MAX] {
        let mut row = [&[0; 8], &word(16, 24)[..], &count.to_le_bytes(), &[0; 16]].concat();
        let mut columns = RowColumns::new(&fields([list.clone()])).unwrap();
        assert!(columns.push(&row).is_err(), "{count}");
        row[16..24].copy_from_slice(&2_u64.to_le_bytes());
        RowColumns::new(&fields([list.clone()])).unwrap().push(&row).unwrap();
    }
}
