//! A state of lists by key.
//!
//! Owns: appends, reads and replacement of many lists at once, in Arrow.
//! Does not own: how a list lies in entries (`states::list`), what is durable (`core`), how keys and elements are encoded
//! (`columns::typed`), the walk (`scan`).
//!
//! Invariants, beside those of the layout:
//! 1. what a read returns of a list is all of it at one moment.

use super::core::{Core, Entered, look_up};
use super::lifetime::{Lifetime, Moment};
use super::scan::{Scan, Walk};
use crate::states::Place;
use crate::states::catalog::{Declaration, Kind};
use crate::states::distinct::Distinct;
use crate::states::layers::Layers;
use crate::states::list::{CHUNKS, HEAD, ListHeader, ListKeys, ListUpdate, bad_list, elements as elements_of};
use crate::states::look_up::Values;
use crate::states::scan::Found;
use crate::states::sweep::any_of;
use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, Int64Array, ListArray, RecordBatch};
use arrow_buffer::{BooleanBuffer, NullBuffer, OffsetBuffer};
use arrow_schema::{DataType, Field, FieldRef};
use fastchangelog_columns::codec::EncodedKeys;
use fastchangelog_columns::type_text;
use fastchangelog_columns::typed::{KeyRange, TypedEntries};
use fastchangelog_format::check_records;
use fastchangelog_format::error::{Error, Result};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// A declared state of lists by key. Cheap to clone; any thread may use it.
#[derive(Clone)]
pub struct ListState {
    core: Arc<Core>,
    place: Place,
    types: Arc<TypedEntries>,
    item: FieldRef,
    lifetime: Lifetime,
}

/// What lists have, in entries as they are at one moment.
struct Parts {
    heads: Values,
    /// The chunks of all of them, one list after the other.
    chunks: Values,
    at: Moment,
}

impl ListState {
    pub(super) fn declare(
        core: &Arc<Core>,
        name: &str,
        key: &DataType,
        value: &DataType,
        ttl: Option<Duration>,
    ) -> Result<Self> {
        let (types, lifetime) = (TypedEntries::new(key, value)?, Lifetime::of(ttl)?);
        let item = Arc::new(Field::new("item", value.clone(), true));
        let (key, value, ttl) = (&*type_text(key), &*format!("array<{}>", type_text(value)), lifetime.is_bounded());
        let place = core.declare(Declaration { name, kind: Kind::List, key, value, ttl })?;
        Ok(Self { core: Arc::clone(core), place, types: Arc::new(types), item, lifetime })
    }

    /// The types of keys and elements.
    pub fn types(&self) -> &TypedEntries {
        &self.types
    }

    /// The lists of `keys`, one row each; null where there is none.
    pub fn get(&self, keys: &ArrayRef) -> Result<ArrayRef> {
        let keys = self.types.encode_keys(keys)?;
        self.lists((0..keys.len()).map(|i| keys.key(i)))
    }

    /// How many elements each list has. Of elements that end all are read, of others none.
    pub fn lengths(&self, keys: &ArrayRef) -> Result<Int64Array> {
        let keys = self.types.encode_keys(keys)?;
        let keys = (0..keys.len()).map(|i| keys.key(i));
        if self.lifetime.is_bounded() {
            let parts = self.parts(keys)?;
            let lengths = self.elements(&parts)?.1;
            return Ok(lengths
                .into_iter()
                .map(|length| i64::try_from(length).unwrap_or(i64::MAX))
                .collect::<Vec<_>>()
                .into());
        }
        let heads = self.heads(keys)?;
        let length = |head| Ok(i64::try_from(self.read_head(head)?.elements).unwrap_or(i64::MAX));
        Ok(heads.iter().map(length).collect::<Result<Vec<i64>>>()?.into())
    }

    /// Adds one element to the list of each key, in the order of rows. All or nothing.
    pub fn append(&self, keys: &ArrayRef, elements: &ArrayRef) -> Result<()> {
        let keys = self.types.encode_keys(keys)?;
        if elements.len() != keys.len() {
            return Err(Error::invalid(format!(
                "{} keys and {} elements: a batch needs one of each",
                keys.len(),
                elements.len()
            )));
        }
        self.write(&keys, Some(elements), |row| Some(row..row + 1), false)
    }

    /// Adds all elements of a list to the list of each key, in the order of rows; of a null, none. All or nothing.
    pub fn extend(&self, keys: &ArrayRef, lists: &ArrayRef) -> Result<()> {
        self.write_lists(keys, lists, false)
    }

