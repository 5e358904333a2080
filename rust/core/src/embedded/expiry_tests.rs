//! What has ended against a plain model: it leaves as fast as it comes.
//!
//! Every run prints its seed; `FASTCHANGELOG_SEED=<n>` replays it.

use super::tests::{World, call_of_value, lists as rows_of, world};
use super::*;
use crate::kinds::sweep::PER_CHANGE;
use arrow_array::{ArrayRef, Int64Array, StringArray};
use arrow_schema::DataType;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::collections::BTreeMap;

/// The kinds of states of which entries end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ending {
    Value,
    List,
    Map,
    Aggregating,
}

const KINDS: [Ending; 4] = [Ending::Value, Ending::List, Ending::Map, Ending::Aggregating];
const SMALL: usize = 8;
const LARGE: usize = 16 << 10;

enum Handle {
    Value(ValueState),
    List(ListState),
    Map(MapState),
    Aggregating(AggregatingState),
}

impl Handle {
    fn of(state: &EmbeddedState, kind: Ending, ttl: u64) -> Self {
        let (text, long, ttl) = (DataType::Utf8, DataType::Int64, Some(Duration::from_millis(ttl)));
        let longest = call_of_value("max");
        match kind {
            Ending::Value => Self::Value(state.value_state("s", &long, &text, ttl).unwrap()),
            Ending::List => Self::List(state.list_state("s", &long, &text, ttl).unwrap()),
            Ending::Map => Self::Map(state.map_state("s", (&long, &long), &text, ttl).unwrap()),
            Ending::Aggregating => {
                Self::Aggregating(state.aggregating_state("s", (&long, &text), &[longest], true, ttl).unwrap())
            }
        }
    }

    fn write(&self, keys: &[i64], size: usize) -> Result<()> {
        let keys: ArrayRef = Arc::new(Int64Array::from(keys.to_vec()));
        let value = "x".repeat(size);
        let values: ArrayRef = Arc::new(StringArray::from(vec![&*value; keys.len()]));
        match self {
            Self::Value(state) => state.put(&keys, &values),
            Self::List(state) => state.put(&keys, &rows_of(&vec![Some(vec![value]); keys.len()])),
            Self::Map(state) => state.put(&keys, &keys, &values),
            Self::Aggregating(state) => state.add(&keys, Some(&values)),
        }
    }
}

/// A state of one kind, and the ends of its keys as a plain map has them.
struct Run {
    world: World,
    state: Option<EmbeddedState>,
    kind: Ending,
    size: usize,
    ttl: u64,
    now: i64,
    ends: BTreeMap<i64, i64>,
    /// Keys written before each of the newest checkpoints.
    written: Vec<usize>,
    next: i64,
}

impl Run {
    fn new(kind: Ending, size: usize, ttl: u64, options: &[(&str, &str)]) -> Self {
        let world = world(options);
        let (state, written) = (Some(world.open().state), vec![0]);
        Self { world, state, kind, size, ttl, now: 0, ends: BTreeMap::new(), written, next: 0 }
    }

    fn write(&mut self, keys: &[i64]) -> Result<()> {
        let state = self.state.as_ref().unwrap();
        Handle::of(state, self.kind, self.ttl).write(keys, self.size)?;
        self.ends.extend(keys.iter().map(|key| (*key, self.now + self.ttl.cast_signed())));
        *self.written.last_mut().unwrap() += keys.len();
        Ok(())
    }

    /// So many keys that were never there, in order or not.
    fn write_new(&mut self, keys: usize, in_order: bool) {
        let new = self.next..self.next + i64::try_from(keys).unwrap();
        self.next = new.end;
        let scattered = |key: i64| key.wrapping_mul(0x9E37_79B9_7F4A_7C15_u64.cast_signed());
        let keys: Vec<i64> = new.map(|key| if in_order { key } else { scattered(key) }).collect();
        // A list of one large element is a head and a chunk.
        self.write(&keys).unwrap();
    }

    fn to(&mut self, now: i64) {
        self.now = now;
        self.world.at(now);
    }

    /// A checkpoint; the entries that it holds though they have ended.
    fn checkpoint(&mut self) -> usize {
        let handle = self.state.as_ref().unwrap().checkpoint().unwrap();
        self.written.push(0);
        let now = self.now;
        let alive = self.ends.values().filter(|ends| **ends > now).count();
        let each = if self.kind == Ending::List && self.size > 1000 { 2 } else { 1 };
        usize::try_from(handle.state_keys).unwrap() / each - alive
    }

    fn alive(&self) -> usize {
        self.ends.values().filter(|ends| **ends > self.now).count()
    }

    fn reopen(&mut self) {
        self.state = None;
        self.state = Some(self.world.open().state);
    }

    /// The most keys that were written before one of the last so many checkpoints.
    fn lately(&self, checkpoints: usize) -> usize {
        self.written.iter().rev().skip(1).take(checkpoints).copied().max().unwrap_or(0)
    }
}

fn keys_for(size: usize) -> usize {
    if size == SMALL { 3000 } else { 150 }
}

