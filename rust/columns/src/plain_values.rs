//! For tests: random types, random values as plain Rust values, and the effect of a change of the type.
//!
//! Owns: the model that encoded columns are compared with. Does not own: any assertion.
//!
//! Columns are in their binary form, so that strings may be any bytes.

use arrow_array::cast::AsArray;
use arrow_array::types::*;
use arrow_array::{
    Array, ArrayRef, ArrowPrimitiveType, BinaryArray, BooleanArray, ListArray, MapArray, NullArray, PrimitiveArray,
    StructArray,
};
use arrow_buffer::{NullBuffer, OffsetBuffer};
use arrow_schema::{DataType, Field, FieldRef, Fields, TimeUnit};
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use std::sync::Arc;

/// One value. Integers stand for decimals, dates and times too; floats are bits.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Plain {
    Null,
    Bool(bool),
    Int(i128),
    Float(u64),
    Bytes(Vec<u8>),
    Struct(Vec<Plain>),
    List(Vec<Plain>),
    Map(Vec<(Plain, Plain)>),
}

/// Random numbers of a seed that is printed, and can be set.
pub(crate) fn seeded() -> StdRng {
    let given = std::env::var("FASTCHANGELOG_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = given.unwrap_or_else(|| rand::random_range(0..1_000_000_u64));
    println!("FASTCHANGELOG_SEED={seed}");
    StdRng::seed_from_u64(seed)
}

/// Every flat type that a state may have.
pub(crate) fn flat_types() -> Vec<DataType> {
    vec![
        DataType::Boolean,
        DataType::Int8,
        DataType::Int16,
        DataType::Int32,
        DataType::Int64,
        DataType::Float32,
        DataType::Float64,
        DataType::Decimal128(9, 2),
        DataType::Decimal128(38, 18),
        DataType::Date32,
        DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into())),
        DataType::Timestamp(TimeUnit::Microsecond, None),
        DataType::Duration(TimeUnit::Microsecond),
        DataType::Time64(TimeUnit::Nanosecond),
        DataType::Utf8,
        DataType::Binary,
        DataType::Null,
    ]
}

fn list_of(element: DataType) -> DataType {
    DataType::List(Arc::new(Field::new("element", element, true)))
}

fn map_of(key: DataType, value: DataType) -> DataType {
    let fields = vec![Field::new("key", key, false), Field::new("value", value, true)];
    DataType::Map(Arc::new(Field::new("entries", DataType::Struct(fields.into()), false)), false)
}

/// A type, nested at most `depth` deep.
pub(crate) fn random_type(rng: &mut StdRng, depth: usize) -> DataType {
    let flat = flat_types();
    match rng.random_range(0..if depth == 0 { 1 } else { 4 }) {
        0 => flat[rng.random_range(0..flat.len())].clone(),
        1 => list_of(random_type(rng, depth - 1)),
        2 => {
            let keys = [DataType::Utf8, DataType::Int32, DataType::Int64, DataType::Date32];
            map_of(keys[rng.random_range(0..keys.len())].clone(), random_type(rng, depth - 1))
        }
        _ => {
            let count = rng.random_range(1..5);
            let field = |i: usize| Field::new(format!("f{i}"), random_type(rng, depth - 1), true);
            DataType::Struct((0..count).map(field).collect())
        }
    }
}

/// A value of the type; nulls and extremes are frequent.
pub(crate) fn random_value(rng: &mut StdRng, of: &DataType) -> Plain {
    if of == &DataType::Null || rng.random_range(0..6) == 0 { Plain::Null } else { random_valid(rng, of) }
}

