//! Files of changes: the changelog of RocksDB's provider, the deltas and snapshots of the HDFS-backed one.
//!
//! Owns: their records, for the versions 1 to 4 of a changelog.
//! Does not own: compression (`compression`), which files make up a state (`state`).
//!
//! ```text
//! changelog  UTF "v2" | records: type, key, value | 0        v4: the lineage as JSON after the version
//!            v1 and v3 as deltas; v1 without a version
//! delta      records: length, key, length or -1 (removed), value | -1
//! ```

use crate::compression::{Content, decompressed, read_error};
use crate::java::DataInput;
use fastchangelog_format::error::Result;
use serde::Deserialize;
use std::io::{Cursor, Read};

const END: i32 = -1;
const REMOVED: i32 = -1;
const END_RECORD: u8 = 0x00;
const PUT_RECORD: u8 = 0x01;
const DELETE_RECORD: u8 = 0x10;
const MERGE_RECORD: u8 = 0x11;
/// The versions of changelogs; the first has no version in the file.
const VERSIONS: [&str; 3] = ["v2", "v3", "v4"];
/// A version as Java writes a text: its length in two bytes, then the text.
const VERSION_BYTES: u64 = 4;

/// A version of a store that an earlier changelog wrote.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(crate) struct LineageItem {
    /// The store's version.
    pub(crate) version: u64,
    /// The id of the commit that wrote it.
    #[serde(rename = "checkpointUniqueId")]
    pub(crate) id: String,
}

/// A change.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Change<'a> {
    Put(&'a [u8], &'a [u8]),
    Delete(&'a [u8]),
    Merge(&'a [u8], &'a [u8]),
}

/// An open file of changes.
pub(crate) struct Changes {
    input: DataInput<Content>,
    has_types: bool,
    /// The versions before this one, from a snapshot on; empty without ids.
    pub(crate) lineage: Vec<LineageItem>,
    key: Vec<u8>,
    value: Vec<u8>,
}

impl Changes {
    /// A changelog of RocksDB's provider.
    pub(crate) fn changelog(name: &str, file: Content) -> Result<Self> {
        let mut content = decompressed(name, file)?;
        let mut head = Vec::new();
        let read = (&mut content).take(VERSION_BYTES).read_to_end(&mut head);
        read.map_err(|e| read_error(name, 0, &e))?;
        // A changelog without a version begins with a key's length, which no version's text is.
        let version = VERSIONS.into_iter().find(|version| head.strip_prefix(&[0, 2]) == Some(version.as_bytes()));
        let mut input: DataInput<Content> = DataInput::new(name, Box::new(Cursor::new(head).chain(content)));
        let mut lineage = Vec::new();
        if let Some(version) = version {
            input.utf()?;
            if version != "v2" {
                let text = input.utf()?;
                lineage = serde_json::from_str(&text).map_err(|e| input.corrupt(format_args!("a lineage: {e}")))?;
            }
        }
        let has_types = version.is_some_and(|version| version != "v3");
        Ok(Self { input, has_types, lineage, key: Vec::new(), value: Vec::new() })
    }

    /// A delta or a snapshot of the HDFS-backed provider.
    pub(crate) fn delta(name: &str, file: Content) -> Result<Self> {
        let input = DataInput::new(name, decompressed(name, file)?);
        Ok(Self { input, has_types: false, lineage: Vec::new(), key: Vec::new(), value: Vec::new() })
    }

