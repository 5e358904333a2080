//! Lists: elements in the order in which they were added.
//!
//! Owns: writes and pages of lists, and whole lists of many keys. Does not own: the entries of a list (`list_layout`), the
//! removal of expired elements (`list_sweep`).
//!
//! Invariants, beside those of the layout:
//! 1. a read of whole lists returns each of them as it is at one moment.

use super::distinct::Distinct;
use super::list_layout::{CHUNKS, HEAD, ListHeader, ListKeys, ListUpdate, bad_list, elements, push_key};
use super::list_sweep::sweep_lists;
use super::page::{At, Keys, ListPlace, OfKey, Page, PageBounds, Rows};
use super::sweep::Outcome;
use super::view::View;
use super::write::{APPEND, Bytes, CLEAR, Changes, PUT, Write};
use super::{Held, RowGroups, StateKind, StateRef, place_of};
use crate::states::look_up::Values;
use crate::states::scan::Found;
use fastchangelog_columns::codec::hash_key;
use fastchangelog_format::error::{Error, Result};
use fastchangelog_format::model::KeyGroup;
use std::ops::Range;

pub(super) struct ListKind;

/// Whole lists of some keys, as they are at one moment.
pub(crate) struct Lists {
    state: StateRef,
    heads: Values,
    /// The chunks of all of them, one list after the other.
    chunks: Values,
}

impl Lists {
    /// Reads the lists of keys, each with its key group.
    pub(crate) fn read<'k>(
        view: View<'_>,
        state: StateRef,
        keys: impl ExactSizeIterator<Item = (KeyGroup, &'k [u8])> + Clone,
    ) -> Result<Self> {
        let heads = heads(view, state, keys.clone())?;
        let (mut parts, mut groups) = (Vec::new(), Vec::new());
        for ((group, key), head) in keys.zip(heads.iter()) {
            let head = ListHeader::read(head, state.layout())?;
            parts.extend((head.first..head.chunks).map(|chunk| (CHUNKS, key, Some(chunk))));
            groups.resize(parts.len(), group);
        }
        let parts = ListKeys::of(parts.into_iter());
        let chunks = view.look_up(state.id, groups.into_iter().zip(parts.iter()))?;
        Ok(Self { state, heads, chunks })
    }

    /// The elements of all lists that have not expired, and how many each list has.
    pub(crate) fn elements(&self) -> Result<(Vec<&[u8]>, Vec<usize>)> {
        let (mut found, mut lengths) = (Vec::new(), Vec::with_capacity(self.heads.len()));
        let mut chunks = self.chunks.iter();
        for head in self.heads.iter() {
            let (before, head) = (found.len(), ListHeader::read(head, self.state.layout())?);
            // Expired elements count, too.
            let mut all = 0;
            let mut take = |part| {
                elements(part).try_for_each(|element| {
                    all += 1;
                    found.extend(self.state.alive(element?)?);
                    Ok::<_, Error>(())
                })
            };
            for _ in head.first..head.chunks {
                take(chunks.next().flatten().ok_or_else(|| bad_list("a chunk of it is missing"))?)?;
            }
            take(head.tail)?;
            if all != head.elements {
                return Err(bad_list("it holds another number of elements than it says"));
            }
            lengths.push(found.len() - before);
        }
        Ok((found, lengths))
    }
}

/// The heads of the lists of keys, each with its key group.
pub(crate) fn heads<'k>(
    view: View<'_>,
    state: StateRef,
    keys: impl ExactSizeIterator<Item = (KeyGroup, &'k [u8])> + Clone,
) -> Result<Values> {
    let entries = ListKeys::of(keys.clone().map(|(_, key)| (HEAD, key, None)));
    view.look_up(state.id, keys.map(|(group, _)| group).zip(entries.iter()))
}

impl StateKind for ListKind {
    fn held(&self) -> Held {
        Held::Elements
    }

    fn refusal(&self, changes: Changes<'_>) -> Option<(usize, &'static str)> {
        let all = changes.values.is_some_and(Bytes::is_whole);
        let has_values =
            |row| all || changes.values.is_some_and(|values| changes.span(row).all(|i| values.get(i).is_some()));
        (0..changes.len()).find_map(|row| {
            let why = match (changes.op(row), changes.spans.is_some()) {
                (CLEAR, _) => None,
                (APPEND, _) | (PUT, true) => (!has_values(row)).then_some("it has no value"),
                _ => Some("its operation is not one of this kind of state"),
            };
            why.map(|why| (row, why))
        })
    }

    fn reads_before_write(&self, _: Changes<'_>) -> bool {
        true
    }

