//! Columns into rows.
//!
//! Owns: folding a batch of input columns into the accumulator rows of its groups, a column at a time.
//! Does not own: which group a row is in (`table`).

use super::plan::{AggPlan, Form, Kind, Op};
use super::prim::{Native, doubles, has_bit, integers, put_bit, set_bit, with_native};
use crate::state::arrays::{mismatch, same_values, type_text};
use crate::state::codec::{EncodedKeys, KeyCodec};
use crate::state::rows::Rows;
use crate::state::strings::conform_binary;
use crate::{Error, Result};
use arrow_array::cast::AsArray;
use arrow_array::types::Decimal128Type;
use arrow_array::{Array, ArrayRef, RecordBatch};
use arrow_buffer::{BooleanBuffer, NullBuffer};
use arrow_schema::{DataType, Schema};
use std::slice;

impl AggPlan {
    /// Fails unless the columns of `schema` are those that the plan declares.
    pub(in crate::state) fn check_input(&self, schema: &Schema) -> Result<()> {
        self.check_count(schema.fields().len())?;
        let wrong = schema.fields().iter().zip(&self.input).find(|(f, (own, _))| !same_values(f.data_type(), own));
        wrong.map_or(Ok(()), |(field, (declared, _))| Err(mismatch(field.data_type(), declared)))
    }

    fn check_count(&self, columns: usize) -> Result<()> {
        if columns == self.input.len() {
            return Ok(());
        }
        Err(Error::invalid(format!("a batch of {columns} columns came where {} were declared", self.input.len())))
    }

    /// The columns of `batch` as the plan declares them, strings in their binary form. They may come in either form.
    pub(in crate::state) fn columns(&self, batch: &RecordBatch) -> Result<Vec<ArrayRef>> {
        self.check_count(batch.num_columns())?;
        let columns = batch.columns().iter().zip(&self.input);
        columns.map(|(column, (declared, binary))| conform_binary(column, declared, binary)).collect()
    }

    /// Folds input row `i` into accumulator row `groups[i]`, for all `i`, in order.
    pub(in crate::state) fn update(&self, columns: &[ArrayRef], groups: &[u32], rows: &mut Rows) -> Result<()> {
        for op in &self.ops {
            op.update(columns, groups, rows)?;
        }
        Ok(())
    }
}

/// Where the rows of a fold are.
struct Fold<'a> {
    groups: &'a [u32],
    mask: Option<NullBuffer>,
    rows: &'a mut Rows,
}

impl Fold<'_> {
    /// Calls `f(input row, accumulator row)` for each input row that counts.
    #[inline]
    fn each(&mut self, mut f: impl FnMut(usize, &mut [u8])) {
        let stride = self.rows.shape.stride;
        let fixed = self.rows.fixed.as_mut_slice();
        let mut one = |i: usize, group: u32| {
            let at = group as usize * stride;
            f(i, &mut fixed[at..at + stride]);
        };
        match &self.mask {
            None => self.groups.iter().enumerate().for_each(|(i, group)| one(i, *group)),
            Some(mask) => mask.valid_indices().for_each(|i| one(i, self.groups[i])),
        }
    }

    /// As [`Fold::each`], with the variable slots: `f(input row, accumulator row's number, fixed part, slots)`.
    fn each_var(&mut self, mut f: impl FnMut(usize, usize, &mut [u8], &mut crate::state::rows::Vars)) {
        let mut one = |i: usize, group: u32| {
            let (fixed, vars) = self.rows.row_mut(group as usize);
            f(i, group as usize, fixed, vars);
        };
        match &self.mask {
            None => self.groups.iter().enumerate().for_each(|(i, group)| one(i, *group)),
            Some(mask) => mask.valid_indices().for_each(|i| one(i, self.groups[i])),
        }
    }
}