    /// The next change; none at the end.
    pub(crate) fn next(&mut self) -> Result<Option<Change<'_>>> {
        if self.has_types { self.next_with_type() } else { self.next_without_type() }
    }

    fn next_with_type(&mut self) -> Result<Option<Change<'_>>> {
        let kind = self.input.byte()?;
        if kind == END_RECORD {
            return Ok(None);
        }
        let length = self.input.int()?;
        self.input.bytes(length, &mut self.key)?;
        let length = self.input.int()?;
        match kind {
            DELETE_RECORD if length == REMOVED => return Ok(Some(Change::Delete(&self.key))),
            PUT_RECORD | MERGE_RECORD => self.input.bytes(length, &mut self.value)?,
            _ => return Err(self.input.corrupt(format_args!("a record of the unknown type {kind:#x}"))),
        }
        let change = if kind == PUT_RECORD { Change::Put } else { Change::Merge };
        Ok(Some(change(&self.key, &self.value)))
    }

    fn next_without_type(&mut self) -> Result<Option<Change<'_>>> {
        let length = self.input.int()?;
        if length == END {
            return Ok(None);
        }
        self.input.bytes(length, &mut self.key)?;
        let length = self.input.int()?;
        if length == REMOVED {
            return Ok(Some(Change::Delete(&self.key)));
        }
        self.input.bytes(length, &mut self.value)?;
        Ok(Some(Change::Put(&self.key, &self.value)))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::compression::tests::lz4_java;
    use bytes::{Buf, Bytes};

    type Record<'a> = (u8, &'a [u8], &'a [u8]);

    fn utf(text: &str) -> Vec<u8> {
        [&(text.len() as u16).to_be_bytes(), text.as_bytes()].concat()
    }

    fn sized(bytes: &[u8]) -> Vec<u8> {
        [&(bytes.len() as u32).to_be_bytes(), bytes].concat()
    }

    /// A changelog as Spark writes it.
    pub(crate) fn written(version: u8, lineage: &str, records: &[Record<'_>]) -> Bytes {
        let mut out = Vec::new();
        if version > 1 {
            out.extend(utf(&format!("v{version}")));
        }
        if version > 2 {
            out.extend(utf(lineage));
        }
        let has_types = version.is_multiple_of(2);
        for (kind, key, value) in records {
            if has_types {
                out.push(*kind);
            }
            out.extend(sized(key));
            out.extend(if *kind == DELETE_RECORD { REMOVED.to_be_bytes().to_vec() } else { sized(value) });
        }
        if has_types {
            out.push(END_RECORD);
        } else {
            out.extend(END.to_be_bytes());
        }
        lz4_java(&out, 1 << 15)
    }

    fn read(file: Bytes) -> Result<Vec<(u8, Vec<u8>, Vec<u8>)>> {
        let mut changes = Changes::changelog("1.changelog", Box::new(file.reader()))?;
        let mut found = Vec::new();
        while let Some(change) = changes.next()? {
            found.push(match change {
                Change::Put(k, v) => (PUT_RECORD, k.to_vec(), v.to_vec()),
                Change::Merge(k, v) => (MERGE_RECORD, k.to_vec(), v.to_vec()),
                Change::Delete(k) => (DELETE_RECORD, k.to_vec(), Vec::new()),
            });
        }
        Ok(found)
    }

    #[test]
    fn every_version_of_a_changelog_is_read() {
        let long = vec![7; 70_000];
        let records: [Record<'_>; 3] = [(PUT_RECORD, b"a", &long), (DELETE_RECORD, b"b", b""), (PUT_RECORD, b"", b"")];
        let owned: Vec<_> = records.iter().map(|(t, k, v)| (*t, k.to_vec(), v.to_vec())).collect();
        for version in 1..=4 {
            let lineage = r#"[{"version":3,"checkpointUniqueId":"x"}]"#;
            let file = written(version, lineage, &records);
            assert_eq!(read(file.clone()).unwrap(), owned, "version {version}");
            let found = Changes::changelog("1.changelog", Box::new(file.reader())).unwrap().lineage;
            let expected = (version > 2).then(|| LineageItem { version: 3, id: "x".to_owned() });
            assert_eq!(found, expected.into_iter().collect::<Vec<_>>());
        }
        let merged = written(4, "[]", &[(MERGE_RECORD, b"k", b"v")]);
        assert_eq!(read(merged).unwrap(), [(MERGE_RECORD, b"k".to_vec(), b"v".to_vec())]);
        assert_eq!(read(written(1, "", &[])).unwrap(), []);
    }

    #[test]
    fn p9_a_file_cut_short_or_of_unknown_records_is_an_error() {
        assert!(read(written(2, "", &[(0x77, b"k", b"v")])).is_err());
        assert!(read(lz4_java(&[&utf("v2")[..], &[PUT_RECORD, 0, 0]].concat(), 99)).is_err());
        assert!(read(lz4_java(&utf("v4"), 99)).is_err());
        assert!(read(lz4_java(&[utf("v4"), utf("[{}]")].concat(), 99)).is_err());
        assert!(read(lz4_java(&[0, 0, 0, 1, 7], 99)).is_err());
    }
}