#[test]
fn what_ends_leaves_as_fast_as_it_comes() {
    for seed in crate::shard::testing::seeds(1) {
        println!("seed {seed}");
        for (i, kind) in KINDS.into_iter().enumerate() {
            for size in [SMALL, LARGE] {
                let mut rng = StdRng::seed_from_u64(seed + i as u64);
                let mut run = Run::new(kind, size, 100, &[]);
                let most = keys_for(size);
                for _ in 0..14 {
                    if rng.random_bool(0.2) {
                        run.reopen();
                    }
                    run.write_new(rng.random_range(most / 4..most), rng.random_bool(0.5));
                    let ended = run.checkpoint();
                    assert!(ended <= run.lately(3), "{kind:?}, {size} bytes: {ended} of {:?}", run.written);
                    // All has ended by the next checkpoint, or the next but one, or far more time has passed.
                    run.to(run.now + [50, 100, 250, 1 << 40][rng.random_range(0..4)]);
                }
            }
        }
    }
}

#[test]
fn a_backlog_goes_when_the_clock_jumps_far_ahead() {
    for kind in KINDS {
        for size in [SMALL, LARGE] {
            let mut run = Run::new(kind, size, 1_000_000, &[]);
            let keys = keys_for(size);
            for i in 0..12 {
                run.write_new(keys, i % 2 == 0);
                assert_eq!(run.checkpoint(), 0);
            }
            run.to(1 << 40);
            for checkpoint in 0..3 {
                // A few that stay, among them.
                run.write_new(keys / 10, false);
                let ended = run.checkpoint();
                assert!(ended <= run.lately(2), "{kind:?}, {size} bytes, checkpoint {checkpoint}: {ended} are left");
            }
        }
    }
}

#[test]
fn a_sweep_reaches_all_entries_when_each_checkpoint_ends_a_run() {
    const CHECKPOINTS: usize = 24;
    for (kind, size) in [(Ending::Value, SMALL), (Ending::Map, LARGE), (Ending::List, LARGE)] {
        for ends_each_time in [false, true] {
            // Each entry lives for ten checkpoints.
            let mut run = Run::new(kind, size, 1000, &[]);
            let keys = keys_for(size);
            let mut most = 0;
            for i in 0..CHECKPOINTS {
                run.write_new(keys, false);
                let ended = run.checkpoint();
                if ends_each_time {
                    run.reopen();
                }
                if i > CHECKPOINTS / 2 {
                    most = most.max(ended);
                }
                run.to(run.now + 100);
            }
            // A walk that begins anew each time meets some parts twice.
            let times = if ends_each_time { 4 } else { 1 };
            let bound = times * run.alive() / usize::try_from(PER_CHANGE).unwrap() + 2 * keys;
            assert!(most <= bound, "{kind:?}, {size} bytes, {ends_each_time}: {most} wait, the bound is {bound}");
        }
    }
}

#[test]
fn expired_entries_leave_as_fast_as_they_come_beyond_memory() {
    for (kind, size) in [(Ending::Value, SMALL), (Ending::Map, LARGE), (Ending::Value, 1 << 20)] {
        let mut run = Run::new(kind, size, 100, &[("memory_budget", "16MiB")]);
        for _ in 0..6 {
            let step = if size > LARGE { 4 } else { 2_048 };
            for _ in 0..3 {
                let keys: Vec<i64> = (run.next..run.next + step).collect();
                run.write(&keys).unwrap();
                run.next += step;
            }
            let ended = run.checkpoint();
            assert!(ended <= run.lately(2), "{kind:?}, {size} bytes: {ended} of {:?}", run.written);
            run.state.as_ref().unwrap().core.wait_applied();
            run.to(run.now + 1000);
        }
        assert!(run.lately(1) > 2, "{:?}", run.written);
    }
}

#[test]
fn a_busy_state_does_not_wait_for_the_turn_of_others() {
    let mut run = Run::new(Ending::Value, SMALL, 100, &[]);
    let others: Vec<ValueState> = {
        let state = run.state.as_ref().unwrap();
        let other =
            |i| state.value_state(&format!("o{i}"), &DataType::Int64, &DataType::Utf8, Some(Duration::from_millis(1)));
        (0..6).map(|i| other(i).unwrap()).collect()
    };
    for _ in 0..6 {
        // Each of them is due.
        others.iter().for_each(|state| Handle::Value(state.clone()).write(&[1], 1).unwrap());
        run.write_new(3000, false);
        let ended = run.checkpoint();
        assert!(ended <= 3000 + others.len(), "{ended} of {:?}", run.written);
        run.to(run.now + 50);
    }
}

#[test]
fn nothing_that_is_alive_goes() {
    for kind in KINDS {
        let mut run = Run::new(kind, SMALL, 100, &[]);
        for i in 0..8 {
            run.write_new(2000, i % 2 == 0);
            run.write(&[1, 2, 3]).unwrap();
            run.to(run.now + 40);
            assert!(run.state.as_ref().unwrap().checkpoint().unwrap().state_keys >= run.alive() as u64, "{kind:?}");
        }
    }
}
