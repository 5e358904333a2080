//! Spark's compressed streams: LZ4 (the default), Zstandard and Snappy, told apart by their first bytes.
//!
//! Owns: the frames of lz4-java and of snappy-java, and their checksums.
//! Does not own: the codecs themselves (`lz4_flex`, `zstd`, `snap`).
//!
//! The setting that chose the codec is the query's, not the checkpoint's, so the bytes decide.

use bytes::{Buf, Bytes};
use fastchangelog_format::error::{Error, Result};
use std::io::{self, Read};

const LZ4_MAGIC: &[u8] = b"LZ4Block";
/// Magic, token, compressed and original length, checksum.
const LZ4_HEADER: usize = 21;
const LZ4_RAW: u8 = 0x10;
const LZ4_COMPRESSED: u8 = 0x20;
const LZ4_SEED: u32 = 0x9747_B28C;
/// lz4-java keeps 28 bits of the hash.
const LZ4_HASH: u32 = 0x0FFF_FFFF;
const SNAPPY_MAGIC: &[u8] = b"\x82SNAPPY\0";
/// Magic, version, the oldest compatible version.
const SNAPPY_HEADER: usize = 16;
const ZSTD_MAGIC: &[u8] = b"\x28\xB5\x2F\xFD";
const LZF_MAGIC: &[u8] = b"ZV";
/// The largest block that a writer of Spark makes is 32 MiB (`spark.io.compression.lz4.blockSize` and its like).
const MAX_BLOCK: usize = 64 << 20;

/// The content of a compressed file.
pub(crate) fn decompressed(name: &str, file: Bytes) -> Result<Box<dyn Read + Send>> {
    if file.starts_with(LZ4_MAGIC) {
        return Ok(Box::new(Blocks::new(file, lz4_block)));
    }
    if file.starts_with(SNAPPY_MAGIC) {
        return Ok(Box::new(Blocks::new(file, snappy_block)));
    }
    if file.starts_with(ZSTD_MAGIC) {
        let decoder = zstd::stream::read::Decoder::new(file.reader()).map_err(|e| Error::corrupt(name, 0, e))?;
        return Ok(Box::new(decoder));
    }
    let what = if file.starts_with(LZF_MAGIC) { "is compressed with LZF" } else { "has no compression of Spark's" };
    Err(Error::corrupt(name, 0, format_args!("the file {what}; LZ4, Zstandard and Snappy are read")))
}

/// Takes one block from the file and appends its content; false at the end.
type NextBlock = fn(&mut Bytes, &mut Vec<u8>) -> io::Result<bool>;

/// A stream of blocks.
struct Blocks {
    file: Bytes,
    next: NextBlock,
    block: Vec<u8>,
    at: usize,
}

impl Blocks {
    fn new(file: Bytes, next: NextBlock) -> Self {
        Self { file, next, block: Vec::new(), at: 0 }
    }
}

impl Read for Blocks {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        while self.at == self.block.len() {
            self.block.clear();
            self.at = 0;
            if !(self.next)(&mut self.file, &mut self.block)? {
                return Ok(0);
            }
        }
        let length = out.len().min(self.block.len() - self.at);
        out[..length].copy_from_slice(&self.block[self.at..self.at + length]);
        self.at += length;
        Ok(length)
    }
}

fn damaged(what: impl std::fmt::Display) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.to_string())
}

fn lz4_block(file: &mut Bytes, out: &mut Vec<u8>) -> io::Result<bool> {
    if file.is_empty() {
        return Ok(false);
    }
    if file.len() < LZ4_HEADER || !file.starts_with(LZ4_MAGIC) {
        return Err(damaged("an LZ4 block without a header"));
    }
    file.advance(LZ4_MAGIC.len());
    let token = file.get_u8();
    let (packed, length, checksum) = (file.get_u32_le() as usize, file.get_u32_le() as usize, file.get_u32_le());
    if packed > file.len() || length > MAX_BLOCK {
        return Err(damaged("an LZ4 block is truncated"));
    }
    let data = file.split_to(packed);
    match token & 0xF0 {
        LZ4_RAW if packed == length => out.extend_from_slice(&data),
        LZ4_COMPRESSED => {
            out.resize(length, 0);
            let size = lz4_flex::block::decompress_into(&data, out).map_err(damaged)?;
            out.truncate(size);
        }
        _ => return Err(damaged("an LZ4 block of an unknown form")),
    }
    let is_end = length == 0;
    if out.len() != length || (!is_end && xxhash_rust::xxh32::xxh32(out, LZ4_SEED) & LZ4_HASH != checksum) {
        return Err(damaged("an LZ4 block whose checksum differs"));
    }
    Ok(true)
}

