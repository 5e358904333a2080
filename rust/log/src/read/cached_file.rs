//! One cached file: its name, and whether its content equals the object's.
//!
//! Owns: the file name of an object. Does not own: the set of cached files (`cache`).

use fastchangelog_format::Crc;
use fastchangelog_format::model::ObjectRef;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

/// Which copy: by the object's full name, size and checksum; also the copy's file name.
pub(super) type Key = Arc<str>;

const SUFFIX: &str = ".copy";

/// The key of an object of the store `uri`.
pub(super) fn key_of(uri: &str, object: &ObjectRef) -> Key {
    let name = xxhash_rust::xxh3::xxh3_128(format!("{uri}\n{}", object.name).as_bytes());
    format!("{name:032x}-{:x}-{:08x}{SUFFIX}", object.size, object.crc).into()
}

/// The size that a copy's file name promises; none if it is no such name.
pub(super) fn size_of_name(name: &str) -> Option<u64> {
    let mut parts = name.strip_suffix(SUFFIX)?.split('-');
    let (hash, size, crc) = (parts.next()?, parts.next()?, parts.next()?);
    let size = u64::from_str_radix(size, 16).ok()?;
    u32::from_str_radix(crc, 16).ok().filter(|_| crc.len() == 8)?;
    (hash.len() == 32 && parts.next().is_none()).then_some(size)
}

/// True when the file has the size and the checksum of `object`.
pub(super) fn is_intact(file: &Path, object: &ObjectRef) -> bool {
    let read = || -> std::io::Result<(u64, u32)> {
        let mut input = File::open(file)?;
        let mut crc = Crc::new();
        let mut size = 0;
        let mut buffer = vec![0; 1 << 18];
        loop {
            let n = input.read(&mut buffer)?;
            if n == 0 {
                return Ok((size, crc.value()));
            }
            size += n as u64;
            crc.update(&buffer[..n]);
        }
    };
    read().is_ok_and(|found| found == (object.size, object.crc))
}