impl Op {
    fn update(&self, columns: &[ArrayRef], groups: &[u32], rows: &mut Rows) -> Result<()> {
        let not_null: &[usize] = match &self.kind {
            Kind::Edge { ignore_nulls: false, .. } => &[],
            // The ordering comes first; its nulls are ignored, those of the value are kept.
            Kind::By { .. } => &self.args[..1],
            _ => &self.args,
        };
        let fold = Fold { groups, mask: self.mask(columns, not_null), rows };
        let (bit, at) = (self.bit, self.at);
        match &self.kind {
            Kind::Count => count(fold, at),
            Kind::SumInt | Kind::SumInterval { .. } | Kind::AvgInterval { .. } => {
                self.sum_integers(fold, &columns[self.args[0]])?;
            }
            Kind::SumFloat => sum_float(fold, &doubles(&columns[self.args[0]])?, bit, at),
            Kind::AvgFloat => avg_float(fold, &doubles(&columns[self.args[0]])?, at),
            Kind::SumDecimal { limit } => {
                let values = columns[self.args[0]].as_primitive::<Decimal128Type>().values();
                if sum_decimal(fold, values, *limit, bit, at) && self.ansi {
                    return Err(self.decimal_overflow());
                }
            }
            Kind::AvgDecimal { limit, .. } => {
                let values = columns[self.args[0]].as_primitive::<Decimal128Type>().values();
                if avg_decimal(fold, values, *limit, bit, at) && self.ansi {
                    return Err(self.decimal_overflow());
                }
            }
            Kind::Extreme { max, prim } => with_native!(prim, N => {
                let values = N::values(&columns[self.args[0]])?;
                if *max { extreme::<N, true>(fold, &values, bit, at) } else { extreme::<N, false>(fold, &values, bit, at) }
            }),
            Kind::ExtremeBytes { max } => {
                let values = Bytes::of(&columns[self.args[0]])?;
                extreme_bytes(fold, &values, *max, bit, self.var);
            }
            Kind::By { max, later_wins_ties, order, value } => {
                let order = encode(order, &columns[self.args[0]])?;
                let value = encode(value, &columns[self.args[1]])?;
                by(fold, &order, &value, (*max, *later_wins_ties), bit, self.var);
            }
            Kind::Edge { last, form, .. } => self.edge(fold, *last, form, &columns[self.args[0]])?,
        }
        Ok(())
    }

    /// Which rows count: those where the filter is true and none of the columns `not_null` is null. None means all.
    fn mask(&self, columns: &[ArrayRef], not_null: &[usize]) -> Option<NullBuffer> {
        let mut mask: Option<NullBuffer> = self.filter.map(|filter| {
            let filter = columns[filter].as_boolean();
            let mask: BooleanBuffer = match filter.nulls() {
                Some(nulls) => filter.values() & nulls.inner(),
                None => filter.values().clone(),
            };
            NullBuffer::new(mask)
        });
        for column in not_null {
            mask = NullBuffer::union(mask.as_ref(), columns[*column].logical_nulls().as_ref());
        }
        mask.filter(|mask| mask.null_count() > 0)
    }

    fn sum_integers(&self, fold: Fold<'_>, column: &ArrayRef) -> Result<()> {
        let values = integers(column)?;
        match &self.kind {
            Kind::SumInterval { months } => {
                if sum_int(fold, &values, self.bit, self.at, |sum| out_of_interval(sum, *months)) {
                    return Err(self.interval_overflow());
                }
            }
            Kind::AvgInterval { months } => {
                if avg_interval(fold, &values, *months, self.at) {
                    return Err(self.interval_overflow());
                }
            }
            _ => {
                if sum_int(fold, &values, self.bit, self.at, |_| false) && self.ansi {
                    return Err(self.long_overflow());
                }
            }
        }
        Ok(())
    }

