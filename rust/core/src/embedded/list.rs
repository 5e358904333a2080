//! A state of lists by key.
//!
//! Owns: its declaration; appends, reads and replacement of many lists at once, in Arrow.
//! Does not own: entries (`kinds::list`), what is durable (`core`), encodings (`columns`), the walk (`scan`).

use super::codec::{StateTypes, ValueTypes};
use super::member::Member;
use super::scan::{Scan, Walk};
use super::{EmbeddedState, GROUP};
use crate::kinds::Kind;
use crate::kinds::list::{Lists, heads};
use crate::kinds::list_layout::{CHUNKS, HEAD, ListHeader};
use crate::kinds::write::{APPEND, Bytes, CLEAR, Changes, Ops, PUT};
use crate::states::scan::Found;
use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, Int64Array, ListArray, RecordBatch};
use arrow_buffer::{BooleanBuffer, NullBuffer, OffsetBuffer};
use arrow_schema::{DataType, Field, FieldRef};
use fastchangelog_columns::codec::EncodedKeys;
use fastchangelog_columns::type_text;
use fastchangelog_columns::typed::{EncodedValues, KeyRange, TypedEntries};
use fastchangelog_format::error::{Error, Result};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// A declared state of lists by key. Cheap to clone; any thread may use it.
#[derive(Clone)]
pub struct ListState {
    member: Member,
    types: Arc<StateTypes>,
    item: FieldRef,
}

impl EmbeddedState {
    /// A state of lists by key, with elements of the type `value`; `ttl`: of each element.
    pub fn list_state(&self, name: &str, key: &DataType, value: &DataType, ttl: Option<Duration>) -> Result<ListState> {
        let item = Arc::new(Field::new("item", value.clone(), true));
        let (member, types) = ValueTypes { key, value, ttl }.declare(&self.core, name, Kind::List, None)?;
        Ok(ListState { member, types: Arc::new(types), item })
    }
}

impl ListState {
    /// The types of keys and elements.
    pub fn types(&self) -> &TypedEntries {
        self.types.keys()
    }

    /// The lists of `keys`, one row each; null where there is none.
    pub fn get(&self, keys: &ArrayRef) -> Result<ArrayRef> {
        let keys = self.types.encode_keys(keys)?;
        self.lists((0..keys.len()).map(|i| keys.key(i)))
    }

    /// How many elements each list has. Reads all elements that expire, and no others.
    pub fn lengths(&self, keys: &ArrayRef) -> Result<Int64Array> {
        let keys = self.types.encode_keys(keys)?;
        let keys = (0..keys.len()).map(|i| (GROUP, keys.key(i)));
        let lengths: Vec<u64> = if self.member.lifetime.is_bounded() {
            let lists = self.member.read(|view, state| Lists::read(view, state, keys.clone()))?;
            lists.elements()?.1.into_iter().map(|length| length as u64).collect()
        } else {
            let layout = self.member.now()?.layout();
            let heads = self.member.read(|view, state| heads(view, state, keys.clone()))?;
            heads.iter().map(|head| Ok(ListHeader::read(head, layout)?.elements)).collect::<Result<_>>()?
        };
        Ok(lengths.into_iter().map(|length| i64::try_from(length).unwrap_or(i64::MAX)).collect::<Vec<_>>().into())
    }

    /// Adds one element to the list of each key, in the order of rows. All or nothing.
    pub fn append(&self, keys: &ArrayRef, elements: &ArrayRef) -> Result<()> {
        let keys = self.types.encode_keys(keys)?;
        if elements.len() != keys.len() {
            return Err(Error::invalid(format!(
                "the batch has {} keys and {} elements; give one element for each key",
                keys.len(),
                elements.len()
            )));
        }
        let elements = self.types.encode_values(elements, keys.len())?;
        self.write(&keys, Ops::All(APPEND), &elements, None)
    }

    /// Adds all elements of a list to the list of each key, in the order of rows; of a null, none. All or nothing.
    pub fn extend(&self, keys: &ArrayRef, lists: &ArrayRef) -> Result<()> {
        let (keys, elements, spans, _) = self.rows(keys, lists)?;
        self.write(&keys, Ops::All(APPEND), &elements, Some(&spans))
    }

