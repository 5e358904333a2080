//! Times in bytes that compare as times do.
//!
//! Owns: that encoding. Does not own: what a time means (`ttl`, the timers of `kinds`).

/// Bytes of a time.
pub(crate) const TIME: usize = size_of::<i64>();

/// A time in bytes that compare as times do.
pub(crate) fn ordered(time: i64) -> [u8; TIME] {
    (time.cast_unsigned() ^ (1 << 63)).to_be_bytes()
}

/// The inverse of [`ordered`].
pub(crate) fn time_of(bytes: [u8; TIME]) -> i64 {
    (u64::from_be_bytes(bytes) ^ (1 << 63)).cast_signed()
}
