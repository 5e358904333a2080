//! A pool of memory blocks for reuse.
//!
//! Owns: blocks returned by encoded sets, up to a bound. Does not own: their users.
//!
//! Without it every set would be written into fresh pages: the kernel clears them one by one, which costs as much as
//! copying the values does.

use crate::sync::Mutex;
use bytes::Bytes;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Smaller pieces are the allocator's business.
const SMALLEST: usize = 16 << 10;

/// Unused blocks of memory. Cheap to clone.
#[derive(Debug, Clone)]
pub struct BlockPool {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    limit: usize,
    free: Mutex<Free>,
}

#[derive(Debug, Default)]
struct Free {
    /// By capacity.
    pieces: BTreeMap<usize, Vec<Vec<u8>>>,
    bytes: usize,
}

impl BlockPool {
    /// A pool that keeps at most `limit` bytes.
    pub fn new(limit: u64) -> Self {
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        Self { inner: Arc::new(Inner { limit, free: Mutex::default() }) }
    }

    /// Empty memory for `bytes` bytes or some more.
    pub fn take(&self, bytes: usize) -> Vec<u8> {
        if bytes < SMALLEST {
            return Vec::with_capacity(bytes);
        }
        let bytes = bytes.next_multiple_of(SMALLEST);
        let mut free = self.inner.free.lock();
        // Not much larger than requested: a small request must not hold a large block.
        let found = free.pieces.range_mut(bytes..=bytes + bytes / 2).find_map(|(_, pieces)| pieces.pop());
        match found {
            Some(memory) => {
                free.bytes -= memory.capacity();
                memory
            }
            None => {
                drop(free);
                Vec::with_capacity(bytes)
            }
        }
    }

    /// Takes memory back; what would exceed the bound is freed.
    pub fn give(&self, mut memory: Vec<u8>) {
        let capacity = memory.capacity();
        if capacity < SMALLEST {
            return;
        }
        memory.clear();
        let mut free = self.inner.free.lock();
        if free.bytes + capacity <= self.inner.limit {
            free.bytes += capacity;
            free.pieces.entry(capacity).or_default().push(memory);
        }
    }

    /// `memory` as bytes that return to the pool when their last reader is dropped.
    pub fn lend(&self, memory: Vec<u8>) -> Bytes {
        if memory.capacity() < SMALLEST {
            return Bytes::from(memory);
        }
        Bytes::from_owner(Lent { memory, pool: self.clone() })
    }

    /// Bytes that are kept now.
    #[cfg_attr(not(test), allow(dead_code, reason = "for tests, those of `rust/shuttle-tests` among them"))]
    pub fn bytes(&self) -> usize {
        self.inner.free.lock().bytes
    }
}

struct Lent {
    memory: Vec<u8>,
    pool: BlockPool,
}

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        &self.memory
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        self.pool.give(std::mem::take(&mut self.memory));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_comes_back_and_is_bounded() {
        let pool = BlockPool::new(100 << 10);
        let memory = pool.take(40_000);
        assert!(memory.capacity() >= 40_000 && pool.bytes() == 0);
        let place = memory.as_ptr();
        let bytes = pool.lend(memory);
        let reader = bytes.clone();
        drop(bytes);
        assert_eq!(pool.bytes(), 0, "a reader holds it");
        drop(reader);
        assert!(pool.bytes() >= 40_000);
        let others = [pool.take(200_000), pool.take(16_384)];
        assert!(others.iter().all(|memory| memory.as_ptr() != place), "of about the size only");
        let again = pool.take(35_000);
        assert_eq!((again.as_ptr(), pool.bytes()), (place, 0));
        (0..10).for_each(|_| pool.give(Vec::with_capacity(48 << 10)));
        assert!(pool.bytes() <= 100 << 10);
        pool.give(Vec::with_capacity(100));
        assert_eq!(pool.bytes(), 96 << 10);
    }
}
