//! Conversions against plain values, and every refusal by name.

use super::*;
use crate::plain_values::{changed_type, changed_value, column, plain, random_type, random_value, seeded};
use crate::strings::binary_type;
use arrow_array::types::Int64Type;
use arrow_array::{Int32Array, Int64Array, NullArray};
use arrow_schema::{Field, TimeUnit};
use fastchangelog_format::ErrorKind;
use rand::RngExt;

fn field(name: &str, data_type: DataType) -> Field {
    Field::new(name, data_type, true)
}

fn of(fields: Vec<Field>) -> DataType {
    DataType::Struct(fields.into())
}

#[test]
fn any_allowed_change_is_that_of_plain_values() {
    let mut rng = seeded();
    for _ in 0..2_000 {
        let from = random_type(&mut rng, 3);
        let to = changed_type(&mut rng, &from, "new");
        let values: Vec<_> = (0..rng.random_range(0..20)).map(|_| random_value(&mut rng, &from)).collect();
        let evolution = Evolution::new(&binary_type(&from), &binary_type(&to)).unwrap();
        Evolution::new(&from, &to).unwrap_or_else(|error| panic!("in text form: {error}"));
        let made = evolution.apply(&column(&from, &values)).unwrap();
        assert_eq!(made.data_type(), &binary_type(&to), "invariant 2");
        made.to_data().validate_full().unwrap();
        for (i, value) in values.iter().enumerate() {
            assert_eq!(plain(&made, i), changed_value(value, &from, &to), "{from} → {to}: {value:?}");
        }
        if evolution.is_identity() {
            assert_eq!(values, (0..made.len()).map(|i| plain(&made, i)).collect::<Vec<_>>());
        }
    }
}

#[test]
fn a_slice_is_converted_as_its_rows() {
    let from = of(vec![field("a", DataType::Int32), field("gone", DataType::Utf8)]);
    let to = of(vec![field("new", DataType::Date32), field("a", DataType::Int64)]);
    let columns: Vec<ArrayRef> =
        vec![Arc::new(Int32Array::from(vec![1, 2, 3])), Arc::new(arrow_array::StringArray::from(vec!["x", "y", "z"]))];
    let DataType::Struct(fields) = &from else { unreachable!() };
    let rows: ArrayRef = Arc::new(StructArray::new(fields.clone(), columns, Some(vec![true, false, true].into())));
    let made = Evolution::new(&from, &to).unwrap().apply(&rows.slice(1, 2)).unwrap();
    let made = made.as_struct();
    assert_eq!((made.len(), made.is_null(0), made.column(0).null_count()), (2, true, 2));
    assert_eq!(made.column(1).as_primitive::<Int64Type>().value(1), 3);
}

#[test]
fn refused_changes_are_named_field_by_field() {
    let tags = |element| DataType::List(Arc::new(field("element", element)));
    let entries = |key, value| {
        let fields = vec![Field::new("key", key, false), field("value", value)];
        DataType::Map(Arc::new(Field::new("entries", DataType::Struct(fields.into()), false)), false)
    };
    let from = of(vec![
        field("n", DataType::Int64),
        field("tags", tags(of(vec![field("t", DataType::Utf8)]))),
        field("m", entries(DataType::Int64, DataType::Float64)),
        field("kept", DataType::Int32),
    ]);
    let to = of(vec![
        field("n", DataType::Int32),
        field("tags", tags(of(vec![field("t", DataType::Int32)]))),
        field("m", entries(DataType::Float64, DataType::Float32)),
        field("kept", DataType::Int32),
        Field::new("must", DataType::Int32, false),
    ]);
    let error = Evolution::new(&from, &to).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::SchemaMismatch);
    for part in [
        "field `n` was bigint and is now int",
        "field `tags.element.t` was string and is now int",
        "field `m.key` was bigint and is now double",
        "field `m.value` was double and is now float",
        "field `must` is new and must be nullable",
    ] {
        assert!(error.message().contains(part), "{part}: {error}");
    }
    assert!(!error.message().contains("kept` was"), "{error}");
    let twice = of(vec![field("a", DataType::Int32), field("a", DataType::Int32)]);
    let error = Evolution::new(&from, &twice).unwrap_err();
    assert!(error.message().contains("field `a` is there twice"), "{error}");
    assert!(Evolution::new(&twice, &twice).unwrap().is_identity(), "without a change names do not count");
}