    fn edge(&self, mut fold: Fold<'_>, last: bool, form: &Form, column: &ArrayRef) -> Result<()> {
        let (bit, at) = (self.bit, self.at);
        let nulls = column.logical_nulls();
        let valid = |i: usize| nulls.as_ref().is_none_or(|nulls| nulls.is_valid(i));
        match form {
            Form::Prim(prim) => with_native!(prim, N => {
                let values = N::values(column)?;
                fold.each(|i, row| {
                    if last || !has_bit(row, bit) {
                        set_bit(row, bit);
                        put_bit(row, bit + 1, valid(i));
                        // Under a null the slot is zero, so that equal rows have equal bytes.
                        if valid(i) { values[i] } else { N::default() }.write(row, at);
                    }
                });
            }),
            Form::Bytes => {
                let values = Bytes::of(column)?;
                fold.each_var(|i, group, row, vars| {
                    if last || !has_bit(row, bit) {
                        set_bit(row, bit);
                        put_bit(row, bit + 1, valid(i));
                        vars.set(group, self.var, if valid(i) { values.get(i) } else { &[] });
                    }
                });
            }
            Form::Encoded(codec) => {
                let values = encode(codec, column)?;
                fold.each_var(|i, group, row, vars| {
                    if last || !has_bit(row, bit) {
                        set_bit(row, bit);
                        set_bit(row, bit + 1);
                        vars.set(group, self.var, values.key(i));
                    }
                });
            }
        }
        Ok(())
    }

    /// Spark's error for the overflow of a sum of integers.
    pub(super) fn long_overflow(&self) -> Error {
        self.overflow("long overflow")
    }

    /// Spark's error for the overflow of a sum of decimals.
    pub(super) fn decimal_overflow(&self) -> Error {
        self.overflow("Overflow in sum of decimals")
    }

    /// Spark's error for a decimal result with more digits than its type has.
    pub(super) fn out_of_range(&self, result: &DataType) -> Error {
        Error::invalid(format!(
            "[NUMERIC_VALUE_OUT_OF_RANGE.WITH_SUGGESTION] The result of {} cannot be represented as {}. If necessary set \"spark.sql.ansi.enabled\" to \"false\" to bypass this error, and return NULL instead. SQLSTATE: 22003",
            self.identity,
            type_text(result)
        ))
    }

    fn overflow(&self, what: &str) -> Error {
        Error::invalid(format!(
            "[ARITHMETIC_OVERFLOW] {what} in {}. If necessary set \"spark.sql.ansi.enabled\" to \"false\" to bypass this error. SQLSTATE: 22003",
            self.identity
        ))
    }

    /// Spark's error for the overflow of a sum of intervals, in any mode.
    pub(super) fn interval_overflow(&self) -> Error {
        Error::invalid(format!(
            "[INTERVAL_ARITHMETIC_OVERFLOW] Interval overflow in {}; leave out or cast the values that are too large. SQLSTATE: 22015",
            self.identity
        ))
    }
}

fn encode(codec: &KeyCodec, column: &ArrayRef) -> Result<EncodedKeys> {
    codec.encode(slice::from_ref(column), column.len())
}

/// True when a sum of months is outside Spark's year-month interval.
pub(super) fn out_of_interval(sum: i64, months: bool) -> bool {
    months && i32::try_from(sum).is_err()
}

fn count(mut fold: Fold<'_>, at: usize) {
    fold.each(|_, row| (i64::read(row, at) + 1).write(row, at));
}

/// True on overflow, or when a sum is `bad`.
fn sum_int(mut fold: Fold<'_>, values: &[i64], bit: usize, at: usize, bad: impl Fn(i64) -> bool) -> bool {
    let mut overflow = false;
    fold.each(|i, row| {
        let (sum, over) = i64::read(row, at).overflowing_add(values[i]);
        overflow |= over || bad(sum);
        sum.write(row, at);
        set_bit(row, bit);
    });
    overflow
}

fn sum_float(mut fold: Fold<'_>, values: &[f64], bit: usize, at: usize) {
    fold.each(|i, row| {
        (f64::read(row, at) + values[i]).write(row, at);
        set_bit(row, bit);
    });
}

fn avg_float(mut fold: Fold<'_>, values: &[f64], at: usize) {
    fold.each(|i, row| {
        (f64::read(row, at) + values[i]).write(row, at);
        (i64::read(row, at + 8) + 1).write(row, at + 8);
    });
}

fn avg_interval(mut fold: Fold<'_>, values: &[i64], months: bool, at: usize) -> bool {
    let mut overflow = false;
    fold.each(|i, row| {
        let (sum, over) = i64::read(row, at).overflowing_add(values[i]);
        overflow |= over || out_of_interval(sum, months);
        sum.write(row, at);
        (i64::read(row, at + 8) + 1).write(row, at + 8);
    });
    overflow
}

