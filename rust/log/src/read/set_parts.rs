//! A fetched change set on its way into a state.
//!
//! Owns: whether it is unpacked ahead or part after part, so that what an object claims to unpack to does not decide how much
//! memory it takes.
//! Does not own: fetching it (`replay`, `slice`), what is inside a block (`format`).
//!
//! Invariants:
//! 1. of a set that unpacks to more than [`AHEAD_BYTES`] one part is in memory at a time: blocks of so many bytes, or one record;
//! 2. parts in their order are the set; every byte was verified before the first one is given out.

use bytes::Bytes;
use fastchangelog_format::error::Result;
use fastchangelog_format::model::{ChangeSet, KeyGroupRange};
use fastchangelog_format::segment::{check_blocks, decode_some_blocks};
use fastchangelog_format::set::SetIndex;
use std::ops::Range;

/// Bytes of a set that is unpacked as a whole, and of a part of others.
const AHEAD_BYTES: u64 = 16 << 20;

/// A change set that is here.
pub(super) enum FetchedSet {
    Whole(ChangeSet),
    Parts(Box<SetParts>),
}

/// A set of which the parts are still packed.
pub(super) struct SetParts {
    pub(super) name: String,
    pub(super) offset: u64,
    pub(super) index: SetIndex,
    /// The bytes of the set from `start` on.
    pub(super) start: u64,
    pub(super) bytes: Bytes,
    /// What is wanted of it: these blocks, and in them these key groups.
    pub(super) blocks: Range<usize>,
    pub(super) groups: Option<KeyGroupRange>,
}

impl SetParts {
    /// Unpacks it, if it may be in memory as a whole.
    pub(super) fn fetched(mut self) -> Result<FetchedSet> {
        let blocks = self.index.blocks[self.blocks.clone()].iter();
        if blocks.map(|block| u64::from(block.raw_length)).sum::<u64>() <= AHEAD_BYTES {
            return self.next().map(FetchedSet::Whole);
        }
        check_blocks(&self.index, &self.name, self.offset, self.start, &self.bytes, self.blocks.clone())?;
        Ok(FetchedSet::Parts(Box::new(self)))
    }

    /// True if there are no more parts.
    pub(super) fn is_over(&self) -> bool {
        self.blocks.is_empty()
    }

    /// The next part.
    pub(super) fn next(&mut self) -> Result<ChangeSet> {
        let (from, mut bytes) = (self.blocks.start, 0);
        while let Some(block) = self.index.blocks.get(self.blocks.start).filter(|_| !self.is_over()) {
            bytes += u64::from(block.raw_length);
            if bytes > AHEAD_BYTES && self.blocks.start > from {
                break;
            }
            self.blocks.start += 1;
        }
        let part = from..self.blocks.start;
        let records = self.index.blocks[part.clone()].iter().map(|block| block.records as usize).sum::<usize>();
        // A record costs a byte at least.
        let bytes = usize::try_from(bytes.min(AHEAD_BYTES)).unwrap_or(0);
        let mut set = ChangeSet::with_capacity(records.min(bytes), bytes);
        let Self { name, offset, start, .. } = self;
        decode_some_blocks(&self.index, name, *offset, *start, &self.bytes, part, self.groups, &mut set)?;
        Ok(set)
    }
}

impl FetchedSet {
    /// All of it.
    pub(super) fn whole(self) -> Result<ChangeSet> {
        match self {
            Self::Whole(set) => Ok(set),
            Self::Parts(mut parts) => {
                let mut set = ChangeSet::default();
                while !parts.is_over() {
                    parts.next()?.iter().for_each(|change| set.push(change));
                }
                Ok(set)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fastchangelog_format::config::Compression;
    use fastchangelog_format::model::{Change, KeyGroup, Op, StateId};
    use fastchangelog_format::{decode_set_index, encode_set};

    const VALUE: usize = 5 << 20;

    fn parts(values: u8) -> (ChangeSet, SetParts) {
        let mut set = ChangeSet::default();
        for i in 0..values {
            let value = vec![i; VALUE];
            let (op, state, key_group) = (Op::Put, StateId(1), KeyGroup(u16::from(i)));
            set.push(Change { op, state, key_group, key: &[i], value: &value });
        }
        let bytes = encode_set(&set, Compression::Zstd).unwrap().to_bytes();
        assert!(bytes.len() < 64 << 10, "a few bytes say that they are many");
        let index = decode_set_index("log/a", 7, &bytes).unwrap();
        let blocks = 0..index.blocks.len();
        (set, SetParts { name: "log/a".to_owned(), offset: 7, index, start: 0, bytes, blocks, groups: None })
    }

    #[test]
    fn invariant_1_a_large_set_is_unpacked_part_after_part() {
        let (set, one) = parts(3);
        assert!(matches!(one.fetched().unwrap(), FetchedSet::Whole(whole) if whole.iter().eq(set.iter())));
        let (set, many) = parts(8);
        let FetchedSet::Parts(mut many) = many.fetched().unwrap() else { panic!("it is unpacked as a whole") };
        let mut all = ChangeSet::default();
        while !many.is_over() {
            let part = many.next().unwrap();
            assert!((1..=3).contains(&part.len()), "{}", part.len());
            part.iter().for_each(|change| all.push(change));
        }
        assert!(all.iter().eq(set.iter()));
    }

    #[test]
    fn invariant_2_damage_is_found_before_the_first_part() {
        let (_, mut many) = parts(8);
        let mut bytes = many.bytes.to_vec();
        *bytes.last_mut().unwrap() ^= 1;
        many.bytes = bytes.into();
        let error = many.fetched().err().unwrap();
        assert!(error.message().contains("checksum"), "{error}");
    }
}
