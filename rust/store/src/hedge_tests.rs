//! Tests of second attempts in virtual time: their start, the winner, and that the loser leaves nothing.

use super::fault::{Fault, FaultStore, Operation};
use super::put::ChecksummedBytes;
use super::*;
use crate::failpoint::Failpoints;
use proptest::prelude::*;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

const BYTES: usize = 1000;
/// Duration of an upload. A second attempt starts after twice this time.
const USUAL: Duration = Duration::from_millis(10);
const JUST_IN_TIME: Duration = Duration::from_millis(18);

fn millis(n: u64) -> Duration {
    Duration::from_millis(n)
}

struct Bed {
    store: Store,
    inner: Arc<FaultStore>,
    metrics: SharedMetrics,
    closed: watch::Sender<bool>,
}

fn bed(pairs: &[(&str, &str)]) -> Bed {
    let mut map = BTreeMap::from([("hedge_delay".to_owned(), "1ms".to_owned())]);
    map.extend(pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())));
    let (inner, metrics) = (FaultStore::in_memory(), SharedMetrics::default());
    let store = Store::from_object_store(
        Arc::clone(&inner) as _,
        "q",
        "test://b/q",
        &Options::from_map(&map).unwrap(),
        Arc::clone(&metrics),
        Failpoints::none(),
    );
    inner.always(Operation::Put, Fault::Delay(USUAL));
    Bed { store, inner, metrics, closed: watch::channel(false).0 }
}

/// A test bed after twenty uploads, which set the usual duration and earned two second attempts.
async fn trained(pairs: &[(&str, &str)]) -> Bed {
    let bed = bed(pairs);
    for _ in 0..20 {
        bed.put().await.unwrap();
    }
    assert_eq!((bed.puts(), bed.hedges()), (20, (0, 0)));
    for listed in bed.store.list("").await.unwrap() {
        bed.store.delete(&listed.name).await.unwrap();
    }
    bed
}

fn object() -> ChecksummedBytes {
    let bytes = Bytes::from(vec![7; BYTES]);
    ChecksummedBytes { size: BYTES as u64, crc: crc32c(&bytes), parts: vec![bytes] }
}

impl Bed {
    async fn put(&self) -> Result<ObjectRef> {
        self.store.put_log(object(), &self.closed.subscribe()).await
    }

    /// The next put meets the first fault, and the one after it the second.
    async fn put_with(&self, faults: [Fault; 2]) -> (Result<ObjectRef>, Duration) {
        (0..).zip(faults).for_each(|(n, fault)| self.inner.at(self.inner.calls() + n, fault));
        let start = Instant::now();
        let result = self.put().await;
        (result, start.elapsed())
    }

    fn puts(&self) -> usize {
        self.inner.calls_of(Operation::Put)
    }

    fn hedges(&self) -> (u64, u64) {
        (self.metrics.hedges_started.get(), self.metrics.hedges_won.get())
    }

    /// The names that were put, from the `from`th.
    fn names(&self, from: usize) -> Vec<String> {
        let puts = self.inner.log().into_iter().filter(|(o, _)| *o == Operation::Put).skip(from);
        puts.map(|(_, path)| path.trim_start_matches("q/").to_owned()).collect()
    }

    async fn there(&self) -> Vec<String> {
        self.store.list("").await.unwrap().into_iter().map(|listed| listed.name).collect()
    }

    async fn settled(&self) {
        while self.metrics.discards_pending.get() > 0 {
            tokio::time::sleep(millis(1)).await;
        }
    }
}

/// Timers have a millisecond's grain.
fn about(took: Duration, expected: u64) -> bool {
    (millis(expected)..=millis(expected + 2)).contains(&took)
}