    /// Replaces the list of each key; a null or empty one removes it, and of equal keys the last one counts. All or
    /// nothing.
    pub fn put(&self, keys: &ArrayRef, lists: &ArrayRef) -> Result<()> {
        self.write_lists(keys, lists, true)
    }

    /// Removes lists; one that is not there is fine. All or nothing.
    pub fn clear(&self, keys: &ArrayRef) -> Result<()> {
        let keys = self.types.encode_keys(keys)?;
        self.write(&keys, None, |_| None, true)
    }

    /// Keys and lists of a range, in order of keys, `rows` at a time.
    pub fn scan(&self, range: KeyRange, rows: usize) -> Scan {
        let list = DataType::List(Arc::clone(&self.item));
        let columns = [("key", self.types.key_type()), ("value", &list)];
        let own = self.clone();
        let decode = move |found: &Found, schema: &_| {
            let keys = || found.keys().map(|key| &key[1..]);
            let (keys, lists) = (own.types.decode_keys(keys())?, own.lists(keys())?);
            let batch = RecordBatch::try_new(Arc::clone(schema), vec![keys, Arc::clone(&lists)])?;
            // A list may have been removed since its head was read.
            match lists.nulls() {
                Some(there) => Ok(arrow_select::filter::filter_record_batch(&batch, &there.inner().clone().into())?),
                None => Ok(batch),
            }
        };
        let before = |tag: u8, key: &[u8]| [&[tag], key].concat();
        let to = range.to.map_or_else(|| before(CHUNKS, &[]), |to| before(HEAD, &to));
        let range = KeyRange { from: before(HEAD, &range.from), to: Some(to) };
        Scan::new(Walk::new(&self.core, self.place, range, Lifetime::UNBOUNDED), rows, &columns, Box::new(decode))
    }

