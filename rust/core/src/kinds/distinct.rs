//! Distinct keys of some rows.
//!
//! Owns: which rows have one key. Does not own: what is done for each key.

use hashbrown::HashTable;

/// Distinct keys in the order of their first rows, and which of them each row has.
pub(crate) struct Distinct {
    pub(crate) firsts: Vec<usize>,
    pub(crate) of_row: Vec<usize>,
}

impl Distinct {
    /// Of rows with these keys, and their hashes.
    pub(crate) fn of<'a>(hashes: &[u64], key: impl Fn(usize) -> &'a [u8]) -> Self {
        let mut index: HashTable<usize> = HashTable::with_capacity(hashes.len());
        let (mut firsts, mut of_row) = (Vec::new(), Vec::with_capacity(hashes.len()));
        for (row, &hash) in hashes.iter().enumerate() {
            let same = |place: &usize| key(firsts[*place]) == key(row);
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
