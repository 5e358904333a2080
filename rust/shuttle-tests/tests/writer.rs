//! `write::LogWriter` under schedules of all kinds; the names are those of its invariants.

#![allow(clippy::unwrap_used, reason = "a test")]

use bytes::Bytes;
use fastchangelog_format::clock::Clock;
use fastchangelog_format::config::Options;
use fastchangelog_format::model::BatchId;
use fastchangelog_format::{EncodedSet, ErrorKind, crc32c};
use fastchangelog_shuttle_tests::explore;
use fastchangelog_shuttle_tests::store::Store;
use fastchangelog_shuttle_tests::sync::Handle;
use fastchangelog_shuttle_tests::write::LogWriter;
use fastchangelog_store::failpoint::Failpoints;
use fastchangelog_store::metrics::SharedMetrics;
use shuttle::future::{block_on, spawn, yield_now};
use shuttle::rand::{Rng, thread_rng};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const MAX_IN_FLIGHT: u64 = 4 << 10;
/// What is around the sets of the two objects that may be uploaded at once.
const FRAMES: u64 = 200;

/// A clock that a look at it moves on by a millisecond: uploads and pauses last some.
#[derive(Default)]
struct TickingClock(AtomicU64);

impl Clock for TickingClock {
    fn now_millis(&self) -> u64 {
        self.0.fetch_add(1, Ordering::Relaxed)
    }

    fn monotonic(&self) -> Duration {
        Duration::from_millis(self.now_millis())
    }
}

fn writer(store: &Store, metrics: &SharedMetrics) -> LogWriter {
    // A pause of an hour does not end here: only another set, or a session that leaves, starts an upload.
    let delay = if thread_rng().gen_bool(0.5) { "1h" } else { "5ms" };
    let options = [
        ("max_in_flight", "4KiB"),
        ("persist_size_threshold", "3KiB"),
        ("upload_threads", "2"),
        ("persist_delay", delay),
    ];
    let options = options.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    let options = Options::from_map(&options).unwrap();
    let clock = Arc::new(TickingClock::default());
    LogWriter::new(store.clone(), &options, Handle, clock, Arc::clone(metrics), Failpoints::none(), None)
}

fn set(bytes: usize) -> EncodedSet {
    let part = Bytes::from(vec![1; bytes]);
    let crc = crc32c(&part);
    EncodedSet { parts: vec![part], length: bytes as u64, crc, head: 0, mark: 0, records: 1 }
}

/// Sessions add sets of 1 to 3 KiB, or leave; optionally the writer is closed, whose store may hang then.
fn scenario(closes: bool, fails_one_in: u32) {
    block_on(async move {
        let hangs_one_in = if closes { 3 } else { 0 };
        let (store, metrics) = (Store::with(fails_one_in, hangs_one_in), SharedMetrics::default());
        let writer = writer(&store, &metrics);
        let sessions: Vec<_> = (0..3)
            .map(|_| {
                let (writer, store, metrics) = (writer.clone(), store.clone(), Arc::clone(&metrics));
                spawn(async move {
                    for batch in 0..3 {
                        let mut guard =
                            if thread_rng().gen_bool(0.7) { writer.join_task(BatchId(batch)) } else { writer.join() };
                        yield_now().await;
                        if thread_rng().gen_bool(0.1) {
                            guard.stand_aside();
                        }
                        if thread_rng().gen_bool(0.2) {
                            continue;
                        }
                        let bytes = thread_rng().gen_range(1..=3) << 10;
                        let answer = writer.submit(guard, set(bytes));
                        assert!(metrics.in_flight_bytes.get() <= MAX_IN_FLIGHT, "more is in flight than may be");
                        if thread_rng().gen_bool(0.1) {
                            // The receiver may be dropped.
                            continue;
                        }
                        match answer.await {
                            Ok(location) => {
                                let object = store.look(|state| state.objects.get(&location.object.name).cloned());
                                let (from, to) =
                                    (location.offset as usize, (location.offset + location.length) as usize);
                                assert_eq!(object.expect("it was acknowledged")[from..to], vec![1; bytes]);
                            }
                            Err(error) if error.kind() == ErrorKind::Closed => assert!(closes, "{error}"),
                            Err(error) => assert!(fails_one_in > 0 && error.kind() == ErrorKind::Store, "{error}"),
                        }
                        assert!(metrics.in_flight_bytes.get() <= MAX_IN_FLIGHT, "more is in flight than may be");
                    }
                })
            })
            .collect();
        if closes {
            yield_now().await;
            writer.close();
            let late = writer.submit(writer.join_task(BatchId(9)), set(10)).await;
            assert_eq!(late.unwrap_err().kind(), ErrorKind::Closed);
        }
        for session in sessions {
            session.await.unwrap();
        }
        let left = || (metrics.in_flight_bytes.get(), metrics.upload_queue_size.get(), metrics.uploads_active.get());
        // What sessions that went away have left may take some more steps.
        for _ in 0..1000 {
            if left() == (0, 0, 0) {
                break;
            }
            yield_now().await;
        }
        assert_eq!(left(), (0, 0, 0), "bytes in flight, sets that wait, uploads");
        let most = store.look(|state| state.most_uploading);
        assert!(most <= MAX_IN_FLIGHT + FRAMES, "{most} bytes were uploaded at a time");
    });
}

#[test]
fn every_set_is_answered_and_the_bound_on_bytes_in_flight_holds() {
    explore(20_000, || scenario(false, 0));
}

#[test]
fn x25_failures_stay_with_their_batch_and_free_their_permits() {
    explore(20_000, || scenario(false, 3));
}

#[test]
fn x08_close_answers_every_set_and_frees_all_permits() {
    explore(20_000, || scenario(true, 4));
}
