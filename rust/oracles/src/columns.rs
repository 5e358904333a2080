//! Properties of Arrow columns from outside, whatever they contain.
//!
//! Owns: columns of every type made of invented bytes, and their way through import, split, merge and results.
//! Does not own: the decoders of stored bytes (`oracles`), the C data interface (the Python extension).
//!
//! 1. A column is refused with an `InvalidArgument`, or it is read; nothing panics and nothing outside of its buffers
//!    is read (a sanitizer sees that).
//! 2. What is taken is a valid Arrow array.
//! 3. Its rows are grouped: the counts of all keys add up to the rows, and keys that are decoded and encoded again are
//!    the same keys.
//! 4. As rows of a processor they are in exactly one chunk each, under the key that they have.
//! 5. Strings are bytes: text is refused exactly where the bytes are not UTF-8.

use crate::rows::regrouped;
use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{Array, ArrayRef, RecordBatch};
use arrow_buffer::Buffer;
use arrow_data::{ArrayData, ArrayDataBuilder};
use arrow_schema::{DataType, Field, Fields, IntervalUnit, Schema, TimeUnit, UnionFields, UnionMode};
use fastchangelog_columns::aggregate::{AggCall, AggPlan, AggSpec};
use fastchangelog_columns::import::{import, import_text, import_type};
use fastchangelog_columns::split::Splitter;
use fastchangelog_columns::table::GroupTable;
use fastchangelog_format::{ErrorKind, Result};
use std::sync::Arc;

/// Rows of a column are at most this many.
const ROWS: usize = 40;

/// The bytes that decide; zeros when they are used up.
struct Choices<'a>(&'a [u8]);

impl Choices<'_> {
    fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    fn below(&mut self, end: usize) -> usize {
        usize::from(self.byte()) % end
    }

    /// True once in this many calls, and never after the bytes are used up.
    fn rarely(&mut self, times: u8) -> bool {
        self.byte() % times == times - 1
    }

    fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| self.byte()).collect()
    }
}

fn field(name: &str, data_type: DataType) -> Arc<Field> {
    Arc::new(Field::new(name, data_type, true))
}

fn flat(choice: usize) -> DataType {
    match choice {
        0 => DataType::Utf8,
        1 => DataType::Binary,
        2 => DataType::LargeUtf8,
        3 => DataType::LargeBinary,
        4 => DataType::Utf8View,
        5 => DataType::BinaryView,
        6 => DataType::Boolean,
        7 => DataType::Int8,
        8 => DataType::Int16,
        9 => DataType::Int32,
        10 => DataType::Int64,
        11 => DataType::Float32,
        12 => DataType::Float64,
        13 => DataType::Decimal128(38, 10),
        14 => DataType::Date32,
        15 => DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into())),
        16 => DataType::Duration(TimeUnit::Microsecond),
        17 => DataType::Interval(IntervalUnit::YearMonth),
        18 => DataType::Null,
        _ => DataType::FixedSizeBinary(3),
    }
}

fn data_type(choices: &mut Choices<'_>, depth: usize) -> DataType {
    let choice = choices.below(if depth == 0 { 20 } else { 30 });
    let inner = |choices: &mut Choices<'_>| data_type(choices, depth - 1);
    match choice {
        20 | 21 => DataType::List(field("element", inner(choices))),
        22 => DataType::LargeList(field("element", inner(choices))),
        23 | 24 => {
            let fields = [("a", inner(choices)), ("b", inner(choices))];
            DataType::Struct(fields.into_iter().map(|(name, of)| field(name, of)).collect())
        }
        25 => {
            let key = Arc::new(Field::new("key", flat(choices.below(18)), false));
            let entries = DataType::Struct(Fields::from(vec![key, field("value", inner(choices))]));
            DataType::Map(Arc::new(Field::new("entries", entries, false)), false)
        }
        26 => DataType::FixedSizeList(field("element", inner(choices)), 2),
        27 => DataType::Dictionary(Box::new(flat(7 + choices.below(4))), Box::new(flat(choices.below(18)))),
        28 => {
            let fields = UnionFields::try_new(
                [0, 1],
                [Field::new("a", inner(choices), true), Field::new("b", DataType::Int8, true)],
            );
            DataType::Union(fields.unwrap_or_else(|_| UnionFields::empty()), UnionMode::Sparse)
        }
        29 => DataType::RunEndEncoded(
            Arc::new(Field::new("run_ends", DataType::Int32, false)),
            field("values", inner(choices)),
        ),
        flat_one => flat(flat_one),
    }
}

