//! Log objects: a file header, change sets of any number of writers, and a footer that lists them.
//!
//! Owns: the bytes around the sets. Does not own: the sets (`set`), batching and uploading.

use super::wire::{Reader, check_version, crc32c, foreign};
use crate::error::{Error, Result};
use bytes::Bytes;

const FILE_MAGIC: [u8; 4] = *b"FCLG";
const FOOTER_MAGIC: [u8; 4] = *b"FCLF";
const FILE_VERSION: u16 = 1;

/// Bytes of [`file_header`]; the first change set starts here.
pub const FILE_HEADER_LEN: usize = 16;
/// Fixed bytes of the footer before and after the list of sets.
const FOOTER_HEAD: usize = 12;
const FOOTER_TAIL: usize = 12;

/// The first bytes of a log object.
pub fn file_header() -> Bytes {
    let mut out = Vec::with_capacity(FILE_HEADER_LEN);
    out.extend_from_slice(&FILE_MAGIC);
    out.extend_from_slice(&FILE_VERSION.to_le_bytes());
    out.extend_from_slice(&[0; 6]);
    let crc = crc32c(&out);
    out.extend_from_slice(&crc.to_le_bytes());
    out.into()
}

/// The last bytes of a log object: where its sets are, and the CRC-32C of everything before the footer.
pub fn file_footer(sets: &[(u64, u64)], crc_of_all_before: u32) -> Bytes {
    let length = FOOTER_HEAD + sets.len() * 16 + FOOTER_TAIL;
    let mut out = Vec::with_capacity(length);
    out.extend_from_slice(&FOOTER_MAGIC);
    out.extend_from_slice(&FILE_VERSION.to_le_bytes());
    out.extend_from_slice(&[0; 2]);
    #[expect(clippy::cast_possible_truncation, reason = "a log object holds far fewer sets than 2^32")]
    out.extend_from_slice(&(sets.len() as u32).to_le_bytes());
    for (offset, length) in sets {
        out.extend_from_slice(&offset.to_le_bytes());
        out.extend_from_slice(&length.to_le_bytes());
    }
    out.extend_from_slice(&crc_of_all_before.to_le_bytes());
    #[expect(clippy::cast_possible_truncation, reason = "far below 2^32 sets")]
    out.extend_from_slice(&(length as u32).to_le_bytes());
    let crc = crc32c(&out);
    out.extend_from_slice(&crc.to_le_bytes());
    out.into()
}

/// Checks a whole log object (header, footer, checksum over all) and returns where its sets are.
/// The sets themselves are checked when they are read.
pub fn decode_file(object: &str, bytes: &[u8]) -> Result<Vec<(u64, u64)>> {
    let cut =
        |what: &str| Error::corrupt(object, bytes.len() as u64, format_args!("the log object is cut off: {what}"));
    if bytes.len() >= 4 && bytes[..4] != FILE_MAGIC {
        return Err(foreign(object, 0, "log object"));
    }
    if bytes.len() < FILE_HEADER_LEN {
        return Err(cut("no header"));
    }
    let mut header = Reader::new(object, 0, &bytes[..FILE_HEADER_LEN]);
    header.take(4, "the magic number")?;
    let version = header.u16("the version")?;
    header.take(6, "the reserved bytes")?;
    let stored = header.u32("the checksum")?;
    if stored != crc32c(&bytes[..FILE_HEADER_LEN - 4]) {
        return Err(Error::corrupt(object, 0, "the checksum of the file header does not match"));
    }
    check_version(object, 4, "log object", version, FILE_VERSION)?;

    let minimum = FILE_HEADER_LEN + FOOTER_HEAD + FOOTER_TAIL;
    if bytes.len() < minimum {
        return Err(cut("no footer"));
    }
    let tail_at = bytes.len() - 8;
    let mut tail = Reader::new(object, tail_at as u64, &bytes[tail_at..]);
    let footer_len = tail.u32("the footer's length")? as usize;
    let footer_crc = tail.u32("the footer's checksum")?;
    if footer_len < FOOTER_HEAD + FOOTER_TAIL || footer_len > bytes.len() - FILE_HEADER_LEN {
        return Err(Error::corrupt(object, tail_at as u64, "no footer at the end: the object is cut off or damaged"));
    }
    let footer_at = bytes.len() - footer_len;
    let footer = &bytes[footer_at..];
    if footer[..4] != FOOTER_MAGIC || crc32c(&footer[..footer_len - 4]) != footer_crc {
        return Err(Error::corrupt(object, footer_at as u64, "no footer at the end: the object is cut off or damaged"));
    }
    let mut reader = Reader::new(object, footer_at as u64, &footer[..footer_len - 8]);
    reader.take(4, "the magic number")?;
    let version = reader.u16("the footer's version")?;
    check_version(object, footer_at as u64 + 4, "log object footer", version, FILE_VERSION)?;
    reader.take(2, "the reserved bytes")?;
    let count = reader.u32("the number of sets")? as usize;
    if reader.remaining() != count * 16 + 4 {
        return Err(reader.corrupt(format_args!("{count} sets do not fill the footer")));
    }
    let mut sets = Vec::with_capacity(count);
    let mut end = FILE_HEADER_LEN as u64;
    for _ in 0..count {
        let (offset, length) = (reader.u64("a set's offset")?, reader.u64("a set's length")?);
        match offset.checked_add(length) {
            Some(next) if offset >= end && next <= footer_at as u64 => end = next,
            _ => {
                return Err(
                    reader.corrupt(format_args!("a set at {offset} of {length} bytes is not inside the object"))
                );
            }
        }
        sets.push((offset, length));
    }
    let stored = reader.u32("the checksum of the sets")?;
    let actual = crc32c(&bytes[..footer_at]);
    if stored != actual {
        return Err(Error::corrupt(
            object,
            0,
            format_args!("the checksum of the bytes before the footer is {actual:08x}, but {stored:08x} was written"),
        ));
    }
    Ok(sets)
}
