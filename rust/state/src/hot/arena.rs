//! The memory of the hot tier: segments of bytes with entries one after the other.
//!
//! Owns: the layout of an entry, one segment, and the walk over its entries.
//! Does not own: the set of entries (`index`), eviction (the parent module).
//!
//! An entry is a header of [`HEADER`] bytes, the key, the value, and padding to [`ALIGN`].

/// Bytes before the key.
pub(super) const HEADER: usize = 16;
/// Entries start at multiples of this.
pub(super) const ALIGN: usize = 4;
/// Granularity of the dirty map. A flush skips the parts of a segment that have no dirty entry.
pub(super) const PAGE: usize = 4 << 10;
/// Bytes of memory for a page, beside its entries.
pub(super) const PAGE_BYTES: usize = size_of::<Page>();
/// Largest segment that holds more than one entry.
pub(super) const MAX_SEGMENT: usize = 1 << 20;

/// The value is newer than the one on disk.
pub(super) const DIRTY: u8 = 1;
/// The key is deleted; the value bytes mean nothing.
pub(super) const TOMBSTONE: u8 = 2;
/// The disk may hold some value of this key, so that a deletion has to be remembered.
pub(super) const STORED: u8 = 4;
/// Superseded or removed: not an entry any more.
pub(super) const DEAD: u8 = 8;

/// The header before a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Header {
    pub klen: u32,
    pub vlen: u32,
    pub state: u16,
    pub key_group: u16,
    pub flags: u8,
    /// The flush epoch in which the entry became dirty.
    pub epoch: u8,
}

impl Header {
    /// Bytes of the whole entry.
    pub fn size(&self) -> usize {
        entry_size(self.klen as usize, self.vlen as usize)
    }

    pub fn is(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }
}

/// Bytes of an entry with a key and a value of these lengths.
pub(super) fn entry_size(klen: usize, vlen: usize) -> usize {
    (HEADER + klen + vlen).next_multiple_of(ALIGN)
}

/// Where an entry is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Loc {
    pub segment: u32,
    pub offset: u32,
}

/// The entries that begin in some [`PAGE`] bytes of a segment.
#[derive(Debug, Clone, Copy, Default)]
struct Page {
    /// Where the first of them is.
    first: u32,
    dirty: u32,
}

/// A run of entries.
///
/// Invariants: 1. `filled <= bytes.len()`, and `bytes[..filled]` is a whole number of entries; 2. `live` is the sum of
/// the sizes of the entries that are not dead; 3. `dirty` counts its dirty entries, and each page's count those that
/// begin there.
#[derive(Debug)]
pub(super) struct Segment {
    bytes: Box<[u8]>,
    filled: usize,
    pub live: usize,
    dirty: u32,
    pages: Box<[Page]>,
    /// Where the newest entry is.
    last: usize,
    /// Distinguishes successive segments with the same number.
    serial: u64,
}

impl Segment {
    pub fn new(bytes: Box<[u8]>, serial: u64) -> Self {
        let pages = vec![Page::default(); bytes.len().div_ceil(PAGE)].into_boxed_slice();
        Self { bytes, filled: 0, live: 0, dirty: 0, pages, last: 0, serial }
    }

    /// The number of the page that holds the entry at `offset`.
    pub fn page_of(offset: usize) -> usize {
        offset / PAGE
    }

    pub fn capacity(&self) -> usize {
        self.bytes.len()
    }

    pub fn room(&self) -> usize {
        self.bytes.len() - self.filled
    }

    /// Bytes that hold no live entry and never will.
    pub fn garbage(&self) -> usize {
        self.bytes.len() - self.live
    }

    /// True when one live entry fills it: nothing can be gained by moving that.
    pub fn is_single(&self) -> bool {
        self.filled == self.bytes.len() && self.header(0).size() == self.filled && !self.header(0).is(DEAD)
    }

    pub fn serial(&self) -> u64 {
        self.serial
    }

    /// Two bytes of an entry, one in its first cache line and one in the next, to prefetch both.
    #[inline]
    pub fn touch(&self, offset: usize) -> u8 {
        self.bytes[offset] ^ self.bytes[(offset + 63).min(self.bytes.len() - 1)]
    }

    pub fn into_bytes(self) -> Box<[u8]> {
        self.bytes
    }

