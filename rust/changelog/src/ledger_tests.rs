//! The ledger of a writer against a plain model, over random orders of everything that can happen.

use super::*;
use fastchangelog_format::error::ErrorKind;
use fastchangelog_format::model::ObjectRef;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

fn set(number: SequenceNumber) -> SetRef {
    let object = ObjectRef { name: format!("log/{number}"), size: 100, crc: 0 };
    SetRef { sequence_number: number, object, offset: 0, length: 100, head: 10, mark: 0, records: 1, payload: 10 }
}

fn numbers(sets: &[SetRef]) -> Vec<SequenceNumber> {
    sets.iter().map(|set| set.sequence_number).collect()
}

#[test]
fn x06_a_late_confirm_keeps_what_the_checkpoint_names() {
    let mut ledger = Ledger::default();
    ledger.roll(()).unwrap();
    let (_, effects) = ledger.persist(0, 1).unwrap();
    assert_eq!(effects.submit, [(0, ())]);
    let effects = ledger.on_persisted(0, Ok(set(0)));
    assert_eq!(effects.finish.len(), 1);
    // Checkpoint 2 starts before 1 is confirmed, and the snapshot moves on.
    ledger.roll(()).unwrap();
    drop(ledger.persist(1, 2).unwrap());
    assert!(ledger.truncate(2).unwrap().release.is_empty(), "both checkpoints are open");
    assert!(ledger.confirm(0, 1, 1).unwrap().release.is_empty());
    assert!(ledger.on_persisted(1, Ok(set(1))).release.is_empty());
    assert_eq!(numbers(&ledger.subsume(1).release), [0]);
    assert_eq!(numbers(&ledger.reset(1, 2, 2).unwrap().release), [1]);
}

#[test]
fn a10_failed_sets_are_sent_again_once() {
    let mut ledger = Ledger::default();
    for checkpoint in 1..=3 {
        ledger.roll(checkpoint).unwrap();
        let (id, effects) = ledger.persist(0, checkpoint).unwrap();
        assert_eq!(effects.submit.len() as u64, checkpoint, "what failed before, and the new one");
        let submitted = effects.submit;
        assert!(ledger.persist_waiting().submit.is_empty(), "it is in flight");
        let mut finished = Vec::new();
        for (number, data) in submitted {
            finished.extend(ledger.on_persisted(number, Err((Error::retryable("down"), Some(data)))).finish);
        }
        assert_eq!(finished.len(), 1, "a persist fails once");
        assert!(finished[0].0 == id && finished[0].1.is_err());
    }
    ledger.roll(4).unwrap();
    let (_, effects) = ledger.persist(0, 4).unwrap();
    assert_eq!(effects.submit, [(0, 1), (1, 2), (2, 3), (3, 4)]);
    let mut outcome = None;
    for number in [2, 0, 3, 1] {
        outcome = ledger.on_persisted(number, Ok(set(number))).finish.pop().or(outcome);
    }
    let outcome = outcome.unwrap().1.unwrap();
    assert_eq!((numbers(&outcome.sets), outcome.incremental), (vec![0, 1, 2, 3], 40));
}

#[test]
fn a_persist_does_not_fail_by_an_attempt_older_than_itself() {
    let mut ledger = Ledger::default();
    ledger.roll("bytes").unwrap();
    let (old, effects) = ledger.persist(0, 1).unwrap();
    assert_eq!(effects.submit.len(), 1);
    let (young, effects) = ledger.persist(0, 2).unwrap();
    assert!(effects.submit.is_empty());
    let effects = ledger.on_persisted(0, Err((Error::retryable("down"), Some("bytes"))));
    assert_eq!(effects.finish.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [old]);
    assert_eq!(effects.submit, [(0, "bytes")]);
    let effects = ledger.on_persisted(0, Err((Error::retryable("down"), Some("bytes"))));
    assert_eq!((effects.finish[0].0, effects.submit.len()), (young, 0));
}

#[test]
fn h06_x16_incremental_counts_every_new_set() {
    let mut ledger = Ledger::default();
    let mut persist = |checkpoint, new: &[SequenceNumber]| {
        for _ in new {
            ledger.roll(()).unwrap();
        }
        let (_, effects) = ledger.persist(0, checkpoint).unwrap();
        drop(effects);
        let mut incremental = None;
        for number in new {
            let mut effects = ledger.on_persisted(*number, Ok(set(*number)));
            incremental = effects.finish.pop().map(|(_, outcome)| outcome.unwrap().incremental);
        }
        incremental.unwrap()
    };
    assert_eq!(persist(1, &[0, 1, 2]), 30);
    assert_eq!(persist(2, &[3]), 10);
}

