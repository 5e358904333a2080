//! Changes of states.
//!
//! Owns: what each operation is for each kind of state, and the check of a call before anything is changed.
//! Does not own: the memory of changes (`overlay`), the layouts (`states`).

use super::{StateSession, Used};
use crate::states::Place;
use crate::states::catalog::{DeclaredState, Kind};
use crate::states::distinct::Distinct;
use crate::states::list::{HEAD, ListHeader, ListKeys, ListUpdate};
use crate::states::sweep::{Written, any_of};
use crate::states::timer::{TIME, push_by_key, push_by_time};
use crate::states::ttl;
use arrow_array::{Array, BinaryArray, UInt8Array};
use fastchangelog_columns::codec::hash_key;
use fastchangelog_format::check_records;
use fastchangelog_format::error::{Error, Result};
use fastchangelog_format::model::{KeyGroup, StateId};
use std::collections::{HashMap, HashSet};
use std::time::Instant;

/// The operations of a write.
const CLEAR: u8 = 0;
const PUT: u8 = 1;
const DELETE: u8 = 2;
const APPEND: u8 = 3;

/// About the bytes of a change beside its key and value.
pub(super) const CHANGE_BYTES: u64 = 80;

/// At most the bytes that an entry has beside its key, sub-key and value: its end, the length of an element, its place in a list.
const ENTRY_BYTES: usize = 32;

/// The rows of a write, which fit together.
#[derive(Clone, Copy)]
struct Changes<'a> {
    ops: &'a [u8],
    keys: &'a BinaryArray,
    subs: Option<&'a BinaryArray>,
    values: Option<&'a BinaryArray>,
    /// The bytes before each value.
    prefix: &'a [u8],
}

impl<'a> Changes<'a> {
    fn len(self) -> usize {
        self.ops.len()
    }

    fn key(self, i: usize) -> &'a [u8] {
        self.keys.value(i)
    }

    fn sub(self, i: usize) -> Option<&'a [u8]> {
        self.subs.filter(|subs| subs.is_valid(i)).map(|subs| subs.value(i))
    }

    fn value(self, i: usize) -> Option<&'a [u8]> {
        self.values.filter(|values| values.is_valid(i)).map(|values| values.value(i))
    }

    /// The time of a timer.
    fn time(self, i: usize) -> Option<i64> {
        self.sub(i).and_then(|sub| sub.try_into().ok()).map(i64::from_be_bytes)
    }

    fn bytes(self) -> u64 {
        let of = |array: Option<&BinaryArray>| array.map_or(0, |array| array.value_data().len());
        (of(Some(self.keys)) + of(self.subs) + of(self.values)) as u64 + CHANGE_BYTES * self.len() as u64
    }

    /// The stored form of what row `i` puts, perhaps in `out`; none if it puts nothing.
    fn put(self, i: usize, out: &'a mut Vec<u8>) -> Option<&'a [u8]> {
        let value = self.value(i).filter(|_| self.ops[i] == PUT)?;
        if self.prefix.is_empty() {
            return Some(value);
        }
        out.clear();
        out.extend_from_slice(self.prefix);
        out.extend_from_slice(value);
        Some(out)
    }

    /// Says what is wrong with a row; none if nothing is.
    fn wrong(self, i: usize, kind: Kind) -> Option<&'static str> {
        if self.keys.is_null(i) {
            return Some("it has no key");
        }
        let (sub, value) = (self.sub(i).is_some(), self.value(i).is_some());
        match (kind, self.ops[i]) {
            (_, CLEAR) | (Kind::Value | Kind::Aggregating, DELETE) => None,
            (Kind::Value | Kind::Aggregating, PUT) | (Kind::List, APPEND) => (!value).then_some("it has no value"),
            (Kind::Map, PUT) if !value => Some("it has no value"),
            (Kind::Map, PUT | DELETE) => (!sub).then_some("it has no map key"),
            (Kind::Timers, PUT | DELETE) => self.time(i).is_none().then_some("its time is not one of eight bytes"),
            _ => Some("its operation is not one of this kind of state"),
        }
    }
}