    fn prepare<'c>(
        &self,
        view: Option<View<'_>>,
        state: StateRef,
        changes: Changes<'c>,
        groups: RowGroups<'c>,
    ) -> Result<Write<'c>> {
        let view = view.ok_or_else(|| Error::internal("a write of lists without a view"))?;
        let hashes: Vec<u64> = (0..changes.len()).map(|row| hash_key(changes.key(row))).collect();
        let Distinct { firsts, of_row } = Distinct::of(&hashes, |row| changes.key(row));
        let heads = heads(view, state, firsts.iter().map(|&row| (groups.of(row), changes.key(row))))?;
        let mut updates = Vec::with_capacity(firsts.len());
        for head in heads.iter() {
            updates.push(ListUpdate::new(ListHeader::read(head, state.layout())?, false));
        }
        let prefix = changes.prefix();
        for (row, &list) in of_row.iter().enumerate() {
            if changes.op(row) != APPEND {
                updates[list].clear();
            }
            if let Some(values) = changes.values.filter(|_| changes.op(row) != CLEAR) {
                let update = &mut updates[list];
                let elements = changes.span(row).filter_map(|i| values.get(i));
                elements.for_each(|element| update.push(prefix.bytes(), element));
            }
        }
        let heads: Vec<Option<Vec<u8>>> = updates.iter_mut().map(|update| update.finish(state.layout())).collect();
        let sizes = updates.iter().zip(&heads).zip(&firsts);
        let sizes = sizes.map(|((update, head), &row)| update.size(changes.key(row), head.as_deref()));
        let (entries, bytes) =
            sizes.fold((0, 0), |(entries, bytes), (more, more_bytes)| (entries + more, bytes + more_bytes));
        Ok(Write::new(entries, bytes, move |layers, _| {
            for ((update, head), row) in updates.into_iter().zip(heads).zip(firsts) {
                update.change(layers, place_of(state, groups, row), changes.key(row), head.as_deref());
            }
        }))
    }

    fn walked(&self) -> Option<u8> {
        Some(HEAD)
    }

    fn add_rows(&self, rows: &mut Rows, own: OfKey<'_>, entry: &[u8], _: &[u8]) -> Result<Option<At>> {
        let key = entry.get(1..).unwrap_or_default().to_vec();
        let list = add_list(rows, OfKey { key: &key, ..own }, ListPlace::default())?;
        Ok(list.map(|list| At::InList(key, list)))
    }

    fn add_rest(&self, rows: &mut Rows, own: OfKey<'_>, from: ListPlace) -> Result<Option<ListPlace>> {
        add_list(rows, own, from)
    }

    fn pages_walk(&self) -> bool {
        false
    }

    fn add_page(
        &self,
        own: OfKey<'_>,
        after: Option<&[u8]>,
        max_bytes: usize,
        page: &mut Page,
    ) -> Result<Option<Vec<u8>>> {
        let from = after.map(ListPlace::read).transpose()?.unwrap_or_default();
        let head = list_entry(own, HEAD, None)?;
        Ok(list_page(own, head.as_deref(), from, max_bytes, page)?.map(ListPlace::write))
    }

    fn add_first_pages(
        &self,
        keys: Keys<'_>,
        bounds: PageBounds,
        page: &mut Page,
    ) -> Result<Vec<(Range<usize>, bool)>> {
        let own = |row| keys.get(row);
        let heads = heads(keys.view, keys.state, (0..keys.len()).map(|row| (own(row).group, own(row).key)))?;
        let mut pages = Vec::with_capacity(keys.len());
        for (row, head) in heads.iter().enumerate() {
            let first = page.rows();
            let more = if page.bytes() >= bounds.all {
                head.is_some()
            } else {
                list_page(own(row), head, ListPlace::default(), bounds.of_key, page)?.is_some()
            };
            pages.push((first..page.rows(), more));
        }
        Ok(pages)
    }

    fn swept_bytes(&self) -> usize {
        usize::MAX
    }

    fn sweep_start(&self, key: &[u8]) -> Vec<u8> {
        let mut entry = Vec::new();
        let part = if hash_key(key) & 1 == 0 { HEAD } else { CHUNKS };
        push_key(&mut entry, (part, key, None));
        entry
    }

    fn sweep(
        &self,
        found: &Found,
        now: i64,
        stored: &mut dyn FnMut(&[u8]) -> Result<Option<Vec<u8>>>,
    ) -> Result<Outcome> {
        sweep_lists(found, now, stored)
    }
}

/// Adds elements of a list to a page of a state; the place after them if there are more.
fn add_list(rows: &mut Rows, own: OfKey<'_>, from: ListPlace) -> Result<Option<ListPlace>> {
    let mut page = Page::with_expiry();
    let head = list_entry(own, HEAD, None)?;
    let end = list_page(own, head.as_deref(), from, rows.room(), &mut page)?;
    page.drain(|expiry, element| rows.push(own.key, expiry, Some(element)));
    Ok(end)
}

fn list_entry(own: OfKey<'_>, tag: u8, chunk: Option<u64>) -> Result<Option<Vec<u8>>> {
    let mut entry = Vec::new();
    push_key(&mut entry, (tag, own.key, chunk));
    own.view.look_up_one(own.place(), &entry)
}

/// Adds elements of a list from a place on; the place after them if there are more.
fn list_page(
    own: OfKey<'_>,
    head: Option<&[u8]>,
    from: ListPlace,
    max_bytes: usize,
    page: &mut Page,
) -> Result<Option<ListPlace>> {
    let head = ListHeader::read(head, own.state.layout())?;
    let since = page.mark();
    let ListPlace { mut count, mut to_pass, chunk: first, passed: mut skipped } = from;
    let from_start = first <= head.first && skipped == 0;
    // Expired elements count, too.
    let mut all = 0;
    // The tail is the chunk after the last one.
    for chunk in first.max(head.first)..=head.chunks {
        let found;
        let bytes = if chunk == head.chunks {
            head.tail
        } else {
            found = list_entry(own, CHUNKS, Some(chunk))?.ok_or_else(|| bad_list("a chunk of it is missing"))?;
            &found
        };
        for (i, element) in elements(bytes).enumerate().skip(usize::try_from(skipped).unwrap_or(usize::MAX)) {
            all += 1;
            let Some((ends, element)) = own.state.alive_until(element?)? else { continue };
            if to_pass > 0 {
                to_pass -= 1;
            } else if !page.has_room(since, max_bytes, element.len()) {
                return Ok(Some(ListPlace { count, to_pass: 0, chunk, passed: i as u64 }));
            } else {
                let ends = ends.filter(|_| page.with_expiry);
                page.push(ends.as_ref().map(|ends| &ends[..]), element);
                count += 1;
            }
        }
        skipped = 0;
    }
    if from_start && all != head.elements {
        return Err(bad_list("it holds another number of elements than it says"));
    }
    Ok(None)
}
