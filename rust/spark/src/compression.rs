//! Spark's compressed streams: LZ4 (the default), Zstandard and Snappy, told apart by their first bytes.
//!
//! Owns: the frames of lz4-java and of snappy-java, and their checksums.
//! Does not own: the codecs themselves (`lz4_flex`, `zstd`, `snap`).
//!
//! The setting that chose the codec is the query's, not the checkpoint's, so the bytes decide.

use bytes::Buf;
use fastchangelog_format::error::{Error, Result};
use std::io::{self, Cursor, Read};

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

/// The content of a file.
pub(crate) type Content = Box<dyn Read + Send>;

/// The error of the file `name` at an offset: damage, unless this machine's disk failed.
pub(crate) fn read_error(name: &str, offset: u64, error: &io::Error) -> Error {
    match error.raw_os_error() {
        Some(_) => Error::io(format_args!("cannot keep {name} in the scratch folder"), error),
        None => Error::corrupt(name, offset, error),
    }
}

/// The content of a compressed file.
pub(crate) fn decompressed(name: &str, mut file: Content) -> Result<Content> {
    let mut head = Vec::new();
    (&mut file).take(SNAPPY_MAGIC.len() as u64).read_to_end(&mut head).map_err(|e| read_error(name, 0, &e))?;
    let whole: Content = Box::new(Read::chain(Cursor::new(head.clone()), file));
    if head.starts_with(LZ4_MAGIC) {
        return Ok(Box::new(Blocks::new(whole, lz4_block)));
    }
    if head.starts_with(SNAPPY_MAGIC) {
        return Ok(Box::new(Blocks::new(whole, snappy_block)));
    }
    if head.starts_with(ZSTD_MAGIC) {
        let decoder = zstd::stream::read::Decoder::new(whole).map_err(|e| read_error(name, 0, &e))?;
        return Ok(Box::new(decoder));
    }
    let what = if head.starts_with(LZF_MAGIC) { "is compressed with LZF" } else { "has no compression of Spark's" };
    Err(Error::corrupt(name, 0, format_args!("the file {what}; LZ4, Zstandard and Snappy are read")))
}

/// Takes one block from the file and makes its content the second buffer's; the first is for its compressed bytes.
/// False at the end.
type NextBlock = fn(&mut Content, &mut Vec<u8>, &mut Vec<u8>) -> io::Result<bool>;

/// A stream of blocks.
struct Blocks {
    file: Content,
    next: NextBlock,
    packed: Vec<u8>,
    block: Vec<u8>,
    at: usize,
}

impl Blocks {
    fn new(file: Content, next: NextBlock) -> Self {
        Self { file, next, packed: Vec::new(), block: Vec::new(), at: 0 }
    }
}

impl Read for Blocks {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        while self.at == self.block.len() {
            self.block.clear();
            self.at = 0;
            if !(self.next)(&mut self.file, &mut self.packed, &mut self.block)? {
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

/// Fills `out`; false at the end of the file.
fn fill(file: &mut Content, out: &mut [u8]) -> io::Result<bool> {
    let mut bytes = Vec::with_capacity(out.len());
    file.take(out.len() as u64).read_to_end(&mut bytes)?;
    if !bytes.is_empty() && bytes.len() < out.len() {
        return Err(damaged("a block's header is truncated"));
    }
    out[..bytes.len()].copy_from_slice(&bytes);
    Ok(!bytes.is_empty())
}

/// Reads the compressed bytes of a block.
fn take(file: &mut Content, length: usize, packed: &mut Vec<u8>) -> io::Result<()> {
    packed.clear();
    if length > MAX_BLOCK || file.take(length as u64).read_to_end(packed)? < length {
        return Err(damaged("a block is truncated"));
    }
    Ok(())
}

fn lz4_block(file: &mut Content, packed: &mut Vec<u8>, out: &mut Vec<u8>) -> io::Result<bool> {
    let mut header = [0; LZ4_HEADER];
    if !fill(file, &mut header)? {
        return Ok(false);
    }
    let Some(mut fields) = header.strip_prefix(LZ4_MAGIC) else {
        return Err(damaged("an LZ4 block without a header"));
    };
    let token = fields.get_u8();
    let (size, length, checksum) = (fields.get_u32_le() as usize, fields.get_u32_le() as usize, fields.get_u32_le());
    if length > MAX_BLOCK {
        return Err(damaged("an LZ4 block of a size that no writer makes"));
    }
    take(file, size, packed)?;
    match token & 0xF0 {
        LZ4_RAW if size == length => out.extend_from_slice(packed),
        LZ4_COMPRESSED => {
            out.resize(length, 0);
            let size = lz4_flex::block::decompress_into(packed, out).map_err(damaged)?;
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

fn snappy_block(file: &mut Content, packed: &mut Vec<u8>, out: &mut Vec<u8>) -> io::Result<bool> {
    let mut size = [0; 4];
    loop {
        if !fill(file, &mut size)? {
            return Ok(false);
        }
        let Some(magic) = SNAPPY_MAGIC.strip_prefix(&size) else { break };
        // Streams may follow each other.
        let mut header = [0; SNAPPY_HEADER - 4];
        if !fill(file, &mut header)? || !header.starts_with(magic) {
            return Err(damaged("a Snappy stream without a header"));
        }
    }
    take(file, u32::from_be_bytes(size) as usize, packed)?;
    let length = snap::raw::decompress_len(packed).map_err(damaged)?;
    if length > MAX_BLOCK {
        return Err(damaged("a Snappy block of a size that no writer makes"));
    }
    out.resize(length, 0);
    let size = snap::raw::Decoder::new().decompress(packed, out).map_err(damaged)?;
    out.truncate(size);
    Ok(true)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use bytes::Bytes;
    use fastchangelog_format::error::ErrorKind;

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
        let mut content = decompressed("1.delta", Box::new(file.reader()))?;
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
    fn a_fault_of_the_disk_is_no_damage() {
        struct Full;
        impl Read for Full {
            fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
                Err(io::Error::from_raw_os_error(28))
            }
        }
        let error = decompressed("1.delta", Box::new(Full)).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Retryable, "{error}");
        let cut = io::Error::new(io::ErrorKind::InvalidData, "cut");
        assert_eq!(read_error("1.delta", 0, &cut).kind(), ErrorKind::Corrupt);
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
