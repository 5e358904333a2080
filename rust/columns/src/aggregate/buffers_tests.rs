//! Accumulators as Spark keeps them, loaded into rows.
//!
//! Owns: each function with the columns of its own, and rows of input and of other accumulators that are joined to
//! them.
//! Does not own: Spark's real buffers; the tests that run Spark check them.

use super::AggregateFunction;
use super::function_tests::plan;
use crate::codec::EncodedKeys;
use crate::table::GroupTable;
use arrow_array::{
    Array, ArrayRef, BooleanArray, Decimal128Array, DurationMicrosecondArray, Float64Array, Int64Array, RecordBatch,
    StringArray,
};
use arrow_schema::{DataType, TimeUnit};
use fastchangelog_format::Result;
use std::sync::Arc;

fn longs(values: &[Option<i64>]) -> ArrayRef {
    Arc::new(Int64Array::from(values.to_vec()))
}

fn doubles(values: &[Option<f64>]) -> ArrayRef {
    Arc::new(Float64Array::from(values.to_vec()))
}

fn bools(values: &[Option<bool>]) -> ArrayRef {
    Arc::new(BooleanArray::from(values.to_vec()))
}

fn texts(values: &[Option<&str>]) -> ArrayRef {
    Arc::new(StringArray::from(values.to_vec()))
}

fn decimals(values: &[Option<i128>], precision: u8) -> ArrayRef {
    Arc::new(Decimal128Array::from(values.to_vec()).with_precision_and_scale(precision, 2).unwrap())
}

/// The results of keys 0, 1, … with the accumulators in the rows of `buffers`, after `input` was joined to each.
fn loaded(function: &str, buffers: &[ArrayRef], input: &[ArrayRef]) -> Result<ArrayRef> {
    let types: Vec<DataType> = input.iter().map(|column| column.data_type().clone()).collect();
    let plan = plan(function, &types, false)?;
    let rows = buffers[0].len();
    let ids: ArrayRef = Arc::new((0..rows as i64).map(Some).collect::<Int64Array>());
    let columns: Vec<ArrayRef> = std::iter::once(ids).chain(buffers.iter().cloned()).collect();
    let fields = plan.buffers();
    assert_eq!(fields.fields().len(), columns.len(), "{function}: {fields}");
    let declared: Vec<_> = fields.fields().iter().map(|f| f.data_type().clone()).collect();
    let given: Vec<_> = columns.iter().map(|c| c.data_type().clone()).collect();
    assert_eq!(declared, given, "{function}");
    let batch = RecordBatch::try_new(Arc::new(fields), columns)?;
    let columns = plan.buffer_columns(&batch)?;
    let keys: EncodedKeys = plan.codec().encode(&columns[..1], rows)?;
    let mut table = GroupTable::new(Arc::clone(&plan));
    table.load_buffers(&columns, &keys, &keys.hashes())?;
    // Joined as the state of earlier batches is.
    let mut joined = GroupTable::new(Arc::clone(&plan));
    let mut scratch = Vec::new();
    for i in 0..rows {
        joined.add_kept(table.key(i), None)?;
        joined.combine_base(i, Some(table.row(i, &mut scratch)))?;
    }
    let ids: ArrayRef = Arc::new(Int64Array::from(vec![0; input[0].len()]));
    let all = std::iter::once(ids).chain(input.iter().cloned());
    let all = all.enumerate().map(|(i, column)| (format!("c{i}"), column, true));
    let mut more = GroupTable::new(Arc::clone(&plan));
    more.fold_rows(&RecordBatch::try_from_iter_with_nullable(all)?)?;
    if !more.is_empty() {
        more.combine_base(0, Some(joined.row(0, &mut scratch)))?;
        let first = more.finish(0..1)?;
        let rest = joined.finish(1..rows)?;
        return Ok(arrow_select::concat::concat(&[first.column(1).as_ref(), rest.column(1).as_ref()])?);
    }
    Ok(Arc::clone(joined.finish(0..rows)?.column(1)))
}

#[test]
fn every_function_has_buffers() {
    let candidates = [DataType::Int64, DataType::Boolean, DataType::Float64, DataType::Utf8];
    for function in AggregateFunction::ALL {
        let arguments = function.arguments.len().max(1);
        let found = candidates.iter().find_map(|t| plan(function.name, &vec![t.clone(); arguments], true).ok());
        let columns = found.expect(function.name).buffers().fields().len();
        assert!(columns >= 2, "{}: a key and nothing of its own", function.name);
    }
}

