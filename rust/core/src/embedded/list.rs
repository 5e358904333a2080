//! A state of lists by key.
//!
//! Owns: appends, reads and replacement of many lists at once, in Arrow; how a list lies in entries.
//! Does not own: what is durable (`core`), how keys and elements are encoded (`columns::typed`), the walk (`scan`).
//!
//! ```text
//! 0 | key            varint elements in all | varint chunks | the newest elements: the tail
//! 1 | key | u64 be   the elements of chunk 0, 1, … in order
//! an element         varint length | its bytes
//! ```
//!
//! An append reads and writes the tail. A tail that has grown beyond [`TAIL`] bytes becomes chunks, which nothing changes any
//! more. So a short list is one entry, a long one has no small chunks, and nothing is ever joined later.
//!
//! Invariants:
//! 1. a list without elements does not exist;
//! 2. an append writes at most the tail and what it brings; it reads no chunk;
//! 3. a tail has at most [`TAIL`] bytes, a chunk at least one element and, of more than one, at most [`CHUNK`] bytes;
//! 4. what a read returns of a list is all of it at one moment;
//! 5. the removal of many chunks is one change.

use super::core::Core;
use super::look_up::{Values, look_up};
use super::net::FEW_KEYS;
use super::scan::{Found, Scan, Walk};
use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, Int64Array, ListArray, RecordBatch};
use arrow_buffer::{BooleanBuffer, NullBuffer, OffsetBuffer};
use arrow_schema::{DataType, Field, FieldRef};
use fastchangelog_columns::codec::EncodedKeys;
use fastchangelog_columns::type_text;
use fastchangelog_columns::typed::{KeyRange, TypedEntries};
use fastchangelog_format::error::{Error, Result};
use fastchangelog_format::model::StateId;
use fastchangelog_format::wire::{Reader, put_bytes, put_varint};
use hashbrown::HashTable;
use std::ops::Range;
use std::sync::Arc;

/// Most bytes of a tail: what an append to a list rewrites. A checkpoint's log holds the tail of each list that was
/// appended to, half of this on average; a read takes one look-up for this many bytes.
const TAIL: usize = 512;
/// Most bytes of a chunk of more than one element.
const CHUNK: usize = 64 << 10;
/// Most bytes of an element's length.
const LENGTH: usize = 5;
/// First bytes of the keys of heads and of chunks. All heads come first, so that a scan meets no chunk.
const HEAD: u8 = 0;
const CHUNKS: u8 = 1;

/// A declared state of lists by key. Cheap to clone; any thread may use it.
#[derive(Clone)]
pub struct ListState {
    core: Arc<Core>,
    id: StateId,
    types: Arc<TypedEntries>,
    item: FieldRef,
}

/// The entry that a list begins with.
#[derive(Debug, Clone, Copy, Default)]
struct ListHeader<'a> {
    elements: u64,
    chunks: u64,
    tail: &'a [u8],
}

impl<'a> ListHeader<'a> {
    fn read(bytes: Option<&'a [u8]>) -> Result<Self> {
        let Some(bytes) = bytes else { return Ok(Self::default()) };
        let mut reader = Reader::new("a list", 0, bytes);
        let elements = reader.varint("the number of elements")?;
        let chunks = reader.varint("the number of chunks")?;
        Ok(Self { elements, chunks, tail: reader.take(reader.remaining(), "the tail")? })
    }
}

/// A list that is being changed.
#[derive(Debug, Default)]
struct ListUpdate {
    elements: u64,
    chunks: u64,
    tail: Vec<u8>,
    /// New chunks, and the number of chunks before.
    spilled: Vec<(u64, Vec<u8>)>,
    had_chunks: u64,
}

impl ListUpdate {
    fn new(head: ListHeader<'_>, replace: bool) -> Self {
        let mut update = Self { had_chunks: head.chunks, ..Self::default() };
        if !replace {
            (update.elements, update.chunks, update.tail) = (head.elements, head.chunks, head.tail.to_vec());
        }
        update
    }

    fn push(&mut self, element: &[u8]) {
        // A tail above the limit waits for elements of the same call, up to a whole chunk.
        if !self.tail.is_empty() && self.tail.len() + element.len() + LENGTH > CHUNK {
            self.spill();
        }
        put_bytes(&mut self.tail, element);
        self.elements += 1;
    }

