//! The interface of an aggregate function.
//!
//! Owns: the interface between a plan and the functions.
//! Does not own: any function (`functions`), the choice of slots (`plan`), the views of a row (`row`).

use super::fold::Fold;
use super::results::RowRange;
use super::row::{Other, RowMut, Slots};
use arrow_array::{Array, ArrayRef};
use arrow_buffer::NullBuffer;
use arrow_schema::DataType;
use fastchangelog_format::Result;
use std::fmt::Debug;

/// An aggregate function over arguments of known types.
///
/// Calls are by column and batch, but for [`Accumulator::merge`], which joins one row; loops over rows are the
/// function's own, so that they are compiled for its types.
pub(super) trait Accumulator: Debug + Send + Sync {
    /// The slots that it needs. All bytes zero is the accumulator of no input.
    fn layout(&self) -> Layout;

    /// True if a row is left out when this argument is null.
    fn skips_null(&self, _argument: usize) -> bool {
        true
    }

    /// True if ANSI mode changes its behaviour.
    fn depends_on_ansi(&self) -> bool {
        false
    }

    /// False if several accumulators have one result although Spark keeps one column of its type.
    fn is_known_by_result(&self) -> bool {
        true
    }

    /// Folds the rows of columns, one for each argument, into accumulators.
    fn update(&self, slots: &Slots, arguments: &[&ArrayRef], fold: Fold<'_>) -> Result<()>;

    /// Folds rows that are accumulators as Spark keeps them, in the columns of [`Bound::buffers`], into accumulators of
    /// no input. By default those columns are arguments that give such an accumulator.
    fn load(&self, slots: &Slots, buffers: &[&ArrayRef], fold: Fold<'_>) -> Result<()> {
        let counting = buffers.iter().enumerate().filter(|(i, _)| self.skips_null(*i));
        let mask = counting.fold(None, |mask, (_, c)| NullBuffer::union(mask.as_ref(), c.logical_nulls().as_ref()));
        self.update(slots, buffers, Fold { mask, ..fold })
    }

    /// Joins two accumulators of one key.
    fn merge(&self, slots: &Slots, mine: &mut RowMut<'_>, other: Other<'_>) -> Result<()>;

    /// The results of rows. Numbers may be of any type with the machine type of `declared`.
    fn finish(&self, slots: &Slots, rows: RowRange<'_>, declared: &DataType) -> Result<ArrayRef>;
}

/// The slots of an accumulator.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Layout {
    /// Bits in front of all fixed slots.
    pub(super) bits: usize,
    /// Bytes of the fixed slot.
    pub(super) bytes: usize,
    /// Variable slots.
    pub(super) vars: usize,
    /// The values of variable slots grow when accumulators are joined.
    pub(super) grows: bool,
}

/// A call as its function sees it.
pub(super) struct Call<'a> {
    /// Types of the arguments.
    pub(super) types: &'a [&'a DataType],
    /// The declared type of the result, if there is one.
    pub(super) declared: Option<&'a DataType>,
    /// Nulls are left out, for a function that can tell them apart.
    pub(super) ignore_nulls: bool,
    /// An overflow is an error.
    pub(super) ansi: bool,
}

/// Spark's name of the column that tells an empty sum of decimals from one that has overflowed; both are null.
pub(super) const IS_EMPTY: &str = "isEmpty";

/// A function's answer to a call.
#[derive(Debug)]
pub(super) struct Bound {
    pub(super) accumulator: Box<dyn Accumulator>,
    /// The type of the result.
    pub(super) result: DataType,
    /// Names and types of the columns in which Spark keeps the accumulator.
    pub(super) buffers: Vec<(&'static str, DataType)>,
    /// Accumulators may be joined in any order: the result has the same bits.
    pub(super) any_order: bool,
}

impl Bound {
    pub(super) fn new(accumulator: impl Accumulator + 'static, result: DataType) -> Self {
        Self { accumulator: Box::new(accumulator), result, buffers: Vec::new(), any_order: false }
    }

    /// The same, of an accumulator that may be joined in any order.
    pub(super) fn in_any_order(mut self) -> Self {
        self.any_order = true;
        self
    }

    /// The same, kept by Spark in one column of the result's type.
    pub(super) fn kept_as(mut self, name: &'static str) -> Self {
        self.buffers = vec![(name, self.result.clone())];
        self
    }

    /// The same, kept by Spark in these columns.
    pub(super) fn kept_in(mut self, buffers: impl IntoIterator<Item = (&'static str, DataType)>) -> Self {
        self.buffers = buffers.into_iter().collect();
        self
    }
}
