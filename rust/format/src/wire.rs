//! The alphabet of the formats: checksum, varints, a reading cursor and the envelope around small objects.
//!
//! Owns: the primitives that the other files of this crate are written in, and the wording of their errors.
//! Does not own: any particular format.

use crate::error::{Error, Result};

/// CRC-32C (the catalogue's CRC-32/ISCSI) of `bytes`.
#[inline]
pub fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(bytes)
}

/// The CRC-32C of some bytes followed by `length` others, from the checksums of both: nothing is read twice.
///
/// A checksum is a polynomial over GF(2) modulo the generator; bytes that follow multiply it by x^(8 × length).
pub fn crc32c_joined(before: u32, after: u32, length: u64) -> u32 {
    let mut moved = before;
    for (bit, power) in POWERS.iter().enumerate() {
        if length >> bit & 1 == 1 {
            moved = times(*power, moved);
        }
    }
    moved ^ after
}

/// x^(8 × 2^i) modulo the generator.
static POWERS: [u32; 64] = {
    // Bit 31 is x^0: this is x^8.
    let mut powers = [1 << 23; 64];
    let mut i = 1;
    while i < 64 {
        powers[i] = times(powers[i - 1], powers[i - 1]);
        i += 1;
    }
    powers
};

/// The product of two polynomials modulo the generator of CRC-32C, the lowest power in the highest bit.
const fn times(a: u32, mut b: u32) -> u32 {
    const GENERATOR: u32 = 0x82f6_3b78;
    let (mut product, mut bit) = (0, 1 << 31);
    while bit != 0 {
        if a & bit != 0 {
            product ^= b;
        }
        b = (b >> 1) ^ (GENERATOR & (b & 1).wrapping_neg());
        bit >>= 1;
    }
    product
}

/// A CRC-32C over bytes that arrive in parts.
#[derive(Debug, Clone)]
pub struct Crc(crc_fast::Digest);

impl Crc {
    /// The checksum of nothing.
    pub fn new() -> Self {
        Self(crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi))
    }

    /// Adds bytes at the end.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The checksum of all bytes so far.
    #[expect(clippy::cast_possible_truncation, reason = "a 32-bit checksum in a wider type")]
    pub fn value(&self) -> u32 {
        self.0.finalize() as u32
    }
}

impl Default for Crc {
    fn default() -> Self {
        Self::new()
    }
}

/// Appends `value` as LEB128.
#[inline]
pub fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        #[expect(clippy::cast_possible_truncation, reason = "the low seven bits")]
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    #[expect(clippy::cast_possible_truncation, reason = "below 0x80")]
    out.push(value as u8);
}

/// Appends a signed number: zigzag, then LEB128.
pub fn put_signed(out: &mut Vec<u8>, value: i64) {
    put_varint(out, ((value << 1) ^ (value >> 63)).cast_unsigned());
}

