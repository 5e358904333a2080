//! Random entries of Spark's state stores, whole and damaged.
//!
//! Owns: rows of random values of every type. Does not own: what must hold (`fastchangelog_oracles::spark_rows`), files
//! that Spark wrote (the tests of `rust/spark`).

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a failure here is a failed test, and tells its seed")]

use arrow_array::Array;
use arrow_schema::{DataType, Fields};
use fastchangelog_columns::spark_keys::KeyEncoder;
use fastchangelog_oracles::spark_rows::{
    Slot, array_of, encoders, key_fields, key_of, list_of, map_of, read, row_of, shortest, slots_of, spark_entry,
    value_fields, width_of,
};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

fn seeded() -> StdRng {
    let given = std::env::var("FASTCHANGELOG_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed: u64 = given.unwrap_or_else(rand::random);
    println!("FASTCHANGELOG_SEED={seed}");
    StdRng::seed_from_u64(seed)
}

fn bytes(rng: &mut StdRng) -> Vec<u8> {
    (0..rng.random_range(0..20)).map(|_| rng.random()).collect()
}

fn slots(rng: &mut StdRng, data_type: &DataType, nulls: bool) -> Vec<Slot> {
    let count = if rng.random_range(0..20) == 0 { 70 } else { rng.random_range(0..4) };
    (0..count).map(|_| slot(rng, data_type, nulls)).collect()
}

fn slot(rng: &mut StdRng, data_type: &DataType, nulls: bool) -> Slot {
    if *data_type == DataType::Null || nulls && rng.random_range(0..4) == 0 {
        return Slot::Null;
    }
    match data_type {
        DataType::Boolean => Slot::Fixed(vec![rng.random_range(0..2)]),
        DataType::Utf8 | DataType::Binary => Slot::Bytes(bytes(rng)),
        DataType::Decimal128(precision, _) => {
            let limit = 10_i128.pow(rng.random_range(1..=u32::from(*precision)));
            let value = rng.random_range(1 - limit..limit);
            if *precision > 18 { Slot::Bytes(shortest(value)) } else { Slot::Fixed(value.to_le_bytes()[..8].to_vec()) }
        }
        DataType::List(of) => {
            let elements = slots(rng, of.data_type(), true);
            Slot::Bytes(array_of(&elements, width_of(of.data_type())))
        }
        DataType::Map(entries, _) => {
            let DataType::Struct(fields) = entries.data_type() else { unreachable!() };
            let keys = slots(rng, fields[0].data_type(), false);
            let values: Vec<_> = keys.iter().map(|_| slot(rng, fields[1].data_type(), true)).collect();
            let part = |slots: &[Slot], at: usize| array_of(slots, width_of(fields[at].data_type()));
            Slot::Bytes(map_of(&part(&keys, 0), &part(&values, 1)))
        }
        DataType::Struct(fields) => Slot::Bytes(row_of(&row(rng, fields))),
        fixed => Slot::Fixed((0..width_of(fixed)).map(|_| rng.random()).collect()),
    }
}

fn row(rng: &mut StdRng, fields: &Fields) -> Vec<Slot> {
    fields.iter().map(|field| slot(rng, field.data_type(), true)).collect()
}

/// Encoder, kind, key and value of a random entry.
fn entry(rng: &mut StdRng) -> (usize, bool, Vec<Slot>, Vec<Vec<Slot>>) {
    let is_list = rng.random();
    let rows = if is_list { rng.random_range(0..4) } else { 1 };
    let value = (0..rows).map(|_| row(rng, &value_fields())).collect();
    (rng.random_range(0..3), is_list, row(rng, &key_fields()), value)
}

fn value_of(is_list: bool, rows: &[Vec<Slot>]) -> Vec<u8> {
    let rows: Vec<_> = rows.iter().map(|row| row_of(row)).collect();
    if is_list { list_of(&rows, if rows.len() % 2 == 0 { b"," } else { b"" }) } else { [&[0], &rows[0][..]].concat() }
}

fn input(encoder: usize, is_list: bool, key: &[u8], value: &[u8]) -> Vec<u8> {
    let kind = (0..=255).find(|kind: &u8| usize::from(kind % 3) == encoder && (kind & 0x80 != 0) == is_list).unwrap();
    [&[kind], &u16::try_from(key.len()).unwrap().to_le_bytes()[..], key, value].concat()
}

#[test]
fn random_rows_of_every_type_are_read_as_they_were_written() {
    let mut rng = seeded();
    for _ in 0..2_000 {
        let (encoder, is_list, key, rows) = entry(&mut rng);
        let written = key_of(&encoders()[encoder], &key);
        let (keys, values) = read(&encoders()[encoder], is_list, &written, &value_of(is_list, &rows)).unwrap();
        assert_eq!(slots_of(&keys, &key_fields(), 0), key);
        let found: Vec<_> = (0..values.len()).map(|row| slots_of(&values, &value_fields(), row)).collect();
        assert_eq!(found, rows);
    }
}

#[test]
fn keys_of_an_order_are_ordered_as_bytes() {
    let order = KeyEncoder::Range(vec![0]);
    let key = |n: i64| {
        let mut slots = vec![Slot::Null; 7];
        slots[0] = Slot::Fixed(n.to_le_bytes().to_vec());
        key_of(&order, &slots)
    };
    assert!([i64::MIN, -1, 0, 1, i64::MAX].map(key).is_sorted());
}

#[test]
fn p9_damaged_entries_break_nothing() {
    let mut rng = seeded();
    let mut taken = 0;
    for _ in 0..10_000 {
        let (encoder, is_list, key, rows) = entry(&mut rng);
        let key = key_of(&encoders()[encoder], &key);
        let mut bytes = input(encoder, is_list, &key, &value_of(is_list, &rows));
        for _ in 0..rng.random_range(1..4) {
            let at = rng.random_range(3..bytes.len());
            let run = rng.random_range(1..9).min(bytes.len() - at);
            let extreme = [0x00, 0x01, 0x7f, 0x80, 0xff, rng.random()][rng.random_range(0..6)];
            bytes[at..at + run].fill(extreme);
        }
        if rng.random_range(0..10) == 0 {
            bytes.truncate(rng.random_range(0..bytes.len()));
        }
        taken += u32::from(spark_entry(&bytes));
    }
    assert!((500..9_500).contains(&taken), "{taken} are taken: faults are all refused, or not seen");
}