    /// Replaces the list of each key; a null or empty one removes it, and of equal keys the last one counts. All or
    /// nothing.
    pub fn put(&self, keys: &ArrayRef, lists: &ArrayRef) -> Result<()> {
        let (keys, elements, spans, ops) = self.rows(keys, lists)?;
        self.write(&keys, Ops::Each(&ops), &elements, Some(&spans))
    }

    /// Removes lists; one that is not there is fine. All or nothing.
    pub fn clear(&self, keys: &ArrayRef) -> Result<()> {
        let keys = self.types.encode_keys(keys)?;
        self.member.write(Changes::of_keys(CLEAR, Bytes::Keys(&keys)))
    }

    /// Keys and lists of a range, in order of keys, `rows` at a time.
    pub fn scan(&self, range: KeyRange, rows: usize) -> Scan {
        let list = DataType::List(Arc::clone(&self.item));
        let columns = [("key", self.types.keys().key_type()), ("value", &list)];
        let own = self.clone();
        let decode = move |found: &Found, schema: &_| {
            let keys = || found.keys().map(|key| &key[1..]);
            let (keys, lists) = (own.types.keys().decode_keys(keys())?, own.lists(keys())?);
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
        Scan::new(Walk::of_all(&self.member, range), rows, &columns, Box::new(decode))
    }

    fn lists<'a>(&self, keys: impl ExactSizeIterator<Item = &'a [u8]> + Clone) -> Result<ArrayRef> {
        let lists = self.member.read(|view, state| Lists::read(view, state, keys.clone().map(|key| (GROUP, key))))?;
        let (elements, lengths) = lists.elements()?;
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

    /// Keys, the elements of all lists, where those of each row are, and the operations that replace the lists.
    #[expect(clippy::type_complexity, reason = "the columns of a write")]
    fn rows(
        &self,
        keys: &ArrayRef,
        lists: &ArrayRef,
    ) -> Result<(EncodedKeys, EncodedValues, Vec<Range<usize>>, Vec<u8>)> {
        let keys = self.types.encode_keys(keys)?;
        let Some(lists) = lists.as_list_opt::<i32>() else {
            return Err(Error::invalid(format!(
                "the values have the type {}; give a list for each key",
                type_text(lists.data_type())
            )));
        };
        if lists.len() != keys.len() {
            return Err(Error::invalid(format!(
                "the batch has {} keys and {} lists; give one list for each key",
                keys.len(),
                lists.len()
            )));
        }
        let offsets = lists.value_offsets();
        let (from, to) = (offset(offsets[0]), offset(offsets[lists.len()]));
        let elements = self.types.encode_values(&lists.values().slice(from, to - from), to - from)?;
        let whole = |row: usize| offset(offsets[row]) - from..offset(offsets[row + 1]) - from;
        let spans = (0..lists.len()).map(|row| if lists.is_valid(row) { whole(row) } else { 0..0 }).collect();
        let ops = (0..lists.len()).map(|row| if lists.is_valid(row) { PUT } else { CLEAR }).collect();
        Ok((keys, elements, spans, ops))
    }

    fn write(
        &self,
        keys: &EncodedKeys,
        ops: Ops<'_>,
        elements: &EncodedValues,
        spans: Option<&[Range<usize>]>,
    ) -> Result<()> {
        let is_null = |span: &Range<usize>| span.clone().any(|i| elements.value(i).is_none());
        if elements.null_count() > 0 && spans.is_none_or(|spans| spans.iter().any(is_null)) {
            return Err(Error::invalid("an element is null").with_remedy("leave it out"));
        }
        let (values, version) = (Some(Bytes::Values(elements)), self.types.version());
        self.member.write(Changes { ops, values, spans, version, ..Changes::of_keys(APPEND, Bytes::Keys(keys)) })
    }
}

#[expect(clippy::cast_sign_loss, reason = "Arrow offsets are not negative")]
fn offset(value: i32) -> usize {
    value as usize
}

#[cfg(test)]
#[path = "list_tests.rs"]
mod tests;