#[test]
fn numbers_go_on_from_their_accumulators() {
    let input = [longs(&[Some(4), None])];
    let of = |function: &str, buffers: &[ArrayRef]| loaded(function, buffers, &input).unwrap();
    let counts = [longs(&[Some(10), Some(3)])];
    assert_eq!(of("count", &counts).as_ref(), longs(&[Some(11), Some(3)]).as_ref());
    assert_eq!(of("sum", &[longs(&[Some(1), None])]).as_ref(), longs(&[Some(5), None]).as_ref());
    assert_eq!(of("sum", &[longs(&[None, Some(9)])]).as_ref(), longs(&[Some(4), Some(9)]).as_ref());
    let mean = [doubles(&[Some(6.0), Some(0.0)]), longs(&[Some(3), Some(0)])];
    assert_eq!(of("avg", &mean).as_ref(), doubles(&[Some(2.5), None]).as_ref());
    assert_eq!(of("min", &[longs(&[Some(5), None])]).as_ref(), longs(&[Some(4), None]).as_ref());
    assert_eq!(of("max", &[longs(&[Some(5), None])]).as_ref(), longs(&[Some(5), None]).as_ref());
    assert_eq!(of("bit_xor", &[longs(&[Some(5), None])]).as_ref(), longs(&[Some(1), None]).as_ref());
    assert_eq!(of("product", &[doubles(&[Some(0.5), None])]).as_ref(), doubles(&[Some(2.0), None]).as_ref());
    let truths = [bools(&[Some(true), None])];
    let counted = loaded("count_if", &counts, &truths).unwrap();
    assert_eq!(counted.as_ref(), longs(&[Some(11), Some(3)]).as_ref());
    assert_eq!(
        loaded("bool_and", &[bools(&[Some(false), None])], &truths).unwrap().as_ref(),
        bools(&[Some(false), None]).as_ref()
    );
    assert_eq!(
        loaded("bool_or", &[bools(&[Some(false), None])], &truths).unwrap().as_ref(),
        bools(&[Some(true), None]).as_ref()
    );
}

#[test]
fn statistics_go_on_from_their_accumulators() {
    // Of 1, 2, 3, 4: the mean is 2.5, the second moment 5, the fourth 10.25; then 10 comes.
    let input = [doubles(&[Some(10.0)])];
    let moments = [4.0, 2.5, 5.0, 0.0, 10.25].map(|m| doubles(&[Some(m), Some(m)]));
    let second = loaded("var_pop", &moments[..3], &input).unwrap();
    assert_eq!(second.as_ref(), doubles(&[Some(10.0), Some(1.25)]).as_ref());
    let plain = [doubles(&[Some(1.0), Some(2.0), Some(3.0), Some(4.0), Some(10.0)])];
    for (function, buffers) in
        [("var_samp", 3), ("stddev_pop", 3), ("stddev_samp", 3), ("skewness", 4), ("kurtosis", 5)]
    {
        let at_once = super::function_tests::result(function, &plain, &[4], false).unwrap();
        let joined = loaded(function, &moments[..buffers], &input).unwrap();
        assert_eq!(joined.slice(0, 1).as_ref(), at_once.as_ref(), "{function}");
    }
    // Of (1, 2), (2, 4), (3, 6), (4, 8): y is twice x.
    let joint = [4.0, 2.5, 5.0, 10.0, 5.0, 20.0].map(|m| doubles(&[Some(m), Some(m)]));
    let input = [doubles(&[Some(10.0)]), doubles(&[Some(0.0)])];
    let y = doubles(&[Some(2.0), Some(4.0), Some(6.0), Some(8.0), Some(0.0)]);
    for (function, buffers) in [("covar_pop", 4), ("covar_samp", 4), ("corr", 6)] {
        let at_once = super::function_tests::result(function, &[plain[0].clone(), y.clone()], &[4], false).unwrap();
        let joined = loaded(function, &joint[..buffers], &input).unwrap();
        assert_eq!(joined.slice(0, 1).as_ref(), at_once.as_ref(), "{function}");
    }
}