fn random_valid(rng: &mut StdRng, of: &DataType) -> Plain {
    let among = |rng: &mut StdRng, least: i128, greatest: i128| match rng.random_range(0..6) {
        0 => least,
        1 => greatest,
        2 => 0,
        3 => -1_i128.max(least),
        _ => rng.random_range(least..=greatest),
    };
    match of {
        DataType::Boolean => Plain::Bool(rng.random()),
        DataType::Int8 => Plain::Int(among(rng, i8::MIN.into(), i8::MAX.into())),
        DataType::Int16 => Plain::Int(among(rng, i16::MIN.into(), i16::MAX.into())),
        DataType::Int32 | DataType::Date32 => Plain::Int(among(rng, i32::MIN.into(), i32::MAX.into())),
        DataType::Int64 | DataType::Timestamp(..) | DataType::Duration(_) => {
            Plain::Int(among(rng, i64::MIN.into(), i64::MAX.into()))
        }
        DataType::Time64(_) => Plain::Int(among(rng, 0, 86_399_999_999_999)),
        DataType::Decimal128(precision, _) => {
            let greatest = 10_i128.pow(u32::from(*precision)) - 1;
            Plain::Int(among(rng, -greatest, greatest))
        }
        DataType::Float32 => {
            let some =
                [0.0, -0.0, 1.1, f32::MAX, f32::MIN_POSITIVE, f32::INFINITY, f32::NAN, f32::from_bits(0x7fc0_1234)];
            Plain::Float(some[rng.random_range(0..some.len())].to_bits().into())
        }
        DataType::Float64 => {
            let odd = f64::from_bits(0x7ff8_dead_beef_0001);
            let some = [0.0, -0.0, 1.1, f64::MIN, f64::MIN_POSITIVE, f64::NEG_INFINITY, f64::NAN, odd];
            Plain::Float(some[rng.random_range(0..some.len())].to_bits())
        }
        DataType::Utf8 | DataType::Binary => {
            let some: [&[u8]; 6] = [b"", b"\xff", b"a\0", "grüße".as_bytes(), &[b'x'; 40], &[0; 300]];
            Plain::Bytes(some[rng.random_range(0..some.len())].to_vec())
        }
        DataType::Struct(fields) => Plain::Struct(fields.iter().map(|f| random_value(rng, f.data_type())).collect()),
        DataType::List(field) => {
            Plain::List((0..rng.random_range(0..4)).map(|_| random_value(rng, field.data_type())).collect())
        }
        DataType::Map(entries, _) => {
            let [key, value] = entry(entries);
            let entries = (0..rng.random_range(0..4)).map(|_| (random_valid(rng, &key), random_value(rng, &value)));
            Plain::Map(entries.collect())
        }
        other => panic!("no values of {other}"),
    }
}

fn entry(entries: &FieldRef) -> [DataType; 2] {
    let DataType::Struct(fields) = entries.data_type() else { panic!("a map's entries") };
    [fields[0].data_type().clone(), fields[1].data_type().clone()]
}

fn ints<T: ArrowPrimitiveType>(of: &DataType, values: &[Plain]) -> ArrayRef
where
    T::Native: TryFrom<i128, Error: std::fmt::Debug>,
{
    let native = values.iter().map(|value| match value {
        Plain::Int(value) => Some(T::Native::try_from(*value).unwrap()),
        _ => None,
    });
    Arc::new(native.collect::<PrimitiveArray<T>>().with_data_type(of.clone()))
}

fn valid(values: &[Plain]) -> NullBuffer {
    values.iter().map(|value| value != &Plain::Null).collect()
}