    fn heads<'a>(&self, keys: impl ExactSizeIterator<Item = &'a [u8]>) -> Result<Values> {
        let keys = ListKeys::of(keys.map(|key| (HEAD, key, None)));
        self.core.read(|layers, shard| look_up(&layers, shard, self.place, keys.iter()))
    }

    fn parts<'a>(&self, keys: impl ExactSizeIterator<Item = &'a [u8]> + Clone) -> Result<Parts> {
        let at = self.lifetime.now(&self.core)?;
        let heads = ListKeys::of(keys.clone().map(|key| (HEAD, key, None)));
        // Under one lock: what a writer does between two looks is not seen (invariant 1).
        self.core.read(|layers, shard| {
            let heads = look_up(&layers, shard, self.place, heads.iter())?;
            let mut parts = Vec::new();
            for (key, head) in keys.clone().zip(heads.iter()) {
                let head = self.read_head(head)?;
                parts.extend((head.first..head.chunks).map(|chunk| (CHUNKS, key, Some(chunk))));
            }
            let parts = ListKeys::of(parts.into_iter());
            let chunks = look_up(&layers, shard, self.place, parts.iter())?;
            Ok(Parts { heads, chunks, at })
        })
    }

    /// The elements of all lists that are there, and how many each list has.
    fn elements<'p>(&self, parts: &'p Parts) -> Result<(Vec<&'p [u8]>, Vec<usize>)> {
        let (mut found, mut lengths) = (Vec::new(), Vec::with_capacity(parts.heads.len()));
        let mut chunks = parts.chunks.iter();
        for head in parts.heads.iter() {
            let (before, head) = (found.len(), self.read_head(head)?);
            // Those that have ended, too.
            let mut all = 0;
            let mut take = |part: &'p [u8]| {
                elements_of(part).try_for_each(|element| {
                    all += 1;
                    found.extend(parts.at.alive(element?)?);
                    Ok::<_, Error>(())
                })
            };
            for _ in head.first..head.chunks {
                take(chunks.next().flatten().ok_or_else(|| bad_list("a chunk of it is missing"))?)?;
            }
            take(head.tail)?;
            if all != head.elements {
                return Err(bad_list("it has not as many elements as it says"));
            }
            lengths.push(found.len() - before);
        }
        Ok((found, lengths))
    }

    fn lists<'a>(&self, keys: impl ExactSizeIterator<Item = &'a [u8]> + Clone) -> Result<ArrayRef> {
        let parts = self.parts(keys)?;
        let (elements, lengths) = self.elements(&parts)?;
        if i32::try_from(elements.len()).is_err() {
            return Err(
                Error::invalid("the lists have more than 2 billion elements").with_remedy("read fewer keys at once")
            );
        }
        let there = NullBuffer::new(lengths.iter().map(|length| *length > 0).collect::<BooleanBuffer>());
        let values = self.types.decode_values(elements.into_iter().map(Some))?;
        let offsets = OffsetBuffer::from_lengths(lengths);
        let nulls = (there.null_count() > 0).then_some(there);
        Ok(Arc::new(ListArray::try_new(Arc::clone(&self.item), offsets, values, nulls)?))
    }

    fn write_lists(&self, keys: &ArrayRef, lists: &ArrayRef, replace: bool) -> Result<()> {
        let keys = self.types.encode_keys(keys)?;
        let Some(lists) = lists.as_list_opt::<i32>() else {
            return Err(Error::invalid(format!("lists are needed, not {}", type_text(lists.data_type()))));
        };
        if lists.len() != keys.len() {
            return Err(Error::invalid(format!(
                "{} keys and {} lists: a batch needs one of each",
                keys.len(),
                lists.len()
            )));
        }
        let offsets = lists.value_offsets();
        let (from, to) = (offset(offsets[0]), offset(offsets[lists.len()]));
        let elements = lists.values().slice(from, to - from);
        let of_row = |i: usize| lists.is_valid(i).then(|| offset(offsets[i]) - from..offset(offsets[i + 1]) - from);
        self.write(&keys, Some(&elements), of_row, replace)
    }

    /// Puts `elements[of_row(i)]` behind the list of each `keys[i]`, or in its place.
    fn write(
        &self,
        keys: &EncodedKeys,
        elements: Option<&ArrayRef>,
        of_row: impl Fn(usize) -> Option<Range<usize>>,
        replace: bool,
    ) -> Result<()> {
        let elements = elements.map(|elements| self.types.encode_values(elements, elements.len())).transpose()?;
        let distinct = Distinct::of(&keys.hashes(), |row| keys.key(row));
        let key_of = |place: usize| keys.key(distinct.firsts[place]);
        let admission = self.core.admit_change()?;
        // Before the lock: the clock may be the program's.
        let at = self.lifetime.now(&self.core)?;
        let _exclusive = self.core.exclusive(&admission);
        let heads = self.heads((0..distinct.firsts.len()).map(key_of))?;
        let mut updates = Vec::with_capacity(distinct.firsts.len());
        for head in heads.iter() {
            updates.push(ListUpdate::new(self.read_head(head)?, replace));
        }
        for (row, &place) in distinct.of_row.iter().enumerate() {
            let update = &mut updates[place];
            if replace {
                update.clear();
            }
            for i in of_row(row).unwrap_or_default() {
                let element = elements.as_ref().and_then(|elements| elements.value(i));
                let element =
                    element.ok_or_else(|| Error::invalid("an element is null").with_remedy("leave it out"))?;
                update.push(at.prefix(), element);
            }
        }
        let heads: Vec<Option<Vec<u8>>> =
            updates.iter_mut().map(|update| update.finish(self.lifetime.layout())).collect();
        let (mut changes, mut bytes) = (0, 0);
        for (place, (update, head)) in updates.iter().zip(&heads).enumerate() {
            let (more_changes, more_bytes) = update.size(key_of(place), head.as_deref());
            changes += more_changes;
            bytes += more_bytes;
        }
        check_records(bytes, updates.iter().enumerate().map(|(place, update)| update.longest(key_of(place))))?;
        let change = |layers: &mut Layers| {
            for (place, (update, head)) in updates.iter().zip(&heads).enumerate() {
                update.change(layers, self.place, key_of(place), head.as_deref());
            }
        };
        if elements.is_none() || updates.is_empty() {
            return self.core.change(&admission, changes, bytes, change);
        }
        let one = key_of(any_of(updates.len(), key_of));
        self.core.write(&admission, self.place, at.ends(), Entered { changes, bytes, one }, change)
    }

    fn read_head<'b>(&self, bytes: Option<&'b [u8]>) -> Result<ListHeader<'b>> {
        ListHeader::read(bytes, self.lifetime.layout())
    }
}

#[expect(clippy::cast_sign_loss, reason = "Arrow offsets are not negative")]
fn offset(value: i32) -> usize {
    value as usize
}

#[cfg(test)]
#[path = "list_tests.rs"]
mod tests;
