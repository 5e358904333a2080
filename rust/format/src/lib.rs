//! fastchangelog-format: the nouns, and the bytes of everything durable.
//!
//! Layer 0, the lowest: imports no other crate of the project. Pure: no tokio, no RocksDB, no object store.
//!
//! Owns: errors, options, clocks and the nouns ([`model`]); the translation between the nouns and bytes (log objects,
//! handles, segment indexes, manifests); versions, magic numbers and checksums; the bounds that make reading a damaged or
//! foreign object an error instead of wrong data, a panic or a huge allocation (P9).
//! Does not own: where bytes are kept (`fastchangelog-store`), object names, or what the keys and values inside a change
//! mean.
//!
//! `docs/format.md` describes every byte. Rules common to all kinds:
//! 1. integers are little-endian; `varint` is LEB128 of at most ten bytes; signed varints are zigzag;
//! 2. every byte is covered by a CRC-32C, and the place of the first checksum never moves between versions, so a newer
//!    version and a damaged version number are told apart;
//! 3. a length is believed only after the checksum over it was verified, and memory is reserved only for lengths that
//!    the bytes at hand can hold.
//!
//! ```text
//! error     what went wrong, of which kind, with causes
//! config    the table of options
//! clock     time as a parameter
//! model     ids, changes, handles: plain data; the files below import it, never the reverse
//! object    log object: file header, change sets, footer
//! set       what all change sets have in common: header and index of blocks
//! segment   change sets of keyed state
//! block     some records of such a set, in columns
//! byte_set  change sets of a plain changelog
//! byte_block  the blocks that collect such a set
//! compress  none, lz4, zstd with contexts kept per thread
//! handle    shard handles and segment indexes
//! changelog_handle  handles of plain changelogs
//! manifest  a materialized snapshot
//! head      the newest checkpoint of an embedded state
//! savepoint_manifest  what a savepoint consists of
//! note      what is fixed when a state starts, as JSON
//! wire      cursor, varints, envelopes, checksum
//! ```
#![forbid(unsafe_code)]
#![warn(missing_docs)]

#[cfg(not(any(target_os = "linux", target_os = "macos")))]
compile_error!("fastchangelog is made for Linux and macOS; on Windows, build and run it in WSL 2, which is Linux");

mod block;
mod byte_block;
pub mod byte_set;
pub mod changelog_handle;
pub mod clock;
mod compress;
pub mod config;
pub mod error;
pub mod handle;
pub mod head;
pub mod manifest;
pub mod model;
pub mod note;
pub mod object;
pub mod savepoint_manifest;
pub mod segment;
pub mod set;
pub mod wire;

pub use changelog_handle::{decode_changelog_handle, encode_changelog_handle};
pub use error::{Error, ErrorKind, Result};
pub use handle::{decode_handle, decode_segment_index, encode_handle, encode_segment_index};
pub use head::{Head, decode_head, encode_head};
pub use manifest::{Manifest, ManifestFile, PackedPart, decode_manifest, encode_manifest};
pub use note::{FolderNote, MAX_NOTE, StartNote, decode_note, decode_start, encode_note, encode_start};
pub use object::{FILE_HEADER_LEN, decode_file, file_footer, file_header};
pub use savepoint_manifest::{decode_savepoint, encode_savepoint};
pub use segment::{check_records, decode_set, decode_set_range, encode_set};
pub use set::{EncodedSet, INDEX_ENTRY_LEN, SET_HEADER_LEN, SetHeader, SetIndex, decode_set_header, decode_set_index};
pub use wire::{Crc, crc32c, crc32c_joined};

#[cfg(test)]
#[path = "golden_tests.rs"]
mod golden_tests;