/// A column of the values, in binary form.
pub(crate) fn column(of: &DataType, values: &[Plain]) -> ArrayRef {
    match of {
        DataType::Null => Arc::new(NullArray::new(values.len())),
        DataType::Boolean => {
            let bools = values.iter().map(|value| if let Plain::Bool(value) = value { Some(*value) } else { None });
            Arc::new(bools.collect::<BooleanArray>())
        }
        DataType::Int8 => ints::<Int8Type>(of, values),
        DataType::Int16 => ints::<Int16Type>(of, values),
        DataType::Int32 => ints::<Int32Type>(of, values),
        DataType::Int64 => ints::<Int64Type>(of, values),
        DataType::Date32 => ints::<Date32Type>(of, values),
        DataType::Timestamp(..) => ints::<TimestampMicrosecondType>(of, values),
        DataType::Duration(_) => ints::<DurationMicrosecondType>(of, values),
        DataType::Time64(_) => ints::<Time64NanosecondType>(of, values),
        DataType::Decimal128(..) => ints::<Decimal128Type>(of, values),
        DataType::Float32 => {
            let bits = |value: &Plain| if let Plain::Float(bits) = value { u32::try_from(*bits).ok() } else { None };
            Arc::new(
                values.iter().map(|value| bits(value).map(f32::from_bits)).collect::<PrimitiveArray<Float32Type>>(),
            )
        }
        DataType::Float64 => {
            let bits = |value: &Plain| if let Plain::Float(bits) = value { Some(*bits) } else { None };
            Arc::new(
                values.iter().map(|value| bits(value).map(f64::from_bits)).collect::<PrimitiveArray<Float64Type>>(),
            )
        }
        DataType::Utf8 | DataType::Binary => {
            let bytes =
                values.iter().map(|value| if let Plain::Bytes(value) = value { Some(&value[..]) } else { None });
            Arc::new(bytes.collect::<BinaryArray>())
        }
        DataType::Struct(fields) => {
            let child = |i: usize| {
                let of_row = |row: &Plain| if let Plain::Struct(row) = row { row[i].clone() } else { Plain::Null };
                column(fields[i].data_type(), &values.iter().map(of_row).collect::<Vec<_>>())
            };
            let columns: Vec<ArrayRef> = (0..fields.len()).map(child).collect();
            let fields: Fields = fields.iter().zip(&columns).map(|(f, c)| of_type(f, c)).collect();
            Arc::new(StructArray::new(fields, columns, Some(valid(values))))
        }
        DataType::List(field) => {
            let rows: Vec<&[Plain]> =
                values.iter().map(|row| if let Plain::List(row) = row { &row[..] } else { &[] }).collect();
            let elements = column(field.data_type(), &rows.concat());
            let offsets = OffsetBuffer::from_lengths(rows.iter().map(|row| row.len()));
            Arc::new(ListArray::new(of_type(field, &elements), offsets, elements, Some(valid(values))))
        }
        DataType::Map(entries, _) => {
            let rows: Vec<&[(Plain, Plain)]> =
                values.iter().map(|row| if let Plain::Map(row) = row { &row[..] } else { &[] }).collect();
            let (keys, items): (Vec<_>, Vec<_>) = rows.concat().into_iter().unzip();
            let types = entry(entries);
            let columns = vec![column(&types[0], &keys), column(&types[1], &items)];
            let DataType::Struct(fields) = entries.data_type() else { panic!("a map's entries") };
            let fields: Fields = fields.iter().zip(&columns).map(|(f, c)| of_type(f, c)).collect();
            let made = StructArray::new(fields, columns, None);
            let field = Arc::new(Field::new("entries", made.data_type().clone(), false));
            let offsets = OffsetBuffer::from_lengths(rows.iter().map(|row| row.len()));
            Arc::new(MapArray::new(field, offsets, made, Some(valid(values)), false))
        }
        other => panic!("no columns of {other}"),
    }
}

fn of_type(field: &FieldRef, column: &ArrayRef) -> FieldRef {
    Arc::new(Field::clone(field).with_data_type(column.data_type().clone()))
}

/// The value in row `i` of a column in binary form.
pub(crate) fn plain(column: &ArrayRef, i: usize) -> Plain {
    if column.data_type() == &DataType::Null || column.is_null(i) {
        return Plain::Null;
    }
    let all = |column: &ArrayRef| (0..column.len()).map(|i| plain(column, i)).collect::<Vec<_>>();
    match column.data_type() {
        DataType::Boolean => Plain::Bool(column.as_boolean().value(i)),
        DataType::Int8 => Plain::Int(column.as_primitive::<Int8Type>().value(i).into()),
        DataType::Int16 => Plain::Int(column.as_primitive::<Int16Type>().value(i).into()),
        DataType::Int32 => Plain::Int(column.as_primitive::<Int32Type>().value(i).into()),
        DataType::Int64 => Plain::Int(column.as_primitive::<Int64Type>().value(i).into()),
        DataType::Date32 => Plain::Int(column.as_primitive::<Date32Type>().value(i).into()),
        DataType::Timestamp(..) => Plain::Int(column.as_primitive::<TimestampMicrosecondType>().value(i).into()),
        DataType::Duration(_) => Plain::Int(column.as_primitive::<DurationMicrosecondType>().value(i).into()),
        DataType::Time64(_) => Plain::Int(column.as_primitive::<Time64NanosecondType>().value(i).into()),
        DataType::Decimal128(..) => Plain::Int(column.as_primitive::<Decimal128Type>().value(i)),
        DataType::Float32 => Plain::Float(column.as_primitive::<Float32Type>().value(i).to_bits().into()),
        DataType::Float64 => Plain::Float(column.as_primitive::<Float64Type>().value(i).to_bits()),
        DataType::Binary => Plain::Bytes(column.as_binary::<i32>().value(i).to_vec()),
        DataType::Struct(_) => Plain::Struct(column.as_struct().columns().iter().map(|c| plain(c, i)).collect()),
        DataType::List(_) => Plain::List(all(&column.as_list::<i32>().value(i))),
        DataType::Map(..) => {
            let entries = column.as_map().value(i);
            Plain::Map(all(entries.column(0)).into_iter().zip(all(entries.column(1))).collect())
        }
        other => panic!("no values of {other}"),
    }
}

