//! One attempt to make a sealed set durable.
//!
//! Owns: the permit and the encoding of a set before it goes to the log, the order of sets that go together, and one
//! outcome for each, whatever happens to it.
//! Does not own: batches and uploads (`fastchangelog-log`), what an outcome means (`ledger`).

use crate::buffer::RawSet;
use fastchangelog_format::EncodedSet;
use fastchangelog_format::config::Compression;
use fastchangelog_format::error::{Error, Result};
use fastchangelog_log::write::{Answer, InFlightPermit, JoinGuard, LogWriter, SetLocation};
use fastchangelog_store::transfer::blocking;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;

/// Sets of so few bytes are encoded by the caller itself: another thread's start would take longer.
const ENCODED_HERE: u64 = 128 << 10;

#[derive(Debug)]
enum Content {
    Raw(RawSet, Compression),
    Encoded(EncodedSet),
}

/// A sealed set, until it is durable.
#[derive(Debug)]
pub(crate) struct SealedSet {
    content: Content,
    permit: Option<Arc<InFlightPermit>>,
    /// Bytes of values.
    pub(crate) payload: u64,
    /// Bytes of memory when it was sealed.
    memory: u64,
}

impl SealedSet {
    /// A set that will be encoded by its first attempt.
    pub(crate) fn new(set: RawSet, compression: Compression, permit: Option<InFlightPermit>) -> Self {
        let (payload, memory) = (set.payload, set.memory);
        Self { content: Content::Raw(set, compression), permit: permit.map(Arc::new), payload, memory }
    }

    /// Bytes that remain to be encoded.
    fn raw_bytes(&self) -> u64 {
        if matches!(self.content, Content::Raw(..)) { self.memory } else { 0 }
    }

    fn encode(self) -> Result<(Self, EncodedSet)> {
        let set = match self.content {
            Content::Raw(set, compression) => set.encode(compression)?,
            Content::Encoded(set) => set,
        };
        Ok((Self { content: Content::Encoded(set.clone()), ..self }, set))
    }
}

/// Why a set is not durable, and the set itself; none if it cannot be tried again.
pub(crate) type Failure = (Error, Option<SealedSet>);

/// Receives the outcome of a set.
pub(crate) trait Receiver: Send + 'static {
    /// Called once, from any thread, with no lock held.
    fn on_outcome(&self, result: Result<SetLocation, Failure>);

    /// True when the set is not wanted any more.
    fn is_gone(&self) -> bool;
}

/// A set on its way, with its receiver. Dropped without an outcome, it reports that.
struct Attempt<R: Receiver> {
    receiver: R,
    set: Option<SealedSet>,
    is_over: bool,
}

impl<R: Receiver> Attempt<R> {
    fn end(mut self, result: Result<SetLocation>) {
        self.is_over = true;
        let set = self.set.take();
        self.receiver.on_outcome(result.map_err(|error| (error, set)));
    }

    /// The attempt with its set's bytes. A set that cannot be encoded can never be written.
    fn encoded(mut self) -> Option<(Self, EncodedSet)> {
        match self.set.take()?.encode() {
            Ok((sealed, set)) => {
                self.set = Some(sealed);
                Some((self, set))
            }
            Err(error) => {
                self.end(Err(error));
                None
            }
        }
    }
}

impl<R: Receiver> Answer for Attempt<R> {
    fn give(self: Box<Self>, result: Result<SetLocation>) {
        self.end(result);
    }

    fn is_gone(&self) -> bool {
        self.receiver.is_gone()
    }
}

impl<R: Receiver> Drop for Attempt<R> {
    fn drop(&mut self) {
        if !self.is_over {
            let error = Error::retryable("the upload of a change set was cancelled because its process is ending");
            self.receiver.on_outcome(Err((error.with_remedy("start the batch again"), None)));
        }
    }
}

/// Sends `sets` to the log, without blocking. They share an object with the others that have joined; `guard` is theirs.
pub(crate) fn send<R: Receiver>(
    log: &LogWriter,
    runtime: &Handle,
    since: Duration,
    sets: Vec<(R, SealedSet)>,
    guard: JoinGuard,
) {
    let (mut ready, mut waiting) = (Vec::with_capacity(sets.len()), Vec::new());
    for (receiver, mut set) in sets {
        // A set that is sent again holds its permit already.
        set.permit = set.permit.or_else(|| log.try_acquire(set.memory).map(Arc::new));
        let list = if set.permit.is_some() { &mut ready } else { &mut waiting };
        list.push(Attempt { receiver, set: Some(set), is_over: false });
    }
    let raw: u64 = ready.iter().filter_map(|attempt| attempt.set.as_ref()).map(SealedSet::raw_bytes).sum();
    let guard = if waiting.is_empty() { Some(guard) } else { None };
    if raw < ENCODED_HERE {
        submit(log, since, ready.into_iter().filter_map(Attempt::encoded).collect(), guard);
    } else {
        let log = log.clone();
        runtime.spawn(async move {
            let encode = move || ready.into_iter().filter_map(Attempt::encoded).collect();
            submit(&log, since, blocking(encode).await, guard);
        });
    }
    for mut attempt in waiting {
        log.make_room();
        let log = log.clone();
        runtime.spawn(async move {
            let memory = attempt.set.as_ref().map_or(0, |set| set.memory);
            match log.acquire_in_time(memory).await {
                Ok(permit) => {
                    if let Some(set) = &mut attempt.set {
                        set.permit = Some(Arc::new(permit));
                    }
                    submit(&log, since, blocking(|| attempt.encoded().into_iter().collect()).await, None);
                }
                Err(error) => attempt.end(Err(error)),
            }
        });
    }
}

fn submit<R: Receiver>(
    log: &LogWriter,
    since: Duration,
    encoded: Vec<(Attempt<R>, EncodedSet)>,
    mut guard: Option<JoinGuard>,
) {
    let mut left = encoded.len();
    for (attempt, set) in encoded {
        left -= 1;
        let Some(permit) = attempt.set.as_ref().and_then(|set| set.permit.clone()) else { continue };
        // The guard is given with the last: until then the others wait for it, and share its object.
        let guard = if left == 0 { guard.take() } else { None };
        log.submit_to(guard, set, permit, since, Box::new(attempt));
    }
}