#[test]
fn arguments_are_checked() {
    let mut ledger = Ledger::default();
    for _ in 0..3 {
        ledger.roll(()).unwrap();
    }
    drop(ledger.truncate(1).unwrap());
    assert!(ledger.persist(0, 1).unwrap_err().message().contains("truncated"));
    assert!(ledger.persist(4, 1).unwrap_err().message().contains("no change has the sequence number 4 yet"));
    assert!(ledger.confirm(2, 1, 1).is_err() && ledger.confirm(0, 4, 1).is_err());
    assert!(ledger.reset(2, 1, 1).is_err() && ledger.truncate(4).is_err());
    drop(ledger.truncate(0).unwrap());
    assert_eq!(ledger.lowest(), 1, "never back (X-24)");
    drop(ledger.close());
    assert_eq!(ledger.persist(1, 1).unwrap_err().kind(), ErrorKind::Closed);
}

#[test]
fn a_set_beyond_retries_fails_its_checkpoints_for_good() {
    let mut ledger = Ledger::default();
    ledger.roll(()).unwrap();
    drop(ledger.persist(0, 1).unwrap());
    assert!(ledger.on_persisted(0, Err((Error::internal("lost"), None))).finish[0].1.is_err());
    assert!(ledger.persist(0, 2).unwrap_err().message().contains("lost"));
    ledger.roll(()).unwrap();
    let (_, effects) = ledger.persist(1, 3).unwrap();
    assert_eq!(effects.submit.len(), 1, "newer ranges work");
}

#[test]
fn remembered_checkpoints_are_bounded() {
    let mut ledger = Ledger::default();
    let mut handed_over = 0;
    for checkpoint in 0..MAX_CONFIRMED as u64 + 10 {
        ledger.roll(()).unwrap();
        drop(ledger.persist(checkpoint, checkpoint).unwrap());
        drop(ledger.on_persisted(checkpoint, Ok(set(checkpoint))));
        drop(ledger.truncate(checkpoint + 1).unwrap());
        let effects = ledger.confirm(checkpoint, checkpoint + 1, checkpoint).unwrap();
        assert!(effects.release.is_empty());
        handed_over += effects.hand_over.len();
    }
    assert_eq!((handed_over, ledger.pins.len(), ledger.sets.len()), (10, MAX_CONFIRMED, MAX_CONFIRMED));
}

#[derive(Debug, Clone)]
enum Step {
    Roll,
    PersistWaiting,
    Persist(usize),
    Land(usize, bool),
    Confirm(usize),
    Reset(usize),
    Subsume(usize),
    Truncate(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => Just(Step::Roll),
        1 => Just(Step::PersistWaiting),
        3 => (0usize..8).prop_map(Step::Persist),
        6 => (0usize..8, prop::bool::weighted(0.8)).prop_map(|(i, ok)| Step::Land(i, ok)),
        2 => (0usize..8).prop_map(Step::Confirm),
        1 => (0usize..8).prop_map(Step::Reset),
        1 => (0usize..8).prop_map(Step::Subsume),
        1 => (0usize..8).prop_map(Step::Truncate),
    ];
    prop::collection::vec(step, 1..80)
}

/// What must hold, written down without regard to how the ledger does it.
#[derive(Default)]
struct Model {
    in_flight: Vec<SequenceNumber>,
    durable: BTreeSet<SequenceNumber>,
    gone: BTreeSet<SequenceNumber>,
    /// Handles given out that no reset or subsumption took back: range by checkpoint.
    held: BTreeMap<u64, Range<SequenceNumber>>,
    waiting: BTreeMap<u64, u64>,
    checkpoints: BTreeMap<u64, Range<SequenceNumber>>,
    truncated: SequenceNumber,
    closed: bool,
}