    fn spill(&mut self) {
        self.spilled.push((self.chunks, std::mem::take(&mut self.tail)));
        self.chunks += 1;
    }

    /// Chunks that were there and are not any more.
    fn gone(&self) -> Range<u64> {
        self.chunks.min(self.had_chunks)..self.had_chunks
    }

    /// True if all chunks are removed by one change. Only a replaced list loses chunks; what it has left is new.
    fn clears(&self) -> bool {
        let gone = self.gone();
        gone.end - gone.start > FEW_KEYS as u64
    }

    /// The head's bytes; none for a list without elements.
    fn finish(&mut self) -> Option<Vec<u8>> {
        if self.tail.len() > TAIL {
            self.spill();
        }
        (self.elements > 0).then(|| {
            let mut head = Vec::with_capacity(self.tail.len() + 4);
            put_varint(&mut head, self.elements);
            put_varint(&mut head, self.chunks);
            head.extend_from_slice(&self.tail);
            head
        })
    }
}

/// Distinct keys in the order of their first rows, and which of them each row has.
struct Distinct {
    firsts: Vec<usize>,
    of_row: Vec<usize>,
}

impl Distinct {
    fn of(keys: &EncodedKeys) -> Self {
        let hashes = keys.hashes();
        let mut index: HashTable<usize> = HashTable::with_capacity(keys.len());
        let (mut firsts, mut of_row) = (Vec::new(), Vec::with_capacity(keys.len()));
        for (row, &hash) in hashes.iter().enumerate() {
            let same = |place: &usize| keys.key(firsts[*place]) == keys.key(row);
            let place = match index.find(hash, same) {
                Some(place) => *place,
                None => {
                    index.insert_unique(hash, firsts.len(), |place| hashes[firsts[*place]]);
                    firsts.push(row);
                    firsts.len() - 1
                }
            };
            of_row.push(place);
        }
        Self { firsts, of_row }
    }
}

impl ListState {
    pub(super) fn declare(core: &Arc<Core>, name: &str, key: &DataType, value: &DataType) -> Result<Self> {
        let types = TypedEntries::new(key, value)?;
        let id = core.declare(name, "list", &type_text(key), &format!("array<{}>", type_text(value)))?;
        let item = Arc::new(Field::new("item", value.clone(), true));
        Ok(Self { core: Arc::clone(core), id, types: Arc::new(types), item })
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

    /// How many elements each list has.
    pub fn lengths(&self, keys: &ArrayRef) -> Result<Int64Array> {
        let keys = self.types.encode_keys(keys)?;
        let heads = self.heads((0..keys.len()).map(|i| keys.key(i)))?;
        let length = |head| Ok(i64::try_from(ListHeader::read(head)?.elements).unwrap_or(i64::MAX));
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
        Scan::new(Walk::new(&self.core, self.id, range), rows, &columns, Box::new(decode))
    }

    fn heads<'a>(&self, keys: impl ExactSizeIterator<Item = &'a [u8]>) -> Result<Values> {
        let keys = Flat::of(keys.map(|key| (HEAD, key, None)));
        self.core.read(|layers, shard| look_up(&layers, shard, self.id, keys.iter()))
    }