/// Appends a length and the bytes.
pub fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// A cursor over verified or about-to-be-verified bytes. Every error names the object and the absolute offset (P9).
#[derive(Debug, Clone)]
pub struct Reader<'a> {
    object: &'a str,
    base: u64,
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    /// A cursor at the start of `bytes`, which begin at byte `base` of `object`.
    pub fn new(object: &'a str, base: u64, bytes: &'a [u8]) -> Self {
        Self { object, base, bytes, at: 0 }
    }

    /// Absolute offset of the next byte.
    pub fn offset(&self) -> u64 {
        self.base.saturating_add(self.at as u64)
    }

    /// Bytes not read yet.
    pub fn remaining(&self) -> usize {
        self.bytes.len() - self.at
    }

    /// Damage at the current offset.
    pub fn corrupt(&self, what: impl std::fmt::Display) -> Error {
        Error::corrupt(self.object, self.offset(), what)
    }

    /// The next `n` bytes, which are the `what`.
    pub fn take(&mut self, n: usize, what: &str) -> Result<&'a [u8]> {
        if n > self.remaining() {
            return Err(self.corrupt(format_args!("{what} needs {n} bytes, {} are left", self.remaining())));
        }
        let taken = &self.bytes[self.at..self.at + n];
        self.at += n;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self, what: &str) -> Result<[u8; N]> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N, what)?);
        Ok(array)
    }

    /// A byte.
    pub fn u8(&mut self, what: &str) -> Result<u8> {
        Ok(self.array::<1>(what)?[0])
    }

    /// Two bytes as a number.
    pub fn u16(&mut self, what: &str) -> Result<u16> {
        self.array(what).map(u16::from_le_bytes)
    }

    /// Four bytes as a number.
    pub fn u32(&mut self, what: &str) -> Result<u32> {
        self.array(what).map(u32::from_le_bytes)
    }

    /// Eight bytes as a number.
    pub fn u64(&mut self, what: &str) -> Result<u64> {
        self.array(what).map(u64::from_le_bytes)
    }

    /// Sixteen bytes as a number.
    pub fn u128(&mut self, what: &str) -> Result<u128> {
        self.array(what).map(u128::from_le_bytes)
    }

    /// A LEB128 number.
    #[inline]
    pub fn varint(&mut self, what: &str) -> Result<u64> {
        let mut value = 0_u64;
        for shift in (0..64).step_by(7) {
            let Some(&byte) = self.bytes.get(self.at) else {
                return Err(self.corrupt(format_args!("{what} is cut off")));
            };
            if shift == 63 && byte > 1 {
                break;
            }
            self.at += 1;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(self.corrupt(format_args!("{what} is no number below 2^64")))
    }

    /// A LEB128 number that must fit `T`.
    #[inline]
    pub fn varint_as<T: TryFrom<u64>>(&mut self, what: &str) -> Result<T> {
        let value = self.varint(what)?;
        T::try_from(value).map_err(|_| self.corrupt(format_args!("{what} = {value} is out of range")))
    }

    /// A zigzag number.
    pub fn signed(&mut self, what: &str) -> Result<i64> {
        let value = self.varint(what)?;
        Ok((value >> 1).cast_signed() ^ -(value & 1).cast_signed())
    }

    /// A number of things of at least `each` bytes each, which therefore must still fit.
    pub fn count(&mut self, each: usize, what: &str) -> Result<usize> {
        let count: usize = self.varint_as(what)?;
        if count.checked_mul(each).is_none_or(|bytes| bytes > self.remaining()) {
            return Err(self.corrupt(format_args!("{what} = {count} does not fit the {} bytes left", self.remaining())));
        }
        Ok(count)
    }

    /// A length and that many bytes.
    pub fn bytes(&mut self, what: &str) -> Result<&'a [u8]> {
        let length = self.count(1, what)?;
        self.take(length, what)
    }

    /// A length and that many bytes of UTF-8.
    pub fn text(&mut self, what: &str) -> Result<&'a str> {
        let bytes = self.bytes(what)?;
        std::str::from_utf8(bytes).map_err(|_| self.corrupt(format_args!("{what} is not UTF-8")))
    }

    /// Nothing may be left.
    pub fn finish(self, what: &str) -> Result<()> {
        match self.remaining() {
            0 => Ok(()),
            n => Err(self.corrupt(format_args!("{n} bytes after the end of {what}"))),
        }
    }
}

/// The error for bytes that carry another magic number.
pub(crate) fn foreign(object: &str, offset: u64, what: &str) -> Error {
    Error::corrupt(object, offset, format_args!("this is not a fastchangelog {what}"))
}

/// Checks the version of a part whose checksum matched: a newer version is not damage but comes from a newer release.
pub(crate) fn check_version(object: &str, offset: u64, what: &str, found: u16, newest: u16) -> Result<()> {
    match found {
        0 => Err(Error::corrupt(object, offset, format_args!("{what} version 0 does not exist"))),
        v if v <= newest => Ok(()),
        v => Err(Error::invalid(format!(
            "{object} holds a {what} of format version {v}, but this release reads versions up to \
             {newest}"
        ))
        .with_remedy("upgrade fastchangelog to the release that wrote it")),
    }
}

/// Small objects are `magic (4) | version (2) | body | CRC-32C of all before (4)`, in every version.
pub(crate) struct Envelope {
    pub magic: [u8; 4],
    pub version: u16,
    pub what: &'static str,
}

impl Envelope {
    const PREFIX: usize = 6;
    const SUFFIX: usize = 4;

    /// A buffer that begins with magic and version.
    pub(crate) fn begin(&self, capacity: usize) -> Vec<u8> {
        let mut out = Vec::with_capacity(capacity + Self::PREFIX + Self::SUFFIX);
        out.extend_from_slice(&self.magic);
        out.extend_from_slice(&self.version.to_le_bytes());
        out
    }

