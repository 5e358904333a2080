//! Space under windows that come and go: what the newest handle names stays near the state and the log that the policy
//! allows, at every moment of an hour. (Flink's generic changelog took 45 times the state in its own published test.)
//!
//! `FASTCHANGELOG_CHURN=<events a second>` makes the windows larger.

use super::*;
use crate::states::net::Net;
use fastchangelog_format::clock::{Clock, ManualClock};
use fastchangelog_format::model::{Change, KeyGroup, Op, StateId};
use fastchangelog_store::failpoint::Failpoints;
use fastchangelog_store::fault::{Fault, FaultStore, Operation};
use fastchangelog_store::metrics::Metrics;
use fastchangelog_store::{Background, start_io_threads};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

const SCHEMA: (u64, &str) = (7, "churn");
/// A window's length, and how often a sliding one begins, in seconds.
const WINDOW: u64 = 60;
const SLIDE: u64 = 10;
/// Bytes of log below which the policy's ratio says nothing.
const RATIO_FLOOR: u64 = 1 << 20;

type Entries = BTreeMap<Vec<u8>, Vec<u8>>;

/// A query of one shard with the default policy of materialization, played second by second.
struct Query {
    shard: Arc<Shard>,
    faults: Arc<FaultStore>,
    clock: Arc<ManualClock>,
    options: Options,
    handle: Option<ShardHandle>,
    batch: i64,
    state: Entries,
    net: u64,
    /// Milliseconds of the clock at the last snapshot.
    materialized: u64,
    snapshots: u64,
    // Last: what works on it ends first.
    _runtime: tokio::runtime::Runtime,
    _disk: tempfile::TempDir,
}

impl Query {
    fn new() -> Self {
        let options = [
            ("persist_delay", "0ms"),
            ("max_handle_segments", "1000000"),
            ("max_attempts", "2"),
            ("retry_delay", "1ms"),
        ];
        let options = options.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        let options = Options::from_map(&options).unwrap();
        let (runtime, disk) = (start_io_threads().unwrap(), tempfile::tempdir().unwrap());
        let (clock, metrics) = (ManualClock::at(0), Arc::new(Metrics::default()));
        let budget = MemoryBudget::new(64 << 20);
        let faults = FaultStore::in_memory();
        let store = Store::from_object_store(
            Arc::clone(&faults) as _,
            "q",
            "test://b/q",
            &options,
            Arc::clone(&metrics),
            Failpoints::none(),
        );
        let log = LogWriter::new(
            store.clone(),
            &options,
            runtime.handle().clone(),
            Arc::clone(&clock) as _,
            Arc::clone(&metrics),
            Failpoints::none(),
            None,
        );
        let context = ShardContext {
            query_id: "q".into(),
            name: "default".into(),
            store,
            log,
            background: Background::new(&options, Arc::clone(&clock) as _, Arc::clone(&metrics)),
            cache: None,
            runtime: runtime.handle().clone(),
            resources: SharedResources::new(&budget, Arc::clone(&metrics)).unwrap(),
            budget,
            options: options.clone(),
            clock: Arc::clone(&clock) as _,
            metrics,
            failpoints: Failpoints::none(),
            dir: disk.path().join("shard"),
        };
        let shard = Shard::new("q".into(), Placement::new(0, 1, 1).unwrap(), context);
        let state = Entries::new();
        Self {
            shard,
            faults,
            clock,
            options,
            handle: None,
            batch: 0,
            state,
            net: 0,
            materialized: 0,
            snapshots: 0,
            _runtime: runtime,
            _disk: disk,
        }
    }

    /// One batch: these keys get values, these go. After an error it can be run again, as Spark would.
    fn run(&mut self, puts: &Entries, deletes: &[Vec<u8>]) -> Result<()> {
        self.shard.make_live(self.handle.as_ref(), BatchId(self.batch), SCHEMA)?;
        let mut net = Net::default();
        let change = |op, key, value| Change { op, state: StateId(0), key_group: KeyGroup(0), key, value };
        for (key, value) in puts {
            net.set.push(change(Op::Put, key, value));
            net.bytes += i64::try_from(key.len() + value.len()).unwrap();
            match self.state.get(key) {
                Some(old) => net.bytes -= i64::try_from(key.len() + old.len()).unwrap(),
                None => net.keys += 1,
            }
        }
        for key in deletes {
            if let Some(old) = self.state.get(key) {
                net.set.push(change(Op::Delete, key, &[]));
                net.bytes -= i64::try_from(key.len() + old.len()).unwrap();
                net.keys -= 1;
            }
        }
        let bytes = net.bytes;
        if let Some(handle) = self.shard.extend(BatchId(self.batch), SCHEMA, false, |_| Ok(net))? {
            self.handle = Some(handle);
        }
        self.net = self.net.saturating_add_signed(bytes);
        self.state.extend(puts.iter().map(|(key, value)| (key.clone(), value.clone())));
        for key in deletes {
            self.state.remove(key);
        }
        self.batch += 1;
        Ok(())
    }

