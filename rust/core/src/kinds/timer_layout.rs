//! How timers lie in entries.
//!
//! Owns: the two entries of a timer, and their keys.
//! Does not own: which timers are due (`timers`), what a timer does (the worker, the program).
//!
//! ```text
//! 0 | key | time     by key: the timers of a key, in the order of their times
//! 1 | time | key     by time: the timers of a key group, in the order of their times, then of their keys
//! ```
//!
//! Both have empty values. A time is in eight bytes that have its order: of a processor in milliseconds since the epoch, of an
//! embedded state in microseconds.

use crate::states::scan::MergedCursor;
use crate::states::times::{TIME, ordered, time_of};
use fastchangelog_format::error::{Error, Result};

/// Bytes of a page of timers, about: keys may be long.
pub(crate) const PAGE_BYTES: usize = 4 << 20;
/// First bytes of the keys of the two entries.
pub(crate) const BY_KEY: u8 = 0;
pub(crate) const BY_TIME: u8 = 1;

/// Makes `out` the key of the entry by key.
pub(crate) fn push_by_key(out: &mut Vec<u8>, key: &[u8], time: i64) {
    out.clear();
    out.push(BY_KEY);
    out.extend_from_slice(key);
    out.extend_from_slice(&ordered(time));
}

/// Makes `out` the key of the entry by time.
pub(crate) fn push_by_time(out: &mut Vec<u8>, time: i64, key: &[u8]) {
    out.clear();
    out.push(BY_TIME);
    out.extend_from_slice(&ordered(time));
    out.extend_from_slice(key);
}

/// Key and time of an entry by key.
pub(crate) fn split_by_key(entry: &[u8]) -> Result<(&[u8], i64)> {
    match entry.split_first().map(|(tag, rest)| (*tag, rest.split_last_chunk::<TIME>())) {
        Some((BY_KEY, Some((key, time)))) => Ok((key, time_of(*time))),
        _ => Err(bad_timer()),
    }
}

/// Time and key of an entry by time.
pub(crate) fn split_by_time(entry: &[u8]) -> Result<(i64, &[u8])> {
    match entry.split_first().map(|(tag, rest)| (*tag, rest.split_first_chunk::<TIME>())) {
        Some((BY_TIME, Some((time, key)))) => Ok((time_of(*time), key)),
        _ => Err(bad_timer()),
    }
}

/// The times of the timers of one key, in their order. The cursor is at the first entry that begins with the key.
pub(crate) fn times_of_key(cursor: &mut MergedCursor<'_>, key: &[u8]) -> Result<Vec<i64>> {
    let mut times = Vec::new();
    while let Some((entry, _)) = cursor.entry()? {
        let (own, time) = split_by_key(entry)?;
        if own == key {
            times.push(time);
        }
        cursor.advance()?;
    }
    Ok(times)
}

fn bad_timer() -> Error {
    Error::corrupt("a timer", 0, "its key is not one of a timer")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_golden_timer_is_laid_out_as_ever() {
        let mut entry = vec![9];
        push_by_key(&mut entry, b"k", 258);
        assert_eq!(entry, [0, b'k', 0x80, 0, 0, 0, 0, 0, 1, 2]);
        push_by_time(&mut entry, -1, b"k");
        assert_eq!(entry, [1, 0x7f, 255, 255, 255, 255, 255, 255, 255, b'k']);
    }

    #[test]
    fn both_entries_say_all_and_have_the_order_of_times() {
        let times = [i64::MIN, -1, 0, 1, 255, 256, i64::MAX];
        let mut entries = Vec::new();
        for time in times {
            for key in [&b""[..], b"k", b"kk"] {
                let (mut by_key, mut by_time) = (Vec::new(), Vec::new());
                push_by_key(&mut by_key, key, time);
                push_by_time(&mut by_time, time, key);
                assert_eq!(split_by_key(&by_key).unwrap(), (key, time));
                assert_eq!(split_by_time(&by_time).unwrap(), (time, key));
                assert!(split_by_time(&by_key).is_err() && split_by_key(&by_time).is_err());
                entries.push(by_time);
            }
        }
        assert!(entries.is_sorted(), "by time, then by key");
        assert!(split_by_key(&[BY_KEY, 1, 2]).is_err());
    }
}