impl StateSession {
    /// Changes a state, row after row. An operation is 0 = clear (all of a key), 1 = put (a value, a map entry, a timer),
    /// 2 = delete (a value, a map entry, a timer), 3 = append (a list element). A map entry is named by its map key, a timer
    /// by its time, both in `subs`: a time in milliseconds, as eight bytes, big endian. `expires_at` says when what is put or
    /// appended ends, in a state whose entries end. A call that is refused changes nothing.
    pub(super) fn write(
        &mut self,
        state: StateId,
        ops: &UInt8Array,
        keys: &BinaryArray,
        subs: Option<&BinaryArray>,
        values: Option<&BinaryArray>,
        expires_at: Option<i64>,
    ) -> Result<()> {
        let start = Instant::now();
        let all = [Kind::Value, Kind::Aggregating, Kind::List, Kind::Map, Kind::Timers];
        let used = self.used(state, &all, "change")?;
        self.overlay.environment().failpoints.hit("session.merge")?;
        let prefix = expires_at.filter(|_| used.ttl).map(ttl::prefix);
        let prefix = prefix.as_ref().map_or(&[][..], |prefix| prefix);
        let changes = Changes { ops: ops.values(), keys, subs, values, prefix };
        self.check_changes(used, changes, ops, expires_at)?;
        let groups = self.groups_of(keys)?;
        self.or_end(|session| session.make_room(changes))?;
        match used.kind {
            Kind::Value | Kind::Aggregating => self.write_values(used, changes, &groups),
            Kind::Map => self.write_maps(used, changes, &groups),
            Kind::List => self.write_lists(used, changes, &groups)?,
            Kind::Timers => self.write_timers(used, changes, &groups)?,
        }
        if let Some(ends) = expires_at.filter(|_| used.ttl && changes.len() > 0) {
            let one = any_of(changes.len(), |i| changes.key(i));
            let entries = changes.len() as u64;
            let bytes = changes.bytes() - CHANGE_BYTES * entries;
            self.hints.ends(state).added(Written { ends, entries, bytes, one: (groups[one], changes.key(one)) });
        }
        self.overlay.account();
        self.counters.count("changes", changes.len() as u64);
        self.counters.count_since("write_micros", start);
        self.overlay.count_look_ups(&mut self.counters);
        Ok(())
    }

    /// Removes all entries of a state, however many they are.
    pub(super) fn clear_all(&mut self, state: StateId) -> Result<()> {
        let all = [Kind::Value, Kind::Aggregating, Kind::List, Kind::Map, Kind::Timers];
        let used = self.used(state, &all, "change")?;
        for group in self.key_groups() {
            self.overlay.layers.clear((state, group), std::iter::once(&[][..]));
        }
        if used.kind == Kind::Timers {
            self.hints.cleared_timers(self.key_groups());
        }
        self.overlay.account();
        Ok(())
    }

    fn check_changes(&self, used: Used, changes: Changes<'_>, ops: &UInt8Array, expires_at: Option<i64>) -> Result<()> {
        let DeclaredState { name, .. } = self.declared()?.catalog.state(used.id)?;
        let columns = [Some(changes.keys), changes.subs, changes.values].into_iter().flatten();
        let lengths: Vec<usize> = columns.map(Array::len).collect();
        if ops.null_count() > 0 || lengths.iter().any(|length| *length != ops.len()) {
            return Err(Error::invalid(format!(
                "{} operations on the state `{name}`, some of them null or with columns of {lengths:?} rows: a call \
                 needs one of each",
                ops.len()
            )));
        }
        if let Some((i, wrong)) = (0..changes.len()).find_map(|i| Some((i, changes.wrong(i, used.kind)?))) {
            return Err(Error::invalid(format!(
                "change {i} of the state `{name}`, operation {}: {wrong}",
                changes.ops[i]
            )));
        }
        let length = |i: usize| {
            [changes.key(i).len(), changes.sub(i).map_or(0, <[u8]>::len), changes.value(i).map_or(0, <[u8]>::len)]
        };
        let bytes = usize::try_from(changes.bytes()).unwrap_or(usize::MAX);
        // A little more for what entries have beside them.
        check_records(bytes, (0..changes.len()).map(|i| length(i).iter().sum::<usize>() + ENTRY_BYTES))
            .map_err(|error| error.context(format!("the state `{name}`")))?;
        let puts = changes.ops.iter().any(|op| [PUT, APPEND].contains(op));
        match expires_at {
            None if used.ttl && puts => {
                Err(Error::invalid(format!("the state `{name}` has a time to live: its changes need a time to end")))
            }
            Some(_) if !used.ttl => {
                Err(Error::invalid(format!("the state `{name}` has no time to live: its changes have no time to end")))
            }
            _ => Ok(()),
        }
    }

    /// Does what may leave a change half made when it fails: then the session has ended (invariant 4).
    pub(super) fn or_end<T>(&mut self, work: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        work(self).inspect_err(|error| self.ended = Some(error.clone()))
    }

    fn make_room(&mut self, changes: Changes<'_>) -> Result<()> {
        self.overlay.make_room(changes.bytes(), &mut self.counters)?;
        if let Some(attached) = self.attached.as_mut().filter(|_| self.overlay.layers.has_spilled()) {
            // Its change set takes long: other commits need not wait for it.
            attached.guard = None;
        }
        Ok(())
    }

