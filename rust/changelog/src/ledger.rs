//! The state and the users of one writer's change sets: book-keeping without I/O.
//!
//! Owns: sequence numbers, the life of a set from sealing to release, ranges pinned by checkpoints, listeners of persists.
//! Does not own: bytes (they pass through as `D`), uploads, deletion; it returns the actions.
//!
//! ```text
//! roll ─► WAITING ──persist / threshold──► IN FLIGHT ──ok──► DURABLE ──not needed──► released
//!            ▲ │ truncate: dropped             │
//!            └─┼──────────── failed ───────────┘   the bytes are kept, the next persist sends them again (X-10)
//! ```
//!
//! Invariants of [`Ledger`]:
//! 1. a set is in exactly one state, and submitted again only after its upload failed; every persist is given an
//!    attempt that began no earlier than itself;
//! 2. numbers in the ledger are below `active`; those at or above `lowest` have no holes;
//! 3. a durable set is released once, and only when it is truncated (or the writer is closed) and no open, confirmed or
//!    retained checkpoint's range holds it (X-06);
//! 4. every listener ends: when its sets are durable, when one of them fails, or at close (X-08);
//! 5. `lowest` never goes back (X-24).

use fastchangelog_format::error::{Error, Result};
use fastchangelog_format::model::{INITIAL_SEQUENCE_NUMBER, SequenceNumber, SetRef};
use std::collections::BTreeMap;
use std::ops::Range;

/// Confirmed checkpoints that are remembered for [`Ledger::subsume`]; older ones are the caller's own from then on.
const MAX_CONFIRMED: usize = 4096;

#[derive(Debug)]
enum Slot<D> {
    Waiting(D),
    InFlight {
        /// First listener id registered after this attempt started; lower ids share it.
        before: u64,
    },
    Durable {
        set: SetRef,
        /// A finished checkpoint names it.
        named: bool,
    },
    /// It can never become durable.
    Lost(Error),
}

#[derive(Debug)]
struct Pin {
    range: Range<SequenceNumber>,
    /// A handle of it was given out.
    given: bool,
    confirmed: bool,
}

#[derive(Debug)]
struct Listener {
    id: u64,
    checkpoint: u64,
    range: Range<SequenceNumber>,
    missing: u64,
}

/// A checkpoint's sets, all durable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// The checkpoint.
    pub checkpoint: u64,
    /// Its range of numbers.
    pub range: Range<SequenceNumber>,
    /// Its sets, in order.
    pub sets: Vec<SetRef>,
    /// Bytes of values in sets that no earlier checkpoint named (X-16).
    pub incremental: u64,
}

/// The actions after a step.
#[derive(Debug)]
#[must_use]
pub struct Effects<D> {
    /// Sets to upload.
    pub submit: Vec<(SequenceNumber, D)>,
    /// Sets that are not needed any more: the registry must be told.
    pub release: Vec<SetRef>,
    /// Sets that the caller owns now: their objects must not be deleted.
    pub hand_over: Vec<SetRef>,
    /// Listeners that end.
    pub finish: Vec<(u64, Result<Outcome>)>,
}

impl<D> Default for Effects<D> {
    fn default() -> Self {
        Self { submit: Vec::new(), release: Vec::new(), hand_over: Vec::new(), finish: Vec::new() }
    }
}

/// The ledger of one writer.
#[derive(Debug)]
pub struct Ledger<D> {
    lowest: SequenceNumber,
    highest: SequenceNumber,
    active: SequenceNumber,
    sets: BTreeMap<SequenceNumber, Slot<D>>,
    pins: BTreeMap<u64, Pin>,
    listeners: Vec<Listener>,
    next_listener: u64,
    closed: bool,
    /// The newest failure of an upload, and how many there were.
    failure: Option<Error>,
    failures: u64,
}

impl<D> Default for Ledger<D> {
    fn default() -> Self {
        Self {
            lowest: INITIAL_SEQUENCE_NUMBER,
            highest: SequenceNumber::MAX,
            active: INITIAL_SEQUENCE_NUMBER,
            sets: BTreeMap::new(),
            pins: BTreeMap::new(),
            listeners: Vec::new(),
            next_listener: 0,
            closed: false,
            failure: None,
            failures: 0,
        }
    }
}