    /// The decision of Python's `materialize` policy.
    fn policy(&mut self) {
        let status = self.shard.status();
        let (log, options) = (status.log_bytes_since_snapshot, &self.options);
        let idle = self.clock.now_millis() - self.materialized;
        let due = log >= options.materialization_log_bytes
            || status.segments_since_snapshot >= options.materialization_segments
            || (log >= RATIO_FLOOR && log as f64 >= options.materialization_log_ratio * status.state_bytes as f64)
            || u128::from(idle) >= options.materialization_interval.as_millis();
        if due && let Some(run) = self.shard.begin_materialize().unwrap() {
            match run.run() {
                Ok(()) => {
                    run.complete().unwrap();
                    self.snapshots += 1;
                }
                Err(error) => run.abort(error.message()),
            }
            self.materialized = self.clock.now_millis();
        }
    }

    /// Bytes that the newest handle names.
    fn durable(&self) -> u64 {
        let handle = self.handle.as_ref().unwrap();
        let snapshot = handle.snapshot.as_ref().map_or(0, |snapshot| snapshot.total_bytes);
        snapshot + handle.segments.iter().map(|segment| segment.object.size).sum::<u64>()
    }

    /// Bytes of log that the policy lets gather.
    fn log_budget(&self) -> u64 {
        let ratio = self.options.materialization_log_ratio * self.net as f64;
        (ratio as u64).max(RATIO_FLOOR).min(self.options.materialization_log_bytes)
    }

    /// Names of all objects that the newest handle names, as far as it names them itself, and of all there are.
    fn objects(&self) -> (BTreeSet<String>, BTreeSet<String>) {
        let handle = self.handle.as_ref().unwrap();
        let mut named: BTreeSet<String> = handle.segments.iter().map(|segment| segment.object.name.clone()).collect();
        named.extend(handle.snapshot.iter().map(|snapshot| snapshot.manifest.name.clone()));
        let store = &self.shard.context().store;
        let listed = self.shard.context().runtime.block_on(store.list("")).unwrap();
        (named, listed.into_iter().map(|object| object.name).collect())
    }

    fn check_content(&self) {
        self.shard.make_live(self.handle.as_ref(), BatchId(self.batch), SCHEMA).unwrap();
        let mut found = Entries::new();
        let collect = &mut |entry: fastchangelog_state::hot::EntryRef<'_>| {
            found.insert(entry.key.to_vec(), entry.value.unwrap_or_default().to_vec());
            Ok(())
        };
        self.shard.read(|keyed| keyed.for_each(collect)).unwrap();
        assert!(found == self.state, "{} keys where {} should be", found.len(), self.state.len());
    }
}

fn seed() -> u64 {
    let given = std::env::var("FASTCHANGELOG_SEED").ok().and_then(|text| text.parse().ok());
    given.unwrap_or_else(|| rand::random_range(0..1_000_000))
}

fn key(kind: u8, window: u64, user: u32) -> Vec<u8> {
    [&[kind][..], &window.to_be_bytes(), &user.to_be_bytes()].concat()
}

