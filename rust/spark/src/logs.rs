//! The logs of a query: the planned and the committed batches.
//!
//! Owns: the content of their entries.
//! Does not own: which entries there are (`checkpoint`).

use fastchangelog_format::error::{Error, Result};
use serde::Deserialize;
use std::collections::BTreeMap;

/// One of Spark's logs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Log {
    /// The planned batches.
    Offsets,
    /// The committed ones.
    Commits,
}

impl Log {
    /// Its folder.
    pub fn folder(self) -> &'static str {
        match self {
            Self::Offsets => "offsets",
            Self::Commits => "commits",
        }
    }
}

/// The entry of a committed batch.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Commit {
    /// The watermark of the next batch, in milliseconds since the epoch.
    pub next_batch_watermark_ms: i64,
    /// By operator, then partition, then store: the id of the state's version. Empty in format 1.
    pub state_unique_ids: Option<BTreeMap<u64, Vec<Vec<Option<String>>>>>,
}

/// The entry of a planned batch, without the sources.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Offset {
    /// In milliseconds since the epoch.
    pub batch_watermark_ms: i64,
    /// When the batch was planned, in milliseconds since the epoch.
    pub batch_timestamp_ms: i64,
    /// The settings that hold for the query's life.
    pub conf: BTreeMap<String, String>,
}

/// The entry of a commit.
pub(crate) fn commit(name: &str, bytes: &[u8]) -> Result<Commit> {
    parsed(name, second_line(name, bytes)?)
}

/// The entry of an offset. A query without any watermark or state has metadata all the same.
pub(crate) fn offset(name: &str, bytes: &[u8]) -> Result<Offset> {
    parsed(name, second_line(name, bytes)?)
}

/// The line after the version, and a check of that. Later versions of Spark's logs have other content.
fn second_line<'a>(name: &str, bytes: &'a [u8]) -> Result<&'a [u8]> {
    let mut lines = bytes.split(|b| *b == b'\n');
    match lines.next() {
        Some(b"v1" | b"v2") => {}
        Some(first) => {
            let first = String::from_utf8_lossy(&first[..first.len().min(20)]).into_owned();
            return Err(foreign(name, format_args!("its first line is {first:?}, not a version of Spark 4")));
        }
        None => return Err(foreign(name, "it is empty")),
    }
    match lines.next() {
        Some(line) if !line.is_empty() => Ok(line),
        _ => Ok(b"{}"),
    }
}

pub(crate) fn parsed<'a, T: Deserialize<'a>>(name: &str, bytes: &'a [u8]) -> Result<T> {
    serde_json::from_slice(bytes).map_err(|e| foreign(name, e))
}

/// The error for a file that is not what Spark writes.
pub(crate) fn foreign(name: &str, what: impl std::fmt::Display) -> Error {
    Error::store(format!("Spark 4 did not write {name}: {what}")).with_remedy("give the checkpointLocation of a query")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_read() {
        let text = b"v2\n{\"nextBatchWatermarkMs\":7,\"stateUniqueIds\":{\"0\":[[\"x\"],[\"y\",null]]}}";
        let found = commit("commits/1", text).unwrap();
        assert_eq!(found.next_batch_watermark_ms, 7);
        let ids = found.state_unique_ids.unwrap();
        assert_eq!(ids[&0], [vec![Some("x".to_owned())], vec![Some("y".to_owned()), None]]);
        assert_eq!(commit("commits/1", b"v1\n{\"nextBatchWatermarkMs\":0}").unwrap(), Commit::default());
        let text = b"v1\n{\"batchTimestampMs\":5,\"conf\":{\"a\":\"b\"}}\n{\"logOffset\":1}\n-";
        assert_eq!(offset("offsets/1", text).unwrap().conf["a"], "b");
    }

    #[test]
    fn p9_foreign_entries_are_errors_with_their_names() {
        for text in [&b""[..], b"v9\n{}", b"v1\n{", b"\xff\xff"] {
            let error = commit("commits/3", text).unwrap_err();
            assert!(error.message().contains("commits/3"), "{error}");
        }
    }
}
