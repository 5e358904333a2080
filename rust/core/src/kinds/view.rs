//! The entries of a state at one moment: changes over the live version.
//!
//! Owns: reading both as one, counting look-ups. Does not own: locks, and that the live version is the wanted one (the host).

use crate::states::Place;
use crate::states::layers::Layers;
use crate::states::look_up::{Values, look_up, look_up_first};
use crate::states::scan::MergedCursor;
use crate::states::under::{Spare, Under};
use fastchangelog_format::error::Result;
use fastchangelog_format::model::{KeyGroup, StateId};
use fastchangelog_state::keyed::{KeyRef, KeyedState, Out};
use std::cell::Cell;
use std::ops::Bound;

/// Keys that were looked up below the changes in memory, and how many of these the hot tier could not answer for.
#[derive(Debug, Default)]
pub(crate) struct LookUps {
    all: Cell<u64>,
    misses: Cell<u64>,
}

impl LookUps {
    /// Both numbers since the last call.
    pub(crate) fn take(&self) -> (u64, u64) {
        (self.all.take(), self.misses.take())
    }
}

/// The entries of a state at one moment.
#[derive(Clone, Copy)]
pub(crate) struct View<'a> {
    layers: &'a Layers,
    under: Under<'a>,
    look_ups: Option<&'a LookUps>,
}

impl<'a> View<'a> {
    /// Changes over a live version, if there is one.
    pub(crate) fn new(layers: &'a Layers, live: Option<&'a KeyedState>) -> Self {
        Self { layers, under: layers.over(live), look_ups: None }
    }

    /// The same view, which counts what is looked up.
    pub(crate) fn counting(self, look_ups: &'a LookUps) -> Self {
        Self { look_ups: Some(look_ups), ..self }
    }

    /// The values of `keys`, each with its key group.
    pub(crate) fn look_up<'k>(
        self,
        state: StateId,
        keys: impl ExactSizeIterator<Item = (KeyGroup, &'k [u8])>,
    ) -> Result<Values> {
        look_up(self.layers, state, keys, |keys, out| self.look_up_below(state, keys, out))
    }

    /// The value of one key.
    pub(crate) fn look_up_one(self, (state, group): Place, key: &[u8]) -> Result<Option<Vec<u8>>> {
        Ok(self.look_up(state, std::iter::once((group, key)))?.get(0).map(<[u8]>::to_vec))
    }

    /// Like [`Self::look_up`], but stops once the values exceed `most` bytes. Always returns at least one key.
    pub(crate) fn look_up_first<'k>(
        self,
        state: StateId,
        keys: usize,
        key: impl Fn(usize) -> (KeyGroup, &'k [u8]),
        most: usize,
    ) -> Result<Values> {
        let below = |keys: &[KeyRef<'_>], out: Out<'_>| self.look_up_below(state, keys, out);
        look_up_first(self.layers, state, keys, key, most, below)
    }

    fn look_up_below(self, state: StateId, keys: &[KeyRef<'_>], out: Out<'_>) -> Result<()> {
        let misses = self.under.get_many(state, keys, out)?;
        if let Some(LookUps { all, misses: missed }) = self.look_ups {
            all.set(all.get() + keys.len() as u64);
            missed.set(missed.get() + misses);
        }
        Ok(())
    }

    /// The keys of a place from `from` on (or after it), below `to`, in order. RocksDB must hold them as far as they are
    /// in the live version.
    pub(crate) fn cursor(self, place: Place, from: Bound<&[u8]>, to: Option<&[u8]>) -> Result<MergedCursor<'a>> {
        self.cursor_again(None, place, from, to)
    }

    /// As [`Self::cursor`], reusing parts of a cursor that is not needed any more: for many ranges of keys.
    pub(crate) fn cursor_again(
        self,
        spare: Spare<'a>,
        place: Place,
        from: Bound<&[u8]>,
        to: Option<&[u8]>,
    ) -> Result<MergedCursor<'a>> {
        MergedCursor::new(self.layers, self.under, spare, place, from, to)
    }
}