#[test]
fn first_and_last_know_whether_there_was_a_value() {
    let input = [texts(&[Some("new")])];
    let of = |function, values: &[Option<&str>], set: &[Option<bool>]| {
        loaded(function, &[texts(values), bools(set)], &input).unwrap()
    };
    // A null that was there, and none.
    let first = of("first", &[None, None], &[Some(true), Some(false)]);
    assert_eq!(first.as_ref(), texts(&[None, None]).as_ref());
    assert_eq!(
        of("first", &[None, Some("b")], &[Some(false), Some(true)]).as_ref(),
        texts(&[Some("new"), Some("b")]).as_ref()
    );
    assert_eq!(
        of("last", &[Some("a"), Some("b")], &[Some(true), Some(true)]).as_ref(),
        texts(&[Some("new"), Some("b")]).as_ref()
    );
    let by = [texts(&[Some("a"), None]), longs(&[Some(7), None])];
    let input = [texts(&[Some("new")]), longs(&[Some(6)])];
    assert_eq!(loaded("max_by", &by, &input).unwrap().as_ref(), texts(&[Some("a"), None]).as_ref());
    assert_eq!(loaded("min_by", &by, &input).unwrap().as_ref(), texts(&[Some("new"), None]).as_ref());
}

#[test]
fn sums_of_decimals_are_empty_or_overflowed() {
    let input = [decimals(&[Some(100)], 10)];
    let sums = [decimals(&[Some(250), None, None], 20), bools(&[Some(false), Some(true), Some(false)])];
    let sum = loaded("sum", &sums, &input).unwrap();
    assert_eq!(sum.as_ref(), decimals(&[Some(350), None, None], 20).as_ref());
    // The first is empty and takes the input, and then the one that has overflowed does: it stays null.
    let empty = [decimals(&[None, Some(1)], 20), bools(&[Some(true), Some(false)])];
    assert_eq!(loaded("sum", &empty, &input).unwrap().as_ref(), decimals(&[Some(100), Some(1)], 20).as_ref());
    let over = [decimals(&[None, Some(1)], 20), bools(&[Some(false), Some(false)])];
    assert_eq!(loaded("sum", &over, &input).unwrap().as_ref(), decimals(&[None, Some(1)], 20).as_ref());
    let means = [decimals(&[Some(200), None], 20), longs(&[Some(2), Some(5)])];
    let mean = loaded("avg", &means, &input).unwrap();
    assert!(mean.is_valid(0) && mean.is_null(1), "the sum of the second has overflowed");
    let hours: ArrayRef = Arc::new(DurationMicrosecondArray::from(vec![Some(60), None]));
    let input: [ArrayRef; 1] = [Arc::new(DurationMicrosecondArray::from(vec![30]))];
    assert_eq!(hours.data_type(), &DataType::Duration(TimeUnit::Microsecond));
    let found = loaded("avg", &[Arc::clone(&hours), longs(&[Some(2), Some(0)])], &input).unwrap();
    let expected: ArrayRef = Arc::new(DurationMicrosecondArray::from(vec![Some(30), None]));
    assert_eq!(found.as_ref(), expected.as_ref());
    let found = loaded("sum", &[hours], &input).unwrap();
    let expected: ArrayRef = Arc::new(DurationMicrosecondArray::from(vec![Some(90), None]));
    assert_eq!(found.as_ref(), expected.as_ref());
}

#[test]
fn tried_sums_that_overflowed_stay_null() {
    let input = [longs(&[Some(1)])];
    // The first is at the end of its range, the second has overflowed, the third is empty.
    let sums = [longs(&[Some(i64::MAX), None, None]), bools(&[Some(false), Some(false), Some(true)])];
    assert_eq!(loaded("try_sum", &sums, &input).unwrap().as_ref(), longs(&[None, None, None]).as_ref());
    let sums = [longs(&[Some(4), Some(i64::MIN)]), bools(&[Some(false), Some(false)])];
    assert_eq!(loaded("try_sum", &sums, &input).unwrap().as_ref(), longs(&[Some(5), Some(i64::MIN)]).as_ref());
    let durations = |values: &[Option<i64>]| -> ArrayRef { Arc::new(DurationMicrosecondArray::from(values.to_vec())) };
    let means = [durations(&[Some(i64::MAX), None, Some(20)]), longs(&[Some(2), Some(5), Some(2)])];
    let found = loaded("try_avg", &means, &[durations(&[Some(1)])]).unwrap();
    assert_eq!(found.as_ref(), durations(&[None, None, Some(10)]).as_ref());
    for (function, column) in [("try_sum", longs(&[Some(i64::MAX), Some(1), Some(-5)])), ("sum", longs(&[Some(3)]))] {
        for cut in 0..3 {
            let found = super::function_tests::result(function, std::slice::from_ref(&column), &[cut], false).unwrap();
            // In parts the later two do not overflow, but what is joined does, or has.
            let expected = if function == "sum" {
                Some(3)
            } else if cut == 1 {
                Some(i64::MAX - 4)
            } else {
                None
            };
            assert_eq!(found.as_ref(), longs(&[expected]).as_ref(), "{function}, cut at {cut}");
        }
    }
}
