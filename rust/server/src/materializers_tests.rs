//! The materializers of shards against a fake backend: clocks and threads moved by hand.

use super::*;
use crate::backend::{Backend, OpenedSession};
use crate::logfile::LogFile;
use crate::maintenance::Maintenance;
use crate::platform::Wake;
use crate::shared::Connections;
use fastchangelog_format::clock::{ManualClock, SystemClock};
use fastchangelog_store::failpoint::Failpoints;
use fastchangelog_store::metrics::{LabelledShard, SharedMetrics};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Instant;

/// What happened to the runs of a backend, and what happens to the next ones.
#[derive(Default)]
struct Fate {
    begun: Vec<String>,
    /// `complete` or the reason of an abort.
    ended: Vec<String>,
    /// Runs fail, and the shard's local state is lost with them.
    full: bool,
    /// Begins fail.
    broken: bool,
    cancelled: bool,
    panics: bool,
    /// The next run works until the sender is dropped.
    gate: Option<Receiver<()>>,
    late: bool,
    lost: bool,
}

struct Fake {
    shards: Mutex<Vec<String>>,
    fate: Arc<Mutex<Fate>>,
}

impl Backend for Fake {
    fn open(self: Arc<Self>, _: &str) -> Result<OpenedSession> {
        Err(Error::closed("a fake"))
    }

    fn renew(&self, _: &str) -> Result<()> {
        Ok(())
    }

    fn shards(&self) -> Vec<Value> {
        let status = |name: &String| {
            json!({
                "id": name, "query_id": "q", "name": name, "shard": 0, "state_bytes": 100 << 20,
                "log_bytes_since_snapshot": 5 << 20, "segments_since_snapshot": 0,
            })
        };
        self.shards.lock().iter().map(status).collect()
    }

    fn begin_materialize(&self, shard: &str) -> Result<Option<Run>> {
        let mut fate = self.fate.lock();
        fate.begun.push(shard.to_owned());
        if fate.broken {
            return Err(Error::store("the bucket is gone"));
        }
        Ok((!fate.lost).then(|| Box::new(FakeRun(Arc::clone(&self.fate))) as Run))
    }

    fn metrics(&self) -> SharedMetrics {
        SharedMetrics::default()
    }

    fn shard_gauges(&self) -> Vec<LabelledShard> {
        Vec::new()
    }

    fn close_idle(&self) {}

    fn close(&self) {}
}

struct FakeRun(Arc<Mutex<Fate>>);

impl MaterializeBackend for FakeRun {
    fn run(&self) -> Result<()> {
        let gate = self.0.lock().gate.take();
        if let Some(gate) = gate {
            let _ = gate.recv();
        }
        let mut fate = self.0.lock();
        assert!(!fate.panics, "a bug");
        if fate.cancelled {
            return Err(Error::closed("the state was replaced"));
        }
        if fate.full {
            fate.lost = true;
            return Err(Error::retryable("no space left in /local").with_remedy("set `spark.local.dir`"));
        }
        Ok(())
    }

    fn complete(self: Box<Self>) -> Result<()> {
        let mut fate = self.0.lock();
        if fate.late {
            fate.ended.push("late".to_owned());
            return Err(Error::store("late"));
        }
        fate.ended.push("complete".to_owned());
        Ok(())
    }

    fn abort(self: Box<Self>, message: &str) {
        self.0.lock().ended.push(message.to_owned());
    }
}

struct World {
    dir: tempfile::TempDir,
    fake: Arc<Fake>,
    shared: Arc<Shared>,
    clock: Arc<ManualClock>,
    materializers: Materializers,
    /// Work whose threads have not been scheduled.
    work: Arc<Mutex<Vec<Work>>>,
}

impl World {
    fn new(shards: &[&str], policy: &[(&str, &str)]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let shards = Mutex::new(shards.iter().map(|s| (*s).to_owned()).collect());
        let fake = Arc::new(Fake { shards, fate: Arc::default() });
        let shared = Arc::new(Shared {
            backend: fake.clone(),
            log: LogFile::open(&dir.path().join("log"), 1 << 20, false, SystemClock::shared()).unwrap(),
            max_message: 1 << 20,
            sessions: AtomicU64::new(0),
            max_connections: 1,
            failpoints: Failpoints::none(),
            stopping: AtomicBool::new(false),
            shutdown: AtomicBool::new(false),
            wake: Wake::new().unwrap(),
            connections: Mutex::new(Connections { next: 0, open: HashMap::new(), idle_since: Instant::now() }),
            registry: Mutex::default(),
        });
        let clock = ManualClock::at(0);
        let work: Arc<Mutex<Vec<Work>>> = Arc::default();
        let start = Arc::clone(&work);
        let start: StartWork = Box::new(move |work| {
            start.lock().push(work);
            Ok(())
        });
        let materializers = Materializers::new(Arc::clone(&shared), clock.clone(), start);
        let world = Self { dir, fake, shared, clock, materializers, work };
        world.session(policy);
        world
    }

