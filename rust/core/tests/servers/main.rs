//! Servers over one bucket: random stories of a query whose shards move between them, against a plain model.
//!
//! A failure prints its seed and the shortest story found that fails. `FASTCHANGELOG_SEED=<n>` plays the story of that
//! seed, `FASTCHANGELOG_STORIES=<n>` plays so many.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a failure here is a failed test, and tells its story")]

mod aggregates;
mod bucket;
#[path = "../common/mod.rs"]
mod common;
mod one_server;
mod processors;
mod states;
mod story;
mod work;
mod world;

use aggregates::Aggregates;
use fastchangelog_core::engine::Operator;
use processors::Processors;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use story::Story;

/// Stories in each run of all tests, of aggregates and of processors, which read much. Each run begins at another seed, and
/// each night plays thousands.
const STORIES: u64 = 100;
const PROCESSOR_STORIES: u64 = 8;
/// Stories that are tried to find a shorter one.
const SHRINKS: usize = 150;
/// Stories at the same time.
const THREADS: usize = 2;

/// What went wrong in a story.
fn failure(story: &Story) -> Option<String> {
    let played = catch_unwind(AssertUnwindSafe(|| match story.operator {
        Operator::Aggregate => world::play::<Aggregates>(story),
        Operator::Processor => world::play::<Processors>(story),
    }));
    match played {
        Ok(played) => played.err(),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
            Some(format!("panicked: {}", text.unwrap_or_default()))
        }
    }
}

/// What a seed's story fails with, and the shortest story found that does.
fn told(seed: u64, operator: Operator) -> Option<String> {
    let story = Story::of(seed, operator);
    let first = failure(&story)?;
    println!("seed {seed} fails ({first}); looking for a shorter story");
    let short = story.shrunk(SHRINKS, |story| failure(story).is_some());
    let last = failure(&short).unwrap_or_else(|| "not each time".to_owned());
    Some(format!("{first}\nthe shortest story found ({last}):\n{short}"))
}

/// Plays random stories of a kind.
fn tell(stories: u64, operator: Operator) {
    let number = |name| std::env::var(name).ok().map(|text| text.parse().expect("a number"));
    let (seed, stories) = match number("FASTCHANGELOG_SEED") {
        Some(seed) => (seed, 1),
        None => (rand::random_range(0..1_000_000_000), number("FASTCHANGELOG_STORIES").unwrap_or(stories)),
    };
    println!("seeds {seed} to {}", seed + stories - 1);
    let next = AtomicU64::new(seed);
    let failed = Mutex::new(None);
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                loop {
                    let seed_now = next.fetch_add(1, Ordering::Relaxed);
                    if seed_now >= seed + stories || failed.lock().unwrap().is_some() {
                        break;
                    }
                    if let Some(text) = told(seed_now, operator) {
                        failed.lock().unwrap().get_or_insert(text);
                    }
                }
            });
        }
    });
    if let Some(text) = failed.into_inner().unwrap() {
        panic!("{text}");
    }
}

#[test]
fn p2_p3_p6_p8_shards_that_move_keep_their_state() {
    tell(STORIES, Operator::Aggregate);
}

#[test]
fn p2_p3_p6_p8_processors_that_move_keep_their_states() {
    tell(PROCESSOR_STORIES, Operator::Processor);
}
