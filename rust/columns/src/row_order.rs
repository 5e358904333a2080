//! Rows in the order of their keys, in memory.
//!
//! Owns: sorting the rows of many blocks by their keys, and the interface of a source of sorted rows.
//! Does not own: sorted rows on disk (`row_merge`), the use of the order (`row_chunks`, `row_runs`).
//!
//! Eight bytes of each key, behind the bytes that all keys share, are sorted together with the places of the rows, as
//! numbers. Only where rows agree in these bytes are their keys looked at again. Invariants:
//! 1. rows come in the order of the bytes of their keys, and rows of one key in the order of their places;
//! 2. a row starts a key exactly when the key of the row before is another one.

use super::row_gather::Place;
use super::row_payload::RowBlock;
use fastchangelog_format::Result;
use std::fmt::Debug;

/// Bytes of memory that sorting takes for a row.
pub(super) const BYTES_PER_ROW: usize = 17;
/// Keys that agree in this many parts of eight bytes are compared as a whole.
const LEVELS: usize = 32;

/// Rows in the order of their keys, one by one.
pub(super) trait SortedRows: Debug + Send {
    /// The next row, and whether it starts a key.
    fn advance(&mut self) -> Result<Option<(Place, bool)>>;

    /// The block of a place that `advance` has given and `keep` has not dropped.
    fn block(&self, number: u32) -> &RowBlock;

    /// Drops blocks that neither these places nor later rows need.
    fn keep(&mut self, places: &mut dyn Iterator<Item = Place>);
}

/// All rows of some blocks.
#[derive(Debug)]
pub(super) struct SortedBlocks {
    blocks: Vec<RowBlock>,
    order: Vec<u128>,
    starts: Marks,
    next: usize,
}

impl SortedBlocks {
    pub(super) fn new(blocks: Vec<RowBlock>) -> Self {
        let rows = blocks.iter().map(RowBlock::rows).sum();
        let mut order = Vec::with_capacity(rows);
        for (block, number) in blocks.iter().zip(0u32..) {
            order.extend((0..block.rows() as u32).map(|row| entry(0, Place { block: number, row })));
        }
        let mut starts = Marks::new(rows);
        if rows > 0 {
            starts.set(0);
        }
        let keys = Keys(blocks.iter().map(|block| (block.keys.value_offsets(), block.keys.value_data())).collect());
        refine(&keys, &mut order, &mut starts, Part { at: 0, shared: 0, level: 0 });
        Self { blocks, order, starts, next: 0 }
    }
}

impl SortedRows for SortedBlocks {
    fn advance(&mut self) -> Result<Option<(Place, bool)>> {
        let at = self.next;
        let Some(entry) = self.order.get(at) else { return Ok(None) };
        self.next += 1;
        Ok(Some((place_of(*entry), self.starts.get(at))))
    }

    fn block(&self, number: u32) -> &RowBlock {
        &self.blocks[number as usize]
    }

    fn keep(&mut self, _: &mut dyn Iterator<Item = Place>) {}
}

/// Eight bytes of a key, then the place of its row: a number that compares like both.
fn entry(bytes: u64, place: Place) -> u128 {
    (u128::from(bytes) << 64) | (u128::from(place.block) << 32) | u128::from(place.row)
}

fn place_of(entry: u128) -> Place {
    Place { block: (entry >> 32) as u32, row: entry as u32 }
}

/// The keys of blocks: where each ends, and their bytes.
struct Keys<'a>(Vec<(&'a [i32], &'a [u8])>);

impl<'a> Keys<'a> {
    fn of(&self, entry: u128) -> &'a [u8] {
        let place = place_of(entry);
        let (ends, bytes) = self.0[place.block as usize];
        let row = place.row as usize;
        &bytes[ends[row] as usize..ends[row + 1] as usize]
    }
}

/// Rows whose keys agree in their first bytes.
#[derive(Clone, Copy)]
struct Part {
    /// The number of the first of them.
    at: usize,
    /// How many bytes they agree in.
    shared: usize,
    level: usize,
}

/// Sorts the rows of a part, and marks where keys start. That the first one does is marked already.
fn refine(keys: &Keys<'_>, order: &mut [u128], starts: &mut Marks, part: Part) {
    let Some((first, rest)) = order.split_first() else { return };
    let first = keys.of(*first);
    let (mut shared, mut shortest, mut longest) = (first.len(), first.len(), first.len());
    for entry in rest {
        let key = keys.of(*entry);
        shortest = shortest.min(key.len());
        longest = longest.max(key.len());
        shared = agreeing(first, key, part.shared, shared);
    }
    if shared == longest {
        return;
    }
    if shared == shortest || part.level == LEVELS {
        // A key that is the beginning of another one: Arrow's encoding of rows makes none.
        order.sort_unstable_by(|a, b| keys.of(*a).cmp(keys.of(*b)).then(a.cmp(b)));
        mark(order, starts, part.at, |a, b| keys.of(a) == keys.of(b));
        return;
    }
    for entry_of in order.iter_mut() {
        *entry_of = entry(eight(keys.of(*entry_of), shared), place_of(*entry_of));
    }
    order.sort_unstable();
    let same = |a: u128, b: u128| a >> 64 == b >> 64;
    mark(order, starts, part.at, same);
    if shortest == longest && longest <= shared + 8 {
        return;
    }
    let (mut at, level) = (part.at, part.level + 1);
    for run in order.chunk_by_mut(|a, b| same(*a, *b)) {
        let length = run.len();
        if length > 1 {
            refine(keys, run, starts, Part { at, shared, level });
        }
        at += length;
    }
}

/// Marks each row whose key differs from that of the row before.
fn mark(order: &[u128], starts: &mut Marks, at: usize, same: impl Fn(u128, u128) -> bool) {
    for (i, pair) in order.windows(2).enumerate() {
        if !same(pair[0], pair[1]) {
            starts.set(at + i + 1);
        }
    }
}

/// In how many bytes two keys agree, `most` at most; they are known to agree in `from`.
fn agreeing(a: &[u8], b: &[u8], from: usize, most: usize) -> usize {
    let most = most.min(b.len());
    let (a, b) = (&a[from..most], &b[from..most]);
    if a == b {
        return most;
    }
    from + a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

/// The eight bytes of a key at `at` as a number; zeros where it has ended.
fn eight(key: &[u8], at: usize) -> u64 {
    let key = &key[at..];
    if let Some(bytes) = key.first_chunk::<8>() {
        return u64::from_be_bytes(*bytes);
    }
    let mut bytes = [0; 8];
    bytes[..key.len()].copy_from_slice(key);
    u64::from_be_bytes(bytes)
}

/// One bit for each row.
#[derive(Debug)]
struct Marks(Vec<u64>);

impl Marks {
    fn new(rows: usize) -> Self {
        Self(vec![0; rows.div_ceil(64)])
    }

    fn set(&mut self, row: usize) {
        self.0[row / 64] |= 1 << (row % 64);
    }

    fn get(&self, row: usize) -> bool {
        self.0[row / 64] >> (row % 64) & 1 == 1
    }
}

#[cfg(test)]
#[path = "row_order_tests.rs"]
mod tests;
