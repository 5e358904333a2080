//! The calls that read.
//!
//! Owns: their bounds, and which parts of the live version RocksDB must hold for them.
//! Does not own: what a kind of state reads (`kinds`), timers (`timers`).

use super::StateSession;
use crate::kinds::page::{At, Keys, OfKey, Page, PageBounds, Rows, StatePlace, entry_fields};
use crate::kinds::write::Bytes;
use crate::kinds::{Held, RowGroups, map, value};
use arrow_array::{Array, BinaryArray, BooleanArray, ListArray, RecordBatch, StructArray};
use arrow_buffer::OffsetBuffer;
use arrow_schema::{DataType, Field};
use fastchangelog_format::error::{Error, Result};
use fastchangelog_format::model::{KeyGroup, StateId};
use std::sync::Arc;
use std::time::Instant;

/// Bound on the bytes of the values in one reply, however many keys it has: keys beyond are read by a call of their own. A
/// single value may be larger.
const MOST_BYTES: usize = 64 << 20;

/// What is read in pages.
const IN_PAGES: &[Held] = &[Held::Entries, Held::Elements];

impl StateSession {
    /// The values of the first keys, in their order; null where there is none. All keys, unless their values are too large
    /// for one reply; at least one.
    pub(super) fn get(&mut self, state: StateId, keys: &BinaryArray) -> Result<BinaryArray> {
        self.get_some(state, keys, MOST_BYTES)
    }

    /// As [`Self::get`], with another bound.
    pub(super) fn get_some(&mut self, state: StateId, keys: &BinaryArray, most: usize) -> Result<BinaryArray> {
        let start = Instant::now();
        let state = self.used_as(state, &[Held::Value], "have values by key")?;
        check_keys(keys)?;
        let groups = self.groups_of(keys)?;
        let values =
            self.read(None, |view| value::look_up(view, state, RowGroups::Each(&groups), Bytes::Column(keys), most))?;
        self.count_read(start);
        Ok(values.to_column())
    }

    /// The values of map entries, a row for each key and map key, or for each map key of one key; null where there is none. Of
    /// the first entries, as [`Self::get`].
    pub(super) fn get_entries(
        &mut self,
        state: StateId,
        keys: &BinaryArray,
        subs: &BinaryArray,
    ) -> Result<BinaryArray> {
        self.get_some_entries(state, keys, subs, MOST_BYTES)
    }

    /// As [`Self::get_entries`], with another bound.
    pub(super) fn get_some_entries(
        &mut self,
        state: StateId,
        keys: &BinaryArray,
        subs: &BinaryArray,
        most: usize,
    ) -> Result<BinaryArray> {
        let start = Instant::now();
        let state = self.used_as(state, &[Held::Entries], "have entries by map key")?;
        check_keys(keys)?;
        check_keys(subs)?;
        let groups = self.groups_of(keys)?;
        let groups = RowGroups::Each(&groups);
        let values = self
            .read(None, |view| map::look_up(view, state, groups, (Bytes::Column(keys), Bytes::Column(subs)), most))?;
        self.count_read(start);
        Ok(values.to_column())
    }

    /// The first page of the map entries or list elements of each key, and whether there are more: a list of structs `sub`
    /// (the map key; null for lists) and `value`.
    pub(super) fn read_entries(
        &mut self,
        state: StateId,
        keys: &BinaryArray,
        max_bytes_per_key: usize,
    ) -> Result<(ListArray, BooleanArray)> {
        let start = Instant::now();
        let state = self.used_as(state, IN_PAGES, "have entries under a key")?;
        check_keys(keys)?;
        let groups = self.groups_of(keys)?;
        let (rules, groups) = (state.kind.rules(), RowGroups::Each(&groups));
        let bounds = PageBounds { of_key: max_bytes_per_key, all: MOST_BYTES };
        let walked = rules.pages_walk().then_some((state.id, &[][..]));
        let mut page = Page::default();
        let pages = self
            .read(walked, |view| rules.add_first_pages(Keys { view, state, groups, bytes: keys }, bounds, &mut page))?;
        let (entries, lengths) = page.finish_in_order(pages.iter().map(|(rows, _)| rows.clone()));
        let more: BooleanArray = pages.iter().map(|(_, more)| Some(*more)).collect();
        self.count_read(start);
        let item = Arc::new(Field::new("item", DataType::Struct(entry_fields()), false));
        let offsets = OffsetBuffer::from_lengths(lengths);
        Ok((ListArray::try_new(item, offsets, Arc::new(entries), None)?, more))
    }

    /// A page of the map entries or list elements of one key, after the end of another page, and what names its end; none if
    /// there are no more.
    pub(super) fn read_page(
        &mut self,
        state: StateId,
        key: &[u8],
        after: Option<&[u8]>,
        max_bytes: usize,
    ) -> Result<(StructArray, Option<Vec<u8>>)> {
        let start = Instant::now();
        let state = self.used_as(state, IN_PAGES, "have entries under a key")?;
        let (rules, group) = (state.kind.rules(), self.group(key)?);
        let walked = rules.pages_walk().then_some((state.id, &[][..]));
        let mut page = Page::default();
        let end =
            self.read(walked, |view| rules.add_page(OfKey { view, state, group, key }, after, max_bytes, &mut page))?;
        self.count_read(start);
        Ok((page.finish(), end))
    }

    /// A page of all of a state, after the end of another page, and what names its end; none if there are no more. The columns
    /// are `key`, `sub` and `value` (null for timers). `sub` is the time of a timer, or the expiry of a value, element or
    /// entry, in eight bytes, big endian; null without an expiry. The key of a map entry is the key's bytes and the map
    /// key's. A list has a row for each element.
    pub(super) fn scan(
        &mut self,
        state: StateId,
        after: Option<&[u8]>,
        max_bytes: usize,
    ) -> Result<(RecordBatch, Option<Vec<u8>>)> {
        let start = Instant::now();
        let state = self.used(state)?;
        let mut rows = Rows::new(max_bytes);
        let mut from = after.map(StatePlace::read).transpose()?;
        let first = from.as_ref().map_or(self.own_groups.start, |from| from.group.0);
        let groups: Vec<KeyGroup> = self.key_groups().filter(|group| group.0 >= first).collect();
        let walked: Vec<u8> = state.kind.rules().walked().into_iter().collect();
        let end = self.read(Some((state.id, &walked)), |view| {
            for group in groups {
                if rows.is_full() {
                    return Ok(Some(StatePlace { group, at: At::Start }));
                }
                let at = from.take().filter(|from| from.group == group).map_or(At::Start, |from| from.at);
                if let Some(at) = rows.add(view, state, group, at)? {
                    return Ok(Some(StatePlace { group, at }));
                }
            }
            Ok(None)
        })?;
        self.count_read(start);
        Ok((rows.finish()?, end.map(StatePlace::write)))
    }

    pub(super) fn groups_of(&self, keys: &BinaryArray) -> Result<Vec<KeyGroup>> {
        (0..keys.len()).map(|i| self.group(keys.value(i))).collect()
    }
}

pub(super) fn check_keys(keys: &BinaryArray) -> Result<()> {
    if keys.null_count() > 0 {
        return Err(Error::invalid("a key is null").with_remedy("leave such rows out"));
    }
    Ok(())
}

#[cfg(test)]
#[path = "reads_tests.rs"]
mod tests;
