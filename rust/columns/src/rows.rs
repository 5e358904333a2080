//! Accumulator rows in flat memory.
//!
//! Owns: the layout of a row's bytes, in a table and as one encoded value.
//! Does not own: the meaning of the bytes (`aggregate`).
//!
//! An encoded row is `fixed part | (u32 length, bytes) per variable slot`. Rows without variable slots all have the
//! same length. Invariants:
//! 1. the fixed part of a row of all zero bytes with empty variable slots is the row of no input;
//! 2. in a table, row `i`'s fixed part is `fixed[i * stride..(i + 1) * stride]`.

use super::memory_estimate::{GrowthEstimate, IncomingGroups};
use fastchangelog_format::{Error, Result};

/// Shape of the rows of one plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Shape {
    /// Bytes of the fixed part, at least one.
    pub(super) stride: usize,
    /// Number of variable slots.
    pub(super) vars: usize,
    /// Variable slots grow when rows are joined: their values are no longer than all that were joined.
    pub(super) grows: bool,
}

impl Shape {
    /// Takes an encoded row apart: returns the fixed part and puts the variable slots into `vars`.
    pub(super) fn parse<'a>(self, row: &'a [u8], vars: &mut Vec<&'a [u8]>) -> Result<&'a [u8]> {
        vars.clear();
        let (fixed, mut rest) = row.split_at_checked(self.stride).ok_or_else(|| bad_row(row.len()))?;
        for _ in 0..self.vars {
            let (len, tail) = rest.split_first_chunk::<4>().ok_or_else(|| bad_row(row.len()))?;
            let (value, tail) =
                tail.split_at_checked(u32::from_le_bytes(*len) as usize).ok_or_else(|| bad_row(row.len()))?;
            vars.push(value);
            rest = tail;
        }
        if rest.is_empty() { Ok(fixed) } else { Err(bad_row(row.len())) }
    }
}

fn bad_row(len: usize) -> Error {
    Error::corrupt("an accumulator row", 0, format_args!("{len} bytes are not a row of these aggregates"))
}

/// Rows of one shape, addressed by number.
#[derive(Debug)]
pub(super) struct Rows {
    pub(super) shape: Shape,
    pub(super) fixed: Vec<u8>,
    pub(super) vars: Vars,
    len: usize,
}

impl Rows {
    pub(super) fn new(shape: Shape) -> Self {
        Self { shape, fixed: Vec::new(), vars: Vars::new(shape.vars), len: 0 }
    }

    pub(super) fn clear(&mut self) {
        self.fixed.clear();
        self.vars.clear();
        self.len = 0;
    }

    /// Makes room for `rows` more rows, which have `bytes` bytes when they are encoded.
    pub(super) fn reserve(&mut self, rows: usize, bytes: usize) {
        self.fixed.reserve(rows * self.shape.stride);
        self.vars.slots.reserve(rows * self.shape.vars);
        if self.shape.vars > 0 {
            self.vars.bytes.reserve(bytes);
        }
    }

    /// Grows to `len` rows; the new ones are rows of no input.
    pub(super) fn grow_to(&mut self, len: usize) {
        self.len = self.len.max(len);
        self.fixed.resize(self.len * self.shape.stride, 0);
        self.vars.slots.resize(self.len * self.shape.vars, VarSlot::default());
    }

    /// Adds a row that was taken apart by [`Shape::parse`].
    #[inline]
    pub(super) fn push(&mut self, fixed: &[u8], vars: &[&[u8]]) {
        debug_assert_eq!(fixed.len(), self.shape.stride);
        self.fixed.extend_from_slice(fixed);
        for var in vars {
            self.vars.push(var);
        }
        self.len += 1;
    }

    #[inline]
    pub(super) fn fixed(&self, row: usize) -> &[u8] {
        &self.fixed[row * self.shape.stride..(row + 1) * self.shape.stride]
    }

    /// The row for change: its fixed part and the variable slots of all rows.
    #[inline]
    pub(super) fn row_mut(&mut self, row: usize) -> (&mut [u8], &mut Vars) {
        let stride = self.shape.stride;
        (&mut self.fixed[row * stride..(row + 1) * stride], &mut self.vars)
    }

