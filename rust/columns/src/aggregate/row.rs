//! A row as a function sees it.
//!
//! Owns: the views of the row of a table and of one that is joined to it, and where a call's slots are in it.
//! Does not own: the choice of slots (`plan`), bytes of rows (`rows`).

use crate::rows::Vars;

/// Where the slots of one call are in a row.
#[derive(Debug, Default)]
pub(super) struct Slots {
    /// The call, in errors.
    pub(super) identity: String,
    /// Number of the first bit.
    pub(super) bit: usize,
    /// Byte offset of the fixed slot.
    pub(super) at: usize,
    /// Number of the first variable slot.
    pub(super) var: usize,
}

/// A row of a table, for change.
pub(super) struct RowMut<'a> {
    /// Its fixed part.
    pub(super) fixed: &'a mut [u8],
    /// The variable slots of all rows.
    pub(super) vars: &'a mut Vars,
    /// Its number.
    pub(super) number: usize,
}

impl RowMut<'_> {
    #[inline]
    pub(super) fn var(&self, slot: usize) -> &[u8] {
        self.vars.get(self.number, slot)
    }

    #[inline]
    pub(super) fn set_var(&mut self, slot: usize, value: &[u8]) {
        self.vars.set(self.number, slot, value);
    }

    /// Adds bytes to the end of a variable slot.
    #[inline]
    pub(super) fn append_var(&mut self, slot: usize, more: &[u8]) {
        self.vars.append(self.number, slot, more);
    }
}

/// The row that is joined to a row of a table.
#[derive(Clone, Copy)]
pub(crate) struct Other<'a> {
    /// Its fixed part.
    pub(crate) fixed: &'a [u8],
    /// Its variable slots.
    pub(crate) vars: &'a [&'a [u8]],
    /// Its input came before the input of the table's row.
    pub(crate) earlier: bool,
}

impl<'a> Other<'a> {
    pub(super) fn var(self, slot: usize) -> &'a [u8] {
        self.vars.get(slot).copied().unwrap_or_default()
    }
}
