//! Lists, maps and whole states, in order and in pages.
//!
//! Owns: where a page begins and ends, and what names its end.
//! Does not own: values of single keys (`reads`), the layouts (`states`).
//!
//! The end of a page is named in bytes:
//!
//! ```text
//! a map    the map key of the last entry
//! a list   u64 be  elements so far; perhaps followed by  u64 be  chunk | u64 be  elements of that chunk that are passed
//! a state  u16 be  key group, perhaps followed by
//!          0 | the last key's bytes, as they lie, or  1 | the end of a page of the list (24 bytes) | its key
//! ```
//!
//! With the number of elements alone a list is passed from its start. Elements that have ended are not counted.

use super::overlay::View;
use super::reads::{MOST_BYTES, check_keys};
use super::{StateSession, Used};
use crate::states::catalog::Kind;
use crate::states::list::{CHUNKS, HEAD, ListHeader, ListKeys, bad_list, elements, push_key};
use crate::states::timer::{self, BY_KEY, BY_TIME};
use crate::states::under::Spare;
use arrow_array::builder::{ArrayBuilder, BinaryBuilder};
use arrow_array::{Array, BinaryArray, BooleanArray, ListArray, RecordBatch, StructArray};
use arrow_buffer::OffsetBuffer;
use arrow_schema::{DataType, Field, Fields, Schema};
use fastchangelog_columns::typed::successor;
use fastchangelog_format::error::{Error, Result};
use fastchangelog_format::model::{KeyGroup, StateId};
use std::ops::{Bound, Range};
use std::sync::Arc;
use std::time::Instant;

/// Bytes of a page's end: of a list as a number of elements, and with its place.
const COUNT: usize = size_of::<u64>();
const PLACE: usize = 3 * COUNT;
/// What the end of a page of a state names.
const AFTER: u8 = 0;
const IN_LIST: u8 = 1;

/// Entries of a page.
#[derive(Default)]
struct Page {
    /// `sub` of an element that ends is when.
    with_ends: bool,
    subs: BinaryBuilder,
    values: BinaryBuilder,
    bytes: usize,
    rows: usize,
}

impl Page {
    fn push(&mut self, sub: Option<&[u8]>, value: &[u8]) {
        self.subs.append_option(sub);
        self.values.append_value(value);
        self.bytes += sub.map_or(0, <[u8]>::len) + value.len();
        self.rows += 1;
    }

    /// True if an entry of `next` bytes belongs to the page that began at these rows and bytes: it is the first one, or all of them
    /// are no more than `most`. A key's page is one row of a message, so that it must not be longer than its entries are.
    fn has_room(&self, since: (usize, usize), most: usize, next: usize) -> bool {
        let bytes = self.bytes - since.1;
        self.rows == since.0 || (bytes < most && bytes + next <= most)
    }

    /// The rows of keys in their order, and how many each has.
    fn finish_in_order(mut self, keys: impl Iterator<Item = Range<usize>>) -> (StructArray, Vec<usize>) {
        let (mut next, mut in_order, mut lengths) = (0, true, Vec::new());
        let keys: Vec<Range<usize>> = keys.collect();
        for rows in &keys {
            in_order &= rows.is_empty() || rows.start == next;
            next = if rows.is_empty() { next } else { rows.end };
            lengths.push(rows.len());
        }
        if in_order {
            return (self.finish(), lengths);
        }
        let (subs, values) = (self.subs.finish(), self.values.finish());
        let mut sorted = Self::default();
        for i in keys.into_iter().flatten() {
            sorted.push(subs.is_valid(i).then(|| subs.value(i)), values.value(i));
        }
        (sorted.finish(), lengths)
    }

    fn finish(mut self) -> StructArray {
        StructArray::new(entry_fields(), vec![Arc::new(self.subs.finish()), Arc::new(self.values.finish())], None)
    }
}

fn entry_fields() -> Fields {
    let field = |name: &str, nullable| Field::new(name, DataType::Binary, nullable);
    Fields::from(vec![field("sub", true), field("value", false)])
}

/// A place in a list.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct ListPlace {
    /// Elements before it that have not ended.
    count: u64,
    /// Of these, those that are still to be passed from the start.
    to_pass: u64,
    chunk: u64,
    /// Elements of the chunk that were passed.
    passed: u64,
}

impl ListPlace {
    fn read(bytes: &[u8]) -> Result<Self> {
        let numbers: Vec<u64> = bytes.as_chunks::<COUNT>().0.iter().map(|bytes| u64::from_be_bytes(*bytes)).collect();
        match numbers[..] {
            [count] if bytes.len() == COUNT => Ok(Self { count, to_pass: count, ..Self::default() }),
            [count, chunk, passed] if bytes.len() == PLACE => Ok(Self { count, to_pass: 0, chunk, passed }),
            _ => Err(Error::invalid(format!("{} bytes do not name the end of a page of a list", bytes.len()))),
        }
    }

