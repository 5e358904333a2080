//! The kinds of states, and the declared ones: how each lies in entries, and what reads, writes, pages, sweeps of it are.
//!
//! value, map, list, timers: one file a kind, which implements [`StateKind`]; list_layout, list_sweep, timer_layout,
//! first_timer: parts of these; view: changes and live version read as one; write: the rows of a write; page: pages of
//! entries; sweep: the removal of expired entries; hints: bounds that save reads; distinct: distinct keys; catalog: the
//! states that a processor has declared
//!
//! Owns: every operation on entries, whichever host asks: a session of the state server, a session that keeps nothing, an
//! embedded state.
//! Does not own: which version is live and when changes become a version (`shard`, `embedded`), the memory of changes
//! (`states`), types of keys and values (`columns`).
//!
//! A host calls a kind once per call, never once per row.

pub(crate) mod catalog;
pub(crate) mod distinct;
pub(crate) mod first_timer;
pub(crate) mod hints;
pub(crate) mod list;
pub(crate) mod list_layout;
mod list_sweep;
pub(crate) mod map;
pub(crate) mod page;
pub(crate) mod sweep;
#[cfg(test)]
pub(crate) mod testing;
pub(crate) mod timer_layout;
pub(crate) mod timers;
pub(crate) mod value;
pub(crate) mod view;
pub(crate) mod write;

use crate::states::look_up::Values;
use crate::states::scan::Found;
use crate::states::times::TIME;
use crate::states::{Place, ttl};
use fastchangelog_format::error::{Error, Result};
use fastchangelog_format::model::{KeyGroup, StateId};
use list_layout::ListLayout;
use page::{At, Keys, ListPlace, OfKey, Page, PageBounds, Rows};
use serde::{Deserialize, Serialize};
use std::ops::Range;
use sweep::Outcome;
use view::View;
use write::{Changes, Write};

/// The kinds of states.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Kind {
    Value,
    List,
    Map,
    Timers,
    /// Its entries are values that are combined.
    Aggregating,
}

impl Kind {
    /// As catalogs name it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Value => "value",
            Self::List => "list",
            Self::Map => "map",
            Self::Timers => "timers",
            Self::Aggregating => "aggregating",
        }
    }

    /// The operations of this kind.
    pub(crate) fn rules(self) -> &'static dyn StateKind {
        match self {
            Self::Value | Self::Aggregating => &value::ValueKind,
            Self::Map => &map::MapKind,
            Self::List => &list::ListKind,
            Self::Timers => &timers::TimerKind,
        }
    }
}

/// What a key has in a state, and so how it is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Held {
    /// One value.
    Value,
    /// Elements in an order of their own.
    Elements,
    /// Entries by map key.
    Entries,
    /// Times.
    Times,
}

/// A state as one call uses it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StateRef {
    pub(crate) id: StateId,
    pub(crate) kind: Kind,
    pub(crate) ttl: bool,
    /// Entries that expire by this time, in milliseconds since the epoch, are absent.
    pub(crate) now: i64,
}

impl StateRef {
    /// The layout of lists.
    pub(crate) fn layout(self) -> ListLayout {
        if self.ttl { ListLayout::Ending } else { ListLayout::Lasting }
    }

    /// The bytes of a stored value; none if it has expired.
    pub(crate) fn alive(self, stored: &[u8]) -> Result<Option<&[u8]>> {
        if self.ttl { ttl::alive(stored, self.now) } else { Ok(Some(stored)) }
    }

    /// As [`Self::alive`], after the time of expiry in eight bytes, big endian; none for a value that does not expire.
    pub(crate) fn alive_until(self, stored: &[u8]) -> Result<Option<(Option<[u8; TIME]>, &[u8])>> {
        if !self.ttl {
            return Ok(Some((None, stored)));
        }
        let (ends, value) = ttl::split(stored)?;
        Ok((ends > self.now).then(|| (Some(ends.to_be_bytes()), value)))
    }

    /// The stored values that have not expired.
    pub(crate) fn values(self, mut values: Values) -> Result<Values> {
        if self.ttl {
            values.leave_alive(self.now)?;
        }
        Ok(values)
    }
}