impl Model {
    fn take(&mut self, effects: Effects<SequenceNumber>) -> Result<(), TestCaseError> {
        for (number, data) in effects.submit {
            prop_assert_eq!(number, data, "the bytes stay with their number");
            prop_assert!(!self.in_flight.contains(&number) && !self.durable.contains(&number), "submitted twice");
            self.in_flight.push(number);
        }
        for (id, outcome) in effects.finish {
            let checkpoint = self.waiting.remove(&id);
            prop_assert!(checkpoint.is_some(), "a listener ends once");
            let checkpoint = checkpoint.unwrap();
            if let Ok(outcome) = outcome {
                prop_assert_eq!(outcome.checkpoint, checkpoint);
                let named: BTreeSet<_> = numbers(&outcome.sets).into_iter().collect();
                prop_assert!(named.iter().all(|n| self.durable.contains(n)), "a handle names durable sets only");
                let missing = outcome.range.clone().find(|n| !named.contains(n) && !self.gone.contains(n));
                prop_assert_eq!(missing, None, "a handle is complete");
                let held = self.held.entry(checkpoint).or_insert(outcome.range.clone());
                *held = held.start.min(outcome.range.start)..held.end.max(outcome.range.end);
            }
        }
        for set in effects.release {
            let number = set.sequence_number;
            prop_assert!(self.durable.remove(&number), "released once, and only what is durable");
            self.gone.insert(number);
            prop_assert!(number < self.truncated || self.closed, "only what is truncated goes");
            prop_assert!(!self.held.values().any(|range| range.contains(&number)), "{} is still named", number);
        }
        for set in effects.hand_over {
            prop_assert!(self.durable.remove(&set.sequence_number));
        }
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]
    #[test]
    fn a04_whatever_a_checkpoint_names_stays_and_the_rest_goes(steps in steps()) {
        let mut ledger = Ledger::default();
        let mut model = Model::default();
        let mut next_checkpoint = 1;
        for step in steps {
            match step {
                Step::Roll => ledger.roll(ledger.active()).unwrap(),
                Step::PersistWaiting => { let effects = ledger.persist_waiting(); model.take(effects)?; }
                Step::Persist(back) => {
                    let from = ledger.active().saturating_sub(back as u64).max(ledger.lowest());
                    let (id, effects) = ledger.persist(from, next_checkpoint).unwrap();
                    model.waiting.insert(id, next_checkpoint);
                    model.checkpoints.insert(next_checkpoint, from..ledger.active());
                    next_checkpoint += 1;
                    model.take(effects)?;
                }
                Step::Land(i, ok) => {
                    if model.in_flight.is_empty() { continue; }
                    let number = model.in_flight.remove(i % model.in_flight.len());
                    let result = if ok { model.durable.insert(number); Ok(set(number)) } else { Err((Error::retryable("no"), Some(number))) };
                    let effects = ledger.on_persisted(number, result);
                    model.take(effects)?;
                }
                Step::Confirm(i) => {
                    let Some((checkpoint, range)) = model.held.iter().nth(i).map(|(c, r)| (*c, r.clone())) else { continue };
                    let effects = ledger.confirm(range.start, range.end, checkpoint).unwrap();
                    model.take(effects)?;
                }
                Step::Reset(i) => {
                    let Some((checkpoint, range)) = model.checkpoints.iter().nth(i).map(|(c, r)| (*c, r.clone())) else { continue };
                    let effects = ledger.reset(range.start, range.end, checkpoint).unwrap();
                    // A confirmed one is not aborted any more.
                    if !ledger.pins.contains_key(&checkpoint) { model.held.remove(&checkpoint); }
                    model.take(effects)?;
                }
                Step::Subsume(back) => {
                    let checkpoint = (next_checkpoint - 1).saturating_sub(back as u64);
                    let pending: BTreeSet<u64> = model.waiting.values().copied().collect();
                    model.held.retain(|c, _| *c > checkpoint || pending.contains(c));
                    let effects = ledger.subsume(checkpoint);
                    model.take(effects)?;
                }
                Step::Truncate(back) => {
                    let to = ledger.active().saturating_sub(back as u64);
                    model.truncated = model.truncated.max(to);
                    let effects = ledger.truncate(to).unwrap();
                    model.take(effects)?;
                }
            }
        }
        // The end: every upload ends, every checkpoint is abandoned, the writer closes.
        while let Some(number) = model.in_flight.pop() {
            model.durable.insert(number);
            let effects = ledger.on_persisted(number, Ok(set(number)));
            model.take(effects)?;
        }
        prop_assert!(model.waiting.is_empty(), "every listener ended");
        model.held.clear();
        let effects = ledger.subsume(u64::MAX);
        model.take(effects)?;
        model.closed = true;
        let effects = ledger.close();
        model.take(effects)?;
        prop_assert!(model.durable.is_empty(), "unnamed sets are gone: {:?}", model.durable);
        prop_assert!(ledger.sets.is_empty());
    }
}