    fn write(self) -> Vec<u8> {
        [self.count, self.chunk, self.passed].map(u64::to_be_bytes).concat()
    }
}

impl StateSession {
    /// The first page of the map entries or list elements of each key, and whether there are more: a list of structs `sub`
    /// (the map key; null for lists) and `value`.
    pub(super) fn read_entries(
        &mut self,
        state: StateId,
        keys: &BinaryArray,
        max_bytes_per_key: usize,
    ) -> Result<(ListArray, BooleanArray)> {
        let start = Instant::now();
        let used = self.used(state, &[Kind::Map, Kind::List], "have entries under a key")?;
        check_keys(keys)?;
        let groups = self.groups_of(keys)?;
        let mut page = Page::default();
        // In whatever order they are read: the rows of each key, and whether it has more.
        let mut pages = vec![(0..0, false); keys.len()];
        if used.kind == Kind::List {
            self.read(None, |view| {
                let heads = ListKeys::of((0..keys.len()).map(|i| (HEAD, keys.value(i), None)));
                let heads = view.look_up(state, groups.iter().copied().zip(heads.iter()))?;
                for (i, group) in groups.iter().enumerate() {
                    let own = OfKey { view, used, group: *group, key: keys.value(i) };
                    let first = page.rows;
                    let more = if page.bytes >= MOST_BYTES {
                        heads.get(i).is_some()
                    } else {
                        let from = ListPlace::default();
                        own.list_page(heads.get(i), from, max_bytes_per_key, &mut page)?.is_some()
                    };
                    pages[i] = (first..page.rows, more);
                }
                Ok(())
            })?;
        } else {
            // Neighbours on disk one after the other.
            let mut order: Vec<usize> = (0..keys.len()).collect();
            order.sort_unstable_by_key(|&i| (groups[i], keys.value(i)));
            self.read(Some((state, &[])), |view| {
                let mut spare = None;
                for i in order {
                    let own = OfKey { view, used, group: groups[i], key: keys.value(i) };
                    let first = page.rows;
                    let more = page.bytes >= MOST_BYTES
                        || own.map_page(&mut spare, None, max_bytes_per_key, &mut page)?.is_some();
                    pages[i] = (first..page.rows, more);
                }
                Ok(())
            })?;
        }
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
        let used = self.used(state, &[Kind::Map, Kind::List], "have entries under a key")?;
        let group = self.group(key)?;
        let mut page = Page::default();
        let end = if used.kind == Kind::List {
            let from = after.map(ListPlace::read).transpose()?.unwrap_or_default();
            self.read(None, |view| {
                let own = OfKey { view, used, group, key };
                let head = own.list_entry(HEAD, None)?;
                Ok(own.list_page(head.as_deref(), from, max_bytes, &mut page)?.map(ListPlace::write))
            })?
        } else {
            self.read(Some((state, &[])), |view| {
                OfKey { view, used, group, key }.map_page(&mut None, after, max_bytes, &mut page)
            })?
        };
        self.count_read(start);
        Ok((page.finish(), end))
    }

    /// A page of all of a state, after the end of another page, and what names its end; none if there are no more. The columns
    /// are `key`, `sub` and `value` (null for timers). `sub` is the time of a timer, or that at which a value, element or entry
    /// ends, in eight bytes, big endian; null for what does not end. The key of a map entry is the key's bytes and the map
    /// key's. A list has a row for each element.
    pub(super) fn scan(
        &mut self,
        state: StateId,
        after: Option<&[u8]>,
        max_bytes: usize,
    ) -> Result<(RecordBatch, Option<Vec<u8>>)> {
        let start = Instant::now();
        let all = [Kind::Value, Kind::Aggregating, Kind::List, Kind::Map, Kind::Timers];
        let used = self.used(state, &all, "have entries")?;
        let mut rows = Rows { max_bytes, ..Rows::default() };
        let mut from = after.map(StatePlace::read).transpose()?;
        let first = from.as_ref().map_or(self.own_groups.start, |from| from.group.0);
        let groups: Vec<KeyGroup> = self.key_groups().filter(|group| group.0 >= first).collect();
        let (start_of_walk, _) = walk_of(used.kind);
        let end = self.read(Some((state, &start_of_walk)), |view| {
            for group in groups {
                if rows.is_full() {
                    return Ok(Some(StatePlace { group, at: At::Start }));
                }
                let at = from.take().filter(|from| from.group == group).map_or(At::Start, |from| from.at);
                if let Some(at) = rows.add(view, used, group, at)? {
                    return Ok(Some(StatePlace { group, at }));
                }
            }
            Ok(None)
        })?;
        self.count_read(start);
        Ok((rows.finish()?, end.map(StatePlace::write)))
    }
}

