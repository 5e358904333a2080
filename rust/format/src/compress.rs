//! Compression of one block: none, lz4 or zstd.
//!
//! Owns: the contexts (one per thread, so a block needs no set-up), the stored ids, and the bound on a block's claimed
//! raw length.
//! Does not own: the content of a block, or its checksum.
//!
//! A block that does not shrink is stored as it is: `stored length == raw length` means "not compressed" whatever the
//! set's compression. After a block that hardly shrinks, the next ones are not even tried.

use crate::config::Compression;
use crate::error::{Error, Result};
use std::cell::RefCell;

/// Level of zstd: the cheapest that still halves typical rows.
const ZSTD_LEVEL: i32 = 1;
/// Scratch above this size is given back after use, so that one huge record does not stay in memory forever.
const KEEP_SCRATCH: usize = 4 << 20;
/// A block hardly shrinks if it loses less than this part (1/n) of its bytes.
const WORTHWHILE: usize = 16;
/// Most blocks in a row that are not tried.
const MAX_PAUSE: u32 = 15;
/// LZ4 cannot expand by more: a byte of a length code stands for at most 255 bytes.
const LZ4_MAX_RATIO: u64 = 255;
/// Zstandard cannot expand by more: its smallest block has 4 bytes, its largest content 128 KiB.
const ZSTD_MAX_RATIO: u64 = 32 << 10;

/// The stored byte of a compression.
pub(crate) fn id_of(compression: Compression) -> u8 {
    match compression {
        Compression::None => 0,
        Compression::Lz4 => 1,
        Compression::Zstd => 2,
    }
}

/// The compression of a stored byte.
pub(crate) fn from_id(id: u8) -> Option<Compression> {
    match id {
        0 => Some(Compression::None),
        1 => Some(Compression::Lz4),
        2 => Some(Compression::Zstd),
        _ => None,
    }
}

#[derive(Default)]
struct Contexts {
    compressor: Option<zstd::bulk::Compressor<'static>>,
    decompressor: Option<zstd::bulk::Decompressor<'static>>,
    lz4: Option<lz4_flex::block::CompressTable>,
    scratch: Vec<u8>,
}

thread_local! {
    static CONTEXTS: RefCell<Contexts> = RefCell::default();
}

/// The blocks of one set, one after the other: random bytes cost little more than a copy.
#[derive(Debug)]
pub(crate) struct Blocks {
    compression: Compression,
    /// Number of blocks still to skip, and the length of the last skip.
    left: u32,
    pause: u32,
    /// Memory of a block before its compression.
    raw: Vec<u8>,
}

impl Blocks {
    pub(crate) fn new(compression: Compression) -> Self {
        Self { compression, left: 0, pause: 0, raw: Vec::new() }
    }

    /// Like [`Self::compress`], for the bytes that `build` appends; stored bytes go directly to `out`. Also returns the
    /// raw length.
    pub(crate) fn compress_built(
        &mut self,
        out: &mut Vec<u8>,
        build: impl FnOnce(&mut Vec<u8>),
    ) -> Result<(usize, usize)> {
        if self.passes() {
            let at = out.len();
            build(out);
            return Ok((out.len() - at, out.len() - at));
        }
        let mut raw = std::mem::take(&mut self.raw);
        raw.clear();
        build(&mut raw);
        let length = self.compress(&raw, out)?;
        self.raw = raw;
        Ok((self.raw.len(), length))
    }

    /// True if the next block is not compressed.
    fn passes(&mut self) -> bool {
        let passes = self.left > 0;
        self.left -= u32::from(passes);
        passes || self.compression == Compression::None
    }

    /// Appends `raw`, compressed if that makes it smaller and is worth a try, to `out`; returns the number of bytes
    /// appended.
    pub(crate) fn compress(&mut self, raw: &[u8], out: &mut Vec<u8>) -> Result<usize> {
        if self.passes() {
            return compress(Compression::None, raw, out);
        }
        let length = compress(self.compression, raw, out)?;
        let hardly = raw.len() - length < raw.len() / WORTHWHILE;
        self.pause = if hardly { (2 * self.pause + 1).min(MAX_PAUSE) } else { 0 };
        self.left = self.pause;
        Ok(length)
    }
}

