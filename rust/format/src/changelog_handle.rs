//! Handles of plain changelogs: their stable binary form.
//!
//! Owns: the layout, and keeping it small: sets of one object share its entry.
//! Does not own: the rules between a handle's parts (`model::changelog`).

use super::handle::{ObjectsOut, pick, read_objects};
use super::wire::{Envelope, put_bytes, put_varint};
use crate::error::Result;
use crate::model::ids::MAX_KEY_GROUPS;
use crate::model::{ChangelogHandle, KeyGroupRange, SetRef};

const HANDLE: Envelope = Envelope { magic: *b"FCLC", version: 1, what: "changelog handle" };
const NAME: &str = "the changelog handle";
/// Smallest size of a set: object number, six numbers and a checksum.
const MIN_SET: usize = 7 + 4;

/// The bytes of a handle.
pub fn encode_changelog_handle(handle: &ChangelogHandle) -> Vec<u8> {
    let mut out = HANDLE.begin(64 + handle.storage.len() + handle.writer.len() + handle.sets.len() * 56);
    put_bytes(&mut out, handle.storage.as_bytes());
    put_bytes(&mut out, handle.writer.as_bytes());
    put_varint(&mut out, u64::from(handle.key_groups.start));
    put_varint(&mut out, u64::from(handle.key_groups.end));
    put_varint(&mut out, handle.from);
    put_varint(&mut out, handle.to);
    put_varint(&mut out, handle.checkpoint_id);
    put_varint(&mut out, handle.incremental_size);
    let mut objects = ObjectsOut::default();
    let numbers: Vec<usize> = handle.sets.iter().map(|set| objects.add(&set.object)).collect();
    objects.write(&mut out);
    put_varint(&mut out, handle.sets.len() as u64);
    for (set, object) in handle.sets.iter().zip(numbers) {
        put_varint(&mut out, set.sequence_number);
        put_varint(&mut out, object as u64);
        put_varint(&mut out, set.offset);
        put_varint(&mut out, set.length);
        put_varint(&mut out, set.head);
        out.extend_from_slice(&set.mark.to_le_bytes());
        put_varint(&mut out, set.records);
        put_varint(&mut out, set.payload);
    }
    Envelope::seal(out)
}

/// The handle of some bytes.
pub fn decode_changelog_handle(bytes: &[u8]) -> Result<ChangelogHandle> {
    let mut reader = HANDLE.open(NAME, bytes)?;
    let storage = reader.text("the storage")?.to_owned();
    let writer = reader.text("the writer")?.to_owned();
    let key_groups =
        KeyGroupRange { start: reader.varint_as("the first key group")?, end: reader.varint_as("the last key group")? };
    if usize::from(key_groups.end) > MAX_KEY_GROUPS {
        return Err(reader.corrupt(format_args!("key group {} does not exist", key_groups.end)));
    }
    let from = reader.varint("the first sequence number")?;
    let to = reader.varint("the last sequence number")?;
    let checkpoint_id = reader.varint("the checkpoint")?;
    let incremental_size = reader.varint("the incremental size")?;
    let objects = read_objects(&mut reader)?;
    let count = reader.count(MIN_SET, "the number of sets")?;
    let mut sets = Vec::with_capacity(count);
    let mut next = from;
    // What readers add up.
    let (mut records, mut payload) = (0_u64, 0_u64);
    for _ in 0..count {
        let set = SetRef {
            sequence_number: reader.varint("a sequence number")?,
            object: pick(&objects, &mut reader)?,
            offset: reader.varint("a set's offset")?,
            length: reader.varint("a set's length")?,
            head: reader.varint("the length of a set's head")?,
            mark: reader.u32("a set's mark")?,
            records: reader.varint("a set's records")?,
            payload: reader.varint("a set's payload")?,
        };
        let fits = set.offset.checked_add(set.length).is_some_and(|end| end <= set.object.size);
        let sums = records.checked_add(set.records).zip(payload.checked_add(set.payload));
        let Some(sums) =
            sums.filter(|_| fits && set.head <= set.length && set.sequence_number >= next && set.sequence_number < to)
        else {
            return Err(reader.corrupt("a set contradicts the handle"));
        };
        (records, payload) = sums;
        next = set.sequence_number + 1;
        sets.push(set);
    }
    reader.finish("the handle")?;
    Ok(ChangelogHandle { storage, writer, key_groups, from, to, checkpoint_id, sets, incremental_size })
}

#[cfg(test)]
#[path = "changelog_handle_tests.rs"]
mod tests;
