//! Which tasks are about to open a session, and until when a change set waits for them.
//!
//! Owns: the sessions of this micro-batch and of the one before, the slots that their tasks occupy, the pause of a slot
//! between two tasks, the duration of an upload. All are estimates: they decide how long a set waits, and nothing else.
//! Does not own: the sets that wait and the sessions that are open (`batch`), clocks.
//!
//! Spark runs the tasks of a stage in waves, one task a slot. The tasks of the first wave start together; after that, a
//! slot's next task starts when the last one has committed. So after the sets of a wave have been answered together,
//! their slots' next sessions open together again, after a pause that was about the same before.
//!
//! A wait for a session that is not open yet is worth at most what it saves, an upload: it lasts at most [`PATIENCE`]
//! uploads, ends when the pause is longer than pauses are, and is not tried again for the same slot.

use fastchangelog_format::model::BatchId;
use std::time::Duration;

/// A set waits at most this many uploads long for sessions that are not open.
const PATIENCE: u32 = 4;
/// A longer pause counts as this one: a restore, say, tells nothing of the next pause.
const LONGEST: Duration = Duration::from_secs(5);

/// A slot whose last session has ended, or of the first wave, whose first session is still to come.
struct FreeSlot {
    since: Duration,
    /// Of the first wave: since another slot's task opened the batch.
    is_first: bool,
    /// A set has waited for it in vain.
    is_late: bool,
}

/// A duration that varies, smoothed: its mean and its spread.
#[derive(Default)]
struct Smoothed(Option<(Duration, Duration)>);

impl Smoothed {
    fn learn(&mut self, sample: Duration) {
        self.0 = Some(match self.0 {
            None => (sample, sample / 2),
            Some((mean, spread)) => ((mean * 7 + sample) / 8, (spread * 3 + sample.abs_diff(mean)) / 4),
        });
    }

    /// None before the first sample.
    fn mean(&self) -> Option<Duration> {
        self.0.map(|(mean, _)| mean)
    }

    /// Hardly any sample is longer; none before the first one.
    fn most(&self) -> Option<Duration> {
        self.0.map(|(mean, spread)| mean + spread * 4)
    }
}

/// The tasks of one state on this executor.
#[derive(Default)]
pub(super) struct Waves {
    batch: Option<BatchId>,
    /// Sessions of the micro-batch so far, and of the one before.
    opened: usize,
    expected: usize,
    /// Sessions without an answer.
    running: usize,
    /// Most of them at once in this micro-batch, and in the one before.
    peak: usize,
    slots: usize,
    /// At most as many as sessions have run at once.
    free: Vec<FreeSlot>,
    first_pause: Smoothed,
    pause: Smoothed,
    upload: Smoothed,
}

impl Waves {
    /// A task has opened a session.
    pub(super) fn opened(&mut self, batch: BatchId, now: Duration) {
        if self.batch.replace(batch) != Some(batch) {
            self.expected = std::mem::take(&mut self.opened);
            self.slots = std::mem::take(&mut self.peak);
            self.free.clear();
            self.free.extend((1..self.slots).map(|_| FreeSlot { since: now, is_first: true, is_late: false }));
        } else if let Some(FreeSlot { since, is_first, .. }) = self.take_slot(now) {
            self.pauses_of(is_first).learn(now.saturating_sub(since).min(LONGEST));
        }
        self.opened += 1;
        self.running += 1;
        self.peak = self.peak.max(self.running);
    }

    /// A session has its answer, or needs none: its slot is free for the next task.
    pub(super) fn ended(&mut self, now: Duration) {
        self.running = self.running.saturating_sub(1);
        if self.free.len() >= self.slots.max(self.peak) {
            self.free.remove(0);
        }
        self.free.push(FreeSlot { since: now, is_first: false, is_late: false });
    }

    /// A log object was uploaded.
    pub(super) fn uploaded(&mut self, took: Duration) {
        self.upload.learn(took.min(LONGEST));
    }

    /// Until when a set that waits since `since` waits for sessions that are not open; none = not at all.
    pub(super) fn until(&self, since: Duration) -> Option<Duration> {
        let patience = self.patience(since)?;
        let missing = self.expected.saturating_sub(self.opened);
        let awaited = self.free.iter().filter(|slot| self.is_awaited(slot, patience)).take(missing);
        awaited.map(|slot| self.pause_of(slot).most().map_or(patience, |most| (slot.since + most).min(patience))).max()
    }

    /// That wait has ended by its time: no other set waits for the same slots.
    pub(super) fn gave_up(&mut self, since: Duration) {
        let Some(patience) = self.patience(since) else { return };
        let awaited: Vec<bool> = self.free.iter().map(|slot| self.is_awaited(slot, patience)).collect();
        for (slot, awaited) in self.free.iter_mut().zip(awaited) {
            slot.is_late |= awaited;
        }
    }

    fn patience(&self, since: Duration) -> Option<Duration> {
        self.upload.mean().map(|upload| since + upload * PATIENCE)
    }

    /// True if its next session is likely to open before `patience`.
    fn is_awaited(&self, slot: &FreeSlot, patience: Duration) -> bool {
        !slot.is_late && slot.since + self.pause_of(slot).mean().unwrap_or_default() <= patience
    }

    /// The slot that a session opening now was expected in, or nearly.
    fn take_slot(&mut self, now: Duration) -> Option<FreeSlot> {
        let off = |slot: &FreeSlot| (slot.since + self.pause_of(slot).mean().unwrap_or_default()).abs_diff(now);
        let (found, _) = self.free.iter().enumerate().min_by_key(|(_, slot)| off(slot))?;
        Some(self.free.remove(found))
    }

    fn pause_of(&self, slot: &FreeSlot) -> &Smoothed {
        if slot.is_first { &self.first_pause } else { &self.pause }
    }

    fn pauses_of(&mut self, is_first: bool) -> &mut Smoothed {
        if is_first { &mut self.first_pause } else { &mut self.pause }
    }
}

#[cfg(test)]
#[path = "waves_tests.rs"]
mod tests;
