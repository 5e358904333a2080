//! Rows of every type, invented from a seed. For tests.

use arrow_array::builder::{BinaryBuilder, LargeBinaryBuilder};
use arrow_array::{
    Array, ArrayRef, BooleanArray, FixedSizeListArray, GenericListArray, Int64Array, MapArray, NullArray,
    OffsetSizeTrait, RecordBatch, StructArray, make_array,
};
use arrow_buffer::{BooleanBuffer, Buffer, MutableBuffer, NullBuffer, OffsetBuffer};
use arrow_data::ArrayData;
use arrow_schema::{DataType, Field, FieldRef, Fields, IntervalUnit, Schema, SchemaRef, TimeUnit};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::sync::Arc;

/// A generator whose seed is printed; `FASTCHANGELOG_SEED` sets it.
pub(crate) fn rng() -> StdRng {
    let given = std::env::var("FASTCHANGELOG_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed: u64 = given.unwrap_or_else(|| rand::random_range(0..1_000_000));
    println!("FASTCHANGELOG_SEED={seed}");
    StdRng::seed_from_u64(seed)
}

fn field(name: &str, data_type: DataType) -> FieldRef {
    Arc::new(Field::new(name, data_type, true))
}

/// All types that rows can have, nested ones too.
pub(crate) fn types() -> Vec<DataType> {
    let time = || DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into()));
    let pair = |a: DataType, b: DataType| DataType::Struct(Fields::from(vec![field("a", a), field("b", b)]));
    let map = |key: DataType, value: DataType| {
        let entries = Fields::from(vec![Arc::new(Field::new("key", key, false)), field("value", value)]);
        DataType::Map(Arc::new(Field::new("entries", DataType::Struct(entries), false)), false)
    };
    let list = |of: DataType| DataType::List(field("element", of));
    vec![
        DataType::Null,
        DataType::Boolean,
        DataType::Int8,
        DataType::Int16,
        DataType::Int32,
        DataType::Int64,
        DataType::Float32,
        DataType::Float64,
        DataType::Decimal128(38, 10),
        DataType::Utf8,
        DataType::LargeUtf8,
        DataType::Binary,
        DataType::LargeBinary,
        DataType::FixedSizeBinary(3),
        DataType::Date32,
        time(),
        DataType::Timestamp(TimeUnit::Microsecond, None),
        DataType::Time64(TimeUnit::Nanosecond),
        DataType::Duration(TimeUnit::Microsecond),
        DataType::Interval(IntervalUnit::YearMonth),
        DataType::Interval(IntervalUnit::MonthDayNano),
        list(DataType::Int32),
        list(DataType::Utf8),
        list(DataType::Boolean),
        list(DataType::Null),
        list(list(DataType::Utf8)),
        DataType::LargeList(field("element", time())),
        DataType::FixedSizeList(field("element", DataType::Int16), 2),
        pair(DataType::Utf8, DataType::Int64),
        pair(list(pair(DataType::Utf8, DataType::Float64)), map(DataType::Utf8, DataType::Binary)),
        DataType::Struct(Fields::empty()),
        map(DataType::Int32, pair(DataType::Boolean, DataType::Utf8)),
        list(map(DataType::Utf8, DataType::Decimal128(10, 2))),
    ]
}

/// Validity of some rows; about a fifth is null.
fn validity(rng: &mut StdRng, rows: usize) -> Option<NullBuffer> {
    rng.random_bool(0.7).then(|| NullBuffer::new(BooleanBuffer::collect_bool(rows, |_| rng.random_bool(0.8))))
}

/// A few bytes, of which many are equal and some are no text.
fn some_bytes(rng: &mut StdRng) -> Vec<u8> {
    let few: [&[u8]; 6] = [b"", b"a", b"a\xff", b"ab\0", "grüße".as_bytes(), b"\xc3"];
    let bytes = few[rng.random_range(0..few.len())];
    bytes.repeat(if rng.random_bool(0.02) { 60 } else { rng.random_range(1..3) })
}

fn offsets<O: OffsetSizeTrait>(rng: &mut StdRng, rows: usize) -> OffsetBuffer<O> {
    OffsetBuffer::from_lengths((0..rows).map(|_| rng.random_range(0..4)))
}

fn list<O: OffsetSizeTrait>(rng: &mut StdRng, of: &FieldRef, rows: usize) -> ArrayRef {
    let offsets = offsets::<O>(rng, rows);
    let count = offsets.last().map_or(0, |end| end.as_usize());
    let values = column(rng, of.data_type(), count, true);
    let of = Arc::new(Field::new(of.name(), values.data_type().clone(), of.is_nullable()));
    Arc::new(GenericListArray::<O>::new(of, offsets, values, validity(rng, rows)))
}