    fn lists<'a>(&self, keys: impl ExactSizeIterator<Item = &'a [u8]> + Clone) -> Result<ArrayRef> {
        let heads = Flat::of(keys.clone().map(|key| (HEAD, key, None)));
        // Under one lock: what a writer does between two looks is not seen (invariant 4).
        let (heads, chunks) = self.core.read(|layers, shard| {
            let heads = look_up(&layers, shard, self.id, heads.iter())?;
            let mut parts = Vec::new();
            for (key, head) in keys.clone().zip(heads.iter()) {
                parts.extend((0..ListHeader::read(head)?.chunks).map(|chunk| (CHUNKS, key, Some(chunk))));
            }
            let parts = Flat::of(parts.into_iter());
            let chunks = look_up(&layers, shard, self.id, parts.iter())?;
            Ok((heads, chunks))
        })?;
        let mut elements = Vec::new();
        let mut lengths = Vec::with_capacity(keys.len());
        let mut next = chunks.iter();
        for head in heads.iter() {
            let (before, head) = (elements.len(), ListHeader::read(head)?);
            for _ in 0..head.chunks {
                let chunk = next.next().flatten().ok_or_else(|| bad_list("a chunk of it is missing"))?;
                take_apart(chunk, &mut elements)?;
            }
            take_apart(head.tail, &mut elements)?;
            if (elements.len() - before) as u64 != head.elements {
                return Err(bad_list("it has not as many elements as it says"));
            }
            lengths.push(elements.len() - before);
        }
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
        let distinct = Distinct::of(keys);
        let key_of = |place: usize| keys.key(distinct.firsts[place]);
        let _exclusive = self.core.exclusive();
        let heads = self.heads((0..distinct.firsts.len()).map(key_of))?;
        let mut updates = Vec::with_capacity(distinct.firsts.len());
        for head in heads.iter() {
            updates.push(ListUpdate::new(ListHeader::read(head)?, replace));
        }
        for (row, &place) in distinct.of_row.iter().enumerate() {
            let update = &mut updates[place];
            if replace {
                *update = ListUpdate { had_chunks: update.had_chunks, ..ListUpdate::default() };
            }
            for i in of_row(row).unwrap_or_default() {
                let element = elements.as_ref().and_then(|elements| elements.value(i));
                update.push(element.ok_or_else(|| Error::invalid("an element is null").with_remedy("leave it out"))?);
            }
        }
        let heads: Vec<Option<Vec<u8>>> = updates.iter_mut().map(ListUpdate::finish).collect();
        let (mut changes, mut bytes) = (0, 0);
        for (place, (update, head)) in updates.iter().zip(&heads).enumerate() {
            let gone = if update.clears() { 1 } else { update.gone().count() };
            changes += 1 + update.spilled.len() + gone;
            bytes += (1 + key_of(place).len()) * (1 + update.spilled.len() + gone)
                + head.as_ref().map_or(0, Vec::len)
                + update.spilled.iter().map(|(_, chunk)| chunk.len() + size_of::<u64>()).sum::<usize>();
        }
        self.core.change(changes, bytes, |layers| {
            let mut key = Vec::new();
            for (place, (update, head)) in updates.iter().zip(&heads).enumerate() {
                let gone = if update.clears() {
                    push_key(&mut key, (CHUNKS, key_of(place), None));
                    layers.clear(self.id, std::iter::once(&key[..]));
                    0..0
                } else {
                    update.gone()
                };
                let chunks = update.spilled.iter().map(|(chunk, bytes)| (*chunk, Some(&bytes[..])));
                for (chunk, bytes) in chunks.chain(gone.map(|chunk| (chunk, None))) {
                    push_key(&mut key, (CHUNKS, key_of(place), Some(chunk)));
                    layers.put(self.id, &key, bytes);
                }
                push_key(&mut key, (HEAD, key_of(place), None));
                layers.put(self.id, &key, head.as_deref());
            }
        })
    }
}

/// Keys of heads and chunks, in flat memory.
struct Flat {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

type ListPart<'a> = (u8, &'a [u8], Option<u64>);

fn push_key(out: &mut Vec<u8>, (tag, key, chunk): ListPart<'_>) {
    out.clear();
    append_key(out, (tag, key, chunk));
}

fn append_key(out: &mut Vec<u8>, (tag, key, chunk): ListPart<'_>) {
    out.push(tag);
    out.extend_from_slice(key);
    if let Some(chunk) = chunk {
        out.extend_from_slice(&chunk.to_be_bytes());
    }
}

impl Flat {
    fn of<'a>(parts: impl ExactSizeIterator<Item = ListPart<'a>>) -> Self {
        let mut made = Self { bytes: Vec::new(), ends: Vec::with_capacity(parts.len()) };
        for part in parts {
            append_key(&mut made.bytes, part);
            made.ends.push(made.bytes.len());
        }
        made
    }

    fn iter(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        (0..self.ends.len()).map(|i| &self.bytes[if i == 0 { 0 } else { self.ends[i - 1] }..self.ends[i]])
    }
}

fn take_apart<'a>(bytes: &'a [u8], elements: &mut Vec<&'a [u8]>) -> Result<()> {
    let mut reader = Reader::new("a list", 0, bytes);
    while reader.remaining() > 0 {
        elements.push(reader.bytes("an element")?);
    }
    Ok(())
}

fn bad_list(what: &str) -> Error {
    Error::corrupt("a list", 0, what)
}

#[expect(clippy::cast_sign_loss, reason = "Arrow offsets are not negative")]
fn offset(value: i32) -> usize {
    value as usize
}

#[cfg(test)]
#[path = "list_tests.rs"]
mod tests;