/// An hour of tumbling and sliding windows over events of random users; a window's keys go when it has ended.
fn churn(seed: u64, events: u32) -> (f64, u64) {
    let (mut rng, mut query) = (StdRng::seed_from_u64(seed), Query::new());
    let mut worst: f64 = 0.0;
    for now in 0..3600u64 {
        let mut puts = Entries::new();
        for _ in 0..events {
            let user = rng.random_range(0..events * 20);
            let value: [u8; 24] = rng.random();
            puts.insert(key(0, now / WINDOW, user), value.to_vec());
            for slide in 0..WINDOW / SLIDE {
                puts.insert(key(1, (now / SLIDE).saturating_sub(slide), user), value.to_vec());
            }
        }
        let mut deletes = Vec::new();
        let mut expire = |kind: u8, window: u64| {
            let range = key(kind, window, 0)..=key(kind, window, u32::MAX);
            deletes.extend(query.state.range(range).map(|(key, _)| key.clone()));
        };
        if now % WINDOW == 0 && now > 0 {
            expire(0, now / WINDOW - 1);
        }
        if now % SLIDE == 0 && now >= WINDOW {
            expire(1, (now - WINDOW) / SLIDE);
        }
        query.run(&puts, &deletes).unwrap();
        query.clock.advance(Duration::from_secs(1));
        query.policy();
        let (durable, allowed) = (query.durable(), query.net + query.log_budget());
        let ratio = durable as f64 / allowed as f64;
        worst = worst.max(ratio);
        assert!(
            ratio <= 1.5,
            "seed {seed}, second {now}: {durable} durable bytes, {} net, {} of log allowed",
            query.net,
            query.log_budget()
        );
    }
    query.check_content();
    (worst, query.snapshots)
}

#[test]
fn space_stays_near_the_state_while_windows_come_and_go() {
    let seed = seed();
    println!("seed {seed}");
    let events = std::env::var("FASTCHANGELOG_CHURN").ok().and_then(|text| text.parse().ok()).unwrap_or(40);
    let (worst, snapshots) = churn(seed, events);
    println!("at most {worst:.2} of what is allowed, {snapshots} snapshots");
    assert!(snapshots >= 6, "the policy made {snapshots} snapshots in an hour");
}

#[test]
fn a10_an_hour_without_a_store_costs_time_alone() {
    let mut query = Query::new();
    let puts = |second: u32| -> Entries {
        (0..20).map(|user| (key(0, u64::from(user % 7), user), second.to_be_bytes().to_vec())).collect()
    };
    for second in 0..10 {
        query.run(&puts(second), &[]).unwrap();
    }
    for operation in [Operation::Put, Operation::Multipart, Operation::Get] {
        query.faults.always(operation, Fault::Throttled);
    }
    let before = query.handle.clone();
    let (calls, waiting) = (query.faults.calls(), puts(10));
    for _ in 0..360 {
        let error = query.run(&waiting, &[]).unwrap_err();
        assert!(error.is_retryable() && error.message().contains("503"), "{error}");
        query.clock.advance(Duration::from_secs(10));
        query.policy();
    }
    assert_eq!(query.handle, before, "nothing counts that was not acknowledged");
    assert_eq!(query.snapshots, 0);
    let tried = query.faults.calls() - calls;
    // Two attempts and the removal of what they may have left: of each batch, and of a snapshot every ten minutes.
    assert!(tried <= 3 * (360 + 6), "{tried} requests in an hour");
    query.faults.heal();
    query.run(&waiting, &[]).unwrap();
    query.check_content();
    query.clock.advance(Duration::from_mins(10));
    query.policy();
    assert_eq!(query.snapshots, 1);
    for second in 11..13 {
        query.run(&puts(second), &[]).unwrap();
    }
    assert!(query.handle.as_ref().unwrap().snapshot.is_some());
    query.shard.evict();
    query.check_content();
    let (named, listed) = query.objects();
    assert!(named.is_subset(&listed));
}

#[test]
fn a_hot_limit_that_shrinks_in_small_steps_is_held_too() {
    // One shard after the other is opened, each a little less for all: a restart once left twice the budget in use.
    let mut query = Query::new();
    for _ in 0..2 {
        query.run(&(0..20_000).map(|user| (key(0, 0, user), vec![7; 100])).collect(), &[]).unwrap();
    }
    query.shard.make_live(query.handle.as_ref(), BatchId(query.batch), SCHEMA).unwrap();
    let held = query.shard.hot_bytes().unwrap();
    assert!(held > 2 << 20, "{held}");
    let mut limit = held;
    while limit > held / 4 {
        limit -= limit / 10;
        if query.shard.set_hot_limit(limit) {
            query.shard.fit_hot();
        }
        let held = query.shard.hot_bytes().unwrap();
        assert!(held <= limit + limit / 8, "{held} bytes held, {limit} allowed");
    }
    query.check_content();
}