/// A place in all of a state.
struct StatePlace {
    group: KeyGroup,
    at: At,
}

/// A place in one key group.
enum At {
    Start,
    /// After the entry with this key.
    After(Vec<u8>),
    /// In the list of this key.
    InList(Vec<u8>, ListPlace),
}

impl StatePlace {
    fn read(bytes: &[u8]) -> Result<Self> {
        let bad = || Error::invalid(format!("{} bytes do not name the end of a page of a state", bytes.len()));
        let (group, rest) = bytes.split_first_chunk::<2>().ok_or_else(bad)?;
        let at = match rest.split_first() {
            None => At::Start,
            Some((&AFTER, key)) => At::After(key.to_vec()),
            Some((&IN_LIST, rest)) if rest.len() >= PLACE => {
                let (list, key) = rest.split_at(PLACE);
                At::InList(key.to_vec(), ListPlace::read(list)?)
            }
            Some(_) => return Err(bad()),
        };
        Ok(Self { group: KeyGroup(u16::from_be_bytes(*group)), at })
    }

    fn write(self) -> Vec<u8> {
        let mut bytes = self.group.0.to_be_bytes().to_vec();
        match self.at {
            At::Start => {}
            At::After(key) => {
                bytes.push(AFTER);
                bytes.extend_from_slice(&key);
            }
            At::InList(key, list) => {
                bytes.push(IN_LIST);
                bytes.extend_from_slice(&list.write());
                bytes.extend_from_slice(&key);
            }
        }
        bytes
    }
}

/// Rows of a page of a state.
#[derive(Default)]
struct Rows {
    keys: BinaryBuilder,
    subs: BinaryBuilder,
    values: BinaryBuilder,
    bytes: usize,
    max_bytes: usize,
}

impl Rows {
    fn push(&mut self, key: &[u8], sub: Option<&[u8]>, value: Option<&[u8]>) {
        self.keys.append_value(key);
        self.subs.append_option(sub);
        self.values.append_option(value);
        self.bytes += key.len() + sub.map_or(0, <[u8]>::len) + value.map_or(0, <[u8]>::len);
    }

    fn is_full(&self) -> bool {
        self.keys.len() > 0 && self.bytes >= self.max_bytes
    }

    /// Adds rows of one key group; the end of the page if there is no room for all.
    fn add(&mut self, view: View<'_>, used: Used, group: KeyGroup, at: At) -> Result<Option<At>> {
        let (start, to) = walk_of(used.kind);
        let from = match at {
            At::Start => Bound::Included(start),
            At::After(key) => Bound::Excluded(key),
            At::InList(key, list) => {
                if let Some(list) = self.add_list(OfKey { view, used, group, key: &key }, list)? {
                    return Ok(Some(At::InList(key, list)));
                }
                let mut head = Vec::new();
                push_key(&mut head, (HEAD, &key, None));
                Bound::Excluded(head)
            }
        };
        let to = to.as_ref().map(<[u8; 1]>::as_slice);
        let mut cursor = view.cursor((used.id, group), from.as_ref().map(Vec::as_slice), to)?;
        let mut last = None;
        while let Some((entry, value)) = cursor.entry()? {
            if self.is_full() {
                return Ok(Some(last.map_or_else(|| from.into(), At::After)));
            }
            match used.kind {
                Kind::List => {
                    let key = entry[1..].to_vec();
                    let own = OfKey { view, used, group, key: &key };
                    if let Some(list) = self.add_list(own, ListPlace::default())? {
                        return Ok(Some(At::InList(key, list)));
                    }
                }
                Kind::Timers => {
                    let (key, time) = timer::split_by_key(entry)?;
                    self.push(key, Some(&time.to_be_bytes()), None);
                }
                _ => {
                    if let Some((ends, value)) = used.alive_until(value)? {
                        self.push(entry, ends.as_ref().map(|ends| &ends[..]), Some(value));
                    }
                }
            }
            last = Some(entry.to_vec());
            cursor.advance()?;
        }
        Ok(None)
    }

    /// Adds elements of a list; the place after them if there is no room for all.
    fn add_list(&mut self, own: OfKey<'_>, from: ListPlace) -> Result<Option<ListPlace>> {
        let head = own.list_entry(HEAD, None)?;
        let mut page = Page { with_ends: true, ..Page::default() };
        let end = own.list_page(head.as_deref(), from, self.max_bytes.saturating_sub(self.bytes), &mut page)?;
        let (ends, elements) = (page.subs.finish(), page.values.finish());
        ends.iter().zip(elements.iter()).for_each(|(ends, element)| self.push(own.key, ends, element));
        Ok(end)
    }

