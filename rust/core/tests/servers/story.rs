//! Stories: what happens to a query and its servers, step by step.
//!
//! Owns: the steps, how a seed makes a story, and how a story that fails is made shorter.
//! Does not own: what a step does (`world`).

use fastchangelog_core::engine::Operator;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// How far an execution of a shard's batch comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// Lost after its session was opened: the handle's version is live at that server.
    Opened,
    /// Lost after it computed its results.
    Finished,
    /// It stands still, and goes on in a later step.
    Stuck,
    /// It commits; Spark keeps one of those that do.
    Committed,
}

/// An execution of a shard's batch.
#[derive(Debug, Clone, Copy)]
pub struct Attempt {
    pub server: usize,
    pub fate: Fate,
}

#[derive(Debug, Clone)]
pub enum Step {
    /// A batch, with the executions of each shard. `pause`: minutes between results and commits, with a sweep after them.
    /// Of each row the work knows what it does.
    Batch {
        rows: Vec<(u32, i64)>,
        attempts: Vec<Vec<Attempt>>,
        keep: usize,
        pause: Option<u64>,
    },
    /// The parts of a materialization of each shard of a server.
    Begin(usize),
    Run(usize),
    Complete(usize),
    Abort(usize),
    /// All parts at once.
    Materialize(usize),
    /// Execution that stood still goes on.
    Wake,
    /// Shards that had no session for long are closed.
    CloseIdle(usize),
    /// The process ends without a word; another one starts, with the local folder as it was or empty.
    Die {
        server: usize,
        wipe: bool,
    },
    /// Local files vanish under the process.
    LoseFiles(usize),
    /// A failpoint of a server is set, for one hit.
    Fail {
        server: usize,
        point: &'static str,
    },
    /// Minutes pass.
    Advance(u64),
    Sweep,
    /// So many of the oldest batches are retained no longer.
    Retire(usize),
    /// The query goes on from an older batch.
    RollBack(usize),
    /// A retained batch is restored where nothing is, and compared.
    Restore(usize),
}

/// A query of one state, and what happens to it.
#[derive(Clone)]
pub struct Story {
    pub seed: u64,
    pub operator: Operator,
    pub servers: usize,
    pub shards: u32,
    pub options: Vec<(&'static str, &'static str)>,
    /// Bytes that each key is longer.
    pub padding: usize,
    pub steps: Vec<Step>,
}

impl std::fmt::Display for Story {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { seed, operator, servers, shards, options, padding, steps } = self;
        writeln!(
            f,
            "seed {seed}: {operator:?}, {servers} servers, {shards} shards, {options:?}, keys {padding} bytes longer"
        )?;
        steps.iter().enumerate().try_for_each(|(i, step)| writeln!(f, "{i:4}  {step:?}"))
    }
}

/// Distinct keys.
pub const KEYS: u32 = 60;
const STEPS: std::ops::Range<usize> = 30..70;
/// Of these the first ones are set in stories of aggregates.
const AGGREGATE_POINTS: usize = 10;
const POINTS: [&str; 15] = [
    "session.before-persist",
    "session.durable",
    "promote.applied",
    "rebuild.taken-over",
    "restore.replayed",
    "restore.warm",
    "materialize.flush",
    "checkpoint.made",
    "snapshot.before-manifest",
    "materialize.offer",
    "session.merge",
    "session.spill",
    "session.spilled",
    "session.range",
    "session.finish",
];

fn one_of<T: Copy>(rng: &mut StdRng, of: &[T]) -> T {
    of[rng.random_range(0..of.len())]
}

