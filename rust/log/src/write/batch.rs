//! Which sets wait and when a batch is uploaded: the writer's decisions, without I/O and without a clock.
//!
//! Owns: the queue of waiting change sets, the sessions that could still join, the number of the timer.
//! Does not own: timers and uploads, it returns the next action; which sessions are about to open (`waves`).

use super::entry::Entry;
use super::waves::Waves;
use fastchangelog_format::error::Result;
use fastchangelog_format::model::BatchId;
use std::time::Duration;

/// The next action after an event.
#[must_use]
pub(super) enum Next {
    /// Nothing.
    Wait,
    /// Start the timer of this number, for this long. Earlier ones have no effect any more.
    Timer(u64, Duration),
    /// Upload these sets as one object.
    Upload(Vec<Entry>),
}

/// The place of a session among those that may still add a set.
pub(super) struct Seat {
    /// It is a task's, with a slot in a wave.
    is_task: bool,
    /// Waiting sets wait for it, unless it is a task and this round of waiting has ended.
    round: Option<u64>,
}

/// The queue. Invariants:
/// 1. a set that waits has a running timer of the current number;
/// 2. a set waits only while another may still join: (a) from an open session, or (b) from a task that is about to open
///    one. One object then holds a wave;
/// 3. a set waits at most `delay`; a task for which one has waited so long is not waited for again;
/// 4. after close the queue stays empty.
pub(super) struct Batcher {
    queue: Vec<Entry>,
    queued_bytes: u64,
    /// Since when the oldest set waits.
    since: Duration,
    /// Sessions that may still add a set: those of tasks, in this round, and others.
    tasks: usize,
    others: usize,
    round: u64,
    waves: Waves,
    threshold: u64,
    delay: Duration,
    timer: u64,
    /// When the running timer expires.
    expires: Option<Duration>,
    closed: bool,
}

impl Batcher {
    pub(super) fn new(threshold: u64, delay: Duration) -> Self {
        Self {
            queue: Vec::new(),
            queued_bytes: 0,
            since: Duration::ZERO,
            tasks: 0,
            others: 0,
            round: 0,
            waves: Waves::default(),
            threshold,
            delay,
            timer: 0,
            expires: None,
            closed: false,
        }
    }

    /// A session could add a set; of a task, in this micro-batch.
    pub(super) fn join(&mut self, task: Option<BatchId>, now: Duration) -> (Seat, Next) {
        match task {
            Some(batch) => {
                self.waves.opened(batch, now);
                self.tasks += 1;
            }
            None => self.others += 1,
        }
        (Seat { is_task: task.is_some(), round: Some(self.round) }, self.next(now))
    }

    /// A session that will not add a set soon.
    pub(super) fn stand_aside(&mut self, seat: &mut Seat, now: Duration) -> Next {
        self.stop_waiting_for(seat);
        self.next(now)
    }

    /// A session will not add a set after all.
    pub(super) fn leave(&mut self, mut seat: Seat, now: Duration) -> Next {
        self.stop_waiting_for(&mut seat);
        if seat.is_task {
            self.waves.ended(now);
        }
        self.next(now)
    }

    /// Adds a set of the session with this seat, if it has one. Returns the set after close.
    pub(super) fn add(&mut self, mut entry: Entry, seat: Option<Seat>, now: Duration) -> Result<Next, Box<Entry>> {
        if let Some(mut seat) = seat {
            self.stop_waiting_for(&mut seat);
            entry.of_task = seat.is_task;
        }
        if self.closed {
            return Err(Box::new(entry));
        }
        if self.queue.is_empty() {
            self.since = now;
        }
        self.queued_bytes += entry.bytes();
        self.queue.push(entry);
        Ok(self.next(now))
    }

    /// The sets of this many tasks have their answers, after an upload of this duration if there was one.
    pub(super) fn answered(&mut self, tasks: usize, upload: Option<Duration>, now: Duration) {
        if let Some(took) = upload {
            self.waves.uploaded(took);
        }
        for _ in 0..tasks {
            self.waves.ended(now);
        }
    }

    /// The timer of this number has expired; an earlier one has no effect.
    pub(super) fn timer(&mut self, number: u64) -> Next {
        if number != self.timer || self.queue.is_empty() {
            return Next::Wait;
        }
        self.round += 1;
        self.tasks = 0;
        self.waves.gave_up(self.since);
        Next::Upload(self.drain())
    }

    /// True while `number` is the running timer's.
    pub(super) fn is_current(&self, number: u64) -> bool {
        number == self.timer
    }

    /// Flushes the waiting batch now, to free its buffer space.
    pub(super) fn flush_waiting(&mut self) -> Next {
        if self.queue.is_empty() { Next::Wait } else { Next::Upload(self.drain()) }
    }

    /// Ends the queue; returns the waiting sets.
    pub(super) fn close(&mut self) -> Vec<Entry> {
        self.closed = true;
        self.drain()
    }

    fn stop_waiting_for(&mut self, seat: &mut Seat) {
        match seat.round.take() {
            Some(_) if !seat.is_task => self.others = self.others.saturating_sub(1),
            Some(round) if round == self.round => self.tasks = self.tasks.saturating_sub(1),
            _ => {}
        }
    }

    fn next(&mut self, now: Duration) -> Next {
        if self.queue.is_empty() {
            return Next::Wait;
        }
        let most = self.since.saturating_add(self.delay);
        let until = if self.queued_bytes >= self.threshold {
            None
        } else if self.tasks + self.others > 0 {
            Some(most)
        } else if self.queue.iter().all(|entry| entry.of_task) {
            self.waves.until(self.since).map(|until| until.min(most))
        } else {
            None
        };
        match until.filter(|until| *until > now) {
            None => Next::Upload(self.drain()),
            Some(until) if self.expires == Some(until) => Next::Wait,
            Some(until) => {
                self.expires = Some(until);
                self.timer += 1;
                Next::Timer(self.timer, until.saturating_sub(now))
            }
        }
    }

    /// Takes the whole queue.
    fn drain(&mut self) -> Vec<Entry> {
        self.timer += 1;
        self.expires = None;
        self.queued_bytes = 0;
        std::mem::take(&mut self.queue)
    }
}
