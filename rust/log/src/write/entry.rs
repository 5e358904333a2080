//! One change set during its upload: its bytes, its in-flight permit, and the receiver of the answer.
//!
//! Owns: that every set is answered exactly once, whatever happens to it.
//! Does not own: batching (`batch`) and uploading (`upload`).

use super::buffer::RawSet;
use fastchangelog_format::EncodedSet;
use fastchangelog_format::config::Compression;
use fastchangelog_format::error::{Error, Result};
use fastchangelog_format::model::{BatchId, ObjectRef};
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

/// The bytes of a set.
#[derive(Debug)]
enum Content {
    Encoded(EncodedSet),
    Raw(RawSet, Compression),
    /// It could not be encoded, so it can never be written.
    Lost,
}

/// A change set with its in-flight permit. It can be submitted again after a failure.
#[derive(Debug)]
pub struct PendingSet {
    content: Content,
    pub(super) permit: Option<InFlightPermit>,
}

impl PendingSet {
    /// A set that is encoded.
    pub fn encoded(set: EncodedSet) -> Self {
        Self { content: Content::Encoded(set), permit: None }
    }

    /// A set that will be encoded by the thread that uploads it.
    pub fn raw(set: RawSet, compression: Compression) -> Self {
        Self { content: Content::Raw(set, compression), permit: None }
    }

    /// The set with `permit`.
    pub fn with_permit(self, permit: InFlightPermit) -> Self {
        Self { permit: Some(permit), ..self }
    }

    /// Bytes of memory held.
    pub fn bytes(&self) -> u64 {
        match &self.content {
            Content::Encoded(set) => set.length,
            Content::Raw(set, _) => set.memory,
            Content::Lost => 0,
        }
    }

    /// True when [`PendingSet::encode`] has nothing to do.
    pub(super) fn is_encoded(&self) -> bool {
        !matches!(self.content, Content::Raw(..))
    }

    /// Encodes what is not.
    pub(super) fn encode(&mut self) -> Result<()> {
        match std::mem::replace(&mut self.content, Content::Lost) {
            Content::Raw(set, compression) => self.content = Content::Encoded(set.encode(compression)?),
            other => self.content = other,
        }
        Ok(())
    }

    /// The encoded set.
    pub(super) fn set(&self) -> Result<&EncodedSet> {
        match &self.content {
            Content::Encoded(set) => Ok(set),
            _ => Err(Error::internal("a change set was not encoded")),
        }
    }
}

/// Why a change set is not durable, and the set itself, for another try.
#[derive(Debug)]
pub struct PersistFailure {
    /// The reason.
    pub error: Error,
    /// The set; none if it cannot be tried again.
    pub pending: Option<PendingSet>,
}

/// Receives the outcome of a change set.
pub trait PersistCallback: Send {
    /// The set is durable, or it is not. Called once, from any thread, with no lock held.
    fn on_persisted(self: Box<Self>, result: Result<SetLocation, PersistFailure>);

    /// True when the set is not wanted any more: it need not be uploaded.
    fn is_gone(&self) -> bool {
        false
    }
}

/// The receiver of a set's answer: one of the two.
pub(super) struct Answer {
    future: Option<oneshot::Sender<Result<SetLocation>>>,
    callback: Option<Box<dyn PersistCallback>>,
}

impl Answer {
    pub(super) fn future(sender: oneshot::Sender<Result<SetLocation>>) -> Self {
        Self { future: Some(sender), callback: None }
    }

    pub(super) fn callback(callback: Box<dyn PersistCallback>) -> Self {
        Self { future: None, callback: Some(callback) }
    }

    pub(super) fn is_gone(&self) -> bool {
        self.future.as_ref().is_none_or(oneshot::Sender::is_closed)
            && self.callback.as_ref().is_none_or(|l| l.is_gone())
    }

    pub(super) async fn gone(&mut self) {
        match &mut self.future {
            Some(sender) => sender.closed().await,
            None => std::future::pending().await,
        }
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        // A future detects the dropped sender by itself.
        if let Some(callback) = self.callback.take() {
            callback.on_persisted(Err(PersistFailure { error: super::no_answer(), pending: None }));
        }
    }
}

/// One submitted change set. Dropping it without an answer reports that to the receiver.
pub(super) struct Entry {
    pub(super) pending: PendingSet,
    /// [`PendingSet::bytes`] when it was submitted.
    pub(super) bytes: u64,
    /// Of a micro-batch, whose other sets are worth a short wait.
    pub(super) batch: Option<BatchId>,
    /// When it was submitted.
    pub(super) since: Duration,
    pub(super) answer: Answer,
}

impl Entry {
    /// Answers with an error; a callback gets the set back, with its permit.
    pub(super) fn fail(mut self, error: Error) {
        if let Some(sender) = self.answer.future.take() {
            self.pending.permit = None;
            let _ = sender.send(Err(error));
        } else if let Some(callback) = self.answer.callback.take() {
            let pending = Some(self.pending).filter(|pending| !matches!(pending.content, Content::Lost));
            callback.on_persisted(Err(PersistFailure { error, pending }));
        }
    }

    /// Answers with the set's location; returns its permit.
    pub(super) fn succeed(mut self, location: SetLocation) -> Option<InFlightPermit> {
        if let Some(sender) = self.answer.future.take() {
            let _ = sender.send(Ok(location));
        } else if let Some(callback) = self.answer.callback.take() {
            callback.on_persisted(Ok(location));
        }
        self.pending.permit.take()
    }
}
