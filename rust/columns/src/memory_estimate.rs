//! Estimates of the memory that a table of groups needs while it grows.
//!
//! Owns: the arithmetic of vectors and hash tables that double: their size afterwards, and the old copy during the
//! growth.
//! Does not own: the table (`table`), the reaction to a lack of memory (`shard::session`).

/// Sizes of groups that are about to be merged into a table, all of them counted as new.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct IncomingGroups {
    /// Number of groups.
    pub groups: usize,
    /// Bytes of their keys.
    pub key_bytes: usize,
    /// Bytes of their encoded rows.
    pub row_bytes: usize,
}

impl IncomingGroups {
    /// No groups.
    pub const NONE: Self = Self { groups: 0, key_bytes: 0, row_bytes: 0 };

    /// The sum of both.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            groups: self.groups + other.groups,
            key_bytes: self.key_bytes + other.key_bytes,
            row_bytes: self.row_bytes + other.row_bytes,
        }
    }
}

/// Bytes of memory that a table needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryNeed {
    /// While groups are merged: the old and the new memory of growing parts.
    pub merging: u64,
    /// While all groups are finished: beside the table the rows of the base, the change set and its encoding.
    pub finishing: u64,
}

impl MemoryNeed {
    /// The larger of the two.
    pub fn most(self) -> u64 {
        self.merging.max(self.finishing)
    }
}

/// The sizes of all pieces of a table after its growth, and the largest piece that is copied meanwhile.
#[derive(Debug, Default)]
pub(super) struct GrowthEstimate {
    after: usize,
    copied: usize,
}

impl GrowthEstimate {
    /// A vector of `len` elements of `width` bytes gets `more` of them.
    pub(super) fn of(&mut self, len: usize, more: usize, capacity: usize, width: usize) {
        if len + more <= capacity {
            self.after += capacity * width;
        } else {
            self.after += (len + more).max(2 * capacity) * width;
            self.copies(capacity * width);
        }
    }

    /// A hash table of `len` elements gets `more` of them; it has `capacity` and takes `bytes`.
    pub(super) fn of_index(&mut self, len: usize, more: usize, capacity: usize, bytes: usize, width: usize) {
        if len + more <= capacity {
            self.after += bytes;
        } else {
            // Seven of eight slots are used, and each has one control byte beside its element.
            let places = ((len + more).max(capacity + 1) * 8 / 7 + 1).next_power_of_two().max(4);
            self.after += places * (width + 1) + 16;
            self.copies(bytes);
        }
    }

    /// So many bytes exist twice during the growth.
    pub(super) fn copies(&mut self, bytes: usize) {
        self.copied = self.copied.max(bytes);
    }

    /// Bytes after the growth.
    pub(super) fn after(&self) -> u64 {
        self.after as u64
    }

    /// Bytes while it grows, piece after piece.
    pub(super) fn peak(&self) -> u64 {
        (self.after + self.copied) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vector_doubles_and_exists_twice_meanwhile() {
        let mut growth = GrowthEstimate::default();
        growth.of(10, 6, 16, 8);
        assert_eq!((growth.after(), growth.peak()), (128, 128));
        growth.of(16, 1, 16, 8);
        assert_eq!((growth.after(), growth.peak()), (128 + 256, 128 + 256 + 128));
        growth.of(0, 100, 0, 1);
        assert_eq!((growth.after(), growth.peak()), (128 + 256 + 100, 128 + 256 + 100 + 128));
    }

    #[test]
    fn a_hash_table_takes_no_more_than_estimated() {
        for (len, more) in [(0, 1), (3, 1), (100, 1), (1_000, 5_000), (14_336, 1)] {
            let mut table = hashbrown::HashTable::<u64>::new();
            table.reserve(len, |n| *n);
            for n in 0..len as u64 {
                table.insert_unique(n, n, |n| *n);
            }
            let mut growth = GrowthEstimate::default();
            growth.of_index(len, more, table.capacity(), table.allocation_size(), size_of::<u64>());
            table.reserve(more, |n| *n);
            assert!(growth.after() >= table.allocation_size() as u64, "{len} and {more}");
            assert!(growth.after() <= 2 * table.allocation_size() as u64 + 64, "{len} and {more}");
        }
    }
}