    fn finish(mut self) -> Result<RecordBatch> {
        let field = |name: &str, nullable| Field::new(name, DataType::Binary, nullable);
        let schema = Schema::new(vec![field("key", false), field("sub", true), field("value", true)]);
        let columns = [self.keys.finish(), self.subs.finish(), self.values.finish()];
        Ok(RecordBatch::try_new(Arc::new(schema), columns.into_iter().map(|c| Arc::new(c) as _).collect())?)
    }
}

/// What the entries begin with that a walk over all of a state passes, and what ends them.
fn walk_of(kind: Kind) -> (Vec<u8>, Option<[u8; 1]>) {
    match kind {
        Kind::List => (vec![HEAD], Some([CHUNKS])),
        Kind::Timers => (vec![BY_KEY], Some([BY_TIME])),
        _ => (Vec::new(), None),
    }
}

impl From<Bound<Vec<u8>>> for At {
    fn from(bound: Bound<Vec<u8>>) -> Self {
        match bound {
            Bound::Excluded(key) => Self::After(key),
            Bound::Included(_) | Bound::Unbounded => Self::Start,
        }
    }
}

/// One key's entries in a view.
#[derive(Clone, Copy)]
struct OfKey<'a> {
    view: View<'a>,
    used: Used,
    group: KeyGroup,
    key: &'a [u8],
}

impl<'a> OfKey<'a> {
    /// Adds entries of a map after a map key; the last map key if there are more.
    fn map_page(
        self,
        spare: &mut Spare<'a>,
        after: Option<&[u8]>,
        max_bytes: usize,
        page: &mut Page,
    ) -> Result<Option<Vec<u8>>> {
        let since = (page.rows, page.bytes);
        let first = [self.key, after.unwrap_or_default()].concat();
        let from = if after.is_some() { Bound::Excluded(&first[..]) } else { Bound::Included(&first[..]) };
        let place = (self.used.id, self.group);
        let mut cursor = self.view.cursor_again(spare.take(), place, from, successor(self.key).as_deref())?;
        let mut last = Vec::new();
        while let Some((entry, value)) = cursor.entry()? {
            // Without a successor there are keys of others.
            let Some(sub) = entry.strip_prefix(self.key) else { break };
            if let Some(value) = self.used.alive(value)? {
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

    /// The head of a list, or a chunk of it.
    fn list_entry(self, tag: u8, chunk: Option<u64>) -> Result<Option<Vec<u8>>> {
        let mut entry = Vec::new();
        push_key(&mut entry, (tag, self.key, chunk));
        let found = self.view.look_up(self.used.id, std::iter::once((self.group, &entry[..])))?;
        Ok(found.get(0).map(<[u8]>::to_vec))
    }

    /// Adds elements of a list from a place on; the place after them if there are more.
    fn list_page(
        self,
        head: Option<&[u8]>,
        from: ListPlace,
        max_bytes: usize,
        page: &mut Page,
    ) -> Result<Option<ListPlace>> {
        let head = ListHeader::read(head, self.used.layout())?;
        let since = (page.rows, page.bytes);
        let ListPlace { mut count, mut to_pass, chunk: first, passed: mut skipped } = from;
        let from_start = first <= head.first && skipped == 0;
        // All of its elements, those that have ended too.
        let mut all = 0;
        // The tail is the chunk after the last one.
        for chunk in first.max(head.first)..=head.chunks {
            let found;
            let bytes = if chunk == head.chunks {
                head.tail
            } else {
                found = self.list_entry(CHUNKS, Some(chunk))?.ok_or_else(|| bad_list("a chunk of it is missing"))?;
                &found
            };
            for (i, element) in elements(bytes).enumerate().skip(usize::try_from(skipped).unwrap_or(usize::MAX)) {
                all += 1;
                let Some((ends, element)) = self.used.alive_until(element?)? else { continue };
                if to_pass > 0 {
                    to_pass -= 1;
                } else if !page.has_room(since, max_bytes, element.len()) {
                    return Ok(Some(ListPlace { count, to_pass: 0, chunk, passed: i as u64 }));
                } else {
                    let ends = ends.filter(|_| page.with_ends);
                    page.push(ends.as_ref().map(|ends| &ends[..]), element);
                    count += 1;
                }
            }
            skipped = 0;
        }
        if from_start && all != head.elements {
            return Err(bad_list("it has not as many elements as it says"));
        }
        Ok(None)
    }
}
