//! Entries that end.
//!
//! Owns: the eight bytes before a value that say when it ends, and whether it has.
//! Does not own: which states have them (`kinds::catalog`), the removal of what has ended (`sweep`).
//!
//! The time is in milliseconds since the epoch. A value is there as long as its end is later than now.

use super::times::{TIME, ordered, time_of};
use fastchangelog_format::error::{Error, Result};

/// Bytes before the value.
pub(crate) const PREFIX: usize = TIME;

/// The bytes before a value that ends at `millis`.
pub(crate) fn prefix(millis: i64) -> [u8; PREFIX] {
    ordered(millis)
}

/// When a stored value ends, and its bytes.
pub(crate) fn split(stored: &[u8]) -> Result<(i64, &[u8])> {
    let (prefix, value) = stored
        .split_first_chunk::<PREFIX>()
        .ok_or_else(|| Error::corrupt("a value with a TTL", 0, "it has no expiry"))?;
    Ok((time_of(*prefix), value))
}

/// The bytes of a stored value; none if it has ended at `now`.
pub(crate) fn alive(stored: &[u8], now: i64) -> Result<Option<&[u8]>> {
    let (ends, value) = split(stored)?;
    Ok((ends > now).then_some(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_ends_at_its_time() {
        for ends in [i64::MIN, -1, 0, 1, i64::MAX - 1] {
            let stored = [&prefix(ends)[..], b"value"].concat();
            assert_eq!(split(&stored).unwrap(), (ends, &b"value"[..]));
            assert_eq!(alive(&stored, ends).unwrap(), None);
            assert_eq!(alive(&stored, ends.saturating_sub(1)).unwrap(), (ends > i64::MIN).then_some(&b"value"[..]));
        }
        assert_eq!(prefix(258), [0x80, 0, 0, 0, 0, 0, 1, 2], "as ever");
        assert!(prefix(-1) < prefix(0) && prefix(0) < prefix(1), "they have the order of times");
        assert!(alive(b"1234567", 0).is_err());
    }
}