    fn write_values(&mut self, used: Used, changes: Changes<'_>, groups: &[KeyGroup]) {
        let mut stored = Vec::new();
        for (i, group) in groups.iter().enumerate() {
            let place = (used.id, *group);
            self.overlay.layers.put(place, changes.key(i), changes.put(i, &mut stored));
        }
    }

    fn write_maps(&mut self, used: Used, changes: Changes<'_>, groups: &[KeyGroup]) {
        let cleared = self.clear_first(used, changes, groups);
        let (mut entry, mut stored) = (Vec::new(), Vec::new());
        for (i, group) in groups.iter().enumerate().filter(|(i, _)| !cleared.contains(i)) {
            let place = (used.id, *group);
            let Some(sub) = changes.sub(i).filter(|_| changes.ops[i] != CLEAR) else {
                self.overlay.layers.clear(place, std::iter::once(changes.key(i)));
                continue;
            };
            entry.clear();
            entry.extend_from_slice(changes.key(i));
            entry.extend_from_slice(sub);
            self.overlay.layers.put(place, &entry, changes.put(i, &mut stored));
        }
    }

    /// Makes the clears of keys that have no change before in the call, together: one by one each may pass all changes.
    /// Returns their rows.
    fn clear_first(&mut self, used: Used, changes: Changes<'_>, groups: &[KeyGroup]) -> HashSet<usize> {
        if !changes.ops.contains(&CLEAR) {
            return HashSet::new();
        }
        let hashes: Vec<u64> = (0..changes.len()).map(|i| hash_key(changes.key(i))).collect();
        let firsts = Distinct::of(&hashes, |row| changes.key(row)).firsts;
        let rows: HashSet<usize> = firsts.into_iter().filter(|&row| changes.ops[row] == CLEAR).collect();
        let mut prefixes: HashMap<KeyGroup, Vec<&[u8]>> = HashMap::new();
        for &row in &rows {
            prefixes.entry(groups[row]).or_default().push(changes.key(row));
        }
        for (group, prefixes) in prefixes {
            self.overlay.layers.clear((used.id, group), prefixes.into_iter());
        }
        rows
    }

    fn write_lists(&mut self, used: Used, changes: Changes<'_>, groups: &[KeyGroup]) -> Result<()> {
        let hashes: Vec<u64> = (0..changes.len()).map(|i| hash_key(changes.key(i))).collect();
        let distinct = Distinct::of(&hashes, |row| changes.key(row));
        let parts = ListKeys::of(distinct.firsts.iter().map(|&row| (HEAD, changes.key(row), None)));
        let of_list = distinct.firsts.iter().map(|&row| groups[row]);
        let heads = self.read(None, |view| view.look_up(used.id, of_list.zip(parts.iter())))?;
        let mut updates = Vec::with_capacity(distinct.firsts.len());
        for head in heads.iter() {
            updates.push(ListUpdate::new(ListHeader::read(head, used.layout())?, false));
        }
        for (row, &list) in distinct.of_row.iter().enumerate() {
            match changes.value(row).filter(|_| changes.ops[row] == APPEND) {
                Some(element) => updates[list].push(changes.prefix, element),
                None => updates[list].clear(),
            }
        }
        for (mut update, &row) in updates.into_iter().zip(&distinct.firsts) {
            let head = update.finish(used.layout());
            update.change(&mut self.overlay.layers, (used.id, groups[row]), changes.key(row), head.as_deref());
        }
        Ok(())
    }

    fn write_timers(&mut self, used: Used, changes: Changes<'_>, groups: &[KeyGroup]) -> Result<()> {
        for (i, group) in groups.iter().enumerate() {
            let key = changes.key(i);
            match changes.time(i).filter(|_| changes.ops[i] != CLEAR) {
                Some(time) => self.write_timer((used.id, *group), key, time, changes.ops[i] == PUT),
                None => {
                    // What is before it in the call is seen.
                    let times = self.or_end(|session| session.times_of(used.id, *group, key))?;
                    times.into_iter().for_each(|time| self.write_timer((used.id, *group), key, time, false));
                }
            }
        }
        Ok(())
    }

    fn write_timer(&mut self, place: Place, key: &[u8], time: i64, is_there: bool) {
        let mut entry = Vec::with_capacity(1 + TIME + key.len());
        let value = is_there.then_some(&[][..]);
        push_by_key(&mut entry, key, time);
        self.overlay.layers.put(place, &entry, value);
        push_by_time(&mut entry, time, key);
        self.overlay.layers.put(place, &entry, value);
        if is_there {
            self.hints.added_timer(place.1, time, key);
        } else {
            self.hints.removed_timer(place.1, time, key);
        }
    }
}
