//! Rows of stored checkpoints as texts.
//!
//! Owns: the columns of the queries that wrote them. Does not own: the comparison (`checkpoints.rs`).

use arrow_array::cast::AsArray;
use arrow_array::types::{Decimal128Type, Float64Type, Int32Type, Int64Type, TimestampMicrosecondType};
use arrow_array::{Array, ArrayRef, RecordBatch};
use arrow_schema::{DataType, Field, Fields, TimeUnit};
use fastchangelog_columns::spark_keys::KeyEncoder;
use fastchangelog_format::error::{Error, Result};
use fastchangelog_spark::{Checkpoint, ColumnFamily, FamilyRows, Operator, StateReader, StateRows, StoreId};
use std::path::Path;
use std::sync::Arc;

fn fields(types: impl IntoIterator<Item = DataType>) -> Fields {
    types.into_iter().map(|data_type| Field::new("f", data_type, true)).collect()
}

fn list(of: DataType) -> DataType {
    DataType::List(Arc::new(Field::new("element", of, true)))
}

fn map(key: DataType, value: DataType) -> DataType {
    let entry = Fields::from(vec![Field::new("key", key, false), Field::new("value", value, true)]);
    DataType::Map(Arc::new(Field::new("entries", DataType::Struct(entry), false)), false)
}

/// Key, count and sum of the rows of an aggregation.
pub(crate) fn aggregate(reader: &StateReader) -> Result<Vec<String>> {
    use DataType::{Float64, Int64, Utf8};
    let rows = FamilyRows {
        family: None,
        key: fields([Utf8]),
        value: fields([Int64, Int64, Float64, Int64]),
        encoder: KeyEncoder::Plain,
        is_list: false,
    };
    read(reader, rows, |batch, row| {
        let (key, value) = (batch.column(0).as_struct(), batch.column(1).as_struct());
        format!("{}|{}|{}", text(key.column(0), row), text(value.column(0), row), text(value.column(1), row))
    })
}

fn read(reader: &StateReader, rows: FamilyRows, shown: impl Fn(&RecordBatch, usize) -> String) -> Result<Vec<String>> {
    let mut rows = StateRows::new(rows);
    let mut found = Vec::new();
    while let Some(batch) = rows.next(reader)? {
        found.extend((0..batch.num_rows()).map(|row| shown(&batch, row)));
    }
    Ok(found)
}

/// All rows of the processor with every kind of state, after a batch: partition, then state, key and value.
pub(crate) async fn states(
    at: &Checkpoint,
    operator: &Operator,
    families: &[ColumnFamily],
    batch: u64,
    scratch: &Path,
) -> Result<Vec<(u32, String)>> {
    use DataType::{Decimal128, Float64, Int32, Int64, Null, Struct, Timestamp, Utf8};
    let (number, key) = (fields([Int64]), fields([Utf8]));
    let composite = |second: DataType| fields([Struct(key.clone()), second]);
    let at_time = Timestamp(TimeUnit::Microsecond, Some("UTC".into()));
    let structs = list(Struct(fields([Int32, Utf8])));
    let value = fields([Int64, Utf8, Decimal128(20, 5), at_time, map(Utf8, Int32), structs]);
    let timers = "$procTimers_keyToTimestamp";
    let ordered = "$procTimers_timestampToKey";
    let read_of: [(&str, Fields, Fields); 6] = [
        ("value", key.clone(), value),
        ("kept", key.clone(), fields([Struct(number), Int64])),
        ("list", key.clone(), fields([Int64, Utf8])),
        ("map", composite(Struct(key.clone())), fields([Float64])),
        (timers, composite(Int64), fields([Null])),
        (ordered, fields([Int64, Struct(key.clone())]), fields([Null])),
    ];
    let mut found = Vec::new();
    for partition in 0..operator.stores[0].num_partitions {
        let id = StoreId::only(operator.number, partition);
        let reader = at.state(&id, batch, &scratch.join(partition.to_string())).await?;
        let mut times = Vec::new();
        for (name, key, value) in read_of.clone() {
            let family = families.iter().find(|family| family.name == name);
            let family = family.ok_or_else(|| Error::not_found(format!("no family {name}")))?;
            let encoder = KeyEncoder::parse(&family.key_encoder)?;
            let rows = FamilyRows { family: Some(name.to_owned()), key, value, encoder, is_list: name == "list" };
            let texts = read(&reader, rows, |batch, row| shown(name, batch, row))?;
            match name {
                "$procTimers_keyToTimestamp" => times.clone_from(&texts),
                "$procTimers_timestampToKey" => {
                    // The second index of timers: by time, and the same.
                    let (mut first, mut second) = (times.clone(), texts.clone());
                    first.sort();
                    second.sort();
                    assert_eq!(first, second, "both indexes of timers");
                    let time = |text: &String| text.rsplit(' ').next().and_then(|time| time.parse::<i64>().ok());
                    assert!(texts.iter().map(time).is_sorted(), "timers by their times: {texts:?}");
                    continue;
                }
                _ => {}
            }
            found.extend(texts.into_iter().map(|text| (partition, text)));
        }
    }
    Ok(found)
}

fn shown(name: &str, batch: &RecordBatch, row: usize) -> String {
    let (keys, values) = (batch.column(0), batch.column(1));
    let part = |column: &ArrayRef, at: usize| text(column.as_struct().column(at), row);
    match name {
        "value" => format!("value {} {}", text(keys, row), text(values, row)),
        "kept" => format!("kept {} {}", text(keys, row), part(values, 0)),
        "list" => format!("list {} {} {}", text(keys, row), text(batch.column(2), row), text(values, row)),
        "map" => format!("map {} {} {}", part(keys, 0), part(keys, 1), text(values, row)),
        "$procTimers_keyToTimestamp" => format!("timers {} {}", part(keys, 0), part(keys, 1)),
        _ => format!("timers {} {}", part(keys, 1), part(keys, 0)),
    }
}

/// A value as the writer of `expected.json` shows it.
fn text(column: &ArrayRef, row: usize) -> String {
    if column.is_null(row) {
        return "-".to_owned();
    }
    match column.data_type() {
        DataType::Struct(_) => {
            let parts: Vec<_> = column.as_struct().columns().iter().map(|part| text(part, row)).collect();
            format!("({})", parts.join(","))
        }
        DataType::List(_) => {
            let elements = column.as_list::<i32>().value(row);
            let parts: Vec<_> = (0..elements.len()).map(|at| text(&elements, at)).collect();
            format!("[{}]", parts.join(","))
        }
        DataType::Binary => String::from_utf8_lossy(column.as_binary::<i32>().value(row)).into_owned(),
        DataType::Int32 => column.as_primitive::<Int32Type>().value(row).to_string(),
        DataType::Int64 => column.as_primitive::<Int64Type>().value(row).to_string(),
        DataType::Float64 => format!("{:?}", column.as_primitive::<Float64Type>().value(row)),
        DataType::Decimal128(..) => column.as_primitive::<Decimal128Type>().value(row).to_string(),
        DataType::Timestamp(..) => column.as_primitive::<TimestampMicrosecondType>().value(row).to_string(),
        other => panic!("no text of {other}"),
    }
}
