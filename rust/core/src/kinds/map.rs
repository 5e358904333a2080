//! Maps: entries by key and map key.
//!
//! Owns: look-ups, writes and pages of map entries.
//! Does not own: the walk over a range of keys (the hosts).
//!
//! ```text
//! key, map key   the value
//! ```
//!
//! No key's bytes begin with another key's, so the entries of a key are those that begin with its bytes, in the order of map
//! keys. Invariants:
//! 1. a key without entries does not exist;
//! 2. a clear is one change of the key, whatever the number of its entries.

use super::distinct::Distinct;
use super::page::{At, Keys, OfKey, Page, PageBounds, Rows};
use super::view::View;
use super::write::{Bytes, CLEAR, Changes, DELETE, PUT, Write};
use super::{Held, RowGroups, StateKind, StateRef, place_of};
use crate::states::look_up::Values;
use crate::states::under::Spare;
use fastchangelog_columns::codec::hash_key;
use fastchangelog_columns::typed::successor;
use fastchangelog_format::error::{Error, Result};
use fastchangelog_format::model::KeyGroup;
use std::collections::{HashMap, HashSet};
use std::ops::{Bound, Range};

pub(super) struct MapKind;

/// The keys of map entries, in flat memory.
struct EntryKeys {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl EntryKeys {
    /// An entry for each key and map key, or for one key and all map keys.
    fn new(keys: Bytes<'_>, subs: Bytes<'_>) -> Result<Self> {
        let (rows, one) = (subs.len(), keys.len() == 1);
        check_rows(keys.len(), rows)?;
        let mut made = Self { bytes: Vec::new(), ends: Vec::with_capacity(rows) };
        for row in 0..rows {
            made.bytes.extend_from_slice(keys.get(if one { 0 } else { row }).unwrap_or_default());
            made.bytes.extend_from_slice(subs.get(row).unwrap_or_default());
            made.ends.push(made.bytes.len());
        }
        Ok(made)
    }

    fn get(&self, i: usize) -> &[u8] {
        &self.bytes[if i == 0 { 0 } else { self.ends[i - 1] }..self.ends[i]]
    }
}

/// Refuses numbers of keys and map keys that do not make entries.
pub(crate) fn check_rows(keys: usize, subs: usize) -> Result<()> {
    if keys == 1 || keys == subs {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "the batch has {keys} keys and {subs} map keys; give one key for each map key, or one key for all"
    )))
}

/// The values of the first entries, as many as have at most `most` bytes, and of at least one; none where there is none.
pub(crate) fn look_up(
    view: View<'_>,
    state: StateRef,
    groups: RowGroups<'_>,
    (keys, subs): (Bytes<'_>, Bytes<'_>),
    most: usize,
) -> Result<Values> {
    let entries = EntryKeys::new(keys, subs)?;
    let one = keys.len() == 1;
    let entry = |row: usize| (groups.of(if one { 0 } else { row }), entries.get(row));
    state.values(view.look_up_first(state.id, subs.len(), entry, most)?)
}

impl StateKind for MapKind {
    fn held(&self) -> Held {
        Held::Entries
    }

    fn refusal(&self, changes: Changes<'_>) -> Option<(usize, &'static str)> {
        (0..changes.len()).find_map(|row| {
            let (sub, value) = (changes.sub(row).is_some(), changes.value(row).is_some());
            let why = match changes.op(row) {
                CLEAR => None,
                PUT if !value => Some("it has no value"),
                PUT | DELETE => (!sub).then_some("it has no map key"),
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
            let (rows, prefixes) = first_clears(changes, groups);
            for (group, prefixes) in prefixes {
                layers.clear((state.id, group), prefixes.into_iter());
            }
            let mut entry = Vec::new();
            for row in (0..changes.len()).filter(|row| rows.is_empty() || !rows.contains(row)) {
                let place = place_of(state, groups, row);
                let Some(sub) = changes.sub(row).filter(|_| changes.op(row) != CLEAR) else {
                    layers.clear(place, std::iter::once(changes.key(row)));
                    continue;
                };
                entry.clear();
                entry.extend_from_slice(changes.key(row));
                entry.extend_from_slice(sub);
                let value = changes.value(row).filter(|_| changes.op(row) == PUT);
                layers.put_behind(place, &entry, prefix.bytes(), value);
            }
        }))
    }

    fn add_rows(&self, rows: &mut Rows, own: OfKey<'_>, entry: &[u8], value: &[u8]) -> Result<Option<At>> {
        rows.push_alive(own.state, entry, value).map(|()| None)
    }

    fn add_page(
        &self,
        own: OfKey<'_>,
        after: Option<&[u8]>,
        max_bytes: usize,
        page: &mut Page,
    ) -> Result<Option<Vec<u8>>> {
        map_page(own, &mut None, after, max_bytes, page)
    }

    fn add_first_pages(
        &self,
        keys: Keys<'_>,
        bounds: PageBounds,
        page: &mut Page,
    ) -> Result<Vec<(Range<usize>, bool)>> {
        // Neighbours on disk one after the other.
        let mut order: Vec<usize> = (0..keys.len()).collect();
        order.sort_unstable_by_key(|&row| (keys.get(row).group, keys.get(row).key));
        let (mut pages, mut spare) = (vec![(0..0, false); keys.len()], None);
        for row in order {
            let first = page.rows();
            let more =
                page.bytes() >= bounds.all || map_page(keys.get(row), &mut spare, None, bounds.of_key, page)?.is_some();
            pages[row] = (first..page.rows(), more);
        }
        Ok(pages)
    }
}

fn map_page<'v>(
    own: OfKey<'v>,
    spare: &mut Spare<'v>,
    after: Option<&[u8]>,
    max_bytes: usize,
    page: &mut Page,
) -> Result<Option<Vec<u8>>> {
    let since = page.mark();
    let first = [own.key, after.unwrap_or_default()].concat();
    let from = if after.is_some() { Bound::Excluded(&first[..]) } else { Bound::Included(&first[..]) };
    let mut cursor = own.view.cursor_again(spare.take(), own.place(), from, successor(own.key).as_deref())?;
    let mut last = Vec::new();
    while let Some((entry, value)) = cursor.entry()? {
        // Without a successor the cursor passes keys of others.
        let Some(sub) = entry.strip_prefix(own.key) else { break };
        if let Some(value) = own.state.alive(value)? {
            if !page.has_room(since, max_bytes, sub.len() + value.len()) {
                return Ok(Some(last));
            }
            page.push(Some(sub), value);
            last.clear();
            last.extend_from_slice(sub);
        }
        cursor.advance()?;
    }
    *spare = cursor.into_spare();
    Ok(None)
}

/// The clears of keys that no row before changes, by key group, and their rows: together they pass all changes once, one by
/// one each may.
fn first_clears<'c>(changes: Changes<'c>, groups: RowGroups<'_>) -> (HashSet<usize>, HashMap<KeyGroup, Vec<&'c [u8]>>) {
    let mut prefixes: HashMap<KeyGroup, Vec<&[u8]>> = HashMap::new();
    if !changes.has(CLEAR) {
        return (HashSet::new(), prefixes);
    }
    let hashes: Vec<u64> = (0..changes.len()).map(|row| hash_key(changes.key(row))).collect();
    let firsts = Distinct::of(&hashes, |row| changes.key(row)).firsts;
    let rows: HashSet<usize> = firsts.into_iter().filter(|&row| changes.op(row) == CLEAR).collect();
    for &row in &rows {
        prefixes.entry(groups.of(row)).or_default().push(changes.key(row));
    }
    (rows, prefixes)
}
