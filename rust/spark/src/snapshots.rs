//! Snapshots of RocksDB's provider: a zip with the small files of a database and a list of the big ones.
//!
//! Owns: the zip's content, the place of the files that it names.
//! Does not own: when a snapshot is read, downloads (`state`), the database (`fastchangelog-state`).
//!
//! A zip has the files of a database's checkpoint but its tables, and `metadata`: a version line, then JSON. Tables are
//! in `SSTs/`, archived logs in `logs/`, both under names of their own.

use crate::compression::read_error;
use crate::logs::{foreign, parsed};
use bytes::Bytes;
use fastchangelog_format::error::{Error, Result};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Cursor, Read};
use std::path::Path;
use zip::ZipArchive;

const METADATA: &str = "metadata";
/// The first line of the metadata. Spark 4.0 wrote the second under format 2, with the same content; later versions refuse
/// it.
const VERSION_LINES: [&str; 2] = ["v1\n", "v2\n"];
/// The largest file of a zip that is written: manifests and options are small.
const MAX_FILE: u64 = 1 << 30;

/// What a snapshot says of its database.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct SnapshotMetadata {
    sst_files: Vec<Table>,
    log_files: Vec<ArchivedLog>,
    /// Ids of column families by their names; empty for a store without families.
    pub(crate) column_family_mapping: Option<BTreeMap<String, u16>>,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Table {
    local_file_name: String,
    dfs_sst_file_name: String,
    size_bytes: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ArchivedLog {
    local_file_name: String,
    dfs_log_file_name: String,
    size_bytes: u64,
}

/// A file outside of the zip.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct SharedFile {
    /// Below the store's folder.
    pub(crate) remote: String,
    /// Below the database's folder.
    pub(crate) local: String,
    pub(crate) size: u64,
}

impl SnapshotMetadata {
    /// The files that the database needs beside the zip.
    pub(crate) fn files(&self) -> impl Iterator<Item = SharedFile> + '_ {
        let tables = self.sst_files.iter().map(|t| SharedFile {
            remote: format!("SSTs/{}", t.dfs_sst_file_name),
            local: t.local_file_name.clone(),
            size: t.size_bytes,
        });
        let logs = self.log_files.iter().map(|l| SharedFile {
            remote: format!("logs/{}", l.dfs_log_file_name),
            local: format!("archive/{}", l.local_file_name),
            size: l.size_bytes,
        });
        tables.chain(logs)
    }
}

/// Writes the files of the zip into the folder `dir`; returns what it says of the others.
pub(crate) fn unpack(name: &str, file: Bytes, dir: &Path) -> Result<SnapshotMetadata> {
    let damaged = |e: zip::result::ZipError| Error::corrupt(name, 0, e);
    let mut archive = ZipArchive::new(Cursor::new(file)).map_err(damaged)?;
    let mut metadata = None;
    for index in 0..archive.len() {
        let entry = archive.by_index(index).map_err(damaged)?;
        let inside = entry.name().map_err(damaged)?.into_owned();
        if inside == METADATA {
            let mut text = String::new();
            entry.take(MAX_FILE).read_to_string(&mut text).map_err(|e| read_error(name, 0, &e))?;
            let json = VERSION_LINES.iter().find_map(|line| text.strip_prefix(line));
            let json = json.ok_or_else(|| foreign(name, "its metadata is of an unknown version"))?;
            metadata = Some(parsed::<SnapshotMetadata>(name, json.as_bytes())?);
            continue;
        }
        if !is_plain(&inside) {
            return Err(foreign(name, format_args!("it has a file named {inside:?}")));
        }
        let path = dir.join(&inside);
        let mut out = File::create(&path).map_err(|e| Error::io_at("cannot write", &path, &e))?;
        io::copy(&mut entry.take(MAX_FILE), &mut out).map_err(|e| read_error(name, 0, &e))?;
    }
    let metadata = metadata.ok_or_else(|| foreign(name, "it has no metadata"))?;
    let is_odd = |f: &SharedFile| !is_plain(f.local.trim_start_matches("archive/")) || f.remote.contains("..");
    if let Some(odd) = metadata.files().find(is_odd) {
        return Err(foreign(name, format_args!("it names the file {:?}", odd.local)));
    }
    Ok(metadata)
}

/// True for the name of a file that stays in its folder.
fn is_plain(name: &str) -> bool {
    !name.is_empty() && !name.starts_with('.') && !name.contains(['/', '\\', '\0'])
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::io::Write as _;
    use zip::write::{SimpleFileOptions, ZipWriter};

    pub(crate) fn zipped(files: &[(&str, &[u8])]) -> Bytes {
        let mut out = ZipWriter::new(Cursor::new(Vec::new()));
        for (name, content) in files {
            out.start_file(*name, SimpleFileOptions::default()).unwrap();
            out.write_all(content).unwrap();
        }
        out.finish().unwrap().into_inner().into()
    }

    const LISTED: &[u8] = br#"v1
{"sstFiles":[{"localFileName":"000012.sst","dfsSstFileName":"000012-x.sst","sizeBytes":5}],"numKeys":1,
"columnFamilyMapping":{"default":1,"handle":2},"maxColumnFamilyId":2}"#;

    #[test]
    fn a_snapshot_is_unpacked() {
        let dir = tempfile::tempdir().unwrap();
        let file = zipped(&[("CURRENT", b"MANIFEST-000005\n"), ("metadata", LISTED)]);
        let found = unpack("1.zip", file, dir.path()).unwrap();
        assert_eq!(std::fs::read(dir.path().join("CURRENT")).unwrap(), b"MANIFEST-000005\n");
        assert!(!dir.path().join("metadata").exists());
        assert_eq!(found.column_family_mapping.as_ref().unwrap()["handle"], 2);
        let files: Vec<_> = found.files().collect();
        let expected = SharedFile { remote: "SSTs/000012-x.sst".into(), local: "000012.sst".into(), size: 5 };
        assert_eq!(files, [expected]);
    }

    #[test]
    fn p9_a_foreign_or_truncated_zip_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let good = zipped(&[("CURRENT", b"M"), ("metadata", LISTED)]);
        for cut in 0..good.len() {
            assert!(unpack("1.zip", good.slice(..cut), dir.path()).is_err(), "{cut}");
        }
        let outside = LISTED.to_vec();
        let outside = String::from_utf8(outside).unwrap().replace("000012.sst", "../x.sst");
        for files in [
            vec![("CURRENT", &b"M"[..])],
            vec![("../x", b"M"), ("metadata", LISTED)],
            vec![("metadata", b"v3\n{}")],
            vec![("metadata", b"v1\n[")],
            vec![("metadata", outside.as_bytes())],
        ] {
            assert!(unpack("1.zip", zipped(&files), dir.path()).is_err(), "{files:?}");
        }
        assert!(!dir.path().join("../x").exists());
    }
}
