//! Tests of the writer with tasks that run in waves: one object a wave, and no wait without worth. Virtual time.

use super::tests::{Fixture, fixture};
use super::{JoinGuard, PersistFuture};
use crate::store::fault::{Fault, Operation};
use fastchangelog_format::model::BatchId;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep};

const MS: Duration = Duration::from_millis(1);
const PUT: Duration = Duration::from_millis(40);

/// A store whose puts take 40 ms.
fn far() -> Fixture {
    let f = fixture(&[]);
    f.inner.always(Operation::Put, Fault::Delay(PUT));
    f
}

/// What Spark does: `slots` tasks at a time. Each opens its session `pause` and up to `jitter` milliseconds after the last
/// one of its slot, and commits 2 ms later. Returns the objects and the duration of each batch.
async fn run(
    f: &Fixture,
    slots: usize,
    shards: usize,
    batches: std::ops::Range<i64>,
    pause: Duration,
    jitter: u64,
    seed: u64,
) -> Vec<(u64, Duration)> {
    let mut found = Vec::new();
    for batch in batches {
        let (objects, start) = (f.metrics.log_objects.get(), Instant::now());
        let left = Arc::new(parking_lot::Mutex::new((0..shards).collect::<VecDeque<_>>()));
        let slots = (0..slots).map(|slot| {
            let (left, writer) = (Arc::clone(&left), f.writer.clone());
            let mut rng = StdRng::seed_from_u64(seed + u64::try_from(batch).unwrap() * 100 + slot as u64);
            tokio::spawn(async move {
                loop {
                    if left.lock().pop_front().is_none() {
                        return;
                    }
                    sleep(pause + MS * u32::try_from(rng.random_range(0..=jitter)).unwrap()).await;
                    let guard = writer.join_task(BatchId(batch));
                    sleep(MS * 2).await;
                    writer.submit(guard, super::tests::encoded(vec![7; 10].into(), 1)).await.unwrap();
                }
            })
        });
        for slot in slots.collect::<Vec<_>>() {
            slot.await.unwrap();
        }
        found.push((f.metrics.log_objects.get() - objects, start.elapsed()));
    }
    found
}

fn submit(f: &Fixture, batch: i64) -> PersistFuture {
    f.submit(f.writer.join_task(BatchId(batch)), 10)
}

#[tokio::test(start_paused = true)]
async fn invariant_2_a_wave_of_tasks_is_one_object() {
    for seed in 0..20 {
        for (slots, shards) in [(2, 8), (2, 32), (4, 8), (3, 8)] {
            let f = far();
            let found = run(&f, slots, shards, 0..12, MS * 300, 30, seed * 10_000).await;
            // Some batches for the estimates.
            let objects: u64 = found[4..].iter().map(|(objects, _)| objects).sum();
            let (waves, batches) = (shards.div_ceil(slots) as u64, found.len() as u64 - 4);
            assert!(objects <= waves * batches + batches, "seed {seed}, {slots} slots, {shards} shards: {found:?}");
            assert!(objects >= waves * batches, "a task has one set at a time");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn tasks_that_keep_step_do_not_wait() {
    let f = far();
    for (objects, took) in run(&f, 2, 8, 0..6, MS * 300, 0, 1).await {
        assert_eq!((objects, took), (4, (MS * 302 + PUT) * 4));
    }
}

#[tokio::test(start_paused = true)]
async fn tasks_one_after_another_in_one_slot_do_not_wait() {
    let f = far();
    for (shards, seed) in [(1, 1), (8, 2)] {
        for (objects, took) in run(&f, 1, shards, 0..4, MS * 10, 0, seed).await {
            assert_eq!((objects, took), (shards as u64, (MS * 12 + PUT) * u32::try_from(shards).unwrap()));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_slot_that_is_lost_costs_one_wait() {
    let f = far();
    run(&f, 2, 8, 0..6, MS * 300, 30, 1).await;
    let found = run(&f, 1, 8, 6..9, MS * 300, 0, 1).await;
    let alone = (MS * 302 + PUT) * 8;
    assert!(found[0].1 <= alone + PUT * 4, "{found:?}");
    assert_eq!(found[1..], [(8, alone), (8, alone)], "then the batch before had one slot");
}

#[tokio::test(start_paused = true)]
async fn a_local_store_is_not_worth_a_wait() {
    let f = fixture(&[]);
    for (_, took) in run(&f, 2, 8, 0..6, MS * 20, 15, 1).await {
        assert!(took <= MS * (20 + 15 + 2) * 5, "{took:?}");
    }
    let start = Instant::now();
    submit(&f, 9).await.unwrap();
    assert_eq!(start.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn invariant_3_a_task_that_stalls_is_waited_for_once() {
    let f = far();
    let stalled = f.writer.join_task(BatchId(1));
    let start = Instant::now();
    submit(&f, 1).await.unwrap();
    assert_eq!(start.elapsed(), MS * 500 + PUT, "persist_delay");
    for n in 1..4 {
        submit(&f, 1).await.unwrap();
        assert_eq!(start.elapsed(), MS * 500 + PUT * (n + 1));
    }
    assert_eq!(f.metrics.wave_timeouts.get(), 1);
    // It commits after all. Tasks that open later are waited for as ever.
    let opened = f.writer.join_task(BatchId(1));
    let late = f.submit(stalled, 10);
    sleep(MS * 7).await;
    assert_eq!(f.submit(opened, 10).await.unwrap().object, late.await.unwrap().object);
}

#[tokio::test(start_paused = true)]
async fn a_task_that_dies_or_stands_aside_is_not_waited_for() {
    type End = fn(JoinGuard) -> Option<JoinGuard>;
    let dies: End = |_| None;
    let stands_aside: End = |mut guard| {
        guard.stand_aside();
        Some(guard)
    };
    for end in [dies, stands_aside] {
        let f = far();
        let guard = f.writer.join_task(BatchId(1));
        let start = Instant::now();
        let waiting = submit(&f, 1);
        sleep(MS * 5).await;
        let kept = end(guard);
        waiting.await.unwrap();
        assert_eq!(start.elapsed(), MS * 5 + PUT);
        // Its set, if it has one, needs no other.
        if let Some(guard) = kept {
            f.submit(guard, 10).await.unwrap();
            assert_eq!(start.elapsed(), MS * 5 + PUT * 2);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_shard_that_stays_away_costs_one_wait() {
    let f = far();
    run(&f, 2, 2, 0..4, MS * 300, 10, 1).await;
    let start = Instant::now();
    submit(&f, 4).await.unwrap();
    assert!(start.elapsed() <= PUT * 5, "{:?}", start.elapsed());
    let again = start.elapsed();
    // A second execution of the batch, and the next batch, do not wait.
    submit(&f, 4).await.unwrap();
    submit(&f, 5).await.unwrap();
    assert!(start.elapsed() <= again + PUT * 2);
}
