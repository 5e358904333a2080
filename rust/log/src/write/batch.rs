//! Which sets wait and when a batch is uploaded: the writer's decisions, without I/O and without a clock.
//!
//! Owns: the queue of waiting change sets, the count of sessions that could still join, the number of the timer.
//! Does not own: timers and uploads; it returns the next action.

use super::entry::Entry;
use fastchangelog_format::error::Result;
use fastchangelog_format::model::BatchId;

/// The next action after an event.
#[must_use]
pub(super) enum Next {
    /// Nothing.
    Wait,
    /// Start the timer of this number.
    Timer(u64),
    /// Start a short timer of this number: another set is likely, but not announced.
    ShortTimer(u64),
    /// Upload these sets as one object.
    Upload(Vec<Entry>),
}

/// The queue. Invariants:
/// 1. a set that waits has a running timer of the current number;
/// 2. a set waits only while another may still join: (a) from an open session, or (b) from a shard that took part in the
///    last micro-batch and whose task should be running: fewer sets wait than ever ran at once, and fewer have arrived than
///    in the last micro-batch. The slowest task of a wave ends it, so waiting for it costs nothing, and one object holds
///    the wave;
/// 3. after close the queue stays empty.
pub(super) struct Batcher {
    queue: Vec<Entry>,
    queued_bytes: u64,
    /// Sessions that may still add a set.
    joiners: usize,
    threshold: u64,
    timer: u64,
    closed: bool,
    /// The micro-batch of the newest set, its sets so far, and the sets of the micro-batch before.
    batch: Option<BatchId>,
    arrived: usize,
    expected: usize,
    /// Most sessions at once so far.
    peak: usize,
}

impl Batcher {
    pub(super) fn new(threshold: u64) -> Self {
        Self {
            queue: Vec::new(),
            queued_bytes: 0,
            joiners: 0,
            threshold,
            timer: 0,
            closed: false,
            batch: None,
            arrived: 0,
            expected: 0,
            peak: 0,
        }
    }

    /// A session could add a set.
    pub(super) fn join(&mut self) {
        self.joiners += 1;
        self.peak = self.peak.max(self.joiners + self.queue.len());
    }

    /// A session will not add a set after all.
    pub(super) fn leave(&mut self) -> Next {
        self.joiners = self.joiners.saturating_sub(1);
        if self.joiners == 0 && !self.queue.is_empty() { Next::Upload(self.drain()) } else { Next::Wait }
    }

    /// Adds a set; `joined`: its session was counted. Returns the set after close.
    pub(super) fn add(&mut self, entry: Entry, joined: bool) -> Result<Next, Box<Entry>> {
        if joined {
            self.joiners = self.joiners.saturating_sub(1);
        }
        if self.closed {
            return Err(Box::new(entry));
        }
        if let Some(batch) = entry.batch {
            if self.batch.replace(batch) != Some(batch) {
                self.expected = std::mem::take(&mut self.arrived);
            }
            self.arrived += 1;
        }
        self.queued_bytes += entry.bytes();
        let peers = entry.batch.is_some();
        self.queue.push(entry);
        if self.queued_bytes >= self.threshold {
            return Ok(Next::Upload(self.drain()));
        }
        Ok(match self.joiners {
            0 if peers && self.arrived < self.expected && self.queue.len() < self.peak => Next::ShortTimer(self.timer),
            0 => Next::Upload(self.drain()),
            _ if self.queue.len() == 1 => Next::Timer(self.timer),
            _ => Next::Wait,
        })
    }

    /// The timer of this number has expired; a timer of an earlier batch has no effect.
    pub(super) fn timer(&mut self, number: u64) -> Next {
        if number == self.timer && !self.queue.is_empty() { Next::Upload(self.drain()) } else { Next::Wait }
    }

    /// True while the batch of timer `number` is not uploaded.
    pub(super) fn is_current(&self, number: u64) -> bool {
        number == self.timer
    }

    /// Flushes the waiting batch now, to free its buffer space.
    pub(super) fn flush_waiting(&mut self) -> Next {
        if self.queue.is_empty() { Next::Wait } else { Next::Upload(self.drain()) }
    }

    /// Takes the whole queue.
    pub(super) fn drain(&mut self) -> Vec<Entry> {
        self.timer += 1;
        self.queued_bytes = 0;
        std::mem::take(&mut self.queue)
    }

    /// Ends the queue; returns the waiting sets.
    pub(super) fn close(&mut self) -> Vec<Entry> {
        self.closed = true;
        self.drain()
    }
}
