//! A process that ends at any step: garbage collection leaves what the retained checkpoints name.

use super::super::testing::*;
use super::*;
use fastchangelog_store::fault::Fault;
use std::collections::BTreeMap;

/// Calls to the store that the work below makes at most.
const CALLS: u64 = 200;

/// Four checkpoints, of which two are retained; gives back what had been retained when call `crash` came.
fn work(w: &World, crash: u64) -> BTreeMap<u64, ChangelogHandle> {
    let crashed = || w.inner.calls() > crash;
    let mut retained = BTreeMap::new();
    let writers = [w.writer("one"), w.writer("two")];
    for id in 1..=4 {
        for (i, writer) in writers.iter().enumerate() {
            // The first set of a checkpoint goes before the checkpoint asks for it.
            append(writer, 150);
            append(writer, 20);
            let persist = persist(writer, writer.next_sequence_number() - 2, id);
            let mut answer = None;
            until("an answer, or the end", || {
                answer = persist.try_recv().ok();
                answer.is_some() || crashed()
            });
            let Some(Ok(handle)) = answer else { return retained };
            writer.confirm(handle.from, handle.to, id).unwrap();
            if id > 2 {
                writer.truncate(handle.from).unwrap();
                retained.retain(|number, _| *number >= (id - 1) * 10 || *number % 10 != i as u64);
                writer.subsume(id - 2).unwrap();
            }
            retained.insert(id * 10 + i as u64, handle);
        }
    }
    until("deletions, or the end", || w.storage.metrics().discards_pending.get() == 0 || crashed());
    retained
}

#[test]
fn a06_x05_a_sweep_finds_what_a_crash_at_any_step_leaves() {
    for fault in [Fault::Hang, Fault::HangAfter] {
        for crash in 0..CALLS {
            let w = world(&[("preemptive_persist_threshold", "100")]);
            // The call takes effect or not; those after it are never made.
            w.inner.at(crash, fault);
            (crash + 1..crash + CALLS).for_each(|call| w.inner.at(call, Fault::Hang));
            let retained = work(&w, crash);
            let ended = w.inner.calls() <= crash;
            let w = w.crashed();
            let handles: Vec<ChangelogHandle> = retained.into_values().collect();
            w.storage.sweep(&handles, Duration::ZERO, false).unwrap();
            let named: HashSet<&str> = handles.iter().flat_map(|h| &h.sets).map(|set| &*set.object.name).collect();
            assert_eq!(w.objects(), named.len(), "{fault:?} at call {crash}");
            for handle in &handles {
                assert_eq!(w.read(handle).unwrap().len(), 2, "{fault:?} at call {crash}");
            }
            if ended {
                assert!(crash > 10, "the work is done after {crash} calls");
                break;
            }
        }
    }
}

#[test]
fn invariant_3_p6_a_clock_ahead_deletes_nothing_young() {
    let w = world(&[]);
    let writer = w.writer("one");
    append(&writer, 10);
    wait(&persist(&writer, 0, 1)).unwrap();
    writer.close();
    // The clock of these tests stands near the epoch; the store's is right.
    for ahead in [0, 1 << 31, 1 << 32] {
        w.clock.advance(Duration::from_secs(ahead));
        let report = w.storage.sweep(&[], Duration::from_hours(1), false).unwrap();
        assert_eq!((report.deleted.len(), report.kept), (0, 1));
    }
    assert_eq!(w.storage.sweep(&[], Duration::ZERO, false).unwrap().deleted.len(), 1);
    let left = w.storage.runtime().block_on(w.storage.shared.store.list("")).unwrap();
    assert_eq!(left, [], "no probe is left");
}

#[test]
fn p6_a_store_that_fails_while_it_is_swept_keeps_what_is_named() {
    let w = world(&[]);
    let writer = w.writer("one");
    let mut handles = Vec::new();
    for id in 1..=3 {
        append(&writer, 10);
        handles.push(wait(&persist(&writer, id - 1, id)).unwrap());
    }
    writer.close();
    let kept = handles.pop().unwrap();
    for call in 0..6 {
        w.inner.at(w.inner.calls() + call, Fault::Throttled);
        w.inner.at(w.inner.calls() + call + 1, Fault::Throttled);
        w.storage.sweep(std::slice::from_ref(&kept), Duration::ZERO, false).ok();
        assert_eq!(w.alive(&kept), 1, "call {call}");
        w.inner.heal();
    }
    w.storage.sweep(std::slice::from_ref(&kept), Duration::ZERO, false).unwrap();
    assert_eq!((w.alive(&kept), w.objects()), (1, 1));
}