    #[inline]
    pub fn header(&self, offset: usize) -> Header {
        let raw = &self.bytes[offset..offset + HEADER];
        let u32_at = |i: usize| u32::from_le_bytes([raw[i], raw[i + 1], raw[i + 2], raw[i + 3]]);
        let u16_at = |i: usize| u16::from_le_bytes([raw[i], raw[i + 1]]);
        Header {
            klen: u32_at(0),
            vlen: u32_at(4),
            state: u16_at(8),
            key_group: u16_at(10),
            flags: raw[12],
            epoch: raw[13],
        }
    }

    #[inline]
    pub fn set_header(&mut self, offset: usize, header: Header) {
        let raw = &mut self.bytes[offset..offset + HEADER];
        raw[0..4].copy_from_slice(&header.klen.to_le_bytes());
        raw[4..8].copy_from_slice(&header.vlen.to_le_bytes());
        raw[8..10].copy_from_slice(&header.state.to_le_bytes());
        raw[10..12].copy_from_slice(&header.key_group.to_le_bytes());
        raw[12] = header.flags;
        raw[13] = header.epoch;
        raw[14..16].fill(0);
    }

    #[inline]
    pub fn key(&self, offset: usize, header: Header) -> &[u8] {
        &self.bytes[offset + HEADER..offset + HEADER + header.klen as usize]
    }

    #[inline]
    pub fn value(&self, offset: usize, header: Header) -> &[u8] {
        let start = offset + HEADER + header.klen as usize;
        &self.bytes[start..start + header.vlen as usize]
    }

    #[inline]
    pub fn value_mut(&mut self, offset: usize, header: Header) -> &mut [u8] {
        let start = offset + HEADER + header.klen as usize;
        &mut self.bytes[start..start + header.vlen as usize]
    }

    /// Adds an entry at the end; the caller has checked [`Segment::room`]. Returns its offset.
    pub fn push(&mut self, header: Header, key: &[u8], value: &[u8]) -> usize {
        let offset = self.filled;
        self.set_header(offset, header);
        let at = offset + HEADER;
        self.bytes[at..at + key.len()].copy_from_slice(key);
        self.bytes[at + key.len()..at + key.len() + value.len()].copy_from_slice(value);
        self.filled += header.size();
        self.live += header.size();
        // In a page without entries before this one.
        if offset == 0 || Self::page_of(offset) > Self::page_of(self.last) {
            self.pages[Self::page_of(offset)].first = offset as u32;
        }
        self.last = offset;
        if header.is(DIRTY) {
            self.count_dirty(offset);
        }
        offset
    }

    /// One of its entries has become dirty.
    #[inline]
    pub fn count_dirty(&mut self, offset: usize) {
        self.dirty += 1;
        self.pages[Self::page_of(offset)].dirty += 1;
    }

    /// One of its entries is not dirty any more.
    #[inline]
    pub fn count_clean(&mut self, offset: usize) {
        self.dirty -= 1;
        self.pages[Self::page_of(offset)].dirty -= 1;
    }

    /// Number of dirty entries.
    pub fn dirty(&self) -> u32 {
        self.dirty
    }

    /// Offsets and headers of the dirty entries from `at` on. Only pages that have some are looked at.
    pub fn dirty_entries(&self, at: usize) -> impl Iterator<Item = (usize, Header)> {
        let pages = self.pages.iter().enumerate().skip(Self::page_of(at)).filter(|(_, page)| page.dirty > 0);
        let entries = move |(number, page): (usize, &Page)| {
            self.entries(page.first as usize).take_while(move |&(offset, _)| Self::page_of(offset) == number)
        };
        pages.flat_map(entries).filter(move |&(offset, header)| offset >= at && header.is(DIRTY))
    }

    /// Forgets all entries, which must be dead, so that the space can be filled again.
    pub fn reset(&mut self) {
        self.filled = 0;
        self.last = 0;
    }

    /// Offsets and headers of the entries from `at` on that are not dead; an entry starts at `at`.
    pub fn entries(&self, mut at: usize) -> impl Iterator<Item = (usize, Header)> {
        std::iter::from_fn(move || {
            while at < self.filled {
                let (offset, header) = (at, self.header(at));
                at += header.size();
                if !header.is(DEAD) {
                    return Some((offset, header));
                }
            }
            None
        })
    }
}
