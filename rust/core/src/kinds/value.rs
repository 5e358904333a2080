//! Single values by key, and aggregates: the value of an aggregate is its accumulator row.
//!
//! Owns: look-ups and writes of values. Does not own: accumulators (`columns::aggregate`).
//!
//! ```text
//! key   the value
//! ```

use super::page::{At, OfKey, Rows};
use super::view::View;
use super::write::{Bytes, CLEAR, Changes, DELETE, Ops, PUT, Write};
use super::{Held, RowGroups, StateKind, StateRef, place_of};
use crate::states::look_up::Values;
use fastchangelog_format::error::Result;

pub(super) struct ValueKind;

/// The values of the first keys, as many as have at most `most` bytes, and of at least one; none where there is none.
pub(crate) fn look_up(
    view: View<'_>,
    state: StateRef,
    groups: RowGroups<'_>,
    keys: Bytes<'_>,
    most: usize,
) -> Result<Values> {
    let key = |row| (groups.of(row), keys.get(row).unwrap_or_default());
    state.values(view.look_up_first(state.id, keys.len(), key, most)?)
}

impl StateKind for ValueKind {
    fn held(&self) -> Held {
        Held::Value
    }

    fn refusal(&self, changes: Changes<'_>) -> Option<(usize, &'static str)> {
        if matches!(changes.ops, Ops::All(PUT)) && changes.values.is_some_and(Bytes::is_whole) {
            return None;
        }
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
            if let RowGroups::One(group) = groups {
                let place = (state.id, group);
                return layers.put_all(place, changes.len(), |row| changes.key(row), prefix.bytes(), value);
            }
            for row in 0..changes.len() {
                layers.put_behind(place_of(state, groups, row), changes.key(row), prefix.bytes(), value(row));
            }
        }))
    }

    fn add_rows(&self, rows: &mut Rows, own: OfKey<'_>, entry: &[u8], value: &[u8]) -> Result<Option<At>> {
        rows.push_alive(own.state, entry, value).map(|()| None)
    }
}

/// The operations that put values, or delete where a value is null.
pub(crate) fn put_or_delete<'a>(values: Bytes<'_>, ops: &'a mut Vec<u8>) -> Ops<'a> {
    if values.is_whole() {
        return Ops::All(PUT);
    }
    ops.extend((0..values.len()).map(|row| if values.get(row).is_some() { PUT } else { DELETE }));
    Ops::Each(ops)
}