/// Offsets into `end` values: mostly growing, sometimes anything.
fn offsets(choices: &mut Choices<'_>, count: usize, end: usize, wide: bool) -> Buffer {
    let mut last = 0i64;
    let mut values = Vec::with_capacity(count + 1);
    for _ in 0..=count {
        values.push(last);
        last = if choices.rarely(40) {
            i64::from(choices.byte().cast_signed()) * if choices.rarely(2) { 1 } else { 1 << 24 }
        } else {
            (last + i64::from(choices.byte() % 4)).min(i64::try_from(end).unwrap_or_default())
        };
    }
    if choices.rarely(30) {
        values.pop();
    }
    if wide {
        return Buffer::from_vec(values);
    }
    #[expect(clippy::cast_possible_truncation, reason = "any value will do")]
    Buffer::from_vec(values.into_iter().map(|value| value as i32).collect::<Vec<i32>>())
}

fn values(choices: &mut Choices<'_>, width: usize, count: usize) -> Buffer {
    let short = usize::from(choices.rarely(30) && count > 0);
    let bytes: Vec<u128> =
        (0..=count * width / 16).map(|_| u128::from(choices.byte()) * 0x0101_0407_8000_ff01).collect();
    Buffer::from_vec(bytes).slice_with_length(0, (count - short) * width)
}

/// A column as an import receives it: only the number and kind of its parts match the type.
fn column(choices: &mut Choices<'_>, of: &DataType, len: usize) -> ArrayData {
    let offset = if choices.rarely(5) { choices.below(4) } else { 0 };
    let all = len + offset;
    let mut builder = ArrayDataBuilder::new(of.clone()).len(len).offset(offset);
    if !matches!(of, DataType::Null | DataType::Union(..) | DataType::RunEndEncoded(..)) && choices.rarely(3) {
        builder = builder.null_bit_buffer(Some(Buffer::from_vec(choices.bytes(all / 8 + 1))));
        if choices.rarely(20) {
            builder = builder.null_count(choices.below(ROWS));
        }
    }
    let builder = match of {
        DataType::Utf8 | DataType::Binary | DataType::LargeUtf8 | DataType::LargeBinary => {
            let wide = matches!(of, DataType::LargeUtf8 | DataType::LargeBinary);
            let bytes = choices.below(64);
            let offsets = offsets(choices, all, bytes, wide);
            builder.add_buffer(offsets).add_buffer(Buffer::from_vec(choices.bytes(bytes)))
        }
        DataType::Utf8View | DataType::BinaryView => {
            let views: Vec<u128> = (0..all).map(|_| view(choices)).collect();
            builder.add_buffer(Buffer::from_vec(views)).add_buffer(Buffer::from_vec(choices.bytes(30)))
        }
        DataType::Boolean => builder.add_buffer(Buffer::from_vec(choices.bytes(all / 8 + 1))),
        DataType::List(field) | DataType::Map(field, _) | DataType::LargeList(field) => {
            let count = choices.below(ROWS);
            let offsets = offsets(choices, all, count, matches!(of, DataType::LargeList(_)));
            builder.add_buffer(offsets).add_child_data(column(choices, field.data_type(), count))
        }
        DataType::FixedSizeList(field, size) => {
            let count = all * usize::try_from(*size).unwrap_or_default() - usize::from(all > 0 && choices.rarely(30));
            builder.add_child_data(column(choices, field.data_type(), count))
        }
        DataType::Struct(fields) => {
            let short = usize::from(all > 0 && choices.rarely(30));
            let children = fields.iter().map(|field| column(choices, field.data_type(), all - short)).collect();
            builder.child_data(children)
        }
        DataType::Dictionary(keys, of) => {
            let width = keys.primitive_width().unwrap_or(1);
            let keys: Vec<u8> = (0..all * width).map(|i| if i % width == 0 { choices.byte() % 8 } else { 0 }).collect();
            let mut aligned = Buffer::from_vec(vec![0u64; all * width / 8 + 1]).into_vec::<u64>().unwrap_or_default();
            for (i, byte) in keys.iter().enumerate() {
                aligned[i / 8] |= u64::from(*byte) << (8 * (i % 8));
            }
            let keys = Buffer::from_vec(aligned).slice_with_length(0, all * width);
            let count = choices.below(8);
            builder.add_buffer(keys).add_child_data(column(choices, of, count))
        }
        DataType::Null | DataType::Union(..) | DataType::RunEndEncoded(..) => builder,
        DataType::FixedSizeBinary(size) => {
            let bytes = values(choices, usize::try_from(*size).unwrap_or_default(), all);
            builder.add_buffer(bytes)
        }
        primitive => {
            let bytes = values(choices, primitive.primitive_width().unwrap_or(1), all);
            builder.add_buffer(bytes)
        }
    };
    // SAFETY: none. It is what an import hands over; nothing but `import` looks at it.
    unsafe { builder.build_unchecked() }
}