#[tokio::test(start_paused = true)]
async fn x14_a_second_attempt_starts_at_the_percentile() {
    let bed = trained(&[]).await;
    let (result, _) = bed.put_with([Fault::Delay(JUST_IN_TIME), Fault::Hang]).await;
    result.unwrap();
    assert_eq!((bed.puts(), bed.hedges()), (21, (0, 0)), "twice the usual time is not over");
    bed.inner.heal();
    bed.inner.always(Operation::Put, Fault::Delay(USUAL));

    let (result, took) = bed.put_with([Fault::Hang, Fault::Delay(USUAL)]).await;
    assert_eq!(bed.names(21)[1], result.unwrap().name, "its object is the answer");
    assert_eq!((bed.puts(), bed.hedges()), (23, (1, 1)));
    assert!(about(took, 30), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn nothing_is_doubled_before_enough_is_known() {
    let bed = bed(&[]);
    for _ in 0..19 {
        bed.put().await.unwrap();
    }
    let (result, took) = bed.put_with([Fault::Delay(millis(500)), Fault::Hang]).await;
    result.unwrap();
    assert_eq!((bed.puts(), bed.hedges()), (20, (0, 0)));
    assert!(about(took, 500), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn the_delay_is_the_least_time() {
    let bed = trained(&[("hedge_delay", "300ms")]).await;
    let (result, took) = bed.put_with([Fault::Delay(millis(299)), Fault::Hang]).await;
    result.unwrap();
    assert!(about(took, 299) && bed.hedges() == (0, 0), "{took:?}");
    let (result, took) = bed.put_with([Fault::Hang, Fault::Delay(USUAL)]).await;
    result.unwrap();
    assert!(about(took, 310) && bed.hedges() == (1, 1), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn x05_the_loser_is_removed_though_it_lands_later() {
    let bed = trained(&[]).await;
    let (result, took) = bed.put_with([Fault::Delay(millis(5000)), Fault::Delay(USUAL)]).await;
    let object = result.unwrap();
    assert!(about(took, 30), "{took:?}");
    assert_eq!((bed.there().await, bed.metrics.discards_pending.get()), (vec![object.name.clone()], 1));
    tokio::time::sleep(millis(4980)).await;
    bed.settled().await;
    assert_eq!(bed.there().await, [object.name.as_str()], "the first has landed and is gone");
    assert_eq!(bed.inner.calls_of(Operation::Delete), 20 + 1);
    assert!(bed.store.get(&object).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn the_first_wins_when_it_comes_first() {
    let bed = trained(&[]).await;
    let (result, took) = bed.put_with([Fault::Delay(millis(25)), Fault::Delay(USUAL)]).await;
    let object = result.unwrap();
    assert!(about(took, 25), "{took:?}");
    assert_eq!((bed.names(20)[0].clone(), bed.hedges()), (object.name.clone(), (1, 0)));
    bed.settled().await;
    assert_eq!(bed.there().await, [object.name]);
}

#[tokio::test(start_paused = true)]
async fn a_loser_that_never_answers_is_removed_at_its_time_limit() {
    let bed = trained(&[("request_timeout", "3s")]).await;
    let object = bed.put_with([Fault::HangAfter, Fault::Delay(USUAL)]).await.0.unwrap();
    let start = Instant::now();
    assert_eq!(bed.there().await.len(), 2);
    bed.settled().await;
    assert!(start.elapsed() >= millis(2900) && start.elapsed() < millis(3100), "{:?}", start.elapsed());
    assert_eq!(bed.there().await, [object.name]);
    assert_eq!(bed.puts(), 22, "it is not repeated");
}

#[tokio::test(start_paused = true)]
async fn x02_one_success_is_enough_whichever_fails() {
    let bed = trained(&[("request_timeout", "50ms"), ("max_attempts", "1")]).await;
    let (result, took) = bed.put_with([Fault::Hang, Fault::Delay(millis(40))]).await;
    assert_eq!(bed.names(20)[1], result.unwrap().name, "the first failed at 50 ms, with the second under way");
    assert!(about(took, 60), "{took:?}");
    let (result, took) = bed.put_with([Fault::Delay(millis(45)), Fault::Denied]).await;
    assert_eq!(bed.names(22)[0], result.unwrap().name, "the second failed at once");
    assert!(about(took, 45), "{took:?}");
    bed.settled().await;
    assert_eq!(bed.there().await.len(), 2);
    assert_eq!(bed.hedges(), (2, 1));
}

#[tokio::test(start_paused = true)]
async fn a01_when_both_fail_the_more_telling_error_is_the_answer() {
    let bed = trained(&[("request_timeout", "50ms"), ("max_attempts", "1")]).await;
    let (result, took) = bed.put_with([Fault::HangAfter, Fault::FailAfter]).await;
    let error = result.unwrap_err();
    assert!(error.is_retryable() && error.message().contains("50ms"), "the first's: {error}");
    assert!(about(took, 50), "{took:?}");
    let (result, _) = bed.put_with([Fault::HangAfter, Fault::Denied]).await;
    assert_eq!(result.unwrap_err().kind(), ErrorKind::PermissionDenied, "no further attempt can cure that");
    bed.settled().await;
    assert_eq!((bed.there().await.len(), bed.hedges()), (0, (2, 0)));
    // Both were given back.
    assert_eq!(bed.store.inner.hedges.under_way(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_second_attempt_takes_only_a_free_slot() {
    let bed = trained(&[("store_concurrency", "1")]).await;
    let (result, took) = bed.put_with([Fault::Delay(millis(100)), Fault::Hang]).await;
    result.unwrap();
    assert!(about(took, 100) && bed.hedges() == (0, 0), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn waiting_for_a_slot_is_no_reason_for_a_second_attempt() {
    let bed = trained(&[("store_concurrency", "2")]).await;
    bed.inner.at(bed.inner.calls(), Fault::Delay(millis(18)));
    bed.inner.at(bed.inner.calls() + 1, Fault::Delay(millis(18)));
    let start = Instant::now();
    // The third has waited for 18 ms when it begins; one slot is free then.
    let all = futures::future::join_all((0..3).map(|_| bed.put())).await;
    assert!(all.iter().all(Result::is_ok) && bed.hedges() == (0, 0));
    assert!(about(start.elapsed(), 28), "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a12_x14_a_store_that_turns_slow_is_sent_a_tenth_more_at_most() {
    let bed = trained(&[]).await;
    bed.inner.heal();
    bed.inner.always(Operation::Put, Fault::Delay(millis(2000)));
    for n in 21..=220 {
        bed.put().await.unwrap();
        let (sent, logged) = (bed.puts(), n);
        assert!(sent * 10 <= logged * 11, "{sent} objects were sent for {logged}");
    }
    let (started, _) = bed.hedges();
    assert!(started >= 2, "what the good time earned");
    assert!(started <= 4, "two seconds are usual now: {started}");
    assert_eq!(bed.metrics.hedge_bytes.get(), started * BYTES as u64);
}

#[tokio::test(start_paused = true)]
async fn a12_a_store_of_rare_delays_is_sent_a_tenth_more_at_most() {
    for seed in 0..5 {
        let bed = trained(&[]).await;
        bed.inner.heal();
        bed.inner.seeded_on(Operation::Put, seed, 300, &[Fault::Delay(millis(400)), Fault::Delay(millis(70))]);
        for n in 21..=400 {
            bed.put().await.unwrap();
            assert!(bed.puts() * 10 <= n * 11, "seed {seed}: {} objects were sent for {n}", bed.puts());
        }
        bed.settled().await;
        assert_eq!(bed.there().await.len(), 380, "seed {seed}");
    }
}

#[tokio::test(start_paused = true)]
async fn x08_a_drop_of_two_attempts_leaves_nothing() {
    let bed = trained(&[]).await;
    for n in 0..2 {
        bed.inner.at(bed.inner.calls() + n, Fault::HangAfter);
    }
    assert!(tokio::time::timeout(millis(100), bed.put()).await.is_err());
    bed.settled().await;
    assert_eq!((bed.hedges(), bed.puts(), bed.there().await.len()), ((1, 0), 22, 0));
    assert_eq!(bed.store.inner.hedges.under_way(), 0);
    // And with one.
    bed.inner.next(Fault::HangAfter);
    assert!(tokio::time::timeout(millis(15), bed.put()).await.is_err());
    bed.settled().await;
    assert_eq!((bed.puts(), bed.there().await.len()), (23, 0));
}

#[tokio::test(start_paused = true)]
async fn a_close_does_not_wait_for_losers() {
    let bed = trained(&[]).await;
    let object = bed.put_with([Fault::HangAfter, Fault::Delay(USUAL)]).await.0.unwrap();
    let start = Instant::now();
    bed.closed.send_replace(true);
    bed.settled().await;
    assert!(start.elapsed() < millis(5), "{:?}", start.elapsed());
    assert_eq!(bed.there().await, [object.name]);
}

#[tokio::test(start_paused = true)]
async fn switched_off_means_one_request() {
    for pairs in [[("hedge_percentile", "0")], [("hedge_ratio", "0")]] {
        let bed = trained(&pairs).await;
        let (result, took) = bed.put_with([Fault::Delay(millis(900)), Fault::Hang]).await;
        result.unwrap();
        assert!(about(took, 900) && bed.puts() == 21, "{took:?}");
    }
    let folder = tempfile::tempdir().unwrap();
    for uri in ["memory://switched_off", folder.path().to_str().unwrap()] {
        let store =
            Store::open(uri, &BTreeMap::new(), &Options::default(), SharedMetrics::default(), Failpoints::none());
        assert!(!store.unwrap().inner.hedges.is_on(), "{uri}: nothing to win");
    }
    let text = Options::from_map(&BTreeMap::from([("hedge_percentile".into(), "100".into())])).unwrap_err();
    assert!(text.message().contains("1 to 99"), "{text}");
}

const FAULTS: [Fault; 7] = [
    Fault::FailBefore,
    Fault::FailAfter,
    Fault::Hang,
    Fault::HangAfter,
    Fault::Throttled,
    Fault::Delay(Duration::from_millis(45)),
    Fault::Delay(Duration::from_secs(3)),
];

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]
    #[test]
    fn x05_p2_exactly_what_was_acknowledged_is_there(
        seed: u64,
        per_mille in 1u64..700,
        hedge_delay in prop::collection::vec(prop::option::of(1u64..4000), 40),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let bed = trained(&[("hedge_ratio", "1.0"), ("request_timeout", "2s"), ("max_attempts", "3")]).await;
            bed.inner.heal();
            bed.inner.seeded_on(Operation::Put, seed, per_mille, &FAULTS);
            let mut acknowledged = Vec::new();
            for wait in hedge_delay {
                // Some callers leave before the end.
                let limit = Duration::from_millis(wait.unwrap_or(1_000_000));
                if let Ok(Ok(object)) = tokio::time::timeout(limit, bed.put()).await {
                    acknowledged.push(object);
                }
            }
            bed.settled().await;
            for object in &acknowledged {
                prop_assert!(bed.store.get(object).await.is_ok());
            }
            let mut names: Vec<String> = acknowledged.into_iter().map(|object| object.name).collect();
            let mut there = bed.there().await;
            names.sort();
            there.sort();
            prop_assert_eq!(there, names);
            prop_assert_eq!(bed.store.inner.hedges.under_way(), 0);
            Ok(())
        })?;
    }
}
