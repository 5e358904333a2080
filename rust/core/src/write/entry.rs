//! One change set on its way: its bytes, its share of the room for bytes in flight, and who waits for the answer.
//!
//! Owns: that every set is answered exactly once, whatever happens to it.
//! Does not own: the order of things (`batch`, `upload`).

use super::buffer::RawSet;
use crate::budget::{MemoryBudget, Part, Reservation};
use crate::config::Compression;
use crate::error::{Error, Result};
use crate::format::EncodedSet;
use crate::metrics::SharedMetrics;
use crate::model::{BatchId, ObjectRef};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, oneshot};

/// Where a change set is, durable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placed {
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
pub struct Room {
    bytes: u64,
    metrics: SharedMetrics,
    _permit: OwnedSemaphorePermit,
    _memory: Reservation,
}

impl Room {
    pub(super) fn new(
        bytes: u64,
        metrics: SharedMetrics,
        budget: &Arc<MemoryBudget>,
        permit: OwnedSemaphorePermit,
    ) -> Self {
        metrics.in_flight_bytes.add(bytes);
        Self { bytes, metrics, _permit: permit, _memory: budget.reserve(Part::Log, bytes) }
    }
}

impl Drop for Room {
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

/// A change set with its share of the room. It can be handed in again after a failure.
#[derive(Debug)]
pub struct Parcel {
    content: Content,
    pub(super) room: Option<Room>,
}

impl Parcel {
    /// A set that is encoded.
    pub fn encoded(set: EncodedSet) -> Self {
        Self { content: Content::Encoded(set), room: None }
    }

    /// A set that will be encoded by the thread that uploads it.
    pub fn raw(set: RawSet, compression: Compression) -> Self {
        Self { content: Content::Raw(set, compression), room: None }
    }

    /// The set with its share of the room.
    pub fn with_room(self, room: Room) -> Self {
        Self { room: Some(room), ..self }
    }

    /// Bytes of memory held.
    pub fn bytes(&self) -> u64 {
        match &self.content {
            Content::Encoded(set) => set.length,
            Content::Raw(set, _) => set.memory,
            Content::Lost => 0,
        }
    }

    /// True when [`Parcel::encode`] has nothing to do.
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
pub struct Failed {
    /// The reason.
    pub error: Error,
    /// The set; none if it cannot be tried again.
    pub parcel: Option<Parcel>,
}

/// Somebody who is told what became of a change set.
pub trait Landing: Send {
    /// The set is durable, or it is not. Called once, from any thread, with no lock held.
    fn landed(self: Box<Self>, result: Result<Placed, Failed>);

    /// True when nobody wants the set any more: it need not be uploaded.
    fn is_gone(&self) -> bool {
        false
    }
}

/// Who waits for a set: one of the two.
pub(super) struct Answer {
    future: Option<oneshot::Sender<Result<Placed>>>,
    landing: Option<Box<dyn Landing>>,
}

impl Answer {
    pub(super) fn future(sender: oneshot::Sender<Result<Placed>>) -> Self {
        Self { future: Some(sender), landing: None }
    }

    pub(super) fn landing(landing: Box<dyn Landing>) -> Self {
        Self { future: None, landing: Some(landing) }
    }

    pub(super) fn is_gone(&self) -> bool {
        self.future.as_ref().is_none_or(oneshot::Sender::is_closed) && self.landing.as_ref().is_none_or(|l| l.is_gone())
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
        // A future sees by itself that nobody will answer.
        if let Some(landing) = self.landing.take() {
            landing.landed(Err(Failed { error: super::no_answer(), parcel: None }));
        }
    }
}

/// One change set on its way. Dropping it without an answer tells whoever waits so.
pub(super) struct Entry {
    pub(super) parcel: Parcel,
    /// [`Parcel::bytes`] when it was handed in.
    pub(super) bytes: u64,
    /// Of a micro-batch, whose other sets are worth a short wait.
    pub(super) batch: Option<BatchId>,
    /// When it was submitted.
    pub(super) since: Duration,
    pub(super) answer: Answer,
}

impl Entry {
    /// Answers with an error; a writer gets its set back, with its room.
    pub(super) fn fail(mut self, error: Error) {
        if let Some(sender) = self.answer.future.take() {
            self.parcel.room = None;
            let _ = sender.send(Err(error));
        } else if let Some(landing) = self.answer.landing.take() {
            let parcel = Some(self.parcel).filter(|parcel| !matches!(parcel.content, Content::Lost));
            landing.landed(Err(Failed { error, parcel }));
        }
    }

    /// Answers with the set's place; gives back its share of the room.
    pub(super) fn succeed(mut self, placed: Placed) -> Option<Room> {
        if let Some(sender) = self.answer.future.take() {
            let _ = sender.send(Ok(placed));
        } else if let Some(landing) = self.answer.landing.take() {
            landing.landed(Ok(placed));
        }
        self.parcel.room.take()
    }
}
