use crate::keyed::KeyedState;
use crate::rocks::SharedResources;
use fastchangelog_format::model::{Change, ChangeSet, KeyGroup, Op, StateId};
use fastchangelog_store::budget::MemoryBudget;
use fastchangelog_store::metrics::Metrics;
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::sync::Arc;
use tempfile::TempDir;

fn created(root: &TempDir) -> KeyedState {
    let shared = SharedResources::new(&MemoryBudget::new(256 << 20), Arc::new(Metrics::default())).unwrap();
    KeyedState::create(&root.path().join("db"), &shared).unwrap()
}

fn flush_all(state: &mut KeyedState) {
    state.begin_flush();
    while state.flush_dirty(usize::MAX).unwrap() {}
}

#[test]
fn the_last_key_at_or_below_another_is_of_its_state_and_group() {
    let root = TempDir::new().unwrap();
    let mut state = created(&root);
    let mut set = ChangeSet::default();
    for (group, id, key) in [(1, 4, "z"), (1, 5, "b"), (1, 5, "d"), (2, 5, "a")] {
        let (key_group, state) = (KeyGroup(group), StateId(id));
        set.push(Change { op: Op::Put, state, key_group, key: key.as_bytes(), value: &[] });
    }
    state.apply(&set).unwrap();
    assert!(state.last_at_or_below(StateId(5), KeyGroup(1), b"c").is_err(), "not while something is dirty");
    flush_all(&mut state);
    let last = |key: &str| state.last_at_or_below(StateId(5), KeyGroup(1), key.as_bytes()).unwrap();
    let expected = [None, None, Some(b"b".to_vec()), Some(b"b".to_vec()), Some(b"d".to_vec()), Some(b"d".to_vec())];
    assert_eq!(["", "a", "b", "c", "d", "e"].map(last), expected);
}

#[test]
fn a_moved_cursor_reads_what_a_new_one_reads() {
    let root = TempDir::new().unwrap();
    let mut state = created(&root);
    // Runs of deleted keys, shorter and longer than what a moved cursor passes, between runs of others.
    let runs = [(3, 0), (5, 20), (1, 63), (2, 64), (2, 65), (4, 300), (0, 5), (1, 0)];
    let keys: Vec<(u32, bool)> = runs.iter().flat_map(|&(there, gone)| [(there, true), (gone, false)]).collect();
    let all = || keys.iter().flat_map(|&(n, there)| (0..n).map(move |_| there)).zip(0_u32..);
    let change = |op, i: u32, set: &mut ChangeSet| {
        set.push(Change { op, state: StateId(0), key_group: KeyGroup(0), key: &i.to_be_bytes(), value: &[] });
    };
    let (mut puts, mut deletes) = (ChangeSet::default(), ChangeSet::default());
    all().for_each(|(_, i)| change(Op::Put, i, &mut puts));
    all().filter(|(there, _)| !there).for_each(|(_, i)| change(Op::Delete, i, &mut deletes));
    for set in [puts, deletes] {
        state.apply(&set).unwrap();
        flush_all(&mut state);
    }
    let expected = |from: u32, to: u32| -> Vec<u32> {
        all().filter(|&(there, i)| there && i >= from && i < to).map(|(_, i)| i).collect()
    };
    let most = all().count() as u32;
    let mut spare = None;
    for from in (0..most).step_by(7) {
        for to in [from, from + 1, from + 30, from + 90, most] {
            let (first, end) = (from.to_be_bytes(), to.to_be_bytes());
            let mut cursor = state.cursor_again(spare.take(), StateId(0), KeyGroup(0), &first, Some(&end)).unwrap();
            let mut found = Vec::new();
            while let Some((key, _)) = cursor.entry().unwrap() {
                found.push(u32::from_be_bytes(key.try_into().unwrap()));
                // Every fifth time what follows is passed, too: the keys up to the next 256.
                if found.len() % 5 == 0 { cursor.skip(&key.to_vec()[..3]) } else { cursor.advance() }
            }
            let mut all_of = expected(from, to);
            let mut i = 4;
            while i < all_of.len() {
                let passed = all_of[i] | 0xff;
                let next = all_of.iter().position(|key| *key > passed).unwrap_or(all_of.len());
                all_of.drain(i + 1..next.max(i + 1));
                i += 5;
            }
            assert_eq!(found, all_of, "{from}..{to}");
            spare = Some(cursor);
        }
    }
}

/// A range of the keys of a group (its end may lie before its start), how many of them are read, and whether the rest of a
/// byte is passed then.
type Walk = ((u16, u16, i16), usize, bool);

fn walks() -> impl Strategy<Value = Vec<Walk>> {
    let walk = ((0..3_u16, 0..600_u16, -20..60_i16), 0..12_usize, prop::bool::weighted(0.2));
    prop::collection::vec(walk, 1..120).prop_flat_map(|walks| {
        // As they come, and in the order of keys, where ranges follow closely on each other, and backwards.
        let mut sorted = walks.clone();
        sorted.sort_unstable();
        let backwards = sorted.iter().rev().copied().collect();
        prop_oneof![Just(walks), Just(sorted), Just(backwards)]
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_moved_cursor_reads_any_ranges_as_a_set_does(
        there in prop::collection::btree_set((0..3_u16, 0..600_u16), 0..600),
        gone in prop::collection::btree_set((0..3_u16, 100..400_u16), 0..500),
        walks in walks(),
    ) {
        let root = TempDir::new().unwrap();
        let mut state = created(&root);
        for (op, keys) in [(Op::Put, &there | &gone), (Op::Delete, gone.clone())] {
            let mut set = ChangeSet::default();
            for (group, key) in &keys {
                let key = key.to_be_bytes();
                set.push(Change { op, state: StateId(1), key_group: KeyGroup(*group), key: &key, value: &[] });
            }
            state.apply(&set).unwrap();
            flush_all(&mut state);
        }
        let model: BTreeSet<(u16, u16)> = &there - &gone;
        let mut spare = None;
        for ((group, from, length), most, passes) in walks {
            let to = from.saturating_add_signed(length);
            let (first, end) = (from.to_be_bytes(), to.to_be_bytes());
            let mut cursor =
                state.cursor_again(spare.take(), StateId(1), KeyGroup(group), &first, Some(&end)).unwrap();
            let mut expected = model.range((group, from)..(group, to.max(from))).map(|(_, key)| *key).peekable();
            for step in 0..=most {
                let found = cursor.entry().unwrap().map(|(key, _)| u16::from_be_bytes(key.try_into().unwrap()));
                prop_assert_eq!(found, expected.peek().copied(), "step {} of {}..{} in group {}", step, from, to, group);
                let Some(found) = found else {
                    cursor.advance();
                    prop_assert!(cursor.entry().unwrap().is_none());
                    break;
                };
                if passes {
                    cursor.skip(&found.to_be_bytes()[..1]);
                    while expected.next_if(|key| key >> 8 == found >> 8).is_some() {}
                } else {
                    cursor.advance();
                    expected.next();
                }
            }
            spare = Some(cursor);
        }
    }
}
