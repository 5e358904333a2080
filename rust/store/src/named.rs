//! Objects that are read by their name alone.
//!
//! Owns: the bound of such a read (P7), because nothing else limits the object's size.
//! Does not own: reads by reference, whose size is known; the content of objects (`format`).

use super::Store;
use super::paths::{FOLDER_META, head_number};
use super::retry::Failure;
use bytes::Bytes;
use fastchangelog_format::MAX_NOTE;
use fastchangelog_format::error::{Error, ErrorKind, Result};
use object_store::ObjectStoreExt;

/// A head holds the handle of one shard.
const MAX_HEAD: u64 = 64 << 20;
/// Anything else. The largest: a savepoint's manifest has the handles of up to 32,768 shards, what a sweep notes has a
/// line for each unreachable object.
const MAX_NAMED: u64 = 1 << 30;

/// The most bytes that an object of this name has.
fn size_limit(name: &str) -> u64 {
    if name == FOLDER_META {
        MAX_NOTE
    } else if head_number(name).is_some() {
        MAX_HEAD
    } else {
        MAX_NAMED
    }
}

impl Store {
    /// Reads `name`, whose size and checksum are unknown; none if it does not exist. An object larger than any of its
    /// name is damaged or foreign (P9): it is not read.
    pub async fn get_named(&self, name: &str) -> Result<Option<Bytes>> {
        let path = self.path(name)?;
        let read = self.inner.requests.run(self.call("read", name, Some(0)), |_| async {
            let found = self.inner.store.get(&path).await?;
            self.check_limit(name, found.meta.size)?;
            Ok(found.bytes().await?)
        });
        match read.await {
            Ok(bytes) => {
                self.inner.requests.metrics.store_bytes_read.add(bytes.len() as u64);
                Ok(Some(bytes))
            }
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Refuses an object larger than its name allows.
    pub(super) fn check_limit(&self, name: &str, size: u64) -> Result<(), Failure> {
        let limit = size_limit(name);
        if size <= limit {
            return Ok(());
        }
        let what = format!("the object has {size} bytes, but one of this name has at most {limit}");
        Err(Failure::Fatal(Error::corrupt(format_args!("{}/{name}", self.uri), limit, what)))
    }
}