/// Adds to a decimal sum whose overflow bit is `bit`; true on (an earlier or this) overflow.
#[inline]
pub(super) fn add_decimal(row: &mut [u8], value: i128, limit: i128, bit: usize, at: usize) -> bool {
    if has_bit(row, bit) {
        return true;
    }
    match i128::read(row, at).checked_add(value) {
        Some(sum) if sum < limit && sum > -limit => {
            sum.write(row, at);
            false
        }
        _ => {
            set_bit(row, bit);
            0i128.write(row, at);
            true
        }
    }
}

fn sum_decimal(mut fold: Fold<'_>, values: &[i128], limit: i128, bit: usize, at: usize) -> bool {
    let mut overflow = false;
    fold.each(|i, row| {
        set_bit(row, bit);
        overflow |= add_decimal(row, values[i], limit, bit + 1, at);
    });
    overflow
}

fn avg_decimal(mut fold: Fold<'_>, values: &[i128], limit: i128, bit: usize, at: usize) -> bool {
    let mut overflow = false;
    fold.each(|i, row| {
        (i64::read(row, at + 16) + 1).write(row, at + 16);
        overflow |= add_decimal(row, values[i], limit, bit, at);
    });
    overflow
}

fn extreme<N: Native, const MAX: bool>(mut fold: Fold<'_>, values: &[N], bit: usize, at: usize) {
    fold.each(|i, row| {
        let (old, new) = (N::read(row, at), values[i]);
        if !has_bit(row, bit) || if MAX { old.before(new) } else { new.before(old) } {
            new.write(row, at);
            set_bit(row, bit);
        }
    });
}

fn extreme_bytes(mut fold: Fold<'_>, values: &Bytes<'_>, max: bool, bit: usize, var: usize) {
    fold.each_var(|i, group, row, vars| {
        let new = values.get(i);
        let old = vars.get(group, var);
        if !has_bit(row, bit) || if max { old < new } else { new < old } {
            vars.set(group, var, new);
            set_bit(row, bit);
        }
    });
}

/// `rule` is (greatest wins, the later of equals wins).
fn by(mut fold: Fold<'_>, order: &EncodedKeys, value: &EncodedKeys, rule: (bool, bool), bit: usize, var: usize) {
    fold.each_var(|i, group, row, vars| {
        let new = order.key(i);
        if !has_bit(row, bit) || wins(vars.get(group, var), new, rule) {
            vars.set(group, var, new);
            vars.set(group, var + 1, value.key(i));
            set_bit(row, bit);
        }
    });
}

/// True when the later ordering `new` replaces `old`.
#[inline]
pub(super) fn wins(old: &[u8], new: &[u8], (max, later_wins_ties): (bool, bool)) -> bool {
    match new.cmp(old) {
        std::cmp::Ordering::Equal => later_wins_ties,
        std::cmp::Ordering::Greater => max,
        std::cmp::Ordering::Less => !max,
    }
}

/// A column of strings or binaries: of bytes, here.
enum Bytes<'a> {
    Small(&'a [i32], &'a [u8]),
    Large(&'a [i64], &'a [u8]),
}

impl<'a> Bytes<'a> {
    fn of(column: &'a ArrayRef) -> Result<Self> {
        Ok(match column.data_type() {
            DataType::Binary => {
                let array = column.as_binary::<i32>();
                Self::Small(array.value_offsets(), array.value_data())
            }
            DataType::LargeBinary => {
                let array = column.as_binary::<i64>();
                Self::Large(array.value_offsets(), array.value_data())
            }
            other => return Err(Error::internal(format_args!("a column of {other} taken for bytes"))),
        })
    }

    #[inline]
    #[expect(clippy::cast_sign_loss, clippy::cast_possible_truncation, reason = "Arrow offsets into memory")]
    fn get(&self, i: usize) -> &'a [u8] {
        match self {
            Self::Small(offsets, data) => &data[offsets[i] as usize..offsets[i + 1] as usize],
            Self::Large(offsets, data) => &data[offsets[i] as usize..offsets[i + 1] as usize],
        }
    }
}
