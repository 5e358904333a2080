//! The order in which many keys are processed.
//!
//! Owns: the parts of the hash space and sorting by them.
//! Does not own: the hash (`codec`), the tables that are processed.
//!
//! Look-ups in hash order would each wait for memory. So payloads, the index of the hot tier and changes to it are
//! ordered by the same part of the hash: two that follow each other need memory close by, and a whole run goes through
//! a table once from front to back.

/// Parts of the hash space.
pub const PARTS: usize = 256;
/// Fewer keys than this are not worth ordering.
pub const ORDERED_FROM: usize = 4_096;

/// The part of a hash. These bits also choose the region of the memory of a hash table with a thousand entries and more.
#[inline]
pub fn part_of(hash: u64) -> usize {
    (hash >> 10) as usize % PARTS
}

/// A stable counting sort of `0..n` by `place`, which is below `places`: the order, and where each place's run ends.
#[expect(clippy::cast_possible_truncation, reason = "groups and changes are counted as u32")]
pub fn sorted(n: usize, places: usize, place: impl Fn(usize) -> usize) -> (Vec<u32>, Vec<usize>) {
    let mut ends = vec![0usize; places + 1];
    for i in 0..n {
        ends[place(i) + 1] += 1;
    }
    for i in 1..ends.len() {
        ends[i] += ends[i - 1];
    }
    let mut order = vec![0u32; n];
    for i in 0..n {
        let next = &mut ends[place(i)];
        order[*next] = i as u32;
        *next += 1;
    }
    // Each place's start has moved to its end by now.
    ends.truncate(places);
    (order, ends)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sorted_is_stable_and_says_where_runs_end() {
        let places = [2, 0, 2, 3, 0, 2];
        let (order, ends) = sorted(places.len(), 5, |i| places[i]);
        assert_eq!(order, [1, 4, 0, 2, 5, 3]);
        assert_eq!(ends, [2, 2, 5, 6, 6]);
        assert_eq!(sorted(0, 1, |_| 0), (vec![], vec![0]));
    }
}
