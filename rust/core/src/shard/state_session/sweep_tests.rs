use super::super::testing::*;
use super::*;
use crate::kinds::list_layout::{CHUNK, HEAD, ListHeader, ListLayout, TAIL};
use crate::kinds::sweep::LEAST_PASSED;
use crate::shard::Shard;
use crate::shard::testing::World;
use crate::states::FEW_KEYS;
use fastchangelog_format::model::{Op, ShardHandle};
use std::sync::Arc;

fn ending(state: StateId, keys: &[Bytes], value: &[u8], ends: i64) -> Write {
    let (op, sub) = match state {
        ENDING_LIST => (APPEND, None),
        ENDING_MAP => (PUT, Some(b"sub".to_vec())),
        _ => (PUT, None),
    };
    let rows = keys.iter().map(|key| (op, key.clone(), sub.clone(), Some(value.to_vec()))).collect();
    Write { state, rows, ends: Some(ends) }
}

/// One batch: its handle, and what it removed.
fn batch(shard: &Arc<Shard>, base: Option<&ShardHandle>, now: i64, writes: &[Write]) -> (ShardHandle, u64) {
    let mut session = open(shard, base, now).unwrap();
    writes.iter().for_each(|made| write(&mut session, made).unwrap());
    let committed = session.commit(None).unwrap();
    (committed.handle.unwrap(), committed.metrics.get("entries_ended").copied().unwrap_or(0))
}

#[test]
fn invariant_1_what_has_ended_goes_with_the_next_batch() {
    let mut world = World::new(&[]);
    let shard = world.shard(None);
    let all_keys = 20_000;
    let keys = names(0..all_keys);
    for state in [ENDING_VALUE, ENDING_LIST, ENDING_MAP] {
        let (mut handle, removed) = batch(&shard, None, 0, &[ending(state, &keys, b"value", 10)]);
        assert_eq!((handle.state_keys, removed), (u64::from(all_keys), 0));
        // Some are renewed, and stay; of a renewed list the elements that have ended go, too.
        (handle, _) = batch(&shard, Some(&handle), 5, &[ending(state, &keys[..100], b"value", 1000)]);
        let renewed = if state == ENDING_LIST { 0 } else { 100 };
        let (handle, removed) = batch(&shard, Some(&handle), 10, &[]);
        assert_eq!((removed, handle.state_keys), (u64::from(all_keys) - renewed, 100), "{state:?}");
        let mut session = open(&world.shard(None), Some(&handle), 10).unwrap();
        assert_eq!(all_rows(&mut session, state, 1 << 20).unwrap().len(), 100);
        drop(session);
        shard.evict();
    }
}

#[test]
fn what_ends_leaves_as_fast_as_it_comes() {
    let mut world = World::new(&[]);
    let shard = world.shard(None);
    for state in [ENDING_VALUE, ENDING_LIST, ENDING_MAP] {
        for (count, size) in [(3000, 8), (150, 16 << 10)] {
            for moves in [false, true] {
                // A large element of a list is in a chunk beside its head.
                let each = if state == ENDING_LIST && size > CHUNK / 4 { 2 } else { 1 };
                let value = vec![7; size];
                let (mut base, mut removed) = (None, 0);
                for turn in 0..8 {
                    let now = i64::from(turn) * 100;
                    let keys = names(turn * count..(turn + 1) * count);
                    // All that came in the batch before has ended.
                    let (handle, gone) = batch(&shard, base.as_ref(), now, &[ending(state, &keys, &value, now + 50)]);
                    removed += gone;
                    let entries = handle.state_keys / each;
                    assert!(
                        entries <= 2 * u64::from(count),
                        "{state:?}, {size} bytes, batch {turn}: {entries} are left"
                    );
                    base = Some(handle);
                    if moves {
                        // The next batch is on another machine, which knows nothing of the walk.
                        shard.evict();
                    }
                }
                assert!(removed >= 6 * u64::from(count), "{removed}");
                shard.evict();
            }
        }
    }
}

#[test]
fn invariant_1_a_walk_passes_entries_by_changes_and_resumes() {
    let mut world = World::new(&[]);
    let shard = world.shard(None);
    let keys = names(0..5000);
    let (mut handle, _) = batch(&shard, None, 0, &[ending(ENDING_VALUE, &keys, b"value", 1000)]);
    (handle, _) = batch(&shard, Some(&handle), 0, &[ending(ENDING_VALUE, &keys[..1], b"value", 10)]);
    // What was paid for by the first batch is lost with the live version.
    drop(open(&shard, Some(&handle), 0).unwrap());
    shard.evict();
    let (mut rounds, mut all) = (0, 0);
    loop {
        let (next, removed) = batch(&shard, Some(&handle), 10, &[]);
        (handle, rounds, all) = (next, rounds + 1, all + removed);
        let mut session = open(&shard, Some(&handle), 10).unwrap();
        if session.hints.ends(ENDING_VALUE).sweep.is_none() {
            assert_eq!(session.hints.ends(ENDING_VALUE).first, Some(1000));
            break;
        }
    }
    assert_eq!((all, handle.state_keys), (1, 4999));
    let fewest = 5000_u64.div_ceil(LEAST_PASSED);
    assert!((fewest..=fewest + 1).contains(&rounds), "{rounds} rounds");
}

