//! The schedule, with time moved by hand, and against a plain model over random histories.

use super::*;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::collections::BTreeMap;

const SECOND: Duration = Duration::from_secs(1);
const QUIET: Progress = Progress { log_bytes: 0, state_bytes: 0, segments: 0, replay_seconds: 0.0 };
const LONG: Progress = Progress { log_bytes: 1 << 30, state_bytes: 1 << 20, segments: 0, replay_seconds: 0.0 };
const START: Duration = Duration::from_secs(1000);

fn policy(interval: Duration, max_failures: u64) -> Policy {
    Policy { interval, max_failures, ..Policy::from_texts(&BTreeMap::new()).unwrap() }
}

fn cause() -> Error {
    Error::store("no space")
}

#[test]
fn z01_the_first_delay_is_a_stable_part_of_the_interval() {
    let due = |i: u32| Schedule::new(policy(10 * SECOND, 3), &format!("shard-{i}"), START).due;
    let dues: Vec<Duration> = (0..100).map(due).collect();
    assert!(dues.iter().all(|due| (START..START + 10 * SECOND).contains(due)), "{dues:?}");
    assert_eq!(due(0), dues[0], "stable");
    assert!(*dues.iter().max().unwrap() > *dues.iter().min().unwrap() + 5 * SECOND, "owners spread");
}

#[test]
fn the_interval_counts_from_the_end_of_a_run() {
    let mut schedule = Schedule::new(policy(10 * SECOND, 3), "shard", START);
    assert!(
        schedule.is_due(schedule.due, &QUIET) && !schedule.is_due(schedule.due.saturating_sub(SECOND / 1000), &QUIET)
    );
    let ended = schedule.due + 7 * SECOND;
    schedule.completed(ended);
    assert!(!schedule.is_due(ended + 9 * SECOND, &QUIET) && schedule.is_due(ended + 10 * SECOND, &QUIET));
}

#[test]
fn another_policy_counts_from_where_the_one_before_did() {
    let mut schedule = Schedule::new(policy(3600 * SECOND, 3), "shard", START);
    schedule.follow(policy(10 * SECOND, 3));
    assert_eq!(schedule.due, Schedule::new(policy(10 * SECOND, 3), "shard", START).due);
    let ended = START + 13 * SECOND;
    schedule.completed(ended);
    for _ in 0..2 {
        schedule.follow(policy(30 * SECOND, 3));
        assert_eq!(schedule.due, ended + 30 * SECOND);
    }
}

#[test]
fn nothing_to_do_is_asked_again_after_a_second_at_the_earliest() {
    let mut schedule = Schedule::new(policy(3600 * SECOND, 3), "shard", START);
    assert!(schedule.is_due(START, &LONG));
    schedule.skipped(START);
    assert!(!schedule.is_due(START + SECOND / 2, &LONG) && schedule.is_due(START + SECOND, &LONG));
    assert!(!schedule.is_due(START + 3599 * SECOND, &QUIET), "not before the next interval");
}

#[test]
fn x27_a_failing_store_is_tried_again_after_a_growing_pause() {
    let mut schedule = Schedule::new(policy(36_500 * 86_400 * SECOND, 20), "shard", START);
    let mut now = START;
    for pause in [10, 20, 40, 80, 160, 320, 640, 1280, 2560, 5120, 10_240, 10_240, 10_240] {
        assert!(schedule.failed(now, &cause()).is_none());
        now += pause * SECOND;
        assert!(!schedule.is_due(now.saturating_sub(SECOND), &LONG) && schedule.is_due(now, &LONG));
    }
    schedule.completed(now);
    assert!(schedule.is_due(now, &LONG));
    assert!(schedule.failed(now, &cause()).is_none());
    assert!(!schedule.is_due(now + 9 * SECOND, &LONG) && schedule.is_due(now + 10 * SECOND, &LONG));
}

#[test]
fn a10_an_hour_without_a_store_is_met_with_pauses() {
    let mut schedule = Schedule::new(policy(600 * SECOND, 3), "shard", START);
    let (mut now, mut begun) = (START, Vec::new());
    while now < START + 3600 * SECOND {
        if schedule.is_due(now, &LONG) {
            begun.push(now);
            let failed = schedule.failed(now, &cause());
            assert_eq!(failed.is_some(), begun.len() > 3);
        }
        now += SECOND / 2;
    }
    let pauses: Vec<u64> = begun.windows(2).map(|pair| pair[1].saturating_sub(pair[0]).as_secs()).collect();
    assert_eq!(pauses[..3], [10, 20, 40]);
    assert!(pauses[3..].iter().all(|pause| *pause == 30), "a healed store is found soon: {pauses:?}");
}

#[test]
fn the_fourth_failure_in_a_row_fails_the_job() {
    let mut schedule = Schedule::new(policy(10 * SECOND, 3), "q/default/0", START);
    for _ in 0..2 {
        assert!((0..3).all(|_| schedule.failed(START, &cause()).is_none()));
        let error = schedule.failed(START, &cause()).unwrap();
        for part in ["q/default/0 failed 4 times in a row", "`max_failures` = 3 ", "no space"] {
            assert!(error.message().contains(part), "{error}");
        }
        schedule.completed(START);
        assert_eq!(schedule.failures_in_a_row(), 0);
    }
}

/// What a schedule must say, from its whole history: outcomes with their times, and the policy of now.
fn model(history: &[(Duration, u8)], policy: &Policy, now: Duration, progress: &Progress, first: Duration) -> bool {
    let failures = history.iter().rev().take_while(|(_, what)| *what != b'c').filter(|(_, what)| *what == b'f').count();
    let capped = failures as u64 > policy.max_failures;
    let interval = if capped { policy.interval.min(30 * SECOND) } else { policy.interval };
    let Some((ended, what)) = history.last() else { return now >= first || policy.wants(progress) };
    now >= *ended + interval || (now >= *ended + pause(*what, failures, interval) && policy.wants(progress))
}

fn pause(what: u8, failures: usize, interval: Duration) -> Duration {
    const SECONDS: [u32; 11] = [10, 20, 40, 80, 160, 320, 640, 1280, 2560, 5120, 10_240];
    match what {
        b'c' => Duration::ZERO,
        b's' => SECOND,
        _ => (SECOND * SECONDS[failures.min(SECONDS.len()) - 1]).min(interval),
    }
}

#[test]
fn random_histories_agree_with_a_plain_model() {
    for seed in 0..500 {
        let mut rng = StdRng::seed_from_u64(seed);
        let policy = policy(SECOND * rng.random_range(1..2000), rng.random_range(0..6));
        let mut schedule = Schedule::new(policy.clone(), "shard", START);
        let first = schedule.due;
        let (mut now, mut history) = (START, Vec::new());
        for step in 0..60 {
            now += SECOND * rng.random_range(0..60) / 2;
            let progress = if rng.random_bool(0.5) { LONG } else { QUIET };
            let due = schedule.is_due(now, &progress);
            assert_eq!(due, model(&history, &policy, now, &progress, first), "seed {seed}, step {step}");
            if due {
                let what = *[b'c', b's', b'f', b'f', b'f'].get(rng.random_range(0..5)).unwrap();
                history.push((now, what));
                match what {
                    b'c' => schedule.completed(now),
                    b's' => schedule.skipped(now),
                    _ => {
                        let fails = schedule.failed(now, &cause()).is_some();
                        assert_eq!(fails, schedule.failures_in_a_row() > policy.max_failures, "seed {seed}");
                    }
                }
            }
        }
    }
}