    /// Length of the encoded row.
    pub(super) fn encoded_len(&self, row: usize) -> usize {
        let vars = (0..self.shape.vars).map(|slot| 4 + self.vars.get(row, slot).len());
        self.shape.stride + vars.sum::<usize>()
    }

    /// Appends the encoded row.
    #[expect(clippy::cast_possible_truncation, reason = "Vars::set holds lengths as u32")]
    pub(super) fn encode(&self, row: usize, out: &mut Vec<u8>) {
        out.extend_from_slice(self.fixed(row));
        for slot in 0..self.shape.vars {
            let value = self.vars.get(row, slot);
            out.extend_from_slice(&(value.len() as u32).to_le_bytes());
            out.extend_from_slice(value);
        }
    }

    /// Counts the growth by `incoming`: a longer value takes a new place behind all others, and packing copies them.
    pub(super) fn grow(&self, growth: &mut GrowthEstimate, incoming: IncomingGroups) {
        let (stride, vars) = (self.shape.stride, &self.vars);
        growth.of(self.fixed.len(), incoming.groups * stride, self.fixed.capacity(), 1);
        if self.shape.vars > 0 {
            growth.of(vars.slots.len(), incoming.groups * self.shape.vars, vars.slots.capacity(), size_of::<VarSlot>());
            let more = incoming.row_bytes + if self.shape.grows { vars.growth(incoming.row_bytes) } else { 0 };
            growth.of(vars.bytes.len(), more, vars.bytes.capacity(), 1);
            growth.copies(if vars.wasted > 0 { vars.bytes.len() } else { 0 });
        }
    }

    pub(super) fn memory_bytes(&self) -> u64 {
        (self.fixed.capacity() + self.vars.bytes.capacity() + self.vars.slots.capacity() * size_of::<VarSlot>()) as u64
    }

    /// Bytes in use, encoded or not.
    pub(super) fn used_bytes(&self) -> usize {
        self.fixed.len() + self.vars.bytes.len() + self.vars.slots.len() * 4
    }
}

#[derive(Debug, Clone, Copy, Default)]
struct VarSlot {
    offset: usize,
    len: u32,
    room: u32,
}

/// Variable slots of many rows. A value that no longer fits its place moves to the end; when half of the bytes are
/// left-overs, all are packed.
#[derive(Debug)]
pub(super) struct Vars {
    per_row: usize,
    slots: Vec<VarSlot>,
    bytes: Vec<u8>,
    wasted: usize,
}

const PACK_FROM: usize = 1 << 20;

impl Vars {
    fn new(per_row: usize) -> Self {
        Self { per_row, slots: Vec::new(), bytes: Vec::new(), wasted: 0 }
    }

    fn clear(&mut self) {
        self.slots.clear();
        self.bytes.clear();
        self.wasted = 0;
    }

    #[expect(clippy::cast_possible_truncation, reason = "an Arrow value is at most 2 GiB")]
    fn push(&mut self, value: &[u8]) {
        let len = value.len() as u32;
        self.slots.push(VarSlot { offset: self.bytes.len(), len, room: len });
        self.bytes.extend_from_slice(value);
    }

    #[inline]
    pub(super) fn get(&self, row: usize, slot: usize) -> &[u8] {
        let slot = self.slots[row * self.per_row + slot];
        &self.bytes[slot.offset..slot.offset + slot.len as usize]
    }

    #[expect(clippy::cast_possible_truncation, reason = "an Arrow value is at most 2 GiB")]
    pub(super) fn set(&mut self, row: usize, slot: usize, value: &[u8]) {
        let place = &mut self.slots[row * self.per_row + slot];
        let len = value.len() as u32;
        if len > place.room {
            self.wasted += place.room as usize;
            *place = VarSlot { offset: self.bytes.len(), len, room: len };
            self.bytes.extend_from_slice(value);
            if self.wasted > PACK_FROM && self.wasted > self.bytes.len() / 2 {
                self.pack();
            }
        } else {
            place.len = len;
            self.bytes[place.offset..place.offset + value.len()].copy_from_slice(value);
        }
    }

