//! `listagg`.
//!
//! Owns: joined texts and binaries. Does not own: the bytes of elements (`elements`).

use super::collect::{VALUES, elements_of, list_of};
use super::elements::Elements;
use crate::aggregate::accumulator::{Accumulator, Bound, Call, Layout};
use crate::aggregate::fold::{Bytes, Fold};
use crate::aggregate::results::{RowRange, byte_strings};
use crate::aggregate::row::{Other, RowMut, Slots};
use arrow_array::{Array, ArrayRef};
use arrow_buffer::NullBuffer;
use arrow_schema::DataType;
use fastchangelog_format::{Error, Result};

pub(super) fn listagg(call: &Call<'_>) -> Option<Bound> {
    if call.types.len() > 2 || call.types.iter().any(|t| *t != call.types[0]) {
        return None;
    }
    let elements = Elements::of(call.types[0], false)?;
    let buffers = [(VALUES, list_of(call.types[0]))];
    Some(Bound::new(Joined { elements }, call.types[0].clone()).kept_in(buffers))
}

/// Variable slot 0: texts, slot 1: the delimiter, which is the same in all rows.
#[derive(Debug)]
struct Joined {
    elements: Elements,
}

impl Accumulator for Joined {
    fn layout(&self) -> Layout {
        Layout { vars: 2, grows: true, ..Layout::default() }
    }

    fn skips_null(&self, argument: usize) -> bool {
        argument == 0
    }

    fn is_known_by_result(&self) -> bool {
        false
    }

    fn update(&self, slots: &Slots, arguments: &[&ArrayRef], fold: Fold<'_>) -> Result<()> {
        let (texts, mut element, mut done) = (self.elements.values(arguments[0])?, Vec::new(), Ok(()));
        let delimiter = arguments.get(1).map(|column| Ok::<_, Error>((Bytes::of(column)?, column))).transpose()?;
        fold.each_row(|i, row| {
            if let Some((values, column)) = &delimiter
                && row.var(slots.var).is_empty()
                && column.is_valid(i)
            {
                row.set_var(slots.var + 1, values.get(i));
            }
            element.clear();
            self.elements.put(texts.get(i), &mut element);
            if done.is_ok() {
                done = Elements::add(slots, row, &element, false);
            }
        });
        done
    }

    /// Of texts without a delimiter, which Spark's state does not have.
    fn load(&self, slots: &Slots, buffers: &[&ArrayRef], fold: Fold<'_>) -> Result<()> {
        let (texts, groups, mask) = elements_of(buffers[0], fold.groups);
        self.update(slots, &[&texts], Fold { groups: &groups, mask: Some(mask), rows: fold.rows })
    }

    fn merge(&self, slots: &Slots, mine: &mut RowMut<'_>, other: Other<'_>) -> Result<()> {
        let theirs = other.var(slots.var);
        if theirs.is_empty() {
            return Ok(());
        }
        if mine.var(slots.var).is_empty() {
            mine.set_var(slots.var + 1, other.var(slots.var + 1));
        }
        Elements::add(slots, mine, theirs, other.earlier)
    }

    fn finish(&self, slots: &Slots, rows: RowRange<'_>, declared: &DataType) -> Result<ArrayRef> {
        let mut joined = Vec::new();
        for (texts, delimiter) in rows.vars(slots.var).zip(rows.vars(slots.var + 1)) {
            let texts = self.elements.split(texts, &slots.identity)?;
            joined.push((!texts.is_empty()).then(|| texts.join(delimiter)));
        }
        let nulls = NullBuffer::from(joined.iter().map(Option::is_some).collect::<Vec<_>>());
        let nulls = Some(nulls).filter(|nulls| nulls.null_count() > 0);
        byte_strings(joined.iter().map(|text| text.as_deref().unwrap_or_default()), nulls, slots, declared)
    }
}
