//! The keys of session windows.
//!
//! Owns: the parts of such a key. Does not own: merging (`session_windows`), the encoding of a key's columns (`codec`).
//!
//! In tables and payloads, the key of a session window is that of its group, then its start and its end as the last two key
//! columns. Its group alone says to which shard and key group it belongs.

use super::codec::{TIME_BYTES, time_of, time_prefix};

/// Bytes of start and end at the end of a key.
const WINDOW_BYTES: usize = 2 * TIME_BYTES;

/// The key without the window.
#[inline]
pub fn grouping_key(key: &[u8]) -> &[u8] {
    &key[..key.len().saturating_sub(WINDOW_BYTES)]
}

/// The start of the window; none of a key without one.
#[inline]
pub fn start_of(key: &[u8]) -> Option<i64> {
    time_of(&key[key.len().saturating_sub(WINDOW_BYTES)..])
}

/// The end of the window; none of a key without one.
#[inline]
pub fn end_of(key: &[u8]) -> Option<i64> {
    time_of(&key[key.len().saturating_sub(TIME_BYTES)..])
}

/// The key of a session window.
pub fn window_key(grouping: &[u8], start: i64, end: i64) -> Vec<u8> {
    [grouping, &time_prefix(start), &time_prefix(end)].concat()
}

/// A key without a window: in a table, it asks for the stored windows of its group. It comes before all windows.
pub fn asking_key(grouping: &[u8]) -> Vec<u8> {
    [grouping, &[0; WINDOW_BYTES]].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_comes_apart_into_group_start_and_end() {
        for grouping in [&b""[..], b"k", &[0; 40]] {
            let key = window_key(grouping, -5, 7);
            assert_eq!((grouping_key(&key), start_of(&key), end_of(&key)), (grouping, Some(-5), Some(7)));
            let asking = asking_key(grouping);
            assert_eq!((grouping_key(&asking), start_of(&asking), end_of(&asking)), (grouping, None, None));
            assert!(asking < window_key(grouping, i64::MIN, i64::MIN));
            assert!(window_key(grouping, -1, 5) < window_key(grouping, 0, 1));
        }
    }
}