#[test]
fn invariant_2_what_goes_takes_the_memory_of_changes_at_most() {
    let mut world = World::new(&[("session_memory", "64KiB")]);
    let shard = world.shard(None);
    let keys = names(0..3000);
    let (handle, _) = batch(&shard, None, 0, &[ending(ENDING_VALUE, &keys, b"value", 10)]);
    assert_eq!(handle.state_keys, 3000);
    let mut session = open(&shard, Some(&handle), 10).unwrap();
    session.sweep().unwrap();
    assert_eq!(session.counters.get("entries_ended"), 3000);
    let (held, limit) = (session.overlay.layers.bytes(), session.overlay.limit());
    assert!(session.overlay.layers.has_spilled() && held <= 2 * limit, "{held} bytes are held, the limit is {limit}");
    let left = session.commit(None).unwrap().handle.unwrap();
    assert_eq!((left.state_keys, left.state_bytes), (0, 0));
    drop(open(&shard, Some(&left), 10).unwrap());
    assert_eq!(live_counts(&shard), (0, 0));
}

#[test]
fn nothing_is_read_before_something_may_have_ended() {
    let mut world = World::new(&[]);
    let shard = world.shard(None);
    let keys = names(0..200);
    let dirty = || shard.read(|keyed| Ok(keyed.dirty_entries())).unwrap();
    let (first, _) = batch(&shard, None, 0, &[ending(ENDING_VALUE, &keys, b"value", 10)]);
    let (second, _) = batch(&shard, Some(&first), 9, &[ending(ENDING_VALUE, &keys[..1], b"other", 20)]);
    assert_eq!(dirty(), 200, "a walk would have written them to the disk");
    let (third, removed) = batch(&shard, Some(&second), 10, &[]);
    assert_eq!((removed, third.state_keys), (199, 1));
    let (fourth, _) = batch(&shard, Some(&third), 19, &[ending(ENDING_VALUE, &keys[..1], b"more", 20)]);
    let (fifth, removed) = batch(&shard, Some(&fourth), 19, &[]);
    assert_eq!((removed, dirty() > 0, fifth.version), (0, true, fourth.version), "the next end is known");
    let (_, removed) = batch(&shard, Some(&fifth), 20, &[]);
    assert_eq!(removed, 1);
}

/// The chunks of the only list, with their numbers and lengths, and the head's first chunk.
fn chunks(shard: &Shard) -> (Vec<(u64, usize)>, Option<u64>) {
    let (mut chunks, mut first) = (Vec::new(), None);
    let mut see = |entry: fastchangelog_state::hot::EntryRef<'_>| {
        let value = entry.value.unwrap();
        if entry.key[0] == HEAD {
            first = Some(ListHeader::read(Some(value), ListLayout::Ending)?.first);
        } else {
            chunks.push((u64::from_be_bytes(*entry.key.last_chunk().unwrap()), value.len()));
        }
        Ok(())
    };
    shard.read(|keyed| keyed.for_each(&mut see)).unwrap();
    chunks.sort_unstable();
    (chunks, first)
}

#[test]
fn chunks_of_a_list_go_from_its_start() {
    let mut world = World::new(&[]);
    let shard = world.shard(None);
    let list = [key("list")];
    let element = vec![7; CHUNK / 4];
    let ends = [10, 10, 10, 90, 90, 90, 10, 10, 10, 10, 90, 90, 10, 10, 10, 95, 95, 95];
    let writes: Vec<Write> = ends.iter().map(|ends| ending(ENDING_LIST, &list, &element, *ends)).collect();
    let (first, _) = batch(&shard, None, 0, &writes);
    drop(open(&shard, Some(&first), 0).unwrap());
    let (before, at) = chunks(&shard);
    assert_eq!((before.len(), at), (18, Some(0)), "each element is larger than a tail, and so a chunk");

    let (second, removed) = batch(&shard, Some(&first), 10, &[]);
    assert_eq!(removed, 10);
    drop(open(&shard, Some(&second), 10).unwrap());
    let (after, at) = chunks(&shard);
    let numbers: Vec<u64> = after.iter().map(|(number, _)| *number).collect();
    assert_eq!((at, numbers), (Some(3), (3..18).collect()), "the first ones are gone");
    let empty: Vec<u64> = after.iter().filter(|(_, length)| *length == 0).map(|(number, _)| *number).collect();
    assert_eq!(empty, [6, 7, 8, 9, 12, 13, 14]);
    let read = |now: i64, base: &ShardHandle| {
        let mut session = open(&shard, Some(base), now).unwrap();
        all_entries(&mut session, ENDING_LIST, &list[0], 1).unwrap().len()
    };
    assert_eq!(read(10, &second), 8);
    let (third, removed) = batch(&shard, Some(&second), 90, &[ending(ENDING_LIST, &list, b"tail", 99)]);
    assert_eq!((removed, read(90, &third)), (5, 4));
    assert_eq!(chunks(&shard).1, Some(15), "empty ones are passed");
    let (fourth, removed) = batch(&shard, Some(&third), 100, &[]);
    assert_eq!((removed, fourth.state_keys), (4, 0), "and nothing is left of it");
}

