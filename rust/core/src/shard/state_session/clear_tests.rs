//! The memory of clears: a few bytes of changes may remove many entries.

use super::super::StateSession;
use super::super::testing::{CLEAR, MAP, PUT, Write, all_rows, last_sets, open, write};
use crate::shard::testing::World;
use std::ops::Range;

/// As many entries of a map as a clear removes one by one.
const ENTRIES: u32 = 250;
const CHILD: &str = "FASTCHANGELOG_MEMORY_TEST";

fn names(keys: Range<u32>) -> Vec<Vec<u8>> {
    keys.map(|i| format!("a key {i:05}").into_bytes()).collect()
}

fn fill(session: &mut StateSession, keys: u32) {
    for part in names(0..keys).chunks(100) {
        let entries = part.iter().flat_map(|key| {
            (0..ENTRIES).map(move |sub| (PUT, key.clone(), Some(sub.to_be_bytes().to_vec()), Some(vec![7; 10])))
        });
        write(session, &Write { state: MAP, rows: entries.collect(), ends: None }).unwrap();
    }
}

fn clear(session: &mut StateSession, keys: Range<u32>) {
    let rows = names(keys).into_iter().map(|key| (CLEAR, key, None, None)).collect();
    write(session, &Write { state: MAP, rows, ends: None }).unwrap();
}

#[test]
fn p7_a_few_clears_of_many_entries_are_several_change_sets() {
    const KEYS: u32 = 2_000;
    let mut world = World::new(&[("session_memory", "2MiB")]);
    let shard = world.shard(None);
    let mut session = open(&shard, None, 0).unwrap();
    fill(&mut session, KEYS);
    let full = session.commit(None).unwrap().handle.unwrap();
    assert_eq!(full.state_keys, u64::from(KEYS * ENTRIES));

    // The clears themselves have room in memory, the deletes of their entries have not.
    let mut session = open(&shard, Some(&full), 0).unwrap();
    clear(&mut session, 0..KEYS - 1);
    let committed = session.commit(None).unwrap();
    let cleared = committed.handle.unwrap();
    assert_eq!(cleared.state_keys, u64::from(ENTRIES));
    assert!(committed.metrics["ranges"] > 10, "{:?}", committed.metrics);
    let largest = last_sets(&world, &cleared).iter().map(Vec::len).max();
    assert!(largest < Some(50_000), "{largest:?} changes");

    // Those of few entries need no local disk.
    let mut session = open(&shard, Some(&cleared), 0).unwrap();
    clear(&mut session, KEYS - 1..KEYS);
    let committed = session.commit(None).unwrap();
    assert!(!committed.metrics.contains_key("spills"));
    assert_eq!(committed.handle.unwrap().state_keys, 0);
}

#[test]
fn clears_of_spilled_changes_are_taken_over_in_steps() {
    const KEYS: u32 = 2_000;
    let mut world = World::new(&[("session_memory", "2MiB")]);
    let shard = world.shard(None);
    let mut session = open(&shard, None, 0).unwrap();
    fill(&mut session, KEYS);
    clear(&mut session, 0..KEYS - 1);
    let again = (PUT, names(0..1).remove(0), Some(b"sub".to_vec()), Some(b"value".to_vec()));
    write(&mut session, &Write { state: MAP, rows: vec![again], ends: None }).unwrap();
    let handle = session.commit(None).unwrap().handle.unwrap();
    assert_eq!(handle.state_keys, u64::from(ENTRIES) + 1);
    let mut session = open(&world.shard(None), Some(&handle), 0).unwrap();
    let rows = all_rows(&mut session, MAP, 1 << 20).unwrap();
    assert_eq!(rows.len() as u64, handle.state_keys);
    let kept = names(KEYS - 1..KEYS).remove(0);
    assert!(rows.iter().all(|(key, ..)| key.starts_with(&kept) || key.ends_with(b"sub")));
}

/// Runs in a process of its own, with the allocator set as the state server sets it.
#[test]
#[cfg_attr(not(target_os = "linux"), ignore = "/proc is that of Linux")]
fn p7_resident_memory_stays_low_while_many_maps_are_cleared() {
    if std::env::var_os(CHILD).is_some() {
        return measure();
    }
    let name = std::thread::current().name().unwrap().to_owned();
    let output = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &name])
        .env(CHILD, "1")
        .env("MALLOC_ARENA_MAX", "2")
        .env("MALLOC_MMAP_THRESHOLD_", "1048576")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}

fn measure() {
    const KEYS: u32 = 5_000;
    const MOST_MIB: u64 = 36;
    let mut world = World::new(&[("session_memory", "2MiB")]);
    let shard = world.shard(None);
    let mut session = open(&shard, None, 0).unwrap();
    fill(&mut session, KEYS);
    let of_one_batch = grown(|| {
        clear(&mut session, 0..KEYS);
        assert_eq!(session.commit(None).unwrap().handle.unwrap().state_keys, 0);
    });
    let mut session = open(&shard, None, 0).unwrap();
    fill(&mut session, KEYS);
    let handle = session.commit(None).unwrap().handle.unwrap();
    let mut session = open(&shard, Some(&handle), 0).unwrap();
    let of_the_version_below = grown(|| {
        clear(&mut session, 0..KEYS);
        assert_eq!(session.commit(None).unwrap().handle.unwrap().state_keys, 0);
    });
    let found = [of_one_batch, of_the_version_below];
    println!("{found:?} MiB");
    assert!(found.iter().all(|grown| *grown < MOST_MIB), "{found:?} MiB, {MOST_MIB} at most");
}

/// How many MiB the process takes more at most, while this is done.
fn grown(work: impl FnOnce()) -> u64 {
    let resident = |name| {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find(|line| line.starts_with(name)).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() >> 10
    };
    // The peak from now on.
    std::fs::write("/proc/self/clear_refs", "5").unwrap();
    let before = resident("VmRSS:");
    work();
    // The kernel counts pages for each thread and adds them up late: the peak may be below what was read.
    resident("VmHWM:").saturating_sub(before)
}
