use super::super::testing::*;
use super::*;
use crate::shard::testing::World;
use std::collections::BTreeSet;

fn change(op: u8, timers: &[(i64, Bytes)]) -> Write {
    let row = |(time, key): &(i64, Bytes)| (op, key.clone(), Some(time.to_be_bytes().to_vec()), None);
    Write { state: TIMERS, rows: timers.iter().map(row).collect(), ends: None }
}

/// Invariants 1 and 2: timers fire in pages; one that fires is removed, and some register others, before and behind.
fn fire(options: &[(&str, &str)]) {
    let mut world = World::new(options);
    let shard = world.shard(None);
    let keys = names(0..3000);
    let mut model: BTreeSet<(i64, Bytes)> = BTreeSet::new();
    let mut session = open(&shard, None, 0).unwrap();
    for (i, part) in keys.chunks(500).enumerate() {
        let timers: Vec<_> =
            part.iter().zip(0_i64..).flat_map(|(key, j)| [(j % 7, key.clone()), (50, key.clone())]).collect();
        model.extend(timers.iter().cloned());
        write(&mut session, &change(PUT, &timers)).unwrap();
        assert_eq!(session.next_timer().unwrap(), Some(0), "part {i}");
    }
    let handle = session.commit(None).unwrap().handle.unwrap();

    let mut session = open(&shard, Some(&handle), 0).unwrap();
    let (mut after, mut fired): (Option<(i64, Bytes)>, usize) = (None, 0);
    loop {
        let position = after.as_ref().map(|(time, key)| (*time, &key[..]));
        let (times, found, more) = session.due_timers(40, position, 400).unwrap();
        let page: Vec<(i64, Bytes)> =
            times.values().iter().copied().zip(found.iter().flatten().map(<[u8]>::to_vec)).collect();
        let expected: Vec<_> = model
            .iter()
            .filter(|timer| timer.0 <= 40 && after.as_ref().is_none_or(|after| *timer > after))
            .take(400)
            .cloned()
            .collect();
        assert!(page == expected, "after {after:?}");
        let behind = |timer: &&(i64, Bytes)| timer.0 <= 40 && page.last().is_some_and(|last| *timer > last);
        assert_eq!(more, model.iter().any(|timer| behind(&timer)));
        let Some(last) = page.last().cloned() else { break };
        fired += page.len();
        // Every tenth one comes again behind, every hundredth before: that one is not seen in this batch.
        let mut others: Vec<_> = page.iter().step_by(10).map(|(time, key)| (time + 3, key.clone())).collect();
        others.extend(page.iter().step_by(100).map(|(time, key)| (time - 20, key.clone())));
        model.retain(|timer| !page.contains(timer));
        model.extend(others.iter().cloned());
        write(&mut session, &change(DELETE, &page)).unwrap();
        write(&mut session, &change(PUT, &others)).unwrap();
        after = Some(last);
    }
    assert!(fired > 3000 && fired < 4000, "{fired}");
    assert_eq!(session.next_timer().unwrap(), model.first().map(|timer| timer.0));
    let handle = session.commit(None).unwrap().handle.unwrap();
    assert_eq!(handle.state_keys, 2 * model.len() as u64, "two entries each");
    for machine in [shard, world.shard(None)] {
        let mut session = open(&machine, Some(&handle), 0).unwrap();
        assert!(all_due(&mut session, i64::MAX, 1000).unwrap() == model.iter().cloned().collect::<Vec<_>>());
    }
}

#[test]
fn invariant_1_due_timers_come_in_order_page_after_page() {
    fire(&[]);
}

#[test]
fn invariant_1_due_timers_of_spilled_changes_come_in_order() {
    fire(&[("session_memory", "64KiB")]);
}

/// Timers of long keys in all key groups, some of one time.
fn long_timers(count: u32, bytes: usize) -> Vec<(i64, Bytes)> {
    let long = |name: Bytes| [vec![b'x'; bytes], name].concat();
    names(0..count).into_iter().zip(0..).map(|(name, i)| (i / 3, long(name))).collect()
}

