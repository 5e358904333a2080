//! One function over plain values, for the tests of the families.
//!
//! Owns: the way of values through a plan, in one fold or in partial rows that are joined.

use super::{AggCall, AggPlan, AggSpec, schema_of};
use crate::table::GroupTable;
use arrow_array::cast::AsArray;
use arrow_array::types::Float64Type;
use arrow_array::{Array, ArrayRef, Float64Array, Int64Array, RecordBatch};
use arrow_schema::{DataType, Field};
use fastchangelog_format::Result;
use std::sync::Arc;

/// A call of `function` with all `columns` as its arguments; a plan for one key.
pub(super) fn plan(function: &str, types: &[DataType], ansi: bool) -> Result<Arc<AggPlan>> {
    let call = AggCall {
        function: function.into(),
        args: (1..=types.len()).collect(),
        filter: None,
        ignore_nulls: false,
        ansi,
        identity: format!("{function}(v)"),
    };
    let mut fields = vec![Field::new("k", DataType::Int64, true)];
    fields.extend(types.iter().map(|t| Field::new("v", t.clone(), true)));
    let input: Vec<DataType> = fields.iter().map(|field| field.data_type().clone()).collect();
    let result = AggPlan::result_types(&input, std::slice::from_ref(&call))?.remove(0);
    let output = schema_of(vec![fields[0].clone(), Field::new("r", result, true)]);
    Ok(Arc::new(AggPlan::new(&AggSpec::new(1, schema_of(fields), output, vec![call]))?))
}

fn fold(plan: &Arc<AggPlan>, columns: &[ArrayRef]) -> Result<GroupTable> {
    let keys: ArrayRef = Arc::new(Int64Array::from(vec![1; columns[0].len()]));
    let mut all = vec![("k".to_owned(), keys, true)];
    all.extend(columns.iter().enumerate().map(|(i, c)| (format!("v{i}"), Arc::clone(c), true)));
    let mut table = GroupTable::new(Arc::clone(plan));
    table.fold_rows(&RecordBatch::try_from_iter_with_nullable(all)?)?;
    Ok(table)
}

/// The result of one key over columns, cut at `cuts` into parts that are folded by themselves and joined in order.
pub(super) fn result(function: &str, columns: &[ArrayRef], cuts: &[usize], ansi: bool) -> Result<ArrayRef> {
    let types: Vec<DataType> = columns.iter().map(|c| c.data_type().clone()).collect();
    let plan = plan(function, &types, ansi)?;
    let mut ends: Vec<usize> = cuts.iter().map(|cut| cut % (columns[0].len() + 1)).collect();
    ends.push(columns[0].len());
    ends.sort_unstable();
    let (mut joined, mut from): (Option<Vec<u8>>, usize) = (None, 0);
    let mut scratch = Vec::new();
    for end in ends {
        // A part without rows would be an accumulator without input, which a table never has; rows of nulls take its
        // place.
        if end > from {
            let part: Vec<ArrayRef> = columns.iter().map(|c| c.slice(from, end - from)).collect();
            let mut table = fold(&plan, &part)?;
            table.combine_base(0, joined.as_deref())?;
            joined = Some(table.row(0, &mut scratch).to_vec());
            from = end;
        }
    }
    let mut table = GroupTable::new(Arc::clone(&plan));
    let key = plan.codec().encode(&[Arc::new(Int64Array::from(vec![1])) as ArrayRef], 1)?;
    table.add_kept(key.key(0), joined.as_deref())?;
    Ok(Arc::clone(table.finish(0..1)?.column(1)))
}

/// As [`result`], of doubles.
pub(super) fn double(function: &str, columns: &[&[Option<f64>]], cuts: &[usize], ansi: bool) -> Result<Option<f64>> {
    let columns: Vec<ArrayRef> = columns.iter().map(|c| Arc::new(Float64Array::from(c.to_vec())) as ArrayRef).collect();
    let result = result(function, &columns, cuts, ansi)?;
    let values = result.as_primitive::<Float64Type>();
    Ok(values.is_valid(0).then(|| values.value(0)))
}

/// True when both are null, both NaN, equal, or apart by at most `tolerance` of `scale`.
pub(super) fn close(found: Option<f64>, expected: Option<f64>, scale: f64, tolerance: f64) -> bool {
    match (found, expected) {
        (None, None) => true,
        (Some(a), Some(b)) => (a.is_nan() && b.is_nan()) || a == b || (a - b).abs() <= tolerance * scale,
        _ => false,
    }
}
