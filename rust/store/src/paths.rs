//! Names of objects: the layout of the bucket, in one place.
//!
//! Owns: composing and parsing every object's name.
//! Does not own: the objects and their deletion.
//!
//! ```text
//! <root>/<query id>/<name>/log/<32 hex>        change sets of one or more shards <root>/<query id>/<name>/sst/<32
//! hex>.sst    RocksDB files of snapshots <root>/<query id>/<name>/sst/<32 hex>.pack   several small ones in a row
//! <root>/<query id>/<name>/base/<32 hex>       manifests of snapshots <root>/<query id>/<name>/index/<32 hex>
//! lists of older segments <root>/.../probe/<32 hex>                    written and removed by a store check
//! <root>/<query id>/<name>/_fastchangelog*.json   notes: the folder's owner, what the last sweep saw and was told
//! <root>/<query id>/<name>/_fastchangelog-starts/<20 digits>   notes: a checkpoint that the query has started from
//! <root>/<name>/head/<20 digits>               the checkpoints of an embedded state, by number
//! <root>/_fastchangelog-creates-<8 hex>        the note that the root's store creates objects conditionally
//! <savepoint>/part/<6 digits>                  entries of a canonical savepoint; a native one has copies by their
//! names <savepoint>/_fastchangelog-savepoint         what makes the folder a savepoint
//! ```
//!
//! Invariants:
//! 1. names other than those of notes, heads and savepoints are random and never reused, so an object under a name just
//!    drawn was written by the process that drew it;
//! 2. only heads and notes of starts have predictable names, so they are claimed. Heads have no [`ObjectType`]: garbage collection must
//!    never delete heads, because they are its roots.

use fastchangelog_format::crc32c;

/// The type of an object, by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ObjectType {
    /// Change sets.
    Log,
    /// A RocksDB file of a snapshot, or several.
    Sst,
    /// A snapshot's manifest.
    Manifest,
    /// A list of older segments.
    Index,
    /// Left by a store check that was killed.
    Probe,
    /// A note of the folder; only notes are overwritten under the same name.
    Note,
}

/// The note that names the folder's owner, for sweeps.
pub const FOLDER_META: &str = "_fastchangelog.json";
/// The note of a sweep to the next one.
pub const SWEEP_MARK: &str = "_fastchangelog-sweep.json";
/// A copy of the locations of checkpoints in that note.
pub const SWEEP_CHECKPOINTS: &str = "_fastchangelog-checkpoints.json";

/// The folder of the notes of a query's starts, one for each checkpoint that it ever started from.
pub const STARTS: &str = "_fastchangelog-starts";

/// The name of the `number`-th of them. They are numbered without a gap, so no listing is needed to find them.
pub fn start_name(number: u64) -> String {
    format!("{STARTS}/{number:020}")
}

/// How the note begins that a store creates objects conditionally.
const CREATION_NOTE: &str = "_fastchangelog-creates-";

/// The name of the note that the store at `place` creates objects conditionally.
pub(crate) fn creation_note_name(place: &str) -> String {
    format!("{CREATION_NOTE}{:08x}", crc32c(place.as_bytes()))
}

/// True for the name of such a note, in its folder. It belongs to the root that it is in, and to no state: no sweep
/// deletes it.
pub fn is_creation_note(name: &str) -> bool {
    name.strip_prefix(CREATION_NOTE).is_some_and(|hex| hex.len() == 8 && hex.bytes().all(is_lower_hex))
}

fn is_lower_hex(b: u8) -> bool {
    b.is_ascii_digit() || (b'a'..=b'f').contains(&b)
}

fn random_hex() -> String {
    format!("{:032x}", rand::random::<u128>())
}

/// A new name of a log object.
pub fn log_name() -> String {
    format!("log/{}", random_hex())
}

/// A new name of a RocksDB file.
pub fn sst_name() -> String {
    format!("sst/{}.sst", random_hex())
}

/// A new name of an object with several small RocksDB files.
pub fn pack_name() -> String {
    format!("sst/{}.pack", random_hex())
}

/// A new name of a snapshot's manifest.
pub fn manifest_name() -> String {
    format!("base/{}", random_hex())
}

/// A new name of a segment index.
pub fn index_name() -> String {
    format!("index/{}", random_hex())
}

/// The folder of probe objects.
pub(crate) const PROBES: &str = "probe";

/// A new name of a probe object.
pub(crate) fn probe_name() -> String {
    format!("{PROBES}/{}", random_hex())
}

/// The manifest of a savepoint, in a folder of its own.
pub const SAVEPOINT: &str = "_fastchangelog-savepoint";

