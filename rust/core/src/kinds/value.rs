//! Single values by key, and aggregates: the value of an aggregate is its accumulator row.
//!
//! Owns: look-ups and writes of values. Does not own: accumulators (`columns::aggregate`).
//!
//! ```text
//! key   the value
//! ```

use super::page::{At, OfKey, Rows};
use super::view::View;
use super::write::{CLEAR, Changes, DELETE, Ops, PUT, Write};
use super::{RowGroups, StateKind, StateRef, place_of};
use crate::states::look_up::Values;
use arrow_array::BinaryArray;
use fastchangelog_format::error::Result;

pub(super) struct ValueKind;

/// The values of the first keys, as many as have at most `most` bytes, and of at least one; none where there is none.
pub(crate) fn look_up(
    view: View<'_>,
    state: StateRef,
    groups: RowGroups<'_>,
    keys: &BinaryArray,
    most: usize,
) -> Result<Values> {
    state.values(view.look_up_first(
        state.id,
        arrow_array::Array::len(keys),
        |row| (groups.of(row), keys.value(row)),
        most,
    )?)
}

impl StateKind for ValueKind {
    fn refusal(&self, changes: Changes<'_>) -> Option<(usize, &'static str)> {
        (0..changes.len()).find_map(|row| {
            let why = match changes.op(row) {
                PUT => changes.value(row).is_none().then_some("it has no value"),
                CLEAR | DELETE => None,
                _ => Some("its operation is not one of this kind of state"),
            };
            why.map(|why| (row, why))
        })
    }

    fn prepare<'c>(
        &self,
        _: Option<View<'_>>,
        state: StateRef,
        changes: Changes<'c>,
        groups: RowGroups<'c>,
    ) -> Result<Write<'c>> {
        let prefix = changes.prefix();
        let bytes = usize::try_from(changes.bytes()).unwrap_or(usize::MAX) + prefix.bytes().len() * changes.len();
        Ok(Write::new(changes.len(), bytes, move |layers, _| {
            let value = |row: usize| changes.value(row).filter(|_| changes.op(row) == PUT);
            if let (RowGroups::One(group), true) = (groups, prefix.is_empty()) {
                return layers.put_all((state.id, group), changes.len(), |row| changes.key(row), value);
            }
            let mut out = Vec::new();
            for row in 0..changes.len() {
                let stored = value(row).map(|value| prefix.stored(value, &mut out));
                layers.put(place_of(state, groups, row), changes.key(row), stored);
            }
        }))
    }

    fn add_rows(&self, rows: &mut Rows, own: OfKey<'_>, entry: &[u8], value: &[u8]) -> Result<Option<At>> {
        rows.push_alive(own.state, entry, value).map(|()| None)
    }
}

/// True if no row of a write needs [`Ops::Each`]: the operations of values of which some are null.
pub(crate) fn put_or_delete<'a>(values: &BinaryArray, ops: &'a mut Vec<u8>) -> Ops<'a> {
    use arrow_array::Array;
    if values.null_count() == 0 {
        return Ops::All(PUT);
    }
    ops.extend((0..values.len()).map(|row| if values.is_valid(row) { PUT } else { DELETE }));
    Ops::Each(ops)
}