/// The key groups of some rows.
#[derive(Debug, Clone, Copy)]
pub(crate) enum RowGroups<'a> {
    /// All rows are in this one.
    One(KeyGroup),
    /// The key group of each row.
    Each(&'a [KeyGroup]),
}

impl RowGroups<'_> {
    /// The key group of a row.
    #[inline]
    pub(crate) fn of(self, row: usize) -> KeyGroup {
        match self {
            Self::One(group) => group,
            Self::Each(groups) => groups[row],
        }
    }
}

/// One kind of state. Its entries are at a place: a state and a key group.
pub(crate) trait StateKind: Sync {
    /// What a key has.
    fn held(&self) -> Held;

    /// The first row that is no change of this kind, and why.
    fn refusal(&self, changes: Changes<'_>) -> Option<(usize, &'static str)>;

    /// True if these changes depend on stored entries.
    fn reads_before_write(&self, _: Changes<'_>) -> bool {
        false
    }

    /// True if such changes walk the entries of [`Self::walked`], so that RocksDB must hold those of the live version.
    fn writes_walk(&self) -> bool {
        false
    }

    /// Finds out which entries change; `view` is needed if [`Self::reads_before_write`]. Nothing is changed yet.
    fn prepare<'c>(
        &self,
        view: Option<View<'_>>,
        state: StateRef,
        changes: Changes<'c>,
        groups: RowGroups<'c>,
    ) -> Result<Write<'c>>;

    /// The first byte of the entries that a walk over all of a state passes; none = all entries. Entries with a higher one
    /// belong to those that it passes.
    fn walked(&self) -> Option<u8> {
        None
    }

    /// Adds an entry of a walk to a page of a state. A place in the entry, if the page has no room for all of it.
    fn add_rows(&self, rows: &mut Rows, own: OfKey<'_>, entry: &[u8], value: &[u8]) -> Result<Option<At>>;

    /// Adds elements of one list to a page of a state, from a place on; the place after them if there are more.
    fn add_rest(&self, rows: &mut Rows, own: OfKey<'_>, from: ListPlace) -> Result<Option<ListPlace>> {
        let _ = (rows, own, from);
        Err(Error::invalid("a page of this kind of state does not end inside an entry"))
    }

    /// Adds entries of one key, after the end of another page of it. The end of this page, if there are more.
    fn add_page(
        &self,
        own: OfKey<'_>,
        after: Option<&[u8]>,
        max_bytes: usize,
        page: &mut Page,
    ) -> Result<Option<Vec<u8>>> {
        let _ = (own, after, max_bytes, page);
        Err(no_pages())
    }

    /// Adds the first entries of each key, until all have `most` bytes. Returns the rows of each key, and whether it has more.
    fn add_first_pages(
        &self,
        keys: Keys<'_>,
        bounds: PageBounds,
        page: &mut Page,
    ) -> Result<Vec<(Range<usize>, bool)>> {
        let _ = (keys, bounds, page);
        Err(no_pages())
    }

    /// True if a page is a walk, so that RocksDB must hold all entries of the live version.
    fn pages_walk(&self) -> bool {
        true
    }

    /// Bytes of a stored value that a sweep reads.
    fn swept_bytes(&self) -> usize {
        ttl::PREFIX
    }

    /// The entry after which a sweep begins, given a key that was written lately.
    fn sweep_start(&self, key: &[u8]) -> Vec<u8> {
        key.to_vec()
    }

    /// The entries to remove or to change of those that a sweep has found in a place. `stored` reads another entry.
    fn sweep(
        &self,
        found: &Found,
        now: i64,
        stored: &mut dyn FnMut(&[u8]) -> Result<Option<Vec<u8>>>,
    ) -> Result<Outcome> {
        let _ = stored;
        sweep::sweep_values(found, now)
    }
}

fn no_pages() -> Error {
    Error::internal("a kind of state without entries under a key has no pages")
}

/// The place of a state in the key group of a row.
#[inline]
pub(crate) fn place_of(state: StateRef, groups: RowGroups<'_>, row: usize) -> Place {
    (state.id, groups.of(row))
}
