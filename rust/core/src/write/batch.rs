//! Who waits, and when a batch goes: the writer's decisions, without I/O and without time.
//!
//! Owns: the queue of waiting change sets, the count of sessions that could still join, the number of the timer.
//! Does not own: timers and uploads; it says what is to be done.

use super::entry::Entry;
use crate::error::Result;
use crate::model::BatchId;

/// What is to be done after an event.
#[must_use]
pub(super) enum Next {
    /// Nothing.
    Wait,
    /// Start the timer of this number.
    Timer(u64),
    /// The same, but for company that is only likely to come: a short one.
    ShortTimer(u64),
    /// Upload these sets as one object.
    Upload(Vec<Entry>),
}

/// The queue. Invariants:
/// 1. a set that waits has a running timer of the current number;
/// 2. nothing waits while nobody could join, but for shards that took part in the last micro-batch and whose task should
///    be running: fewer wait than ever ran at once, and fewer have come than then. The slowest task of a wave ends it,
///    so waiting for it costs nothing, and one object holds the wave;
/// 3. after close the queue is empty for ever.
pub(super) struct Batcher {
    queue: Vec<Entry>,
    queued_bytes: u64,
    /// Sessions that may still add a set.
    joiners: usize,
    threshold: u64,
    timer: u64,
    closed: bool,
    /// The micro-batch of the newest set, how many sets it has brought, and how many the one before it did.
    batch: Option<BatchId>,
    come: usize,
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
            come: 0,
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

    /// A set has come; `joined`: from a session that was counted. Gives it back after close.
    pub(super) fn add(&mut self, entry: Entry, joined: bool) -> Result<Next, Box<Entry>> {
        if joined {
            self.joiners = self.joiners.saturating_sub(1);
        }
        if self.closed {
            return Err(Box::new(entry));
        }
        if let Some(batch) = entry.batch {
            if self.batch.replace(batch) != Some(batch) {
                self.expected = std::mem::take(&mut self.come);
            }
            self.come += 1;
        }
        self.queued_bytes += entry.bytes;
        let peers = entry.batch.is_some();
        self.queue.push(entry);
        if self.queued_bytes >= self.threshold {
            return Ok(Next::Upload(self.drain()));
        }
        Ok(match self.joiners {
            0 if peers && self.come < self.expected && self.queue.len() < self.peak => Next::ShortTimer(self.timer),
            0 => Next::Upload(self.drain()),
            _ if self.queue.len() == 1 => Next::Timer(self.timer),
            _ => Next::Wait,
        })
    }

    /// The timer of this number has run out; one of an earlier batch means nothing.
    pub(super) fn timer(&mut self, number: u64) -> Next {
        if number == self.timer && !self.queue.is_empty() { Next::Upload(self.drain()) } else { Next::Wait }
    }

    /// True while the batch of timer `number` has not gone.
    pub(super) fn is_current(&self, number: u64) -> bool {
        number == self.timer
    }

    /// Somebody waits for room: what waits for company goes.
    pub(super) fn press(&mut self) -> Next {
        if self.queue.is_empty() { Next::Wait } else { Next::Upload(self.drain()) }
    }

    /// Takes the whole queue.
    pub(super) fn drain(&mut self) -> Vec<Entry> {
        self.timer += 1;
        self.queued_bytes = 0;
        std::mem::take(&mut self.queue)
    }

    /// Ends the queue; what waited is given back.
    pub(super) fn close(&mut self) -> Vec<Entry> {
        self.closed = true;
        self.drain()
    }
}