impl<D> Ledger<D> {
    /// The number of the active set.
    pub fn active(&self) -> SequenceNumber {
        self.active
    }

    /// Everything below is truncated.
    pub fn lowest(&self) -> SequenceNumber {
        self.lowest
    }

    /// True after close.
    pub fn is_closed(&self) -> bool {
        self.closed
    }

    /// Uploads that failed so far, and why the last one did.
    pub fn failures(&self) -> (u64, Option<&Error>) {
        (self.failures, self.failure.as_ref())
    }

    /// The active set was sealed: it waits, and the next number is active.
    pub fn roll(&mut self, data: D) -> Result<()> {
        let next = self
            .active
            .checked_add(1)
            .ok_or_else(|| Error::invalid("sequence numbers are used up").with_remedy("open another writer"))?;
        self.sets.insert(self.active, Slot::Waiting(data));
        self.active = next;
        Ok(())
    }

    /// Sends every set that waits, for no checkpoint.
    pub fn persist_waiting(&mut self) -> Effects<D> {
        let mut effects = Effects::default();
        self.submit(self.lowest..self.active, &mut effects);
        effects
    }

    /// Makes `[from, active)` durable for a checkpoint; the active set is rolled already. The number is the listener's;
    /// it ends in [`Effects::finish`], possibly at once.
    pub fn persist(&mut self, from: SequenceNumber, checkpoint: u64) -> Result<(u64, Effects<D>)> {
        self.check_open()?;
        if from < self.lowest {
            return Err(Error::invalid(format!(
                "sequence number {from} was truncated: this writer keeps {} and above",
                self.lowest
            ))
            .with_remedy("persist from there"));
        }
        if from > self.active {
            return Err(Error::invalid(format!(
                "no change has the sequence number {from} yet; the next one is {}",
                self.active
            )));
        }
        let range = from..self.active;
        if let Some((_, Slot::Lost(error))) = self.sets.range(range.clone()).find(|(_, s)| matches!(s, Slot::Lost(_))) {
            return Err(error.clone());
        }
        let id = self.next_listener;
        self.next_listener += 1;
        let mut effects = Effects::default();
        self.submit(range.clone(), &mut effects);
        let pin = self.pins.entry(checkpoint).or_insert(Pin { range: range.clone(), given: false, confirmed: false });
        pin.range = pin.range.start.min(range.start)..pin.range.end.max(range.end);
        let missing = self.sets.range(range.clone()).filter(|(_, s)| !matches!(s, Slot::Durable { .. })).count() as u64;
        let listener = Listener { id, checkpoint, range, missing };
        if missing == 0 {
            let outcome = self.outcome(&listener);
            effects.finish.push((id, Ok(outcome)));
        } else {
            self.listeners.push(listener);
        }
        Ok((id, effects))
    }

    fn submit(&mut self, range: Range<SequenceNumber>, effects: &mut Effects<D>) {
        for (number, slot) in self.sets.range_mut(range) {
            if matches!(slot, Slot::Waiting(_))
                && let Slot::Waiting(data) = std::mem::replace(slot, Slot::InFlight { before: self.next_listener })
            {
                effects.submit.push((*number, data));
            }
        }
    }

    /// A set's upload ended: it is durable, or the reason and (if it can be tried again) its bytes.
    pub fn on_persisted(&mut self, number: SequenceNumber, result: Result<SetRef, (Error, Option<D>)>) -> Effects<D> {
        let mut effects = Effects::default();
        match result {
            Ok(set) => {
                self.sets.insert(number, Slot::Durable { set, named: false });
                let listeners = std::mem::take(&mut self.listeners);
                for mut listener in listeners {
                    listener.missing -= u64::from(listener.range.contains(&number));
                    if listener.missing == 0 {
                        let outcome = self.outcome(&listener);
                        effects.finish.push((listener.id, Ok(outcome)));
                    } else {
                        self.listeners.push(listener);
                    }
                }
            }
            Err((error, data)) => {
                self.failures += 1;
                self.failure = Some(error.clone());
                let before = match self.sets.get(&number) {
                    Some(Slot::InFlight { before }) if data.is_some() => *before,
                    _ => u64::MAX,
                };
                self.sets.insert(number, data.map_or_else(|| Slot::Lost(error.clone()), Slot::Waiting));
                let shares_attempt = |listener: &Listener| listener.range.contains(&number) && listener.id < before;
                self.fail_listeners(shares_attempt, &error, &mut effects);
                // Listeners registered after the attempt started are owed another attempt.
                if self.listeners.iter().any(|listener| listener.range.contains(&number)) {
                    self.submit(number..number + 1, &mut effects);
                }
            }
        }
        if !self.is_needed(number) {
            self.drop_set(number, &mut effects);
        } else if self.closed
            && let Some(Slot::Durable { set, .. }) = self.sets.remove(&number)
        {
            effects.hand_over.push(set);
        }
        effects
    }