#[test]
fn a_chunk_is_written_again_once_half_of_it_has_ended() {
    let mut world = World::new(&[]);
    let shard = world.shard(None);
    let list = [key("list")];
    // The tail grows beyond its limit with the last of four elements.
    let element = vec![7; 150];
    let mut base = None;
    for ends in [10, 20, 30, 40] {
        base = Some(batch(&shard, base.as_ref(), 0, &[ending(ENDING_LIST, &list, &element, ends)]).0);
    }
    let base = base.unwrap();
    drop(open(&shard, Some(&base), 0).unwrap());
    let whole = chunks(&shard).0;
    assert_eq!(whole.len(), 1, "four elements in one chunk");
    let length = |now: i64, base: &ShardHandle| {
        let (handle, removed) = batch(&shard, Some(base), now, &[]);
        drop(open(&shard, Some(&handle), now).unwrap());
        (handle, removed, chunks(&shard).0.first().map(|(_, length)| *length))
    };
    let (base, removed, same) = length(10, &base);
    assert_eq!((removed, same), (0, Some(whole[0].1)), "a quarter has ended");
    let (base, removed, half) = length(20, &base);
    assert_eq!((removed, half), (2, Some(whole[0].1 / 2)));
    let (base, removed, one) = length(30, &base);
    assert_eq!((removed, one), (1, Some(whole[0].1 / 4)));
    let (base, removed, none) = length(40, &base);
    assert_eq!((removed, none, base.state_keys), (1, None, 0));
}

#[test]
fn a_list_of_many_empty_chunks_goes_by_one_change() {
    let mut world = World::new(&[]);
    let shard = world.shard(None);
    let list = [key("list")];
    let element = vec![7; TAIL];
    // The first one lasts longest: the others become empty before.
    let mut writes = vec![ending(ENDING_LIST, &list, &element, 20)];
    writes.extend((0..FEW_KEYS + 10).map(|_| ending(ENDING_LIST, &list, &element, 10)));
    let (first, _) = batch(&shard, None, 0, &writes);
    let (second, removed) = batch(&shard, Some(&first), 10, &[]);
    assert_eq!((removed, second.state_keys), (FEW_KEYS as u64 + 10, FEW_KEYS as u64 + 12), "the empty ones stay");
    let (third, removed) = batch(&shard, Some(&second), 20, &[]);
    assert_eq!((removed, third.state_keys, third.state_bytes), (1, 0, 0));
    assert!(last_sets(&world, &third).iter().flatten().any(|change| change.0 == Op::DeletePrefix));
    drop(open(&shard, Some(&third), 20).unwrap());
    assert_eq!(live_counts(&shard), (0, 0));
}

#[test]
fn counters_of_a_session_reach_the_process_with_its_commit() {
    let mut world = World::new(&[]);
    let shard = world.shard(None);
    let keys = names(0..3);
    let time = |time: i64| Some(time.to_be_bytes().to_vec());
    let timers =
        Write { state: TIMERS, rows: keys.iter().map(|key| (PUT, key.clone(), time(5), None)).collect(), ends: None };
    let (handle, _) = batch(&shard, None, 0, &[ending(ENDING_VALUE, &keys, b"value", 10), timers]);
    let mut session = open(&shard, Some(&handle), 10).unwrap();
    assert_eq!(all_due(&mut session, 5, 9).unwrap().len(), 3);
    let before = world.metrics.due_timers.get();
    session.commit(None).unwrap();
    let metrics = &world.metrics;
    assert_eq!((before, metrics.due_timers.get(), metrics.changes.get()), (0, 3, 6));
    assert_eq!(metrics.entries_ended.get(), 3);
    assert!(metrics.write_micros.get() > 0);
}