/// The type after a change that is allowed. Names of new fields are `prefix` and a number.
pub(crate) fn changed_type(rng: &mut StdRng, of: &DataType, prefix: &str) -> DataType {
    let wider: Vec<DataType> = match of {
        DataType::Null => flat_types(),
        DataType::Int8 => vec![DataType::Int16, DataType::Int64, DataType::Float32, DataType::Decimal128(3, 0)],
        DataType::Int16 => vec![DataType::Int32, DataType::Float64, DataType::Decimal128(7, 2)],
        DataType::Int32 => vec![DataType::Int64, DataType::Float32, DataType::Float64, DataType::Decimal128(38, 28)],
        DataType::Int64 => vec![DataType::Float32, DataType::Float64, DataType::Decimal128(19, 0)],
        DataType::Float32 => vec![DataType::Float64],
        DataType::Decimal128(9, 2) => vec![DataType::Decimal128(10, 2), DataType::Decimal128(38, 31)],
        DataType::Utf8 => vec![DataType::Binary],
        DataType::Binary => vec![DataType::Utf8],
        _ => vec![],
    };
    match of {
        _ if rng.random_range(0..3) == 0 => of.clone(),
        DataType::List(field) => list_of(changed_type(rng, field.data_type(), prefix)),
        DataType::Map(entries, _) => {
            let [key, value] = entry(entries);
            let key = if key == DataType::Int32 && rng.random() { DataType::Int64 } else { key };
            map_of(key, changed_type(rng, &value, prefix))
        }
        DataType::Struct(fields) => {
            let mut kept: Vec<FieldRef> = fields.iter().filter(|_| rng.random_range(0..4) > 0).cloned().collect();
            for field in &mut kept {
                let changed = changed_type(rng, field.data_type(), prefix);
                *field = Arc::new(Field::clone(field).with_data_type(changed));
            }
            // Without fields a struct cannot be made at all.
            for i in 0..rng.random_range(usize::from(kept.is_empty())..3) {
                kept.push(Arc::new(Field::new(format!("{prefix}{i}"), random_type(rng, 1), true)));
            }
            kept.shuffle(rng);
            DataType::Struct(kept.into())
        }
        _ if wider.is_empty() => of.clone(),
        _ => wider[rng.random_range(0..wider.len())].clone(),
    }
}

/// A value after a change of its type.
pub(crate) fn changed_value(value: &Plain, from: &DataType, to: &DataType) -> Plain {
    match (value, from, to) {
        (Plain::Null, ..) => Plain::Null,
        (Plain::Struct(row), DataType::Struct(old), DataType::Struct(new)) => {
            let field = |field: &FieldRef| match old.iter().position(|old| old.name() == field.name()) {
                Some(i) => changed_value(&row[i], old[i].data_type(), field.data_type()),
                None => Plain::Null,
            };
            Plain::Struct(new.iter().map(field).collect())
        }
        (Plain::List(row), DataType::List(old), DataType::List(new)) => {
            Plain::List(row.iter().map(|value| changed_value(value, old.data_type(), new.data_type())).collect())
        }
        (Plain::Map(row), DataType::Map(old, _), DataType::Map(new, _)) => {
            let (old, new) = (entry(old), entry(new));
            let change = |i: usize, value: &Plain| changed_value(value, &old[i], &new[i]);
            Plain::Map(row.iter().map(|(key, value)| (change(0, key), change(1, value))).collect())
        }
        (Plain::Int(value), DataType::Decimal128(_, old), DataType::Decimal128(_, new)) => {
            Plain::Int(value * 10_i128.pow(u32::try_from(new - old).unwrap()))
        }
        (Plain::Int(value), _, DataType::Decimal128(_, scale)) => {
            Plain::Int(value * 10_i128.pow(u32::try_from(*scale).unwrap()))
        }
        (Plain::Int(value), _, DataType::Float32) => Plain::Float((*value as f32).to_bits().into()),
        (Plain::Int(value), _, DataType::Float64) => Plain::Float((*value as f64).to_bits()),
        (Plain::Float(bits), DataType::Float32, DataType::Float64) => {
            Plain::Float(f64::from(f32::from_bits(u32::try_from(*bits).unwrap())).to_bits())
        }
        _ => value.clone(),
    }
}