    fn fail_listeners(&mut self, which: impl Fn(&Listener) -> bool, error: &Error, effects: &mut Effects<D>) {
        let (failed, left) = std::mem::take(&mut self.listeners).into_iter().partition(which);
        self.listeners = left;
        let failed: Vec<Listener> = failed;
        for listener in &failed {
            effects.finish.push((listener.id, Err(error.clone())));
            let other = self.listeners.iter().any(|l| l.checkpoint == listener.checkpoint);
            // Without a handle there is no checkpoint that could name the sets.
            if !other && self.pins.get(&listener.checkpoint).is_some_and(|pin| !pin.given && !pin.confirmed) {
                self.pins.remove(&listener.checkpoint);
            }
        }
        if !failed.is_empty() {
            self.drop_unneeded(effects);
        }
    }

    fn outcome(&mut self, listener: &Listener) -> Outcome {
        let (mut sets, mut incremental) = (Vec::new(), 0);
        for (_, slot) in self.sets.range_mut(listener.range.clone()) {
            if let Slot::Durable { set, named } = slot {
                if !std::mem::replace(named, true) {
                    incremental += set.payload;
                }
                sets.push(set.clone());
            }
        }
        if let Some(pin) = self.pins.get_mut(&listener.checkpoint) {
            pin.given = true;
        }
        Outcome { checkpoint: listener.checkpoint, range: listener.range.clone(), sets, incremental }
    }

    /// A checkpoint with the range `[from, to)` completed, in whatever order: its sets belong to it until
    /// [`Ledger::subsume`].
    pub fn confirm(&mut self, from: SequenceNumber, to: SequenceNumber, checkpoint: u64) -> Result<Effects<D>> {
        self.check_range(from, to)?;
        let pin = self.pins.entry(checkpoint).or_insert(Pin { range: from..to, given: true, confirmed: true });
        pin.confirmed = true;
        pin.range = pin.range.start.min(from)..pin.range.end.max(to);
        let mut effects = Effects::default();
        let confirmed = self.pins.values().filter(|pin| pin.confirmed).count();
        if confirmed > MAX_CONFIRMED {
            let oldest = self.pins.iter().find(|(_, pin)| pin.confirmed).map(|(checkpoint, _)| *checkpoint);
            if let Some(pin) = oldest.and_then(|checkpoint| self.pins.remove(&checkpoint)) {
                self.hand_over(&pin.range, &mut effects);
            }
        }
        Ok(effects)
    }

    /// Forgets the truncated sets of a range without releasing them.
    fn hand_over(&mut self, range: &Range<SequenceNumber>, effects: &mut Effects<D>) {
        let gone: Vec<SequenceNumber> = self
            .sets
            .range(range.clone())
            .map(|(number, _)| *number)
            .filter(|number| !self.is_needed(*number))
            .collect();
        for number in gone {
            if let Some(Slot::Durable { set, .. }) = self.sets.remove(&number) {
                effects.hand_over.push(set);
            }
        }
    }

    /// A checkpoint was aborted. Its sets stay for the next one, unless they were truncated meanwhile.
    pub fn reset(&mut self, from: SequenceNumber, to: SequenceNumber, checkpoint: u64) -> Result<Effects<D>> {
        self.check_range(from, to)?;
        let mut effects = Effects::default();
        if self.pins.get(&checkpoint).is_some_and(|pin| !pin.confirmed) {
            self.pins.remove(&checkpoint);
            let error = Error::closed(format!("checkpoint {checkpoint} was reset before it was durable"));
            self.fail_listeners(|listener| listener.checkpoint == checkpoint, &error, &mut effects);
            self.drop_unneeded(&mut effects);
        }
        Ok(effects)
    }

