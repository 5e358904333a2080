use super::*;

fn sorted(data_type: &DataType, values: &[&[u8]]) -> Vec<Vec<u8>> {
    let mut values = values.to_vec();
    sort(data_type, &mut values);
    values.into_iter().map(<[u8]>::to_vec).collect()
}

#[test]
fn numbers_are_in_the_order_of_their_places() {
    let bytes: Vec<[u8; 4]> = [17, 3, -2, 1, 16, 100_000].map(i32::to_le_bytes).to_vec();
    let found = sorted(&DataType::Int32, &bytes.iter().map(<[u8; 4]>::as_slice).collect::<Vec<_>>());
    let found: Vec<i32> = found.iter().map(|value| i32::read(value, 0)).collect();
    // 100,000 ^ 1 ends in 1, and the negative number, whose low bits are turned, too.
    assert_eq!(found, [16, -2, 1, 17, 100_000, 3]);
}

#[test]
fn tables_are_less_than_three_quarters_full() {
    assert_eq!([0, 11, 12, 23, 24, 47, 48].map(places), [16, 16, 32, 32, 64, 64, 128]);
}

#[test]
fn hashes_of_decimals_are_scalas() {
    // Whole numbers are longs, as far as they are.
    assert_eq!(of_decimal(500, 2), 5);
    assert_eq!(of_decimal(-500, 2), -5);
    assert_eq!(of_decimal(0, 2), 0);
    assert_eq!(of_decimal(i128::from(i64::MAX) * 10, 1), of_long(i64::MAX));
    // A half is a float without loss, a tenth a double.
    assert_eq!(of_decimal(5, 1), 0.5f32.to_bits().cast_signed());
    assert_eq!(of_decimal(10, 2), fold(0.1f64.to_bits().cast_signed()));
    assert!(!is_text_of(0.1, 10_000_000_000_000_000_001, 20));
}
