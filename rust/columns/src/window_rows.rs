//! Rows by window: the first column of a row, its time, becomes the time of its group.
//!
//! Owns: the choice between windows and panes, the rows of each, and joining panes into windows.
//! Does not own: which windows a time has (`aggregate::windows`), grouping and payloads (`split`).
//!
//! Where windows overlap, a row belongs to many. If accumulators may be joined in any order, it is folded into one
//! pane, and panes are joined into windows before they leave: one fold for each row instead of one for each row and
//! window. Else (sums of floats, `first`, `last`) each row is folded into each of its windows, in the order of arrival.

use super::aggregate::{AggPlan, Windows};
use super::codec::{TIME_BYTES, hash_key, time_of, time_prefix};
use super::table::GroupTable;
use arrow_array::cast::AsArray;
use arrow_array::types::TimestampMicrosecondType;
use arrow_array::{Array, ArrayRef, PrimitiveArray, UInt32Array};
use arrow_select::take::take;
use fastchangelog_format::{Error, Result};
use std::sync::Arc;

/// How rows are grouped by time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WindowRows {
    /// Each row into its only window, or each of its windows.
    Windows(Windows),
    /// Each row into its pane.
    Panes(Windows),
}

impl WindowRows {
    /// None for an aggregation without windows.
    pub(super) fn of(plan: &AggPlan) -> Option<Self> {
        plan.windows().map(|windows| {
            if windows.overlap() && plan.any_order() { Self::Panes(windows) } else { Self::Windows(windows) }
        })
    }

    /// Groups that a row goes to, at most.
    pub(super) fn copies(self) -> usize {
        match self {
            Self::Windows(Windows { size, slide, .. }) => usize::try_from((size - 1) / slide + 1).unwrap_or(usize::MAX),
            Self::Panes(_) => 1,
        }
    }

    /// True if a row may go to several groups in the end.
    pub(super) fn overlap(self) -> bool {
        let (Self::Windows(windows) | Self::Panes(windows)) = self;
        windows.overlap()
    }

    /// The rows of `columns`, each once for each group, with the time of the group in the first column. Rows without a
    /// time are left out.
    pub(super) fn assign(self, columns: &[ArrayRef]) -> Result<Vec<ArrayRef>> {
        let first = columns.first().ok_or_else(|| Error::internal("windows without a time"))?;
        let times = first.as_primitive_opt::<TimestampMicrosecondType>();
        let times = times.ok_or_else(|| Error::internal("windows of a column that is not a timestamp"))?;
        let (mut found, mut rows) = (Vec::with_capacity(times.len()), Vec::with_capacity(times.len()));
        let mut add = |row: usize, time: i64| {
            found.push(time);
            rows.push(row);
        };
        for row in (0..times.len()).filter(|row| times.is_valid(*row)) {
            let at = times.value(row);
            match self {
                Self::Panes(windows) => windows.pane(at).into_iter().for_each(|pane| add(row, pane)),
                Self::Windows(windows) if windows.overlap() => windows.ends(at).for_each(|end| add(row, end)),
                Self::Windows(windows) => windows.end(at).into_iter().for_each(|end| add(row, end)),
            }
        }
        let each_once = rows.len() == times.len() && self.copies() == 1;
        let time = PrimitiveArray::<TimestampMicrosecondType>::from_iter_values(found);
        let mut assigned: Vec<ArrayRef> = vec![Arc::new(time.with_data_type(first.data_type().clone()))];
        if each_once {
            assigned.extend_from_slice(&columns[1..]);
            return Ok(assigned);
        }
        let rows = rows.into_iter().map(|row| u32::try_from(row).map_err(Error::internal));
        let rows = UInt32Array::from(rows.collect::<Result<Vec<u32>>>()?);
        for column in &columns[1..] {
            assigned.push(take(column, &rows, None)?);
        }
        Ok(assigned)
    }
}

/// Joins groups of panes into those of windows. `full` gets them whenever they take `most` bytes, and at the end; those
/// of one key together, as far as they fit.
pub(super) fn join_panes(
    windows: Windows,
    panes: &GroupTable,
    joined: &mut GroupTable,
    most: usize,
    full: &mut dyn FnMut(&GroupTable) -> Result<()>,
) -> Result<()> {
    let mut order: Vec<(u64, usize)> = (0..panes.len()).map(|pane| (hash_key(rest(panes.key(pane))), pane)).collect();
    order.sort_unstable();
    let (mut key, mut scratch) = (Vec::new(), Vec::new());
    for (_, pane) in order {
        let begin = time_of(panes.key(pane)).ok_or_else(|| Error::internal("a pane without a time"))?;
        scratch.clear();
        panes.encode_row(pane, &mut scratch);
        for end in windows.ends(begin) {
            key.clear();
            key.extend_from_slice(&time_prefix(end));
            key.extend_from_slice(rest(panes.key(pane)));
            joined.join_row(&key, &scratch)?;
        }
        if joined.used_bytes() >= most {
            full(joined)?;
            joined.clear();
        }
    }
    full(joined)?;
    joined.clear();
    Ok(())
}

fn rest(key: &[u8]) -> &[u8] {
    key.get(TIME_BYTES..).unwrap_or_default()
}

#[cfg(test)]
#[path = "window_rows_tests.rs"]
mod tests;
