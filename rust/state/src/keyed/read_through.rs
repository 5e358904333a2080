//! Read-through buffer: entries read from disk that wait for insertion into the hot tier. Reads share the tier; only
//! changes have exclusive access.
//!
//! Owns: copies of entries in flat memory, and their insertion in batches.
//! Does not own: the choice of entries, and the check that they are current (`keyed`, `warm_up`).

use super::{HotKey, HotTier};
use fastchangelog_format::model::{KeyGroup, StateId};
use std::hint::black_box;

/// Entries whose places in the tier are fetched from memory side by side.
const LANE: usize = 64;

/// Keys and values one after the other.
#[derive(Debug, Default)]
pub(super) struct ReadThroughBuffer {
    bytes: Vec<u8>,
    entries: Vec<BufferedEntry>,
}

#[derive(Debug, Clone, Copy)]
struct BufferedEntry {
    hash: u64,
    /// Bytes of the key, and of the value after it.
    lengths: (u32, u32),
    state: StateId,
    key_group: KeyGroup,
}

impl ReadThroughBuffer {
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        self.bytes.len() + self.entries.len() * size_of::<BufferedEntry>()
    }

    /// Bytes that one more entry would hold.
    pub fn bytes_of(key: &HotKey<'_>, value: &[u8]) -> usize {
        key.key.len() + value.len() + size_of::<BufferedEntry>()
    }

    #[expect(clippy::cast_possible_truncation, reason = "RocksDB has lengths of 32 bits")]
    pub fn push(&mut self, key: &HotKey<'_>, value: &[u8]) {
        self.bytes.extend_from_slice(key.key);
        self.bytes.extend_from_slice(value);
        let lengths = (key.key.len() as u32, value.len() as u32);
        self.entries.push(BufferedEntry { hash: key.hash, lengths, state: key.state, key_group: key.key_group });
    }

    /// Passes every entry to `put`, in order, until it returns false, and clears the buffer.
    pub fn drain(&mut self, hot: &mut HotTier, mut put: impl FnMut(&mut HotTier, &HotKey<'_>, &[u8]) -> bool) -> bool {
        let mut rest = &self.bytes[..];
        let mut all = true;
        'all: for lane in self.entries.chunks(LANE) {
            black_box(hot.prefetch_places(lane.iter().map(|c| (c.hash, c.state))));
            for &BufferedEntry { hash, lengths, state, key_group } in lane {
                let (key, tail) = rest.split_at(lengths.0 as usize);
                let (value, tail) = tail.split_at(lengths.1 as usize);
                rest = tail;
                all = put(hot, &HotKey { hash, state, key_group, key }, value);
                if !all {
                    break 'all;
                }
            }
        }
        self.bytes.clear();
        self.entries.clear();
        all
    }
}