#[test]
fn invariant_2_a_page_of_long_keys_ends_early() {
    const LONG: usize = 300 << 10;
    let mut world = World::new(&[]);
    let shard = world.shard(None);
    let mut session = open(&shard, None, 0).unwrap();
    let mut timers = long_timers(40, LONG);
    timers.chunks(5).for_each(|part| write(&mut session, &change(PUT, part)).unwrap());
    timers.sort_unstable();
    let handle = session.commit(None).unwrap().handle.unwrap();
    let mut session = open(&shard, Some(&handle), 0).unwrap();
    for limit in [usize::MAX, 40, 39, 7, 1] {
        let (mut found, mut pages): (Vec<(i64, Bytes)>, usize) = (Vec::new(), 0);
        loop {
            let after = found.last().map(|(time, key)| (*time, &key[..]));
            let (times, keys, more) = session.due_timers(i64::MAX, after, limit).unwrap();
            let bytes: usize = keys.iter().flatten().map(<[u8]>::len).sum();
            assert!(bytes <= PAGE_BYTES + LONG && times.len() <= limit && !times.is_empty());
            found.extend(times.values().iter().copied().zip(keys.iter().flatten().map(<[u8]>::to_vec)));
            pages += 1;
            assert_eq!(more, found.len() < timers.len(), "after {} of them", found.len());
            if !more {
                break;
            }
        }
        assert!(found == timers);
        assert_eq!(pages, 40_usize.div_ceil(limit.min(PAGE_BYTES / LONG + 1)));
    }
}

#[test]
fn invariant_2_timers_of_many_keys_are_a_page_of_the_first_ones() {
    let mut world = World::new(&[]);
    let mut session = open(&world.shard(None), None, 0).unwrap();
    let keys = names(0..5);
    let timers: Vec<_> = keys.iter().flat_map(|key| [3, 1, 2].map(|time| (time, key.clone()))).collect();
    write(&mut session, &change(PUT, &timers)).unwrap();
    let lists = |session: &mut StateSession, keys: &[Bytes], most: usize| {
        let lists = session.timers_of_some(&binary(keys), most).unwrap();
        assert!(lists.offsets().lengths().all(|length| length == 3));
        lists.len()
    };
    let most = [1, 3 * TIME, 3 * TIME + 1, 6 * TIME, 15 * TIME, usize::MAX];
    assert_eq!(most.map(|most| lists(&mut session, &keys, most)), [1, 1, 2, 2, 5, 5], "one at least");
    assert_eq!(lists(&mut session, &keys[3..], PAGE_BYTES), 2);
}

#[test]
fn nothing_is_read_while_no_timer_is_due_and_the_first_is_known() {
    let mut world = World::new(&[]);
    let shard = world.shard(None);
    let dirty = || shard.read(|keyed| Ok(keyed.dirty_entries())).unwrap();
    let timers: Vec<_> = names(0..100).into_iter().zip(10..).map(|(key, time)| (time, key)).collect();
    let mut session = open(&shard, None, 0).unwrap();
    write(&mut session, &change(PUT, &timers)).unwrap();
    let handle = session.commit(None).unwrap().handle.unwrap();
    let mut session = open(&shard, Some(&handle), 0).unwrap();
    assert_eq!((session.due_timers(9, None, 10).unwrap().0.len(), session.next_timer().unwrap()), (0, Some(10)));
    let other = vec![(5, key("k7"))];
    write(&mut session, &change(PUT, &other)).unwrap();
    assert_eq!(session.next_timer().unwrap(), Some(5));
    assert_eq!(dirty(), 200, "a walk would have written them to the disk");
    assert_eq!(all_due(&mut session, 5, 10).unwrap(), other);
    assert_eq!(dirty(), 100, "those by key are not walked over");
    write(&mut session, &change(DELETE, &other)).unwrap();
    assert_eq!(session.next_timer().unwrap(), Some(10));
    let handle = session.commit(None).unwrap().handle.unwrap();
    // It is known in the next batch, too, and on another machine it is found.
    for machine in [shard, world.shard(None)] {
        let mut session = open(&machine, Some(&handle), 0).unwrap();
        assert_eq!(session.next_timer().unwrap(), Some(10));
        assert_eq!(all_due(&mut session, 10, 10).unwrap(), timers[..1]);
        write(&mut session, &Write { state: TIMERS, rows: vec![(CLEAR, timers[0].1.clone(), None, None)], ends: None })
            .unwrap();
        assert_eq!(session.next_timer().unwrap(), Some(11));
        assert_eq!(session.due_timers(i64::MAX, None, 0).unwrap().0.len(), 0);
    }
}

#[test]
fn states_without_timers_have_none() {
    let mut world = World::new(&[]);
    let mut session = StateSession::open(&world.shard(None), None, fastchangelog_format::model::BatchId(0)).unwrap();
    session.declare(r#"[{"id":0,"name":"value","kind":"value"}]"#, 0).unwrap();
    assert_eq!(session.next_timer().unwrap(), None);
    assert_eq!(session.due_timers(i64::MAX, None, 9).unwrap().0.len(), 0);
    assert_eq!(session.timers_of(&binary(&names(0..3))).unwrap().value_length(2), 0);
}