#[test]
fn what_is_no_wider_type_is_refused() {
    let us = TimeUnit::Microsecond;
    let utc = || Some("UTC".into());
    let refused = [
        (DataType::Int32, DataType::Int16),
        (DataType::Float64, DataType::Float32),
        (DataType::Float32, DataType::Int64),
        (DataType::Boolean, DataType::Int32),
        (DataType::Int64, DataType::Timestamp(us, utc())),
        (DataType::Date32, DataType::Int32),
        (DataType::Timestamp(us, utc()), DataType::Timestamp(us, None)),
        (DataType::Int64, DataType::Decimal128(18, 0)),
        (DataType::Int32, DataType::Decimal128(10, 1)),
        (DataType::Decimal128(9, 2), DataType::Decimal128(9, 3)),
        (DataType::Decimal128(9, 2), DataType::Decimal128(10, 1)),
        (DataType::Decimal128(9, 2), DataType::Float64),
        (DataType::Utf8, DataType::Int32),
        (DataType::Int32, DataType::Utf8),
        (DataType::Int32, DataType::Null),
        (DataType::Utf8, of(vec![field("a", DataType::Utf8)])),
        (of(vec![field("a", DataType::Utf8)]), DataType::Utf8),
    ];
    for (from, to) in refused {
        let error = Evolution::new(&from, &to).unwrap_err();
        let part = format!("the value was {} and is now {}", type_text(&from), type_text(&to));
        assert!(error.kind() == ErrorKind::SchemaMismatch && error.message().contains(&part), "{error}");
    }
}

#[test]
fn a_time_zone_label_is_no_change() {
    let zone = |name: &str| DataType::Timestamp(TimeUnit::Microsecond, Some(name.into()));
    let (from, to) = (of(vec![field("t", zone("UTC"))]), of(vec![field("t", zone("Europe/Paris"))]));
    let evolution = Evolution::new(&from, &to).unwrap();
    assert!(evolution.is_identity());
    let rows = arrow_array::new_null_array(&from, 3);
    assert_eq!(evolution.apply(&rows).unwrap().data_type(), &to, "invariant 2");
}

#[test]
fn a_null_that_the_newer_type_excludes_is_refused() {
    let from = of(vec![field("a", DataType::Int32), field("gone", DataType::Int32)]);
    let to = of(vec![Field::new("a", DataType::Int64, false)]);
    let evolution = Evolution::new(&from, &to).unwrap();
    let DataType::Struct(fields) = &from else { unreachable!() };
    let rows = |a: Vec<Option<i32>>| -> ArrayRef {
        let gone = Arc::new(Int32Array::from(vec![None; a.len()]));
        Arc::new(StructArray::new(fields.clone(), vec![Arc::new(Int32Array::from(a)), gone], None))
    };
    assert_eq!(evolution.apply(&rows(vec![Some(1)])).unwrap().data_type(), &to);
    let error = evolution.apply(&rows(vec![Some(1), None])).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::SchemaMismatch);
    assert!(error.message().contains("\"a\"") && error.message().contains("declare the field nullable"), "{error}");
}

#[test]
fn a_column_of_another_type_is_refused() {
    let evolution = Evolution::new(&DataType::Int32, &DataType::Int64).unwrap();
    let wrong: ArrayRef = Arc::new(Int64Array::from(vec![1]));
    assert!(evolution.apply(&wrong).unwrap_err().message().contains("type bigint, but int is declared"));
    let nothing: ArrayRef = Arc::new(NullArray::new(2));
    let made = Evolution::new(&DataType::Null, &DataType::Int64).unwrap().apply(&nothing).unwrap();
    assert_eq!((made.data_type(), made.null_count()), (&DataType::Int64, 2));
}
