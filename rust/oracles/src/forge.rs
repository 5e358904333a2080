//! Forged bytes in valid formats, and the cost of reading them.
//!
//! Owns: checksums made right again after bytes were changed, sets around a block of any bytes, an allocator that
//! counts, its bounds, and silence about panics that are caught. Shared by the tests of damage, the replay of the
//! fuzzers' inputs and the fuzzers (`rust/fuzz`).
//! Does not own: the properties of the decoders. Written by `docs/format.md`, not with the encoders.

use fastchangelog_format::{FILE_HEADER_LEN, INDEX_ENTRY_LEN, SET_HEADER_LEN, crc32c};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::{Cell, RefCell};
use std::panic::{self, AssertUnwindSafe};
use std::sync::Once;

/// Memory that reading anything may take.
pub(crate) const GROUND: u64 = 64 << 10;
/// Memory per byte that is read or unpacked: a record of one byte costs its place in a few lists that grow by doubling.
pub(crate) const FACTOR: u64 = 96;

/// Counts what this thread asks for, so that it can be bounded.
pub struct Counting;

thread_local! {
    static LIVE: Cell<i64> = const { Cell::new(0) };
    static PEAK: Cell<i64> = const { Cell::new(0) };
}

fn count(by: i64) {
    let _ = LIVE.try_with(|live| {
        live.set(live.get() + by);
        let _ = PEAK.try_with(|peak| peak.set(peak.get().max(live.get())));
    });
}

// SAFETY: every call is handed on unchanged to the system's allocator; counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size().cast_signed() as i64);
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        count(-(layout.size().cast_signed() as i64));
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Bytes allocated at most at one moment of `f`, beyond what was there before.
pub fn peak_of<T>(f: impl FnOnce() -> T) -> (T, i64) {
    let before = LIVE.get();
    PEAK.set(before);
    let result = f();
    (result, PEAK.get() - before)
}

thread_local! {
    /// Messages of this thread's silenced panics.
    static UNTOLD: RefCell<Option<Vec<String>>> = const { RefCell::new(None) };
}

/// Runs `f`, whose panics are not told as long as they are caught in it: telling one prints a backtrace, and that takes
/// more memory than what is measured.
pub fn quietly<T>(f: impl FnOnce() -> T) -> T {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let tell = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            let told = UNTOLD.with_borrow_mut(|untold| untold.as_mut().map(|untold| untold.push(info.to_string())));
            if told.is_none() {
                tell(info);
            }
        }));
    });
    UNTOLD.set(Some(Vec::new()));
    let result = panic::catch_unwind(AssertUnwindSafe(f));
    let untold = UNTOLD.take().unwrap_or_default();
    result.unwrap_or_else(|_| panic!("not caught: {}", untold.join("; ")))
}

/// Hands on the bytes, and the bytes with right checksums.
pub(crate) fn both(bytes: &[u8], fix: fn(&mut [u8]), read: impl Fn(&[u8]) -> Option<()>) -> bool {
    let as_it_is = read(bytes);
    let mut fixed = bytes.to_vec();
    fix(&mut fixed);
    as_it_is.or_else(|| read(&fixed)).is_some()
}

/// The number at `at`; none beyond the end.
fn word(bytes: &[u8], at: usize) -> Option<usize> {
    let four = bytes.get(at..at.checked_add(4)?)?;
    Some(u32::from_le_bytes([four[0], four[1], four[2], four[3]]) as usize)
}

/// Puts the checksum of `bytes[from..to]` at `at`, if all of that is there.
fn put_crc(bytes: &mut [u8], from: usize, to: usize, at: usize) {
    if let Some(crc) = bytes.get(from..to).map(crc32c)
        && let Some(place) = bytes.get_mut(at..at.saturating_add(4))
    {
        place.copy_from_slice(&crc.to_le_bytes());
    }
}

/// Handles, segment indexes and manifests.
pub fn fix_envelope(bytes: &mut [u8]) {
    if let Some(at) = bytes.len().checked_sub(4) {
        put_crc(bytes, 0, at, at);
    }
}

/// Change sets: what is stored first, then the index over it, then the header over the index.
pub fn fix_set(bytes: &mut [u8]) {
    fix_index(bytes);
    put_crc(bytes, 0, SET_HEADER_LEN - 4, SET_HEADER_LEN - 4);
}