/// Says that a savepoint is being written to its folder; removed at the end.
pub const SAVEPOINT_CLAIM: &str = "_fastchangelog-savepoint.unfinished";

/// The name of the `number`-th part of a savepoint.
pub fn part_name(number: usize) -> String {
    format!("part/{number:06}")
}

/// The folder of the heads of an embedded state.
pub const HEADS: &str = "head";

/// The name of the `number`-th head of an embedded state.
pub fn head_name(number: u64) -> String {
    format!("{HEADS}/{number:020}")
}

/// The number of a head's name; none for another name.
pub fn head_number(name: &str) -> Option<u64> {
    let digits = name.strip_prefix(HEADS)?.strip_prefix('/')?;
    is_number(digits).then(|| digits.parse().ok()).flatten()
}

/// True for the digits of a number in a name.
fn is_number(digits: &str) -> bool {
    digits.len() == 20 && digits.bytes().all(|b| b.is_ascii_digit())
}

/// The folder of one stateful operator under the root that jobs share.
pub fn state_folder(query_id: &str, name: &str) -> String {
    format!("{query_id}/{name}")
}

/// The type of the object `name` (relative to its state's folder); none for a foreign name.
///
/// A staged, unfinished upload on `file://` (`log/<hex>#1`) has the type of the object it would have become.
pub fn object_type(name: &str) -> Option<ObjectType> {
    let name = match name.split_once('#') {
        Some((name, n)) if !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()) => name,
        Some(_) => return None,
        None => name,
    };
    if [FOLDER_META, SWEEP_MARK, SWEEP_CHECKPOINTS].contains(&name) {
        return Some(ObjectType::Note);
    }
    let (folder, file) = name.split_once('/')?;
    let (kind, hex) = match folder {
        "log" => (ObjectType::Log, file),
        "sst" => (ObjectType::Sst, file.strip_suffix(".sst").or_else(|| file.strip_suffix(".pack"))?),
        "base" => (ObjectType::Manifest, file),
        "index" => (ObjectType::Index, file),
        "probe" => (ObjectType::Probe, file),
        STARTS => return is_number(file).then_some(ObjectType::Note),
        _ => return None,
    };
    (hex.len() == 32 && hex.bytes().all(is_lower_hex)).then_some(kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_says_what_it_is() {
        for (name, kind) in [
            (log_name(), ObjectType::Log),
            (sst_name(), ObjectType::Sst),
            (pack_name(), ObjectType::Sst),
            (manifest_name(), ObjectType::Manifest),
            (index_name(), ObjectType::Index),
            (probe_name(), ObjectType::Probe),
            (FOLDER_META.to_owned(), ObjectType::Note),
            (SWEEP_MARK.to_owned(), ObjectType::Note),
            (SWEEP_CHECKPOINTS.to_owned(), ObjectType::Note),
            (start_name(7), ObjectType::Note),
        ] {
            assert_eq!(object_type(&name), Some(kind), "{name}");
            assert_eq!(object_type(&format!("{name}#1")), Some(kind), "{name}");
        }
        let foreign = ["log", "log/x", "log/../../etc/passwd", "other/0123456789abcdef0123456789abcdef", "log/A#", ""];
        for name in
            foreign.into_iter().chain(["_fastchangelog.json.bak", "log/_fastchangelog.json", "_fastchangelog.json#"])
        {
            assert_eq!(object_type(name), None, "{name}");
        }
        assert_ne!(log_name(), log_name());
    }

    #[test]
    fn the_note_of_a_store_is_no_states() {
        let (here, there) = (creation_note_name("s3://bucket"), creation_note_name("s3://bucket http://other"));
        assert_ne!(here, there, "another endpoint is another store");
        for name in [here, there] {
            assert!(is_creation_note(&name), "{name}");
            assert_eq!(object_type(&name), None, "no sweep takes it for garbage");
        }
        for name in [FOLDER_META, SWEEP_MARK, "_fastchangelog-creates-", "_fastchangelog-creates-0123456x", "log/a"] {
            assert!(!is_creation_note(name), "{name}");
        }
    }

    #[test]
    fn heads_are_numbered_in_the_order_of_their_names() {
        for number in [0, 1, 9, 10, u64::MAX] {
            assert_eq!(head_number(&head_name(number)), Some(number));
            assert_eq!(object_type(&head_name(number)), None, "no sweep takes it for garbage");
        }
        assert!(head_name(9) < head_name(10));
        for name in ["head/1", "head/0000000000000000000x", "head/00000000000000000001#1", "log/00000000000000000001"] {
            assert_eq!(head_number(name), None, "{name}");
        }
    }
}
