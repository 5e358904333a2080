//! Numbers and texts as Java's `DataOutputStream` writes them.
//!
//! Owns: reading them from a stream, and the errors for a stream that is cut short.
//! Does not own: compression (`compression`), the meaning (the callers).

use crate::compression::read_error;
use fastchangelog_format::error::{Error, Result};
use std::io::Read;

/// The longest text or value that is read: more is damage, not data.
const MAX_BYTES: usize = 1 << 30;
/// Bytes that are reserved before they are read, so that a damaged length takes no memory.
const RESERVED: usize = 1 << 16;

/// A stream of such values, with the name of its file for errors.
pub(crate) struct DataInput<R> {
    inner: R,
    name: String,
    offset: u64,
}

impl<R: Read> DataInput<R> {
    pub(crate) fn new(name: impl Into<String>, inner: R) -> Self {
        Self { inner, name: name.into(), offset: 0 }
    }

    /// An error about the bytes at the present offset.
    pub(crate) fn corrupt(&self, what: impl std::fmt::Display) -> Error {
        Error::corrupt(&self.name, self.offset, what)
    }

    /// The bytes, all of them.
    fn fill(&mut self, bytes: &mut [u8]) -> Result<()> {
        match self.inner.read_exact(bytes) {
            Ok(()) => {
                self.offset += bytes.len() as u64;
                Ok(())
            }
            Err(e) if e.kind() == std::io::ErrorKind::UnexpectedEof => Err(self.corrupt("the file is truncated")),
            Err(e) => Err(read_error(&self.name, self.offset, &e)),
        }
    }

    /// The next byte.
    pub(crate) fn byte(&mut self) -> Result<u8> {
        let mut byte = [0];
        self.fill(&mut byte)?;
        Ok(byte[0])
    }

    /// A big-endian `short`.
    pub(crate) fn short(&mut self) -> Result<u16> {
        let mut bytes = [0; 2];
        self.fill(&mut bytes)?;
        Ok(u16::from_be_bytes(bytes))
    }

    /// A big-endian `int`.
    pub(crate) fn int(&mut self) -> Result<i32> {
        let mut bytes = [0; 4];
        self.fill(&mut bytes)?;
        Ok(i32::from_be_bytes(bytes))
    }

    /// So many bytes, after those of `out`, which is cleared first.
    pub(crate) fn bytes(&mut self, length: i32, out: &mut Vec<u8>) -> Result<()> {
        let length = usize::try_from(length).ok().filter(|length| *length <= MAX_BYTES);
        let Some(length) = length else { return Err(self.corrupt("a length that no value has")) };
        out.clear();
        out.reserve(length.min(RESERVED));
        let read = (&mut self.inner).take(length as u64).read_to_end(out);
        let read = read.map_err(|e| read_error(&self.name, self.offset, &e))?;
        self.offset += read as u64;
        if read < length { Err(self.corrupt("the file is truncated")) } else { Ok(()) }
    }

    /// A text of `writeUTF`. Characters beyond the first plane are rare in names: they are read as Java writes them, in
    /// pairs of surrogates.
    pub(crate) fn utf(&mut self) -> Result<String> {
        let length = self.short()?;
        let mut bytes = Vec::new();
        self.bytes(i32::from(length), &mut bytes)?;
        self.text(&bytes)
    }

    /// A text that is written in parts, each with `writeUTF`: their number, then the parts.
    pub(crate) fn utf_parts(&mut self) -> Result<String> {
        let parts = self.int()?;
        let mut whole = String::new();
        for _ in 0..parts {
            whole.push_str(&self.utf()?);
            if whole.len() > MAX_BYTES {
                return Err(self.corrupt("a text that is too long"));
            }
        }
        Ok(whole)
    }

    fn text(&self, bytes: &[u8]) -> Result<String> {
        decoded(bytes).ok_or_else(|| self.corrupt("a text that is not Java's UTF-8"))
    }
}

/// Java's modified UTF-8: zero is two bytes, characters beyond the first plane are two surrogates of three.
fn decoded(bytes: &[u8]) -> Option<String> {
    if let Ok(text) = std::str::from_utf8(bytes) {
        return Some(text.to_owned());
    }
    let mut units = Vec::with_capacity(bytes.len());
    let mut rest = bytes;
    while let Some((&first, tail)) = rest.split_first() {
        let next = |at: usize| tail.get(at).filter(|b| **b & 0xC0 == 0x80).map(|b| u16::from(b & 0x3F));
        let (unit, taken) = match first {
            0x00..=0x7F => (u16::from(first), 0),
            0xC0..=0xDF => (u16::from(first & 0x1F) << 6 | next(0)?, 1),
            0xE0..=0xEF => (u16::from(first & 0x0F) << 12 | next(0)? << 6 | next(1)?, 2),
            _ => return None,
        };
        units.push(unit);
        rest = &tail[taken..];
    }
    String::from_utf16(&units).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn input(bytes: &[u8]) -> DataInput<&[u8]> {
        DataInput::new("0/1.changelog", bytes)
    }

    #[test]
    fn texts_are_read_as_java_writes_them() {
        assert_eq!(input(b"\0\x02v2").utf().unwrap(), "v2");
        assert_eq!(input(&[0, 2, 0xC0, 0x80]).utf().unwrap(), "\0");
        assert_eq!(input(&[0, 6, 0xED, 0xA0, 0xBD, 0xED, 0xB8, 0x80]).utf().unwrap(), "\u{1F600}");
        assert_eq!(input(b"\0\0\0\x02\0\x01a\0\x01b").utf_parts().unwrap(), "ab");
    }

    #[test]
    fn p9_a_stream_cut_short_is_an_error_with_its_name() {
        for cut in 0..5 {
            let error = input(&b"\0\0\0\x01"[..cut.min(3)]).int().unwrap_err();
            assert!(error.message().contains("0/1.changelog"), "{error}");
        }
        assert!(input(b"\0\x05v2").utf().is_err());
        let mut out = Vec::new();
        assert!(input(b"ab").bytes(3, &mut out).is_err());
        assert!(input(b"ab").bytes(-7, &mut out).is_err());
        assert!(input(b"ab").bytes(i32::MAX, &mut out).is_err());
    }
}
