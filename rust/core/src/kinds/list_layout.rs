//! How a list lies in entries.
//!
//! Owns: the layout of lists, and what a change of a list is in entries.
//! Does not own: what an element is, which lists are read and changed (`list`).
//!
//! ```text
//! 0 | key            varint elements in all | varint chunks | the newest elements: the tail
//! 1 | key | u64 be   the elements of chunk 0, 1, … in order
//! an element         varint length | its bytes
//! ```
//!
//! In a state whose elements end (`ttl`) the first chunks may be removed, and chunks between may have become empty:
//!
//! ```text
//! 0 | key            varint elements in all | varint chunks | varint first chunk that is there | tail
//! ```
//!
//! An append reads and writes the tail. A tail that has grown beyond [`TAIL`] bytes becomes chunks, which no append changes any
//! more. So a short list is one entry, a long one has no small chunks, and nothing is ever joined later.
//!
//! Invariants:
//! 1. a list without elements does not exist;
//! 2. an append writes at most the tail and what it brings; it reads no chunk;
//! 3. a tail has at most [`TAIL`] bytes, a chunk, when it is made, at least one element and, of more than one, at most
//!    [`CHUNK`] bytes;
//! 4. the removal of many chunks is one change.

use crate::states::layers::Layers;
use crate::states::{FEW_KEYS, Place};
use fastchangelog_format::error::{Error, Result};
use fastchangelog_format::wire::{Reader, put_varint};
use std::ops::Range;

/// Most bytes of a tail: what an append to a list rewrites. A version's log holds the tail of each list that was
/// appended to, half of this on average; a read takes one look-up for this many bytes.
pub(crate) const TAIL: usize = 512;
/// Most bytes of a chunk of more than one element.
pub(crate) const CHUNK: usize = 64 << 10;
/// Most bytes of an element's length.
const LENGTH: usize = 5;
/// First bytes of the keys of heads and of chunks. All heads come first, so that a scan meets no chunk.
pub(crate) const HEAD: u8 = 0;
pub(crate) const CHUNKS: u8 = 1;

/// The two layouts of heads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ListLayout {
    /// Elements stay until they are removed.
    Lasting,
    /// Elements end.
    Ending,
}

/// The entry that a list begins with.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ListHeader<'a> {
    /// Elements in all, those that have ended too.
    pub(crate) elements: u64,
    /// The number of the first chunk, and of the one after the last.
    pub(crate) first: u64,
    pub(crate) chunks: u64,
    pub(crate) tail: &'a [u8],
}

impl<'a> ListHeader<'a> {
    pub(crate) fn read(bytes: Option<&'a [u8]>, layout: ListLayout) -> Result<Self> {
        let Some(bytes) = bytes else { return Ok(Self::default()) };
        let mut reader = Reader::new("a list", 0, bytes);
        let elements = reader.varint("the number of elements")?;
        let chunks = reader.varint("the number of chunks")?;
        let first = if layout == ListLayout::Ending { reader.varint("the number of the first chunk")? } else { 0 };
        if first > chunks {
            return Err(bad_list("its first chunk is after the last one"));
        }
        Ok(Self { elements, first, chunks, tail: reader.take(reader.remaining(), "the tail")? })
    }

    /// Its bytes; none for a list without elements.
    pub(crate) fn write(self, layout: ListLayout) -> Option<Vec<u8>> {
        (self.elements > 0).then(|| {
            let mut head = Vec::with_capacity(self.tail.len() + 4);
            put_varint(&mut head, self.elements);
            put_varint(&mut head, self.chunks);
            if layout == ListLayout::Ending {
                put_varint(&mut head, self.first);
            }
            head.extend_from_slice(self.tail);
            head
        })
    }
}

/// A list that is being changed.
#[derive(Debug, Default)]
pub(crate) struct ListUpdate {
    elements: u64,
    first: u64,
    chunks: u64,
    tail: Vec<u8>,
    /// New chunks, and the numbers of chunks before.
    spilled: Vec<(u64, Vec<u8>)>,
    had: Range<u64>,
}

impl ListUpdate {
    pub(crate) fn new(head: ListHeader<'_>, replace: bool) -> Self {
        let mut update = Self { had: head.first..head.chunks, ..Self::default() };
        if !replace {
            (update.elements, update.tail) = (head.elements, head.tail.to_vec());
            (update.first, update.chunks) = (head.first, head.chunks);
        }
        update
    }

    /// Removes all elements.
    pub(crate) fn clear(&mut self) {
        *self = Self { had: self.had.clone(), ..Self::default() };
    }