    /// Adds `more` to the end of a value. A value that moves gets as much room again.
    pub(super) fn append(&mut self, row: usize, slot: usize, more: &[u8]) {
        let VarSlot { offset, len, room } = self.slots[row * self.per_row + slot];
        let value = offset..offset + len as usize;
        let wanted = value.len() + more.len();
        if wanted > room as usize {
            let next = self.bytes.len();
            self.bytes.reserve(2 * wanted);
            self.bytes.extend_from_within(value);
            self.bytes.extend_from_slice(more);
            self.bytes.resize(next + 2 * wanted, 0);
            self.moved(row, slot, next, wanted, 2 * wanted);
        } else {
            let end = value.end;
            self.bytes[end..end + more.len()].copy_from_slice(more);
            self.moved(row, slot, offset, wanted, room as usize);
        }
    }

    #[expect(clippy::cast_possible_truncation, reason = "an Arrow value is at most 2 GiB")]
    fn moved(&mut self, row: usize, slot: usize, offset: usize, len: usize, room: usize) {
        let place = &mut self.slots[row * self.per_row + slot];
        if offset != place.offset {
            self.wasted += place.room as usize;
        }
        *place = VarSlot { offset, len: len as u32, room: room as u32 };
        if self.wasted > PACK_FROM && self.wasted > self.bytes.len() / 2 {
            self.pack();
        }
    }

    /// How many bytes values may take at most that grow by `more` bytes: each one's room is twice its length, and what
    /// was left over is at most as large as all places.
    fn growth(&self, more: usize) -> usize {
        PACK_FROM + 4 * (self.bytes.len() + more)
    }

    fn pack(&mut self) {
        let mut packed = Vec::with_capacity(self.bytes.len() - self.wasted);
        for slot in &mut self.slots {
            let start = packed.len();
            packed.extend_from_slice(&self.bytes[slot.offset..slot.offset + slot.len as usize]);
            *slot = VarSlot { offset: start, len: slot.len, room: slot.len };
        }
        self.bytes = packed;
        self.wasted = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_survive_moves_and_packing() {
        let shape = Shape { stride: 1, vars: 2, grows: false };
        let mut rows = Rows::new(shape);
        rows.grow_to(3);
        for size in [10usize, 5, 300_000, 400_000, 900_000, 1, 1_000_000] {
            for row in 0..3 {
                rows.vars.set(row, 0, &vec![u8::try_from(row).unwrap(); size]);
                rows.vars.set(row, 1, b"x");
            }
            for row in 0..3 {
                let mut out = vec![];
                rows.encode(row, &mut out);
                assert_eq!(out.len(), rows.encoded_len(row));
                let mut vars = vec![];
                assert_eq!(shape.parse(&out, &mut vars).unwrap(), &[0]);
                assert_eq!(vars[0], vec![u8::try_from(row).unwrap(); size]);
                assert_eq!(vars[1], b"x");
            }
        }
        assert!(rows.vars.bytes.len() < 6_000_000);
    }

    #[test]
    fn values_that_grow_keep_their_bytes() {
        let mut rows = Rows::new(Shape { stride: 1, vars: 2, grows: true });
        rows.grow_to(3);
        let mut model = vec![vec![]; 6];
        for round in 0..2_000usize {
            let at = round * 7 % 6;
            let more = vec![u8::try_from(round % 251).unwrap(); round * 31 % 900];
            if round % 97 == 0 {
                rows.vars.set(at / 2, at % 2, &more);
                model[at] = more;
            } else {
                rows.vars.append(at / 2, at % 2, &more);
                model[at].extend(more);
            }
            assert_eq!(rows.vars.get(at / 2, at % 2), model[at]);
        }
        for (at, expected) in model.iter().enumerate() {
            assert_eq!(rows.vars.get(at / 2, at % 2), expected);
        }
        let used: usize = model.iter().map(Vec::len).sum();
        assert!(rows.vars.bytes.len() <= rows.vars.growth(used));
    }

    #[test]
    fn a_malformed_row_is_corrupt() {
        let shape = Shape { stride: 2, vars: 1, grows: false };
        let good = [0, 0, 1, 0, 0, 0, 7];
        let mut vars = vec![];
        shape.parse(&good, &mut vars).unwrap();
        for len in 0..good.len() {
            assert_eq!(
                shape.parse(&good[..len], &mut vars).unwrap_err().kind(),
                fastchangelog_format::ErrorKind::Corrupt
            );
        }
        assert!(shape.parse(&[0, 0, 255, 255, 255, 255, 7], &mut vars).is_err());
        assert!(shape.parse(&[0, 0, 0, 0, 0, 0, 7], &mut vars).is_err());
    }
}