impl Story {
    /// The story of a seed.
    pub fn of(seed: u64, operator: Operator) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let rng = &mut rng;
        let (servers, shards) = (rng.random_range(2..4), rng.random_range(1..3));
        let mut options = vec![
            ("incremental", one_of(rng, &["true", "true", "true", "false"])),
            ("snapshot_pack_below", one_of(rng, &["0", "1MiB"])),
            ("max_handle_segments", one_of(rng, &["2", "4", "32"])),
            ("max_prepared_versions", one_of(rng, &["1", "8"])),
            ("restore", one_of(rng, &["eager", "lazy"])),
            ("local_recovery", one_of(rng, &["true", "false"])),
        ];
        // Of aggregates, options of batches that spill belong here, too.
        let is_processor = operator == Operator::Processor;
        if is_processor {
            options.push(("session_memory", one_of(rng, &["0", "8KiB"])));
        }
        let padding = one_of(rng, &[0, 0, 0, if is_processor { 1_000 } else { 8_000 }]);
        let limits = if is_processor { (1 << 40, POINTS.len()) } else { (1000, AGGREGATE_POINTS) };
        let mut places = vec![0; shards as usize];
        let steps = (0..rng.random_range(STEPS)).map(|_| step(rng, servers, &mut places, limits)).collect();
        Self { seed, operator, servers, shards, options, padding, steps }
    }

    /// A story with fewer steps that fails as well, after so many attempts at most.
    pub fn shrunk(mut self, attempts: usize, fails: impl Fn(&Self) -> bool) -> Self {
        let (mut left, mut size) = (attempts, self.steps.len() / 2);
        while size > 0 {
            let (mut at, mut shorter) = (0, false);
            while at < self.steps.len() && left > 0 {
                let mut other = self.clone();
                other.steps.drain(at..(at + size).min(self.steps.len()));
                left -= 1;
                if fails(&other) {
                    (self, shorter) = (other, true);
                } else {
                    at += size;
                }
            }
            if left == 0 {
                break;
            }
            if !shorter || size > 1 {
                size /= 2;
            }
        }
        self
    }
}

/// `most`: no amount is as high; `points`: so many failpoints are set.
fn step(rng: &mut StdRng, servers: usize, places: &mut [usize], (most, points): (i64, usize)) -> Step {
    let server = rng.random_range(0..servers);
    match rng.random_range(0..100) {
        0..42 => batch(rng, servers, places, most),
        42..50 => Step::Materialize(server),
        50..55 => Step::Begin(server),
        55..61 => Step::Run(server),
        61..66 => Step::Complete(server),
        66 => Step::Abort(server),
        67..69 => Step::Wake,
        69..71 => Step::CloseIdle(server),
        71..74 => Step::Die { server, wipe: rng.random() },
        74 => Step::LoseFiles(server),
        75..77 => Step::Fail { server, point: one_of(rng, &POINTS[..points]) },
        77..83 => Step::Advance(one_of(rng, &[1, 20, 70, 200])),
        83..91 => Step::Sweep,
        91..96 => Step::Retire(rng.random_range(1..6)),
        96..98 => Step::RollBack(rng.random_range(1..4)),
        _ => Step::Restore(rng.random_range(0..8)),
    }
}

fn batch(rng: &mut StdRng, servers: usize, places: &mut [usize], most: i64) -> Step {
    let rows = if rng.random_ratio(1, 12) { 0 } else { rng.random_range(1..80) };
    let rows = (0..rows).map(|_| (rng.random_range(0..KEYS), rng.random_range(-50..most))).collect();
    let attempts = places.iter_mut().map(|place| {
        // Spark prefers the server that had the shard last.
        if rng.random_ratio(1, 3) {
            *place = rng.random_range(0..servers);
        }
        let mut attempts = Vec::new();
        while rng.random_ratio(1, 3) && attempts.len() < 3 {
            let fate = one_of(rng, &[Fate::Opened, Fate::Finished, Fate::Stuck, Fate::Committed]);
            let server = if rng.random() { *place } else { rng.random_range(0..servers) };
            attempts.push(Attempt { server, fate });
        }
        attempts.push(Attempt { server: *place, fate: Fate::Committed });
        attempts
    });
    let attempts = attempts.collect();
    let pause = rng.random_ratio(1, 15).then(|| one_of(rng, &[1, 90, 300]));
    Step::Batch { rows, attempts, keep: rng.random_range(0..4), pause }
}