    /// Adds an element, the bytes of which are those of `prefix` and `element`.
    pub(crate) fn push(&mut self, prefix: &[u8], element: &[u8]) {
        let bytes = prefix.len() + element.len();
        // A tail above the limit waits for elements of the same call, up to a whole chunk.
        if !self.tail.is_empty() && self.tail.len() + bytes + LENGTH > CHUNK {
            self.spill();
        }
        put_varint(&mut self.tail, bytes as u64);
        self.tail.extend_from_slice(prefix);
        self.tail.extend_from_slice(element);
        self.elements += 1;
    }

    fn spill(&mut self) {
        self.spilled.push((self.chunks, std::mem::take(&mut self.tail)));
        self.chunks += 1;
    }

    /// Chunks that were there and are not any more.
    fn gone(&self) -> Range<u64> {
        self.chunks.clamp(self.had.start, self.had.end)..self.had.end
    }

    /// True if all chunks are removed by one change. Only a replaced list loses chunks; what it has left is new.
    fn clears(&self) -> bool {
        let gone = self.gone();
        gone.end - gone.start > FEW_KEYS as u64
    }

    /// The head's bytes; none for a list without elements.
    pub(crate) fn finish(&mut self, layout: ListLayout) -> Option<Vec<u8>> {
        if self.tail.len() > TAIL {
            self.spill();
        }
        let Self { elements, first, chunks, .. } = *self;
        ListHeader { elements, first, chunks, tail: &self.tail }.write(layout)
    }

    /// The number of changes that make it, with this head, and about their bytes.
    pub(crate) fn size(&self, key: &[u8], head: Option<&[u8]>) -> (usize, usize) {
        let gone = if self.clears() { 1 } else { self.gone().count() };
        let changes = 1 + self.spilled.len() + gone;
        let chunks = self.spilled.iter().map(|(_, chunk)| chunk.len() + size_of::<u64>()).sum::<usize>();
        (changes, (1 + key.len()) * changes + head.map_or(0, <[u8]>::len) + chunks)
    }

    /// Makes it the list of `key`, with this head.
    pub(crate) fn change(&self, layers: &mut Layers, place: Place, key: &[u8], head: Option<&[u8]>) {
        let mut entry = Vec::with_capacity(key.len() + 1 + size_of::<u64>());
        let gone = if self.clears() {
            push_key(&mut entry, (CHUNKS, key, None));
            layers.clear(place, std::iter::once(&entry[..]));
            0..0
        } else {
            self.gone()
        };
        let chunks = self.spilled.iter().map(|(chunk, bytes)| (*chunk, Some(&bytes[..])));
        for (chunk, bytes) in chunks.chain(gone.map(|chunk| (chunk, None))) {
            push_key(&mut entry, (CHUNKS, key, Some(chunk)));
            layers.put(place, &entry, bytes);
        }
        push_key(&mut entry, (HEAD, key, None));
        layers.put(place, &entry, head);
    }
}

/// First byte, key, and the number of a chunk.
pub(crate) type ListPart<'a> = (u8, &'a [u8], Option<u64>);

/// Makes `out` the key of an entry of a list.
pub(crate) fn push_key(out: &mut Vec<u8>, part: ListPart<'_>) {
    out.clear();
    append_key(out, part);
}

fn append_key(out: &mut Vec<u8>, (tag, key, chunk): ListPart<'_>) {
    out.push(tag);
    out.extend_from_slice(key);
    if let Some(chunk) = chunk {
        out.extend_from_slice(&chunk.to_be_bytes());
    }
}

/// Keys of heads and chunks, in flat memory.
pub(crate) struct ListKeys {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl ListKeys {
    pub(crate) fn of<'a>(parts: impl ExactSizeIterator<Item = ListPart<'a>>) -> Self {
        let mut made = Self { bytes: Vec::new(), ends: Vec::with_capacity(parts.len()) };
        for part in parts {
            append_key(&mut made.bytes, part);
            made.ends.push(made.bytes.len());
        }
        made
    }

    pub(crate) fn iter(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        (0..self.ends.len()).map(|i| &self.bytes[if i == 0 { 0 } else { self.ends[i - 1] }..self.ends[i]])
    }
}

/// The elements of a chunk or a tail, in order; after an error there are no more.
pub(crate) fn elements(bytes: &[u8]) -> impl Iterator<Item = Result<&[u8]>> {
    let (mut reader, mut failed) = (Reader::new("a list", 0, bytes), false);
    std::iter::from_fn(move || {
        let element = (reader.remaining() > 0 && !failed).then(|| reader.bytes("an element"))?;
        failed = element.is_err();
        Some(element)
    })
}

/// A list whose entries do not fit together.
pub(crate) fn bad_list(what: &str) -> Error {
    Error::corrupt("a list", 0, what)
}

#[cfg(test)]
#[path = "list_layout_tests.rs"]
mod tests;
