//! Buffers of Python's Arrow arrays that a changelog refers to after the call that brought them.
//!
//! Owns: keeping a buffer, and its release, which may need the GIL: no thread of the core waits for that.
//! Does not own: the choice of what is referenced (`fastchangelog_changelog`), whether a buffer may change
//! (`fastchangelog.changelog.arrow`).

use crate::futures::{drop_later, start_resolving};
use arrow_buffer::Buffer;
use bytes::Bytes;
use fastchangelog_changelog::{Hold, Writer};
use fastchangelog_format::Result;

/// The buffer of a batch's values, if the writer is to refer to them.
pub(crate) fn memory(
    writer: &Writer,
    groups: &[u16],
    buffer: &Buffer,
    bytes: usize,
    held: u64,
) -> Result<Option<Bytes>> {
    let Some(hold) = writer.hold(groups, bytes as u64, held) else { return Ok(None) };
    start_resolving()?;
    Ok(Some(Bytes::from_owner(ForeignBuffer { buffer: Some(buffer.clone()), _hold: hold })))
}

/// A buffer of an array, whose release may need the GIL.
struct ForeignBuffer {
    /// Some until the drop.
    buffer: Option<Buffer>,
    _hold: Hold,
}

impl AsRef<[u8]> for ForeignBuffer {
    fn as_ref(&self) -> &[u8] {
        self.buffer.as_deref().unwrap_or_default()
    }
}

impl Drop for ForeignBuffer {
    fn drop(&mut self) {
        drop_later(self.buffer.take());
    }
}
