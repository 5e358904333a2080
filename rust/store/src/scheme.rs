//! URI schemes.
//!
//! Owns: the table of schemes and the kind of store behind each.
//! Does not own: connecting (`connect`), the other parts of a URI (`address`).
//!
//! A new scheme of a known store is a row here; Spark's side and the command line read the same table.

/// The kinds of stores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StoreKind {
    Local,
    Memory,
    S3,
    Google,
    Azure,
    Http,
}

use StoreKind::{Azure, Google, Http, Local, Memory, S3};

/// In lower case. The first scheme of a kind is the one that messages show.
const TABLE: &[(&str, StoreKind)] = &[
    ("file", Local),
    ("s3", S3),
    ("s3a", S3),
    ("gs", Google),
    ("gcs", Google),
    ("az", Azure),
    ("azure", Azure),
    ("adl", Azure),
    ("abfs", Azure),
    ("abfss", Azure),
    ("https", Http),
    ("http", Http),
    ("memory", Memory),
];

/// The supported schemes, in lower case.
pub fn schemes() -> impl Iterator<Item = &'static str> {
    TABLE.iter().map(|(scheme, _)| *scheme)
}

/// The kind of store behind a scheme; none if it is not supported.
pub(super) fn store_kind(scheme: &str) -> Option<StoreKind> {
    TABLE.iter().find(|(known, _)| known.eq_ignore_ascii_case(scheme)).map(|(_, kind)| *kind)
}

/// The schemes as a message lists them.
pub(super) fn listed() -> String {
    schemes().map(|scheme| format!("{scheme}://")).collect::<Vec<_>>().join(", ")
}