fn structs(rng: &mut StdRng, fields: &Fields, rows: usize, nulls: bool) -> StructArray {
    let columns: Vec<_> = fields.iter().map(|f| column(rng, f.data_type(), rows, f.is_nullable())).collect();
    let fields = fields.iter().zip(&columns);
    let fields = fields.map(|(f, c)| Arc::new(Field::new(f.name(), c.data_type().clone(), f.is_nullable())));
    let nulls = if nulls { validity(rng, rows) } else { None };
    StructArray::try_new_with_length(fields.collect(), columns, nulls, rows).unwrap()
}

/// A column of the type, with strings in their binary form: not all are text.
pub(crate) fn column(rng: &mut StdRng, data_type: &DataType, rows: usize, nulls: bool) -> ArrayRef {
    let validity_of = |rng: &mut StdRng| if nulls { validity(rng, rows) } else { None };
    match data_type {
        DataType::Null => Arc::new(NullArray::new(rows)),
        DataType::Boolean => {
            let values = BooleanBuffer::collect_bool(rows, |_| rng.random_bool(0.5));
            Arc::new(BooleanArray::new(values, validity_of(rng)))
        }
        DataType::Utf8 | DataType::Binary => {
            let valid = validity_of(rng);
            let mut builder = BinaryBuilder::new();
            for row in 0..rows {
                let bytes = some_bytes(rng);
                builder.append_option(valid.as_ref().is_none_or(|valid| valid.is_valid(row)).then_some(bytes));
            }
            Arc::new(builder.finish())
        }
        DataType::LargeUtf8 | DataType::LargeBinary => {
            let valid = validity_of(rng);
            let mut builder = LargeBinaryBuilder::new();
            for row in 0..rows {
                let bytes = some_bytes(rng);
                builder.append_option(valid.as_ref().is_none_or(|valid| valid.is_valid(row)).then_some(bytes));
            }
            Arc::new(builder.finish())
        }
        DataType::List(of) => list::<i32>(rng, of, rows),
        DataType::LargeList(of) => list::<i64>(rng, of, rows),
        DataType::FixedSizeList(of, size) => {
            let values = column(rng, of.data_type(), rows * usize::try_from(*size).unwrap(), true);
            Arc::new(FixedSizeListArray::new(Arc::clone(of), *size, values, validity_of(rng)))
        }
        DataType::Struct(fields) => Arc::new(structs(rng, fields, rows, nulls)),
        DataType::Map(entries, sorted) => {
            let DataType::Struct(fields) = entries.data_type() else { panic!("entries are pairs") };
            let offsets = offsets::<i32>(rng, rows);
            let pairs = structs(rng, fields, usize::try_from(*offsets.last().unwrap()).unwrap(), false);
            let entries = Arc::new(Field::new(entries.name(), pairs.data_type().clone(), false));
            Arc::new(MapArray::new(entries, offsets, pairs, validity_of(rng), *sorted))
        }
        other => {
            let width = match other {
                DataType::FixedSizeBinary(width) => usize::try_from(*width).unwrap(),
                primitive => primitive.primitive_width().unwrap(),
            };
            let mut bytes = MutableBuffer::with_capacity(rows * width);
            for _ in 0..rows {
                // Few distinct values, negative ones and NaN among them.
                let (value, fill) = (rng.random_range(0..5u8), [0, 0, 0xff][rng.random_range(0..3)]);
                let last = if width > 4 && rng.random_bool(0.1) { [0x7f, 0xf8] } else { [fill, fill] };
                let mut one = vec![fill; width];
                one[0] = value;
                if width > 4 {
                    (one[width - 1], one[width - 2]) = (last[0], last[1]);
                }
                bytes.extend_from_slice(&one);
            }
            let builder = ArrayData::builder(other.clone()).len(rows).add_buffer(Buffer::from(bytes));
            make_array(builder.nulls(validity_of(rng)).build().unwrap())
        }
    }
}

/// A schema of the types, and a last column `id`.
pub(crate) fn schema(types: &[DataType]) -> SchemaRef {
    let fields = types.iter().enumerate().map(|(i, t)| Field::new(format!("c{i}"), t.clone(), true));
    let id = Field::new("id", DataType::Int64, false);
    Arc::new(Schema::new(fields.chain([id]).collect::<Fields>()))
}

/// A batch of the types; `ids` are its last column.
pub(crate) fn batch(rng: &mut StdRng, types: &[DataType], ids: std::ops::Range<i64>) -> RecordBatch {
    let rows = ids.clone().count();
    let mut columns: Vec<ArrayRef> = types.iter().map(|t| column(rng, t, rows, true)).collect();
    columns.push(Arc::new(ids.collect::<Int64Array>()));
    let fields = columns.iter().enumerate().map(|(i, c)| Field::new(format!("c{i}"), c.data_type().clone(), true));
    RecordBatch::try_new(Arc::new(Schema::new(fields.collect::<Fields>())), columns).unwrap()
}