    /// No checkpoint up to and with `checkpoint` is retained any more.
    pub fn subsume(&mut self, checkpoint: u64) -> Effects<D> {
        let mut effects = Effects::default();
        let waiting = |id: &u64| self.listeners.iter().any(|listener| listener.checkpoint == *id);
        let gone: Vec<u64> = self.pins.range(..=checkpoint).map(|(id, _)| *id).filter(|id| !waiting(id)).collect();
        for id in gone {
            self.pins.remove(&id);
        }
        self.drop_unneeded(&mut effects);
        effects
    }

    /// Sets below `to` are in a snapshot: they go when no checkpoint needs them. Never moves back.
    pub fn truncate(&mut self, to: SequenceNumber) -> Result<Effects<D>> {
        if to > self.active {
            return Err(Error::invalid(format!(
                "cannot truncate to sequence number {to}: the next one is {}",
                self.active
            )));
        }
        self.lowest = self.lowest.max(to);
        let mut effects = Effects::default();
        self.drop_unneeded(&mut effects);
        Ok(effects)
    }

    /// Closes; sets at or above `from` go unless a checkpoint needs them, those below are the caller's.
    pub fn truncate_and_close(&mut self, from: SequenceNumber) -> Effects<D> {
        self.highest = from;
        self.end()
    }

    /// Closes; what is in no checkpoint goes.
    pub fn close(&mut self) -> Effects<D> {
        self.lowest = self.active;
        self.end()
    }

    fn end(&mut self) -> Effects<D> {
        let mut effects = Effects::default();
        self.closed = true;
        let error = Error::closed("the changelog writer was closed before the checkpoint was durable")
            .with_remedy("persist before closing");
        self.fail_listeners(|_| true, &error, &mut effects);
        self.drop_unneeded(&mut effects);
        // What is left belongs to checkpoints, which outlive the writer.
        let durable: Vec<SequenceNumber> =
            self.sets.iter().filter(|(_, s)| matches!(s, Slot::Durable { .. })).map(|(number, _)| *number).collect();
        for number in durable {
            if let Some(Slot::Durable { set, .. }) = self.sets.remove(&number) {
                effects.hand_over.push(set);
            }
        }
        self.sets.retain(|_, slot| matches!(slot, Slot::InFlight { .. }));
        effects
    }

    /// True while the writer or a checkpoint needs a set.
    pub fn is_needed(&self, number: SequenceNumber) -> bool {
        (self.lowest..self.highest).contains(&number) || self.pins.values().any(|pin| pin.range.contains(&number))
    }

    /// Drops each set for which [`Ledger::is_needed`] does not hold, in one pass over sets and pins by number.
    fn drop_unneeded(&mut self, effects: &mut Effects<D>) {
        let kept = self.lowest..self.highest;
        let mut pins: Vec<&Range<SequenceNumber>> = self.pins.values().map(|pin| &pin.range).collect();
        pins.sort_unstable_by_key(|range| range.start);
        let mut pins = pins.into_iter().peekable();
        let mut pinned_to = SequenceNumber::MIN;
        let mut all = Vec::new();
        for number in self.sets.keys().copied() {
            while let Some(pin) = pins.next_if(|pin| pin.start <= number) {
                pinned_to = pinned_to.max(pin.end);
            }
            if number >= pinned_to && !kept.contains(&number) {
                all.push(number);
            }
        }
        for number in all {
            self.drop_set(number, effects);
        }
    }

    /// Forgets a set that is not needed; a set in flight is handled when its upload ends.
    fn drop_set(&mut self, number: SequenceNumber, effects: &mut Effects<D>) {
        match self.sets.get(&number) {
            None | Some(Slot::InFlight { .. }) => {}
            Some(_) => {
                if let Some(Slot::Durable { set, .. }) = self.sets.remove(&number) {
                    effects.release.push(set);
                }
            }
        }
    }

    fn check_open(&self) -> Result<()> {
        if self.closed {
            Err(Error::closed("this changelog writer is closed").with_remedy("create a new one"))
        } else {
            Ok(())
        }
    }

    fn check_range(&self, from: SequenceNumber, to: SequenceNumber) -> Result<()> {
        if from > to || to > self.active {
            return Err(Error::invalid(format!(
                "[{from}, {to}) is not a range of this writer's sequence numbers; the next one is {}",
                self.active
            )));
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "ledger_tests.rs"]
mod tests;