/// A view: short with its bytes in it, or long with a place in the one buffer of 30 bytes; sometimes behind it.
fn view(choices: &mut Choices<'_>) -> u128 {
    let len = u128::from(choices.byte() % 16);
    if len > 12 {
        let at = u128::from(choices.byte() % 18);
        let buffer = u128::from(choices.rarely(30));
        return len | (buffer << 64) | (at << 96);
    }
    (0..len).fold(len, |view, i| view | (u128::from(choices.byte()) << (32 + 8 * i)))
}

fn call(function: &str, args: &[usize]) -> AggCall {
    AggCall {
        function: function.into(),
        args: args.into(),
        filter: None,
        ignore_nulls: false,
        ansi: true,
        identity: format!("{function}({args:?})"),
    }
}

/// What is answered for a column as the key and in some aggregates, or why it is none.
fn grouped(declared: &DataType, column: &ArrayRef) -> Result<RecordBatch> {
    let key = Field::new("k", declared.clone(), true);
    let result = |name: &str| Field::new(name, declared.clone(), true);
    let aggs = [vec![call("count", &[])], ["first", "last", "max"].map(|f| call(f, &[0])).into()].concat();
    let spec = |aggs: Vec<AggCall>| {
        let more = aggs.iter().skip(1).map(|call| result(&call.identity));
        let output = [key.clone(), Field::new("n", DataType::Int64, true)].into_iter().chain(more);
        AggSpec::new(
            1,
            Arc::new(Schema::new(vec![key.clone()])),
            Arc::new(Schema::new(output.collect::<Fields>())),
            aggs,
        )
    };
    // Some types are keys and have no order.
    let full = spec(aggs.clone());
    let spec = if AggPlan::new(&full).is_ok() { full } else { spec(aggs[..1].to_vec()) };
    let plan = Arc::new(AggPlan::new(&spec)?);
    let batch = RecordBatch::try_from_iter_with_nullable([("k", Arc::clone(column), true)])?;
    let mut splitter = Splitter::new(&spec, 2, 128, 1 << 10)?;
    splitter.check(&spec.input)?;
    let mut payloads = splitter.push(&batch)?;
    payloads.extend(splitter.finish()?);
    let mut table = GroupTable::new(Arc::clone(&plan));
    for (_, payload) in payloads {
        table.merge_payload(&payload)?;
    }
    let results = table.finish_binary(0..table.len())?;
    let again = plan.codec().encode(&[Arc::clone(results.column(0))], results.num_rows())?;
    for i in 0..results.num_rows() {
        assert_eq!(again.key(i), table.key(i), "a key of {declared} is another one when it is read back");
    }
    Ok(results)
}

/// Arrow columns from outside; true where the column is taken.
pub fn foreign_columns(bytes: &[u8]) -> bool {
    let mut choices = Choices(bytes);
    let declared = data_type(&mut choices, 2);
    let Ok(imported) = import_type(&declared) else {
        assert!(format!("{declared:?}").contains("Union") || format!("{declared:?}").contains("RunEnd"), "{declared}");
        return false;
    };
    let len = choices.below(ROWS);
    let data = column(&mut choices, &imported, len);
    let column = match import(&data) {
        Ok(column) => column,
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
            return false;
        }
    };
    assert_eq!(column.len(), len);
    assert!(column.to_data().validate_full().is_ok(), "{declared}: what was taken is no valid array");
    match import_text(&data, &declared) {
        Ok(text) => assert!(text.to_data().validate_full().is_ok(), "{declared}: text is no valid array"),
        Err(error) => assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}"),
    }
    match grouped(&declared, &column) {
        Ok(results) => {
            let counts = results.column(1).as_primitive::<Int64Type>();
            assert_eq!(counts.values().iter().sum::<i64>(), i64::try_from(len).unwrap_or_default(), "{declared}");
        }
        Err(error) => assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}"),
    }
    match regrouped(&declared, &column) {
        Ok(rows) => assert_eq!(rows, len, "{declared}"),
        Err(error) => assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}"),
    }
    true
}
