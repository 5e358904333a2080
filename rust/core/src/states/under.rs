//! What lies under the changes in memory: those on the local disk, over the live version.
//!
//! Owns: reading both as one. Does not own: what is above (`layers`), that the live version is the one that is wanted.

use super::Place;
use super::spilled::{SpilledChanges, SpilledCursor};
use fastchangelog_format::error::Result;
use fastchangelog_format::model::StateId;
use fastchangelog_state::keyed::{KeyRef, KeyedState, Out};
use fastchangelog_state::scan::Cursor;

/// A cursor of the live version that is not needed any more, for the next one; see [`Cursor::moved`].
pub(crate) type Spare<'a> = Option<Cursor<'a>>;

/// Changes on the local disk, and the live version; either may be absent.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Under<'a> {
    pub(crate) spilled: Option<&'a SpilledChanges>,
    pub(crate) live: Option<&'a KeyedState>,
}

impl<'a> Under<'a> {
    /// The values of keys. Returns how many the hot tier could not answer for.
    pub(crate) fn get_many(self, state: StateId, keys: &[KeyRef<'_>], out: Out<'_>) -> Result<u64> {
        let Some(spilled) = self.spilled else { return self.get_live(state, keys, out) };
        let places = spilled.get_many(state, keys, out)?;
        let rest: Vec<KeyRef<'_>> = places.iter().map(|&i| keys[i]).collect();
        self.get_live(state, &rest, &mut |i, value| out(places[i], value))
    }

    fn get_live(self, state: StateId, keys: &[KeyRef<'_>], out: Out<'_>) -> Result<u64> {
        match self.live {
            Some(live) => live.get_many(state, keys, out),
            None => {
                let _ = (0..keys.len()).try_for_each(|i| out(i, None));
                Ok(0)
            }
        }
    }

    /// The keys of a place from `from` on, below `to`, in their order. RocksDB must hold all of the live version.
    pub(crate) fn cursor(
        self,
        spare: Spare<'a>,
        place: Place,
        from: &[u8],
        to: Option<&[u8]>,
    ) -> Result<UnderCursor<'a>> {
        let (state, group) = place;
        let live = self.live.map(|live| live.cursor_again(spare, state, group, from, to)).transpose()?;
        let spilled = match self.spilled.filter(|spilled| spilled.has(place)) {
            Some(spilled) => Some(spilled.cursor(place, from, to)?),
            None => None,
        };
        let mut cursor = UnderCursor { live, spilled, at: At::Live };
        cursor.settle()?;
        Ok(cursor)
    }
}

/// A place in the keys of one state and key group.
pub(crate) struct UnderCursor<'a> {
    live: Option<Cursor<'a>>,
    spilled: Option<SpilledCursor<'a>>,
    at: At,
}

/// Where the entry of this place is.
#[derive(Debug, Clone, Copy)]
enum At {
    /// In the live version, or nowhere.
    Live,
    Spilled,
}

impl<'a> UnderCursor<'a> {
    /// Its part for the next one.
    pub(crate) fn into_spare(self) -> Spare<'a> {
        self.live
    }

    /// Key and value at this place; none at the end.
    pub(crate) fn entry(&self) -> Result<Option<(&[u8], &[u8])>> {
        match (&self.spilled, self.at) {
            (Some(spilled), At::Spilled) => Ok(spilled.entry()?.and_then(|(key, value)| Some((key, value?)))),
            _ => live_entry(self.live.as_ref()),
        }
    }

    /// Goes to the next key.
    pub(crate) fn advance(&mut self) -> Result<()> {
        match (&mut self.spilled, self.at) {
            (Some(spilled), At::Spilled) => spilled.advance(),
            _ => self.live.iter_mut().for_each(Cursor::advance),
        }
        self.settle()
    }

    /// Goes to the first key after all that begin with `prefix`.
    pub(crate) fn skip(&mut self, prefix: &[u8]) -> Result<()> {
        self.live.iter_mut().for_each(|live| live.skip(prefix));
        self.spilled.iter_mut().for_each(|spilled| spilled.skip(prefix));
        self.settle()
    }

    /// Passes what is deleted or older.
    fn settle(&mut self) -> Result<()> {
        let Some(spilled) = &mut self.spilled else { return Ok(()) };
        loop {
            let (entries, clears) = spilled.parts();
            match (entries.entry()?, live_entry(self.live.as_ref())?) {
                (changed, Some((key, _))) if changed.is_none_or(|(changed, _)| key < changed) => {
                    match clears.covering(key)? {
                        Some(prefix) => self.live.iter_mut().for_each(|live| live.skip(prefix)),
                        None => {
                            self.at = At::Live;
                            return Ok(());
                        }
                    }
                }
                (Some((changed, value)), live) => {
                    let (older, deleted) = (live.is_some_and(|(key, _)| key == changed), value.is_none());
                    if older {
                        self.live.iter_mut().for_each(Cursor::advance);
                    }
                    if !deleted {
                        self.at = At::Spilled;
                        return Ok(());
                    }
                    spilled.advance();
                }
                (None, _) => {
                    self.at = At::Live;
                    return Ok(());
                }
            }
        }
    }
}

fn live_entry<'c>(live: Option<&'c Cursor<'_>>) -> Result<Option<(&'c [u8], &'c [u8])>> {
    live.map_or(Ok(None), Cursor::entry)
}