    /// Adds the checksum.
    pub(crate) fn seal(mut out: Vec<u8>) -> Vec<u8> {
        let crc = crc32c(&out);
        out.extend_from_slice(&crc.to_le_bytes());
        out
    }

    /// The version of bytes that [`Self::open`] has accepted.
    pub(crate) fn version_of(bytes: &[u8]) -> u16 {
        bytes.get(4..6).map_or(0, |b| u16::from_le_bytes([b[0], b[1]]))
    }

    /// A cursor over the body, after magic, checksum and version were checked in this order.
    pub(crate) fn open<'a>(&self, object: &'a str, bytes: &'a [u8]) -> Result<Reader<'a>> {
        let what = self.what;
        if bytes.len() >= 4 && bytes[..4] != self.magic {
            return Err(foreign(object, 0, what));
        }
        if bytes.len() < Self::PREFIX + Self::SUFFIX {
            return Err(Error::corrupt(object, bytes.len() as u64, format_args!("the {what} is cut off")));
        }
        let (content, stored) = bytes.split_at(bytes.len() - Self::SUFFIX);
        let stored = Reader::new(object, content.len() as u64, stored).u32("the checksum")?;
        let actual = crc32c(content);
        if stored != actual {
            return Err(Error::corrupt(
                object,
                content.len() as u64,
                format_args!("the checksum of the {what} is {actual:08x}, but {stored:08x} was written"),
            ));
        }
        let mut reader = Reader::new(object, 0, content);
        reader.take(4, "the magic number")?;
        let version = reader.u16("the version")?;
        check_version(object, 4, what, version, self.version)?;
        Ok(reader)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn crc_is_the_catalogues() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        let mut parts = Crc::new();
        parts.update(b"1234");
        parts.update(b"56789");
        assert_eq!(parts.value(), 0xe306_9283);
    }

    #[test]
    fn joined_checksums_are_those_of_the_joined_bytes() {
        let bytes: Vec<u8> = (0..70_000u64).map(|i| ((i * i) >> 7) as u8).collect();
        for cut in [0, 1, 8, 4095, 65_537, 69_999, 70_000] {
            let (before, after) = bytes.split_at(cut);
            let joined = crc32c_joined(crc32c(before), crc32c(after), after.len() as u64);
            assert_eq!(joined, crc32c(&bytes), "cut at {cut}");
        }
        // More zeros than memory has: 2^33 at once are 2^32 twice.
        let zeros = |bits: u32| (0..bits).fold(crc32c(&[0]), |crc, bit| crc32c_joined(crc, crc, 1 << bit));
        assert_eq!(zeros(16), crc32c(&vec![0; 1 << 16]));
        let twice = (0..2).fold(crc32c(b"x"), |crc, _| crc32c_joined(crc, zeros(32), 1 << 32));
        assert_eq!(crc32c_joined(crc32c(b"x"), zeros(33), 1 << 33), twice);
    }

    proptest! {
        #[test]
        fn numbers_round_trip(a: u64, b: i64, small in 0u64..300) {
            let mut out = Vec::new();
            put_varint(&mut out, a);
            put_signed(&mut out, b);
            put_varint(&mut out, small);
            let mut reader = Reader::new("x", 0, &out);
            prop_assert_eq!(reader.varint("a").unwrap(), a);
            prop_assert_eq!(reader.signed("b").unwrap(), b);
            prop_assert_eq!(reader.varint("c").unwrap(), small);
            reader.finish("all").unwrap();
        }

        #[test]
        fn any_bytes_are_a_number_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..12)) {
            let _ = Reader::new("x", 0, &bytes).varint("n");
        }
    }

    #[test]
    fn overlong_numbers_are_refused() {
        assert!(Reader::new("x", 0, &[0xff; 9]).varint("n").is_err());
        assert!(Reader::new("x", 0, &[0xff; 11]).varint("n").is_err());
        let mut max = vec![0xff; 9];
        max.push(1);
        assert_eq!(Reader::new("x", 0, &max).varint("n").unwrap(), u64::MAX);
    }

    #[test]
    fn errors_name_object_and_absolute_offset() {
        let mut reader = Reader::new("log/ab", 1000, &[1, 2]);
        reader.u8("a").unwrap();
        let text = reader.u32("the length").unwrap_err().to_string();
        assert!(text.contains("log/ab") && text.contains("1001") && text.contains("the length"), "{text}");
    }
}