    /// Opens a session of each shard; false if one is refused. A session restores a lost state.
    fn session(&self, policy: &[(&str, &str)]) -> bool {
        let option = |(name, value): &(&str, &str)| (format!("materialization_{name}"), json!(value));
        let options: serde_json::Map<String, Value> = policy.iter().map(option).collect();
        let names = self.fake.shards.lock().clone();
        let admitted = names.iter().all(|name| {
            let request = json!({"query_id": "q", "name": name, "shard": 0, "options": options});
            self.shared.admit(&request).is_ok()
        });
        if admitted {
            self.fake.fate.lock().lost = false;
        }
        admitted
    }

    /// The threads of runs do their work, then a poll sees it.
    fn step(&mut self) {
        self.work.lock().drain(..).for_each(|work| work());
        self.materializers.poll();
    }

    fn wait(&mut self, seconds: u32) {
        for _ in 0..seconds * 2 {
            self.clock.advance(Duration::from_millis(500));
            self.step();
        }
    }

    fn begun(&self) -> usize {
        self.fake.fate.lock().begun.len()
    }

    fn ended(&self) -> Vec<String> {
        self.fake.fate.lock().ended.clone()
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("log")).unwrap()
    }
}

const EAGER: &[(&str, &str)] = &[("log_bytes", "1MiB"), ("interval", "36500 days")];

#[test]
fn n08_a_shard_follows_the_newest_policy_of_its_query() {
    let mut world = World::new(&["shard"], &[("interval", "36500 days")]);
    world.step();
    assert_eq!(world.begun(), 0, "5 MiB of log is little to the default");
    world.session(&[("log_bytes", "1MiB"), ("log_ratio", "1000"), ("interval", "36500 days")]);
    world.step();
    assert_eq!(world.begun(), 1);
    world.session(&[("log_bytes", "1GiB"), ("interval", "36500 days")]);
    world.wait(5);
    assert_eq!((world.begun(), world.ended()), (1, vec!["complete".to_owned()]));
    assert!(world.log().contains("\"event\":\"materialized\""), "{}", world.log());
}

#[test]
fn a_shard_has_one_run_and_the_server_two() {
    let mut world = World::new(&["a", "b", "c", "d"], EAGER);
    for _ in 0..3 {
        world.materializers.poll();
        world.clock.advance(Duration::from_mins(1));
    }
    assert_eq!((world.begun(), world.work.lock().len()), (4, 2));
    world.fake.fate.lock().lost = true;
    world.step();
    assert_eq!((world.ended().len(), world.work.lock().len()), (2, 2), "two waited for them");
    world.step();
    assert_eq!(world.ended(), ["complete"; 4]);
}

#[test]
fn a_closed_shard_or_server_waits_for_no_run_and_each_aborts() {
    let mut world = World::new(&["a", "b", "c"], EAGER);
    world.materializers.poll();
    let (first, second) = {
        let mut work = world.work.lock();
        (work.remove(0), work.remove(0))
    };
    world.fake.shards.lock().clear();
    world.materializers.poll();
    assert_eq!(world.ended().len(), 1, "the one that waits aborts at once");
    first();
    world.materializers.poll();
    assert_eq!(world.ended().len(), 2);
    drop(world.materializers);
    second();
    let ended = world.fake.fate.lock().ended.clone();
    assert_eq!(ended, ["the state was closed while it was materialized"; 3]);
}

