use crate::keyed::KeyedState;
use crate::rocks::SharedResources;
use fastchangelog_format::model::{Change, ChangeSet, KeyGroup, Op, StateId};
use fastchangelog_store::budget::MemoryBudget;
use fastchangelog_store::metrics::Metrics;
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
fn a_moved_cursor_reads_what_a_new_one_reads_however_much_was_deleted() {
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