fn snappy_block(file: &mut Bytes, out: &mut Vec<u8>) -> io::Result<bool> {
    while file.starts_with(SNAPPY_MAGIC) {
        // Streams may follow each other.
        if file.len() < SNAPPY_HEADER {
            return Err(damaged("a Snappy stream without a header"));
        }
        file.advance(SNAPPY_HEADER);
    }
    if file.is_empty() {
        return Ok(false);
    }
    let packed = if file.len() < 4 { usize::MAX } else { file.get_u32() as usize };
    if packed > file.len() {
        return Err(damaged("a Snappy block is truncated"));
    }
    let data = file.split_to(packed);
    let length = snap::raw::decompress_len(&data).map_err(damaged)?;
    if length > MAX_BLOCK {
        return Err(damaged("a Snappy block of a size that no writer makes"));
    }
    out.resize(length, 0);
    let size = snap::raw::Decoder::new().decompress(&data, out).map_err(damaged)?;
    out.truncate(size);
    Ok(true)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// The bytes as lz4-java writes them, in blocks of `block` bytes.
    pub(crate) fn lz4_java(content: &[u8], block: usize) -> Bytes {
        let mut out = Vec::new();
        for part in content.chunks(block) {
            let packed = lz4_flex::block::compress(part);
            let (token, data) = if packed.len() < part.len() { (LZ4_COMPRESSED, &packed[..]) } else { (LZ4_RAW, part) };
            out.extend_from_slice(LZ4_MAGIC);
            out.push(token | 5);
            out.extend_from_slice(&(data.len() as u32).to_le_bytes());
            out.extend_from_slice(&(part.len() as u32).to_le_bytes());
            out.extend_from_slice(&(xxhash_rust::xxh32::xxh32(part, LZ4_SEED) & LZ4_HASH).to_le_bytes());
            out.extend_from_slice(data);
        }
        out.extend_from_slice(LZ4_MAGIC);
        out.push(LZ4_RAW | 5);
        out.extend_from_slice(&[0; 12]);
        out.into()
    }

    fn snappy_java(content: &[u8], block: usize) -> Bytes {
        let mut out = SNAPPY_MAGIC.to_vec();
        out.extend_from_slice(&[0, 0, 0, 1, 0, 0, 0, 1]);
        for part in content.chunks(block) {
            let packed = snap::raw::Encoder::new().compress_vec(part).unwrap();
            out.extend_from_slice(&(packed.len() as u32).to_be_bytes());
            out.extend_from_slice(&packed);
        }
        out.into()
    }

    fn read(file: Bytes) -> Result<Vec<u8>> {
        let mut out = Vec::new();
        let mut content = decompressed("1.delta", file)?;
        content.read_to_end(&mut out).map_err(|e| Error::corrupt("1.delta", 0, e))?;
        Ok(out)
    }

    fn content() -> Vec<u8> {
        (0..5000_u32).flat_map(|i| (i / 7).to_le_bytes()).collect()
    }

    #[test]
    fn each_codec_is_known_by_its_bytes() {
        let content = content();
        for block in [1, 999, 1 << 20] {
            assert_eq!(read(lz4_java(&content, block)).unwrap(), content);
            assert_eq!(read(snappy_java(&content, block)).unwrap(), content);
        }
        assert_eq!(read(zstd::encode_all(&content[..], 3).unwrap().into()).unwrap(), content);
        let two = [lz4_java(b"ab", 9), lz4_java(b"cd", 9)].concat();
        assert_eq!(read(two.into()).unwrap(), b"abcd", "streams may follow each other");
    }

    #[test]
    fn p9_damage_is_an_error() {
        let whole = lz4_java(&content(), 999);
        for cut in 1..whole.len() - 21 {
            // A cut between blocks cannot be seen here: the content says where it ends.
            let _ = read(whole.slice(..cut));
        }
        for at in (0..whole.len() - 21).step_by(7) {
            let mut bytes = whole.to_vec();
            bytes[at] ^= 0x41;
            // Some bits of a header say only how well the block is compressed.
            assert!(read(bytes.into()).map_or(true, |found| found == content()), "byte {at}");
        }
        for bytes in [&b""[..], b"abc", b"ZV\x01", b"LZ4Block"] {
            assert!(read(Bytes::copy_from_slice(bytes)).is_err());
        }
    }
}