fn fix_index(bytes: &mut [u8]) -> Option<()> {
    let entries_end = word(bytes, 8)?.checked_mul(INDEX_ENTRY_LEN)?.checked_add(SET_HEADER_LEN)?;
    let index_end = if bytes[7] == 1 { entries_end.checked_add(12)? } else { entries_end };
    bytes.get(..index_end)?;
    let mut at = index_end;
    let columns = (index_end > entries_end).then_some(entries_end + 4);
    let blocks = (SET_HEADER_LEN..entries_end).step_by(INDEX_ENTRY_LEN).map(|entry| entry + 12);
    for length_at in columns.into_iter().chain(blocks) {
        let end = at.saturating_add(word(bytes, length_at)?);
        put_crc(bytes, at, end, length_at + 4);
        at = end;
    }
    put_crc(bytes, SET_HEADER_LEN, index_end, SET_HEADER_LEN - 8);
    Some(())
}

/// Log objects.
pub fn fix_file(bytes: &mut [u8]) {
    put_crc(bytes, 0, FILE_HEADER_LEN - 4, FILE_HEADER_LEN - 4);
    let n = bytes.len();
    if let Some(footer) = n.checked_sub(8).and_then(|at| word(bytes, at))
        && (24..=n).contains(&footer)
    {
        // The checksum over all before the footer stands in front of the footer's length.
        put_crc(bytes, 0, n - footer, n - 12);
        put_crc(bytes, n - footer, n - 4, n - 4);
    }
}

/// Payloads of rows: the checksum stands behind the magic number at the end.
pub fn fix_row_payload(bytes: &mut [u8]) {
    if let Some(end) = bytes.len().checked_sub(8) {
        put_crc(bytes, 0, end, end + 4);
    }
}

/// Notes of folders: JSON, in which the checksum stands in hexadecimal.
pub fn fix_note(bytes: &mut [u8]) {
    const FIELD: &[u8] = b"\"crc32c\": \"";
    let Ok(mut fields) = serde_json::from_slice::<std::collections::BTreeMap<String, serde_json::Value>>(bytes) else {
        return;
    };
    fields.remove("crc32c");
    let crc = crc32c(&serde_json::to_vec(&fields).unwrap_or_default());
    if let Some(at) = bytes.windows(FIELD.len()).position(|window| window == FIELD)
        && let Some(place) = bytes.get_mut(at + FIELD.len()..at + FIELD.len() + 8)
    {
        place.copy_from_slice(format!("{crc:08x}").as_bytes());
    }
}

/// One block as an index lists it.
#[derive(Debug, Clone, Copy)]
pub struct Entry {
    /// The number of its first record.
    pub first: u16,
    /// The number of its last record.
    pub last: u16,
    /// Its records.
    pub records: u32,
    /// Its raw length.
    pub raw_length: u32,
}

/// A set of one block: keyed if there are no `columns`. All but what is given here is right.
pub fn one_block_set(compression: u8, entry: Entry, columns: Option<&[u8]>, stored: &[u8]) -> Vec<u8> {
    let columns_len = columns.map_or(0, <[u8]>::len);
    let index_len = INDEX_ENTRY_LEN + if columns.is_some() { 12 } else { 0 };
    let length = SET_HEADER_LEN + index_len + columns_len + stored.len();
    let mut out = b"FCLS\x01\x00".to_vec();
    out.extend([compression, u8::from(columns.is_some())]);
    out.extend(1_u32.to_le_bytes());
    out.extend((index_len as u32).to_le_bytes());
    out.extend(u64::from(entry.records).to_le_bytes());
    out.extend((length as u64).to_le_bytes());
    out.extend([0; 8]);
    out.extend(entry.first.to_le_bytes());
    out.extend(entry.last.to_le_bytes());
    out.extend(entry.records.to_le_bytes());
    out.extend(entry.raw_length.to_le_bytes());
    out.extend((stored.len() as u32).to_le_bytes());
    out.extend([0; 4]);
    if let Some(columns) = columns {
        out.extend((columns.len() as u32).to_le_bytes());
        out.extend((columns.len() as u32).to_le_bytes());
        out.extend([0; 4]);
        out.extend(columns);
    }
    out.extend(stored);
    fix_set(&mut out);
    out
}
