//! One change set during its upload: its bytes, its in-flight permit, and the receiver of the answer.
//!
//! Owns: that every set is answered exactly once, whatever happens to it.
//! Does not own: batching (`batch`) and uploading (`upload`).

use fastchangelog_format::EncodedSet;
use fastchangelog_format::error::{Error, Result};
use fastchangelog_format::model::ObjectRef;
use fastchangelog_store::budget::{MemoryBudget, MemoryUser, Reservation};
use fastchangelog_store::metrics::SharedMetrics;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, oneshot};

/// The location of a durable change set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SetLocation {
    /// The log object.
    pub object: ObjectRef,
    /// First byte of the set in it.
    pub offset: u64,
    /// Bytes of the set.
    pub length: u64,
    /// Bytes at the set's start that say what is where in it.
    pub head: u64,
    /// The checksum in the set's header.
    pub mark: u32,
    /// Number of records.
    pub records: u64,
}

/// A share of `max_in_flight`: bytes that count as in flight until it is dropped.
#[derive(Debug)]
pub struct InFlightPermit {
    bytes: u64,
    metrics: SharedMetrics,
    _permit: OwnedSemaphorePermit,
    _memory: Reservation,
}

impl InFlightPermit {
    pub(super) fn new(
        bytes: u64,
        metrics: SharedMetrics,
        budget: &Arc<MemoryBudget>,
        permit: OwnedSemaphorePermit,
    ) -> Self {
        metrics.in_flight_bytes.add(bytes);
        Self { bytes, metrics, _permit: permit, _memory: budget.reserve(MemoryUser::Log, bytes) }
    }
}

impl Drop for InFlightPermit {
    fn drop(&mut self) {
        self.metrics.in_flight_bytes.sub(self.bytes);
    }
}

/// Receives the outcome of a change set. Dropped without one, it can expect none any more.
pub trait Answer: Send {
    /// The set is durable, or it is not. Called from any thread, with no lock held.
    fn give(self: Box<Self>, result: Result<SetLocation>);

    /// True when the set is not wanted any more: it need not be uploaded.
    fn is_gone(&self) -> bool;
}

impl Answer for oneshot::Sender<Result<SetLocation>> {
    fn give(self: Box<Self>, result: Result<SetLocation>) {
        let _ = self.send(result);
    }

    fn is_gone(&self) -> bool {
        self.is_closed()
    }
}

/// One submitted change set. Dropping it without an answer reports that to the receiver.
pub(super) struct Entry {
    pub(super) set: EncodedSet,
    pub(super) permit: Arc<InFlightPermit>,
    /// Of a task, whose wave's other sets are worth a short wait.
    pub(super) of_task: bool,
    /// When it was submitted.
    pub(super) since: Duration,
    pub(super) answer: Box<dyn Answer>,
}

impl Entry {
    pub(super) fn new(set: EncodedSet, permit: Arc<InFlightPermit>, since: Duration, answer: Box<dyn Answer>) -> Self {
        Self { set, permit, of_task: false, since, answer }
    }

    /// Bytes of memory held.
    pub(super) fn bytes(&self) -> u64 {
        self.permit.bytes
    }

    /// Answers with an error. A receiver that waits for the permit's bytes finds them free.
    pub(super) fn fail(self, error: Error) {
        drop((self.set, self.permit));
        self.answer.give(Err(error));
    }

    /// Answers with the set's location; returns its permit.
    pub(super) fn succeed(self, location: SetLocation) -> Arc<InFlightPermit> {
        self.answer.give(Ok(location));
        self.permit
    }
}