#[test]
fn the_thread_ends_after_the_run_that_works() {
    let world = World::new(&["a"], EAGER);
    let (works, gate) = channel::<()>();
    world.fake.fate.lock().gate = Some(gate);
    let maintenance = Maintenance::start(&world.shared, SystemClock::shared()).unwrap();
    let until = |what: &dyn Fn(&Fate) -> bool| {
        let start = Instant::now();
        while !what(&world.fake.fate.lock()) {
            assert!(start.elapsed() < Duration::from_mins(1), "in vain");
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    until(&|fate| !fate.begun.is_empty() && fate.gate.is_none());
    let thread = maintenance.stop();
    std::thread::sleep(Duration::from_millis(50));
    assert!(!thread.is_finished() && world.ended().is_empty());
    drop(works);
    thread.join().unwrap();
    assert_eq!(world.ended(), ["the state was closed while it was materialized"]);
}

#[test]
fn m09_a_failed_begin_or_complete_counts_as_a_failed_run() {
    for failure in ["begin", "complete", "panic"] {
        let mut world = World::new(&["shard"], &[EAGER[0], EAGER[1], ("max_failures", "0")]);
        {
            let mut fate = world.fake.fate.lock();
            (fate.broken, fate.late, fate.panics) = (failure == "begin", failure == "complete", failure == "panic");
        }
        world.step();
        world.step();
        assert!(!world.session(EAGER), "{failure}");
        let log = world.log();
        assert!(log.contains("\"event\":\"materialization failed\"") && log.contains("\"in_a_row\":\"1\""), "{log}");
        let mut fate = world.fake.fate.lock();
        (fate.broken, fate.late, fate.panics) = (false, false, false);
        drop(fate);
        world.wait(31);
        assert!(world.session(EAGER), "a success lets the job go on");
    }
}

#[test]
fn a_run_whose_state_was_replaced_is_not_counted() {
    let mut world = World::new(&["shard"], &[EAGER[0], EAGER[1], ("max_failures", "0")]);
    world.fake.fate.lock().cancelled = true;
    world.wait(10);
    assert!(world.ended().len() > 3);
    assert!(world.session(EAGER) && !world.log().contains("materialization failed"));
}

#[test]
fn y02_a_dropped_shard_is_refused_for_a_while_only() {
    let policy = [("interval", "1s"), ("max_failures", "3")];
    let mut world = World::new(&["shard"], &policy);
    world.fake.fate.lock().full = true;
    for _ in 0..4 {
        assert!(world.session(&policy), "a failure that costs a restore is not counted twice");
        world.wait(4);
    }
    world.wait(3600);
    let request = json!({"query_id": "q", "name": "shard", "shard": 0});
    let refusal = world.shared.admit(&request).map(drop).unwrap_err();
    assert!(refusal.message().contains("spark.local.dir"), "{refusal}");
    assert!(refusal.message().contains("`max_failures` = 3"), "{refusal}");
    for _ in 0..4 {
        assert!(!world.session(&policy), "a disk that stays full fails the job, whenever its next batch comes");
        world.wait(1);
    }
    world.wait(40);
    assert!(world.session(&policy), "what is not live can be restored by a session only");
    world.wait(4);
    assert!(!world.session(&policy), "one failure is enough now");
    world.wait(40);
    world.fake.fate.lock().full = false;
    for _ in 0..10 {
        assert!(world.session(&policy));
        world.wait(4);
    }
}

proptest::proptest! {
    #[test]
    fn each_run_ends_once_and_few_work(actions in proptest::collection::vec((0..8_u8, 0..=255_u8), 60)) {
        let mut world = World::new(&["a", "b", "c"], &[("interval", "10s"), ("max_failures", "100")]);
        for (action, dice) in actions {
            let bit = |n: u8| dice >> n & 1 == 1;
            match action {
                0..3 => world.materializers.poll(),
                3 => world.clock.advance(Duration::from_secs(5)),
                4 => {
                    let mut work = world.work.lock();
                    let first = (!work.is_empty()).then(|| work.remove(0));
                    drop(work);
                    first.into_iter().for_each(|work| work());
                }
                5 => {
                    let mut fate = world.fake.fate.lock();
                    (fate.full, fate.cancelled) = (bit(0), bit(1) && bit(2));
                    (fate.broken, fate.late, fate.lost) = (bit(3) && bit(4), bit(5) && bit(6), false);
                }
                6 => world.fake.shards.lock().retain(|name| bit(name.as_bytes()[0] - b'a')),
                _ => *world.fake.shards.lock() = ["a", "b", "c"].map(str::to_owned).to_vec(),
            }
            proptest::prop_assert!(world.materializers.working <= MAX_WORKING);
            let runs = world.materializers.runs;
            let open = runs - world.fake.fate.lock().ended.len() as u64;
            // Those of live shards, and those whose shards were closed while they worked.
            proptest::prop_assert!(open <= (3 + MAX_WORKING) as u64);
        }
        let work = std::mem::take(&mut *world.work.lock());
        let (fake, runs) = (Arc::clone(&world.fake), world.materializers.runs);
        drop(world);
        work.into_iter().for_each(|work| work());
        proptest::prop_assert_eq!(fake.fate.lock().ended.len() as u64, runs);
    }
}