/// Appends `raw`, compressed if that makes it smaller, to `out`; returns the number of bytes appended.
pub(crate) fn compress(compression: Compression, raw: &[u8], out: &mut Vec<u8>) -> Result<usize> {
    if compression == Compression::None || raw.is_empty() {
        out.extend_from_slice(raw);
        return Ok(raw.len());
    }
    CONTEXTS.with_borrow_mut(|contexts| {
        let bound = match compression {
            Compression::Zstd => zstd::zstd_safe::compress_bound(raw.len()),
            _ => lz4_flex::block::get_maximum_output_size(raw.len()),
        };
        if contexts.scratch.len() < bound {
            contexts.scratch.resize(bound, 0);
        }
        let scratch = contexts.scratch.as_mut_slice();
        let written = match compression {
            Compression::Zstd => {
                let compressor = match &mut contexts.compressor {
                    Some(compressor) => compressor,
                    none => none.insert(
                        zstd::bulk::Compressor::new(ZSTD_LEVEL)
                            .map_err(|e| Error::internal(format!("zstd: {e}")).with_source(e))?,
                    ),
                };
                compressor
                    .compress_to_buffer(raw, scratch)
                    .map_err(|e| Error::internal(format!("zstd: {e}")).with_source(e))?
            }
            _ => {
                let table = contexts.lz4.get_or_insert_with(lz4_flex::block::CompressTable::large);
                lz4_flex::block::compress_into_with_table(raw, scratch, table)
                    .map_err(|e| Error::internal(format!("lz4: {e}")).with_source(e))?
            }
        };
        let stored = if written < raw.len() { &scratch[..written] } else { raw };
        out.extend_from_slice(stored);
        let length = stored.len();
        if contexts.scratch.len() > KEEP_SCRATCH {
            contexts.scratch = Vec::new();
        }
        Ok(length)
    })
}

/// Unpacks `stored` into `raw`, which afterwards holds exactly `raw_len` bytes; else says what is wrong.
/// Reserves memory only when the compressed bytes can really unpack to that length.
pub(crate) fn decompress(
    compression: Compression,
    stored: &[u8],
    raw_len: usize,
    raw: &mut Vec<u8>,
) -> std::result::Result<(), String> {
    raw.clear();
    if stored.len() == raw_len {
        raw.extend_from_slice(stored);
        return Ok(());
    }
    let ratio = match compression {
        Compression::None => return Err(format!("{} bytes are stored of {raw_len} uncompressed ones", stored.len())),
        Compression::Lz4 => LZ4_MAX_RATIO,
        Compression::Zstd => ZSTD_MAX_RATIO,
    };
    if raw_len as u64 > (stored.len() as u64).saturating_mul(ratio) {
        return Err(format!("{} bytes cannot unpack to {raw_len}", stored.len()));
    }
    let written = match compression {
        Compression::Zstd => {
            let claimed = zstd::zstd_safe::get_frame_content_size(stored).ok().flatten();
            if claimed != Some(raw_len as u64) {
                return Err(format!("the zstd frame unpacks to {claimed:?} bytes, not {raw_len}"));
            }
            raw.reserve_exact(raw_len);
            CONTEXTS.with_borrow_mut(|contexts| {
                let decompressor = match &mut contexts.decompressor {
                    Some(decompressor) => decompressor,
                    none => none.insert(zstd::bulk::Decompressor::new().map_err(|e| format!("zstd: {e}"))?),
                };
                decompressor.decompress_to_buffer(stored, raw).map_err(|e| format!("zstd: {e}"))
            })?
        }
        _ => {
            raw.resize(raw_len, 0);
            lz4_flex::block::decompress_into(stored, raw).map_err(|e| format!("lz4: {e}"))?
        }
    };
    if written == raw_len { Ok(()) } else { Err(format!("the block unpacks to {written} bytes, not {raw_len}")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{Rng, SeedableRng, rngs::StdRng};

    #[test]
    fn random_blocks_are_tried_now_and_then_others_each_time() {
        for compression in [Compression::Lz4, Compression::Zstd] {
            let mut random = vec![0; 10_000];
            StdRng::seed_from_u64(1).fill_bytes(&mut random);
            let (even, mut blocks) = (vec![7; 10_000], Blocks::new(compression));
            let mut shrinks = |raw: &[u8]| blocks.compress(raw, &mut Vec::new()).unwrap() < raw.len();
            assert!((0..5).all(|_| shrinks(&even)));
            // Tried, a pause of 1, tried, a pause of 3, tried, a pause of 7, and then of 15 each time.
            assert!((0..2 + 4 + 8 + 15).all(|_| !shrinks(&random)));
            // The end of the pause.
            assert!(!shrinks(&even));
            assert!((0..5).all(|_| shrinks(&even)), "{compression:?}");
            assert!(!shrinks(&random));
            assert!(!shrinks(&even), "a pause of 1 again");
            assert!(shrinks(&even));
        }
    }

    #[test]
    fn what_is_not_compressed_unpacks_all_the_same() {
        let mut random = vec![0; 5_000];
        StdRng::seed_from_u64(2).fill_bytes(&mut random);
        for compression in [Compression::None, Compression::Lz4, Compression::Zstd] {
            let mut blocks = Blocks::new(compression);
            for raw in [&random[..], &[1; 5_000], &[], &[2; 5_000], &random] {
                let (mut stored, mut unpacked) = (Vec::new(), Vec::new());
                assert_eq!(blocks.compress(raw, &mut stored).unwrap(), stored.len());
                decompress(compression, &stored, raw.len(), &mut unpacked).unwrap();
                assert_eq!(unpacked, raw);
            }
        }
    }
}
