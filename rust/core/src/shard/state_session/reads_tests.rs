//! Answers for the first keys of a call, wherever their values are.

use super::super::StateSession;
use super::super::testing::{Bytes, ENDING_VALUE, MAP, PUT, VALUE, Write, binary, open, write};
use super::*;
use crate::shard::testing::World;

const VALUES: [usize; 8] = [10, 0, 30, 100, 1, 200, 5, 5];
/// Keys without a value, behind the others.
const ABSENT: usize = 100;

fn key(i: usize) -> Bytes {
    format!("key {i:03}").into_bytes()
}

/// Values of all sizes: of every key, and of one key's map entries with these names.
fn fill(session: &mut StateSession) {
    let row = |i: usize, size: usize| (PUT, key(i), None, Some(vec![7; size]));
    let rows: Vec<_> = VALUES.iter().enumerate().map(|(i, size)| row(i, *size)).collect();
    write(session, &Write { state: ENDING_VALUE, rows: rows.clone(), ends: Some(1) }).unwrap();
    let entries = rows.iter().map(|(op, sub, _, value)| (*op, key(0), Some(sub.clone()), value.clone())).collect();
    write(session, &Write { state: VALUE, rows, ends: None }).unwrap();
    write(session, &Write { state: MAP, rows: entries, ends: None }).unwrap();
}

fn check(session: &mut StateSession, when: &str) {
    let keys: Vec<Bytes> = (0..VALUES.len() + ABSENT).map(key).collect();
    for most in [0, 1, 10, 39, 40, 41, 140, 200, 340, 341, 350, 351, usize::MAX] {
        for from in (0..=VALUES.len()).chain([keys.len() - 1]) {
            let asked = binary(&keys[from..]);
            // Those that fit beside the first one.
            let mut room = most.saturating_sub(VALUES.get(from).copied().unwrap_or_default());
            let fits = |i: &usize| {
                let size = VALUES.get(*i).copied().unwrap_or_default();
                let does = size <= room;
                room -= if does { size } else { 0 };
                does
            };
            let expected = 1 + (from + 1..keys.len()).take_while(fits).count();
            let answers = [
                session.get_some(VALUE, &asked, most).unwrap(),
                session.get_some_entries(MAP, &binary([&keys[0]]), &asked, most).unwrap(),
                session.get_some_entries(MAP, &binary(vec![&keys[0]; asked.len()]), &asked, most).unwrap(),
            ];
            for found in answers {
                assert_eq!(found.len(), expected, "{when}: {most} bytes from {from} on");
                for (i, value) in found.iter().enumerate() {
                    assert_eq!(value.map(<[u8]>::len), VALUES.get(from + i).copied(), "{when}: key {}", from + i);
                }
            }
            // What has ended is read, and null.
            let ended = session.get_some(ENDING_VALUE, &asked, most).unwrap();
            assert!(!ended.is_empty() && ended.null_count() == ended.len(), "{when}");
        }
    }
    assert_eq!(session.get_some(VALUE, &binary([]), 0).unwrap().len(), 0, "{when}");
}

#[test]
fn values_of_many_bytes_are_those_of_the_first_keys() {
    for options in [&[][..], &[("session_memory", "64KiB")]] {
        let mut world = World::new(options);
        let shard = world.shard(None);
        let mut session = open(&shard, None, 5).unwrap();
        fill(&mut session);
        if !options.is_empty() {
            let large = (0..40).map(|i| (PUT, key(500 + i), None, Some(vec![1; 4096]))).collect();
            write(&mut session, &Write { state: VALUE, rows: large, ends: None }).unwrap();
            assert!(session.counters.get("spills") > 0);
        }
        check(&mut session, "changes");
        let handle = session.commit(None).unwrap().handle.unwrap();
        check(&mut open(&shard, Some(&handle), 5).unwrap(), "live");
        let mut changed = open(&shard, Some(&handle), 5).unwrap();
        let (state, rows) = (VALUE, [1, 3, 5].map(|i| (PUT, key(i), None, Some(vec![8; VALUES[i]]))).to_vec());
        write(&mut changed, &Write { state, rows, ends: None }).unwrap();
        check(&mut changed, "changes of some keys");
        check(&mut open(&world.shard(None), Some(&handle), 5).unwrap(), "restored");
    }
}
